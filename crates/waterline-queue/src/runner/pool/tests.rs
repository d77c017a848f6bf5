//! The steps of the threads of a runner, made one by one in the orders in which they can meet.

use super::*;
use crate::Clock;
use crate::accept::Accept;
use crate::engine::Claimed;
use crate::group::members::Members;
use crate::runner::handle::Runner;
use crate::runner::outcome::Outcome;
use crate::runner::pool::line::Turn;
use crate::runner::pool::writing::Answer;
use crate::runner::running::Running;
use crate::testing::QueueModel;
use crate::types::{job::JobState, new_job::NewJob, options::QueueOptions};
use std::sync::OnceLock;
use std::time::SystemTime;
use waterline::Store;
use waterline::seam::{self, Changes, MemoryKv};

/// Longer than anything here takes; only a failing test waits this long.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// A runner without threads. Each test makes their steps.
pub(super) fn pool(queue: &Queue, max_processing: usize) -> Arc<Pool> {
    pool_with(queue, max_processing, None, Hooks::default())
}

fn pool_with(queue: &Queue, max_processing: usize, limits: Option<DrainLimits>, hooks: Hooks) -> Arc<Pool> {
    pool_of(Arc::new(Members::of_one(queue.clone())), max_processing, limits, hooks)
}

pub(super) fn pool_of(members: Arc<Members>, most: usize, limits: Option<DrainLimits>, hooks: Hooks) -> Arc<Pool> {
    let source = Source::new(members);
    let (begun, mut state) = (source.moment().now, State::default());
    (state.slots.max_processing, state.slots.is_watched) = (most, true);
    let handler = Handler::Direct(Box::new(|_, _| Ok((Outcome::Done, Changes::default()))));
    let settings = Settings {
        source,
        handlers: HashMap::from([("k".to_owned(), handler)]),
        hooks,
        unknown: Unknown::default(),
        max_processing: most,
        times: Times::default(),
        #[cfg(feature = "metrics")]
        gauges: None,
        gates: Gates::default(),
        limits,
        #[cfg(feature = "tokio")]
        runtime: None,
    };
    Arc::new_cyclic(|me| Pool {
        settings,
        threads: Threads::new(me.clone()),
        state: Mutex::new(state),
        line: Mutex::default(),
        stirred: Condvar::new(),
        watching: Condvar::new(),
        standing: Condvar::new(),
        stopping: Arc::default(),
        timeouts: None,
        begun,
    })
}

pub(super) fn queue(jobs: u32) -> Queue {
    let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).unwrap();
    queue.push_all((0..jobs).map(|n| NewJob::new("k", &n).unwrap())).unwrap();
    queue
}

/// Writes these ends, and claims a ready job.
fn claim(pool: &Arc<Pool>, reports: &mut Vec<Report>) -> Running {
    let Ok(Answer::Jobs(claimed)) = pool.write(reports, 1) else { panic!("no job was claimed") };
    pool.take_up(claimed).unwrap().0
}

fn done(pool: &Arc<Pool>, job: Running) -> Vec<Report> {
    vec![Report::of(&crate::runner::attempt::Attempt::new(pool.clone(), job), Ok(Outcome::Done))]
}

/// The writes of a job: a row in the table "rows".
fn a_row(queue: &Queue) -> Changes {
    let mut effects = seam::new_effects(seam::home(queue.store()));
    effects.put(&queue.store().table("rows").unwrap(), "row", "of the job").unwrap();
    seam::finish_effects(effects).0
}

#[test]
fn a_thread_falling_asleep_sees_a_slot_become_free() {
    let queue = queue(4);
    let pool = pool(&queue, 2);
    let [mut one, mut other] = [(); 2].map(|()| {
        assert_eq!(pool.prepare(&mut Vec::new(), true), 1);
        done(&pool, claim(&pool, &mut Vec::new()))
    });
    // Both jobs end. One thread writes the end of its own, and then goes to the line.
    assert_eq!(pool.prepare(&mut one, true), 1);
    assert_eq!(pool.prepare(&mut other, true), 0, "the other thread has not freed its slot yet");
    assert!(matches!(pool.write(&mut other, 0), Ok(Answer::Nothing)));
    let news = queue.shared.bell.news();
    assert_eq!(pool.prepare(&mut other, true), 0, "nor has it now");
    let _job = claim(&pool, &mut one);
    assert!(pool.is_ready() && pool.in_flight() == 1, "a job is ready, and a slot is free");
    // The thread sleeps until there is news.
    assert_ne!(queue.shared.bell.news(), news);
}

