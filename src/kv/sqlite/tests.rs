//! SQLite answers as memory does; and its connections, transactions and locks.

use super::*;
use super::{connection::OnConnect, pace::PAGES};
use crate::base::{error::describe, sync::Arc, time};
use crate::kv::{OURS, Pair, READY, TABLES, memory::MemoryKv};
use proptest::prelude::*;
use std::time::Duration;

fn site(directory: &Path) -> Site {
    Site { file: directory.join(FILE), on_connect: OnConnect::default() }
}

fn open(directory: &Path) -> SqliteKv {
    let kv = SqliteKv::open(Some(directory), site(directory), true).unwrap();
    kv.make_families().unwrap();
    kv
}

/// Opens a database whose connections wait this long for the lock of the file.
fn open_with(busy: Duration, directory: &Path) -> SqliteKv {
    let set_up = move |connection: &Connection| connection.busy_timeout(busy);
    let site = Site { on_connect: OnConnect(Some(Arc::new(set_up))), ..site(directory) };
    let kv = SqliteKv::open(Some(directory), site, true).unwrap();
    kv.make_families().unwrap();
    kv
}

fn family(kv: &dyn Kv, name: &str) -> Family {
    Family::new(name, kv.family(name).unwrap().unwrap())
}

fn put(kv: &dyn Kv, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
    let mut batch = Batch::default();
    batch.put(family(kv, TABLES).id, &[key], &[value]).unwrap();
    kv.write(&batch, false)
}

fn keys(scan: Scan<'_>) -> Vec<u8> {
    scan.map(|pair| pair.unwrap().0[0]).collect()
}

/// One change: the family, the key, and the value if it is put. A range ends at the second key.
type Change = (bool, Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>);

fn key() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(b'a'), Just(255)], 0..4)
}

fn change() -> impl Strategy<Value = Change> {
    let value = prop_oneof![4 => 0..20usize, 1 => 4_000..9_000usize].prop_map(|length| vec![7; length]);
    (any::<bool>(), key(), proptest::option::weighted(0.7, value), proptest::option::of(key()))
}

fn written(kv: &dyn Kv, changes: &[Change]) {
    let mut batch = Batch::default();
    for (tables, key, value, to) in changes {
        let family = family(kv, if *tables { TABLES } else { READY }).id;
        match (value, to) {
            (Some(value), _) => batch.put(family, &[key], &[value]).unwrap(),
            (None, None) => batch.delete(family, &[key]).unwrap(),
            (None, Some(to)) => batch.delete_range(family, key.min(to), key.max(to)).unwrap(),
        }
    }
    kv.write(&batch, changes.len().is_multiple_of(2)).unwrap();
}

/// Everything that the seam shows of a family, around these two keys.
fn shown(kv: &dyn Kv, name: &str, from: &[u8], to: &[u8]) -> String {
    let family = family(kv, name);
    let pairs = |range: KeyRange, order| -> Vec<Pair> { kv.rows(&family, range, order).map(Result::unwrap).collect() };
    let range = |end: Option<&[u8]>| KeyRange { from: from.to_vec(), to: end.map(<[u8]>::to_vec) };
    let orders = [Order::Ascending, Order::Descending];
    let all = orders.map(|order| [pairs(range(Some(to)), order), pairs(range(None), order)]);
    let mut seen = Vec::new();
    kv.range(&family, from..to, &mut |key, value| {
        seen.push((key.to_vec(), value.to_vec()));
        seen.len() < 3
    })
    .unwrap();
    let got = kv.multi_get(&family, &[from.to_vec(), to.to_vec(), from.to_vec()]).unwrap();
    let last = kv.last(&family, from).unwrap();
    let scanned: Vec<_> = kv.scan(&family, to).map(Result::unwrap).collect();
    format!("{all:?} {seen:?} {got:?} {last:?} {scanned:?} {:?}", kv.get(&family, from).unwrap())
}

#[test]
fn sqlite_answers_as_memory_does() {
    proptest!(ProptestConfig { cases: 40, ..ProptestConfig::default() }, |(
        batches in proptest::collection::vec(proptest::collection::vec(change(), 0..12), 0..6),
        reopen in any::<bool>(),
        (from, to) in (key(), key()),
    )| {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("data");
        let memory = MemoryKv::default();
        OURS.iter().for_each(|name| assert!(memory.family(name).unwrap().is_some()));
        let mut kv = open(&directory);
        for changes in &batches {
            written(&memory, changes);
            written(&kv, changes);
            if reopen {
                drop(kv);
                kv = open(&directory);
            }
        }
        let (from, to) = (from.clone().min(to.clone()), from.max(to));
        for name in [TABLES, READY] {
            prop_assert_eq!(shown(&kv, name, &from, &to), shown(&memory, name, &from, &to));
        }
        let look = SqliteKv::look(&directory, site(&directory)).unwrap();
        prop_assert_eq!(shown(&look, TABLES, &from, &to), shown(&memory, TABLES, &from, &to));
    });
}

