//! Results written in the user's own transactions (`start_writing`), and the records of an engine.

use common::database::{Content, Database, Engine, Fault, Tx};
use common::*;
use crossbeam_channel::unbounded;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use waterline::testing::ProgressSuite;
use waterline::{
    Blocked, BoxError, Builder, Checkpoint, CommitError, Consumer, Error, Index, MemoryJobs, OnExhausted, Progress,
    Retry, SaveError, Saved, State, Status, Tenure, Transactional,
};

const NOW: Retry = Retry::fixed(Duration::ZERO);

fn consumer(engine: Engine, jobs: u64) -> Builder<MemoryJobs<u64>, Engine> {
    Consumer::builder(numbers(jobs), engine).max_processing(4).stop_at(jobs - 1)
}

/// Writes the rows of a batch, unless these jobs are in it.
fn unless(bad: impl Fn(Index) -> bool, tx: &mut Tx<'_>, results: &[(Index, u64)]) -> Result<(), BoxError> {
    assert!(results.is_sorted_by_key(|(index, _)| *index) && results.iter().all(|(index, twice)| *twice == 2 * index));
    tx.write(results);
    match results.iter().find(|(index, _)| bad(*index)) {
        Some((index, _)) => Err(format!("no row for {index}").into()),
        None => Ok(()),
    }
}

fn double(payload: u64) -> Result<u64, BoxError> {
    Ok(2 * payload)
}

/// Runs what is left without failures, and returns the jobs that ran.
fn finish(database: &Database, jobs: u64) -> BTreeSet<Index> {
    let ran = Arc::new(Mutex::new(BTreeSet::new()));
    let runs = ran.clone();
    database.heal();
    consumer(database.engine(), jobs)
        .start_writing(
            move |job| {
                runs.lock().insert(job.index);
                double(job.payload)
            },
            |tx, results| unless(|_| false, tx, results),
        )
        .unwrap()
        .join()
        .unwrap();
    std::mem::take(&mut *ran.lock())
}

/// Starts a consumer whose first transaction has job 0 alone, and lasts until all jobs have run, so
/// that the second has all others. Also returns the batches that `write` was given.
fn in_two(
    database: &Database,
    consumer: Builder<MemoryJobs<u64>, Engine>,
    jobs: u64,
    bad: impl Fn(Index) -> bool + Send + 'static,
) -> (Consumer, crossbeam_channel::Receiver<Vec<Index>>) {
    let (begun, go) = database.slow();
    let (say, batches) = unbounded();
    let (first, wait) = crossbeam_channel::bounded::<()>(0);
    let first = Mutex::new(Some(first));
    let consumer = consumer
        .start_writing(
            move |job| {
                if job.index > 0 && job.attempt == 1 {
                    // Waits until the first transaction has begun.
                    let _ = wait.recv();
                }
                double(job.payload)
            },
            move |tx, results| {
                say.send(results.iter().map(|(index, _)| *index).collect())?;
                unless(&bad, tx, results)
            },
        )
        .unwrap();
    begun.recv().unwrap();
    drop(first.lock().take());
    until(&consumer.handle(), "all jobs to run", |status| status.unsaved == jobs);
    drop(go);
    (consumer, batches)
}

#[test]
fn promise_09_a_failed_write_fails_only_its_own_job() {
    for panics in [false, true] {
        let database = Database::default();
        let failures = Arc::new(AtomicU64::new(0));
        let failed = failures.clone();
        let bad = move |index| {
            let fails = index == 7 && failed.fetch_add(1, Ordering::SeqCst) < 2;
            assert!(!(fails && panics), "no row for {index}");
            fails
        };
        let (consumer, batches) = in_two(&database, consumer(database.engine(), 20).retry(NOW), 20, bad);
        let handle = consumer.handle();
        consumer.join().unwrap();
        database.assert_exact(0..20);
        let alone = (1..20).map(|index| vec![index]);
        let wanted: Vec<Vec<Index>> = [vec![0], (1..20).collect()].into_iter().chain(alone).chain([vec![7]]).collect();
        assert_eq!(batches.iter().collect::<Vec<_>>(), wanted);
        let status = handle.status();
        assert_eq!((status.done, status.failed, status.retries), (20, 1, 1));
    }
}

