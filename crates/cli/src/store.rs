//! `retrysafe store`: the two things that only a person may say to a store.

use clap::{Args, Subcommand};
use retrysafe_store::StoreError;

use crate::database::{self, Database};
use crate::failure::Failure;
use crate::place::{Place, existing};

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

pub(crate) fn run(args: &StoreArgs) -> Result<(), Failure> {
    database::runtime()?.block_on(async {
        match &args.word {
            Word::AcceptClock(which) => {
                accept_clock(&which.store).await?;
                println!("{}: the clock is taken as it is", which.store);
            }
            Word::Restored(which) => {
                let epoch = restored(&which.store).await?;
                println!("{}: fences are of epoch {epoch} from here on", which.store);
            }
        }
        Ok(())
    })
}

async fn accept_clock(place: &Place) -> Result<(), Failure> {
    let accepted = match place {
        Place::File(path) => existing(path)?.acknowledge_clock_jump().await,
        Place::Database(Database::Postgres(address)) => {
            database::open(address).await?.acknowledge_clock_jump().await
        }
        Place::Database(Database::Mariadb(options)) => {
            database::open_mariadb(options).await?.acknowledge_clock_jump().await
        }
    };
    accepted.map_err(|error| refused(&error))
}

async fn restored(place: &Place) -> Result<u16, Failure> {
    let epoch = match place {
        Place::File(path) => existing(path)?.bump_epoch().await,
        Place::Database(Database::Postgres(address)) => database::open(address).await?.bump_epoch().await,
        Place::Database(Database::Mariadb(options)) => {
            database::open_mariadb(options).await?.bump_epoch().await
        }
    };
    epoch.map_err(|error| refused(&error))
}

fn refused(error: &StoreError) -> Failure {
    Failure::runtime(format!("the store refused: {}", database::chain(error)))
}
