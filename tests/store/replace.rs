//! Consumers that take the names of others (`Store::replace`), with their tables and logs.

use common::every_write::DiskFault::{Fail, PowerLoss, Stop};
use common::every_write::{Trial, every_write_after};
use common::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use waterline::fuzzing::Disk;
use waterline::{
    Bytes, ConfigError, Consumer, Durability, Error, Index, Jobs, MemoryProgress, OnExhausted, Store, Table,
};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

const SLOTS: usize = 3;

fn name(slot: usize) -> String {
    format!("p{slot}")
}

/// All that is stored under one name.
#[derive(Clone, Debug, Default, PartialEq)]
struct Slot {
    /// The lowest job that is not done, if anything is saved.
    next: Option<Index>,
    parked: BTreeSet<Index>,
    seeks: Vec<Index>,
    rows: Rows,
    items: Vec<u64>,
    /// True if its consumer has said what belongs to it.
    owns: bool,
}

impl Slot {
    fn add(&mut self, key: &[u8], by: i64) {
        let row = self.rows.entry(key.to_vec()).or_insert_with(|| 0i64.to_be_bytes().to_vec());
        *row = (i64::from_be_bytes(row.as_slice().try_into().unwrap()) + by).to_be_bytes().to_vec();
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A consumer processes this many jobs. Each fifth one is parked.
    Run(usize, u64),
    Seek(usize),
    /// A put through an old handle.
    Put(usize, u8),
    Delete(usize, u8),
    /// A write of two tables. Between its changes, or after them, tables are replaced.
    Write([usize; 2], Option<([usize; 2], bool)>),
    /// A replacement of the first by the second, while scans are open.
    Replace([usize; 2]),
    /// Two replacements in one call.
    ReplaceTwo,
    Remove(usize),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let slots = || (0..SLOTS, 0..SLOTS).prop_map(|(one, two)| [one, two]);
    prop_oneof![
        5 => (0..SLOTS, 1..7u64).prop_map(|(slot, jobs)| Step::Run(slot, jobs)),
        1 => (0..SLOTS).prop_map(Step::Seek),
        3 => (0..SLOTS, 0..4u8).prop_map(|(slot, key)| Step::Put(slot, key)),
        1 => (0..SLOTS, 0..4u8).prop_map(|(slot, key)| Step::Delete(slot, key)),
        4 => (slots(), proptest::option::of((slots(), any::<bool>()))).prop_map(|(two, across)| Step::Write(two, across)),
        5 => slots().prop_map(Step::Replace),
        1 => Just(Step::ReplaceTwo),
        1 => (0..SLOTS).prop_map(Step::Remove),
        2 => Just(Step::Reopen),
    ]
}

/// A store with a handle for each table, which stays open over all replacements, and a reader.
struct Home {
    store: Store,
    tables: Vec<Table>,
    reader: Store,
    read: Vec<Option<Table>>,
    place: Arc<Place>,
}

impl Home {
    fn on(place: Arc<Place>) -> Self {
        let store = place.open();
        let tables = (0..SLOTS).map(|slot| store.table(format!("t{slot}")).unwrap()).collect();
        let reader = place.open_with(&Store::options().read_only());
        Self { store, tables, reader, read: vec![None; SLOTS], place }
    }

    fn reopened(self) -> Self {
        let Self { store, tables, reader, read, place } = self;
        drop((store, tables, reader, read));
        Self::on(place)
    }

    fn run(&self, slot: usize, jobs: Index) {
        let (table, log) = (self.tables[slot].clone(), self.store.log::<u64>(format!("l{slot}")).unwrap());
        Consumer::builder(numbers(jobs), self.store.progress(name(slot)))
            .owns(&table)
            .owns(&log)
            .max_processing(1)
            .on_exhausted(OnExhausted::Park { budget: 1_000 })
            .stop_at(jobs - 1)
            .start_transactional(move |job, effects| {
                if job.index % 5 == 4 {
                    return Err("no fifth job".into());
                }
                effects.add(&table, [9, slot as u8], 1)?;
                Ok(effects.push(&log, &job.index)?)
            })
            .unwrap()
            .join()
            .unwrap();
    }

