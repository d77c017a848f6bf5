//! Cached counters, and other changes of the same rows.

use super::*;
use crate::base::sync::{AtomicU64, Ordering};
use crate::commit::counter_cache::{MOST, MOST_BYTES};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A store in memory that counts its reads.
#[derive(Default)]
struct Reads {
    kv: MemoryKv,
    count: AtomicU64,
}

impl Double for Reads {
    fn memory(&self) -> &MemoryKv {
        &self.kv
    }

    fn get(&self, family: &Family, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.kv.get(family, key)
    }
}

fn opened() -> (Arc<Reads>, Store) {
    let kv = Arc::new(Reads::default());
    let store = Store::on(kv.clone(), &Store::options(), &"memory").unwrap();
    (kv, store)
}

/// Adds 1 to each of these counters in one write. Returns the number of reads.
fn add(kv: &Reads, store: &Store, table: &Table, keys: impl IntoIterator<Item = Vec<u8>>) -> u64 {
    let before = kv.count.load(Ordering::Relaxed);
    store.write(|effects| keys.into_iter().try_for_each(|key| effects.add(table, key, 1))).unwrap();
    kv.count.load(Ordering::Relaxed) - before
}

#[test]
fn a_counter_is_read_once_and_after_outside_changes() {
    let (kv, store) = opened();
    let table = store.table("sums").unwrap();
    let others = store.table("others").unwrap();
    let key = || [b"a".to_vec()];
    assert_eq!([add(&kv, &store, &table, key()), add(&kv, &store, &table, key())], [1, 0]);
    others.put("a", "another row").unwrap();
    store.write(|effects| effects.put(&others, "b", "another row")).unwrap();
    assert_eq!(add(&kv, &store, &table, key()), 0);
    table.put("a", 40i64.to_be_bytes()).unwrap();
    assert_eq!([add(&kv, &store, &table, key()), add(&kv, &store, &table, key())], [1, 0]);
    assert_eq!(table.counter("a").unwrap(), 42);
}

#[test]
fn too_many_counters_are_read_in_each_write() {
    let (kv, store) = opened();
    let table = store.table("sums").unwrap();
    let keys = |from: u64| (from..from + MOST as u64).map(|key| key.to_be_bytes().to_vec());
    assert_eq!([add(&kv, &store, &table, keys(0)), add(&kv, &store, &table, keys(0))], [MOST as u64, 0]);
    assert_eq!([add(&kv, &store, &table, keys(9)), add(&kv, &store, &table, keys(0).take(1))], [9, 1]);
    let long = || [vec![7; MOST_BYTES]];
    assert_eq!([add(&kv, &store, &table, long()), add(&kv, &store, &table, long())], [1, 1]);
}

/// A change of one of a few counters.
#[derive(Clone, Copy, Debug)]
enum Change {
    Add(i64),
    /// A row is put or deleted through the table itself.
    Beside(Option<i64>),
    /// The same in a write of the store, without an add.
    Write(Option<i64>),
    Clear,
    /// An add in a write that fails.
    Fail,
}

fn change() -> impl Strategy<Value = Change> {
    let value = prop::option::of(-9..9i64);
    prop_oneof![
        4 => (1..9i64).prop_map(Change::Add),
        1 => value.clone().prop_map(Change::Beside),
        1 => value.prop_map(Change::Write),
        1 => Just(Change::Clear),
        1 => Just(Change::Fail),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn a_counter_comes_to_its_sum_despite_other_changes(
        changes in prop::collection::vec((any::<bool>(), 0..3u8, change()), 1..30),
    ) {
        let (kv, store) = opened();
        let tables = [store.table("sums").unwrap(), store.column_family("theirs").unwrap()];
        let mut model = BTreeMap::<(bool, u8), i64>::new();
        for (is_theirs, key, change) in changes {
            let (table, at) = (&tables[usize::from(is_theirs)], (is_theirs, key));
            match change {
                Change::Add(by) => {
                    store.write(|effects| effects.add(table, [key], by)).unwrap();
                    *model.entry(at).or_default() += by;
                }
                Change::Beside(value) | Change::Write(value) => {
                    let bytes = value.map(i64::to_be_bytes);
                    match (change, bytes) {
                        (Change::Write(_), Some(bytes)) => store.write(|effects| effects.put(table, [key], bytes)),
                        (Change::Write(_), None) => store.write(|effects| effects.delete(table, [key])),
                        // The database's owner changes a family of theirs without the store.
                        (_, bytes) if is_theirs => {
                            let mut batch = Batch::default();
                            let id = table.family().id;
                            match bytes {
                                Some(bytes) => batch.put(id, &[&[key]], &[&bytes]).unwrap(),
                                None => batch.delete(id, &[&[key]]).unwrap(),
                            }
                            kv.kv.write(&batch, false).map_err(Into::into)
                        }
                        (_, Some(bytes)) => table.put([key], bytes),
                        (_, None) => table.delete([key]),
                    }.unwrap();
                    model.remove(&at);
                    model.extend(value.map(|value| (at, value)));
                }
                Change::Clear => {
                    store.write(|effects| effects.clear(table)).unwrap();
                    model.retain(|(of, _), _| *of != is_theirs);
                }
                Change::Fail => {
                    kv.kv.fail(0..u64::MAX);
                    prop_assert!(store.write(|effects| effects.add(table, [key], 1)).is_err());
                    kv.kv.fail(0..0);
                }
            }
        }
        for ((is_theirs, key), sum) in model {
            prop_assert_eq!(tables[usize::from(is_theirs)].counter([key]).unwrap(), sum);
        }
    }
}
