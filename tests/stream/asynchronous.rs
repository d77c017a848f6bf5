//! Jobs that are futures on a tokio runtime (`start_async`).

use common::*;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use waterline::{BoxError, Consumer, Error, MemoryProgress, Retry, State, Store};

fn threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

/// A runtime without a thread: only `block_on` drives it.
fn undriven() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

/// Jobs that wait for the test's permits.
#[derive(Clone)]
struct Held {
    go: Arc<Semaphore>,
    begun: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
}

struct Counts(Arc<AtomicUsize>);

impl Drop for Counts {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Held {
    fn new() -> Self {
        Self { go: Arc::new(Semaphore::new(0)), begun: Arc::default(), dropped: Arc::default() }
    }

    fn job(&self) -> impl Future<Output = Result<(), BoxError>> + Send + 'static + use<> {
        let Self { go, begun, dropped } = self.clone();
        async move {
            let _counts = Counts(dropped);
            begun.fetch_add(1, Ordering::SeqCst);
            go.acquire().await?.forget();
            Ok(())
        }
    }

    fn begun(&self, jobs: usize) {
        eventually("jobs that begin", || self.begun.load(Ordering::SeqCst) == jobs);
    }
}

/// A job of a life that resumes above job 0.
async fn is_not_job_0(job: waterline::Job<u64>) -> Result<(), BoxError> {
    if job.index > 0 { Ok(()) } else { Err("job 0 was done".into()) }
}

#[test]
fn ten_thousand_jobs_run_on_a_few_threads() {
    const JOBS: usize = 10_000;
    let (runtime, held) = (threads(), Held::new());
    let before = all_threads();
    let jobs = held.clone();
    let consumer = builder(numbers(JOBS as u64), &MemoryProgress::new())
        .max_processing(JOBS)
        .max_search_ahead(JOBS as u64)
        .stop_at(JOBS as u64 - 1)
        .start_async(runtime.handle(), move |_| jobs.job())
        .unwrap();
    held.begun(JOBS);
    assert_eq!(consumer.handle().status().processing, JOBS);
    // It needs three threads; the slack is for tests that run at the same time.
    let few = JOBS / 10;
    assert!(own_threads() < few, "{} threads of consumers", own_threads());
    assert!(all_threads() < before + few, "{before} threads before, {} now", all_threads());
    held.go.add_permits(JOBS);
    consumer.join().unwrap();
}

/// A future that is ready at its first poll is as short as a function, and one that is not goes on
/// as a task. Both are taken in turn, in any mixture, also across a stop.
#[test]
fn ready_and_waiting_futures_run_once_and_never_too_many_at_a_time() {
    #[derive(Default)]
    struct Seen {
        done: Mutex<Vec<u64>>,
        running: AtomicUsize,
        most: AtomicUsize,
    }
    const JOBS: u64 = 20_000;
    let runtime = threads();
    for (waiting, most) in [(0, 2), (1, 3), (20, 8), (500, 64), (1_000, 3)] {
        let (seen, progress) = (Arc::new(Seen::default()), MemoryProgress::new());
        // The first life stops without a job that failed, so none of its jobs runs again.
        for end in [JOBS / 2, JOBS - 1] {
            let all = seen.clone();
            let consumer = builder(numbers(JOBS), &progress)
                .max_processing(most)
                .retry(Retry::fixed(Duration::ZERO))
                .stop_at(JOBS - 1)
                .start_async(runtime.handle(), move |job| {
                    let (seen, mut random) = (all.clone(), fastrand::Rng::with_seed(job.index));
                    async move {
                        let running = 1 + seen.running.fetch_add(1, Ordering::SeqCst);
                        seen.most.fetch_max(running, Ordering::SeqCst);
                        if random.u32(..1_000) < waiting {
                            for _ in 0..random.u32(1..4) {
                                tokio::task::yield_now().await;
                            }
                        }
                        let fails = end == JOBS - 1 && job.attempt == 1 && random.u32(..500) == 0;
                        if !fails {
                            seen.done.lock().push(job.index);
                        }
                        seen.running.fetch_sub(1, Ordering::SeqCst);
                        if fails { Err("not yet".into()) } else { Ok(()) }
                    }
                })
                .unwrap();
            assert!(consumer.handle().wait_for(end, LONG), "{waiting}: {:?}", consumer.handle().status());
            consumer.stop().unwrap();
        }
        let mut done = std::mem::take(&mut *seen.done.lock());
        done.sort_unstable();
        let odd = done.iter().zip(0..).find(|(index, nth)| *index != nth);
        assert_eq!((done.len() as u64, odd), (JOBS, None), "{waiting} of a thousand wait");
        let at_once = seen.most.load(Ordering::SeqCst);
        assert!(at_once <= most, "{at_once} of {most} at a time");
    }
}

