//! The sentences of a status.

use crate::rules::fleet::{Fleet, SilentWorker};
use crate::status::{QueueStatus, SetBack, StuckSlots, UntakenKind, Vantage, Waits};
use crate::types::durations::Long;
use crate::types::job::Counts;
use std::fmt;
use std::time::Duration;

impl fmt::Display for UntakenKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, jobs } = self;
        let (what, are) = if *jobs == 1 { ("job", "is") } else { ("jobs", "are") };
        write!(f, "{jobs} {what} of kind {kind:?} {are} due, and no worker that is here has it")
    }
}

impl fmt::Display for StuckSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slots, first, since } = self;
        let (have, jobs, end) = match slots {
            1 => ("slot has", "a job that was", "does"),
            _ => ("slots have", "jobs that were", "do"),
        };
        write!(f, "{slots} {have} {jobs} removed or taken back and {end} not end, {first:?} for {since:.1?}")
    }
}

impl fmt::Display for QueueStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { scheduled, ready, running, finished, dead, waiting, damaged, age } = self.counts;
        self.write_sentence(f)?;
        write!(f, " (scheduled {scheduled}, ready {ready}, running {running}, finished {finished}, dead {dead}")?;
        if waiting > 0 {
            write!(f, ", waiting for other jobs {waiting}")?;
        }
        if damaged > 0 {
            write!(f, ", damaged {damaged}: list them by that state, and remove them")?;
        }
        if age > Duration::ZERO {
            write!(f, "; as they were {age:.1?} ago")?;
        }
        match &self.oldest_ready {
            Some((id, age)) => write!(f, "; the oldest ready job, {id:?}, has waited for {age:.1?})"),
            None => f.write_str(")"),
        }
    }
}

/// Returns a number with its noun.
fn count(many: usize, noun: &str) -> String {
    format!("{many} {noun}{}", if many == 1 { "" } else { "s" })
}

/// Displays the sentence alone.
struct Sentence<'a>(&'a QueueStatus);

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write_sentence(f)
    }
}

/// Displays the reason why no job starts.
struct Why<'a>(&'a QueueStatus);

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write_why(f)
    }
}

impl QueueStatus {
    /// Returns the sentence that says why no job starts, without the numbers that `Display` adds.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
    /// queue.pause(None)?;
    /// assert_eq!(queue.status()?.sentence(), "the queue \"mail\" is paused until somebody resumes it");
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    #[must_use]
    pub fn sentence(&self) -> String {
        Sentence(self).to_string()
    }

    /// Returns the sentence without leftovers: untaken kinds, silent workers and stuck slots.
    pub(crate) fn why(&self) -> String {
        Why(self).to_string()
    }

    /// Returns the sentence of [`unknown_kinds`](Self::unknown_kinds), if there are any.
    pub(crate) fn of_unknown_kinds(&self) -> Option<String> {
        let [first, others @ ..] = &self.unknown_kinds[..] else { return None };
        let others = if others.is_empty() { String::new() } else { format!("and of {} more ", others.len()) };
        Some(format!(
            "jobs of the kind {first:?} {others}were pushed, for which its runner has no handler: add one, or correct the kind"
        ))
    }

    /// Returns the sentence of [`untaken`](Self::untaken), if there are any.
    pub(crate) fn of_untaken(&self) -> Option<String> {
        let first = self.untaken.iter().max_by_key(|kind| kind.jobs)?;
        Some(match self.untaken.len() - 1 {
            0 => first.to_string(),
            others => format!("{first}; {others} more kinds wait as it does"),
        })
    }

    /// Returns the sentence about silent workers that still have jobs.
    pub(crate) fn of_silent(&self) -> Option<String> {
        let SilentWorker { name, jobs, silent_for, lease_left } = self.fleet.silent.first()?;
        let others = match self.fleet.silent_count.saturating_sub(1) {
            0 => String::new(),
            1 => "; 1 more worker is silent".to_owned(),
            more => format!("; {more} more workers are silent"),
        };
        let (jobs, heard) = (count(usize::try_from(*jobs).unwrap_or(usize::MAX), "job"), Long(*silent_for));
        let what = if lease_left.is_zero() && self.fleet.workers == 0 {
            format!("no worker is left that could take its {jobs}")
        } else if lease_left.is_zero() {
            format!("its {jobs} may be taken by others now")
        } else {
            format!("its {jobs} may be taken by others in {}", Long(*lease_left))
        };
        Some(format!("{name} was last heard of {heard} ago, and {what}{others}"))
    }

    /// Returns how many workers wait for the end of a pause.
    fn waiting_workers(&self) -> Option<String> {
        let Fleet { workers, slots, .. } = &self.fleet;
        if self.vantage != Vantage::Shared || *workers == 0 {
            return None;
        }
        let slots = slots.map_or_else(String::new, |slots| format!(" with {slots} slots"));
        let wait = if *workers == 1 { "waits" } else { "wait" };
        Some(format!("; {}{slots} {wait} for that", count(*workers, "worker")))
    }

