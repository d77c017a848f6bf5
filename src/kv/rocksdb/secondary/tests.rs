//! Which looks count, and scans in pieces.

use super::*;
use crate::kv::TABLES;
use std::cell::{Cell, RefCell};

/// Returns the result of `settled` and its pauses. A look takes 1 ms; the stamp changes `moved`
/// times.
fn looked(moved: usize, look: fn(usize) -> Result<usize, Error>) -> (Result<(usize, usize), Error>, Vec<Duration>) {
    let (clock, waited, looks, stamp) = (Cell::default(), RefCell::new(Vec::new()), Cell::new(0), Cell::new(0));
    let pass = |time: Duration| clock.set(clock.get() + time);
    let seen = settled(
        || Ok(stamp.get()),
        || clock.get(),
        |pause| {
            pass(pause);
            waited.borrow_mut().push(pause);
        },
        || {
            pass(Duration::from_millis(1));
            looks.set(looks.get() + 1);
            if looks.get() <= moved {
                stamp.set(stamp.get() + 1);
            }
            (look(looks.get()), None)
        },
    );
    assert_eq!(looks.get(), waited.borrow().len() + 1, "there is a pause between two looks");
    (seen, waited.into_inner())
}

fn broken(_look: usize) -> Result<usize, Error> {
    Err(Error::Stopped)
}

#[test]
fn a_look_repeats_until_the_manifest_stands_still() {
    assert!(matches!(looked(0, Ok), (Ok((1, 0)), waited) if waited.is_empty()));
    let (seen, waited) = looked(9, Ok);
    assert_eq!(seen.unwrap(), (10, 9), "the look that counted, and its stamp");
    assert_eq!(waited, [1, 2, 4, 8, 16, 32, 64, 100, 100].map(Duration::from_millis));
}

#[test]
fn an_error_is_ignored_while_the_manifest_moves() {
    let once = |look| if look < 3 { broken(look) } else { Ok(look) };
    assert_eq!(looked(2, once).0.unwrap(), (3, 2));
    assert!(matches!(looked(0, broken), (Err(Error::Stopped), waited) if waited.is_empty()));
}

#[test]
fn a_look_that_had_all_files_counts() {
    let looks = Cell::new(0);
    let look = |had_all: fn(u64) -> u64, result: fn(u64) -> Result<u64, Error>| {
        looks.set(0);
        let stamp = || Ok(looks.get());
        let look = || {
            // The manifest changes during each look but the fourth.
            let before = looks.replace(looks.get() + u64::from(looks.get() != 3));
            (result(before), Some(had_all(before)))
        };
        settled(stamp, || Duration::ZERO, |_| {}, look).ok()
    };
    assert_eq!(look(|before| before, Ok), Some((0, 0)), "it moved later");
    assert_eq!(look(|before| before + u64::from(before < 2), Ok), Some((2, 2)), "it moved before");
    assert_eq!(look(|before| before, |_| Err(Error::Stopped)), None, "an error counts when nothing moved at all");
    assert_eq!(looks.get(), 3);
}

#[cfg(unix)]
#[test]
fn rocksdb_tells_of_open_files_and_deleted_logs() {
    let directory = tempfile::tempdir().unwrap();
    let kv = RocksKv::open(directory.path(), true).unwrap();
    let tables = Family::new(TABLES, kv.family(TABLES).unwrap().unwrap());
    let mut batch = Batch::default();
    batch.put(tables.id, &[b"k"], &[b"v"]).unwrap();
    kv.write(&batch, true).unwrap();
    let stamp = Stamp::of(directory.path()).unwrap();
    let heard = |files: Files| {
        let files = Arc::new(files);
        let found = open(directory.path(), files.clone()).unwrap().get(&tables, b"k").unwrap();
        let had_all = files.had_all.lock().take();
        (found.is_some(), had_all)
    };
    assert_eq!(heard(Files::new(directory.path())), (true, Some(stamp)));
    // A dangling link is a log that is listed, but gone when it is opened.
    std::os::unix::fs::symlink("nothing", directory.path().join("999999.log")).unwrap();
    assert_eq!(heard(Files::new(directory.path())), (false, None));
}

#[test]
fn a_manifest_that_keeps_moving_is_an_error() {
    for look in [Ok, broken] {
        let (seen, waited) = looked(usize::MAX, look);
        assert!(matches!(&seen, Err(Error::Store(_))), "{seen:?}");
        let all: Duration = waited.iter().sum();
        assert!((PATIENCE / 2..=PATIENCE).contains(&all), "{all:?}");
    }
}

#[test]
fn a_scan_in_pieces_shows_all_rows() {
    let directory = tempfile::tempdir().unwrap();
    let kv = RocksKv::open(directory.path(), true).unwrap();
    let tables = Family::new(TABLES, kv.family(TABLES).unwrap().unwrap());
    let mut batch = Batch::default();
    for row in 0..1500u32 {
        // Some keys begin with another key, and some values fill a piece.
        let key = [&(row / 2).to_be_bytes()[..], &[0][..(row % 2) as usize]].concat();
        let value = vec![b'x'; if row % 400 == 399 { BYTES } else { row as usize % 50 }];
        batch.put(tables.id, &[&key], &[&value]).unwrap();
    }
    kv.write(&batch, false).unwrap();
    let beside = Secondary::open(directory.path()).unwrap();
    let key = |row: u32| row.to_be_bytes().to_vec();
    let ranges = [(key(0), None), (key(1), Some(key(2))), (key(3), Some(key(700))), (key(700), Some(key(3)))];
    for (from, to) in ranges {
        for order in [Order::Ascending, Order::Descending] {
            let range = KeyRange { from: from.clone(), to: to.clone() };
            let rows = |kv: &dyn Kv| kv.rows(&tables, range.clone(), order).map(Result::unwrap).collect::<Vec<_>>();
            assert!(rows(&kv) == rows(&beside), "{range:?} {order:?}");
        }
    }
}

#[test]
fn a_missing_manifest_is_an_error_at_once() {
    let directory = tempfile::tempdir().unwrap();
    drop(RocksKv::open(directory.path(), true).unwrap());
    std::fs::write(directory.path().join("CURRENT"), "MANIFEST-999999\n").unwrap();
    assert!(matches!(Secondary::open(directory.path()), Err(Error::Store(_))));
    std::fs::write(directory.path().join("CURRENT"), "").unwrap();
    assert!(matches!(Secondary::open(directory.path()), Err(Error::Store(_))));
}
