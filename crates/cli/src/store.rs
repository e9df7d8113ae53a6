//! `retrysafe store`: the two things that only a person may say to a store.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, Subcommand};
use retrysafe_store::StoreError;
use retrysafe_store::sqlite::{SqliteOptions, SqliteStore};

use crate::database::{self, Database};
use crate::failure::Failure;

/// Tell a store what only a person can know
#[derive(Args, Debug)]
pub(crate) struct StoreArgs {
    #[command(subcommand)]
    word: Word,
}

#[derive(Subcommand, Debug)]
enum Word {
    /// The clock is right although it jumped: open the store again
    ///
    /// A store closes when the clock is further ahead than the bound, because a clock that is wrong by a day would expire
    /// every key, and late retries would run a second time. Look at the machine's clock first (the database's, for a store
    /// in a database): if it is wrong, set it instead. Said once, it holds for every process on the store.
    AcceptClock(Which),
    /// The store was restored from a backup, or a replica took over: begin a new epoch of fences
    ///
    /// Fences that were issued after the backup would otherwise be issued a second time. Say it once, before any process
    /// uses the restored store.
    Restored(Which),
}

#[derive(Args, Debug)]
struct Which {
    /// The store: a SQLite file, or the URL of a database
    #[arg(long, env = "RETRYSAFE_STORE", default_value = "retrysafe.db", value_name = "FILE|URL")]
    store: Place,
}

#[derive(Clone, Debug)]
enum Place {
    File(PathBuf),
    Database(String),
}

impl FromStr for Place {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match database::looks_like(text) {
            true => Self::Database(text.to_owned()),
            false => Self::File(text.into()),
        })
    }
}

pub(crate) fn run(args: &StoreArgs) -> Result<(), Failure> {
    database::runtime()?.block_on(async {
        match &args.word {
            Word::AcceptClock(which) => {
                let name = accept_clock(&which.store).await?;
                println!("{name}: the clock is taken as it is");
            }
            Word::Restored(which) => {
                let (name, epoch) = restored(&which.store).await?;
                println!("{name}: fences are of epoch {epoch} from here on");
            }
        }
        Ok(())
    })
}

async fn accept_clock(place: &Place) -> Result<String, Failure> {
    match place {
        Place::File(path) => open(path)?.acknowledge_clock_jump().await.map_err(|error| refused(&error))?,
        Place::Database(text) => {
            let address = database::address(text).map_err(Failure::usage)?;
            let accepted = match &address {
                Database::Postgres(address) => database::open(address).await?.acknowledge_clock_jump().await,
                Database::Mariadb(options) => {
                    database::open_mariadb(options).await?.acknowledge_clock_jump().await
                }
            };
            accepted.map_err(|error| refused(&error))?;
            return Ok(address.to_string());
        }
    }
    Ok(place.name())
}

async fn restored(place: &Place) -> Result<(String, u16), Failure> {
    match place {
        Place::File(path) => {
            let epoch = open(path)?.bump_epoch().await.map_err(|error| refused(&error))?;
            Ok((place.name(), epoch))
        }
        Place::Database(text) => {
            let address = database::address(text).map_err(Failure::usage)?;
            let epoch = match &address {
                Database::Postgres(address) => database::open(address).await?.bump_epoch().await,
                Database::Mariadb(options) => database::open_mariadb(options).await?.bump_epoch().await,
            };
            let epoch = epoch.map_err(|error| refused(&error))?;
            Ok((address.to_string(), epoch))
        }
    }
}

impl Place {
    /// For messages; of a database the parsed address is shown instead, which has no password.
    fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Database(_) => "the database".to_owned(),
        }
    }
}

/// Opens a store that is there: a mistyped name must not make a new one and report success.
fn open(path: &Path) -> Result<SqliteStore, Failure> {
    if !path.exists() {
        return Err(Failure::usage(format!("there is no store at {}; name it with --store", path.display())));
    }
    SqliteStore::open(SqliteOptions::new(path))
        .map_err(|error| Failure::runtime(format!("the store cannot be opened: {error}")))
}

fn refused(error: &StoreError) -> Failure {
    Failure::runtime(format!("the store refused: {}", database::chain(error)))
}
