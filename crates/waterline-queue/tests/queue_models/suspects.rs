//! Suspects: jobs whose process died more than once while they ran, and which now run alone.

use common::queues::{Bench, DAY, MINUTE, SECOND, in_lives, job, noon};
use common::{ends, rest};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use waterline::Retry;
use waterline::testing::FaultyStore;
use waterline_queue::{
    Accept, Clock, DrainLimits, JobState, Lease, Limit, LimitOf, NewJob, Outcome, Priority, Queue, QueueOptions, Rate,
    Runner, Waits,
};

/// A bench whose process has died twice while these jobs ran. None has been claimed since.
fn suspects<const N: usize>(ids: [&str; N], options: QueueOptions) -> Bench {
    let mut bench = Bench::on_disk(FaultyStore::new().unwrap(), &Clock::manual(noon()), options);
    bench.queue.push_all(ids.map(|id| job(id).key(id))).unwrap();
    for _ in 0..2 {
        let leases: Vec<_> = ids.iter().map(|_| bench.claim()).collect();
        let next = bench.next_life();
        drop(leases);
        bench = next;
    }
    bench.clock.advance(MINUTE);
    bench
}

fn runs_alone(bench: &Bench, id: &str) -> bool {
    bench.info(id).runs_alone
}

#[test]
fn only_the_job_that_kills_its_process_dies() {
    in_lives(|mut bench| {
        let ids = ["a", "b", "killer", "c", "d", "e", "f", "g"];
        bench.queue.push_all(ids.map(job)).unwrap();
        let mut deaths = 0;
        while bench.waiting() > 0 {
            bench.clock.advance(5 * MINUTE);
            let mut leases: Vec<Lease> = std::iter::from_fn(|| bench.accept()).collect();
            if leases.iter().any(|lease| lease.id() == "killer") {
                deaths += 1;
                assert!(leases.len() == if deaths <= 2 { 8 } else { 1 }, "{leases:?} run beside it");
                bench = bench.next_life();
            } else {
                leases.iter_mut().for_each(|lease| assert!(lease.finish(None).is_ok()));
            }
        }
        assert_eq!((deaths, bench.state("killer"), bench.queue.counts().dead), (5, Some(JobState::Dead), 1));
    });
}

#[test]
fn a_suspect_begins_alone_and_holds_back_all_others() {
    let bench = suspects(["s"], QueueOptions::default());
    assert!(runs_alone(&bench, "s"));
    bench.push(job("urgent").priority(Priority::High));
    let mut urgent = bench.take("urgent");
    bench.none();
    bench.push(job("later").priority(Priority::High));
    bench.none();
    let status = bench.queue.status().unwrap();
    assert!(matches!(&status.waits, Waits::Alone { runs: false, oldest, .. } if oldest == "urgent"), "{status}");
    assert!(status.to_string().contains("begins no job until those that run have ended"), "{status}");
    urgent.finish(None).unwrap();
    // Nothing runs, so the order is the usual one.
    bench.finish("later");
    bench.push(job("later"));
    let mut alone = bench.take("s");
    bench.none();
    let status = bench.queue.status().unwrap();
    assert!(status.to_string().contains("has run the job \"s\" alone for"), "{status}");
    alone.finish(None).unwrap();
    bench.finish("later");
}

#[test]
fn an_attempt_clears_a_suspect_until_the_next_crash() {
    let bench = suspects(["s"], QueueOptions::default().retry(Retry::fixed(SECOND)));
    bench.push(job("other"));
    bench.take("s").retry("it fails").unwrap();
    assert_eq!((runs_alone(&bench, "s"), bench.info("s").crashes), (false, 2));
    bench.clock.advance(SECOND);
    let (_other, _beside) = (bench.take("other"), bench.take("s"));
    let bench = bench.next_life();
    assert_eq!((runs_alone(&bench, "s"), runs_alone(&bench, "other")), (true, false));
}

