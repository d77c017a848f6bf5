//! The queue's async calls on each back end.
//!
//! They answer as the blocking ones do, hold no thread while they wait, and can be dropped at any
//! time.

use common::queues::{Bench, HOUR, MINUTE, SECOND, job, noon, on_each, on_store_with};
use common::{LONG, ends, eventually};
use parking_lot::Mutex;
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, spawn_blocking, yield_now};
use waterline::Error;
use waterline_queue::{
    Accept, JobState, NewJob, Outcome, PushOutcome, Queue, QueueChange, QueueError, QueueOptions, Retention, Runner,
    Seen, Subscription,
};

/// A runtime with one thread for futures, and one for calls that block.
fn runtime() -> Runtime {
    Builder::new_current_thread().max_blocking_threads(1).enable_all().build().unwrap()
}

/// Runs a future in such a runtime, and fails if it does not end.
fn run<Fut: Future<Output = ()>>(test: impl FnOnce() -> Fut + Send + 'static) {
    ends("a future", move || runtime().block_on(async { tokio::time::timeout(LONG, test()).await.unwrap() }));
}

fn on_each_run<Fut: Future<Output = ()> + 'static>(options: &QueueOptions, test: fn(Bench) -> Fut) {
    on_each(options, |bench| run(move || test(bench)));
}

/// Lets all tasks reach their wait, including those with a blocking call.
async fn rest() {
    for _ in 0..8 {
        spawn_blocking(|| ()).await.unwrap();
        yield_now().await;
    }
}

/// Starts a task, and lets it reach its wait.
async fn begun<R: Send + 'static>(future: impl Future<Output = R> + Send + 'static) -> JoinHandle<R> {
    let task = tokio::spawn(future);
    rest().await;
    task
}

/// Polls a future once, with a waker that does nothing.
fn poll_once<R>(future: Pin<&mut impl Future<Output = R>>) -> Poll<R> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Waits for the end of a job, in one of the possible ways.
async fn end_of(mut job: Subscription, way: usize) -> Option<Seen> {
    match way {
        0 => job.wait_ended_async(HOUR).await.unwrap(),
        1 => loop {
            let seen = job.wait_async(HOUR).await.unwrap()?;
            if seen.state.is_none_or(JobState::is_ended) {
                return Some(seen);
            }
        },
        2 => loop {
            let (_, seen) = Subscription::wait_any_async(std::slice::from_mut(&mut job), HOUR).await.unwrap()?;
            if seen.state.is_none_or(JobState::is_ended) {
                return Some(seen);
            }
        },
        3 => job.wait_for_async(JobState::Finished, HOUR).await.unwrap(),
        _ => {
            let finished = JobState::Finished;
            let all = std::slice::from_mut(&mut job);
            Subscription::wait_any_for_async(all, finished, HOUR).await.unwrap().map(|(_, seen)| seen)
        }
    }
}

#[test]
fn a_waiting_task_sees_the_same_end_as_a_thread() {
    on_each_run(&QueueOptions::default(), |bench| async move {
        for (end, ways) in [("finished", 0..5), ("dead", 0..3), ("removed", 0..5)] {
            for way in ways {
                bench.push(job("a"));
                let mut thread = bench.queue.subscribe("a").unwrap();
                let task = begun(end_of(bench.queue.subscribe_async("a").await.unwrap(), way)).await;
                let mut lease = bench.take("a");
                lease.progress(0.5, "half").unwrap();
                rest().await;
                let error = match end {
                    "finished" => lease.finish(Some("done".into())).map(|_| None).unwrap(),
                    "dead" => lease.bury("no way").map(|_| Some("no way")).unwrap(),
                    _ => bench.queue.remove("a").map(|()| None).unwrap(),
                };
                let said = thread.wait_ended(Duration::ZERO).unwrap().expect("it has ended");
                assert_eq!(said.error.as_deref(), error, "{end} {way}");
                // After a removal, a wait for a state returns nothing.
                let expected = (end != "removed" || way < 3).then_some(said);
                assert_eq!(task.await.unwrap(), expected, "{end} {way}");
                bench.queue.remove("a").ok();
            }
        }
    });
}

