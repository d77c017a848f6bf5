//! A push that the queue refuses fails its job: that job is retried, is parked or halts the
//! consumer, and all other jobs of the same save are in.

use common::every_write::DiskFault::{Fail, PowerLoss, Stop};
use common::every_write::every_write;
use common::*;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use waterline::{Builder, Consumer, Effects, Error, Index, MemoryJobs, OnExhausted, Retry, Store, StoreProgress};
use waterline_queue::{Accept, JobState, Lease, NewJob, Notes, Queue, QueueError, QueueOptions};

const COUNT: u64 = 8;
const NOW: Retry = Retry::fixed(Duration::ZERO);

/// A queue in which job `runs` is running, job `waits` waits for `base`, and the note `text` is no
/// number.
struct Bench {
    store: Store,
    queue: Queue,
    notes: Notes,
    _runs: Lease,
}

/// Requests that the queue refuses. All but the last may succeed in a later attempt.
const ASKS: [&str; 4] = ["an id that never was", "a cycle", "a job that runs", "a note that is no number"];

impl Bench {
    fn new() -> Self {
        let store = Store::in_memory();
        let queue = Queue::open(&store, "mail", QueueOptions::default()).unwrap();
        let notes = queue.notes("mail").unwrap();
        queue.push(job("runs")).unwrap();
        let runs = queue.accept(Accept::new()).unwrap().unwrap();
        queue.push(job("base").delay(HOUR)).unwrap();
        queue.push(job("waits").after(["base"])).unwrap();
        notes.set("text", "abc").unwrap();
        Self { store, queue, notes, _runs: runs }
    }

    fn consumer(&self) -> Builder<MemoryJobs<u64>, StoreProgress> {
        Consumer::builder(numbers(COUNT), self.store.progress("p")).max_processing(4).stop_at(COUNT - 1)
    }

