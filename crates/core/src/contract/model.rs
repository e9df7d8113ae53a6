//! The contract as the rest of the code sees it: parsed, complete, nothing left to default at run time.
//!
//! Every field is a decision somebody wrote down, or a documented default of `docs/reference/contract.md`. Endpoint
//! settings are resolved when the contract is read: an [`Endpoint`] carries its own copy of every policy, so that no code
//! asks "the endpoint's, or else the top level's?".

use std::{sync::Arc, time::Duration};

use ipnet::IpNet;

use super::routes::Routes;
use crate::{
    address::Namespace, answers::Template, codes::Code, fingerprint::BodyRules, key::KeyRules,
    record::RecoveryClass,
};

/// `retrysafe.toml`, read and checked.
#[derive(Clone, Debug)]
pub struct Contract {
    /// Name of the API, for people.
    pub api: String,
    /// Bumped by its author whenever the meaning changes; stored with every claim (protocol 8).
    pub version: u32,
    /// This hop's namespace (protocol 2).
    pub namespace: Namespace,
    /// The longest chain of retries any caller makes (SPEC 0, question 6); no replay window is below it.
    pub longest_retry_chain: Duration,
    /// The vendor profile that it stands on.
    pub profile: Option<&'static str>,
    /// What happens to state-changing requests that no endpoint lists.
    pub unlisted: Unlisted,
    /// How the store is asked to arbitrate claims (SPEC 4.2).
    pub claim: ClaimMethod,
    /// How the layer's own answers look.
    pub answers: Answers,
    /// What the clients are told (SPEC 7); the numbers the docs print and the client takes.
    pub client: ClientPolicy,
    /// Requests that may run at once before new ones are turned away with 503 (protocol 14).
    pub concurrent_max: usize,
    /// Where status URLs live, when any endpoint answers 202: `/.retrysafe/status`.
    pub status_path: String,
    /// How long the gateway waits for an upstream's answer, and the layer for a handler's, before the outcome is unknown.
    pub answer_timeout: Duration,
    /// Every listed operation.
    pub endpoints: Vec<Endpoint>,
    /// Finds the endpoint of a request. Private: a contract comes out of [`Contract::parse`] and nowhere else.
    pub(super) routes: Routes,
}

/// What to do with a state-changing request that matches no endpoint. Counted either way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unlisted {
    /// Pass it on unguarded.
    Pass,
    /// Answer 403 `idempotency_endpoint_unlisted`.
    Refuse,
}

/// One operation: a method and a path template, with every policy resolved.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Upper-case method.
    pub method: String,
    /// Path template in `matchit` syntax: `/orders/{id}`.
    pub path: String,
    /// `POST /orders/{id}`: what records and metrics call it.
    pub name: Arc<str>,
    /// Whether it takes a key.
    pub key: KeyUse,
    /// Where the key is and what it may look like.
    pub carrier: Carrier,
    /// Syntax and length of keys.
    pub key_rules: KeyRules,
    /// Whose key it is.
    pub scope: Scope,
    /// Headers that select the account (a tenant, a connected account): they join the scope (protocol 3). Lower case.
    pub scope_headers: Vec<String>,
    /// Headers that select the effect (an API version): they join the fingerprint (protocol 3). Lower case.
    pub fingerprint_headers: Vec<String>,
    /// How bodies are compared.
    pub body_rules: BodyRules,
    /// How a second caller is answered while the first runs.
    pub in_flight: InFlight,
    /// What is stored, and for how long.
    pub failures: FailurePolicy,
    /// The two times, and the lease.
    pub windows: Windows,
    /// Limits of bodies.
    pub limits: Limits,
    /// What a lost holder means.
    pub recovery: RecoveryClass,
    /// In which transaction an atomic endpoint is claimed.
    pub transaction: Shape,
    /// How to find out what became of an uncertain request.
    pub probe: Option<Probe>,
    /// Answers by which the upstream says that it did nothing (protocol 21): they release the key.
    pub rejected_before_processing: Vec<AnswerMatch>,
    /// 5xx answers that the API documents as final results. Without an entry, a 5xx at the gateway is EffectUnknown.
    pub final_5xx: Vec<u16>,
    /// Answers that say "not decided" (protocol 20): never an outcome.
    pub undecided: Vec<AnswerMatch>,
    /// Whether replays are re-authorised by asking the upstream (K4, protocol 1).
    pub reauthorise: Option<Reauthorise>,
    /// What happens when the store is down.
    pub store_down: StoreDown,
    /// Response headers that are stored although they are dropped by default (`set-cookie`), or dropped although they are kept.
    pub headers: StoredHeaders,
    /// Header that is added to replays with the value `true` (S15), lower case: `idempotent-replayed`. `None`: a replay
    /// cannot be told from the original.
    pub replay_marker: Option<String>,
    /// Requests by which a resource ends (SPEC 3.2): method and template, with the parameter that names it.
    pub ends_resource: Option<EndsResource>,
    /// Line of the endpoint in the contract file, for messages.
    pub line: usize,
}

