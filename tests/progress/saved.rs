//! A user's own progress: it may keep more than the watermark, lose its name, and steer its
//! consumer.

use common::*;
use crossbeam_channel::{bounded, unbounded};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use waterline::{
    Blocked, BoxError, Checkpoint, Consumer, Error, Index, Job, Jobs, MemoryJobs, MemoryProgress, Progress, Retry,
    SaveError, Saved, State, Store, Tenure, Watermark,
};

#[derive(Default)]
struct Row {
    saved: Option<Saved>,
    token: u64,
    saves: u64,
}

/// An engine in memory with a token for each life, whose name can be taken over at any time.
#[derive(Clone, Default)]
struct Engine {
    row: Arc<Mutex<Row>>,
    token: u64,
    pace: Duration,
    tenure: Arc<Mutex<Option<Tenure>>>,
}

impl Engine {
    /// Returns a value for another life on the same row.
    fn again(&self) -> Self {
        Self { row: self.row.clone(), pace: self.pace, ..Self::default() }
    }

    fn take_over(&self) -> Self {
        let mut other = self.again();
        other.acquire_all().unwrap();
        other
    }

    fn tenure(&self) -> Tenure {
        self.tenure.lock().clone().expect("it is given to the engine")
    }
}

impl Progress for Engine {
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
        unreachable!("it keeps what is done ahead")
    }

    fn save(&mut self, _: &Checkpoint) -> Result<(), BoxError> {
        unreachable!("it keeps what is done ahead")
    }

    fn keeps_done_ahead(&self) -> bool {
        true
    }

    fn acquire_all(&mut self) -> Result<Option<Saved>, Error> {
        let mut row = self.row.lock();
        row.token += 1;
        self.token = row.token;
        Ok(row.saved.clone())
    }

    fn save_all(&mut self, saved: &Saved) -> Result<(), SaveError> {
        let mut row = self.row.lock();
        if self.token != row.token {
            return Err(SaveError::Lost(format!("life {} has it", row.token).into()));
        }
        row.saved = Some(saved.clone());
        row.saves += 1;
        Ok(())
    }

    fn label(&self) -> Option<String> {
        Some("orders".to_owned())
    }

    fn pace(&self) -> Duration {
        self.pace
    }

    fn fence(&self) -> u64 {
        self.token
    }

    fn subscribe(&mut self, tenure: Tenure) {
        *self.tenure.lock() = Some(tenure);
    }
}

/// A progress that only forwards the public methods of another one.
struct Wrapped<P>(P);

impl<P: Progress> Progress for Wrapped<P> {
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
        self.0.acquire()
    }
    fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
        self.0.save(checkpoint)
    }
    fn keeps_done_ahead(&self) -> bool {
        self.0.keeps_done_ahead()
    }
    fn acquire_all(&mut self) -> Result<Option<Saved>, Error> {
        self.0.acquire_all()
    }
    fn save_all(&mut self, saved: &Saved) -> Result<(), SaveError> {
        self.0.save_all(saved)
    }
    fn label(&self) -> Option<String> {
        self.0.label()
    }
    fn pace(&self) -> Duration {
        self.0.pace()
    }
    fn fence(&self) -> u64 {
        self.0.fence()
    }
    fn subscribe(&mut self, tenure: Tenure) {
        self.0.subscribe(tenure);
    }
}

/// Runs a life of jobs 10 to 29 in which these fail and wait. Returns the jobs that it ran.
#[track_caller]
fn life(progress: impl Progress, failing: &'static [Index]) -> BTreeSet<Index> {
    let ran = Arc::new(Mutex::new(BTreeSet::new()));
    let runs = ran.clone();
    let consumer = Consumer::builder(numbers(30), progress)
        .start_at(10)
        .max_processing(4)
        .retry(Retry::fixed(HOUR))
        .start(move |job| {
            assert!(runs.lock().insert(job.index), "job {} ran twice in one life", job.index);
            if failing.contains(&job.index) { Err("not in this life".into()) } else { Ok(()) }
        })
        .unwrap();
    until(&consumer.handle(), "every job that is left", |status| {
        status.next == 30 && status.processing == 0 && status.unsaved == 0
    });
    consumer.stop().unwrap();
    ran.lock().clone()
}

