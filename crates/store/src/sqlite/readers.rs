//! Reading beside the writer: a few connections, used on the thread that asks.
//!
//! A point read takes about ten microseconds, less than handing it to another thread and back, so it is done in place.
//! In WAL mode it waits for no writer; a caller waits for another caller only when all connections are taken, and then
//! for one read. What a read can cost beyond that is a page that is not in memory.

use std::sync::{
    Mutex, MutexGuard, PoisonError, TryLockError,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Duration;

use bytes::Bytes;
use metrics::{Counter, counter};
use retrysafe_core::{
    address::{Account, Address, Key, Namespace},
    ids::StatusId,
    record::Record,
    time::Wall,
};
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};

use super::{
    OpenError, SqliteOptions,
    fault::failed,
    schema,
    transaction::{Meta, key_of, read_meta, state_number},
};
use crate::{Due, ErrorKind, Filter, StateName, StoreError, codec};

/// Connections. Reads are short and the cores few.
const READERS: usize = 4;

/// How many rows one statement of a filtered list looks at before the connection is given back.
const LIST_STRIDE: usize = 512;

const READING: &str = "reading records";

const BY_ADDRESS: &str = "
    SELECT namespace, account, key, data FROM retrysafe_record WHERE (namespace, account, key) > (?1, ?2, ?3)
    ORDER BY namespace, account, key LIMIT ?4";

const BY_ACCOUNT: &str = "
    SELECT namespace, account, key, data FROM retrysafe_record
    WHERE namespace = ?1 AND account = ?2 AND (namespace, account, key) > (?3, ?4, ?5)
    ORDER BY namespace, account, key LIMIT ?6";

const BY_STATE: &str = "
    SELECT namespace, account, key, data FROM retrysafe_record INDEXED BY record_due
    WHERE state = ?1 AND (namespace, account, key) > (?2, ?3, ?4)
    ORDER BY namespace, account, key LIMIT ?5";

pub(super) struct Readers {
    connections: Vec<Mutex<Connection>>,
    last: AtomicUsize,
    unreadable: Counter,
}

impl Readers {
    pub(super) fn open(options: &SqliteOptions) -> Result<Self, OpenError> {
        let connections = (0..READERS).map(|_| {
            let connection = schema::connect(options)?;
            schema::prepare_reader(&connection, &options.path)?;
            Ok(Mutex::new(connection))
        });
        Ok(Self {
            connections: connections.collect::<Result<_, OpenError>>()?,
            last: AtomicUsize::new(0),
            unreadable: counter!("retrysafe_store_unreadable_total"),
        })
    }

    pub(super) fn load(&self, address: &Address) -> Result<Option<Record>, StoreError> {
        let data = self
            .connection()
            .prepare_cached(
                "SELECT data FROM retrysafe_record WHERE namespace = ?1 AND account = ?2 AND key = ?3",
            )
            .and_then(|mut statement| {
                statement.query_row(key_of(address), |row| row.get::<_, Vec<u8>>(0)).optional()
            })
            .map_err(failed(READING))?;
        // Decoded when the connection is free again.
        data.map(|data| codec::decode(&Bytes::from(data))).transpose()
    }

    /// Passes over what cannot be read: one damaged record must not keep all others from being looked after. It stays
    /// where it is, and whoever asks for its key is told that nobody knows.
    pub(super) fn due(
        &self,
        due: Due,
        now: Wall,
        limit: usize,
    ) -> Result<Vec<(Address, Record)>, StoreError> {
        let mut passed_over = 0;
        loop {
            let rows = self.due_rows(due.state(), now, limit, passed_over)?;
            let (found, last) = (rows.len(), rows.len() < limit.max(1));
            let readable: Vec<_> = rows.into_iter().filter_map(|row| row.decode().ok()).collect();
            passed_over += found - readable.len();
            if last || !readable.is_empty() {
                if passed_over > 0 {
                    tracing::error!(records = passed_over, "due records cannot be read and are passed over");
                    self.unreadable.increment(passed_over as u64);
                }
                return Ok(readable);
            }
        }
    }

    fn due_rows(
        &self,
        state: StateName,
        now: Wall,
        limit: usize,
        offset: usize,
    ) -> Result<Vec<Found>, StoreError> {
        self.connection()
            .prepare_cached(
                "SELECT namespace, account, key, data FROM retrysafe_record WHERE state = ?1 AND due <= ?2
                 ORDER BY due LIMIT ?3 OFFSET ?4",
            )
            .and_then(|mut statement| {
                let bounds = params![state_number(state), now.unix_ms(), sql_limit(limit), sql_limit(offset)];
                statement.query_map(bounds, Found::of)?.collect::<Result<Vec<_>, _>>()
            })
            .map_err(failed(READING))
    }

    pub(super) fn locate(
        &self,
        namespace: &Namespace,
        status: StatusId,
    ) -> Result<Option<Address>, StoreError> {
        let found = self
            .connection()
            .prepare_cached("SELECT account, key FROM retrysafe_record WHERE status = ?1 AND namespace = ?2")
            .and_then(|mut statement| {
                let id = status.as_u128().to_be_bytes();
                statement
                    .query_row(params![id, namespace.as_str().as_bytes()], |row| {
                        Ok((row.get(0)?, row.get(1)?))
                    })
                    .optional()
            })
            .map_err(failed(READING))?;
        found.map(|(account, key)| address_from(namespace.clone(), account, key)).transpose()
    }

