//! Looking at the place of the file before SQLite does, whose own messages name no cause.

use std::{fs, io, path::Path};

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
    match fs::OpenOptions::new().append(true).open(path) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            return Err(OpenError::ReadOnly { path: path.to_owned() });
        }
        Err(source) => return Err(OpenError::Io { path: path.to_owned(), source }),
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
