//! What is looked at after one kill.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Seen;
use crate::judge::{Verdict, is_honest_refusal, same};
use crate::race::ask;
use crate::till::Place;
use crate::wire::{Answer, Key, Template};

/// A database notices that its client is gone, upkeep has a pause of its own, and a busy machine takes its time.
pub(super) const MARGIN: Duration = Duration::from_secs(4);
/// How long anything may take before it counts as stuck for good.
const STUCK: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(25);
const BODY: &str = r#"{"amount":4200}"#;

/// Where somebody asks.
#[derive(Clone, Copy)]
pub(super) struct Asker {
    pub(super) target: SocketAddr,
    pub(super) path: &'static str,
}

impl Asker {
    /// # Errors
    /// There is no answer.
    pub(super) fn ask(self, key: &Key) -> Result<Answer> {
        let headers = [("authorization", "Bearer killer")];
        ask(self.target, Template::keyed_post(self.target, self.path, &headers, BODY).keyed(key))
    }
}

/// A key whose request met a kill.
pub(super) struct Ended {
    key: Key,
    /// For messages: where.
    at: String,
    since: Instant,
    /// The success that somebody was told.
    success: Option<Answer>,
    settled: Option<Duration>,
}

impl Ended {
    /// The kill was now.
    pub(super) fn new(key: &Key, at: String) -> Self {
        Self { key: *key, at, since: Instant::now(), success: None, settled: None }
    }

    fn note(&self, verdict: &mut Verdict, what: &str) {
        verdict.note(format!("{what}, killed {}", self.at));
    }

    /// What the first caller got, if anything.
    pub(super) fn was_told(&mut self, answer: Option<Answer>, verdict: &mut Verdict) {
        if let Some(answer) = answer {
            self.take(answer, verdict);
        }
    }

    /// Whether it is an answer that ends the asking.
    fn take(&mut self, answer: Answer, verdict: &mut Verdict) -> bool {
        if !(200..300).contains(&answer.status) {
            if !is_honest_refusal(&answer) {
                let code = answer.code().unwrap_or_default();
                self.note(verdict, &format!("somebody was told {} {code}", answer.status));
            }
            return false;
        }
        match &self.success {
            None => self.success = Some(answer),
            Some(before) if same(before, &answer) => {}
            Some(_) => self.note(verdict, "two successes that differ"),
        }
        true
    }

    /// Asks until there is a success, at most so long. Looks at the database each time.
    pub(super) fn retry(
        &mut self,
        askers: &[Asker],
        patience: Duration,
        place: &Place,
        verdict: &mut Verdict,
    ) -> Result<()> {
        let began = Instant::now();
        for asker in askers.iter().cycle() {
            self.look(place, verdict)?;
            if self.take(asker.ask(&self.key)?, verdict) {
                self.settled.get_or_insert_with(|| self.since.elapsed());
                return Ok(());
            }
            if began.elapsed() > patience {
                return Ok(());
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Something held the key that a proof has let go only now.
    pub(super) fn unsettled(&mut self) {
        if self.settled.is_none() {
            self.since = Instant::now();
        }
    }

    /// Row and answer agree, whenever one looks.
    fn look(&self, place: &Place, verdict: &mut Verdict) -> Result<()> {
        let kept = place.kept(&self.key)?;
        if kept.rows != kept.answers || kept.rows > 1 {
            self.note(verdict, &format!("{} rows and {} stored answers", kept.rows, kept.answers));
        }
        Ok(())
    }

    /// Everything that has to hold now.
    pub(super) fn judge(
        &mut self,
        askers: &[Asker],
        lease: Duration,
        place: &Place,
        seen: &mut Seen,
    ) -> Result<()> {
        let verdict = &mut seen.verdict;
        self.retry(askers, STUCK, place, verdict)?;
        match self.settled {
            None => self.note(verdict, "a key that stays stuck"),
            Some(after) => {
                seen.longest = seen.longest.max(after);
                if after > lease + MARGIN {
                    self.note(verdict, &format!("a key stuck for {} s", after.as_secs()));
                }
            }
        }
        for asker in askers {
            let answer = asker.ask(&self.key)?;
            if !self.take(answer, verdict) {
                self.note(verdict, "an answer that is not replayed");
            }
        }
        self.look(place, verdict)?;
        let rows = place.sales()?.remove(self.key.as_str()).unwrap_or_default();
        let told = self.success.as_ref().map(|answer| String::from_utf8_lossy(&answer.body).into_owned());
        match rows.as_slice() {
            [row] if told.as_ref().is_some_and(|told| told.contains(row.as_str())) => {}
            [_] => self.note(verdict, "an answer that names another row"),
            _ => self.note(verdict, &format!("{} rows of one key", rows.len())),
        }
        Ok(())
    }
}
