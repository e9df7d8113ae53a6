//! From what was read and counted to what is wrong with a claim. Pure.

use std::collections::BTreeSet;

use super::state::{State, masks};
use crate::arms::Finding;
use crate::observe::Seen;
use crate::wire::Answer;

/// What one round saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// Names that the plan passes over.
    pub volatile: Vec<String>,
    /// What made the thing, if anything had to.
    pub setup: Option<Result<Answer, String>>,
    /// Read twice with no write in between.
    pub before: [State; 2],
    /// Of the operation, in the order of sending.
    pub answers: Vec<Result<Answer, String>>,
    /// After the first, the second, and two more at once.
    pub states: Vec<State>,
    /// By the observers, at the same moments.
    pub counts: Vec<Vec<Seen>>,
    /// After a newer write, after a late retry of the older one, and what that retry was told.
    pub late: Option<(State, State, Result<Answer, String>)>,
}

impl Observed {
    /// Nothing yet.
    #[must_use]
    pub fn new(volatile: &[String]) -> Self {
        let unread = || State::Unread("not read yet".to_owned());
        Self {
            volatile: volatile.to_vec(),
            setup: None,
            before: [unread(), unread()],
            answers: Vec::new(),
            states: Vec::new(),
            counts: Vec::new(),
            late: None,
        }
    }
}

/// Everything that is wrong with the claim.
#[must_use]
pub fn judge(observed: &Observed) -> Vec<Finding> {
    if let Some(unclear) = not_begun(observed) {
        return vec![unclear];
    }
    let (masked, learned) = masks(&observed.volatile, &observed.before);
    let mut findings = Vec::new();
    let [_, before] = &observed.before;
    let [first, again, at_once] = observed.states.as_slice() else { return findings };
    for state in [before, first, again, at_once] {
        if let State::Unread(why) = state {
            let change = "make `read` a path that answers, also when the thing is gone";
            return vec![Finding::Unclear {
                why: format!("the state could not be read: {why}"),
                change: change.to_owned(),
            }];
        }
    }
    // A control: a write that shows nowhere could be repeated for ever and nobody would see it.
    let counted = |at: usize| observed.counts.get(at).map(|seen| seen.iter().map(|it| it.total).sum::<u64>());
    if before.differences(first, &masked).is_empty() && counted(0).unwrap_or_default() == 0 {
        return vec![Finding::Unclear {
            why: "the first call changed nothing that can be seen".to_owned(),
            change: "read what it changes, or add an observer; put {{nonce}} into its body".to_owned(),
        }];
    }
    let repeats = [("a repeat", first, again, 0), ("two repeats at once", again, at_once, 1)];
    for (what, one, two, at) in repeats {
        let places = one.differences(two, &masked);
        if !places.is_empty() {
            findings.push(Finding::Fail(format!("{what} changed the state: {}", places.join(", "))));
        }
        findings.extend(grown(what, observed.counts.get(at), observed.counts.get(at + 1)));
    }
    let failed = observed.answers.iter().skip(1).flatten().filter(|answer| answer.status >= 500).count();
    if failed > 0 {
        findings.push(Finding::Note(format!("{failed} repeats were told 5xx: a client goes on retrying")));
    }
    if !learned.is_empty() {
        findings.push(Finding::Note(format!(
            "passed over, since reading alone changes it: {}",
            learned.join(", ")
        )));
    }
    findings.extend(late(observed, &masked));
    findings
}

fn not_begun(observed: &Observed) -> Option<Finding> {
    let unclear = |why: String, change: &str| Some(Finding::Unclear { why, change: change.to_owned() });
    if let Some(made) = &observed.setup {
        match made {
            Ok(answer) if answer.status < 300 && !observed.answers.is_empty() => {}
            Ok(answer) if answer.status < 300 => {
                return unclear(
                    "the answer of [claim.setup] has no `id` there".to_owned(),
                    "make `id` a JSON pointer into it",
                );
            }
            Ok(answer) => {
                return unclear(
                    format!("[claim.setup] was told {}", answer.status),
                    "make it one that succeeds",
                );
            }
            Err(why) => return unclear(format!("[claim.setup] got no answer: {why}"), "is the API running?"),
        }
    }
    match observed.answers.first() {
        Some(Ok(answer)) if answer.status < 300 => None,
        Some(Ok(answer)) => unclear(
            format!("the first call was told {}", answer.status),
            "make it one that succeeds; it may need [claim.setup]",
        ),
        Some(Err(why)) => unclear(format!("the first call got no answer: {why}"), "is the API running?"),
        None => unclear("nothing was sent".to_owned(), "is the API running?"),
    }
}

