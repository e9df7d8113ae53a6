//! Everything else that the answers decide.

use std::time::Duration;

use retrysafe_core::contract::ClaimMethod;

use crate::{
    answers::{Answers, Callers, Failures, Horizon, Identity, Interface, Service, StoreKind},
    rank::{Ranking, rank},
};

/// The shortest window that is worth its name (SPEC 3.1),
const REPLAY_MIN: Duration = Duration::from_secs(24 * 3_600);
/// and how long records are kept for people.
const REAP_MIN: Duration = Duration::from_secs(72 * 3_600);

/// Where the rules are enforced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the service.
    Library,
    /// In front of it.
    Gateway,
}

/// What a lost holder means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recovery {
    /// The effect commits with the claim: it is run again.
    Atomic,
    /// Steps with recovery points: it is resumed.
    Phased,
    /// It may have happened: the key is uncertain.
    Outside,
}

impl Recovery {
    /// As a contract spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Atomic => "atomic",
            Self::Phased => "phased",
            Self::Outside => "outside",
        }
    }
}

/// What follows from the answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The order of the methods.
    pub ranking: Ranking,
    /// The one that the contract says.
    pub claim: ClaimMethod,
    /// Where it is enforced.
    pub place: Place,
    /// What keeps the claims.
    pub store: String,
    /// What a lost holder means.
    pub recovery: Recovery,
    /// How long answers are replayed.
    pub replay: Duration,
    /// How long records are kept.
    pub reap: Duration,
    /// The header that carries the time left, for REST.
    pub deadline_header: Option<&'static str>,
    /// Decisions and their reasons, in the order of the questions.
    pub reasons: Vec<String>,
    /// What is to be done next, most leverage first.
    pub next: Vec<String>,
    /// What the answers give up, said plainly.
    pub lost: Vec<String>,
}

impl Plan {
    /// Decides.
    pub fn of(answers: &Answers) -> Self {
        let ranking = rank(answers);
        let own_store = ranking.ranked.is_empty()
            || answers.store == StoreKind::Cache
            || answers.store == StoreKind::ConditionalWrites;
        let place = match answers.service {
            // Nothing can be claimed in the service's store: a gateway with a store of its own can.
            Service::Rust if !own_store => Place::Library,
            _ => Place::Gateway,
        };
        let claim = ranking
            .ranked
            .first()
            .filter(|_| place == Place::Library)
            .map_or(ClaimMethod::Unique, |one| one.method);
        let recovery = match (place, answers.irreversible_calls) {
            (Place::Gateway, _) => Recovery::Outside,
            (Place::Library, true) => Recovery::Phased,
            (Place::Library, false) => Recovery::Atomic,
        };
        let replay = answers.chain().max(REPLAY_MIN);
        let mut plan = Self {
            claim,
            place,
            store: store(place, own_store),
            recovery,
            replay,
            reap: replay.max(REAP_MIN),
            deadline_header: (answers.interface != Interface::Grpc).then_some("x-request-timeout-ms"),
            reasons: Vec::new(),
            next: Vec::new(),
            lost: Vec::new(),
            ranking,
        };
        plan.reasons = reasons(answers, &plan);
        plan.next = next(answers, &plan);
        plan.lost = lost(answers, &plan);
        plan
    }
}

fn store(place: Place, own_store: bool) -> String {
    match (place, own_store) {
        (Place::Library, _) => "the service's own database (PostgreSQL, MariaDB or SQLite)".to_owned(),
        (Place::Gateway, false) => "a database of the gateway's own: SQLite for one process, PostgreSQL or MariaDB for several".to_owned(),
        (Place::Gateway, true) => "a store of the gateway's own, since what is there cannot keep claims: SQLite for one process, PostgreSQL or MariaDB for several".to_owned(),
    }
}

