//! Runners whose handlers are futures on a tokio runtime.

use crate::bench::*;
use crate::runner::of;
use crossbeam_channel::{Receiver, bounded, unbounded};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use waterline::{BoxError, Error, Failure};
use waterline_queue::{
    AttemptEnd, ConfigError, DrainLimits, JobState, NewJob, Outcome, QueueError, Runner, RunnerBuilder,
};

fn job(id: &str) -> NewJob {
    of("k").id(id)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A runtime on the calling thread alone: a blocking call there holds up all futures.
fn own_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A job that yields several times before it is done.
async fn slow() -> Result<Outcome, BoxError> {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    Ok(Outcome::Done)
}

/// A value that reports its drop.
struct Told(crossbeam_channel::Sender<()>);

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// A value whose destructor blocks until it is released.
struct Last(Receiver<()>);

impl Drop for Last {
    fn drop(&mut self) {
        let _ = self.0.recv();
    }
}

pub(super) fn futures_run_up_to_max_processing_and_hold_no_thread(on: &Benches<'_>) {
    let runtime = runtime();
    let _context = runtime.enter();
    // The default is 64, which is more than there are cores.
    let bench = on.bench();
    let queue = &bench.queue;
    for (set, expected) in [(Some(50), 50), (None, 64)] {
        let (go, gate) = tokio::sync::watch::channel(false);
        let most = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
        let runner = Runner::builder(queue).on_async("k", {
            let most = most.clone();
            move |_, ()| {
                let (most, mut gate) = (most.clone(), gate.clone());
                async move {
                    most.1.fetch_max(most.0.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    gate.wait_for(|open| *open).await?;
                    most.0.fetch_sub(1, Ordering::SeqCst);
                    Ok(Outcome::Done)
                }
            }
        });
        let runner = set.into_iter().fold(runner, RunnerBuilder::max_processing).start().unwrap();
        queue.push_all((0..150).map(|n| job(&n.to_string()))).unwrap();
        eventually("so many futures to run", || most.0.load(Ordering::SeqCst) == expected);
        eventually("no more to be claimed than run", || queue.counts().running == expected as u64);
        go.send(true).unwrap();
        eventually("all to be done", || queue.counts().finished == 150);
        assert!(most.1.load(Ordering::SeqCst) <= expected);
        runner.stop().unwrap();
        (0..150).for_each(|n| queue.remove(n.to_string()).unwrap());
    }
}

pub(super) fn a_future_is_made_within_the_runtime(on: &Benches<'_>) {
    let runtime = runtime();
    let bench = on.bench();
    let queue = bench.queue.clone();
    queue.push(job("a")).unwrap();
    let builder = Runner::builder(&queue).on_async("k", |_, ()| {
        // The timer is made here, and not at the first poll.
        let sleep = tokio::time::sleep(Duration::ZERO);
        async move {
            sleep.await;
            Ok(Outcome::DoneWith("slept".into()))
        }
    });
    let summary = {
        let _context = runtime.enter();
        builder.drain(DrainLimits::default()).unwrap()
    };
    assert_eq!(summary.finished, 1, "{:?}", queue.get("a").unwrap().and_then(|job| job.error));
}

pub(super) fn panics_and_errors_of_a_future_end_its_attempt(on: &Benches<'_>) {
    let runtime = runtime();
    let _context = runtime.enter();
    let bench = on.bench();
    let queue = bench.queue.clone();
    queue.push_all(["panic", "error", "dead", "defer"].map(job)).unwrap();
    let drained = Runner::builder(&queue)
        .on_async("k", |job, ()| async move {
            match job.id() {
                "panic" => panic!("out of order"),
                "error" => Err("no".into()),
                "dead" => Err(Failure::permanent("never").into()),
                _ => Err(Failure::defer(SECOND).into()),
            }
        })
        .drain(DrainLimits::default())
        .unwrap();
    assert_eq!((drained.retried, drained.dead, drained.snoozed), (2, 1, 1), "{drained}");
    let error = |id| queue.get(id).unwrap().unwrap().error;
    assert_eq!(error("panic").as_deref(), Some("panicked: out of order"));
    assert_eq!(queue.get("defer").unwrap().unwrap().failures, 0);
}

pub(super) fn a_future_that_times_out_is_dropped_and_fails(on: &Benches<'_>) {
    let runtime = runtime();
    let _context = runtime.enter();
    let bench = on.bench();
    let (queue, clock) = bench.handles();
    let ((begun, has_begun), (dropped, is_dropped)) = (unbounded(), unbounded());
    let runner = Runner::builder(&queue)
        .on_async("k", move |_, ()| {
            let (told, begun) = (Told(dropped.clone()), begun.clone());
            async move {
                begun.send(()).unwrap();
                std::future::pending::<()>().await;
                drop(told);
                Ok(Outcome::Done)
            }
        })
        .attempt_timeout(SECOND)
        .start()
        .unwrap();
    queue.push(job("a")).unwrap();
    has_begun.recv_timeout(LONG).unwrap();
    clock.advance(SECOND);
    until(&queue, "a", JobState::Scheduled);
    is_dropped.recv_timeout(LONG).unwrap();
    runner.stop().unwrap();
}

pub(super) fn the_future_of_a_removed_job_is_dropped(on: &Benches<'_>) {
    let runtime = runtime();
    let _context = runtime.enter();
    let bench = on.bench();
    let queue = bench.queue.clone();
    let ((begun, begins), (dropped, is_dropped), (ended, ends)) = (unbounded(), unbounded(), unbounded());
    let own = queue.clone();
    let runner = Runner::builder(&queue)
        .on_async("k", move |job, ()| {
            let (told, begun, own) = (Told(dropped.clone()), begun.clone(), own.clone());
            async move {
                begun.send(job.clone()).unwrap();
                if job.id() == "own" {
                    own.remove("own")?;
                }
                std::future::pending::<()>().await;
                drop(told);
                Ok(Outcome::Done)
            }
        })
        .teardown(move |job, end| ended.send((job.id().to_owned(), end.clone())).unwrap())
        .max_processing(2)
        .start()
        .unwrap();
    queue.push_all(["a", "b", "c", "d"].map(job)).unwrap();
    let first = [(); 2].map(|()| begins.recv_timeout(LONG).unwrap());
    assert!(first.iter().all(|job| !job.is_stopping()));
    queue.remove("a").unwrap();
    is_dropped.recv_timeout(LONG).unwrap();
    assert_eq!(ends.recv_timeout(LONG).unwrap(), ("a".to_owned(), AttemptEnd::Lost));
    let third = begins.recv_timeout(LONG).unwrap();
    assert_eq!((third.id(), third.is_stopping()), ("c", false));
    assert!(first.iter().all(|job| job.is_stopping() == (job.id() == "a")));
    assert_eq!(queue.purge().unwrap(), 3);
    (0..2).for_each(|_| is_dropped.recv_timeout(LONG).unwrap());
    // A job that removes itself is dropped at its next await point, too.
    queue.push_all(["own", "last"].map(job)).unwrap();
    is_dropped.recv_timeout(LONG).unwrap();
    until(&queue, "last", JobState::Running);
    eventually("no slot to be held", || queue.status().unwrap().stuck.is_none());
    queue.remove("last").unwrap();
    is_dropped.recv_timeout(LONG).unwrap();
    runner.stop().unwrap();
    let ended: Vec<_> = ends.try_iter().collect();
    assert!(ended.len() == 4 && ended.iter().all(|(_, end)| *end == AttemptEnd::Lost), "{ended:?}");
}

pub(super) fn stop_within_puts_back_jobs_once_their_futures_are_gone(on: &Benches<'_>) {
    let runtime = runtime();
    let _context = runtime.enter();
    let bench = on.bench();
    let queue = bench.queue.clone();
    let ((begun, has_begun), (release, is_released), (told, ends)) = (unbounded(), bounded::<()>(0), unbounded());
    let runner = Runner::builder(&queue)
        .on_async("k", move |_, ()| {
            let (begun, last) = (begun.clone(), Last(is_released.clone()));
            async move {
                begun.send(()).unwrap();
                std::future::pending::<()>().await;
                drop(last);
                Ok(Outcome::Done)
            }
        })
        .teardown(move |_, ended| told.send(ended.clone()).unwrap())
        .start()
        .unwrap();
    queue.push(job("a")).unwrap();
    has_begun.recv_timeout(LONG).unwrap();
    assert!(matches!(runner.stop_within(Duration::ZERO), Err(QueueError::StopTimeout { .. })));
    assert_eq!(bench.state("a"), Some(JobState::Running), "its future is not gone");
    assert!(ends.is_empty());
    drop(release);
    let ended = ends.recv_timeout(LONG).unwrap();
    assert!(matches!(&ended, AttemptEnd::PutBack { error } if error.contains("dropped")), "{ended:?}");
    let info = bench.info("a");
    assert_eq!((info.state, info.failures, info.crashes), (JobState::Ready, 0, 0));
    eventually("the name to be free", || Runner::builder(&queue).on("k", |_, ()| Ok(Outcome::Done)).start().is_ok());
}

pub(super) fn a_stop_inside_a_future_returns_at_once(on: &Benches<'_>) {
    let runtime = runtime();
    let _context = runtime.enter();
    let bench = on.bench();
    let queue = bench.queue.clone();
    let shared = Arc::new(Mutex::new(None::<Runner>));
    let (said, says) = bounded(1);
    let mut held = shared.lock();
    *held = Some(
        Runner::builder(&queue)
            .on_async("k", {
                let shared = shared.clone();
                move |_, ()| {
                    let (shared, said) = (shared.clone(), said.clone());
                    async move {
                        tokio::task::yield_now().await;
                        let runner = shared.lock().take().expect("it runs");
                        said.send(runner.stop().err()).unwrap();
                        Ok(Outcome::Done)
                    }
                }
            })
            .start()
            .unwrap(),
    );
    drop(held);
    queue.push(job("a")).unwrap();
    let error = says.recv_timeout(LONG).expect("a future that stops its runner waits for itself");
    assert!(matches!(error, Some(QueueError::Config(ConfigError::OwnThread))), "{error:?}");
    until(&queue, "a", JobState::Finished);
}

pub(super) fn a_runtime_that_shuts_down_fails_its_jobs(on: &Benches<'_>) {
    let runtime = runtime();
    let bench = on.bench();
    let queue = bench.queue.clone();
    let (begun, has_begun) = unbounded();
    let (ended, ends) = unbounded();
    let runner = {
        let _context = runtime.enter();
        Runner::builder(&queue)
            .on_async("k", move |_, ()| {
                let begun = begun.clone();
                async move {
                    begun.send(()).unwrap();
                    std::future::pending().await
                }
            })
            .teardown(move |job, end| ended.send((job.id().to_owned(), end.clone())).unwrap())
            .start()
            .unwrap()
    };
    queue.push(job("a")).unwrap();
    has_begun.recv_timeout(LONG).unwrap();
    runtime.shutdown_background();
    queue.push(job("b")).unwrap();
    for _ in 0..2 {
        let (id, end) = ends.recv_timeout(LONG).unwrap();
        assert!(matches!(&end, AttemptEnd::Retried { error } if error.contains("dropped")), "{id}: {end:?}");
    }
    runner.stop().unwrap();
}

pub(super) fn an_async_handler_outside_a_runtime_is_refused(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = bench.queue.clone();
    let builder = || Runner::builder(&queue).on_async("k", |_, ()| async { Ok(Outcome::Done) });
    assert!(matches!(builder().start(), Err(QueueError::Store(Error::Runtime))));
    let runtime = runtime();
    let _context = runtime.enter();
    builder().start().unwrap().stop().unwrap();
}

pub(super) fn stop_async_and_drain_async_do_not_block_their_thread(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = bench.queue.clone();
    let jobs = queue.clone();
    let summary = ends("a runner in a runtime with one thread", move || {
        own_runtime().block_on(async {
            jobs.push_all((0..5).map(|n| job(&n.to_string()))).unwrap();
            let drain = Runner::builder(&jobs).on_async("k", |_, ()| slow()).max_processing(2);
            // Another task may drain, so the future must be `Send`.
            let summary = tokio::spawn(drain.drain_async(DrainLimits::default())).await.unwrap().unwrap();
            let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
            let runner = Runner::builder(&jobs).on_async("k", move |_, ()| {
                begun.send(()).unwrap();
                slow()
            });
            let runner = runner.start().unwrap();
            jobs.push(job("last")).unwrap();
            begins.recv().await.unwrap();
            runner.stop_async().await.unwrap();
            summary
        })
    });
    assert_eq!((summary.finished, queue.counts().finished), (5, 6));
}

pub(super) fn stop_within_async_drops_and_names_running_jobs(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = bench.queue.clone();
    let jobs = queue.clone();
    let error = ends("a runner whose job hangs", move || {
        own_runtime().block_on(async {
            let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
            let runner = Runner::builder(&jobs).on_async("k", move |_, ()| {
                begun.send(()).unwrap();
                std::future::pending()
            });
            let runner = runner.start().unwrap();
            jobs.push(job("a")).unwrap();
            begins.recv().await.unwrap();
            runner.stop_within_async(Duration::ZERO).await.unwrap_err()
        })
    });
    assert!(matches!(&error, QueueError::StopTimeout { running } if running == &["a"]), "{error}");
    until(&queue, "a", JobState::Ready);
    assert_eq!(bench.info("a").failures, 0, "it is handed back");
}

pub(super) fn a_runner_dropped_in_async_code_ends_without_blocking(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = bench.queue.clone();
    let jobs = queue.clone();
    ends("a runner that is dropped", move || {
        own_runtime().block_on(async {
            for round in 0..3 {
                let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
                let go = Arc::new(tokio::sync::Notify::new());
                let goes = go.clone();
                let builder = Runner::builder(&jobs).on_async("k", move |_, ()| {
                    let (begun, goes) = (begun.clone(), goes.clone());
                    async move {
                        begun.send(())?;
                        goes.notified().await;
                        Ok(Outcome::Done)
                    }
                });
                jobs.push(job(&round.to_string())).unwrap();
                if round == 2 {
                    let mut drain = Box::pin(builder.drain_async(DrainLimits::default()));
                    std::future::poll_fn(|context| {
                        assert!(drain.as_mut().poll(context).is_pending(), "its job has not ended");
                        begins.poll_recv(context)
                    })
                    .await
                    .unwrap();
                } else {
                    let runner = builder.start().unwrap();
                    begins.recv().await.unwrap();
                    if round == 0 { drop(runner) } else { drop(runner.stop_async()) }
                }
                go.notify_one();
                // Its name is free once its job is done.
                let free = || Runner::builder(&jobs).on("k", |_, ()| Ok(Outcome::Done)).start().is_ok();
                while !free() {
                    tokio::task::yield_now().await;
                }
            }
        });
    });
    assert_eq!(queue.counts().finished, 3);
}

pub(super) fn stop_async_inside_a_future_returns_at_once(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = bench.queue.clone();
    let (own, (told, tells)) = (Arc::new(Mutex::new(None::<Runner>)), bounded(1));
    let runtime = runtime();
    let _context = runtime.enter();
    let (mine, ready) = (own.clone(), Arc::new(tokio::sync::Notify::new()));
    let is_ready = ready.clone();
    let builder = Runner::builder(&queue).on_async("k", move |_, ()| {
        let (mine, told, is_ready) = (mine.clone(), told.clone(), is_ready.clone());
        async move {
            is_ready.notified().await;
            let runner = mine.lock().take().ok_or("no runner")?;
            told.send(runner.stop_async().await).unwrap();
            Ok(Outcome::Done)
        }
    });
    *own.lock() = Some(builder.start().unwrap());
    queue.push(job("a")).unwrap();
    ready.notify_one();
    let answer = tells.recv_timeout(LONG).unwrap().unwrap_err();
    assert!(matches!(answer, QueueError::Config(ConfigError::OwnThread)), "{answer}");
    until(&queue, "a", JobState::Finished);
}
