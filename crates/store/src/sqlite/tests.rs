use crate::conformance::{self, Place};

use super::*;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn options(&self) -> SqliteOptions {
        SqliteOptions::new(self.0.path().join("keys.db"))
    }
}

impl Place for Folder {
    fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(SqliteStore::open(self.options())?))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sqlite_passes_the_conformance_suite() {
    conformance::run(Folder::new).await;
}
