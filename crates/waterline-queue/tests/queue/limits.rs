//! Limits on running jobs and on rates, over restarts and with a crash at each write.

use common::HOUR;
use common::every_write::DiskFault::{Fail, PowerLoss, Stop};
use common::every_write::{Trial, every_write};
use common::queues::{Bench, MILLI, SECOND, again, leak, noon, on_each, on_store_with};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use waterline::testing::FaultyStore;
use waterline::{Retry, Store};
use waterline_queue::{
    Accept, Clock, ConfigError, JobState, Lease, Limit, LimitOf, NewJob, Outcome, Queue, QueueError, QueueOptions,
    Rate, Retention, Runner,
};

fn options(limits: &[Limit]) -> QueueOptions {
    let options = QueueOptions::default().retry(Retry::fixed(SECOND).max_attempts(3));
    limits.iter().fold(options, |options, limit| options.limit(limit.clone()))
}

/// For tests of held jobs and of the turns of keys, which the model does not have.
fn on_store(limits: &[Limit], test: impl Fn(Bench)) {
    on_store_with(options(limits), test);
}

fn job(id: &str) -> NewJob {
    NewJob::new("k", &()).unwrap().id(id)
}

fn keyed(id: &str, key: &str) -> NewJob {
    job(id).key(key)
}

fn finish(lease: &mut Lease) {
    lease.finish(None).unwrap();
}

/// The jobs that are running now.
#[derive(Default)]
struct Inside {
    all: AtomicU64,
    few: AtomicU64,
    keys: [AtomicU64; 5],
    ran: parking_lot::Mutex<Vec<u64>>,
}

impl Inside {
    fn run(&self, kind: &str, n: u64) {
        let (few, key) = (u64::from(kind == "few"), &self.keys[(n % 5) as usize]);
        assert!(self.all.fetch_add(1, SeqCst) < 6, "the queue");
        assert!(self.few.fetch_add(few, SeqCst) + few <= 3, "the kind");
        assert!(key.fetch_add(1, SeqCst) < 2, "the key");
        std::thread::yield_now();
        self.ran.lock().push(n);
        key.fetch_sub(1, SeqCst);
        self.few.fetch_sub(few, SeqCst);
        self.all.fetch_sub(1, SeqCst);
    }
}

#[test]
fn eight_threads_and_a_runner_exceed_no_limit() {
    const JOBS: u64 = 400;
    let limits = [Limit::each_key().at_once(2), Limit::kind("few").at_once(3), Limit::queue().at_once(6)];
    on_each(&options(&[]), |Bench { database, .. }| {
        let options = limits.iter().fold(QueueOptions::default(), |options, limit| options.limit(limit.clone()));
        // Finished jobs are kept, so that all are counted in the end.
        let queue = database.open("busy", options.retention(Retention::Keep)).unwrap();
        let inside = Arc::new(Inside::default());
        let (few, many) = (inside.clone(), inside.clone());
        let runner = Runner::builder(&queue)
            .on("few", move |_, n: u64| {
                few.run("few", n);
                Ok(Outcome::Done)
            })
            .on("many", move |_, n: u64| {
                many.run("many", n);
                Ok(Outcome::Done)
            })
            .max_processing(4)
            .start()
            .unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while queue.counts().finished < JOBS {
                        let lease = queue.accept(Accept::new().timeout(20 * MILLI)).unwrap();
                        if let Some(mut lease) = lease {
                            inside.run(lease.kind(), lease.payload().unwrap());
                            lease.finish(None).unwrap();
                        }
                    }
                });
            }
            for n in 0..JOBS {
                let kind = if n % 3 == 0 { "few" } else { "many" };
                queue.push(NewJob::new(kind, &n).unwrap().key(format!("key{}", n % 5))).unwrap();
            }
        });
        runner.stop().unwrap();
        let mut ran = inside.ran.lock().clone();
        ran.sort_unstable();
        assert_eq!(ran, (0..JOBS).collect::<Vec<_>>());
    });
}

