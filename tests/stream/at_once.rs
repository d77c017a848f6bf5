//! Several reads of a source at once: in any order, in part failing, given up, or for ever under
//! way. Each test runs with a source of functions and, where there is a runtime, with one of
//! futures.

use common::*;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};
use std::time::Duration;
use waterline::{
    Blocked, BoxError, Builder, ConfigError, Consumer, Error, Handle, Index, Job, Jobs, MemoryProgress, Retry, Sparse,
};

/// The answer to a read.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Job,
    Null,
    Error,
}

/// A source whose reads of one index wait until the test answers them.
#[derive(Debug, Default)]
struct Node {
    head: AtomicU64,
    state: Mutex<State>,
    answered: Condvar,
    /// Asked for the status by the destructors of errors.
    handle: OnceLock<Handle>,
}

/// An error whose destructor asks for the status, as a user's may.
#[derive(Debug)]
struct Refused(Arc<Node>);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no route to the node")
    }
}

impl std::error::Error for Refused {}

impl Drop for Refused {
    fn drop(&mut self) {
        self.0.handle.get().into_iter().for_each(|handle| drop(handle.status()));
    }
}

#[derive(Debug, Default)]
struct State {
    /// The reads under way.
    asked: BTreeMap<Index, Option<Waker>>,
    answers: BTreeMap<Index, Answer>,
    /// How often each index was read.
    made: BTreeMap<Index, u64>,
}

impl Node {
    fn up_to(head: Index) -> Arc<Self> {
        watch();
        Arc::new(Self { head: AtomicU64::new(head), ..Self::default() })
    }

    /// The indices whose reads are under way.
    fn asked(&self) -> Vec<Index> {
        self.state.lock().asked.keys().copied().collect()
    }

    fn await_asked(&self, indices: &[Index]) {
        eventually(&format!("{indices:?} are read"), || self.asked() == indices);
    }

    fn made(&self, index: Index) -> u64 {
        self.state.lock().made.get(&index).copied().unwrap_or_default()
    }

    fn answer(&self, index: Index, answer: Answer) {
        let mut state = self.state.lock();
        state.answers.insert(index, answer);
        let waker = state.asked.get(&index).unwrap_or_else(|| panic!("{index} is not read")).clone();
        drop(state);
        self.answered.notify_all();
        waker.into_iter().for_each(Waker::wake);
    }

    fn begin(self: &Arc<Self>, index: Index) -> Read {
        let mut state = self.state.lock();
        assert!(state.asked.insert(index, None).is_none(), "{index} is read twice at once");
        *state.made.entry(index).or_default() += 1;
        Read(self.clone(), index)
    }
}

/// A read under way.
struct Read(Arc<Node>, Index);

impl Drop for Read {
    fn drop(&mut self) {
        self.0.state.lock().asked.remove(&self.1);
    }
}

impl Read {
    fn poll(&self, waker: Option<&Waker>) -> Poll<Result<Option<Index>, BoxError>> {
        let mut state = self.0.state.lock();
        loop {
            match (state.answers.remove(&self.1), waker) {
                (Some(Answer::Job), _) => return Poll::Ready(Ok(Some(self.1))),
                (Some(Answer::Null), _) => return Poll::Ready(Ok(None)),
                (Some(Answer::Error), _) => return Poll::Ready(Err(Box::new(Refused(self.0.clone())))),
                (None, Some(waker)) => {
                    state.asked.insert(self.1, Some(waker.clone()));
                    return Poll::Pending;
                }
                (None, None) => self.0.answered.wait(&mut state),
            }
        }
    }
}

#[derive(Clone)]
struct Functions(Arc<Node>);

impl Jobs for Functions {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(self.0.head.load(Ordering::SeqCst)))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        let Poll::Ready(answer) = self.0.begin(index).poll(None) else { unreachable!("it waits") };
        answer
    }
}

#[cfg(feature = "tokio")]
mod futures {
    use super::*;
    use tokio::runtime::Runtime;
    use waterline::AsyncJobs;

    pub(super) struct Futures(pub(super) Arc<Node>);

    impl AsyncJobs for Futures {
        type Job = Index;

        async fn head(&self) -> Result<Option<Index>, BoxError> {
            Ok(Some(self.0.head.load(Ordering::SeqCst)))
        }

