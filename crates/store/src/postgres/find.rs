//! Finding records other than by address.

use retrysafe_core::{
    address::{Account, Address, Namespace},
    ids::StatusId,
    record::{Record, ResourceId},
    time::Wall,
};

use super::{fault::Does, inner::Inner};
use crate::{
    Census, Due, Filter, StoreError,
    sql::{
        Driver, Statement, Value,
        due::{Page, readable},
        row::{Row, address_of, address_values, corrupt, state_number},
    },
};

/// Rows that are looked at in one go for a page of a list: a filter by endpoint is applied here, since the endpoint is
/// in the record.
const STRIDE: usize = 256;

/// Completed records are counted one by one up to here; beyond, the number is the one the last vacuum left.
const COUNTED_MAX: i64 = 10_000;

impl<D: Driver> Inner<D> {
    pub(super) async fn due(
        &self,
        due: Due,
        now: Wall,
        limit: usize,
    ) -> Result<Vec<(Address, Record)>, StoreError> {
        readable(limit, async |look| {
            let values = vec![state_number(due.state()).into(), now.unix_ms().into(), bounded(look).into()];
            self.page(Statement::new(&self.texts.due, values), "looking for what is due").await
        })
        .await
    }

    pub(super) async fn reap(&self, now: Wall, limit: usize) -> Result<usize, StoreError> {
        let values = vec![now.unix_ms().into(), bounded(limit).into()];
        let rows = self.one(Statement::new(&self.texts.reap, values), "reaping records", Does::Write).await?;
        Ok(usize::try_from(rows.affected).unwrap_or(usize::MAX))
    }

    pub(super) async fn locate(
        &self,
        namespace: &Namespace,
        status: StatusId,
    ) -> Result<Option<Address>, StoreError> {
        let values =
            vec![Value::bytes(&status.as_u128().to_be_bytes()), Value::bytes(namespace.as_str().as_bytes())];
        let rows =
            self.one(Statement::new(&self.texts.locate, values), "locating a status id", Does::Read).await?;
        let Some([account, key]) = rows.rows.first().map(Vec::as_slice) else { return Ok(None) };
        let namespace = Value::bytes(namespace.as_str().as_bytes());
        address(&namespace, account, key).map(Some)
    }

    pub(super) async fn end_resource(
        &self,
        namespace: &Namespace,
        account: &Account,
        resource: &ResourceId,
        expires_at: Wall,
    ) -> Result<usize, StoreError> {
        let values = vec![
            Value::bytes(namespace.as_str().as_bytes()),
            Value::bytes(account.as_str().as_bytes()),
            Value::bytes(resource.0.as_bytes()),
            expires_at.unix_ms().into(),
        ];
        let statement = Statement::new(&self.texts.end_resource, values);
        let rows = self.one(statement, "ending a resource's windows", Does::Write).await?;
        Ok(usize::try_from(rows.affected).unwrap_or(usize::MAX))
    }

    pub(super) async fn list(
        &self,
        filter: &Filter,
        cursor: Option<&Address>,
        limit: usize,
    ) -> Result<Vec<(Address, Record)>, StoreError> {
        let stride = if filter.endpoint.is_some() { limit.max(STRIDE) } else { limit };
        let bytes = |text: &str| Value::bytes(text.as_bytes());
        let mut cursor = cursor.cloned();
        let mut found = Vec::new();
        loop {
            let mut values = match &cursor {
                Some(cursor) => Vec::from(address_values(cursor)),
                None => vec![Value::Null, Value::Null, Value::Null],
            };
            values.push(filter.namespace.as_ref().map(|namespace| bytes(namespace.as_str())).into());
            values.push(filter.account.as_ref().map(|account| bytes(account.as_str())).into());
            values.push(filter.state.map(state_number).into());
            values.push(bounded(stride).into());
            let page = self.records(Statement::new(&self.texts.list, values), "listing records").await?;
            let more = page.len() == stride;
            cursor = page.last().map(|(address, _)| address.clone());
            found.extend(page.into_iter().filter(|(_, record)| filter.allows_record(record)));
            if found.len() >= limit || !more {
                found.truncate(limit);
                return Ok(found);
            }
        }
    }

    pub(super) async fn census(&self) -> Result<Census, StoreError> {
        let statement = Statement::new(&self.texts.census, vec![COUNTED_MAX.into()]);
        let rows = self.one(statement, "counting records", Does::Read).await?;
        let count = |at| rows.only(at).and_then(Value::int).ok_or_else(corrupt);
        let (in_flight, uncertain, counted, all) = (count(0)?, count(1)?, count(2)?, count(3)?);
        let completed =
            if counted < COUNTED_MAX { counted } else { (all - in_flight - uncertain).max(counted) };
        Ok(Census {
            in_flight: in_flight.cast_unsigned(),
            uncertain: uncertain.cast_unsigned(),
            completed: completed.cast_unsigned(),
        })
    }

    async fn records(
        &self,
        statement: Statement,
        doing: &'static str,
    ) -> Result<Vec<(Address, Record)>, StoreError> {
        self.page(statement, doing).await?.found.into_iter().collect()
    }

    /// Rows of an address and a record.
    async fn page(&self, statement: Statement, doing: &'static str) -> Result<Page, StoreError> {
        let rows = self.one(statement, doing, Does::Read).await?;
        let mut found = Vec::with_capacity(rows.rows.len());
        for columns in &rows.rows {
            found.push(self.found(columns).await);
        }
        Ok(Page { rows: rows.rows.len(), found })
    }

    async fn found(&self, columns: &[Value]) -> Result<(Address, Record), StoreError> {
        let [namespace, account, key, rest @ ..] = columns else { return Err(corrupt()) };
        let row = Row::of(rest).ok_or_else(corrupt)?;
        Ok((address(namespace, account, key)?, self.whole(row).await?))
    }
}

fn bounded(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn address(namespace: &Value, account: &Value, key: &Value) -> Result<Address, StoreError> {
    address_of(namespace, account, key).ok_or_else(corrupt)
}
