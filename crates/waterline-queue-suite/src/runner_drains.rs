//! Drains and their limits, runners beside callers of accept, and the status of a queue.

use crate::bench::*;
use crate::runner::of;
use crossbeam_channel::{Receiver, bounded, unbounded};
use std::time::Duration;
use waterline_queue::{Accept, DrainLimits, Finisher, JobState, NewJob, Outcome, Queue, Reached, Runner, Waits};

/// Returns a runner full of deferred jobs (`0`, `1`, …), and their finishers.
pub(super) fn full_runner(queue: &Queue, slots: usize) -> (Runner, Receiver<Finisher>) {
    let (begun, finishers) = unbounded();
    let runner = Runner::builder(queue)
        .on_deferred("k", move |_, (), done| begun.send(done).unwrap())
        .max_processing(slots)
        .start()
        .unwrap();
    queue.push_all((0..slots).map(|n| of("k").id(n.to_string()))).unwrap();
    eventually("all slots to be taken", || runner.processing() == slots && finishers.len() == slots);
    (runner, finishers)
}

pub(super) fn a_drain_says_why_it_ended(on: &Benches<'_>) {
    let bench = on.bench();
    let (queue, clock) = bench.handles();
    let builder = || Runner::builder(&queue).on("k", |_, ()| Ok(Outcome::Done));
    let reached = |limits| {
        let summary = builder().drain(limits).unwrap();
        (summary.finished, summary.reached)
    };
    queue.push(of("k").delay(HOUR)).unwrap();
    assert_eq!(reached(DrainLimits::default()), (0, Reached::NothingReady), "a scheduled job stays");
    queue.push_all((0..10).map(|_| of("k"))).unwrap();
    assert_eq!(reached(DrainLimits::default().jobs(0)), (0, Reached::Jobs));
    assert_eq!(reached(DrainLimits::default().jobs(3)), (3, Reached::Jobs));
    assert_eq!(reached(DrainLimits::default().time(Duration::ZERO)), (0, Reached::Time));
    let slow = clock.clone();
    let slow = Runner::builder(&queue)
        .on("k", move |_, ()| {
            slow.advance(SECOND);
            Ok(Outcome::Done)
        })
        .max_processing(1)
        .drain(DrainLimits::default().time(SECOND * 2).jobs(100))
        .unwrap();
    assert_eq!((slow.finished, slow.reached, slow.elapsed), (2, Reached::Time, SECOND * 2));
    queue.pause(None).unwrap();
    assert_eq!(reached(DrainLimits::default()), (0, Reached::Paused));
    queue.resume().unwrap();
    assert_eq!(reached(DrainLimits::default().jobs(100)), (5, Reached::NothingReady));
    let text = builder().drain(DrainLimits::default()).unwrap().to_string();
    assert_eq!(text, "0 finished, 0 to be tried again, 0 not ready, 0 dead, 0 lost in 0.0ns: no job is ready");
}

pub(super) fn a_drain_runs_what_its_jobs_push_up_to_its_limit(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = &bench.queue;
    for max_processing in [1, 2, 4] {
        queue.push(NewJob::new("k", &6).unwrap()).unwrap();
        let pushes = queue.clone();
        let builder = move |queue: &Queue| {
            let pushes = pushes.clone();
            Runner::builder(queue)
                .on("k", move |_, depth: u32| {
                    if depth > 0 {
                        pushes.push_all((0..2).map(|_| NewJob::new("k", &(depth - 1)).unwrap()))?;
                    }
                    Ok(Outcome::Done)
                })
                .max_processing(max_processing)
        };
        let first = builder(queue).drain(DrainLimits::default().jobs(17)).unwrap();
        assert_eq!((first.finished, first.reached), (17, Reached::Jobs));
        let rest = builder(queue).drain(DrainLimits::default().jobs(1000)).unwrap();
        assert_eq!((rest.finished, rest.reached), (127 - 17, Reached::NothingReady));
    }
}

pub(super) fn a_drain_runs_what_its_last_teardown_pushes(on: &Benches<'_>) {
    let bench = on.bench();
    for _ in 0..10 {
        let pushes = bench.queue.clone();
        let runner = Runner::builder(&bench.queue)
            .on("first", |_, ()| Ok(Outcome::Done))
            .on("next", |_, ()| Ok(Outcome::Done))
            .teardown(move |job, _| {
                if job.kind() == "first" {
                    // The other thread may find no job meanwhile.
                    (0..20).for_each(|_| rest());
                    pushes.push(of("next")).unwrap();
                }
            })
            .max_processing(2);
        bench.push(of("first"));
        let drained = runner.drain(DrainLimits::default()).unwrap();
        assert_eq!((drained.finished, drained.reached), (2, Reached::NothingReady));
    }
}

pub(super) fn a_drain_at_its_limit_uses_up_no_wake_up(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = &bench.queue;
    for _ in 0..20 {
        let (begun, finishers) = unbounded::<Finisher>();
        let builder = Runner::builder(queue).on_deferred("k", move |_, (), done| begun.send(done).unwrap());
        let builder = builder.max_processing(4);
        queue.push(of("k")).unwrap();
        let drain = std::thread::spawn(move || builder.drain(DrainLimits::default().jobs(2)).unwrap());
        let first = finishers.recv_timeout(LONG).unwrap();
        let (sender, accepted) = bounded(1);
        let accepts = queue.clone();
        std::thread::spawn(move || {
            let mut lease = accepts.accept(Accept::new().timeout(Duration::MAX)).unwrap().unwrap();
            lease.finish(None).unwrap();
            sender.send(()).unwrap();
        });
        // This job or the next is the last one of the drain.
        queue.push(of("k")).unwrap();
        eventually("the second job to be taken", || queue.counts().ready == 0);
        queue.push(of("k")).unwrap();
        accepted.recv_timeout(LONG).expect("it is woken");
        first.complete();
        finishers.recv_timeout(LONG).unwrap().complete();
        assert_eq!(drain.join().unwrap().finished, 2);
    }
}

