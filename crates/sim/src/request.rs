//! The request that both kinds of world are about, and how its key is decided: by the real function.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use retrysafe_core::{
    contract::{InFlight, InFlightAnswer},
    decide::{Asked, Decision, Fresh, Rules, decide},
    fingerprint::{Fingerprint, Match},
    record::{Record, RecoveryClass},
    time::Wall,
};

use crate::model::Mutant;

pub(crate) static ENDPOINT: LazyLock<Arc<str>> = LazyLock::new(|| "POST /rides".into());
pub(crate) const FINGERPRINT: Fingerprint = Fingerprint::from_parts(1, 1, [0; 32]);
const POLICY: InFlight = InFlight { answer: InFlightAnswer::Refuse, retry_after: Duration::from_secs(1) };

/// What the deployed contract says of recovery: it began without steps.
pub(crate) fn recovery(deployed: bool) -> RecoveryClass {
    if deployed { RecoveryClass::Phased } else { RecoveryClass::Outside }
}

/// The decision on what was read, under the contract that is deployed.
pub(crate) fn decision(
    mut seen: Option<Record>,
    (recovery, lease): (RecoveryClass, Duration),
    mutant: Option<Mutant>,
    fresh: Fresh,
    now: Wall,
) -> Decision {
    if mutant == Some(Mutant::TodaysContract)
        && let Some(record) = &mut seen
    {
        record.recovery = recovery;
    }
    let asked = Asked { fingerprint: FINGERPRINT, verify: &|_| Match::Same, prefers_async: false };
    let rules = Rules { endpoint: &ENDPOINT, contract_version: 1, recovery, lease, in_flight: &POLICY };
    decide(seen.as_ref(), &asked, &rules, fresh, now)
}
