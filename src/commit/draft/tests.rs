//! The changes of jobs, appended at once and searched for the jobs to blame, beside the same
//! changes one job after the other in a map.

use super::*;
use crate::base::index::Index;
use crate::kv::memory::MemoryKv;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// One thing that a job wants of one of a few keys.
#[derive(Clone, Copy, Debug)]
enum Want {
    Add(u8, i64),
    Put(u8, i64),
    Text(u8),
    Delete(u8),
    /// Deletes all keys that begin with this byte. The keys have one byte.
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
            Want::Add(key, by) => changes.add(Add {
                after: 0,
                family: family.clone(),
                key: vec![key],
                by,
                table: "sums".into(),
                prefix: 0,
            }),
            Want::Put(key, count) => changes.put(family.id, &[&[key]], &counter::encode(count)).unwrap(),
            Want::Text(key) => changes.put(family.id, &[&[key]], TEXT).unwrap(),
            Want::Delete(key) => changes.delete(family.id, &[&[key]]).unwrap(),
            Want::Clear(key) => changes.clear_prefix(family, &[key]).unwrap(),
            Want::Empty => changes.clear_prefix(family, &[]).unwrap(),
        }
    }
    changes
}

/// Pieces of these many jobs each, as the driver makes them.
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

/// A job that puts a row of its own, and adds to a counter of its own and to one that is none.
fn bad_job(family: &Family, index: u64) -> Changes {
    let mut changes = Changes::default();
    changes.put(family.id, &[b"row of ", &index.to_be_bytes()], b"").unwrap();
    for key in [index.to_be_bytes().to_vec(), b"text".to_vec()] {
        changes.add(Add { after: 0, family: family.clone(), key, by: 1, table: "sums".into(), prefix: 0 });
    }
    changes
}

#[test]
fn many_jobs_to_blame_take_as_many_looks_through_the_batch_as_one() {
    const JOBS: u64 = 3_000;
    let (kv, rows) = (MemoryKv::default(), RwLock::default());
    let [_, family, _] = kv.families();
    let mut draft = Draft::new(&kv, &rows);
    let row = |n: u64| [b"another row ".as_slice(), &n.to_be_bytes()].concat();
    (0..JOBS).for_each(|n| draft.put(family.id, &row(n), b"").unwrap());
    draft.put(family.id, b"text", TEXT).unwrap();
    let records = draft.batch().count();
    let mut all = pieces((0..JOBS).rev().map(|index| (index, bad_job(&family, index))), 100);
    let refused = draft.append(&all).unwrap().unwrap();
    assert!(refused.jobs.iter().copied().eq(0..JOBS), "all at once, and in order");
    assert_eq!((refused.lowest, refused.attempt), (0, 3));
    assert!(matches!(&refused.error, Error::Counter { table, key, .. } if table == "sums" && key == b"text"));
    assert_eq!(draft.batch().count(), records, "nothing is appended");
    all.iter_mut().for_each(|changes| changes.take_out(&refused.jobs));
    assert!(all.iter().all(Changes::is_empty), "nothing else was wanted");
    assert_eq!(all.iter().map(Changes::len).sum::<usize>(), 0);
    assert!(draft.append(&all).unwrap().is_none());
    assert_eq!(draft.batch().count(), records);
    assert!(draft.looked_at <= 2 * records as usize, "{} looks at {records} records", draft.looked_at);
}

#[test]
fn a_family_that_is_emptied_many_times_takes_as_many_looks_through_the_batch_as_one() {
    let (kv, rows) = (MemoryKv::default(), RwLock::default());
    let [_, family, _] = kv.families();
    let mut draft = Draft::new(&kv, &rows);
    let job = |key: u8| {
        let mut changes = changes(&family, &[Want::Empty, Want::Put(key, 0), Want::Put(key / 2, 0), Want::Empty]);
        changes.put(family.id, &[&[key]], b"the last one").unwrap();
        changes
    };
    let all: Vec<_> = (0..=255).map(job).collect();
    assert!(draft.append(&all).unwrap().is_none());
    let records = draft.batch().count() as usize;
    assert!(draft.looked_at <= records, "{} looks at {records} records", draft.looked_at);
    kv.write(draft.batch(), false).unwrap();
    let left = kv.scan(&family, b"").collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!(left, [(vec![255], b"the last one".to_vec())]);
}

#[test]
fn a_family_that_is_emptied_again_after_a_draft_went_back_is_empty() {
    let (kv, rows) = (MemoryKv::default(), RwLock::default());
    let [_, family, _] = kv.families();
    let mut draft = Draft::new(&kv, &rows);
    let wants = |wants: &[Want]| [changes(&family, wants)];
    assert!(draft.append(&wants(&[Want::Put(1, 0)])).unwrap().is_none());
    let before = draft.mark();
    assert!(draft.append(&wants(&[Want::Put(1, 0), Want::Put(2, 0), Want::Empty])).unwrap().is_none());
    draft.go_back(before);
    assert!(draft.append(&wants(&[Want::Put(3, 0), Want::Empty])).unwrap().is_none());
    kv.write(draft.batch(), false).unwrap();
    assert_eq!(kv.last(&family, b"").unwrap(), None);
}

#[test]
fn an_add_of_no_job_is_an_error_and_nothing_is_appended() {
    let (kv, rows) = (MemoryKv::default(), RwLock::default());
    let [_, family, _] = kv.families();
    let mut draft = Draft::new(&kv, &rows);
    draft.put(family.id, &[1], TEXT).unwrap();
    let mut nobodys = Changes::default();
    nobodys.put(family.id, &[&[2]], b"").unwrap();
    nobodys.add(Add { after: 0, family: family.clone(), key: vec![1], by: 1, table: "sums".into(), prefix: 0 });
    let error = draft.append(&[nobodys]).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(Error::Counter { table, key, .. }) if table == "sums" && key == &[1]));
    assert_eq!(draft.batch().count(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn jobs_are_refused_and_done_as_if_they_came_one_after_the_other(
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
        let mut draft = Draft::new(&kv, &lock);
        if let Some(then) = after(&rows, &earlier) {
            rows = then;
            prop_assert!(draft.append(&[changes(&family, &earlier)]).unwrap().is_none());
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
        if let Some(refused) = draft.append(&all).unwrap() {
            prop_assert_eq!(draft.batch().count(), count);
            prop_assert_eq!(&refused.jobs, &expected);
            prop_assert_eq!(Some(&refused.lowest), expected.first());
            all.iter_mut().for_each(|changes| changes.take_out(&refused.jobs));
            let kept = jobs.iter().enumerate().filter(|(index, _)| !expected.contains(&(*index as Index)));
            let length = |pieces: &[Changes]| pieces.iter().map(Changes::len).sum::<usize>();
            prop_assert_eq!(length(&all), length(&pieces(kept.map(wanted), each)));
            prop_assert!(draft.append(&all).unwrap().is_none());
        } else {
            prop_assert!(expected.is_empty());
        }
        kv.write(draft.batch(), false).unwrap();
        for key in 0..4 {
            let got = kv.get(&family, &[key]).unwrap();
            prop_assert_eq!(got.as_ref(), rows.get(&key));
        }
    }
}
