//! The sleeps of other clients, by their published formulas (V8, V9, V10).

use std::time::Duration;

use crate::retry::{backoff::share, deadline::nanos};

/// Whose sleep.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Delays {
    /// No sleep at all.
    None,
    /// The bound itself, without jitter.
    Exponential(Curve),
    /// Half the bound, and a random part of the other half.
    Equal(Curve),
    /// As this engine's full jitter.
    Full(Curve),
    /// As published: capped after it was drawn, so that late sleeps pile up on the cap (M7).
    Decorrelated(Curve),
    /// Stripe's Python and Node libraries.
    Stripe,
    /// Stripe's Go library.
    StripeGo,
    /// OpenAI and Anthropic.
    OpenAi,
    /// Speakeasy's Python clients.
    SpeakeasyPython,
    /// Speakeasy's TypeScript clients, which swap base and exponent.
    SpeakeasyTypeScript,
    /// Twilio's Node library.
    TwilioNode,
    /// Envoy.
    Envoy,
    /// undici's retry agent.
    Undici,
    /// gRPC's A6 with 100 ms, 1 s and a factor of 2.
    Grpc,
    /// Polly, linear with a base of one second.
    PollyLinear,
}

/// Base and cap of an exponential.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Curve {
    /// Doubled with every retry.
    pub base: Duration,
    /// Never above it.
    pub cap: Duration,
}

impl Curve {
    fn at(self, exponent: u32) -> Duration {
        let factor = 1_u64.checked_shl(exponent).unwrap_or(u64::MAX);
        Duration::from_nanos(nanos(self.base).saturating_mul(factor)).min(self.cap)
    }
}

/// Beyond this, `2^t` says no more about a sleep than "the longest".
const EXPONENT_MAX: f64 = 1_024.0;
const SPEAKEASY_CAP: Duration = Duration::from_secs(60);
const POLLY_CAP: Duration = Duration::from_secs(86_400);

impl Delays {
    /// The sleep before retry number `retry`, the first being 0, after one of `previous`. The draw is 0 at no `entropy`
    /// and 1 at the most.
    pub fn sleep(self, retry: u32, previous: Duration, entropy: u64) -> Duration {
        let ms = Duration::from_millis;
        let doubled = |base, cap| Curve { base: ms(base), cap: ms(cap) }.at(retry);
        let draw = |whole| share(whole, entropy);
        match self {
            Delays::None => Duration::ZERO,
            // The published simulation counts its retries from 1.
            Delays::Exponential(curve) => curve.at(retry + 1),
            Delays::Equal(curve) => curve.at(retry + 1) / 2 + draw(curve.at(retry + 1) / 2),
            Delays::Full(curve) => draw(curve.at(retry + 1)),
            Delays::Decorrelated(Curve { base, cap }) => {
                let high = previous.max(base).saturating_mul(3);
                (base + draw(high - base)).min(cap)
            }
            Delays::Stripe => between(doubled(500, 5_000), 0.5, entropy).max(ms(500)),
            Delays::StripeGo => {
                let grown =
                    Duration::from_millis(500).saturating_mul(retry.saturating_pow(2).saturating_add(1));
                between(grown.min(ms(5_000)), 0.75, entropy).max(ms(500))
            }
            Delays::OpenAi => between(doubled(500, 8_000), 0.75, entropy),
            Delays::SpeakeasyPython => {
                seconds(0.5 * 1.5_f64.powf(f64::from(retry)), SPEAKEASY_CAP) + draw(ms(1_000))
            }
            Delays::SpeakeasyTypeScript => {
                seconds(0.5 * f64::from(retry).powf(1.5), SPEAKEASY_CAP) + draw(ms(1_000))
            }
            Delays::TwilioNode => whole_ms_below(doubled(200, 3_000), entropy),
            Delays::Envoy => {
                let bound = doubled(50, u64::MAX).saturating_sub(ms(25));
                whole_ms_below(bound, entropy).min(ms(250))
            }
            Delays::Undici => doubled(500, 30_000),
            Delays::Grpc => {
                let mean = doubled(100, 1_000);
                mean * 4 / 5 + draw(mean * 2 / 5)
            }
            Delays::PollyLinear => between_around(ms(1_000).saturating_mul(retry.saturating_add(1)), entropy),
        }
    }

    /// The shortest and the longest sleep before retry number `retry`.
    pub fn range(self, retry: u32) -> (Duration, Duration) {
        (self.sleep(retry, Duration::ZERO, 0), self.sleep(retry, Duration::ZERO, u64::MAX))
    }
}

/// Between `low` of `whole` and all of it.
fn between(whole: Duration, low: f64, entropy: u64) -> Duration {
    let floor = whole.mul_f64(low);
    floor + share(whole - floor, entropy)
}

/// A quarter less to a quarter more.
fn between_around(middle: Duration, entropy: u64) -> Duration {
    middle * 3 / 4 + share(middle / 2, entropy)
}

/// Whole milliseconds below `bound`.
fn whole_ms_below(bound: Duration, entropy: u64) -> Duration {
    let drawn = share(bound.saturating_sub(Duration::from_nanos(1)), entropy);
    Duration::from_millis(u64::try_from(drawn.as_millis()).unwrap_or(u64::MAX))
}

fn seconds(seconds: f64, cap: Duration) -> Duration {
    Duration::try_from_secs_f64(seconds).map_or(cap, |delay| delay.min(cap))
}

/// Polly's decorrelated jitter, second version: each sleep is the difference of a curve between two random points, so
/// it carries the last point along.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PollyDecorrelated {
    base: Duration,
    retry: u32,
    last: f64,
}

impl PollyDecorrelated {
    /// From the first retry on. `base` is about the median of the first sleep.
    pub fn new(base: Duration) -> Self {
        Self { base, retry: 0, last: 0.0 }
    }

    /// The next sleep: `base * (f(t) - f(last t)) / 1.4` with `f(t) = 2^t * tanh(sqrt(4 t))` and t = retry + draw.
    pub fn sleep(&mut self, entropy: u64) -> Duration {
        let t = f64::from(self.retry) + entropy as f64 / u64::MAX as f64;
        self.retry = self.retry.saturating_add(1);
        if t >= EXPONENT_MAX {
            return POLLY_CAP;
        }
        let point = t.exp2() * (4.0 * t).sqrt().tanh();
        let grown = (point - self.last).max(0.0) * self.base.as_secs_f64() / 1.4;
        self.last = point;
        seconds(grown, POLLY_CAP)
    }
}