#[test]
fn promise_10_in_order_a_failed_write_holds_back_the_rest() {
    let database = Database::default();
    let failures = Arc::new(AtomicU64::new(0));
    let failed = failures.clone();
    let bad = move |index| index == 7 && failed.fetch_add(1, Ordering::SeqCst) < 2;
    let (retry, time) = (Retry::fixed(HOUR), Time::new());
    let (consumer, batches) =
        in_two(&database, consumer(database.in_order(), 20).clock(time.clock()).retry(retry), 20, bad);
    let handle = consumer.handle();
    // An hour takes two hundred steps, so the jobs above it have time to overtake it.
    time.steps(HOUR / 200, "the end", || handle.wait_end(Duration::ZERO).is_some());
    consumer.join().unwrap();
    database.assert_exact(0..20);
    let batches: Vec<Vec<Index>> = batches.iter().collect();
    let written: Vec<Index> = batches.iter().filter(|batch| batch.len() == 1).flatten().copied().collect();
    let wanted: Vec<Index> = (0..=7).chain([7]).chain(8..20).collect();
    assert_eq!(written, wanted, "{batches:?}");
}

#[test]
fn a_redrive_whose_write_fails_stays_parked() {
    let database = Database::default();
    let (release, stuck) = crossbeam_channel::bounded::<()>(0);
    let consumer = Consumer::builder(numbers(10), database.engine())
        .max_processing(2)
        .stop_at(9)
        .on_exhausted(OnExhausted::Park { budget: 3 })
        .start_writing(
            move |job| {
                if job.index == 4 {
                    let _ = stuck.recv_timeout(LONG);
                }
                double(job.payload)
            },
            |tx, results| unless(|index| index == 5, tx, results),
        )
        .unwrap();
    let handle = consumer.handle();
    let waits = |failed| {
        move |status: &Status| (status.failed, status.parked, status.done_ahead, status.unsaved) == (failed, 1, 5, 0)
    };
    until(&handle, "all but job 4 to be saved", waits(1));
    handle.redrive(5).unwrap();
    until(&handle, "the redrive to fail", waits(2));
    drop(release);
    consumer.join().unwrap();
    assert_eq!(handle.last_processed_index(), Some(9));
    database.assert_exact((0..10).filter(|index| *index != 5));
    assert_eq!(database.content().parked(), [(5, 2)]);
}

#[test]
fn promise_09_lost_commit_answers_write_each_job_once() {
    let faults = [
        Fault::Retry,
        Fault::AnswerLost { written: true },
        Fault::AnswerLost { written: false },
        Fault::Twice,
        Fault::Retry,
    ];
    for fault in faults {
        let database = Database::default();
        database.fail([fault, fault]);
        consumer(database.engine(), 300)
            .start_writing(|job| double(job.payload), |tx, results| unless(|_| false, tx, results))
            .unwrap()
            .join()
            .unwrap();
        database.assert_exact(0..300);
        let content = database.content();
        assert_eq!(content.saved, Some(Saved::new(Some(299), 300, Vec::new())));
        assert!(content.records.is_empty(), "the sink asked for no records");
    }
}