    /// Returns the work: each job pushes one of its own, and job 3 also makes the refused request.
    fn ask(&self, what: &'static str) -> impl Fn(Index, &mut Effects) -> Result<(), Error> + Send + Sync + 'static {
        let (queue, notes) = (self.queue.clone(), self.notes.clone());
        move |index, effects| {
            queue.push_with(effects, job(&format!("job {index}")))?;
            match what {
                _ if index != 3 => return Ok(()),
                "an id that never was" => queue.push_with(effects, job("child").after(["nobody"])).map(drop)?,
                "a cycle" => queue.push_with(effects, job("base").after(["waits"])).map(drop)?,
                "a job that runs" => queue.push_with(effects, job("runs").after(["base"])).map(drop)?,
                "a note that is no number" => notes.add_with(effects, "text", 1)?,
                _ => {}
            }
            Ok(())
        }
    }

    /// Returns the jobs of the stream whose own push is in the queue.
    fn pushed(&self) -> Vec<u64> {
        (0..COUNT).filter(|index| self.queue.get(format!("job {index}")).unwrap().is_some()).collect()
    }
}

fn job(id: &str) -> NewJob {
    NewJob::new("mail", &id).unwrap().id(id)
}

fn is_of(what: &str, error: &Error) -> bool {
    match error {
        Error::Refused { source } => match source.downcast_ref().unwrap() {
            QueueError::NotFound { .. } => what == "an id that never was",
            QueueError::Cycle { .. } => what == "a cycle",
            QueueError::AlreadyRuns { .. } => what == "a job that runs",
            _ => false,
        },
        Error::Counter { .. } => what == "a note that is no number",
        _ => false,
    }
}

fn others() -> Vec<u64> {
    (0..COUNT).filter(|index| *index != 3).collect()
}

#[test]
fn promise_05_a_refused_push_halts_and_the_others_are_saved() {
    for what in ASKS {
        let bench = Bench::new();
        let ask = bench.ask(what);
        // All are in flight before any ends, so each runs in this life.
        let together = std::sync::Barrier::new(COUNT as usize);
        let consumer = bench.consumer().max_processing(COUNT as usize).start_transactional(move |job, effects| {
            together.wait();
            Ok(ask(job.index, effects)?)
        });
        let error = consumer.unwrap().join().unwrap_err();
        let Error::Job { index: 3, attempt: 1, source } = &error else { panic!("{what}: {error:?}") };
        assert!(is_of(what, source.downcast_ref().unwrap()), "{what}: {source:?}");
        assert_eq!(bench.pushed(), others(), "{what}");
        // The next life goes on as usual, in which the job makes no such request.
        let ask = bench.ask("nothing");
        let consumer = bench.consumer().start_transactional(move |job, effects| Ok(ask(job.index, effects)?));
        consumer.unwrap().join().unwrap();
        assert_eq!(bench.pushed(), (0..COUNT).collect::<Vec<_>>(), "{what}");
    }
}

#[test]
fn promise_05_a_refused_push_is_retried_then_parked() {
    for what in ASKS {
        let bench = Bench::new();
        let ask = bench.ask(what);
        let attempts: Arc<Mutex<Vec<u32>>> = Arc::default();
        let (told, done) = (attempts.clone(), Arc::new(Mutex::new(Vec::new())));
        let heard = done.clone();
        let consumer = bench
            .consumer()
            .retry(NOW.max_attempts(3))
            .on_exhausted(OnExhausted::Park { budget: 9 })
            .on_job_done(move |index| heard.lock().push(index))
            .start_transactional(move |job, effects| {
                if job.index == 3 {
                    told.lock().push(job.attempt);
                }
                Ok(ask(job.index, effects)?)
            })
            .unwrap();
        let handle = consumer.handle();
        consumer.join().unwrap();
        let for_good = what == ASKS[3];
        assert_eq!(*attempts.lock(), if for_good { vec![1] } else { vec![1, 2, 3] }, "{what}");
        let status = handle.status();
        assert_eq!((status.done, status.failed), (COUNT - 1, if for_good { 1 } else { 3 }), "{what}");
        let parked = bench.store.parked("p").unwrap();
        assert!(matches!(&parked[..], [one] if one.index == 3), "{what}: {parked:?}");
        assert_eq!(bench.pushed(), others(), "{what}");
        // An attempt ends well before the writer refuses its request.
        assert!(others().iter().all(|index| done.lock().contains(index)), "{what}");
    }
}

#[test]
fn a_child_before_its_parent_succeeds_on_retry() {
    let bench = Bench::new();
    let (queue, saved) = (bench.queue.clone(), bench.queue.clone());
    let consumer = bench.consumer().retry(NOW).start_transactional(move |job, effects| {
        // The parent is pushed in its second attempt, so the first one of the child is refused.
        match (job.index, job.attempt) {
            (0, 1) => queue.push_with(effects, self::job("child").after(["parent"])).map(drop)?,
            (0, _) => {
                queue.push(self::job("parent")).unwrap();
                queue.push_with(effects, self::job("child").after(["parent"])).map(drop)?;
            }
            _ => {}
        }
        Ok(())
    });
    let consumer = consumer.unwrap();
    let handle = consumer.handle();
    consumer.join().unwrap();
    assert_eq!((handle.status().failed, handle.last_processed_index()), (1, Some(COUNT - 1)));
    assert_eq!(saved.get("child").unwrap().unwrap().state, JobState::Waiting);
}

#[test]
fn a_chain_pushed_in_reverse_is_made_in_order() {
    let bench = Bench::new();
    let queue = bench.queue.clone();
    let consumer = bench.consumer().start_transactional(move |job, effects| {
        if job.index == 0 {
            for link in (1..=5u32).rev() {
                queue.push_with(effects, self::job(&format!("{link}")).after([format!("{}", link - 1)]))?;
            }
            queue.push_with(effects, self::job("0"))?;
        }
        Ok(())
    });
    consumer.unwrap().join().unwrap();
    let states = |id: u32| bench.queue.get(id.to_string()).unwrap().unwrap().state;
    assert_eq!(states(0), JobState::Ready);
    assert!((1..=5).all(|id| states(id) == JobState::Waiting));
}

#[test]
fn a_refused_push_undoes_its_batch_and_fails_one_job() {
    for what in ASKS {
        let bench = Bench::new();
        let ask = bench.ask(what);
        let consumer = bench.consumer().max_processing(COUNT as usize).on_exhausted(OnExhausted::Park { budget: 9 });
        let consumer = consumer.start_batched_transactional(COUNT as usize, LIMIT, move |jobs, effects| {
            Ok(jobs.iter().try_for_each(|job| ask(job.index, effects))?)
        });
        consumer.unwrap().join().unwrap();
        let parked = bench.store.parked("p").unwrap();
        assert!(matches!(&parked[..], [one] if one.index == 3), "{what}: {parked:?}");
        assert_eq!(bench.pushed(), others(), "{what}");
    }
}

#[test]
fn a_user_write_with_a_refused_push_fails_alone() {
    let bench = Bench::new();
    let queue = bench.queue.clone();
    for what in ASKS {
        let ask = bench.ask(what);
        let error = bench.store.write(|effects| ask(3, effects)).unwrap_err();
        assert!(is_of(what, &error), "{what}: {error:?}");
        assert!(bench.pushed().is_empty(), "{what}");
    }
    queue.push(job("another")).unwrap();
}

#[test]
fn promise_09_pushes_beside_a_refusal_are_once_at_any_crash() {
    every_write(
        &[Stop, PowerLoss, Fail(1), Fail(2)],
        |trial| {
            let store = trial.disk.store();
            let Ok(queue) = Queue::open(&store, "mail", QueueOptions::default()) else { return };
            let consumer = Consumer::builder(numbers(COUNT), store.progress("p"))
                .stop_at(COUNT - 1)
                .retry(NOW.max_attempts(2))
                .on_exhausted(OnExhausted::Park { budget: 9 })
                .start_transactional(move |job, effects| {
                    queue.push_with(effects, NewJob::new("mail", &job.index)?)?;
                    if job.index == 3 {
                        queue.push_with(effects, self::job("child").after(["nobody"]))?;
                    }
                    Ok(())
                });
            if let Ok(consumer) = consumer {
                drop(consumer.join());
            }
        },
        |trial, ()| {
            let store = trial.disk.store();
            let queue = Queue::open(&store, "mail", QueueOptions::default()).unwrap();
            let again = queue.clone();
            let consumer = Consumer::builder(numbers(COUNT), store.progress("p"))
                .stop_at(COUNT - 1)
                .on_exhausted(OnExhausted::Park { budget: 9 })
                .start_transactional(move |job, effects| {
                    again.push_with(effects, NewJob::new("mail", &job.index)?)?;
                    if job.index == 3 {
                        again.push_with(effects, self::job("child").after(["nobody"]))?;
                    }
                    Ok(())
                });
            consumer.unwrap().join().unwrap();
            assert_eq!(queue.counts().ready, COUNT - 1, "one push each, and none of job 3");
            assert_eq!(store.parked("p").unwrap().len(), 1);
        },
    );
}