        async fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
            let read = self.0.begin(index);
            std::future::poll_fn(|context| read.poll(Some(context.waker()))).await
        }
    }

    struct FutureRows(Rows);

    impl AsyncJobs for FutureRows {
        type Job = Index;

        async fn head(&self) -> Result<Option<Index>, BoxError> {
            Ok(Some(LAST))
        }

        async fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
            Ok(self.0.has_row(index).then_some(index))
        }

        async fn read_sparse(
            &self,
            run: RangeInclusive<Index>,
            most: usize,
            into: &mut Sparse<Index>,
        ) -> Result<(), BoxError> {
            let (takes, said) = self.0.answer(&run, most, into);
            for _ in 0..takes {
                tokio::task::yield_now().await;
            }
            said
        }
    }

    pub(super) fn rows(rows: Rows) -> Source {
        Arc::new(FutureRows(rows).on(runtime().handle()))
    }

    pub(super) fn runtime() -> &'static Runtime {
        static RUNTIME: OnceLock<Runtime> = OnceLock::new();
        RUNTIME.get_or_init(|| Runtime::new().unwrap())
    }
}

type Source = Arc<dyn Jobs<Job = Index>>;

/// Runs a test with each kind of source.
fn with_each(head: Index, test: impl Fn(&Arc<Node>, Source)) {
    let node = Node::up_to(head);
    test(&node, Arc::new(Functions(node.clone())));
    #[cfg(feature = "tokio")]
    {
        use waterline::AsyncJobs as _;
        let node = Node::up_to(head);
        test(&node, Arc::new(futures::Futures(node.clone()).on(futures::runtime().handle())));
    }
}

/// A consumer with four reads at once, and the jobs that have run.
fn four(source: Source) -> (Builder<Source, MemoryProgress>, Arc<Mutex<Vec<Index>>>) {
    let builder = builder(source, &MemoryProgress::new()).max_processing(8).max_reading(4);
    // No poll wakes a reader that has missed something.
    (builder.source_retry(Retry::fixed(Duration::from_millis(1))).poll_every(HOUR), Arc::default())
}

fn start(builder: Builder<Source, MemoryProgress>, ran: &Arc<Mutex<Vec<Index>>>) -> Consumer {
    let ran = ran.clone();
    let work = move |job: Job<Index>| {
        ran.lock().push(job.payload);
        Ok(())
    };
    builder.start(work).unwrap()
}

fn sorted(ran: &Mutex<Vec<Index>>) -> Vec<Index> {
    let mut ran = ran.lock().clone();
    ran.sort_unstable();
    ran
}

#[test]
fn answers_in_any_order_run_in_index_order() {
    with_each(5, |node, source| {
        let (builder, ran) = four(source);
        let consumer = start(builder.max_search_ahead(100).stop_at(5), &ran);
        node.await_asked(&[0, 1, 2, 3]);
        node.answer(2, Answer::Job);
        node.await_asked(&[0, 1, 3, 4]);
        node.answer(1, Answer::Job);
        node.await_asked(&[0, 3, 4, 5]);
        rest();
        assert_eq!(ran.lock().len(), 0, "job 0 is not there");
        node.answer(0, Answer::Job);
        eventually("three have run", || sorted(&ran) == [0, 1, 2]);
        [5, 3, 4].into_iter().for_each(|index| node.answer(index, Answer::Job));
        consumer.join().unwrap();
        assert_eq!(sorted(&ran), [0, 1, 2, 3, 4, 5]);
        assert!((0..=5).all(|index| node.made(index) == 1));
    });
}

#[test]
fn a_failed_or_missing_read_is_made_again_by_itself() {
    with_each(9, |node, source| {
        let (builder, ran) = four(source);
        let consumer = start(builder.stop_at(9), &ran);
        node.handle.set(consumer.handle()).unwrap();
        node.await_asked(&[0, 1, 2, 3]);
        node.answer(1, Answer::Error);
        eventually("1 is read again", || node.made(1) == 2);
        node.answer(2, Answer::Null);
        node.answer(0, Answer::Job);
        // All others are answered as they are read, while 1 and 2 are waited for.
        for index in 3..=9 {
            eventually("the others are read", || node.asked().contains(&index));
            node.answer(index, Answer::Job);
        }
        eventually("2 is read again", || node.made(2) == 2 && node.asked() == [1, 2]);
        rest();
        assert_eq!(sorted(&ran), [0]);
        let source = consumer.handle().status().source;
        [1, 2].into_iter().for_each(|index| node.answer(index, Answer::Job));
        let handle = consumer.handle();
        consumer.join().unwrap();
        assert_eq!((sorted(&ran), source.failed_in_a_row), ((0..=9).collect(), 0));
        let source = handle.status().source;
        assert_eq!(source.failed, 1, "{source:?}");
    });
}