pub(super) fn a_runner_and_accept_loops_share_the_jobs(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = bench.queue.clone();
    let (said, says) = unbounded();
    let runs = said.clone();
    let runner = Runner::builder(&queue)
        .on("k", move |job, ()| {
            runs.send(job.id().to_owned()).unwrap();
            Ok(Outcome::Done)
        })
        .max_processing(2)
        .start()
        .unwrap();
    let loops: Vec<_> = (0..2)
        .map(|_| {
            let (queue, said) = (queue.clone(), said.clone());
            std::thread::spawn(move || {
                while let Some(mut lease) = queue.accept(Accept::new().timeout(MINUTE)).unwrap() {
                    said.send(lease.id().to_owned()).unwrap();
                    lease.finish(None).unwrap();
                }
            })
        })
        .collect();
    for n in 0..300 {
        queue.push(of("k").id(n.to_string())).unwrap();
    }
    let mut seen: Vec<u32> = (0..300).map(|_| says.recv_timeout(LONG).unwrap().parse().unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..300).collect::<Vec<_>>());
    runner.stop().unwrap();
    queue.pause(None).unwrap();
    drop((queue, loops));
}

pub(super) fn a_push_wakes_an_accept_beside_a_full_runner(on: &Benches<'_>) {
    let bench = on.bench();
    for _ in 0..20 {
        let queue = &bench.queue;
        let (runner, finishers) = full_runner(queue, 2);
        let (sender, accepted) = bounded(1);
        let acceptor = std::thread::spawn({
            let queue = queue.clone();
            move || {
                let mut lease = queue.accept(Accept::new().timeout(Duration::MAX)).unwrap().unwrap();
                sender.send(lease.id().to_owned()).unwrap();
                lease.finish(None).unwrap();
            }
        });
        // Most likely it sleeps by then. The test is right otherwise, too, and proves less.
        (0..20).for_each(|_| rest());
        queue.push(of("k").id("a")).unwrap();
        assert_eq!(accepted.recv_timeout(LONG).unwrap(), "a");
        acceptor.join().unwrap();
        finishers.iter().take(2).for_each(Finisher::complete);
        runner.stop().unwrap();
    }
}

pub(super) fn a_full_runner_promotes_due_jobs_and_expires_leases(on: &Benches<'_>) {
    let bench = on.bench();
    let (queue, clock) = bench.handles();
    let (runner, finishers) = full_runner(&queue, 2);
    queue.push(of("k").id("later").delay(SECOND)).unwrap();
    queue.push(of("k").id("silent")).unwrap();
    let lease = queue.accept(Accept::new()).unwrap().unwrap();
    clock.advance(SECOND);
    until(&queue, "later", JobState::Ready);
    clock.advance(HOUR);
    until(&queue, "silent", JobState::Scheduled);
    drop(lease);
    finishers.iter().take(2).for_each(Finisher::complete);
    until(&queue, "later", JobState::Running);
    finishers.recv_timeout(LONG).unwrap().complete();
    runner.stop().unwrap();
}

pub(super) fn the_status_says_what_the_queue_waits_for(on: &Benches<'_>) {
    let bench = on.bench();
    let (queue, clock) = bench.handles();
    let says = |text: &str| {
        let status = queue.status().unwrap().to_string();
        assert!(status.starts_with(&format!("the queue \"q\" {text}")), "{status}");
    };
    says("has no job that is ready or scheduled (");
    queue.push(of("k").id("removed").delay(SECOND)).unwrap();
    queue.push(of("k").id("later").delay(MINUTE)).unwrap();
    queue.remove("removed").unwrap();
    says("has no job that is ready; the next one is due in 60.0s (scheduled 1");
    clock.advance(MINUTE);
    says(match bench.can().one_process {
        true => "has jobs that are due, and no runner and no caller of accept: start one",
        // Other processes may have one.
        false => "has jobs that are due, and no worker is heard of yet",
    });
    queue.push(of("k").id("first")).unwrap();
    clock.advance(SECOND * 5);
    let status = queue.status().unwrap();
    assert_eq!(status.waits, Waits::NoWorker);
    assert!(status.oldest_ready.is_some_and(|(_, age)| age == SECOND * 5));
    queue.pause(Some(MINUTE)).unwrap();
    says("is paused for another 60.0s");
    queue.pause(None).unwrap();
    says("is paused until somebody resumes it");
    queue.resume().unwrap();
    let (begun, finishers) = unbounded::<Finisher>();
    let builder = Runner::builder(&queue).on_deferred("k", move |_, (), done| begun.send(done).unwrap());
    let runner = builder.max_processing(1).start().unwrap();
    let done = finishers.recv_timeout(LONG).unwrap();
    clock.advance(SECOND * 7);
    says("has all 1 slots busy; its oldest job, ");
    assert!(matches!(queue.status().unwrap().waits, Waits::Busy { slots: 1, since, .. } if since == SECOND * 7));
    done.complete();
    finishers.recv_timeout(LONG).unwrap().complete();
    eventually("both to end", || queue.counts().finished == 2);
    runner.stop().unwrap();
    says("has no job that is ready or scheduled (");
}
