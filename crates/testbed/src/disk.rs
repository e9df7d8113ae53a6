//! A file system of its own, small enough to be filled.

use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::tools::run;

/// Room on it.
const SIZE: &str = "size=16m";

/// A disk in memory; gone with this value, whatever is on it.
#[derive(Debug)]
pub struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    /// A new one. Mounting needs root, which tests that start servers have.
    pub fn mount() -> Self {
        let folder =
            tempfile::Builder::new().prefix("retrysafe-disk-").tempdir().expect("a temporary folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", SIZE, "retrysafe-test"]).arg(folder.path());
        run(mount);
        Self { folder }
    }

    /// A folder on it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that is about to end may still have a file open.
        let mut unmount = Command::new("umount");
        unmount.arg("--lazy").arg(self.folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let _ = unmount.status();
    }
}
