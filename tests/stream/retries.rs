//! Failed jobs: which are retried, in what order, and what they delay.

use common::*;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use waterline::{Blocked, BoxError, Index, Jobs, MemoryProgress, Retry, Status};

const MS: Duration = Duration::from_millis(1);

#[test]
fn jobs_that_always_fail_starve_no_other() {
    // Without a backoff they are always due.
    for pause in [Duration::ZERO, MS] {
        let time = Time::new();
        let consumer = builder(numbers(1_000), &MemoryProgress::new())
            .clock(time.clock())
            .max_processing(2)
            .retry(Retry::fixed(pause))
            .start(|job| if job.index < 100 { Err("always".into()) } else { Ok(()) })
            .unwrap();
        time.until(MS, &consumer.handle(), "every other job", |status| status.done == 900);
        consumer.stop().unwrap();
    }
}

/// Runs jobs up to `head` one at a time, and returns those that succeed within this many attempts.
/// A job fails when `fails` says so. Before each hand-over every failed job has been read again, so
/// any of them could be chosen.
fn succeeded(head: Index, attempts: usize, fails: fn(Index, u32) -> bool) -> BTreeSet<Index> {
    let source = Script::up_to(head);
    let (worker, stage) = manual_worker();
    let consumer = builder(source.clone(), &MemoryProgress::new())
        .max_processing(1)
        .retry(Retry::fixed(Duration::ZERO))
        .start_worker(worker)
        .unwrap();
    let (mut failed, mut done) = (0, BTreeSet::new());
    for _ in 0..attempts {
        if done.len() as u64 > head {
            break;
        }
        let job = stage.next();
        let index = job.index;
        eventually("each failed job is read again", || {
            // Each job is read once, and once more for each failure.
            source.calls().reads.load(Ordering::SeqCst) > head + failed
        });
        if fails(index, job.attempt) {
            failed += 1;
            job.fail("not yet");
        } else {
            done.insert(index);
            job.succeed();
        }
    }
    // Drops the job that runs by now.
    drop(stage);
    consumer.stop_within(Duration::ZERO).ok();
    done
}

#[test]
fn new_jobs_and_due_retries_take_turns() {
    let done = succeeded(9, 60, |index, _| index < 3);
    assert_eq!(done, (3..10).collect(), "jobs 0 to 2 always fail");
}

#[test]
fn a_good_retry_runs_despite_lower_failing_ones() {
    let done = succeeded(3, 60, |index, attempt| index < 3 || attempt < 3);
    assert_eq!(done, [3].into(), "jobs 0 to 2 always fail");
}

#[test]
fn an_unreadable_retry_delays_no_new_job() {
    let (source, time) = (Script::up_to(0).subscribing(), Time::new());
    let consumer = builder(source.clone(), &MemoryProgress::new())
        .clock(time.clock())
        .max_processing(1)
        .retry(Retry::fixed(MS * 50))
        .start(|job| if job.index == 0 { Err("always".into()) } else { Ok(()) })
        .unwrap();
    let handle = consumer.handle();
    until(&handle, "the first attempt", |status| status.failed >= 1);
    source.fail_at(0, Fault::Error);
    let reads = || source.calls().reads.load(Ordering::SeqCst);
    for new in 1..=5 {
        let failures = reads() + 4;
        time.steps(MS * 50, "reads of job 0 that fail", || reads() >= failures);
        let is_unread = |status: &Status| matches!(status.blocked, Blocked::Source { index: 0, .. });
        time.until(MS * 50, &handle, "the reason", is_unread);
        source.set_head(Some(new));
        source.ring();
        // A look that had begun may miss the new head; the next one comes soon.
        time.until(MS, &handle, "the new job", |status| status.done == new);
    }
    consumer.stop().unwrap();
}

#[test]
fn a_job_readable_again_later_is_run() {
    let (source, time) = (Script::up_to(1), Time::new());
    let is_down = Arc::new(AtomicBool::new(true));
    let fails = is_down.clone();
    let consumer = builder(source.clone(), &MemoryProgress::new())
        .clock(time.clock())
        .retry(Retry::fixed(MS * 20))
        .stop_at(1)
        .start(move |job| {
            let is_again = job.attempt > 1 && !fails.load(Ordering::SeqCst);
            if is_again { Ok(()) } else { Err("not yet".into()) }
        })
        .unwrap();
    let handle = consumer.handle();
    until(&handle, "both first attempts", |status| status.failed >= 2);
    source.fail_at(0, Fault::Panic);
    let is_unread = |status: &Status| matches!(status.blocked, Blocked::Source { index: 0, .. });
    time.until(MS * 20, &handle, "a read that panics", is_unread);
    is_down.store(false, Ordering::SeqCst);
    source.heal();
    time.steps(MS * 20, "both jobs", || handle.wait_for(1, Duration::ZERO));
    consumer.join().unwrap();
}

