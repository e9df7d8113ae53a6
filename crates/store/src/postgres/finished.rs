//! A guess at what the next claim of an address will meet.
//!
//! A claim that may win has to begin a transaction and hold the address before anything runs; a replay only has to read.
//! Nobody can tell them apart beforehand, and both are to be one round trip. So the store remembers, of the addresses it has
//! lately seen finished, that they were: a claim of one of them reads first, as plainly as any query, and is through if the
//! record is there. All others open at once, which finds a record too and only costs more.
//!
//! **It decides nothing.** What is answered is what was read from the table; a wrong guess is one read too many.

use std::sync::atomic::{AtomicU64, Ordering};

/// Places; 512 KiB, of which untouched pages take no memory.
const SLOTS: usize = 1 << 16;

/// The lock ids of addresses, each in the one place where it can be. They are made with a secret, so that nobody can choose
/// keys that push others out.
pub(super) struct Finished(Box<[AtomicU64]>);

impl Finished {
    pub(super) fn new() -> Self {
        Self((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }

    fn slot(&self, lock: i64) -> Option<&AtomicU64> {
        // Lower bits: the upper ones are as random.
        self.0.get(usize::try_from(lock.cast_unsigned() % SLOTS as u64).ok()?)
    }

    /// A finished record was seen there.
    pub(super) fn note(&self, lock: i64) {
        if let Some(slot) = self.slot(lock) {
            slot.store(lock.cast_unsigned(), Ordering::Relaxed);
        }
    }

    /// It was not there any more.
    pub(super) fn forget(&self, lock: i64) {
        if let Some(slot) = self.slot(lock).filter(|_| self.is_likely(lock)) {
            slot.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn is_likely(&self, lock: i64) -> bool {
        lock != 0 && self.slot(lock).is_some_and(|slot| slot.load(Ordering::Relaxed) == lock.cast_unsigned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_likely_until_it_is_forgotten_or_pushed_out() {
        let finished = Finished::new();
        let (one, other) = (-7, 7 + (SLOTS as i64));
        assert!(!finished.is_likely(one) && !finished.is_likely(0));
        finished.note(one);
        finished.note(other);
        assert!(finished.is_likely(one) && finished.is_likely(other));
        finished.forget(7);
        assert!(finished.is_likely(other), "another address in the same place");
        finished.note(7);
        assert!(finished.is_likely(7) && !finished.is_likely(other), "pushed out");
        finished.forget(7);
        assert!(!finished.is_likely(7));
    }
}
