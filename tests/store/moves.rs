//! Moves of a progress by hand: a seek to the next job, a skip of one job, and their history.

use common::every_write::DiskFault::{Fail, PowerLoss};
use common::every_write::{DEATHS, Trial, every_write_after};
use common::*;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use waterline::fuzzing::Disk;
use waterline::testing::FaultyStore;
use waterline::{
    Blocked, BoxError, ConfigError, Consumer, Error, Index, Job, JobLog, Jobs, Move, MoveKind, OnExhausted, Progress,
    Saved, Store, Wakeup,
};

const PARK: OnExhausted = OnExhausted::Park { budget: 100 };

/// A move without its time.
type Made = (MoveKind, Option<Index>, Index, String);

fn made(history: &[Move]) -> Vec<Made> {
    history.iter().map(|made| (made.kind, made.from, made.to, made.reason.clone())).collect()
}

/// Everything that a move changes.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    saved: Option<Saved>,
    parked: Vec<(Index, String)>,
    moves: Vec<Made>,
}

fn seen(store: &Store) -> Seen {
    let parked = store.parked("p").unwrap();
    Seen {
        saved: store.progress("p").acquire_all().unwrap(),
        parked: parked.into_iter().map(|parked| (parked.index, parked.error)).collect(),
        moves: made(&store.progress("p").history().unwrap()),
    }
}

fn parked(store: &Store) -> Vec<Index> {
    store.parked("p").unwrap().iter().map(|parked| parked.index).collect()
}

fn save(store: &Store, last_processed: Option<Index>, done: &[std::ops::RangeInclusive<Index>]) {
    let mut progress = store.progress("p");
    progress.acquire_all().unwrap();
    let next = last_processed.map_or(0, |last| last + 1);
    progress.save_all(&Saved::new(last_processed, next, done.to_vec())).unwrap();
}

/// The indices of the jobs that ran, in order.
type Ran = Arc<Mutex<Vec<Index>>>;

fn noting() -> (Ran, impl Fn(Job<u64>) -> Result<(), BoxError> + Send + Sync + 'static) {
    let ran = Ran::default();
    let noted = ran.clone();
    (ran, move |job| {
        noted.lock().push(job.index);
        Ok(())
    })
}

/// Runs a life of the progress `p` up to this job, one after the other, and returns the jobs that
/// ran. Those at `bad` indices fail and are parked.
fn life(
    store: &Store,
    jobs: impl Jobs,
    last: Index,
    bad: impl Fn(Index) -> bool + Send + Sync + 'static,
) -> Vec<Index> {
    let ran = Arc::new(Mutex::new(Vec::new()));
    let consumer = Consumer::builder(jobs, store.progress("p")).max_processing(1).on_exhausted(PARK).stop_at(last);
    let consumer = consumer.start({
        let ran = ran.clone();
        move |job| {
            ran.lock().push(job.index);
            if bad(job.index) { Err("refused".into()) } else { Ok(()) }
        }
    });
    consumer.unwrap().join().unwrap();
    Arc::into_inner(ran).unwrap().into_inner()
}

#[test]
fn a_seek_sets_the_next_job_and_drops_done_ahead() {
    let place = Place::default();
    let store = place.open();
    save(&store, Some(4), &[6..=6, 8..=9, 12..=12]);
    // From here on the page has deltas, which the page of a seek must void.
    assert_eq!(life(&store, numbers(20), 6, |_| false), [5]);
    assert_eq!(store.progress("p").last_processed().unwrap(), Some(6));

    store.progress("p").seek(9, "forward, over a job that is done ahead").unwrap();
    let saved = |next: Index| Some(Saved::new(next.checked_sub(1), next, vec![]));
    assert_eq!(seen(&store).saved, saved(9));
    drop(store);
    let store = place.open();
    assert_eq!(seen(&store).saved, saved(9));
    assert_eq!(life(&store, numbers(20), 14, |_| false), (9..=14).collect::<Vec<_>>());
    for next in [3, 3, 15, 0] {
        store.progress("p").seek(next, "again").unwrap();
        assert_eq!(seen(&store).saved, saved(next));
    }
    assert_eq!(life(&store, numbers(20), 19, |_| false), (0..20).collect::<Vec<_>>());
    let from: Vec<_> = store.progress("p").history().unwrap().iter().map(|made| (made.from, made.to)).collect();
    assert_eq!(from, [(Some(7), 9), (Some(15), 3), (Some(3), 3), (Some(3), 15), (Some(15), 0)]);
}

