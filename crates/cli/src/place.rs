//! Where a store is that is there already, and opening it whatever it is.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use retrysafe_store::Store;
use retrysafe_store::sqlite::{SqliteOptions, SqliteStore};

use crate::database::{self, Database};
use crate::failure::Failure;

/// The store that a subcommand works on: a file, or the URL of a database.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    File(PathBuf),
    Database(Database),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match database::looks_like(text) {
            true => Self::Database(database::address(text)?),
            false => Self::File(text.into()),
        })
    }
}

/// Without a password.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Database(address) => write!(f, "{address}"),
        }
    }
}

impl Place {
    /// Opens it. Needs a runtime.
    pub(crate) async fn open(&self) -> Result<Arc<dyn Store>, Failure> {
        Ok(match self {
            Self::File(path) => Arc::new(existing(path)?),
            Self::Database(Database::Postgres(address)) => Arc::new(database::open(address).await?),
            Self::Database(Database::Mariadb(options)) => Arc::new(database::open_mariadb(options).await?),
        })
    }
}

/// Opens a file that is there: a mistyped name must not make a new one and report success.
pub(crate) fn existing(path: &Path) -> Result<SqliteStore, Failure> {
    if !path.exists() {
        return Err(Failure::usage(format!("there is no store at {}; name it with --store", path.display())));
    }
    SqliteStore::open(SqliteOptions::new(path))
        .map_err(|error| Failure::runtime(format!("the store cannot be opened: {error}")))
}
