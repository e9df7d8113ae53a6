//! How a deadline travels: always as time left, never as an instant (V12, V14).
//!
//! Two machines' clocks differ, so an absolute deadline is wrong by their difference. A relative one is late by the
//! time on the wire, which only ever makes the server more patient than the client by that much.

use std::time::Duration;

/// Digits of a `grpc-timeout`.
const GRPC_DIGITS_MAX: usize = 8;
/// Digits of a millisecond header, as ConnectRPC has it.
const MS_DIGITS_MAX: usize = 10;

/// gRPC's own header; every other relative deadline header in use counts milliseconds: `connect-timeout-ms`,
/// `x-envoy-expected-rq-timeout-ms`, `x-envoy-upstream-rq-timeout-ms`, and the one that a contract names.
const GRPC_TIMEOUT: &str = "grpc-timeout";

/// Value of the deadline header `name` (lower case): the time left **for this attempt**.
///
/// ```
/// use retrysafe_core::retry::deadline::wire;
/// use std::time::Duration;
///
/// assert_eq!(wire::write("x-request-timeout-ms", Duration::from_millis(1_500)), "1500");
/// assert_eq!(wire::write("grpc-timeout", Duration::from_millis(500)), "500000u");
/// ```
pub fn write(name: &str, left: Duration) -> String {
    if name == GRPC_TIMEOUT { grpc(left) } else { milliseconds(left) }
}

/// Time left according to the deadline header `name` (lower case); `None` when the value is none of its form.
pub fn parse(name: &str, value: &str) -> Option<Duration> {
    if name == GRPC_TIMEOUT { parse_grpc(value) } else { parse_milliseconds(value) }
}

/// Value of a `grpc-timeout` header: the finest unit that fits in eight digits, rounded down, so that the server never
/// thinks it has longer. Zero left is the shortest time there is.
pub fn grpc(left: Duration) -> String {
    const UNITS: [(u128, char); 6] = [
        (1, 'n'),
        (1_000, 'u'),
        (1_000_000, 'm'),
        (1_000_000_000, 'S'),
        (60_000_000_000, 'M'),
        (3_600_000_000_000, 'H'),
    ];
    const LIMIT: u128 = 10_u128.pow(GRPC_DIGITS_MAX as u32);
    let nanos = left.as_nanos().max(1);
    let fitting = UNITS.iter().find(|(unit, _)| nanos / unit < LIMIT);
    match fitting {
        Some((unit, name)) => format!("{}{name}", nanos / unit),
        None => format!("{}H", LIMIT - 1),
    }
}

/// Time left according to a `grpc-timeout` header; `None` when it is not one.
pub fn parse_grpc(value: &str) -> Option<Duration> {
    let unit = value.chars().next_back()?;
    let digits = &value[..value.len() - unit.len_utf8()];
    let count = digits_at_most(digits, GRPC_DIGITS_MAX)?;
    Some(match unit {
        'H' => Duration::from_secs(count * 3_600),
        'M' => Duration::from_secs(count * 60),
        'S' => Duration::from_secs(count),
        'm' => Duration::from_millis(count),
        'u' => Duration::from_micros(count),
        'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

/// Value of a relative deadline header in milliseconds: rounded down, one at least.
pub fn milliseconds(left: Duration) -> String {
    left.as_millis().clamp(1, 10_u128.pow(MS_DIGITS_MAX as u32) - 1).to_string()
}

/// Time left according to a relative deadline header in milliseconds; `None` when it is not one.
pub fn parse_milliseconds(value: &str) -> Option<Duration> {
    digits_at_most(value, MS_DIGITS_MAX).map(Duration::from_millis)
}

fn digits_at_most(text: &str, digits_max: usize) -> Option<u64> {
    let digits = !text.is_empty() && text.len() <= digits_max && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}