/// How a store arbitrates who won a key (SPEC 4.2). All three have one winner; they differ in what they need of the store
/// and in what else they keep apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ClaimMethod {
    /// A unique constraint on the address: insert, or learn who was there. The cheapest.
    Unique,
    /// A write that names the state it replaces, for stores without unique constraints inside transactions.
    Conditional,
    /// The row is locked, and the transaction is SERIALIZABLE: what the handler *read* is guarded with what it wrote. For
    /// requests whose decision depends on rows that others change.
    Serializable,
}

impl ClaimMethod {
    /// All of them: what a store offers that runs one writer at a time.
    pub const ALL: [ClaimMethod; 3] =
        [ClaimMethod::Unique, ClaimMethod::Conditional, ClaimMethod::Serializable];

    /// As a contract writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            ClaimMethod::Unique => "unique",
            ClaimMethod::Conditional => "conditional",
            ClaimMethod::Serializable => "serializable",
        }
    }
}

/// In which transaction an endpoint of the atomic class is claimed (design 4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Shape {
    /// Claim, business rows and answer are one transaction. A crash leaves nothing; the claim is invisible meanwhile.
    One,
    /// The claim is committed first, with a lease, and everybody sees it; its completion rides in the handler's
    /// transaction, guarded by the attempt id.
    ClaimFirst,
}

/// Whether an endpoint takes a key (SPEC 1.2: no third state).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyUse {
    /// 400 without one.
    Required,
    /// Guarded when there is one.
    Optional,
    /// Documented as unsafe to retry; the reason is printed in the docs. A key on it is ignored, and counted.
    Unsafe {
        /// Why.
        reason: String,
    },
}

/// Where the key is carried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Carrier {
    /// A request header, lower case.
    Header(String),
    /// A field of the JSON body, by JSON pointer (well-formed).
    BodyField(String),
}

/// Where the account comes from (SPEC 2.2, protocol 1): always a verified, stable subject.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Scope {
    /// A claim of a JWT that this hop verifies.
    Jwt(JwtScope),
    /// A header set by something in front, trusted only from these peers.
    TrustedHeader {
        /// Lower-case header name.
        header: String,
        /// Peers that may set it.
        peers: Vec<IpNet>,
    },
    /// An API key that does not rotate with the session. The account is a hash of it, so that
    /// the store holds no credentials; unkeyed, since a key that is rotated would move every account.
    ApiKey {
        /// Lower-case header name.
        header: String,
        /// `Some("Bearer")`: what follows this authentication scheme.
        scheme: Option<String>,
    },
    /// Set by the application in front of the layer (a request extension); not available at the gateway.
    Application,
    /// No identity: one anonymous scope, stated by the contract (SPEC 2.2).
    Anonymous,
}

/// How a JWT is verified and which claim is the account.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JwtScope {
    /// Lower-case header that carries `Bearer <token>`.
    pub header: String,
    /// Claims that name the account, joined: `["sub"]`, `["iss", "sub"]`.
    pub claims: Vec<String>,
    /// Required `iss`, if any.
    pub issuer: Option<String>,
    /// Required `aud`, if any.
    pub audience: Option<String>,
    /// Accepted algorithms: `RS256`, `ES256`, `EdDSA`, `HS256`.
    pub algorithms: Vec<String>,
    /// Where the verification key is.
    pub key: JwtKey,
}

/// Where a JWT verification key is read from, at start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JwtKey {
    /// A PEM public key file.
    PemFile(String),
    /// A JWKS file.
    JwksFile(String),
    /// An environment variable with the shared secret (HS256).
    SecretEnv(String),
}

/// The answer to a second caller while the first is in flight (SPEC 5.2).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InFlight {
    /// Which answer.
    pub answer: InFlightAnswer,
    /// Retry-After of in-flight answers.
    pub retry_after: Duration,
}

/// Kinds of in-flight answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InFlightAnswer {
    /// 409 `idempotency_key_in_flight`.
    Refuse,
    /// Wait for the result up to a limit, then refuse.
    Wait {
        /// The limit.
        at_most: Duration,
    },
    /// 202 with a status URL to callers that sent `Prefer: respond-async`; others are refused.
    AcceptPreferred,
    /// 202 with a status URL, always.
    AcceptAlways,
}

/// SPEC 6.1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FailurePolicy {
    /// A: store the first result, whatever it is.
    StoreAll,
    /// B: the class decides. The first class that lists the status applies; a status in no class is stored for the window.
    ByClass(Vec<FailureClass>),
}

/// Statuses under policy B and what becomes of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FailureClass {
    /// Inclusive ranges of statuses.
    pub statuses: Vec<(u16, u16)>,
    /// What becomes of them when no effect can have happened.
    pub keep: Keep,
}

