//! Trims of logs on a store in memory: what becomes of the disk space, and when.

use super::*;
use crate::base::{Error, error::StoreError, sync::RwLock};
use crate::commit::{draft::Draft, statements::Manner};
use crate::kv::{Deletion, Family, PARKED, batch::RowChange, double::Double, memory::MemoryKv};
use crate::log::state::Families;
use crate::source::{Rings, watermark::Watermark};
use crate::{Consumer, JobLog, Jobs, Store};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use std::ops::Range;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// This many items are deleted as one range.
const PIECE: u64 = 16 * 1024;

/// A store in memory whose disk is slow to give back space, or cannot.
struct SlowDisk {
    kv: MemoryKv,
    /// Notified when space is to be given back: by which thread, and of which items.
    asked: Sender<(Option<String>, Range<Index>)>,
    /// The result, which it waits for; `Ok` at once when the sender is gone.
    answers: Receiver<Result<(), StoreError>>,
}

impl Double for SlowDisk {
    fn memory(&self) -> &MemoryKv {
        &self.kv
    }

    fn reclaim(&self, family: &Family, keys: Range<&[u8]>) -> Result<(), StoreError> {
        let index = |key: &[u8]| super::super::bounds::index_of(key).unwrap();
        let thread = std::thread::current().name().map(str::to_owned);
        self.asked.send((thread, index(keys.start)..index(keys.end))).unwrap();
        self.answers.recv().unwrap_or(Ok(()))?;
        self.kv.reclaim(family, keys)
    }
}

/// A store on such a disk, and a log with this many items.
struct Bench {
    kv: Arc<SlowDisk>,
    store: Store,
    log: JobLog<u64>,
    asked: Receiver<(Option<String>, Range<Index>)>,
    answer: Sender<Result<(), StoreError>>,
}

impl Bench {
    fn new(items: u64) -> Self {
        let ((tell, asked), (answer, answers)) = (unbounded(), bounded(0));
        let kv = Arc::new(SlowDisk { kv: MemoryKv::default(), asked: tell, answers });
        let store = Store::on(kv.clone(), &Store::options(), &"memory").unwrap();
        let log = store.log::<u64>("l").unwrap();
        log.push_all(&(1..=items).collect::<Vec<_>>()).unwrap();
        Self { kv, store, log, asked, answer }
    }

    /// Runs this on a thread that may hang for ever.
    #[track_caller]
    fn soon<R: Send + 'static>(&self, run: impl FnOnce(JobLog<u64>) -> R + Send + 'static) -> R {
        let (tell, told) = bounded(1);
        let log = self.log.clone();
        std::thread::spawn(move || drop(tell.send(run(log))));
        told.recv_timeout(LONG).expect("it hangs")
    }

    fn asked(&self) -> Range<Index> {
        let (thread, items) = self.asked.recv_timeout(LONG).unwrap();
        assert_eq!(thread.as_deref(), Some("wl-chores"), "no other thread waits for the disk");
        items
    }
}

#[test]
fn writes_do_not_wait_for_disk_space() {
    let bench = Bench::new(PIECE + 10);
    bench.soon(|log| log.trim(..=PIECE)).unwrap();
    assert_eq!(bench.asked(), 1..PIECE + 1);
    assert_eq!(bench.soon(|log| log.push(&7)).unwrap(), PIECE + 11);
    bench.soon(|log| log.trim(..=PIECE + 1)).unwrap();
    let progress = bench.store.progress("p");
    bench.soon(|log| {
        let consumer = Consumer::builder(log, progress).start_at(PIECE + 2).stop_at(PIECE + 11);
        consumer.start(|_| Ok(())).unwrap().join().unwrap();
    });
    assert_eq!(bench.store.progress("p").last_processed().unwrap(), Some(PIECE + 11));
    bench.answer.send_timeout(Ok(()), LONG).unwrap();
}

#[test]
fn a_store_gives_back_disk_space_before_it_closes() {
    let bench = Bench::new(2 * PIECE);
    bench.log.trim(..=PIECE).unwrap();
    let Bench { kv, store, log, asked, answer } = bench;
    let (tell, closed) = bounded(1);
    std::thread::spawn(move || {
        drop((store, log));
        tell.send(()).unwrap();
    });
    assert_eq!(asked.recv_timeout(LONG).unwrap().1, 1..PIECE + 1);
    assert_eq!(closed.try_recv().ok(), None);
    drop(answer);
    closed.recv_timeout(LONG).unwrap();
    assert_eq!(Arc::strong_count(&kv), 1, "it can be opened again");
}

