//! Two handles on one file: all the rules, asked of both in turn.

use super::*;

/// One store through two handles, as two processes have them, asked in turn.
struct TwoProcesses {
    handles: [SqliteStore; 2],
    last: AtomicU32,
}

impl TwoProcesses {
    fn next(&self) -> &SqliteStore {
        &self.handles[self.last.fetch_add(1, Ordering::Relaxed) as usize % 2]
    }
}

impl Store for TwoProcesses {
    fn capability(&self) -> Capability {
        self.next().capability()
    }

    fn now(&self) -> Result<Wall, StoreError> {
        self.next().now()
    }

    fn load<'a>(&'a self, address: &'a Address) -> StoreFuture<'a, Option<Record>> {
        self.next().load(address)
    }

    fn write_if<'a>(&'a self, address: &'a Address, write: &'a Write) -> StoreFuture<'a, Written> {
        self.next().write_if(address, write)
    }

    fn remove_if<'a>(&'a self, address: &'a Address, guard: RemoveIf) -> StoreFuture<'a, bool> {
        self.next().remove_if(address, guard)
    }

    fn due<'a>(&'a self, due: Due, now: Wall, limit: usize) -> StoreFuture<'a, Vec<(Address, Record)>> {
        self.next().due(due, now, limit)
    }

    fn locate<'a>(&'a self, namespace: &'a Namespace, status: StatusId) -> StoreFuture<'a, Option<Address>> {
        self.next().locate(namespace, status)
    }

    fn end_resource<'a>(
        &'a self,
        namespace: &'a Namespace,
        account: &'a Account,
        resource: &'a ResourceId,
        expires_at: Wall,
    ) -> StoreFuture<'a, usize> {
        self.next().end_resource(namespace, account, resource, expires_at)
    }

    fn list<'a>(
        &'a self,
        filter: &'a Filter,
        cursor: Option<&'a Address>,
        limit: usize,
    ) -> StoreFuture<'a, Vec<(Address, Record)>> {
        self.next().list(filter, cursor, limit)
    }

    fn census<'a>(&'a self) -> StoreFuture<'a, Census> {
        self.next().census()
    }

    fn count_day<'a>(&'a self, day: retrysafe_core::orphans::Day) -> StoreFuture<'a, ()> {
        self.next().count_day(day)
    }

    fn days<'a>(&'a self) -> StoreFuture<'a, Vec<retrysafe_core::orphans::Day>> {
        self.next().days()
    }

    fn journals(&self) -> Option<&dyn crate::journal::Journal> {
        self.next().journals()
    }
}

struct SharedFolder(Folder);

impl Place for SharedFolder {
    fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        let open =
            || SqliteStore::open(SqliteOptions { busy_timeout: Duration::from_secs(60), ..self.0.options() });
        Ok(Arc::new(TwoProcesses { handles: [open()?, open()?], last: AtomicU32::new(0) }))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r11_two_processes_on_one_file_pass_the_conformance_suite_as_one_store() {
    conformance::run(|| SharedFolder(Folder::new())).await;
}
