//! The slots of a runner: their number, and long jobs that hold up no others.

use crate::bench::*;
use crate::runner::of;
use crossbeam_channel::{bounded, unbounded};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use waterline_queue::{
    Accept, AttemptEnd, ConfigError, DrainLimits, Finisher, JobState, NewJob, Outcome, QueueError, Runner, Waits,
    WorkerInfo,
};

pub(super) fn max_processing_bounds_running_and_claimed_jobs(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = bench.queue.clone();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let asks = queue.clone();
    queue.push_all((0..300).map(|n| of(if n % 2 == 0 { "direct" } else { "deferred" }))).unwrap();
    let enter = {
        let (running, most) = (running.clone(), most.clone());
        move || {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            most.fetch_max(asks.counts().running as usize, Ordering::SeqCst);
        }
    };
    let (enter_too, running_too) = (enter.clone(), running.clone());
    let drained = Runner::builder(&queue)
        .on("direct", move |_, ()| {
            enter();
            rest();
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(Outcome::Done)
        })
        .on_deferred("deferred", move |_, (), done| {
            enter_too();
            let running = running_too.clone();
            std::thread::spawn(move || {
                running.fetch_sub(1, Ordering::SeqCst);
                done.complete();
            });
        })
        .max_processing(3)
        .drain(DrainLimits::default())
        .unwrap();
    assert_eq!(drained.finished, 300);
    assert!((1..=3).contains(&most.load(Ordering::SeqCst)), "{most:?}");
}

pub(super) fn a_runner_with_fewer_slots_waits_for_its_excess_jobs(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = bench.queue.clone();
    let ((begun, begins), (end, ends)) = (unbounded(), bounded::<()>(0));
    let runner = Runner::builder(&queue)
        .on("k", move |job, ()| {
            begun.send(job.id().to_owned()).unwrap();
            Ok(ends.recv().map_or(Outcome::Done, |()| Outcome::Done))
        })
        .max_processing(4)
        .start()
        .unwrap();
    queue.push_all((0..8).map(|_| of("k"))).unwrap();
    (0..4).for_each(|_| drop(begins.recv_timeout(LONG).unwrap()));
    runner.set_max_processing(2).unwrap();
    assert!(matches!(queue.status().unwrap().waits, Waits::Busy { slots: 2, .. }));
    for (finished, running, ready) in [(1, 3, 4), (2, 2, 4), (3, 2, 3)] {
        end.send_timeout((), LONG).unwrap();
        eventually("an end", || queue.counts().finished == finished);
        // The end that leaves few enough jobs is written with the next claim.
        eventually("the claim", || queue.counts().ready == ready);
        assert_eq!(queue.counts().running, running);
    }
    begins.recv_timeout(LONG).unwrap();
    (0..5).for_each(|_| end.send_timeout((), LONG).unwrap());
    eventually("all to be done", || queue.counts().finished == 8);
    runner.stop().unwrap();
}

pub(super) fn a_deferred_end_is_written_beside_a_long_job(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = bench.queue.clone();
    let ((begun, begins), (end, ends)) = (unbounded(), bounded::<()>(0));
    let (hold, held) = unbounded::<Finisher>();
    let runner = Runner::builder(&queue)
        .on("long", move |_, ()| {
            begun.send(()).unwrap();
            Ok(ends.recv().map_or(Outcome::Done, |()| Outcome::Done))
        })
        .on_deferred("deferred", move |_, (), done| hold.send(done).unwrap())
        .max_processing(4)
        .start()
        .unwrap();
    // Soon there are more jobs than slots, and each thread but one has a long job.
    queue.push_all([of("deferred").id("a"), of("long"), of("long"), of("long")]).unwrap();
    let done = held.recv_timeout(LONG).unwrap();
    (0..3).for_each(|_| begins.recv_timeout(LONG).unwrap());
    runner.set_max_processing(1).unwrap();
    // A surplus thread would leave when it looks for work.
    queue.push(of("long")).unwrap();
    queue.pause(None).unwrap();
    queue.resume().unwrap();
    done.complete();
    until(&queue, "a", JobState::Finished);
    (0..4).for_each(|_| end.send_timeout((), LONG).unwrap());
    runner.stop().unwrap();
}

