//! The secret of fingerprints (protocol 4), in a file of its own beside the store.
//!
//! Not in the store: a dump of the store alone must not let anybody guess bodies from their fingerprints. It is made
//! once, readable by its owner only, and shared by every process on the store.

use std::{
    fs::{self, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use retrysafe_core::fingerprint::{DeploymentKey, FingerprintKeys};

/// The number of a secret that was made here. Rotation adds others.
const FIRST: u32 = 1;

/// Why there is no secret. None repeats it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileFault {
    /// The store has records that only the lost secret can compare.
    #[error(
        "the store {store} is there, but its key file {file} is not: without it no retry of an earlier request can be \
         recognised. Bring the file back, name it, or move the store away"
    )]
    Lost {
        /// The key file.
        file: PathBuf,
        /// The store.
        store: PathBuf,
    },
    /// The file cannot be read or made.
    #[error("the key file {file} cannot be read or made: {source}")]
    Io {
        /// The key file.
        file: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file holds something else.
    #[error("the key file {file} cannot be used: {why}")]
    Unusable {
        /// The key file.
        file: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// The fingerprint keys in `file`, made if neither it nor `store` is there yet. Call it before the store is opened.
///
/// # Errors
/// [`KeyFileFault`]. In particular it refuses to make a new secret for a store that lost its own.
pub fn fingerprint_keys_in(
    file: impl AsRef<Path>,
    store: impl AsRef<Path>,
) -> Result<FingerprintKeys, KeyFileFault> {
    let (file, store) = (file.as_ref(), store.as_ref());
    let io = |source| KeyFileFault::Io { file: file.into(), source };
    let unusable =
        |why: &dyn std::fmt::Display| KeyFileFault::Unusable { file: file.into(), why: why.to_string() };
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if store.exists() {
                return Err(KeyFileFault::Lost { file: file.into(), store: store.into() });
            }
            make(file).map_err(io)?;
            fs::read_to_string(file).map_err(io)?
        }
        read => read.map_err(io)?,
    };
    let secret =
        from_hex(text.trim()).ok_or_else(|| unusable(&"it must hold one line of hexadecimal digits"))?;
    let key = DeploymentKey::new(FIRST, &secret).map_err(|error| unusable(&error))?;
    Ok(FingerprintKeys::new(key))
}

/// Of two processes that start together, one makes the file and the other finds it, whole.
fn make(file: &Path) -> std::io::Result<()> {
    let mut secret = [0; DeploymentKey::MIN_BYTES];
    getrandom::fill(&mut secret).map_err(|error| std::io::Error::other(error.to_string()))?;
    let text: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut draft = file.as_os_str().to_owned();
    draft.push(format!(".{}.draft", std::process::id()));
    let mut written = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    written.write_all(format!("{text}\n").as_bytes())?;
    written.sync_all()?;
    let linked = fs::hard_link(&draft, file);
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_is_made_once_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (file, store) = (folder.path().join("s.db.key"), folder.path().join("s.db"));
        fingerprint_keys_in(&file, &store).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let made = fs::read(&file).unwrap();
        make(&file).unwrap();
        fs::write(&store, "").unwrap();
        fingerprint_keys_in(&file, &store).unwrap();
        assert_eq!(fs::read(&file).unwrap(), made, "neither a second start nor a race changes it");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no drafts are left");
    }

    #[test]
    fn a_store_that_lost_its_secret_is_not_opened_with_another() {
        let folder = tempfile::tempdir().unwrap();
        let (file, store) = (folder.path().join("s.db.key"), folder.path().join("s.db"));
        fs::write(&store, "").unwrap();
        assert!(fingerprint_keys_in(&file, &store).is_err());
        assert!(!file.exists());
    }

    #[test]
    fn a_damaged_secret_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("s.db.key");
        for text in ["", "abc", "zz", "00"] {
            fs::write(&file, text).unwrap();
            assert!(fingerprint_keys_in(&file, Path::new("s.db")).is_err(), "{text:?}");
        }
    }
}
