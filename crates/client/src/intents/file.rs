//! Intents in a folder: one file each, named by a digest of its key.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};

use super::{Intent, IntentFault, IntentFuture, Intents};
use crate::key::Key;

const ENDING: &str = "intent";
/// A file that is being written; one that is left over belongs to a call that was never sent.
const UNFINISHED: &str = "unfinished";

/// Intents in a folder of their own.
#[derive(Clone, Debug)]
pub struct FileIntents {
    folder: PathBuf,
}

impl FileIntents {
    /// The intents in this folder, which is made where it is not there.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn in_folder(folder: impl Into<PathBuf>) -> io::Result<Self> {
        let folder = folder.into();
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    fn place(&self, key: &Key) -> PathBuf {
        let name = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(key.as_str().as_bytes()));
        self.folder.join(format!("{name}.{ENDING}"))
    }
}

impl Intents for FileIntents {
    fn save<'a>(&'a self, intent: &'a Intent) -> IntentFuture<'a, Result<(), IntentFault>> {
        let (folder, place, intent) = (self.folder.clone(), self.place(&intent.key), intent.clone());
        Box::pin(blocking(move || write(&folder, &place, &intent)))
    }

    fn settle<'a>(&'a self, key: &'a Key) -> IntentFuture<'a, Result<(), IntentFault>> {
        let place = self.place(key);
        Box::pin(blocking(move || match fs::remove_file(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(store(error)),
            _ => Ok(()),
        }))
    }

    fn open(&self, max: usize) -> IntentFuture<'_, Result<Vec<Intent>, IntentFault>> {
        let folder = self.folder.clone();
        Box::pin(blocking(move || {
            let mut open = Vec::new();
            for entry in fs::read_dir(&folder).map_err(store)? {
                let path = entry.map_err(store)?.path();
                if path.extension().is_some_and(|ending| ending == ENDING) {
                    open.push(Intent::from_bytes(&fs::read(&path).map_err(store)?)?);
                }
            }
            open.sort_by_key(|intent: &Intent| intent.opened);
            open.truncate(max);
            Ok(open)
        }))
    }
}

/// Whole or not at all, and durable: content, then name, then the folder that holds the name.
fn write(folder: &Path, place: &Path, intent: &Intent) -> Result<(), IntentFault> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let unfinished = folder.join(format!("{}-{number}.{UNFINISHED}", std::process::id()));
    let bytes = intent.to_bytes()?;
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).open(&unfinished).map_err(store)?;
    file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(store)?;
    // A hard link, unlike a rename, does not replace what another process has written meanwhile.
    let linked = fs::hard_link(&unfinished, place);
    fs::remove_file(&unfinished).map_err(store)?;
    match linked {
        Ok(()) => File::open(folder).and_then(|folder| folder.sync_all()).map_err(store),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let present = Intent::from_bytes(&fs::read(place).map_err(store)?)?;
            if present.same_call(intent) { Ok(()) } else { Err(IntentFault::Changed) }
        }
        Err(error) => Err(store(error)),
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, IntentFault> + Send + 'static,
) -> Result<T, IntentFault> {
    tokio::task::spawn_blocking(work).await.map_err(|error| IntentFault::Store(error.into()))?
}

fn store(error: io::Error) -> IntentFault {
    IntentFault::Store(error.into())
}
