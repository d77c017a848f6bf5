//! The statements: a table for each family, with the key and the value of each row.
//!
//! A connection keeps statements by their texts. The mark in front makes the texts differ from
//! those of a user, who may not touch these tables. The name of the database keeps a temporary
//! table of a user out of them.

use crate::base::error::StoreError;
use crate::kv::batch::FamilyId;
use crate::kv::{LOGS, OURS, TABLES, UNDO};
use std::sync::LazyLock;

/// The mark in front of each text.
pub(super) const MARK: &str = "/* waterline */";

/// The families whose values may be large, and are not many in each transaction.
///
/// Their tables have rowids: the rows lie in a tree of their own, and a second tree has the keys.
/// Without rowids there is one tree for both. A row of 100 bytes then costs a tenth less to append
/// and a quarter less to read, and a job of a queue, which writes many small rows alone in a
/// transaction, a fifth less. But such a tree keeps no more than 1,000 bytes of a row in its page.
/// A longer row takes 3 to 4 times as long to read as one in a table with rowids, and up to 5 times
/// as long to write: most where it is little longer.
const LARGE: [&str; 3] = [TABLES, LOGS, UNDO];

/// The statements for one family.
pub(super) struct Sql {
    pub(super) table: String,
    create: String,
    pub(super) get: String,
    pub(super) put: String,
    pub(super) delete: String,
    pub(super) delete_range: String,
    pub(super) range: String,
    pub(super) last: String,
    pub(super) last_open: String,
    /// The rows of a page: in ascending and in descending order, each with an end and without one.
    pub(super) page: [String; 4],
}

static SQL: LazyLock<[Sql; 7]> = LazyLock::new(|| OURS.map(Sql::of));

impl Sql {
    fn of(family: &str) -> Self {
        let table = table(family);
        let marked = |text: &str| format!("{MARK} {}", text.replace("{table}", &format!("main.{table}")));
        let rows = |with: &str| marked(&format!("SELECT k, v FROM {{table}} WHERE k >= ?1 {with}"));
        // One that replaces a row without rowid overwrites it where it is, and looks for it once.
        // Where there are rowids, it would delete the row and make another one.
        let (without, put) = if LARGE.contains(&family) {
            ("", "INSERT INTO {table} (k, v) VALUES (?1, ?2) ON CONFLICT (k) DO UPDATE SET v = excluded.v")
        } else {
            (" WITHOUT ROWID", "REPLACE INTO {table} (k, v) VALUES (?1, ?2)")
        };
        Self {
            create: format!(
                "CREATE TABLE IF NOT EXISTS main.{table} (k BLOB NOT NULL PRIMARY KEY, v BLOB NOT NULL){without};\n"
            ),
            get: marked("SELECT v FROM {table} WHERE k = ?1"),
            put: marked(put),
            delete: marked("DELETE FROM {table} WHERE k = ?1"),
            delete_range: marked("DELETE FROM {table} WHERE k >= ?1 AND k < ?2"),
            range: rows("AND k < ?2 ORDER BY k"),
            last: marked("SELECT k FROM {table} WHERE k >= ?1 AND k < ?2 ORDER BY k DESC LIMIT 1"),
            last_open: marked("SELECT k FROM {table} WHERE k >= ?1 ORDER BY k DESC LIMIT 1"),
            page: [
                rows("AND k < ?3 ORDER BY k LIMIT ?2"),
                rows("ORDER BY k LIMIT ?2"),
                rows("AND k < ?3 ORDER BY k DESC LIMIT ?2"),
                rows("ORDER BY k DESC LIMIT ?2"),
            ],
            table,
        }
    }
}

/// Returns the name of a family's table.
pub(super) fn table(family: &str) -> String {
    family.replace('.', "_")
}

/// Returns the number of one of our families. There are no others.
pub(super) fn family(name: &str) -> Option<FamilyId> {
    (1..).zip(OURS).find(|(_, family)| *family == name).map(|(id, _)| FamilyId(id))
}

/// Returns the statements for a family.
pub(super) fn of(family: FamilyId) -> Option<&'static Sql> {
    SQL.get((family.0 as usize).checked_sub(1)?)
}

pub(super) fn no_family(family: FamilyId) -> StoreError {
    StoreError::new("find its table".to_owned(), format!("there is no family {}", family.0).into())
}

/// Returns the statements that make all tables which are not there.
pub(super) fn create() -> String {
    format!("BEGIN IMMEDIATE;\n{}COMMIT;", SQL.iter().map(|sql| &*sql.create).collect::<String>())
}