#[test]
fn promise_10_an_unknown_commit_halts_and_repeats_nothing() {
    let broken = |written| [Fault::Lost { written }, Fault::Panic { written }];
    for fault in broken(true).into_iter().chain(broken(false)) {
        let database = Database::default();
        database.fail([Fault::AnswerLost { written: true }, fault]);
        let outcome = consumer(database.engine(), 300)
            .max_search_ahead(20)
            .start_writing(|job| double(job.payload), |tx, results| unless(|_| false, tx, results))
            .unwrap()
            .join();
        match (fault, outcome) {
            (Fault::Lost { .. }, Err(Error::Fenced { name, holder })) => {
                assert!(name == "balances" && holder.contains("nobody answers"), "{holder}");
            }
            (Fault::Panic { .. }, Err(error @ Error::Progress { .. })) => {
                assert!(error.report().contains("nobody knows") && error.report().contains("broken"), "{error:?}");
            }
            (_, other) => panic!("{fault:?}: {other:?}"),
        }
        let before = database.content();
        assert!(before.rows.len() < 300, "nothing is saved after it");
        let ran = finish(&database, 300);
        database.assert_exact(0..300);
        assert!(ran.iter().all(|index| !before.rows.contains_key(index)), "{fault:?}");
    }
}

#[test]
fn an_engine_that_skips_a_write_halts() {
    for (fault, why) in [(Fault::Forgets, "has not called"), (Fault::Swallows, "had failed")] {
        let database = Database::default();
        database.fail([fault]);
        let error = consumer(database.engine(), 1)
            .start_writing(
                |job| double(job.payload),
                move |tx, results| {
                    tx.write(results);
                    if fault == Fault::Swallows { Err("refused".into()) } else { Ok(()) }
                },
            )
            .map(|consumer| (consumer, fault));
        let (consumer, fault) = error.unwrap();
        if fault == Fault::Forgets {
            // This engine does call `write`; the next one does not.
            consumer.join().unwrap();
            let error = Consumer::builder(numbers(1), Forgetful)
                .start_writing(|job| double(job.payload), |(), _| Ok(()))
                .unwrap()
                .join()
                .unwrap_err();
            assert!(matches!(error, Error::Progress { .. }) && error.report().contains(why), "{}", error.report());
            continue;
        }
        let error = consumer.join().unwrap_err();
        assert!(matches!(error, Error::Progress { .. }) && error.report().contains(why), "{}", error.report());
    }
}

struct Forgetful;

impl Progress for Forgetful {
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
        Ok(None)
    }
    fn save(&mut self, _: &Checkpoint) -> Result<(), BoxError> {
        Ok(())
    }
}

impl Transactional for Forgetful {
    type Tx<'t> = ();

    fn commit(
        &mut self,
        _: &Saved,
        _: &mut (dyn FnMut(&mut ()) -> Result<(), BoxError> + Send),
    ) -> Result<(), CommitError> {
        Ok(())
    }
}

#[test]
fn promise_10_a_name_lost_in_a_transaction_loses_nothing() {
    for by_tenure in [false, true] {
        let database = Database::default();
        let (begun, go) = database.slow();
        let consumer = consumer(database.engine(), 10)
            .start_writing(|job| double(job.payload), |tx, results| unless(|_| false, tx, results))
            .unwrap();
        begun.recv().unwrap();
        if by_tenure {
            database.tenure().lost("the lease is over".into());
        } else {
            database.engine().acquire().unwrap();
        }
        drop(go);
        let error = consumer.join().unwrap_err();
        assert!(matches!(error, Error::Fenced { .. }), "{error:?}");
        assert_eq!(database.content().rows.is_empty(), !by_tenure, "a commit under the fence counts");
        finish(&database, 10);
        database.assert_exact(0..10);
    }
}