    fn replace(&self, [from, to]: [usize; 2]) -> Result<(), Error> {
        self.store.replace(&[(&name(from), &name(to))])
    }

    fn slot(&self, slot: usize) -> Slot {
        let store = &self.store;
        let progress = store.progress(name(slot));
        let info = store.consumers().unwrap().into_iter().find(|info| info.name == name(slot));
        let mut items = Vec::new();
        if store.logs().unwrap().iter().any(|log| log.name == format!("l{slot}")) {
            let log = store.log::<u64>(format!("l{slot}")).unwrap();
            log.read(log.first().unwrap()..=log.head().unwrap().unwrap_or(0), &mut items).unwrap();
        }
        Slot {
            next: info.as_ref().and_then(|info| info.next),
            parked: store.parked(name(slot)).unwrap().iter().map(|job| job.index).collect(),
            seeks: progress.history().unwrap().iter().map(|made| made.to).collect(),
            rows: self.tables[slot].iter().collect::<Result<_, _>>().unwrap(),
            items,
            owns: info.is_some_and(|info| info.owns.len() == 2),
        }
    }

    /// Checks the lists of the store, and what a reader beside it shows.
    fn check(&mut self, model: &[Slot], what: &Step) {
        for (slot, expected) in model.iter().enumerate() {
            assert_eq!(self.slot(slot), *expected, "{slot} after {what:?}");
        }
        let tables: Vec<_> =
            (0..SLOTS).filter(|slot| !model[*slot].rows.is_empty()).map(|slot| format!("t{slot}")).collect();
        assert_eq!(self.store.tables().unwrap(), tables, "after {what:?}");
        self.reader.refresh().unwrap();
        assert_eq!(self.reader.tables().unwrap(), tables, "beside, after {what:?}");
        for (slot, Slot { rows, .. }) in model.iter().enumerate() {
            let read = &mut self.read[slot];
            if read.is_none() {
                *read = self.reader.table(format!("t{slot}")).ok();
            }
            let found: Rows = read.iter().flat_map(Table::iter).collect::<Result<_, _>>().unwrap();
            assert_eq!(found, *rows, "{slot} beside, after {what:?}");
            for (key, value) in rows {
                assert_eq!(read.as_ref().unwrap().get(key).unwrap().as_ref(), Some(value), "after {what:?}");
            }
        }
    }
}

/// Returns the state after a replacement, or `None` if that is refused.
fn replaced(model: &[Slot], pairs: &[[usize; 2]]) -> Option<Vec<Slot>> {
    let mut after = model.to_vec();
    for &[from, to] in pairs {
        if from == to || model[from].next.is_none() || model[from].owns != model[to].owns {
            return None;
        }
        after[to] = model[from].clone();
        after[from] = Slot::default();
        if !model[from].owns {
            // Nothing belongs to either, so their rows and items stay.
            for slot in [from, to] {
                (after[slot].rows, after[slot].items) = (model[slot].rows.clone(), model[slot].items.clone());
            }
        }
    }
    Some(after)
}

fn expect(made: Result<(), Error>, after: Option<Vec<Slot>>, model: &mut Vec<Slot>) {
    match (made, after) {
        (Ok(()), Some(after)) => *model = after,
        (Err(Error::NotReplaced { .. }), None) => {}
        (made, after) => panic!("{made:?}, and the model says {after:?}"),
    }
}

/// Writes two tables. Between the changes, or after them, tables are replaced.
fn write(home: &Home, model: &mut Vec<Slot>, two: [usize; 2], across: Option<([usize; 2], bool)>) {
    let mut made = None;
    home.store
        .write(|effects| {
            let [one, two] = two.map(|slot| &home.tables[slot]);
            effects.add(one, "first", 1)?;
            effects.put(two, "first", 7i64.to_be_bytes())?;
            let mut replace = |now| {
                let pair = across.filter(|(_, last)| *last == now);
                made = made.take().or(pair.map(|(pair, _)| home.replace(pair)));
            };
            replace(false);
            effects.clear(one)?;
            effects.add(one, "sum", 5)?;
            effects.add(two, "sum", 3)?;
            replace(true);
            Ok(())
        })
        .unwrap();
    if let (Some(made), Some((pair, _))) = (made, across) {
        let after = replaced(model, &[pair]);
        expect(made, after, model);
    }
    let [one, two] = two;
    model[two].rows.insert(b"first".to_vec(), 7i64.to_be_bytes().to_vec());
    model[one].rows.clear();
    model[one].add(b"sum", 5);
    model[two].add(b"sum", 3);
}

/// Replaces the second by the first, while scans are open.
fn replace(home: &Home, model: &mut Vec<Slot>, pair: [usize; 2]) {
    let mut scans: Vec<_> = home.tables.iter().map(Table::iter).collect();
    let mut seen: Vec<Vec<_>> = scans.iter_mut().map(|scan| scan.next().into_iter().collect()).collect();
    let made = home.replace(pair);
    for (scan, seen) in scans.into_iter().zip(&mut seen) {
        seen.extend(scan);
    }
    for (seen, slot) in seen.into_iter().zip(&*model) {
        assert_eq!(
            seen.into_iter().collect::<Result<Rows, _>>().unwrap(),
            slot.rows,
            "during the replacement {pair:?}"
        );
    }
    let after = replaced(model, &[pair]);
    expect(made, after, model);
}

fn check(mut home: Home, steps: &[Step]) {
    let mut model = vec![Slot::default(); SLOTS];
    for (number, step) in steps.iter().enumerate() {
        match step {
            Step::Run(slot, jobs) => {
                let of = &mut model[*slot];
                let (first, end) = (of.next.unwrap_or(0), of.next.unwrap_or(0) + jobs);
                home.run(*slot, end);
                for index in first..end {
                    if index % 5 == 4 {
                        of.parked.insert(index);
                    } else {
                        of.add(&[9, *slot as u8], 1);
                        of.items.push(index);
                    }
                }
                (of.next, of.owns) = (Some(end), true);
            }
            Step::Seek(slot) => {
                let of = &mut model[*slot];
                let next = of.next.unwrap_or(0) + 1;
                home.store.progress(name(*slot)).seek(next, "once more").unwrap();
                (of.next, of.seeks) = (Some(next), [&of.seeks[..], &[next]].concat());
            }
            Step::Put(slot, key) => {
                let value = (number as i64).to_be_bytes();
                home.tables[*slot].put([*key], value).unwrap();
                model[*slot].rows.insert(vec![*key], value.to_vec());
            }
            Step::Delete(slot, key) => {
                home.tables[*slot].delete([*key]).unwrap();
                model[*slot].rows.remove(&vec![*key]);
            }
            Step::Write(two, across) => write(&home, &mut model, *two, *across),
            Step::Replace(pair) => replace(&home, &mut model, *pair),
            Step::ReplaceTwo => {
                let names = [0, 1, 2, 0].map(name);
                let made = home.store.replace(&[(&names[0], &names[1]), (&names[2], &names[3])]);
                assert!(matches!(made, Err(Error::NotReplaced { .. })), "{made:?}");
            }
            Step::Remove(slot) => {
                home.store.progress(name(*slot)).remove_with(|_| Ok(())).unwrap();
                let Slot { rows, items, owns, .. } = std::mem::take(&mut model[*slot]);
                if !owns {
                    (model[*slot].rows, model[*slot].items) = (rows, items);
                }
            }
            Step::Reopen => home = home.reopened(),
        }
        home.check(&model, step);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(if engine().is_some() { 20 } else { 150 }), ..ProptestConfig::default() })]

    #[test]
    fn replacements_agree_with_a_model(steps in proptest::collection::vec(step(), 1..40)) {
        check(Home::on(Arc::new(Place::default())), &steps);
    }
}