/// Returns the number of threads of this process, or 0 where the system does not tell.
fn all_threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

#[test]
fn an_observed_job_runs_in_the_runtimes_context() {
    let (runtime, held) = (threads(), Held::new());
    let jobs = held.clone();
    let consumer = builder(numbers(2), &MemoryProgress::new())
        .max_processing(2)
        .observe(|_: &waterline::Event<'_>| ())
        .start_async(runtime.handle(), move |job| {
            // This panics outside of a runtime's context.
            let spawned = tokio::spawn(async {});
            let held = jobs.job();
            async move {
                spawned.await?;
                if job.index == 0 { Ok(()) } else { held.await }
            }
        })
        .unwrap();
    let handle = consumer.handle();
    until(&handle, "job 0", |status| status.done == 1);
    held.begun(1);
    assert!(matches!(consumer.stop_within(Duration::ZERO), Err(Error::StopTimeout { .. })));
    eventually("the drop of the future", || held.dropped.load(Ordering::SeqCst) == 1);
}

/// A future that panics in its poll, and again when it is dropped.
struct PanicsTwice(bool);

impl Future for PanicsTwice {
    type Output = Result<(), BoxError>;

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        if std::mem::replace(&mut self.0, false) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        panic!("in the poll")
    }
}

impl Drop for PanicsTwice {
    fn drop(&mut self) {
        panic!("in the destructor")
    }
}

/// Runs one job, which has to fail, and returns its error.
fn failure<F>(runtime: &Runtime, run: impl Fn(waterline::Job<u64>) -> F + Send + Sync + 'static) -> Error
where
    F: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    builder(numbers(1), &MemoryProgress::new()).start_async(runtime.handle(), run).unwrap().join().unwrap_err()
}

#[test]
fn a_panic_around_a_future_fails_its_job_alone() {
    let runtime = threads();
    let no_future = |job: waterline::Job<u64>| {
        assert!(job.index > 0, "no future for job 0");
        async { Ok(()) }
    };
    let mut failures = vec![(failure(&runtime, no_future), "no future for job 0")];
    for late in [false, true] {
        let panics = move |_| async move {
            if late {
                tokio::task::yield_now().await;
            }
            panic!("the job has had enough")
        };
        failures.push((failure(&runtime, panics), "the job has had enough"));
        failures.push((failure(&runtime, move |_| PanicsTwice(late)), "in the poll"));
    }
    for (error, panic) in failures {
        assert!(matches!(error, Error::Job { index: 0, attempt: 1, .. }), "{error:?}");
        assert!(error.report().ends_with(&format!(": panicked: {panic}")), "{error:?}");
    }
}

#[test]
fn a_shut_down_runtime_is_refused_at_the_start() {
    let store = Store::in_memory();
    for runtime in [threads(), undriven()] {
        let handle = runtime.handle().clone();
        drop(runtime);
        let error =
            Consumer::builder(numbers(1), store.progress("p")).start_async(&handle, |_| async { Ok(()) }).unwrap_err();
        assert!(matches!(error, Error::Runtime), "{error:?}");
    }
    Consumer::builder(numbers(1), store.progress("p")).stop_at(0).start(|_| Ok(())).unwrap().join().unwrap();
}

#[test]
fn a_runtime_dropped_under_its_jobs_halts() {
    for runtime in [threads(), undriven()] {
        let (held, store) = (Held::new(), Store::in_memory());
        let jobs = held.clone();
        let consumer = Consumer::builder(numbers(9), store.progress("p"))
            .max_processing(4)
            .retry(Retry::fixed(Duration::ZERO))
            .start_async(runtime.handle(), move |job| {
                let held = jobs.job();
                async move { if job.index == 0 { Ok(()) } else { held.await } }
            })
            .unwrap();
        held.begun(4);
        let handle = consumer.handle();
        assert!(handle.wait_for(0, LONG));
        held.begun(4);
        drop(runtime);
        let error = consumer.join().unwrap_err();
        let Error::Job { source, .. } = &error else { panic!("{error:?}") };
        assert!(matches!(source.downcast_ref(), Some(Error::Runtime)), "{error:?}");
        assert!(error.report().contains("is not tried again") && error.report().contains("runtime has shut down"));
        assert_eq!(handle.status().state, State::Halted);
        assert_eq!(store.progress("p").last_processed().unwrap(), Some(0));
        let next = threads();
        Consumer::builder(numbers(9), store.progress("p"))
            .stop_at(8)
            .start_async(next.handle(), is_not_job_0)
            .unwrap()
            .join()
            .unwrap();
    }
}

