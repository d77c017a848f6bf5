//! The floors: the programs that a consumer is compared with.

use crate::cost::{Cost, Stopwatch};
use crossbeam_channel::bounded;
use std::collections::BTreeSet;
use std::hint::black_box;
use waterline::Index;

/// Sends messages from one thread to another.
pub(crate) fn hop(jobs: u64) -> Cost {
    let begun = Stopwatch::now();
    let (sender, receiver) = bounded::<Index>(1024);
    std::thread::scope(|scope| {
        scope.spawn(move || (0..jobs).try_for_each(|index| sender.send(index)));
        assert_eq!(receiver.iter().map(black_box).count() as u64, jobs);
    });
    begun.elapsed()
}

/// What a user would write by hand: a channel of jobs to some threads, one back, and a set of the
/// jobs that finished out of order. It has no retries, no saves, and no status.
pub(crate) fn by_hand(jobs: u64, threads: usize) -> Cost {
    let begun = Stopwatch::now();
    let (hand, jobs_in) = bounded::<Index>(1024);
    let (report, reports) = bounded::<Index>(1024);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (jobs_in, report) = (jobs_in.clone(), report.clone());
            scope.spawn(move || jobs_in.iter().map(black_box).try_for_each(|index| report.send(index)));
        }
        drop((jobs_in, report));
        let (mut next, mut watermark, mut done) = (0, 0, BTreeSet::new());
        while watermark < jobs {
            while next < jobs && next - watermark < 1024 && hand.try_send(next).is_ok() {
                next += 1;
            }
            done.insert(reports.recv().expect("the threads live"));
            done.extend(reports.try_iter());
            while done.remove(&watermark) {
                watermark += 1;
            }
        }
        drop(hand);
    });
    begun.elapsed()
}
