//! Journals and staged effects. See [`crate::sql::journal`].

use std::{sync::Arc, time::Duration};

use retrysafe_core::{address::Address, ids::StatusId, record::Write, recovery::Entry, time::Wall};

use super::{
    PostgresStore, Schema,
    fault::{Does, failed},
    inner::Inner,
};
use crate::{
    ErrorKind, StoreError, StoreFuture, Written,
    journal::{COUNTING, Journal, LoggedAct, Notes, Replays, Sent, Staged, StagedCensus, StagedEffect},
    sql::{
        Driver, Statement, Value,
        journal::{
            FORGETTING, LOG, READING, STAGING, WRITING, act, acts, census, counted, effects, end, entries,
            journal, note_if, operation, replays, standing, taken,
        },
        row::address_values,
    },
};

/// The statements of this file.
pub(super) struct Texts {
    append: Arc<str>,
    stage: Arc<str>,
    read: Arc<str>,
    take: Arc<str>,
    end: Arc<str>,
    census: Arc<str>,
    forget: Arc<str>,
    log: Arc<str>,
    acts: Arc<str>,
    acts_of: Arc<str>,
    staged_of: Arc<str>,
    add_replays: Arc<str>,
    replays: Arc<str>,
}

impl Texts {
    pub(super) fn new(schema: &Schema) -> Self {
        let s = format!("\"{schema}\"");
        Self {
            log: format!(
                "INSERT INTO {s}.act (at_ms, operation, namespace, account, key, act, who, why, evidence) \
                 VALUES ($1::bigint, $2::bytea, $3::bytea, $4::bytea, $5::bytea, convert_from($6::bytea, 'UTF8'), \
                   convert_from($7::bytea, 'UTF8'), convert_from($8::bytea, 'UTF8'), convert_from($9::bytea, 'UTF8'))"
            )
            .into(),
            acts: acts_text(&s, "").into(),
            acts_of: acts_text(&s, "namespace = $3::bytea AND account = $4::bytea AND key = $5::bytea AND ")
                .into(),
            append: format!(
                "INSERT INTO {s}.journal (operation, seq, at_ms, namespace, account, key, data) \
                 VALUES ($1::bytea, $2::bigint, $3::bigint, $4::bytea, $5::bytea, $6::bytea, $7::bytea)"
            )
            .into(),
            stage: format!(
                "INSERT INTO {s}.staged (operation, name, key, payload, state, due_ms, tries, staged_ms) \
                 VALUES ($1::bytea, $2::bytea, $3::bytea, $4::bytea, 0, $5::bigint, 0, $6::bigint)"
            )
            .into(),
            read: format!(
                "SELECT seq, at_ms, data FROM {s}.journal WHERE operation = $1::bytea ORDER BY seq"
            )
            .into(),
            // What somebody else is taking is left to them, so that many drainers share the work.
            take: format!(
                "UPDATE {s}.staged SET due_ms = $2::bigint, tries = tries + 1 WHERE ctid = ANY (ARRAY(\
                   SELECT ctid FROM {s}.staged WHERE state = 0 AND due_ms <= $1::bigint \
                   ORDER BY due_ms LIMIT $3::bigint FOR UPDATE SKIP LOCKED)) AND state = 0 AND due_ms <= $1::bigint \
                 RETURNING operation, name, key, payload, tries"
            )
            .into(),
            end: format!(
                "UPDATE {s}.staged SET state = $4::bigint, due_ms = $5::bigint, failure = $6::bytea, \
                   ended_ms = $7::bigint \
                 WHERE operation = $1::bytea AND name = $2::bytea AND tries = $3::bigint AND state = 0"
            )
            .into(),
            census: format!(
                "SELECT (SELECT count(*) FROM {s}.staged WHERE state = 0), \
                        (SELECT count(*) FROM {s}.staged WHERE state = 2)"
            )
            .into(),
            forget: format!(
                "WITH gone AS (SELECT operation FROM {s}.journal AS j WHERE seq = 0 AND at_ms < $1::bigint \
                   AND NOT EXISTS (SELECT FROM {s}.key AS k WHERE k.namespace = j.namespace \
                     AND k.account = j.account AND k.key = j.key AND k.status = j.operation) \
                   AND NOT EXISTS (SELECT FROM {s}.staged AS s WHERE s.operation = j.operation AND s.state = 0) \
                   LIMIT $2::bigint FOR UPDATE SKIP LOCKED), \
                 counts AS (DELETE FROM {s}.replays USING gone WHERE replays.operation = gone.operation), \
                 effects AS (DELETE FROM {s}.staged USING gone WHERE staged.operation = gone.operation), \
                 entries AS (DELETE FROM {s}.journal USING gone WHERE journal.operation = gone.operation) \
                 SELECT count(*) FROM gone"
            )
            .into(),
            staged_of: format!(
                "SELECT name, state, due_ms, tries, staged_ms, ended_ms, failure FROM {s}.staged \
                 WHERE operation = $1::bytea ORDER BY name LIMIT $2::bigint"
            )
            .into(),
            // In one order, so that two processes that add to the same rows wait for each other and do not deadlock.
            add_replays: format!(
                "INSERT INTO {s}.replays AS r (operation, times, first_ms, last_ms) \
                 SELECT decode(t.o, 'hex'), t.n, t.f, t.l \
                   FROM jsonb_to_recordset(convert_from($1::bytea, 'UTF8')::jsonb) AS t (o text, n bigint, f bigint, l bigint) \
                   WHERE EXISTS (SELECT FROM {s}.journal AS j WHERE j.operation = decode(t.o, 'hex') AND j.seq = 0) \
                   ORDER BY t.o \
                 ON CONFLICT (operation) DO UPDATE SET times = r.times + excluded.times, \
                   first_ms = least(r.first_ms, excluded.first_ms), last_ms = greatest(r.last_ms, excluded.last_ms)"
            )
            .into(),
            replays: format!("SELECT times, first_ms, last_ms FROM {s}.replays WHERE operation = $1::bytea").into(),
        }
    }
}

