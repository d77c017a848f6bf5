//! The cost of a job, as a ratio to a floor that is measured in the same run.
//!
//! `make bench` prints three tables: ratios of times, those of latencies, and figures without a
//! floor. The last line says which rows missed their limits. The exit code is 0 even then, since
//! machines differ. An argument selects the rows whose name contains it: `make bench
//! ARGS=straggler`.
//!
//! Machines are noisy, so nothing is compared across runs. Each ratio is the quotient of two
//! medians of seven rounds, beside the lowest and the highest ratio of a round. The floor and the
//! subject take turns in one process, whose CPU time is printed beside each time. The job is a
//! no-op whose payload is its index.
//!
//! * **no-op**: beside one message through a bounded crossbeam channel (1024) with one producer and
//!   one consumer. Nothing that hands jobs from one thread to another can cost less.
//! * **by hand**: beside what a user would write instead: a channel of jobs to the threads, one
//!   back, and a set of the jobs that are done.
//! * **without read**: the same with a source that does not implement `read`, so that its jobs are
//!   read one by one. Also beside the same consumer of a source that does.
//! * **failing source**: sources that fail now and then, beside ones that never do. See
//!   `failing.rs`.
//! * **gaps**: sources whose indices have gaps, beside one without. See `gaps.rs`.
//! * **observed**: the no-op with an observer, beside the same without one. An observer costs two
//!   reads of the clock and two calls for each job; other consumers do not pay for it.
//! * **in order**: results in the order of their jobs. See `ordered.rs`.
//! * **no-op in batches**: jobs in batches of 256, beside the same jobs one by one.
//! * **async**: jobs that are futures, beside `buffer_unordered` with the same futures on the same
//!   runtime. See `asynchronous.rs`.
//! * **by key**: jobs of a key in order. See `keys.rs`.
//! * **straggler**: the pure core with the first job stuck, so that every other job finishes above
//!   the watermark. The cost of a completion must not depend on the width of the window.
//! * **RocksDB**: progress in RocksDB instead of in memory.
//! * **put per job**: a job that puts 100 bytes as an effect, which is one write with the job's
//!   completion. Beside the same puts in the same order by hand, 256 in a batch, on one thread,
//!   without any progress. Synced: beside a flush for each put.
//! * **put + add per job**: the same with a counter that each job adds to, beside such writes by
//!   hand, whose counters are in memory.
//! * **queue**: jobs of a queue, beside a loop on RocksDB by hand. See `queue.rs`.
//! * **queue: push** and **queue: run**: an option of a job, beside jobs without it. See
//!   `options.rs`.
//! * **sqlite**: results that are written into SQLite in one transaction with the progress, beside
//!   the same statements by hand. See `sqlite.rs`.
//! * **SQLite**: a store on SQLite, beside the same rows by hand. See `on_sqlite.rs`.
//! * **slow source**: a source that takes a millisecond for each call, read in runs of 64 instead
//!   of one by one.
//!
//! The page `costs` has figures of two virtual cores. A job costs about three hops: a lock, the
//! window, and moving the job. Earlier designs cost more: 5 to 8 hops before workers read a quick
//! source themselves and were woken only when the awake ones did not cope, and 5 to 24 hops when
//! every job woke a sleeping thread.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use waterline::window::{Action, Limits, Window};
use waterline::{Index, MemoryProgress};

// The bench needs its progress alone.
#[allow(dead_code)]
#[path = "../../examples/sqlite/adapter.rs"]
mod adapter;
#[cfg(feature = "tokio")]
mod asynchronous;
mod batched;
#[path = "../raw/cost.rs"]
mod cost;
#[cfg(any(feature = "rocksdb", feature = "sqlite"))]
#[path = "../raw/counted.rs"]
mod counted;
#[cfg(feature = "rocksdb")]
mod effects;
mod failing;
mod figures;
mod floors;
mod gaps;
mod keys;
mod late;
#[path = "../raw/latencies.rs"]
mod latencies;
mod latency;
#[cfg(feature = "rocksdb")]
mod log;
#[path = "../../tests/memory/measures.rs"]
mod measures;
#[cfg(feature = "sqlite")]
mod on_sqlite;
#[cfg(feature = "rocksdb")]
mod options;
mod ordered;
mod ours;
#[path = "../compare/protocol/src/lib.rs"]
#[allow(dead_code, missing_docs)]
mod protocol;
#[cfg(feature = "rocksdb")]
mod queue;
#[cfg(feature = "rocksdb")]
#[path = "../raw/rocksdb.rs"]
mod raw_rocksdb;
#[cfg(feature = "sqlite")]
#[path = "../raw/sqlite.rs"]
mod raw_sqlite;
#[cfg(any(feature = "rocksdb", feature = "sqlite"))]
mod resume;
mod sources;
mod sqlite;
#[cfg(feature = "rocksdb")]
mod store;
mod table;

use self::cost::{Cost, Stopwatch};
use self::ours::{JOBS, SLOW_JOBS, consume, consume_from, consume_observed, consume_slowly};
use self::sources::OneByOne;
use self::table::{Row, Table};