/// Claims three jobs in one write, for a pool that has three slots.
pub(super) fn claim_three(pool: &Arc<Pool>) -> Vec<Claimed> {
    let (now, hour) = (Instant::now(), Duration::from_secs(3600));
    // Writes take an hour, so it may claim many.
    for _ in 0..2 {
        pool.state.lock().outbox.batch_sizer.wrote(now, now + hour, 9);
        pool.state.lock().outbox.batch_sizer.next(now);
    }
    assert_eq!(pool.prepare(&mut Vec::new(), true), 3, "no more than it has slots");
    let Ok(Answer::Jobs(claimed)) = pool.write(&mut Vec::new(), 3) else { panic!("no job was claimed") };
    assert_eq!(claimed.len(), 3);
    claimed
}

/// The model allows one write at a time.
#[test]
fn a_slow_hook_holds_up_no_write_and_no_slot() {
    let queue = QueueModel::new().open("q", QueueOptions::default()).unwrap();
    queue.push_all((0..3).map(|n| NewJob::new("k", &n).unwrap())).unwrap();
    let (mut hooks, of_hook) = (Hooks::default(), Arc::new(OnceLock::<Arc<Pool>>::new()));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (its, sees) = (of_hook.clone(), seen.clone());
    hooks.teardown.push(Box::new(move |_, _| {
        let state = its.get().unwrap().state.lock();
        sees.lock().push((state.outbox.writes, state.slots.flights.len(), state.outbox.telling));
    }));
    let pool = pool_with(&queue, 3, None, hooks);
    assert!(of_hook.set(pool.clone()).is_ok());
    let first = pool.take_up(claim_three(&pool)).unwrap();
    let [second, third] = [(); 2].map(|()| pool.take_claimed(&mut Vec::new()).unwrap());
    let [first, mut second] = [first, second].map(|(job, _)| done(&pool, job));
    second.extend(first);
    pool.prepare(&mut second, false);
    assert!(pool.write(&mut second, 0).is_ok());
    assert_eq!((seen.lock().as_slice(), third.0.id()), (&[(0, 1, 2), (0, 1, 1)][..], "~2"));
}

/// The model allows one write at a time.
#[test]
fn ends_during_a_write_all_go_into_the_next_one() {
    let queue = QueueModel::new().open("q", QueueOptions::default()).unwrap();
    queue.push_all((0..6).map(|n| NewJob::new("k", &n).unwrap())).unwrap();
    let pool = pool(&queue, 3);
    let first = pool.take_up(claim_three(&pool)).unwrap();
    let [second, third] = [(); 2].map(|()| pool.take_claimed(&mut Vec::new()).unwrap());
    let [mut one, mut other, mut third] = [first, second, third].map(|(job, _)| done(&pool, job));
    assert_eq!(pool.prepare(&mut one, true), 1, "it has a write under way from now on");
    for ends in [&mut other, &mut third] {
        assert!(pool.go_on(ends).is_none() && ends.is_empty());
    }
    assert_eq!(pool.in_flight(), 3, "they keep their slots");
    let news = queue.shared.bell.news();
    let _next = claim(&pool, &mut one);
    assert_ne!(queue.shared.bell.news(), news, "the first in the line hears it");
    let mut ends = Vec::new();
    assert_eq!((pool.prepare(&mut ends, true), ends.len()), (2, 2));
    let Ok(Answer::Jobs(claimed)) = pool.write(&mut ends, 2) else { panic!("no job was claimed") };
    assert_eq!((claimed.len(), pool.in_flight()), (2, 1));
    assert_eq!(pool.state.lock().outbox.writes, 0);
    assert_eq!(queue.counts().finished, 3);
}

#[test]
fn a_write_takes_a_bounded_number_of_ends() {
    let queue = queue(700);
    let (pool, mut ends) = (pool(&queue, 700), Vec::new());
    while let wants @ 1.. = pool.prepare(&mut Vec::new(), true) {
        let Ok(Answer::Jobs(claimed)) = pool.write(&mut Vec::new(), wants) else { panic!("no job was claimed") };
        ends.extend(claimed.into_iter().flat_map(|claimed| done(&pool, pool.begin(claimed).unwrap().0)));
    }
    for (most, left) in [(512, 188), (188, 0)] {
        pool.prepare(&mut ends, false);
        assert_eq!(
            (ends.len(), pool.state.lock().outbox.is_full),
            (most, left > 0),
            "the end of a write rings for the others"
        );
        assert!(pool.write(&mut ends, 0).is_ok());
        assert_eq!((pool.in_flight(), pool.state.lock().outbox.inbox.len()), (left, left));
    }
}

