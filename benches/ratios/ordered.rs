//! Results in the order of their jobs, beside a program by hand: a channel of jobs to the threads,
//! one of results back, and a map of those whose turn has not come.

use crate::cost::{Cost, Stopwatch};
use crate::ours::JOBS;
use crate::sources::Numbers;
use crate::table::{Row, Table};
use crossbeam_channel::bounded;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};
use waterline::{Consumer, Index, MemoryProgress};

/// Fewer jobs that take this long than of those that do nothing.
const FEW: u64 = 20_000;
const LONG: Duration = Duration::from_micros(10);

fn work(index: Index, time: Duration) -> Index {
    let begun = Instant::now();
    while !time.is_zero() && begun.elapsed() < time {}
    black_box(index)
}

fn by_hand(jobs: u64, threads: usize, time: Duration) -> Cost {
    let begun = Stopwatch::now();
    let (hand, jobs_in) = bounded::<Index>(1024);
    let (report, reports) = bounded::<(Index, Index)>(1024);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (jobs_in, report) = (jobs_in.clone(), report.clone());
            scope.spawn(move || jobs_in.iter().try_for_each(|index| report.send((index, work(index, time)))));
        }
        drop((jobs_in, report));
        let (mut next, mut turn, mut waiting) = (0, 0, BTreeMap::new());
        while turn < jobs {
            while next < jobs && next - turn < 1024 && hand.try_send(next).is_ok() {
                next += 1;
            }
            waiting.extend([reports.recv().expect("the threads live")]);
            waiting.extend(reports.try_iter());
            while let Some(result) = waiting.remove(&turn) {
                black_box(result);
                turn += 1;
            }
        }
        drop(hand);
    });
    begun.elapsed()
}

fn ours(jobs: u64, max_processing: usize, time: Duration) -> Cost {
    let begun = Stopwatch::now();
    let builder = Consumer::builder(Numbers(jobs), MemoryProgress::new()).max_processing(max_processing);
    let consumer = builder.max_search_ahead(100_000).stop_at(jobs - 1).start_ordered(
        move |job| Ok(work(job.payload, time)),
        |_, result| {
            black_box(result);
            Ok(())
        },
    );
    consumer.and_then(Consumer::join).expect("jobs that do nothing do not fail");
    begun.elapsed()
}

pub fn rows(table: &Table) {
    for (what, jobs, time, most) in [("no-op", JOBS, Duration::ZERO, 1.5), ("10 µs", FEW, LONG, 1.25)] {
        for threads in [2, 8] {
            let name = format!("in order, {what}, max_processing {threads}");
            let row = Row { name: &name, floor: "by hand", times: jobs, most };
            table.row(row, || by_hand(jobs, threads, time), || ours(jobs, threads, time));
        }
    }
}
