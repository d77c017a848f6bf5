//! Writes of the user (`Store::write`, `remove_with`), and reads of tables by range and by many
//! keys.

use common::every_write::{DEATHS, Trial, every_write_after};
use common::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use waterline::testing::{FaultyStore, manual_worker};
use waterline::{BoxError, ConfigError, Consumer, Effects, Error, Index, JobLog, Jobs, Store, Table};

type Key = Vec<u8>;
type Rows = BTreeMap<Key, Vec<u8>>;
type Keys = (Bound<Key>, Bound<Key>);

/// A change that a closure asks for. The first number is that of a table.
#[derive(Clone, Debug)]
enum Ask {
    Put(usize, Key, Vec<u8>),
    Delete(usize, Key),
    Add(usize, Key, i64),
    Clear(usize),
    Push(u64),
    ClearLog,
    Fail,
}

#[derive(Clone, Debug)]
enum Step {
    Write(Vec<Ask>),
    /// A put without a closure.
    Put(usize, Key, Vec<u8>),
    Delete(usize, Key),
    Look(usize, Keys, Vec<Key>),
    Reopen,
}

const TABLES: usize = 3;

fn key() -> impl Strategy<Value = Key> {
    let byte = prop_oneof![Just(0), Just(0xfe), Just(0xff), Just(b'a')];
    proptest::collection::vec(byte, 0..4)
}

/// Mostly counters, since an add to anything else fails its write.
fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        5 => (-3..4i64).prop_map(|count| count.to_be_bytes().to_vec()),
        1 => Just(b"text".to_vec()),
        1 => Just(Vec::new()),
    ]
}

fn ask() -> impl Strategy<Value = Ask> {
    let by = prop_oneof![9 => -3..4i64, 1 => Just(i64::MAX)];
    prop_oneof![
        6 => (0..TABLES, key(), value()).prop_map(|(table, key, value)| Ask::Put(table, key, value)),
        3 => (0..TABLES, key()).prop_map(|(table, key)| Ask::Delete(table, key)),
        4 => (0..TABLES, key(), by).prop_map(|(table, key, by)| Ask::Add(table, key, by)),
        2 => (0..TABLES).prop_map(Ask::Clear),
        4 => any::<u64>().prop_map(Ask::Push),
        1 => Just(Ask::ClearLog),
        1 => Just(Ask::Fail),
    ]
}

fn bound() -> impl Strategy<Value = Bound<Key>> {
    prop_oneof![Just(Bound::Unbounded), key().prop_map(Bound::Included), key().prop_map(Bound::Excluded)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => proptest::collection::vec(ask(), 0..6).prop_map(Step::Write),
        2 => (0..TABLES, key(), value()).prop_map(|(table, key, value)| Step::Put(table, key, value)),
        1 => (0..TABLES, key()).prop_map(|(table, key)| Step::Delete(table, key)),
        8 => (0..TABLES, (bound(), bound()), proptest::collection::vec(key(), 0..5))
            .prop_map(|(table, keys, many)| Step::Look(table, keys, many)),
        1 => Just(Step::Reopen),
    ]
}

/// The rows of the tables, the items of the log by index, and the next index.
#[derive(Clone, Debug, PartialEq)]
struct Model {
    tables: [Rows; TABLES],
    items: Vec<(Index, u64)>,
    next: Index,
}

impl Model {
    /// Returns the state after a write, or `None` if the write fails.
    fn after(&self, asks: &[Ask]) -> Option<Self> {
        let mut after = self.clone();
        for ask in asks {
            match ask {
                Ask::Put(table, key, value) => drop(after.tables[*table].insert(key.clone(), value.clone())),
                Ask::Delete(table, key) => drop(after.tables[*table].remove(key)),
                Ask::Add(table, key, by) => {
                    let row = after.tables[*table].entry(key.clone()).or_insert_with(|| 0i64.to_be_bytes().to_vec());
                    let count = i64::from_be_bytes(row.as_slice().try_into().ok()?).checked_add(*by)?;
                    *row = count.to_be_bytes().to_vec();
                }
                Ask::Clear(table) => after.tables[*table].clear(),
                Ask::Push(item) => {
                    after.items.push((after.next, *item));
                    after.next += 1;
                }
                Ask::ClearLog => after.items.clear(),
                Ask::Fail => return None,
            }
        }
        Some(after)
    }
}