#[test]
fn a_moved_suspect_stays_one_and_a_requeued_one_does_not() {
    let bench = suspects(["moved", "buried", "late"], QueueOptions::default());
    bench.push(job("moved").delay(SECOND));
    assert!(runs_alone(&bench, "moved"));
    // It dies without another attempt, which would have cleared it.
    bench.push(job("late").expires(MINUTE).delay(DAY));
    assert!(runs_alone(&bench, "late"));
    bench.clock.advance(MINUTE);
    assert_eq!(bench.state("late"), Some(JobState::Dead));
    assert!(bench.queue.requeue("late").unwrap() && !runs_alone(&bench, "late"));
    bench.queue.remove("late").unwrap();
    bench.take("buried").bury("no way").unwrap();
    assert!(!runs_alone(&bench, "buried"));
    assert!(bench.queue.requeue("buried").unwrap());
    bench.clock.advance(SECOND);
    let mut alone = bench.claim();
    bench.none();
    alone.finish(None).unwrap();
    bench.finish(if alone.id() == "moved" { "buried" } else { "moved" });
}

#[test]
fn a_suspect_that_leaves_holds_back_no_job() {
    for leaves in [
        |queue: &Queue| queue.remove("s").unwrap(),
        |queue: &Queue| drop(queue.push(job("s").key("s").delay(DAY)).unwrap()),
    ] {
        let bench = suspects(["s"], QueueOptions::default());
        bench.push(job("first").priority(Priority::High));
        let _first = bench.take("first");
        bench.push(job("next"));
        bench.none();
        leaves(&bench.queue);
        bench.finish("next");
    }
}

#[test]
fn a_held_or_early_suspect_runs_alone_too() {
    let limited = QueueOptions::default().limit(Limit::each_key().at_once(1));
    let bench = suspects(["s"], limited);
    bench.push(job("same key").key("s").priority(Priority::High));
    let mut same = bench.take("same key");
    bench.push(job("other"));
    // It stays in place, since the others must end first anyway.
    bench.none();
    same.finish(None).unwrap();
    let _alone = bench.take("s");
    bench.none();

    // Its key has no token when its turn comes, so that limit holds it.
    let rate = Rate::new(1, 10 * SECOND).burst(3);
    let bench = suspects(["s"], QueueOptions::default().limit(Limit::each_key().rate(rate)));
    bench.push(job("dear").key("s").cost(3).priority(Priority::High));
    bench.finish("dear");
    bench.push(job("other"));
    let mut other = bench.take("other");
    assert_eq!(bench.info("s").held_by, Some(LimitOf::Key("s".into())));
    bench.clock.advance(30 * SECOND);
    bench.none();
    other.finish(None).unwrap();
    let _alone = bench.take("s");
    bench.none();

    let bench = suspects(["s"], QueueOptions::default());
    bench.push(job("s").key("s").delay(MINUTE));
    bench.push(job("other"));
    let mut other = bench.take("other");
    let early = || bench.queue.accept(Accept::new().max_run_at(bench.info("s").run_at.unwrap())).unwrap();
    assert!(early().is_none());
    other.finish(None).unwrap();
    let _alone = early().expect("nothing else runs");
    bench.push(job("after it"));
    bench.none();
}

#[test]
fn a_runner_runs_suspects_one_by_one_then_fills_its_slots() {
    let bench = suspects(["a", "b", "c"], QueueOptions::default());
    bench.queue.push_all((0..20).map(|n| NewJob::new("k", &n).unwrap())).unwrap();
    let is_alone = std::sync::Arc::new(AtomicBool::new(false));
    let flag = is_alone.clone();
    let summary = Runner::builder(&bench.queue)
        .max_processing(4)
        .on("k", move |job, _: u32| {
            let is_suspect = job.id().len() == 1;
            assert!(!flag.swap(is_suspect, Ordering::SeqCst), "{} runs beside a suspect", job.id());
            // Gives the others a chance to begin beside it.
            (0..100).for_each(|_| rest());
            if is_suspect {
                flag.store(false, Ordering::SeqCst);
            }
            Ok(Outcome::Done)
        })
        .drain(DrainLimits::default())
        .unwrap();
    assert_eq!((summary.finished, summary.retried), (23, 0), "{summary}");
}

#[test]
fn the_end_of_a_suspect_wakes_a_waiting_thread() {
    for _ in 0..20 {
        let bench = suspects(["s"], QueueOptions::default());
        bench.push(job("other"));
        let mut alone = bench.take("s");
        let queue = bench.queue.clone();
        let waiting = std::thread::spawn(move || {
            ends("the wait", move || {
                queue.accept(Accept::new().timeout(Duration::MAX)).unwrap().unwrap().id().to_owned()
            })
        });
        // Most likely the thread sleeps by then.
        (0..20).for_each(|_| rest());
        alone.finish(None).unwrap();
        assert_eq!(waiting.join().unwrap(), "other");
    }
}