#[test]
fn promise_02_jobs_waiting_to_be_written_are_bounded() {
    #[cfg(feature = "tokio")]
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    for (in_order, futures) in [(false, false), (true, false), (false, cfg!(feature = "tokio"))] {
        let database = Database::default();
        let (begun, go) = database.slow();
        let engine = if in_order { database.in_order() } else { database.engine() };
        let ran = Arc::new(AtomicU64::new(0));
        let runs = ran.clone();
        let run = move |payload| {
            runs.fetch_add(1, Ordering::SeqCst);
            double(payload)
        };
        let builder = consumer(engine, 200).max_unwritten(10);
        let consumer = match futures {
            #[cfg(feature = "tokio")]
            true => {
                let run = move |job: waterline::Job<u64>| {
                    let run = run.clone();
                    async move {
                        tokio::task::yield_now().await;
                        run(job.payload)
                    }
                };
                builder.start_writing_async(runtime.handle(), run, |tx, results| unless(|_| false, tx, results))
            }
            _ => builder.start_writing(move |job| run(job.payload), |tx, results| unless(|_| false, tx, results)),
        };
        let consumer = consumer.unwrap();
        begun.recv().unwrap();
        let handle = consumer.handle();
        until(&handle, "the jobs to wait", |status| status.unsaved >= 10 && status.processing == 0);
        handle.set_max_search_ahead(1_000).unwrap();
        let ran_by_then = ran.load(Ordering::SeqCst);
        let status = handle.status();
        drop(go);
        assert!((10..=13).contains(&ran_by_then), "{ran_by_then}");
        assert!(matches!(status.blocked, Blocked::No | Blocked::Progress { .. }), "{status}");
        consumer.join().unwrap();
        database.assert_exact(0..200);
    }
}

#[test]
fn a_hanging_transaction_is_named_and_left() {
    let database = Database::default();
    let (begun, go) = database.slow();
    let time = Time::new();
    let consumer = consumer(database.engine(), 10)
        .clock(time.clock())
        .start_writing(|job| double(job.payload), |tx, results| unless(|_| false, tx, results))
        .unwrap();
    begun.recv().unwrap();
    let named = |blocked: &Blocked| blocked.to_string().contains("the transaction with");
    let second = Duration::from_secs(1);
    time.until(second, &consumer.handle(), "the transaction", |status| named(&status.blocked));
    let outcome = consumer.stop_within(Duration::ZERO);
    assert!(matches!(outcome, Err(Error::Progress { .. } | Error::StopTimeout { .. })), "{outcome:?}");
    drop(go);
    eventually("the transaction to be written", || !database.content().rows.is_empty());
}

#[test]
fn finished_jobs_are_written_while_paused_or_stopping() {
    let database = Database::default();
    let (begun, go) = database.slow();
    let jobs = numbers(1);
    let consumer = Consumer::builder(jobs.clone(), database.engine())
        .start_writing(|job| double(job.payload), |tx, results| unless(|_| false, tx, results))
        .unwrap();
    let handle = consumer.handle();
    begun.recv().unwrap();
    (1..9).for_each(|payload| _ = jobs.push(payload));
    until(&handle, "all jobs to run", |status| status.unsaved == 9);
    handle.pause();
    go.send(()).unwrap();
    begun.recv().unwrap();
    handle.request_stop();
    drop(go);
    consumer.stop().unwrap();
    database.assert_exact(0..9);
    assert_eq!(handle.status().state, State::Finished);
}

