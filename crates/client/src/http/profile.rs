//! APIs without a contract of ours whose handling of keys is published: what a client has to know about them.

use std::time::Duration;

use retrysafe_core::{
    key::KeyRules,
    retry::{RetryPolicy, StatusSet},
};

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// What an API does with keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    /// Name for logs.
    pub name: &'static str,
    /// Header of the key.
    pub header: &'static str,
    /// Length of keys, and their spelling.
    pub rules: KeyRules,
    /// Methods on which keys are honoured.
    pub methods: &'static [&'static str],
    /// How long an answer is replayed.
    pub replay: Duration,
    /// How to retry, with the failures that are stored under the key: the same key only fetches those again.
    pub policy: RetryPolicy,
}

impl Profile {
    /// Stripe, version 1: every failure is stored once execution began, **500 included**; 401 and 429 come before that.
    /// An API that stores a 500 cannot be asked again under the same key.
    pub fn stripe_v1() -> Self {
        let stored = (400..=599).filter(|status| !matches!(status, 401 | 409 | 429 | 502 | 503 | 504));
        let base = retried(&[409, 429, 502, 503, 504]);
        let policy = RetryPolicy { stored: stored.collect(), ..base };
        Self { methods: &["POST"], policy, ..Self::plain("stripe-v1", "idempotency-key") }
    }

    /// Stripe, version 2: failed work is run to its end under the same key, for 30 days.
    pub fn stripe_v2() -> Self {
        Self {
            methods: &["POST", "DELETE"],
            replay: DAY * 30,
            policy: retried(&[409, 429, 500, 502, 503, 504]),
            ..Self::plain("stripe-v2", "idempotency-key")
        }
    }

    /// Resend: 24 h, keys of up to 256 characters; what becomes of failures is not published.
    pub fn resend() -> Self {
        let rules = KeyRules { max_len: 256, ..KeyRules::default() };
        Self { rules, ..Self::plain("resend", "idempotency-key") }
    }

    /// An API of the IETF draft, of which nothing more is known: the key is a quoted string.
    pub fn ietf_draft() -> Self {
        let rules = KeyRules { syntax: retrysafe_core::key::KeySyntax::Strict, ..KeyRules::default() };
        Self { rules, ..Self::plain("ietf-draft", "idempotency-key") }
    }

    /// An API that honours a bare key in this header on POST and PATCH, and replays for a day. `header` is lower case.
    pub fn plain(name: &'static str, header: &'static str) -> Self {
        Self {
            name,
            header,
            rules: KeyRules::default(),
            methods: &["POST", "PATCH"],
            replay: DAY,
            policy: RetryPolicy::default(),
        }
    }
}

fn retried(statuses: &[u16]) -> RetryPolicy {
    let statuses: StatusSet = statuses.iter().copied().collect();
    RetryPolicy { statuses, ..RetryPolicy::default() }
}