#[test]
fn a_drain_that_expires_during_a_write_does_not_spin() {
    let clock = Clock::manual(SystemTime::now());
    let queue = QueueModel::new().open("q", QueueOptions::default().clock(clock.clone())).unwrap();
    queue.push_all((0..2).map(|n| NewJob::new("k", &n).unwrap())).unwrap();
    let limits = DrainLimits::default().time(Duration::from_secs(1));
    let pool = pool_with(&queue, 2, Some(limits), Hooks::default());
    assert_eq!(pool.prepare(&mut Vec::new(), true), 1, "it has a write under way from now on");
    clock.advance(Duration::from_secs(1));
    assert_eq!(pool.prepare(&mut Vec::new(), true), 0);
    // The thread that looks would not sleep, since the time is over, and look again and again.
    assert_eq!(pool.drain_deadline(), None);
    assert_eq!(pool.state.lock().drain.reached, Some(Reached::Time));
}

#[test]
fn a_write_of_a_group_claims_one_job() {
    let group = QueueModel::new().group();
    let group = group.queue("q", ["k"], QueueOptions::default()).queue("other", ["l"], QueueOptions::default());
    let group = group.open().unwrap();
    group.push_all((0..9).map(|n| NewJob::new("k", &n).unwrap())).unwrap();
    let pool = pool_of(group.members().clone(), 4, None, Hooks::default());
    let end = |_| {
        assert_eq!(pool.prepare(&mut Vec::new(), true), 1);
        done(&pool, claim(&pool, &mut Vec::new()))
    };
    let mut ends: Vec<_> = (0..3).flat_map(end).collect();
    assert_eq!((pool.prepare(&mut ends, true), ends.len()), (1, 3));
}

#[test]
fn claimed_jobs_are_given_up_with_those_in_flight() {
    for too_late in [false, true] {
        let clock = Clock::manual(SystemTime::now());
        let options = QueueOptions::default().clock(clock.clone()).lease(Duration::from_secs(1));
        let queue = Queue::open(&Store::in_memory(), "q", options).unwrap();
        queue.push_all((0..3).map(|n| NewJob::new("k", &n).unwrap())).unwrap();
        let pool = pool(&queue, 3);
        let claimed = claim_three(&pool);
        if too_late {
            pool.abandon(false);
            assert!(pool.take_up(claimed).is_none());
            assert_eq!((queue.counts().running, queue.counts().ready, pool.state.lock().slots.reserved), (0, 3, 0));
            continue;
        }
        let _first = pool.take_up(claimed).unwrap();
        pool.abandon(false);
        assert!(pool.take_claimed(&mut Vec::new()).is_none() && pool.state.lock().slots.reserved == 0);
        clock.advance(Duration::from_secs(1));
        assert!(queue.accept(Accept::new()).unwrap().is_none());
        assert_eq!((queue.counts().running, queue.counts().scheduled), (0, 3));
    }
}

#[test]
fn claimed_jobs_go_back_to_ready_once_the_runner_stops() {
    let queue = queue(3);
    let pool = pool(&queue, 3);
    let first = pool.take_up(claim_three(&pool)).unwrap().0;
    pool.request_stop();
    assert!(pool.take_claimed(&mut Vec::new()).is_none());
    assert_eq!((queue.counts().running, queue.counts().ready, pool.state.lock().slots.reserved), (1, 2, 0));
    let failures =
        queue.list(JobState::Ready, None, 9).unwrap().iter().map(|job| job.failures + job.crashes).sum::<u32>();
    assert_eq!(failures, 0);
    assert!(matches!(pool.write(&mut done(&pool, first), 0), Ok(Answer::Nothing)));
    assert!(pool.state.lock().drain.over);
}

#[test]
fn the_line_takes_over_a_batch_behind_a_long_job() {
    let queue = queue(4);
    let pool = pool(&queue, 3);
    let first = pool.take_up(claim_three(&pool)).unwrap().0;
    let _second = pool.take_claimed(&mut done(&pool, first)).unwrap();
    // The second one turns out to be long. Others have the third, and the end of the first.
    pool.state.lock().slots.threads = 2;
    assert!(!pool.others_cope());
    let third = pool.take_claimed(&mut Vec::new()).unwrap().0;
    assert!(!pool.others_cope());
    let mut reports = Vec::new();
    assert_eq!((pool.prepare(&mut reports, true), reports.len()), (1, 1), "the end of the first frees its slot");
    assert!(matches!(pool.write(&mut reports, 1), Ok(Answer::Jobs(_))));
    assert_eq!((queue.counts().finished, queue.counts().running), (1, 3));
    drop(third);
}