#[test]
fn a_seek_of_a_new_name_sets_its_first_job() {
    let place = Place::default();
    let store = place.open();
    store.progress("p").seek(3, "the stream begins with job 3").unwrap();
    assert_eq!(store.progress("p").last_processed().unwrap(), Some(2));
    assert_eq!(made(&store.progress("p").history().unwrap())[0].1, None, "nothing was saved before");
    let (ran, noting) = noting();
    let consumer = Consumer::builder(numbers(9), store.progress("p")).max_processing(1).start_at(6).stop_at(8);
    consumer.start(noting).unwrap().join().unwrap();
    assert_eq!(*ran.lock(), [3, 4, 5, 6, 7, 8], "a saved progress goes before start_at");
    drop(store);
    // A store without `create` makes no progress.
    let strict = place.open_with(&Store::options().create(false));
    for moved in [strict.progress("q").seek(1, "r"), strict.progress("q").skip(1, "r")] {
        assert!(matches!(&moved, Err(Error::NotFound { what: "progress", name }) if name == "q"), "{moved:?}");
    }
    assert_eq!((strict.consumers().unwrap().len(), strict.progress("q").history().unwrap().len()), (1, 0));
    strict.progress("p").seek(0, "this one is there").unwrap();
}

#[test]
fn a_seek_beyond_the_head_waits_there() {
    let store = Store::in_memory();
    store.progress("p").seek(9, "the source will have them").unwrap();
    for (jobs, head) in [(numbers(5), Some(4)), (numbers(0), None)] {
        let (ran, noting) = noting();
        let consumer = Consumer::builder(jobs.clone(), store.progress("p")).start(noting).unwrap();
        let handle = consumer.handle();
        let ahead = Blocked::AheadOfSource { last_processed: 8, head };
        until(&handle, "the source to be asked", |status| status.blocked == ahead);
        if head.is_some() {
            consumer.stop().unwrap();
            continue;
        }
        (0..10).for_each(|job| _ = jobs.push(job));
        assert!(handle.wait_for(9, LONG), "{}", handle.status());
        consumer.stop().unwrap();
        assert_eq!(*ran.lock(), [9]);
    }
}

#[test]
fn a_seek_goes_back_to_the_first_item_at_most() {
    let place = Place::default();
    let store = place.open();
    let log = store.log::<u64>("l").unwrap();
    log.push_all(&(1..=10).collect::<Vec<_>>()).unwrap();
    let consumer = Consumer::builder(log.clone(), store.progress("p")).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    log.retain([&handle]);
    assert!(handle.wait_for(10, LONG));
    consumer.stop().unwrap();
    let first = 11;
    eventually("it is trimmed", || log.first().unwrap() == first);
    // A progress without a running consumer keeps no items.
    let error = store.progress("p").seek(3, "too far back").unwrap_err();
    assert!(matches!(error, Error::Truncated { next: 3, first: at } if at == first), "{error:?}");
    // Where the name has read no log, the mistake shows only at the start.
    store.progress("new").seek(3, "too far back").unwrap();
    let error = Consumer::builder(log.clone(), store.progress("new")).start(|_| Ok(())).unwrap_err();
    assert!(matches!(error, Error::Truncated { next: 3, first: at } if at == first), "{error:?}");
    store.progress("p").seek(first, "the first item that is left").unwrap();
    log.push(&11).unwrap();
    let consumer = Consumer::builder(log.clone(), store.progress("p")).start(|_| Ok(())).unwrap();
    assert!(consumer.handle().wait_for(11, LONG));
    consumer.stop().unwrap();
}

#[test]
fn a_seek_back_keeps_items_from_its_next_one() {
    let store = Store::in_memory();
    let log = store.log::<u64>("l").unwrap();
    log.push_all(&(1..=10).collect::<Vec<_>>()).unwrap();
    assert_eq!(life(&store, log.clone(), 10, |index| index == 6), (1..=10).collect::<Vec<_>>());
    store.progress("p").seek(4, "again").unwrap();
    let (worker, started) = manual_worker();
    let consumer = Consumer::builder(log.clone(), store.progress("p")).start_worker(worker).unwrap();
    let error = log.trim(..=10).unwrap_err();
    assert!(matches!(error, Error::Needed { last_processed: Some(3), .. }), "{error:?}");
    log.trim(..=3).unwrap();
    drop(started);
    drop(consumer);
}