#[test]
fn a_panicking_result_destructor_is_harmless() {
    struct Bad(Index);
    impl Drop for Bad {
        fn drop(&mut self) {
            panic!("the destructor of {}", self.0);
        }
    }
    let database = Database::default();
    consumer(database.engine(), 50)
        .start_writing(
            |job| Ok(Bad(job.index)),
            |tx, results| {
                tx.write(results);
                Ok(())
            },
        )
        .unwrap()
        .join()
        .unwrap();
    database.assert_exact(0..50);
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
    fn keeps_records(&self) -> bool {
        self.0.keeps_records()
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
    fn fence(&self) -> u64 {
        self.0.fence()
    }
    fn subscribe(&mut self, tenure: Tenure) {
        self.0.subscribe(tenure);
    }
}

impl<P: Transactional> Transactional for Wrapped<P> {
    type Tx<'t> = P::Tx<'t>;

    fn commit(
        &mut self,
        saved: &Saved,
        write: &mut (dyn FnMut(&mut P::Tx<'_>) -> Result<(), BoxError> + Send),
    ) -> Result<(), CommitError> {
        self.0.commit(saved, write)
    }
}

#[test]
fn a_wrapped_engine_with_records_parks_jobs() {
    let database = Database::default();
    let engine = || Wrapped(Wrapped(database.engine().keeping_records()));
    let park = |retry| {
        Consumer::builder(numbers(9), engine()).retry(retry).on_exhausted(OnExhausted::Park { budget: 2 }).stop_at(8)
    };
    let bad = |index: Index| if index == 3 { Err("refused".into()) } else { Ok(()) };
    park(Retry::none()).start(move |job| bad(job.index)).unwrap().join().unwrap();
    assert_eq!(database.content().parked(), [(3, 1)]);
    let second = Consumer::builder(numbers(9), engine()).start(|_| Ok(())).unwrap();
    assert_eq!(second.handle().status().parked, 1, "also a consumer that parks nothing knows it");
    second.handle().redrive(3).unwrap();
    until(&second.handle(), "the redrive", |status| status.parked == 0);
    second.stop().unwrap();
    assert_eq!(database.content().parked(), []);
}

#[test]
fn promise_05_a_death_in_a_transaction_counts_no_crash() {
    for in_order in [false, true] {
        let database = Database::default();
        let engine = || if in_order { database.in_order() } else { database.engine() };
        let counting = |engine| consumer(engine, 30).max_crashes(2).retry(NOW);
        for written in [false, true, false, true] {
            // Each of these lives dies in a transaction.
            database.fail([Fault::AnswerLost { written: true }, Fault::Dies { written }]);
            let consumer = counting(engine())
                .start_writing(|job| double(job.payload), |tx, results| unless(|_| false, tx, results))
                .unwrap();
            let handle = consumer.handle();
            until(&handle, "the death", |status| matches!(status.blocked, Blocked::Progress { .. } | Blocked::No));
            let _ = consumer.stop_within(Duration::ZERO);
            database.heal();
        }
        let last = counting(engine())
            .start_writing(|job| double(job.payload), |tx, results| unless(|_| false, tx, results))
            .unwrap();
        last.join().unwrap();
        database.assert_exact(0..30);
        let life: Vec<Vec<u8>> = database.content().records.into_keys().collect();
        assert_eq!(life, [b"l".to_vec()], "only the record of the life is left");
    }
}

#[test]
fn a_stopped_takeover_closes_the_engines_life() {
    for writes in [false, true] {
        let database = Database::default();
        let park = OnExhausted::Park { budget: 9 };
        let earlier = consumer(database.engine().keeping_records(), 3).on_exhausted(park);
        earlier.start(|job| if job.index == 1 { Err("no".into()) } else { Ok(()) }).unwrap().join().unwrap();
        let before = database.content();

        database.hold(true);
        let script = Script::up_to(5);
        let (slow, entered, pass) = SlowFirst::new(&script);
        let waiting = Consumer::builder(slow, database.engine().keeping_records()).standby().on_exhausted(park);
        let waiting = if writes { waiting.start_writing(|_| Ok(()), |_, _| Ok(())) } else { waiting.start(|_| Ok(())) };
        let waiting = waiting.unwrap();
        database.hold(false);
        entered.recv_timeout(LONG).expect("it takes over");
        waiting.handle().request_stop();
        pass.send(()).unwrap();
        waiting.join().unwrap();
        assert_eq!(script.owners(), 0);

        let after = database.content();
        assert_ne!(after.records[&b"l"[..]], before.records[&b"l"[..]], "it has opened a life");
        assert_eq!(after.records[&b"l"[..]][1] & 1, 0, "it is closed, so the next life need not be careful");
        let (saved, others) = (
            |content: &Content| content.saved.clone(),
            |content: Content| content.records.into_iter().filter(|(key, _)| key != b"l").collect::<Vec<_>>(),
        );
        assert_eq!(saved(&after), saved(&before));
        assert_eq!(others(after), others(before), "the parked job is still parked");
    }
}

#[derive(Default)]
struct Databases(Mutex<BTreeMap<String, Database>>);

impl Databases {
    fn named(&self, name: &str) -> Database {
        self.0.lock().entry(name.to_owned()).or_default().clone()
    }

    fn rows(&self, name: &str) -> BTreeSet<u64> {
        self.named(name).content().rows.into_keys().collect()
    }
}

fn row(tx: &mut Tx<'_>, row: u64) -> Result<(), BoxError> {
    tx.0.rows.insert(row, 1);
    Ok(())
}

#[test]
fn a_transactional_engine_keeps_the_suite_rules() {
    for in_order in [false, true] {
        let databases = Databases::default();
        let open = |name: &str| {
            let database = databases.named(name);
            let engine = if in_order { database.in_order() } else { database.engine() };
            engine.keeping_records()
        };
        ProgressSuite::new(open)
            .takes_over()
            .transactional(|tx, _, number| row(tx, number), |name| databases.rows(name))
            .run();
    }
}

struct Wrong(Engine, Database, Wrongly);

#[derive(Clone, Copy, Debug)]
enum Wrongly {
    /// Keeps the rows of a failed write.
    LeavesRows,
    ForgetsRecords,
    /// Takes an error of the user's write for a reason to retry.
    SaysRetry,
}

impl Progress for Wrong {
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
        self.0.acquire()
    }
    fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
        self.0.save(checkpoint)
    }
    fn acquire_all(&mut self) -> Result<Option<Saved>, Error> {
        self.0.acquire_all()
    }
    fn fence(&self) -> u64 {
        self.0.fence()
    }
}

impl Transactional for Wrong {
    type Tx<'t> = Tx<'t>;

    fn commit(
        &mut self,
        saved: &Saved,
        write: &mut (dyn FnMut(&mut Tx<'_>) -> Result<(), BoxError> + Send),
    ) -> Result<(), CommitError> {
        let Self(engine, database, wrongly) = self;
        match wrongly {
            Wrongly::LeavesRows => engine.commit(saved, &mut |tx| {
                let written = write(tx);
                if written.is_err() {
                    database.leave(tx);
                }
                written
            }),
            Wrongly::ForgetsRecords => engine.commit(&Saved::new(saved.last_processed, saved.next, Vec::new()), write),
            Wrongly::SaysRetry => engine.commit(saved, write).map_err(|error| CommitError::Retry(error.into())),
        }
    }
}

#[test]
fn the_suite_catches_each_wrong_engine() {
    for wrongly in [Wrongly::LeavesRows, Wrongly::ForgetsRecords, Wrongly::SaysRetry] {
        let databases = Databases::default();
        let open = |name: &str| Wrong(databases.named(name).in_order(), databases.named(name), wrongly);
        let suite = ProgressSuite::new(open)
            .takes_over()
            .transactional(|tx, _, number| row(tx, number), |name| databases.rows(name));
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| suite.run()));
        let text = *found.unwrap_err().downcast::<String>().unwrap();
        let rule = match wrongly {
            Wrongly::LeavesRows | Wrongly::SaysRetry => "a write that fails is CommitError::Write",
            Wrongly::ForgetsRecords => "a transaction has the user's rows",
        };
        assert!(text.contains(rule), "{wrongly:?}: {text}");
    }
}

/// What befalls a life: faults of its transactions, jobs that cannot be written at first, and the
/// moment of its end.
#[derive(Clone, Debug)]
struct Fate {
    faults: Vec<Fault>,
    bad: BTreeMap<Index, u64>,
    jobs: u64,
    in_order: bool,
    parks: bool,
    unwritten: u64,
}

fn fate() -> impl Strategy<Value = Fate> {
    let fault = prop_oneof![
        4 => Just(Fault::Twice),
        2 => Just(Fault::Retry),
        2 => any::<bool>().prop_map(|written| Fault::AnswerLost { written }),
        1 => any::<bool>().prop_map(|written| Fault::Lost { written }),
        1 => any::<bool>().prop_map(|written| Fault::Panic { written }),
        2 => any::<bool>().prop_map(|written| Fault::Dies { written }),
    ];
    let faults = proptest::collection::vec(fault, 0..4);
    let bad = proptest::collection::btree_map(0..60_u64, 1..3_u64, 0..5);
    (faults, bad, 1..60_u64, any::<bool>(), any::<bool>(), prop_oneof![1..9_u64, Just(10_000)]).prop_map(
        |(faults, bad, jobs, in_order, parks, unwritten)| Fate { faults, bad, jobs, in_order, parks, unwritten },
    )
}

fn live(database: &Database, fate: &Fate) {
    database.heal();
    let engine = if fate.in_order { database.in_order() } else { database.engine() };
    database.fail(fate.faults.iter().copied());
    let bad = Mutex::new(fate.bad.clone());
    let (say, written) = unbounded();
    let builder = Consumer::builder(numbers(60), engine)
        .max_processing(3)
        .max_search_ahead(25)
        .max_unwritten(fate.unwritten)
        .retry(NOW);
    let builder = if fate.parks { builder.on_exhausted(OnExhausted::Park { budget: 60 }) } else { builder };
    let consumer = builder
        .start_writing(
            |job| if job.index % 7 == 3 && job.attempt == 1 { Err("not yet".into()) } else { double(job.payload) },
            move |tx, results| {
                results.iter().for_each(|(index, _)| _ = say.send(*index));
                let mut bad = bad.lock();
                for (index, _) in results {
                    if let Some(times) = bad.get_mut(index).filter(|times| **times > 0) {
                        *times -= 1;
                        return Err(format!("no row for {index}").into());
                    }
                }
                drop(bad);
                unless(|_| false, tx, results)
            },
        )
        .unwrap();
    let handle = consumer.handle();
    for _ in 0..fate.jobs {
        // A life that has halted or died writes no more. If it is only slow, it is stopped early,
        // which is as good.
        if written.recv_timeout(QUIET).is_err() {
            break;
        }
    }
    if fate.faults.iter().any(|fault| matches!(fault, Fault::Dies { .. })) {
        let _ = consumer.stop_within(Duration::ZERO);
    } else {
        let _ = consumer.stop();
    }
    // One read for all checks, since an abandoned life may still be in a transaction.
    let content = database.content();
    let (next, done) = content.saved.as_ref().map_or((0, [].as_slice()), |saved| (saved.next, &saved.done));
    let parked: Vec<Index> = content.parked().into_iter().map(|(index, _)| index).collect();
    let is_done = |index: &Index| *index < next || done.iter().any(|run| run.contains(index));
    let wanted = (0..60).filter(|index| is_done(index) && !parked.contains(index));
    content.assert_exact(wanted);
    drop(handle);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(24), ..ProptestConfig::default() })]

    #[test]
    fn promise_09_and_promise_10_random_lives_keep_rows_exact(
        fates in proptest::collection::vec(fate(), 1..6),
    ) {
        let database = Database::default();
        // The same for all lives: an engine with only the watermark forgets what is above it.
        let in_order = fates[0].in_order;
        for fate in &fates {
            live(&database, &Fate { in_order, ..fate.clone() });
        }
        database.heal();
        let engine = if in_order { database.in_order() } else { database.engine() };
        let last = Consumer::builder(numbers(60), engine)
            .retry(NOW)
            .on_exhausted(OnExhausted::Park { budget: 60 })
            .start_writing(|job| double(job.payload), |tx, results| unless(|_| false, tx, results))
            .unwrap();
        prop_assert!(last.handle().wait_for(59, LONG));
        eventually("the redrives", || {
            let _ = last.handle().redrive_all();
            last.handle().status().parked == 0
        });
        last.stop().unwrap();
        database.assert_exact(0..60);
    }
}
