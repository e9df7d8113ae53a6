//! Disks that are slow, and disks that fail.

use std::{
    ffi::c_int,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::sleep,
    time::Duration,
};

use rusqlite::ffi;

use crate::vfs::{self, Watch};

/// Counts syncs; each can be made to take longer.
pub struct SyncCounter {
    name: String,
    counts: Arc<Counts>,
}

struct Counts {
    syncs: AtomicU64,
    delay: Duration,
}

impl SyncCounter {
    /// A disk as fast as the real one.
    pub fn register() -> Self {
        Self::with_delay(Duration::ZERO)
    }

    /// A disk each of whose syncs takes `delay` longer than the real one.
    ///
    /// The delay stands for a disk, and makes ratios repeatable: what a sync costs here depends on the machine and on its
    /// neighbours.
    pub fn with_delay(delay: Duration) -> Self {
        let counts = Arc::new(Counts { syncs: AtomicU64::new(0), delay });
        Self { name: vfs::register(counts.clone()), counts }
    }

    /// The name to open databases with.
    pub fn vfs(&self) -> &str {
        &self.name
    }

    /// Syncs so far, of all files.
    pub fn count(&self) -> u64 {
        self.counts.syncs.load(Ordering::Relaxed)
    }
}

/// A disk whose every sync takes `ms` milliseconds more. See [`SyncCounter::with_delay`].
///
/// ```
/// let disk = retrysafe_sim::delayed_vfs(4);
/// assert_eq!(disk.count(), 0);
/// ```
pub fn delayed_vfs(ms: u64) -> SyncCounter {
    SyncCounter::with_delay(Duration::from_millis(ms))
}

impl Watch for Counts {
    fn sync(&self, _path: &Path, sync: &mut dyn FnMut() -> c_int) -> c_int {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        if !self.delay.is_zero() {
            sleep(self.delay);
        }
        sync()
    }
}

/// Refuses operations when told to.
///
/// ```
/// let disk = retrysafe_sim::FaultyDisk::register();
/// disk.fill_up();
/// // Every write to a file opened with `disk.vfs()` now fails: the disk is full.
/// disk.repair();
/// ```
pub struct FaultyDisk {
    name: String,
    faults: Arc<Faults>,
}

#[derive(Default)]
struct Faults {
    write: Mutex<Fault>,
    sync: Mutex<Fault>,
}

/// Lets `after` operations pass, then answers with `code`.
#[derive(Clone, Copy, Default)]
struct Fault {
    code: Option<c_int>,
    after: u64,
}

impl FaultyDisk {
    /// A disk without faults yet.
    pub fn register() -> Self {
        let faults = Arc::new(Faults::default());
        Self { name: vfs::register(faults.clone()), faults }
    }

    /// The name to open databases with.
    pub fn vfs(&self) -> &str {
        &self.name
    }

    /// There is no room: from now on no write is done.
    pub fn fill_up(&self) {
        self.fill_up_after(0);
    }

    /// There is room for so many writes.
    pub fn fill_up_after(&self, writes: u64) {
        set(&self.faults.write, Fault { code: Some(ffi::SQLITE_FULL), after: writes });
    }

    /// From now on every sync fails; what was written before it may be on the disk or not.
    pub fn fail_syncs(&self) {
        set(&self.faults.sync, Fault { code: Some(ffi::SQLITE_IOERR_FSYNC), after: 0 });
    }

    /// From now on everything works again.
    pub fn repair(&self) {
        set(&self.faults.write, Fault::default());
        set(&self.faults.sync, Fault::default());
    }
}

fn set(fault: &Mutex<Fault>, to: Fault) {
    *fault.lock().unwrap_or_else(PoisonError::into_inner) = to;
}

fn unless_faulty(fault: &Mutex<Fault>, operation: &mut dyn FnMut() -> c_int) -> c_int {
    let mut fault = fault.lock().unwrap_or_else(PoisonError::into_inner);
    match fault.code {
        Some(code) if fault.after == 0 => code,
        _ => {
            fault.after = fault.after.saturating_sub(1);
            operation()
        }
    }
}

impl Watch for Faults {
    fn write(&self, _path: &Path, _offset: u64, _bytes: &[u8], write: &mut dyn FnMut() -> c_int) -> c_int {
        unless_faulty(&self.write, write)
    }

    fn sync(&self, _path: &Path, sync: &mut dyn FnMut() -> c_int) -> c_int {
        unless_faulty(&self.sync, sync)
    }
}
