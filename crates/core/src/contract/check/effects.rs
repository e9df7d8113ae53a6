//! What is known about effects when a holder, an upstream or a machine is lost (design 4; protocol 12, 21, 22, 27).

use super::{Case, Finding, Offered, error, note, warning};
use crate::{
    contract::{
        model::{Contract, InFlightAnswer, Shape, StoreDown, WhenAbsent},
        values::show,
    },
    policy::Place,
    record::RecoveryClass,
};

pub(super) fn atomic_at_gateway(case: &Case<'_>) -> Option<Finding> {
    (case.endpoint.recovery == RecoveryClass::Atomic && case.offered.place == Place::Gateway).then(|| {
        let message = "a gateway is never in the upstream's transaction, so a lost run cannot be known to have left nothing";
        let help = "write recovery = \"outside\", upstream_deduplicates = true if the upstream does, or use the library";
        error("atomic_at_gateway", message, help)
    })
}

pub(super) fn atomic_without_transactions(case: &Case<'_>) -> Option<Finding> {
    let asks = case.endpoint.recovery == RecoveryClass::Atomic && case.offered.place == Place::Library;
    (asks && !case.offered.transactions).then(|| {
        let message =
            format!("the {} store cannot commit a claim with the handler's writes", case.offered.store);
        error(
            "atomic_without_transactions",
            message,
            "write recovery = \"outside\": what a lost holder left behind is not known then, and it is not run again",
        )
    })
}

pub(super) fn phased_not_offered(case: &Case<'_>) -> Option<Finding> {
    let offered = case.offered;
    let here = offered.place == Place::Library && offered.transactions && offered.journals;
    (case.endpoint.recovery == RecoveryClass::Phased && !here).then(|| {
        let message = match (offered.place, offered.transactions) {
            (Place::Gateway, _) => {
                "recovery points are set by steps inside the service, and a gateway has none".to_owned()
            }
            (Place::Library, false) => {
                format!("the {} store cannot commit recovery points with a handler's writes", offered.store)
            }
            (Place::Library, true) => {
                format!(
                    "the {} store keeps no journal of steps, so nobody could go on where one stopped",
                    offered.store
                )
            }
        };
        let help =
            "write recovery = \"outside\", or use a store with journals: SQLite, PostgreSQL or MariaDB";
        error("phased_not_offered", message, help)
    })
}

pub(super) fn accepted_in_one_transaction(case: &Case<'_>) -> Option<Finding> {
    let answer = case.endpoint.in_flight.answer;
    let accepts = matches!(answer, InFlightAnswer::AcceptPreferred | InFlightAnswer::AcceptAlways);
    let one = case.endpoint.recovery == RecoveryClass::Atomic && case.endpoint.transaction == Shape::One;
    (accepts && one).then(|| {
        let message = "in one transaction the claim is invisible until it commits: there is nothing a status URL could show";
        let help =
            "write transaction = \"claim_first\", which costs one commit more, or in_flight.answer = \"409\" or \"wait\"";
        error("accepted_in_one_transaction", message, help)
    })
}

pub(super) fn claim_first_outside(case: &Case<'_>) -> Option<Finding> {
    let endpoint = case.endpoint;
    (endpoint.transaction == Shape::ClaimFirst && endpoint.recovery != RecoveryClass::Atomic).then(|| {
        let message = "transaction = \"claim_first\" lets the completion ride in the handler's transaction, and this endpoint \
                       says that its effect is elsewhere";
        error("claim_first_outside", message, "write recovery = \"atomic\", or leave transaction out")
    })
}

pub(super) fn claim_method_not_offered(contract: &Contract, offered: &Offered) -> Option<Finding> {
    (!offered.claims_by.contains(&contract.claim)).then(|| {
        let offers: Vec<&str> = offered.claims_by.iter().map(|method| method.as_str()).collect();
        let message = format!(
            "claim = \"{}\", and the {} store as it is opened claims by {}",
            contract.claim.as_str(),
            offered.store,
            offers.join(" or ")
        );
        error(
            "claim_method_not_offered",
            message,
            "open the store with the method the contract names, or name another",
        )
    })
}

pub(super) fn probe_releases_without_fence(case: &Case<'_>) -> Option<Finding> {
    let probe = case.endpoint.probe.as_ref()?;
    let releases = probe.when_absent == WhenAbsent::Release;
    (releases && !probe.fences && case.endpoint.recovery != RecoveryClass::Deduplicated).then(|| {
        let message = "the probe's \"absent\" releases the key, and the first run may still be on its way to the upstream";
        let help = "write fences = true if the upstream refuses the first run once it was asked, \
                    upstream_deduplicates = true if it de-duplicates by the key, else when_absent = \"stay_uncertain\"";
        error("probe_releases_without_fence", message, help)
    })
}