#[track_caller]
fn keeps_done_ahead<P: Progress>(open: impl Fn() -> P) {
    assert_eq!(life(open(), &[10, 15, 16, 28]), (10..30).collect());
    assert_eq!(life(open(), &[15, 28]), BTreeSet::from([10, 15, 16, 28]), "there was no watermark");
    assert_eq!(life(open(), &[28]), BTreeSet::from([15, 28]), "there was one");
    assert_eq!(life(open(), &[]), BTreeSet::from([28]));
    assert_eq!(life(open(), &[]), BTreeSet::new());
}

#[test]
fn promise_10_an_engine_with_done_ahead_repeats_nothing() {
    let engine = Engine::default();
    keeps_done_ahead(|| engine.again());
    assert_eq!(engine.row.lock().saved, Some(Saved::new(Some(29), 30, Vec::new())));
}

#[test]
fn promise_10_an_adapter_around_a_store_keeps_done_ahead() {
    let store = Store::in_memory();
    keeps_done_ahead(|| Wrapped(Wrapped(store.progress("p"))));
    assert_eq!(store.progress("p").last_processed().unwrap(), Some(29));
    // With or without the adapter, the same record is read.
    let other = Store::in_memory();
    assert_eq!(life(Wrapped(other.progress("p")), &[12, 20]).len(), 20);
    assert_eq!(life(other.progress("p"), &[20]), BTreeSet::from([12, 20]));
    assert_eq!(life(Wrapped(other.progress("p")), &[]), BTreeSet::from([20]));
}

#[test]
fn an_adapter_around_memory_keeps_only_the_watermark() {
    let memory = MemoryProgress::new();
    let ran = |progress: Wrapped<MemoryProgress>| {
        let (tell, told) = unbounded();
        let consumer = Consumer::builder(numbers(6), progress)
            .retry(Retry::fixed(HOUR))
            .start(move |job| {
                tell.send(job.index)?;
                if job.index == 2 { Err("no".into()) } else { Ok(()) }
            })
            .unwrap();
        let status = until(&consumer.handle(), "five jobs", |status| {
            (status.last_processed, status.next, status.processing) == (Some(1), 6, 0)
        });
        consumer.stop().unwrap();
        (told.iter().collect::<BTreeSet<_>>(), status.unsaved)
    };
    assert_eq!(ran(Wrapped(memory.clone())), ((0..6).collect(), 3));
    assert_eq!(ran(Wrapped(memory.clone())), ((2..6).collect(), 3));
    assert_eq!(memory.last_processed(), Some(1));
}

/// Joins a consumer that is about to end by itself.
#[track_caller]
fn join(consumer: Consumer) -> Result<(), Error> {
    let handle = consumer.handle();
    assert!(handle.wait_end(LONG).is_some(), "it does not end: {}", handle.status());
    consumer.join()
}

/// Two jobs: the first is done and saved, the second runs until `go` is dropped.
struct Running {
    consumer: Consumer,
    go: crossbeam_channel::Sender<()>,
}

#[track_caller]
fn one_is_saved_and_one_runs(progress: impl Progress) -> Running {
    let (go, gone) = bounded::<()>(0);
    let (begin, begun) = unbounded();
    let consumer = Consumer::builder(numbers(5), progress)
        .max_processing(1)
        .start(move |job| {
            if job.index == 1 {
                begin.send(())?;
                let _ = gone.recv();
            }
            Ok(())
        })
        .unwrap();
    assert!(consumer.handle().wait_for(0, LONG));
    begun.recv_timeout(LONG).unwrap();
    Running { consumer, go }
}

#[track_caller]
fn is_fenced(outcome: Result<(), Error>, name: &str, holder: &str) {
    let error = outcome.unwrap_err();
    let is_right = matches!(&error, Error::Fenced { name: n, holder: h } if n == name && h == holder);
    assert!(is_right, "{error:#?}");
    assert!(error.report().contains(name) && error.report().contains(holder), "{error}");
}

#[test]
fn promise_07_a_consumer_taken_over_halts_without_a_save() {
    let engine = Engine::default();
    let Running { consumer, go } = one_is_saved_and_one_runs(engine.again());
    let handle = consumer.handle();
    let mut other = engine.take_over();
    other.save_all(&Saved::new(Some(3), 4, vec![6..=6])).unwrap();
    let saves = engine.row.lock().saves;
    drop(go);
    is_fenced(join(consumer), "orders", "life 2 has it");
    let row = engine.row.lock();
    assert_eq!((row.saves, row.saved.clone()), (saves, Some(Saved::new(Some(3), 4, vec![6..=6]))));
    let status = handle.status();
    assert_eq!((status.state, status.last_processed, status.processing), (State::Halted, Some(0), 0));
    assert!(status.unsaved > 0 && status.unsaved == status.done - 1, "{status:#?}");
    assert!(matches!(&status.blocked, Blocked::Halted { error, .. } if error.contains("life 2 has it")), "{status}");
    assert!(!handle.wait_for(1, LONG), "the watermark never moves again");
}

