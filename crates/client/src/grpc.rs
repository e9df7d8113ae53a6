//! Calls over tonic: the key as metadata, the time that is left as `grpc-timeout`, and a status taken for what it is.
//!
//! ```no_run
//! use retrysafe_client::{Grpc, Retries};
//! use tonic::{Request, Response, Status};
//!
//! # #[derive(Clone)] struct Orders;
//! # impl Orders { async fn create(&mut self, _: Request<u64>) -> Result<Response<u64>, Status> { Ok(Response::new(1)) } }
//! # async fn run(orders: Orders) -> Result<(), Box<dyn std::error::Error>> {
//! // One for each service, kept: all calls share its budget. This service honours keys in this metadata.
//! let grpc = Grpc::new(Retries::to("orders")).keyed("idempotency-key")?;
//! let order = grpc.call(Request::new(5), |request| {
//!     let mut orders = orders.clone();
//!     async move { orders.create(request).await }
//! });
//! println!("{}", order.await?.into_inner());
//! # Ok(())
//! # }
//! ```
//!
//! | status | taken for |
//! |---|---|
//! | with a transport's error behind it | what that error says, as over HTTP: refused, reset, timeout |
//! | with a machine code of ours in the metadata `idempotency-code` | that code |
//! | any other | the HTTP status that stands for it, so that one list of statuses rules both: `UNAVAILABLE` is a 503, `ABORTED` a 409 |
//!
//! `grpc-retry-pushback-ms` is obeyed: a number is the wait, anything else means "not again".
//!
//! **Limits.** Calls with one message each way; a stream has no second attempt. A service that is not said to honour keys is
//! called again only where it certainly processed nothing. tonic's own `timeout` of an endpoint may end an attempt earlier.

use std::fmt;

use retrysafe_core::{
    codes::Code as Machine,
    retry::{Answer, Failure, Idempotence, Lost, Reach, Seen, after},
};
use tonic::{
    Code, Request, Response, Status, TimeoutExpired,
    metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap},
};

use crate::{
    host::Host,
    http::failure_of,
    key::{Key, KeyRefused, NoRandomness},
    nested::{self, ATTEMPT_HEADER},
    retry::{Attempt, Failed, Retries, retry_by},
};

/// Metadata in which a service says its machine code beside the status.
pub const CODE_METADATA: &str = "idempotency-code";
/// Causes of a status that are looked at.
const CAUSES_MAX: usize = 16;

/// How calls to one gRPC service are retried. Cloning shares its budget.
#[derive(Clone, Debug)]
pub struct Grpc {
    retries: Retries,
    key: Option<AsciiMetadataKey>,
}

/// A call that did not end well.
#[derive(Clone, Debug)]
pub struct GrpcFailed {
    /// The key it was sent under: with it, and only with it, it can be sent again.
    pub key: Option<Key>,
    /// What happened.
    pub failed: Failed<Status>,
}

/// Why a call was not sent, or cannot be.
#[derive(Debug, thiserror::Error)]
pub enum GrpcError {
    /// The name cannot be that of metadata.
    #[error(
        "{0:?} is no name for metadata; use lower case letters, digits and hyphens, without the ending -bin"
    )]
    Name(String),
    /// The key in the request is none.
    #[error(transparent)]
    Key(#[from] KeyRefused),
    /// No key could be made.
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
    /// It was sent.
    #[error(transparent)]
    Failed(Box<GrpcFailed>),
}

impl Grpc {
    /// Calls that carry no key and must not be repeated, unless `retries` says that they may.
    pub fn new(retries: Retries) -> Self {
        Self { retries, key: None }
    }

    /// The service honours keys in the metadata of this name: a call is sent again under the same key.
    ///
    /// # Errors
    /// [`GrpcError::Name`].
    pub fn keyed(self, name: &str) -> Result<Self, GrpcError> {
        let key =
            AsciiMetadataKey::from_bytes(name.as_bytes()).map_err(|_| GrpcError::Name(name.to_owned()))?;
        Ok(Self { retries: self.retries.idempotence(Idempotence::Keyed), key: Some(key) })
    }