#[test]
fn a_parked_job_above_a_seek_runs_in_turn() {
    let place = Place::default();
    let store = place.open();
    assert_eq!(life(&store, numbers(10), 9, |index| index % 3 == 1).len(), 10);
    assert_eq!(parked(&store), [1, 4, 7]);
    store.progress("p").seek(3, "again").unwrap();
    assert_eq!(parked(&store), [1, 4, 7]);
    // A requested redrive adds no second run to the one in the window.
    store.redrive("p", 4).unwrap();
    assert_eq!(life(&store, numbers(10), 9, |index| index == 7), (3..=9).collect::<Vec<_>>());
    assert_eq!(parked(&store), [1, 7], "job 4 is done, and job 7 was parked anew");
    // A seek forward forgets what is done ahead, too, and keeps the records of parked jobs.
    save(&store, Some(2), &[5..=8]);
    store.progress("p").seek(6, "over what is done ahead").unwrap();
    assert_eq!(parked(&store), [1, 7]);
    assert_eq!(life(&store, numbers(10), 9, |_| false), [6, 7, 8, 9]);
    assert_eq!(parked(&store), [1]);
    // A parked job below the watermark runs beside the window, as before.
    store.redrive("p", 1).unwrap();
    assert_eq!(life(&store, numbers(11), 10, |_| false).into_iter().collect::<BTreeSet<_>>(), [1, 10].into());
    assert_eq!(parked(&store), [0; 0]);
}

#[test]
fn a_parked_job_undone_by_a_seek_runs_once() {
    let store = Store::in_memory();
    assert_eq!(life(&store, numbers(6), 5, |index| index == 2 || index == 4).len(), 6);
    store.progress("p").seek(0, "again").unwrap();
    let (worker, started) = manual_worker();
    let consumer = Consumer::builder(numbers(6), store.progress("p"))
        .max_processing(2)
        .on_exhausted(PARK)
        .start_worker(worker)
        .unwrap();
    let handle = consumer.handle();
    let (zero, one) = (started.job(0), started.job(1));
    handle.redrive(2).unwrap();
    assert_eq!(handle.redrive_all().unwrap(), 2);
    store.discard("p", 4).unwrap();
    zero.succeed();
    let two = started.job(2);
    handle.redrive(2).unwrap();
    one.succeed();
    // Job 3 starts next: no second attempt of job 2 takes its slot.
    let three = started.job(3);
    assert_eq!(handle.status().processing, 2);
    two.fail("refused again");
    let four = started.job(4);
    [three, four].into_iter().for_each(StartedJob::succeed);
    started.job(5).succeed();
    assert!(handle.wait_for(5, LONG), "{}", handle.status());
    assert_eq!(handle.status().parked, 1);
    consumer.stop().unwrap();
    assert_eq!(parked(&store), [2]);
}

#[test]
fn refused_effects_halt_without_an_old_record() {
    let store = Store::in_memory();
    assert_eq!(life(&store, numbers(4), 3, |index| index == 1).len(), 4);
    assert_eq!(parked(&store), [1]);
    store.progress("p").seek(1, "again").unwrap();
    let sums = store.table("sums").unwrap();
    sums.put("text", "no counter").unwrap();
    // The job succeeds, which would remove its record, and then its add is refused.
    let consumer = Consumer::builder(numbers(4), store.progress("p"))
        .max_processing(1)
        .start_transactional(move |_, effects| Ok(effects.add(&sums, "text", 1)?));
    let error = consumer.unwrap().join().unwrap_err();
    assert!(matches!(error, Error::Job { index: 1, attempt: 1, .. }), "{error}");
    assert_eq!(parked(&store), [0u64; 0]);
}