#[test]
fn a_fenced_save_halts_and_is_not_retried() {
    let progress = FaultyProgress::new(Engine::default());
    let faults = progress.faults();
    let (go, gone) = bounded::<()>(0);
    let consumer = Consumer::builder(numbers(50), progress)
        .max_processing(2)
        .start(move |job| {
            if job.index == 0 {
                let _ = gone.recv();
            }
            Ok(())
        })
        .unwrap();
    let handle = consumer.handle();
    // The jobs above job 0 are saved, so the next job makes a save due.
    until(&handle, "the others", |status| status.done == 49 && status.unsaved == 0);
    let writes = faults.writes();
    faults.lose(..);
    drop(go);
    is_fenced(join(consumer), "orders", &format!("somebody else, since write {writes}, as the test wished"));
    assert_eq!(faults.writes(), writes + 1, "it is not tried again");
    assert_eq!(handle.status().unsaved, 1);
}

#[test]
fn the_last_save_of_a_stop_may_be_fenced() {
    let engine = Engine { pace: HOUR, ..Engine::default() };
    let Running { consumer, go } = one_is_saved_and_one_runs(engine.again());
    let handle = consumer.handle();
    handle.request_stop();
    engine.take_over();
    drop(go);
    is_fenced(consumer.stop(), "orders", "life 2 has it");
    assert_eq!(handle.status().unsaved, 1);
}

/// A progress that keeps only the watermark, and whose second save finds the name lost.
struct WatermarkAlone(u64);

impl Progress for WatermarkAlone {
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
        Ok(None)
    }
    fn save(&mut self, _: &Checkpoint) -> Result<(), BoxError> {
        self.0 += 1;
        match self.0 {
            1 => Ok(()),
            2 => Err(SaveError::Lost("node b has it".into()).into()),
            _ => unreachable!("no save is tried after that"),
        }
    }
    fn save_all(&mut self, _: &Saved) -> Result<(), SaveError> {
        unreachable!("it keeps the watermark alone")
    }
}

#[test]
fn a_plain_progress_reports_a_lost_name_by_its_error() {
    let Running { consumer, go } = one_is_saved_and_one_runs(WatermarkAlone(0));
    drop(go);
    is_fenced(join(consumer), "unnamed", "node b has it");
}

#[test]
fn an_engine_may_name_the_new_holder_itself() {
    let engine = Engine::default();
    let Running { consumer, go } = one_is_saved_and_one_runs(engine.clone());
    engine.tenure().lost(Error::Fenced { name: "p".to_owned(), holder: "node b".to_owned() }.into());
    drop(go);
    is_fenced(join(consumer), "p", "node b");
}

#[test]
fn a_passing_save_error_is_retried_and_shown() {
    let progress = FaultyProgress::new(Engine::default());
    let faults = progress.faults();
    faults.fail(..);
    let consumer = Consumer::builder(numbers(3), progress).stop_at(2).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    until(
        &handle,
        "the error",
        |status| matches!(&status.blocked, Blocked::Progress { error } if error.starts_with("the disk fails in write")),
    );
    faults.heal();
    consumer.join().unwrap();
    assert_eq!(handle.status().unsaved, 0);
}

#[test]
fn a_lost_tenure_halts_at_once_without_a_save() {
    let engine = Engine::default();
    let Running { consumer, go } = one_is_saved_and_one_runs(engine.clone());
    let handle = consumer.handle();
    engine.tenure().lost("the lease ran out".into());
    engine.tenure().lost("and once more".into());
    let status = handle.status();
    assert_eq!((status.state, status.processing), (State::Halted, 1), "{status}");
    assert!(handle.wait_end(Duration::ZERO).is_none(), "a job runs");
    let saves = engine.row.lock().saves;
    drop(go);
    is_fenced(join(consumer), "orders", "the lease ran out");
    assert_eq!(engine.row.lock().saves, saves);
    assert_eq!((handle.status().next, handle.status().unsaved), (2, 1));
    engine.tenure().hold("it is over");
    engine.tenure().lost("it is over".into());
    assert!(!matches!(handle.status().blocked, Blocked::Held { .. }));
}

