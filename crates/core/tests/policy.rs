//! What becomes of an answer: the failure policies of SPEC 6, under every effect, class of recovery and place.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers fail the test that calls them

mod cases;

use std::time::Duration;

use cases::RECOVERIES;
use proptest::prelude::*;
use retrysafe_core::{
    codes::Code,
    contract::{AnswerMatch, Contract, Endpoint},
    policy::{Answer, Effect, Place, Settlement, settle},
    record::{RecoveryClass, Uncertainty},
};

const HOUR: Duration = Duration::from_secs(3600);
const STORED: Settlement = Settlement::Store { replay: Duration::from_secs(24 * 3600) };
const FOR_AN_HOUR: Settlement = Settlement::Store { replay: HOUR };
const FOR_A_MINUTE: Settlement = Settlement::Store { replay: Duration::from_secs(60) };
const RELEASED: Settlement = Settlement::Release;
const RESENT: Settlement = Settlement::Resend;
const HELD: Settlement = Settlement::Hold(Uncertainty::UpstreamLost);
const DECLARED: Settlement = Settlement::Hold(Uncertainty::Declared);

const VERIFIED: &str = "scope = { source = \"jwt\", algorithms = [\"RS256\"], pem_file = \"k.pem\" }";
const API_KEY: &str = "scope = { source = \"api_key\", rotates = false }";
const A: &str = "failures = { policy = \"A\" }";
const B: &str = "failures = { policy = \"B\", keep = { 500 = \"uncertain\" } }";
const B_RUNS_500_AGAIN: &str = "failures = { policy = \"B\", keep = { 500 = \"release\" } }";
const LISTS: &str = r#"
rejected_before_processing = [503, { status = 409, field = "/error/code", value = "lock_timeout" }]
final_5xx = [501]
undecided = [425, { status = 409, field = "/error/code", value = "being_processed" }]
"#;

fn endpoint(lines: &[&str]) -> Endpoint {
    let text = format!(
        "api = \"T\"\nnamespace = \"t\"\nlongest_retry_chain = \"1h\"\nunlisted = \"pass\"\n\
         [[endpoint]]\nmethod = \"POST\"\npath = \"/orders\"\nkey = \"required\"\n{}",
        lines.join("\n")
    );
    let contract = Contract::parse(&text, "row.toml").unwrap_or_else(|faults| panic!("{faults}"));
    contract.endpoints[0].clone()
}

fn settled(endpoint: &Endpoint, place: Place, status: u16, effect: Option<Effect>) -> Settlement {
    settle(endpoint, RecoveryClass::Outside, place, Answer { status, body: Some(b"{}"), effect })
}

fn with_body(endpoint: &Endpoint, place: Place, status: u16, body: &[u8]) -> Settlement {
    settle(endpoint, RecoveryClass::Outside, place, Answer { status, body: Some(body), effect: None })
}

/// A status with nothing stated, and what becomes of it: in the library, at a gateway.
type Row = (u16, Settlement, Settlement);

fn table(lines: &[&str], rows: &[Row]) {
    let endpoint = endpoint(lines);
    for (status, library, gateway) in rows {
        let found = [Place::Library, Place::Gateway].map(|place| settled(&endpoint, place, *status, None));
        assert_eq!(found, [*library, *gateway], "{status} under {lines:?}");
    }
}

#[test]
fn policy_a_stores_the_first_result_whatever_it_is() {
    table(
        &[A, VERIFIED],
        &[
            (200, STORED, STORED),
            (201, STORED, STORED),
            (202, STORED, STORED),
            (303, STORED, STORED),
            (400, STORED, STORED),
            (402, STORED, STORED),
            (403, STORED, STORED),
            (404, STORED, STORED),
            (409, STORED, STORED),
            (422, STORED, STORED),
            // Protocol 20: throttled is no result.
            (429, RELEASED, RELEASED),
            // Protocol 21: what answers 5xx at a gateway may be anything in between.
            (500, STORED, HELD),
            (502, STORED, HELD),
            (503, STORED, HELD),
            (504, STORED, HELD),
            (599, STORED, HELD),
        ],
    );
}

