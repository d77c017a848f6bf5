//! Effects that happen exactly once: each job puts a row of 100 bytes and adds to one of a hundred
//! counters, in one write with the progress. By hand, one thread or a pool of rayon computes the
//! jobs, and one write has the effects of many of them.

use crate::protocol::{Answer, Question, Task, timed};
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use std::collections::BTreeMap;
use waterline::{Consumer, Durability, MemoryJobs};

const COUNTERS: u64 = 100;
const ROW: [u8; 100] = [7; 100];

pub(crate) fn answer(question: &Question) -> Answer {
    let engine = question.word("engine");
    let batch = match question.word("column") {
        "waterline" => return ours(question, engine),
        "a write a job" => 1,
        "256 a write" => 256,
        "10,000 a write" | "rayon, 10,000 a write" => 10_000,
        _ => return crate::OTHER,
    };
    match engine {
        #[cfg(feature = "rocksdb")]
        "rocksdb" => by_hand(question, batch, &mut on_rocksdb::Rows::open(question)),
        #[cfg(feature = "sqlite")]
        "sqlite" => by_hand(question, batch, &mut on_sqlite::Rows::open(question)),
        _ => Answer::None("built without it"),
    }
}

fn ours(question: &Question, engine: &str) -> Answer {
    let Some(store) = crate::open(question, engine, Durability::Buffered) else {
        return Answer::None("built without it");
    };
    let [rows, counters] = ["rows", "counters"].map(|name| store.table(name).expect("a good name"));
    let (task, source) = (Task::of(question), (0..question.jobs()).collect::<MemoryJobs<u64>>());
    timed(|| {
        Consumer::builder(source, store.progress("effects"))
            .max_processing(question.in_flight())
            .stop_at(question.jobs() - 1)
            .start_transactional(move |job, effects| {
                task.run(job.payload);
                effects.put(&rows, job.payload.to_be_bytes(), ROW)?;
                Ok(effects.add(&counters, (job.payload % COUNTERS).to_be_bytes(), 1)?)
            })
            .and_then(Consumer::join)
            .expect("the disk takes it");
    })
}

/// The database of a user.
trait Write {
    /// Writes the rows of these jobs, the sums of their adds, and the progress at once.
    fn write(&mut self, jobs: std::ops::Range<u64>, counters: &BTreeMap<u64, i64>);
}

fn by_hand(question: &Question, batch: u64, rows: &mut impl Write) -> Answer {
    let (task, jobs) = (Task::of(question), question.jobs());
    let pool = question.word("column").starts_with("rayon").then(|| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(question.in_flight());
        pool.build().expect("threads start")
    });
    timed(|| {
        let mut counters = BTreeMap::new();
        for first in (0..jobs).step_by(batch as usize) {
            let batch = first..jobs.min(first + batch);
            match &pool {
                Some(pool) => pool.install(|| batch.clone().into_par_iter().for_each(|index| task.run(index))),
                None => batch.clone().for_each(|index| task.run(index)),
            }
            let mut changed = BTreeMap::new();
            for index in batch.clone() {
                let counter: &mut i64 = counters.entry(index % COUNTERS).or_default();
                *counter += 1;
                changed.insert(index % COUNTERS, *counter);
            }
            rows.write(batch, &changed);
        }
    })
}

#[cfg(feature = "rocksdb")]
mod on_rocksdb {
    use super::{Question, ROW, Write};
    use rocksdb::{DB, DBCompressionType, Options, WriteBatch};
    use std::collections::BTreeMap;
    use std::ops::Range;

    pub(super) struct Rows(DB);

    impl Rows {
        pub(super) fn open(question: &Question) -> Self {
            let mut options = Options::default();
            options.create_if_missing(true);
            options.set_compression_type(DBCompressionType::Lz4);
            Self(DB::open(&options, question.directory().join("raw")).expect("the directory can be written"))
        }
    }

    impl Write for Rows {
        fn write(&mut self, jobs: Range<u64>, counters: &BTreeMap<u64, i64>) {
            let mut batch = WriteBatch::default();
            let key = |part: u8, number: u64| [&[part][..], &number.to_be_bytes()].concat();
            batch.put(b"progress", jobs.end.to_be_bytes());
            jobs.for_each(|index| batch.put(key(b'r', index), ROW));
            counters.iter().for_each(|(counter, value)| batch.put(key(b'c', *counter), value.to_be_bytes()));
            self.0.write(batch).expect("the disk takes it");
        }
    }
}

#[cfg(feature = "sqlite")]
mod on_sqlite {
    use super::{Question, ROW, Write};
    use rusqlite::Connection;
    use std::collections::BTreeMap;
    use std::ops::Range;

    pub(super) struct Rows(Connection);

    const TABLES: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;
        CREATE TABLE rows (id INTEGER PRIMARY KEY, value BLOB NOT NULL);
        CREATE TABLE counters (id INTEGER PRIMARY KEY, value INTEGER NOT NULL);
        CREATE TABLE progress (id INTEGER PRIMARY KEY, value INTEGER NOT NULL);";

    impl Rows {
        pub(super) fn open(question: &Question) -> Self {
            let connection = Connection::open(question.directory().join("raw.db")).expect("it can be written");
            connection.execute_batch(TABLES).expect("the file is new");
            Self(connection)
        }
    }

    impl Write for Rows {
        fn write(&mut self, jobs: Range<u64>, counters: &BTreeMap<u64, i64>) {
            let transaction = self.0.transaction().expect("nobody else writes");
            {
                let prepare = |sql: &str| transaction.prepare_cached(sql).expect("the tables are there");
                let mut row = prepare("INSERT INTO rows VALUES (?1, ?2)");
                let mut counter = prepare("INSERT OR REPLACE INTO counters VALUES (?1, ?2)");
                let mut progress = prepare("INSERT OR REPLACE INTO progress VALUES (0, ?1)");
                let written = progress.execute([jobs.end.cast_signed()]).and_then(|_| {
                    jobs.clone().try_for_each(|index| row.execute((index.cast_signed(), ROW)).map(drop))?;
                    counters.iter().try_for_each(|(id, value)| counter.execute((id.cast_signed(), value)).map(drop))
                });
                written.expect("the disk takes it");
            }
            transaction.commit().expect("the disk takes it");
        }
    }
}
