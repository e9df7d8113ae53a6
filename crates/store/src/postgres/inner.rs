//! What all parts of one store share, and how it is opened.

use std::{sync::Arc, time::Instant};

use retrysafe_core::time::Wall;

use super::{LAYOUT, OpenError, PostgresOptions, fault::Does, finished::Finished, schema, texts::Texts};
use crate::{
    ErrorKind, StoreError,
    meters::Calls,
    sql::{Connection, Driver, Statement, Value, clock::DatabaseClock, row::corrupt},
};

pub(super) struct Inner<D: Driver> {
    pub(super) driver: D,
    pub(super) texts: Texts,
    pub(super) journal: super::journal::Texts,
    pub(super) options: PostgresOptions,
    pub(super) clock: DatabaseClock,
    /// Lock ids of addresses are made with it.
    pub(super) lock_secret: Box<[u8]>,
    pub(super) finished: Finished,
    pub(super) meters: Calls,
}

impl<D: Driver> Inner<D> {
    pub(super) async fn open(driver: D, options: PostgresOptions) -> Result<Self, OpenError> {
        let mut connection = driver.acquire().await?;
        let found = schema::layout(&mut connection, &options.schema).await?;
        let schema = || options.schema.to_string();
        match found {
            0 => return Err(OpenError::NoTables { schema: schema() }),
            LAYOUT => {}
            earlier if earlier < LAYOUT => {
                return Err(OpenError::Earlier { schema: schema(), found, known: LAYOUT });
            }
            _ => return Err(OpenError::Later { schema: schema(), found, known: LAYOUT }),
        }
        let texts = options.texts();
        let rows = connection.run(&[Statement::plain(&texts.secret)]).await.all()?;
        drop(connection);
        let secret = rows.first().and_then(|rows| rows.only(0)).and_then(Value::as_bytes);
        let secret = secret.ok_or_else(|| OpenError::Meta(corrupt()))?;
        let inner = Self {
            lock_secret: secret.to_vec().into(),
            clock: DatabaseClock::new(options.clock_limits),
            finished: Finished::new(),
            meters: Calls::new(),
            journal: super::journal::Texts::new(&options.schema),
            driver,
            texts,
            options,
        };
        // Before the first answer: a store that does not know the time can decide nothing.
        inner.read_clock().await.map_err(OpenError::Meta)?;
        Ok(inner)
    }

    /// Reads the database's clock, and writes the mark where it is old.
    pub(super) async fn read_clock(&self) -> Result<(), StoreError> {
        let (found, mark, heard) = self.clock_and_mark().await?;
        let Some(now) = self.clock.observe(found, mark, heard) else { return Ok(()) };
        if mark.is_none_or(|mark| now.since(mark) >= MARK_INTERVAL) {
            self.write_mark(now).await?;
        }
        Ok(())
    }

    pub(super) async fn acknowledge_clock_jump(&self) -> Result<(), StoreError> {
        let (found, _, heard) = self.clock_and_mark().await?;
        // The mark first: once it is there, every process agrees.
        self.write_mark(found).await?;
        self.clock.acknowledge(found, heard);
        Ok(())
    }

    async fn clock_and_mark(&self) -> Result<(Wall, Option<Wall>, Instant), StoreError> {
        let statement = Statement::plain(&self.texts.clock);
        let rows = self.one(statement, "reading the database's clock", Does::Read).await?;
        // Taken when the answer is here: the time told is late by the way of the answer, and never early.
        let heard = Instant::now();
        let found = rows.only(0).and_then(Value::int).ok_or_else(corrupt)?;
        let mark = rows.only(1).and_then(Value::int);
        Ok((Wall::from_unix_ms(found), mark.map(Wall::from_unix_ms), heard))
    }

    async fn write_mark(&self, now: Wall) -> Result<(), StoreError> {
        let statement = Statement::new(&self.texts.set_mark, vec![now.unix_ms().into()]);
        self.one(statement, "writing the latest time told", Does::Write).await.map(drop)
    }

    pub(super) async fn has_secret(&self, number: u32, proof: &[u8]) -> Result<bool, StoreError> {
        const DOING: &str = "comparing the secret of fingerprints";
        let number = Value::Int(i64::from(number));
        let first = Statement::new(&self.texts.claim_secret, vec![number.clone(), Value::bytes(proof)]);
        self.one_again(&first, DOING).await?;
        let rows = self.one(Statement::new(&self.texts.proof, vec![number]), DOING, Does::Read).await?;
        let kept = rows.only(0).and_then(Value::as_bytes).ok_or_else(corrupt)?;
        Ok(kept == proof)
    }

    pub(super) async fn bump_epoch(&self) -> Result<u16, StoreError> {
        const DOING: &str = "beginning a new epoch of fences";
        let statement = Statement::plain(&self.texts.bump_epoch);
        let rows = self.one(statement, DOING, Does::Write).await?;
        let fence =
            rows.only(0).and_then(Value::int).ok_or_else(|| StoreError::new(ErrorKind::Full, DOING))?;
        Ok(retrysafe_core::ids::Fence::from_u64(fence.cast_unsigned()).epoch())
    }
}

/// How old the mark may become. A process that starts does not go behind it by more.
const MARK_INTERVAL: std::time::Duration = std::time::Duration::from_secs(5);

pub(super) type Shared<D> = Arc<Inner<D>>;
