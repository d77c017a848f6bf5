//! The job log: indices without gaps, atomic pushes, trims that stop at each consumer, and items
//! that are never skipped.

use common::every_write::{DEATHS, Trial, every_write};
use common::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use waterline::testing::FaultyStore;
use waterline::{BoxError, Consumer, Error, Index, JobLog, Jobs, MemoryProgress, Status, Store};

fn items(log: &JobLog<u64>) -> Vec<u64> {
    let mut items = Vec::new();
    if let Some(head) = log.head().unwrap() {
        log.read(log.first().unwrap()..=head, &mut items).unwrap();
    }
    items
}

fn is_truncated<T>(result: Result<T, BoxError>, at: Index, from: Index) -> bool {
    let error = result.err().and_then(|error| error.downcast::<Error>().ok());
    matches!(error.as_deref(), Some(Error::Truncated { next, first }) if (*next, *first) == (at, from))
}

#[test]
fn indices_have_no_gaps_even_after_emptying() {
    let store = Store::in_memory();
    let log = store.log::<u64>("numbers").unwrap();
    assert_eq!((log.first().unwrap(), log.head().unwrap(), log.at_index(1).unwrap()), (1, None, None));
    assert_eq!(log.push(&10).unwrap(), 1);
    assert_eq!(log.push_all(&[20, 30, 40]).unwrap(), 2..5);
    assert_eq!(log.push_all(&[]).unwrap(), 5..5);
    assert_eq!((log.head().unwrap(), items(&log)), (Some(4), vec![10, 20, 30, 40]));
    assert_eq!((log.at_index(3).unwrap(), log.at_index(5).unwrap()), (Some(30), None));
    log.trim(..=2).unwrap();
    log.trim(..=1).unwrap();
    assert_eq!((log.first().unwrap(), items(&log)), (3, vec![30, 40]));
    assert!(is_truncated(log.at_index(2), 2, 3) && is_truncated(log.read(1..=4, &mut Vec::new()), 1, 3));
    log.trim(..=Index::MAX).unwrap();
    assert_eq!((log.first().unwrap(), log.head().unwrap()), (5, Some(4)));
    assert_eq!(log.push(&50).unwrap(), 5);
    // A handle that is opened later, and the next life, see the same log.
    drop(log);
    let log = store.log::<u64>("numbers").unwrap();
    assert_eq!((log.first().unwrap(), log.head().unwrap(), items(&log)), (5, Some(5), vec![50]));
}

#[test]
fn reopening_a_log_changes_nothing() {
    let mut random = fastrand::Rng::with_seed(7);
    let (mut pushed, mut first) = (Vec::new(), 1);
    let faulty = FaultyStore::new().unwrap();
    let store = faulty.store();
    for _ in 0..300 {
        let log = store.log::<u64>("l").unwrap();
        let (end, count) = (pushed.len() as u64 + 1, random.u64(0..40));
        assert_eq!((log.first().unwrap(), log.head().unwrap()), (first, (end > 1).then(|| end - 1)));
        let more: Vec<u64> = (0..count).map(|_| random.u64(..)).collect();
        assert_eq!(log.push_all(&more).unwrap(), end..end + count);
        pushed.extend(more);
        if random.bool() {
            let to = first - 1 + random.u64(0..60);
            log.trim(..=to).unwrap();
            first = first.max((to + 1).min(pushed.len() as u64 + 1));
        }
        assert_eq!(items(&log), pushed[first as usize - 1..]);
    }
}

#[test]
fn a_log_is_open_with_one_type_at_a_time() {
    let store = Store::in_memory();
    let numbers = store.log::<u64>("l").unwrap();
    let error = store.log::<String>("l").unwrap_err();
    assert!(matches!(&error, Error::LogType { name, .. } if name == "l"), "{error:?}");
    assert!(error.to_string().contains("u64") && error.to_string().contains("String"), "{error}");
    numbers.push(&7).unwrap();
    drop(numbers);
    // The log is closed, so its type may differ; the error of the stored item has its index.
    let words = store.log::<String>("l").unwrap();
    let error = words.at_index(1).unwrap_err().downcast::<Error>().unwrap();
    assert!(
        matches!(&*error, Error::Corrupt { name, reason } if name == "l" && reason.contains("item 1")),
        "{error:?}"
    );
    assert!(matches!(store.log::<u64>(""), Err(Error::Config(_))));
}

