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

/// Why a blow says nothing: what it should have met was not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missed {
    /// What happened.
    pub why: String,
    /// What to change.
    pub change: String,
}

/// One crash and what followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crash {
    /// The API was not hit while it worked on the request.
    pub missed: Option<Missed>,
    /// What the first request was told, if anything.
    pub first: Option<u16>,
    /// What observers had counted when a first success was told and nobody had asked again.
    pub seen_first: Vec<Seen>,
    /// How the key ended at the process that took over, where there is one.
    pub second: Option<End>,
    /// How the key ended.
    pub end: End,
    /// Callers that were all told a success were not told the same: how they differ.
    pub differs: Option<String>,
    /// Calls to the stub, by the key that each carried.
    pub calls: Vec<(Option<String>, usize)>,
    /// What observers other than the stub counted.
    pub seen: Vec<Seen>,
    /// What else people should know.
    pub notes: Vec<String>,
}

/// Everything that is wrong.
#[must_use]
pub fn judge(crash: &Crash) -> Vec<Finding> {
    if let Some(Missed { why, change }) = &crash.missed {
        return vec![Finding::Unclear { why: why.clone(), change: change.clone() }];
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
    findings.extend(crash.notes.iter().cloned().map(Finding::Note));
    findings.extend(crash.second.and_then(taken_over));
    findings.extend(crash.first.and_then(|first| kept(first, crash)));
    findings.extend(crash.differs.clone().map(Finding::Fail));
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

/// A fence is only tried where somebody else has taken over.
fn taken_over(second: End) -> Option<Finding> {
    match second {
        End::Told(200..=499) | End::NotAsked => None,
        End::Uncertain => {
            Some(Finding::Note("the other process said uncertain, and left it to people".to_owned()))
        }
        End::Told(status) | End::Stuck(status) => Some(Finding::Unclear {
            why: format!(
                "the other process did not take over from the one that was stopped: it told {status} until the time was over"
            ),
            change:
                "say in [crash] lease how long the API really holds a claim; let both processes share a store"
                    .to_owned(),
        }),
        End::Silent => Some(Finding::Unclear {
            why: "the other process did not answer".to_owned(),
            change: "look why: it may wait for a lock that the stopped one holds".to_owned(),
        }),
    }
}

/// A success that was told is kept: it happened, and it goes on being told.
fn kept(first: u16, crash: &Crash) -> Option<Finding> {
    if !(200..=299).contains(&first) {
        return None;
    }
    if let Some(seen) = crash.seen_first.iter().find(|seen| seen.total == 0) {
        return Some(Finding::Fail(format!(
            "{first} was told, and observer `{}` counted no effect",
            seen.observer
        )));
    }
    match crash.end {
        End::Told(200..=299) | End::NotAsked => None,
        // Said already.
        End::Stuck(_) | End::Silent => None,
        End::Told(status) => {
            Some(Finding::Fail(format!("{first} was told, and {status} to who asked again")))
        }
        End::Uncertain => Some(Finding::Fail(format!("{first} was told, and then nobody knew"))),
    }
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
            missed: None,
            first: None,
            seen_first: vec![],
            second: None,
            differs: None,
            notes: vec![],
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
        let why = Missed { why: "not hit".into(), change: "hit it".into() };
        // Whatever else is there.
        let missed = Crash { missed: Some(why), ..crash(End::Stuck(409), &[(None, 2)], 2) };
        assert_eq!(found(&missed), ["Unclear { why: \"not hit\", change: \"hit it\" }"]);
    }

    #[test]
    fn a_success_that_was_told_is_kept() {
        let first = |end, seen_first| {
            let seen_first = vec![Seen { observer: "table".into(), total: seen_first, each: None }];
            Crash { first: Some(201), seen_first, ..crash(end, &[(Some("k"), 1)], 1) }
        };
        assert_eq!(found(&first(End::Told(201), 1)), Vec::<String>::new());
        assert!(
            found(&first(End::Told(201), 0))[0].contains("201 was told, and observer `table` counted no")
        );
        assert!(found(&first(End::Told(404), 1))[0].contains("404 to who asked again"));
        assert!(found(&first(End::Uncertain, 1)).iter().any(|it| it.contains("then nobody knew")));
        let differs = Crash { differs: Some("bodies differ".into()), ..crash(End::Told(201), &[], 1) };
        assert_eq!(found(&differs), ["Fail(\"bodies differ\")"]);
    }

    #[test]
    fn r7_a_fence_is_tried_only_where_somebody_took_over() {
        let second = |second| Crash { second: Some(second), ..crash(End::Told(201), &[(Some("k"), 1)], 1) };
        assert_eq!(found(&second(End::Told(201))), Vec::<String>::new());
        for end in [End::Stuck(409), End::Silent, End::Told(503)] {
            assert!(found(&second(end))[0].starts_with("Unclear"), "{end:?}");
        }
        assert!(found(&second(End::Uncertain))[0].starts_with("Note"));
    }
}
