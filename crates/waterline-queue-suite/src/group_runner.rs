//! Runners of groups, and many threads that claim from one.

use crate::bench::*;
use crate::group::{abc, accept, finish, job, jobs, options, queue, woken_by};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use waterline::Error;
use waterline_queue::{
    Accept, Clock, DrainLimits, Fair, Group, Lease, NewJob, Outcome, QueueError, QueueOptions, Reached, Retention,
    Runner, RunnerBuilder, Waits,
};

fn done(builder: RunnerBuilder) -> RunnerBuilder {
    ["a", "b", "c"].into_iter().fold(builder, |builder, kind| builder.on(kind, |_, _: u32| Ok(Outcome::Done)))
}

pub(super) fn pausing_one_queue_leaves_the_others_running(on: &Benches<'_>) {
    let database = &on.database();
    let group = abc(database, &Clock::manual(noon())).fair(Fair::strict(HOUR)).open().unwrap();
    group.push_all(["a", "b", "c"].map(job)).unwrap();
    queue(&group, "a").pause(None).unwrap();
    assert_eq!(finish(&group, 9), ["b", "c"]);
    let status = group.status().unwrap();
    assert_eq!(status.queues[0].waits, Waits::Paused { left: None });
    assert_eq!(status.queues[1].waits, Waits::NothingReady { due_in: None });
    assert_eq!(status.to_string().lines().count(), 3);
    let numbers = done(group.runner()).drain_by_queue(DrainLimits::default()).unwrap();
    assert!(numbers.iter().all(|(_, summary)| summary.finished == 0));
    assert_eq!(numbers.iter().map(|(_, summary)| summary.reached).collect::<Vec<_>>()[0], Reached::Paused);
    assert_eq!(numbers[1].1.reached, Reached::NothingReady);
    queue(&group, "a").resume().unwrap();
    assert_eq!(finish(&group, 9), ["a"]);
}

pub(super) fn only_except_and_only_when_asked_choose_queues(on: &Benches<'_>) {
    let database = &on.database();
    let group = abc(database, &Clock::manual(noon())).only_when_asked("b").open().unwrap();
    group.push_all(["a", "b", "c"].map(job)).unwrap();
    let kinds = |group: &Group| {
        let mut leases: Vec<_> = std::iter::from_fn(|| accept(group)).collect();
        let kinds: BTreeSet<_> = leases.iter().map(|lease| lease.kind().to_owned()).collect();
        leases.iter_mut().for_each(|lease| assert!(lease.snooze(noon()).is_ok()));
        kinds.into_iter().collect::<String>()
    };
    assert_eq!(kinds(&group), "ac");
    assert_eq!(kinds(&group.only(["b"]).unwrap()), "b");
    assert_eq!(kinds(&group.only(["b", "c"]).unwrap()), "bc");
    assert_eq!(kinds(&group.except(["a"]).unwrap()), "c");
    assert_eq!(kinds(&group.only(["b", "c"]).unwrap().except(["c"]).unwrap()), "b");
    let asked = group.only(["b"]).unwrap();
    assert_eq!(woken_by(&asked, Accept::new().timeout(HOUR), || drop(group.push(job("a")))), Some("b".into()));
    // It sleeps while another queue has jobs, until its own has one.
    let waker = || {
        group.push(job("c")).unwrap();
        group.push(job("b")).unwrap();
    };
    assert_eq!(woken_by(&asked, Accept::new().timeout(HOUR), waker), Some("b".into()));
    assert_eq!(done(group.runner()).drain(DrainLimits::default()).unwrap().finished, 4);
}

