//! The effect ledger. See [`crate::sql::effects`].

use std::time::Duration;

use retrysafe_core::{address::Address, ids::AttemptId, time::Wall};

use super::{
    fault::{Does, failed},
    inner::Inner,
};
use crate::{
    ErrorKind, StoreError,
    sql::{
        Driver, Statement, Value,
        effects::{COUNTING, FORGETTING, WRITING, oldest, row, span},
        row::corrupt,
    },
};

impl<D: Driver> Inner<D> {
    /// Writes a row in the transaction that is open on `connection`. Never tried again: after a failure PostgreSQL takes no
    /// more statements of that transaction.
    pub(super) async fn effect(
        &self,
        connection: &mut D::Connection,
        address: &Address,
        attempt: AttemptId,
        step: &str,
    ) -> Result<(), StoreError> {
        let insert = [Statement::new(&self.texts.effect, row(address, attempt, step)?)];
        let Some(ran) = self.in_time(connection, &insert).await else {
            return Err(StoreError::new(ErrorKind::Unavailable, WRITING));
        };
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
        let rows = self.one(statement, COUNTING, Does::Read).await?;
        let count = rows.only(0).and_then(Value::int).ok_or_else(corrupt)?;
        Ok(Some(count.unsigned_abs()))
    }

    pub(super) async fn forget_effects(&self, before: Wall, limit: usize) -> Result<usize, StoreError> {
        let statement = Statement::new(&self.texts.forget_effects, oldest(before, limit));
        let rows = self.one(statement, FORGETTING, Does::Write).await?;
        Ok(usize::try_from(rows.affected).unwrap_or(usize::MAX))
    }
}
