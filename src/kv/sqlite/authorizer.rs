//! The statements that a user may not run in a transaction of ours.

use crate::base::sync::{Arc, AtomicBool, Ordering};
use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

/// True while a statement of the user is prepared or runs.
pub(super) type IsUser = Arc<AtomicBool>;

/// Refuses what would end the transaction, leave the database, or touch a table of ours.
pub(super) fn install(connection: &Connection) -> IsUser {
    let is_user = IsUser::default();
    let asked = is_user.clone();
    let authorize = move |context: AuthContext<'_>| {
        if asked.load(Ordering::Relaxed) && is_forbidden(&context.action) {
            Authorization::Deny
        } else {
            Authorization::Allow
        }
    };
    // Some versions answer with nothing.
    let _installed = connection.authorizer(Some(authorize));
    is_user
}

fn is_forbidden(action: &AuthAction<'_>) -> bool {
    use AuthAction::{
        AlterTable, Analyze, Attach, CreateIndex, CreateTable, CreateTempIndex, CreateTempTable, CreateTempTrigger,
        CreateTempView, CreateTrigger, CreateView, CreateVtable, Delete, Detach, DropIndex, DropTable, DropTrigger,
        DropView, DropVtable, Insert, Pragma, Read, Savepoint, Transaction, Update,
    };
    match action {
        Attach { .. } | Detach { .. } | Pragma { .. } | Savepoint { .. } | Transaction { .. } => true,
        AlterTable { table_name, .. }
        | Analyze { table_name }
        | CreateIndex { table_name, .. }
        | CreateTable { table_name }
        | CreateTempIndex { table_name, .. }
        | CreateTempTable { table_name }
        | CreateTempTrigger { table_name, .. }
        | CreateTrigger { table_name, .. }
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

/// Says that a statement of the user runs, until it is dropped.
pub(super) struct Author<'a>(&'a AtomicBool);

impl<'a> Author<'a> {
    pub(super) fn user(is_user: &'a AtomicBool) -> Self {
        is_user.store(true, Ordering::Relaxed);
        Self(is_user)
    }
}

impl Drop for Author<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