#[test]
fn the_lowest_missing_read_is_named() {
    with_each(9, |node, source| {
        let clock = Time::new();
        let (builder, ran) = four(source);
        let consumer = start(builder.clock(clock.clock()).stop_at(9), &ran);
        node.await_asked(&[0, 1, 2, 3]);
        node.answer(0, Answer::Job);
        eventually("job 0 runs", || sorted(&ran) == [0]);
        node.await_asked(&[1, 2, 3, 4]);
        clock.pass(Duration::from_secs(75));
        let status = until(&consumer.handle(), "the source is named", |status| {
            matches!(status.blocked, Blocked::Source { index: 1, .. })
        });
        assert_eq!(status.source_fails_for, Some(Duration::from_secs(75)), "{status}");
        for index in 1..=9 {
            eventually("it is read", || node.asked().contains(&index));
            node.answer(index, Answer::Job);
        }
        consumer.join().unwrap();
    });
}

#[test]
fn failed_jobs_are_read_beside_a_hanging_read() {
    with_each(9, |node, source| {
        let (builder, ran) = four(source);
        let (seen, failed) = (ran.clone(), AtomicUsize::new(0));
        let work = move |job: Job<Index>| {
            if job.payload == 0 && failed.fetch_add(1, Ordering::SeqCst) < 3 {
                return Err("no".into());
            }
            seen.lock().push(job.payload);
            Ok(())
        };
        let consumer = builder.retry(Retry::fixed(Duration::from_millis(1))).stop_at(9).start(work).unwrap();
        node.await_asked(&[0, 1, 2, 3]);
        node.answer(0, Answer::Job);
        // Read 1 is not answered, and the others are.
        for index in 2..=9 {
            eventually("it is read", || node.asked().contains(&index));
            node.answer(index, Answer::Job);
        }
        for attempt in 2..=4 {
            eventually("job 0 is read again", || node.made(0) == attempt && node.asked() == [0, 1]);
            node.answer(0, Answer::Job);
        }
        eventually("job 0 is done", || sorted(&ran) == [0]);
        node.answer(1, Answer::Job);
        consumer.join().unwrap();
        assert_eq!(sorted(&ran), (0..=9).collect::<Vec<_>>());
    });
}

#[test]
fn one_worker_stays_free_for_a_job() {
    let node = Node::up_to(20);
    let source: Source = Arc::new(Functions(node.clone()));
    let (builder, ran) = four(source);
    let consumer = start(builder.max_processing(3).max_reading(16).stop_at(20), &ran);
    // Two of three workers, and the reader for what nobody else reads.
    eventually("they are read", || node.asked().len() >= 2);
    rest();
    assert!((2..=3).contains(&node.asked().len()), "{:?}", node.asked());
    for index in 0..=20 {
        eventually("it is read", || node.asked().contains(&index));
        node.answer(index, Answer::Job);
    }
    consumer.join().unwrap();
    assert_eq!(sorted(&ran), (0..=20).collect::<Vec<_>>());
}

#[test]
fn max_reading_of_zero_is_refused() {
    let refused = Consumer::builder(numbers(3), MemoryProgress::new()).max_reading(0).start(|_| Ok(()));
    assert!(matches!(refused, Err(Error::Config(ConfigError::Zero { .. }))), "{refused:?}");
}

/// Rows with gaps. A read takes a moment, and brings some rows, none, or an error, as the seed and
/// its number say.
struct Rows {
    seed: u64,
    calls: AtomicU64,
}

const LAST: Index = 1_000;

impl Rows {
    fn chance(&self, number: u64, of: u64) -> u64 {
        let mixed = (number ^ self.seed.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33) % of
    }

    fn has_row(&self, index: Index) -> bool {
        // Dense, then sparse.
        index <= LAST && (index < LAST / 2 || self.chance(index, 23) == 0)
    }

    /// Returns how often the read gives way before it returns, and what it says.
    fn answer(
        &self,
        run: &RangeInclusive<Index>,
        most: usize,
        into: &mut Sparse<Index>,
    ) -> (u64, Result<(), BoxError>) {
        let chance = self.chance(self.calls.fetch_add(1, Ordering::SeqCst), 1 << 20);
        let takes = chance % 7 * 20;
        let rows = match chance % 64 {
            0..5 => return (takes, Err("no route to the node".into())),
            5..8 => return (takes, Ok(())),
            8..20 => 1,
            _ => usize::MAX,
        };
        let mut found = (*run.start()..=LAST).filter(|index| self.has_row(*index));
        for _ in 0..most.min(rows) {
            let row = found.next().unwrap_or(LAST + 1);
            if row > *run.end() {
                into.none_through(row - 1);
                break;
            }
            into.job(row, row);
        }
        (takes, Ok(()))
    }
}

