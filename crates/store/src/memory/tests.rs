use std::time::Duration;

use retrysafe_core::record::Expect;

use super::*;
use crate::{
    clock::ManualClock,
    conformance::{self, Place, samples::*},
};

struct Memory;

impl Place for Memory {
    fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(MemoryStore::new(MemoryOptions::default())))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_passes_the_conformance_suite() {
    conformance::run(|| Memory).await;
}

#[tokio::test]
async fn a_full_store_refuses_claims_and_nothing_else() {
    let store = MemoryStore::new(MemoryOptions { max_records: 2, ..MemoryOptions::default() });
    let (one, two, three) = (address("1"), address("2"), address("3"));
    let mine = claim(&store, &one, 1).await;
    claim(&store, &two, 2).await;
    let error = store.write_if(&three, &write(Expect::Absent, &held(3))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert_eq!(store.load(&three).await.unwrap(), None);
    // Losers are still answered, and the holder completes.
    refused(&store, &two, Expect::Absent, &held(4), Some(&store.load(&two).await.unwrap().unwrap())).await;
    let completed = apply(&store, &one, holder(&mine), &done(&mine)).await;
    // Its window is over: the slot may be claimed again, and once it is reaped another key fits.
    apply(&store, &one, expired(&completed, at(1_000_000)), &held(5)).await;
    assert!(store.remove_if(&one, RemoveIf::Attempt(held(5).attempt)).await.unwrap());
    claim(&store, &three, 6).await;
    assert_eq!(store.usage().records, 2);
}

#[tokio::test]
async fn s14_a_completion_fits_even_when_the_bytes_are_used_up() {
    let store = MemoryStore::new(MemoryOptions { max_bytes: 200, ..MemoryOptions::default() });
    let one = address("1");
    let mine = claim(&store, &one, 1).await;
    let large = done_with(&mine, answer(&[b'x'; 1_000]), None);
    apply(&store, &one, holder(&mine), &large).await;
    let error = store.write_if(&address("2"), &write(Expect::Absent, &held(2))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(store.remove_if(&one, reapable(&mine, at(1_000_000))).await.unwrap());
    assert_eq!(store.usage(), Usage { records: 0, bytes: 0 });
}

#[tokio::test]
async fn protocol_10_a_jump_closes_the_store_until_acknowledged() {
    let clock = ManualClock::at(START);
    let options = MemoryOptions { clock: Arc::new(clock.clone()), ..MemoryOptions::default() };
    let store = MemoryStore::new(options);
    assert_eq!(store.now().unwrap(), START);
    clock.set_wall(START.plus(Duration::from_secs(25 * 3600)));
    let error = store.now().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ClockJumped);
    assert!(!error.may_retry());
    let reason = std::error::Error::source(&error).unwrap().to_string();
    assert!(reason.contains("2027-01-15T08:00:00Z") && reason.contains("2027-01-16T09:00:00Z"), "{reason}");
    store.acknowledge_clock_jump();
    assert_eq!(store.now().unwrap(), START.plus(Duration::from_secs(25 * 3600)));
}

#[tokio::test]
async fn protocol_7_a_later_process_issues_larger_fences() {
    let clock = ManualClock::at(START);
    let open =
        || MemoryStore::new(MemoryOptions { clock: Arc::new(clock.clone()), ..MemoryOptions::default() });
    let mut last = Fence::from_u64(0);
    let first = open();
    for n in 0..100 {
        let record = claim(&first, &address(&format!("{n}")), n).await;
        assert!(record.fence > last);
        last = record.fence;
    }
    drop(first);
    clock.advance(Duration::from_millis(2));
    assert!(claim(&open(), &address("0"), 1).await.fence > last);
}
