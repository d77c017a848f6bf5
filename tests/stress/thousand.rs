//! A thousand consumers in one process, on one store.

use common::*;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use waterline::{Consumer, Handle, Index, MemoryJobs, Retry, State, Store};

const JOBS: u64 = 200;
/// A reader, a notifier and two workers.
const THREADS_EACH: usize = 4;

/// One stream, and what the test knows of it.
struct Stream {
    number: u64,
    jobs: MemoryJobs<u64>,
    record: Arc<Record>,
}

#[derive(Default)]
struct Record {
    /// The number of successes of each job.
    handled: Mutex<Vec<u8>>,
    /// One past the last announced index.
    announced: Mutex<Index>,
    running: AtomicU8,
    wrong: Mutex<Option<String>>,
}

impl Record {
    fn claim(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.wrong.lock().get_or_insert_with(what);
        }
    }
}

impl Stream {
    fn new(number: usize) -> Self {
        let record = Record { handled: Mutex::new(vec![0; JOBS as usize]), ..Record::default() };
        Self { number: number as u64, jobs: MemoryJobs::new(), record: Arc::new(record) }
    }

    fn name(&self) -> String {
        format!("stream {}", self.number)
    }

    /// Pushes jobs below this index.
    fn push_until(&self, end: Index) {
        while self.jobs.push(self.number) + 1 < end {}
    }

    fn start(&self, store: &Store) -> Consumer {
        let (number, record, announced) = (self.number, self.record.clone(), self.record.clone());
        Consumer::builder(self.jobs.clone(), store.progress(self.name()))
            .max_processing(2)
            .retry(Retry::fixed(Duration::ZERO))
            .on_processed(move |run| {
                let before = std::mem::replace(&mut *announced.announced.lock(), run.end() + 1);
                announced.claim(*run.start() == before, || format!("{number}: {run:?} was announced after {before}"));
            })
            .start(move |job| {
                let running = record.running.fetch_add(1, Ordering::SeqCst);
                record.claim(running < 2, || format!("{number}: {running} others run beside {}", job.index));
                record.claim(job.payload == number, || format!("{number}: met a job of {}", job.payload));
                let fails = (job.index + number).is_multiple_of(17) && job.attempt == 1;
                record.handled.lock()[job.index as usize] += u8::from(!fails);
                record.running.fetch_sub(1, Ordering::SeqCst);
                if fails { Err("the first attempt fails".into()) } else { Ok(()) }
            })
            .unwrap()
    }

    fn check(&self, end: Index, handle: &Handle) {
        let name = self.name();
        assert_eq!(*self.record.wrong.lock(), None);
        let handled = self.record.handled.lock()[..end as usize].iter().all(|times| *times > 0);
        assert!(handled, "{name} skipped a job");
        assert_eq!(*self.record.announced.lock(), end, "{name}");
        assert_eq!(handle.last_processed_index(), Some(end - 1), "{name}");
    }
}

fn wait(streams: &[Stream], consumers: &[Consumer], end: Index) {
    for (stream, consumer) in streams.iter().zip(consumers) {
        let handle = consumer.handle();
        assert!(handle.wait_for(end - 1, LONG), "{}: {:#?}", stream.name(), handle.status());
    }
}

/// Returns the resident memory of this process in KiB, or 0 where the system does not tell.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Stops every third consumer in mid-stream, in one of three ways, and restarts it while the others
/// go on.
fn restart_some(streams: &[Stream], consumers: Vec<Consumer>, store: &Store) -> Vec<Consumer> {
    let restart = |(stream, old): (&Stream, Consumer)| {
        if !stream.number.is_multiple_of(3) {
            return old;
        }
        stream.push_until(JOBS * 3 / 4);
        let handle = old.handle();
        let _ = handle.wait_for(JOBS / 2 + stream.number % (JOBS / 4), Duration::from_micros(stream.number % 200));
        match stream.number % 9 {
            0 => old.stop().unwrap(),
            3 => drop(old),
            _ => {
                handle.request_stop();
                old.join().unwrap();
            }
        }
        assert_eq!(handle.status().state, State::Finished);
        stream.start(store)
    };
    streams.iter().zip(consumers).map(restart).collect()
}

#[test]
fn a_thousand_consumers_on_one_store() {
    let _alone = crate::ONE_AT_A_TIME.lock();
    let (store, place) = a_store();
    let (threads, before) = (own_threads(), resident());
    assert_eq!(threads, 0, "nothing was started yet");
    let many = size(100, 1000);
    let streams: Vec<Stream> = (0..many).map(Stream::new).collect();
    let consumers: Vec<Consumer> = streams.iter().map(|stream| stream.start(&store)).collect();
    let each = |resident: u64| resident.saturating_sub(before) as f64 / many as f64;
    println!("never had a job: {} threads, {:.1} KiB resident each", own_threads(), each(resident()));

    streams.iter().for_each(|stream| stream.push_until(JOBS / 2));
    wait(&streams, &consumers, JOBS / 2);
    println!("idle after {} jobs: {} threads, {:.1} KiB resident each", JOBS / 2, own_threads(), each(resident()));
    let consumers = restart_some(&streams, consumers, &store);
    streams.iter().for_each(|stream| stream.push_until(JOBS));
    let busy = own_threads();
    println!("busy: {busy} threads");
    assert!(busy <= THREADS_EACH * many + 1, "{busy} threads");
    wait(&streams, &consumers, JOBS);
    assert!(own_threads() <= THREADS_EACH * many + 1, "{} threads", own_threads());

    let handles: Vec<Handle> = consumers.iter().map(Consumer::handle).collect();
    handles.iter().for_each(Handle::request_stop);
    consumers.into_iter().for_each(|consumer| consumer.stop().unwrap());
    streams.iter().zip(&handles).for_each(|(stream, handle)| stream.check(JOBS, handle));
    let last =
        |store: &Store| streams.iter().all(|s| store.progress(s.name()).last_processed().unwrap() == Some(JOBS - 1));
    assert!(last(&store), "each name's watermark is its last index");
    eventually("the store's writer alone is left", || own_threads() <= 1);
    drop(store);
    eventually("no thread is left", || own_threads() == 0);
    assert!(last(&place.open()), "and in the next life");
}
