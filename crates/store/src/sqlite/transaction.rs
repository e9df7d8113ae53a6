//! The verbs, inside a transaction of the writer.
//!
//! Here is SQLite's arbitration point: the write lock is held, so what is read stays true until the commit, and
//! [`Expect::allows`](retrysafe_core::record::Expect::allows) decides as it does everywhere.

use bytes::Bytes;
use retrysafe_core::{
    address::{Account, Address, Namespace},
    clock::{BootId, Mark},
    ids::Fence,
    record::{Record, RemoveIf, ResourceId, State, Write},
    time::Wall,
};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{fault::failed, watch::Watch};
use crate::{Census, ErrorKind, StateName, StoreError, Written, clock::TimeKeeper, codec, is_own_write};

const READING: &str = "reading a record to change it";
const WRITING: &str = "writing a record";
const READING_META: &str = "reading the store's own row";

/// The longest encoding buffer that is kept between jobs.
const KEPT_BUFFER_BYTES: usize = 256 * 1024;

/// A transaction of the writer, with the row of the store's own state, which is written back once for the batch.
pub(super) struct Transaction<'a> {
    connection: &'a Connection,
    watch: &'a Watch,
    buffer: &'a mut Vec<u8>,
    meta: Meta,
    stored: Meta,
    changed: bool,
}

/// The savepoint around a job of several changes, by a name that business code may not use.
pub(super) const SAVEPOINT: &str = "SAVEPOINT retrysafe_job";
pub(super) const TAKE_BACK: &str = "ROLLBACK TO retrysafe_job";
pub(super) const RELEASE: &str = "RELEASE retrysafe_job";

/// The one row of `meta`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Meta {
    /// The last fence issued.
    pub(super) fence: Fence,
    pub(super) mark: Option<Mark>,
    pub(super) census: Census,
}

struct Seen {
    id: i64,
    record: Record,
}

impl<'a> Transaction<'a> {
    /// Inside a transaction that `connection` has begun.
    pub(super) fn begun(
        connection: &'a Connection,
        watch: &'a Watch,
        buffer: &'a mut Vec<u8>,
    ) -> Result<Self, StoreError> {
        let stored = read_meta(connection)?;
        Ok(Self { connection, watch, buffer, meta: stored, stored, changed: false })
    }

    pub(super) fn parts(&self) -> (&'a Connection, &'a Watch) {
        (self.connection, self.watch)
    }

    /// Rows were changed by others than the verbs.
    pub(super) fn touch(&mut self) {
        self.changed = true;
    }

    /// Takes back what business code wrote, inside the savepoint of its job.
    pub(super) fn take_back(&mut self) -> Result<(), StoreError> {
        let taken = self.connection.prepare_cached(TAKE_BACK).and_then(|mut statement| statement.execute([]));
        taken.map(|_| ()).map_err(failed("taking back what business code wrote"))
    }

    /// The record as of this transaction.
    pub(super) fn load(&self, address: &Address) -> Result<Option<Record>, StoreError> {
        Ok(self.see(address)?.map(|seen| seen.record))
    }