#[test]
fn a_batched_job_is_next_after_an_end_with_writes() {
    // The thread that has run the job goes on, or it is in the line.
    for is_in_line in [false, true] {
        // Once with another ready job, and once without one.
        for jobs in [4, 3] {
            let queue = queue(jobs);
            let pool = pool(&queue, 3);
            let claimed = claim_three(&pool);
            let second = claimed[1].id.to_string();
            let mut reports = done(&pool, pool.take_up(claimed).unwrap().0);
            reports[0].effects = a_row(&queue);
            let (send, found) = crossbeam_channel::bounded(1);
            let thread = std::thread::spawn(move || {
                let next = if is_in_line {
                    let Turn::Job(next) = pool.look_for_job(&mut reports) else { panic!("it found no job") };
                    Some(next)
                } else {
                    pool.go_on(&mut reports)
                };
                send.send(next.map(|(job, _)| job.id().to_owned())).unwrap();
            });
            let case = format!("in the line: {is_in_line}, jobs: {jobs}");
            assert_eq!(found.recv_timeout(LONG).expect("it sleeps beside a job"), Some(second), "{case}");
            assert_eq!(queue.counts().finished, 1, "{case}");
            thread.join().unwrap();
        }
    }
}

#[test]
fn ends_are_written_despite_a_damaged_job() {
    let due = |id: &str| NewJob::new("k", &()).unwrap().id(id);
    // The damaged job is ready, its lease is over, it is scheduled and due, or it ends.
    let cases = ["ready", "leased", "scheduled", "ends"];
    let cases = cases.iter().flat_map(|damaged| [(*damaged, false), (*damaged, true)]);
    for ((damaged, has_effects), wants) in cases.flat_map(|case| [(case, false), (case, true)]) {
        let clock = Clock::manual(SystemTime::now());
        let options = QueueOptions::default().clock(clock.clone()).lease(Duration::from_secs(1));
        let queue = Queue::open(&Store::in_memory(), "q", options).unwrap();
        queue.push(due("leased")).unwrap();
        let _lease = queue.accept(Accept::new()).unwrap().unwrap();
        let later = due("scheduled").delay(Duration::from_secs(1));
        queue.push_all([due("ends"), due("ready"), later]).unwrap();
        let pool = pool(&queue, 2);
        assert_eq!(pool.prepare(&mut Vec::new(), true), 1);
        let mut reports = done(&pool, claim(&pool, &mut Vec::new()));
        let table = queue.store().table("rows").unwrap();
        if has_effects {
            reports[0].effects = a_row(&queue);
        }
        queue.damage(damaged);
        if ["leased", "scheduled"].contains(&damaged) {
            clock.advance(Duration::from_secs(2));
        }
        let case = format!("{damaged}, has effects: {has_effects}, claims: {wants}");
        assert!(!wants || pool.prepare(&mut Vec::new(), true) == 1, "{case}");
        let answer = pool.write(&mut reports, usize::from(wants));
        assert_eq!((reports.len(), pool.in_flight()), (0, 0), "{case}");
        if damaged == "ends" {
            continue;
        }
        // The damaged job is set aside, and a claim takes the next one.
        assert_eq!(matches!(answer.unwrap(), Answer::Jobs(_)), wants && damaged != "ready", "{case}");
        assert_eq!(queue.counts().damaged, u64::from(wants || damaged != "ready"), "{case}");
        assert_eq!(queue.state("ends").unwrap(), Some(JobState::Finished), "{case}");
        assert_eq!(table.get("row").unwrap().is_some(), has_effects, "{case}");
    }
}

#[test]
fn only_one_thread_looks_while_the_store_fails() {
    let kv = Arc::new(MemoryKv::default());
    let store = seam::store_on(kv.clone()).unwrap();
    let queue = Queue::open(&store, "q", QueueOptions::default()).unwrap();
    queue.push(NewJob::new("k", &()).unwrap()).unwrap();
    let pool = pool(&queue, 9);
    assert!(pool.may_look_meanwhile());
    kv.fail(0..1);
    assert!(pool.prepare(&mut Vec::new(), true) == 1 && pool.write(&mut Vec::new(), 1).is_err());
    assert!(!pool.may_look_meanwhile(), "each thread that looked would try it again, and there may be many");
    assert_eq!(pool.prepare(&mut Vec::new(), true), 1);
    claim(&pool, &mut Vec::new());
    assert!(pool.may_look_meanwhile());
}