#[test]
fn a_wait_reports_earlier_ends_and_stops_at_its_deadline() {
    on_each_run(&QueueOptions::default().retention(Retention::Keep), |bench| async move {
        bench.push(job("a"));
        bench.push(job("b"));
        let mut all = vec![bench.queue.subscribe("a").unwrap(), bench.queue.subscribe("b").unwrap()];
        bench.finish("a");
        for _ in 0..2 {
            let seen = all[0].wait_ended_async(Duration::ZERO).await.unwrap().expect("it has ended");
            assert_eq!((seen.state, seen.error), (Some(JobState::Finished), None));
        }
        assert_eq!(all[1].wait_ended_async(Duration::ZERO).await.unwrap(), None);
        bench.push(job("gone"));
        let mut gone = [bench.queue.subscribe("gone").unwrap()];
        bench.queue.remove("gone").unwrap();
        let none = Subscription::wait_any_for_async(&mut gone, JobState::Finished, HOUR).await.unwrap();
        assert_eq!(none, None);
        let mut queues = vec![all.pop().unwrap()];
        let (clock, mut last) = (bench.clock.clone(), all.pop().unwrap());
        let minute = begun(async move { (last.wait_async(MINUTE).await.unwrap(), last) }).await;
        let any = begun(async move { Subscription::wait_any_async(&mut queues, MINUTE).await.unwrap() }).await;
        let mut watch = bench.queue.watch();
        let watched = begun(async move { watch.wait_async(MINUTE).await }).await;
        let accepted = {
            bench.finish("b");
            assert!(any.await.unwrap().is_some());
            assert!(watched.await.unwrap().is_some());
            let queue = bench.queue.clone();
            begun(async move { queue.accept_async(Accept::new().timeout(MINUTE)).await.unwrap().is_none() }).await
        };
        clock.advance(MINUTE - SECOND);
        rest().await;
        assert!(!minute.is_finished() && !accepted.is_finished());
        clock.advance(SECOND);
        let (seen, _) = minute.await.unwrap();
        assert_eq!(seen, None);
        assert!(accepted.await.unwrap());
        assert_eq!(Subscription::wait_any_async(&mut [], MINUTE).await.unwrap(), None);
    });
}

#[test]
fn waits_time_out_on_the_system_clock() {
    run(|| async {
        let queue = Queue::open(&waterline::Store::in_memory(), "q", QueueOptions::default().max_waiting(1)).unwrap();
        queue.push_async(job("a")).await.unwrap();
        let milli = Duration::from_millis(1);
        let mut seen = queue.subscribe_async("a").await.unwrap();
        assert_eq!(seen.wait_async(milli).await.unwrap(), None);
        assert_eq!(queue.watch().wait_async(milli).await, None);
        assert!(matches!(queue.push_within_async(job("b"), milli).await, Err(QueueError::Full { .. })));
        let _lease = queue.accept_async(Accept::new()).await.unwrap().expect("it is ready");
        assert!(queue.accept_async(Accept::new().timeout(milli)).await.unwrap().is_none());
    });
}

