//! A disk that ends its process at a chosen operation.

use std::{
    ffi::c_int,
    fs::{self, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::process::{Signal, getpid, kill_process};

use crate::vfs::{self, Watch};

/// Ends this process by SIGKILL just before a chosen operation: what a `kill -9` at that very moment leaves. (What a power cut
/// leaves is another question, and [`PowerCut`](crate::PowerCut)'s.)
///
/// It is armed from outside, by a file with the number of the operation in it, counted from 1 and from the first one that finds
/// the file; 0 counts only. Each operation from then on is a line of the file beside it that ends in `.log`.
pub struct Tripwire {
    name: String,
}

struct Wire {
    armed_by: PathBuf,
    log: PathBuf,
    at: Mutex<Option<Count>>,
}

#[derive(Clone, Copy)]
struct Count {
    ends_at: u64,
    done: u64,
}

impl Tripwire {
    /// A disk that is armed by the file `armed_by`, which need not be there yet.
    pub fn register(armed_by: &Path) -> Self {
        let wire = Wire { armed_by: armed_by.to_owned(), log: Self::log(armed_by), at: Mutex::default() };
        Self { name: vfs::register(Arc::new(wire)) }
    }

    /// The name to open databases with.
    pub fn vfs(&self) -> &str {
        &self.name
    }

    /// Where the operations are written down.
    pub fn log(armed_by: &Path) -> PathBuf {
        armed_by.with_extension("log")
    }
}

impl Wire {
    /// An operation is about to happen.
    fn step(&self, what: &str, path: &Path) {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        if at.is_none() {
            let armed = fs::read_to_string(&self.armed_by).ok().and_then(|number| number.trim().parse().ok());
            *at = armed.map(|ends_at| Count { ends_at, done: 0 });
        }
        let Some(count) = at.as_mut() else { return };
        count.done += 1;
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        if let Ok(mut log) = OpenOptions::new().append(true).create(true).open(&self.log) {
            // A line that is missing fails the test which reads it.
            let _ = writeln!(log, "{what} {file}");
        }
        if count.done == count.ends_at {
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }
}

impl Watch for Wire {
    fn write(&self, path: &Path, _offset: u64, _bytes: &[u8], write: &mut dyn FnMut() -> c_int) -> c_int {
        self.step("write", path);
        write()
    }

    fn truncate(&self, path: &Path, _len: u64, truncate: &mut dyn FnMut() -> c_int) -> c_int {
        self.step("truncate", path);
        truncate()
    }

    fn sync(&self, path: &Path, sync: &mut dyn FnMut() -> c_int) -> c_int {
        self.step("sync", path);
        sync()
    }

    fn open(&self, path: &Path, open: &mut dyn FnMut() -> c_int) -> c_int {
        self.step("open", path);
        open()
    }

    fn delete(&self, path: &Path, delete: &mut dyn FnMut() -> c_int) -> c_int {
        self.step("delete", path);
        delete()
    }
}
