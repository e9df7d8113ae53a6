//! What business code may do on the writer's connection, and whether the transaction is still the one that was begun.
//!
//! A handler's closure has the writer's own connection, inside a transaction that it shares with the rest of its batch
//! (protocol 28). Three nets, from the first to the last:
//!
//! 1. **An authorizer.** A statement that would begin, commit or roll back, attach a file, change a setting or touch a
//!    `retrysafe_` table is refused when it is prepared: the handler gets an error, and nobody else notices.
//! 2. **A commit hook.** No commit happens while a handler has the connection, whatever statement it got hold of.
//! 3. **A rollback hook.** A transaction that was rolled back under the batch, by a full disk or by the net above, is
//!    seen even if another one was begun since (protocol 17).

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU8, Ordering},
};

use rusqlite::{
    Connection,
    hooks::{AuthAction, AuthContext, Authorization},
};

/// The beginning of every name that is ours.
const OURS: &str = "retrysafe_";

/// Who has the connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    /// The store.
    Store,
    /// A handler, which reads and writes rows.
    Handler,
    /// Somebody who defines business tables.
    Definition,
}

impl Holder {
    fn number(self) -> u8 {
        match self {
            Holder::Store => 0,
            Holder::Handler => 1,
            Holder::Definition => 2,
        }
    }

    fn of(number: u8) -> Self {
        match number {
            0 => Holder::Store,
            2 => Holder::Definition,
            // What is not known gets the least.
            _ => Holder::Handler,
        }
    }
}

/// Shared with the hooks of the writer's connection.
#[derive(Clone, Default)]
pub(super) struct Watch {
    holder: Arc<AtomicU8>,
    rolled_back: Arc<AtomicBool>,
}

impl Watch {
    /// Puts the hooks on `connection`.
    pub(super) fn over(connection: &mut Connection) -> rusqlite::Result<Watch> {
        let watch = Watch::default();
        let holder = Arc::clone(&watch.holder);
        connection.authorizer(Some(move |asked: AuthContext<'_>| {
            let holder = Holder::of(holder.load(Ordering::Relaxed));
            if allows(holder, &asked) { Authorization::Allow } else { Authorization::Deny }
        }))?;
        let holder = Arc::clone(&watch.holder);
        connection.commit_hook(Some(move || Holder::of(holder.load(Ordering::Relaxed)) != Holder::Store))?;
        let rolled_back = Arc::clone(&watch.rolled_back);
        connection.rollback_hook(Some(move || rolled_back.store(true, Ordering::Relaxed)))?;
        Ok(watch)
    }

    /// A transaction begins.
    pub(super) fn begin(&self) {
        self.rolled_back.store(false, Ordering::Relaxed);
    }

    /// Whether the transaction that was begun is still open on `connection`.
    pub(super) fn is_whole(&self, connection: &Connection) -> bool {
        !connection.is_autocommit() && !self.rolled_back.load(Ordering::Relaxed)
    }

    /// Hands the connection to `holder` until the returned value is dropped, by a panic too.
    pub(super) fn hand_to(&self, holder: Holder) -> Handed<'_> {
        let before = self.holder.swap(holder.number(), Ordering::Relaxed);
        Handed { watch: self, before }
    }
}

/// See [`Watch::hand_to`].
pub(super) struct Handed<'a> {
    watch: &'a Watch,
    before: u8,
}

impl Drop for Handed<'_> {
    fn drop(&mut self) {
        self.watch.holder.store(self.before, Ordering::Relaxed);
    }
}

fn allows(holder: Holder, asked: &AuthContext<'_>) -> bool {
    match holder {
        Holder::Store => true,
        Holder::Handler => allows_rows(&asked.action),
        Holder::Definition => allows_rows(&asked.action) || allows_definition(&asked.action),
    }
}

/// Everything that reads and writes rows of business tables.
fn allows_rows(action: &AuthAction<'_>) -> bool {
    match action {
        AuthAction::Select
        | AuthAction::Read { .. }
        | AuthAction::Function { .. }
        | AuthAction::Recursive => true,
        AuthAction::Insert { table_name }
        | AuthAction::Delete { table_name }
        | AuthAction::Update { table_name, .. } => !is_ours(table_name) && !is_sqlites(table_name),
        // A savepoint of the handler's own, for a part that may fail.
        AuthAction::Savepoint { savepoint_name, .. } => !is_ours(savepoint_name),
        _ => false,
    }
}

/// Everything that defines business tables. A deferred constraint is none of it: it would fail the COMMIT that a handler
/// shares with its whole batch.
fn allows_definition(action: &AuthAction<'_>) -> bool {
    match action {
        AuthAction::CreateTable { table_name }
        | AuthAction::DropTable { table_name }
        | AuthAction::AlterTable { table_name, .. }
        | AuthAction::CreateIndex { table_name, .. }
        | AuthAction::DropIndex { table_name, .. }
        | AuthAction::CreateTrigger { table_name, .. }
        | AuthAction::DropTrigger { table_name, .. }
        | AuthAction::CreateVtable { table_name, .. }
        | AuthAction::DropVtable { table_name, .. }
        | AuthAction::Analyze { table_name } => !is_ours(table_name),
        AuthAction::Insert { table_name }
        | AuthAction::Delete { table_name }
        | AuthAction::Update { table_name, .. } => is_sqlites(table_name),
        AuthAction::CreateView { .. } | AuthAction::DropView { .. } | AuthAction::Reindex { .. } => true,
        _ => false,
    }
}

fn is_ours(name: &str) -> bool {
    starts(name, OURS)
}

fn is_sqlites(name: &str) -> bool {
    starts(name, "sqlite_")
}

/// SQLite's names do not know case.
fn starts(name: &str, prefix: &str) -> bool {
    name.as_bytes().get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
}