#[test]
fn a_job_that_shuts_its_runtime_down_halts() {
    let (runtime, kept) = (threads(), Arc::new(Mutex::new(None)));
    let handle = runtime.handle().clone();
    *kept.lock() = Some(runtime);
    let consumer = builder(numbers(500), &MemoryProgress::new())
        .max_processing(10)
        .start_async(&handle, move |job| {
            let kept = kept.clone();
            async move {
                tokio::task::yield_now().await;
                if job.index < 100 {
                    return Ok(());
                }
                if job.index == 100 {
                    kept.lock().take().unwrap().shutdown_background();
                }
                // A thread of the runtime may poll a few more tasks before it sees the shutdown.
                std::future::pending().await
            }
        })
        .unwrap();
    let handle = consumer.handle();
    let error = consumer.join().unwrap_err();
    let Error::Job { source, .. } = &error else { panic!("{error:?}") };
    assert!(matches!(source.downcast_ref(), Some(Error::Runtime)), "{error:?}");
    assert!(handle.last_processed_index() < Some(100));
}

#[test]
fn an_undriven_runtime_runs_only_ready_futures() {
    let (runtime, progress) = (undriven(), MemoryProgress::new());
    let consumer = builder(numbers(10), &progress)
        .max_processing(10)
        .stop_at(9)
        .start_async(runtime.handle(), |job| async move {
            if job.index >= 5 {
                tokio::task::yield_now().await;
            }
            Ok(())
        })
        .unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(4, LONG));
    until(&handle, "five jobs in flight", |status| status.processing == 5);
    runtime.block_on(async {
        while handle.last_processed_index() != Some(9) {
            tokio::task::yield_now().await;
        }
    });
    consumer.join().unwrap();
}

#[test]
fn a_timer_on_a_runtime_without_time_fails_the_job() {
    let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let sleeps = |_| async {
        tokio::time::sleep(LIMIT).await;
        Ok(())
    };
    assert!(failure(&runtime, sleeps).report().contains("timers are disabled"));
}

#[test]
fn dropping_a_consumer_in_its_runtime_never_blocks() {
    let (runtime, held) = (undriven(), Held::new());
    let jobs = held.clone();
    let consumer = builder(numbers(3), &MemoryProgress::new())
        .max_processing(1)
        .start_async(runtime.handle(), move |_| jobs.job())
        .unwrap();
    held.begun(1);
    let handle = consumer.handle();
    runtime.block_on(async {
        drop(consumer);
        assert_eq!(handle.status().state, State::Stopping);
        held.go.add_permits(1);
        while handle.status().state != State::Finished {
            tokio::task::yield_now().await;
        }
    });
    assert!(handle.wait_end(LONG).is_some());
    assert_eq!(handle.last_processed_index(), Some(0));
}

/// The waiting calls as futures, on both kinds of runtimes.
mod awaited {
    use super::*;
    use futures_util::future::{join_all, select};
    use std::pin::pin;
    use std::task::{Context, Waker};

    fn runtimes() -> [Runtime; 2] {
        [threads(), undriven()]
    }

    fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn many_tasks_wait_for_an_index_each() {
        for runtime in runtimes() {
            let (held, progress) = (Held::new(), MemoryProgress::new());
            let jobs = held.clone();
            let consumer = builder(numbers(100), &progress)
                .max_processing(1)
                .start_async(runtime.handle(), move |_| jobs.job())
                .unwrap();
            let handle = consumer.handle();
            let came = runtime.block_on(async {
                let waiters = (0..200).map(|index| {
                    let handle = handle.clone();
                    tokio::spawn(async move { handle.wait_for_async(index / 2, LONG).await })
                });
                let waiters: Vec<_> = waiters.collect();
                assert!(!handle.wait_for_async(0, Duration::ZERO).await);
                assert!(!handle.wait_for_async(0, LIMIT).await);
                held.go.add_permits(50);
                assert!(handle.wait_for_async(49, Duration::MAX).await);
                // The stop comes first: otherwise job 50 could end before it, and job 51 would wait
                // for ever.
                handle.request_stop();
                held.go.add_permits(1);
                consumer.stop_async().await.unwrap();
                join_all(waiters).await
            });
            let came: Vec<_> = came.into_iter().map(Result::unwrap).collect();
            let last = handle.last_processed_index().unwrap();
            assert!((49..=50).contains(&last));
            assert!((0..200).all(|index| came[index as usize] == (index / 2 <= last)), "{last}: {came:?}");
        }
    }

