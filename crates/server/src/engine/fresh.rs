//! Randomness for claims.

use std::cell::RefCell;

use retrysafe_core::{
    decide::{Decision, Fresh},
    ids::{AttemptId, StatusId},
};
use retrysafe_store::{ErrorKind, StoreError};

/// Randomness for one claim. The operating system's, since a guessed status id would show another caller's answer; drawn
/// for many claims at once, since a system call for each costs as much as the claim itself on the memory store.
pub(crate) fn fresh() -> Result<Fresh, StoreError> {
    POOL.with_borrow_mut(|pool| {
        let fresh = pool.next()?;
        pool.spend();
        Ok(fresh)
    })
}

/// Decides with randomness at hand, which counts as drawn only if the decision is a claim: nobody has seen it otherwise.
pub(crate) fn with_fresh(decide: impl FnOnce(Fresh) -> Decision) -> Result<Decision, StoreError> {
    POOL.with_borrow_mut(|pool| {
        let decision = decide(pool.next()?);
        if matches!(decision, Decision::Claim(_)) {
            pool.spend();
        }
        Ok(decision)
    })
}

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; POOL_BYTES], used: POOL_BYTES }) };
}

/// Random bytes of one thread, each used once.
struct Pool {
    bytes: [u8; POOL_BYTES],
    used: usize,
}

const POOL_BYTES: usize = 4096;
const ID_BYTES: usize = 16;
/// An attempt id and a status id. It divides [`POOL_BYTES`].
const FRESH_BYTES: usize = 2 * ID_BYTES;

impl Pool {
    /// What comes next; the same again until it is spent.
    fn next(&mut self) -> Result<Fresh, StoreError> {
        if self.used == POOL_BYTES {
            getrandom::fill(&mut self.bytes).map_err(|error| {
                StoreError::with_source(ErrorKind::Unavailable, "drawing an attempt id", error.to_string())
            })?;
            self.used = 0;
        }
        Ok(Fresh { attempt: AttemptId::new(self.number(0)), status_id: StatusId::new(self.number(ID_BYTES)) })
    }

    fn number(&self, offset: usize) -> u128 {
        let mut number = [0; ID_BYTES];
        let from = self.used + offset;
        number.copy_from_slice(&self.bytes[from..from + ID_BYTES]);
        u128::from_le_bytes(number)
    }

    /// What was used is wiped: a later look at this memory does not tell which ids were handed out.
    fn spend(&mut self) {
        self.bytes[self.used..self.used + FRESH_BYTES].fill(0);
        self.used += FRESH_BYTES;
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, time::Duration};

    use retrysafe_core::{codes::Code, decide::Refusal};

    use super::*;

    #[test]
    fn r1_no_two_claims_share_an_id_and_what_claims_nothing_spends_none() {
        let mut seen = HashSet::new();
        for number in 0..3 * POOL_BYTES / FRESH_BYTES {
            let mut shown = None;
            let told = with_fresh(|fresh| {
                shown = Some(fresh.attempt);
                match number % 2 {
                    0 => Decision::Refuse(Refusal::of(Code::KeyInFlight)),
                    _ => Decision::Wait(Duration::ZERO),
                }
            });
            assert!(told.is_ok());
            let fresh = fresh().unwrap();
            assert_eq!(shown, Some(fresh.attempt), "nobody has seen it, so it is still the next");
            assert!(seen.insert(fresh.attempt.as_u128()) && seen.insert(fresh.status_id.as_u128()));
        }
    }

    #[test]
    fn r1_a_claim_spends_what_it_was_given() {
        let (asked, rules, _, now) = retrysafe_core::decide::example();
        let mut attempts = HashSet::new();
        for _ in 0..2 * POOL_BYTES / FRESH_BYTES {
            let decision =
                with_fresh(|fresh| retrysafe_core::decide::decide(None, &asked, &rules, fresh, now)).unwrap();
            let Decision::Claim(write) = decision else { panic!("{decision:?}") };
            assert!(attempts.insert(write.next.attempt.as_u128()));
        }
    }
}