/// Fills two progresses by the same jobs, and returns the table that readers know.
fn two(store: &Store) -> Table {
    for (name, by) in [("old", 1), ("new", 2)] {
        let (table, log) = (store.table(name).unwrap(), store.log::<u64>(name).unwrap());
        (0..2_500u32).for_each(|row| table.put(row.to_be_bytes(), name).unwrap());
        Consumer::builder(numbers(10), store.progress(name))
            .owns(&table)
            .owns(&log)
            .on_exhausted(OnExhausted::Park { budget: 9 })
            .stop_at(9)
            .start_transactional(move |job, effects| {
                if job.index == by {
                    return Err("not this one".into());
                }
                effects.add(&table, "sum", by as i64)?;
                Ok(effects.push(&log, &by)?)
            })
            .unwrap()
            .join()
            .unwrap();
    }
    store.table("old").unwrap()
}

/// Returns which of the two has the name of the old one, after checks that all of it is there.
fn found(store: &Store) -> u64 {
    let table = store.table("old").unwrap();
    let by = table.counter("sum").unwrap() as u64 / 9;
    let rows =
        table.iter().map(|row| row.unwrap().1).filter(|value| value == ["old", "new"][by as usize - 1].as_bytes());
    assert_eq!(rows.count(), 2_500);
    assert_eq!(store.parked("old").unwrap().iter().map(|job| job.index).collect::<Vec<_>>(), [by]);
    assert_eq!(store.progress("old").last_processed().unwrap(), Some(9));
    let log = store.log::<u64>("old").unwrap();
    let mut items = Vec::new();
    log.read(1..=9, &mut items).unwrap();
    assert_eq!(items, [by; 9]);
    let is_there = store.progress("new").last_processed().unwrap().is_some();
    assert_eq!(is_there, by == 1);
    let names = |is_there| if is_there { vec!["new".to_owned(), "old".to_owned()] } else { vec!["old".to_owned()] };
    assert_eq!(store.tables().unwrap(), names(is_there));
    by
}