/// A queue whose key `a` has a running job, and whose limit holds `a1` to `a4`.
fn with_held(test: impl Fn(&Bench, Lease)) {
    on_store(&[Limit::each_key().at_once(1)], |bench| {
        bench.queue.push_all((0..5).map(|n| keyed(&format!("a{n}"), "a").cost(2))).unwrap();
        let running = bench.take("a0");
        bench.none();
        test(&bench, running);
    });
}

#[test]
fn a_held_job_that_leaves_keeps_the_order_of_the_others() {
    with_held(|bench, mut running| {
        bench.push(keyed("short", "a").expires(SECOND));
        bench.none();
        bench.queue.remove("a1").unwrap();
        // The push changes its time and its key.
        bench.push(keyed("a3", "b").delay(HOUR));
        assert_eq!(bench.queue.state("a3").unwrap(), Some(JobState::Scheduled));
        bench.clock.advance(SECOND);
        bench.none();
        assert_eq!(bench.queue.state("short").unwrap(), Some(JobState::Dead));
        assert_eq!(bench.held().len(), 2);
        running.finish(None).unwrap();
        assert_eq!(bench.claim_all(), ["a2", "a4"]);
        assert!(bench.queue.requeue("short").unwrap());
        bench.clock.advance(HOUR - 2 * SECOND);
        assert_eq!(bench.queue.counts().ready, 1);
        bench.clock.set_wall(noon());
        bench.queue.remove("short").unwrap();
        bench.clock.advance(2 * HOUR);
        bench.take("a3").finish(None).unwrap();
    });
}

#[test]
fn held_jobs_are_listed_last_and_purged() {
    with_held(|bench, running| {
        bench.push(keyed("b0", "b"));
        bench.push(keyed("b1", "b"));
        let b0 = bench.take("b0");
        bench.none();
        bench.push(job("free"));
        let (mut from, mut pages) = (None, Vec::new());
        loop {
            let page = bench.queue.list(JobState::Ready, from.as_ref(), 2).unwrap();
            pages.push(page.iter().map(|job| job.id.clone()).collect::<Vec<_>>());
            let Some(last) = page.into_iter().last() else { break };
            from = Some(last);
        }
        assert_eq!(pages, [vec!["free", "a1"], vec!["a2", "a3"], vec!["a4", "b1"], vec![]]);
        let info = bench.queue.get("a1").unwrap().unwrap();
        assert_eq!((info.state, info.cost, info.key.as_deref()), (JobState::Ready, 2, Some("a")));
        assert_eq!(info.held_by, Some(LimitOf::Key("a".into())));
        assert_eq!(bench.queue.purge().unwrap(), 8);
        assert_eq!(bench.queue.counts().ready, 0);
        drop((running, b0));
        bench.push(keyed("last", "a"));
        bench.take("last").finish(None).unwrap();
    });
}

#[test]
fn jobs_of_a_dead_process_free_their_limits() {
    let two = [Limit::each_key().at_once(2)];
    let clock = Clock::manual(noon());
    let open = |disk: &FaultyStore, limits: &[Limit]| Bench::on(disk.store(), &clock, options(limits));
    let first = FaultyStore::new().unwrap();
    let bench = open(&first, &two);
    bench.queue.push_all((0..5).map(|n| keyed(&format!("a{n}"), "a"))).unwrap();
    leak((bench.take("a0"), bench.take("a1")));
    bench.none();
    let second = first.after_crash().unwrap();
    let bench = open(&second, &[]);
    assert_eq!(bench.held().len(), 3);
    // The next life dies before it has run a job.
    let third = second.after_crash().unwrap();
    assert_eq!(bench.claim_all(), ["a2", "a3", "a4", "a0", "a1"]);
    let bench = open(&third, &two);
    let mut running = [bench.take("a2"), bench.take("a3")];
    bench.none();
    running.iter_mut().for_each(finish);
    assert_eq!(bench.claim_all(), ["a4", "a0", "a1"]);
}

