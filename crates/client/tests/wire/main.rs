//! The client against servers that misbehave on the wire: what each failure is taken for, and what is done about it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper that fails fails its test")]

mod answers;
mod calls;
mod failures;
mod fleets;
mod grpc;
mod intents;
mod nesting;
mod server;
mod tower_layer;

use std::time::Duration;

use bytes::Bytes;
use retrysafe_client::{Answer, Api, Client, ClientBuilder, Error, Profile, Told};

/// How a call without a result ended.
type Ended = Error<Bytes>;

/// A client of an API that honours keys on POST, with short sleeps and without proxies of the machine.
fn keyed(base: &str) -> ClientBuilder {
    let mut profile = Profile::plain("test", "idempotency-key");
    profile.policy.backoff.base = Duration::from_millis(2);
    profile.policy.backoff.throttled_base = Duration::from_millis(2);
    builder(Api::profile(profile), base)
}

/// A client of an API of which nothing is known: its POSTs must not be repeated.
fn keyless(base: &str) -> ClientBuilder {
    let mut policy = retrysafe_core::retry::RetryPolicy::default();
    policy.backoff.base = Duration::from_millis(2);
    builder(Api::with_policy(policy), base)
}

fn builder(api: Api, base: &str) -> ClientBuilder {
    Client::builder(api, base).transport(transport())
}

fn transport() -> reqwest::ClientBuilder {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    reqwest::Client::builder().no_proxy().tls_backend_preconfigured(tls)
}

async fn post(client: &Client) -> Result<Answer, Ended> {
    client.post("/orders").body("{\"amount\":5}").header("content-type", "application/json").send().await
}

/// What the attempts of a failed call came to.
fn told(error: &Ended) -> Vec<Told> {
    let history = match error {
        Error::Stopped(stopped) => &stopped.history,
        Error::OutcomeUnknown(unknown) => &unknown.history,
        Error::Refused(refused) => panic!("nothing was sent: {refused}"),
    };
    history.steps().iter().map(|step| step.outcome).collect()
}
