//! Randomness for claims.

use std::cell::RefCell;

use retrysafe_core::{
    decide::Fresh,
    ids::{AttemptId, StatusId},
};
use retrysafe_store::{ErrorKind, StoreError};

/// Randomness for one claim. The operating system's, since a guessed status id would show another caller's answer; drawn
/// for many claims at once, since a system call for each costs as much as the claim itself on the memory store.
pub(crate) fn fresh() -> Result<Fresh, StoreError> {
    thread_local! {
        static POOL: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; POOL_BYTES], used: POOL_BYTES }) };
    }
    POOL.with_borrow_mut(|pool| {
        let attempt = AttemptId::new(pool.draw()?);
        let status_id = StatusId::new(pool.draw()?);
        Ok(Fresh { attempt, status_id })
    })
}

/// Random bytes of one thread, each used once.
struct Pool {
    bytes: [u8; POOL_BYTES],
    used: usize,
}

const POOL_BYTES: usize = 4096;

impl Pool {
    fn draw(&mut self) -> Result<u128, StoreError> {
        if self.used == POOL_BYTES {
            getrandom::fill(&mut self.bytes).map_err(|error| {
                StoreError::with_source(ErrorKind::Unavailable, "drawing an attempt id", error.to_string())
            })?;
            self.used = 0;
        }
        let mut number = [0; 16];
        let from = self.used;
        self.used += number.len();
        // What was used is wiped: a later look at this memory does not tell which ids were handed out.
        number.copy_from_slice(&self.bytes[from..self.used]);
        self.bytes[from..self.used].fill(0);
        Ok(u128::from_le_bytes(number))
    }
}
