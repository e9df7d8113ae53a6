//! A bound on the attempts that are under way to one target.

use std::{sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

use crate::host::Host;

/// How many attempts may be under way, and how long one waits for its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bulkhead {
    /// Attempts under way.
    pub attempts_max: u32,
    /// How long an attempt waits for a place. Zero: a full bulkhead ends the call at once, for callers that would rather
    /// shed load (I-71).
    pub wait_max: Duration,
}

#[derive(Clone, Debug)]
pub(super) struct Places {
    places: Arc<Semaphore>,
    wait_max: Duration,
}

/// An attempt's place; dropping it makes room.
pub(super) type Place = OwnedSemaphorePermit;

impl Places {
    pub(super) fn new(rule: Bulkhead) -> Self {
        let places = (rule.attempts_max.max(1) as usize).min(Semaphore::MAX_PERMITS);
        Self { places: Arc::new(Semaphore::new(places)), wait_max: rule.wait_max }
    }

    pub(super) async fn admit(&self, host: &Host, timeout: Duration) -> Option<Place> {
        match Arc::clone(&self.places).try_acquire_owned() {
            Ok(place) => return Some(place),
            Err(TryAcquireError::NoPermits) if !self.wait_max.is_zero() => {}
            Err(_) => return None,
        }
        let place = Arc::clone(&self.places).acquire_owned();
        host.within(self.wait_max.min(timeout), place).await?.ok()
    }
}
