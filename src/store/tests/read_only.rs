//! Read-only handles beside one that writes.

use super::*;
use crate::Jobs;
use crate::kv::{KeyRange, Order, Scan};

fn read_only(store: &Store) -> Store {
    store.with(&Store::options().read_only())
}

#[test]
fn a_read_only_handle_refuses_every_write() {
    let kv = Arc::new(MemoryKv::default());
    let store = on(&kv);
    rows(&store, 3).join().unwrap();
    let (before, strict) = (kv.writes(), read_only(&store));
    let table = strict.table("rows").unwrap();
    assert!(matches!(table.put(0u64.to_be_bytes(), "changed"), Err(Error::ReadOnly)));
    assert!(matches!(table.delete(0u64.to_be_bytes()), Err(Error::ReadOnly)));
    assert!(matches!(strict.progress("p").acquire(), Err(Error::ReadOnly)));
    assert!(matches!(strict.note_in_use("known to tests"), Err(Error::ReadOnly)));
    let started = Consumer::builder(numbers(9), strict.progress("p")).start(|_| Ok(()));
    assert!(matches!(started, Err(Error::ReadOnly)), "{started:?}");
    // Nothing is created, whatever the other option says.
    let strict = store.with(&Store::options().read_only().create(true));
    assert!(matches!(strict.table("others"), Err(Error::NotFound { what: "table", .. })));
    assert_eq!(kv.writes(), before);
    assert_eq!(table.get(0u64.to_be_bytes()).unwrap().as_deref(), Some(b"done".as_slice()));
    assert_eq!(strict.progress("p").last_processed().unwrap(), Some(2));
    // The name is still free, and the handle that writes goes on.
    assert_eq!(watermark(&store), Some(2));
}

/// A store in memory that counts the pairs that are read per family.
#[derive(Default)]
struct Counted {
    kv: MemoryKv,
    read: Mutex<HashMap<Arc<str>, usize>>,
}

impl Counted {
    fn count(&self, family: &Family) {
        *self.read.lock().entry(family.name.clone()).or_default() += 1;
    }

    fn counted(&self) -> [usize; 3] {
        let read = std::mem::take(&mut *self.read.lock());
        [SYSTEM, TABLES, LOGS].map(|name| read.get(name).copied().unwrap_or(0))
    }
}

impl Double for Counted {
    fn memory(&self) -> &MemoryKv {
        &self.kv
    }

    fn get(&self, family: &Family, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.count(family);
        self.kv.get(family, key)
    }

    fn rows(&self, family: &Family, keys: KeyRange, order: Order) -> Scan<'_> {
        let family = family.clone();
        Box::new(self.kv.rows(&family.clone(), keys, order).inspect(move |_| self.count(&family)))
    }
}

#[test]
fn a_list_reads_one_row_per_table_and_no_log_item() {
    let kv = Arc::new(Counted::default());
    let store = Store::on(kv.clone(), &Store::options(), &"memory").unwrap();
    for table in ["b", "a", "longer"] {
        let table = store.table(table).unwrap();
        (0..500u64).for_each(|row| table.put(row.to_be_bytes(), "row").unwrap());
    }
    for log in ["d", "c"] {
        store.log::<u64>(log).unwrap().push_all(&[7; 500]).unwrap();
    }
    let consumer = rows(&store, 500);
    consumer.join().unwrap();
    kv.counted();
    assert_eq!(store.tables().unwrap(), ["a", "b", "longer", "rows"]);
    assert_eq!(kv.counted(), [0, 4, 0]);
    let logs: Vec<_> = store.logs().unwrap().into_iter().map(|log| (log.name, log.first, log.head)).collect();
    assert_eq!(logs, [("c".to_owned(), 1, Some(500)), ("d".to_owned(), 1, Some(500))]);
    assert_eq!(kv.counted(), [6, 0, 0], "two bounds, each listed and then read before and after the head");
    let consumers = store.consumers().unwrap();
    assert_eq!((consumers[0].name.as_str(), consumers[0].last_processed), ("p", Some(499)));
    let [system, tables, logs] = kv.counted();
    assert_eq!((tables, logs), (0, 0));
    // The page three times, and the deltas since.
    assert!(system <= 3 + 500, "{system}");
    assert_eq!(consumers.len(), 1);
}

