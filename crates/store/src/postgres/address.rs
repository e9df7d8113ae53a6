//! The address of a store in PostgreSQL, in one line.
//!
//! A connection URL as every PostgreSQL client takes it, with three parameters of our own: `schema` (the schema of the
//! tables), `statements` (`prepared`, `unnamed` behind a pooler in transaction mode, `simple`) and `pool` (connections).
//! `sslmode` and `sslrootcert` mean what they mean to PostgreSQL's own clients, but that connections are plain where no `sslmode`
//! is named, and that `verify-ca` and `verify-full` need an `sslrootcert`. They need the feature `postgres-tls`.
//!
//! ```
//! use retrysafe_store::postgres::{Mode, StoreAddress};
//!
//! let address: StoreAddress = "postgres://shop:secret@db.internal/shop?statements=unnamed&pool=4".parse()?;
//! assert_eq!((address.pool.mode, address.pool.size), (Mode::Unnamed, 4));
//! assert_eq!(address.to_string(), "postgres://db.internal/shop");
//! # Ok::<(), retrysafe_store::postgres::AddressFault>(())
//! ```

use std::{fmt, str::FromStr};

use tokio_postgres::{
    Config,
    config::{Host, SslMode},
};

#[cfg(feature = "postgres-tls")]
use super::tls;
use super::{Mode, PoolOptions, Schema, TokioPostgres};
use crate::sql::Failure;

/// How a store is reached.
#[derive(Clone)]
pub struct StoreAddress {
    /// For the client library. It holds the password.
    pub config: Config,
    /// How many connections, and how statements are sent.
    pub pool: PoolOptions,
    /// The schema of the tables.
    pub schema: Schema,
    #[cfg(feature = "postgres-tls")]
    checks: tls::Checks,
}

/// The address cannot be used. It is not repeated here: it may hold a password.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the address of the database cannot be used: {0}")]
pub struct AddressFault(String);

/// The most connections of one pool.
const POOL_MAX: usize = 1_000;

impl StoreAddress {
    /// Whether the text is meant as such an address.
    #[must_use]
    pub fn looks_like(text: &str) -> bool {
        text.starts_with("postgres://") || text.starts_with("postgresql://")
    }

    /// A driver for it. Nothing is connected yet.
    ///
    /// # Errors
    /// As [`TokioPostgres::new`]; or the file that `sslrootcert` names holds no certificates.
    pub fn driver(&self) -> Result<TokioPostgres, Failure> {
        #[cfg(feature = "postgres-tls")]
        if self.config.get_ssl_mode() != SslMode::Disable {
            let tls = tls::connector(&self.checks)
                .map_err(|fault| Failure::new(crate::sql::FailureKind::Unreachable, fault))?;
            return TokioPostgres::with_tls(self.config.clone(), self.pool, tls);
        }
        TokioPostgres::new(self.config.clone(), self.pool)
    }
}

impl FromStr for StoreAddress {
    type Err = AddressFault;

    fn from_str(text: &str) -> Result<Self, AddressFault> {
        if !Self::looks_like(text) {
            return Err(AddressFault("it has to begin with postgres://".into()));
        }
        let (mut pool, mut schema) = (PoolOptions::default(), Schema::default());
        let (mut sslmode, mut sslrootcert) = ("disable", None);
        let (place, parameters) = text.split_once('?').unwrap_or((text, ""));
        let mut theirs = Vec::new();
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("schema", name)) => {
                    schema = Schema::new(name).map_err(|fault| AddressFault(fault.to_string()))?;
                }
                Some(("statements", word)) => pool.mode = mode(word)?,
                Some(("pool", number)) => {
                    let size = number.parse().ok().filter(|size| (1..=POOL_MAX).contains(size));
                    pool.size =
                        size.ok_or_else(|| AddressFault(format!("pool is a number from 1 to {POOL_MAX}")))?;
                }
                Some(("sslmode", word)) => sslmode = word,
                Some(("sslrootcert", file)) => sslrootcert = Some(file),
                _ => theirs.push(parameter),
            }
        }
        let url = if theirs.is_empty() { place.to_owned() } else { format!("{place}?{}", theirs.join("&")) };
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            let why =
                std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            AddressFault(why)
        })?;
        let (mode, checks) = encryption(sslmode, sslrootcert)?;
        config.ssl_mode(mode);
        #[cfg(not(feature = "postgres-tls"))]
        let () = checks;
        Ok(Self {
            config,
            pool,
            schema,
            #[cfg(feature = "postgres-tls")]
            checks,
        })
    }
}

