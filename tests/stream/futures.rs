//! Jobs that are futures and have effects, results in order, or results to be written
//! (`start_transactional_async`, `start_ordered_async`, `start_writing_async`).

use common::database::Database;
use common::*;
use crossbeam_channel::bounded;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use waterline::{BoxError, Consumer, Effects, Error, Index, MemoryJobs, Progress, Retry, Store};

#[derive(Clone, Copy, Debug)]
enum Kind {
    Transactional,
    Ordered,
    Writing,
}

const KINDS: [Kind; 3] = [Kind::Transactional, Kind::Ordered, Kind::Writing];

fn threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

/// What the lives of a test have done.
struct Home {
    kind: Kind,
    store: Store,
    database: Database,
    sunk: Arc<Mutex<Vec<Index>>>,
}

impl Home {
    fn new(kind: Kind) -> Self {
        Self { kind, store: Store::in_memory(), database: Database::default(), sunk: Arc::default() }
    }

    /// Starts a consumer of four jobs, all of them in flight, with an attempt timeout if it is set.
    fn start<Fut>(
        &self,
        runtime: &Runtime,
        timeout: Option<Duration>,
        job: impl Fn(waterline::Job<u64>) -> Fut + Send + Sync + 'static,
    ) -> Result<Consumer, Error>
    where
        Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        fn equip<P: Progress>(progress: P, timeout: Option<Duration>) -> waterline::Builder<MemoryJobs<u64>, P> {
            let builder = Consumer::builder(numbers(4), progress).max_processing(4).stop_at(3);
            let builder = builder.retry(Retry::fixed(Duration::ZERO));
            timeout.into_iter().fold(builder, |builder, after| builder.attempt_timeout(after))
        }
        let (runtime, progress) = (runtime.handle(), self.store.progress("p"));
        match self.kind {
            Kind::Transactional => {
                let rows = self.store.table("rows").unwrap();
                equip(progress, timeout).start_transactional_async(runtime, move |work, mut effects| {
                    let (rows, index, work) = (rows.clone(), work.index, job(work));
                    async move {
                        effects.add(&rows, index.to_be_bytes(), 1)?;
                        work.await?;
                        Ok(effects)
                    }
                })
            }
            Kind::Ordered => {
                let sunk = self.sunk.clone();
                let sink = move |index, of: Index| {
                    assert_eq!(index, of);
                    let name = std::thread::current().name().unwrap_or_default().to_owned();
                    assert!(name.starts_with("wl-"), "the sink runs on {name}");
                    // It may block.
                    std::thread::yield_now();
                    sunk.lock().push(index);
                    Ok(())
                };
                let work = move |work: waterline::Job<u64>| {
                    let (index, work) = (work.index, job(work));
                    async move { work.await.map(|()| index) }
                };
                equip(progress, timeout).start_ordered_async(runtime, work, sink)
            }
            Kind::Writing => {
                let work = move |work: waterline::Job<u64>| {
                    let work = (work, job(work));
                    async move { work.1.await.map(|()| work.0) }
                };
                equip(self.database.engine(), timeout).start_writing_async(runtime, work, |tx, results| {
                    tx.write(results);
                    Ok(())
                })
            }
        }
    }

    /// Asserts that each of the four jobs was done once.
    #[track_caller]
    fn assert_done(&self) {
        let counts: BTreeMap<Index, i64> = match self.kind {
            Kind::Transactional => {
                let rows = self.store.table("rows").unwrap();
                (0..4_u64).map(|index| (index, rows.counter(index.to_be_bytes()).unwrap())).collect()
            }
            Kind::Ordered => {
                assert_eq!(*self.sunk.lock(), [0, 1, 2, 3]);
                return;
            }
            Kind::Writing => {
                self.database.content().rows.into_iter().map(|(index, times)| (index, times as i64)).collect()
            }
        };
        assert_eq!(counts, (0..4).map(|index| (index, 1)).collect(), "{:?}", self.kind);
    }
}