    /// Goes through the addresses in order, a stride at a time, so that a filter that matches little holds no connection
    /// long. What no index serves (an endpoint, an account in every namespace) may go through the whole table.
    pub(super) fn list(
        &self,
        filter: &Filter,
        cursor: Option<&Address>,
        limit: usize,
    ) -> Result<Vec<(Address, Record)>, StoreError> {
        let mut found = Vec::new();
        let mut cursor = cursor.cloned();
        while found.len() < limit {
            let stride = self.stride(filter, cursor.as_ref())?;
            let Some((last, _)) = stride.last() else { break };
            cursor = Some(last.clone());
            let matching = |(address, record): &(Address, Record)| {
                filter.allows_address(address) && filter.allows_record(record)
            };
            found.extend(stride.into_iter().filter(matching));
        }
        found.truncate(limit);
        Ok(found)
    }

    /// See [`Store::duplicate_effects`](crate::Store::duplicate_effects). A row repeats one that comes before it, by time
    /// and then by number, so that of two rows one counts.
    pub(super) fn duplicate_effects(
        &self,
        from: Wall,
        to: Wall,
        within: Duration,
    ) -> Result<u64, StoreError> {
        let within = i64::try_from(within.as_millis()).unwrap_or(i64::MAX);
        let found: i64 = self
            .connection()
            .prepare_cached(
                "SELECT count(*) FROM retrysafe_effect AS later
                 WHERE later.at >= ?1 AND later.at < ?2 AND EXISTS (
                     SELECT 1 FROM retrysafe_effect AS earlier
                     WHERE earlier.namespace = later.namespace AND earlier.account = later.account
                       AND earlier.key = later.key AND earlier.step = later.step
                       AND earlier.at > later.at - ?3 AND (earlier.at, earlier.id) < (later.at, later.id))",
            )
            .and_then(|mut statement| {
                statement.query_row(params![from.unix_ms(), to.unix_ms(), within], |row| row.get(0))
            })
            .map_err(failed("counting effects"))?;
        Ok(found.unsigned_abs())
    }

    pub(super) fn meta(&self) -> Result<Meta, StoreError> {
        read_meta(&self.connection())
    }

    /// The next records after `cursor`, at least all that `filter` allows, by the index that leaves out most.
    fn stride(
        &self,
        filter: &Filter,
        cursor: Option<&Address>,
    ) -> Result<Vec<(Address, Record)>, StoreError> {
        // No address sorts before three empty parts, and none is equal to them.
        let [namespace, account, key] = cursor.map_or([&[][..]; 3], key_of);
        let limit = sql_limit(LIST_STRIDE);
        let connection = self.connection();
        let select = |sql: &str, parameters: &[&dyn ToSql]| {
            let mut statement = connection.prepare_cached(sql)?;
            statement.query_map(parameters, Found::of)?.collect::<Result<Vec<_>, _>>()
        };
        let rows = match filter {
            Filter { namespace: Some(of), account: Some(by), .. } => {
                let (of, by) = (of.as_str().as_bytes(), by.as_str().as_bytes());
                select(BY_ACCOUNT, params![of, by, namespace, account, key, limit])
            }
            // Few are in flight or uncertain at any time; nearly all are completed.
            Filter { state: Some(state @ (StateName::InFlight | StateName::Uncertain)), .. } => {
                select(BY_STATE, params![state_number(*state), namespace, account, key, limit])
            }
            _ => select(BY_ADDRESS, params![namespace, account, key, limit]),
        };
        drop(connection);
        rows.map_err(failed(READING))?.into_iter().map(Found::decode).collect()
    }

    /// Runs `read` on one of the connections.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        read(&self.connection())
    }

    /// A free connection, else the next in turn. A panic of another reader leaves nothing behind in one.
    fn connection(&self) -> MutexGuard<'_, Connection> {
        let first = self.last.fetch_add(1, Ordering::Relaxed);
        let at = |step: usize| &self.connections[(first.wrapping_add(step)) % self.connections.len()];
        for step in 0..self.connections.len() {
            match at(step).try_lock() {
                Ok(connection) => return connection,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        at(0).lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A row with its address, not decoded yet.
struct Found {
    namespace: Vec<u8>,
    account: Vec<u8>,
    key: Vec<u8>,
    data: Vec<u8>,
}

impl Found {
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self { namespace: row.get(0)?, account: row.get(1)?, key: row.get(2)?, data: row.get(3)? })
    }

    fn decode(self) -> Result<(Address, Record), StoreError> {
        let namespace = text(&self.namespace).and_then(|text| Namespace::new(text).map_err(corrupt))?;
        Ok((address_from(namespace, self.account, self.key)?, codec::decode(&Bytes::from(self.data))?))
    }
}

fn address_from(namespace: Namespace, account: Vec<u8>, key: Vec<u8>) -> Result<Address, StoreError> {
    let account = text(&account).and_then(|text| Account::from_stored(text).map_err(corrupt))?;
    let key = text(&key).and_then(|text| Key::trusted(text).map_err(corrupt))?;
    Ok(Address::new(namespace, account, key))
}

fn text(bytes: &[u8]) -> Result<&str, StoreError> {
    std::str::from_utf8(bytes).map_err(corrupt)
}

/// Says nothing of the bytes: they are an account or a key.
fn corrupt<E>(_: E) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, "reading an address")
}

fn sql_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