#[cfg(feature = "postgres-tls")]
fn encryption(sslmode: &str, sslrootcert: Option<&str>) -> Result<(SslMode, tls::Checks), AddressFault> {
    let roots = || {
        let file = sslrootcert.ok_or_else(|| {
            AddressFault(format!(
                "sslmode={sslmode} needs sslrootcert=FILE, the certificates of the authorities that may sign the server's"
            ))
        })?;
        Ok::<_, AddressFault>(std::path::PathBuf::from(file))
    };
    let (mode, checks) = match sslmode {
        "disable" => (SslMode::Disable, tls::Checks::None),
        "prefer" => (SslMode::Prefer, tls::Checks::None),
        "require" => (SslMode::Require, tls::Checks::None),
        "verify-ca" => (SslMode::Require, tls::Checks::Authority(roots()?)),
        "verify-full" => (SslMode::Require, tls::Checks::Name(roots()?)),
        _ => {
            let words = "sslmode is one of disable, prefer, require, verify-ca, verify-full";
            return Err(AddressFault(words.into()));
        }
    };
    // Somebody who names an authority means it to be asked.
    if sslrootcert.is_some() && checks == tls::Checks::None {
        return Err(AddressFault("sslrootcert is asked with sslmode=verify-ca or verify-full only".into()));
    }
    Ok((mode, checks))
}

#[cfg(not(feature = "postgres-tls"))]
fn encryption(sslmode: &str, sslrootcert: Option<&str>) -> Result<(SslMode, ()), AddressFault> {
    match (sslmode, sslrootcert) {
        // Nothing was asked of it that a plain connection does not do.
        ("disable" | "prefer", None) => Ok((SslMode::Disable, ())),
        _ => {
            Err(AddressFault("encrypted connections need the feature postgres-tls of retrysafe-store".into()))
        }
    }
}

fn mode(word: &str) -> Result<Mode, AddressFault> {
    match word {
        "prepared" => Ok(Mode::Prepared),
        "unnamed" => Ok(Mode::Unnamed),
        "simple" => Ok(Mode::Simple),
        _ => Err(AddressFault("statements is one of prepared, unnamed, simple".into())),
    }
}

/// Where, and nothing of who: for logs and greetings.
impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self
            .config
            .get_hosts()
            .iter()
            .enumerate()
            .map(|(at, host)| {
                let ports = self.config.get_ports();
                let port = ports.get(at).or(ports.first()).filter(|port| **port != 5432);
                let port = port.map(|port| format!(":{port}")).unwrap_or_default();
                match host {
                    Host::Tcp(name) => format!("{name}{port}"),
                    #[cfg(unix)]
                    Host::Unix(path) => format!("{}{port}", path.display()),
                }
            })
            .collect();
        write!(f, "postgres://{}/{}", hosts.join(","), self.config.get_dbname().unwrap_or_default())
    }
}

impl fmt::Debug for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreAddress({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_parameters_are_ours_and_the_rest_is_the_librarys() {
        let text = "postgresql://u:p@h1:1,h2:5432/d?schema=s2&connect_timeout=9&statements=simple&pool=3";
        let address: StoreAddress = text.parse().unwrap();
        assert_eq!(address.schema.as_str(), "s2");
        assert_eq!((address.pool.mode, address.pool.size), (Mode::Simple, 3));
        assert_eq!(address.config.get_connect_timeout(), Some(&std::time::Duration::from_secs(9)));
        assert_eq!(address.to_string(), "postgres://h1:1,h2/d");
    }

    #[test]
    fn what_cannot_be_used_is_told_without_the_password() {
        for text in [
            "mysql://u:hunter2@h/d",
            "postgres://u:hunter2@h/d?pool=0",
            "postgres://u:hunter2@h/d?statements=fast",
            "postgres://u:hunter2@h/d?schema=A-b",
            "postgres://u:hunter2@h/d?no_such_parameter=1",
            "postgres://u:hunter2@h:port/d",
            "postgres://u:hunter2@h/d?sslmode=yes",
            "postgres://u:hunter2@h/d?sslmode=verify-full",
            "postgres://u:hunter2@h/d?sslmode=require&sslrootcert=ca.pem",
        ] {
            let fault = text.parse::<StoreAddress>().map(|_| ()).unwrap_err();
            assert!(!fault.to_string().contains("hunter2"), "{fault}");
        }
        let address: StoreAddress = "postgres://u:hunter2@h/d".parse().unwrap();
        assert!(!format!("{address:?} {address}").contains("hunter2"));
    }
}
