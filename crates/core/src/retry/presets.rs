//! What others do, for comparison: `simulate`, vectors, and the table that the docs print. Nothing here is offered as a
//! policy of a client: equal jitter and none at all synchronise clients (SPEC 7.3), and a clamped hint comes back
//! earlier than the server asked.

mod adaptive;
mod delays;
mod throttles;

pub use adaptive::{Adaptive, Cubic};
pub use delays::{Curve, Delays, PollyDecorrelated};
pub use throttles::{GaxBreaker, SreThrottle};

use std::{num::NonZeroU32, time::Duration};

use super::{
    backoff::Backoff,
    budget::Bucket,
    policy::{Obedience, Obeyed, RetryPolicy, StatusSet},
};

/// AWS: how far above its own delay a hint is obeyed.
const AWS_HINT_OVER: Duration = Duration::from_secs(5);

/// The standard mode of the AWS SDKs, version 2.1: no overall deadline, hints clamped, 500 retried.
pub fn aws_2_1() -> RetryPolicy {
    RetryPolicy {
        elapsed: Duration::MAX,
        useful_attempt: Duration::ZERO,
        statuses: aws_statuses(),
        obedience: Obedience(Obeyed::Clamped(AWS_HINT_OVER)),
        ..RetryPolicy::default()
    }
}

/// Version 2.0 of the same: base 1 s, hints cut to the cap.
pub fn aws_2_0() -> RetryPolicy {
    RetryPolicy {
        backoff: Backoff { base: Duration::from_secs(1), ..Backoff::default() },
        obedience: Obedience(Obeyed::Cut),
        ..aws_2_1()
    }
}

/// Version 2.0's bucket: 5 for a retry; its 10 for a timeout is [`aws_2_0_timeout_bucket`].
pub fn aws_2_0_bucket() -> Bucket {
    Bucket { transient_cost: 5, throttled_cost: 5, ..Bucket::default() }
}

/// Version 2.0's bucket as it charges timeouts.
pub fn aws_2_0_timeout_bucket() -> Bucket {
    Bucket { transient_cost: 10, ..aws_2_0_bucket() }
}

/// DynamoDB: base 25 ms, four attempts.
pub fn dynamodb() -> RetryPolicy {
    let policy = aws_2_1();
    RetryPolicy {
        attempts: NonZeroU32::new(4).unwrap_or(policy.attempts),
        backoff: Backoff { base: Duration::from_millis(25), ..policy.backoff },
        ..policy
    }
}

fn aws_statuses() -> StatusSet {
    [429, 500, 502, 503, 504].into_iter().collect()
}