pub(super) fn one_runner_shares_its_slots_among_all_queues(on: &Benches<'_>) {
    let database = &on.database();
    let group = abc(database, &Clock::manual(noon())).open().unwrap();
    let (running, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let runner = ["a", "b", "c"].into_iter().fold(group.runner().max_processing(2), |runner, kind| {
        let (running, most) = (running.clone(), most.clone());
        runner.on(kind, move |_, _: u32| {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::yield_now();
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(Outcome::Done)
        })
    });
    let runner = runner.start().unwrap();
    group.push_all(["a", "b", "c"].iter().flat_map(|kind| jobs(kind, 50))).unwrap();
    eventually("all jobs are finished", || group.counts().finished == 150);
    assert_eq!(most.load(Ordering::SeqCst).max(2), 2);
    // Each queue has its runner.
    let second = Runner::builder(queue(&group, "b")).on("b", |_, _: u32| Ok(Outcome::Done)).start();
    assert!(matches!(second, Err(QueueError::Store(Error::InUse { name })) if name == "b"));
    let other = done(group.except(["a"]).unwrap().runner()).start();
    assert!(matches!(other, Err(QueueError::Store(Error::InUse { .. }))));
    runner.stop().unwrap();
    drop(Runner::builder(queue(&group, "b")).on("b", |_, _: u32| Ok(Outcome::Done)).start().unwrap());
    // The names that a refused runner had taken are free again.
    let held = Runner::builder(queue(&group, "c")).on("c", |_, _: u32| Ok(Outcome::Done)).start().unwrap();
    assert!(matches!(done(group.runner()).start(), Err(QueueError::Store(Error::InUse { name })) if name == "c"));
    drop(done(group.except(["c"]).unwrap().runner()).start().unwrap());
    drop(held);
}

pub(super) fn a_group_drain_has_shared_limits_and_counts_per_queue(on: &Benches<'_>) {
    let database = &on.database();
    let group = abc(database, &Clock::manual(noon())).fair(Fair::strict(HOUR)).open().unwrap();
    group.push_all(jobs("a", 5).into_iter().chain(jobs("c", 5))).unwrap();
    let runner = || {
        let runner = group.runner().max_processing(2);
        let runner = runner.on("a", |_, _: u32| Ok(Outcome::Done)).on("b", |_, _: u32| Ok(Outcome::Done));
        runner.on("c", |_, _: u32| Ok(Outcome::Dead("it is bad".into())))
    };
    let numbers = runner().drain_by_queue(DrainLimits::default().jobs(7)).unwrap();
    let short: Vec<_> = numbers.iter().map(|(name, all)| (name.as_str(), all.finished, all.dead)).collect();
    assert_eq!(short, [("a", 5, 0), ("b", 0, 0), ("c", 0, 2)]);
    assert!(numbers.iter().all(|(_, summary)| summary.reached == Reached::Jobs));
    let rest = runner().drain(DrainLimits::default()).unwrap();
    assert_eq!((rest.dead, rest.finished, rest.reached), (3, 0, Reached::NothingReady));
    group.push(job("a")).unwrap();
    let none = runner().drain(DrainLimits::default().time(Duration::ZERO)).unwrap();
    assert_eq!((none.finished, none.reached), (0, Reached::Time));
}

pub(super) fn a_group_runner_promotes_due_jobs(on: &Benches<'_>) {
    let database = &on.database();
    let clock = Clock::manual(noon());
    let group = abc(database, &clock).open().unwrap();
    let runner = done(group.runner().max_processing(2)).start().unwrap();
    group.push(job("b").delay(SECOND)).unwrap();
    clock.advance(SECOND);
    eventually("the job is finished", || group.counts().finished == 1);
    runner.stop().unwrap();
}

pub(super) fn a_drain_ends_only_once_no_queue_has_work(on: &Benches<'_>) {
    let database = &on.database();
    let clock = Clock::manual(noon());
    let group = abc(database, &clock).fair(Fair::strict(HOUR)).open().unwrap();
    group.push(job("a")).unwrap();
    assert_eq!(done(group.runner()).drain(DrainLimits::default()).unwrap().finished, 1);
    // The first claim of the next drain finds an expired row in `a`, and no job there.
    group.push_all(["b", "c"].map(|kind| job(kind).delay(SECOND))).unwrap();
    clock.advance(Duration::from_secs(60));
    assert_eq!(done(group.runner().max_processing(1)).drain(DrainLimits::default()).unwrap().finished, 2);
    assert_eq!(queue(&group, "a").counts().finished, 0);
}

pub(super) fn equal_lease_numbers_of_two_queues_are_told_apart(on: &Benches<'_>) {
    let database = &on.database();
    let clock = Clock::manual(noon());
    let group = abc(database, &clock).open().unwrap();
    let held = Arc::new(Mutex::new(BTreeMap::new()));
    let runner = ["a", "b", "c"].into_iter().fold(group.runner().max_processing(3), |runner, kind| {
        let held = held.clone();
        runner.on_deferred(kind, move |job, _: u32, done| {
            held.lock().insert((job.kind().to_owned(), job.id().to_owned()), done);
        })
    });
    let runner = runner.attempt_timeout(10 * SECOND).start().unwrap();
    group.push_all(["a", "b", "c"].map(|kind| job(kind).id("x"))).unwrap();
    eventually("all three run", || held.lock().len() == 3);
    assert_eq!(runner.processing(), 3);
    let status = group.status().unwrap();
    assert!(status.queues.iter().all(|status| status.counts.running == 1));
    group.push(job("b")).unwrap();
    eventually("the runner is busy", || {
        matches!(group.status().unwrap().queues[1].waits, Waits::Busy { slots: 3, .. })
    });
    let done = held.lock().remove(&("a".to_owned(), "x".to_owned())).unwrap();
    done.complete();
    eventually("the job of a is finished, and b has two", || {
        queue(&group, "a").counts().finished == 1 && queue(&group, "b").counts().running == 2
    });
    // The timeout counts from the beginning of an attempt, which is later than its claim.
    eventually("all have begun", || held.lock().len() == 3);
    clock.advance(10 * SECOND);
    eventually("the others are over", || group.counts().running == 0 && group.counts().scheduled == 3);
    assert_eq!(queue(&group, "a").counts().finished, 1);
    held.lock().clear();
    runner.stop().unwrap();
}

pub(super) fn jobs_given_up_at_a_stop_keep_their_queues_lease(on: &Benches<'_>) {
    let database = &on.database();
    let clock = Clock::manual(noon());
    let group = database
        .group()
        .queue("long", ["long"], options(&clock).lease(HOUR))
        .queue("short", ["short"], options(&clock).lease(SECOND))
        .open()
        .unwrap();
    let held = Arc::new(Mutex::new(Vec::new()));
    let runner = ["long", "short"].into_iter().fold(group.runner().max_processing(2), |runner, kind| {
        let held = held.clone();
        runner.on_deferred(kind, move |_, _: u32, done| held.lock().push(done))
    });
    let runner = runner.start().unwrap();
    group.push_all(["long", "short"].map(job)).unwrap();
    eventually("both run", || held.lock().len() == 2);
    let Err(QueueError::StopTimeout { running }) = runner.stop_within(MILLI) else { panic!("they still run") };
    assert_eq!(running.len(), 2);
    clock.advance(SECOND);
    assert_eq!((queue(&group, "short").counts().ready, queue(&group, "long").counts().running), (1, 1));
    held.lock().clear();
}

/// Returns a random number that is the same in each run of a test.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Lets threads accept from 20 queues, while this one pushes, pauses and resumes. The clock moves
/// only here, so nothing makes up for a missed wake-up.
fn storm(database: &Database, fair: &Fair, seed: u64) {
    const QUEUES: usize = 20;
    const JOBS: u64 = 150;
    let clock = Clock::manual(noon());
    let names: Vec<_> = (0..QUEUES).map(|n| format!("q{n}")).collect();
    let options = || QueueOptions::default().retention(Retention::Keep).clock(clock.clone());
    let group = names.iter().fold(database.group(), |group, name| group.queue(name, [name], options()));
    let group = group.fair(fair.clone()).open().unwrap();
    let (ran, total, over) = (Mutex::new(BTreeMap::new()), AtomicU64::new(0), AtomicBool::new(false));
    let run = |mut lease: Lease| {
        let key = (lease.kind().to_owned(), lease.id().to_owned());
        *ran.lock().entry(key).or_insert(0) += 1;
        lease.finish(None).unwrap();
        total.fetch_add(1, Ordering::SeqCst);
    };
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (group, run, over) = (&group, &run, &over);
            scope.spawn(move || {
                // Two threads take from one half each.
                let half = (0..QUEUES / 2).map(|n| format!("q{n}"));
                let group = match thread {
                    0 => group.only(half).unwrap(),
                    1 => group.except(half).unwrap(),
                    _ => group.clone(),
                };
                while !over.load(Ordering::SeqCst) {
                    let accept = Accept::new().timeout(HOUR);
                    // Some do not take each job.
                    let accept = if thread < 4 { accept } else { accept.max_run_at(noon() + HOUR / 2) };
                    group.accept(accept).unwrap().map(run);
                }
            });
        }
        let mut state = seed;
        for n in 0..JOBS {
            let name = &names[random(&mut state) as usize % QUEUES];
            match random(&mut state) % 8 {
                0 => queue(&group, name).pause(Some(MILLI * (random(&mut state) % 4) as u32)).unwrap(),
                1 => queue(&group, name).resume().unwrap(),
                2 => clock.advance(MILLI),
                _ => {}
            }
            let delay = MILLI * (random(&mut state) % 3) as u32;
            group.push(NewJob::new(name, &n).unwrap().delay(delay)).unwrap();
            if random(&mut state).is_multiple_of(32) {
                // All threads fall asleep, and the next push has to wake one.
                clock.advance(10 * MILLI);
                eventually("each job has run", || total.load(Ordering::SeqCst) == n + 1);
            }
        }
        clock.advance(10 * MILLI);
        eventually("each job has run", || total.load(Ordering::SeqCst) == JOBS);
        over.store(true, Ordering::SeqCst);
        // A job for each thread in each half, so that all of them see that it is over.
        group.push_all(["q7", "q15"].iter().flat_map(|name| jobs(name, 8))).unwrap();
    });
    let ran = ran.into_inner();
    assert!(ran.len() as u64 >= JOBS && ran.values().all(|times| *times == 1));
    assert_eq!(group.counts().finished, ran.len() as u64);
}

