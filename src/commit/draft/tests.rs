//! Changes of jobs that are appended at once, compared with one job after the other in a map.

use super::*;
use crate::base::Index;
use crate::commit::{participant::Cleanup, statements::Manner};
use crate::kv::memory::MemoryKv;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// One change of one of a few keys.
#[derive(Clone, Copy, Debug)]
enum Want {
    Add(u8, i64),
    Put(u8, i64),
    Text(u8),
    Delete(u8),
    /// Deletes all keys that begin with this byte. Each key is one byte.
    Clear(u8),
    Empty,
}

const TEXT: &[u8] = b"no counter";

fn want() -> impl Strategy<Value = Want> {
    let key = 0..4u8;
    let by = prop_oneof![4 => -3..4i64, 1 => Just(i64::MAX), 1 => Just(i64::MIN)];
    prop_oneof![
        6 => (key.clone(), by.clone()).prop_map(|(key, by)| Want::Add(key, by)),
        1 => (key.clone(), by).prop_map(|(key, count)| Want::Put(key, count)),
        1 => key.clone().prop_map(Want::Text),
        1 => key.clone().prop_map(Want::Delete),
        1 => key.prop_map(Want::Clear),
        1 => Just(Want::Empty),
    ]
}

fn changes(family: &Family, wants: &[Want]) -> Changes {
    let mut changes = Changes::default();
    for want in wants {
        match *want {
            Want::Add(key, by) => changes.add((family, &"sums".into()), [&[], &[key]], by),
            Want::Put(key, count) => changes.put(family.id, &[&[key]], &counter::encode(count)).unwrap(),
            Want::Text(key) => changes.put(family.id, &[&[key]], TEXT).unwrap(),
            Want::Delete(key) => changes.delete(family.id, &[&[key]]).unwrap(),
            Want::Clear(key) => changes.clear_prefix(family, &[key]).unwrap(),
            Want::Empty => changes.clear_prefix(family, &[]).unwrap(),
        }
    }
    changes
}

/// Pieces of `each` jobs, as the driver makes them.
fn pieces(jobs: impl Iterator<Item = (Index, Changes)>, each: usize) -> Vec<Changes> {
    let mut pieces: Vec<Changes> = Vec::new();
    for (number, (index, mut job)) in jobs.enumerate() {
        if number % each == 0 {
            pieces.push(Changes::default());
        }
        pieces.last_mut().unwrap().append(&mut job, index, 3);
    }
    pieces
}

type Map = BTreeMap<u8, Vec<u8>>;

/// Returns the rows after this job; `None` if it has an add that cannot be made.
fn after(rows: &Map, wants: &[Want]) -> Option<Map> {
    let mut rows = rows.clone();
    for want in wants {
        match *want {
            Want::Add(key, by) => {
                let count = counter::decode(rows.get(&key).map(Vec::as_slice)).ok()?.checked_add(by)?;
                rows.insert(key, counter::encode(count).to_vec());
            }
            Want::Put(key, count) => drop(rows.insert(key, counter::encode(count).to_vec())),
            Want::Text(key) => drop(rows.insert(key, TEXT.to_vec())),
            Want::Delete(key) | Want::Clear(key) => drop(rows.remove(&key)),
            Want::Empty => rows.clear(),
        }
    }
    Some(rows)
}

/// A job that puts a row, adds to a counter of its own, and adds to a value that is no counter.
fn bad_job(family: &Family, index: u64) -> Changes {
    let mut changes = Changes::default();
    changes.put(family.id, &[b"row of ", &index.to_be_bytes()], b"").unwrap();
    for key in [index.to_be_bytes().to_vec(), b"text".to_vec()] {
        changes.add((family, &"sums".into()), [&[], &key], 1);
    }
    changes
}

#[test]
fn many_refused_jobs_take_one_scan_of_the_batch() {
    const JOBS: u64 = 3_000;
    let (kv, rows) = (MemoryKv::default(), RwLock::default());
    let [_, family, _] = kv.families();
    let mut draft = Draft::new(&kv, &rows, Manner::default());
    let row = |n: u64| [b"another row ".as_slice(), &n.to_be_bytes()].concat();
    (0..JOBS).for_each(|n| draft.put(family.id, &row(n), b"").unwrap());
    draft.put(family.id, b"text", TEXT).unwrap();
    let records = draft.batch().count();
    let mut all = pieces((0..JOBS).rev().map(|index| (index, bad_job(&family, index))), 100);
    let refused = draft.append(&all).unwrap();
    let jobs: Vec<_> = refused.iter().map(|job| job.index).collect();
    assert!(jobs.iter().copied().eq(0..JOBS), "all at once, and in order");
    assert_eq!(refused[0].attempt, 3);
    assert!(matches!(&refused[0].error, Error::Counter { table, key, .. } if table == "sums" && key == b"text"));
    assert_eq!(draft.batch().count(), records, "nothing is appended");
    all.iter_mut().for_each(|changes| changes.take_out(&jobs));
    assert!(all.iter().all(Changes::is_empty), "nothing else was wanted");
    assert_eq!(all.iter().map(Changes::len).sum::<usize>(), 0);
    assert!(draft.append(&all).unwrap().is_empty());
    assert_eq!(draft.batch().count(), records);
    assert!(draft.looked_at <= 2 * records as usize, "{} looks at {records} records", draft.looked_at);
}

