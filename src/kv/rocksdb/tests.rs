//! How RocksDB itself takes our bytes, and families that come and go.

use super::*;
use crate::base::error::describe;
use crate::kv::{LOGS, SYSTEM, TABLES};
use proptest::prelude::*;
use std::path::PathBuf;
use std::time::Duration;

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// The database itself, which has no other owner here.
fn database(kv: &mut RocksKv) -> &mut DB {
    Arc::get_mut(&mut kv.db).unwrap()
}

fn family(kv: &RocksKv, name: &str) -> Family {
    Family::new(name, kv.family(name).unwrap().unwrap())
}

fn put(family: &Family, key: &[u8], value: &[u8]) -> Batch {
    let mut batch = Batch::default();
    batch.put(family.id, &[key], &[value]).unwrap();
    batch
}

/// A family, the length of a key and its byte, and the length of the value if it is put.
type Change = (usize, usize, u8, Option<usize>);

fn change() -> impl Strategy<Value = Change> {
    let length = || prop_oneof![Just(0usize), 0..4usize, 126..130usize, 16_382..20_000usize];
    (any::<usize>(), length(), any::<u8>(), proptest::option::of(length()))
}

#[test]
fn a_batch_has_the_bytes_of_a_write_batch() {
    let directory = directory();
    let mut kv = RocksKv::open(directory.path(), true).unwrap();
    // Ids of one byte and of two.
    let names: Vec<String> = (0..140).map(|n| format!("f{n}")).collect();
    names.iter().for_each(|name| database(&mut kv).create_cf(name, &Options::default()).unwrap());
    let families: Vec<Family> = ["default", "f0", SYSTEM, "f139", "f120"].map(|name| family(&kv, name)).into();
    assert_eq!(families[0].id, FamilyId(0));
    assert!(families[1].id.0 < 0x80 && families[3].id.0 >= 0x80, "{families:?}");
    proptest!(ProptestConfig { cases: 80, ..ProptestConfig::default() }, |(
        changes in proptest::collection::vec(change(), 0..12),
    )| {
        let (mut ours, mut theirs) = (Batch::default(), WriteBatch::default());
        for (at, length, byte, value) in changes {
            let family = &families[at % families.len()];
            let handle = kv.db.cf_handle(&family.name).unwrap();
            let key = vec![byte; length];
            match value.map(|length| vec![!byte; length]) {
                Some(value) => {
                    ours.put(family.id, &[&key], &[&value]).unwrap();
                    theirs.put_cf(&handle, &key, &value);
                }
                None if byte % 2 == 0 => {
                    ours.delete(family.id, &[&key]).unwrap();
                    theirs.delete_cf(&handle, &key);
                }
                None => {
                    let end = [&key[..], b"x"].concat();
                    ours.delete_range(family.id, &key, &end).unwrap();
                    theirs.delete_range_cf(&handle, &key, &end);
                }
            }
        }
        prop_assert_eq!(ours.bytes(), theirs.data());
        prop_assert_eq!(ours.count() as usize, theirs.len());
        kv.write(&ours, false).unwrap();
    });
}

#[test]
fn a_batch_is_written_and_read() {
    let directory = directory();
    let kv = RocksKv::open(directory.path(), true).unwrap();
    let (system, tables) = (family(&kv, SYSTEM), family(&kv, TABLES));
    assert_eq!(kv.family("another").unwrap(), None);
    let mut batch = put(&system, b"a", b"1");
    batch.put(tables.id, &[b"a", b"b"], &[b"2"]).unwrap();
    batch.put(tables.id, &[b"ac"], &[b"3"]).unwrap();
    batch.delete(tables.id, &[b"ac"]).unwrap();
    kv.write(&batch, true).unwrap();
    assert_eq!(kv.get(&system, b"a").unwrap(), Some(b"1".to_vec()));
    let rows: Vec<_> = kv.scan(&tables, b"a").map(Result::unwrap).collect();
    assert_eq!(rows, [(b"ab".to_vec(), b"2".to_vec())]);
    let mut batch = Batch::default();
    [b"b", b"c", b"d", b"e"].iter().for_each(|key| batch.put(tables.id, &[&key[..]], &[b""]).unwrap());
    batch.delete_range(tables.id, b"c", b"e").unwrap();
    kv.write(&batch, false).unwrap();
    let keys = |range: Range<&[u8]>, most| -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        let mut each = |key: &[u8], _: &[u8]| {
            keys.push(key.to_vec());
            keys.len() < most
        };
        kv.range(&tables, range, &mut each).unwrap();
        keys
    };
    assert_eq!(keys(b"ab"..b"e", 9), [&b"ab"[..], b"b"]);
    assert_eq!(keys(b"ab"..b"f", 2), [&b"ab"[..], b"b"]);
    assert_eq!(keys(b"c"..b"f", 2), [b"e"]);
    assert_eq!((kv.last(&tables, b"a").unwrap(), kv.last(&tables, b"d").unwrap()), (Some(b"ab".to_vec()), None));
    kv.reclaim(&tables, b"c"..b"e").unwrap();
    assert_eq!(keys(b""..b"z", 9).len(), 3);
}