    /// See [`Store::forget_effects`](crate::Store::forget_effects).
    pub(super) fn forget_effects(&mut self, before: Wall, limit: usize) -> Result<usize, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let forgotten = self
            .connection
            .prepare_cached(
                "DELETE FROM retrysafe_effect WHERE id IN (SELECT id FROM retrysafe_effect WHERE at < ?1 LIMIT ?2)",
            )
            .and_then(|mut statement| statement.execute(params![before.unix_ms(), limit]))
            .map_err(failed("forgetting effects"))?;
        self.changed |= forgotten > 0;
        Ok(forgotten)
    }

    /// What a savepoint has to bring back besides the rows.
    pub(super) fn meta(&self) -> Meta {
        self.meta
    }

    /// After a savepoint was rolled back.
    pub(super) fn restore(&mut self, meta: Meta) {
        self.meta = meta;
    }

    /// Learns the time that was told last, and stores the first mark of a new store, or of a boot, for those who open
    /// the file after this.
    pub(super) fn agree_on_time(&mut self, time: &TimeKeeper) {
        if let Some(mark) = self.meta.mark {
            time.learn(mark);
        }
        if let Ok(now) = time.now() {
            self.changed |= self.meta.mark.is_none_or(|stored| stored.boot != now.boot);
        }
    }

    /// Writes the store's own row, if anything was changed. With it goes the time: never behind an instant that was
    /// stored (protocol 10). Returns whether there is anything to commit.
    pub(super) fn finish(&mut self, time: &TimeKeeper) -> Result<bool, StoreError> {
        // Another process may have gone ahead since: it acknowledged a jump.
        if let Some(mark) = self.meta.mark {
            time.learn(mark);
        }
        if !self.changed && self.meta == self.stored {
            return Ok(false);
        }
        // A clock that jumped is not written down; the writes of holders go on without it.
        if let Ok(now) = time.now() {
            self.meta.mark = Some(now);
        }
        let mark = self.meta.mark;
        self.connection
            .prepare_cached(
                "UPDATE retrysafe_meta SET fence = ?1, clock_ms = ?2, clock_boot = ?3, clock_boot_ns = ?4, in_flight = ?5,
                 uncertain = ?6, completed = ?7",
            )
            .and_then(|mut statement| {
                statement.execute(params![
                    self.meta.fence.as_u64().cast_signed(),
                    mark.map(|mark| mark.now.unix_ms()),
                    mark.map(|mark| mark.boot.0.to_be_bytes()),
                    mark.map(|mark| i64::try_from(mark.since_boot.as_nanos()).unwrap_or(i64::MAX)),
                    self.meta.census.in_flight.cast_signed(),
                    self.meta.census.uncertain.cast_signed(),
                    self.meta.census.completed.cast_signed(),
                ])
            })
            .map_err(failed("writing the store's own row"))?;
        Ok(true)
    }

    pub(super) fn write_if(&mut self, address: &Address, write: &Write) -> Result<Written, StoreError> {
        let seen = self.see(address)?;
        let present = seen.as_ref().map(|seen| &seen.record);
        if !write.expect.allows(present) {
            let own = present.and_then(|present| is_own_write(write, present));
            return Ok(own.map_or_else(|| Written::No(seen.map(|seen| seen.record)), Written::Yes));
        }
        let fence = match present {
            Some(present) if !write.opens_claim() => present.fence,
            _ => self.issue_fence()?,
        };
        match seen {
            Some(seen) => self.update(&seen, &write.next, fence)?,
            None => self.insert(address, &write.next, fence)?,
        }
        Ok(Written::Yes(fence))
    }

    pub(super) fn remove_if(&mut self, address: &Address, guard: RemoveIf) -> Result<bool, StoreError> {
        let Some(seen) = self.see(address)?.filter(|seen| guard.allows(&seen.record)) else {
            return Ok(false);
        };
        self.change("DELETE FROM retrysafe_record WHERE id = ?1", params![seen.id])?;
        *self.count(&seen.record.state) -= 1;
        Ok(true)
    }

    /// Several rows: the job that calls it needs a savepoint.
    pub(super) fn end_resource(
        &mut self,
        namespace: &Namespace,
        account: &Account,
        resource: &ResourceId,
        ends_at: Wall,
    ) -> Result<usize, StoreError> {
        let bound = self
            .connection
            .prepare_cached(
                "SELECT id, data FROM retrysafe_record WHERE namespace = ?1 AND account = ?2 AND resource = ?3",
            )
            .and_then(|mut statement| {
                let key = params![
                    namespace.as_str().as_bytes(),
                    account.as_str().as_bytes(),
                    resource.0.as_bytes()
                ];
                statement.query_map(key, id_and_data)?.collect::<Result<Vec<_>, _>>()
            })
            .map_err(failed(READING))?;
        let mut ended = 0;
        for (id, data) in bound {
            let seen = Seen { id, record: codec::decode(&data)? };
            let mut next = seen.record.clone();
            let State::Completed { expires_at, .. } = &mut next.state else { continue };
            if *expires_at > ends_at {
                *expires_at = ends_at;
                self.update(&seen, &next, next.fence)?;
                ended += 1;
            }
        }
        Ok(ended)
    }

    /// The store takes the clock as it is.
    pub(super) fn set_mark(&mut self, mark: Mark) {
        self.meta.mark = Some(self.meta.mark.map_or(mark, |stored| mark.latest(stored)));
        self.changed = true;
    }

    /// Fences from here on are above all that were ever issued, also those that a backup forgot (protocol 7).
    pub(super) fn bump_epoch(&mut self) -> Result<u16, StoreError> {
        let exhausted = || StoreError::new(ErrorKind::Full, "beginning a new epoch of fences");
        let epoch = self.meta.fence.epoch().checked_add(1).ok_or_else(exhausted)?;
        self.meta.fence = Fence::new(epoch, 0).ok_or_else(exhausted)?;
        self.changed = true;
        Ok(epoch)
    }

    /// What the driver does when a statement fails badly enough, without a word.
    #[cfg(test)]
    pub(super) fn lose(&self) {
        self.connection.execute_batch("ROLLBACK").unwrap();
    }

    /// Durable before anybody sees it: it is committed with the claim that it was issued for.
    fn issue_fence(&mut self) -> Result<Fence, StoreError> {
        let exhausted = || StoreError::new(ErrorKind::Full, "issuing a fence");
        self.meta.fence = self.meta.fence.next().ok_or_else(exhausted)?;
        Ok(self.meta.fence)
    }

    fn see(&self, address: &Address) -> Result<Option<Seen>, StoreError> {
        let found = self
            .connection
            .prepare_cached(
                "SELECT id, data FROM retrysafe_record WHERE namespace = ?1 AND account = ?2 AND key = ?3",
            )
            .and_then(|mut statement| statement.query_row(key_of(address), id_and_data).optional())
            .map_err(failed(READING))?;
        found.map(|(id, data)| Ok(Seen { id, record: codec::decode(&data)? })).transpose()
    }

    fn insert(&mut self, address: &Address, next: &Record, fence: Fence) -> Result<(), StoreError> {
        self.encode(next, fence)?;
        let [namespace, account, key] = key_of(address);
        let columns = Columns::of(next);
        let data = std::mem::take(self.buffer);
        let written = self.change(
            "INSERT INTO retrysafe_record (namespace, account, key, status, state, due, resource, data)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            params![
                namespace,
                account,
                key,
                columns.status,
                columns.state,
                columns.due,
                columns.resource,
                data
            ],
        );
        self.keep_buffer(data);
        written?;
        *self.count(&next.state) += 1;
        Ok(())
    }

    fn update(&mut self, seen: &Seen, next: &Record, fence: Fence) -> Result<(), StoreError> {
        self.encode(next, fence)?;
        let columns = Columns::of(next);
        let data = std::mem::take(self.buffer);
        let written = if next.status_id == seen.record.status_id {
            // Leaving a column out of SET leaves its index alone: the usual case is two index writes cheaper.
            self.change(
                "UPDATE retrysafe_record SET state = ?1, due = ?2, resource = ?3, data = ?4 WHERE id = ?5",
                params![columns.state, columns.due, columns.resource, data, seen.id],
            )
        } else {
            self.change(
                "UPDATE retrysafe_record SET state = ?1, due = ?2, resource = ?3, data = ?4, status = ?6 WHERE id = ?5",
                params![columns.state, columns.due, columns.resource, data, seen.id, columns.status],
            )
        };
        self.keep_buffer(data);
        written?;
        *self.count(&seen.record.state) -= 1;
        *self.count(&next.state) += 1;
        Ok(())
    }

    fn change(&mut self, sql: &str, parameters: impl rusqlite::Params) -> Result<(), StoreError> {
        self.changed = true;
        let rows = self
            .connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.execute(parameters))
            .map_err(failed(WRITING))?;
        // The row was read in this transaction: anything but one row is a broken index.
        if rows == 1 { Ok(()) } else { Err(StoreError::new(ErrorKind::Corrupt, WRITING)) }
    }

    fn encode(&mut self, record: &Record, fence: Fence) -> Result<(), StoreError> {
        codec::encode_into(record, fence, self.buffer)
    }

    fn keep_buffer(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() <= KEPT_BUFFER_BYTES {
            *self.buffer = buffer;
        }
    }

    fn count(&mut self, state: &State) -> &mut u64 {
        match StateName::of(state) {
            StateName::InFlight => &mut self.meta.census.in_flight,
            StateName::Uncertain => &mut self.meta.census.uncertain,
            StateName::Completed => &mut self.meta.census.completed,
        }
    }
}