    #[test]
    fn a_dropped_wait_leaves_the_others_woken() {
        let (runtime, held) = (undriven(), Held::new());
        let jobs = held.clone();
        let consumer = builder(numbers(1), &MemoryProgress::new())
            .stop_at(0)
            .start_async(runtime.handle(), move |_| jobs.job())
            .unwrap();
        let handle = consumer.handle();
        runtime.block_on(async {
            let (stays, ends) = (handle.wait_for_async(0, Duration::MAX), handle.wait_end_async(Duration::MAX));
            let (mut stays, mut ends) = (pin!(stays), pin!(ends));
            assert!(poll_once(stays.as_mut()).is_pending() && poll_once(ends.as_mut()).is_pending());
            for _ in 0..10 {
                assert!(poll_once(pin!(handle.wait_for_async(0, LONG))).is_pending());
                assert!(poll_once(pin!(handle.wait_end_async(LONG))).is_pending());
            }
            assert_eq!(handle.status().state, State::Running);
            held.go.add_permits(1);
            // Polled with another waker than at first.
            assert!(stays.await);
            assert_eq!(ends.await.unwrap().state, State::Finished);
        });
        consumer.join().unwrap();
    }

    #[test]
    fn the_end_is_awaited_without_a_thread() {
        for runtime in runtimes() {
            let start = |fails: bool| {
                builder(numbers(10), &MemoryProgress::new())
                    .stop_at(9)
                    .start_async(runtime.handle(), move |job| async move {
                        tokio::task::yield_now().await;
                        if fails && job.index == 3 { Err("refused".into()) } else { Ok(()) }
                    })
                    .unwrap()
            };
            runtime.block_on(async {
                start(false).join_async().await.unwrap();
                let halts = start(true);
                let handle = halts.handle();
                let error = halts.join_async().await.unwrap_err();
                assert!(matches!(error, Error::Job { index: 3, .. }), "{error:?}");
                let ended = handle.wait_end_async(LONG).await.unwrap();
                assert_eq!((ended.state, ended.error), (State::Halted, Some(error.report())));
                let halts = start(true);
                assert_eq!(halts.handle().wait_end_async(LONG).await.unwrap().state, State::Halted);
                assert!(matches!(halts.stop_async().await, Err(Error::Job { index: 3, .. })));
            });
        }
    }

    #[test]
    fn a_stop_awaits_jobs_on_a_single_thread() {
        let (runtime, held, progress) = (undriven(), Held::new(), MemoryProgress::new());
        let jobs = held.clone();
        let consumer = builder(numbers(100), &progress)
            .max_processing(4)
            .start_async(runtime.handle(), move |_| jobs.job())
            .unwrap();
        held.begun(4);
        runtime.block_on(async {
            let mut stop = pin!(consumer.stop_async());
            assert!(poll_once(stop.as_mut()).is_pending());
            held.go.add_permits(4);
            stop.await.unwrap();
        });
        assert_eq!(progress.last_processed(), Some(3));
    }

    #[test]
    fn stop_within_drops_running_futures_and_names_them() {
        for runtime in runtimes() {
            for limit in [Duration::ZERO, LIMIT] {
                let (held, progress) = (Held::new(), MemoryProgress::new());
                let jobs = held.clone();
                let consumer = builder(numbers(9), &progress)
                    .max_processing(3)
                    .start_async(runtime.handle(), move |_| jobs.job())
                    .unwrap();
                held.begun(3);
                let handle = consumer.handle();
                runtime.block_on(async {
                    let error = consumer.stop_within_async(limit).await.unwrap_err();
                    assert!(matches!(&error, Error::StopTimeout { running } if *running == [0, 1, 2]), "{error:?}");
                    assert!(handle.wait_end_async(LONG).await.is_some());
                    while held.dropped.load(Ordering::SeqCst) < 3 {
                        tokio::task::yield_now().await;
                    }
                });
                // The last of them is reported a moment later.
                let again = || builder(numbers(9), &progress).start_async(runtime.handle(), |_| async { Ok(()) });
                eventually("the name", || again().is_ok());
            }
            // Without a job in flight the stop completes. Its threads have a second to end, which a
            // stalled machine may use up, but not every time.
            let is_complete = || {
                let consumer = builder(numbers(3), &MemoryProgress::new())
                    .start_async(runtime.handle(), |_| async { Ok(()) })
                    .unwrap();
                assert!(consumer.handle().wait_for(2, LONG));
                let begun = Instant::now();
                let stopped = runtime.block_on(consumer.stop_within_async(Duration::ZERO));
                assert!(stopped.is_ok() || begun.elapsed() >= Duration::from_secs(1), "{stopped:?}");
                stopped.is_ok()
            };
            assert!((0..5).any(|_| is_complete()));
        }
    }