fn acts_text(schema: &str, of: &str) -> String {
    format!(
        "SELECT number, at_ms, operation, namespace, account, key, convert_to(act, 'UTF8'), convert_to(who, 'UTF8'), \
         convert_to(why, 'UTF8'), convert_to(evidence, 'UTF8') FROM {schema}.act \
         WHERE {of}number > $1::bigint ORDER BY number LIMIT $2::bigint"
    )
}

impl<D: Driver> Inner<D> {
    /// Writes `notes` in the transaction that is open on `connection`. Never tried again: after a failure PostgreSQL takes
    /// no more statements of that transaction.
    pub(super) async fn append(
        &self,
        connection: &mut D::Connection,
        address: &Address,
        notes: &Notes,
    ) -> Result<(), StoreError> {
        let append =
            entries(address, notes)?.into_iter().map(|row| Statement::new(&self.journal.append, row));
        let stage = effects(notes)?.into_iter().map(|row| Statement::new(&self.journal.stage, row));
        let log = act(address, notes)?.into_iter().map(|row| Statement::new(&self.journal.log, row));
        let statements: Vec<Statement> = append.chain(stage).chain(log).collect();
        let Some(ran) = self.in_time(connection, &statements).await else {
            return Err(StoreError::new(ErrorKind::Unavailable, WRITING));
        };
        // Not committed yet, so nothing is unknown.
        ran.all().map(drop).map_err(|failure| failed(failure, WRITING, Does::Read))
    }
}

impl<D: Driver> Journal for PostgresStore<D> {
    fn note_if<'a>(
        &'a self,
        address: &'a Address,
        write: &'a Write,
        notes: &'a Notes,
    ) -> StoreFuture<'a, Written> {
        Box::pin(note_if(self, address, write, notes))
    }

    fn journal<'a>(&'a self, of: StatusId) -> StoreFuture<'a, Vec<Entry>> {
        Box::pin(async move {
            let statement = Statement::new(&self.inner.journal.read, vec![operation(of)]);
            journal(&self.inner.one(statement, READING, Does::Read).await?)
        })
    }

    fn take_staged<'a>(&'a self, now: Wall, lease: Duration, limit: usize) -> StoreFuture<'a, Vec<Staged>> {
        Box::pin(async move {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let values = vec![now.unix_ms().into(), now.plus(lease).unix_ms().into(), limit.into()];
            let statement = Statement::new(&self.inner.journal.take, values);
            taken(&self.inner.one(statement, STAGING, Does::Write).await?)
        })
    }

    fn end_staged<'a>(&'a self, staged: &'a Staged, sent: &'a Sent, at: Wall) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let statement = Statement::new(&self.inner.journal.end, end(staged, sent, at));
            Ok(self.inner.one(statement, STAGING, Does::Write).await?.affected == 1)
        })
    }

    fn staged_of<'a>(&'a self, of: StatusId, limit: usize) -> StoreFuture<'a, Vec<StagedEffect>> {
        Box::pin(async move {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let statement = Statement::new(&self.inner.journal.staged_of, vec![operation(of), limit.into()]);
            standing(&self.inner.one(statement, STAGING, Does::Read).await?)
        })
    }

    fn add_replays<'a>(&'a self, added: &'a [Replays]) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let statement = Statement::new(&self.inner.journal.add_replays, vec![counted(added)?]);
            self.inner.one(statement, COUNTING, Does::Write).await.map(drop)
        })
    }

    fn replays<'a>(&'a self, of: StatusId) -> StoreFuture<'a, Option<Replays>> {
        Box::pin(async move {
            let statement = Statement::new(&self.inner.journal.replays, vec![operation(of)]);
            replays(of, &self.inner.one(statement, COUNTING, Does::Read).await?)
        })
    }

    fn staged_census<'a>(&'a self) -> StoreFuture<'a, StagedCensus> {
        Box::pin(async move {
            let statement = Statement::plain(&self.inner.journal.census);
            census(&self.inner.one(statement, STAGING, Does::Read).await?)
        })
    }

    fn acts<'a>(
        &'a self,
        of: Option<&'a Address>,
        after: u64,
        limit: usize,
    ) -> StoreFuture<'a, Vec<LoggedAct>> {
        Box::pin(async move {
            let number = |number: u64| Value::Int(i64::try_from(number).unwrap_or(i64::MAX));
            let mut values = vec![number(after), number(limit as u64)];
            let text = match of {
                None => &self.inner.journal.acts,
                Some(address) => {
                    values.extend(address_values(address));
                    &self.inner.journal.acts_of
                }
            };
            acts(&self.inner.one(Statement::new(text, values), LOG, Does::Read).await?)
        })
    }

    fn forget_journals<'a>(&'a self, before: Wall, limit: usize) -> StoreFuture<'a, usize> {
        Box::pin(async move {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let values = vec![before.unix_ms().into(), limit.into()];
            let statement = Statement::new(&self.inner.journal.forget, values);
            let rows = self.inner.one(statement, FORGETTING, Does::Write).await?;
            let count = rows.only(0).and_then(crate::sql::Value::int).unwrap_or(0);
            Ok(usize::try_from(count).unwrap_or(0))
        })
    }
}