#[test]
fn a_crash_leaves_one_or_the_other() {
    let mut ends = BTreeSet::new();
    let live = |trial: &Trial| {
        let store = trial.store();
        store.replace(&[("new", "old")]).is_ok()
    };
    let check = |trial: &Trial, said: bool| {
        let by = found(&trial.store());
        assert!(by == 2 || trial.struck || !said, "it was said to be done");
        ends.insert((by, said));
    };
    every_write_after(|disk| drop(two(&disk.store())), &[Stop, PowerLoss, Fail(1)], live, check);
    // A write that fails is said to, and one that a crash takes is not.
    assert_eq!(ends, [(1, false), (1, true), (2, true)].into());
}

/// Counts the rows that are stored, also of tables that have no name.
fn rows_stored(disk: &Disk) -> usize {
    disk.records().iter().filter(|(family, ..)| family == "waterline.tables").count()
}

#[test]
fn the_old_rows_are_deleted_behind_even_after_a_crash() {
    for write in 0..9 {
        let disk = Disk::default();
        let store = disk.open(&Store::options()).unwrap();
        drop(two(&store));
        disk.freeze_at(write);
        store.replace(&[("new", "old")]).unwrap();
        let left = disk.after_crash();
        let store = left.open(&Store::options()).unwrap();
        let rows = 2_501 * if found(&store) == 1 { 2 } else { 1 };
        eventually("the old rows are deleted", || rows_stored(&left) == rows);
        assert!(!left.records().iter().any(|(_, key, _)| key.starts_with(b"g") && rows == 2_501));
    }
}

