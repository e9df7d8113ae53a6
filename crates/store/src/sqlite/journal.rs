//! Journals and staged effects, in the commits of records and of business rows.

use std::{future::ready, time::Duration};

use retrysafe_core::{
    address::Address,
    ids::StatusId,
    record::Write,
    recovery::{DownstreamKey, Entry},
    time::Wall,
};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{
    SqliteStore,
    business::SqliteTx,
    fault::failed,
    jobs::Changes,
    transaction::{Transaction, key_of},
    watch::Holder,
};
use crate::{
    ErrorKind, StoreError, StoreFuture, Written,
    codec::entry,
    journal::{
        ENTRY_MAX_BYTES, JOURNAL_MAX, Journal, LoggedAct, Notes, Replays, Sent, Staged, StagedCensus,
        StagedEffect, fits,
    },
};

mod acts;
mod traces;

const WRITING: &str = "writing to a journal";
const READING: &str = "reading a journal";
const STAGING: &str = "handling staged effects";
const FORGETTING: &str = "forgetting journals";

/// States of staged effects, as rows have them.
const WAITING: i64 = 0;
const SENT: i64 = 1;
const DEAD: i64 = 2;

impl SqliteTx<'_> {
    /// Writes `notes` of this request in this transaction, with everything else. See
    /// [`OpenTransaction::note`](crate::transactional::OpenTransaction::note).
    ///
    /// # Errors
    /// As any statement; where the place of an entry is taken the work is to be given up.
    pub fn note(&self, notes: &Notes) -> Result<(), StoreError> {
        let _ours = self.hand_to(Holder::Store);
        insert(self, self.address(), notes)
    }
}

impl Transaction<'_> {
    fn note_if(&mut self, address: &Address, write: &Write, notes: &Notes) -> Result<Written, StoreError> {
        let present = self.load(address)?;
        // Not as `write_if` does it: a write that is recognised as applied before would leave the notes out.
        if !write.expect.allows(present.as_ref()) {
            return Ok(Written::No(present));
        }
        let (connection, _) = self.parts();
        insert(connection, address, notes)?;
        self.write_if(address, write)
    }
}

impl Journal for SqliteStore {
    fn note_if<'a>(
        &'a self,
        address: &'a Address,
        write: &'a Write,
        notes: &'a Notes,
    ) -> StoreFuture<'a, Written> {
        let (address, write, notes) = (address.clone(), write.clone(), notes.clone());
        Box::pin(
            self.submit(Changes::Several, move |transaction| transaction.note_if(&address, &write, &notes)),
        )
    }

    fn journal<'a>(&'a self, operation: StatusId) -> StoreFuture<'a, Vec<Entry>> {
        Box::pin(ready(self.read(|connection| journal(connection, operation))))
    }

    fn take_staged<'a>(&'a self, now: Wall, lease: Duration, limit: usize) -> StoreFuture<'a, Vec<Staged>> {
        Box::pin(async move {
            // Nearly always there is nothing, and nothing needs no turn of the writer.
            if !self.read(|connection| any_due(connection, now))? {
                return Ok(Vec::new());
            }
            self.submit(Changes::Several, move |transaction| {
                let (connection, _) = transaction.parts();
                transaction.touch();
                take(connection, now, lease, limit)
            })
            .await
        })
    }

    fn end_staged<'a>(&'a self, staged: &'a Staged, sent: &'a Sent, at: Wall) -> StoreFuture<'a, bool> {
        let (staged, sent) = (staged.clone(), sent.clone());
        Box::pin(self.submit(Changes::One, move |transaction| {
            let (connection, _) = transaction.parts();
            transaction.touch();
            end(connection, &staged, &sent, at)
        }))
    }

    fn staged_of<'a>(&'a self, operation: StatusId, limit: usize) -> StoreFuture<'a, Vec<StagedEffect>> {
        Box::pin(ready(self.read(|connection| traces::staged(connection, operation, limit))))
    }

    fn add_replays<'a>(&'a self, counted: &'a [Replays]) -> StoreFuture<'a, ()> {
        let counted = fits(counted).map(|()| counted.to_vec());
        Box::pin(async move {
            let counted = counted?;
            self.submit(Changes::Several, move |transaction| {
                let (connection, _) = transaction.parts();
                transaction.touch();
                traces::add(connection, &counted)
            })
            .await
        })
    }

    fn replays<'a>(&'a self, operation: StatusId) -> StoreFuture<'a, Option<Replays>> {
        Box::pin(ready(self.read(|connection| traces::replays(connection, operation))))
    }

    fn staged_census<'a>(&'a self) -> StoreFuture<'a, StagedCensus> {
        Box::pin(ready(self.read(|connection| {
            let count = |state: i64| {
                connection
                    .query_row("SELECT count(*) FROM retrysafe_staged WHERE state = ?1", [state], |row| {
                        row.get::<_, i64>(0)
                    })
                    .map(i64::cast_unsigned)
            };
            let counted = count(WAITING).and_then(|waiting| Ok((waiting, count(DEAD)?)));
            let (waiting, dead) = counted.map_err(failed(STAGING))?;
            Ok(StagedCensus { waiting, dead })
        })))
    }

    fn acts<'a>(
        &'a self,
        of: Option<&'a Address>,
        after: u64,
        limit: usize,
    ) -> StoreFuture<'a, Vec<LoggedAct>> {
        Box::pin(ready(self.read(|connection| acts::read(connection, of, after, limit))))
    }

    fn forget_journals<'a>(&'a self, before: Wall, limit: usize) -> StoreFuture<'a, usize> {
        Box::pin(self.submit(Changes::Several, move |transaction| {
            let (connection, _) = transaction.parts();
            let forgotten = forget(connection, before, limit)?;
            if forgotten > 0 {
                transaction.touch();
            }
            Ok(forgotten)
        }))
    }
}

