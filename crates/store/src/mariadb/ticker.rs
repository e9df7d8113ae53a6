//! Keeps the time: reads the database's clock every second, and writes the mark down every few.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use tokio::{runtime::Handle, task::JoinHandle};

use super::{Shared, calls::Again, fault::Does};
use retrysafe_core::time::Wall;

use crate::{
    StoreError,
    sql::{Driver, Statement, Value, row},
};

/// How often the database's clock is read.
const READ_EVERY: Duration = Duration::from_secs(1);

/// Every how many readings the mark is written: a process that starts later is behind it by no more than this.
const MARK_EVERY: u32 = 5;

const READING: &str = "reading the database's clock";
const MARKING: &str = "writing down the latest time";

/// The task. Dropping it ends it.
pub(super) struct Ticker(JoinHandle<()>);

impl Ticker {
    pub(super) fn start<D: Driver>(runtime: &Handle, shared: &Arc<Shared<D>>) -> Self {
        Self(runtime.spawn(run(Arc::downgrade(shared))))
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn run<D: Driver>(shared: Weak<Shared<D>>) {
    let mut reading: u32 = 0;
    loop {
        tokio::time::sleep(READ_EVERY).await;
        let Some(shared) = shared.upgrade() else { return };
        reading = reading.wrapping_add(1);
        let told = match reading.is_multiple_of(MARK_EVERY) {
            true => tick(&shared).await,
            false => observe(&shared).await.map(drop),
        };
        // Time goes on by this process's own clock until the database answers again.
        if let Err(error) = told {
            tracing::debug!("{error}");
        }
    }
}

/// Reads the clock and writes the mark down.
pub(super) async fn tick<D: Driver>(shared: &Shared<D>) -> Result<(), StoreError> {
    match observe(shared).await? {
        Some(mark) => keep(shared, mark).await,
        None => Ok(()),
    }
}

/// A person has looked: the database's clock counts as it is, and is the mark.
pub(super) async fn acknowledge<D: Driver>(shared: &Shared<D>) -> Result<(), StoreError> {
    let (found, _, heard) = read(shared).await?;
    let mark = shared.clock.acknowledge(found, heard);
    keep(shared, mark).await
}

async fn observe<D: Driver>(shared: &Shared<D>) -> Result<Option<Wall>, StoreError> {
    let (found, mark, heard) = read(shared).await?;
    Ok(shared.clock.observe(found, mark, heard))
}

async fn read<D: Driver>(shared: &Shared<D>) -> Result<(Wall, Option<Wall>, Instant), StoreError> {
    let statement = Statement::plain(&shared.texts.clock);
    let rows = shared.ask(statement, READING, Does::Read, Again::Safe).await?;
    // When it was heard, not when it was asked: time is told late rather than early.
    let heard = Instant::now();
    let found = rows.only(0).and_then(Value::int).ok_or_else(row::corrupt)?;
    let mark = rows.only(1).and_then(Value::int);
    Ok((Wall::from_unix_ms(found), mark.map(Wall::from_unix_ms), heard))
}

async fn keep<D: Driver>(shared: &Shared<D>, mark: Wall) -> Result<(), StoreError> {
    let mark = Value::Int(mark.unix_ms());
    let statement = Statement::new(&shared.texts.keep_mark, vec![mark.clone(), mark]);
    shared.ask(statement, MARKING, Does::Write, Again::Safe).await.map(drop)
}