#[test]
fn due_jobs_wake_tasks_after_the_timekeeping_task_is_dropped() {
    on_each_run(&QueueOptions::default().retention(Retention::Drop), |bench| async move {
        let ids: Vec<_> = (0..20).map(|nth| bench.queue.push(job(&nth.to_string()).delay(HOUR)).unwrap().id).collect();
        let mut tasks = Vec::new();
        for id in &ids {
            let mut seen = bench.queue.subscribe(id).unwrap();
            tasks.push(begun(async move { seen.wait_for_async(JobState::Ready, 2 * HOUR).await.unwrap() }).await);
        }
        // The first task keeps the time for all of them.
        tasks.remove(0).abort();
        rest().await;
        bench.clock.advance(HOUR);
        for task in tasks {
            assert_eq!(task.await.unwrap().expect("it is due").state, Some(JobState::Ready));
        }
        // The worker of a job is silent.
        let mut lease = bench.take("0");
        let mut seen = bench.queue.subscribe("0").unwrap();
        let task = begun(async move { seen.wait_for_async(JobState::Scheduled, HOUR).await.unwrap() }).await;
        bench.clock.advance(10 * MINUTE);
        assert!(task.await.unwrap().is_some());
        assert!(matches!(lease.finish(None), Err(QueueError::Halt { .. })));
    });
}

#[test]
fn a_thousand_tasks_wait_without_threads() {
    on_each_run(&QueueOptions::default(), |bench| async move {
        let jobs = (0..1000).map(|nth| job(&nth.to_string()));
        let mut tasks = Vec::new();
        for pushed in bench.queue.push_all(jobs).unwrap() {
            let mut seen = bench.queue.subscribe(&pushed.id).unwrap();
            tasks.push(tokio::spawn(async move { seen.wait_ended_async(HOUR).await.unwrap() }));
        }
        // The only blocking thread is still free.
        rest().await;
        let queue = bench.queue.clone();
        let runner = Runner::builder(&queue).on("k", |_, _: u32| Ok(Outcome::Done)).start().unwrap();
        for task in tasks {
            assert_eq!(task.await.unwrap().expect("it has ended").state, Some(JobState::Finished));
        }
        runner.stop_async().await.unwrap();
    });
}

#[test]
fn a_push_is_made_once_its_future_has_been_polled() {
    on_each_run(&QueueOptions::default(), |bench| async move {
        drop(bench.queue.push_async(job("never polled")));
        let _ = poll_once(pin!(bench.queue.push_async(job("polled"))).as_mut());
        rest().await;
        assert_eq!(bench.states(["never polled", "polled"]), [None, Some(JobState::Ready)]);
        let again = bench.queue.push_async(job("polled")).await.unwrap();
        assert_eq!(again.outcome, PushOutcome::Duplicate("polled".into()));
        // Async reads return what the blocking ones do.
        assert_eq!(bench.queue.get_async("polled").await.unwrap(), bench.queue.get("polled").unwrap());
        bench.push(job("second"));
        let all = bench.queue.list(JobState::Ready, None, 9).unwrap();
        assert_eq!(bench.queue.list_async(JobState::Ready, None, 9).await.unwrap(), all);
        assert_eq!(bench.queue.list_async(JobState::Ready, Some(&all[0]), 9).await.unwrap(), all[1..]);
        let page = bench.queue.page_async(JobState::Ready, None, 1).await.unwrap();
        assert_eq!(page, bench.queue.page(JobState::Ready, None, 1).unwrap());
        let rest = bench.queue.page_async(JobState::Ready, page.next.as_deref(), 9).await.unwrap();
        assert_eq!((rest.jobs, rest.next), (all[1..].to_vec(), None));
        let unknown = bench.queue.subscribe_async("nobody").await.unwrap_err();
        assert!(matches!(unknown, QueueError::NotFound { .. }), "{unknown:?}");
        let removed = bench.queue.run_async(|queue| queue.remove("polled")).await;
        assert_eq!((removed.unwrap(), bench.state("polled")), ((), None));
    });
}

#[test]
fn outside_a_runtime_a_push_is_refused() {
    on_each(&QueueOptions::default(), |bench| {
        let mut push = pin!(bench.queue.push_async(job("a")));
        let Poll::Ready(Err(error)) = poll_once(push.as_mut()) else { panic!("it waits for nothing") };
        assert!(matches!(error, QueueError::Store(Error::Runtime)), "{error:?}");
        assert_eq!(bench.state("a"), None);
        // A wait that has nothing to do needs no runtime.
        bench.push(job("a"));
        let mut seen = bench.queue.subscribe("a").unwrap();
        let mut wait = pin!(seen.wait_ended_async(HOUR));
        assert!(poll_once(wait.as_mut()).is_pending());
        bench.finish("a");
        assert!(poll_once(wait.as_mut()).is_ready());
    });
}

