//! [`Client`]: calls over reqwest that are retried as the API's contract has it.

mod answer;
mod request;
mod resume;
mod wire;

use std::{path::Path, sync::Arc, time::Duration};

use http::Method;

pub use answer::Answer;
pub use request::RequestBuilder;
pub use resume::{Resumed, StillOpen};
pub(crate) use wire::Wire;

use crate::{
    http::{Api, ContractFault, Refused},
    intents::{Intents, Reconcile},
};

/// A server that does not accept a connection within this long is as good as down (AWS's number). Known as "not sent",
/// where an attempt's own timeout could only say "unknown".
const CONNECT_TIMEOUT: Duration = Duration::from_millis(3_100);
/// How much of an answer is held.
const ANSWER_MAX: usize = 8 << 20;

/// A client of one API. Cheap to clone; clones share connections, budgets and limiters.
#[derive(Clone, Debug)]
pub struct Client(Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) wire: Wire,
    pub(crate) api: Api,
    pub(crate) base: http::Uri,
    pub(crate) answer_max: usize,
    pub(crate) intents: Option<Arc<dyn Intents>>,
    pub(crate) reconcile: Option<Arc<dyn Reconcile>>,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum BuildFault {
    /// No contract.
    #[error(transparent)]
    Contract(#[from] ContractFault),
    /// The address of the API is no absolute one.
    #[error("the address of an API is absolute, like https://api.example.com: {0}")]
    Base(String),
    /// reqwest does not build: its TLS has no roots, say.
    #[error("the HTTP client does not build: {0}")]
    Transport(#[from] reqwest::Error),
}

impl Client {
    /// A client of the API with the contract in this file, at this address. Every number, header name and code is the
    /// server's own.
    ///
    /// # Errors
    /// [`BuildFault`].
    pub fn from_contract(path: impl AsRef<Path>, base: &str) -> Result<Self, BuildFault> {
        Self::builder(Api::contract_file(path)?, base).build()
    }

    /// A client of an API.
    pub fn builder(api: Api, base: &str) -> ClientBuilder {
        ClientBuilder {
            api,
            base: base.to_owned(),
            transport: reqwest::Client::builder(),
            connect_timeout: CONNECT_TIMEOUT,
            answer_max: ANSWER_MAX,
            intents: None,
            reconcile: None,
        }
    }

    /// A POST to a path of the API.
    pub fn post(&self, path: &str) -> RequestBuilder<'_> {
        self.request(Method::POST, path)
    }

    /// A GET of a path of the API.
    pub fn get(&self, path: &str) -> RequestBuilder<'_> {
        self.request(Method::GET, path)
    }

    /// A request of any method.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder<'_> {
        RequestBuilder::new(self, method, path)
    }

    /// What is known of the API: its schedule ([`Api::explain`]) and budgets.
    pub fn api(&self) -> &Api {
        &self.0.api
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }
}

/// Settings of a [`Client`].
#[derive(Debug)]
#[must_use = "`build` makes the client"]
pub struct ClientBuilder {
    api: Api,
    base: String,
    transport: reqwest::ClientBuilder,
    connect_timeout: Duration,
    answer_max: usize,
    intents: Option<Arc<dyn Intents>>,
    reconcile: Option<Arc<dyn Reconcile>>,
}

impl ClientBuilder {
    /// Settings of the transport: TLS, proxies, default headers. Its own retries are turned off, so that attempts are
    /// counted once; its resolver is replaced by one whose failures can be told from others.
    pub fn transport(self, transport: reqwest::ClientBuilder) -> Self {
        Self { transport, ..self }
    }

    /// How long a connection may take. A connect timeout is known as "not sent"; keep it below an attempt's timeout.
    pub fn connect_timeout(self, connect_timeout: Duration) -> Self {
        Self { connect_timeout, ..self }
    }

    /// How much of an answer is held in memory.
    pub fn answer_max(self, answer_max: usize) -> Self {
        Self { answer_max, ..self }
    }

    /// Where durable intents are kept; see [`RequestBuilder::durable`].
    pub fn intents(self, intents: impl Intents + 'static) -> Self {
        Self { intents: Some(Arc::new(intents)), ..self }
    }

    /// Asked what became of an operation that may have happened, when its key can no longer tell.
    pub fn reconcile(self, reconcile: impl Reconcile + 'static) -> Self {
        Self { reconcile: Some(Arc::new(reconcile)), ..self }
    }

    /// The client.
    ///
    /// # Errors
    /// [`BuildFault`].
    pub fn build(self) -> Result<Client, BuildFault> {
        let base: http::Uri = self.base.parse().map_err(|_| BuildFault::Base(self.base.clone()))?;
        if base.scheme().is_none() || base.authority().is_none() || base.query().is_some() {
            return Err(BuildFault::Base(self.base));
        }
        let wire = Wire::new(self.transport, self.connect_timeout)?;
        Ok(Client(Arc::new(Inner {
            wire,
            api: self.api,
            base,
            answer_max: self.answer_max,
            intents: self.intents,
            reconcile: self.reconcile,
        })))
    }
}

/// The address of a path below the API's.
pub(crate) fn address(base: &http::Uri, path: &str) -> Result<http::Uri, Refused> {
    let mut parts = base.clone().into_parts();
    let below = base.path().trim_end_matches('/');
    let path = format!("{below}/{}", path.trim_start_matches('/'));
    parts.path_and_query =
        Some(path.parse().map_err(|error: http::uri::InvalidUri| Refused::Request(error.to_string()))?);
    http::Uri::from_parts(parts).map_err(|error| Refused::Request(error.to_string()))
}
