//! The database of a store, opened without the store: to read its bytes, and to put wrong ones.

use crate::engine::engine;
use std::path::Path;
use waterline::Engine;
use waterline::fuzzing::DiskRecord;

/// A database that no store has open.
pub enum Raw {
    #[cfg(feature = "rocksdb")]
    RocksDb(rocksdb::DB),
    #[cfg(feature = "sqlite")]
    Sqlite(rusqlite::Connection),
}

impl Raw {
    /// Opens the database in this directory, on the engine of the tests.
    #[must_use]
    pub fn open(path: &Path) -> Self {
        Self::make(path, &[] as &[&str])
    }

    /// Opens a database to read it, even beside a process that has it open.
    #[must_use]
    pub fn look(path: &Path) -> Self {
        #[cfg(feature = "rocksdb")]
        if engine() == Some(Engine::RocksDb) {
            let options = rocksdb::Options::default();
            let names = rocksdb::DB::list_cf(&options, path).unwrap();
            return Self::RocksDb(rocksdb::DB::open_cf_for_read_only(&options, path, names, false).unwrap());
        }
        Self::open(path)
    }

    /// The same as [`Raw::open`], and makes these families if they are missing.
    #[must_use]
    pub fn make(path: &Path, families: &[impl AsRef<str>]) -> Self {
        match engine() {
            #[cfg(feature = "rocksdb")]
            Some(Engine::RocksDb) => {
                let mut options = rocksdb::Options::default();
                options.create_if_missing(true);
                options.create_missing_column_families(true);
                let mut names = rocksdb::DB::list_cf(&options, path).unwrap_or_default();
                names.extend(families.iter().map(|name| name.as_ref().to_owned()));
                names.push("default".to_owned());
                names.sort_unstable();
                names.dedup();
                Self::RocksDb(rocksdb::DB::open_cf(&options, path, names).unwrap())
            }
            #[cfg(feature = "sqlite")]
            Some(Engine::Sqlite) => {
                let connection = rusqlite::Connection::open(path.join("waterline.sqlite")).unwrap();
                // As the store sets it.
                connection.pragma_update(None, "journal_mode", "WAL").unwrap();
                for family in families {
                    let table = table(family.as_ref());
                    let make = "(k BLOB NOT NULL PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID";
                    connection.execute_batch(&format!("CREATE TABLE IF NOT EXISTS {table} {make}")).unwrap();
                }
                Self::Sqlite(connection)
            }
            other => panic!("{other:?} has no database on a disk"),
        }
    }

    #[must_use]
    pub fn get(&self, family: &str, key: &[u8]) -> Option<Vec<u8>> {
        match self {
            #[cfg(feature = "rocksdb")]
            Self::RocksDb(db) => db.get_cf(&db.cf_handle(family).unwrap(), key).unwrap(),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(connection) => {
                use rusqlite::OptionalExtension as _;
                let get = format!("SELECT v FROM {} WHERE k = ?1", table(family));
                connection.query_row(&get, [key], |row| row.get(0)).optional().unwrap()
            }
        }
    }

    pub fn put(&self, family: &str, key: &[u8], value: &[u8]) {
        match self {
            #[cfg(feature = "rocksdb")]
            Self::RocksDb(db) => db.put_cf(&db.cf_handle(family).unwrap(), key, value).unwrap(),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(connection) => {
                let put = format!("INSERT OR REPLACE INTO {} (k, v) VALUES (?1, ?2)", table(family));
                connection.execute(&put, [key, value]).unwrap();
            }
        }
    }

    #[must_use]
    pub fn families(&self) -> Vec<String> {
        let mut names: Vec<String> = match self {
            #[cfg(feature = "rocksdb")]
            Self::RocksDb(db) => rocksdb::DB::list_cf(&rocksdb::Options::default(), db.path()).unwrap(),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(connection) => {
                let mut names = connection.prepare("SELECT name FROM sqlite_master WHERE type = 'table'").unwrap();
                let names = names.query_map([], |row| row.get::<_, String>(0)).unwrap();
                names.map(|name| name.unwrap().replacen('_', ".", 1)).collect()
            }
        };
        names.sort_unstable();
        names
    }

    /// Returns all records, ordered by family and key.
    #[must_use]
    pub fn records(&self) -> Vec<DiskRecord> {
        let mut records = Vec::new();
        for family in self.families() {
            match self {
                #[cfg(feature = "rocksdb")]
                Self::RocksDb(db) => {
                    for pair in db.iterator_cf(&db.cf_handle(&family).unwrap(), rocksdb::IteratorMode::Start) {
                        let (key, value) = pair.unwrap();
                        records.push((family.clone(), key.into_vec(), value.into_vec()));
                    }
                }
                #[cfg(feature = "sqlite")]
                Self::Sqlite(connection) => {
                    let mut rows = connection.prepare(&format!("SELECT k, v FROM {}", table(&family))).unwrap();
                    let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
                    records.extend(rows.map(Result::unwrap).map(|(key, value)| (family.clone(), key, value)));
                }
            }
        }
        records.sort_unstable();
        records
    }
}

#[cfg(feature = "sqlite")]
fn table(family: &str) -> String {
    family.replace('.', "_")
}