#[test]
fn a_bad_item_is_named_and_stops_the_stream() {
    let store = Store::in_memory();
    let log = store.log::<serde_json::Value>("l").unwrap();
    log.push_all(&[1.into(), 2.into(), "three".into(), 4.into()]).unwrap();
    drop(log);
    let consumer = Consumer::builder(store.log::<u64>("l").unwrap(), store.progress("p")).start(|_| Ok(())).unwrap();
    let is_bad = |s: &Status| s.last_processed == Some(2) && s.blocked.to_string().contains("item 3");
    let status = until(&consumer.handle(), "the bad one", is_bad);
    // The advice is another name: a log cannot be removed, unlike a progress or a table.
    let text = status.blocked.to_string();
    assert!(text.contains("item 3 of the log") && text.contains("another name for a log"), "{text}");
    consumer.stop().unwrap();
}

#[test]
fn an_item_that_is_no_json_is_not_pushed() {
    let store = Store::in_memory();
    let log = store.log::<std::collections::BTreeMap<Vec<u8>, u8>>("l").unwrap();
    let item = [(vec![1], 2)].into();
    assert!(matches!(log.push(&item), Err(Error::Item { log, .. }) if log == "l"));
    assert!(log.push_all(&[Default::default(), item]).is_err());
    assert_eq!(log.head().unwrap(), None);
    // Nor can a job push it: the job fails even if it returns `Ok`.
    let into = log.clone();
    let consumer = Consumer::builder(numbers(1), store.progress("p")).start_transactional(move |_, effects| {
        let _ = effects.push(&into, &[(vec![1], 2)].into());
        Ok(())
    });
    let error = consumer.unwrap().join().unwrap_err();
    assert!(error.report().contains("job 0") && error.report().contains("key must be a string"), "{}", error.report());
    assert_eq!((log.head().unwrap(), store.progress("p").last_processed().unwrap()), (None, None));
}

