//! Power cuts, at every moment of a run.
//!
//! While a program runs over [`PowerCut`], every operation on its files is written down in order. Afterwards
//! [`Trace::replay`] goes through the run and stops at each sync, just before it and just after, and at the end of the
//! run. At each stop the files can be made in a fresh folder as a disk would hold them if the power had gone then.
//!
//! A disk holds what was synced. Of what was only written it holds anything: nothing, all, the first part, or any
//! sectors in any order; [`Survivors`] says which. The model leaves the rest to SQLite's own assumptions: that a name in a
//! folder is as durable as the file's first sync, and that a write does not harm the bytes beside it. A deletion is
//! durable at once, which is the harder case for a log.

use std::{
    collections::BTreeMap,
    ffi::c_int,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rusqlite::ffi;

use crate::vfs::{self, Watch};

/// What a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// Writes down what goes to the disk.
///
/// ```
/// use retrysafe_sim::{PowerCut, Survivors};
/// use retrysafe_store::sqlite::{SqliteOptions, SqliteStore};
/// # let dir = tempfile::tempdir()?;
///
/// let power = PowerCut::register();
/// let options = SqliteOptions { vfs: Some(power.vfs().to_owned()), ..SqliteOptions::new(dir.path().join("keys.db")) };
/// drop(SqliteStore::open(options)?);
/// power.trace().replay(|cut| {
///     let after = tempfile::tempdir().unwrap();
///     cut.materialise(Survivors::None, after.path()).unwrap();
///     // Whatever was there when the power went, the store opens again.
///     SqliteStore::open(SqliteOptions::new(after.path().join("keys.db"))).unwrap();
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Clones are the same disk.
#[derive(Clone)]
pub struct PowerCut {
    name: String,
    log: Arc<Log>,
}

/// A moment of the run: how many operations came before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Position(usize);

/// The operations of a run.
pub struct Trace(Vec<Operation>);

#[derive(Clone)]
enum Operation {
    Open(PathBuf),
    Write { path: PathBuf, offset: u64, bytes: Arc<[u8]> },
    Truncate { path: PathBuf, len: u64 },
    Sync(PathBuf),
    Delete(PathBuf),
}

#[derive(Default)]
struct Log(Mutex<Vec<Operation>>);

impl PowerCut {
    /// A disk that forgets nothing yet.
    pub fn register() -> Self {
        let log = Arc::new(Log::default());
        Self { name: vfs::register(log.clone()), log }
    }

    /// The name to open databases with.
    pub fn vfs(&self) -> &str {
        &self.name
    }

    /// Now. What was acknowledged before this moment has to survive every cut at or after it.
    pub fn position(&self) -> Position {
        Position(self.log.operations().len())
    }

    /// The run so far.
    pub fn trace(&self) -> Trace {
        Trace(self.log.operations().clone())
    }
}

impl Log {
    fn operations(&self) -> MutexGuard<'_, Vec<Operation>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the operation and writes it down, in one, so that the order written is the order done.
    fn record(&self, operation: Operation, act: &mut dyn FnMut() -> c_int) -> c_int {
        let mut operations = self.operations();
        let code = act();
        if code == ffi::SQLITE_OK {
            operations.push(operation);
        }
        code
    }
}

impl Watch for Log {
    fn write(&self, path: &Path, offset: u64, bytes: &[u8], write: &mut dyn FnMut() -> c_int) -> c_int {
        self.record(Operation::Write { path: path.to_owned(), offset, bytes: bytes.into() }, write)
    }

    fn truncate(&self, path: &Path, len: u64, truncate: &mut dyn FnMut() -> c_int) -> c_int {
        self.record(Operation::Truncate { path: path.to_owned(), len }, truncate)
    }

    fn sync(&self, path: &Path, sync: &mut dyn FnMut() -> c_int) -> c_int {
        self.record(Operation::Sync(path.to_owned()), sync)
    }

    fn open(&self, path: &Path, open: &mut dyn FnMut() -> c_int) -> c_int {
        self.record(Operation::Open(path.to_owned()), open)
    }

    fn delete(&self, path: &Path, delete: &mut dyn FnMut() -> c_int) -> c_int {
        self.record(Operation::Delete(path.to_owned()), delete)
    }
}

/// Which of the bytes that were written and not synced the disk holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Survivors {
    /// None of them.
    None,
    /// All, as after the crash of a process alone.
    All,
    /// The first part of them, in the order of the run, the last write perhaps torn; how many is drawn from the seed.
    Prefix(u64),
    /// Any sectors of any of them, drawn from the seed: a disk writes in the order it likes.
    Sectors(u64),
}

