//! The jobs that are handed out, and the code that runs them.

use super::{failed_jobs::Failures, flights::Flights, keys::Keys};
use crate::base::{Index, sync::Arc};
use crate::run::{Delivery, OnJobDone};
use crate::window::{Window, batches::Next};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

#[derive(Default)]
pub(crate) struct Running {
    pub(crate) flights: Flights,
    pub(super) aside: Aside,
    pub(crate) pool: Option<Arc<dyn Pool>>,
    pub(crate) on_job_done: Option<Arc<OnJobDone>>,
    /// True if jobs may go through the tray: nothing is asked or told when they end.
    pub(crate) takes_buffer: bool,
    /// True while the next jobs are in the tray.
    pub(super) has_tray: bool,
    /// The tray stays empty before this job: there were too few in a row, or one went on elsewhere.
    pub(super) tray_from: Index,
    /// The keys, if jobs of one key run in order.
    pub(super) keys: Option<Box<Keys>>,
    /// The batches, if jobs run in batches.
    pub(super) batches: Option<Box<BatchSettings>>,
}

impl Running {
    /// True if a worker is needed for jobs.
    pub(super) fn has_work(&mut self, window: &Window, failures: &Failures, now: Instant) -> bool {
        match &mut self.batches {
            None => window.can_run(),
            Some(batches) => batches.want_thread(window, failures, || now),
        }
    }

    /// Returns when the linger ends, if the watermark waits only for a partial batch.
    pub(super) fn lingers_until(&self, window: &Window, now: Instant) -> Option<Instant> {
        let until = self.batches.as_ref()?.until.filter(|until| now < *until)?;
        let is_next = window.lowest_unprocessed() == window.next();
        (is_next && window.can_run()).then_some(until)
    }
}

/// The runner behind an interface that does not know the type of the jobs.
pub(crate) trait Pool: Send + Sync {
    /// Does all the work of a worker thread.
    fn work(&self);
    /// Asks [`Runner::is_plain`](crate::run::Runner::is_plain).
    fn is_plain(&self) -> bool;
    /// Calls [`Runner::forget`](crate::run::Runner::forget).
    fn forget(&self, index: Index);
    /// Calls [`Runner::overdue`](crate::run::Runner::overdue).
    fn overdue(&self, index: Index);
    /// Calls [`Runner::abandon`](crate::run::Runner::abandon).
    fn abandon(&self);
}

/// The jobs whose results wait for the sink: neither in flight nor done.
#[derive(Debug, Default)]
pub(super) struct Aside {
    /// The attempt of each such job.
    pub(super) attempts: BTreeMap<Index, u32>,
    /// True while a thread is at the sink.
    pub(super) sinking: bool,
    /// True if the lowest undone job waits for its turn after a pause, or since the one below is
    /// parked.
    pub(super) held: bool,
    /// Redriven jobs whose results a worker has to take to the sink.
    pub(super) redriven: Vec<Delivery>,
}

impl Aside {
    pub(super) fn has(&self, index: Index) -> bool {
        self.attempts.contains_key(&index)
    }

    /// True if a result at or below this index waits.
    pub(super) fn has_up_to(&self, index: Index) -> bool {
        self.attempts.range(..=index).next().is_some()
    }

    /// Notes that a job was passed: a worker takes the next turn if a waiting result has it.
    pub(super) fn hold(&mut self, undone: Index) {
        self.held |= !self.sinking && self.has(undone);
    }
}

/// How jobs run in batches.
pub(crate) struct BatchSettings {
    /// The most jobs of a batch.
    pub(super) max: usize,
    /// How long a partial batch waits for more jobs.
    linger: Duration,
    /// When the waiting partial batch starts; `None` if none waits.
    pub(super) until: Option<Instant>,
    /// The number of threads that sleep until then, or until an earlier time.
    pub(super) lingering: usize,
    /// The unsaved batches of several jobs whose effects may be refused: those that wait for a
    /// save, and those in the save under way. Each begins with its lowest job.
    pub(super) added: [Vec<Box<[Index]>>; 2],
}

impl BatchSettings {
    pub(super) fn new(max: usize, linger: Duration) -> Box<Self> {
        Box::new(Self { max, linger, until: None, lingering: 0, added: Default::default() })
    }

    /// Returns the batch that may start now. A partial batch begins to linger when it is first
    /// seen; only then is the clock read.
    pub(super) fn look(&mut self, window: &Window, failures: &Failures, now: impl Fn() -> Instant) -> Next {
        let over = self.linger.is_zero() || self.until.is_some_and(|until| until <= now());
        match window.next_batch(self.max, over, |index| failures.is_alone(index)) {
            Next::Partial if over => Next::Whole,
            Next::Partial => {
                // A linger beyond the end of the clock lasts for years.
                let end =
                    |now: Instant| now.checked_add(self.linger).unwrap_or(now + Duration::from_secs(u32::MAX.into()));
                self.until.get_or_insert_with(|| end(now()));
                Next::Partial
            }
            next => {
                if window.is_paused() {
                    // After the pause it lingers anew, since more jobs may come.
                    self.until = None;
                }
                next
            }
        }
    }

    /// True if a worker is needed to start a batch, or to linger with a partial one.
    pub(super) fn want_thread(&mut self, window: &Window, failures: &Failures, now: impl Fn() -> Instant) -> bool {
        match self.look(window, failures, now) {
            Next::Nothing => false,
            Next::Partial => self.lingering == 0,
            Next::One | Next::Whole => true,
        }
    }

    /// Notes that a save takes the effects of all finished batches.
    pub(super) fn hand_over(&mut self) {
        let [waiting, writing] = &mut self.added;
        writing.append(waiting);
    }

    /// Notes that the effects in the save under way are written.
    pub(super) fn written(&mut self) {
        self.added[1].clear();
    }

    /// Takes the batch that begins with this job, if its effects are in the save under way.
    pub(super) fn take_added(&mut self, first: Index) -> Option<Box<[Index]>> {
        let writing = &mut self.added[1];
        let at = writing.iter().position(|batch| batch.first() == Some(&first))?;
        Some(writing.swap_remove(at))
    }
}
