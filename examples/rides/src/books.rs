//! The rows of rides, on each database: the local steps of the plan.

use anyhow::Result;
use mysql_async::prelude::Queryable;
use retrysafe::{
    Journal, Reply, SqliteStore,
    mariadb::MariaStore,
    postgres::{PostgresStore, TokioPostgres},
    recovery::{Halt, Phase, Steps},
};

use crate::{NewRide, Ride};

/// A database that rides are kept in.
pub trait Books: Journal + Sized {
    /// Makes the table, if it is not there.
    fn define(&self) -> impl Future<Output = Result<()>> + Send;

    /// The step `create`: a row, and its number.
    fn create(
        steps: &mut Steps<Self>,
        rider: &str,
        new: &NewRide,
    ) -> impl Future<Output = Result<i64, Halt>> + Send;

    /// The step `confirm`: the row, the mail to be sent and the answer, in one commit.
    fn confirm(steps: &mut Steps<Self>, ride: Ride) -> impl Future<Output = Result<Reply, Halt>> + Send;

    /// The same, where the card was declined.
    fn decline(steps: &mut Steps<Self>, id: i64) -> impl Future<Output = Result<Reply, Halt>> + Send;
}

fn declined(id: i64) -> Reply {
    Reply::json(402, &serde_json::json!({ "ride": id, "detail": "the card was declined" }))
}

impl Books for SqliteStore {
    async fn define(&self) -> Result<()> {
        let table = "CREATE TABLE IF NOT EXISTS ride (
            id INTEGER PRIMARY KEY, rider TEXT NOT NULL, \"to\" TEXT NOT NULL, cents INTEGER NOT NULL, receipt TEXT
        ) STRICT";
        Ok(SqliteStore::define(self, table).await?)
    }

    async fn create(steps: &mut Steps<Self>, rider: &str, new: &NewRide) -> Result<i64, Halt> {
        let (rider, new) = (rider.to_owned(), new.clone());
        steps
            .phase_sync("create", move |tx| {
                tx.execute(
                    "INSERT INTO ride (rider, \"to\", cents) VALUES (?1, ?2, ?3)",
                    (rider, new.to, new.cents),
                )?;
                // Before anything else is written: what the ledger of effects writes has a number, too.
                let id = tx.last_insert_rowid();
                // For the watcher that looks for what happened twice.
                tx.effect("create")?;
                Ok(Phase::Point(id))
            })
            .await
    }

    async fn confirm(steps: &mut Steps<Self>, ride: Ride) -> Result<Reply, Halt> {
        steps
            .answer_sync("confirm", move |tx| {
                tx.execute("UPDATE ride SET receipt = ?2 WHERE id = ?1", (ride.id, &ride.receipt))?;
                tx.effect("confirm")?;
                tx.stage("receipt", &ride)?;
                Ok(Reply::json(201, &ride))
            })
            .await
    }

    async fn decline(steps: &mut Steps<Self>, id: i64) -> Result<Reply, Halt> {
        steps
            .answer_sync("confirm", move |tx| {
                tx.execute("DELETE FROM ride WHERE id = ?1", [id])?;
                Ok(declined(id))
            })
            .await
    }
}

impl Books for PostgresStore<TokioPostgres> {
    async fn define(&self) -> Result<()> {
        // Made by whoever deploys; see the README.
        Ok(())
    }

    async fn create(steps: &mut Steps<Self>, rider: &str, new: &NewRide) -> Result<i64, Halt> {
        steps
            .phase("create", |mut tx| async move {
                let insert = "INSERT INTO ride (rider, destination, cents) VALUES ($1, $2, $3) RETURNING id";
                let row = tx.db().query_one(insert, &[&rider, &new.to, &i64::from(new.cents)]).await?;
                tx.effect("create").await?;
                Ok(Phase::Point(row.get::<_, i64>(0)))
            })
            .await
    }

    async fn confirm(steps: &mut Steps<Self>, ride: Ride) -> Result<Reply, Halt> {
        steps
            .answer("confirm", |mut tx| async move {
                tx.db()
                    .execute("UPDATE ride SET receipt = $2 WHERE id = $1", &[&ride.id, &ride.receipt])
                    .await?;
                tx.effect("confirm").await?;
                tx.stage("receipt", &ride)?;
                Ok(Reply::json(201, &ride))
            })
            .await
    }

    async fn decline(steps: &mut Steps<Self>, id: i64) -> Result<Reply, Halt> {
        steps
            .answer("confirm", |mut tx| async move {
                tx.db().execute("DELETE FROM ride WHERE id = $1", &[&id]).await?;
                Ok(declined(id))
            })
            .await
    }
}

/// What has to be there before the service runs on PostgreSQL.
pub const POSTGRES_TABLE: &str = "CREATE TABLE IF NOT EXISTS ride (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    rider text NOT NULL,
    destination text NOT NULL,
    cents bigint NOT NULL,
    receipt text
)";

impl Books for MariaStore {
    async fn define(&self) -> Result<()> {
        // As on PostgreSQL.
        Ok(())
    }

    async fn create(steps: &mut Steps<Self>, rider: &str, new: &NewRide) -> Result<i64, Halt> {
        steps
            .phase("create", |mut tx| async move {
                let insert = "INSERT INTO ride (rider, destination, cents) VALUES (?, ?, ?)";
                tx.db().exec_drop(insert, (rider, &new.to, new.cents)).await?;
                // Before another statement has a number of its own.
                let id = tx.db().last_insert_id().ok_or("the ride has no number")?;
                tx.effect("create").await?;
                Ok(Phase::Point(i64::try_from(id)?))
            })
            .await
    }

    async fn confirm(steps: &mut Steps<Self>, ride: Ride) -> Result<Reply, Halt> {
        steps
            .answer("confirm", |mut tx| async move {
                let update = "UPDATE ride SET receipt = ? WHERE id = ?";
                tx.db().exec_drop(update, (&ride.receipt, ride.id)).await?;
                tx.effect("confirm").await?;
                tx.stage("receipt", &ride)?;
                Ok(Reply::json(201, &ride))
            })
            .await
    }

    async fn decline(steps: &mut Steps<Self>, id: i64) -> Result<Reply, Halt> {
        steps
            .answer("confirm", |mut tx| async move {
                tx.db().exec_drop("DELETE FROM ride WHERE id = ?", (id,)).await?;
                Ok(declined(id))
            })
            .await
    }
}

/// What has to be there before the service runs on MariaDB: of an engine that knows transactions.
pub const MARIADB_TABLE: &str = "CREATE TABLE IF NOT EXISTS ride (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    rider VARCHAR(255) NOT NULL,
    destination VARCHAR(255) NOT NULL,
    cents BIGINT NOT NULL,
    receipt VARCHAR(255)
) ENGINE = InnoDB";
