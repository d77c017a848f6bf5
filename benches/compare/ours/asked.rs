//! What the questions share: the store of a run, and the answer to any other question.

use crate::protocol::{Answer, Question};
use waterline::{Durability, Engine, Store};

pub const OTHER: Answer = Answer::None("not asked");

/// Opens the store of this run on this engine; `None` if it was not compiled in.
pub fn open(question: &Question, engine: &str, durability: Durability) -> Option<Store> {
    let engine = match engine {
        "memory" => return Some(Store::in_memory()),
        "rocksdb" if cfg!(feature = "rocksdb") => Engine::RocksDb,
        "sqlite" if cfg!(feature = "sqlite") => Engine::Sqlite,
        _ => return None,
    };
    let options = Store::options().engine(engine).durability(durability);
    Some(options.open(question.directory().join("store")).expect("the directory can be written"))
}

/// The engine in the name of a column.
pub fn engine(column: &str) -> &'static str {
    if column.ends_with("SQLite") { "sqlite" } else { "rocksdb" }
}
