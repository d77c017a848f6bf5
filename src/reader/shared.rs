//! The source as the reader and the workers call it: each call is guarded, timed, and taken apart.

use super::ask::{Ask, Fetched, Then};
use super::keys::{Key, KeyOf};
#[cfg(feature = "tokio")]
use super::port::ReadFuture;
use super::port::{Look, ReadRuns, Reply, Source};
use super::{payloads::Payloads, weights::Weights};
use crate::base::guard::{drop_guarded, guarded};
#[cfg(feature = "tokio")]
use crate::base::sync::Arc;
use crate::base::sync::Mutex;
use crate::base::{BoxError, Error, Index, clock::Clock, time};
use crate::source::{Gate, Jobs, Sparse, Steps};
use std::time::{Duration, Instant};

/// Reading a run in less time than this is worth no second thread: waking one takes as long.
const QUICK: Duration = Duration::from_micros(20);

/// The source, called by one thread at a time.
pub(crate) struct SharedSource<J: Jobs> {
    jobs: J,
    /// Makes the keys of jobs, if jobs of one key run in order.
    key: Option<KeyOf<J::Job>>,
    clock: Clock,
    /// Held by each call but several reads at once.
    turn: Mutex<()>,
}

impl<J: Jobs> SharedSource<J> {
    pub(crate) fn new(jobs: J, clock: Clock) -> Self {
        Self { jobs, key: None, clock, turn: Mutex::new(()) }
    }

    /// Makes a key for each job that is read.
    pub(crate) fn by_key(self, key: Option<KeyOf<J::Job>>) -> Self {
        Self { key, ..self }
    }
}

impl<J: Jobs> Source for SharedSource<J> {
    fn look(&self) -> Reply<Look> {
        let _turn = self.turn.lock();
        Reply::to(&self.clock, || {
            let head = self.jobs.head()?;
            Ok(Look { head, gate: self.jobs.gate(), waits_for: self.jobs.waits_for() })
        })
    }

    fn gate(&self) -> Reply<Gate> {
        let _turn = self.turn.lock();
        Reply::to(&self.clock, || Ok(self.jobs.gate()))
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    #[cfg(feature = "tokio")]
    fn begin_read(self: Arc<Self>, ask: Ask) -> Option<(tokio::runtime::Handle, ReadFuture)> {
        let runtime = self.jobs.futures()?.runtime.clone();
        let call = async move {
            let mut read = Sparse::within(ask.first, ask.last, ask.most());
            let Some(calls) = self.jobs.futures() else { unreachable!("it had futures when the call began") };
            let outcome = calls.read_sparse(ask.first..=ask.last, ask.most(), &mut read).await;
            let mut fetched = self.fetched(ask, read, outcome, self.clock.now());
            if matches!(fetched.then, Then::Missing) {
                fetched.then = Then::missing_below(ask.first, calls.first().await);
            }
            fetched
        };
        Some((runtime, Box::pin(call)))
    }

    fn timeout_of_futures(&self) -> Option<Duration> {
        #[cfg(feature = "tokio")]
        if self.jobs.futures().is_some() {
            return Some(self.jobs.call_timeout(None).unwrap_or(Duration::MAX));
        }
        None
    }
}

impl<R> Reply<R> {
    /// Makes the call and measures it.
    fn to(clock: &Clock, call: impl FnOnce() -> Result<R, BoxError>) -> Self {
        let begun = clock.now();
        let answer = guarded(call);
        let ended = clock.now();
        Self { answer, took: ended.saturating_duration_since(begun), ended }
    }
}

impl<J: Jobs> SharedSource<J> {
    /// Calls the source for a run.
    fn read(&self, ask: Ask) -> (Sparse<J::Job>, Result<(), BoxError>) {
        let (run, most) = (ask.first..=ask.last, ask.most());
        let mut read = Sparse::within(ask.first, ask.last, most);
        let outcome = guarded(|| self.jobs.read_sparse(run, most, &mut read));
        (read, outcome)
    }

    /// Takes an answer apart. `Then::Missing` is not certain: the source may begin above.
    fn fetched(&self, ask: Ask, read: Sparse<J::Job>, outcome: Result<(), BoxError>, ended: Instant) -> Fetched {
        let (mut jobs, mut steps, surplus, fault) = read.into_parts();
        let outcome = outcome.and(fault.map_or(Ok(()), |fault| Err(fault.into())));
        surplus.into_iter().for_each(drop_guarded);
        let mut keys = Vec::new();
        let outcome = outcome.and(self.make_keys(&mut jobs, &mut steps, &mut keys));
        let (weights, outcome) = match guarded(|| Ok(jobs.iter().map(|job| self.jobs.weight(job)).collect())) {
            Ok(weights) => (weights, outcome),
            // The jobs are sound; only their weights are missing, so the source fails.
            Err(panic) => (Weights::equal(jobs.len(), size_of::<J::Job>()), outcome.and(Err(panic))),
        };
        let is_empty = jobs.is_empty() && steps.is_empty();
        let then = match outcome {
            Ok(()) if !is_empty => Then::Unasked,
            Ok(()) => Then::Missing,
            // A source may report by itself that it begins above.
            Err(error) => match error.downcast_ref() {
                Some(Error::Truncated { first, .. }) if is_empty && *first > ask.first => {
                    Then::Truncated { next: ask.first, first: *first }
                }
                _ => Then::Failed(error.into()),
            },
        };
        let (jobs, failures) = (<dyn Payloads>::new(jobs), Vec::new());
        Fetched { jobs, steps, weights, keys, then, quick: false, ended, failures }
    }

    /// Makes the keys of the jobs. The first one whose key cannot be made ends the answer.
    fn make_keys(
        &self,
        jobs: &mut Vec<J::Job>,
        steps: &mut Steps,
        keys: &mut Vec<Option<Key>>,
    ) -> Result<(), BoxError> {
        let Some(key) = &self.key else { return Ok(()) };
        keys.reserve(jobs.len());
        let made = guarded(|| {
            jobs.iter().for_each(|job| keys.push(key(job)));
            Ok(())
        });
        if made.is_err() {
            jobs.drain(keys.len()..).for_each(drop_guarded);
            steps.cut(keys.len());
        }
        made
    }
}

impl Then {
    /// Says why a job is missing, by where the source begins.
    fn missing_below(next: Index, first: Result<Index, BoxError>) -> Self {
        match first {
            Ok(first) if first > next => Then::Truncated { next, first },
            Ok(_) => Then::Missing,
            Err(error) => Then::Failed(error.into()),
        }
    }
}

impl<J: Jobs> ReadRuns for SharedSource<J> {
    fn read_run(&self, ask: Ask) -> Fetched {
        let _turn = self.turn.lock();
        let begun = time::now();
        let (read, outcome) = self.read(ask);
        let mut fetched = self.fetched(ask, read, outcome, begun);
        if matches!(fetched.then, Then::Missing) {
            fetched.then = Then::missing_below(ask.first, guarded(|| self.jobs.first()));
        }
        let ended = time::now();
        fetched.quick = ended.saturating_duration_since(begun) < QUICK;
        fetched.ended = self.clock.at(|| ended);
        fetched
    }

    fn read_beside(&self, ask: Ask) -> Fetched {
        let (read, outcome) = self.read(ask);
        let mut fetched = self.fetched(ask, read, outcome, self.clock.now());
        if matches!(fetched.then, Then::Missing) {
            let _turn = self.turn.lock();
            fetched.then = Then::missing_below(ask.first, guarded(|| self.jobs.first()));
        }
        fetched
    }
}