fn reasons(answers: &Answers, plan: &Plan) -> Vec<String> {
    let hours = |time: Duration| time.as_secs() / 3_600;
    let mut reasons = vec![
        match answers.interface {
            Interface::Rest => {
                "1: REST has no deadline of its own: it travels in x-request-timeout-ms".to_owned()
            }
            Interface::Grpc => {
                "1: gRPC carries deadlines by itself (grpc-timeout): no header is needed".to_owned()
            }
            Interface::Both => {
                "1: gRPC carries deadlines by itself; REST calls carry theirs in x-request-timeout-ms"
                    .to_owned()
            }
        },
        second(answers),
        format!("3: claims are kept in {}", plan.store),
    ];
    reasons.push(match plan.recovery {
        Recovery::Phased => "4: external calls cannot be rolled back: requests run in steps with recovery points, and no call is repeated".to_owned(),
        Recovery::Atomic => "4: nothing outside is changed: claim, rows and answer are one commit".to_owned(),
        Recovery::Outside => "4: a gateway cannot see whether a lost request had its effect: its key stays uncertain until somebody or something looks".to_owned(),
    });
    reasons.push(match (answers.raw_http, answers.sdk_languages.is_empty()) {
        (true, true) => "5: raw HTTP: the document is all that integrators have".to_owned(),
        (true, false) => format!(
            "5: raw HTTP and SDKs ({}): the document first, then the SDKs' defaults",
            answers.sdk_languages.join(", ")
        ),
        (false, false) => format!(
            "5: SDKs only ({}): their defaults are the contract of people who never read one",
            answers.sdk_languages.join(", ")
        ),
        (false, true) => "5: neither SDKs nor raw HTTP: callers are our own".to_owned(),
    });
    reasons.push(if answers.chain() > REPLAY_MIN {
        format!(
            "6: the longest chain of retries takes {} h, so answers are replayed for {} h",
            hours(answers.chain()),
            hours(plan.replay)
        )
    } else {
        format!(
            "6: the longest chain of retries fits into the {} h of the default window",
            hours(plan.replay)
        )
    });
    reasons.push(match answers.horizon {
        Horizon::Contract => "7: all later endpoints inherit it: what no endpoint lists is refused, so that none is forgotten".to_owned(),
        Horizon::OneOff => "7: one fix: what no endpoint lists passes, and is counted".to_owned(),
        Horizon::Deadline => "7: a deadline: what no endpoint lists passes, and is counted; the richer life of a claim can come later".to_owned(),
    });
    reasons.push(match answers.callers {
        Callers::Own => "both ends are ours: convention and review do most of it".to_owned(),
        Callers::ThirdParties => {
            "third parties retry by the document: the complete contract is published".to_owned()
        }
        Callers::Sdk => "the SDK is the loop: its defaults have the most leverage".to_owned(),
    });
    reasons.push(match answers.failures {
        Failures::A => "failures: the first result is stored, whatever it is; clients do not retry what would only be replayed".to_owned(),
        Failures::B => "failures: what passes is not pinned, where no effect can have happened".to_owned(),
    });
    reasons
}

fn second(answers: &Answers) -> String {
    let optional = answers.endpoints.iter().filter(|one| one.ends_with(" optional")).count();
    let rest = answers.endpoints.len() - optional;
    let more = if optional > 0 {
        format!(
            "; on {optional} more, which are idempotent by definition or change nothing to speak of, it is optional"
        )
    } else {
        String::new()
    };
    format!(
        "2: {rest} operations take a key; it is required, so that no caller is unsafe without knowing{more}"
    )
}

fn next(answers: &Answers, plan: &Plan) -> Vec<String> {
    let mut next = Vec::new();
    let publish = "publish the page: retrysafe docs --out idempotency.md, and keep it from drifting: retrysafe docs --check".to_owned();
    match answers.callers {
        Callers::Own => next.push("agree on where keys come from (order-confirm-{order_id} before a random one), and look for the others: retrysafe audit --code".to_owned()),
        Callers::ThirdParties => next.push(publish.clone()),
        Callers::Sdk => next.push(format!("set the SDKs' defaults ({}): retries on, full jitter, one key for each call", list(&answers.sdk_languages))),
    }
    if answers.raw_http && answers.callers != Callers::ThirdParties {
        next.push(publish);
    }
    if !answers.sdk_languages.is_empty() && answers.callers != Callers::Sdk {
        next.push(format!("give the SDKs ({}) the same numbers", list(&answers.sdk_languages)));
    }
    next.push("check it against the store: retrysafe check".to_owned());
    match plan.place {
        Place::Library => next.push(
            "open the store with this contract, and let handlers write in the claim's transaction".to_owned(),
        ),
        Place::Gateway => next.push("run it in front: retrysafe serve --upstream URL".to_owned()),
    }
    next
}

fn list(languages: &[String]) -> String {
    if languages.is_empty() { "none named".to_owned() } else { languages.join(", ") }
}

fn lost(answers: &Answers, plan: &Plan) -> Vec<String> {
    let mut lost = Vec::new();
    if plan.place == Place::Gateway {
        lost.push("claim and rows are not one commit: after a crash between them a key is uncertain, and somebody has to look".to_owned());
    }
    if answers.store == StoreKind::Cache {
        lost.push("a cache forgets, and SETNX with a time to live lets a paused holder write after its lock ran out: it keeps no claims here".to_owned());
    }
    if answers.identity == Identity::Anonymous {
        lost.push("all callers share one scope: who guesses a key sees another's answer".to_owned());
    }
    if plan.ranking.ranked.is_empty() {
        lost.push("no way to claim a key is left in the service's own store".to_owned());
    }
    if answers.irreversible_calls && plan.place == Place::Library && plan.claim != ClaimMethod::Serializable {
        lost.push("row lock + SERIALIZABLE cannot be reached: two different requests that read the same rows are not kept apart".to_owned());
    }
    lost
}