    fn write_sentence(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_why(f)?;
        self.of_unknown_kinds().map_or(Ok(()), |kinds| write!(f, "; {kinds}"))?;
        self.of_untaken().map_or(Ok(()), |kinds| write!(f, "; {kinds}"))?;
        self.of_silent().map_or(Ok(()), |silent| write!(f, "; {silent}"))?;
        self.stuck.as_ref().map_or(Ok(()), |stuck| {
            write!(f, "; {stuck}: let the handler return when is_stopping is true, or restart the process")
        })
    }

    fn write_why(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_waits(f)?;
        self.set_back.map_or(Ok(()), |SetBack { by, since }| {
            write!(
                f,
                "; its clock was set back by {by:.1?}, {since:.1?} ago, and what was written ahead went back with it"
            )
        })
    }

    fn write_busy(&self, f: &mut fmt::Formatter<'_>, slots: usize, since: Duration, oldest: &str) -> fmt::Result {
        let of_workers = match self.fleet.workers {
            workers @ 2.. if self.vantage == Vantage::Shared => format!(" of {workers} workers"),
            _ => String::new(),
        };
        write!(f, "has all {slots} slots{of_workers} busy; its oldest job, {oldest:?}, has run for {since:.1?}")?;
        if self.stuck.is_none() {
            f.write_str(": raise max_processing, or find out why that job takes so long")?;
        }
        Ok(())
    }

    fn write_standstill(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waits::StandsStill { slots, workers, worker, oldest, kind: _, since, no_end } = &self.waits else {
            return Ok(());
        };
        let of_workers = workers.map_or_else(String::new, |workers| format!(" of {}", count(workers, "worker")));
        let of_worker = worker.as_ref().map_or_else(String::new, |worker| format!(" of {worker}"));
        let (slots, are) = (count(*slots, "slot"), if *slots == 1 { "is" } else { "are" });
        let (since, no_end) = (Long(*since), Long(*no_end));
        write!(
            f,
            "stands still: {slots}{of_workers} {are} busy; the oldest, {oldest:?}{of_worker}, runs for {since}, and no job has \
             ended for {no_end}"
        )
    }

    fn write_waits(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the queue {:?} ", self.queue)?;
        if let Some(sentence) = self.seen_elsewhere() {
            return f.write_str(&sentence);
        }
        match &self.waits {
            Waits::No => f.write_str("runs its jobs")?,
            Waits::NothingReady { due_in: None } => f.write_str("has no job that is ready or scheduled")?,
            Waits::NothingReady { due_in: Some(due_in) } => {
                write!(f, "has no job that is ready; the next one is due in {due_in:.1?}")?;
            }
            Waits::Paused { left: None } => {
                f.write_str("is paused until somebody resumes it")?;
                self.waiting_workers().map_or(Ok(()), |workers| f.write_str(&workers))?;
            }
            Waits::Paused { left: Some(left) } => write!(f, "is paused for another {left:.1?}")?,
            Waits::Gate { name, since } => {
                write!(f, "claims no job while the gate {name:?} is closed, which it has been for {since:.1?}")?;
            }
            Waits::Limited { limit, held, left } => {
                write!(f, "has only ready jobs that limits hold: {limit} holds {held} of them, ")?;
                match left {
                    Some(left) => write!(f, "and has a token in {left:.1?}")?,
                    None => f.write_str("until a job ends")?,
                }
            }
            Waits::OtherKinds => f.write_str("has no due job of a kind that a worker here takes")?,
            Waits::Busy { slots, since, oldest } => self.write_busy(f, *slots, *since, oldest)?,
            Waits::StandsStill { .. } => self.write_standstill(f)?,
            Waits::Idle { workers, free: Some(0) } => {
                let (due, workers) = (self.due_for().as_secs(), count(*workers, "worker"));
                let hold = "hold jobs of other queues, or jobs that were removed or taken back and do not end";
                write!(f, "has a job that was due {due}s ago, and all slots of {workers} {hold}")?;
            }
            Waits::Idle { workers, free } => {
                let free = free.map_or_else(String::new, |free| format!(" with {free} free slots"));
                let (due, workers) = (self.due_for().as_secs(), count(*workers, "worker"));
                write!(f, "has a job that was due {due}s ago, and {workers}{free} began none for a minute")?;
            }
            Waits::Alone { runs: true, oldest, since } => write!(
                f,
                "has run the job {oldest:?} alone for {since:.1?}, since its process died more than once while it ran"
            )?,
            Waits::Alone { runs: false, oldest, since } => write!(
                f,
                "begins no job until those that run have ended, since the next one runs alone: its process died more than once \
                 while it ran; the oldest job that runs, {oldest:?}, has run for {since:.1?}"
            )?,
            Waits::NoWorker => {
                f.write_str("has jobs that are due, and no runner and no caller of accept: start one")?;
            }
            Waits::StoreFails { error, since } => {
                write!(f, "cannot use its store since {since:.1?}, and tries again: {error}")?;
            }
        }
        Ok(())
    }
}
