//! The rules that need threads: consumers on the source, and concurrent calls.

use super::known::{self, FINAL, Known};
use crate::base::{BoxError, Index, sync::Arc, time};
use crate::consumer::Consumer;
use crate::progress::MemoryProgress;
use crate::source::{Jobs, forward, wakeup::Wakeup};
use crate::testing::{Checked, broken, insist};
use crossbeam_channel::{Sender, unbounded};
use std::fmt;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

/// How many threads call concurrently.
const THREADS: u64 = 4;
/// How many jobs are awaited one by one.
const RINGS: u64 = 20;
/// How many jobs the consumer handles at most. The source may have more.
const HANDLED: u64 = 300;

/// Wraps the source for a consumer, and tells the test what the consumer calls.
struct Watched<J> {
    jobs: Arc<J>,
    seen: Sender<Seen>,
}

enum Seen {
    Subscribed(bool),
    Looked,
}

impl<J: Jobs> Jobs for Watched<J> {
    type Job = J::Job;

    forward!(self: self.jobs => first, at_index, read, read_sparse, weight, gate, waits_for, call_timeout);

    fn head(&self) -> Result<Option<Index>, BoxError> {
        let head = self.jobs.head();
        let _ = self.seen.send(Seen::Looked);
        head
    }

    fn subscribe(&self, wakeup: Wakeup) -> bool {
        let subscribed = self.jobs.subscribe(wakeup);
        let _ = self.seen.send(Seen::Subscribed(subscribed));
        subscribed
    }
}

/// Starts a consumer above the head. Returns `None` if the source did not take the wake-up.
fn listener<J: Jobs>(jobs: &Arc<J>, patience: Duration) -> Checked<Option<Consumer>> {
    const LOOKS: &str = "a healthy source lets a consumer start";
    let (seen, sees) = unbounded();
    let mut builder = Consumer::builder(Watched { jobs: jobs.clone(), seen }, MemoryProgress::new());
    if let Some(head) = known::head(&**jobs)? {
        builder = builder.start_after(head);
    }
    let consumer = builder.start(|_| Ok(())).or_else(|error| broken(LOOKS, error.report()))?;
    let mut subscribed = false;
    loop {
        match sees.recv_timeout(patience) {
            Ok(Seen::Subscribed(took)) => subscribed = took,
            // From here on only a ring makes the consumer check again.
            Ok(Seen::Looked) => return Ok(subscribed.then_some(consumer)),
            Err(_) => broken(LOOKS, format!("it did not look within {patience:?}"))?,
        }
    }
}

/// Checks that a source which took the wake-up rings every consumer, for every job.
pub(super) fn rung<J: Jobs>(jobs: &Arc<J>, push: &dyn Fn(&J), patience: Duration) -> Checked {
    const RINGS_ALL: &str = "a source that took the Wakeup rings every consumer when a job appears";
    let mut listeners = Vec::new();
    for who in ["the first of two consumers", "the second of two consumers"] {
        listeners.extend(listener(jobs, patience)?.map(|consumer| (who, consumer)));
    }
    if listeners.is_empty() {
        return Ok(());
    }
    for _ in 0..RINGS {
        push(jobs);
        let Some(head) = known::head(&**jobs)? else {
            return broken(RINGS_ALL, "head() is None after a job was added");
        };
        for (who, consumer) in &listeners {
            if !consumer.handle().wait_for(head, patience) {
                return broken(RINGS_ALL, format!("job {head} was added, and {who} does not know of it"));
            }
        }
    }
    Ok(())
}

