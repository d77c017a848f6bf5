//! Many waiting tasks: a change wakes only those that it concerns.

use common::queues::{HOUR, job, on_each, on_store_with};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::task::{JoinHandle, spawn_blocking, yield_now};
use waterline_queue::{Accept, NewJob, Queue, QueueOptions};

/// The number of tasks that wait for something else.
const CROWD: u64 = 50;

/// A future that counts its polls.
struct Counted<F>(Pin<Box<F>>, Arc<AtomicU64>);

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.as_mut().poll(context)
    }
}

fn run(test: impl Future<Output = ()>) {
    Builder::new_current_thread().max_blocking_threads(1).enable_all().build().unwrap().block_on(test);
}

/// Lets all tasks reach their wait, including those with a blocking call.
async fn rest() {
    for _ in 0..8 {
        spawn_blocking(|| ()).await.unwrap();
        yield_now().await;
    }
}

/// Starts tasks that wait for jobs that never change, and counts their polls.
async fn crowd(queue: &Queue) -> (Arc<AtomicU64>, Vec<JoinHandle<()>>) {
    let polls = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for n in 0..CROWD {
        let id = format!("idle {n}");
        queue.push(job(&id).delay(HOUR)).unwrap();
        let mut one = queue.subscribe(&id).unwrap();
        let wait = async move { drop(one.wait_ended_async(HOUR).await.unwrap()) };
        tasks.push(tokio::spawn(Counted(Box::pin(wait), polls.clone())));
    }
    rest().await;
    (polls, tasks)
}

#[test]
fn a_claim_wakes_no_task_waiting_for_another_job() {
    on_store_with(QueueOptions::default(), |bench| {
        run(async move {
            let (polls, _tasks) = crowd(&bench.queue).await;
            for id in ["a", "b", "c", "d"] {
                bench.push(job(id));
            }
            rest().await;
            let before = polls.load(Ordering::Relaxed);
            for id in ["a", "b", "c", "d"] {
                bench.finish(id);
                rest().await;
            }
            let woken = polls.load(Ordering::Relaxed) - before;
            assert!(woken <= CROWD, "four jobs that were claimed and finished have woken {woken} times one of {CROWD}");
        });
    });
}

#[test]
fn a_change_for_the_timekeeping_task_wakes_no_other() {
    on_store_with(QueueOptions::default(), |bench| {
        run(async move {
            // It waits first, so it keeps the time for all of them.
            let mut watch = bench.queue.watch();
            tokio::spawn(async move { while watch.wait_async(HOUR).await.is_some() {} });
            rest().await;
            let (polls, _tasks) = crowd(&bench.queue).await;
            let before = polls.load(Ordering::Relaxed);
            for id in ["a", "b", "c", "d"] {
                bench.push(job(id));
                rest().await;
            }
            let woken = polls.load(Ordering::Relaxed) - before;
            assert!(woken <= CROWD, "four pushes have woken {woken} times one of {CROWD}");
        });
    });
}

#[test]
fn a_claim_that_finds_nothing_wakes_no_task() {
    on_each(&QueueOptions::default(), |bench| {
        run(async move {
            bench.push(NewJob::new("a", &1).unwrap());
            let (polls, queue) = (Arc::new(AtomicU64::new(0)), bench.queue.clone());
            let waits =
                async move { drop(queue.accept_async(Accept::new().kinds(["b"]).timeout(HOUR)).await.unwrap()) };
            let _task = tokio::spawn(Counted(Box::pin(waits), polls.clone()));
            rest().await;
            let before = polls.load(Ordering::Relaxed);
            for _ in 0..4 {
                // Like `accept`, it changes nothing.
                assert!(bench.queue.accept_async(Accept::new().kinds(["b"])).await.unwrap().is_none());
                rest().await;
            }
            assert_eq!(polls.load(Ordering::Relaxed), before, "there is no news");
        });
    });
}

#[test]
fn waiting_tasks_do_not_poll_the_clock() {
    run(async {
        let queue = Queue::open(&waterline::Store::in_memory(), "q", QueueOptions::default()).unwrap();
        queue.push(job("later").delay(HOUR)).unwrap();
        let polls = Arc::new(AtomicU64::new(0));
        for _ in 0..CROWD {
            let queue = queue.clone();
            let waits = async move { drop(queue.accept_async(Accept::new().timeout(HOUR)).await.unwrap()) };
            tokio::spawn(Counted(Box::pin(waits), polls.clone()));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let before = polls.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let woken = polls.load(Ordering::Relaxed) - before;
        assert!(woken <= CROWD, "in 2.5 s in which nothing happened, one of {CROWD} was polled {woken} times");
    });
}

#[test]
fn a_push_wakes_one_of_many_idle_tasks() {
    on_store_with(QueueOptions::default(), |bench| {
        run(async move {
            let polls = Arc::new(AtomicU64::new(0));
            for _ in 0..CROWD {
                let queue = bench.queue.clone();
                let works = async move {
                    while let Some(mut lease) = queue.accept_async(Accept::new().timeout(HOUR)).await.unwrap() {
                        queue.run_async(move |_| lease.finish(None)).await.unwrap();
                    }
                };
                tokio::spawn(Counted(Box::pin(works), polls.clone()));
            }
            for _ in 0..CROWD {
                rest().await;
            }
            let before = polls.load(Ordering::Relaxed);
            for id in ["a", "b", "c", "d"] {
                bench.push(job(id));
                for _ in 0..CROWD {
                    rest().await;
                }
            }
            assert_eq!(bench.queue.counts().finished, 4);
            let woken = polls.load(Ordering::Relaxed) - before;
            assert!(woken <= CROWD, "four jobs have woken {woken} times one of {CROWD} workers");
        });
    });
}