fn crash_limits() -> [Limit; 3] {
    let rate = Rate::new(4, SECOND).burst(2);
    [Limit::each_key().at_once(1).rate(rate), Limit::kind("k").at_once(2), Limit::queue().at_once(3)]
}

/// Makes a life in which jobs are held, released, moved and removed. Calls whose writes fail are
/// repeated. Returns the finished jobs.
fn live(trial: &Trial) -> (BTreeSet<String>, Clock) {
    let (clock, mut failed) = (Clock::manual(noon()), 0);
    let options = options(&crash_limits()).clock(clock.clone());
    let queue = again(&mut failed, || Queue::open(&trial.store(), "q", options.clone()));
    let mut done = BTreeSet::new();
    for n in 0..9 {
        again(&mut failed, || queue.push(keyed(&format!("a{n}"), ["x", "y", "z"][n % 3])));
    }
    let mut running: VecDeque<Lease> = VecDeque::new();
    for round in 0..12 {
        while let Some(lease) = again(&mut failed, || queue.accept(Accept::new())) {
            running.push_back(lease);
        }
        match round {
            3 => drop(again(&mut failed, || queue.push(keyed("a7", "x").delay(SECOND)))),
            5 => drop(again(&mut failed, || queue.push(keyed("a9", "x").cost(3)))),
            _ => {}
        }
        if let Some(mut lease) = running.pop_front() {
            if round == 2 {
                again(&mut failed, || lease.retry("it fails"));
            } else {
                again(&mut failed, || lease.finish(None));
                done.insert(lease.id().to_owned());
            }
        }
        clock.advance(150 * MILLI);
    }
    running.into_iter().for_each(leak);
    (done, clock)
}

/// Runs all jobs to their end, and asserts that no limit is exceeded.
fn run_out(queue: &Queue, clock: &Clock) {
    for _ in 0..200 {
        let running: Vec<Lease> = std::iter::from_fn(|| queue.accept(Accept::new()).unwrap()).collect();
        let keys: BTreeSet<_> = running.iter().map(|lease| lease.key().unwrap().to_owned()).collect();
        assert!(running.len() <= 2 && keys.len() == running.len(), "{running:?}");
        running.into_iter().for_each(|mut lease| finish(&mut lease));
        let counts = queue.counts();
        if counts.ready + counts.scheduled == 0 {
            assert_eq!(counts.finished, 10);
            return;
        }
        clock.advance(300 * MILLI);
    }
    panic!("{:?}", queue.status());
}

#[test]
fn no_crash_or_failed_write_loses_a_held_job_or_its_place() {
    let mut finished = BTreeSet::new();
    let lives = every_write(&[Stop, PowerLoss, Fail(1)], live, |next, (done, clock)| {
        finished.insert(done);
        if next.fault == Fail(1) {
            return;
        }
        let options = options(&crash_limits()).clock(clock.clone()).retention(Retention::Keep);
        let queue = Queue::open(&next.store(), "q", options).unwrap();
        // Jobs whose pushes were lost are pushed anew.
        for n in 0..10 {
            let id = format!("a{n}");
            if queue.state(&id).unwrap().is_none() {
                queue.push(keyed(&id, ["x", "y", "z"][n % 3])).unwrap();
            }
        }
        run_out(&queue, &clock);
    });
    assert!(lives >= 40, "only {lives} writes");
    assert_eq!(finished.len(), 1, "a fault has changed what is done: {finished:?}");
    assert!(finished.first().unwrap().len() > 7, "{finished:?}");
}

