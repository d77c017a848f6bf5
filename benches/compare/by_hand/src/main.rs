//! What a user writes by hand: a channel of jobs to some threads, one back, a set of what finished
//! out of order, and a window of 10,000. It has no retries and no status.

use crossbeam_channel::{Receiver, bounded, unbounded};
use protocol::{Answer, Finished, InOrder, Question, Saved, Shape, Task, WINDOW, result};
use std::process::ExitCode;

const CHANNEL: usize = 1_024;
const LATENCIES: u64 = 2_000;

fn main() -> ExitCode {
    let about = "{crossbeam-channel}: threads, bounded channels of 1,024, a set, a window of 10,000";
    protocol::answer(&[("by hand", about.to_owned())], |question| match question.word("question") {
        "stream" => stream(question),
        "pushed" => pushed(),
        "seen" => seen(question),
        _ => Answer::None("not asked"),
    })
}

fn stream(question: &Question) -> Answer {
    let (task, jobs, ordered) = (Task::of(question), question.jobs(), question.shape() == Shape::Ordered);
    let (saved, first) = Saved::open(&question.directory());
    protocol::timed(|| {
        let (hand, jobs_in) = bounded::<u64>(CHANNEL);
        let (report, reports) = bounded::<u64>(CHANNEL);
        std::thread::scope(|scope| {
            for _ in 0..question.in_flight() {
                let (jobs_in, report, task) = (jobs_in.clone(), report.clone(), task.clone());
                scope.spawn(move || {
                    jobs_in.iter().try_for_each(|index| {
                        task.run(index);
                        report.send(index)
                    })
                });
            }
            drop((jobs_in, report));
            let (mut next, mut finished, mut sink) = (first, Finished::from(first), InOrder::from(first));
            while finished.watermark() < jobs {
                while next < jobs && next - finished.watermark() < WINDOW && hand.try_send(next).is_ok() {
                    next += 1;
                }
                let Ok(index) = reports.recv() else { break };
                for index in std::iter::once(index).chain(reports.try_iter()) {
                    saved.set(finished.note(index));
                    if ordered {
                        sink.put(index, result(index));
                    }
                }
            }
            drop(hand);
        });
        drop(saved);
    })
}

/// Measures a push to a thread that waits.
fn pushed() -> Answer {
    let (hand, jobs) = bounded::<u64>(CHANNEL);
    let (say, said) = unbounded();
    let worker = std::thread::spawn(move || jobs.iter().try_for_each(|index| say.send(index)));
    let answer = protocol::each_timed(LATENCIES, |index| {
        hand.send(index).expect("the thread lives");
        assert_eq!(said.recv(), Ok(index));
    });
    drop(hand);
    _ = worker.join().expect("it does not panic");
    answer
}

/// Measures from the end of a job to a thread that waits for the watermark: a report to the thread
/// that keeps the set, and its message to the waiting one.
fn seen(question: &Question) -> Answer {
    if question.word("store") != "memory" {
        return Answer::None("its file is written each millisecond");
    }
    let (report, reports) = bounded::<u64>(CHANNEL);
    let (say, said) = unbounded();
    let keeper = std::thread::spawn(move || {
        let mut finished = Finished::default();
        reports.iter().try_for_each(|index| say.send(finished.note(index)))
    });
    let wait = |said: &Receiver<u64>, index| while said.recv().expect("the thread lives") <= index {};
    let answer = protocol::each_timed(LATENCIES, |index| {
        report.send(index).expect("the thread lives");
        wait(&said, index);
    });
    drop(report);
    _ = keeper.join().expect("it does not panic");
    answer
}