    #[test]
    fn a_dropped_stop_or_join_never_blocks() {
        for kind in 0..4 {
            let (runtime, held) = (undriven(), Held::new());
            let jobs = held.clone();
            let consumer = builder(numbers(2), &MemoryProgress::new())
                .max_processing(1)
                // Not a job on the runtime, so a destructor that waits would hang for ever.
                .start(move |_| {
                    jobs.begun.fetch_add(1, Ordering::SeqCst);
                    while jobs.go.try_acquire().map(tokio::sync::SemaphorePermit::forget).is_err() {
                        std::thread::yield_now();
                    }
                    Ok(())
                })
                .unwrap();
            held.begun(1);
            let handle = consumer.handle();
            runtime.block_on(async {
                match kind {
                    0 => drop(consumer.stop_async()),
                    1 => assert!(poll_once(pin!(consumer.stop_async())).is_pending()),
                    2 => assert!(poll_once(pin!(consumer.join_async())).is_pending()),
                    _ => assert!(poll_once(pin!(consumer.stop_within_async(LONG))).is_pending()),
                }
                assert_eq!(handle.status().state, State::Stopping);
                held.go.add_permits(1);
                assert_eq!(handle.wait_end_async(LONG).await.unwrap().state, State::Finished);
            });
            assert_eq!(handle.last_processed_index(), Some(0));
        }
    }

    #[test]
    fn a_join_ends_when_a_handle_requests_a_stop() {
        let runtime = undriven();
        let consumer =
            builder(numbers(1), &MemoryProgress::new()).start_async(runtime.handle(), |_| async { Ok(()) }).unwrap();
        let handle = consumer.handle();
        runtime.block_on(async {
            let join = pin!(consumer.join_async());
            let came = pin!(handle.wait_for_async(0, LONG));
            let futures_util::future::Either::Right((true, join)) = select(join, came).await else {
                panic!("the consumer follows its source")
            };
            handle.request_stop();
            join.await.unwrap();
        });
    }

    #[test]
    fn a_job_that_awaits_its_own_end_is_answered_at_once() {
        let (runtime, kept) = (undriven(), Arc::new(Mutex::new(None::<Consumer>)));
        let (jobs, (told, tells)) = (kept.clone(), crossbeam_channel::bounded(1));
        let consumer = builder(numbers(1), &MemoryProgress::new())
            .start_async(runtime.handle(), move |_| {
                let (kept, told) = (jobs.clone(), told.clone());
                async move {
                    tokio::task::yield_now().await;
                    let consumer = kept.lock().take().expect("the runtime is driven later");
                    let early = consumer.handle().wait_end_async(LONG).await;
                    told.send((early, consumer.stop_async().await))?;
                    Ok(())
                }
            })
            .unwrap();
        let handle = consumer.handle();
        *kept.lock() = Some(consumer);
        assert!(runtime.block_on(handle.wait_end_async(LONG)).is_some());
        let (early, stopped) = tells.recv_timeout(LONG).unwrap();
        assert!(early.is_none() && matches!(stopped, Err(Error::Config(_))), "{stopped:?}");
        assert_eq!(handle.last_processed_index(), Some(0));
    }

    #[test]
    fn waits_without_a_limit_need_no_runtime_time() {
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let consumer = builder(numbers(3), &MemoryProgress::new())
                .start_async(&tokio::runtime::Handle::current(), |_| async { Ok(()) })
                .unwrap();
            let handle = consumer.handle();
            assert!(handle.wait_for_async(2, Duration::MAX).await);
            assert!(!handle.wait_for_async(3, Duration::ZERO).await);
            consumer.stop_async().await.unwrap();
        });
    }
}

mod sources {
    use super::*;
    use std::ops::RangeInclusive;
    use waterline::testing::JobsSuite;
    use waterline::{AsyncJobs, Blocked, Gate, Index, Jobs, Sparse, Wakeup};

