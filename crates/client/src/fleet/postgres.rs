//! A fleet's account in PostgreSQL, by the database's clock.

use std::sync::Arc;

use retrysafe_core::{
    retry::budget::{FleetRule, Lease, Report},
    time::Wall,
};
use sqlx::PgPool;

use super::{FleetFault, FleetFuture, FleetStore, books};

/// An account in a table of a PostgreSQL database.
#[derive(Clone, Debug)]
pub struct PgFleet {
    pool: PgPool,
    name: Arc<str>,
    rule: FleetRule,
}

impl PgFleet {
    /// The account of this name in the database behind this pool; both are made where they are not there.
    ///
    /// # Errors
    /// [`FleetFault`]: the database does not answer.
    pub async fn open(pool: PgPool, name: &str, rule: FleetRule) -> Result<Self, FleetFault> {
        let schema =
            "CREATE TABLE IF NOT EXISTS retrysafe_fleet (name text PRIMARY KEY, books bytea NOT NULL)";
        sqlx::query(schema).execute(&pool).await.map_err(fault)?;
        let row =
            "INSERT INTO retrysafe_fleet (name, books) VALUES ($1, ''::bytea) ON CONFLICT (name) DO NOTHING";
        sqlx::query(row).bind(name).execute(&pool).await.map_err(fault)?;
        Ok(Self { pool, name: name.into(), rule })
    }

    async fn apply(&self, instance: u64, report: &Report) -> Result<Lease, FleetFault> {
        let mut transaction = self.pool.begin().await.map_err(fault)?;
        // The row's lock orders the instances; the clock is read once it is held.
        let select = "SELECT books FROM retrysafe_fleet WHERE name = $1 FOR UPDATE";
        let written: Vec<u8> =
            sqlx::query_scalar(select).bind(&*self.name).fetch_one(&mut *transaction).await.map_err(fault)?;
        let clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
        let now: i64 = sqlx::query_scalar(clock).fetch_one(&mut *transaction).await.map_err(fault)?;
        let written = Some(written.as_slice()).filter(|written| !written.is_empty());
        let (lease, books) = books::exchange(self.rule, written, instance, report, Wall::from_unix_ms(now))?;
        let update = "UPDATE retrysafe_fleet SET books = $2 WHERE name = $1";
        sqlx::query(update).bind(&*self.name).bind(books).execute(&mut *transaction).await.map_err(fault)?;
        transaction.commit().await.map_err(fault)?;
        Ok(lease)
    }
}

impl FleetStore for PgFleet {
    fn rule(&self) -> FleetRule {
        self.rule
    }

    fn exchange<'a>(&'a self, instance: u64, report: &'a Report) -> FleetFuture<'a> {
        Box::pin(self.apply(instance, report))
    }
}

fn fault(error: sqlx::Error) -> FleetFault {
    FleetFault(error.into())
}
