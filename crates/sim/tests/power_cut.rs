//! Durability, shown on a disk that forgets (protocol 30, main-job 3).
//!
//! Several tasks claim, complete and release keys while every disk operation is written down. Then the power is cut at every
//! sync boundary of the run, and the store is opened on what is left.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{collections::HashSet, path::Path, sync::Arc};

use retrysafe_core::{
    address::Address,
    ids::Fence,
    record::{Record, RemoveIf},
};
use retrysafe_sim::{Cut, Position, PowerCut, Survivors, Trace};
use retrysafe_store::{
    Store,
    sqlite::{SqliteOptions, SqliteStore, Synchronous},
};

use support::{address_of, apply, claim_of, completion_of};

mod support;

const TASKS: u32 = 6;
const KEYS_PER_TASK: u32 = 6;

/// How often the store is opened in one run: closing copies the log into the database and deletes it.
const OPENINGS: u32 = 2;

/// So short a log that it is copied, and starts over, many times in one run.
const CHECKPOINT_PAGES: u32 = 16;

/// Something that was answered, and when.
struct Acked {
    address: Address,
    /// What has to be there; `None`: it was released.
    record: Option<Record>,
    at: Position,
}

/// Everything that one key went through, in order.
type History = Vec<Acked>;

fn traced_run(synchronous: Synchronous) -> (Trace, Vec<History>) {
    let dir = tempfile::tempdir().unwrap();
    let power = PowerCut::register();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let histories = runtime.block_on(run(&power, dir.path(), synchronous));
    (power.trace(), histories)
}

/// Runs the load over `power`, and returns what was answered.
async fn run(power: &PowerCut, dir: &Path, synchronous: Synchronous) -> Vec<History> {
    let options = SqliteOptions {
        vfs: Some(power.vfs().to_owned()),
        synchronous,
        checkpoint_pages: CHECKPOINT_PAGES,
        ..SqliteOptions::new(dir.join("keys.db"))
    };
    let mut histories = Vec::new();
    for opening in 0..OPENINGS {
        let store = Arc::new(SqliteStore::open(options.clone()).unwrap());
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let first = 1 + (opening * TASKS + task) * KEYS_PER_TASK;
                tokio::spawn(keys(store.clone(), power.clone(), first))
            })
            .collect();
        for task in tasks {
            histories.extend(task.await.unwrap());
        }
        if opening + 1 == OPENINGS {
            // The power goes while the store is open.
            std::mem::forget(store);
        }
    }
    histories
}

/// One task: claims its keys from `first` on, then completes, releases or keeps each.
async fn keys(store: Arc<SqliteStore>, power: PowerCut, first: u32) -> Vec<History> {
    let mut histories = Vec::new();
    for n in first..first + KEYS_PER_TASK {
        let address = address_of(n);
        let mut history = History::new();
        let mut acked = |record: Option<Record>| {
            history.push(Acked { address: address.clone(), record, at: power.position() });
        };
        let claimed = apply(&store, &address, claim_of(n)).await;
        acked(Some(claimed.clone()));
        match n % 4 {
            0 => {
                assert!(store.remove_if(&address, RemoveIf::Attempt(claimed.attempt)).await.unwrap());
                acked(None);
            }
            1 => {}
            _ => acked(Some(apply(&store, &address, completion_of(&claimed, n)).await)),
        }
        histories.push(history);
    }
    histories
}

/// What is wrong after a cut, if anything.
fn fault_after(cut: &Cut<'_>, survivors: Survivors, histories: &[History]) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    cut.materialise(survivors, dir.path()).unwrap();
    let store = match SqliteStore::open(SqliteOptions::new(dir.path().join("keys.db"))) {
        Ok(store) => store,
        Err(error) => return Some(format!("does not open: {error}")),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut largest_fence = Fence::from_u64(0);
    for history in histories {
        let address = &history[0].address;
        let found = match runtime.block_on(store.load(address)) {
            Ok(found) => found,
            Err(error) => return Some(format!("cannot be read: {error}")),
        };
        // At least the last answer before the cut; or a later state of the same key, whole: written, not answered yet.
        let known = history.iter().rposition(|acked| acked.at <= cut.position());
        let mut allowed = history[known.unwrap_or(0)..].iter().map(|acked| acked.record.as_ref());
        let untouched = known.is_none() && found.is_none();
        if !untouched && !allowed.any(|allowed| allowed == found.as_ref()) {
            return Some(format!(
                "{} of {} states were answered, found {found:?}",
                known.map_or(0, |k| k + 1),
                history.len()
            ));
        }
        let answered = history.iter().filter(|acked| acked.at <= cut.position());
        let fences = answered.filter_map(|acked| acked.record.as_ref()).map(|record| record.fence);
        largest_fence = fences.chain(found.map(|record| record.fence)).fold(largest_fence, Ord::max);
    }
    // A fence that anybody has seen is never issued again.
    let fresh = address_of(1_000_000);
    let after = runtime.block_on(apply(&store, &fresh, claim_of(1_000_000)));
    (after.fence <= largest_fence).then(|| format!("fence {} again, {largest_fence} was seen", after.fence))
}

fn survivors_of(seed: u64) -> [Survivors; 4] {
    [Survivors::None, Survivors::All, Survivors::Prefix(seed), Survivors::Sectors(seed)]
}

fn check(
    trace: &Trace,
    histories: &[History],
    mut survivors_at: impl FnMut(u64) -> Vec<Survivors>,
) -> Vec<String> {
    let mut faults = Vec::new();
    let mut cuts = 0;
    trace.replay(|cut| {
        cuts += 1;
        for survivors in survivors_at(cuts) {
            if let Some(fault) = fault_after(cut, survivors, histories) {
                faults.push(format!("{:?} {survivors:?}: {fault}", cut.position()));
            }
        }
    });
    faults
}

#[test]
fn main_job_3_every_answered_write_survives_a_power_cut_at_every_sync_boundary() {
    let (trace, histories) = traced_run(Synchronous::Full);
    assert!(trace.syncs() > 10, "the run has boundaries to cut at: {}", trace.syncs());
    let copied = trace.syncs_of("keys.db");
    assert!(copied > 5, "the log was copied and started over during the run: {copied}");
    let claims = histories.iter().filter_map(|history| history[0].record.as_ref());
    let fences: HashSet<_> = claims.map(|record| record.fence).collect();
    assert_eq!(fences.len(), (OPENINGS * TASKS * KEYS_PER_TASK) as usize, "no fence twice");
    let faults = check(&trace, &histories, |seed| survivors_of(seed).to_vec());
    assert!(faults.is_empty(), "{faults:#?}");
}

/// The same check, run against stores that do not sync their commits, has to fail: else it would prove nothing.
#[test]
fn a_store_that_does_not_sync_its_commits_is_caught() {
    for synchronous in [Synchronous::Normal, Synchronous::Off] {
        let (trace, histories) = traced_run(synchronous);
        let faults = check(&trace, &histories, |_| vec![Survivors::None]);
        assert!(!faults.is_empty(), "{synchronous:?} lost nothing at {} syncs", trace.syncs());
        // What was lost was lost to the power cut: killing the process would have shown nothing.
        let faults = check(&trace, &histories, |_| vec![Survivors::All]);
        assert!(faults.is_empty(), "{synchronous:?}: {faults:#?}");
    }
}
