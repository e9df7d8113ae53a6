//! Keys that callers gave, and what they stood for: the same key with another request is a bug of this side, refused
//! before it is sent (SPEC 2.4; I-21).

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, PoisonError},
};

use retrysafe_core::fingerprint::{
    DeploymentKey, Fingerprint, FingerprintInput, FingerprintKeys, Match, compute, verify,
};

use crate::key::Key;

/// Keys that are remembered; the oldest is forgotten first. The server remembers them all.
const KEYS_MAX: usize = 4_096;

/// Remembers what each given key stood for.
pub(crate) struct UsedKeys {
    secret: Option<FingerprintKeys>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    by_key: HashMap<Key, Fingerprint>,
    order: VecDeque<Key>,
}

impl UsedKeys {
    pub(crate) fn new() -> Self {
        let mut secret = [0; 32];
        // Without randomness nothing is remembered; the server still finds out.
        let known = getrandom::fill(&mut secret).ok().and_then(|()| DeploymentKey::new(1, &secret).ok());
        Self { secret: known.map(FingerprintKeys::new), seen: Mutex::default() }
    }

    /// Whether the key may stand for this request.
    pub(crate) fn allows(&self, key: &Key, request: &FingerprintInput<'_>) -> bool {
        let Some(secret) = &self.secret else { return true };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stored) = seen.by_key.get(key) {
            return verify(stored, request, secret) == Match::Same;
        }
        if seen.order.len() >= KEYS_MAX
            && let Some(oldest) = seen.order.pop_front()
        {
            seen.by_key.remove(&oldest);
        }
        seen.by_key.insert(key.clone(), compute(request, secret.current()));
        seen.order.push_back(key.clone());
        true
    }

    /// The digest of a request by this process's secret, for [`crate::Operation`]s.
    pub(crate) fn digest(&self, request: &FingerprintInput<'_>) -> Option<Fingerprint> {
        self.secret.as_ref().map(|secret| compute(request, secret.current()))
    }
}