#[test]
fn a_closed_log_opens_with_another_type_during_a_reclaim() {
    let bench = Bench::new(PIECE + 1);
    bench.log.trim(..=PIECE).unwrap();
    assert_eq!(bench.asked(), 1..PIECE + 1);
    let Bench { store, log, answer, .. } = bench;
    assert!(matches!(store.log::<String>("l"), Err(Error::LogType { .. })));
    let same = log.clone();
    drop(log);
    assert!(matches!(store.log::<String>("l"), Err(Error::LogType { .. })));
    drop(same);
    // The chore still has the state of the log, which is also that of the new handle.
    let log = store.log::<String>("l").unwrap();
    assert!(matches!(store.log::<u64>("l"), Err(Error::LogType { .. })));
    assert_eq!((log.first().unwrap(), log.push(&"next".to_owned()).unwrap()), (PIECE + 1, PIECE + 2));
    drop(answer);
}

#[test]
fn a_failed_reclaim_is_retried_with_the_next_piece() {
    let bench = Bench::new(3 * PIECE);
    let full = || StoreError::new("give back disk space".to_owned(), "no".into());
    bench.log.trim(..=PIECE).unwrap();
    assert_eq!(bench.asked(), 1..PIECE + 1);
    bench.answer.send_timeout(Err(full()), LONG).unwrap();
    bench.log.trim(..=2 * PIECE).unwrap();
    assert_eq!(bench.asked(), 1..2 * PIECE + 1);
    bench.answer.send_timeout(Ok(()), LONG).unwrap();
    bench.log.trim(..=3 * PIECE).unwrap();
    assert_eq!(bench.asked(), 2 * PIECE + 1..3 * PIECE + 1);
    bench.answer.send_timeout(Ok(()), LONG).unwrap();
    // A trim of a few items deletes none.
    bench.log.push_all(&[1, 2, 3]).unwrap();
    bench.log.trim(..=3 * PIECE + 1).unwrap();
    let Bench { store, log, asked, .. } = bench;
    drop((store, log));
    assert_eq!(asked.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Timeout));
}

#[test]
fn two_trims_of_one_batch_delete_each_item_once() {
    let kv = MemoryKv::default();
    let log = a_log(&kv, 3 * PIECE);
    let rows = RwLock::default();
    let mut draft = Draft::new(&kv, &rows, Manner::default());
    for first in [PIECE + 1, 2 * PIECE + 1, 2 * PIECE + 2] {
        let (staged, batch) = draft.part(&log).unwrap();
        staged.trim(&log, first, Deleted::Later, batch).unwrap();
        assert_eq!((staged.first, staged.end), (first, 3 * PIECE));
    }
    let deleted: Vec<_> = draft
        .batch()
        .records()
        .filter_map(|record| match record {
            RowChange::DeleteRange { from, to, .. } => Some((from.to_vec(), to.to_vec())),
            _ => None,
        })
        .collect();
    let range = |from, to| (log.key(from).to_vec(), log.key(to).to_vec());
    assert_eq!(deleted, [range(1, PIECE + 1), range(PIECE + 1, 2 * PIECE + 1)]);
}

/// Returns a log with this end.
fn a_log(kv: &MemoryKv, end: Index) -> Arc<LogState> {
    let [system, _, items] = kv.families();
    let parked = Family::new(PARKED, kv.family(PARKED).unwrap().unwrap());
    let families = Families { items, parked, system: system.id };
    Arc::new(LogState::new("l", families, Bounds::of_a_new_log(7), end))
}