/// The searchable columns of a record.
struct Columns<'a> {
    status: [u8; 16],
    state: i64,
    due: Option<i64>,
    resource: Option<&'a [u8]>,
}

impl<'a> Columns<'a> {
    fn of(record: &'a Record) -> Self {
        let (due, resource) = match &record.state {
            State::InFlight { lease_until } => (Some(lease_until.unix_ms()), None),
            State::Uncertain { .. } => (None, None),
            State::Completed { reap_at, resource, .. } => {
                (Some(reap_at.unix_ms()), resource.as_ref().map(|ResourceId(id)| id.as_bytes()))
            }
        };
        let state = state_number(StateName::of(&record.state));
        Self { status: record.status_id.as_u128().to_be_bytes(), state, due, resource }
    }
}

pub(super) fn state_number(state: StateName) -> i64 {
    match state {
        StateName::InFlight => 0,
        StateName::Uncertain => 1,
        StateName::Completed => 2,
    }
}

pub(super) fn key_of(address: &Address) -> [&[u8]; 3] {
    [
        address.namespace().as_str().as_bytes(),
        address.account().as_str().as_bytes(),
        address.key().as_str().as_bytes(),
    ]
}

fn id_and_data(row: &Row<'_>) -> rusqlite::Result<(i64, Bytes)> {
    Ok((row.get(0)?, Bytes::from(row.get::<_, Vec<u8>>(1)?)))
}

