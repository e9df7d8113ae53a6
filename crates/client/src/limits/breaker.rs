//! A circuit breaker over the last attempts: closed, open, half open.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use retrysafe_core::retry::Mono;

/// When to stop calling a target, and for how long. The defaults are resilience4j's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Breaker {
    /// Attempts that are looked at.
    pub window: u32,
    /// Attempts before anything is concluded.
    pub attempts_min: u32,
    /// It opens at this share of failures.
    pub failures_percent: u32,
    /// How long it stays open.
    pub open: Duration,
    /// Attempts that are let through to find out whether the target is well again.
    pub trials: u32,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            window: 100,
            attempts_min: 100,
            failures_percent: 50,
            open: Duration::from_secs(60),
            trials: 10,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Circuit {
    rule: Breaker,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
enum State {
    Closed {
        failures: VecDeque<bool>,
    },
    Open {
        until: Mono,
    },
    /// `out` trials are under way, `failed` and `well` have come back.
    HalfOpen {
        since: Mono,
        out: u32,
        failed: u32,
        well: u32,
    },
}

/// An attempt that was let through. Dropped, it never happened.
#[derive(Debug)]
pub(super) struct Through {
    circuit: Circuit,
    /// The trial period it belongs to, if it is a trial.
    trial: Option<Mono>,
    told: bool,
}

impl Circuit {
    pub(super) fn new(rule: Breaker) -> Self {
        Self { rule, state: Arc::new(Mutex::new(State::Closed { failures: VecDeque::new() })) }
    }

    /// Lets an attempt through, or says how long not.
    pub(super) fn admit(&self, now: Mono) -> Result<Through, Duration> {
        let mut state = self.state();
        if let State::Open { until } = *state {
            if now < until {
                return Err(until.since(now));
            }
            *state = State::HalfOpen { since: now, out: 0, failed: 0, well: 0 };
        }
        let trial = match &mut *state {
            State::HalfOpen { since, out, failed, well } => {
                if *out + *failed + *well >= self.rule.trials.max(1) {
                    // The trials decide within an attempt; there is no telling when.
                    return Err(self.rule.open / 10);
                }
                *out += 1;
                Some(*since)
            }
            State::Closed { .. } | State::Open { .. } => None,
        };
        drop(state);
        Ok(Through { circuit: self.clone(), trial, told: false })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, trial: Option<Mono>, outcome: Option<bool>, now: Option<Mono>) {
        let rule = self.rule;
        let mut state = self.state();
        let next = match (&mut *state, trial, outcome) {
            (State::Closed { failures }, None, Some(failed)) => {
                failures.push_back(failed);
                if failures.len() > rule.window.max(1) as usize {
                    failures.pop_front();
                }
                let count = failures.iter().filter(|failed| **failed).count() as u64;
                let total = failures.len() as u64;
                let enough = total >= u64::from(rule.attempts_min.max(1));
                (enough && count * 100 >= u64::from(rule.failures_percent) * total).then_some(true)
            }
            (State::HalfOpen { since, out, failed, well }, Some(of), _) if *since == of => {
                *out = out.saturating_sub(1);
                match outcome {
                    Some(true) => *failed += 1,
                    Some(false) => *well += 1,
                    None => {}
                }
                let trials = rule.trials.max(1);
                let bad = u64::from(*failed) * 100 >= u64::from(rule.failures_percent) * u64::from(trials);
                if bad && *failed > 0 { Some(true) } else { (*failed + *well >= trials).then_some(false) }
            }
            // What was let through before the state changed says nothing about now.
            _ => None,
        };
        match (next, now) {
            (Some(true), Some(now)) => *state = State::Open { until: now.plus(rule.open) },
            (Some(false), _) => *state = State::Closed { failures: VecDeque::new() },
            _ => {}
        }
    }
}

impl Through {
    pub(super) fn failed(mut self, now: Mono) {
        self.told = true;
        self.circuit.note(self.trial, Some(true), Some(now));
    }

    pub(super) fn succeeded(mut self, now: Mono) {
        self.told = true;
        self.circuit.note(self.trial, Some(false), Some(now));
    }
}

impl Drop for Through {
    fn drop(&mut self) {
        if !self.told {
            self.circuit.note(self.trial, None, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Mono {
        Mono::from_elapsed(Duration::from_millis(ms))
    }

    fn rule() -> Breaker {
        Breaker { window: 4, attempts_min: 4, failures_percent: 50, open: Duration::from_secs(1), trials: 2 }
    }

    #[test]
    fn it_opens_at_its_share_and_says_for_how_long() {
        let circuit = Circuit::new(rule());
        for failed in [true, false, false] {
            let through = circuit.admit(at(0)).unwrap();
            if failed { through.failed(at(0)) } else { through.succeeded(at(0)) }
        }
        circuit.admit(at(0)).unwrap().failed(at(0));
        assert_eq!(circuit.admit(at(300)).unwrap_err(), Duration::from_millis(700));
    }

    #[test]
    fn trials_close_it_or_open_it_again_and_a_dropped_trial_blocks_nobody() {
        let circuit = Circuit::new(rule());
        (0..4).for_each(|_| circuit.admit(at(0)).unwrap().failed(at(0)));
        drop(circuit.admit(at(1_000)).unwrap());
        let (first, second) = (circuit.admit(at(1_000)).unwrap(), circuit.admit(at(1_000)).unwrap());
        assert!(circuit.admit(at(1_000)).is_err(), "two trials, and no third");
        first.succeeded(at(1_010));
        second.succeeded(at(1_010));
        (0..3).for_each(|_| circuit.admit(at(1_020)).unwrap().failed(at(1_020)));
        circuit.admit(at(1_020)).unwrap().failed(at(1_020));
        assert!(circuit.admit(at(1_020)).is_err());
        circuit.admit(at(2_020)).unwrap().failed(at(2_020));
        assert!(circuit.admit(at(2_021)).is_err(), "half of the trials failed");
    }
}
