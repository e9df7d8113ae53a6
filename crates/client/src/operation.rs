//! One thing that somebody wants done, over as many tries as it takes: its key is kept and turned by the outcome.
//!
//! | the last try | the next one |
//! |---|---|
//! | succeeded, or was refused for good | is a new operation: a new key |
//! | may have happened, or may succeed later | the same key |
//! | may succeed later, but the content has changed | a new key: nothing was done under the old one |
//! | may have happened, and the content has changed | is refused until the last one is settled ([`Operation::abandon`]) |
//!
//! So a form that is submitted again after a lost answer sends the same key (I-65), a card that was declined does not lock
//! its owner out for a day (I-21), and nobody pays twice because he corrected a typing mistake in between.

use bytes::Bytes;
use retrysafe_core::{
    fingerprint::Fingerprint,
    retry::{Rule, Stop},
};

use crate::{
    http::{Error, Refused},
    key::{Key, NoRandomness},
};

/// An operation, kept by whoever can try again: a form, a job, a screen.
#[derive(Debug, Default)]
pub struct Operation {
    key: Option<Key>,
    content: Option<Fingerprint>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    /// The next try is a new operation.
    #[default]
    Settled,
    /// Not done, as far as is known for sure.
    NotDone,
    /// It may have happened.
    Undecided,
}

impl Operation {
    /// A new one. Its key is drawn with the first try.
    pub fn new() -> Self {
        Self::default()
    }

    /// The key of the present try, to be kept by whoever wants to survive a restart.
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// The caller has found out what became of the last try, or does not care: the next one is a new operation.
    pub fn abandon(&mut self) {
        self.state = State::Settled;
    }

    /// The key for a try with this content.
    pub(crate) fn key_for(&mut self, content: Option<Fingerprint>) -> Result<Key, Refused> {
        let same = self.content.is_some() && self.content == content;
        match (self.state, &self.key) {
            (State::Undecided, Some(_)) if !same => return Err(Refused::Undecided),
            (State::Undecided | State::NotDone, Some(key)) if same => return Ok(key.clone()),
            _ => {}
        }
        let key = Key::random().map_err(|NoRandomness| Refused::NoRandomness(NoRandomness))?;
        (self.key, self.content) = (Some(key.clone()), content);
        Ok(key)
    }

    /// From now on it may have happened, also if the try is dropped.
    pub(crate) fn begins(&mut self) {
        self.state = State::Undecided;
    }

    pub(crate) fn ended<T>(&mut self, sent: &Result<T, Error<Bytes>>) {
        self.state = match sent {
            Ok(_) => State::Settled,
            Err(Error::OutcomeUnknown(_)) => State::Undecided,
            // A 500 that is not retried says nothing about the effect.
            Err(Error::Stopped(stopped))
                if matches!(stopped.because, Stop::Rule(Rule::NotListed { status: 500.. })) =>
            {
                State::Undecided
            }
            Err(error) if error.may_help_later() => State::NotDone,
            Err(_) => State::Settled,
        };
    }
}