#[test]
fn a_claim_whose_future_is_dropped_is_undone() {
    on_each_run(&QueueOptions::default(), |bench| async move {
        bench.push(job("a"));
        for is_claimed in [false, true] {
            // The only blocking thread is busy until the claim is asked for.
            let (go, gate) = crossbeam_channel::bounded::<()>(1);
            let taken = spawn_blocking(move || gate.recv_timeout(LONG).unwrap());
            {
                let mut accept = pin!(bench.queue.accept_async(Accept::new()));
                assert!(poll_once(accept.as_mut()).is_pending());
                if is_claimed {
                    go.send(()).unwrap();
                    while bench.queue.counts().running == 0 {
                        yield_now().await;
                    }
                }
            }
            go.try_send(()).ok();
            taken.await.unwrap();
            rest().await;
        }
        let lease = bench.queue.accept_async(Accept::new()).await.unwrap().expect("it is ready again");
        assert_eq!((lease.id(), lease.attempt(), lease.crashes()), ("a", 1, 0));
    });
}

#[test]
fn a_push_wakes_another_task_if_the_woken_one_is_dropped() {
    on_each_run(&QueueOptions::default(), |bench| async move {
        let accept = |accept: Accept| {
            let queue = bench.queue.clone();
            begun(async move { queue.accept_async(accept.timeout(HOUR)).await.unwrap() })
        };
        for is_old_there in [false, true] {
            let early = Accept::new().max_run_at(noon() - HOUR);
            let old = if is_old_there { Some(accept(early).await) } else { None };
            let (first, second) = (accept(Accept::new()).await, accept(Accept::new()).await);
            // The first task is woken, and gone before its poll. The old one cannot take the job.
            bench.push(job("a").run_at(noon()));
            first.abort();
            let mut lease = second.await.unwrap().expect("it is woken");
            lease.finish(None).unwrap();
            rest().await;
            assert!(old.is_none_or(|old| !old.is_finished()));
        }
    });
}

#[test]
fn an_async_push_waits_for_capacity_unless_it_is_dropped() {
    on_each_run(&QueueOptions::default().max_waiting(1), |bench| async move {
        bench.push(job("a"));
        let push = |id: &'static str| {
            let queue = bench.queue.clone();
            begun(async move { queue.push_within_async(job(id), MINUTE).await })
        };
        let (dropped, second, third) = (push("dropped").await, push("b").await, push("c").await);
        dropped.abort();
        bench.finish("a");
        assert!(second.await.unwrap().unwrap().is_new());
        rest().await;
        assert!(!third.is_finished());
        bench.clock.advance(MINUTE);
        let error = third.await.unwrap().unwrap_err();
        assert!(matches!(error, QueueError::Full { .. }), "{error:?}");
        assert_eq!(bench.states(["dropped", "b", "c"]), [None, Some(JobState::Ready), None]);
    });
}

#[test]
fn a_watch_loses_no_change_to_dropped_waits() {
    on_each_run(&QueueOptions::default(), |bench| async move {
        let mut watch = bench.queue.watch();
        assert!(poll_once(pin!(watch.wait_async(HOUR))).is_pending());
        for id in ["a", "b"] {
            bench.push(job(id));
        }
        for id in ["a", "b"] {
            let change = watch.wait_async(HOUR).await;
            assert!(
                matches!(&change, Some(QueueChange::Job { id: of, state: Some(JobState::Ready), .. }) if of == id),
                "{change:?}"
            );
        }
        let task = begun(async move { watch.wait_async(HOUR).await }).await;
        bench.queue.pause(None).unwrap();
        assert!(matches!(task.await.unwrap(), Some(QueueChange::Paused { .. })));
    });
}