struct Home {
    store: Store,
    tables: [Table; TABLES],
    log: JobLog<u64>,
    place: Arc<Place>,
}

impl Home {
    fn on(place: Arc<Place>) -> Self {
        let store = place.open();
        let tables = [store.table("a").unwrap(), store.table("\u{ff}").unwrap(), theirs(&store)];
        let log = store.log("l").unwrap();
        Self { store, tables, log, place }
    }

    fn reopened(self) -> Self {
        let Self { store, tables, log, place } = self;
        drop((store, tables, log));
        Self::on(place)
    }

    fn write(&self, asks: &[Ask]) -> Result<(), Error> {
        self.store.write(|effects| {
            for ask in asks {
                match ask {
                    Ask::Put(table, key, value) => effects.put(&self.tables[*table], key, value)?,
                    Ask::Delete(table, key) => effects.delete(&self.tables[*table], key)?,
                    Ask::Add(table, key, by) => effects.add(&self.tables[*table], key, *by)?,
                    Ask::Clear(table) => effects.clear(&self.tables[*table])?,
                    Ask::Push(item) => effects.push(&self.log, item)?,
                    Ask::ClearLog => effects.clear_log(&self.log)?,
                    Ask::Fail => return Err(Error::Stopped),
                }
            }
            Ok(())
        })
    }

    fn state(&self) -> Model {
        let tables = [0, 1, 2].map(|table| self.tables[table].iter().collect::<Result<_, _>>().unwrap());
        let (first, head) = (self.log.first().unwrap(), self.log.head().unwrap());
        let mut items = Vec::new();
        let next = head.map_or(1, |head| head + 1);
        if first < next {
            self.log.read(first..=next - 1, &mut items).unwrap();
        }
        Model { tables, items: (first..).zip(items).collect(), next }
    }
}

fn key_of(bound: &Bound<Key>) -> Option<&Key> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

