//! Order by key, beside the same jobs without it.
//!
//! * *by keys that all differ*, *by one key*: jobs that do nothing. With keys no job goes through
//!   the handoff buffer, so the floor has an observer, which rules it out, too. Jobs of one key are
//!   handed from one worker to the next one, so that they cost three of such jobs.
//! * *by keys like words*: jobs of a millisecond, 16 at once, whose keys are as frequent as words
//!   (Zipf). Nothing can take less time than the jobs of the most frequent key, one after the
//!   other.
//! * *state by key*: jobs of one key that read its row and write it back, each in a save of its
//!   own, beside a loop on one thread that does the same.

use crate::cost::{Cost, Stopwatch};
use crate::ours::JOBS;
use crate::sources::Numbers;
use crate::table::{Row, Table};
use std::hint::black_box;
use std::time::Duration;
use waterline::{Consumer, Index, MemoryProgress, Store};

/// Jobs of a millisecond, and the number of their keys.
const WORDS: u64 = 3_000;
const KEYS: usize = 1_000;
/// Jobs that read and write the row of their key.
const STATES: u64 = 20_000;

pub(crate) fn rows(table: &Table) {
    let row = Row { name: "no-op, by keys that all differ", floor: "observed no-op", times: JOBS, most: 1.6 };
    table.row(row, || consume(None), || consume(Some(|index| index)));
    let row = Row { name: "no-op, by one key", floor: "observed no-op", times: JOBS, most: 4.0 };
    table.row(row, || consume(None), || consume(Some(|_| 0)));
    let words = words();
    let most_frequent = words.iter().filter(|key| **key == 0).count();
    let row = Row { name: "1 ms jobs by keys like words", floor: "most frequent key", times: WORDS, most: 1.05 };
    table.row(row, || one_after_the_other(most_frequent), || consume_words(&words));
    let row = Row { name: "state by key, all of one key", floor: "Store::write", times: STATES, most: 80.0 };
    table.row(row, writes, states);
}

fn consume(key: Option<fn(Index) -> Index>) -> Cost {
    let begun = Stopwatch::now();
    let builder = Consumer::builder(Numbers(JOBS), MemoryProgress::new()).max_processing(4).stop_at(JOBS - 1);
    let builder = match key {
        Some(key) => builder.ordered_by(move |index| Some(key(*index))),
        None => builder.observe(|event: &waterline::Event<'_>| _ = black_box(event)),
    };
    let consumer = builder.start(|job| Ok(_ = black_box(job.payload)));
    consumer.and_then(Consumer::join).expect("jobs that do not fail");
    begun.elapsed()
}

/// Returns the key of each job: the n-th most frequent one has n-th of the jobs of the first.
fn words() -> Vec<usize> {
    let mut random = fastrand::Rng::with_seed(7);
    let whole: f64 = (1..=KEYS).map(|rank| 1.0 / rank as f64).sum();
    let draw = |_| {
        let mut left = random.f64() * whole;
        (0..KEYS).find(|rank| {
            left -= 1.0 / (rank + 1) as f64;
            left <= 0.0
        })
    };
    (0..WORDS).map(draw).map(|key| key.unwrap_or(KEYS - 1)).collect()
}

fn a_millisecond() {
    std::thread::park_timeout(Duration::from_millis(1));
}

fn one_after_the_other(jobs: usize) -> Cost {
    let begun = Stopwatch::now();
    (0..jobs).for_each(|_| a_millisecond());
    begun.elapsed()
}

fn consume_words(words: &[usize]) -> Cost {
    let words = words.to_vec();
    let begun = Stopwatch::now();
    let consumer = Consumer::builder(Numbers(WORDS), MemoryProgress::new())
        .max_processing(16)
        .stop_at(WORDS - 1)
        .ordered_by(move |index| words.get(*index as usize).copied())
        .start(|_| {
            a_millisecond();
            Ok(())
        });
    consumer.and_then(Consumer::join).expect("jobs that do not fail");
    begun.elapsed()
}

fn writes() -> Cost {
    let store = Store::in_memory();
    let rows = store.table("rows").expect("the name is valid");
    let begun = Stopwatch::now();
    for index in 0..STATES {
        let before = rows.get("key").expect("it is there");
        black_box(before);
        store.write(|effects| effects.put(&rows, "key", index.to_be_bytes())).expect("it is written");
    }
    begun.elapsed()
}

fn states() -> Cost {
    let store = Store::in_memory();
    let rows = store.table("rows").expect("the name is valid");
    let begun = Stopwatch::now();
    let consumer = Consumer::builder(Numbers(STATES), store.progress("p"))
        .max_processing(4)
        .stop_at(STATES - 1)
        .ordered_by(|_| Some(0))
        .start_transactional(move |job, effects| {
            black_box(rows.get("key")?);
            Ok(effects.put(&rows, "key", job.index.to_be_bytes())?)
        });
    consumer.and_then(Consumer::join).expect("jobs that do not fail");
    begun.elapsed()
}
