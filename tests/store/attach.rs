//! A store in a RocksDB database that the user's program opened and goes on using.

use crate::opening::not_found;
use common::*;
use rocksdb::{ColumnFamilyDescriptor, DB, Options};
use std::path::Path;
use std::sync::{Arc, Barrier};
use waterline::{Blocked, Checkpoint, Consumer, Durability, Engine, Error, Progress, Store, Table};

fn options() -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options
}

fn families() -> Vec<ColumnFamilyDescriptor> {
    let mut families = Store::column_families();
    families.push(ColumnFamilyDescriptor::new("theirs", Options::default()));
    families
}

fn open(directory: &Path) -> Arc<DB> {
    Arc::new(DB::open_cf_descriptors(&options(), directory, families()).unwrap())
}

fn theirs(db: &DB, key: impl AsRef<[u8]>) -> Option<Vec<u8>> {
    db.get_cf(&db.cf_handle("theirs").unwrap(), key).unwrap()
}

fn put_theirs(db: &DB, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
    db.put_cf(&db.cf_handle("theirs").unwrap(), key, value).unwrap();
}

fn run(store: &Store, table: &Table, count: u64) {
    let table = table.clone();
    Consumer::builder(numbers(count), store.progress("p"))
        .stop_at(count - 1)
        .start(move |job| Ok(table.put(job.index.to_be_bytes(), "done")?))
        .unwrap()
        .join()
        .unwrap();
}