/// Reads a table by a range, from both ends, and by many keys.
fn look(table: &Table, rows: &Rows, keys: &Keys, many: &[Key]) {
    let found = |walk: waterline::Rows<'_>| walk.collect::<Result<Vec<_>, _>>();
    let (start, end) = (key_of(&keys.0), key_of(&keys.1));
    if start.zip(end).is_some_and(|(start, end)| end < start) {
        for mut walk in [table.range::<Key>(keys.clone()), table.range_rev::<Key>(keys.clone())] {
            let refused = walk.next().unwrap();
            assert!(matches!(refused, Err(Error::Config(ConfigError::RangeBackwards { .. }))), "{refused:?}");
            assert!(walk.next().is_none());
        }
    } else {
        // `BTreeMap::range` panics at this range.
        let is_empty = start == end && matches!(keys, (Bound::Excluded(_), Bound::Excluded(_)));
        let mut expected: Vec<_> = if is_empty {
            Vec::new()
        } else {
            rows.range::<Key, _>(keys.clone()).map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        assert_eq!(found(table.range::<Key>(keys.clone())).unwrap(), expected, "{keys:?}");
        expected.reverse();
        assert_eq!(found(table.range_rev::<Key>(keys.clone())).unwrap(), expected, "{keys:?} from the end");
    }
    let expected: Vec<_> = many.iter().map(|key| rows.get(key).cloned()).collect();
    assert_eq!(table.multi_get(many).unwrap(), expected, "{many:?}");
}

fn check(mut home: Home, steps: &[Step]) {
    let mut model = home.state();
    for step in steps {
        match step {
            Step::Write(asks) => match (home.write(asks), model.after(asks)) {
                (Ok(()), Some(after)) => model = after,
                (Err(Error::Counter { .. } | Error::Stopped), None) => {}
                (written, after) => panic!("{asks:?}: {written:?}, and the model says {after:?}"),
            },
            Step::Put(table, key, value) => {
                home.tables[*table].put(key, value).unwrap();
                model.tables[*table].insert(key.clone(), value.clone());
            }
            Step::Delete(table, key) => {
                home.tables[*table].delete(key).unwrap();
                model.tables[*table].remove(key);
            }
            Step::Look(table, keys, many) => look(&home.tables[*table], &model.tables[*table], keys, many),
            Step::Reopen => home = home.reopened(),
        }
        let state = home.state();
        assert_eq!(state, model, "after {step:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(if engine().is_some() { 40 } else { 300 }), ..ProptestConfig::default() })]

    #[test]
    fn writes_and_reads_agree_with_a_map(steps in proptest::collection::vec(step(), 1..60)) {
        check(Home::on(Arc::new(Place::with_theirs())), &steps);
    }
}

fn refused(store: &Store, changes: impl FnOnce(&mut Effects) -> Result<(), Error>) -> Error {
    let table = store.table("rows").unwrap();
    let error = store
        .write(|effects| {
            effects.put(&table, "of a refused write", "")?;
            changes(effects)
        })
        .unwrap_err();
    assert_eq!(table.get("of a refused write").unwrap(), None, "{error:?}");
    error
}

#[test]
fn a_write_with_a_refused_change_changes_nothing() {
    let (store, _directory) = a_store();
    let (table, foreign) = (store.table("rows").unwrap(), Store::in_memory());
    let (their_table, their_log) = (foreign.table("rows").unwrap(), foreign.log::<u64>("l").unwrap());
    table.put("text", "no counter").unwrap();
    let error = refused(&store, |effects| effects.clear(&their_table));
    assert!(matches!(error, Error::Config(ConfigError::Foreign { what: "table", .. })), "{error:?}");
    let error = refused(&store, |effects| effects.clear_log(&their_log));
    assert!(matches!(error, Error::Config(ConfigError::Foreign { what: "log", .. })), "{error:?}");
    // The same if the closure ignores the error.
    let error = refused(&store, |effects| effects.put(&their_table, "", "").or(Ok(())));
    assert!(matches!(error, Error::Config(ConfigError::Foreign { .. })), "{error:?}");
    let large = vec![0; 64 << 20];
    let error = refused(&store, |effects| effects.put(&table, "large", &large));
    assert!(matches!(error, Error::EffectsTooLarge { limit } if limit == 64 << 20), "{error:?}");
    let error = refused(&store, |effects| effects.add(&table, "text", 1));
    assert!(matches!(&error, Error::Counter { key, .. } if key == b"text"), "{error:?}");
    let error = refused(&store, |_| Err(Error::Stopped));
    assert!(matches!(error, Error::Stopped), "{error:?}");
    let panicked = catch_unwind(AssertUnwindSafe(|| refused(&store, |_| panic!("a bug of the closure"))));
    assert!(panicked.is_err() && table.get("of a refused write").unwrap().is_none());
    store.write(|effects| effects.put(&table, "text", "")).unwrap();
    assert_eq!(table.get("text").unwrap().as_deref(), Some(b"".as_slice()));
}

#[test]
fn clear_log_refuses_a_log_that_a_consumer_needs() {
    let (store, _directory) = a_store();
    let log = store.log::<u64>("l").unwrap();
    log.push_all(&[1, 2, 3]).unwrap();
    let (worker, stage) = manual_worker();
    let source = Consumer::builder(log.clone(), store.progress("p")).max_processing(3);
    let consumer = source.start_worker(worker).unwrap();
    let mut jobs = stage.take(3);
    jobs.remove(&1).unwrap().succeed();
    assert!(consumer.handle().wait_for(1, LONG));
    let error = refused(&store, |effects| effects.clear_log(&log));
    assert!(matches!(error, Error::Needed { index: 3, last_processed: Some(1), .. }), "{error:?}");
    assert_eq!(log.first().unwrap(), 1);
    jobs.into_values().for_each(|job| job.succeed());
    assert!(consumer.handle().wait_for(3, LONG));
    // It also needs the items pushed in the same write, before and after the clear.
    store
        .write(|effects| {
            effects.push(&log, &4)?;
            effects.clear_log(&log)?;
            effects.push(&log, &5)
        })
        .unwrap();
    assert_eq!((log.first().unwrap(), log.head().unwrap()), (4, Some(5)));
    stage.take(2).into_values().for_each(|job| job.succeed());
    assert!(consumer.handle().wait_for(5, LONG));
    consumer.stop().unwrap();
    // No consumer needs anything of the log now.
    store.write(|effects| effects.push(&log, &6).and_then(|()| effects.clear_log(&log))).unwrap();
    assert_eq!((log.first().unwrap(), log.head().unwrap(), log.backlog()), (7, Some(6), 0));
    assert_eq!(log.push(&7).unwrap(), 7);
}

#[test]
fn clear_log_may_clear_an_empty_log_in_use() {
    let (store, _directory) = a_store();
    let log = store.log::<u64>("l").unwrap();
    let start = || Consumer::builder(log.clone(), store.progress("p")).start(|_| Ok(())).unwrap();
    let consumer = start();
    store.write(|effects| effects.clear_log(&log)).unwrap();
    log.trim(..=0).unwrap();
    log.push_all(&[1, 2]).unwrap();
    assert!(consumer.handle().wait_for(2, LONG));
    consumer.stop().unwrap();
    // The same for a log that was cleared before, whose consumer starts anew.
    store.progress("p").remove_with(|effects| effects.clear_log(&log)).unwrap();
    let consumer = start();
    store.write(|effects| effects.clear_log(&log)).unwrap();
    assert_eq!((log.first().unwrap(), log.push(&3).unwrap()), (3, 3));
    assert!(consumer.handle().wait_for(3, LONG));
    consumer.stop().unwrap();
}

#[test]
fn no_reader_sees_half_of_a_write() {
    let (store, _directory) = a_store();
    let table = store.table("rows").unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=2_000u64 {
                let written = store.write(|effects| {
                    effects.clear(&table)?;
                    effects.put(&table, "a", number.to_be_bytes())?;
                    effects.put(&table, "b", number.to_be_bytes())
                });
                written.unwrap();
            }
            over.store(true, Ordering::Release);
        });
        let mut last = None;
        while !over.load(Ordering::Acquire) {
            let found = table.multi_get(["b", "a"]).unwrap();
            assert_eq!(found[0], found[1]);
            assert!(found[0] >= last, "it goes back");
            last = found[0].clone();
            let rows = table.iter().collect::<Result<Vec<_>, _>>().unwrap();
            assert!(rows.is_empty() || rows.len() == 2 && rows[0].1 == rows[1].1, "{rows:?}");
        }
    });
}

