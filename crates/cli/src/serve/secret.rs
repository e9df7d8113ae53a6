//! The secret of fingerprints (protocol 4), in a file of its own beside the store.
//!
//! Not in the store: a dump of the store alone must not let anybody guess bodies from their fingerprints. It is made
//! once, readable by its owner only, and shared by every process on the store.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use retrysafe_core::fingerprint::{DeploymentKey, FingerprintKeys};

use crate::failure::Failure;

/// The number of a secret that was made here. Rotation adds others.
const FIRST: u32 = 1;

/// The secret in `file`, made if neither it nor the store is there yet.
pub(crate) fn read_or_make(file: &Path, store: &Path) -> Result<FingerprintKeys, Failure> {
    let fault = |what: &str, error: &dyn std::fmt::Display| {
        Failure::runtime(format!("the key file {} cannot be {what}: {error}", file.display()))
    };
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if store.exists() {
                return Err(Failure::usage(format!(
                    "the store {} is there, but its key file {} is not: without it every retry of a request made before would \
                     be taken for another request. Bring the file back, name it with --key-file, or move the store away",
                    store.display(),
                    file.display()
                )));
            }
            make(file).map_err(|error| fault("made", &error))?;
            fs::read_to_string(file).map_err(|error| fault("read", &error))?
        }
        read => read.map_err(|error| fault("read", &error))?,
    };
    let secret =
        from_hex(text.trim()).ok_or_else(|| fault("used", &"it must hold one line of hexadecimal digits"))?;
    let key = DeploymentKey::new(FIRST, &secret).map_err(|error| fault("used", &error))?;
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
        read_or_make(&file, &store).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let made = fs::read(&file).unwrap();
        make(&file).unwrap();
        fs::write(&store, "").unwrap();
        read_or_make(&file, &store).unwrap();
        assert_eq!(fs::read(&file).unwrap(), made, "neither a second start nor a race changes it");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no drafts are left");
    }

    #[test]
    fn a_store_that_lost_its_secret_is_not_opened_with_another() {
        let folder = tempfile::tempdir().unwrap();
        let (file, store) = (folder.path().join("s.db.key"), folder.path().join("s.db"));
        fs::write(&store, "").unwrap();
        assert!(read_or_make(&file, &store).is_err());
        assert!(!file.exists());
    }

    #[test]
    fn a_damaged_secret_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("s.db.key");
        for text in ["", "abc", "zz", "00"] {
            fs::write(&file, text).unwrap();
            assert!(read_or_make(&file, Path::new("s.db")).is_err(), "{text:?}");
        }
    }
}
