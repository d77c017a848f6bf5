//! Which statements a user may not run in a transaction of ours.

use super::sql::MARK;
use crate::base::sync::{Arc, AtomicBool, Ordering};
use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use std::sync::LazyLock;

/// Watches the statements of a connection.
#[derive(Default)]
pub(super) struct Watch {
    /// True while a statement of the user is prepared or runs.
    is_user: AtomicBool,
    /// True if the last one creates something that is checked once it exists.
    makes: AtomicBool,
}

impl Watch {
    /// Refuses user statements that end the transaction, leave the database, or touch our tables.
    pub(super) fn install(connection: &Connection) -> Arc<Self> {
        let watch = Arc::new(Self::default());
        let asked = watch.clone();
        let authorize = move |context: AuthContext<'_>| {
            if !asked.is_user.load(Ordering::Relaxed) {
                return Authorization::Allow;
            }
            if is_checked_later(&context.action) {
                asked.makes.store(true, Ordering::Relaxed);
            }
            if is_forbidden(&context.action) { Authorization::Deny } else { Authorization::Allow }
        };
        // Some versions return nothing.
        let _installed = connection.authorizer(Some(authorize));
        watch
    }

    /// Runs a call that prepares or runs a statement of the user.
    pub(super) fn user<R>(&self, call: impl FnOnce() -> R) -> R {
        self.makes.store(false, Ordering::Relaxed);
        self.is_user.store(true, Ordering::Relaxed);
        let _author = Author(&self.is_user);
        call()
    }

    /// True if what the last one creates may affect our tables. The name that it gives to a table,
    /// and the inner statements of a trigger, are visible only after it has run.
    pub(super) fn makes(&self) -> bool {
        self.makes.load(Ordering::Relaxed)
    }
}

/// Counts the objects with a name of ours, the triggers that name a table of ours, and the foreign
/// keys that point at one: these would make our writes fail.
pub(super) fn count_ours(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row(&COUNT_OURS, [], |row| row.get(0))
}

static COUNT_OURS: LazyLock<String> = LazyLock::new(|| {
    let things = |of: &str| format!("SELECT type, lower(name) AS name, lower(sql) AS text FROM {of}.sqlite_master");
    format!(
        "{MARK} WITH thing AS ({} UNION ALL {}), ours AS (SELECT * FROM thing WHERE name GLOB 'waterline_*')
         SELECT (SELECT count(*) FROM ours)
             + (SELECT count(*) FROM thing WHERE type = 'trigger'
                AND EXISTS (SELECT 1 FROM ours WHERE instr(thing.text, ours.name)))
             + (SELECT count(*) FROM thing, pragma_foreign_key_list(thing.name) AS key
                WHERE type = 'table' AND lower(key.\"table\") GLOB 'waterline_*')",
        things("main"),
        things("temp")
    )
});

/// True if it creates something that must be checked once it exists.
fn is_checked_later(action: &AuthAction<'_>) -> bool {
    use AuthAction::{AlterTable, CreateTable, CreateTempTable, CreateTempTrigger, CreateTrigger};
    matches!(
        action,
        AlterTable { .. }
            | CreateTable { .. }
            | CreateTempTable { .. }
            | CreateTempTrigger { .. }
            | CreateTrigger { .. }
    )
}

fn is_forbidden(action: &AuthAction<'_>) -> bool {
    use AuthAction::{
        AlterTable, Analyze, Attach, CreateIndex, CreateTable, CreateTempIndex, CreateTempTable, CreateTempTrigger,
        CreateTempView, CreateTrigger, CreateView, CreateVtable, Delete, Detach, DropIndex, DropTable, DropTrigger,
        DropView, DropVtable, Insert, Pragma, Read, Savepoint, Transaction, Update,
    };
    match action {
        Attach { .. } | Detach { .. } | Pragma { .. } | Savepoint { .. } | Transaction { .. } => true,
        CreateIndex { index_name: name, table_name }
        | CreateTempIndex { index_name: name, table_name }
        | CreateTempTrigger { trigger_name: name, table_name }
        | CreateTrigger { trigger_name: name, table_name } => is_ours(name) || is_ours(table_name),
        AlterTable { table_name, .. }
        | Analyze { table_name }
        | CreateTable { table_name }
        | CreateTempTable { table_name }
        | CreateVtable { table_name, .. }
        | Delete { table_name }
        | DropIndex { table_name, .. }
        | DropTable { table_name }
        | DropTrigger { table_name, .. }
        | DropVtable { table_name, .. }
        | Insert { table_name }
        | Read { table_name, .. }
        | Update { table_name, .. } => is_ours(table_name),
        CreateTempView { view_name } | CreateView { view_name } | DropView { view_name } => is_ours(view_name),
        _ => false,
    }
}

fn is_ours(name: &str) -> bool {
    const PREFIX: &[u8] = b"waterline_";
    name.as_bytes().get(..PREFIX.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(PREFIX))
}

/// Marks that a statement of the user is prepared or runs, until it is dropped.
struct Author<'a>(&'a AtomicBool);

impl Drop for Author<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
