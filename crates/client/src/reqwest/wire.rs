//! reqwest as a transport: what it reports, in core's terms.

use std::{error::Error, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use retrysafe_core::retry::Failure;

use crate::{
    BoxError,
    http::{NoSuchName, Outgoing, Transport, failure_of},
};

/// A body that is no bytes.
pub(super) type AnyBody = BoxBody<Bytes, BoxError>;

/// A client of reqwest that sends each request once.
#[derive(Clone, Debug)]
pub(crate) struct Wire(reqwest::Client);

impl Wire {
    pub(crate) fn new(builder: reqwest::ClientBuilder, connect_timeout: Duration) -> reqwest::Result<Self> {
        // A process has one provider of cryptography. reqwest panics where nobody has chosen one; a choice that was made stays.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            let _chosen_meanwhile = rustls::crypto::ring::default_provider().install_default();
        }
        let builder = builder.connect_timeout(connect_timeout).dns_resolver(Arc::new(Named));
        // Attempts are counted once: by us.
        builder.retry(reqwest::retry::never()).build().map(Self)
    }
}

impl Transport for Wire {
    type Body = reqwest::Body;
    type Stream = AnyBody;

    async fn send(
        &self,
        request: Request<Outgoing<AnyBody>>,
    ) -> Result<Response<reqwest::Body>, (Failure, BoxError)> {
        let request = request.map(reqwest::Body::wrap);
        let made = reqwest::Request::try_from(request);
        let sent = match made {
            Ok(request) => self.0.execute(request).await,
            Err(error) => Err(error),
        };
        sent.map(Into::into).map_err(|error| (failure(&error), Box::new(error.without_url()) as BoxError))
    }
}

/// V15: connecting is asked for before timeouts, since a connect timeout is both.
fn failure(error: &reqwest::Error) -> Failure {
    let mut failure = failure_of(error as &(dyn Error + 'static));
    failure.connecting |= error.is_connect();
    failure.timeout |= error.is_timeout();
    failure
}

/// The system's resolver, whose failures have a type: reqwest's own tells them by their text.
#[derive(Debug)]
struct Named;

impl Resolve for Named {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await;
            let found: Vec<SocketAddr> =
                found.map_err(|error| Box::new(NoSuchName(error)) as BoxError)?.collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}
