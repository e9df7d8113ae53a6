//! From what was killed, told and counted to what is wrong. Pure.

use crate::arms::Finding;
use crate::observe::Seen;

/// How the key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A success, or a refusal that is an answer.
    Told(u16),
    /// It may have happened, and people look at it.
    Uncertain,
    /// Still in flight, or not available, when the time was over.
    Stuck(u16),
    /// No answer at all.
    Silent,
    /// Nobody asked: the API was left to itself.
    NotAsked,
}

/// One crash and what followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crash {
    /// The API was hit while it worked on the request.
    pub landed: bool,
    /// What the first request was told, if anything.
    pub first: Option<u16>,
    /// How the key ended.
    pub end: End,
    /// Calls to the stub, by the key that each carried.
    pub calls: Vec<(Option<String>, usize)>,
    /// What observers other than the stub counted.
    pub seen: Vec<Seen>,
}

/// Everything that is wrong.
#[must_use]
pub fn judge(crash: &Crash) -> Vec<Finding> {
    if !crash.landed {
        return vec![Finding::Unclear {
            why: "the API was not hit while it worked on the request".to_owned(),
            change: "point the API's provider at [stub] listen; make [request] one that calls it".to_owned(),
        }];
    }
    let mut findings = Vec::new();
    match crash.end {
        // Told to the first caller too: a failure that is kept (SPEC 6.1, policy A) is an answer.
        End::Told(status) if status >= 500 && crash.first == Some(status) => {
            findings.push(Finding::Note(format!(
                "its failure is kept: {status} is told to every retry, and what happened has to be looked up"
            )));
        }
        End::Told(status) if status >= 500 => {
            findings
                .push(Finding::Fail(format!("whoever retried after the crash was told {status} to the end")));
        }
        End::Told(_) | End::NotAsked => {}
        End::Uncertain => {
            findings.push(Finding::Note("ended as uncertain, to be looked at by people".to_owned()))
        }
        End::Stuck(status) => {
            findings
                .push(Finding::Fail(format!("the key is stuck: {status} was told until the time was over")));
        }
        End::Silent => {
            findings.push(Finding::Fail("no retry was answered until the time was over".to_owned()))
        }
    }
    findings.extend(repeated(&crash.calls));
    let wanted = matches!(crash.end, End::Told(200..=299) | End::NotAsked);
    for seen in &crash.seen {
        if seen.total > 1 {
            findings
                .push(Finding::Fail(format!("observer `{}` counted {} effects", seen.observer, seen.total)));
        } else if seen.total == 0 && wanted {
            let how = if crash.end == End::NotAsked {
                "nobody finished what was left"
            } else {
                "a success was told"
            };
            findings
                .push(Finding::Fail(format!("observer `{}` counted no effect, and {how}", seen.observer)));
        }
    }
    findings
}

/// A call that is made again is harmless where its provider knows it by its key, and only there.
fn repeated(calls: &[(Option<String>, usize)]) -> Option<Finding> {
    let all: usize = calls.iter().map(|(_, count)| count).sum();
    match calls {
        _ if all <= 1 => None,
        [(Some(_), count)] => Some(Finding::Note(format!(
            "relies on its provider: the call was made {count} times, with one key downstream"
        ))),
        [(None, count)] => Some(Finding::Fail(format!("{count} calls to the provider, without a key"))),
        several => Some(Finding::Fail(format!(
            "{all} calls to the provider under {} different keys: it cannot know that they are one",
            several.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crash(end: End, calls: &[(Option<&str>, usize)], effects: u64) -> Crash {
        Crash {
            landed: true,
            first: None,
            end,
            calls: calls.iter().map(|(key, count)| (key.map(str::to_owned), *count)).collect(),
            seen: vec![Seen { observer: "table".into(), total: effects, each: None }],
        }
    }

    fn found(crash: &Crash) -> Vec<String> {
        judge(crash).iter().map(|finding| format!("{finding:?}")).collect()
    }

    #[test]
    fn one_call_one_effect_and_an_end() {
        assert_eq!(found(&crash(End::Told(201), &[(Some("k"), 1)], 1)), Vec::<String>::new());
        assert_eq!(found(&crash(End::NotAsked, &[(Some("k"), 1)], 1)), Vec::<String>::new());
    }

    #[test]
    fn a_repeated_call_is_told_apart_by_its_key() {
        assert!(found(&crash(End::Told(201), &[(Some("k"), 2)], 1))[0].starts_with("Note"));
        assert!(
            found(&crash(End::Told(201), &[(Some("a"), 1), (Some("b"), 1)], 1))[0]
                .contains("2 different keys")
        );
        assert!(found(&crash(End::Told(201), &[(None, 2)], 1))[0].contains("without a key"));
    }

    #[test]
    fn c20_a_key_that_stays_in_flight_is_stuck() {
        assert!(found(&crash(End::Stuck(409), &[(Some("k"), 1)], 0))[0].contains("stuck"));
        assert!(found(&crash(End::Silent, &[], 0))[0].contains("no retry"));
        assert!(found(&crash(End::Told(500), &[], 0))[0].contains("500 to the end"));
        let kept = Crash { first: Some(502), ..crash(End::Told(502), &[(Some("k"), 1)], 1) };
        assert!(found(&kept)[0].starts_with("Note"), "a stored failure is an answer");
    }

    #[test]
    fn effects_and_answers_agree() {
        assert!(found(&crash(End::Told(201), &[(Some("k"), 1)], 0))[0].contains("no effect, and a success"));
        assert!(found(&crash(End::NotAsked, &[(Some("k"), 1)], 0))[0].contains("nobody finished"));
        assert!(found(&crash(End::Told(201), &[(Some("k"), 1)], 2))[0].contains("2 effects"));
        assert!(found(&crash(End::Uncertain, &[(Some("k"), 1)], 0))[0].starts_with("Note"));
    }

    #[test]
    fn a_crash_that_hit_nothing_shows_nothing() {
        let missed = Crash { landed: false, ..crash(End::Told(201), &[], 1) };
        assert!(found(&missed)[0].starts_with("Unclear"));
    }
}
