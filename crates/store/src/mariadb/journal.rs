//! Journals, staged effects and the log of acts. See [`crate::sql::journal`].

use std::{sync::Arc, time::Duration};

use retrysafe_core::{address::Address, ids::StatusId, record::Write, recovery::Entry, time::Wall};

use super::{
    MariaStore, Shared,
    calls::Again,
    fault::{Does, failed},
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
    log: Arc<str>,
    read: Arc<str>,
    take: Arc<str>,
    end: Arc<str>,
    census: Arc<str>,
    gone: Arc<str>,
    forget: [Arc<str>; 3],
    acts: Arc<str>,
    acts_of: Arc<str>,
    staged_of: Arc<str>,
    add_replays: Arc<str>,
    replays: Arc<str>,
}

impl Texts {
    pub(super) fn new() -> Self {
        Self {
            append: "INSERT INTO retrysafe_journal (operation, seq, at_ms, namespace, account, `key`, data) \
                 VALUES (?, ?, ?, ?, ?, ?, ?)"
                .into(),
            stage: "INSERT INTO retrysafe_staged (operation, name, `key`, payload, state, due_ms, tries, staged_ms) \
                 VALUES (?, ?, ?, ?, 0, ?, 0, ?)"
                .into(),
            log: "INSERT INTO retrysafe_act (at_ms, operation, namespace, account, `key`, act, who, why, evidence) \
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
                .into(),
            read: "SELECT seq, at_ms, data FROM retrysafe_journal WHERE operation = ? ORDER BY seq".into(),
            // Marked with a number that nobody else has, and then read by it: what another drainer marks meanwhile is its own.
            take: "BEGIN NOT ATOMIC
                    UPDATE retrysafe_staged SET due_ms = ?, tries = tries + 1, taken = ?
                        WHERE state = 0 AND due_ms <= ? ORDER BY due_ms LIMIT ?;
                    SELECT operation, name, `key`, payload, tries FROM retrysafe_staged
                        WHERE taken = ? AND state = 0 ORDER BY due_ms;
                 END"
            .into(),
            // Not taken any more, so that a mark is only ever found by the call that made it.
            end: "UPDATE retrysafe_staged SET state = ?, due_ms = ?, failure = ?, ended_ms = ?, taken = NULL \
                 WHERE operation = ? AND name = ? AND tries = ? AND state = 0"
                .into(),
            census: "SELECT (SELECT COUNT(*) FROM retrysafe_staged WHERE state = 0), \
                            (SELECT COUNT(*) FROM retrysafe_staged WHERE state = 2)"
                .into(),
            gone: "SELECT operation FROM retrysafe_journal AS j WHERE seq = 0 AND at_ms < ? \
                   AND NOT EXISTS (SELECT 1 FROM retrysafe_key AS k WHERE k.namespace = j.namespace \
                     AND k.account = j.account AND k.`key` = j.`key` AND k.status = j.operation) \
                   AND NOT EXISTS (SELECT 1 FROM retrysafe_staged AS s WHERE s.operation = j.operation AND s.state = 0) \
                   LIMIT ?"
                .into(),
            // In this order: what is left of a journal whose forgetting was cut in two is found again.
            forget: [
                "DELETE FROM retrysafe_replays WHERE operation = ?".into(),
                "DELETE FROM retrysafe_staged WHERE operation = ?".into(),
                "DELETE FROM retrysafe_journal WHERE operation = ?".into(),
            ],
            staged_of: "SELECT name, state, due_ms, tries, staged_ms, ended_ms, failure FROM retrysafe_staged \
                 WHERE operation = ? ORDER BY name LIMIT ?"
                .into(),
            // In one order, so that two processes that add to the same rows mostly wait for each other.
            add_replays: "INSERT INTO retrysafe_replays (operation, times, first_ms, last_ms) \
                 SELECT UNHEX(t.o), t.n, t.f, t.l FROM JSON_TABLE(CONVERT(? USING utf8mb4), '$[*]' COLUMNS \
                     (o CHAR(32) PATH '$.o', n BIGINT PATH '$.n', f BIGINT PATH '$.f', l BIGINT PATH '$.l')) AS t \
                   WHERE EXISTS (SELECT 1 FROM retrysafe_journal AS j WHERE j.operation = UNHEX(t.o) AND j.seq = 0) \
                   ORDER BY t.o \
                 ON DUPLICATE KEY UPDATE times = retrysafe_replays.times + VALUES(times), \
                   first_ms = LEAST(retrysafe_replays.first_ms, VALUES(first_ms)), \
                   last_ms = GREATEST(retrysafe_replays.last_ms, VALUES(last_ms))"
                .into(),
            replays: "SELECT times, first_ms, last_ms FROM retrysafe_replays WHERE operation = ?".into(),
            acts: acts_text("").into(),
            acts_of: acts_text("namespace = ? AND account = ? AND `key` = ? AND ").into(),
        }
    }
}

fn acts_text(of: &str) -> String {
    format!(
        "SELECT number, at_ms, operation, namespace, account, `key`, act, who, why, evidence FROM retrysafe_act \
         WHERE {of}number > ? ORDER BY number LIMIT ?"
    )
}