#[test]
fn a_read_only_log_refuses_writes_and_reads_bytes() {
    let kv = Arc::new(MemoryKv::default());
    let store = on(&kv);
    let log = store.log::<u64>("log").unwrap();
    log.push_all(&[7, 42]).unwrap();
    let (strict, before) = (read_only(&store), kv.writes());
    let seen = strict.log::<u64>("log").unwrap();
    assert!(matches!(seen.push(&1), Err(Error::ReadOnly)));
    assert!(matches!(seen.push_all(&[]), Err(Error::ReadOnly)));
    assert!(matches!(seen.trim(..=1), Err(Error::ReadOnly)));
    seen.retain([&crate::Watermark::new()]);
    assert!(matches!(strict.log::<u64>("others"), Err(Error::NotFound { what: "log", .. })));
    // While it is open as numbers, it is open as bytes, too.
    let bytes = strict.log_with::<Vec<u8>, _>("log", crate::Bytes).unwrap();
    assert_eq!(bytes.at_index(2).unwrap().as_deref(), Some(b"42".as_slice()));
    assert!(matches!(strict.log::<String>("log"), Err(Error::LogType { .. })));
    assert!(matches!(store.log_with::<Vec<u8>, _>("log", crate::Bytes), Err(Error::Codec { .. })));
    strict.refresh().unwrap();
    assert_eq!(kv.writes(), before);
    log.trim(..=1).unwrap();
    assert_eq!((seen.first().unwrap(), seen.head().unwrap()), (2, Some(2)));
}

#[test]
fn a_log_opened_as_bytes_opens_for_its_items() {
    let kv = Arc::new(MemoryKv::default());
    on(&kv).log::<u64>("log").unwrap().push(&7).unwrap();
    let beside = Store::on(kv.clone(), &Store::options().read_only(), &"memory").unwrap();
    let bytes = beside.log_with::<Vec<u8>, _>("log", crate::Bytes).unwrap();
    let numbers = beside.log::<u64>("log").unwrap();
    assert_eq!((bytes.at_index(1).unwrap(), numbers.at_index(1).unwrap()), (Some(b"7".to_vec()), Some(7)));
}

#[test]
fn items_trimmed_before_a_refresh_are_not_damaged() {
    let kv = Arc::new(MemoryKv::default());
    let application = on(&kv).log::<u64>("log").unwrap();
    let beside = Store::on(kv.clone(), &Store::options().read_only(), &"memory").unwrap();
    let log = beside.log::<u64>("log").unwrap();
    let bytes = beside.log_with::<Vec<u8>, _>("log", crate::Bytes).unwrap();
    application.push_all(&vec![5; 20_000]).unwrap();
    beside.refresh().unwrap();
    assert_eq!((log.head().unwrap(), bytes.head().unwrap()), (Some(20_000), Some(20_000)));
    application.trim(..=20_000).unwrap();
    let mut items = Vec::new();
    let Err(error) = log.read(10..=20, &mut items) else { panic!("{items:?}") };
    assert!(matches!(error.downcast_ref(), Some(Error::Truncated { first: 20_001, .. })), "{error:?}");
    assert_eq!((log.first().unwrap(), bytes.first().unwrap()), (20_001, 20_001));
}

#[test]
fn a_row_of_no_table_is_corrupt() {
    let kv = Arc::new(MemoryKv::default());
    let store = on(&kv);
    let mut batch = Batch::default();
    batch.put(kv.families()[1].id, &[b"\x09short"], &[b""]).unwrap();
    kv.write(&batch, false).unwrap();
    assert!(matches!(store.tables(), Err(Error::Corrupt { .. })));
}

#[test]
fn a_list_counts_each_job_done_ahead_once() {
    let kv = Arc::new(MemoryKv::default());
    let store = on(&kv);
    let mut progress = store.progress("p");
    progress.acquire_all().unwrap();
    progress.save_all(&crate::Saved::new(None, 0, vec![2..=4, 6..=6])).unwrap();
    let listed = || store.consumers().unwrap().remove(0);
    let shown = |info: crate::ConsumerInfo| (info.last_processed, info.next, info.done_ahead);
    assert_eq!(shown(listed()), (None, Some(0), 4));
    progress.save_all(&crate::Saved::new(Some(2), 3, vec![5..=9])).unwrap();
    assert_eq!(shown(listed()), (Some(2), Some(3), 5));
    drop(progress);
    // The same with the records of a running consumer.
    let consumer = Consumer::builder(numbers(40), store.progress("q"))
        .max_processing(4)
        .start(|job| if job.index == 7 { Err("it fails".into()) } else { Ok(()) })
        .unwrap();
    assert!(consumer.join().is_err());
    let (last, next, ahead) = shown(store.consumers().unwrap().remove(1));
    assert_eq!((last, next), (Some(6), Some(7)));
    let saved = store.progress("q").acquire_all().unwrap().unwrap();
    let done: u64 = saved.done.iter().map(|run| run.end() + 1 - run.start()).sum();
    assert_eq!(ahead, done);
    store.progress("p").remove().unwrap();
    assert_eq!(store.consumers().unwrap().len(), 1);
}
