//! The points between which a crash leaves something else behind.

use std::{fmt, sync::Arc};

/// A moment of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Point<'a> {
    /// The claim is won; nothing is written down.
    Claimed,
    /// The opening, or who goes on, is written down.
    Opened,
    /// The work of this phase is done and its commit has not begun.
    Committing(&'a str),
    /// This phase is committed.
    Committed(&'a str),
    /// The intent of this step is about to be written.
    Intending(&'a str),
    /// The intent of this step is written.
    Intended(&'a str),
    /// The call of this step is about to be made.
    Calling(&'a str),
    /// The answer of this step is read.
    Answered(&'a str),
    /// The provider is about to be asked for this step.
    Asking(&'a str),
    /// The result of this step is written.
    Recorded(&'a str),
    /// The answer is about to be stored.
    Completing,
    /// The answer is stored.
    Completed,
    /// This staged effect is about to be sent.
    Sending(&'a str),
    /// This staged effect is sent, and that is not written down.
    Sent(&'a str),
}

impl fmt::Display for Point<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Point::Claimed => f.write_str("after the claim"),
            Point::Opened => f.write_str("after the opening was written"),
            Point::Committing(step) => write!(f, "before the commit of `{step}`"),
            Point::Committed(step) => write!(f, "after the commit of `{step}`"),
            Point::Intending(step) => write!(f, "before the intent of `{step}`"),
            Point::Intended(step) => write!(f, "after the intent of `{step}`"),
            Point::Calling(step) => write!(f, "before the call of `{step}`"),
            Point::Answered(step) => write!(f, "after the answer of `{step}`"),
            Point::Asking(step) => write!(f, "before asking for `{step}`"),
            Point::Recorded(step) => write!(f, "after the result of `{step}` was written"),
            Point::Completing => f.write_str("before the answer is stored"),
            Point::Completed => f.write_str("after the answer was stored"),
            Point::Sending(effect) => write!(f, "before sending `{effect}`"),
            Point::Sent(effect) => write!(f, "after sending `{effect}`"),
        }
    }
}

/// Who is told of points.
#[derive(Clone, Default)]
pub struct Observe(Option<Arc<Observer>>);

type Observer = dyn Fn(Point<'_>) + Send + Sync;

impl Observe {
    pub(super) fn new(observe: impl Fn(Point<'_>) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(observe)))
    }

    pub(super) fn at(&self, point: Point<'_>) {
        if let Some(observe) = &self.0 {
            observe(point);
        }
    }
}

impl fmt::Debug for Observe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Observe(..)" } else { "Observe(nobody)" })
    }
}
