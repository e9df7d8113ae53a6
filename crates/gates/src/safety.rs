//! A gate causes real effects: that is what it is for. So it says how many, and asks whose they are.

use std::net::IpAddr;
use std::time::Duration;

use crate::plan::Base;

/// What a run sends at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Estimate {
    /// Requests.
    pub requests: u64,
    /// Effects, if the API keeps its promises.
    pub effects: u64,
    /// Effects, if it ignores keys.
    pub effects_at_worst: u64,
}

/// What the user allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// The user owns the target and accepts this many effects, if it is not on this machine.
    pub owned: Option<u64>,
    /// The whole run ends within this time.
    pub time: Duration,
}

/// Why a run is not begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

/// Whether a base is this machine: by its address, not by a name that somebody else resolves.
#[must_use]
pub fn is_loopback(base: &Base) -> bool {
    base.host == "localhost" || base.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether this run may be begun.
///
/// # Errors
/// A base is not on this machine, and the user has not said that it is theirs and how many effects they accept.
pub fn permit(bases: &[Base], estimate: Estimate, allowance: &Allowance) -> Result<(), Refused> {
    let Some(elsewhere) = bases.iter().find(|base| !is_loopback(base)) else { return Ok(()) };
    let worst = estimate.effects_at_worst;
    match allowance.owned {
        None => Err(Refused(format!(
            "{} is not on this machine. A gate sends up to {} requests with real effects: {} where keys work, up to {worst} where \
             they do not. If it is yours, say so: --i-own-the-target-and-accept {worst}",
            elsewhere.authority, estimate.requests, estimate.effects
        ))),
        Some(accepted) if accepted < worst => Err(Refused(format!(
            "{accepted} effects are accepted and there may be {worst}; accept that many, or lower [concurrency] rounds and requests"
        ))),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ESTIMATE: Estimate = Estimate { requests: 900, effects: 50, effects_at_worst: 700 };

    fn bases(base: &str) -> Vec<Base> {
        let text = format!(
            "base = \"{base}\"\n[request]\npath = \"/o\"\nbody = \"{{{{nonce}}}}\"\n[[observe]]\nkind = \"log\"\nfile = \"f\"\n"
        );
        crate::plan::Plan::parse(&text, "gates.toml").expect("a plan").bases
    }

    fn owned(owned: Option<u64>) -> Allowance {
        Allowance { owned, time: Duration::from_secs(1) }
    }

    #[test]
    fn this_machine_needs_no_permission_and_any_other_does() {
        for base in ["http://127.0.0.1:1", "http://127.8.9.1", "http://[::1]:80", "http://localhost:8080"] {
            assert_eq!(permit(&bases(base), ESTIMATE, &owned(None)), Ok(()), "{base}");
        }
        for base in ["http://10.0.0.1", "http://localhost.example.com", "http://api.example.com"] {
            let refused = permit(&bases(base), ESTIMATE, &owned(None)).expect_err("not ours");
            assert!(refused.0.contains("700"), "{}", refused.0);
            assert!(permit(&bases(base), ESTIMATE, &owned(Some(699))).is_err());
            assert_eq!(permit(&bases(base), ESTIMATE, &owned(Some(700))), Ok(()));
        }
    }
}