#[test]
fn a_flood_on_one_key_costs_other_keys_no_extra_write() {
    let disk = FaultyStore::new().unwrap();
    let bench = Bench::on(disk.store(), &Clock::manual(noon()), options(&[Limit::each_key().at_once(1)]));
    for chunk in 0..10 {
        let some = (0..1000).map(|n| keyed(&format!("a{}", chunk * 1000 + n), "flood"));
        bench.queue.push_all(some).unwrap();
    }
    let mut flood = bench.take("a0");
    bench.none();
    // From now on no claim reads the flood again: more than 256 entries would take a second write.
    for n in 0..200 {
        bench.push(keyed(&format!("b{n}"), &format!("key{n}")));
        let before = disk.writes();
        let mut lease = bench.take(&format!("b{n}"));
        assert_eq!(disk.writes() - before, 1, "the claim of b{n}");
        lease.finish(None).unwrap();
    }
    for n in 1..200 {
        flood.finish(None).unwrap();
        let before = disk.writes();
        flood = bench.take(&format!("a{n}"));
        assert_eq!(disk.writes() - before, 1, "the claim of a{n}");
    }
    assert_eq!(bench.queue.counts().ready, 9_800);
}

#[test]
fn invalid_limits_keys_and_costs_are_refused() {
    let store = Store::in_memory();
    let refused = |limits: &[Limit]| {
        let options = limits.iter().fold(QueueOptions::default(), |options, limit| options.limit(limit.clone()));
        match Queue::open(&store, "q", options) {
            Err(QueueError::Config(config)) => config,
            other => panic!("{other:?}"),
        }
    };
    let is_refused = |limits: &[Limit], why| matches!(refused(limits), ConfigError::Limit { fault, limit, .. } if (fault, limit.as_str()) == (why, "the queue"));
    assert!(is_refused(&[Limit::queue()], "empty"));
    assert!(matches!(
        refused(&[Limit::queue().at_once(0)]),
        ConfigError::Setting(waterline::ConfigError::Zero { setting: "at_once", .. })
    ));
    for rate in [Rate::new(0, SECOND), Rate::new(1, Duration::ZERO), Rate::new(1, SECOND).burst(0)] {
        assert!(matches!(
            refused(&[Limit::queue().rate(rate)]),
            ConfigError::Setting(waterline::ConfigError::Zero { setting: "rate", .. })
        ));
    }
    let twice = [Limit::queue().at_once(1), Limit::queue().at_once(2)];
    assert!(is_refused(&twice, "twice"));
    assert!(matches!(refused(&[Limit::kind("").at_once(1)]), ConfigError::Length { what: "job kind", length: 0, .. }));
    assert!(matches!(
        refused(&[Limit::key("x".repeat(256)).at_once(1)]),
        ConfigError::Length { what: "job key", length: 256, .. }
    ));
    let options = QueueOptions::default().limit(Limit::key("x".repeat(255)).at_once(1));
    let queue = Queue::open(&store, "q", options.clone().limit(Limit::kind("y".repeat(255)).at_once(1))).unwrap();
    assert!(matches!(Queue::open(&store, "q", options), Err(QueueError::Config(ConfigError::QueueOptions { .. }))));
    let refused = |job: NewJob| match (queue.lazy().push(job.clone()), queue.push(job)) {
        (Err(QueueError::Config(one)), Err(QueueError::Config(other))) if one == other => other,
        other => panic!("{other:?}"),
    };
    assert!(matches!(refused(job("a").key("")), ConfigError::Length { what: "job key", length: 0, .. }));
    assert!(matches!(refused(job("a").key("x".repeat(256))), ConfigError::Length { what: "job key", length: 256, .. }));
    assert!(matches!(
        refused(job("a").cost(0)),
        ConfigError::Setting(waterline::ConfigError::Zero { setting: "cost", .. })
    ));
    for id in ["a", "b"] {
        queue.push(NewJob::new("y".repeat(255), &()).unwrap().id(id).key("x".repeat(255)).cost(u32::MAX)).unwrap();
    }
    let mut first = queue.accept(Accept::new()).unwrap().unwrap();
    assert!(queue.accept(Accept::new()).unwrap().is_none());
    first.finish(None).unwrap();
    assert_eq!(queue.accept(Accept::new()).unwrap().unwrap().id(), "b");
}