/// Writes what `make` does to a log's tail. Returns the number of records.
fn written(
    kv: &MemoryKv,
    log: &Arc<LogState>,
    make: impl FnOnce(&mut LogTail, &mut Overlay<'_>) -> Result<(), BoxError>,
) -> usize {
    let rows = RwLock::default();
    let mut draft = Draft::new(kv, &rows, Manner::default());
    let (staged, batch) = draft.part(log).unwrap();
    make(staged, batch).unwrap();
    let staged = *staged;
    kv.write(draft.batch(), false).unwrap();
    drop(log.clone().publish(staged));
    draft.batch().records().count()
}

#[test]
fn a_trim_costs_no_more_with_many_kept_items() {
    for parked in [3, 5_000] {
        let kv = MemoryKv::default();
        let log = a_log(&kv, 1);
        let trim = |first| written(&kv, &log, |staged, batch| staged.trim(&log, first, Deleted::Later, batch));
        let free = |index| written(&kv, &log, |staged, batch| staged.free(&log, &[index], batch).map(drop));
        let end = parked + 10;
        written(&kv, &log, |staged, batch| (1..end).try_for_each(|_| staged.push(&log, b"item", batch)));
        let consumer = Watermark::new();
        consumer.note_parked((1..=parked).chain([parked + 5]).collect());
        consumer.publish(end);
        log.retain(vec![consumer.clone()], Arc::<Rings>::default());
        // The bounds, and a row per parked job, once.
        assert_eq!(trim(parked + 1), parked as usize + 1);
        assert_eq!(log.bounds().kept, parked);
        assert_eq!(trim(parked + 3), 1, "the bounds");
        assert_eq!(trim(parked + 7), 2, "the bounds, and one more row");
        assert_eq!(free(2), 0, "it is parked");
        consumer.note_unparked(&[2]);
        assert_eq!(free(2), 2, "the bounds, and its row");
        assert_eq!(free(2), 0, "it is gone");
        assert_eq!((log.bounds().kept, log.bounds().first), (parked, parked + 7));
    }
}

#[test]
fn promise_01_no_consumer_needs_reclaimed_items_after_power_loss() {
    // Files are deleted at once, but earlier writes, progress and trims alike, may be lost.
    const ITEMS: u64 = 40_000;
    let open = |kv: MemoryKv| {
        let kv = Arc::new(kv);
        let store = Store::on(kv.clone(), &Store::options(), &"memory").unwrap();
        let log = store.log::<u64>("l").unwrap();
        (kv, store, log)
    };
    let consume = |log: &JobLog<u64>, store: &Store, to| {
        Consumer::builder(log.clone(), store.progress("p")).stop_at(to).start(|_| Ok(())).unwrap().join().unwrap();
    };
    let (kv, store, log) = open(MemoryKv::default());
    log.push_all(&(1..=ITEMS).collect::<Vec<_>>()).unwrap();
    consume(&log, &store, 100);
    // By now the system has flushed all that was written before the process crashed.
    let (kv, store, log) = open(kv.after_crash());
    consume(&log, &store, ITEMS / 2);
    log.trim(..=ITEMS / 2).unwrap();
    drop((log, store));
    let (_kv, store, log) = open(kv.after_power_loss());
    let first = store.progress("p").last_processed().unwrap().unwrap() + 1;
    let mut left = Vec::new();
    log.read(first..=ITEMS, &mut left).unwrap();
    assert_eq!(left, (first..=ITEMS).collect::<Vec<_>>());
    consume(&log, &store, ITEMS);
}

#[test]
fn a_pending_item_keeps_little_spare_memory() {
    for length in [0, 1, 255, 1 << 20] {
        let mut item = Vec::with_capacity(8 << 20);
        item.resize(length, 7);
        let op = push_op(item);
        assert_eq!((op.len(), op.last()), (length + 1, Some(&PUSH)));
        assert!(op.capacity() <= SPARE.max(2 * op.len()), "{} bytes for {length}", op.capacity());
    }
}

#[test]
fn an_item_that_is_being_trimmed_is_not_corrupt() {
    let store = Store::in_memory();
    let log = store.log::<u64>("l").unwrap();
    log.push_all(&[1, 2, 3]).unwrap();
    // The database has the write, but the log does not know yet.
    let staged = (0, log.state().bounds());
    let (records, _) = log.state().trim(3, staged, Deleted::Now, Deletion::default()).unwrap();
    let mut batch = crate::kv::batch::Batch::default();
    batch.append(&records);
    store.write_batch(&batch).unwrap();
    assert_eq!(log.first().unwrap(), 1);
    let error = log.at_index(2).unwrap_err();
    let error = error.downcast_ref::<Error>();
    assert!(matches!(error, Some(Error::Truncated { next: 2, first: 3 })), "{error:?}");
    assert_eq!(log.at_index(3).unwrap(), Some(3));
}
