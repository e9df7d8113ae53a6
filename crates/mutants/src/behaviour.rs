//! What each server does, as data.

use std::time::Duration;

/// How a key is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// As it should be.
    Applied,
    /// Read and forgotten.
    Ignored,
    /// A hash of the body in its place.
    FromBody,
}

/// How a key is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// One step.
    Atomic,
    /// A look, then an insert.
    CheckThenInsert,
    /// The effect commits first, the claim afterwards, in a transaction of its own.
    AfterEffect,
    /// A lock that ends by itself, whether its holder is done or not.
    ShortLock(Duration),
    /// A look into the answers, then a lock: who looked before the answer was there and locks after it was given up runs again.
    LookThenLock,
}

/// What is done with a body under a known key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bodies {
    /// Another one is refused.
    Compared,
    /// Never looked at.
    Ignored,
    /// Part of the key: another one runs.
    InKey,
}

/// What a loser is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loser {
    /// 409, in flight.
    InFlight,
    /// The answer, when it is there.
    Waits,
    /// 500.
    Fails,
}

/// A server whose orders are in a database that several processes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Booking {
    /// The completing write is guarded by the attempt that claimed.
    pub fenced: bool,
    /// A commit that fails is told as one that did not.
    pub swallows_a_failed_commit: bool,
    /// Keys at work are remembered in memory too, and forgotten where the work ends well.
    pub remembers_its_work: bool,
}

/// One server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// How a key is applied.
    pub keys: Keys,
    /// How it is claimed.
    pub claim: Claim,
    /// Other bodies.
    pub bodies: Bodies,
    /// Losers.
    pub loser: Loser,
    /// Keys belong to accounts.
    pub scoped: bool,
    /// Keys belong to operations.
    pub by_operation: bool,
    /// A request without a key is refused.
    pub required: bool,
    /// Failures are kept as successes are.
    pub keeps_failures: bool,
    /// A replay has its `location`.
    pub whole_replays: bool,
    /// The answer is stored when the effect is there.
    pub stores_after_effect: bool,
    /// Processes with a memory of their own.
    pub instances: usize,
    /// One request at a time.
    pub serial: bool,
    /// How long the effect takes.
    pub work: Duration,
    /// Its calls to a provider carry a key that is made of the request's, and not a new one.
    pub derives_downstream_keys: bool,
    /// Claims outlive the process, and nothing else does: no lease ends them.
    pub durable_claims: bool,
    /// On SQLite, without any pause that is not the database's.
    pub natural: bool,
    /// In a database, in place of all that is said above.
    pub booked: Option<Booking>,
}

const SOUND: Behaviour = Behaviour {
    keys: Keys::Applied,
    claim: Claim::Atomic,
    bodies: Bodies::Compared,
    loser: Loser::InFlight,
    scoped: true,
    by_operation: true,
    required: true,
    keeps_failures: true,
    whole_replays: true,
    stores_after_effect: true,
    instances: 1,
    serial: false,
    work: Duration::from_millis(5),
    derives_downstream_keys: true,
    durable_claims: false,
    natural: false,
    booked: None,
};

const BOOKED: Booking = Booking { fenced: true, swallows_a_failed_commit: false, remembers_its_work: false };

/// A server with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// For the command line.
    pub name: &'static str,
    /// What is wrong with it.
    pub what: &'static str,
    /// The arm that has to fail; `PASS` and `INCONCLUSIVE` for the others.
    pub arm: &'static str,
    /// What it does.
    pub behaviour: Behaviour,
}

const fn mutant(name: &'static str, arm: &'static str, what: &'static str, behaviour: Behaviour) -> Mutant {
    Mutant { name, what, arm, behaviour }
}