#[test]
fn the_each_key_limit_is_listed_without_any_keyed_job() {
    let rate = Rate::new(5, SECOND).burst(9);
    on_store(&[Limit::each_key().at_once(2).rate(rate), Limit::queue().at_once(4)], |bench| {
        let of = |name: &LimitOf| bench.queue.limits().unwrap().into_iter().find(|limit| limit.limit == *name);
        let names = || bench.queue.limits().unwrap().into_iter().map(|limit| limit.limit).collect::<Vec<_>>();
        assert_eq!(names(), [LimitOf::Queue, LimitOf::EachKey]);
        let each = of(&LimitOf::EachKey).unwrap();
        assert_eq!((each.at_once, each.rate, each.burst), (Some(2), Some((5, SECOND)), Some(9)));
        bench.queue.push(keyed("a", "ann")).unwrap();
        let lease = bench.accept();
        assert_eq!(names(), [LimitOf::Queue, LimitOf::EachKey, LimitOf::Key("ann".to_owned())]);
        let counts = |of: LimitOf| {
            bench.queue.limits().unwrap().into_iter().find(|limit| limit.limit == of).map(|limit| limit.running)
        };
        assert_eq!((counts(LimitOf::EachKey), counts(LimitOf::Key("ann".to_owned()))), (Some(0), Some(1)));
        drop(lease);
    });
}

/// No claim takes the kind `c` any more, whose job is ahead of the key's in the log.
#[test]
fn a_key_held_by_an_unclaimed_kind_lets_other_kinds_run() {
    let limits = [Limit::each_key().at_once(1), Limit::kind("c").at_once(1)];
    let options = limits.into_iter().fold(QueueOptions::default(), QueueOptions::limit);
    let queue = Queue::open(&Store::in_memory(), "q", options).unwrap();
    let job = |id: &str| NewJob::new(&id[..1], &1).unwrap().id(id);
    queue.push_all(["c0", "c1"].map(job)).unwrap();
    queue.push_all(["c2", "a0", "c3", "a1"].map(|id| job(id).key("k"))).unwrap();
    let accept = |accept: Accept| queue.accept(accept).unwrap();
    let mut c0 = accept(Accept::new()).unwrap();
    assert!(accept(Accept::new()).is_none(), "the kind has no place, and the key waits for it");
    c0.finish(None).unwrap();
    for id in ["a0", "a1"] {
        let mut lease = accept(Accept::new().kinds(["a"])).expect("it is ready");
        assert_eq!(lease.id(), id);
        lease.finish(None).unwrap();
    }
    assert!(accept(Accept::new().kinds(["a"])).is_none());
    for _ in 0..3 {
        let mut lease = accept(Accept::new()).expect("it is ready");
        assert_eq!((lease.kind(), accept(Accept::new()).is_none()), ("c", true), "one after the other");
        lease.finish(None).unwrap();
    }
}

/// The jobs that no claim takes are first in turn each time.
#[test]
fn unclaimed_held_jobs_do_not_hide_other_limits() {
    let limits = [Limit::each_key().at_once(1), Limit::kind("c").at_once(1)];
    let options = limits.into_iter().fold(QueueOptions::default(), QueueOptions::limit);
    let queue = Queue::open(&Store::in_memory(), "q", options).unwrap();
    let job = |kind: &str| NewJob::new(kind, &1).unwrap();
    queue.push_all(["c", "c"].map(job)).unwrap();
    let mut first = queue.accept(Accept::new()).unwrap().unwrap();
    assert!(queue.accept(Accept::new()).unwrap().is_none());
    first.finish(None).unwrap();
    queue.push_all((0..600).map(|_| job("a").key("k"))).unwrap();
    let accept = || queue.accept(Accept::new().kinds(["a"])).unwrap();
    for n in 0..600 {
        let mut lease = accept().unwrap_or_else(|| panic!("{n} is ready"));
        assert!(accept().is_none(), "the key has no place");
        lease.finish(None).unwrap();
    }
    assert_eq!(queue.counts().ready, 1);
}