#[test]
fn promise_01_reclaiming_a_range_keeps_the_key_behind_it() {
    let directory = directory();
    let kv = RocksKv::open(directory.path(), true).unwrap();
    let logs = family(&kv, LOGS);
    let handle = kv.db.cf_handle(LOGS).unwrap();
    let files = || kv.db.property_value_cf(&handle, "rocksdb.live-sst-files-size").unwrap().unwrap();
    // Each range of keys is a file below level 0, and the last key of the second one is kept.
    for keys in [1..=9u64, 10..=20] {
        keys.for_each(|key| kv.write(&put(&logs, &key.to_be_bytes(), b"v"), false).unwrap());
        kv.db.flush_cf(&handle).unwrap();
        kv.db.compact_range_cf(&handle, None::<&[u8]>, None::<&[u8]>);
    }
    let (from, kept) = (1u64.to_be_bytes(), 20u64.to_be_bytes());
    let mut batch = Batch::default();
    batch.delete_range(logs.id, &from, &kept).unwrap();
    kv.write(&batch, true).unwrap();
    kv.reclaim(&logs, &from..&kept).unwrap();
    assert_eq!(kv.get(&logs, &kept).unwrap().as_deref(), Some(b"v".as_slice()));
    // The same file is deleted once its last key is in the range, too.
    let end = 21u64.to_be_bytes();
    kv.reclaim(&logs, &from..&end).unwrap();
    assert_eq!(files(), "0");
}

#[test]
fn many_crashes_stop_no_write() {
    let directory = directory();
    let kv = Arc::new(RocksKv::open(directory.path(), true).unwrap());
    let tables = family(&kv, TABLES);
    let handle = kv.db.cf_handle(TABLES).unwrap();
    // As if no process had lived until the files of earlier ones are compacted.
    kv.db.set_options_cf(&handle, &[("level0_file_num_compaction_trigger", "100000")]).unwrap();
    let (written, is_written) = crossbeam_channel::bounded(1);
    let writing = kv.clone();
    std::thread::spawn(move || {
        for _ in 0..50 {
            writing.write(&put(&tables, b"k", b"v"), false).unwrap();
            writing.db.flush_cf(&writing.db.cf_handle(TABLES).unwrap()).unwrap();
        }
        written.send(()).unwrap();
    });
    is_written.recv_timeout(Duration::from_secs(60)).expect("no write waits for a compaction");
    assert_eq!(kv.db.property_value_cf(&handle, "rocksdb.num-files-at-level0").unwrap().as_deref(), Some("50"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_store_of_many_lives_has_few_files_open() {
    const LIVES: u64 = 150;
    let directory = directory();
    {
        let kv = RocksKv::open(directory.path(), true).unwrap();
        let tables = family(&kv, TABLES);
        // A file per life, as if its writes were flushed when the next one began.
        for row in 0..LIVES {
            kv.write(&put(&tables, &row.to_be_bytes(), b"v"), false).unwrap();
            kv.db.flush_cf(&kv.db.cf_handle(TABLES).unwrap()).unwrap();
        }
    }
    let kv = RocksKv::open(directory.path(), true).unwrap();
    assert_eq!(kv.scan(&family(&kv, TABLES), b"").count() as u64, LIVES);
    let real = directory.path().canonicalize().unwrap();
    let tables = |paths: &mut dyn Iterator<Item = PathBuf>| {
        paths.filter(|path| path.starts_with(&real) && path.extension().is_some_and(|e| e == "sst")).count()
    };
    let there = tables(&mut std::fs::read_dir(&real).unwrap().map(|entry| entry.unwrap().path()));
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let open = tables(&mut open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok()));
    // RocksDB may have merged a few of them.
    assert!(open <= OPEN_FILES as usize && there > OPEN_FILES as usize, "{open} of {there} files are open");
}

#[test]
fn a_recreated_family_takes_no_write_for_the_old_one() {
    let directory = directory();
    let mut kv = RocksKv::open(directory.path(), true).unwrap();
    kv = RocksKv::watched(kv.db);
    let system = family(&kv, SYSTEM);
    database(&mut kv).create_cf("f", &Options::default()).unwrap();
    let old = family(&kv, "f");
    kv.write(&put(&old, b"k", b"old"), false).unwrap();
    database(&mut kv).drop_cf("f").unwrap();
    assert_eq!(kv.family("f").unwrap(), None);
    let error = describe(&kv.get(&old, b"k").unwrap_err());
    assert!(error.contains("\"f\" was dropped"), "{error}");
    database(&mut kv).create_cf("f", &Options::default()).unwrap();
    let new = family(&kv, "f");
    assert_ne!(old.id, new.id);
    let mut batch = put(&system, b"k", b"late");
    batch.put(old.id, &[b"k"], &[b"late"]).unwrap();
    let error = describe(&kv.write(&batch, false).unwrap_err());
    assert!(error.contains("\"f\" was dropped"), "{error}");
    assert_eq!(kv.get(&system, b"k").unwrap(), None, "all changes or none");
    assert_eq!(kv.get(&new, b"k").unwrap(), None);
    // RocksDB itself would refuse all writes from now on: see `RocksKv::check_families`.
    kv.write(&put(&new, b"k", b"new"), false).unwrap();
    assert_eq!(kv.get(&new, b"k").unwrap(), Some(b"new".to_vec()));
}