/// A source that counts its reads. Each waits until the jobs of earlier reads run, so that there is
/// room for as many as possible.
struct SlowRead {
    head: Index,
    calls: Arc<AtomicU64>,
    read: AtomicU64,
    begun: Arc<AtomicU64>,
}

impl Jobs for SlowRead {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(self.head))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok((index <= self.head).then_some(index))
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Index>) -> Result<(), BoxError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        eventually("the jobs to begin", || self.begun.load(Ordering::SeqCst) >= self.read.load(Ordering::SeqCst));
        into.extend(run.filter(|index| *index <= self.head));
        self.read.fetch_add(into.len() as u64, Ordering::SeqCst);
        Ok(())
    }
}

#[test]
fn failed_neighbours_are_read_again_in_one_run() {
    const JOBS: u64 = 2_000;
    let (calls, begun, time) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default(), Time::new());
    let source = SlowRead { head: JOBS - 1, calls: calls.clone(), read: AtomicU64::default(), begun: begun.clone() };
    let consumer = builder(source, &MemoryProgress::new())
        .clock(time.clock())
        .max_processing(4)
        .retry(Retry::fixed(MS * 20))
        .stop_at(JOBS - 1)
        .start(move |job| {
            begun.fetch_add(1, Ordering::SeqCst);
            if job.attempt == 1 { Err("once".into()) } else { Ok(()) }
        })
        .unwrap();
    until(&consumer.handle(), "all failures", |status| status.failed == JOBS);
    time.pass(MS * 20);
    consumer.join().unwrap();
    // One by one, the retries alone would take as many calls as there are jobs.
    let calls = calls.load(Ordering::SeqCst);
    assert!(calls < JOBS / 4, "{calls} calls");
}

/// A source whose `head` takes longer than the poll interval.
struct SlowHead(Arc<Time>);

impl Jobs for SlowHead {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        self.0.pass(MS * 60);
        Ok(Some(9))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok((index < 10).then_some(index))
    }
}

#[test]
fn a_slow_head_delays_no_retry() {
    let time = Arc::new(Time::new());
    let consumer = builder(SlowHead(time.clone()), &MemoryProgress::new())
        .clock(time.clock())
        .poll_every(MS * 50)
        .retry(Retry::fixed(MS * 10))
        .stop_at(9)
        .start(|job| if job.index == 3 && job.attempt == 1 { Err("once".into()) } else { Ok(()) })
        .unwrap();
    time.steps(MS * 10, "all jobs", || consumer.handle().wait_for(9, Duration::ZERO));
    consumer.join().unwrap();
}

/// A source that can be down, and counts its reads.
#[derive(Clone, Default)]
struct Down(Arc<(AtomicBool, AtomicU64)>);

impl Jobs for Down {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(999))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok((index < 1_000).then_some(index))
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Index>) -> Result<(), BoxError> {
        self.0.1.fetch_add(1, Ordering::SeqCst);
        if self.0.0.load(Ordering::SeqCst) {
            return Err("down".into());
        }
        into.extend(run);
        Ok(())
    }
}

#[test]
fn neighbours_stay_together_while_the_source_is_down() {
    let (source, time) = (Down::default(), Time::new());
    let (send, begun) = crossbeam_channel::unbounded();
    let consumer = builder(source.clone(), &MemoryProgress::new())
        .clock(time.clock())
        .max_processing(1_000)
        .threads(1)
        .retry(Retry::fixed(MS * 500))
        .start_deferred(move |job, done| if job.attempt == 1 { send.send(done).unwrap() } else { done.complete() })
        .unwrap();
    let handle = consumer.handle();
    // All fail only when the source is down, so none is read again before.
    let begun: Vec<_> = (0..1_000).map(|_| begun.recv_timeout(LONG).unwrap()).collect();
    source.0.0.store(true, Ordering::SeqCst);
    begun.into_iter().for_each(|done| done.fail("once"));
    let calls = || source.0.1.load(Ordering::SeqCst);
    let before = calls();
    time.steps(MS * 50, "an outage that was noticed more than once", || calls() >= before + 8);
    source.0.0.store(false, Ordering::SeqCst);
    let healed = calls();
    time.until(MS * 50, &handle, "every job", |status| status.done == 1_000);
    assert!(calls() - healed <= 250, "{} calls for 1,000 jobs", calls() - healed);
    consumer.stop().unwrap();
}