#[test]
fn policy_b_lets_the_class_decide() {
    table(
        &[B, VERIFIED],
        &[
            (201, STORED, STORED),
            (400, STORED, STORED),
            (422, STORED, STORED),
            (402, FOR_AN_HOUR, FOR_AN_HOUR),
            (409, FOR_AN_HOUR, FOR_AN_HOUR),
            (403, FOR_A_MINUTE, FOR_A_MINUTE),
            (404, STORED, STORED),
            (429, RELEASED, RELEASED),
            (500, HELD, HELD),
            (501, STORED, HELD),
            (502, RELEASED, HELD),
            (503, RELEASED, HELD),
            (504, RELEASED, HELD),
        ],
    );
    table(&[B_RUNS_500_AGAIN, VERIFIED], &[(500, RELEASED, HELD), (501, STORED, HELD)]);
    table(
        &[
            "failures = { policy = \"B\", keep = { 500 = \"window\", 4xx = \"10m\", 404 = \"release\", 429 = \"1m\" } }",
            VERIFIED,
        ],
        &[
            (404, RELEASED, RELEASED),
            (
                418,
                Settlement::Store { replay: Duration::from_secs(600) },
                Settlement::Store { replay: Duration::from_secs(600) },
            ),
            (429, FOR_A_MINUTE, FOR_A_MINUTE),
            (500, STORED, HELD),
        ],
    );
}

/// Protocol 1: a refusal of the authentication in front is never stored; one of the operation itself is.
#[test]
fn protocol_1_refusals_of_authentication_are_never_stored() {
    table(&[A, VERIFIED], &[(401, STORED, RELEASED), (403, STORED, STORED)]);
    table(&[B, VERIFIED], &[(401, FOR_A_MINUTE, RELEASED), (403, FOR_A_MINUTE, FOR_A_MINUTE)]);
    for unverified in [API_KEY, "scope = { source = \"anonymous\" }"] {
        table(&[A, unverified], &[(401, RELEASED, RELEASED), (403, STORED, RELEASED)]);
        table(&[B, unverified], &[(401, RELEASED, RELEASED), (403, FOR_A_MINUTE, RELEASED)]);
    }
    // The operation's own refusal, stated by its handler.
    let endpoint = endpoint(&[A, API_KEY]);
    assert_eq!(settled(&endpoint, Place::Library, 401, Some(Effect::None)), STORED);
}

#[test]
fn protocol_21_the_contracts_lists_rule_over_the_policy() {
    for policy in [A, B] {
        table(
            &[policy, VERIFIED, LISTS],
            &[
                (501, STORED, STORED),
                (503, RELEASED, RELEASED),
                (502, if policy == A { STORED } else { RELEASED }, HELD),
            ],
        );
        let endpoint = endpoint(&[policy, VERIFIED, LISTS]);
        for place in [Place::Library, Place::Gateway] {
            let lock = br#"{"error": {"code": "lock_timeout"}}"#;
            assert_eq!(with_body(&endpoint, place, 409, lock), RELEASED);
            let pending = br#"{"error": {"code": "being_processed"}}"#;
            assert_eq!(with_body(&endpoint, place, 409, pending), HELD, "protocol 20");
            assert_eq!(settled(&endpoint, place, 425, None), HELD, "protocol 20");
            assert_eq!(
                settled(&endpoint, place, 425, Some(Effect::None)),
                RELEASED,
                "the handler knows better"
            );
        }
    }
}