    /// Sends a request, as often as it takes and is safe. `send` makes one attempt, with a clone of its client.
    ///
    /// The key is the one in the metadata, else the [`Key`] in the request's extensions, else one that is drawn.
    ///
    /// # Errors
    /// [`GrpcError`]; what may have happened is [`Failed::OutcomeUnknown`] in it.
    pub async fn call<M, R, Send, Fut>(
        &self,
        request: Request<M>,
        mut send: Send,
    ) -> Result<Response<R>, GrpcError>
    where
        M: Clone + std::marker::Send + Sync,
        R: std::marker::Send,
        Send: FnMut(Request<M>) -> Fut + std::marker::Send,
        Fut: Future<Output = Result<Response<R>, Status>> + std::marker::Send,
    {
        let (mut metadata, extensions, message) = request.into_parts();
        let key = match &self.key {
            None => None,
            Some(name) => {
                let key = key_of(&metadata, name, extensions.get::<Key>(), self.retries.target())?;
                let mut value =
                    AsciiMetadataValue::try_from(key.as_str()).map_err(|_| KeyRefused::Characters)?;
                value.set_sensitive(true);
                metadata.insert(name.clone(), value);
                Some(key)
            }
        };
        let attempt = |attempt: Attempt| {
            let mut metadata = metadata.clone();
            metadata.insert(ATTEMPT_HEADER, attempt.number.into());
            let mut request = Request::from_parts(metadata, extensions.clone(), message.clone());
            request.set_timeout(attempt.timeout);
            send(request)
        };
        let ended = retry_by(&self.retries, attempt, seen_of).await;
        ended.map_err(|failed| GrpcError::Failed(Box::new(GrpcFailed { key, failed })))
    }
}

/// The caller's key; in a call that is nested in one that is retried, one that its attempts share; else a random one.
fn key_of(
    metadata: &MetadataMap,
    name: &AsciiMetadataKey,
    given: Option<&Key>,
    target: &str,
) -> Result<Key, GrpcError> {
    if let Some(carried) = metadata.get(name) {
        return Ok(Key::given(carried.to_str().map_err(|_| KeyRefused::Characters)?)?);
    }
    if let Some(given) = given {
        return Ok(given.clone());
    }
    match nested::lineage(&("grpc", target), Key::root) {
        Some(lineage) => Ok(Key::nested(&lineage)?),
        None => Ok(Key::random()?),
    }
}

/// What became of an attempt.
fn seen_of(status: &Status) -> Seen {
    if let Some(source) = std::error::Error::source(status) {
        // Without the body's progress nothing that is not known to be unsent is taken for it.
        let failure = Failure { reach: Reach::Whole, ..failure_of(source) };
        return Failure { timeout: failure.timeout || timed_out(source), ..failure }.seen();
    }
    // A peer that lets go of the stream says nothing about what it did before.
    if status.code() == Code::Cancelled {
        return Seen::lost(Lost::Reset, Reach::Whole);
    }
    let http = http_status(status.code());
    let text = |name| status.metadata().get(name).and_then(|value| value.to_str().ok());
    let fields = status.metadata().as_ref().iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let mut answer = Answer::new(http);
    answer.hint = after::read(http, fields, || Host::default().wall());
    answer.code = text(CODE_METADATA).and_then(Machine::from_wire);
    Seen::answered(answer)
}

fn timed_out(source: &(dyn std::error::Error + 'static)) -> bool {
    let causes = std::iter::successors(Some(source), |cause| cause.source()).take(CAUSES_MAX);
    causes.into_iter().any(|cause| cause.is::<TimeoutExpired>())
}

/// The HTTP status that stands for a code of gRPC (google.rpc.Code).
fn http_status(code: Code) -> u16 {
    match code {
        Code::Ok => 200,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => 400,
        Code::Unauthenticated => 401,
        Code::PermissionDenied => 403,
        Code::NotFound => 404,
        Code::AlreadyExists | Code::Aborted => 409,
        Code::ResourceExhausted => 429,
        Code::Cancelled => 499,
        Code::Unknown | Code::Internal | Code::DataLoss => 500,
        Code::Unimplemented => 501,
        Code::Unavailable => 503,
        Code::DeadlineExceeded => 504,
    }
}

/// Only the code of the last status is told: its message may hold anything.
impl fmt::Display for GrpcFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.failed.error().map(|status| status.code().description());
        match &self.failed {
            Failed::Stopped { because, .. } => write!(f, "given up: {because}")?,
            Failed::OutcomeUnknown { unknown, .. } => {
                write!(f, "{}", retrysafe_core::retry::Why::OutcomeUnknown(unknown.clone()))?;
            }
        }
        last.map_or(Ok(()), |last| write!(f, "; the last status: {last}"))
    }
}

impl std::error::Error for GrpcFailed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.failed.error().map(|status| status as _)
    }
}
