//! The servers under proof, started in the shapes people run: a gateway in front of the shop, a service behind
//! the layer, two gateways on one file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::contract::{JWT_SECRET_ENV, Terms, jwt};
use crate::process::{Server, own};
use crate::tools;

/// The sample shop as a process.
#[derive(Clone, Debug)]
pub(crate) struct ShopTerms {
    pub(crate) work: Duration,
    pub(crate) faults: bool,
    pub(crate) deduplicate: bool,
    pub(crate) listen: Option<SocketAddr>,
}

impl ShopTerms {
    pub(crate) fn working(work: Duration) -> Self {
        Self { work, faults: false, deduplicate: false, listen: None }
    }
}

/// Starts the shop on its file in `scratch`.
pub(crate) fn shop(terms: &ShopTerms, scratch: &Path) -> Result<Server> {
    let mut command = own(&["shop"])?;
    command.arg("--file").arg(scratch.join("shop.db"));
    command.arg("--work-ms").arg(terms.work.as_millis().to_string());
    if terms.faults {
        command.arg("--faults");
    }
    if terms.deduplicate {
        command.arg("--deduplicate");
    }
    if let Some(listen) = terms.listen {
        command.arg("--listen").arg(listen.to_string());
    }
    Server::start("shop", command, scratch)
}

/// Starts the service behind the layer.
pub(crate) fn service(
    name: &str,
    store: &str,
    work: Duration,
    lease: Duration,
    listen: Option<SocketAddr>,
    scratch: &Path,
) -> Result<Server> {
    let mut command = own(&["service", "--store", store])?;
    command.arg("--work-ms").arg(work.as_millis().to_string());
    command.arg("--lease-ms").arg(lease.as_millis().to_string());
    command.arg("--ledger").arg(scratch.join("service-ledger"));
    if let Some(listen) = listen {
        command.arg("--listen").arg(listen.to_string());
    }
    Server::start(name, command, scratch)
}

/// Where a gateway claims.
#[derive(Clone, Debug)]
pub(crate) enum GatewayStore {
    Memory,
    File(PathBuf),
    /// A database's.
    Url(String),
}

/// Starts `retrysafe serve`.
pub(crate) fn gateway(
    name: &str,
    upstream: SocketAddr,
    terms: &Terms,
    store: &GatewayStore,
    listen: Option<SocketAddr>,
    scratch: &Path,
) -> Result<Server> {
    Server::start(name, gateway_command(upstream, terms, store, listen, scratch)?, scratch)
}

/// The command that starts a gateway, for proofs that run it under another program.
pub(crate) fn gateway_command(
    upstream: SocketAddr,
    terms: &Terms,
    store: &GatewayStore,
    listen: Option<SocketAddr>,
    scratch: &Path,
) -> Result<Command> {
    let contract = scratch.join(format!("{}.toml", terms.namespace));
    std::fs::write(&contract, terms.text())?;
    let mut command = Command::new(retrysafe()?);
    command.arg("serve").arg("--upstream").arg(format!("http://{upstream}")).arg("--contract").arg(contract);
    command.arg("--listen").arg(listen.map_or_else(|| "127.0.0.1:0".to_owned(), |it| it.to_string()));
    command.args(["--admin", "127.0.0.1:0"]);
    command.arg("--store").arg(match store {
        GatewayStore::Memory => "memory".as_ref(),
        GatewayStore::File(path) => path.as_os_str(),
        GatewayStore::Url(url) => url.as_ref(),
    });
    if let GatewayStore::Url(_) = store {
        // Shared by all who use the database.
        command.arg("--key-file").arg(scratch.join("fingerprints.key"));
    }
    command.current_dir(scratch).env(JWT_SECRET_ENV, jwt()?.1);
    Ok(command)
}

/// The name under which a gateway writes its public address.
pub(crate) const GATEWAY: &str = "gateway";

/// The `retrysafe` binary: the one `RETRYSAFE_BIN` names (xtask has just built it), else that of the same profile
/// as this one, built if it is missing or old.
pub(crate) fn retrysafe() -> Result<PathBuf> {
    static BUILT: OnceLock<std::result::Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}"))).clone().map_err(anyhow::Error::msg)
}

fn build() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("RETRYSAFE_BIN") {
        return Ok(named.into());
    }
    let this = std::env::current_exe().context("the path of this binary")?;
    let folder = this.parent().context("the folder of this binary")?;
    // A test binary lives in `deps`, one level below the profile.
    let folder = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    let mut command = Command::new("cargo");
    command.current_dir(tools::root()).args(["build", "--locked", "--quiet", "--package", "retrysafe-cli"]);
    if folder.ends_with("release") {
        command.arg("--release");
    }
    if !command.status().context("cargo")?.success() {
        bail!("the gateway does not build");
    }
    Ok(folder.join("retrysafe"))
}