#[test]
fn a_tenure_lost_during_a_save_ends_its_retries() {
    for fails in [false, true] {
        let progress = FaultyProgress::new(Engine::default());
        let faults = progress.faults();
        faults.fail(if fails { 0..1 } else { 0..0 });
        let hold = faults.hold();
        let consumer = Consumer::builder(numbers(1), progress).start(|_| Ok(())).unwrap();
        let handle = consumer.handle();
        hold.wait();
        faults.tenure().unwrap().lost("the lease ran out".into());
        assert_eq!(handle.status().state, State::Halted);
        drop(hold);
        is_fenced(join(consumer), "orders", "the lease ran out");
        let status = handle.status();
        let expected = if fails { (None, 1) } else { (Some(0), 0) };
        assert_eq!((status.last_processed, status.unsaved), expected);
        assert_eq!(faults.writes(), 1);
    }
    // A backoff of seconds is not waited out.
    let progress = FaultyProgress::new(Engine::default());
    let faults = progress.faults();
    faults.fail(..);
    let consumer = Consumer::builder(numbers(1), progress).start(|_| Ok(())).unwrap();
    eventually("a long back-off", || faults.writes() >= 6);
    let writes = faults.writes();
    faults.tenure().unwrap().lost("the lease ran out".into());
    is_fenced(join(consumer), "orders", "the lease ran out");
    assert!(faults.writes() <= writes + 1, "one may have begun meanwhile");
}

#[test]
fn a_save_waiting_for_its_pace_is_dropped_on_loss() {
    let engine = Engine { pace: HOUR, ..Engine::default() };
    let (go, gone) = bounded::<()>(0);
    let (pass, passed) = bounded::<()>(0);
    let consumer = Consumer::builder(numbers(3), engine.clone())
        .max_processing(2)
        .start(move |job| {
            let _ = match job.index {
                1 => passed.recv(),
                2 => gone.recv(),
                _ => Ok(()),
            };
            Ok(())
        })
        .unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(0, LONG));
    // Job 2 runs on, so the save of job 1 waits for its pace of an hour.
    drop(pass);
    until(&handle, "job 1", |status| status.done == 2 && status.unsaved == 1);
    engine.tenure().lost("the lease ran out".into());
    drop(go);
    is_fenced(join(consumer), "orders", "the lease ran out");
    assert_eq!((engine.row.lock().saves, handle.status().last_processed, handle.status().unsaved), (1, Some(0), 2));
}

/// An engine that calls its tenure before the consumer has started.
struct Early(Engine, fn(&Tenure));

impl Progress for Early {
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
        unreachable!("it keeps what is done ahead")
    }
    fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
        self.0.save(checkpoint)
    }
    fn keeps_done_ahead(&self) -> bool {
        true
    }
    fn acquire_all(&mut self) -> Result<Option<Saved>, Error> {
        (self.1)(&self.0.tenure());
        self.0.acquire_all()
    }
    fn save_all(&mut self, saved: &Saved) -> Result<(), SaveError> {
        self.0.save_all(saved)
    }
    fn label(&self) -> Option<String> {
        self.0.label()
    }
    fn subscribe(&mut self, tenure: Tenure) {
        self.0.subscribe(tenure);
    }
}

#[test]
fn a_tenure_lost_before_the_start_is_its_error() {
    let engine = Engine::default();
    let jobs = MemoryJobs::<u64>::new();
    let started = Consumer::builder(jobs, Early(engine.clone(), |tenure| tenure.lost("too late".into())));
    is_fenced(started.start(|_| Ok(())).map(drop), "orders", "too late");
    engine.tenure().lost("ignored".into());
    engine.tenure().hold("ignored");
}

/// A source in whose first call the name is lost.
struct Slow(Engine);

impl Jobs for Slow {
    type Job = u64;
    fn first(&self) -> Result<Index, BoxError> {
        self.0.tenure().lost("the lease ran out".into());
        Ok(0)
    }
    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(0))
    }
    fn at_index(&self, index: Index) -> Result<Option<u64>, BoxError> {
        Ok(Some(index))
    }
}

