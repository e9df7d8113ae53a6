//! When the server says when to come back (V11).
//!
//! One rule: **never earlier than asked.** A hint is not cut to a cap and not to the time that is left; a hint that does
//! not fit ends the call, with both numbers. On top comes jitter that only adds: a thousand clients that are told
//! "30" must not come back together at 30.000 s.
//!
//! [`read`] understands `Retry-After` (seconds, or one of the three HTTP dates), its millisecond relatives, gRPC's
//! pushback, and on a 429 the rate-limit headers. What it cannot understand is no hint: it never fails, because a
//! malformed header must not hide the answer it came with.
//!
//! ```
//! use retrysafe_core::{retry::after::{self, Hint}, time::Wall};
//! use std::time::Duration;
//!
//! let now = Wall::from_unix_ms(784_111_777_000); // Sun, 06 Nov 1994 08:49:37 GMT
//! let fields = [("retry-after", &b"Sun, 06 Nov 1994 08:50:07 GMT"[..])];
//! assert_eq!(after::read(503, fields, || now), Hint::Wait(Duration::from_secs(30)));
//! ```
//!
//! Limits: a date has whole seconds and is compared with the answer's own `Date`. Where a cache kept the answer (`Age`),
//! that `Date` is old, and the caller's clock is all there is.

pub mod date;

use std::time::Duration;

use crate::time::Wall;

/// A rate-limit reset further away than this is no delay in seconds.
const RESET_DELTA_MAX_S: u64 = 86_400;
/// A rate-limit reset is an instant where it lies this close to now.
const RESET_EPOCH_WINDOW_MS: u64 = 86_400_000;
/// gRPC: a pushback beyond 32 bits means "do not retry".
const PUSHBACK_MAX_MS: u64 = i32::MAX as u64;

/// What the server said about coming back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Hint {
    /// Nothing that can be understood.
    #[default]
    None,
    /// Not before this long has passed. [`Duration::MAX`] where the number is beyond counting.
    Wait(Duration),
    /// At this very time: gRPC's pushback, already spread by the server.
    Pushback(Duration),
    /// Do not come back: gRPC's negative or unreadable pushback.
    Never,
}

impl Hint {
    /// The delay asked for, if one is.
    pub fn delay(self) -> Option<Duration> {
        match self {
            Hint::Wait(delay) | Hint::Pushback(delay) => Some(delay),
            Hint::None | Hint::Never => None,
        }
    }

    /// Of two hints in one answer the stricter: the later time, and "never" above all.
    #[must_use]
    fn stricter(self, other: Hint) -> Hint {
        match (self, other) {
            (Hint::Never, _) | (_, Hint::Never) => Hint::Never,
            (a, b) if b.delay() > a.delay() => b,
            (a, _) => a,
        }
    }
}

/// Reads the hint out of an answer's header fields (names in lower case, lines in any order), received at `now()` by the
/// caller's wall clock, which is asked only where a hint is a date. Rate-limit fields count on a 429 only: on other answers they tell how much quota is left.
pub fn read<'a>(
    status: u16,
    fields: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    now: impl Fn() -> Wall,
) -> Hint {
    let mut hint = Hint::None;
    let mut reset = Hint::None;
    let (mut retry_at, mut sent_at, mut cached) = (None::<Wall>, None::<&str>, false);
    for (name, value) in fields {
        let Ok(value) = std::str::from_utf8(value) else { continue };
        let value = value.trim_matches([' ', '\t']);
        let seen = match name {
            "retry-after" => match date::parse(value, now()) {
                Some(date) => {
                    retry_at = retry_at.max(Some(date));
                    Hint::None
                }
                None => wait(value, Duration::from_secs),
            },
            "retry-after-ms" | "x-ms-retry-after-ms" | "x-amz-retry-after" => {
                wait(value, Duration::from_millis)
            }
            "grpc-retry-pushback-ms" => pushback(value),
            "date" => {
                sent_at = Some(value);
                Hint::None
            }
            "age" => {
                cached = true;
                Hint::None
            }
            "ratelimit" => {
                reset = reset.stricter(rate_limit(value));
                Hint::None
            }
            "x-ratelimit-reset" => {
                reset = reset.stricter(rate_limit_reset(value, now()));
                Hint::None
            }
            _ => Hint::None,
        };
        hint = hint.stricter(seen);
    }
    if let Some(retry_at) = retry_at {
        let now = now();
        let reference = sent_at.filter(|_| !cached).and_then(|sent_at| date::parse(sent_at, now));
        let reference = reference.unwrap_or(now);
        hint = hint.stricter(Hint::Wait(retry_at.since(reference)));
    }
    if hint == Hint::None && status == 429 { reset } else { hint }
}

fn wait(value: &str, unit: fn(u64) -> Duration) -> Hint {
    match digits(value) {
        Some(count) => Hint::Wait(count.map_or(Duration::MAX, unit)),
        None => Hint::None,
    }
}

fn pushback(value: &str) -> Hint {
    match digits(value) {
        Some(Some(ms)) if ms <= PUSHBACK_MAX_MS => Hint::Pushback(Duration::from_millis(ms)),
        _ => Hint::Never,
    }
}

/// `None`: not digits alone. `Some(None)`: digits, too many to count; that wraps to nothing in naive readers.
fn digits(value: &str) -> Option<Option<u64>> {
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| value.parse().ok())
}

/// The draft's `RateLimit: "policy";r=0;t=30`: seconds until quota comes back, of each policy that has none left.
fn rate_limit(value: &str) -> Hint {
    let Ok(policies) = sfv::Parser::new(value).parse::<sfv::List>() else { return Hint::None };
    let mut hint = Hint::None;
    for policy in policies {
        let sfv::ListEntry::Item(item) = policy else { continue };
        let number = |name: &str| {
            let found = item.params.iter().find(|(key, _)| key.as_str() == name);
            found.and_then(|(_, value)| value.as_integer()).and_then(|n| u64::try_from(n).ok())
        };
        if let (None | Some(0), Some(seconds)) = (number("r"), number("t")) {
            hint = hint.stricter(Hint::Wait(Duration::from_secs(seconds)));
        }
    }
    hint
}

/// `X-RateLimit-Reset` means an instant to some APIs and a delay to others. An instant is near now; a delay is short;
/// anything else is not understood.
fn rate_limit_reset(value: &str, now: Wall) -> Hint {
    let Some(Some(number)) = digits(value) else { return Hint::None };
    let instants = [number.checked_mul(1_000), Some(number)];
    let near = instants
        .into_iter()
        .flatten()
        .filter_map(|ms| i64::try_from(ms).ok())
        .find(|ms| ms.abs_diff(now.unix_ms()) <= RESET_EPOCH_WINDOW_MS);
    match near {
        Some(ms) => Hint::Wait(Wall::from_unix_ms(ms).since(now)),
        None if number <= RESET_DELTA_MAX_S => Hint::Wait(Duration::from_secs(number)),
        None => Hint::None,
    }
}