#[test]
fn concurrent_writes_are_each_made_once() {
    const EACH: u64 = 500;
    let (store, _directory) = a_store();
    let (sums, log) = (store.table("sums").unwrap(), store.log::<u64>("l").unwrap());
    let consumer = Consumer::builder(numbers(4 * EACH), store.progress("p"))
        .stop_at(4 * EACH - 1)
        .start_transactional({
            let sums = sums.clone();
            move |_, effects| Ok(effects.add(&sums, "jobs and writes", 1)?)
        })
        .unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for number in 0..EACH {
                    let written = store.write(|effects| {
                        effects.add(&sums, "jobs and writes", 1)?;
                        effects.push(&log, &number)?;
                        effects.add(&sums, "writes", 1)
                    });
                    written.unwrap();
                }
            });
        }
    });
    consumer.join().unwrap();
    let counts = ["jobs and writes", "writes"].map(|key| sums.counter(key).unwrap() as u64);
    assert_eq!((counts, log.head().unwrap()), ([8 * EACH, 4 * EACH], Some(4 * EACH)));
}

/// Starts a consumer that counts its jobs and pushes each to a log.
fn counting(store: &Store, jobs: u64) -> Result<Consumer, Error> {
    let (sums, log) = (store.table("sums")?, store.log::<u64>("out")?);
    let builder = Consumer::builder(numbers(jobs), store.progress("p")).max_processing(1).stop_at(jobs - 1);
    builder.start_transactional(move |job, effects| {
        effects.add(&sums, "jobs", 1)?;
        Ok::<_, BoxError>(effects.push(&log, &job.index)?)
    })
}

#[test]
fn promise_09_remove_with_counts_nothing_twice() {
    let (store, _directory) = a_store();
    let (sums, log) = (store.table("sums").unwrap(), store.log::<u64>("out").unwrap());
    for round in 1..=3u64 {
        counting(&store, 100).unwrap().join().unwrap();
        assert_eq!(sums.counter("jobs").unwrap(), 100);
        assert_eq!((log.first().unwrap(), log.head().unwrap()), (100 * (round - 1) + 1, Some(100 * round)));
        let clear = |effects: &mut Effects| {
            effects.clear(&sums)?;
            effects.clear_log(&log)
        };
        let failed = store.progress("p").remove_with(|effects| clear(effects).and(Err(Error::Stopped)));
        assert!(matches!(failed, Err(Error::Stopped)));
        assert_eq!((store.progress("p").last_processed().unwrap(), sums.counter("jobs").unwrap()), (Some(99), 100));
        store.progress("p").remove_with(clear).unwrap();
        assert_eq!((store.progress("p").last_processed().unwrap(), sums.counter("jobs").unwrap()), (None, 0));
        assert_eq!(log.backlog(), 0);
    }
}