#[test]
fn many_clears_of_a_family_take_one_scan_of_the_batch() {
    let (kv, rows) = (MemoryKv::default(), RwLock::default());
    let [_, family, _] = kv.families();
    let mut draft = Draft::new(&kv, &rows, Manner::default());
    let job = |key: u8| {
        let mut changes = changes(&family, &[Want::Empty, Want::Put(key, 0), Want::Put(key / 2, 0), Want::Empty]);
        changes.put(family.id, &[&[key]], b"the last one").unwrap();
        changes
    };
    let all: Vec<_> = (0..=255).map(job).collect();
    assert!(draft.append(&all).unwrap().is_empty());
    let records = draft.batch().count() as usize;
    assert!(draft.looked_at <= records, "{} looks at {records} records", draft.looked_at);
    kv.write(draft.batch(), false).unwrap();
    let left = kv.scan(&family, b"").collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!(left, [(vec![255], b"the last one".to_vec())]);
}

#[test]
fn a_family_is_empty_if_cleared_again_after_an_undo() {
    let (kv, rows) = (MemoryKv::default(), RwLock::default());
    let [_, family, _] = kv.families();
    let mut draft = Draft::new(&kv, &rows, Manner::default());
    let wants = |wants: &[Want]| [changes(&family, wants)];
    assert!(draft.append(&wants(&[Want::Put(1, 0)])).unwrap().is_empty());
    let before = draft.mark();
    assert!(draft.append(&wants(&[Want::Put(1, 0), Want::Put(2, 0), Want::Empty])).unwrap().is_empty());
    draft.go_back(before);
    assert!(draft.append(&wants(&[Want::Put(3, 0), Want::Empty])).unwrap().is_empty());
    kv.write(draft.batch(), false).unwrap();
    assert_eq!(kv.last(&family, b"").unwrap(), None);
}

