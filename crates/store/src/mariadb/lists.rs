//! Reads of many records.

use retrysafe_core::{address::Address, record::Record, time::Wall};

use super::{
    Shared,
    calls::Again,
    fault::Does,
    texts::{self, COUNT_MAX},
};
use crate::{
    Census, Due, Filter, StoreError,
    sql::{
        Driver, Rows, Statement, Value,
        due::{Page, readable},
        row::{self, Row, state_number},
    },
};

const LISTING: &str = "listing records";

/// How many records are read at once where a filter looks into them.
const PAGE_MIN: usize = 64;

impl<D: Driver> Shared<D> {
    pub(super) async fn due(
        &self,
        due: Due,
        now: Wall,
        limit: usize,
    ) -> Result<Vec<(Address, Record)>, StoreError> {
        readable(limit, async |look| {
            let values = vec![state_number(due.state()).into(), now.unix_ms().into(), count(look)];
            let statement = Statement::new(&self.texts.due, values);
            let rows = self.ask(statement, LISTING, Does::Read, Again::Safe).await?;
            Ok(Page { rows: rows.rows.len(), found: self.records(rows).await })
        })
        .await
    }

    /// Deletes up to `limit` completed records that may be reaped at `now`. Those that somebody is changing are left for the
    /// next time (T5).
    pub(super) async fn reap(&self, now: Wall, limit: usize) -> Result<usize, StoreError> {
        let statement = Statement::new(&self.texts.reap, vec![now.unix_ms().into(), count(limit)]);
        let rows = self.ask(statement, "reaping records", Does::Write, Again::Unsafe).await?;
        Ok(usize::try_from(rows.affected).unwrap_or(usize::MAX))
    }

    pub(super) async fn list(
        &self,
        filter: &Filter,
        cursor: Option<&Address>,
        limit: usize,
    ) -> Result<Vec<(Address, Record)>, StoreError> {
        let mut found = Vec::new();
        let mut cursor = cursor.cloned();
        // The endpoint is inside the record: pages are read until enough match.
        let page = if filter.endpoint.is_some() { limit.max(PAGE_MIN) } else { limit };
        while found.len() < limit {
            let rows = self.page(filter, cursor.as_ref(), page).await?;
            let last = rows.rows.len() < page;
            let Some(end) = rows.rows.last() else { break };
            cursor = Some(address_of(end)?);
            let records: Vec<_> = self.records(rows).await.into_iter().collect::<Result<_, _>>()?;
            found.extend(records.into_iter().filter(|(_, record)| filter.allows_record(record)));
            if last {
                break;
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    async fn page(
        &self,
        filter: &Filter,
        cursor: Option<&Address>,
        limit: usize,
    ) -> Result<Rows, StoreError> {
        let mut columns = Vec::new();
        let mut values = Vec::new();
        if let Some(namespace) = &filter.namespace {
            columns.push("namespace");
            values.push(Value::bytes(namespace.as_str().as_bytes()));
        }
        if let Some(account) = &filter.account {
            columns.push("account");
            values.push(Value::bytes(account.as_str().as_bytes()));
        }
        if let Some(state) = filter.state {
            columns.push("state");
            values.push(state_number(state).into());
        }
        if let Some(cursor) = cursor {
            let [namespace, account, key] = row::address_values(cursor);
            values.extend([namespace.clone(), namespace.clone(), account.clone(), namespace, account, key]);
        }
        values.push(count(limit));
        let statement = Statement::new(&texts::list(&columns, cursor.is_some()), values);
        self.ask(statement, LISTING, Does::Read, Again::Safe).await
    }

    /// The records of rows that begin with an address. Those that are gone meanwhile are left out.
    async fn records(&self, rows: Rows) -> Vec<Result<(Address, Record), StoreError>> {
        let mut records = Vec::with_capacity(rows.rows.len());
        for columns in &rows.rows {
            records.extend(self.found(columns).await.transpose());
        }
        records
    }

    async fn found(&self, columns: &[Value]) -> Result<Option<(Address, Record)>, StoreError> {
        let address = address_of(columns)?;
        let found = columns.get(3..).and_then(Row::of).ok_or_else(row::corrupt)?;
        Ok(self.whole(found).await?.map(|record| (address, record)))
    }

    pub(super) async fn census(&self) -> Result<Census, StoreError> {
        let statement = Statement::plain(&self.texts.census);
        let rows = self.ask(statement, LISTING, Does::Read, Again::Safe).await?;
        let number = |at| {
            let number = rows.only(at).and_then(Value::int).ok_or_else(row::corrupt)?;
            Ok::<_, StoreError>(u64::try_from(number).unwrap_or(0))
        };
        let mut census = Census { in_flight: number(0)?, uncertain: number(1)?, completed: number(2)? };
        if census.completed >= COUNT_MAX.unsigned_abs() {
            let statement = Statement::plain(&self.texts.estimate);
            let rows = self.ask(statement, LISTING, Does::Read, Again::Safe).await?;
            let all = rows.only(0).and_then(Value::int).and_then(|all| u64::try_from(all).ok()).unwrap_or(0);
            census.completed = census.completed.max(all.saturating_sub(census.in_flight + census.uncertain));
        }
        Ok(census)
    }
}

fn count(limit: usize) -> Value {
    Value::Int(i64::try_from(limit).unwrap_or(i64::MAX))
}

/// The address in the first three columns.
pub(super) fn address_of(columns: &[Value]) -> Result<Address, StoreError> {
    let [namespace, account, key, ..] = columns else { return Err(row::corrupt()) };
    row::address_of(namespace, account, key).ok_or_else(row::corrupt)
}