/// The store's own row, as committed or as in the transaction that `connection` is in.
pub(super) fn read_meta(connection: &Connection) -> Result<Meta, StoreError> {
    connection
        .prepare_cached(
            "SELECT fence, clock_ms, clock_boot, clock_boot_ns, in_flight, uncertain, completed FROM retrysafe_meta",
        )
        .and_then(|mut statement| {
            statement.query_row([], |row| {
                let mark = match (row.get(1)?, row.get(2)?, row.get::<_, Option<i64>>(3)?) {
                    (Some(now), Some(boot), Some(nanos)) => Some(Mark {
                        now: Wall::from_unix_ms(now),
                        boot: BootId(u128::from_be_bytes(boot)),
                        since_boot: std::time::Duration::from_nanos(nanos.unsigned_abs()),
                    }),
                    _ => None,
                };
                Ok(Meta {
                    fence: Fence::from_u64(row.get::<_, i64>(0)?.cast_unsigned()),
                    mark,
                    census: Census {
                        in_flight: row.get::<_, i64>(4)?.cast_unsigned(),
                        uncertain: row.get::<_, i64>(5)?.cast_unsigned(),
                        completed: row.get::<_, i64>(6)?.cast_unsigned(),
                    },
                })
            })
        })
        .map_err(failed(READING_META))
}
