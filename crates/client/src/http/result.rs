//! How a call over HTTP ends, when it does not end well.

use std::{fmt, time::Duration};

use http::Response;
use retrysafe_core::{
    retry::{Reach, Stop, Unknown, Why},
    time::Wall,
};

use crate::{
    BoxError,
    history::History,
    key::{Key, KeyRefused, NoRandomness},
};

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error<B> {
    /// Refused on this side: nothing was sent.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Given up; nothing of it is left undecided.
    #[error(transparent)]
    Stopped(Box<Stopped<B>>),
    /// It may have happened.
    #[error(transparent)]
    OutcomeUnknown(Box<OutcomeUnknown>),
}

/// What this side does not send. Trying again does not help.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// The key is none.
    #[error(transparent)]
    Key(#[from] KeyRefused),
    /// The request already carries something that cannot be a key.
    #[error("the request carries no usable key: {0}")]
    Carried(#[from] retrysafe_core::key::KeyFault),
    /// No key could be made.
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
    /// The same key has stood for another request: one key for one operation, the same on every attempt.
    #[error("this key has stood for another request; an operation whose content changes needs a new key")]
    BodyChanged,
    /// The last try of this operation may have happened, with other content.
    #[error(
        "the last try of this operation may have happened, and this one has another body; settle the last one first"
    )]
    Undecided,
    /// The key belongs into the body, and the body is no JSON object (or a stream).
    #[error("the contract carries the key in the body, and this body is no JSON object")]
    NoPlaceForKey,
    /// The request cannot be made from what was given.
    #[error("the request cannot be made: {0}")]
    Request(String),
    /// The intent could not be written down, so nothing was sent.
    #[error("the intent could not be saved, so nothing was sent: {0}")]
    Intent(String),
}

/// Given up, and nothing is left undecided.
#[derive(Debug)]
pub struct Stopped<B> {
    /// What ended the call.
    pub because: Stop,
    /// The last answer, where there was one.
    pub answer: Option<Response<B>>,
    /// What the transport said last, where there was no answer.
    pub error: Option<BoxError>,
    /// The key it was sent under: the same call can be made again with it.
    pub key: Option<Key>,
    /// What happened.
    pub history: History,
}

/// It may have happened. A result of its own, never a mere timeout: whoever sends it again with another key, or without
/// one, risks a second effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutcomeUnknown {
    /// The key it was sent under: with it, and only with it, it can be sent again.
    pub key: Option<Key>,
    /// Attempts that were sent.
    pub attempts: u32,
    /// How far the bytes of any of the undecided attempts got.
    pub reach: Reach,
    /// What ended the call.
    pub because: Stop,
    /// Until when the server answers the same key with the same result, at least: its window counted from the first
    /// attempt. `None`: it honours no keys. Past it the operation has to be looked up.
    pub window_ends: Option<Wall>,
    /// What happened.
    pub history: History,
}

impl OutcomeUnknown {
    pub(crate) fn new(
        unknown: Unknown,
        key: Option<Key>,
        sent_first: Wall,
        replay: Option<Duration>,
        history: History,
    ) -> Self {
        let Unknown { attempts, reach, because } = unknown;
        let window_ends = replay.filter(|_| key.is_some()).map(|replay| sent_first.plus(replay));
        Self { key, attempts, reach, because, window_ends, history }
    }
}

impl fmt::Display for OutcomeUnknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attempts, reach, because, .. } = self;
        let unknown = Unknown { attempts: *attempts, reach: *reach, because: because.clone() };
        Why::OutcomeUnknown(unknown).fmt(f)
    }
}

impl std::error::Error for OutcomeUnknown {}

impl<B> fmt::Display for Stopped<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "given up: {}", self.because)?;
        if let Some(answer) = &self.answer {
            write!(f, "; the last answer was {}", answer.status().as_u16())?;
        }
        Ok(())
    }
}

impl<B: fmt::Debug> std::error::Error for Stopped<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.as_deref().map(|error| error as _)
    }
}

#[cfg(feature = "tower")]
impl<B> Stopped<B> {
    /// The same as an error that holds no body.
    pub(crate) fn without_answer(self) -> BoxError {
        let Self { because, error, key, history, answer: _ } = self;
        Box::new(Stopped::<()> { because, answer: None, error, key, history })
    }
}

impl<B> Error<B> {
    /// Whether the same call, with the same key, may succeed later.
    pub fn may_help_later(&self) -> bool {
        match self {
            Error::Refused(_) => false,
            Error::Stopped(stopped) => stopped.because.may_help_later(),
            Error::OutcomeUnknown(unknown) => unknown.key.is_some(),
        }
    }

    /// The unknown outcome, if it is one.
    pub fn outcome_unknown(&self) -> Option<&OutcomeUnknown> {
        match self {
            Error::OutcomeUnknown(unknown) => Some(unknown),
            Error::Refused(_) | Error::Stopped(_) => None,
        }
    }
}

impl<B> Error<B> {
    /// With another body.
    #[cfg_attr(
        not(feature = "reqwest"),
        expect(dead_code, reason = "only reqwest's client reads bodies whole")
    )]
    pub(crate) fn map<C>(self, body: impl FnOnce(B) -> C) -> Error<C> {
        match self {
            Error::Refused(refused) => Error::Refused(refused),
            Error::OutcomeUnknown(unknown) => Error::OutcomeUnknown(unknown),
            Error::Stopped(stopped) => {
                let Stopped { because, answer, error, key, history } = *stopped;
                Error::Stopped(Box::new(Stopped {
                    because,
                    answer: answer.map(|answer| answer.map(body)),
                    error,
                    key,
                    history,
                }))
            }
        }
    }
}
