//! The sentences of a status.

use crate::queue::status::{QueueStatus, SetBack, StuckSlots, UntakenKind, Waits};
use crate::queue::words::durations::Long;
use crate::queue::words::job::Counts;
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

/// The sentence alone.
struct Sentence<'a>(&'a QueueStatus);

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write_sentence(f)
    }
}

/// The sentence that says why no job starts.
struct Why<'a>(&'a QueueStatus);

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write_why(f)
    }
}

impl QueueStatus {
    /// Returns the sentence that says why no job starts, without the numbers that `Display` has
    /// behind it.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline::queue::{Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
    /// queue.pause(None)?;
    /// assert_eq!(queue.status()?.sentence(), "the queue \"mail\" is paused until somebody resumes it");
    /// # Ok::<(), waterline::queue::QueueError>(())
    /// ```
    #[must_use]
    pub fn sentence(&self) -> String {
        Sentence(self).to_string()
    }

    /// Returns the sentence without those of [`unknown_kinds`](Self::unknown_kinds) and of
    /// [`stuck`](Self::stuck).
    pub(in crate::queue) fn why(&self) -> String {
        Why(self).to_string()
    }

    /// Returns the sentence of [`unknown_kinds`](Self::unknown_kinds), if there are any.
    pub(in crate::queue) fn of_unknown_kinds(&self) -> Option<String> {
        let [first, others @ ..] = &self.unknown_kinds[..] else { return None };
        let others = if others.is_empty() { String::new() } else { format!("and of {} more ", others.len()) };
        Some(format!(
            "jobs of the kind {first:?} {others}were pushed, for which its runner has no handler: add one, or correct the kind"
        ))
    }

    /// Returns the sentence of [`untaken`](Self::untaken), if there are any.
    pub(in crate::queue) fn of_untaken(&self) -> Option<String> {
        let first = self.untaken.iter().max_by_key(|kind| kind.jobs)?;
        Some(match self.untaken.len() - 1 {
            0 => first.to_string(),
            others => format!("{first}; {others} more kinds wait as it does"),
        })
    }

    fn write_sentence(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_why(f)?;
        self.of_unknown_kinds().map_or(Ok(()), |kinds| write!(f, "; {kinds}"))?;
        self.of_untaken().map_or(Ok(()), |kinds| write!(f, "; {kinds}"))?;
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
            Waits::Paused { left: None } => f.write_str("is paused until somebody resumes it")?,
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
            Waits::Busy { slots, since, oldest } => {
                write!(f, "has all {slots} slots busy; its oldest job, {oldest:?}, has run for {since:.1?}")?;
                if self.stuck.is_none() {
                    f.write_str(": raise max_processing, or find out why that job takes so long")?;
                }
            }
            Waits::StandsStill { slots, oldest, kind: _, since, no_end } => {
                let are = if *slots == 1 { "slot is" } else { "slots are" };
                let (since, no_end) = (Long(*since), Long(*no_end));
                write!(
                    f,
                    "stands still: {slots} {are} busy; the oldest, {oldest:?}, runs for {since}, and no job has ended for {no_end}"
                )?;
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