    /// A source behind a network: each call yields to the runtime a few times, and may wait for
    /// the test.
    #[derive(Clone)]
    struct Node(Arc<State>);

    struct State {
        first: AtomicU64,
        head: AtomicU64,
        /// The index without a job. The one of `fault` cannot be read.
        gap: AtomicU64,
        fault: AtomicU64,
        asked: AtomicUsize,
        calls: AtomicUsize,
        wakeups: Mutex<Vec<Wakeup>>,
        /// Whether calls wait for a permit of `go`.
        hold: AtomicBool,
        go: Semaphore,
    }

    impl Node {
        fn up_to(head: Index) -> Self {
            Self(Arc::new(State {
                first: AtomicU64::new(0),
                head: AtomicU64::new(head),
                gap: AtomicU64::new(u64::MAX),
                fault: AtomicU64::new(u64::MAX),
                asked: AtomicUsize::new(0),
                calls: AtomicUsize::new(0),
                wakeups: Mutex::default(),
                hold: AtomicBool::new(false),
                go: Semaphore::new(0),
            }))
        }

        async fn answers(&self) -> Result<(), BoxError> {
            let call = self.0.calls.fetch_add(1, Ordering::SeqCst);
            if self.0.hold.load(Ordering::SeqCst) {
                self.0.asked.fetch_add(1, Ordering::SeqCst);
                self.0.go.acquire().await?.forget();
            }
            match call % 3 {
                0 => {}
                1 => tokio::task::yield_now().await,
                _ => tokio::time::sleep(Duration::from_micros(call as u64 % 7 * 100)).await,
            }
            Ok(())
        }
    }

    impl AsyncJobs for Node {
        type Job = Index;

        async fn first(&self) -> Result<Index, BoxError> {
            self.answers().await?;
            Ok(self.0.first.load(Ordering::SeqCst))
        }

        async fn head(&self) -> Result<Option<Index>, BoxError> {
            self.answers().await?;
            Ok(Some(self.0.head.load(Ordering::SeqCst)))
        }

        async fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
            self.answers().await?;
            if self.0.fault.load(Ordering::SeqCst) == index {
                return Err("no connection".into());
            }
            let there = index >= self.0.first.load(Ordering::SeqCst) && index <= self.0.head.load(Ordering::SeqCst);
            Ok((there && self.0.gap.load(Ordering::SeqCst) != index).then_some(index))
        }

