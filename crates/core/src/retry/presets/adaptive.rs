//! The adaptive mode of the AWS SDKs: a client-side rate that follows the server's throttling (V3).
//!
//! A token bucket whose fill rate is cut to 70% of what was sent when the server throttles, and then grows along a cubic
//! curve through the rate at which it was throttled. For comparison in simulations; this project's own clients ration
//! retries and never first attempts.

use std::time::Duration;

use crate::retry::deadline::Mono;

/// What is left of the rate when the server throttles.
const BETA: f64 = 0.7;
/// How steep the curve is.
const SCALE: f64 = 0.4;
/// Weight of the newest measurement.
const SMOOTH: f64 = 0.8;
/// Tokens a second, at least.
const FILL_MIN: f64 = 0.5;
const CAPACITY_MIN: f64 = 1.0;
/// Sends are measured in half seconds.
const SLOTS_PER_SECOND: f64 = 2.0;
/// A new rate is at most this many times the measured one.
const GROWTH_MAX: f64 = 2.0;
/// A shortfall below this is none: a wait of nothing would spin.
const SHORTFALL_MIN: f64 = 1e-9;

/// The curve alone: rates from throttles and successes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cubic {
    last_max: f64,
    throttled_at: f64,
}

impl Cubic {
    /// A curve that was last throttled at `throttled_at` seconds, at the rate `last_max`.
    pub fn new(last_max: f64, throttled_at: f64) -> Self {
        Self { last_max, throttled_at }
    }

    /// The rate after a throttle at `now`, sending at `rate`.
    pub fn throttled(&mut self, rate: f64, now: f64) -> f64 {
        (self.last_max, self.throttled_at) = (rate, now);
        rate * BETA
    }

    /// The rate that a success at `now` allows.
    pub fn succeeded(&self, now: f64) -> f64 {
        let window = (self.last_max * (1.0 - BETA) / SCALE).cbrt();
        SCALE * (now - self.throttled_at - window).powi(3) + self.last_max
    }
}

/// The limiter: the curve, the measured rate and the bucket.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Adaptive {
    enabled: bool,
    fill: f64,
    capacity: f64,
    tokens: f64,
    filled_at: f64,
    cubic: Cubic,
    measured: f64,
    slot: f64,
    sends: f64,
}

impl Default for Adaptive {
    fn default() -> Self {
        Self {
            enabled: false,
            fill: 0.0,
            capacity: 0.0,
            tokens: 0.0,
            filled_at: 0.0,
            cubic: Cubic::new(0.0, 0.0),
            measured: 0.0,
            slot: 0.0,
            sends: 0.0,
        }
    }
}

impl Adaptive {
    /// What an answer at `now` makes of the rate. It limits nothing until the first throttle.
    pub fn observe(&mut self, throttled: bool, now: Mono) {
        let now = seconds(now);
        self.measure(now);
        let rate = if throttled {
            let rate = if self.enabled { self.measured.min(self.fill) } else { self.measured };
            self.enabled = true;
            self.cubic.throttled(rate, now)
        } else {
            self.cubic.succeeded(now)
        };
        self.set_fill(rate.min(GROWTH_MAX * self.measured), now);
    }

    /// Takes the token of one send.
    ///
    /// # Errors
    /// How long to wait before asking again; nothing is taken then, so all who ask at once hear the same.
    pub fn acquire(&mut self, now: Mono) -> Result<(), Duration> {
        if !self.enabled {
            return Ok(());
        }
        self.refill(seconds(now));
        let shortfall = 1.0 - self.tokens;
        if shortfall < SHORTFALL_MIN {
            self.tokens = (self.tokens - 1.0).max(0.0);
            return Ok(());
        }
        Err(Duration::try_from_secs_f64(shortfall / self.fill).unwrap_or(Duration::MAX))
    }

    /// Tokens a second.
    pub fn fill(&self) -> f64 {
        self.fill
    }

    /// Sends a second, smoothed.
    pub fn measured(&self) -> f64 {
        self.measured
    }

    /// Limits from `now` on, at the lowest rate, as after a first throttle.
    pub fn enable(&mut self, now: Mono) {
        self.enabled = true;
        self.set_fill(0.0, seconds(now));
    }

    fn measure(&mut self, now: f64) {
        let slot = (now * SLOTS_PER_SECOND).floor() / SLOTS_PER_SECOND;
        self.sends += 1.0;
        if slot > self.slot {
            let rate = self.sends / (slot - self.slot);
            self.measured = rate * SMOOTH + self.measured * (1.0 - SMOOTH);
            (self.sends, self.slot) = (0.0, slot);
        }
    }

    fn set_fill(&mut self, rate: f64, now: f64) {
        self.refill(now);
        self.fill = rate.max(FILL_MIN);
        self.capacity = rate.max(CAPACITY_MIN);
        self.tokens = self.tokens.min(self.capacity);
    }

    fn refill(&mut self, now: f64) {
        let passed = (now - self.filled_at).max(0.0);
        self.tokens = (self.tokens + passed * self.fill).min(self.capacity);
        self.filled_at = self.filled_at.max(now);
    }
}

fn seconds(at: Mono) -> f64 {
    at.since(Mono::START).as_secs_f64()
}
