//! Latencies of one job at a time, while all threads sleep, compared with the program by hand: one
//! channel to a thread, and one back.
//!
//! * **push → run**: from a push to the job.
//! * **done → seen**: from the report of a job to the caller that waits for the watermark.

use crate::latencies;
use crate::protocol::{Answer, each_timed};
use crate::table::{ROUNDS, Table, median, range};
use crossbeam_channel::bounded;
use std::time::Duration;
use waterline::Store;

/// How many jobs a round has.
const TIMES: u64 = 500;

pub(crate) fn print(table: &Table) {
    let heads = ("latency, p50 (p99)", "two channels", "ours", "ratio", "of each round", "at most");
    println!(
        "\n| {:<30} | {:>20} | {:>20} | {:>5} | {:>13} | {:>7} |",
        heads.0, heads.1, heads.2, heads.3, heads.4, heads.5
    );
    println!("|{:-<32}|{:->22}|{:->22}|{:->7}|{:->15}|{:->9}|", "", ":", ":", ":", ":", ":");
    row(table, "push → run, in memory", 6.0, || latencies::pushed_in_memory(TIMES, 1));
    row(table, "push → run, 8 reads at once", 15.0, || latencies::pushed_in_memory(TIMES, 8));
    row(table, "done → seen, in memory", 4.0, || latencies::seen(&Store::in_memory(), TIMES));
    #[cfg(feature = "rocksdb")]
    {
        let on = |measure: fn(&Store, u64) -> Answer| {
            move || {
                let dir = tempfile::tempdir().expect("a directory for the database");
                measure(&Store::open(dir.path()).expect("the database opens"), TIMES)
            }
        };
        row(table, "done → seen, on RocksDB", 12.0, on(latencies::seen));
        row(table, "push → run, a log", 12.0, on(latencies::pushed_to_log));
        row(table, "push → run, a queue", 20.0, on(latencies::pushed_to_queue));
    }
    #[cfg(feature = "sqlite")]
    {
        let on = |measure: fn(&Store, u64) -> Answer| {
            move || {
                let dir = tempfile::tempdir().expect("a directory for the database");
                measure(&crate::on_sqlite::open(dir.path(), waterline::Durability::Buffered), TIMES)
            }
        };
        row(table, "done → seen, on SQLite", 16.0, on(latencies::seen));
        row(table, "push → run, a log on SQLite", 16.0, on(latencies::pushed_to_log));
        row(table, "push → run, a queue on SQLite", 30.0, on(latencies::pushed_to_queue));
    }
}

/// Measures the channels and the subject in turn, and prints the ratio of their medians.
fn row(table: &Table, name: &str, most: f64, ours: impl Fn() -> Answer) {
    if !table.wants(name) {
        return;
    }
    let rounds: Vec<_> = (0..ROUNDS).map(|_| (percentiles(by_hand()), percentiles(ours()))).collect();
    let of = |latency: fn(&([Duration; 2], [Duration; 2])) -> Duration| {
        median(rounds.iter().map(latency).collect()).as_secs_f64() * 1e6
    };
    let [below, below_most] = [of(|round| round.0[0]), of(|round| round.0[1])];
    let [above, above_most] = [of(|round| round.1[0]), of(|round| round.1[1])];
    let ratios = rounds.iter().map(|(floor, ours)| ours[0].as_secs_f64() / floor[0].as_secs_f64());
    let (ratio, range) = (above / below, range(ratios));
    let [floor, ours] = [format!("{below:.1} ({below_most:.0}) µs"), format!("{above:.1} ({above_most:.0}) µs")];
    println!("| {name:<30} | {floor:>20} | {ours:>20} | {ratio:>5.2} | {range:>13} | {most:>7} |");
    table.note(name, ratio, most);
}

/// Returns the 50th and the 99th percentile.
fn percentiles(answer: Answer) -> [Duration; 2] {
    let Answer::Latencies { mut each, .. } = answer else { unreachable!("it measures latencies") };
    each.sort_unstable();
    [50, 99].map(|percent| each[(each.len() - 1) * percent / 100])
}

fn by_hand() -> Answer {
    let (hand, jobs) = bounded::<u64>(1_024);
    let (say, said) = bounded::<u64>(1_024);
    let worker = std::thread::spawn(move || jobs.iter().try_for_each(|job| say.send(job)));
    let answer = each_timed(TIMES, |number| {
        hand.send(number).expect("the thread lives");
        assert_eq!(said.recv(), Ok(number));
    });
    drop(hand);
    assert_eq!(worker.join().expect("it does not panic"), Ok(()));
    answer
}