        fn subscribe(&self, wakeup: Wakeup) -> bool {
            self.0.wakeups.lock().push(wakeup);
            true
        }
    }

    #[test]
    fn promise_01_a_slow_async_source_runs_each_job_once() {
        let runtime = threads();
        for is_async in [false, true] {
            let (node, progress, ran) = (Node::up_to(499), MemoryProgress::new(), Arc::new(Mutex::new(Vec::new())));
            let (jobs, runs) =
                (builder(node.on(runtime.handle()), &progress).max_processing(8).stop_at(499), ran.clone());
            let run = move |job: waterline::Job<Index>| {
                assert_eq!(job.index, job.payload);
                runs.lock().push(job.index);
                Ok(())
            };
            let consumer = match is_async {
                true => jobs.start_async(runtime.handle(), move |job| std::future::ready(run(job))),
                false => jobs.start(run),
            };
            consumer.unwrap().join().unwrap();
            let mut ran = std::mem::take(&mut *ran.lock());
            ran.sort_unstable();
            assert_eq!(ran, (0..500).collect::<Vec<_>>());
            assert_eq!(progress.last_processed(), Some(499));
        }
    }

    #[test]
    fn gaps_and_errors_of_an_async_source_are_named() {
        let (runtime, node, progress) = (threads(), Node::up_to(20), MemoryProgress::new());
        node.0.gap.store(5, Ordering::SeqCst);
        node.0.fault.store(9, Ordering::SeqCst);
        let ring = |node: &Node| assert!(node.0.wakeups.lock().iter().all(Wakeup::ring));
        let consumer = builder(node.clone().on(runtime.handle()), &progress)
            .start_async(runtime.handle(), |_| async { Ok(()) })
            .unwrap();
        let handle = consumer.handle();
        until(&handle, "the gap", |status| status.blocked == Blocked::Missing { index: 5 });
        node.0.gap.store(u64::MAX, Ordering::SeqCst);
        ring(&node);
        until(
            &handle,
            "the error",
            |status| matches!(&status.blocked, Blocked::Source { index: 9, error } if error == "no connection"),
        );
        node.0.fault.store(u64::MAX, Ordering::SeqCst);
        assert!(handle.wait_for(20, LONG));
        node.0.head.store(21, Ordering::SeqCst);
        ring(&node);
        assert!(handle.wait_for(21, LONG));
        consumer.stop().unwrap();
    }

    /// A database table that is read by futures: two in three ids are missing, and a huge gap is
    /// below the last one.
    struct Rows(std::collections::BTreeSet<Index>);

    impl Rows {
        fn new(rows: u64) -> Self {
            Self((0..rows).map(|row| 5 + 3 * row + if row + 1 == rows { 1 << 50 } else { 0 }).collect())
        }
    }

    impl AsyncJobs for Rows {
        type Job = Index;

        async fn head(&self) -> Result<Option<Index>, BoxError> {
            tokio::task::yield_now().await;
            Ok(self.0.last().copied())
        }

        async fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
            tokio::task::yield_now().await;
            Ok(self.0.get(&index).copied())
        }

        async fn read_sparse(
            &self,
            run: RangeInclusive<Index>,
            most: usize,
            into: &mut Sparse<Index>,
        ) -> Result<(), BoxError> {
            let head = self.head().await?;
            let mut rows = self.0.range(run.start()..);
            for _ in 0..most {
                tokio::task::yield_now().await;
                let gap = match rows.next() {
                    Some(row) if run.contains(row) => {
                        into.job(*row, *row);
                        continue;
                    }
                    Some(row) => Some(row - 1),
                    None => head,
                };
                gap.into_iter().for_each(|last| into.none_through(last));
                break;
            }
            Ok(())
        }
    }

    #[test]
    fn an_async_source_with_gaps_keeps_the_rules() {
        let runtime = threads();
        JobsSuite::new(|rows| Rows::new(rows).on(runtime.handle())).sparse().run();

        let (rows, ran) = (Rows::new(200), Arc::new(Mutex::new(Vec::new())));
        let (all, runs) = (rows.0.clone(), ran.clone());
        let last = *all.last().unwrap();
        let consumer = builder(rows.on(runtime.handle()), &MemoryProgress::new())
            .max_processing(8)
            .stop_at(last)
            .start_async(runtime.handle(), move |job| {
                runs.lock().push(job.payload);
                std::future::ready(Ok(()))
            })
            .unwrap();
        let handle = consumer.handle();
        consumer.join().unwrap();
        let mut ran = std::mem::take(&mut *ran.lock());
        ran.sort_unstable();
        assert_eq!(ran, all.into_iter().collect::<Vec<_>>());
        assert_eq!(handle.status().absent, last + 1 - 200);
    }

    #[test]
    fn a_pruned_async_source_is_refused_or_halts() {
        let (runtime, node, store) = (threads(), Node::up_to(20), Store::in_memory());
        let start = |end| {
            Consumer::builder(node.clone().on(runtime.handle()), store.progress("p"))
                .stop_at(end)
                .start_async(runtime.handle(), |_| async { Ok(()) })
        };
        start(3).unwrap().join().unwrap();
        node.0.first.store(8, Ordering::SeqCst);
        assert!(matches!(start(20), Err(Error::Truncated { next: 4, first: 8 })));
        node.0.first.store(0, Ordering::SeqCst);
        node.0.gap.store(6, Ordering::SeqCst);
        let consumer = start(20).unwrap();
        until(&consumer.handle(), "the gap", |status| status.blocked == Blocked::Missing { index: 6 });
        node.0.first.store(8, Ordering::SeqCst);
        assert!(matches!(consumer.join(), Err(Error::Truncated { next: 6, first: 8 })));
    }

    #[test]
    fn an_unanswered_call_is_dropped_at_the_end() {
        for runtime in [threads(), undriven()] {
            let node = Node::up_to(20);
            // The call for the first index is answered, the one for the head is not.
            node.0.hold.store(true, Ordering::SeqCst);
            node.0.go.add_permits(1);
            let consumer = builder(node.clone().on(runtime.handle()), &MemoryProgress::new())
                .start_async(runtime.handle(), |_| async { Ok(()) })
                .unwrap();
            eventually("the call for the head", || node.0.asked.load(Ordering::SeqCst) == 2);
            consumer.stop().unwrap();
        }
    }

    /// A source whose `first` answers once the runtime is driven.
    struct Late;

    impl AsyncJobs for Late {
        type Job = Index;

        async fn first(&self) -> Result<Index, BoxError> {
            tokio::spawn(async { 7 }).await.map_err(BoxError::from)
        }

        async fn head(&self) -> Result<Option<Index>, BoxError> {
            Ok(Some(9))
        }

        async fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
            Ok((7..=9).contains(&index).then_some(index))
        }

        fn gate(&self) -> Gate {
            Gate::UpTo(8)
        }

        fn weight(&self, _: &Index) -> usize {
            100
        }
    }

    #[test]
    fn a_start_that_blocks_its_runtime_fails() {
        let runtime = undriven();
        runtime.block_on(async {
            let start = |runtime: &tokio::runtime::Handle, progress: &MemoryProgress| {
                builder(Late.on(runtime), progress).start_async(runtime, |_| async { Ok(()) })
            };
            let (here, progress) = (tokio::runtime::Handle::current(), MemoryProgress::new());
            let error = start(&here, &progress).unwrap_err();
            assert!(matches!(&error, Error::Source { .. }) && error.report().contains("spawn_blocking"), "{error:?}");
            let (elsewhere, kept) = (here.clone(), progress.clone());
            let consumer = tokio::task::spawn_blocking(move || start(&elsewhere, &kept)).await.unwrap().unwrap();
            assert!(consumer.handle().wait_for_async(8, LONG).await);
            assert_eq!(consumer.handle().status().blocked, Blocked::Upstream { index: 9 });
            consumer.stop_async().await.unwrap();
        });
        let threads = threads();
        threads.block_on(async {
            let runtime = tokio::runtime::Handle::current();
            let jobs = Late.on(&runtime);
            assert_eq!((jobs.weight(&7), jobs.gate()), (100, Gate::UpTo(8)));
            let consumer = builder(jobs, &MemoryProgress::new()).start_async(&runtime, |_| async { Ok(()) }).unwrap();
            assert!(consumer.handle().wait_for_async(8, LONG).await);
            consumer.stop_async().await.unwrap();
        });
    }

    /// A source that needs the runtime's timers for each look.
    struct Timed(Arc<AtomicU64>);

    impl AsyncJobs for Timed {
        type Job = ();

        async fn head(&self) -> Result<Option<Index>, BoxError> {
            tokio::time::sleep(Duration::from_micros(1)).await;
            Ok(Some(self.0.load(Ordering::SeqCst)))
        }

        async fn at_index(&self, _: Index) -> Result<Option<()>, BoxError> {
            Ok(Some(()))
        }
    }

    #[test]
    fn a_source_without_its_runtime_fails_and_stops() {
        let (runtime, other, head) = (threads(), threads(), Arc::new(AtomicU64::new(20)));
        let consumer = builder(Timed(head.clone()).on(other.handle()), &MemoryProgress::new())
            .start_async(runtime.handle(), |_| async { Ok(()) })
            .unwrap();
        let handle = consumer.handle();
        assert!(handle.wait_for(20, LONG));
        drop(other);
        head.store(21, Ordering::SeqCst);
        handle.check();
        let is_named =
            |blocked: &Blocked| matches!(blocked, Blocked::Source { error, .. } if error.contains("shutdown"));
        until(&handle, "the error", |status| is_named(&status.blocked));
        consumer.stop().unwrap();
        assert_eq!(handle.last_processed_index(), Some(20));
    }
}

