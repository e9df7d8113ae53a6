//! `retrysafe store`: the two things that only a person may say to a store.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use retrysafe_store::StoreError;
use retrysafe_store::sqlite::{SqliteOptions, SqliteStore};

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
    /// every key, and late retries would run a second time. Look at the machine's clock first: if it is wrong, set it
    /// instead. Said once, it holds for every process on the file.
    AcceptClock(Which),
    /// The store was restored from a backup: begin a new epoch of fences
    ///
    /// Fences that were issued after the backup would otherwise be issued a second time. Say it once, before any process
    /// uses the restored file.
    Restored(Which),
}

#[derive(Args, Debug)]
struct Which {
    /// The store's file
    #[arg(long, default_value = "retrysafe.db", value_name = "FILE")]
    store: PathBuf,
}

pub(crate) fn run(args: &StoreArgs) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::runtime)?;
    match &args.word {
        Word::AcceptClock(which) => {
            let store = open(&which.store)?;
            runtime.block_on(store.acknowledge_clock_jump()).map_err(|error| refused(&error))?;
            println!("{}: the clock is taken as it is", which.store.display());
        }
        Word::Restored(which) => {
            let store = open(&which.store)?;
            let epoch = runtime.block_on(store.bump_epoch()).map_err(|error| refused(&error))?;
            println!("{}: fences are of epoch {epoch} from here on", which.store.display());
        }
    }
    Ok(())
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
    Failure::runtime(format!("the store refused: {error}"))
}