#[test]
fn a_failed_add_of_no_job_appends_nothing() {
    let (kv, rows) = (MemoryKv::default(), RwLock::default());
    let [_, family, _] = kv.families();
    let mut draft = Draft::new(&kv, &rows, Manner::default());
    draft.put(family.id, &[1], TEXT).unwrap();
    let mut nobodys = Changes::default();
    nobodys.put(family.id, &[&[2]], b"").unwrap();
    nobodys.add((&family, &"sums".into()), [&[], &[1]], 1);
    let error = draft.append(&[nobodys]).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(Error::Counter { table, key, .. }) if table == "sums" && key == &[1]));
    assert_eq!(draft.batch().count(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn jobs_are_refused_as_if_made_one_by_one(
        stored in proptest::collection::vec(want(), 0..4),
        earlier in proptest::collection::vec(want(), 0..4),
        jobs in proptest::collection::vec(proptest::collection::vec(want(), 0..5), 1..14),
        each in 1..6usize,
    ) {
        let (kv, lock) = (MemoryKv::default(), RwLock::default());
        let [_, family, _] = kv.families();
        // The stored rows, and the rows of the batch so far.
        let mut rows = after(&Map::new(), &stored).unwrap_or_default();
        let mut before = Batch::default();
        rows.iter().for_each(|(key, value)| before.put(family.id, &[&[*key]], &[value]).unwrap());
        kv.write(&before, false).unwrap();
        let mut draft = Draft::new(&kv, &lock, Manner::default());
        if let Some(then) = after(&rows, &earlier) {
            rows = then;
            prop_assert!(draft.append(&[changes(&family, &earlier)]).unwrap().is_empty());
        }
        let count = draft.batch().count();
        let mut expected = Vec::new();
        for (index, wants) in jobs.iter().enumerate() {
            match after(&rows, wants) {
                Some(then) => rows = then,
                None => expected.push(index as Index),
            }
        }
        let wanted = |(index, wants): (usize, &Vec<Want>)| (index as Index, changes(&family, wants));
        let mut all = pieces(jobs.iter().enumerate().map(wanted), each);
        let refused: Vec<_> = draft.append(&all).unwrap().iter().map(|job| job.index).collect();
        prop_assert_eq!(&refused, &expected);
        if !refused.is_empty() {
            prop_assert_eq!(draft.batch().count(), count);
            all.iter_mut().for_each(|changes| changes.take_out(&refused));
            let kept = jobs.iter().enumerate().filter(|(index, _)| !expected.contains(&(*index as Index)));
            let length = |pieces: &[Changes]| pieces.iter().map(Changes::len).sum::<usize>();
            prop_assert_eq!(length(&all), length(&pieces(kept.map(wanted), each)));
            prop_assert!(draft.append(&all).unwrap().is_empty());
        }
        kv.write(draft.batch(), false).unwrap();
        for key in 0..4 {
            let got = kv.get(&family, &[key]).unwrap();
            prop_assert_eq!(got.as_ref(), rows.get(&key));
        }
    }
}

/// Puts a key if all keys that it needs exist.
struct Needs(Family);

impl Participant for Needs {
    type Staged = usize;

    fn staged(&self) -> usize {
        0
    }

    fn apply(&self, made: &mut usize, op: &[u8], batch: &mut Overlay<'_>) -> Result<(), BoxError> {
        let (key, needs) = op.split_first().unwrap();
        for need in needs {
            if batch.get(&self.0, &[*need])?.is_none() {
                return Err(Refusal(Error::ReadOnly).into());
            }
        }
        *made += 1;
        Ok(batch.put(self.0.id, &[&[*key]], &[&made.to_be_bytes()])?)
    }

    fn publish(self: Arc<Self>, _: usize) -> Option<Cleanup> {
        None
    }
}

/// The operations of a job: a key each, and the keys that it needs.
type Ops = Vec<(u8, Vec<u8>)>;

/// Returns the jobs that can be made whole in some order, and their keys.
fn makeable(jobs: &[Ops]) -> (BTreeSet<Index>, BTreeSet<u8>) {
    let (mut made, mut keys) = (BTreeSet::new(), BTreeSet::new());
    loop {
        let before = made.len();
        for (index, ops) in jobs.iter().enumerate() {
            let mut with = keys.clone();
            for _ in ops {
                let ready = |(_, needs): &&(u8, Vec<u8>)| needs.iter().all(|need| with.contains(need));
                let keys: Vec<_> = ops.iter().filter(ready).map(|(key, _)| *key).collect();
                with.extend(keys);
            }
            if ops.iter().all(|(_, needs)| needs.iter().all(|need| with.contains(need))) {
                made.insert(index as Index);
                keys = with;
            }
        }
        if made.len() == before {
            return (made, keys);
        }
    }
}

#[test]
fn a_chain_of_too_many_rounds_is_refused_in_part() {
    const JOBS: u8 = 200;
    let (kv, rows) = (MemoryKv::default(), RwLock::default());
    let [_, family, _] = kv.families();
    let needs: Arc<Needs> = Arc::new(Needs(family.clone()));
    let mut draft = Draft::new(&kv, &rows, Manner::default());
    // Each needs the previous one, and odd numbers come first: a round makes one of them.
    let order = (1..JOBS).step_by(2).chain((0..JOBS).step_by(2));
    let job = |key: u8| {
        let mut changes = Changes::default();
        let op = if key == 0 { vec![key] } else { vec![key, key - 1] };
        changes.refusable_op(needs.clone(), op);
        (Index::from(key), changes)
    };
    let mut all = pieces(order.map(job), 1);
    let refused: Vec<_> = draft.append(&all).unwrap().iter().map(|job| job.index).collect();
    assert!(refused.iter().copied().eq(64..Index::from(JOBS)), "{refused:?}");
    all.iter_mut().for_each(|changes| changes.take_out(&refused));
    assert!(draft.append(&all).unwrap().is_empty());
    assert_eq!(draft.batch().count(), 64);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn operations_are_made_in_any_order_that_works(
        jobs in prop::collection::vec(
            prop::collection::vec((0..12u8, prop::collection::vec(0..12u8, 0..3)), 0..4), 0..12),
        each in 1..4usize,
    ) {
        let (kv, rows) = (MemoryKv::default(), RwLock::default());
        let [_, family, _] = kv.families();
        let needs: Arc<Needs> = Arc::new(Needs(family.clone()));
        let mut draft = Draft::new(&kv, &rows, Manner::default());
        let wanted = |(index, ops): (usize, &Ops)| {
            let mut changes = Changes::default();
            changes.put(family.id, &[&[b'r', index as u8]], b"").unwrap();
            for (key, after) in ops {
                changes.refusable_op(needs.clone(), [&[*key][..], after].concat());
            }
            (index as Index, changes)
        };
        let mut all = pieces(jobs.iter().enumerate().map(wanted), each);
        let (made, keys) = makeable(&jobs);
        let refused: Vec<_> = draft.append(&all).unwrap().iter().map(|job| job.index).collect();
        let expected: Vec<_> = (0..jobs.len() as Index).filter(|index| !made.contains(index)).collect();
        prop_assert_eq!(&refused, &expected);
        if !refused.is_empty() {
            prop_assert_eq!(draft.batch().count(), 0);
            all.iter_mut().for_each(|changes| changes.take_out(&refused));
            prop_assert!(draft.append(&all).unwrap().is_empty());
        }
        kv.write(draft.batch(), false).unwrap();
        let stored = kv.scan(&family, b"").map(|row| row.unwrap().0);
        let (done, stored): (Vec<_>, Vec<_>) = stored.partition(|key| key.len() == 2);
        prop_assert!(stored.iter().map(|key| key[0]).eq(keys));
        prop_assert!(done.iter().map(|key| Index::from(key[1])).eq(made));
    }
}