const COMPLETIONS: u64 = 1_000_000;

/// Completes a million jobs in the pure core, in windows of this width whose first job is stuck.
fn straggle(width: u64) -> Cost {
    let limits = Limits { max_processing: 64, max_search_ahead: width };
    let begun = Stopwatch::now();
    for _ in 0..COMPLETIONS / width {
        let mut window = Window::begin(0, limits);
        window.handle_head(Some(Index::MAX - 1));
        let mut completed = 0;
        while completed < width - 1 {
            while let Some(action) = window.poll() {
                if let Action::Fetch(run) = action {
                    window.handle_fetched(run.end() - run.start() + 1);
                }
            }
            while let Some(run) = window.poll_run() {
                if run.index > 0 {
                    black_box(window.handle_done(run.index));
                    completed += 1;
                }
            }
        }
        assert_eq!((window.done_ahead(), window.lowest_undone()), (width - 1, 0));
    }
    begun.elapsed()
}

fn main() {
    // Cargo adds its own `--bench`.
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let table = Table { wanted, limited: Cell::default(), missed: RefCell::default() };
    let heads = ("per job, wall / CPU", "floor", "ours", "ratio", "of each round", "at most");
    println!(
        "| {:<46} | {:>34} | {:>20} | {:>5} | {:>13} | {:>7} |",
        heads.0, heads.1, heads.2, heads.3, heads.4, heads.5
    );
    println!("|{:-<48}|{:->36}|{:->22}|{:->7}|{:->15}|{:->9}|", "", ":", ":", ":", ":", ":");
    for max_processing in [1, 2, 8, 64, 1024] {
        let name = format!("no-op, max_processing {max_processing}");
        let row = Row { name: &name, floor: "hop", times: JOBS, most: 4.0 };
        table.row(row, || floors::hop(JOBS), || consume(MemoryProgress::new(), max_processing));
    }
    for threads in [1, 2] {
        let name = format!("no-op, max_processing {threads}, by hand");
        let row = Row { name: &name, floor: "two channels", times: JOBS, most: 1.0 };
        table.row(row, || floors::by_hand(JOBS, threads), || consume(MemoryProgress::new(), threads));
    }
    for threads in [1, 2, 8] {
        let name = format!("without read, max_processing {threads}, by hand");
        let row = Row { name: &name, floor: "two channels", times: JOBS, most: 1.5 };
        let ours = || consume_from(OneByOne(JOBS), MemoryProgress::new(), threads);
        table.row(row, || floors::by_hand(JOBS, threads), ours);
        let name = format!("without read, max_processing {threads}");
        let row = Row { name: &name, floor: "with read", times: JOBS, most: 2.0 };
        table.row(row, || consume(MemoryProgress::new(), threads), ours);
    }
    for (threads, most) in [(1, 15.0), (2, 30.0)] {
        let name = format!("observed, max_processing {threads}");
        let row = Row { name: &name, floor: "nobody listens", times: JOBS, most };
        table.row(row, || consume(MemoryProgress::new(), threads), || consume_observed(threads));
    }
    ordered::rows(&table);
    batched::rows(&table);
    gaps::rows(&table);
    keys::rows(&table);
    failing::rows(&table);
    sqlite::rows(&table);
    #[cfg(feature = "sqlite")]
    on_sqlite::rows(&table);
    #[cfg(feature = "tokio")]
    asynchronous::rows(&table);
    for width in [10_000, 100_000, 1_000_000] {
        let name = format!("straggler, window {width}");
        let row = Row { name: &name, floor: "window 1000", times: COMPLETIONS, most: 2.0 };
        table.row(row, || straggle(1_000), || straggle(width));
    }
    #[cfg(feature = "rocksdb")]
    {
        on_rocksdb(&table);
        effects::rows(&table);
        log::rows(&table);
        queue::rows(&table);
        options::rows(&table);
        store::rows(&table);
    }
    let row = Row { name: "slow source, in runs", floor: "one by one", times: SLOW_JOBS, most: 0.1 };
    table.row(row, || consume_slowly(false), || consume_slowly(true));
    latency::print(&table);
    figures::print(&table);
    println!("\n{}", table.verdict());
}

#[cfg(feature = "rocksdb")]
fn on_rocksdb(table: &Table) {
    use waterline::{Durability, Store};
    for (durability, most) in [(Durability::Buffered, 1.2), (Durability::Synced, 1.5)] {
        let dir = tempfile::tempdir().expect("a directory for the database");
        let store = Store::options().durability(durability).open(dir.path()).expect("the database opens");
        let round = Cell::new(0);
        let name = format!("progress in RocksDB, {durability:?}");
        let row = Row { name: &name, floor: "memory", times: JOBS, most };
        table.row(
            row,
            || consume(MemoryProgress::new(), 2),
            || {
                round.set(round.get() + 1);
                consume(store.progress(format!("round {}", round.get())), 2)
            },
        );
    }
}
