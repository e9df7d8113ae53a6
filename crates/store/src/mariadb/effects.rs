//! The effect ledger. See [`crate::sql::effects`].

use std::time::Duration;

use retrysafe_core::{address::Address, ids::AttemptId, time::Wall};

use super::{
    Shared,
    calls::Again,
    fault::{Does, failed},
};
use crate::{
    StoreError,
    sql::{
        Driver, Statement, Value,
        effects::{COUNTING, FORGETTING, WRITING, oldest, row, span},
        row::corrupt,
    },
};

impl<D: Driver> Shared<D> {
    /// Writes a row in the transaction that is open on `connection`. Never tried again: after a deadlock that transaction is
    /// gone, which its end will find (protocol 17).
    pub(super) async fn effect(
        &self,
        connection: &mut D::Connection,
        address: &Address,
        attempt: AttemptId,
        step: &str,
    ) -> Result<(), StoreError> {
        let insert = Statement::new(&self.texts.effect, row(address, attempt, step)?);
        let ran = self.in_time(connection, &insert).await;
        // Not committed yet, so nothing is unknown.
        ran.all().map(drop).map_err(|failure| failed(failure, WRITING, Does::Read))
    }

    pub(super) async fn duplicate_effects(
        &self,
        from: Wall,
        to: Wall,
        within: Duration,
    ) -> Result<Option<u64>, StoreError> {
        let statement = Statement::new(&self.texts.duplicate_effects, span(from, to, within));
        let rows = self.ask(statement, COUNTING, Does::Read, Again::Safe).await?;
        let count = rows.only(0).and_then(Value::int).ok_or_else(corrupt)?;
        Ok(Some(count.unsigned_abs()))
    }

    pub(super) async fn forget_effects(&self, before: Wall, limit: usize) -> Result<usize, StoreError> {
        let statement = Statement::new(&self.texts.forget_effects, oldest(before, limit));
        // Sent again after a lost answer it would delete more than was asked for, and report less.
        let rows = self.ask(statement, FORGETTING, Does::Write, Again::Unsafe).await?;
        Ok(usize::try_from(rows.affected).unwrap_or(usize::MAX))
    }
}