impl<D: Driver> Shared<D> {
    /// Writes `notes` in the transaction that is open on `connection`. Never tried again: after a deadlock that transaction is
    /// gone, which its end will find (protocol 17).
    pub(super) async fn append(
        &self,
        connection: &mut D::Connection,
        address: &Address,
        notes: &Notes,
    ) -> Result<(), StoreError> {
        self.fits(address, None)?;
        let texts = &self.journal;
        let append = entries(address, notes)?.into_iter().map(|row| (&texts.append, row));
        let stage = effects(notes)?.into_iter().map(|row| (&texts.stage, row));
        let log = act(address, notes)?.into_iter().map(|row| (&texts.log, row));
        for (text, row) in append.chain(stage).chain(log) {
            self.fits_packet(&row, WRITING)?;
            let ran = self.in_time(connection, &Statement::new(text, row)).await;
            // Not committed yet, so nothing is unknown.
            ran.all().map(drop).map_err(|failure| failed(failure, WRITING, Does::Read))?;
        }
        Ok(())
    }
}

impl<D: Driver> Journal for MariaStore<D> {
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
            let statement = Statement::new(&self.shared.journal.read, vec![operation(of)]);
            journal(&self.shared.ask(statement, READING, Does::Read, Again::Safe).await?)
        })
    }

    fn take_staged<'a>(&'a self, now: Wall, lease: Duration, limit: usize) -> StoreFuture<'a, Vec<Staged>> {
        Box::pin(async move {
            let mut mark = [0; 16];
            getrandom::fill(&mut mark)
                .map_err(|error| StoreError::with_source(ErrorKind::Unavailable, STAGING, error))?;
            let (mark, until) = (Value::bytes(&mark), now.plus(lease).unix_ms());
            let values = vec![until.into(), mark.clone(), now.unix_ms().into(), count(limit), mark];
            let statement = Statement::new(&self.shared.journal.take, values);
            // Sent again it would take more than was asked for. What it took is free again when the lease ends.
            taken(&self.shared.ask(statement, STAGING, Does::Write, Again::Unsafe).await?)
        })
    }

    fn staged_of<'a>(&'a self, of: StatusId, limit: usize) -> StoreFuture<'a, Vec<StagedEffect>> {
        Box::pin(async move {
            let values = vec![operation(of), count(limit)];
            let statement = Statement::new(&self.shared.journal.staged_of, values);
            standing(&self.shared.ask(statement, STAGING, Does::Read, Again::Safe).await?)
        })
    }

    fn add_replays<'a>(&'a self, added: &'a [Replays]) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let values = vec![counted(added)?];
            self.shared.fits_packet(&values, COUNTING)?;
            let statement = Statement::new(&self.shared.journal.add_replays, values);
            // Sent again it could count twice.
            self.shared.ask(statement, COUNTING, Does::Write, Again::Unsafe).await.map(drop)
        })
    }

    fn replays<'a>(&'a self, of: StatusId) -> StoreFuture<'a, Option<Replays>> {
        Box::pin(async move {
            let statement = Statement::new(&self.shared.journal.replays, vec![operation(of)]);
            replays(of, &self.shared.ask(statement, COUNTING, Does::Read, Again::Safe).await?)
        })
    }

    fn end_staged<'a>(&'a self, staged: &'a Staged, sent: &'a Sent, at: Wall) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let mut values = end(staged, sent, at);
            // Which of them stands first is a matter of the placeholders.
            values.rotate_left(3);
            let statement = Statement::new(&self.shared.journal.end, values);
            Ok(self.shared.ask(statement, STAGING, Does::Write, Again::Unsafe).await?.affected == 1)
        })
    }

    fn staged_census<'a>(&'a self) -> StoreFuture<'a, StagedCensus> {
        Box::pin(async move {
            let statement = Statement::plain(&self.shared.journal.census);
            census(&self.shared.ask(statement, STAGING, Does::Read, Again::Safe).await?)
        })
    }

    fn acts<'a>(
        &'a self,
        of: Option<&'a Address>,
        after: u64,
        limit: usize,
    ) -> StoreFuture<'a, Vec<LoggedAct>> {
        Box::pin(async move {
            let after = Value::Int(i64::try_from(after).unwrap_or(i64::MAX));
            let mut values = of.map_or(Vec::new(), |address| address_values(address).into());
            values.extend([after, count(limit)]);
            let text = if of.is_some() { &self.shared.journal.acts_of } else { &self.shared.journal.acts };
            acts(&self.shared.ask(Statement::new(text, values), LOG, Does::Read, Again::Safe).await?)
        })
    }

    fn forget_journals<'a>(&'a self, before: Wall, limit: usize) -> StoreFuture<'a, usize> {
        Box::pin(async move {
            let values = vec![before.unix_ms().into(), count(limit)];
            let gone = Statement::new(&self.shared.journal.gone, values);
            let gone = self.shared.ask(gone, FORGETTING, Does::Read, Again::Safe).await?;
            for columns in &gone.rows {
                for text in &self.shared.journal.forget {
                    let statement = Statement::new(text, columns.clone());
                    self.shared.ask(statement, FORGETTING, Does::Write, Again::Safe).await?;
                }
            }
            Ok(gone.rows.len())
        })
    }
}

fn count(limit: usize) -> Value {
    Value::Int(i64::try_from(limit).unwrap_or(i64::MAX))
}