impl Jobs for Rows {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(LAST))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok(self.has_row(index).then_some(index))
    }

    fn read_sparse(&self, run: RangeInclusive<Index>, most: usize, into: &mut Sparse<Index>) -> Result<(), BoxError> {
        let (takes, said) = self.answer(&run, most, into);
        (0..takes).for_each(|_| std::thread::yield_now());
        said
    }
}

#[test]
fn hostile_reads_in_any_order_lose_and_double_nothing() {
    watch();
    for seed in seeds(2, 300) {
        let rows = || Rows { seed, calls: AtomicU64::new(0) };
        let mut sources: Vec<Source> = vec![Arc::new(rows())];
        #[cfg(feature = "tokio")]
        sources.push(futures::rows(rows()));
        for source in sources {
            let (builder, ran) = four(source);
            let (calls, failed) = (2 + seed as usize % 7, AtomicU64::new(0));
            let (seen, announced) = (ran.clone(), Arc::new(Mutex::new(Vec::new())));
            let work = move |job: Job<Index>| {
                // Some jobs are read again.
                if job.attempt == 1 && failed.fetch_add(1, Ordering::SeqCst) % 17 == 0 {
                    return Err("no".into());
                }
                seen.lock().push(job.payload);
                Ok(())
            };
            let told = announced.clone();
            let builder = builder.max_reading(calls).retry(Retry::fixed(Duration::ZERO)).stop_at(LAST);
            let consumer = builder.on_processed(move |run| told.lock().extend(run)).start(work).unwrap();
            let handle = consumer.handle();
            consumer.join().unwrap();
            let expected: Vec<_> = (0..=LAST).filter(|index| rows().has_row(*index)).collect();
            assert_eq!(sorted(&ran), expected, "seed {seed}");
            assert_eq!(handle.status().absent, LAST + 1 - expected.len() as u64, "seed {seed}");
            assert!(announced.lock().iter().copied().eq(0..=LAST), "seed {seed}");
        }
    }
}

#[cfg(feature = "tokio")]
#[test]
fn each_call_has_its_own_timeout() {
    use waterline::AsyncJobs as _;
    let node = Node::up_to(9);
    let source: Source = Arc::new(futures::Futures(node.clone()).on(futures::runtime().handle()));
    let (builder, ran) = four(source);
    let consumer = start(builder.source_timeout(Duration::from_millis(50)).stop_at(9), &ran);
    node.await_asked(&[0, 1, 2, 3]);
    eventually("all are given up, and the lowest is read again", || node.made(0) >= 2);
    let handle = consumer.handle();
    let told = until(&handle, "the timeout is named", |status| status.to_string().contains("raise source_timeout"));
    assert!(matches!(told.blocked, Blocked::Source { index: 0, .. }), "{told}");
    // A source that answers at once is read to its end.
    while handle.last_processed_index() < Some(9) {
        let asked = node.asked();
        let mut state = node.state.lock();
        asked.iter().for_each(|index| _ = state.answers.insert(*index, Answer::Job));
        let wakers: Vec<_> = state.asked.values().flatten().cloned().collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        std::thread::yield_now();
    }
    consumer.join().unwrap();
    assert_eq!(sorted(&ran), (0..=9).collect::<Vec<_>>());
}

#[cfg(feature = "tokio")]
#[test]
fn a_stop_drops_the_reads_and_the_source() {
    use waterline::AsyncJobs as _;
    let node = Node::up_to(9);
    let source: Source = Arc::new(futures::Futures(node.clone()).on(futures::runtime().handle()));
    let (builder, ran) = four(source);
    let consumer = start(builder, &ran);
    node.await_asked(&[0, 1, 2, 3]);
    consumer.stop().unwrap();
    assert_eq!((node.asked(), Arc::strong_count(&node)), (vec![], 1));
}

#[cfg(feature = "tokio")]
#[test]
fn a_runtime_that_shuts_down_ends_no_consumer() {
    use waterline::AsyncJobs as _;
    let node = Node::up_to(9);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let source: Source = Arc::new(futures::Futures(node.clone()).on(runtime.handle()));
    let (builder, ran) = four(source);
    let consumer = start(builder, &ran);
    node.await_asked(&[0, 1, 2, 3]);
    runtime.shutdown_background();
    let status = until(&consumer.handle(), "it is named", |status| matches!(status.blocked, Blocked::Source { .. }));
    assert!(status.to_string().contains("runtime"), "{status}");
    consumer.stop().unwrap();
    assert_eq!((node.asked(), Arc::strong_count(&node)), (vec![], 1));
}