/// Calls the queue as it wakes, and drops a subscription, as a task's last waker may.
struct Calls {
    queue: Queue,
    woken: AtomicU32,
    waits: Mutex<Option<Subscription>>,
}

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        if self.woken.fetch_add(1, Ordering::Relaxed) == 0 {
            self.waits.lock().take();
            self.queue.push(job("by the waker")).unwrap();
            self.queue.remove("by the waker").unwrap();
        }
    }
}

#[test]
fn a_waker_may_call_the_queue() {
    type Change = fn(&Bench, &mut waterline_queue::Lease);
    let changes: [(&str, Change); 5] = [
        ("a write", |_, lease| assert!(lease.finish(None).unwrap().is_some())),
        ("progress", |_, lease| lease.progress(0.5, "").unwrap()),
        ("progress that is not written", |_, lease| {
            lease.progress(0.5, "").unwrap();
            lease.progress(0.6, "").unwrap();
        }),
        ("the clock", |bench, _| bench.clock.advance(SECOND)),
        ("a write of the store", |bench, _| {
            let queue = bench.queue.clone();
            let renew = NewJob::new("k", &1).unwrap().id("a").delay(HOUR);
            bench.store().write(|effects| queue.push_with(effects, renew).map(drop)).unwrap();
            bench.store().write(|effects| queue.push_with(effects, job("b")).map(drop)).unwrap();
        }),
    ];
    for (what, change) in changes {
        on_store_with(QueueOptions::default(), move |bench| {
            ends(what, move || {
                let mut lease = bench.running("a");
                let queue = bench.queue.clone();
                let waits = Mutex::new(Some(queue.subscribe("a").unwrap()));
                let calls = Arc::new(Calls { queue, woken: AtomicU32::new(0), waits });
                let waker = Waker::from(calls.clone());
                let mut context = Context::from_waker(&waker);
                let mut seen = bench.queue.subscribe("a").unwrap();
                let mut watch = bench.queue.watch();
                let mut wait = pin!(seen.wait_async(Duration::MAX));
                let mut watched = pin!(watch.wait_async(Duration::MAX));
                assert!(wait.as_mut().poll(&mut context).is_pending());
                assert!(watched.as_mut().poll(&mut context).is_pending());
                change(&bench, &mut lease);
                eventually("it is woken", || calls.woken.load(Ordering::Relaxed) > 0);
                bench.queue.remove("a").unwrap();
            });
        });
    }
}

#[test]
fn the_queue_outlives_a_runtime_that_shuts_down() {
    on_each(&QueueOptions::default(), |bench| {
        ends("a runtime that ends", move || {
            bench.push(job("a"));
            let queue = bench.queue.clone();
            let runtime = runtime();
            runtime.spawn(async move {
                let mut seen = queue.subscribe_async("a").await.unwrap();
                seen.wait_ended_async(HOUR).await.unwrap();
                pending::<()>().await;
            });
            runtime.block_on(rest());
            drop(runtime);
            // Another task keeps the time from now on.
            bench.queue.push(job("later").delay(HOUR)).unwrap();
            let mut seen = bench.queue.subscribe("later").unwrap();
            run(move || async move {
                let task = begun(async move { seen.wait_for_async(JobState::Ready, 2 * HOUR).await.unwrap() }).await;
                bench.clock.advance(HOUR);
                assert!(task.await.unwrap().is_some());
            });
        });
    });
}

