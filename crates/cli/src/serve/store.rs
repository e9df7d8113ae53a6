//! Which store, and the secret that goes with it.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use retrysafe_core::fingerprint::FingerprintKeys;
use retrysafe_server::{KeyFileFault, fingerprint_keys_in};
use retrysafe_store::Store;
use retrysafe_store::StoreError;
use retrysafe_store::mariadb::{MariaOptions, MariaStore};
use retrysafe_store::memory::MemoryStore;
use retrysafe_store::postgres::{PostgresStore, StoreAddress, TokioPostgres};
use retrysafe_store::sqlite::{SqliteOptions, SqliteStore};

use crate::database::{self, Database};
use crate::failure::Failure;

/// Where claims live.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Memory,
    File(PathBuf),
    Database(Database),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "memory" => Self::Memory,
            url if database::looks_like(url) => Self::Database(database::address(url)?),
            path => Self::File(path.into()),
        })
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory => f.write_str("memory; forgotten when this process ends"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Database(address) => write!(f, "{address}"),
        }
    }
}

/// An open store.
pub(crate) enum Opened {
    Memory(Arc<MemoryStore>),
    Sqlite(Arc<SqliteStore>, FingerprintKeys),
    Postgres(Arc<PostgresStore<TokioPostgres>>, FingerprintKeys),
    Mariadb(Arc<MariaStore>, FingerprintKeys),
}

impl Opened {
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => Arc::clone(store) as _,
            Self::Sqlite(store, _) => Arc::clone(store) as _,
            Self::Postgres(store, _) => Arc::clone(store) as _,
            Self::Mariadb(store, _) => Arc::clone(store) as _,
        }
    }

    /// The fingerprint secret that outlives the process as the store does.
    pub(crate) fn keys(&self) -> Option<FingerprintKeys> {
        match self {
            Self::Memory(_) => None,
            Self::Sqlite(_, keys) | Self::Postgres(_, keys) | Self::Mariadb(_, keys) => Some(keys.clone()),
        }
    }

    /// Writes everything down and lets the file go.
    pub(crate) fn close(&self) {
        if let Self::Sqlite(store, _) = self {
            store.close();
        }
    }
}

pub(crate) async fn open(place: &Place, key_file: Option<&Path>) -> Result<Opened, Failure> {
    let path = match place {
        Place::Memory => return Ok(Opened::Memory(Arc::new(MemoryStore::new(Default::default())))),
        Place::Database(Database::Postgres(address)) => return open_postgres(address, key_file).await,
        Place::Database(Database::Mariadb(options)) => return open_mariadb(options, key_file).await,
        Place::File(path) => path,
    };
    let key_file = key_file.map_or_else(|| beside(path), Path::to_owned);
    // The secret first: a store without its secret could compare nothing, and takes every retry for another request.
    let keys = keys_in(&key_file, path)?;
    let store = SqliteStore::open(SqliteOptions::new(path))
        .map_err(|error| Failure::runtime(format!("the store cannot be opened: {error}")))?;
    Ok(Opened::Sqlite(Arc::new(store), keys))
}

async fn open_postgres(address: &StoreAddress, key_file: Option<&Path>) -> Result<Opened, Failure> {
    let key_file = shared_key_file(key_file)?;
    let store = database::open(address).await?;
    // No file is beside a database, so a file that is missing is made; whether it is the right one, the store knows.
    let keys = keys_in(key_file, Path::new(""))?;
    same_secret(address, key_file, store.has_secret(keys.current()).await)?;
    Ok(Opened::Postgres(Arc::new(store), keys))
}

async fn open_mariadb(options: &MariaOptions, key_file: Option<&Path>) -> Result<Opened, Failure> {
    let key_file = shared_key_file(key_file)?;
    let store = database::open_mariadb(options).await?;
    let keys = keys_in(key_file, Path::new(""))?;
    same_secret(options, key_file, store.has_secret(keys.current()).await)?;
    Ok(Opened::Mariadb(Arc::new(store), keys))
}

fn shared_key_file(key_file: Option<&Path>) -> Result<&Path, Failure> {
    key_file.ok_or_else(|| {
        Failure::usage(
            "a store in a database is shared, and so is the secret of fingerprints: name its file with --key-file; \
             the first process makes it, and every other needs a copy",
        )
    })
}

fn same_secret(
    address: impl std::fmt::Display,
    key_file: &Path,
    same: Result<bool, StoreError>,
) -> Result<(), Failure> {
    match same {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::usage(format!(
            "the store at {address} is used with another secret of fingerprints than the one in {}: every retry would \
             be taken for another request. Copy the key file of the processes that use it",
            key_file.display()
        ))),
        Err(error) => Err(Failure::runtime(format!("{address}: {}", database::chain(&error)))),
    }
}

fn keys_in(key_file: &Path, store: &Path) -> Result<FingerprintKeys, Failure> {
    fingerprint_keys_in(key_file, store).map_err(|fault| match fault {
        KeyFileFault::Lost { .. } => Failure::usage(format!("{fault}; --key-file names it")),
        other => Failure::runtime(other),
    })
}

fn beside(store: &Path) -> PathBuf {
    let mut path = store.as_os_str().to_owned();
    path.push(".key");
    path.into()
}
