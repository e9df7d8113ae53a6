//! What an answer tells its caller, read by the rules of the plan.

use crate::arrive::Lost;
use crate::plan::{Answers, Sign};
use crate::wire::Answer;

/// What somebody was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It is done: fresh or replayed, nobody can tell which.
    Success,
    /// Somebody else's request stands in the way. A status alone may not say whether it is this request, still running, or
    /// another one under the same key.
    Conflict {
        /// It may mean: received, unfinished.
        in_flight: bool,
        /// It may mean: same key, another request.
        mismatch: bool,
    },
    /// Nothing was run, come again.
    NotNow,
    /// Another refusal: 3xx or 4xx.
    Refused(u16),
    /// 5xx. It may have happened.
    Failed(u16),
    /// Nothing. It may have happened.
    Lost,
}

impl Told {
    /// Whether the request may have been carried out for all that its caller knows.
    #[must_use]
    pub fn is_unknown(self) -> bool {
        matches!(self, Self::Lost | Self::Failed(_))
    }

    /// A word for a table.
    #[must_use]
    pub fn word(self) -> String {
        match self {
            Self::Success => "success".to_owned(),
            Self::Conflict { in_flight: true, mismatch: false } => "in flight".to_owned(),
            Self::Conflict { in_flight: false, .. } => "mismatch".to_owned(),
            Self::Conflict { .. } => "conflict".to_owned(),
            Self::NotNow => "not now".to_owned(),
            Self::Refused(status) => format!("refused {status}"),
            Self::Failed(status) => format!("failed {status}"),
            Self::Lost => "no answer".to_owned(),
        }
    }
}

/// Reads an answer.
#[must_use]
pub fn told(outcome: &Result<Answer, Lost>, answers: &Answers) -> Told {
    let Ok(answer) = outcome else { return Told::Lost };
    let is = |signs: &[Sign]| signs.iter().any(|sign| matches(sign, answer));
    if is(&answers.not_now) {
        return Told::NotNow;
    }
    // Before 2xx: a plan may say that 202 means in flight.
    let (in_flight, mismatch) = (is(&answers.in_flight), is(&answers.mismatch));
    if in_flight || mismatch {
        return Told::Conflict { in_flight, mismatch };
    }
    match answer.status {
        200..=299 => Told::Success,
        500.. => Told::Failed(answer.status),
        status => Told::Refused(status),
    }
}

/// Whether an answer has this sign.
#[must_use]
pub fn matches(sign: &Sign, answer: &Answer) -> bool {
    sign.status == answer.status && sign.contains.as_ref().is_none_or(|text| answer.contains(text))
}

/// How a replay differs from the first answer; `None` where it does not. `marker` must be in the replay alone.
#[must_use]
pub fn difference(first: &Answer, replay: &Answer, answers: &Answers) -> Option<String> {
    if first.status != replay.status {
        return Some(format!("status {} became {}", first.status, replay.status));
    }
    if first.body != replay.body {
        return Some(format!("the body changed ({} and {} bytes)", first.body.len(), replay.body.len()));
    }
    let lasting = |answer: &Answer| -> Vec<(String, Vec<u8>)> {
        let varies = |name: &str| {
            // Whatever a replay is marked with, that it is one is no difference.
            answers.varying_headers.iter().any(|varying| varying == name)
                || answers.replay_marker.as_deref() == Some(name)
                || name.contains("replay")
        };
        answer.headers.iter().filter(|(name, _)| !varies(name)).cloned().collect()
    };
    let (mut one, mut two) = (lasting(first), lasting(replay));
    // Their order is not part of the promise; how often one is there is.
    one.sort();
    two.sort();
    let lost = one
        .iter()
        .find(|line| !two.contains(line))
        .map(|(name, _)| format!("header {name} was lost or changed"));
    let came = two.iter().find(|line| !one.contains(line)).map(|(name, _)| format!("header {name} came in"));
    lost.or(came).or_else(|| (one != two).then(|| "a repeated header was lost".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers() -> Answers {
        Answers {
            in_flight: vec![
                Sign { status: 409, contains: Some("in_flight".into()) },
                Sign { status: 202, contains: None },
            ],
            mismatch: vec![Sign { status: 409, contains: Some("mismatch".into()) }],
            not_now: vec![Sign { status: 503, contains: Some("busy".into()) }],
            uncertain: vec![],
            missing_key: vec![],
            replay_marker: Some("idempotent-replayed".into()),
            varying_headers: vec!["date".into()],
            mismatch_beats_in_flight: false,
        }
    }

    fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Answer {
        let headers =
            headers.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
        Answer { status, headers, body: body.as_bytes().to_vec() }
    }

    #[test]
    fn c9_a_code_tells_two_conflicts_apart_that_have_one_status() {
        let read = |status, body| told(&Ok(answer(status, &[], body)), &answers());
        assert_eq!(read(409, "in_flight"), Told::Conflict { in_flight: true, mismatch: false });
        assert_eq!(read(409, "mismatch"), Told::Conflict { in_flight: false, mismatch: true });
        assert_eq!(read(409, "stock"), Told::Refused(409), "a business refusal is neither");
        assert_eq!(read(202, ""), Told::Conflict { in_flight: true, mismatch: false });
        assert_eq!(read(503, "busy"), Told::NotNow);
        assert_eq!(read(503, ""), Told::Failed(503));
        assert_eq!(read(201, ""), Told::Success);
        assert_eq!(told(&Err(Lost("reset".into())), &answers()), Told::Lost);
    }

    #[test]
    fn c19_a_replay_without_its_location_differs() {
        let first = answer(201, &[("location", "/orders/1"), ("date", "now")], "{}");
        let marked = answer(
            201,
            &[("date", "later"), ("idempotent-replayed", "true"), ("location", "/orders/1")],
            "{}",
        );
        assert_eq!(difference(&first, &marked, &answers()), None);
        let foreign = answer(201, &[("location", "/orders/1"), ("x-idempotent-replay", "1")], "{}");
        assert_eq!(
            difference(&first, &foreign, &answers()),
            None,
            "C10: a marker is welcome, whatever its name"
        );
        let lost = difference(&first, &answer(201, &[], "{}"), &answers());
        assert_eq!(lost.as_deref(), Some("header location was lost or changed"));
        let twice = answer(200, &[("set-cookie", "a"), ("set-cookie", "a")], "");
        assert!(difference(&twice, &answer(200, &[("set-cookie", "a")], ""), &answers()).is_some());
        assert!(difference(&first, &answer(200, &[("location", "/orders/1")], "{}"), &answers()).is_some());
        assert!(difference(&first, &answer(201, &[("location", "/orders/1")], "{} "), &answers()).is_some());
    }
}
