//! The statements: a table for each family, with the key and the value of each row.
//!
//! A connection keeps statements by their texts. The mark in front makes the texts differ from
//! those of a user, who may not touch these tables. They name the database, so a temporary table of
//! the same name is not taken.

use crate::kv::OURS as FAMILIES;
use crate::kv::batch::FamilyId;
use std::sync::LazyLock;

/// The mark in front of each text.
pub(super) const MARK: &str = "/* waterline */";

/// The pattern of the names of our tables.
pub(super) const OURS: &str = "waterline_*";

/// The statements for one family.
pub(super) struct Sql {
    pub(super) table: String,
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

static SQL: LazyLock<[Sql; 7]> = LazyLock::new(|| FAMILIES.map(Sql::of));

impl Sql {
    fn of(family: &str) -> Self {
        let table = table(family);
        let rows = |with: &str| format!("/* waterline */ SELECT k, v FROM main.{table} WHERE k >= ?1 {with}");
        Self {
            get: format!("/* waterline */ SELECT v FROM main.{table} WHERE k = ?1"),
            put: format!(
                "/* waterline */ INSERT INTO main.{table} (k, v) VALUES (?1, ?2) ON CONFLICT (k) DO UPDATE SET v = excluded.v"
            ),
            delete: format!("/* waterline */ DELETE FROM main.{table} WHERE k = ?1"),
            delete_range: format!("/* waterline */ DELETE FROM main.{table} WHERE k >= ?1 AND k < ?2"),
            range: rows("AND k < ?2 ORDER BY k"),
            last: format!(
                "/* waterline */ SELECT k FROM main.{table} WHERE k >= ?1 AND k < ?2 ORDER BY k DESC LIMIT 1"
            ),
            last_open: format!("/* waterline */ SELECT k FROM main.{table} WHERE k >= ?1 ORDER BY k DESC LIMIT 1"),
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
    (1..).zip(FAMILIES).find(|(_, family)| *family == name).map(|(id, _)| FamilyId(id))
}

/// Returns the statements for a family.
pub(super) fn of(family: FamilyId) -> Option<&'static Sql> {
    SQL.get((family.0 as usize).checked_sub(1)?)
}

/// Returns the statements that make all tables which are not there.
pub(super) fn create() -> String {
    let tables = SQL.iter().map(|sql| {
        format!(
            "CREATE TABLE IF NOT EXISTS main.{} (k BLOB NOT NULL PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID;\n",
            sql.table
        )
    });
    format!("BEGIN IMMEDIATE;\n{}COMMIT;", tables.collect::<String>())
}
