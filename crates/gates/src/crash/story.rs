//! What happened in a round, as the timeline of a report.

use std::time::Duration;

use crate::arrive::Timed;
use crate::report::{Counterexample, Line};
use crate::stub::Call;

/// Everything that was sent, told and done in one round, with its times since the origin of the gate.
#[derive(Default)]
pub(super) struct Story(Vec<Entry>);

struct Entry {
    line: Line,
    at: [Duration; 3],
    /// Retries in a row that were told the same are one line.
    times: u32,
}

impl Story {
    /// A request, and what it was told.
    pub(super) fn asked(&mut self, step: &str, base: &str, timed: &Timed, told: String) {
        let status = timed.outcome.as_ref().ok().map(|answer| answer.status);
        let same = |line: &Line| {
            line.step == step && line.base == base && line.status == status && line.told == told
        };
        if let Some(last) = self.0.last_mut().filter(|last| same(&last.line)) {
            last.times += 1;
            last.at[2] = timed.done;
            return;
        }
        self.push(step, "A", base, [timed.first_sent, timed.last_sent, timed.done], told, status);
    }

    /// Something that the gate did.
    pub(super) fn did(&mut self, at: Duration, what: &str) {
        self.push("gate", "", "", [at; 3], what.to_owned(), None);
    }

    /// A call that came to the stub.
    pub(super) fn called(&mut self, call: &Call) {
        let told = if call.answered.is_some() { "answered" } else { "not answered" };
        let done = call.answered.unwrap_or(call.at);
        self.push("call", "", "the stub", [call.at, call.at, done], told.to_owned(), None);
    }

    fn push(
        &mut self,
        step: &str,
        request: &str,
        base: &str,
        at: [Duration; 3],
        told: String,
        status: Option<u16>,
    ) {
        let line = Line {
            step: step.to_owned(),
            request: request.to_owned(),
            base: base.to_owned(),
            sent_ms: 0.0,
            complete_ms: 0.0,
            done_ms: 0.0,
            told,
            status,
        };
        self.0.push(Entry { line, at, times: 1 });
    }

    /// The round as one that shows a fault.
    pub(super) fn example(
        &self,
        round: u32,
        shape: &str,
        effects: Vec<(String, u64)>,
        curl: Vec<String>,
    ) -> Counterexample {
        let start = self.0.iter().map(|entry| entry.at[0]).min().unwrap_or_default();
        let ms = |at: Duration| at.saturating_sub(start).as_secs_f64() * 1_000.0;
        let line = |entry: &Entry| {
            let [sent, complete, done] = entry.at.map(ms);
            let mut line = Line { sent_ms: sent, complete_ms: complete, done_ms: done, ..entry.line.clone() };
            if entry.times > 1 {
                line.told += &format!(", {} times", entry.times);
            }
            line
        };
        let mut timeline: Vec<Line> = self.0.iter().map(line).collect();
        timeline.sort_by(|one, two| one.complete_ms.total_cmp(&two.complete_ms));
        Counterexample { round, shape: shape.to_owned(), effects, timeline, curl }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrive::Lost;

    #[test]
    fn a_timeline_is_in_order_and_retries_that_were_told_the_same_are_one_line() {
        let at = Duration::from_millis;
        let timed = |from: u64, to: u64| Timed {
            first_sent: at(from),
            last_sent: at(from),
            first_byte: None,
            done: at(to),
            outcome: Err(Lost("nobody".into())),
        };
        let mut story = Story::default();
        story.asked("first", "b", &timed(10, 30), "no answer".into());
        story.asked("retry", "b", &timed(40, 41), "no answer".into());
        story.asked("retry", "b", &timed(50, 51), "no answer".into());
        story.asked("retry", "b", &timed(60, 61), "success".into());
        story.did(at(20), "the API is killed");
        let example = story.example(1, "shape", vec![("table".into(), 2)], vec![]);
        let told: Vec<(&str, &str)> =
            example.timeline.iter().map(|line| (line.step.as_str(), line.told.as_str())).collect();
        let expected = [
            ("first", "no answer"),
            ("gate", "the API is killed"),
            ("retry", "no answer, 2 times"),
            ("retry", "success"),
        ];
        assert_eq!(told, expected);
        let retried = &example.timeline[2];
        assert!((retried.complete_ms - 30.0).abs() < 0.001 && (retried.done_ms - 41.0).abs() < 0.001);
    }
}