#[test]
fn open_handles_follow_while_others_read_and_write() {
    let (store, _place) = a_store();
    let table = store.table("old").unwrap();
    let start = |name: &str| {
        let table = store.table(name).unwrap();
        (0..40u8).for_each(|row| table.put([row], name).unwrap());
        let consumer = Consumer::builder(numbers(1), store.progress(name)).owns(&table).stop_at(0);
        consumer.start(|_| Ok(())).unwrap().join().unwrap();
    };
    start("old");
    let over = AtomicBool::new(false);
    let (read, written, kept) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut looks = 0u64;
            while !over.load(Ordering::Acquire) {
                // At each moment the table has these rows, and all of them are of one filling.
                assert!(table.get([7]).unwrap().is_some());
                let keys: Vec<_> = (0..40u8).map(|row| [row]).collect();
                assert!(table.multi_get(&keys).unwrap().iter().all(Option::is_some));
                assert_eq!(table.prefix([]).filter(|row| row.as_ref().unwrap().0.len() == 1).count(), 40);
                looks += 1;
            }
            looks
        });
        let writer = scope.spawn(|| {
            let (mut adds, mut last) = (0i64, None);
            while !over.load(Ordering::Acquire) {
                store.write(|effects| effects.add(&table, "adds", 1)).unwrap();
                let number = adds.to_be_bytes();
                table.put("last", number).unwrap();
                (adds, last) = (adds + 1, Some(number.to_vec()));
            }
            (adds, last)
        });
        let mut kept = 0;
        for _ in 0..if engine().is_some() { 20 } else { 200 } {
            start("new");
            let others = store.table("new").unwrap();
            store.replace(&[("new", "old")]).unwrap();
            // What was added before went with the old rows, and nothing else did.
            assert_eq!(others.iter().count(), 0);
            kept += 1;
        }
        over.store(true, Ordering::Release);
        (reader.join().unwrap(), writer.join().unwrap(), kept)
    });
    assert!(read > 0 && kept > 0);
    let adds = table.counter("adds").unwrap();
    assert!(adds <= written.0, "{adds} of {}", written.0);
    // The last put came after the last replacement, or went with the rows before it.
    assert!(table.get("last").unwrap().is_none_or(|last| Some(last) == written.1));
}

#[test]
fn refusals_change_nothing() {
    let (store, _place) = a_store();
    drop(two(&store));
    let life = |name: &str| Consumer::builder(numbers(1), store.progress(name)).stop_at(0);
    let (shared, log) = (store.table("shared").unwrap(), store.log::<u64>("read").unwrap());
    log.push(&1).unwrap();
    life("bare").start(|_| Ok(())).unwrap().join().unwrap();
    life("one").owns(&shared).start(|_| Ok(())).unwrap().join().unwrap();
    life("two").owns(&shared).start(|_| Ok(())).unwrap().join().unwrap();
    life("log 1").owns(&log).start(|_| Ok(())).unwrap().join().unwrap();
    life("log 2").owns(&store.log::<u64>("other").unwrap()).start(|_| Ok(())).unwrap().join().unwrap();
    let reader = || Consumer::builder(log.clone(), store.progress("reader"));
    reader().stop_at(1).start(|_| Ok(())).unwrap().join().unwrap();
    let refused = |pairs: &[(&str, &str)]| {
        let before = store.consumers().unwrap();
        let error = store.replace(pairs).unwrap_err();
        assert_eq!((store.consumers().unwrap(), found(&store)), (before, 1), "{error}");
        assert!(matches!(error, Error::NotReplaced { .. }), "{error:?}");
        error.to_string()
    };
    let cases: [(&[(&str, &str)], &str); 9] = [
        (&[("nobody", "old")], "\"nobody\" cannot replace \"old\": nothing is saved under \"nobody\": check the name"),
        (&[("old", "old")], "the name \"old\" occurs twice in one call: name each progress once"),
        (&[("new", "old"), ("old", "bare")], "the name \"old\" occurs twice"),
        (
            &[("bare", "old")],
            "nothing cannot take the names of the table \"old\", the log \"old\": start each of them once",
        ),
        (&[("new", "never")], "cannot take the names of nothing"),
        (&[("log 1", "one")], "the log \"read\" cannot take the names of the table \"shared\""),
        (&[("one", "two")], "the table \"shared\" belongs to \"one\" and to \"two\": let one of them own it"),
        (&[("log 1", "log 2")], "the consumer \"reader\" reads the log \"read\", and would lose its place in it"),
        (&[("log 2", "log 1")], "the consumer \"reader\" reads the log \"read\", and would lose its place in it"),
    ];
    for (pairs, text) in cases {
        let said = refused(pairs);
        assert!(said.contains(text), "{said}");
    }
    store.progress("reader").remove().unwrap();
    let said = refused(&[("log 1", "log 2")]);
    assert!(said.contains("the log \"read\" is open: stop its consumers, and drop all its handles first"), "{said}");
    for name in ["old", "new"] {
        let running = Consumer::builder(numbers(0), store.progress(name)).start(|_| Ok(())).unwrap();
        assert!(matches!(store.replace(&[("new", "old")]), Err(Error::InUse { name: used }) if used == name));
        running.stop().unwrap();
    }
    assert!(matches!(store.replace(&[("", "old")]), Err(Error::Config(_))));
    // What a start refuses.
    let owned = |part: waterline::Owned| life("bare").owns(part).start(|_| Ok(())).unwrap_err();
    let foreign = owned((&Store::in_memory().table("t").unwrap()).into());
    assert!(matches!(foreign, Error::Config(ConfigError::Foreign { what: "table", .. })), "{foreign:?}");
    if let Ok(family) = store.column_family("theirs") {
        let error = owned((&family).into());
        assert!(matches!(error, Error::Config(ConfigError::Unsupported { setting: "owns", .. })), "{error:?}");
    }
    let twice = life("bare").owns(&shared).owns(&shared).start(|_| Ok(())).unwrap_err();
    assert!(twice.to_string().contains("the table \"shared\" is named twice"), "{twice}");
    let elsewhere = Consumer::builder(numbers(0), MemoryProgress::new()).owns(&shared).start(|_| Ok(())).unwrap_err();
    assert!(matches!(elsewhere, Error::Config(ConfigError::Unsupported { setting: "owns", .. })), "{elsewhere:?}");
}

