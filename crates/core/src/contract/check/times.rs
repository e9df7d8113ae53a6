//! Windows, leases and the longest retry chain (SPEC 3.1, 3.2, 6.5).

use std::time::Duration;

use super::{Case, Finding, error, note, warning};
use crate::{
    contract::{
        model::{FailurePolicy, Keep, Shape},
        values::show,
    },
    record::RecoveryClass,
};

/// A pause of a process or a store of this length is ordinary; a lease below it would take pauses for deaths.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// The reader refuses this too; a contract that was changed in code meets it here.
pub(super) fn window_below_retry_chain(case: &Case<'_>) -> Option<Finding> {
    let (replay, chain) = (case.endpoint.windows.replay, case.contract.longest_retry_chain);
    (replay < chain).then(|| {
        let message = format!(
            "the replay window ({}) is shorter than the longest retry chain ({})",
            show(replay),
            show(chain)
        );
        error("window_below_retry_chain", message, format!("write replay = \"{}\" or more", show(chain)))
    })
}

pub(super) fn reap_below_replay(case: &Case<'_>) -> Option<Finding> {
    let windows = &case.endpoint.windows;
    (windows.reap < windows.replay).then(|| {
        let (reap, replay) = (show(windows.reap), show(windows.replay));
        let message =
            format!("the record is reaped after {reap}, before its replay window ({replay}) has passed");
        error("reap_below_replay", message, format!("write reap = \"{replay}\" or more"))
    })
}

pub(super) fn resource_window(case: &Case<'_>) -> Option<Finding> {
    let resource = case.endpoint.windows.resource.as_ref()?;
    let (chain, replay) = (case.contract.longest_retry_chain, case.endpoint.windows.replay);
    if resource.grace < chain {
        let message = format!(
            "the grace after the resource's end ({}) is shorter than the longest retry chain ({})",
            show(resource.grace),
            show(chain)
        );
        return Some(error("resource_window", message, format!("write grace = \"{}\" or more", show(chain))));
    }
    (resource.at_most < replay).then(|| {
        let message = format!(
            "the bound of the resource's window ({}) is below the replay window ({})",
            show(resource.at_most),
            show(replay)
        );
        error("resource_window", message, format!("write at_most = \"{}\" or more", show(replay)))
    })
}

pub(super) fn resource_never_ends(case: &Case<'_>) -> Option<Finding> {
    let resource = case.endpoint.windows.resource.as_ref()?;
    let ends = case.contract.endpoints.iter().any(|endpoint| endpoint.ends_resource.is_some());
    (!ends).then(|| {
        let message = format!(
            "the window lives as long as the resource, and no endpoint ends one: every answer is kept for {}",
            show(resource.at_most)
        );
        let help = "write ends_resource = { param = \"id\" } on the DELETE, or leave windows.resource out";
        warning("resource_never_ends", message, help)
    })
}

/// Allowed (SPEC 6.2 has such numbers), and worth knowing: a queue that comes back tomorrow runs it again.
pub(super) fn failures_kept_shorter_than_retries(case: &Case<'_>) -> Option<Finding> {
    let FailurePolicy::ByClass(classes) = &case.endpoint.failures else { return None };
    let chain = case.contract.longest_retry_chain;
    let mut short = Vec::new();
    for class in classes {
        let Keep::For(kept) = class.keep else { continue };
        for (from, to) in class.statuses.iter().filter(|_| kept < chain) {
            // A narrower entry before this one decides for its first status.
            if case.endpoint.failures.keep(*from) == class.keep {
                let range = if from == to { from.to_string() } else { format!("{from}-{to}") };
                short.push(format!("{range} for {}", show(kept)));
            }
        }
    }
    (!short.is_empty()).then(|| {
        let message = format!(
            "failures are kept for less than the longest retry chain ({}): {}; a later retry with the same key runs again",
            show(chain),
            short.join(", ")
        );
        let help = "callers make a new key for a new try; where they do not, write keep = { 402 = \"window\" }";
        note("failures_kept_shorter_than_retries", message, help)
    })
}

pub(super) fn lease_too_short(case: &Case<'_>) -> Option<Finding> {
    let lease = case.endpoint.windows.lease;
    (lease < SHORTEST_LEASE).then(|| {
        let message = format!("a lease of {} ends in any pause of the process or the store", show(lease));
        let help = format!(
            "write lease = \"{}\" or more; it is renewed while the request runs",
            show(SHORTEST_LEASE)
        );
        error("lease_too_short", message, help)
    })
}

pub(super) fn lease_outlives_clients(case: &Case<'_>) -> Option<Finding> {
    let (lease, elapsed) = (case.endpoint.windows.lease, case.contract.client.elapsed);
    (lease > elapsed).then(|| {
        let message = format!(
            "after a crash the key is in flight for {}, longer than clients retry ({}): none of them sees the end",
            show(lease),
            show(elapsed)
        );
        let help = format!("write lease = \"{}\" or less; it is renewed while the request runs", show(elapsed));
        warning("lease_outlives_clients", message, help)
    })
}

/// Whoever takes a claim over may stand behind the rows of the one it took over from. A wait that ends after its own lease would
/// let a third one in behind both (protocol 13, 15). In one transaction nobody takes over.
pub(super) fn handlers_wait_past_the_lease(case: &Case<'_>) -> Option<Finding> {
    let (endpoint, waits) = (case.endpoint, case.offered.handler_waits?);
    let lease = endpoint.windows.lease;
    let taken_over = endpoint.recovery == RecoveryClass::Atomic && endpoint.transaction == Shape::ClaimFirst;
    (taken_over && waits > lease).then(|| {
        let message = format!(
            "a handler's statement may wait or run for {}, longer than its claim is held ({})",
            show(waits),
            show(lease)
        );
        let help = format!(
            "open the store with a lock_timeout and a statement_timeout of {} or less, or write a longer lease",
            show(lease)
        );
        error("handlers_wait_past_the_lease", message, help)
    })
}