/// The power goes out: the files as they are at one moment.
pub struct Cut<'a> {
    position: Position,
    files: &'a BTreeMap<PathBuf, Image>,
}

#[derive(Default)]
struct Image {
    /// What was synced.
    synced: Vec<u8>,
    /// What came after, with its place in the run.
    unsynced: Vec<(usize, Change)>,
}

#[derive(Clone)]
enum Change {
    Write { offset: usize, bytes: Arc<[u8]> },
    Truncate(usize),
}

impl Trace {
    /// How many syncs there were.
    pub fn syncs(&self) -> usize {
        self.0.iter().filter(|operation| matches!(operation, Operation::Sync(_))).count()
    }

    /// How many syncs there were of the file called `name`, in whatever folder.
    pub fn syncs_of(&self, name: &str) -> usize {
        let of_file = |operation: &&Operation| match operation {
            Operation::Sync(path) => path.file_name().is_some_and(|found| found == name),
            _ => false,
        };
        self.0.iter().filter(of_file).count()
    }

    /// Cuts the power just before and just after every sync, and at the end.
    pub fn replay(&self, mut at: impl FnMut(&Cut<'_>)) {
        let mut files = BTreeMap::<PathBuf, Image>::new();
        for (index, operation) in self.0.iter().enumerate() {
            let is_sync = matches!(operation, Operation::Sync(_));
            if is_sync {
                at(&Cut { position: Position(index), files: &files });
            }
            apply(&mut files, index, operation);
            if is_sync {
                at(&Cut { position: Position(index + 1), files: &files });
            }
        }
        at(&Cut { position: Position(self.0.len()), files: &files });
    }
}

fn apply(files: &mut BTreeMap<PathBuf, Image>, index: usize, operation: &Operation) {
    match operation {
        Operation::Open(path) => {
            files.entry(path.clone()).or_default();
        }
        Operation::Write { path, offset, bytes } => {
            let change = Change::Write { offset: *offset as usize, bytes: Arc::clone(bytes) };
            files.entry(path.clone()).or_default().unsynced.push((index, change));
        }
        Operation::Truncate { path, len } => {
            files.entry(path.clone()).or_default().unsynced.push((index, Change::Truncate(*len as usize)));
        }
        Operation::Sync(path) => {
            let image = files.entry(path.clone()).or_default();
            for (_, change) in std::mem::take(&mut image.unsynced) {
                change.apply(&mut image.synced, |_| true);
            }
        }
        Operation::Delete(path) => {
            files.remove(path);
        }
    }
}

impl Change {
    /// Applies it to `content`; of a write only the sectors that `survives` lets through, counted from its start.
    fn apply(&self, content: &mut Vec<u8>, mut survives: impl FnMut(usize) -> bool) {
        match self {
            Change::Truncate(len) => {
                if survives(0) {
                    content.resize(*len, 0);
                }
            }
            Change::Write { offset, bytes } => {
                for (sector, part) in bytes.chunks(SECTOR_BYTES).enumerate() {
                    if survives(sector) {
                        let start = offset + sector * SECTOR_BYTES;
                        let end = start + part.len();
                        if content.len() < end {
                            content.resize(end, 0);
                        }
                        content[start..end].copy_from_slice(part);
                    }
                }
            }
        }
    }
}

impl Cut<'_> {
    /// When in the run it is.
    pub fn position(&self) -> Position {
        self.position
    }

    /// How many operations were not synced at this moment.
    pub fn unsynced(&self) -> usize {
        self.files.values().map(|image| image.unsynced.len()).sum()
    }