fn insert(connection: &Connection, address: &Address, notes: &Notes) -> Result<(), StoreError> {
    let operation = notes.operation.as_u128().to_be_bytes();
    for written in &notes.entries {
        if usize::try_from(written.seq).unwrap_or(usize::MAX) >= JOURNAL_MAX {
            return Err(StoreError::new(ErrorKind::Full, WRITING));
        }
        let data = entry::encode(written)?;
        let [namespace, account, key] = key_of(address).map(|part| (written.seq == 0).then_some(part));
        connection
            .prepare_cached(
                "INSERT INTO retrysafe_journal (operation, seq, at, namespace, account, key, data)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )
            .and_then(|mut statement| {
                let at = written.at.unix_ms();
                statement.execute(params![operation, written.seq, at, namespace, account, key, data])
            })
            .map_err(failed(WRITING))?;
    }
    for effect in &notes.staged {
        if effect.payload.len() > ENTRY_MAX_BYTES {
            return Err(StoreError::new(ErrorKind::Full, WRITING));
        }
        connection
            .prepare_cached(
                "INSERT INTO retrysafe_staged (operation, name, key, payload, state, due, tries, staged)
                 VALUES (?1, ?2, ?3, ?4, 0, ?5, 0, ?6)",
            )
            .and_then(|mut statement| {
                let (name, key) = (effect.name.as_bytes(), effect.key.as_str().as_bytes());
                let (due, at) = (effect.due.unix_ms(), effect.at.unix_ms());
                statement.execute(params![operation, name, key, &effect.payload[..], due, at])
            })
            .map_err(failed(WRITING))?;
    }
    match &notes.act {
        Some(act) => acts::insert(connection, address, notes.operation, act),
        None => Ok(()),
    }
}

fn journal(connection: &Connection, operation: StatusId) -> Result<Vec<Entry>, StoreError> {
    let rows = connection
        .prepare_cached("SELECT seq, at, data FROM retrysafe_journal WHERE operation = ?1 ORDER BY seq")
        .and_then(|mut statement| {
            let operation = operation.as_u128().to_be_bytes();
            let row = |row: &Row<'_>| Ok((row.get::<_, u32>(0)?, row.get(1)?, row.get::<_, Vec<u8>>(2)?));
            statement.query_map([operation], row)?.collect::<rusqlite::Result<Vec<_>>>()
        })
        .map_err(failed(READING))?;
    rows.into_iter().map(|(seq, at, data)| entry::decode(seq, Wall::from_unix_ms(at), &data)).collect()
}

fn any_due(connection: &Connection, now: Wall) -> Result<bool, StoreError> {
    connection
        .prepare_cached("SELECT 1 FROM retrysafe_staged WHERE state = 0 AND due <= ?1 LIMIT 1")
        .and_then(|mut statement| statement.query_row([now.unix_ms()], |_| Ok(())).optional())
        .map(|found| found.is_some())
        .map_err(failed(STAGING))
}

fn take(
    connection: &Connection,
    now: Wall,
    lease: Duration,
    limit: usize,
) -> Result<Vec<Staged>, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let (by, until) = (now.unix_ms(), now.plus(lease).unix_ms());
    let rows = connection
        .prepare_cached(
            "UPDATE retrysafe_staged SET due = ?2, tries = tries + 1 WHERE rowid IN
               (SELECT rowid FROM retrysafe_staged WHERE state = 0 AND due <= ?1 ORDER BY due LIMIT ?3)
             RETURNING operation, name, key, payload, tries",
        )
        .and_then(|mut statement| {
            let row = |row: &Row<'_>| {
                Ok((
                    row.get(0)?,
                    row.get::<_, Vec<u8>>(1)?,
                    row.get::<_, Vec<u8>>(2)?,
                    row.get(3)?,
                    row.get(4)?,
                ))
            };
            statement.query_map([by, until, limit], row)?.collect::<rusqlite::Result<Vec<_>>>()
        })
        .map_err(failed(STAGING))?;
    let corrupt = |_| StoreError::new(ErrorKind::Corrupt, STAGING);
    rows.into_iter()
        .map(|(operation, name, key, payload, tries): ([u8; 16], _, _, Vec<u8>, u32)| {
            Ok(Staged {
                operation: StatusId::new(u128::from_be_bytes(operation)),
                name: String::from_utf8(name).map_err(corrupt)?.into(),
                key: DownstreamKey::from_stored(&String::from_utf8(key).map_err(corrupt)?),
                payload: payload.into(),
                tries,
            })
        })
        .collect()
}

