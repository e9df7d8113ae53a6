//! Looking at the place of the file before SQLite does, whose own messages name no cause.

use std::path::Path;

use rustix::{
    fs::{Access, access},
    io::Errno,
};

use super::OpenError;

/// # Errors
/// The folder is missing, the path is a folder, or neither can be written.
pub(super) fn check(path: &Path) -> Result<(), OpenError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        return Err(OpenError::NoFolder { folder: folder.to_owned() });
    }
    if path.is_dir() {
        return Err(OpenError::IsFolder { path: path.to_owned() });
    }
    // Asked, not tried: opening and closing the file would take SQLite's locks from every other handle of this process.
    match access(path, Access::READ_OK | Access::WRITE_OK) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(Errno::ACCESS | Errno::ROFS | Errno::PERM) => {
            return Err(OpenError::ReadOnly { path: path.to_owned() });
        }
        Err(error) => return Err(OpenError::Io { path: path.to_owned(), source: error.into() }),
    }
    if let Some(kind) = network_file_system(folder) {
        tracing::warn!(
            path = %path.display(),
            "the store is on a network file system ({kind}): its locks and syncs may not hold, move it to a local disk"
        );
    }
    Ok(())
}

/// The name of the network file system that `folder` is on, if it is a known one.
#[cfg(target_os = "linux")]
fn network_file_system(folder: &Path) -> Option<&'static str> {
    /// Numbers of `statfs(2)`.
    const NETWORK: [(u32, &str); 6] = [
        (0x6969, "NFS"),
        (0x517b, "SMB"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB 2"),
        (0x5346_414f, "AFS"),
        (0x0102_1997, "9P"),
    ];
    let found = rustix::fs::statfs(folder).ok()?;
    // The type is as wide as a word of the machine, the numbers are 32 bits.
    let kind = found.f_type as u32;
    NETWORK.iter().find(|(number, _)| *number == kind).map(|(_, name)| *name)
}

#[cfg(not(target_os = "linux"))]
fn network_file_system(_folder: &Path) -> Option<&'static str> {
    None
}
