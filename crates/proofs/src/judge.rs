//! What a race must look like afterwards: pure, so that every way to fail has a test.

use std::collections::BTreeMap;
use std::fmt;

use crate::race::Outcome;
use crate::wire::Answer;

/// Headers that differ between two sendings of one answer and say nothing about it.
const PER_SENDING: &[&str] = &["date", "connection", "keep-alive"];

/// What a loser may be told besides the replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Nothing but in flight.
    InFlightOnly,
    /// Two processes share one file: a 503 that names the store and says when to come back is honest.
    BusyFile,
}

/// One broken promise of a race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// The ledger holds this many entries for the key, not one.
    Effects(usize),
    /// A success that is not the one in the ledger.
    FalseSuccess,
    /// Two successes that differ: the replay is not the answer.
    NotIdentical,
    /// No connection got a success and the ledger says it happened; or nobody got any answer to retry.
    NoWinner,
    /// An answer that is neither a replay nor an honest refusal.
    Foreign { status: u16, code: Option<String> },
    /// A refusal that does not say when to come back.
    NoRetryAfter(u16),
    /// No answer at all.
    Broken(String),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Effects(count) => write!(f, "{count} ledger entries for one key"),
            Self::FalseSuccess => f.write_str("a success that the ledger does not know"),
            Self::NotIdentical => f.write_str("a replay that differs from the answer"),
            Self::NoWinner => f.write_str("nobody was told the result"),
            Self::Foreign { status, code } => {
                write!(f, "an answer {status} ({})", code.as_deref().unwrap_or("no code"))
            }
            Self::NoRetryAfter(status) => write!(f, "{status} without Retry-After"),
            Self::Broken(error) => write!(f, "no answer: {error}"),
        }
    }
}

/// How the requests of one race ended, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kinds {
    pub(crate) success: u64,
    pub(crate) in_flight: u64,
    pub(crate) busy: u64,
}

impl Kinds {
    pub(crate) fn add(&mut self, other: Self) {
        self.success += other.success;
        self.in_flight += other.in_flight;
        self.busy += other.busy;
    }
}

/// Judges one race by its answers and by the ids the ledger holds for its key.
pub(crate) fn judge(outcomes: &[Outcome], effects: &[String], patience: Patience) -> (Kinds, Vec<Violation>) {
    let (mut kinds, mut violations) = (Kinds::default(), Vec::new());
    let mut winner: Option<&Answer> = None;
    for outcome in outcomes {
        let answer = match outcome {
            Ok(answer) => answer,
            Err(error) => {
                violations.push(Violation::Broken(error.clone()));
                continue;
            }
        };
        match (answer.status, answer.code().as_deref()) {
            (200..=299, _) => {
                kinds.success += 1;
                if !effects.iter().any(|id| names(&answer.body, id)) {
                    violations.push(Violation::FalseSuccess);
                }
                match winner {
                    None => winner = Some(answer),
                    Some(first) if same(first, answer) => {}
                    Some(_) => violations.push(Violation::NotIdentical),
                }
            }
            (409, Some("idempotency_key_in_flight")) => {
                kinds.in_flight += 1;
                says_when(answer, &mut violations);
            }
            (503, Some("idempotency_store_unavailable")) if patience == Patience::BusyFile => {
                kinds.busy += 1;
                says_when(answer, &mut violations);
            }
            (status, code) => {
                violations.push(Violation::Foreign { status, code: code.map(str::to_owned) });
            }
        }
    }
    if winner.is_none() {
        violations.push(Violation::NoWinner);
    }
    if effects.len() != 1 {
        violations.push(Violation::Effects(effects.len()));
    }
    (kinds, violations)
}

/// Whether somebody who was not served was told so honestly: in flight or not available, and when to come back.
pub(crate) fn is_honest_refusal(answer: &Answer) -> bool {
    let code = answer.code();
    let known = matches!(
        (answer.status, code.as_deref()),
        (409, Some("idempotency_key_in_flight")) | (503, Some("idempotency_store_unavailable"))
    );
    known && answer.header("retry-after").is_some()
}

fn says_when(answer: &Answer, violations: &mut Vec<Violation>) {
    let seconds = answer.header("retry-after").and_then(|value| std::str::from_utf8(value).ok());
    if seconds.and_then(|value| value.parse::<u32>().ok()).is_none() {
        violations.push(Violation::NoRetryAfter(answer.status));
    }
}

/// Whether a success tells the id of an effect.
fn names(body: &[u8], id: &str) -> bool {
    serde_json::from_slice::<serde_json::Value>(body)
        .ok()
        .and_then(|body| Some(body.get("id")?.as_str()? == id))
        .unwrap_or(false)
}

