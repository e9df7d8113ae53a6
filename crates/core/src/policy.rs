//! What becomes of an answer: stored, released, or held as uncertain (SPEC 6, protocol 16, 20, 21).
//!
//! **The effect rules over the status.** Whether a failure is stored is decided first by whether an effect may have
//! happened, which a handler or a transport can state, and only then by the status class and the contract. A 402 after
//! the charge was attempted is not "a client error, safe to run again" (S2).
//!
//! | effect | outcome |
//! |---|---|
//! | done | stored for the window, whatever the status: it must never run again |
//! | unknown | held as uncertain; released only where whoever executes it de-duplicates by the same key |
//! | none | the contract's failure policy |
//! | not stated | as `none` for a handler of ours; at a gateway a 5xx is `unknown` (protocol 21) |
//!
//! An answer that another hop like this one gave about the key (a gateway in front of the library) is no outcome of ours:
//! it states the effect by its code, and is never stored as a result, under policy A either (protocol 20).

use std::time::Duration;

use crate::{
    codes::Code,
    contract::{AnswerMatch, Endpoint, Keep, Scope},
    record::{RecoveryClass, Uncertainty},
};

/// What a handler, or the transport to an upstream, knows about the effect.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Effect {
    /// Nothing happened: refused before anything was done, or rolled back.
    None,
    /// It happened.
    Done,
    /// It may have happened.
    Unknown,
}

/// Where the handler runs, which decides what silence about the effect means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In this process: the contract's author knows what its statuses mean.
    Library,
    /// Behind a proxy: an answer may come from anything in between.
    Gateway,
}

/// An answer, as far as the policy looks at it.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// Its status.
    pub status: u16,
    /// Its body, when it is at hand.
    pub body: Option<&'a [u8]>,
    /// What was stated about the effect.
    pub effect: Option<Effect>,
}

/// What becomes of the claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settlement {
    /// Complete it with this answer, replayed for `replay`.
    Store {
        /// Length of the replay window.
        replay: Duration,
    },
    /// Nothing happened: remove the claim, so that a retry with the same key runs again. The answer is passed on.
    Release,
    /// Sending it again is safe, whether or not it happened: remove the claim and tell the caller to retry with the
    /// same key. The answer is not passed on: after a lost 201 a 502 would be a false failure.
    Resend,
    /// Keep the claim as uncertain. The caller is told `idempotency_outcome_unknown`, not this answer: whoever sent it
    /// does not know either, and passing a 502 on would be a false failure.
    Hold(Uncertainty),
}

/// Decides what becomes of the claim on `endpoint`, whose record has the class `recovery` (protocol 8: the record's, not
/// the contract's).
pub fn settle(endpoint: &Endpoint, recovery: RecoveryClass, place: Place, answer: Answer<'_>) -> Settlement {
    let window = Settlement::Store { replay: endpoint.windows.replay };
    let held = |why| match recovery {
        // Sending it again is safe, so nobody has to be told "unknown".
        RecoveryClass::Deduplicated => Settlement::Resend,
        RecoveryClass::Atomic | RecoveryClass::Phased | RecoveryClass::Outside => Settlement::Hold(why),
    };
    let hold = held(Uncertainty::UpstreamLost);
    match answer.effect {
        Some(Effect::Done) => return window,
        Some(Effect::Unknown) => return held(Uncertainty::Declared),
        Some(Effect::None) | None => {}
    }
    let listed = |list: &[AnswerMatch]| list.iter().any(|entry| entry.matches(answer.status, answer.body));
    if listed(&endpoint.rejected_before_processing) {
        return Settlement::Release;
    }
    if listed(&endpoint.undecided) {
        // "Come back later" is not a result under policy A either (protocol 20). Whoever said it has the request.
        return if answer.effect == Some(Effect::None) { Settlement::Release } else { hold };
    }
    let silent = answer.effect.is_none();
    if silent && let Some(code) = code_of_another_hop(&answer) {
        return match effect_behind(code) {
            Effect::None => Settlement::Release,
            Effect::Done => window,
            Effect::Unknown => hold,
        };
    }
    // A refusal of the authentication in front is never stored (protocol 1), and a gateway that cannot verify the
    // caller itself cannot tell it from the operation's own.
    if silent && is_authentication_refusal(endpoint, place, answer.status) {
        return Settlement::Release;
    }
    if silent
        && place == Place::Gateway
        && answer.status >= 500
        && !endpoint.final_5xx.contains(&answer.status)
    {
        return hold;
    }
    match endpoint.failures.keep(answer.status) {
        Keep::Window => window,
        Keep::For(replay) => Settlement::Store { replay },
        Keep::Release => Settlement::Release,
        Keep::Uncertain => hold,
    }
}

/// Whether a refusal is more likely that of an authentication than of the operation. Behind a gateway every 401 is. Where
/// this hop takes the caller's word (an API key it cannot check, nobody at all), the one who checks is behind it in the
/// library too: a layer outside the application's authentication would keep its 401 for a key that is valid tomorrow.
fn is_authentication_refusal(endpoint: &Endpoint, place: Place, status: u16) -> bool {
    let unverified = matches!(endpoint.scope, Scope::ApiKey { .. } | Scope::Anonymous);
    match (place, status) {
        (Place::Gateway, 401) => true,
        (Place::Gateway, 403) | (Place::Library, 401) => unverified,
        _ => false,
    }
}

/// The code of an answer that another hop like this one gave itself. Codes without our prefix are left alone: an API's own
/// `upstream_unavailable` may well have done something before.
fn code_of_another_hop(answer: &Answer<'_>) -> Option<Code> {
    #[derive(serde::Deserialize)]
    struct Problem<'a> {
        code: &'a str,
    }
    if answer.status < 400 {
        return None;
    }
    let problem: Problem<'_> = serde_json::from_slice(answer.body?).ok()?;
    Code::from_wire(problem.code.strip_prefix("idempotency_").map(|_| problem.code)?)
}

/// What a hop further in says about the effect when it answers with `code`.
fn effect_behind(code: Code) -> Effect {
    match code {
        Code::KeyInFlight | Code::OutcomeUnknown | Code::UpstreamBroken | Code::UpstreamTimeout => {
            Effect::Unknown
        }
        Code::ResponseNotKept => Effect::Done,
        Code::KeyMissing
        | Code::KeyEmpty
        | Code::KeyTooLong
        | Code::KeyMalformed
        | Code::KeyAmbiguous
        | Code::PayloadMismatch
        | Code::ScopeMissing
        | Code::StoreUnavailable
        | Code::Overloaded
        | Code::UpstreamUnavailable
        | Code::RequestRefused
        | Code::EndpointUnlisted
        | Code::DeadlineExceeded
        | Code::RequestTooLarge
        | Code::NotGuardable
        | Code::NamespaceCollision => Effect::None,
    }
}

impl AnswerMatch {
    /// Whether an answer is this one. An entry that names a body member never matches a body that is not JSON or was not
    /// at hand: when in doubt the answer is not recognised, and an unrecognised answer releases nothing.
    pub fn matches(&self, status: u16, body: Option<&[u8]>) -> bool {
        if self.status != status {
            return false;
        }
        let Some((pointer, expected)) = &self.body else { return true };
        let Some(document) = body.and_then(|bytes| serde_json::from_slice::<serde_json::Value>(bytes).ok())
        else {
            return false;
        };
        document.pointer(pointer).is_some_and(|value| match value.as_str() {
            Some(text) => text == expected,
            None => value.to_string().as_str() == expected.as_str(),
        })
    }
}
