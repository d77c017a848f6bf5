//! The runner of a queue with handlers that are futures on a tokio runtime.

mod common;

use common::{LONG, eventually};
use crossbeam_channel::{bounded, unbounded};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};
use waterline::queue::{Clock, Ended, JobState, Limits, NewJob, Outcome, Queue, QueueError, QueueOptions, Runner};
use waterline::{Error, Failure, Store};

const SECOND: Duration = Duration::from_secs(1);

fn queue() -> (Queue, Clock) {
    let clock = Clock::manual(UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default().clock(clock.clone())).unwrap();
    (queue, clock)
}

fn job(id: &str) -> NewJob {
    NewJob::new("k", &()).unwrap().id(id)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[track_caller]
fn until(queue: &Queue, id: &str, wanted: JobState) {
    eventually(&format!("{id} to be {wanted:?}"), || queue.state(id).unwrap() == Some(wanted));
}

#[test]
fn futures_run_beside_each_other_up_to_max_processing_and_hold_no_thread() {
    let runtime = runtime();
    let _context = runtime.enter();
    let (queue, _) = queue();
    let (go, gate) = tokio::sync::watch::channel(false);
    let most = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let runner = Runner::builder(&queue)
        .on_async("k", {
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
        })
        .max_processing(50)
        .start()
        .unwrap();
    queue.push_all((0..120).map(|n| job(&n.to_string()))).unwrap();
    eventually("50 futures to run", || most.0.load(Ordering::SeqCst) == 50);
    assert_eq!(queue.counts().running, 50, "no more are claimed than run");
    go.send(true).unwrap();
    eventually("all to be done", || queue.counts().finished == 120);
    assert!(most.1.load(Ordering::SeqCst) <= 50);
    runner.stop().unwrap();
}

#[test]
fn a_handler_that_makes_its_future_is_within_the_runtime() {
    let runtime = runtime();
    let (queue, _) = queue();
    queue.push(job("a")).unwrap();
    let builder = Runner::builder(&queue).on_async("k", |_, ()| {
        // A timer is made here, and not at the first poll.
        let sleep = tokio::time::sleep(Duration::ZERO);
        async move {
            sleep.await;
            Ok(Outcome::DoneWith("slept".into()))
        }
    });
    let summary = {
        let _context = runtime.enter();
        builder.drain(Limits::default()).unwrap()
    };
    assert_eq!(summary.finished, 1, "{:?}", queue.get("a").unwrap().and_then(|job| job.error));
}

#[test]
fn a_panic_an_error_and_a_permanent_failure_of_a_future_end_its_attempt() {
    let runtime = runtime();
    let _context = runtime.enter();
    let (queue, _) = queue();
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
        .drain(Limits::default())
        .unwrap();
    assert_eq!((drained.retried, drained.dead, drained.snoozed), (2, 1, 1), "{drained}");
    let error = |id| queue.get(id).unwrap().unwrap().error;
    assert_eq!(error("panic").as_deref(), Some("panicked: out of order"));
    assert_eq!(queue.get("defer").unwrap().unwrap().failures, 0);
}

/// A future that says when it is dropped.
struct Told(crossbeam_channel::Sender<()>);

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[test]
fn a_future_that_takes_too_long_is_dropped_and_its_attempt_has_failed() {
    let runtime = runtime();
    let _context = runtime.enter();
    let (queue, clock) = queue();
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

#[test]
fn stop_within_drops_the_futures_and_their_jobs_come_back_after_the_lease() {
    let runtime = runtime();
    let _context = runtime.enter();
    let (queue, clock) = queue();
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
        .start()
        .unwrap();
    queue.push(job("a")).unwrap();
    has_begun.recv_timeout(LONG).unwrap();
    assert!(matches!(runner.stop_within(Duration::ZERO), Err(QueueError::StopTimeout { .. })));
    is_dropped.recv_timeout(LONG).unwrap();
    assert_eq!(queue.state("a").unwrap(), Some(JobState::Running));
    clock.advance(Duration::from_secs(60));
    assert!(queue.accept(waterline::queue::Accept::new()).unwrap().is_none());
    assert_eq!(queue.state("a").unwrap(), Some(JobState::Scheduled));
}

#[test]
fn stop_within_a_future_waits_for_nothing() {
    let runtime = runtime();
    let _context = runtime.enter();
    let (queue, _) = queue();
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
    assert!(matches!(error, Some(QueueError::Config(waterline::ConfigError::OwnThread))), "{error:?}");
    until(&queue, "a", JobState::Finished);
}

#[test]
fn jobs_of_a_runtime_that_shuts_down_have_failed_and_those_after_it_too() {
    let runtime = runtime();
    let (queue, _) = queue();
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
        assert!(matches!(&end, Ended::Retried { error } if error.contains("dropped")), "{id}: {end:?}");
    }
    runner.stop().unwrap();
}

#[test]
fn an_async_handler_outside_of_a_runtime_is_refused_and_the_queue_stays_free() {
    let (queue, _) = queue();
    let builder = || Runner::builder(&queue).on_async("k", |_, ()| async { Ok(Outcome::Done) });
    assert!(matches!(builder().start(), Err(QueueError::Store(Error::Runtime))));
    let runtime = runtime();
    let _context = runtime.enter();
    builder().start().unwrap().stop().unwrap();
}