#[test]
fn a_tenure_lost_after_acquire_fails_the_start() {
    let engine = Engine::default();
    let (ran, runs) = (Arc::new(AtomicU64::new(0)), engine.clone());
    let counts = ran.clone();
    let started = Consumer::builder(Slow(engine.clone()), runs).start(move |_| {
        counts.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    is_fenced(started.map(drop), "orders", "the lease ran out");
    assert_eq!((ran.load(Ordering::Relaxed), engine.row.lock().saves), (0, 0));
}

#[test]
fn a_consumer_held_before_its_start_runs_nothing() {
    let engine = Engine::default();
    let ran = Arc::new(AtomicU64::new(0));
    let runs = ran.clone();
    let progress = Early(engine.clone(), |tenure| tenure.hold("the lease is not confirmed"));
    let consumer = Consumer::builder(numbers(5), progress)
        .stop_at(4)
        .start(move |_| {
            runs.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
        .unwrap();
    let handle = consumer.handle();
    let held = Blocked::Held { why: "the lease is not confirmed".to_owned() };
    let status = until(&handle, "a look", |status| status.head == Some(4));
    assert_eq!((status.state, &status.blocked), (State::Running, &held));
    assert!(status.to_string().contains("the lease is not confirmed"), "{status}");
    assert_eq!((status.next, ran.load(Ordering::Relaxed)), (0, 0));
    engine.tenure().go_on();
    consumer.join().unwrap();
    assert_eq!(ran.load(Ordering::Relaxed), 5);
}

#[test]
fn a_hold_does_not_nest_and_is_no_pause() {
    let engine = Engine::default();
    let Running { consumer, go } = one_is_saved_and_one_runs(engine.clone());
    let (handle, tenure) = (consumer.handle(), engine.tenure());
    let held = |why: &str| Blocked::Held { why: why.to_owned() };
    tenure.hold("first");
    tenure.clone().hold("second");
    drop(go);
    assert!(handle.wait_for(1, LONG));
    let status = until(&handle, "the reason", |status| status.processing == 0 && status.blocked == held("second"));
    assert_eq!((status.state, status.next), (State::Running, 2));
    handle.pause();
    assert_eq!((handle.status().state, handle.status().blocked), (State::Paused, Blocked::Paused));
    handle.resume();
    assert_eq!(handle.status().blocked, held("second"), "a resume ends no hold");
    handle.pause();
    tenure.go_on();
    assert_eq!(handle.status().blocked, Blocked::Paused, "nor does `go_on` end a pause");
    assert_eq!(handle.status().next, 2);
    handle.resume();
    assert!(handle.wait_for(4, LONG), "one `go_on` ends both holds");
    tenure.hold("third");
    consumer.stop().unwrap();
}

#[test]
fn a_tenure_keeps_nothing_alive() {
    let (jobs, engine) = (Script::up_to(3), Engine::default());
    let consumer = Consumer::builder(jobs.clone(), engine.clone()).start(|_| Ok(())).unwrap();
    assert!(consumer.handle().wait_for(3, LONG));
    consumer.stop().unwrap();
    let tenure = engine.tenure();
    assert_eq!((jobs.owners(), Arc::strong_count(&engine.row)), (0, 1), "{tenure:?}");
    let lost = Arc::new(());
    let weak = Arc::downgrade(&lost);
    tenure.lost(Box::new(Holds(lost)));
    assert!(weak.upgrade().is_none(), "what it is told after the end is dropped");
}

#[derive(Debug)]
struct Holds(#[allow(dead_code)] Arc<()>);

impl std::fmt::Display for Holds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it holds something")
    }
}

impl std::error::Error for Holds {}

#[test]
fn each_job_has_its_lifes_fence_or_zero() {
    let engine = Engine::default();
    for life in 1..=3 {
        let (tell, told) = unbounded();
        let consumer = Consumer::builder(numbers(2 * life), engine.again()).stop_at(2 * life - 1);
        if life == 2 {
            let deferred = consumer.start_deferred(move |job, done| {
                tell.send(job.fence).unwrap();
                done.complete();
            });
            deferred.unwrap().join().unwrap();
        } else {
            // A retry has the fence, too.
            let run = move |job: Job<u64>| {
                tell.send(job.fence)?;
                if job.attempt == 1 { Err("once more".into()) } else { Ok(()) }
            };
            consumer.retry(Retry::fixed(Duration::ZERO)).start(run).unwrap().join().unwrap();
        }
        let jobs = if life == 2 { 2 } else { 4 };
        assert_eq!(told.iter().collect::<Vec<_>>(), vec![life; jobs]);
    }
    let none = |job: Job<u64>| {
        assert_eq!(job.fence, 0);
        Ok(())
    };
    Consumer::builder(numbers(3), MemoryProgress::new()).stop_at(2).start(none).unwrap().join().unwrap();
    assert_eq!(Job::new(1, ()).fence, 0);
}

#[test]
fn saves_keep_the_engines_pace_until_the_end() {
    const MS: Duration = Duration::from_millis(1);
    for pace in [HOUR, Duration::MAX] {
        let (engine, time) = (Engine { pace, ..Engine::default() }, Time::new());
        let (go, gone) = bounded::<()>(0);
        let jobs = MemoryJobs::new();
        // Job 0 runs all the time, so jobs are always in flight.
        let consumer = Consumer::builder(jobs.clone(), engine.again())
            .clock(time.clock())
            .max_processing(2)
            .start(move |job: Job<()>| {
                if job.index == 0 {
                    let _ = gone.recv();
                }
                Ok(())
            })
            .unwrap();
        let handle = consumer.handle();
        jobs.push(());
        let saves = || engine.row.lock().saves;
        let runs = || {
            let index = jobs.push(());
            until(&handle, "a job that ends", |status| status.done == index);
        };
        runs();
        eventually("the first save", || saves() == 1);
        for more in 2..5 {
            (0..20).for_each(|_| runs());
            time.pass(HOUR - MS);
            runs();
            assert_eq!(saves(), if pace == HOUR { more - 1 } else { 1 });
            // The pace starts a moment after the save.
            time.steps(MS, "the next save", || saves() == if pace == HOUR { more } else { 1 });
        }
        drop(go);
        consumer.stop().unwrap();
        assert_eq!(handle.status().unsaved, 0, "the end waits for no pace");
    }
}

#[test]
fn impossible_loaded_progress_is_refused() {
    let refused = |saved: Saved| {
        let engine = Engine::default();
        engine.row.lock().saved = Some(saved);
        match Consumer::builder(numbers(3), engine).start(|_| Ok(())) {
            Err(Error::Corrupt { name, reason }) if name == "orders" => reason,
            other => panic!("{other:?}"),
        }
    };
    assert!(refused(Saved::new(Some(Index::MAX), 0, vec![])).contains("never a job"));
    assert!(refused(Saved::new(Some(4), 7, vec![])).contains("its watermark is 4"));
    assert!(refused(Saved::new(None, 3, vec![5..=1 << 50])).contains("far above 3"));
    for done in [5..=5, 3..=7] {
        let reason = refused(Saved::new(Some(4), 5, vec![9..=9, done]));
        assert!(reason.contains("job 5 is not done, and that it is"), "{reason}");
    }
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = 9..=7;
    assert!(refused(Saved::new(Some(4), 5, vec![backwards])).contains("ends before it begins"));
    assert!(refused(Saved::new(None, Index::MAX, vec![])).contains("never a job"));
    assert!(
        refused(Saved::new(Some(Index::MAX - 9), Index::MAX - 8, vec![Index::MAX..=Index::MAX]))
            .contains("never a job")
    );
}

#[test]
fn loaded_runs_may_overlap_in_any_order() {
    let engine = Engine::default();
    engine.row.lock().saved = Some(Saved::new(Some(4), 5, vec![8..=9, 1..=3, 7..=8, 2..=4]));
    let ran = Arc::new(Mutex::new(BTreeSet::new()));
    let runs = ran.clone();
    let run = move |job: Job<u64>| {
        assert!(runs.lock().insert(job.index), "job {} ran twice", job.index);
        Ok(())
    };
    Consumer::builder(numbers(12), engine).stop_at(11).start(run).unwrap().join().unwrap();
    assert_eq!(*ran.lock(), BTreeSet::from([5, 6, 10, 11]));
}

#[test]
fn a_stop_during_a_read_waits_for_no_pace() {
    let engine = Engine { pace: HOUR, ..Engine::default() };
    let (jobs, (begin, begun)) = (Script::up_to(0), unbounded());
    let (go, gone) = bounded::<()>(0);
    let run = move |job: Job<Index>| {
        if job.index == 1 {
            begin.send(())?;
            let _ = gone.recv();
        }
        Ok(())
    };
    let consumer = Consumer::builder(jobs.clone(), engine.again()).max_processing(2).start(run).unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(0, LONG), "the first save has no pace");
    jobs.set_head(Some(1));
    handle.check();
    begun.recv_timeout(LONG).unwrap();
    let gate = jobs.gated();
    jobs.set_head(Some(2));
    handle.check();
    gate.wait_for("at_index");
    handle.request_stop();
    drop(go);
    until(&handle, "the end of job 1", |status| status.processing == 0);
    drop(gate);
    consumer.stop_within(LONG).unwrap();
    assert_eq!(engine.row.lock().saved, Some(Saved::new(Some(1), 2, vec![])));
}

#[test]
fn a_leased_name_is_refused_with_holder_and_time() {
    struct Leased;
    impl Progress for Leased {
        fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
            let (name, holder) = ("orders".to_owned(), "node b".to_owned());
            Err(Error::Leased { name, holder, expires_in: Duration::from_secs(12) })
        }
        fn save(&mut self, _: &Checkpoint) -> Result<(), BoxError> {
            unreachable!("it was never acquired")
        }
    }
    let error = Consumer::builder(numbers(3), Leased).start(|_| Ok(())).unwrap_err();
    let text = error.to_string();
    assert!(["orders", "node b", "12.0s"].iter().all(|part| text.contains(part)), "{text}");
}

/// A source that only forwards the documented methods of another one.
struct Around<J>(J);

impl<J: Jobs> Jobs for Around<J> {
    type Job = J::Job;

    fn first(&self) -> Result<Index, BoxError> {
        self.0.first()
    }
    fn head(&self) -> Result<Option<Index>, BoxError> {
        self.0.head()
    }
    fn at_index(&self, index: Index) -> Result<Option<J::Job>, BoxError> {
        self.0.at_index(index)
    }
    fn read(&self, run: std::ops::RangeInclusive<Index>, into: &mut Vec<J::Job>) -> Result<(), BoxError> {
        self.0.read(run, into)
    }
    fn weight(&self, job: &J::Job) -> usize {
        self.0.weight(job)
    }
    fn subscribe(&self, wakeup: waterline::Wakeup) -> bool {
        self.0.subscribe(wakeup)
    }
    fn gate(&self) -> waterline::Gate {
        self.0.gate()
    }
}

#[test]
fn a_gate_behind_an_adapter_wakes_and_is_named() {
    let store = Store::in_memory();
    let upstream = Consumer::builder(numbers(10), store.progress("fetch")).stop_at(3).start(|_| Ok(())).unwrap();
    let gate = Watermark::new();
    let behind = Around(Around(numbers(10).gated_by(upstream.handle())).gated_by(&gate));
    // The source notifies, so it is not polled: only the gate can wake the consumer.
    let consumer = Consumer::builder(behind, store.progress("index")).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    until(&handle, "the gate", |status| status.blocked == Blocked::Upstream { index: 0 });
    let opens = Consumer::builder(numbers(10), MemoryProgress::new()).watermark(gate).start(|_| Ok(())).unwrap();
    assert!(handle.wait_for(3, LONG), "{}", handle.status());
    upstream.join().unwrap();
    let status = until(&handle, "the other gate", |status| status.ended_upstream.is_some());
    assert_eq!((status.blocked, status.ended_upstream.as_deref()), (Blocked::Upstream { index: 4 }, Some("fetch")));
    assert!(!handle.wait_for(4, LONG), "that upstream never gets there");
    consumer.stop().unwrap();
    opens.stop().unwrap();
}

#[test]
fn a_gate_cycle_through_adapters_is_refused() {
    let (one, other) = (Watermark::new(), Watermark::new());
    let start = |own: &Watermark, upstream: &Watermark| {
        let behind = Around(numbers(5).gated_by(upstream));
        Consumer::builder(Around(behind), MemoryProgress::new()).watermark(own.clone()).stop_at(4).start(|_| Ok(()))
    };
    let first = start(&one, &other).unwrap();
    let error = start(&other, &one).unwrap_err();
    assert!(matches!(error, Error::Config(waterline::ConfigError::GateCycle { .. })), "{error}");
    let upstream =
        Consumer::builder(numbers(5), MemoryProgress::new()).watermark(other).stop_at(2).start(|_| Ok(())).unwrap();
    upstream.join().unwrap();
    let error = first.join().unwrap_err();
    assert!(matches!(error, Error::UpstreamEnded { last_processed: Some(2), index: 4, .. }), "{error}");
    assert_eq!(one.last_processed(), Some(2));
}