#[test]
fn stages_are_replaced_together() {
    let (store, _place) = a_store();
    let run = |suffix: &str, by: u64| {
        let log = store.log::<u64>(format!("log{suffix}")).unwrap();
        let first = Consumer::builder(numbers(5), store.progress(format!("first{suffix}"))).owns(&log).stop_at(4);
        let out = log.clone();
        first
            .start_transactional(move |job, effects| Ok(effects.push(&out, &(job.index * by))?))
            .unwrap()
            .join()
            .unwrap();
        let second = Consumer::builder(log, store.progress(format!("second{suffix}"))).stop_at(5);
        second.start(|_| Ok(())).unwrap().join().unwrap();
    };
    run("", 1);
    run("-2", 3);
    assert!(matches!(store.replace(&[("first-2", "first")]), Err(Error::NotReplaced { .. })));
    store.replace(&[("first-2", "first"), ("second-2", "second")]).unwrap();
    let second = store.consumers().unwrap().into_iter().find(|info| info.name == "second").unwrap();
    assert_eq!(second.log.as_deref(), Some("log"));
    assert_eq!(store.logs().unwrap().iter().map(|log| log.name.clone()).collect::<Vec<_>>(), ["log"]);
    // It goes on where it was.
    let log = store.log::<u64>("log").unwrap();
    assert_eq!(log.push(&99).unwrap(), 6);
    let second = Consumer::builder(log, store.progress("second")).stop_at(6);
    let same =
        |job: waterline::Job<u64>| if (job.index, job.payload) == (6, 99) { Ok(()) } else { Err("another job".into()) };
    second.start(same).unwrap().join().unwrap();
    assert_eq!(store.log::<u64>("log-2").unwrap().push(&1).unwrap(), 1);
}