#[test]
fn a_scan_shows_one_snapshot_and_delays_no_write() {
    let place = tempfile::tempdir().unwrap();
    let kv = open(place.path());
    let tables = family(&kv, TABLES);
    for key in 0..=255 {
        put(&kv, &[key], &[0; 3_000]).unwrap();
    }
    let (mut forth, back) = (kv.scan(&tables, b""), kv.rows(&tables, KeyRange::prefix(b""), Order::Descending));
    assert_eq!(forth.next().unwrap().unwrap().0, [0]);
    assert_eq!(kv.readers.oldest().map(|(table, _)| table), Some("waterline_tables"), "one row is read of each");
    for key in 0..=255 {
        let mut batch = Batch::default();
        batch.delete(tables.id, &[&[key]]).unwrap();
        kv.write(&batch, false).unwrap();
    }
    assert_eq!(keys(kv.scan(&tables, b"")), [0u8; 0]);
    assert_eq!(keys(forth), (1..=255).collect::<Vec<_>>());
    assert_eq!(keys(back), (0..=255).rev().collect::<Vec<_>>());
    // Their connections are idle again, and show the present.
    assert_eq!(keys(kv.scan(&tables, b"")), [0u8; 0]);
    assert_eq!((kv.readers.idle.lock().len(), kv.readers.oldest()), (3, None));
}

#[test]
fn scans_wait_for_no_connection() {
    let place = tempfile::tempdir().unwrap();
    let kv = open(place.path());
    put(&kv, b"a", b"1").unwrap();
    put(&kv, b"b", b"2").unwrap();
    let tables = family(&kv, TABLES);
    let scans: Vec<_> = (0..100).map(|_| kv.scan(&tables, b"")).collect();
    assert_eq!(kv.get(&tables, b"a").unwrap(), Some(b"1".to_vec()));
    assert!(scans.into_iter().all(|scan| scan.count() == 2));
}

#[test]
fn a_failed_batch_changes_nothing_and_spares_others() {
    let place = tempfile::tempdir().unwrap();
    let kv = open(place.path());
    let tables = family(&kv, TABLES);
    let mut guilty = Batch::default();
    guilty.put(tables.id, &[b"k"], &[b"v"]).unwrap();
    guilty.put(FamilyId(9), &[b"k"], &[b"v"]).unwrap();
    let error = describe(&kv.write(&guilty, false).unwrap_err());
    assert!(error.contains("no family 9"), "{error}");
    assert_eq!(kv.get(&tables, b"k").unwrap(), None);
    // Waiting writers share a transaction, and only the faulty batch fails.
    let kv = Arc::new(kv);
    let writing = kv.writing.as_ref().unwrap();
    std::thread::scope(|scope| {
        let held = writing.connection.lock();
        let threads: Vec<_> = (0..8u8)
            .map(|key| {
                let (kv, guilty) = (kv.clone(), &guilty);
                scope.spawn(move || if key == 3 { kv.write(guilty, false) } else { put(&*kv, &[key], b"v") })
            })
            .collect();
        while writing.waiting.lock().len() < 8 {
            std::thread::yield_now();
        }
        drop(held);
        let results: Vec<bool> = threads.into_iter().map(|thread| thread.join().unwrap().is_ok()).collect();
        assert_eq!(results, [true, true, true, false, true, true, true, true]);
    });
    assert_eq!(keys(kv.scan(&tables, b"")), [0, 1, 2, 4, 5, 6, 7]);
}

#[test]
fn a_transaction_is_flushed_if_one_of_its_writes_is_synced() {
    let place = tempfile::tempdir().unwrap();
    let kv = Arc::new(open(place.path()));
    let writing = kv.writing.as_ref().unwrap();
    // As of the last transaction: 2 flushes the log with each commit, 1 does not.
    let synchronous = || {
        writing.with(|connection| connection.query_row("PRAGMA synchronous", [], |row| row.get::<_, i64>(0)).unwrap())
    };
    let write = |key: u8, synced: bool| {
        let mut batch = Batch::default();
        batch.put(family(&*kv, TABLES).id, &[&[key]], &[b"v"]).unwrap();
        kv.write(&batch, synced).unwrap();
    };
    for (synced, expected) in [(false, 1), (true, 2), (false, 1), (true, 2)] {
        write(0, synced);
        assert_eq!(synchronous(), expected, "a write that is synced: {synced}");
    }
    for (one_synced, expected) in [(false, 1), (true, 2), (false, 1)] {
        std::thread::scope(|scope| {
            let held = writing.connection.lock();
            (0..4).for_each(|key| _ = scope.spawn(move || write(key, one_synced && key == 2)));
            while writing.waiting.lock().len() < 4 {
                std::thread::yield_now();
            }
            drop(held);
        });
        assert_eq!(synchronous(), expected, "of four that share a transaction, one is synced: {one_synced}");
    }
}

