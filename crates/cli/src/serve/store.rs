//! Which store, and the secret that goes with it.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use retrysafe_core::fingerprint::FingerprintKeys;
use retrysafe_server::{KeyFileFault, fingerprint_keys_in};
use retrysafe_store::Store;
use retrysafe_store::memory::MemoryStore;
use retrysafe_store::sqlite::{SqliteOptions, SqliteStore};

use crate::failure::Failure;

/// Where claims live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Memory,
    File(PathBuf),
}

impl FromStr for Place {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "memory" => Self::Memory,
            path => Self::File(path.into()),
        })
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory => f.write_str("memory; forgotten when this process ends"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// An open store.
pub(crate) enum Opened {
    Memory(Arc<MemoryStore>),
    Sqlite(Arc<SqliteStore>, FingerprintKeys),
}

impl Opened {
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => Arc::clone(store) as _,
            Self::Sqlite(store, _) => Arc::clone(store) as _,
        }
    }

    /// The fingerprint secret that outlives the process as the store does.
    pub(crate) fn keys(&self) -> Option<FingerprintKeys> {
        match self {
            Self::Memory(_) => None,
            Self::Sqlite(_, keys) => Some(keys.clone()),
        }
    }

    /// Writes everything down and lets the file go.
    pub(crate) fn close(&self) {
        if let Self::Sqlite(store, _) = self {
            store.close();
        }
    }
}

pub(crate) fn open(place: &Place, key_file: Option<&Path>) -> Result<Opened, Failure> {
    let path = match place {
        Place::Memory => return Ok(Opened::Memory(Arc::new(MemoryStore::new(Default::default())))),
        Place::File(path) => path,
    };
    let key_file = key_file.map_or_else(|| beside(path), Path::to_owned);
    // The secret first: a store without its secret could compare nothing, and takes every retry for another request.
    let keys = fingerprint_keys_in(&key_file, path).map_err(|fault| match fault {
        KeyFileFault::Lost { .. } => Failure::usage(format!("{fault}; --key-file names it")),
        other => Failure::runtime(other),
    })?;
    let store = SqliteStore::open(SqliteOptions::new(path))
        .map_err(|error| Failure::runtime(format!("the store cannot be opened: {error}")))?;
    Ok(Opened::Sqlite(Arc::new(store), keys))
}

fn beside(store: &Path) -> PathBuf {
    let mut path = store.as_os_str().to_owned();
    path.push(".key");
    path.into()
}
