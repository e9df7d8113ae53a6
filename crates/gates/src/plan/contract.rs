//! What a contract of this project says already: where the key goes, and what answers mean.
//!
//! A plan beside a contract need not repeat it. What the plan does say goes first.

use retrysafe_core::codes::Code;
use retrysafe_core::contract::{Carrier, Contract, Endpoint, InFlightAnswer, KeyUse, Lookup};
use retrysafe_core::key::KeySyntax;

use super::{Answers, KeyPlace, Sign};

/// The endpoint of an operation, if the contract guards it.
pub(super) fn endpoint<'c>(contract: &'c Contract, method: &str, path: &str) -> Option<&'c Endpoint> {
    let path = path.split('?').next().unwrap_or_default();
    match contract.find(method, path) {
        Lookup::Endpoint(found, _) if !matches!(found.key, KeyUse::Unsafe { .. }) => Some(found),
        _ => None,
    }
}

/// Where the endpoint's key goes.
pub(super) fn key(endpoint: &Endpoint) -> KeyPlace {
    KeyPlace {
        header: match &endpoint.carrier {
            Carrier::Header(name) => Some(name.clone()),
            Carrier::BodyField(_) => None,
        },
        quoted: endpoint.key_rules.syntax == KeySyntax::Strict,
        required: Some(endpoint.key == KeyUse::Required),
    }
}

/// What the answers of its layer or gateway mean, by their codes.
pub(super) fn answers(contract: &Contract, endpoint: &Endpoint, answers: &mut Answers) {
    let sign = |code: Code| {
        let own = contract.answers.statuses.iter().find(|(of, _)| *of == code);
        Sign {
            status: own.map_or(code.status(), |(_, status)| *status),
            contains: Some(code.as_str().to_owned()),
        }
    };
    answers.in_flight = vec![sign(Code::KeyInFlight)];
    if endpoint.in_flight.answer == InFlightAnswer::AcceptAlways {
        answers.in_flight.push(Sign { status: 202, contains: None });
    }
    answers.mismatch = vec![sign(Code::PayloadMismatch)];
    answers.not_now =
        [Code::StoreUnavailable, Code::Overloaded, Code::UpstreamUnavailable].map(sign).to_vec();
    answers.uncertain = vec![sign(Code::OutcomeUnknown)];
    answers.missing_key = vec![sign(Code::KeyMissing)];
    answers.replay_marker.clone_from(&endpoint.replay_marker);
}