#[test]
fn a_drain_waits_for_hooks_that_may_push() {
    let queue = queue(1);
    let (me, ended) = (Arc::new(OnceLock::<Weak<Pool>>::new()), Arc::new(AtomicBool::new(false)));
    let mut hooks = Hooks::default();
    hooks.teardown.push(Box::new({
        let (me, ended, queue) = (me.clone(), ended.clone(), queue.clone());
        move |_, _| {
            // Another thread finds no job.
            let pool = me.get().and_then(Weak::upgrade).unwrap();
            ended.store(pool.drained(queue.shared.bell.news(), Reached::NothingReady), Ordering::Relaxed);
        }
    }));
    let pool = pool_with(&queue, 2, Some(DrainLimits::default()), hooks);
    me.set(Arc::downgrade(&pool)).unwrap();
    assert_eq!(pool.prepare(&mut Vec::new(), true), 1);
    let mut reports = done(&pool, claim(&pool, &mut Vec::new()));
    assert!(matches!(pool.write(&mut reports, 0), Ok(Answer::Nothing)));
    assert!(!ended.load(Ordering::Relaxed));
    assert!(pool.drained(queue.shared.bell.news(), Reached::NothingReady));
}

#[test]
fn an_expired_drain_ends_during_its_last_claim() {
    let queue = queue(1);
    let limits = DrainLimits::default().jobs(1).time(Duration::ZERO);
    let pool = pool_with(&queue, 2, Some(limits), Hooks::default());
    // The thread that looks would not sleep, since the time is over, and look again and again.
    let mut state = State::default();
    state.slots.reserved = 1;
    assert_eq!(pool.room(&mut state, 0), 0);
    assert_eq!((state.drain.ending, state.drain.reached), (true, Some(Reached::Time)));
    let mut state = State::default();
    (state.slots.reserved, state.drain.claims) = (1, 1);
    assert_eq!(pool.room(&mut state, 0), 0);
    assert_eq!(state.drain.reached, Some(Reached::Jobs));
}

#[test]
fn a_stop_ends_claims_before_jobs_see_it() {
    let pool = pool(&queue(1), 1);
    let (stops, state) = (pool.clone(), pool.state.lock());
    let (runs, begins) = crossbeam_channel::bounded(0);
    let stop = std::thread::spawn(move || {
        runs.send(()).unwrap();
        stops.request_stop();
    });
    begins.recv().unwrap();
    // It goes as far as it can without the lock. Too short a pause only hides a mistake.
    std::thread::park_timeout(Duration::from_millis(20));
    assert_eq!((pool.stopping.load(Ordering::Relaxed), state.drain.ending), (false, false));
    drop(state);
    stop.join().unwrap();
    assert_eq!((pool.stopping.load(Ordering::Relaxed), pool.state.lock().drain.ending), (true, true));
}

/// Waits until this many threads sleep until there is a job.
#[track_caller]
pub(super) fn until_asleep(queue: &Queue, threads: usize) {
    let until = Instant::now() + LONG;
    while queue.shared.bell.asleep() != threads {
        assert!(Instant::now() < until, "there are not {threads} threads asleep");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

#[test]
fn a_full_runner_passes_its_wake_up_to_an_accepter() {
    let queue = queue(0);
    let builder = Runner::builder(&queue).on("k", |_, _: u32| Ok(Outcome::Done)).max_processing(1);
    let runner = builder.start().unwrap();
    until_asleep(&queue, 1);
    let (accepts, (accepted, is_accepted)) = (queue.clone(), crossbeam_channel::bounded(1));
    std::thread::spawn(move || accepted.send(accepts.accept(Accept::new().timeout(2 * LONG)).unwrap().is_some()));
    // The thread that slept first is the one that a push wakes.
    until_asleep(&queue, 2);
    // Another thread of the runner, which goes from job to job, takes the slot meanwhile.
    let pool = runner.pool.as_ref().unwrap();
    pool.state.lock().slots.reserved = 1;
    queue.push(NewJob::new("k", &1).unwrap()).unwrap();
    let is_accepted = is_accepted.recv_timeout(LONG);
    pool.state.lock().slots.reserved = 0;
    runner.stop().unwrap();
    assert_eq!(is_accepted, Ok(true), "the job was ready");
}