/// Checks that a consumer handles each job once, up to the head, with so many reads at once.
pub(super) fn consumed<J: Jobs<Job: PartialEq + fmt::Debug>>(
    jobs: &Arc<J>,
    known: &Known<J::Job>,
    reads: usize,
    patience: Duration,
) -> Checked {
    const ONCE: &str = "a consumer on it handles each job once";
    let Some(head) = known.head else { return Ok(()) };
    let mut last = head.min(known.first.saturating_add(HANDLED - 1));
    if known.gaps.is_some() {
        // The walk has read all jobs up to there.
        last = known.jobs.keys().nth(HANDLED as usize - 1).copied().unwrap_or(head);
    }
    let (done, finished) = unbounded();
    let consumer = Consumer::builder(jobs.clone(), MemoryProgress::new())
        .max_processing(4)
        .max_reading(reads)
        .stop_at(last)
        .start(move |job| Ok(done.send((job.index, job.payload)).map_err(|_| "the test has ended")?))
        .or_else(|error| broken(ONCE, error.report()))?;
    let handle = consumer.handle();
    if !handle.wait_for(last, patience) {
        return broken(ONCE, format!("it has not handled all jobs after {patience:?}: {}", handle.status().blocked));
    }
    consumer.join().or_else(|error| broken(ONCE, error.report()))?;
    let mut handled: Vec<_> = finished.try_iter().collect();
    handled.sort_by_key(|(index, _)| *index);
    let indices = handled.iter().map(|(index, _)| *index);
    let all = match &known.gaps {
        Some(_) => indices.eq(known.jobs.range(..=last).map(|(index, _)| *index)),
        None => indices.eq(known.first..=last),
    };
    insist(all, ONCE, || format!("of {}..={last} it handled {} jobs", known.first, handled.len()))?;
    for (index, job) in &handled {
        let was = known.jobs.get(index);
        insist(was.is_none_or(|was| was == job), FINAL, || {
            format!("at index {index} one source showed {was:?}, and another one that was made alike {job:?}")
        })?;
    }
    Ok(())
}

type CheckedItems<T> = Checked<Vec<(Index, Option<T>)>>;

/// Checks that several concurrent threads get the same answers as one.
pub(super) fn from_threads<J: Jobs<Job: PartialEq + fmt::Debug>>(
    jobs: &Arc<J>,
    known: &Known<J::Job>,
    patience: Duration,
) -> Checked {
    const AGREE: &str = "calls from several threads agree";
    let (tell, told) = unbounded();
    let together = Arc::new(Barrier::new(THREADS as usize));
    for who in 0..THREADS {
        let (jobs, tell, together) = (jobs.clone(), tell.clone(), together.clone());
        let mut indices = known.sample();
        fastrand::Rng::with_seed(who).shuffle(&mut indices);
        let (first, head) = (known.first, known.head);
        thread::spawn(move || {
            together.wait();
            let _ = tell.send(tour(&*jobs, &indices, (first, head)));
        });
    }
    let deadline = time::now() + patience;
    for _ in 0..THREADS {
        let Ok(told) = told.recv_deadline(deadline) else {
            return broken(AGREE, format!("a call did not return within {patience:?}"));
        };
        let told = told.or_else(|other| broken(AGREE, format!("{}: {}", other.rule, other.how)))?;
        for (index, job) in told {
            let was = known.jobs.get(&index);
            insist(job.as_ref() == was, AGREE, || {
                format!("at index {index} one was told {was:?}, and another {job:?}")
            })?;
        }
    }
    Ok(())
}

/// Returns the answers that one of the threads gets.
fn tour<J: Jobs>(jobs: &J, indices: &[Index], expected: (Index, Option<Index>)) -> CheckedItems<J::Job> {
    let mut told = Vec::new();
    for index in indices {
        told.push((*index, known::at_index(jobs, *index)?));
        let now = (known::first(jobs)?, known::head(jobs)?);
        insist(now == expected, "first() and head()", || format!("{now:?} and {expected:?} differ"))?;
        let mut run = Vec::new();
        let end = index.saturating_add(15).min(expected.1.unwrap_or(*index));
        crate::testing::ask(|| jobs.read(*index..=end, &mut run)).good("read", || format!("read({index}..={end})"))?;
        // Only jobs that were read before can be compared.
        told.extend((*index..=end).zip(run.into_iter().map(Some)).filter(|(at, _)| indices.contains(at)));
    }
    Ok(told)
}