/// It would otherwise wait for ever for futures whose jobs another consumer now runs.
#[test]
fn a_consumer_that_lost_its_name_drops_its_futures() {
    for by_save in [true, false] {
        let (runtime, held, progress) = (threads(), Held::new(), FaultyProgress::in_memory());
        let inner = held.clone();
        // Only the end of job 0 moves the watermark and so causes a save.
        let first = Held { go: Arc::new(Semaphore::new(0)), ..held.clone() };
        let go = first.go.clone();
        let builder = Consumer::builder(numbers(9), progress.clone()).max_processing(2);
        let job = move |job: waterline::Job<u64>| if job.index == 0 { first.job() } else { inner.job() };
        let consumer = builder.start_async(runtime.handle(), job).unwrap();
        held.begun(2);
        if by_save {
            progress.faults().lose(..);
            go.add_permits(1);
        } else {
            progress.faults().tenure().unwrap().lost("node b has it".into());
        }
        let error = consumer.join().unwrap_err();
        assert!(matches!(error, Error::Fenced { .. }), "{error:?}");
        let counts = [&held.begun, &held.dropped].map(|count| count.load(Ordering::SeqCst));
        assert!(counts[0] == counts[1] && counts[0] >= 2, "begun and dropped: {counts:?}");
    }
}