#[test]
fn a_skipped_job_never_runs_and_is_passed() {
    let place = Place::default();
    let store = place.open();
    assert_eq!(life(&store, numbers(3), 2, |_| false), [0, 1, 2]);
    let before = SystemTime::now() - Duration::from_millis(1);
    // Skips ahead, far ahead, next to a run, and at the lowest job.
    for (skipped, last) in [(5, 2), (300, 2), (4, 2), (3, 5)] {
        store.progress("p").skip(skipped, "it is broken").unwrap();
        assert_eq!(store.progress("p").last_processed().unwrap(), Some(last));
    }
    let by_hand = store.parked("p").unwrap();
    assert_eq!(by_hand.iter().map(|parked| parked.index).collect::<Vec<_>>(), [3, 4, 5, 300]);
    for job in by_hand {
        assert_eq!((job.attempts, job.error.as_str()), (0, "skipped by hand: it is broken"));
        assert!(job.parked_at >= before && job.parked_at <= SystemTime::now() && !job.redrive_wanted);
        assert_eq!((job.first_failed_at, job.last_failed_at), (job.parked_at, job.parked_at));
    }
    drop(store);
    let store = place.open();
    // Done and parked jobs cannot be skipped.
    for index in [0, 2, 3, 4, 5, 300] {
        let error = store.progress("p").skip(index, "again").unwrap_err();
        assert!(matches!(&error, Error::AlreadyDone { name, index: at } if name == "p" && *at == index), "{error:?}");
    }
    assert_eq!(life(&store, numbers(310), 309, |_| false), (6..300).chain(301..310).collect::<Vec<_>>());
    // A skipped job may be redriven or discarded.
    store.redrive("p", 4).unwrap();
    store.discard("p", 300).unwrap();
    assert_eq!(life(&store, numbers(311), 310, |_| false).into_iter().collect::<BTreeSet<_>>(), [4, 310].into());
    assert_eq!(parked(&store), [3, 5]);
    let moves = made(&store.progress("p").history().unwrap());
    let (kinds, moves): (Vec<_>, Vec<_>) = moves.into_iter().map(|(kind, from, to, _)| (kind, (from, to))).unzip();
    assert_eq!(kinds, [MoveKind::Skip; 4]);
    assert_eq!(moves, [(Some(3), 5), (Some(3), 300), (Some(3), 4), (Some(3), 3)]);
}

#[test]
fn a_redriven_skipped_job_begins_at_attempt_one() {
    let store = Store::in_memory();
    store.progress("p").seek(0, "begin").unwrap();
    store.progress("p").skip(1, "not now").unwrap();
    store.redrive("p", 1).unwrap();
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let seen = attempts.clone();
    let consumer = Consumer::builder(numbers(3), store.progress("p")).on_exhausted(PARK).stop_at(2);
    let run = move |job: Job<u64>| {
        seen.lock().push((job.index, job.attempt));
        if job.index == 1 { Err("refused".into()) } else { Ok(()) }
    };
    consumer.start(run).unwrap().join().unwrap();
    assert_eq!(attempts.lock().iter().copied().collect::<BTreeSet<_>>(), [(0, 1), (1, 1), (2, 1)].into());
    let kept = &store.parked("p").unwrap()[0];
    assert_eq!((kept.attempts, kept.error.as_str()), (1, "refused"));
}

#[test]
fn a_skip_before_the_job_exists_passes_it() {
    let (store, jobs) = (Store::in_memory(), numbers(5));
    assert_eq!(life(&store, jobs.clone(), 4, |_| false).len(), 5);
    store.progress("p").skip(6, "announced as broken").unwrap();
    let (ran, noting) = noting();
    let consumer = Consumer::builder(jobs.clone(), store.progress("p")).max_processing(1).start(noting).unwrap();
    let handle = consumer.handle();
    until(&handle, "the look", |status| status.blocked == Blocked::CaughtUp);
    jobs.push(5);
    assert!(handle.wait_for(6, LONG), "{}", handle.status());
    // The watermark is above the head by then, so there is no lag.
    assert_eq!(handle.status().lag(), 0);
    (6..9).for_each(|job| _ = jobs.push(job));
    assert!(handle.wait_for(8, LONG), "{}", handle.status());
    consumer.stop().unwrap();
    assert_eq!(*ran.lock(), [5, 7, 8]);
}

/// A source that moves the progress while its consumer starts.
struct Meddling(Store, Arc<Mutex<Vec<Result<(), Error>>>>);

impl Jobs for Meddling {
    type Job = ();

    fn first(&self) -> Result<Index, BoxError> {
        let progress = self.0.progress("p");
        self.1.lock().extend([progress.seek(3, "in a start"), progress.skip(3, "in a start")]);
        Ok(0)
    }

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(9))
    }

    fn at_index(&self, _index: Index) -> Result<Option<()>, BoxError> {
        Ok(Some(()))
    }
}

