//! Ways to claim a key, ranked by value, effort and efficiency (SPEC 4.2), and re-judged by the answers.
//!
//! What cannot be reached is removed, with its reason; it is never ranked last, since somebody would take it for an option.

use retrysafe_core::contract::ClaimMethod;

use crate::answers::{Answers, Effort, Horizon, Service, StoreKind};

/// A method that can be reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ranked {
    /// Which.
    pub method: ClaimMethod,
    /// Place in the order, from 1; equal places are ties.
    pub place: usize,
    /// 1 to 3, more is better.
    pub value: u8,
    /// 1 to 3, more costs more.
    pub effort: u8,
    /// 1 to 3, more is better.
    pub efficiency: u8,
}

/// A method that cannot be reached, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Removed {
    /// Which.
    pub method: ClaimMethod,
    /// Why, with the answer that removed it.
    pub why: String,
}

/// The order, what is not in it, and what moved it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ranking {
    /// Best first.
    pub ranked: Vec<Ranked>,
    /// Not reachable.
    pub removed: Vec<Removed>,
    /// What the answers changed in the default order.
    pub moved: Vec<String>,
}

/// What a person would call it.
pub(crate) fn name(method: ClaimMethod) -> &'static str {
    match method {
        ClaimMethod::Unique => "unique constraint",
        ClaimMethod::Conditional => "conditional write",
        ClaimMethod::Serializable => "row lock + SERIALIZABLE",
    }
}

/// Ranks the methods for these answers.
pub fn rank(answers: &Answers) -> Ranking {
    let mut ranking = Ranking { ranked: Vec::new(), removed: Vec::new(), moved: Vec::new() };
    for method in [ClaimMethod::Serializable, ClaimMethod::Unique, ClaimMethod::Conditional] {
        let option = judged(answers, method);
        match unreachable(answers, &option) {
            Some(why) => ranking.removed.push(Removed { method, why }),
            None => ranking.ranked.push(option),
        }
    }
    if answers.serializable_today && !answers_remove_serializable(&ranking) {
        ranking.moved.push(
            "SERIALIZABLE is run already: row lock + SERIALIZABLE costs far less than it is ranked"
                .to_owned(),
        );
    }
    order(answers, &mut ranking);
    ranking
}

fn answers_remove_serializable(ranking: &Ranking) -> bool {
    ranking.removed.iter().any(|one| one.method == ClaimMethod::Serializable)
}

/// The ranks of SPEC 4.2, and what they are where SERIALIZABLE is run already.
fn judged(answers: &Answers, method: ClaimMethod) -> Ranked {
    let (value, effort, efficiency) = match method {
        ClaimMethod::Serializable if answers.serializable_today => (3, 1, 2),
        ClaimMethod::Serializable => (3, 3, 1),
        ClaimMethod::Unique => (2, 1, 3),
        ClaimMethod::Conditional => (2, 2, 2),
    };
    Ranked { method, place: 0, value, effort, efficiency }
}

/// Why a method cannot be reached; the first reason is enough.
fn unreachable(answers: &Answers, option: &Ranked) -> Option<String> {
    let method = option.method;
    let relational = answers.store == StoreKind::Relational;
    match method {
        ClaimMethod::Unique if !relational => {
            return Some("question 3: the store has no unique constraint inside a transaction".to_owned());
        }
        ClaimMethod::Serializable if !relational => {
            return Some("question 3: the store has no serializable transactions".to_owned());
        }
        ClaimMethod::Serializable if answers.service == Service::Other => {
            return Some(
                "a gateway cannot join the handler's transaction, so it cannot guard what the handler reads"
                    .to_owned(),
            );
        }
        ClaimMethod::Serializable if !answers.serializable_today && !answers.isolation_migration => {
            return Some("question 7: the isolation level cannot be raised".to_owned());
        }
        _ => {}
    }
    // A gateway brings a store of its own, which needs no migration of anybody's schema.
    if relational && !answers.schema_migration && answers.service == Service::Rust {
        return Some("question 7: it needs a table, and no migration of the schema is possible".to_owned());
    }
    let ceiling = match answers.effort_ceiling {
        Effort::Days => 1,
        Effort::Weeks => 2,
        Effort::Months => 3,
    };
    // The store that is there is not built: only its use costs.
    let built = !relational && method == ClaimMethod::Conditional;
    (option.effort > ceiling && !built).then(|| {
        format!("question 7: it takes more than {}, which is the ceiling", answers.effort_ceiling.as_str())
    })
}

/// Orders what is left: by what was answered to questions 4 and 7.
fn order(answers: &Answers, ranking: &mut Ranking) {
    type Key = fn(&Ranked) -> (u8, u8, u8);
    let by_value: Key = |one| (3 - one.value, one.effort, 3 - one.efficiency);
    let by_effort: Key = |one| (one.effort, 3 - one.efficiency, 3 - one.value);
    let has = |ranking: &Ranking, method| ranking.ranked.iter().any(|one| one.method == method);
    let serializable = has(ranking, ClaimMethod::Serializable);
    let key = match answers.horizon {
        Horizon::Contract => by_value,
        Horizon::OneOff | Horizon::Deadline => by_effort,
    };
    ranking.ranked.sort_by_key(key);
    match answers.horizon {
        Horizon::Contract if serializable => {
            ranking.moved.push("question 7: a contract to live with: value comes first, and the richer life of a claim with it".to_owned());
        }
        Horizon::Deadline => ranking
            .moved
            .push("question 7: a hard deadline: what the present store already does comes first".to_owned()),
        Horizon::OneOff => ranking.moved.push("question 7: one fix: effort comes first".to_owned()),
        Horizon::Contract => {}
    }
    let mut forced = false;
    if answers.irreversible_calls && serializable {
        ranking.moved.push("question 4: external state is changed: row lock + SERIALIZABLE, where in-flight outlives the lock".to_owned());
        ranking.ranked.sort_by_key(|one| one.method != ClaimMethod::Serializable);
        forced = true;
    }
    let mut place = 0;
    let mut before: Option<(u8, u8, u8)> = None;
    for (index, one) in ranking.ranked.iter_mut().enumerate() {
        let now = (one.value, one.effort, one.efficiency);
        // What is equal in everything is a tie, and printed as one.
        if before != Some(now) || forced && index == 1 {
            place = index + 1;
        }
        one.place = place;
        before = Some(now);
    }
}
