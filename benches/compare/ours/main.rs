//! The columns of `make compare` that need the crate, or one of its databases: our own, and loops
//! by hand on RocksDB and on SQLite.
//!
//! It is a program of the workspace, so that RocksDB is compiled once. The others have lock files
//! of their own. Everything is at its default, except for what a question sets: the jobs in flight,
//! the engine, and whether each write is flushed.

mod asked;
#[path = "../../raw/cost.rs"]
#[allow(dead_code)]
mod cost;
#[path = "../../raw/counted.rs"]
mod counted;
#[path = "../../raw/latencies.rs"]
mod latencies;
mod latency;
mod log;
mod once;
#[path = "../protocol/src/lib.rs"]
#[allow(dead_code, missing_docs)]
mod protocol;
mod queue;
#[cfg(feature = "rocksdb")]
#[path = "../../raw/rocksdb.rs"]
#[allow(dead_code)]
mod raw_rocksdb;
#[cfg(feature = "sqlite")]
#[path = "../../raw/sqlite.rs"]
#[allow(dead_code)]
mod raw_sqlite;
mod stream;

use std::process::ExitCode;

fn main() -> ExitCode {
    let ours = "this version with its defaults";
    let about = [
        ("waterline", [ours, ", on {rocksdb} (its default), Buffered; the source has `read`"].concat()),
        ("without read", format!("{ours}; the source has `at_index` alone")),
        ("async", format!("{ours}; jobs are futures on tokio's default runtime")),
        ("on RocksDB", format!("{ours}, Buffered; Synced where each write is flushed")),
        ("on SQLite", format!("{ours}, Buffered; Synced where each write is flushed")),
        ("queue on RocksDB", format!("{ours}, Buffered")),
        ("queue on SQLite", format!("{ours}, Buffered")),
        ("a write a job", "one thread, each job and the progress in a write".to_owned()),
        ("256 a write", "one thread, 256 jobs and the progress in a write".to_owned()),
        ("10,000 a write", "one thread, 10,000 jobs and the progress in a write".to_owned()),
        ("rayon, 10,000 a write", "{rayon} computes 10,000 jobs in parallel, then one write".to_owned()),
        ("SQLite NORMAL", "{rusqlite}, WAL, synchronous = NORMAL, prepared statements, one thread".to_owned()),
        ("SQLite FULL", "the same with synchronous = FULL".to_owned()),
        (
            "raw RocksDB",
            "{rocksdb}, one thread, the reads and writes of our queue by hand; each write in the WAL".to_owned(),
        ),
        ("raw SQLite", "{rusqlite}, one thread, the reads and writes of our queue by hand; WAL, NORMAL".to_owned()),
    ];
    protocol::answer(&about, |question| match question.word("question") {
        "stream" => stream::answer(question),
        "once" => once::answer(question),
        "log" => log::answer(question),
        "queue" => queue::answer(question),
        "pushed" => latency::pushed(question),
        "seen" => latency::seen(question),
        _ => asked::OTHER,
    })
}