pub(super) fn threads_on_twenty_queues_run_each_job_once(on: &Benches<'_>) {
    for (seed, fair) in
        [Fair::Shuffle, Fair::weighted([("q3", 0.0), ("q4", 100.0)]), Fair::strict(Duration::from_millis(5))]
            .iter()
            .enumerate()
    {
        storm(&on.database(), fair, seed as u64);
    }
}

pub(super) fn a_runner_of_twenty_queues_runs_each_job_once(on: &Benches<'_>) {
    let database = &on.database();
    let clock = Clock::manual(noon());
    let names: Vec<_> = (0..20).map(|n| format!("q{n}")).collect();
    let options = || options(&clock).retention(Retention::Keep);
    let group = names.iter().fold(database.group(), |group, name| group.queue(name, [name], options()));
    let group = group.open().unwrap();
    let ran = Arc::new(Mutex::new(BTreeMap::new()));
    let runner = names.iter().fold(group.runner().max_processing(8), |runner, name| {
        let (ran, next, into) = (ran.clone(), group.clone(), names.clone());
        runner.on(name, move |job, hops: usize| {
            *ran.lock().entry((job.kind().to_owned(), job.id().to_owned())).or_insert(0) += 1;
            if hops > 0 {
                next.push(NewJob::new(&into[hops], &(hops - 1))?)?;
            }
            Ok(Outcome::Done)
        })
    });
    let runner = runner.start().unwrap();
    let (mut state, mut pushed) = (7, 0);
    for _ in 0..150 {
        let name = &names[random(&mut state) as usize % 20];
        match random(&mut state) % 8 {
            0 => queue(&group, name).pause(Some(MILLI * (random(&mut state) % 4) as u32)).unwrap(),
            1 => queue(&group, name).resume().unwrap(),
            _ => {}
        }
        let (hops, delay) = (random(&mut state) as usize % 3, MILLI * (random(&mut state) % 3) as u32);
        group.push(NewJob::new(name, &hops).unwrap().delay(delay)).unwrap();
        pushed += 1 + hops as u64;
        if random(&mut state).is_multiple_of(8) {
            clock.advance(10 * MILLI);
            eventually("each job has run", || group.counts().finished == pushed);
        }
    }
    clock.advance(10 * MILLI);
    eventually("each job has run", || group.counts().finished == pushed);
    runner.stop().unwrap();
    let ran = ran.lock();
    assert_eq!((ran.len() as u64, ran.values().max()), (pushed, Some(&1)));
}