#[test]
fn a_progress_in_use_cannot_be_moved() {
    let place = Place::default();
    let store = place.open();
    let in_use = |moved: &Result<(), Error>| matches!(moved, Err(Error::InUse { name }) if name == "p");
    let told = Arc::new(Mutex::new(Vec::new()));
    let consumer = Consumer::builder(Meddling(store.clone(), told.clone()), store.progress("p"));
    let consumer = consumer.start(|_| Ok(())).unwrap();
    assert!(consumer.handle().wait_for(9, LONG));
    let mut moved = std::mem::take(&mut *told.lock());
    assert!(moved.len() >= 2, "the start asks the source");
    moved.extend([store.progress("p").seek(2, "while it runs"), store.progress("p").skip(20, "while it runs")]);
    assert!(moved.iter().all(in_use), "{moved:?}");
    assert_eq!(store.progress("p").history().unwrap(), [], "it is read while a consumer runs");
    consumer.stop().unwrap();
    assert_eq!(store.progress("p").last_processed().unwrap(), Some(9));
    let mut progress = store.progress("p");
    progress.acquire().unwrap();
    assert!(in_use(&progress.seek(2, "by the one that has it")));
    drop(progress);
    // Other names are free, and so is this one after a refused move.
    store.progress("q").seek(2, "of another one").unwrap();
    assert!(store.progress("p").skip(1, "it is done").is_err());
    store.progress("p").seek(2, "nobody runs").unwrap();
    store.progress("p").skip(2, "nobody runs").unwrap();
}

#[test]
fn bad_moves_are_typed_errors_and_change_nothing() {
    let disk = Disk::default();
    let store = disk.open(&Store::options()).unwrap();
    let nothing = store.progress("p").skip(0, "r").unwrap_err();
    assert!(matches!(&nothing, Error::NothingSaved { name } if name == "p"), "{nothing:?}");
    save(&store, Some(4), &[7..=7]);
    let (before, writes) = (disk.records(), disk.writes());
    let progress = || store.progress("p");
    let config = |moved: Result<(), Error>| match moved {
        Err(Error::Config(config)) => config,
        other => panic!("it is refused as input: {other:?}"),
    };
    for (moved, call) in [(progress().seek(Index::MAX, "r"), "seek"), (progress().skip(Index::MAX, "r"), "skip")] {
        let refused = config(moved);
        assert!(matches!(refused, ConfigError::NoJob { setting, .. } if setting == call));
        assert!(refused.to_string().contains(&(Index::MAX - 1).to_string()), "{refused}");
    }
    for length in [0, 1025] {
        let reason = "r".repeat(length);
        let too_long = |refused| matches!(refused, ConfigError::Length { what: "move reason", length: found, most: 1024, .. } if found == length);
        assert!(too_long(config(progress().seek(1, &reason))));
        assert!(too_long(config(progress().skip(6, &reason))));
    }
    for index in [5 + (1 << 30), Index::MAX - 1] {
        let refused = config(progress().skip(index, "r"));
        assert_eq!(refused, ConfigError::SkipTooFar { index, next: 5 });
        assert!(refused.to_string().contains(&format!("skip jobs below {}", 5 + (1u64 << 30))), "{refused}");
    }
    for name in [String::new(), "n".repeat(256)] {
        let bad = store.progress(name);
        for moved in [bad.seek(1, "r"), bad.skip(1, "r"), bad.history().map(drop)] {
            assert!(matches!(config(moved), ConfigError::Length { what: "progress", .. }));
        }
    }
    assert!(matches!(progress().skip(7, "r"), Err(Error::AlreadyDone { index: 7, .. })));
    let looking = disk.open(&Store::options().read_only()).unwrap().progress("p");
    assert!(
        matches!(looking.seek(1, "r"), Err(Error::ReadOnly)) && matches!(looking.skip(6, "r"), Err(Error::ReadOnly))
    );
    assert_eq!((disk.records(), disk.writes()), (before, writes));
    // The largest values are accepted.
    progress().seek(7, &"r".repeat(1024)).unwrap();
    progress().seek(Index::MAX - 1, "the last job").unwrap();
    progress().skip(Index::MAX - 1, "the last job").unwrap();
    assert_eq!(progress().last_processed().unwrap(), Some(Index::MAX - 1));
    assert_eq!(looking.history().unwrap().len(), 3, "a look shows the moves too");
    progress().seek(0, "from the very end").unwrap();
    let after = progress().history().unwrap();
    assert_eq!((after[0].reason.len(), after[3].from), (1024, Some(Index::MAX)));
}

#[test]
fn a_far_skip_costs_a_bit_for_each_job_before_it() {
    let store = Store::in_memory();
    store.progress("p").seek(0, "begin").unwrap();
    let far = (1 << 24) + 5;
    store.progress("p").skip(far, "far ahead").unwrap();
    let consumers = store.consumers().unwrap();
    assert_eq!((consumers[0].next, consumers[0].done_ahead), (Some(0), 1));
    assert_eq!(life(&store, numbers(10), 9, |_| false).len(), 10);
    assert_eq!(seen(&store).saved, Some(Saved::new(Some(9), 10, vec![far..=far])));
}