#[test]
fn a_scan_that_lets_the_log_grow_is_named() {
    let place = tempfile::tempdir().unwrap();
    let kv = open_with(Duration::from_millis(7), place.path());
    let tables = family(&kv, TABLES);
    let length = || std::fs::metadata(place.path().join("waterline.sqlite-wal")).unwrap().len();
    // SQLite does not write unchanged pages.
    let mut round = 0;
    let mut write = || {
        round += 1;
        (0..40u8).for_each(|key| put(&kv, &[key], &[round; 100_000]).unwrap());
    };
    let seen = || {
        let long_log = kv.writing.as_ref().unwrap().long_log.lock().take();
        long_log.map(|log| (log.length >= 1 << 20, log.scan.map(|(table, _)| table)))
    };
    write();
    assert_eq!(seen(), None, "readers that end are in nobody's way");
    let mut scan = kv.scan(&tables, b"");
    assert!(scan.next().is_some());
    write();
    assert_eq!(seen(), Some((true, Some("waterline_tables"))));
    assert_eq!(seen(), None, "it is told once");
    assert!(length() > 3 << 20);
    drop(scan);
    let mine = Connection::open(place.path().join(FILE)).unwrap();
    mine.execute_batch("BEGIN; SELECT count(*) FROM waterline_tables").unwrap();
    (0..4).for_each(|_| write());
    assert_eq!(seen(), Some((true, None)), "somebody outside of the store");
    drop(mine);
    // SQLite writes the log back at 16 MiB by itself, and then restarts it.
    (0..12).for_each(|_| write());
    assert!(length() <= 20 << 20, "{}", length());
    let timeout = "PRAGMA busy_timeout";
    let timeout = kv.writing.as_ref().unwrap().with(|writer| writer.query_row(timeout, [], |row| row.get::<_, i64>(0)));
    assert_eq!(timeout.unwrap(), 7, "the time that the user has set");
}

#[test]
fn a_look_at_a_closed_file_notices_who_opens_it() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path();
    let files = || std::fs::read_dir(directory).unwrap().count();
    let kv = open(directory);
    let tables = family(&kv, TABLES);
    for key in 0..=255 {
        put(&kv, &[key], &[0; 3_000]).unwrap();
    }
    drop(kv);
    let before = files();
    let look = SqliteKv::look(directory, site(directory)).unwrap();
    let mut scan = look.scan(&tables, b"");
    assert_eq!(scan.next().unwrap().unwrap().0, [0]);
    assert_eq!(look.get(&tables, b"z").unwrap().map(|value| value.len()), Some(3_000));
    assert_eq!(files(), before);
    let kv = open(directory);
    put(&kv, b"z", b"new").unwrap();
    // So far it has written only to its log, which the connections of the look read.
    assert_eq!(look.get(&tables, b"z").unwrap().as_deref(), Some(&b"new"[..]));
    assert_eq!(scan.next().unwrap().unwrap().0, [1]);
    let beside = Connection::open(directory.join(FILE)).unwrap();
    beside.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let error = scan.find_map(Result::err).expect("it is told that its file has changed");
    assert!(describe(&error).contains("read once more"), "{}", describe(&error));
    assert_eq!(look.get(&tables, b"z").unwrap().as_deref(), Some(&b"new"[..]));
}

#[test]
fn writes_wait_for_a_locked_file_together() {
    let place = tempfile::tempdir().unwrap();
    let kv = open_with(Duration::from_millis(500), place.path());
    let mine = Connection::open(place.path().join(FILE)).unwrap();
    mine.execute_batch("BEGIN IMMEDIATE").unwrap();
    let begun = time::now();
    std::thread::scope(|scope| {
        (0..16).for_each(|key| {
            let kv = &kv;
            scope.spawn(move || put(kv, &[key], b"v").unwrap_err());
        });
    });
    assert!(time::now().duration_since(begun) < Duration::from_secs(5));
}

#[test]
fn a_checkpoint_is_due_after_enough_pages() {
    let place = tempfile::tempdir().unwrap();
    let kv = open(place.path());
    let tables = family(&kv, TABLES);
    let pages =
        |beside: &Connection| beside.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get::<_, i64>(1));
    // Writes that change one page for many rows, or one per row.
    for rows in [1u32, 40] {
        let mut round = 0u32;
        let mut write = || {
            let mut batch = Batch::default();
            for row in 0..40 {
                round += 1;
                let key = if rows == 1 { round } else { round.wrapping_mul(2_654_435_761) };
                batch.put(tables.id, &[&key.to_be_bytes()], &[&[row; 100]]).unwrap();
            }
            kv.write(&batch, false).unwrap();
        };
        for look in 0..10 {
            while !kv.is_untidy() {
                write();
            }
            assert!(!kv.is_untidy(), "it is told once");
            let pages = kv.readers.with("look", pages).unwrap().unsigned_abs();
            assert!(look < 6 || (PAGES / 2..=2 * PAGES).contains(&pages), "{pages} pages, {rows} rows, look {look}");
            kv.tidy();
        }
    }
}
