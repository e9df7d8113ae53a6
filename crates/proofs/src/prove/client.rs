//! The proofs of the client: `client.N`.

pub(super) mod balance;
pub(super) mod offsets;
pub(super) mod peers;
pub(super) mod scenarios;

mod proxy;

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use retrysafe_client::Profile;

/// A transport without proxies of the machine, one request to a connection: what happens to a request happens to it alone.
fn transport() -> Result<reqwest::ClientBuilder> {
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("TLS")?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    Ok(reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).tls_backend_preconfigured(tls))
}

/// An API that honours keys, with sleeps that a proof can afford.
fn profile() -> Profile {
    let mut profile = Profile::plain("proofs", "idempotency-key");
    profile.policy.backoff.base = Duration::from_millis(1);
    profile.policy.backoff.throttled_base = Duration::from_millis(1);
    profile
}

/// A runtime for one proof.
fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("runtime")
}
