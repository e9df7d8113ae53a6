//! Were the requests together, and did the server work on them together? Pure.
//!
//! A server that is done before the second request arrives, or that takes requests one at a time, shows one effect whatever
//! its code says. A clean run says nothing then, and must not be called PASS.

use std::time::Duration;

/// What a run showed about time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Races of requests at once.
    pub rounds: u32,
    /// Of these: when the last request was complete, none had an answer.
    pub in_hand: u32,
    /// Answers *in flight* in any race.
    pub in_flight: u64,
    /// Calls that came to the stub while it held the first call of requests with *different* keys.
    pub calls_beside_a_held_one: usize,
    /// How long one request takes alone.
    pub alone: Duration,
    /// How long the control (different keys at once) took, from the last byte to the last answer.
    pub control: Duration,
    /// Requests in the control.
    pub requests: usize,
    /// Instances that the requests were dealt over.
    pub instances: usize,
}

/// Timing below this is the noise of a scheduler.
const ALONE_MIN: Duration = Duration::from_millis(2);
/// In the control, so much faster than one by one.
const SPEED_UP: f64 = 2.0;

/// How it is known that requests overlapped; or why it is not, and what to change.
///
/// # Errors
/// It is not known.
pub fn proof(evidence: &Evidence) -> Result<String, (String, String)> {
    let Evidence { rounds, in_hand, in_flight, requests, .. } = *evidence;
    if in_flight > 0 {
        return Ok(format!("{in_flight} requests were told in flight: they met the one that ran"));
    }
    if rounds > 0 && in_hand.saturating_mul(2) < rounds {
        return Err((
            format!("the server is too fast: in only {in_hand} of {rounds} races it had all requests in hand before the first answer"),
            "widen the window: point the API at [stub], whose first call is held; or raise [concurrency] requests".to_owned(),
        ));
    }
    if evidence.calls_beside_a_held_one > 0 {
        return Ok(format!(
            "the server had all requests in hand in {in_hand} of {rounds} races, and works on several at a time: {} calls came to the stub beside one that was held",
            evidence.calls_beside_a_held_one
        ));
    }
    if evidence.instances > 1 {
        return Ok(format!(
            "the requests were dealt over {} instances, which had all of them in hand in {in_hand} of {rounds} races",
            evidence.instances
        ));
    }
    let speed_up = speed_up(evidence);
    if evidence.alone >= ALONE_MIN && speed_up >= SPEED_UP {
        return Ok(format!(
            "the server had all requests in hand in {in_hand} of {rounds} races, and works on several at a time: {requests} different ones took as long as {:.1}",
            requests as f64 / speed_up
        ));
    }
    let why = if evidence.alone < ALONE_MIN {
        format!(
            "one request takes {:.1} ms: too little to tell whether the server works on several at a time",
            ms(evidence.alone)
        )
    } else {
        format!(
            "the server takes requests one at a time: {requests} different ones took {:.1} ms, one takes {:.1}",
            ms(evidence.control),
            ms(evidence.alone)
        )
    };
    Err((
        why,
        "run it as in production, with several workers; or point the API at [stub], whose first call is held; or add a second instance to base".to_owned(),
    ))
}

fn speed_up(evidence: &Evidence) -> f64 {
    let control = evidence.control.as_secs_f64();
    if control <= 0.0 { 0.0 } else { evidence.alone.as_secs_f64() * evidence.requests as f64 / control }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONCURRENT: Evidence = Evidence {
        rounds: 66,
        in_hand: 66,
        in_flight: 0,
        calls_beside_a_held_one: 0,
        alone: Duration::from_millis(5),
        control: Duration::from_millis(9),
        requests: 20,
        instances: 1,
    };

    #[test]
    fn overlap_is_shown_by_answers_by_the_stub_or_by_time() {
        assert!(proof(&CONCURRENT).is_ok());
        let serial = Evidence { control: Duration::from_millis(101), ..CONCURRENT };
        assert!(proof(&serial).expect_err("one at a time").0.contains("one at a time"));
        assert!(proof(&Evidence { in_flight: 1, ..serial }).is_ok());
        assert!(proof(&Evidence { calls_beside_a_held_one: 1, ..serial }).is_ok());
        assert!(proof(&Evidence { instances: 2, ..serial }).is_ok());
        assert!(proof(&Evidence { instances: 2, in_hand: 3, ..serial }).is_err(), "too fast all the same");
    }

    #[test]
    fn a_server_that_is_too_fast_proves_nothing() {
        let fast = Evidence { in_hand: 20, ..CONCURRENT };
        assert!(proof(&fast).expect_err("too fast").0.contains("too fast"));
        assert!(proof(&Evidence { in_flight: 3, ..fast }).is_ok());
        // Time alone is not trusted where a scheduler could have made it.
        let short =
            Evidence { alone: Duration::from_micros(200), control: Duration::from_micros(500), ..CONCURRENT };
        assert!(proof(&short).is_err());
        assert!(proof(&Evidence { control: Duration::ZERO, ..CONCURRENT }).is_err());
    }
}