    /// Makes the files in the folder `into`, under their own names.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn materialise(&self, survivors: Survivors, into: &Path) -> io::Result<()> {
        let order = self.order();
        for (path, image) in self.files {
            let mut content = image.synced.clone();
            for (index, change) in &image.unsynced {
                change.apply(&mut content, |sector| survivors.let_through(&order, *index, sector));
            }
            if let Some(name) = path.file_name() {
                fs::write(into.join(name), content)?;
            }
        }
        Ok(())
    }

    /// The places in the run of everything that was not synced.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> =
            self.files.values().flat_map(|image| image.unsynced.iter().map(|(index, _)| *index)).collect();
        order.sort_unstable();
        order
    }
}

impl Survivors {
    fn let_through(self, order: &[usize], index: usize, sector: usize) -> bool {
        match self {
            Survivors::None => false,
            Survivors::All => true,
            Survivors::Prefix(seed) => {
                let kept = drawn(seed, order.len(), 0) as usize % (order.len() + 1);
                match order.get(kept) {
                    // The one that was being written when the power went.
                    Some(torn) if *torn == index => sector < drawn(seed, index, 1) as usize % 9,
                    Some(first_lost) => index < *first_lost,
                    None => true,
                }
            }
            Survivors::Sectors(seed) => drawn(seed, index, sector) & 1 == 0,
        }
    }
}

/// A number that depends on all three and on nothing else (splitmix64), so that a failing cut can be made again.
fn drawn(seed: u64, a: usize, b: usize) -> u64 {
    let mut state = seed
        ^ (a as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (b as u64).wrapping_mul(0xd1b5_4a32_d192_ed03);
    for _ in 0..2 {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        state ^= state >> 31;
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> Trace {
        let path = || PathBuf::from("/somewhere/file");
        let write =
            |offset, byte: u8, len| Operation::Write { path: path(), offset, bytes: vec![byte; len].into() };
        Trace(vec![
            Operation::Open(path()),
            write(0, 1, 600),
            Operation::Sync(path()),
            write(0, 2, 1024),
            write(1024, 3, 10),
            Operation::Truncate { path: path(), len: 5 },
        ])
    }

    fn contents(survivors: Survivors) -> Vec<(usize, Vec<u8>)> {
        let mut seen = Vec::new();
        trace().replay(|cut| {
            let dir = tempfile::tempdir().unwrap();
            cut.materialise(survivors, dir.path()).unwrap();
            seen.push((cut.position().0, fs::read(dir.path().join("file")).unwrap()));
        });
        seen
    }

    #[test]
    fn a_disk_holds_what_was_synced_and_nothing_else_for_sure() {
        let ones = vec![1; 600];
        assert_eq!(contents(Survivors::None), [(2, vec![]), (3, ones.clone()), (6, ones)]);
        let all = contents(Survivors::All);
        assert_eq!(all[0], (2, vec![1; 600]));
        assert_eq!(all[2], (6, vec![2; 5]));
    }

    #[test]
    fn a_prefix_is_a_prefix_and_sectors_are_whole() {
        for seed in 0..200 {
            let (_, content) = contents(Survivors::Prefix(seed)).pop().unwrap();
            let kinds = [vec![1; 600], vec![2; 1024], vec![2; 5]];
            let torn = content.len() >= 600 && content[..512] == [2; 512] && content[512..600] == [1; 88];
            let two = content.len() == 1034 && content[..1024] == [2; 1024];
            assert!(kinds.contains(&content) || torn || two, "{seed}: {} bytes", content.len());
        }
        let drawn: Vec<_> =
            (0..200).map(|seed| contents(Survivors::Sectors(seed)).pop().unwrap().1).collect();
        assert!(
            drawn
                .iter()
                .any(|content| content.starts_with(&[1; 512]) && content[512..].starts_with(&[2; 512]))
        );
        assert!(drawn.iter().all(|content| {
            content.chunks(512).all(|part| part[..part.len().min(88)].iter().all(|b| *b == part[0]))
        }));
    }
}
