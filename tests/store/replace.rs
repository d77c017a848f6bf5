//! Consumers that take the names of others (`Store::replace`), with their tables and logs.

use common::every_write::{DEATHS, Trial, every_write};
use common::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use waterline::{Consumer, Error, Index, Jobs, OnExhausted, Store, Table};

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
    /// A write of two tables, between whose changes tables are replaced.
    Write([usize; 2], Option<[usize; 2]>),
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
        4 => (slots(), proptest::option::of(slots())).prop_map(|(two, across)| Step::Write(two, across)),
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
            Step::Write(two, across) => {
                let mut made = None;
                home.store
                    .write(|effects| {
                        let [one, two] = two.map(|slot| &home.tables[slot]);
                        effects.add(one, "first", 1)?;
                        effects.put(two, "first", 7i64.to_be_bytes())?;
                        made = across.map(|pair| home.replace(pair));
                        effects.clear(one)?;
                        effects.add(one, "sum", 5)?;
                        effects.add(two, "sum", 3)
                    })
                    .unwrap();
                if let (Some(made), Some(pair)) = (made, across) {
                    let after = replaced(&model, &[*pair]);
                    expect(made, after, &mut model);
                }
                let [one, two] = *two;
                model[two].rows.insert(b"first".to_vec(), 7i64.to_be_bytes().to_vec());
                model[one].rows.clear();
                model[one].add(b"sum", 5);
                model[two].add(b"sum", 3);
            }
            Step::Replace(pair) => {
                let mut scans: Vec<_> = home.tables.iter().map(Table::iter).collect();
                let mut seen: Vec<Vec<_>> = scans.iter_mut().map(|scan| scan.next().into_iter().collect()).collect();
                let made = home.replace(*pair);
                for (scan, seen) in scans.into_iter().zip(&mut seen) {
                    seen.extend(scan);
                }
                for (seen, slot) in seen.into_iter().zip(&model) {
                    assert_eq!(seen.into_iter().collect::<Result<Rows, _>>().unwrap(), slot.rows, "during {step:?}");
                }
                let after = replaced(&model, &[*pair]);
                expect(made, after, &mut model);
            }
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