pub(super) fn nobody_to_ask(case: &Case<'_>) -> Option<Finding> {
    let asks =
        [("probe", case.endpoint.probe.is_some()), ("reauthorise", case.endpoint.reauthorise.is_some())];
    let asks: Vec<&str> = asks.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect();
    (!asks.is_empty() && !case.offered.inquiries).then(|| {
        let message = format!("{} would ask an upstream, and there is none here", asks.join(" and "));
        let help = "leave it out: inside the service, authenticate in front of the layer and let the handler state its effect";
        error("nobody_to_ask", message, help)
    })
}

pub(super) fn deploys_make_uncertain_keys(case: &Case<'_>) -> Option<Finding> {
    let endpoint = case.endpoint;
    let unknown = case.offered.place == Place::Gateway && endpoint.recovery == RecoveryClass::Outside;
    (unknown && endpoint.rejected_before_processing.is_empty() && endpoint.probe.is_none()).then(|| {
        let message = "no answer of the upstream says \"not processed\", so each restart of it leaves uncertain keys for people";
        let help = "list what it answers before it does anything, rejected_before_processing = [503], or write a probe";
        note("deploys_make_uncertain_keys", message, help)
    })
}

pub(super) fn server_errors_are_uncertain(case: &Case<'_>) -> Option<Finding> {
    let endpoint = case.endpoint;
    let gateway = case.offered.place == Place::Gateway && endpoint.recovery == RecoveryClass::Outside;
    (gateway && endpoint.final_5xx.is_empty()).then(|| {
        let message = "a 5xx from the upstream is an unknown outcome, whatever the failure policy says: it may come from \
                       something in between";
        note("server_errors_are_uncertain", message, "list the 5xx that the API documents as results: final_5xx = [501]")
    })
}

pub(super) fn upstream_window_unknown(case: &Case<'_>) -> Option<Finding> {
    (case.endpoint.recovery == RecoveryClass::Deduplicated).then(|| {
        let message = format!(
            "a lost request is sent again: safe as long as the upstream remembers the key, which the contract says it does \
             for {}",
            show(case.contract.longest_retry_chain)
        );
        let help = "compare with the upstream's own window, and that it refuses a second run while the first is running";
        note("upstream_window_unknown", message, help)
    })
}

pub(super) fn store_forgets(case: &Case<'_>) -> Option<Finding> {
    (!case.offered.survives_process).then(|| {
        let message = format!(
            "the {} store forgets every key when the process ends: a retry across a restart runs again",
            case.offered.store
        );
        warning("store_forgets", message, "choose --store sqlite for anything that moves money or goods")
    })
}

pub(super) fn runs_unguarded_without_store(case: &Case<'_>) -> Option<Finding> {
    (case.endpoint.store_down == StoreDown::Open).then(|| {
        let message =
            "while the store is down, requests run without a claim: duplicates are possible, and counted";
        warning(
            "runs_unguarded_without_store",
            message,
            "write store_down = \"closed\", unless a duplicate costs less than a refusal",
        )
    })
}

pub(super) fn lost_in_power_cut(_: &Contract, offered: &Offered) -> Option<Finding> {
    (offered.survives_process && !offered.survives_power_cut).then(|| {
        let message =
            format!("acknowledged claims of the {} store can be lost in a power cut", offered.store);
        warning("lost_in_power_cut", message, "choose a store or a setting that syncs before it acknowledges")
    })
}

pub(super) fn lost_in_failover(_: &Contract, offered: &Offered) -> Option<Finding> {
    (offered.survives_process && !offered.survives_failover).then(|| {
        let message = format!(
            "durable_across_failover = no: a claim is as durable as the disk under the {} store; a replica or a backup \
             that takes over may not know it",
            offered.store
        );
        let help = "after a restore, treat the keys of the lost time as uncertain; keep nothing that decides on a replica";
        note("lost_in_failover", message, help)
    })
}

pub(super) fn one_process_only(_: &Contract, offered: &Offered) -> Option<Finding> {
    (!offered.shared).then(|| {
        let message = format!(
            "the {} store lives in one process: two processes would not see each other's claims",
            offered.store
        );
        note(
            "one_process_only",
            message,
            "run one process, or choose a store that is shared (sqlite on one machine)",
        )
    })
}