fn end(connection: &Connection, staged: &Staged, sent: &Sent, at: Wall) -> Result<bool, StoreError> {
    let (state, due, failure) = match sent {
        Sent::Yes => (SENT, 0, None),
        Sent::Later(due, why) => (WAITING, due.unix_ms(), Some(why.as_bytes())),
        Sent::Never(why) => (DEAD, 0, Some(why.as_bytes())),
    };
    let (operation, name) = (staged.operation.as_u128().to_be_bytes(), staged.name.as_bytes());
    let ended = (state != WAITING).then(|| at.unix_ms());
    connection
        .prepare_cached(
            "UPDATE retrysafe_staged SET state = ?4, due = ?5, failure = ?6, ended = ?7
             WHERE operation = ?1 AND name = ?2 AND tries = ?3 AND state = 0",
        )
        .and_then(|mut statement| {
            statement.execute(params![operation, name, staged.tries, state, due, failure, ended])
        })
        .map(|rows| rows == 1)
        .map_err(failed(STAGING))
}

fn forget(connection: &Connection, before: Wall, limit: usize) -> Result<usize, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let gone = connection
        .prepare_cached(
            "SELECT operation FROM retrysafe_journal AS j WHERE seq = 0 AND at < ?1
             AND NOT EXISTS (SELECT 1 FROM retrysafe_record AS r WHERE r.namespace = j.namespace
               AND r.account = j.account AND r.key = j.key AND r.status = j.operation)
             AND NOT EXISTS (SELECT 1 FROM retrysafe_staged AS s WHERE s.operation = j.operation AND s.state = 0)
             LIMIT ?2",
        )
        .and_then(|mut statement| {
            let rows = statement.query_map([before.unix_ms(), limit], |row| row.get::<_, [u8; 16]>(0))?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        })
        .map_err(failed(FORGETTING))?;
    for operation in &gone {
        for sql in [
            "DELETE FROM retrysafe_replays WHERE operation = ?1",
            "DELETE FROM retrysafe_staged WHERE operation = ?1",
            "DELETE FROM retrysafe_journal WHERE operation = ?1",
        ] {
            connection
                .prepare_cached(sql)
                .and_then(|mut statement| statement.execute([operation]))
                .map_err(failed(FORGETTING))?;
        }
    }
    Ok(gone.len())
}