#[test]
fn the_last_thousand_moves_are_kept_in_order() {
    let place = Place::default();
    let store = place.open();
    let before = SystemTime::now() - Duration::from_millis(1);
    store.progress("pp").seek(7, "a name that begins with the other one").unwrap();
    for to in 0..1_005 {
        store.progress("p").seek(to, &format!("move {to}")).unwrap();
    }
    let kept = |store: &Store, first: u64| {
        let history = store.progress("p").history().unwrap();
        assert_eq!(history.len(), 1_000);
        for (made, to) in history.iter().zip(first..) {
            assert_eq!((made.kind, made.from, made.to), (MoveKind::Seek, to.checked_sub(1), to));
            assert_eq!(made.reason, format!("move {to}"));
            assert!(made.at >= before && made.at <= SystemTime::now());
        }
        assert!(history.is_sorted_by_key(|made| made.at));
    };
    kept(&store, 5);
    drop(store);
    let store = place.open();
    kept(&store, 5);
    store.progress("p").seek(1_005, "move 1005").unwrap();
    kept(&store, 6);
    // Removing the progress removes its history.
    store.progress("p").remove().unwrap();
    assert_eq!(store.progress("p").history().unwrap(), []);
    store.progress("p").seek(1, "anew").unwrap();
    assert_eq!(made(&store.progress("p").history().unwrap()), [(MoveKind::Seek, None, 1, "anew".to_owned())]);
    assert_eq!(store.progress("pp").history().unwrap().len(), 1);
    let names: Vec<_> = store.consumers().unwrap().into_iter().map(|consumer| consumer.name).collect();
    assert_eq!(names, ["p", "pp"], "the history is no consumer");
    assert_eq!((store.logs().unwrap().len(), store.tables().unwrap().len()), (0, 0));
}

/// Makes some moves in turn. Returns the state before each, and after the last one.
fn some_moves(store: &Store, mut then: impl FnMut(Result<(), Error>)) -> Vec<Seen> {
    type Made = fn(waterline::StoreProgress) -> Result<(), Error>;
    let moves: [Made; 6] = [
        |progress| progress.skip(12, "ahead"),
        |progress| progress.seek(2, "back"),
        |progress| progress.skip(2, "the lowest"),
        |progress| progress.skip(4, "ahead again"),
        |progress| progress.skip(3, "the lowest, and over a run"),
        |progress| progress.seek(8, "on"),
    ];
    let mut states = vec![seen(store)];
    for made in moves {
        then(made(store.progress("p")));
        states.push(seen(store));
    }
    states
}

/// Makes a progress with a page and deltas.
fn with_deltas(store: &Store) {
    save(store, Some(2), &[5..=6, 15..=15]);
    let consumer = Consumer::builder(numbers(10), store.progress("p")).max_search_ahead(1).stop_at(9);
    consumer.start(|_| Ok(())).unwrap().join().unwrap();
}

/// Returns the states of [`some_moves`] on a sound store.
fn states_of_moves() -> Vec<Seen> {
    let store = Store::in_memory();
    with_deltas(&store);
    some_moves(&store, |moved| moved.unwrap())
}

#[test]
fn promise_01_a_move_is_all_or_nothing_at_any_crash() {
    let expected = states_of_moves();
    let ends: BTreeSet<_> = expected.iter().map(|state| state.saved.as_ref().unwrap().next).collect();
    assert_eq!(ends, [10, 2, 3, 5, 8].into());
    let mut reached = BTreeSet::new();
    let live = |trial: &Trial| some_moves(&trial.store(), |moved| moved.unwrap());
    every_write_after(
        |disk| with_deltas(&disk.store()),
        &DEATHS,
        live,
        |next, states| {
            assert_eq!(states, expected);
            let found = seen(&next.store());
            let made = found.moves.len();
            assert_eq!(found, expected[made]);
            reached.insert((next.fault == PowerLoss, made));
            // Exactly the jobs left to do run: no delta from before the crash counts.
            let Saved { next: lowest, done, .. } = found.saved.unwrap();
            let left = (lowest..20).filter(|index| !done.iter().any(|run| run.contains(index)));
            assert_eq!(life(&next.store(), numbers(20), 19, |_| false), left.collect::<Vec<_>>());
        },
    );
    assert_eq!(reached.len(), 2 * 7, "each move was the last one once: {reached:?}");
}

