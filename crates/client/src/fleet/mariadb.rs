//! A fleet's account in MariaDB, by the database's clock.

use std::sync::Arc;

use mysql_async::{Pool, TxOpts, prelude::Queryable};
use retrysafe_core::{
    retry::budget::{FleetRule, Lease, Report},
    time::Wall,
};

use super::{FleetFault, FleetFuture, FleetStore, books};

/// An account in a table of a MariaDB database.
#[derive(Clone, Debug)]
pub struct MariaFleet {
    pool: Pool,
    name: Arc<str>,
    rule: FleetRule,
}

impl MariaFleet {
    /// The account of this name in the database behind this pool; both are made where they are not there.
    ///
    /// # Errors
    /// [`FleetFault`]: the database does not answer.
    pub async fn open(pool: Pool, name: &str, rule: FleetRule) -> Result<Self, FleetFault> {
        // InnoDB by name: another default engine would have neither the lock nor the rollback.
        let schema = "CREATE TABLE IF NOT EXISTS retrysafe_fleet (\
            name varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY, books longblob NOT NULL) \
            ENGINE = InnoDB";
        let row = "INSERT IGNORE INTO retrysafe_fleet (name, books) VALUES (?, '')";
        let mut connection = pool.get_conn().await.map_err(fault)?;
        connection.query_drop(schema).await.map_err(fault)?;
        connection.exec_drop(row, (name,)).await.map_err(fault)?;
        drop(connection);
        Ok(Self { pool, name: name.into(), rule })
    }

    async fn apply(&self, instance: u64, report: &Report) -> Result<Lease, FleetFault> {
        // Dropped before its commit it is rolled back, and the same report may be sent again.
        let mut transaction = self.pool.start_transaction(TxOpts::default()).await.map_err(fault)?;
        // The row's lock orders the instances; the clock is read once it is held, and in UTC, which has no hour twice.
        let select = "SELECT books FROM retrysafe_fleet WHERE name = ? FOR UPDATE";
        let written: Option<Vec<u8>> = transaction.exec_first(select, (&*self.name,)).await.map_err(fault)?;
        let clock = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000";
        let now: Option<i64> = transaction.query_first(clock).await.map_err(fault)?;
        let (Some(written), Some(now)) = (written, now) else {
            return Err(FleetFault("its row is gone; open the account again".into()));
        };
        let written = Some(written.as_slice()).filter(|written| !written.is_empty());
        let (lease, books) = books::exchange(self.rule, written, instance, report, Wall::from_unix_ms(now))?;
        let update = "UPDATE retrysafe_fleet SET books = ? WHERE name = ?";
        transaction.exec_drop(update, (books, &*self.name)).await.map_err(fault)?;
        transaction.commit().await.map_err(fault)?;
        Ok(lease)
    }
}

impl FleetStore for MariaFleet {
    fn rule(&self) -> FleetRule {
        self.rule
    }

    fn exchange<'a>(&'a self, instance: u64, report: &'a Report) -> FleetFuture<'a> {
        Box::pin(self.apply(instance, report))
    }
}

fn fault(error: mysql_async::Error) -> FleetFault {
    FleetFault(error.into())
}
