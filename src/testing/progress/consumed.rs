//! The rules for a consumer that is stopped again and again.

use crate::base::sync::{Arc, Mutex};
use crate::base::{Error, Index, retry::Retry, time};
use crate::consumer::Consumer;
use crate::progress::{Progress, Saved};
use crate::source::MemoryJobs;
use crate::testing::{Checked, broken, insist};
use crossbeam_channel::{bounded, unbounded};
use std::collections::BTreeSet;
use std::time::Duration;

const AGAIN: &str = "a consumer runs no job again that was saved as done";
const LIVES: &str = "a consumer that is stopped again and again goes on where it was";

/// How many jobs the stream has.
const JOBS: Index = 300;

/// The state that lasts over all lives.
struct Lives {
    done: Arc<Mutex<BTreeSet<Index>>>,
    saved: Option<Index>,
}

pub(super) fn consumed<P: Progress>(
    open: &dyn Fn(&str) -> P,
    load: fn(&mut P) -> Result<Option<Saved>, Error>,
    patience: Duration,
) -> Checked {
    // The seed is fixed, so a progress that fails once fails again.
    let mut chance = fastrand::Rng::with_seed(3);
    let mut lives = Lives { done: Arc::default(), saved: None };
    while lives.saved != Some(JOBS - 1) {
        let before = lives.saved;
        lives.live(open("consumed"), chance.u64(1..40), patience)?;
        // No job fails here, so each life moves the watermark: it ends after some jobs, none of
        // which is above an unfinished one.
        insist(lives.saved > before, LIVES, || format!("a whole life left it at {before:?}"))?;
    }
    // On a busy machine the first life may be the last, since the stop comes late.
    let loaded = load(&mut open("consumed"))
        .or_else(|error| broken(LIVES, format!("a life did not start: {}", error.report())))?;
    same(lives.saved, loaded.and_then(|saved| saved.last_processed))
}

fn same(saved: Option<Index>, loaded: Option<Index>) -> Checked {
    insist(loaded == saved, LIVES, || format!("a life ended at {saved:?}, and the next loaded {loaded:?}"))
}

/// Lets two jobs fail and wait long, while all others finish. The next life may run only these two.
pub(super) fn kept<P: Progress>(open: &dyn Fn(&str) -> P, patience: Duration) -> Checked {
    const FAILED: [Index; 2] = [3, 7];
    const ALL: Index = 20;
    let begin = |life: &str, failing: bool| {
        let (ran, runs) = unbounded();
        let consumer = Consumer::builder((0..ALL).collect::<MemoryJobs<_>>(), open("kept"))
            .max_processing(4)
            .max_search_ahead(ALL)
            .retry(Retry::fixed(Duration::from_secs(3600)))
            .stop_at(ALL - 1)
            .start(move |job| {
                ran.send(job.index)?;
                if failing && FAILED.contains(&job.index) { Err("not in this life".into()) } else { Ok(()) }
            });
        let consumer = consumer.or_else(|error| broken(AGAIN, format!("{life} did not start: {}", error.report())))?;
        Checked::Ok((consumer, runs))
    };
    let (consumer, runs) = begin("the first life", true)?;
    let deadline = time::now() + patience;
    for _ in 0..ALL {
        if runs.recv_deadline(deadline).is_err() {
            return broken(AGAIN, format!("not every job ran within {patience:?}: {}", consumer.handle().status()));
        }
    }
    consumer.stop_within(patience).or_else(|error| broken(AGAIN, format!("a stop failed: {}", error.report())))?;
    let (consumer, runs) = begin("the second life", false)?;
    let ended = consumer.handle().wait_end(patience);
    insist(ended.is_some(), AGAIN, || format!("the second life did not end: {}", consumer.handle().status()))?;
    consumer.join().or_else(|error| broken(AGAIN, format!("the second life ended with: {}", error.report())))?;
    let mut again: Vec<Index> = runs.iter().collect();
    again.sort_unstable();
    insist(again == FAILED, AGAIN, || format!("{FAILED:?} were not done, and the next life ran {again:?}"))
}

/// Checks that a consumer halts if its name is taken over while its job runs.
pub(super) fn taken_over<P: Progress>(
    rule: &'static str,
    patience: Duration,
    old: P,
    take: impl FnOnce() -> Checked<P>,
) -> Checked {
    let (begin, begun) = bounded(1);
    let (go, gone) = bounded::<()>(0);
    let consumer = Consumer::builder((0..2).collect::<MemoryJobs<_>>(), old)
        .start(move |_| {
            let _ = begin.try_send(());
            // The test drops the sender, which lets this job and all later ones end.
            let _ = gone.recv();
            Ok(())
        })
        .or_else(|error| broken(rule, format!("a consumer did not start: {}", error.report())))?;
    let runs = begun.recv_timeout(patience);
    let new = take();
    drop(go);
    insist(runs.is_ok(), rule, || format!("no job ran within {patience:?}"))?;
    let new = new?;
    let ended = consumer.handle().wait_end(patience);
    insist(ended.is_some(), rule, || format!("the consumer goes on without its name: {}", consumer.handle().status()))?;
    let outcome = consumer.join();
    drop(new);
    match outcome {
        Err(Error::Fenced { .. }) => Ok(()),
        Err(error) => broken(rule, format!("the consumer ended with: {}", error.report())),
        Ok(()) => broken(rule, "the consumer without its name ended as if all was well"),
    }
}

impl Lives {
    /// Runs one life, which is asked to stop after this many jobs.
    fn live<P: Progress>(&mut self, progress: P, jobs: u64, patience: Duration) -> Checked {
        let (enough, stop) = bounded(1);
        let done = self.done.clone();
        let left = Arc::new(Mutex::new(jobs));
        // No job ends before the loaded watermark was compared, since the watermark moves as soon
        // as one ends.
        let go = Arc::new(Mutex::new(()));
        let wait = go.clone();
        let not_yet = go.lock();
        let consumer = Consumer::builder((0..JOBS).collect::<MemoryJobs<_>>(), progress)
            .max_processing(4)
            .max_search_ahead(16)
            .stop_at(JOBS - 1)
            .start(move |job| {
                drop(wait.lock());
                done.lock().insert(job.index);
                let mut left = left.lock();
                *left = left.saturating_sub(1);
                if *left == 0 || job.index == JOBS - 1 {
                    let _ = enough.try_send(());
                }
                Ok(())
            })
            .or_else(|error| broken(LIVES, format!("a life did not start: {}", error.report())))?;
        let handle = consumer.handle();
        let loaded = handle.last_processed_index();
        drop(not_yet);
        same(self.saved, loaded)?;
        if stop.recv_timeout(patience).is_err() {
            return broken(LIVES, format!("no job ran within {patience:?}: {}", handle.status().blocked));
        }
        match consumer.stop_within(patience) {
            Ok(()) => {}
            Err(Error::StopTimeout { .. }) => return broken(LIVES, format!("it did not stop within {patience:?}")),
            Err(error) => return broken(LIVES, format!("a life ended with: {}", error.report())),
        }
        self.saved = handle.last_processed_index();
        let done = self.done.lock();
        let skipped = (0..self.saved.map_or(0, |last| last + 1)).find(|index| !done.contains(index));
        insist(skipped.is_none(), LIVES, || format!("{:?} is saved, and {skipped:?} was never done", self.saved))
    }
}