#[track_caller]
fn refused(result: Result<impl Sized, Error>, words: &[&str]) {
    let Err(Error::Config(refused)) = result else { panic!("{:?}", result.err()) };
    let text = refused.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

#[test]
fn a_consumer_lives_in_a_database_of_the_user() {
    let Some(directory) = a_directory_of(Engine::RocksDb) else { return };
    let db = open(directory.path());
    let store = Store::attach(db.clone()).unwrap();
    let (raw, own) = (store.column_family("theirs").unwrap(), store.table("theirs").unwrap());
    put_theirs(&db, "users", "1");
    run(&store, &raw, 50);
    own.put("users", "of the table").unwrap();
    assert_eq!(theirs(&db, 49u64.to_be_bytes()), Some(b"done".to_vec()));
    assert_eq!((raw.get("users").unwrap(), theirs(&db, "users")), (Some(b"1".to_vec()), Some(b"1".to_vec())));
    assert_eq!(raw.iter().count(), 51, "the whole family");
    assert_eq!(own.iter().count(), 1, "a table of the same name is another one");
    let rows: Vec<_> = raw.prefix("us").map(Result::unwrap).collect();
    assert_eq!(rows, [(b"users".to_vec(), b"1".to_vec())], "the keys are as they are");
    raw.delete("users").unwrap();
    assert_eq!(theirs(&db, "users"), None);
    let default = store.column_family("default").unwrap();
    default.put("k", "v").unwrap();
    assert_eq!(db.get("k").unwrap(), Some(b"v".to_vec()));

    // The next life goes on from there, whether the store or the user opens the database.
    drop((store, raw, own, default));
    drop(db);
    let store = open_in(directory.path()).unwrap();
    assert_eq!(store.progress("p").last_processed().unwrap(), Some(49));
    assert_eq!(store.column_family("theirs").unwrap().iter().count(), 50);
    refused(store.column_family("another"), &["another", "open it with that"]);
    drop(store);
    let store = Store::attach(open(directory.path())).unwrap();
    assert_eq!(store.progress("p").last_processed().unwrap(), Some(49));
    run(&store, &store.column_family("theirs").unwrap(), 60);
}

#[test]
fn missing_and_reserved_families_are_refused() {
    let Some(directory) = a_directory_of(Engine::RocksDb) else { return };
    let db = Arc::new(DB::open(&options(), directory.path()).unwrap());
    refused(Store::attach(db.clone()), &["waterline.system", "Store::column_families()", "create_missing"]);
    assert_eq!(Arc::strong_count(&db), 1, "what was refused keeps nothing");
    drop(db);
    let one = Store::column_families().remove(0);
    let db = Arc::new(DB::open_cf_descriptors(&options(), directory.path(), [one]).unwrap());
    refused(Store::attach(db), &["waterline.tables", "Store::column_families()"]);

    let store = Store::attach(open(directory.path())).unwrap();
    refused(store.column_family("another"), &["another"]);
    refused(store.column_family(""), &["\"\""]);
    for family in Store::column_families() {
        refused(store.column_family(family.name()), &[family.name(), "belongs to the store"]);
    }
    refused(Store::in_memory().column_family("waterline.later"), &["waterline.later"]);
}

#[test]
fn stores_on_one_database_share_names_in_use() {
    let Some(directory) = a_directory_of(Engine::RocksDb) else { return };
    let db = open(directory.path());
    let store = Store::attach(db.clone()).unwrap();
    let other = Store::options().durability(Durability::Synced).attach(db.clone()).unwrap();
    let consumer = Consumer::builder(numbers(5), store.progress("p")).start(|_| Ok(())).unwrap();
    let second = Consumer::builder(numbers(5), other.progress("p")).start(|_| Ok(()));
    assert!(matches!(second, Err(Error::InUse { name }) if name == "p"));
    assert!(matches!(other.progress("p").remove(), Err(Error::InUse { .. })));
    drop(store);
    // The first store is dropped, and its consumer keeps the shared parts.
    let third = Store::attach(db).unwrap();
    assert!(matches!(third.progress("p").acquire(), Err(Error::InUse { .. })));
    assert!(consumer.handle().wait_for(4, LONG));
    consumer.stop().unwrap();
    assert_eq!(third.progress("p").acquire().unwrap(), Some(Checkpoint::new(4)));
}

#[test]
fn of_many_that_attach_at_once_one_gets_the_name() {
    const THREADS: usize = 4;
    let Some(directory) = a_directory_of(Engine::RocksDb) else { return };
    let db = open(directory.path());
    for _ in 0..200 {
        let barrier = Barrier::new(THREADS);
        let acquired = std::thread::scope(|scope| {
            let attach = || {
                barrier.wait();
                let mut progress = Store::attach(db.clone()).unwrap().progress("p");
                let acquired = progress.acquire().is_ok();
                barrier.wait();
                acquired
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(attach)).collect();
            threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum::<usize>()
        });
        assert_eq!(acquired, 1);
        assert_eq!(Arc::strong_count(&db), 1, "each round begins with nothing attached");
    }
}

#[test]
fn the_last_of_both_sides_closes_the_database() {
    let Some(directory) = a_directory_of(Engine::RocksDb) else { return };
    // The store is dropped last: each of these alone keeps it open.
    let keep: [fn(Store) -> Box<dyn Send>; 3] = [
        |store| Box::new(store),
        |store| Box::new(store.column_family("theirs").unwrap()),
        |store| Box::new(Consumer::builder(numbers(5), store.progress("p")).start(|_| Ok(())).unwrap()),
    ];
    for keep in keep {
        let db = open(directory.path());
        let kept = keep(Store::attach(db.clone()).unwrap());
        drop(db);
        assert!(matches!(open_in(directory.path()), Err(Error::Locked { .. })));
        drop(kept);
        drop(open_in(directory.path()).unwrap());
    }
    // The user's handle is dropped last.
    let db = open(directory.path());
    let store = Store::attach(db.clone()).unwrap();
    run(&store, &store.column_family("theirs").unwrap(), 20);
    drop(store);
    assert_eq!(Arc::strong_count(&db), 1);
    assert_eq!(theirs(&db, 19u64.to_be_bytes()), Some(b"done".to_vec()));
    // Attached again, once nothing of the first store is left.
    let store = Store::attach(db).unwrap();
    assert_eq!(store.progress("p").last_processed().unwrap(), Some(19));
}

#[test]
fn promise_08_an_unknown_format_is_refused_and_kept() {
    let Some(directory) = a_directory_of(Engine::RocksDb) else { return };
    let db = open(directory.path());
    let format = || db.get_cf(&db.cf_handle("waterline.system").unwrap(), "format").unwrap();
    db.put_cf(&db.cf_handle("waterline.system").unwrap(), "format", [2]).unwrap();
    assert!(matches!(Store::attach(db.clone()), Err(Error::Corrupt { name, .. }) if name == "format"));
    assert_eq!(format(), Some(vec![2]));
    db.delete_cf(&db.cf_handle("waterline.system").unwrap(), "format").unwrap();
    drop(Store::attach(db.clone()).unwrap());
    assert_eq!(format().unwrap()[0], 1, "a store is made anew");
}

#[test]
fn attach_finds_no_store_where_none_was() {
    let Some(directory) = a_directory_of(Engine::RocksDb) else { return };
    let db = open(directory.path());
    let strict = || Store::options().create(false).attach(db.clone());
    for _ in 0..2 {
        not_found(strict(), "store", &directory.path().display().to_string());
    }
    let store = Store::attach(db.clone()).unwrap();
    not_found(strict().unwrap().table("rows"), "table", "rows");
    drop(store);
    not_found(strict().unwrap().table("rows"), "table", "rows");
}

#[test]
fn a_read_only_database_is_read_and_says_so() {
    let Some(directory) = a_directory_of(Engine::RocksDb) else { return };
    let beside = tempfile::tempdir().unwrap();
    let read_only = || DB::open_cf_descriptors_read_only(&options(), directory.path(), families(), false).unwrap();
    drop(open(directory.path()));
    let fresh = Store::attach(Arc::new(read_only()));
    assert!(matches!(fresh, Err(Error::Store(_))), "no store has lived in it: {fresh:?}");

    let store = Store::attach(open(directory.path())).unwrap();
    run(&store, &store.column_family("theirs").unwrap(), 5);
    drop(store);
    let secondary =
        DB::open_cf_descriptors_as_secondary(&options(), directory.path(), beside.path(), families()).unwrap();
    for db in [read_only(), secondary] {
        let store = Store::attach(Arc::new(db)).unwrap();
        let table = store.column_family("theirs").unwrap();
        assert_eq!(store.progress("p").last_processed().unwrap(), Some(4));
        assert_eq!(table.iter().count(), 5);
        let error = table.put("k", "v").unwrap_err();
        assert!(matches!(error, Error::Store(_)), "{error:?}");
        let consumer = Consumer::builder(numbers(9), store.progress("p")).start(|_| Ok(())).unwrap();
        let status =
            until(&consumer.handle(), "the save that fails", |s| matches!(s.blocked, Blocked::Progress { .. }));
        assert_eq!(status.last_processed, Some(4));
        assert!(matches!(consumer.stop(), Err(Error::Progress { .. })));
    }
}

/// Returns how often the write-ahead log was flushed to the disk.
fn flushes(options: &Options) -> u64 {
    let statistics = options.get_statistics().unwrap();
    let line = statistics.lines().find_map(|line| line.strip_prefix("rocksdb.wal.synced COUNT : "));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn only_a_synced_save_is_flushed() {
    const COUNT: u64 = 20;
    let Some(directory) = a_directory_of(Engine::RocksDb) else { return };
    let mut options = options();
    options.enable_statistics();
    let db = Arc::new(DB::open_cf_descriptors(&options, directory.path(), families()).unwrap());
    let buffered = Store::attach(db.clone()).unwrap();
    let synced = Store::options().durability(Durability::Synced).attach(db.clone()).unwrap();

    // Saves one by one, on this thread.
    let (mut left, mut right) = (buffered.progress("left"), synced.progress("right"));
    left.acquire().unwrap();
    right.acquire().unwrap();
    for index in 0..COUNT {
        let before = flushes(&options);
        left.save(&Checkpoint::new(index)).unwrap();
        buffered.table("t").unwrap().put("k", "v").unwrap();
        assert_eq!(flushes(&options), before, "buffered");
        right.save(&Checkpoint::new(index)).unwrap();
        assert_eq!(flushes(&options), before + 1, "synced");
        synced.table("t").unwrap().put("k", "v").unwrap();
        assert_eq!(flushes(&options), before + 2, "synced");
    }

    // Saves by the shared thread: a watermark that has moved is flushed.
    let consume = |store: &Store| {
        let before = flushes(&options);
        let consumer =
            Consumer::builder(numbers(COUNT), store.progress("p")).max_search_ahead(1).start(|_| Ok(())).unwrap();
        assert!(consumer.handle().wait_for(COUNT - 1, LONG));
        let saves = consumer.handle().status().saves;
        assert_eq!(saves, COUNT, "no job starts before the one before it is saved");
        let flushed = flushes(&options) - before;
        consumer.stop().unwrap();
        store.progress("p").remove().unwrap();
        flushed
    };
    assert_eq!(consume(&buffered), 0);
    assert_eq!(consume(&synced), COUNT);
}

#[test]
fn a_value_that_is_no_counter_names_table_and_key() {
    let Some(directory) = a_directory_of(Engine::RocksDb) else { return };
    let store = Store::attach(open(directory.path())).unwrap();
    for table in [store.table("visits").unwrap(), store.column_family("theirs").unwrap()] {
        assert_eq!(table.counter("a\0b").unwrap(), 0);
        table.put("a\0b", (-3i64).to_be_bytes()).unwrap();
        assert_eq!(table.counter("a\0b").unwrap(), -3);
        table.put("a\0b", [0; 9]).unwrap();
        let Err(Error::Counter { table, key, reason }) = table.counter("a\0b") else { panic!("it was read") };
        assert!(["visits", "theirs"].contains(&table.as_str()), "{table}");
        assert_eq!(key, b"a\0b");
        assert!(reason.starts_with("its value is 9 bytes long instead of 8"), "{reason}");
    }
}