#[test]
fn a_reader_beside_follows() {
    let (store, place) = a_store();
    drop(two(&store));
    let beside = place.open_with(&Store::options().read_only());
    let (table, log) = (beside.table("old").unwrap(), beside.log_with::<Vec<u8>, _>("old", Bytes).unwrap());
    let scan = table.iter();
    store.replace(&[("new", "old")]).unwrap();
    // Either the rows of before or those of now, and never a part of them.
    let counted =
        |rows: waterline::Rows<'_>, value: &str| rows.filter(|row| row.as_ref().unwrap().1 == value.as_bytes()).count();
    assert_eq!(counted(scan, "old"), 2_500, "a scan ends as it began");
    assert!([(2_500, 0), (0, 2_500)].contains(&(counted(table.iter(), "old"), counted(table.iter(), "new"))));
    let refreshed = beside.refresh();
    assert!(matches!(&refreshed, Err(Error::Replaced { log }) if log == "old"), "{refreshed:?}");
    assert_eq!((counted(table.iter(), "new"), table.counter("sum").unwrap()), (2_500, 18));
    drop(log);
    beside.refresh().unwrap();
    assert_eq!(beside.tables().unwrap(), ["old"]);
    assert_eq!(found(&beside), 2);
    assert!(matches!(beside.replace(&[("new", "old")]), Err(Error::ReadOnly)));
}

/// Prints how long a replacement takes, for a table of this many rows. It is no test.
#[test]
#[ignore = "it measures"]
fn a_replacement_of_many_rows_takes_milliseconds() {
    let rows: u32 = std::env::var("WATERLINE_ROWS").map_or(1_000_000, |rows| rows.parse().unwrap());
    // Synced, so that the one sync of a replacement does not write what was buffered before it.
    let place = Place::default();
    let store = place.open_with(&Store::options().durability(Durability::Synced));
    for name in ["old", "new"] {
        let table = store.table(name).unwrap();
        for piece in (0..rows).collect::<Vec<_>>().chunks(10_000) {
            store
                .write(|effects| piece.iter().try_for_each(|row| effects.put(&table, row.to_be_bytes(), [7; 16])))
                .unwrap();
        }
        let consumer = Consumer::builder(numbers(1), store.progress(name)).owns(&table).stop_at(0);
        consumer.start(|_| Ok(())).unwrap().join().unwrap();
    }
    let begun = std::time::Instant::now();
    store.replace(&[("new", "old")]).unwrap();
    println!("{rows} rows: {:?}", begun.elapsed());
}

#[test]
fn a_damaged_list_is_in_the_way_of_a_replacement_alone() {
    let disk = Disk::default();
    let store = disk.open(&Store::options()).unwrap();
    drop(two(&store));
    let damage = |name: &str| disk.put(&[("waterline.system".to_owned(), format!("o{name}").into_bytes(), vec![1, 2])]);
    damage("old");
    let refused = store.replace(&[("new", "old")]).unwrap_err();
    assert!(matches!(&refused, Error::Corrupt { name, .. } if name == "old"), "{refused:?}");
    assert!(store.consumers().unwrap()[1].unreadable.is_some());
    // The next start says it anew, and a removal needs no list.
    let (table, log) = (store.table("old").unwrap(), store.log::<u64>("old").unwrap());
    let consumer = Consumer::builder(numbers(10), store.progress("old")).owns(&table).owns(&log).stop_at(9);
    consumer.start(|_| Ok(())).unwrap().join().unwrap();
    drop(log);
    store.replace(&[("new", "old")]).unwrap();
    damage("old");
    store.progress("old").remove_with(|_| Ok(())).unwrap();
    assert!(store.consumers().unwrap().is_empty());
    assert_eq!(table.counter("sum").unwrap(), 18);
}

#[test]
fn a_damaged_place_is_in_the_way_of_its_table_alone() {
    let disk = Disk::default();
    let store = disk.open(&Store::options()).unwrap();
    drop(two(&store));
    store.table("other").unwrap().put("key", "value").unwrap();
    store.replace(&[("new", "old")]).unwrap();
    drop(store);
    disk.put(&[("waterline.system".to_owned(), b"told".to_vec(), vec![1, 2])]);
    let store = disk.open(&Store::options()).unwrap();
    let refused = store.table("old").unwrap_err();
    assert!(matches!(&refused, Error::Corrupt { name, .. } if name == "old"), "{refused:?}");
    assert_eq!(store.table("other").unwrap().get("key").unwrap().as_deref(), Some(b"value".as_slice()));
    assert_eq!(store.table("new").unwrap().iter().count(), 0);
}