/// Job 1 of the first life does not end, and its future is dropped in one of three ways.
#[test]
fn a_dropped_future_has_no_effects_and_its_job_runs_again() {
    let others = threads();
    for kind in KINDS {
        for way in ["a stop", "a timeout", "the end of the runtime"] {
            let (home, dropped, runtime) = (Home::new(kind), Arc::new(AtomicUsize::new(0)), threads());
            let counts = dropped.clone();
            let job = move |job: waterline::Job<u64>| {
                let counts = Counts(counts.clone());
                async move {
                    let _counts = counts;
                    tokio::task::yield_now().await;
                    if job.index == 1 && job.attempt == 1 { pending().await } else { Ok(()) }
                }
            };
            let timeout = (way == "a timeout").then_some(Duration::from_millis(20));
            let consumer = home.start(&runtime, timeout, job).unwrap();
            // An abandoned sink would get job 0 again.
            assert!(consumer.handle().wait_for(0, LONG));
            eventually("the other jobs", || dropped.load(Ordering::SeqCst) >= 3);
            match way {
                "a timeout" => {
                    let handle = consumer.handle();
                    consumer.join().unwrap();
                    assert_eq!(handle.status().failed, 1);
                }
                "a stop" => {
                    let error = consumer.stop_within(Duration::ZERO).unwrap_err();
                    assert!(matches!(error, Error::StopTimeout { .. }), "{error:?}");
                    eventually("the drop of the future", || dropped.load(Ordering::SeqCst) == 4);
                }
                _ => {
                    drop(runtime);
                    let error = consumer.join().unwrap_err();
                    let Error::Job { index: 1, source, .. } = &error else { panic!("{error:?}") };
                    assert!(matches!(source.downcast_ref(), Some(Error::Runtime)), "{error:?}");
                }
            }
            if timeout.is_none() {
                let mut next = None;
                // A future that is being dropped still has the name.
                eventually("the name", || {
                    next = home.start(&others, None, |_| async { Ok(()) }).ok();
                    next.is_some()
                });
                next.unwrap().join().unwrap();
            }
            home.assert_done();
        }
    }
}

/// The poll in which job 0 succeeds goes on while the consumer gives up and ends.
#[test]
fn a_success_after_the_end_frees_the_name() {
    let runtime = threads();
    for kind in KINDS {
        let (home, (begin, begun), (go, gone)) = (Home::new(kind), bounded(0), bounded::<()>(0));
        let job = move |job: waterline::Job<u64>| {
            let (begin, gone) = (begin.clone(), gone.clone());
            async move {
                tokio::task::yield_now().await;
                if job.index == 0 {
                    begin.send(())?;
                    let _ = gone.recv_timeout(LONG);
                }
                Ok(())
            }
        };
        let consumer = home.start(&runtime, None, job).unwrap();
        begun.recv_timeout(LONG).unwrap();
        let error = consumer.stop_within(Duration::ZERO).unwrap_err();
        assert!(matches!(error, Error::StopTimeout { .. }), "{error:?}");
        let again = || home.start(&runtime, None, |_| async { Ok(()) });
        // The test's database gives a name to whoever asks, and fences the one before.
        let has_name = |kind| !matches!(kind, Kind::Writing);
        assert!(!has_name(kind) || matches!(again(), Err(Error::InUse { .. })), "{kind:?}: its future still runs");
        drop(go);
        let mut next = None;
        eventually("the name", || {
            next = again().ok();
            next.is_some()
        });
        next.unwrap().join().unwrap();
        home.assert_done();
    }
}

struct Counts(Arc<AtomicUsize>);

impl Drop for Counts {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_future_that_hands_back_effects_of_another_has_failed() {
    let (store, runtime) = (Store::in_memory(), threads());
    let rows = store.table("rows").unwrap();
    for waits in [false, true] {
        let start = |attempts| {
            let (kept, table) = (Arc::new(Mutex::new(None)), rows.clone());
            let run = move |job: waterline::Job<u64>, mut effects: Effects| {
                let (rows, kept) = (table.clone(), kept.clone());
                async move {
                    effects.add(&rows, "total", 1)?;
                    if waits {
                        tokio::task::yield_now().await;
                    }
                    match job.attempt {
                        1 => {
                            *kept.lock() = Some(effects);
                            Err("it is kept".into())
                        }
                        2 => kept.lock().take().ok_or("it is gone".into()),
                        _ => Ok(effects),
                    }
                }
            };
            Consumer::builder(numbers(1), store.progress(format!("p{waits}")))
                .retry(Retry::fixed(Duration::ZERO).max_attempts(attempts))
                .stop_at(0)
                .start_transactional_async(runtime.handle(), run)
                .unwrap()
        };
        let error = start(2).join().unwrap_err();
        assert!(error.report().contains("effects of another attempt"), "{error:?}");
        assert_eq!(rows.counter("total").unwrap(), i64::from(waits));
        start(3).join().unwrap();
    }
    assert_eq!(rows.counter("total").unwrap(), 2);
}
