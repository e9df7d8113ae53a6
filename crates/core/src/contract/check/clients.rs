//! What clients are told, against what the server does (SPEC 5.2, 6.4, 7).

use std::time::Duration;

use super::{Case, Finding, Offered, error, warning};
use crate::{
    contract::{
        model::{ClientPolicy, Contract, Endpoint, InFlightAnswer},
        values::show,
    },
    policy::{Answer, Place, Settlement, settle},
};

impl Endpoint {
    /// Whether an answer with this status is stored and replayed, when nothing is stated about its effect.
    pub fn stores(&self, status: u16, place: Place) -> bool {
        let answer = Answer { status, body: None, effect: None };
        matches!(settle(self, self.recovery, place, answer), Settlement::Store { .. })
    }
}

impl Contract {
    /// The statuses that clients of `endpoint` retry with the same key: the contract's list, without those that the
    /// endpoint stores and replays, where the contract says that clients drop them (SPEC 6.4).
    pub fn retried_statuses(&self, endpoint: &Endpoint, place: Place) -> Vec<u16> {
        let drops = self.client.drop_stored_statuses;
        let retried = |status: &u16| !drops || !endpoint.stores(*status, place);
        self.client.retry_statuses.iter().copied().filter(retried).collect()
    }
}

/// SPEC 6.4. The client would spend its attempts on fetching the same failure again.
pub(super) fn stored_status_is_retried(case: &Case<'_>) -> Option<Finding> {
    let retried = case.contract.retried_statuses(case.endpoint, case.offered.place);
    let stored = |status: &&u16| case.endpoint.stores(**status, case.offered.place);
    let both: Vec<String> = retried.iter().filter(stored).map(u16::to_string).collect();
    (!both.is_empty()).then(|| {
        let list = both.join(", ");
        let message = format!(
            "clients are told to retry {list} with the same key, and {list} is stored and replayed to them"
        );
        let help = "write [client] drop_stored_statuses = true (clients stop at a stored failure), or take the status \
                    out of retry_statuses, or let it be tried again: [failures] policy = \"B\"";
        error("stored_status_is_retried", message, help)
    })
}

pub(super) fn waits_longer_than_clients(case: &Case<'_>) -> Option<Finding> {
    let InFlightAnswer::Wait { at_most } = case.endpoint.in_flight.answer else { return None };
    let elapsed = case.contract.client.elapsed;
    (at_most >= elapsed).then(|| {
        let message = format!(
            "a second caller waits up to {}, and clients give up after {}",
            show(at_most),
            show(elapsed)
        );
        error("waits_longer_than_clients", message, format!("write wait_at_most below \"{}\"", show(elapsed)))
    })
}

pub(super) fn retry_after_outlives_clients(case: &Case<'_>) -> Option<Finding> {
    let (after, elapsed) = (case.endpoint.in_flight.retry_after, case.contract.client.elapsed);
    (after >= elapsed).then(|| {
        let message = format!(
            "in-flight answers say \"come back in {}\", and clients give up after {}: the first conflict ends the call",
            show(after),
            show(elapsed)
        );
        warning("retry_after_outlives_clients", message, format!("write retry_after below \"{}\"", show(elapsed)))
    })
}

pub(super) fn accepted_always(case: &Case<'_>) -> Option<Finding> {
    (case.endpoint.in_flight.answer == InFlightAnswer::AcceptAlways).then(|| {
        let message = "every second caller gets 202, and a client that reads 2xx as success takes it for the result";
        let help = "write answer = \"202\" (only for callers that sent Prefer: respond-async), unless all clients poll";
        warning("accepted_always", message, help)
    })
}

/// The 202 says where to poll, in its own words; an API's SDK may take it for an object of the API.
pub(super) fn accepted_in_foreign_envelope(case: &Case<'_>) -> Option<Finding> {
    let accepts = case.endpoint.in_flight.answer == InFlightAnswer::AcceptAlways;
    (accepts && case.contract.answers.template.is_some()).then(|| {
        let message =
            "answers have the API's own envelope, and a 202 cannot be told from an object of the API in it";
        error("accepted_in_foreign_envelope", message, "write answer = \"409\", \"wait\" or \"202\"")
    })
}

pub(super) fn clients_retry_longer_than_stated(contract: &Contract, _: &Offered) -> Option<Finding> {
    let (chain, elapsed) = (contract.longest_retry_chain, contract.client.elapsed);
    (elapsed > chain).then(|| {
        let message = format!(
            "clients retry for {}, longer than the longest retry chain says ({})",
            show(elapsed),
            show(chain)
        );
        error(
            "clients_retry_longer_than_stated",
            message,
            format!("write longest_retry_chain = \"{}\" or more", show(elapsed)),
        )
    })
}

pub(super) fn clients_never_reach_last_attempt(contract: &Contract, _: &Offered) -> Option<Finding> {
    let client = &contract.client;
    let delays = mean_delays(client);
    (delays >= client.elapsed).then(|| {
        let message = format!(
            "{} attempts sleep {} on average, and clients stop after {}: the last attempts do not happen",
            client.attempts,
            show(delays),
            show(client.elapsed)
        );
        warning(
            "clients_never_reach_last_attempt",
            message,
            "write fewer attempts, a lower cap, or a longer elapsed",
        )
    })
}

/// The sum of all sleeps of one call under full jitter, on average: half of each bound.
fn mean_delays(client: &ClientPolicy) -> Duration {
    let mut bound = client.base;
    let mut sum = Duration::ZERO;
    for _ in 1..client.attempts {
        sum = sum.saturating_add(bound.min(client.cap) / 2);
        bound = bound.saturating_mul(2);
    }
    sum
}

pub(super) fn answer_timeout_outlives_clients(contract: &Contract, _: &Offered) -> Option<Finding> {
    let (timeout, elapsed) = (contract.answer_timeout, contract.client.elapsed);
    (timeout > elapsed).then(|| {
        let message = format!(
            "a request may run for {} before its outcome counts as unknown, and clients give up after {}",
            show(timeout),
            show(elapsed)
        );
        warning(
            "answer_timeout_outlives_clients",
            message,
            format!("write answer_timeout = \"{}\" or less", show(elapsed)),
        )
    })
}
