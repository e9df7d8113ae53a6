//! `retrysafe migrate`: the tables of a store in a database.

use clap::Args;
use retrysafe_store::mariadb::{self, MariaOptions, MariaStore};
use retrysafe_store::postgres::{LAYOUT, PostgresOptions, PostgresStore, StoreAddress, migrate, script};

use crate::database::{self, Database};
use crate::failure::Failure;

/// Make or update the tables of a store in PostgreSQL or MariaDB
///
/// Applies what is missing, under a lock, so that it may be run by several machines at once and at every start: on
/// PostgreSQL in one transaction, on MariaDB in statements that can each be run again. On PostgreSQL the schema is `retrysafe`, or the one that ?schema=NAME in the address names.
#[derive(Args, Debug)]
pub(crate) struct MigrateArgs {
    /// The database: postgres://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE, with the rights to make tables
    #[arg(long, env = "RETRYSAFE_STORE", value_name = "URL", value_parser = database::address)]
    store: Database,
    /// Print the SQL of a new store and touch nothing
    #[arg(long)]
    print: bool,
}

pub(crate) fn run(args: &MigrateArgs) -> Result<(), Failure> {
    match &args.store {
        Database::Postgres(address) => postgres(address, args.print),
        Database::Mariadb(options) => mariadb(options, args.print),
    }
}

fn mariadb(options: &MariaOptions, print: bool) -> Result<(), Failure> {
    if print {
        print!("{}", mariadb::script());
        return Ok(());
    }
    database::runtime()?.block_on(async {
        let applied = MariaStore::migrate(options)
            .await
            .map_err(|error| Failure::runtime(format!("{options}: {}", database::chain(&error))))?;
        for migration in &applied {
            println!("{options}: applied {} {}", migration.number, migration.name);
        }
        println!("{options}: the tables have layout {}", mariadb::LAYOUT);
        Ok(())
    })
}

fn postgres(address: &StoreAddress, print: bool) -> Result<(), Failure> {
    if print {
        print!("{}", script(&address.schema));
        return Ok(());
    }
    database::runtime()?.block_on(async {
        let driver = database::driver(address)?;
        let applied = migrate(&driver, &address.schema)
            .await
            .map_err(|error| Failure::runtime(format!("{address}: {}", database::chain(&error))))?;
        for migration in &applied {
            println!("{address}: applied {} {}", migration.number, migration.name);
        }
        println!("{address}: schema \"{}\" has layout {LAYOUT}", address.schema);
        let options = PostgresOptions { schema: address.schema.clone(), ..PostgresOptions::default() };
        let store = PostgresStore::open(driver, options)
            .await
            .map_err(|error| Failure::runtime(format!("{address}: {}", database::chain(&error))))?;
        let tended = store
            .tend_responses()
            .await
            .map_err(|error| Failure::runtime(format!("{address}: {}", database::chain(&error))))?;
        println!("{address}: tables of long answers: {} made, {} dropped", tended.made, tended.dropped);
        Ok(())
    })
}