#[test]
fn remove_with_refuses_a_progress_in_use() {
    let (store, _directory) = a_store();
    let endless = Consumer::builder(numbers(1), store.progress("p")).start(|_| Ok(())).unwrap();
    let error = store.progress("p").remove_with(|_| panic!("it is in use")).unwrap_err();
    assert!(matches!(&error, Error::InUse { name } if name == "p"), "{error:?}");
    endless.stop().unwrap();
    // A progress that was never saved has nothing to remove; the closure's changes are made.
    let table = store.table("rows").unwrap();
    store.progress("never saved").remove_with(|effects| effects.put(&table, "k", "v")).unwrap();
    assert_eq!(table.get("k").unwrap().as_deref(), Some(b"v".as_slice()));
    let error = store.progress("").remove_with(|_| panic!("a bad name")).unwrap_err();
    assert!(matches!(error, Error::Config(ConfigError::Length { .. })), "{error:?}");
}

/// Returns the number of jobs done according to the progress, the counter, and the log.
fn counts(store: &Store) -> [u64; 3] {
    let (sums, log) = (store.table("sums").unwrap(), store.log::<u64>("out").unwrap());
    let processed = store.progress("p").last_processed().unwrap().map_or(0, |last| last + 1);
    let jobs = u64::try_from(sums.counter("jobs").unwrap()).unwrap();
    [processed, jobs, log.backlog()]
}

fn begin_anew(store: &Store) -> Result<(), Error> {
    let (sums, log) = (store.table("sums")?, store.log::<u64>("out")?);
    store.progress("p").remove_with(|effects| {
        effects.clear(&sums)?;
        effects.clear_log(&log)
    })
}

#[test]
fn promise_09_remove_with_is_all_or_nothing_at_any_crash() {
    const JOBS: u64 = 10;
    let (mut anew, mut before) = (0, 0);
    let count = |store: &Store| {
        counting(store, JOBS).unwrap().join().unwrap();
        assert_eq!(counts(store), [JOBS; 3]);
    };
    let life = |trial: &Trial| {
        begin_anew(&trial.store()).unwrap();
        count(&trial.store());
    };
    every_write_after(
        |disk| count(&disk.store()),
        &DEATHS,
        life,
        |next, ()| {
            let [processed, jobs, items] = counts(&next.store());
            assert!(processed == jobs && jobs == items, "{processed}, {jobs}, {items}");
            if next.write == 0 {
                before += u64::from(jobs == JOBS);
            } else {
                anew += u64::from(jobs < JOBS);
            }
            count(&next.store());
        },
    );
    assert!(before == 2 && anew >= 2, "the crashes prove nothing: {before} before and {anew} behind the new beginning");
}

#[test]
fn a_write_to_a_full_disk_fails_and_changes_nothing() {
    let disk = FaultyStore::new().unwrap();
    let store = disk.store();
    counting(&store, 5).unwrap().join().unwrap();
    let table = store.table("sums").unwrap();
    disk.fail(0..2);
    let error = store.write(|effects| effects.add(&table, "jobs", 1)).unwrap_err();
    let report = error.report();
    assert!(matches!(error, Error::Store(_)) && report.ends_with(": no space left on device"), "{report}");
    assert_eq!(report.matches("look at its path").count(), 1, "{report}");
    assert!(matches!(begin_anew(&store), Err(Error::Store(_))));
    assert_eq!(counts(&store), [5; 3]);
    store.write(|effects| effects.add(&table, "jobs", 1)).unwrap();
    assert_eq!(table.counter("jobs").unwrap(), 6);
    begin_anew(&store).unwrap();
    assert_eq!(counts(&store), [0; 3]);
}

#[test]
fn an_empty_write_writes_nothing() {
    let disk = FaultyStore::new().unwrap();
    let (store, before) = (disk.store(), disk.writes());
    store.write(|_| Ok(())).unwrap();
    assert_eq!(disk.writes(), before);
}