/// All servers.
pub const TABLE: &[Mutant] = &[
    mutant("sound", "PASS", "nothing; losers are told in flight", SOUND),
    mutant(
        "sound-waits",
        "PASS",
        "nothing; losers wait for the answer",
        Behaviour { loser: Loser::Waits, work: Duration::from_millis(15), ..SOUND },
    ),
    mutant(
        "check-then-insert",
        "A1",
        "looks, and inserts later",
        Behaviour { claim: Claim::CheckThenInsert, ..SOUND },
    ),
    mutant(
        "check-then-insert-sqlite",
        "A1",
        "looks, and inserts later, with no pause between but the database's",
        Behaviour { claim: Claim::CheckThenInsert, natural: true, work: Duration::ZERO, ..SOUND },
    ),
    mutant(
        "claim-outside-transaction",
        "A1",
        "commits the effect, and claims the key afterwards",
        Behaviour { claim: Claim::AfterEffect, ..SOUND },
    ),
    mutant(
        "short-lock",
        "A1",
        "a lock whose time to live is shorter than the handler",
        Behaviour {
            claim: Claim::ShortLock(Duration::from_millis(6)),
            work: Duration::from_millis(20),
            ..SOUND
        },
    ),
    mutant(
        "look-then-lock",
        "A1",
        "looks for the answer before it locks",
        Behaviour { claim: Claim::LookThenLock, ..SOUND },
    ),
    mutant(
        "two-instances",
        "A1",
        "remembers keys in memory, in two processes",
        Behaviour { instances: 2, ..SOUND },
    ),
    mutant(
        "key-ignored",
        "A7",
        "accepts the key and does not apply it",
        Behaviour { keys: Keys::Ignored, required: false, ..SOUND },
    ),
    mutant("global-scope", "A4", "keys of all accounts in one space", Behaviour { scoped: false, ..SOUND }),
    mutant("silent-replay", "A3", "replays to another body", Behaviour { bodies: Bodies::Ignored, ..SOUND }),
    mutant(
        "hash-in-key",
        "A3",
        "makes the body part of the key",
        Behaviour { bodies: Bodies::InKey, ..SOUND },
    ),
    mutant("hash-as-key", "A8", "makes the key from the body", Behaviour { keys: Keys::FromBody, ..SOUND }),
    mutant(
        "one-space-for-operations",
        "A5",
        "replays one operation's answer to another",
        Behaviour { by_operation: false, bodies: Bodies::Ignored, ..SOUND },
    ),
    mutant(
        "key-not-required",
        "A6",
        "documents the key as required and runs without",
        Behaviour { required: false, ..SOUND },
    ),
    mutant(
        "mixed-race",
        "A9",
        "compares bodies, and claims in two steps",
        Behaviour { claim: Claim::CheckThenInsert, ..SOUND },
    ),
    mutant(
        "forgets-failures",
        "A10",
        "keeps only 2xx, and has the effect before it fails",
        Behaviour { keeps_failures: false, ..SOUND },
    ),
    mutant(
        "stored-before-commit",
        "A1",
        "stores the answer before the effect",
        Behaviour {
            stores_after_effect: false,
            loser: Loser::Waits,
            work: Duration::from_millis(20),
            ..SOUND
        },
    ),
    mutant("lost-location", "A2", "loses a header in replays", Behaviour { whole_replays: false, ..SOUND }),
    mutant("loser-fails", "A1", "tells losers 500", Behaviour { loser: Loser::Fails, ..SOUND }),
    mutant(
        "new-downstream-key",
        "K1",
        "calls its provider with a new key in each attempt",
        Behaviour { derives_downstream_keys: false, ..SOUND },
    ),
    mutant(
        "stuck-after-crash",
        "K1",
        "keeps claims over a crash, and has no lease",
        Behaviour { durable_claims: true, ..SOUND },
    ),
    mutant(
        "sound-booked",
        "PASS",
        "nothing; orders are in a database, claims have leases and fences",
        Behaviour { booked: Some(BOOKED), ..SOUND },
    ),
    mutant(
        "no-fence",
        "K6",
        "commits whoever claims the key by now",
        Behaviour { booked: Some(Booking { fenced: false, ..BOOKED }), ..SOUND },
    ),
    mutant(
        "swallowed-commit",
        "K7",
        "tells a success when its commit failed",
        Behaviour { booked: Some(Booking { swallows_a_failed_commit: true, ..BOOKED }), ..SOUND },
    ),
    mutant(
        "stuck-without-database",
        "K7",
        "remembers keys at work in memory, and forgets them only where the work ends well",
        Behaviour { booked: Some(Booking { remembers_its_work: true, ..BOOKED }), ..SOUND },
    ),
    mutant(
        "swallowed-full-disk",
        "K8",
        "tells a success when there was no room for it",
        Behaviour { booked: Some(Booking { swallows_a_failed_commit: true, ..BOOKED }), ..SOUND },
    ),
    mutant(
        "serial",
        "INCONCLUSIVE",
        "one request at a time",
        Behaviour { serial: true, loser: Loser::Waits, ..SOUND },
    ),
    mutant(
        "too-fast",
        "INCONCLUSIVE",
        "is done before the next request is there",
        Behaviour { serial: true, loser: Loser::Waits, work: Duration::ZERO, ..SOUND },
    ),
];

/// The server of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Mutant> {
    TABLE.iter().find(|mutant| mutant.name == name)
}