/// Observers that counted more after a repeat.
fn grown(what: &str, one: Option<&Vec<Seen>>, two: Option<&Vec<Seen>>) -> Vec<Finding> {
    let pairs = one.into_iter().flatten().zip(two.into_iter().flatten());
    let more = pairs.filter(|(one, two)| two.total > one.total);
    more.map(|(one, two)| {
        Finding::Fail(format!(
            "{what} had an effect: observer `{}` counted {} and then {}",
            one.observer, one.total, two.total
        ))
    })
    .collect()
}

/// Not a breach of idempotence, and what people are surprised by: an old write that comes late takes the new one back.
fn late(observed: &Observed, masked: &BTreeSet<String>) -> Option<Finding> {
    let (newer, after, told) = observed.late.as_ref()?;
    let refused = told.as_ref().is_ok_and(|answer| answer.status >= 400);
    let lost = !newer.differences(after, masked).is_empty();
    (lost && !refused).then(|| {
        Finding::Note(
            "lost update: a late retry of an older write took the newer one back. That is idempotent all the same; a precondition (If-Match) or a key prevents it"
                .to_owned(),
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn told(status: u16) -> Result<Answer, String> {
        Ok(Answer { status, headers: vec![], body: vec![] })
    }

    fn seen(total: u64) -> Vec<Seen> {
        vec![Seen { observer: "mails".into(), total, each: None }]
    }

    /// States before, after the first, the second, and two at once; counts after the last three.
    fn observed(states: [Value; 4], counts: [u64; 3]) -> Observed {
        let [before, rest @ ..] = states.map(|value| State::Json(200, value));
        Observed {
            before: [before.clone(), before],
            answers: vec![told(200), told(200), told(200), told(200)],
            states: rest.to_vec(),
            counts: counts.map(seen).to_vec(),
            ..Observed::new(&[])
        }
    }

    fn found(observed: &Observed) -> Vec<String> {
        judge(observed).iter().map(|finding| format!("{finding:?}")).collect()
    }

    #[test]
    fn the_same_state_and_no_more_effects() {
        assert_eq!(
            found(&observed([json!(null), json!(1), json!(1), json!(1)], [1, 1, 1])),
            Vec::<String>::new()
        );
    }

    #[test]
    fn c11_a_put_that_writes_a_second_mail_is_found() {
        let found = found(&observed([json!(null), json!(1), json!(1), json!(1)], [1, 2, 2]));
        assert!(found.len() == 1 && found[0].starts_with("Fail") && found[0].contains("mails"), "{found:?}");
    }

    #[test]
    fn c34_a_state_that_grows_is_found_at_the_repeat_or_in_the_race() {
        assert!(
            found(&observed([json!([]), json!([1]), json!([1, 1]), json!([1, 1])], [0; 3]))[0]
                .contains("a repeat changed")
        );
        assert!(
            found(&observed([json!(0), json!(1), json!(1), json!(2)], [0; 3]))[0].contains("at once changed")
        );
    }

    #[test]
    fn what_cannot_be_seen_is_unclear() {
        assert!(
            found(&observed([json!(1), json!(1), json!(1), json!(1)], [0; 3]))[0].contains("changed nothing")
        );
        let refused = Observed {
            answers: vec![told(404)],
            ..observed([json!(0), json!(1), json!(1), json!(1)], [0; 3])
        };
        assert!(found(&refused)[0].contains("told 404"));
        let unread = Observed {
            states: vec![State::Unread("x".into()); 3],
            ..observed([json!(0), json!(1), json!(1), json!(1)], [0; 3])
        };
        assert!(found(&unread)[0].contains("could not be read"));
    }

    #[test]
    fn a_late_retry_of_an_older_write_is_told_apart() {
        let late = (State::Json(200, json!("new")), State::Json(200, json!("old")), told(200));
        let lost = Observed {
            late: Some(late.clone()),
            ..observed([json!(null), json!("old"), json!("old"), json!("old")], [0; 3])
        };
        assert!(found(&lost)[0].starts_with("Note") && found(&lost)[0].contains("lost update"));
        let kept = Observed { late: Some((late.0.clone(), late.0, told(412))), ..lost };
        assert_eq!(found(&kept), Vec::<String>::new());
    }
}