#[test]
fn a_dropped_claim_costs_no_attempt_if_a_write_fails() {
    run(|| async {
        let disk = waterline::testing::FaultyStore::new().unwrap();
        let store = disk.store();
        let options = QueueOptions::default().retry(waterline::Retry::none());
        let queue = Queue::open(&store, "q", options).unwrap();
        queue.push(job("a")).unwrap();
        {
            let mut claim = pin!(queue.accept_async(Accept::new().timeout(HOUR)));
            // The only blocking thread is busy, so the claim is not made yet.
            let (go, gate) = crossbeam_channel::bounded::<()>(1);
            let taken = spawn_blocking(move || _ = gate.recv_timeout(LONG));
            assert!(poll_once(claim.as_mut()).is_pending());
            drop(go);
            taken.await.unwrap();
            // By now the claim is made, and its future has not been polled again.
            spawn_blocking(|| ()).await.unwrap();
            assert_eq!(queue.counts().running, 1);
            disk.fail(0..1);
        }
        rest().await;
        let job = queue.get("a").unwrap().unwrap();
        assert_eq!((job.state, job.failures, job.error), (JobState::Ready, 0, None), "nobody has run it");
    });
}

#[test]
fn wait_any_with_a_zero_timeout_sees_an_expired_lease() {
    on_each_run(&QueueOptions::default(), |bench| async move {
        for is_task in [false, true] {
            bench.push(job("early"));
            bench.push(job("late"));
            let _early = bench.take("early");
            bench.clock.advance(30 * SECOND);
            let mut late = bench.take("late");
            let mut all = vec![bench.queue.subscribe("late").unwrap(), bench.queue.subscribe("early").unwrap()];
            // The lease of "early" expires, and that of "late" still holds.
            bench.clock.advance(40 * SECOND);
            let seen = if is_task {
                Subscription::wait_any_async(&mut all, Duration::ZERO).await.unwrap()
            } else {
                Subscription::wait_any(&mut all, Duration::ZERO).unwrap()
            };
            assert_eq!(seen.map(|(place, _)| place), Some(1), "a task: {is_task}");
            late.finish(None).unwrap();
            bench.queue.remove("early").unwrap();
            bench.queue.remove("late").unwrap();
        }
    });
}

#[test]
fn a_zero_timeout_wait_sees_due_jobs_beside_an_unpolled_task() {
    on_each_run(&QueueOptions::default(), |bench| async move {
        bench.push(job("idle").delay(HOUR));
        bench.push(job("a").delay(SECOND));
        let mut idle = bench.queue.subscribe("idle").unwrap();
        let mut never_polled_again = pin!(idle.wait_async(HOUR));
        assert!(poll_once(never_polled_again.as_mut()).is_pending());
        let mut one = bench.queue.subscribe("a").unwrap();
        bench.clock.advance(MINUTE);
        let mut seen = None;
        for _ in 0..3 {
            // Polls now and then, as a loop with other work does.
            seen = seen.or(one.wait_for_async(JobState::Ready, Duration::ZERO).await.unwrap());
            rest().await;
        }
        let thread = one.wait_for(JobState::Ready, Duration::ZERO).unwrap();
        assert!(thread.is_some());
        assert_eq!(seen, thread);
    });
}

#[test]
fn a_committed_lease_call_never_reports_halt() {
    /// Removes the job as soon as its change is published, which is before the call returns.
    struct Removes(Queue);
    impl Wake for Removes {
        fn wake(self: Arc<Self>) {
            self.0.remove("a").unwrap();
        }
    }
    on_store_with(QueueOptions::default(), |bench| {
        run(move || async move {
            let table = bench.store().table("t").unwrap();
            bench.push(job("a"));
            let mut lease = bench.take("a");
            let mut watch = bench.queue.watch();
            let waker = Waker::from(Arc::new(Removes(bench.queue.clone())));
            let mut change = pin!(watch.wait_async(HOUR));
            assert!(change.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            let answer = lease.with(|effects| effects.add(&table, "n", 1)).unwrap().update(Some(1.into()));
            let is_written = table.counter("n").unwrap() == 1;
            assert_eq!(answer.is_ok(), is_written, "{answer:?}");
        });
    });
}