pub(super) fn jobs_end_while_the_number_of_slots_keeps_changing(on: &Benches<'_>) {
    const ROUNDS: usize = 100;
    let bench = on.bench();
    let queue = bench.queue.clone();
    let (ended, ends_of_jobs) = unbounded();
    let running = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let (enter, leave) = (running.clone(), running.clone());
    let runner = Runner::builder(&queue)
        .on("direct", move |_, ()| {
            enter.1.fetch_max(enter.0.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            rest();
            leave.0.fetch_sub(1, Ordering::SeqCst);
            Ok(Outcome::Done)
        })
        .on_deferred("deferred", |_, (), done| drop(std::thread::spawn(move || done.complete())))
        .teardown(move |_, end| ended.send(end.clone()).unwrap())
        .max_processing(1)
        .start()
        .unwrap();
    for n in 0..ROUNDS {
        queue.push_all([of("direct"), of("deferred")]).unwrap();
        runner.set_max_processing([3, 1, 4, 2, 1][n % 5]).unwrap();
    }
    (0..2 * ROUNDS).for_each(|_| assert_eq!(ends_of_jobs.recv_timeout(LONG).unwrap(), AttemptEnd::Finished));
    assert!((1..=4).contains(&running.1.load(Ordering::SeqCst)), "{running:?}");
    ends("the runner", move || runner.stop().unwrap());
}

pub(super) fn slots_can_be_changed_by_a_handler_but_never_to_zero(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = bench.queue.clone();
    let own = Arc::new(Mutex::new(None::<Runner>));
    let runner = Runner::builder(&queue)
        .on("k", {
            let own = own.clone();
            move |_, ()| {
                own.lock().as_ref().ok_or("no runner")?.set_max_processing(3)?;
                Ok(Outcome::Done)
            }
        })
        .max_processing(1)
        .start()
        .unwrap();
    let refused = runner.set_max_processing(0).unwrap_err();
    assert!(
        matches!(
            refused,
            QueueError::Config(ConfigError::Setting(waterline::ConfigError::Zero { setting: "max_processing", .. }))
        ),
        "{refused}"
    );
    *own.lock() = Some(runner);
    queue.push(of("k").id("a")).unwrap();
    until(&queue, "a", JobState::Finished);
    let runner = own.lock().take().unwrap();
    runner.stop().unwrap();
}

pub(super) fn a_freed_slot_is_filled_while_its_thread_is_busy(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = &bench.queue;
    for _ in 0..20 {
        let (begun, finishers) = unbounded();
        let (release, is_released) = bounded::<()>(0);
        let runner = Runner::builder(queue)
            .on_deferred("deferred", move |_, (), done| begun.send(done).unwrap())
            .on("long", move |_, ()| Ok(is_released.recv().map_or(Outcome::Done, |()| Outcome::Done)))
            .on("short", |_, ()| Ok(Outcome::Done))
            .max_processing(2)
            .start()
            .unwrap();
        queue.push_all([of("deferred"), of("deferred")]).unwrap();
        let finishers: Vec<Finisher> = (0..2).map(|_| finishers.recv_timeout(LONG).unwrap()).collect();
        queue.push(of("long").id("long")).unwrap();
        finishers.into_iter().for_each(Finisher::complete);
        until(queue, "long", JobState::Running);
        queue.push(of("short").id("short")).unwrap();
        until(queue, "short", JobState::Finished);
        drop(release);
        runner.stop().unwrap();
        ["long", "short"].iter().for_each(|id| queue.remove(*id).unwrap());
    }
}

pub(super) fn long_jobs_leave_the_last_slot_to_the_others(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = bench.queue.clone();
    let (release, is_released) = bounded::<()>(0);
    let runner = Runner::builder(&queue)
        .on("long", move |_, ()| Ok(is_released.recv().map_or(Outcome::Done, |()| Outcome::Done)))
        .on("short", |_, ()| Ok(Outcome::Done))
        .max_processing(4)
        .start()
        .unwrap();
    queue.push_all([of("long"), of("long"), of("long")]).unwrap();
    for n in 0..20 {
        let id = format!("short {n}");
        queue.push(of("short").id(&id)).unwrap();
        until(&queue, &id, JobState::Finished);
    }
    // The counts follow the write a moment later than a read does.
    eventually("the end of the last short job to be counted", || queue.counts().running == 3);
    drop(release);
    runner.stop().unwrap();
}

pub(super) fn a_slow_teardown_holds_up_no_other_end_or_claim(on: &Benches<'_>) {
    let bench = on.bench();
    let ((begun, begins), (end, is_ended)) = (unbounded(), bounded::<()>(0));
    let ((told, tells), (release, is_released)) = (unbounded(), bounded::<()>(0));
    let runner = Runner::builder(&bench.queue)
        .on("k", move |_, ()| {
            begun.send(()).unwrap();
            Ok(is_ended.recv().map_or(Outcome::Done, |()| Outcome::Done))
        })
        .teardown(move |job, _| {
            if job.id() == "slow" {
                told.send(()).unwrap();
                let _ = is_released.recv();
            }
        })
        .max_processing(6)
        .start()
        .unwrap();
    let ids = ["slow", "a", "b", "c", "d", "e"];
    bench.queue.push_all(ids.map(|id| of("k").id(id))).unwrap();
    ids.iter().for_each(|_| begins.recv_timeout(LONG).unwrap());
    // More jobs end at once than an engine may write at once.
    drop(end);
    tells.recv_timeout(LONG).unwrap();
    ids.iter().for_each(|id| until(&bench.queue, id, JobState::Finished));
    for id in ["f", "g", "h"] {
        bench.push(of("k").id(id));
        until(&bench.queue, id, JobState::Finished);
    }
    drop(release);
    runner.stop().unwrap();
}

/// Short jobs are claimed several at a time.
pub(super) fn a_long_job_holds_up_no_job_claimed_beside_it(on: &Benches<'_>) {
    const JOBS: u64 = 300;
    const LONG_JOBS: [u64; 5] = [60, 120, 180, 240, JOBS - 5];
    let bench = on.bench();
    let (queue, (ended, ends_of_jobs)) = (bench.queue.clone(), unbounded());
    queue.push_all((0..JOBS).map(|n| NewJob::new("k", &n).unwrap().id(n.to_string()))).unwrap();
    let asks = queue.clone();
    let runner = Runner::builder(&queue)
        .on("k", move |_, n: u64| {
            if LONG_JOBS.contains(&n) {
                let neighbours = (n - 3..n).chain(n + 1..n + 5);
                neighbours.for_each(|n| until(&asks, &n.to_string(), JobState::Finished));
            }
            Ok(Outcome::Done)
        })
        .teardown(move |_, end| ended.send(end.clone()).unwrap())
        .max_processing(6)
        .start()
        .unwrap();
    (0..JOBS).for_each(|_| assert_eq!(ends_of_jobs.recv_timeout(LONG).unwrap(), AttemptEnd::Finished));
    runner.stop().unwrap();
}

pub(super) fn workers_lists_a_runner_until_it_has_stopped(on: &Benches<'_>) {
    let bench = on.bench();
    let (queue, clock) = bench.handles();
    let ((begun, begins), (end, ends)) = (unbounded(), bounded::<()>(0));
    assert_eq!(queue.workers().unwrap(), []);
    let runner = Runner::builder(&queue)
        .on("k", move |_, ()| {
            begun.send(()).unwrap();
            Ok(ends.recv().map_or(Outcome::Done, |()| Outcome::Done))
        })
        .on("other", |_, ()| Ok(Outcome::Done))
        .max_processing(2)
        .start()
        .unwrap();
    let until = |what: &str, is: &dyn Fn(&WorkerInfo) -> bool| {
        eventually(what, || matches!(&queue.workers().unwrap()[..], [worker] if is(worker)));
        queue.workers().unwrap().remove(0)
    };
    until("the runner", &|worker| worker.slots == Some(2) && worker.busy == 0);
    queue.push(of("k").id("a")).unwrap();
    begins.recv_timeout(LONG).unwrap();
    clock.advance(HOUR);
    let worker = until("its job", &|worker| worker.busy == 1);
    assert_eq!((worker.process, worker.language.as_deref()), (Some(std::process::id()), Some("rust")));
    assert_eq!(worker.kinds, Some(vec!["k".to_owned(), "other".to_owned()]));
    assert_eq!((worker.is_stopping, worker.is_silent, worker.newest_ran_for), (false, false, Some(HOUR)));
    let jobs: Vec<_> = worker.jobs.iter().map(|job| (&*job.id, &*job.kind, job.ran_for)).collect();
    assert_eq!(jobs, [("a", "k", HOUR)]);
    runner.set_max_processing(3).unwrap();
    clock.advance(SECOND);
    until("the new slots", &|worker| worker.slots == Some(3));
    let stopped = std::thread::spawn(move || runner.stop());
    until("the stop", &|worker| worker.is_stopping && worker.busy == 1);
    end.send_timeout((), LONG).unwrap();
    stopped.join().unwrap().unwrap();
    assert_eq!(queue.workers().unwrap(), []);
}

pub(super) fn workers_lists_a_caller_of_accept_while_it_has_a_job(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = &bench.queue;
    queue.push_all([of("k").id("a"), of("k").id("b")]).unwrap();
    let mut first = queue.accept(Accept::new()).unwrap().unwrap();
    bench.clock.advance(SECOND);
    let mut second = queue.accept(Accept::new()).unwrap().unwrap();
    let workers = queue.workers().unwrap();
    let [worker] = &workers[..] else { panic!("{workers:?}") };
    assert_eq!((worker.slots, worker.busy, worker.process), (None, 2, Some(std::process::id())));
    let jobs: Vec<_> = worker.jobs.iter().map(|job| (&*job.id, job.ran_for)).collect();
    assert_eq!(jobs, [("a", SECOND), ("b", Duration::ZERO)]);
    assert_eq!(worker.newest_ran_for, Some(Duration::ZERO));
    first.finish(None).unwrap();
    second.finish(None).unwrap();
    assert!(queue.workers().unwrap().iter().all(|worker| worker.busy == 0 && worker.jobs.is_empty()));
}