#[test]
fn concurrent_pushes_keep_blocks_together() {
    let store = Store::in_memory();
    let log = store.log::<(u64, u64)>("l").unwrap();
    let given: Vec<_> = std::thread::scope(|scope| {
        let push = |thread: u64| {
            let log = log.clone();
            scope.spawn(move || {
                let block = |n: u64| (0..n % 5 + 1).map(|i| (thread, 10 * n + i)).collect::<Vec<_>>();
                (0..200).map(|n| (log.push_all(&block(n)).unwrap(), block(n))).collect::<Vec<_>>()
            })
        };
        let threads: Vec<_> = (0..4).map(push).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let all: BTreeSet<u64> = given.iter().flat_map(|(range, _)| range.clone()).collect();
    let count = all.len() as u64;
    assert_eq!(given.iter().map(|(_, block)| block.len()).sum::<usize>() as u64, count, "no index is given twice");
    assert_eq!((all.first(), all.last(), log.head().unwrap()), (Some(&1), Some(&count), Some(count)));
    for (range, block) in given {
        let mut items = Vec::new();
        log.read(range.start..=range.end - 1, &mut items).unwrap();
        assert_eq!(items, block);
    }
}

#[test]
fn a_push_that_fails_takes_no_index() {
    let faulty = FaultyStore::new().unwrap();
    let log = faulty.store().log::<u64>("l").unwrap();
    assert_eq!(log.push(&1).unwrap(), 1);
    faulty.fail(..);
    assert!(matches!(log.push(&2), Err(Error::Store(_))));
    assert!(matches!(log.push_all(&[2, 3]), Err(Error::Store(_))));
    assert!(matches!(log.trim(..=1), Err(Error::Store(_))));
    assert_eq!((log.first().unwrap(), log.head().unwrap()), (1, Some(1)));
    faulty.heal();
    assert_eq!(log.push(&4).unwrap(), 2);
    assert_eq!(items(&log), [1, 4]);
}

#[test]
fn promise_01_a_log_is_a_prefix_at_any_crash() {
    let whole: Vec<u64> = (3..18).chain(6..9).collect();
    let life = |trial: &Trial| {
        let log = trial.store().log::<u64>("l").unwrap();
        for n in 1..=5 {
            log.push_all(&[3 * n, 3 * n + 1, 3 * n + 2]).unwrap();
        }
        log.trim(..=4).unwrap();
        (6..=8).for_each(|n| assert!(log.push(&n).is_ok()));
    };
    let lives = every_write(&DEATHS, life, |next, ()| {
        let log = next.store().log::<u64>("l").unwrap();
        let (first, head) = (log.first().unwrap(), log.head().unwrap().unwrap_or(0));
        assert_eq!(items(&log), whole[first as usize - 1..head as usize]);
        assert!([1, 5].contains(&first));
        assert!(head > 15 || head % 3 == 0, "half a block");
        assert!(next.struck || head == 18, "items are lost");
        assert_eq!(log.push(&0).unwrap(), head + 1);
    });
    assert!(lives >= 9, "only {lives} writes");
}

#[test]
fn a_push_wakes_a_consumer_and_a_trim_spares_it() {
    let store = Store::in_memory();
    let log = store.log::<u64>("l").unwrap();
    let (worker, stage) = manual_worker();
    let consumer = Consumer::builder(log.clone(), store.progress("p"))
        .max_processing(2)
        .poll_every(Duration::from_secs(3600))
        .max_processing(4)
        .start_worker(worker)
        .unwrap();
    let handle = consumer.handle();
    log.push_all(&[1, 2, 3]).unwrap();
    stage.job(1).succeed();
    assert!(handle.wait_for(1, LONG));
    let error = log.trim(..=2).unwrap_err();
    assert!(matches!(error, Error::Needed { index: 2, last_processed: Some(1), .. }), "{error:?}");
    log.trim(..=1).unwrap();
    stage.take(2).into_values().for_each(|job| job.succeed());
    assert!(handle.wait_for(3, LONG));
    log.push(&4).unwrap();
    stage.next().succeed();
    assert!(handle.wait_for(4, LONG));
    consumer.stop().unwrap();
    log.trim(..=4).unwrap();
    assert_eq!(log.first().unwrap(), 5);
}

#[test]
fn a_consumer_trimmed_past_while_away_halts() {
    let store = Store::in_memory();
    let log = store.log::<u64>("l").unwrap();
    log.push_all(&[1, 2, 3, 4]).unwrap();
    Consumer::builder(log.clone(), store.progress("p")).stop_at(2).start(|_| Ok(())).unwrap().join().unwrap();
    log.trim(..=3).unwrap();
    let error = Consumer::builder(log.clone(), store.progress("p")).start(|_| Ok(())).unwrap_err();
    assert!(matches!(error, Error::Truncated { next: 3, first: 4 }), "{error:?}");
}

#[test]
fn a_log_trims_itself_up_to_the_slowest_reader() {
    let store = Store::in_memory();
    let log = store.log::<u64>("l").unwrap();
    let fast = Consumer::builder(log.clone(), MemoryProgress::new()).start(|_| Ok(())).unwrap();
    let (worker, stage) = manual_worker();
    let slow = Consumer::builder(log.clone(), store.progress("slow")).max_processing(1).start_worker(worker).unwrap();
    log.retain([fast.handle(), slow.handle()]);
    log.push_all(&(1..=10).collect::<Vec<_>>()).unwrap();
    assert!(fast.handle().wait_for(10, LONG));
    assert_eq!((log.first().unwrap(), log.backlog()), (1, 10), "the slow one has processed nothing");
    for index in 1..=6 {
        stage.next().succeed();
        assert!(slow.handle().wait_for(index, LONG));
        assert_eq!(log.backlog(), 10 - index);
        eventually("the trim", || log.first().unwrap() == index + 1);
    }
    let last = stage.next();
    slow.handle().request_stop();
    last.succeed();
    slow.stop().unwrap();
    eventually("the last one", || log.first().unwrap() == 8);
    let error = log.trim(..=8).unwrap_err();
    assert!(matches!(error, Error::Needed { index: 8, last_processed: Some(7), .. }), "it is retained though it ended");
    log.retain(Vec::<waterline::Handle>::new());
    log.trim(..=8).unwrap();
    fast.stop().unwrap();
}

#[test]
fn promise_09_a_failing_jobs_pushes_are_in_the_log_once() {
    let store = Store::in_memory();
    let log = store.log::<(u64, u32)>("chunks").unwrap();
    let chunks = log.clone();
    Consumer::builder(numbers(500), store.progress("blocks"))
        .max_processing(4)
        .stop_at(499)
        .retry(waterline::Retry::fixed(Duration::ZERO))
        .start_transactional(move |job, effects| {
            (0..3).try_for_each(|chunk| effects.push(&chunks, &(job.index, chunk)))?;
            if job.index % 2 == 1 && job.attempt == 1 { Err("after its pushes".into()) } else { Ok(()) }
        })
        .unwrap()
        .join()
        .unwrap();
    let mut items = Vec::new();
    log.read(1..=log.head().unwrap().unwrap(), &mut items).unwrap();
    assert_eq!(items.len(), 1_500);
    assert_eq!(items.iter().collect::<BTreeSet<_>>().len(), 1_500);
    assert!(items.chunks(3).all(|job| job.iter().map(|(_, chunk)| *chunk).eq(0..3)), "a job's chunks stay together");
    let other = Store::in_memory().log::<(u64, u32)>("chunks").unwrap();
    let error = Consumer::builder(numbers(1), store.progress("foreign"))
        .start_transactional(move |_, effects| Ok(effects.push(&other, &(0, 0))?))
        .unwrap()
        .join()
        .unwrap_err();
    assert!(error.report().contains("\"chunks\" is in another store"), "{}", error.report());
}

#[test]
fn a_job_may_push_to_its_own_log() {
    // The pushes come from jobs of the log's own consumer, on the threads that a write wakes.
    let store = Store::in_memory();
    let log = store.log::<u64>("l").unwrap();
    log.push(&0).unwrap();
    let pushing = Arc::new(log.clone());
    let consumer = Consumer::builder(log.clone(), store.progress("p"))
        .max_processing(4)
        .start(move |job| {
            if job.payload < 300 {
                pushing.push(&(job.payload + 1))?;
            }
            Ok(())
        })
        .unwrap();
    assert!(consumer.handle().wait_for(301, LONG));
    consumer.stop().unwrap();
}

#[test]
fn promise_04_a_failed_trim_is_made_up_for() {
    let faulty = FaultyStore::new().unwrap();
    let log = faulty.store().log::<u64>("l").unwrap();
    // The progress is elsewhere, so only the trims fail.
    let consumer = Consumer::builder(log.clone(), MemoryProgress::new()).start(|_| Ok(())).unwrap();
    log.retain([consumer.handle()]);
    log.push_all(&[1, 2, 3]).unwrap();
    eventually("the trim", || log.first().unwrap() == 4);
    let held = log.hold_back(numbers(9), 1);
    log.push(&4).unwrap();
    eventually("the trim", || log.first().unwrap() == 5);
    let before = faulty.writes();
    faulty.fail(1..4);
    log.push(&5).unwrap();
    assert!(consumer.handle().wait_for(5, LONG));
    // Backpressure counts unprocessed items, trimmed or not.
    assert_eq!((log.backlog(), held.gate()), (0, waterline::Gate::Open));
    // No watermark moves any more, so the trim is retried on its own.
    eventually("the trims that fail", || faulty.writes() >= before + 4);
    eventually("the trim", || log.first().unwrap() == 6);
    consumer.stop().unwrap();
}

#[test]
fn a_failing_store_closes_with_a_trim_pending() {
    let faulty = FaultyStore::new().unwrap();
    let log = faulty.store().log::<u64>("l").unwrap();
    let consumer = Consumer::builder(log.clone(), MemoryProgress::new()).start(|_| Ok(())).unwrap();
    log.retain([consumer.handle()]);
    let before = faulty.writes();
    faulty.fail(1..);
    log.push(&1).unwrap();
    assert!(consumer.handle().wait_for(1, LONG));
    eventually("a trim that fails", || faulty.writes() >= before + 2);
    consumer.stop().unwrap();
    drop((log, faulty));
}

#[test]
fn hold_back_forgets_a_consumer_that_failed_to_start() {
    let store = Store::in_memory();
    let log = store.log::<u64>("l").unwrap();
    Consumer::builder(numbers(1), store.progress("p")).stop_at(0).start(|_| Ok(())).unwrap().join().unwrap();
    let stream = store.log::<u64>("stream").unwrap();
    stream.push_all(&[0; 9]).unwrap();
    stream.trim(..=5).unwrap();
    let held = Arc::new(log.hold_back(stream.clone(), 3));
    // The start is refused only after it has subscribed.
    let error = Consumer::builder(held.clone(), store.progress("p")).start(|_| Ok(())).unwrap_err();
    assert!(matches!(error, Error::Truncated { .. }), "{error}");
    let (worker, stage) = manual_worker();
    Consumer::builder(stream, store.progress("q")).stop_at(6).start(|_| Ok(())).unwrap().join().unwrap();
    let consumer = Consumer::builder(held.clone(), store.progress("q")).max_processing(1).start_worker(worker).unwrap();
    assert_eq!(held.gate(), waterline::Gate::UpTo(9));
    log.push(&1).unwrap();
    assert_eq!(held.gate(), waterline::Gate::UpTo(8), "it goes by the one that runs");
    let running = stage.next();
    consumer.handle().request_stop();
    running.succeed();
    consumer.stop().unwrap();
}

/// A value whose deserialization calls its log.
#[derive(Clone)]
struct Curious;

static CALL_BACK: std::sync::OnceLock<Arc<JobLog<Curious>>> = std::sync::OnceLock::new();

impl serde::Serialize for Curious {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(0)
    }
}

impl<'de> serde::Deserialize<'de> for Curious {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer)?;
        if let Some(log) = CALL_BACK.get()
            && !ASKED.swap(true, std::sync::atomic::Ordering::SeqCst)
        {
            log.at_index(2).map_err(serde::de::Error::custom)?;
        }
        Ok(Self)
    }
}

static ASKED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

#[test]
fn an_item_may_read_its_log_while_being_read() {
    let log = Arc::new(Store::in_memory().log::<Curious>("l").unwrap());
    log.push_all(&[Curious, Curious, Curious]).unwrap();
    CALL_BACK.set(log.clone()).ok().unwrap();
    let (tell, told) = crossbeam_channel::unbounded();
    std::thread::spawn(move || {
        let mut items = Vec::new();
        let read = log.read(1..=3, &mut items).map(|()| items.len());
        tell.send(read.map_err(|error| error.to_string()))
    });
    assert_eq!(told.recv_timeout(LONG).expect("no lock is held"), Ok(3));
}

#[test]
fn trims_written_together_fail_together() {
    let faulty = FaultyStore::new().unwrap();
    let log = faulty.store().log::<u64>("l").unwrap();
    log.push_all(&[1, 2, 3]).unwrap();
    faulty.fail(..);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let log = log.clone();
            scope.spawn(move || {
                (0..6_000).for_each(|_| assert!(log.trim(..=1 + thread % 2).is_err(), "nothing is written"));
            });
        }
    });
    assert_eq!(log.first().unwrap(), 1);
}
