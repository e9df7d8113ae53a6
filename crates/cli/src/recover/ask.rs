//! Asking the service.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Method, Request, StatusCode, Uri, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use retrysafe_core::ids::StatusId;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;

use crate::failure::Failure;

/// How long an answer may take. A service runs an attempt for its contract's `answer_timeout`; what is not answered by then
/// goes on there, and the store says later what became of it.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);
/// The longest answer of a door.
const ANSWER_MAX_BYTES: usize = 4096;

/// Where a door is.
#[derive(Clone, Debug)]
pub(super) struct Url(Uri);

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let uri: Uri = text.trim_end_matches('/').parse().map_err(|_| "that is no URL".to_owned())?;
        let known = matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some();
        match known && uri.query().is_none() {
            true => Ok(Self(uri)),
            false => Err("write http://HOST:PORT/PATH or https://HOST:PORT/PATH".to_owned()),
        }
    }
}

impl Url {
    fn at(&self, last: &str) -> Option<Uri> {
        format!("{}/{last}", self.0.to_string().trim_end_matches('/')).parse().ok()
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What became of a request that the service was asked about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Became {
    Completed,
    Later,
    Closed,
    Uncertain,
    /// Somebody else was first.
    Lost,
    /// It waits for its caller, or its plan is not there.
    Left,
}

impl Became {
    pub(super) const ALL: [(&str, Became); 6] = [
        ("completed", Became::Completed),
        ("later", Became::Later),
        ("closed", Became::Closed),
        ("uncertain", Became::Uncertain),
        ("lost", Became::Lost),
        ("left", Became::Left),
    ];
}

/// It did not answer, or not as a door does.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unasked(String);

/// A client that trusts the authorities in `file` alone.
fn trusting(file: &Path) -> Result<ClientConfig, Failure> {
    let unusable = |what: &dyn fmt::Display| {
        Failure::usage(format!("the authorities in {} cannot be used: {what}", file.display()))
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| unusable(&error))? {
        let added = certificate.map_err(|error| unusable(&error)).map(|one| roots.add(one))?;
        added.map_err(|error| unusable(&error))?;
    }
    if roots.is_empty() {
        return Err(unusable(&"it holds no certificate in PEM"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(&error))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// The service, and the secret of its door.
pub(super) struct Service {
    url: Url,
    bearer: axum::http::HeaderValue,
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
}

impl Service {
    /// A service over https is known by the authorities in the file `ca`, and by no others; without one by those that browsers
    /// trust.
    pub(super) fn new(url: Url, secret: &str, ca: Option<&Path>) -> Result<Self, Failure> {
        let mut bearer = axum::http::HeaderValue::from_str(&format!("Bearer {secret}"))
            .map_err(|_| Failure::usage("the secret of the door is no text that a header can carry"))?;
        bearer.set_sensitive(true);
        if ca.is_some() && url.0.scheme_str() != Some("https") {
            return Err(Failure::usage("--ca is about https, and the door is asked over plain http"));
        }
        let builder = HttpsConnectorBuilder::new();
        let trusting = match ca {
            None => builder.with_webpki_roots(),
            Some(file) => builder.with_tls_config(trusting(file)?),
        };
        let connector = trusting.https_or_http().enable_http1().build();
        Ok(Self { url, bearer, client: Client::builder(TokioExecutor::new()).build(connector) })
    }

    /// Has the service go on with `operation`. `None`: it knows of no such request, or of none any more.
    pub(super) async fn go_on(&self, operation: StatusId) -> Result<Option<Became>, Unasked> {
        let (status, answer) = self.post(&operation.to_string()).await?;
        if status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let word = answer["became"].as_str().unwrap_or_default();
        let became = Became::ALL.into_iter().find(|(name, _)| *name == word).map(|(_, became)| became);
        became.map(Some).ok_or_else(|| Unasked(format!("{} answered {status}, as no door does", self.url)))
    }

    /// Has the service send staged effects that are due. How many were tried.
    pub(super) async fn effects(&self) -> Result<u64, Unasked> {
        let (status, answer) = self.post("effects").await?;
        answer["tried"]
            .as_u64()
            .ok_or_else(|| Unasked(format!("{} answered {status}, as no door does", self.url)))
    }

    async fn post(&self, last: &str) -> Result<(StatusCode, Value), Unasked> {
        let failed = |what: &dyn fmt::Display| Unasked(format!("{}: {what}", self.url));
        let uri = self.url.at(last).ok_or_else(|| failed(&"no such place"))?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(uri)
            .header(header::AUTHORIZATION, self.bearer.clone())
            .body(Empty::new())
            .map_err(|error| failed(&error))?;
        let exchange = async {
            let answer = self.client.request(request).await.map_err(|error| failed(&error))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), ANSWER_MAX_BYTES);
            let body = body.collect().await.map_err(|error| failed(&error))?.to_bytes();
            Ok((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
        };
        match tokio::time::timeout(ANSWER_WITHIN, exchange).await {
            Ok(Ok((StatusCode::UNAUTHORIZED, _))) => Err(failed(&"the secret is not that of its door")),
            Ok(answered) => answered,
            Err(_) => Err(failed(&format_args!("no answer within {} s", ANSWER_WITHIN.as_secs()))),
        }
    }
}
