//! The statements: a table per family, with a key and a value in each row.
//!
//! A connection caches statements by their text. The mark in front keeps ours apart from those of a
//! user, who may not touch these tables. The schema name excludes a temporary table of the user.

use crate::base::error::StoreError;
use crate::kv::{LOGS, OURS, TABLES, UNDO, batch::FamilyId};
use std::sync::LazyLock;

/// The mark in front of each text.
pub(super) const MARK: &str = "/* waterline */";

/// The families whose values may be large, with few rows per transaction.
///
/// Their tables have rowids: a tree for the rows, and one for the keys. Without rowids there is one
/// for both. A row of 100 bytes then costs a tenth less to append and a quarter less to read, and a
/// queue's job, which writes many small rows in a transaction of its own, a fifth less. But such a
/// tree keeps at most 1,000 bytes of a row in its page. A longer row takes 3 to 4 times as long to
/// read as with rowids, and up to 5 times as long to write.
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
    /// The rows of a page: ascending and descending, each with and without an end.
    pub(super) page: [String; 4],
}

static SQL: LazyLock<[Sql; 7]> = LazyLock::new(|| OURS.map(Sql::of));

impl Sql {
    fn of(family: &str) -> Self {
        let table = table(family);
        let marked = |text: &str| format!("{MARK} {}", text.replace("{table}", &format!("main.{table}")));
        let rows = |with: &str| marked(&format!("SELECT k, v FROM {{table}} WHERE k >= ?1 {with}"));
        // `REPLACE` overwrites a row without rowid in place, after one look-up. With rowids, it
        // would delete the row and insert another.
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

pub(super) fn table(family: &str) -> String {
    family.replace('.', "_")
}

/// Returns the number of a family. There are none but ours.
pub(super) fn family(name: &str) -> Option<FamilyId> {
    (1..).zip(OURS).find(|(_, family)| *family == name).map(|(id, _)| FamilyId(id))
}

pub(super) fn of(family: FamilyId) -> Result<&'static Sql, StoreError> {
    let number = (family.0 as usize).checked_sub(1);
    number
        .and_then(|number| SQL.get(number))
        .ok_or_else(|| StoreError::new("find its table".to_owned(), format!("there is no family {}", family.0).into()))
}

/// Returns the statements that create the missing tables.
pub(super) fn create() -> String {
    format!("BEGIN IMMEDIATE;\n{}COMMIT;", SQL.iter().map(|sql| &*sql.create).collect::<String>())
}
