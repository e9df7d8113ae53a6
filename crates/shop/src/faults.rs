//! Faults on request: what a demo or a proof asks the shop to do wrong, and when.
//!
//! A fault is one word, perhaps with a number: in the `X-Shop-Fault` header of the request it shall hit, several
//! separated by commas, or in the queue at `/faults` for clients that cannot be told to send a header.
//!
//! | fault | the effect | the answer |
//! |---|---|---|
//! | `cut` | does not happen | the connection is closed |
//! | `commit-then-cut` | happens | the connection is closed |
//! | `delay=MS` | happens, MS later | as usual |
//! | `commit-then-delay=MS` | happens | as usual, MS later |
//! | `status=NNN` | does not happen | a problem with that status |
//! | `commit-then-status=NNN` | happens | a problem with that status |
//! | `once` | | the other faults of this header hit only the first request of this account and key |
//!
//! Times are capped at [`DELAY_MAX`], the queue at [`QUEUE_MAX`].

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// No fault holds a request longer than this.
pub(crate) const DELAY_MAX: Duration = Duration::from_secs(60);
/// No more faults than this wait in the queue, or are remembered as having hit once.
pub(crate) const QUEUE_MAX: usize = 10_000;

/// What goes wrong with one request. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Before the effect.
    pub(crate) delay: Duration,
    /// Between effect and answer.
    pub(crate) delay_answer: Duration,
    pub(crate) instead: Option<Instead>,
    once: bool,
}

/// What the caller gets in place of the true answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instead {
    pub(crate) answer: BadAnswer,
    /// Whether the effect happens all the same.
    pub(crate) commit: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadAnswer {
    Cut,
    Status(u16),
}

impl Fault {
    /// Reads the words of one header or queue entry. `None` says that a word is not a fault.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut fault = Self::default();
        for word in text.split([',', ';']).map(str::trim).filter(|word| !word.is_empty()) {
            let (name, number) = match word.split_once('=') {
                Some((name, number)) => (name.trim(), Some(number.trim().parse::<u32>().ok()?)),
                None => (word, None),
            };
            let millis = |number: u32| Duration::from_millis(u64::from(number)).min(DELAY_MAX);
            let instead = |answer, commit| Some(Instead { answer, commit });
            match (name, number) {
                ("cut", None) => fault.instead = instead(BadAnswer::Cut, false),
                ("commit-then-cut", None) => fault.instead = instead(BadAnswer::Cut, true),
                ("delay", Some(number)) => fault.delay = millis(number),
                ("commit-then-delay", Some(number)) => fault.delay_answer = millis(number),
                ("status", Some(number @ 200..=599)) => {
                    fault.instead = instead(BadAnswer::Status(u16::try_from(number).ok()?), false);
                }
                ("commit-then-status", Some(number @ 200..=599)) => {
                    fault.instead = instead(BadAnswer::Status(u16::try_from(number).ok()?), true);
                }
                ("once", None) => fault.once = true,
                _ => return None,
            }
        }
        Some(fault)
    }
}

/// One entry of the `/faults` queue, as it is posted and shown.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Queued {
    pub(crate) fault: String,
    /// How many state-changing requests it hits.
    #[serde(default = "one")]
    pub(crate) times: u32,
    /// Hits only requests with this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
}

fn one() -> u32 {
    1
}

/// The faults still to come.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<(Queued, Fault)>,
    hit_once: HashSet<(String, String, String)>,
}

impl Faults {
    /// Adds entries; false, and nothing is added, if one is not a fault or they are too many.
    pub(crate) fn push(&self, entries: Vec<Queued>) -> bool {
        let parsed: Option<Vec<_>> =
            entries.into_iter().map(|entry| Fault::parse(&entry.fault).map(|fault| (entry, fault))).collect();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match parsed {
            Some(parsed) if state.queue.len() + parsed.len() <= QUEUE_MAX => {
                state.queue.extend(parsed.into_iter().filter(|(entry, _)| entry.times > 0));
                true
            }
            _ => false,
        }
    }

    pub(crate) fn pending(&self) -> Vec<Queued> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.queue.iter().map(|(entry, _)| entry.clone()).collect()
    }

    pub(crate) fn clear(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.queue.clear();
        state.hit_once.clear();
    }

    /// The fault for this request: its own header's, else the first of the queue that fits it. `Err` repeats a
    /// header that names no fault.
    pub(crate) fn take(
        &self,
        header: Option<&str>,
        account: &str,
        key: Option<&str>,
    ) -> Result<Fault, String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = header {
            let fault = Fault::parse(text).ok_or_else(|| text.to_owned())?;
            if fault.once {
                let hit = (account.to_owned(), key.unwrap_or_default().to_owned(), text.to_owned());
                if state.hit_once.len() >= QUEUE_MAX || !state.hit_once.insert(hit) {
                    return Ok(Fault::default());
                }
            }
            return Ok(fault);
        }
        let fits = |(entry, _): &(Queued, Fault)| {
            entry.key.as_deref().is_none_or(|wanted| key.is_some_and(|key| key == wanted))
        };
        let Some(at) = state.queue.iter().position(fits) else { return Ok(Fault::default()) };
        let (entry, fault) = &mut state.queue[at];
        let fault = *fault;
        entry.times -= 1;
        if entry.times == 0 {
            state.queue.remove(at);
        }
        Ok(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_and_strangers_are_refused() {
        let cut = |commit| Some(Instead { answer: BadAnswer::Cut, commit });
        assert_eq!(Fault::parse("cut").unwrap().instead, cut(false));
        assert_eq!(Fault::parse("once, commit-then-cut").unwrap().instead, cut(true));
        let both = Fault::parse("delay=30,commit-then-status=500").unwrap();
        assert_eq!(both.delay, Duration::from_millis(30));
        assert_eq!(both.instead, Some(Instead { answer: BadAnswer::Status(500), commit: true }));
        assert_eq!(Fault::parse("delay=999999999").unwrap().delay, DELAY_MAX);
        for stranger in ["explode", "status", "status=99", "status=600", "delay=x", "cut=1"] {
            assert_eq!(Fault::parse(stranger), None, "{stranger}");
        }
    }

    #[test]
    fn a_queued_fault_hits_as_often_as_it_was_asked_to() {
        let faults = Faults::default();
        let entry = |fault: &str, times, key: Option<&str>| Queued {
            fault: fault.into(),
            times,
            key: key.map(Into::into),
        };
        assert!(faults.push(vec![entry("status=500", 1, Some("k2")), entry("cut", 2, None)]));
        let take = |key| faults.take(None, "a", key).unwrap().instead.map(|instead| instead.answer);
        assert_eq!(take(Some("k1")), Some(BadAnswer::Cut));
        assert_eq!(take(Some("k2")), Some(BadAnswer::Status(500)));
        assert_eq!(take(None), Some(BadAnswer::Cut));
        assert_eq!(take(Some("k2")), None);
        assert!(!faults.push(vec![entry("cut", 1, None), entry("nonsense", 1, None)]));
        assert!(faults.pending().is_empty(), "half a batch is no batch");
    }

    #[test]
    fn once_hits_the_first_request_of_a_key_only() {
        let faults = Faults::default();
        let hit = |account, key| faults.take(Some("once,cut"), account, Some(key)).unwrap().instead.is_some();
        assert!(hit("a", "k"));
        assert!(!hit("a", "k"), "the retry carries the same header and must get through");
        assert!(hit("a", "k2"));
        assert!(hit("b", "k"));
    }
}