#[test]
fn an_answer_is_recognised_only_beyond_doubt() {
    let by_code = AnswerMatch { status: 409, body: Some(("/error/code".into(), "busy".into())) };
    let number = AnswerMatch { status: 409, body: Some(("/code".into(), "7".into())) };
    let status = AnswerMatch { status: 409, body: None };
    let rows: [(&AnswerMatch, u16, Option<&[u8]>, bool); 10] = [
        (&status, 409, None, true),
        (&status, 408, None, false),
        (&by_code, 409, Some(br#"{"error": {"code": "busy"}}"#), true),
        (&by_code, 409, Some(br#"{"error": {"code": "busy "}}"#), false),
        (&by_code, 408, Some(br#"{"error": {"code": "busy"}}"#), false),
        (&by_code, 409, Some(br#"{"error": "busy"}"#), false),
        (&by_code, 409, Some(b"<html>busy"), false),
        (&by_code, 409, None, false),
        (&number, 409, Some(br#"{"code": 7}"#), true),
        (&number, 409, Some(br#"{"code": 7.0}"#), false),
    ];
    for (entry, status, body, expected) in rows {
        assert_eq!(entry.matches(status, body), expected, "{entry:?} {status} {body:?}");
    }
    // A body that was too long to be at hand is not recognised either, so it releases nothing.
    let endpoint = endpoint(&[A, VERIFIED, LISTS]);
    let answer = Answer { status: 409, body: None, effect: None };
    assert_eq!(settle(&endpoint, RecoveryClass::Outside, Place::Gateway, answer), STORED);
}

/// S1: a transient failure does not use up the key. S2: a status alone does not decide; a 402 after the charge was tried
/// is not "a client error, safe to run again".
#[test]
fn s1_s2_the_effect_rules_over_the_status() {
    for policy in [A, B, B_RUNS_500_AGAIN] {
        let endpoint = endpoint(&[policy, VERIFIED, LISTS]);
        for place in [Place::Library, Place::Gateway] {
            for status in [200, 402, 409, 425, 429, 500, 503] {
                let done = settled(&endpoint, place, status, Some(Effect::Done));
                assert_eq!(done, STORED, "{status} at {place:?}: it happened");
                let unknown = settled(&endpoint, place, status, Some(Effect::Unknown));
                assert_eq!(unknown, DECLARED, "{status} at {place:?}: it may have happened");
            }
        }
    }
    let b = endpoint(&[B, VERIFIED]);
    for place in [Place::Library, Place::Gateway] {
        let nothing = |status| settled(&b, place, status, Some(Effect::None));
        assert_eq!(nothing(503), RELEASED, "S1: nothing happened, so it may be tried again");
        assert_eq!(nothing(402), FOR_AN_HOUR);
        assert_eq!(nothing(500), HELD, "the contract's choice for 500");
    }
    let a = endpoint(&[A, VERIFIED]);
    assert_eq!(settled(&a, Place::Library, 503, Some(Effect::None)), STORED, "policy A, SPEC 6.1");
}

/// Protocol 16: a handler that records a decline and answers 402 keeps its row, and the answer is kept with it.
#[test]
fn protocol_16_a_recorded_decline_is_stored_for_the_window_and_not_for_its_class() {
    let b = endpoint(&[B, VERIFIED]);
    assert_eq!(settled(&b, Place::Library, 402, Some(Effect::Done)), STORED);
    assert_eq!(settled(&b, Place::Library, 402, None), FOR_AN_HOUR);
}

/// Protocol 20: what another hop like this one says about the key is not a result of the operation.
#[test]
fn protocol_20_own_answers_of_a_hop_further_in_are_never_stored() {
    for policy in [A, B] {
        let endpoint = endpoint(&[policy, VERIFIED]);
        for code in Code::ALL {
            let body = format!("{{\"type\": \"/x\", \"code\": \"{code}\", \"status\": {}}}", code.status());
            let ours = code.as_str().starts_with("idempotency_");
            let expected = match code {
                Code::KeyInFlight | Code::OutcomeUnknown => HELD,
                Code::ResponseNotKept => STORED,
                _ if ours => RELEASED,
                // Names that an API may use for something else count by their status.
                _ => continue,
            };
            for place in [Place::Library, Place::Gateway] {
                assert_eq!(with_body(&endpoint, place, code.status(), body.as_bytes()), expected, "{code}");
                assert_eq!(
                    with_body(&endpoint, place, 422, body.as_bytes()),
                    expected,
                    "{code}, as a contract may dress it"
                );
            }
            // In a success it is data.
            assert_eq!(with_body(&endpoint, Place::Gateway, 200, body.as_bytes()), STORED);
        }
        let foreign = br#"{"code": "upstream_unavailable"}"#;
        assert_eq!(with_body(&endpoint, Place::Gateway, 503, foreign), HELD);
        assert_eq!(
            with_body(&endpoint, Place::Gateway, 422, br#"{"code": "idempotency_of_things"}"#),
            STORED
        );
    }
}

#[test]
fn protocol_8_the_recovery_class_of_the_record_decides_what_unknown_means() {
    let endpoint = endpoint(&[A, VERIFIED]);
    for recovery in RECOVERIES {
        let answer = |status, effect| Answer { status, body: None, effect };
        let lost = settle(&endpoint, recovery, Place::Gateway, answer(502, None));
        let unknown = settle(&endpoint, recovery, Place::Library, answer(500, Some(Effect::Unknown)));
        match recovery {
            RecoveryClass::Deduplicated => assert_eq!((lost, unknown), (RESENT, RESENT)),
            _ => assert_eq!((lost, unknown), (HELD, DECLARED), "{recovery:?}"),
        }
    }
}

/// What `check` and the docs print about a status is what the layer does with it.
#[test]
fn the_printed_contract_and_the_policy_agree() {
    for lines in
        [[A, VERIFIED, ""], [B, VERIFIED, ""], [A, VERIFIED, LISTS], [B_RUNS_500_AGAIN, VERIFIED, LISTS]]
    {
        let endpoint = endpoint(&lines);
        for place in [Place::Library, Place::Gateway] {
            for status in 400..600 {
                let stored = matches!(settled(&endpoint, place, status, None), Settlement::Store { .. });
                let printed = endpoint.stores(status, place);
                // A gateway gives every 401 back, which the table for clients does not have to say.
                if (place, status) != (Place::Gateway, 401) {
                    assert_eq!(printed, stored, "{status} at {place:?} under {lines:?}");
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn whatever_the_answer_the_invariants_hold(
        status in 200u16..600,
        effect in proptest::sample::select(vec![None, Some(Effect::None), Some(Effect::Done), Some(Effect::Unknown)]),
        body in proptest::option::of(prop_oneof![
            Just(r#"{"error": {"code": "lock_timeout"}}"#.to_owned()),
            Just(r#"{"error": {"code": "being_processed"}}"#.to_owned()),
            Just(r#"{"code": "idempotency_key_in_flight"}"#.to_owned()),
            ".{0,40}",
        ]),
        recovery in proptest::sample::select(RECOVERIES.to_vec()),
        place in proptest::sample::select(vec![Place::Library, Place::Gateway]),
        policy in proptest::sample::select(vec![A, B, B_RUNS_500_AGAIN]),
        scope in proptest::sample::select(vec![VERIFIED, API_KEY]),
        lists: bool,
    ) {
        let endpoint = endpoint(&[policy, scope, if lists { LISTS } else { "" }]);
        let answer = Answer { status, body: body.as_deref().map(str::as_bytes), effect };
        let settlement = settle(&endpoint, recovery, place, answer);
        if effect == Some(Effect::Done) {
            prop_assert_eq!(settlement, STORED, "what happened never runs again");
        }
        if effect == Some(Effect::Unknown) {
            prop_assert!(!matches!(settlement, Settlement::Store { .. } | Settlement::Release), "{:?}", settlement);
        }
        if recovery == RecoveryClass::Deduplicated {
            prop_assert!(!matches!(settlement, Settlement::Hold(_)), "sending it again is safe, nobody needs to look");
        } else {
            prop_assert!(settlement != Settlement::Resend, "sending it again is not safe");
        }
        let is_final = lists && status == 501;
        let own = body.as_deref().is_some_and(|body| body.contains("idempotency_"));
        if place == Place::Gateway && status >= 500 && effect.is_none() && !is_final && !own {
            prop_assert!(!matches!(settlement, Settlement::Store { .. }), "a 5xx of something in between is no result");
            let rejected = lists && status == 503;
            prop_assert_eq!(settlement == Settlement::Release, rejected, "and only the contract frees the key");
        }
        if status < 400 && effect.is_none() {
            prop_assert_eq!(settlement, STORED);
        }
    }
}