#[test]
fn a_move_whose_write_fails_can_be_repeated() {
    let expected = states_of_moves();
    let mut failed = 0;
    let live = |trial: &Trial| {
        some_moves(&trial.store(), |moved| match moved {
            Ok(()) => {}
            Err(Error::Store(_) | Error::Progress { .. }) => failed += 1,
            // An earlier move is missing, so this one may be void.
            Err(Error::AlreadyDone { .. }) => {}
            Err(other) => panic!("{other:?}"),
        })
    };
    every_write_after(
        |disk| with_deltas(&disk.store()),
        &[Fail(1)],
        live,
        |next, states| {
            for two in states.windows(2) {
                let new = two[1].moves.len() - two[0].moves.len();
                assert_eq!(two[0] == two[1], new == 0, "all of a move is made or nothing: {two:#?}");
            }
            next.store().progress("p").remove().unwrap();
            with_deltas(&next.store());
            assert_eq!(some_moves(&next.store(), |moved| moved.unwrap()), expected);
        },
    );
    assert!(failed >= 6, "{failed} writes failed");
}

#[test]
fn a_move_is_one_write() {
    let disk = FaultyStore::new().unwrap();
    let store = disk.store();
    // The first moves also reserve numbers, and note that jobs may be parked.
    store.progress("p").seek(5, "begin").unwrap();
    store.progress("p").skip(9, "begin").unwrap();
    let before = disk.writes();
    store.progress("p").seek(3, "back").unwrap();
    assert_eq!(disk.writes(), before + 1);
    store.progress("p").skip(3, "the lowest").unwrap();
    assert_eq!(disk.writes(), before + 2);
    (0..1_000).for_each(|next| store.progress("p").seek(next, "many").unwrap());
    assert_eq!(disk.writes(), before + 1_002, "the oldest records go in the same write");
    assert_eq!(store.progress("p").history().unwrap().len(), 1_000);
}

/// The model of a progress: sets.
#[derive(Clone, Debug, Default)]
struct Model {
    /// The lowest undone index, if anything was saved, and whether there is a watermark.
    next: Option<(Index, bool)>,
    done: BTreeSet<Index>,
    parked: BTreeSet<Index>,
    moves: Vec<Made>,
}

impl Model {
    fn next(&self) -> Option<Index> {
        self.next.map(|(next, _)| next)
    }

    /// Marks this index as done, and moves the watermark.
    fn finish(&mut self, index: Index) {
        self.done.insert(index);
        let (mut next, mut any) = self.next.unwrap();
        while self.done.remove(&next) {
            (next, any) = (next + 1, true);
        }
        self.next = Some((next, any));
    }

    fn seek(&mut self, next: Index, reason: &str) {
        self.moves.push((MoveKind::Seek, self.next(), next, reason.to_owned()));
        self.done.clear();
        self.next = Some((next, next > 0));
    }

    fn skip(&mut self, index: Index, reason: &str) -> &'static str {
        let Some(next) = self.next() else { return "nothing is saved" };
        if index < next || self.done.contains(&index) {
            return "done";
        }
        self.moves.push((MoveKind::Skip, Some(next), index, reason.to_owned()));
        self.parked.insert(index);
        self.finish(index);
        "skipped"
    }

    fn life(&mut self, last: Index, bad: fn(Index) -> bool) -> Vec<Index> {
        let next = *self.next.get_or_insert((0, false));
        let ran: Vec<_> = (next.0..=last).filter(|index| !self.done.contains(index)).collect();
        for index in &ran {
            if bad(*index) {
                self.parked.insert(*index)
            } else {
                self.parked.remove(index)
            };
            self.finish(*index);
        }
        ran
    }
}

#[derive(Clone, Debug)]
enum Step {
    Seek(Index),
    Skip(Index),
    Life(Index, bool),
    Reopen,
    Remove,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..16u64).prop_map(Step::Seek),
        6 => (0..20u64).prop_map(Step::Skip),
        4 => (0..12u64, any::<bool>()).prop_map(|(last, mended)| Step::Life(last, mended)),
        2 => Just(Step::Reopen),
        1 => Just(Step::Remove),
    ];
    proptest::collection::vec(step, 1..30)
}