/// How long a stored failure is replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// For the endpoint's replay window.
    Window,
    /// For this long.
    For(Duration),
    /// Not stored: the key is released.
    Release,
    /// Not stored: the outcome is unknown.
    Uncertain,
}

/// Times of an endpoint (SPEC 3.1, 3.2).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Windows {
    /// How long a completed answer is replayed, from completion.
    pub replay: Duration,
    /// How long the record is kept for people, from completion.
    pub reap: Duration,
    /// How long a claim is held without renewal.
    pub lease: Duration,
    /// Bind the window to the resource's life.
    pub resource: Option<ResourceWindow>,
}

/// A window bound to the life of the resource the request made (SPEC 3.2).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResourceWindow {
    /// JSON pointer to its id in the stored answer (well-formed).
    pub id: String,
    /// How long replays go on after it ended.
    pub grace: Duration,
    /// Upper bound of the window while it lives.
    pub at_most: Duration,
}

/// A request that ends a resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndsResource {
    /// The path parameter that names it.
    pub param: String,
    /// How long replays of the request that made it go on (SPEC 3.2).
    pub grace: Duration,
}

/// Size limits, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Longer requests are refused with 413 before any claim.
    pub request_body_max: usize,
    /// Longer answers leave a tombstone.
    pub response_body_max: usize,
}

/// How to ask the upstream what became of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    /// Path and query with `{key}` and `{fence}`; sent as GET with the caller's own credentials.
    pub path: String,
    /// Status of a probe answer that means "it was done".
    pub found: Vec<u16>,
    /// Status of a probe answer that means "it was not".
    pub absent: Vec<u16>,
    /// Response header of the probe's answer that holds the original status; without it `status` is used.
    pub status_header: Option<String>,
    /// Status of the outcome when the probe found it and no header says.
    pub status: u16,
    /// What `absent` permits (protocol 22).
    pub when_absent: WhenAbsent,
    /// The contract states that asking makes the first run impossible from then on: the only ground on which
    /// `absent` may release the key.
    pub fences: bool,
    /// Attempts before the record is left uncertain.
    pub attempts: u32,
}

/// What a probe's "absent" permits (protocol 22).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhenAbsent {
    /// Nothing: the first run may still be on its way.
    StayUncertain,
    /// Release the key: the probe fences, so that the first run can no longer happen.
    Release,
}

/// An answer, recognised by status and optionally by its machine code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AnswerMatch {
    /// The status.
    pub status: u16,
    /// JSON pointer and value in the body, if the status alone does not say. The pointer is well-formed.
    pub body: Option<(String, String)>,
}

/// How replays are authorised again (K4).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reauthorise {
    /// Path of the authorisation subrequest (GET, with the caller's credentials). 2xx permits; 401 and 403 are passed on.
    pub path: String,
}

/// What happens to keyed requests while the store is down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreDown {
    /// 503; nothing runs.
    Closed,
    /// Run unguarded, and count it (O1).
    Open,
}

/// Exceptions from the default rule of stored headers. Lower case.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct StoredHeaders {
    /// Stored although dropped by default.
    pub keep: Vec<String>,
    /// Dropped although stored by default.
    pub drop: Vec<String>,
}

/// How the layer's own answers look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// Prefix of problem `type` URIs; the code is appended.
    pub type_base: String,
    /// Media type of the answers.
    pub content_type: String,
    /// A template for the API's own error envelope; `None`: RFC 9457 problem details.
    pub template: Option<Template>,
    /// Statuses that differ from the table of SPEC 5.5, by code.
    pub statuses: Vec<(Code, u16)>,
    /// Headers added to every own answer (`stripe-should-retry: false`), by whether the code is retryable.
    pub headers: Vec<OwnHeader>,
}

/// A header of the layer's own answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnHeader {
    /// Lower-case name.
    pub name: String,
    /// Value on answers whose code is retryable.
    pub when_retryable: String,
    /// Value on the others.
    pub when_final: String,
}

/// What clients of this API do (SPEC 7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientPolicy {
    /// Attempts in all, the first included.
    pub attempts: u32,
    /// Elapsed time over all attempts.
    pub elapsed: Duration,
    /// Base of the backoff.
    pub base: Duration,
    /// Base when throttled.
    pub throttled_base: Duration,
    /// Cap of one delay.
    pub cap: Duration,
    /// Statuses retried with the same key.
    pub retry_statuses: Vec<u16>,
    /// The contract states that clients take a status off their list where an endpoint stores and replays it (SPEC 6.4):
    /// retrying with the same key would only fetch the same answer again.
    pub drop_stored_statuses: bool,
    /// Name of the relative deadline header, if any: milliseconds left.
    pub deadline_header: Option<String>,
    /// What the API's quota counts; `None`: the contract does not say.
    pub quota: Option<Quota>,
}

/// Whether retries count against a quota (SPEC 8).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Quota {
    /// Every request that arrives, retries and replays too.
    Attempts,
    /// Operations: what carries a key that was counted already is not counted again.
    Operations,
}
