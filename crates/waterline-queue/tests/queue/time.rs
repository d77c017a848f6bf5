//! Timed changes without a worker: every call that reads or waits sees them.

use common::queues::{Bench, DAY, MILLI, MINUTE, SECOND, job, noon, on_store};
use common::{ends, rest};
use crossbeam_channel::bounded;
use std::time::Duration;
use waterline::testing::FaultyStore;
use waterline::{Retry, Store};
use waterline_queue::{
    Clock, Group, JobState, Lease, Priority, Queue, QueueChange, QueueOptions, Retention, Subscription, Waits,
};

/// A job whose lease expires after a minute.
fn silent(bench: &Bench) -> Lease {
    bench.push(job("a"));
    bench.claim()
}

fn options() -> QueueOptions {
    QueueOptions::default().lease(MINUTE).retry(Retry::fixed(SECOND)).retention(Retention::For(SECOND)).dead_for(SECOND)
}

#[test]
fn cr5_every_wait_notices_a_silent_worker() {
    type Waiting = fn(&Queue, Subscription) -> bool;
    let waits: [(&str, Waiting); 3] = [
        ("wait_for", |_, mut one| one.wait_for(JobState::Scheduled, Duration::MAX).unwrap().is_some()),
        ("wait_any_for", |queue, one| {
            let mut all = [queue.subscribe("other").unwrap(), one];
            let seen = Subscription::wait_any_for(&mut all, JobState::Scheduled, Duration::MAX).unwrap();
            seen.is_some_and(|(place, _)| place == 1)
        }),
        ("watch", |queue, _| {
            let mut watch = queue.watch();
            let is_it = |change| matches!(change, QueueChange::Job { state: Some(JobState::Scheduled), .. });
            std::iter::from_fn(|| watch.wait(Duration::MAX)).any(is_it)
        }),
    ];
    // On the real clock, no change of the clock wakes the thread.
    for (is_real, is_claimed_before) in [(false, true), (false, false), (true, true), (true, false)] {
        for (name, waits) in waits {
            let clock = if is_real { Clock::default() } else { Clock::manual(noon()) };
            let options = options().lease(if is_real { 20 * MILLI } else { MINUTE });
            // The job must stay scheduled while the thread wakes.
            let bench = Bench::on(Store::in_memory(), &clock, options.retry(Retry::fixed(1000 * DAY)));
            bench.push(job("a"));
            let before = is_claimed_before.then(|| bench.claim());
            bench.push(job("other").priority(Priority::Low));
            let (queue, subscription) = (bench.queue.clone(), bench.queue.subscribe("a").unwrap());
            let (begun, begins) = bounded(1);
            let waiting = std::thread::spawn(move || {
                begun.send(()).unwrap();
                ends(name, move || waits(&queue, subscription))
            });
            begins.recv().unwrap();
            let _lease = before.unwrap_or_else(|| bench.take("a"));
            while !waiting.is_finished() {
                if !is_real {
                    bench.clock.advance(MINUTE);
                }
                rest();
            }
            assert!(waiting.join().unwrap(), "{name}");
        }
    }
}

#[test]
fn a_read_on_a_failing_store_shows_what_is_stored() {
    let disk = FaultyStore::new().unwrap();
    let bench = Bench::on(disk.store(), &Clock::manual(noon()), options());
    let _lease = silent(&bench);
    bench.clock.advance(MINUTE);
    disk.fail(0..);
    assert_eq!((bench.state("a"), bench.queue.counts().running), (Some(JobState::Running), 1));
    assert!(matches!(bench.queue.status().unwrap().waits, Waits::StoreFails { .. }));
    disk.heal();
    assert_eq!(bench.state("a"), Some(JobState::Scheduled));
}

#[test]
fn due_jobs_are_claimed_before_later_pushes() {
    type Push = fn(&Bench);
    let pushes: [(&str, Push); 3] = [
        ("push", |bench| drop(bench.push(job("later")))),
        ("enqueue", |bench| bench.store().write(|all| bench.queue.push_with(all, job("later")).map(drop)).unwrap()),
        ("group", |bench| {
            let group = Group::new(&bench.store()).queue("q", ["k"], bench.options.clone());
            group.open().unwrap().push(job("later")).unwrap();
        }),
    ];
    for (name, push) in pushes {
        on_store(|bench| {
            bench.queue.push_all((0..20).map(|n| job(&format!("due{n:02}")).delay(SECOND))).unwrap();
            bench.clock.advance(SECOND);
            push(&bench);
            for n in 0..20 {
                bench.finish(&format!("due{n:02}"));
            }
            assert_eq!(bench.claim().id(), "later", "{name}");
        });
    }
}

#[test]
fn errors_about_a_job_name_its_queue() {
    let bench = Bench::in_memory(options());
    let mut lease = silent(&bench);
    bench.push(job("b").delay(MINUTE));
    let pushes = [job("a").after(["b"]), job("c").after(["c"])];
    let mut errors: Vec<_> = pushes.map(|job| bench.queue.push(job).unwrap_err()).into();
    errors.push(bench.queue.remove("never").unwrap_err());
    bench.clock.advance(MINUTE);
    errors.push(lease.finish(None).unwrap_err());
    for error in errors {
        assert!(error.to_string().contains("the queue \"q\""), "{error}");
    }
}