fn agree(place: &Place, steps: &[Step]) {
    let (mut store, mut model) = (place.open(), Model::default());
    for (at, step) in steps.iter().enumerate() {
        let reason = format!("step {at}");
        match step {
            Step::Seek(next) => {
                store.progress("p").seek(*next, &reason).unwrap();
                model.seek(*next, &reason);
            }
            Step::Skip(index) => {
                let skipped = match store.progress("p").skip(*index, &reason) {
                    Ok(()) => "skipped",
                    Err(Error::AlreadyDone { .. }) => "done",
                    Err(Error::NothingSaved { .. }) => "nothing is saved",
                    Err(other) => panic!("{other:?}"),
                };
                assert_eq!(skipped, model.skip(*index, &reason), "{step:?}");
            }
            Step::Life(last, mended) => {
                let bad: fn(Index) -> bool = if *mended { |_| false } else { |index| index % 4 == 1 };
                assert_eq!(life(&store, numbers(12), *last, bad), model.life(*last, bad), "{step:?}");
            }
            Step::Reopen => {
                drop(store);
                store = place.open();
            }
            Step::Remove => {
                store.progress("p").remove().unwrap();
                model = Model::default();
            }
        }
        let found = seen(&store);
        let saved = found.saved.map(|saved| {
            let done: BTreeSet<_> = saved.done.into_iter().flatten().collect();
            (saved.last_processed, saved.next, done)
        });
        let next = model.next.map(|(next, any)| (any.then(|| next - 1), next, model.done.clone()));
        assert_eq!(saved, next, "after {step:?}");
        assert!(found.parked.iter().map(|(index, _)| *index).eq(model.parked.iter().copied()), "after {step:?}");
        assert_eq!(found.moves, model.moves, "after {step:?}");
    }
}

/// A log whose indices start at 0.
struct FromZero(JobLog<u64>);

impl Jobs for FromZero {
    type Job = u64;

    fn first(&self) -> Result<Index, BoxError> {
        Ok(self.0.first()? - 1)
    }

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(self.0.head()?.map(|head| head - 1))
    }

    fn at_index(&self, index: Index) -> Result<Option<u64>, BoxError> {
        self.0.at_index(index + 1)
    }

    fn subscribe(&self, wakeup: Wakeup) -> bool {
        self.0.subscribe(wakeup)
    }
}

#[test]
fn a_seek_below_the_trimmed_log_is_refused() {
    let (store, _place) = a_store();
    let log = store.log::<u64>("l").unwrap();
    log.push_all(&(1..=10).collect::<Vec<_>>()).unwrap();
    let read = |last| {
        let consumer = Consumer::builder(log.clone(), store.progress("p")).stop_at(last);
        consumer.start(|_| Ok(())).unwrap().join().unwrap();
    };
    let noted = || store.consumers().unwrap()[0].log.clone();
    read(10);
    assert_eq!(noted().as_deref(), Some("l"));
    log.trim(..=4).unwrap();
    for next in [0, 4] {
        let error = store.progress("p").seek(next, "again").unwrap_err();
        assert!(matches!(error, Error::Truncated { next: asked, first: 5 } if asked == next), "{error:?}");
    }
    assert_eq!(store.progress("p").history().unwrap(), []);
    store.progress("p").seek(5, "again").unwrap();
    assert_eq!((store.progress("p").last_processed().unwrap(), noted().as_deref()), (Some(4), Some("l")));
    read(10);
    // The store knows no other source, and forgets the log that was read before.
    let elsewhere = Store::in_memory().log::<u64>("l").unwrap();
    elsewhere.push_all(&(1..=20).collect::<Vec<_>>()).unwrap();
    let begins = |name: &str| Consumer::builder(FromZero(log.clone()), store.progress(name)).start(|_| Ok(())).unwrap();
    let other = begins("other");
    assert!(other.handle().wait_for(9, LONG));
    other.stop().unwrap();
    assert_eq!(noted(), None, "its indices are others");
    store.progress("other").remove().unwrap();
    let foreign = Consumer::builder(elsewhere, store.progress("p")).stop_at(20);
    foreign.start(|_| Ok(())).unwrap().join().unwrap();
    assert_eq!(noted(), None);
    store.progress("p").seek(0, "again").unwrap();
    // Removing the progress removes the note.
    store.progress("p").seek(5, "again").unwrap();
    read(10);
    assert_eq!(noted().as_deref(), Some("l"));
    store.progress("p").remove().unwrap();
    store.progress("p").seek(1, "anew").unwrap();
    assert_eq!(noted(), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(if engine().is_some() { 16 } else { 128 }), ..ProptestConfig::default() })]

    #[test]
    fn moves_and_lives_agree_with_a_model(steps in steps()) {
        let place = Place::default();
        agree(&place, &steps);
    }
}