/// Byte-identical: status, ordered header pairs but for those of the sending, body.
pub(crate) fn same(one: &Answer, two: &Answer) -> bool {
    let lasting = |answer: &Answer| -> Vec<(String, Vec<u8>)> {
        let mut headers = answer.headers.clone();
        headers.retain(|(name, _)| !PER_SENDING.contains(&name.as_str()));
        headers
    };
    one.status == two.status && one.body == two.body && lasting(one) == lasting(two)
}

/// Violations by kind, with how often each was seen: the figure of a failed proof.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) kinds: Kinds,
    /// Ledger entries for all keys together.
    pub(crate) effects: usize,
    violations: BTreeMap<String, u64>,
}

impl Verdict {
    pub(crate) fn add(&mut self, (kinds, violations): (Kinds, Vec<Violation>)) {
        self.kinds.add(kinds);
        for violation in violations {
            *self.violations.entry(violation.to_string()).or_default() += 1;
        }
    }

    pub(crate) fn note(&mut self, violation: impl Into<String>) {
        *self.violations.entry(violation.into()).or_default() += 1;
    }

    pub(crate) fn holds(&self) -> bool {
        self.violations.is_empty()
    }

    pub(crate) fn violations(&self) -> impl Iterator<Item = (&str, u64)> {
        self.violations.iter().map(|(text, count)| (text.as_str(), *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Outcome {
        let headers =
            headers.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
        Ok(Answer { status, headers, body: body.as_bytes().to_vec() })
    }

    fn won() -> Outcome {
        answer(201, &[("location", "/orders/o1"), ("date", "now")], r#"{"id":"o1"}"#)
    }

    fn in_flight() -> Outcome {
        answer(409, &[("retry-after", "1")], r#"{"code":"idempotency_key_in_flight"}"#)
    }

    fn busy() -> Outcome {
        answer(503, &[("retry-after", "1")], r#"{"code":"idempotency_store_unavailable"}"#)
    }

    fn found(outcomes: &[Outcome], effects: &[&str], patience: Patience) -> Vec<Violation> {
        let effects: Vec<String> = effects.iter().map(|id| (*id).to_owned()).collect();
        judge(outcomes, &effects, patience).1
    }

    #[test]
    fn one_effect_replays_and_in_flight_answers_are_right() {
        let later = answer(201, &[("location", "/orders/o1"), ("date", "later")], r#"{"id":"o1"}"#);
        let (kinds, violations) =
            judge(&[won(), later, in_flight()], &["o1".to_owned()], Patience::InFlightOnly);
        assert_eq!(violations, []);
        assert_eq!(kinds, Kinds { success: 2, in_flight: 1, busy: 0 });
    }

    #[test]
    fn a_second_effect_is_found() {
        assert_eq!(found(&[won()], &["o1", "o2"], Patience::InFlightOnly), [Violation::Effects(2)]);
    }

    #[test]
    fn a_success_without_its_effect_is_found() {
        assert_eq!(found(&[won()], &["o2"], Patience::InFlightOnly), [Violation::FalseSuccess]);
        let violations = found(&[won()], &[], Patience::InFlightOnly);
        assert_eq!(violations, [Violation::FalseSuccess, Violation::Effects(0)]);
    }

    #[test]
    fn a_replay_that_lost_a_header_its_status_or_a_byte_is_found() {
        for other in [
            answer(201, &[], r#"{"id":"o1"}"#),
            answer(200, &[("location", "/orders/o1")], r#"{"id":"o1"}"#),
            answer(201, &[("location", "/orders/o1")], r#"{"id": "o1"}"#),
        ] {
            assert_eq!(found(&[won(), other], &["o1"], Patience::InFlightOnly), [Violation::NotIdentical]);
        }
    }

    #[test]
    fn refusals_must_be_honest() {
        let foreign = found(&[won(), answer(500, &[], "")], &["o1"], Patience::BusyFile);
        assert_eq!(foreign, [Violation::Foreign { status: 500, code: None }]);
        let silent = answer(409, &[], r#"{"code":"idempotency_key_in_flight"}"#);
        assert_eq!(found(&[won(), silent], &["o1"], Patience::BusyFile), [Violation::NoRetryAfter(409)]);
        assert_eq!(found(&[won(), busy()], &["o1"], Patience::BusyFile), []);
        assert!(!found(&[won(), busy()], &["o1"], Patience::InFlightOnly).is_empty());
    }

    #[test]
    fn a_race_nobody_won_and_a_broken_connection_are_found() {
        assert_eq!(found(&[in_flight()], &["o1"], Patience::InFlightOnly), [Violation::NoWinner]);
        let broken = Err("reset".to_owned());
        assert_eq!(
            found(&[won(), broken], &["o1"], Patience::BusyFile),
            [Violation::Broken("reset".to_owned())]
        );
    }
}
