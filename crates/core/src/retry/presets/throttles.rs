//! Client-side throttles of Google's SRE book and its SDKs (V7), for comparison.

/// The SRE book's adaptive throttle: reject by chance once fewer than one in K requests is accepted.
///
/// As the SDKs have it, without a window: after a million successes it needs as many failures to notice an outage.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SreThrottle {
    /// K: 2 lets twice as many requests through as are accepted.
    pub factor: f64,
    /// Requests so far.
    pub requests: u64,
    /// Of those, accepted.
    pub accepts: u64,
}

impl SreThrottle {
    /// Probability of rejecting the next request on this side.
    pub fn rejects(&self) -> f64 {
        let (requests, accepts) = (self.requests as f64, self.accepts as f64);
        ((requests - self.factor * accepts) / (requests + 1.0)).max(0.0)
    }
}

/// The breaker of Google's SDKs: a failure costs many tokens, a success brings one back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GaxBreaker {
    /// Tokens now.
    pub tokens: u64,
    /// Tokens at most.
    pub max: u64,
    /// Retries need more than this.
    pub min: u64,
    /// What a failure costs.
    pub cost: u64,
}

impl GaxBreaker {
    /// A full one.
    pub fn new(max: u64, min: u64, cost: u64) -> Self {
        Self { tokens: max, max, min, cost }
    }

    /// After a failure.
    pub fn failed(&mut self) {
        self.tokens = self.tokens.saturating_sub(self.cost);
    }

    /// After a success.
    pub fn succeeded(&mut self) {
        self.tokens = self.tokens.saturating_add(1).min(self.max);
    }

    /// Whether a retry may go.
    pub fn allows(&self) -> bool {
        self.tokens > self.min
    }
}
