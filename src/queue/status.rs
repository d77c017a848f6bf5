//! The state of a queue in one sentence, and in numbers.

use crate::queue::engine::Survey;
use crate::queue::handle::Queue;
use crate::queue::waits::losses::Stuck;
use crate::queue::words::error::QueueError;
use crate::queue::words::job::{Counts, JobId};
use crate::queue::words::limit::LimitOf;
use std::fmt;
use std::time::{Duration, Instant};

/// The state of a queue, from [`Queue::status`]. `Display` says it in one sentence.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct QueueStatus {
    /// The name of the queue.
    pub queue: String,
    /// The number of jobs in each state.
    pub counts: Counts,
    /// The ready job that has waited for the longest time in its priority, and its age. Of the
    /// jobs that limits hold, the first ones of 64 limits are looked at. `None` if no job is ready.
    pub oldest_ready: Option<(JobId, Duration)>,
    /// The reason why no job starts right now.
    pub waits: Waits,
    /// The kinds that somebody has pushed since the queue was opened, and that its runner has no
    /// handler for: mostly they are misspelt. [`Unknown`](super::Unknown) says what becomes of
    /// their jobs. It has 64 kinds at most, and none without a runner, as in a store that is only
    /// read. A kind stays here when its jobs are gone, and if its push was refused later, as by a
    /// full queue. Jobs that were pushed in an earlier life are seen when the runner takes them.
    pub unknown_kinds: Vec<String>,
    /// The kinds of which jobs are due, and that no worker takes that this process knows of: the
    /// runner here has no handler for them, and claims of other kinds have passed them by. Another
    /// process that shares the queue may have one.
    pub untaken: Vec<UntakenKind>,
    /// The slots of the runner in this process that jobs hold which are no longer its own. `None`
    /// if there are none, as without a runner.
    pub stuck: Option<StuckSlots>,
    /// The clock on the wall was set back less than an hour ago, as this process has noticed. What
    /// the queue had written at a time that is ahead since went back with it: a back-off, a pause,
    /// the window of a unique job, the time for which a row is kept, the last tick of an interval.
    pub set_back: Option<SetBack>,
    /// The place from which the queue was seen.
    pub(super) vantage: Vantage,
}

/// The place from which a queue is seen: it decides what the process can know of its runners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vantage {
    /// This process has the queue for itself.
    Whole,
    /// Another process has it, and this one reads what is saved.
    Beside,
    /// Any number of processes have it. The database knows which jobs run.
    Shared,
}

/// Jobs of a kind that are due and that no worker here takes, from [`QueueStatus::untaken`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UntakenKind {
    /// The kind.
    pub kind: String,
    /// The number of its jobs, up to 10,000.
    pub jobs: u64,
}

impl fmt::Display for UntakenKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, jobs } = self;
        let (what, are) = if *jobs == 1 { ("job", "is") } else { ("jobs", "are") };
        write!(f, "{jobs} {what} of kind {kind:?} {are} due, and no worker that is here has it")
    }
}

/// Slots that stay taken although their jobs were removed, or taken back, while they ran.
///
/// A future is dropped at its next await point, and a deferred job ends at once, so such a slot
/// soon is free. A thread cannot be ended: its handler sees that it is to stop
/// ([`Running::is_stopping`](super::Running::is_stopping)), and holds the slot until it returns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StuckSlots {
    /// The number of slots.
    pub slots: usize,
    /// The id of the job that was removed, or taken back, first.
    pub first: JobId,
    /// The time since then.
    pub since: Duration,
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

/// A clock on the wall that was set back, from [`QueueStatus::set_back`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetBack {
    /// The time by which it went back.
    pub by: Duration,
    /// The time since that was noticed.
    pub since: Duration,
}

/// The time for which a status tells of a clock that was set back.
const TOLD_FOR: Duration = Duration::from_secs(3600);

/// The reason why no job of a queue starts right now.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Waits {
    /// Jobs start, or are about to.
    No,
    /// No job is ready.
    NothingReady {
        /// The time until the next scheduled job is due, or the next tick of a periodic one, if
        /// there is any.
        due_in: Option<Duration>,
    },
    /// The queue is paused.
    Paused {
        /// The time until it ends; `None`: it ends with [`Queue::resume`].
        left: Option<Duration>,
    },
    /// A [gate](super::RunnerBuilder::gate) of the runner is closed.
    Gate {
        /// Its name.
        name: String,
        /// The time for which it has been closed.
        since: Duration,
    },
    /// Limits hold all jobs that are ready.
    Limited {
        /// The limit that holds the most of them, among 64 limits at most. A key whose first job
        /// waits for the limit of its kind counts there.
        limit: LimitOf,
        /// The number of jobs that it holds.
        held: u64,
        /// The time until it has a token for the first of them; `None`: it has a place when a job
        /// ends that runs.
        left: Option<Duration>,
    },
    /// All jobs that are due are of kinds that no worker here takes: see
    /// [`QueueStatus::untaken`].
    OtherKinds,
    /// All slots of the runner are busy.
    Busy {
        /// The number of slots.
        slots: usize,
        /// The time for which the oldest running job has run.
        since: Duration,
        /// The id of that job.
        oldest: JobId,
    },
    /// A job runs alone, or is to run alone as soon as those that run have ended. Its process died
    /// while it ran, and not for the first time: see
    /// [`QueueOptions::max_crashes`](crate::queue::QueueOptions::max_crashes).
    #[non_exhaustive]
    Alone {
        /// True if it runs; false if others still do.
        runs: bool,
        /// The id of the oldest running job.
        oldest: JobId,
        /// The time for which that one has run.
        since: Duration,
    },
    /// No runner runs, and nobody accepts jobs.
    NoWorker,
    /// The store cannot be used, or a record in it is damaged. The call is tried again.
    StoreFails {
        /// The error.
        error: String,
        /// The time since the first such failure.
        since: Duration,
    },
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
    pub(super) fn why(&self) -> String {
        Why(self).to_string()
    }

    /// Returns the sentence of [`unknown_kinds`](Self::unknown_kinds), if there are any.
    pub(super) fn of_unknown_kinds(&self) -> Option<String> {
        let [first, others @ ..] = &self.unknown_kinds[..] else { return None };
        let others = if others.is_empty() { String::new() } else { format!("and of {} more ", others.len()) };
        Some(format!(
            "jobs of the kind {first:?} {others}were pushed, for which its runner has no handler: add one, or correct the kind"
        ))
    }

    /// Returns the sentence of [`untaken`](Self::untaken), if there are any.
    pub(super) fn of_untaken(&self) -> Option<String> {
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

impl Queue {
    /// Returns the state of the queue. It reads a few entries of the store, and waits for nobody.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline::queue::{NewJob, Queue, QueueOptions, Waits};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
    /// queue.push(NewJob::new("welcome", "ann")?.id("user:42"))?;
    /// let status = queue.status()?;
    /// assert_eq!(status.waits, Waits::NoWorker);
    /// assert!(status.to_string().contains("no runner and no caller of accept: start one"));
    /// # Ok::<(), waterline::queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Store`] when the database cannot be read.
    pub fn status(&self) -> Result<QueueStatus, QueueError> {
        self.catch_up();
        let at = self.moment();
        let survey = self.engine.survey(self.number)?;
        let trouble = self.shared.trouble();
        let till = |wall: u64| Duration::from_millis(wall.saturating_sub(at.wall));
        let since = |since: Instant| at.now.saturating_duration_since(since);
        let Survey { counts, due, oldest_running, .. } = &survey;
        let stuck = self.shared.losses.stuck();
        let busy = survey.running + stuck.as_ref().map_or(0, |stuck| stuck.count);
        // A job that is lost runs on, though the store says nothing of it.
        let oldest_busy = oldest_running.iter().chain(stuck.as_ref().map(|stuck| &stuck.oldest)).min();
        let untaken: Vec<_> = survey.lines.iter().filter(|(kind, _)| !self.shared.kinds.is_handled(kind)).collect();
        let waits = if let Some((error, begun)) = &trouble.failing {
            Waits::StoreFails { error: error.clone(), since: since(*begun) }
        } else if let Some(until) = survey.paused_until {
            Waits::Paused { left: (until < u64::MAX).then(|| till(until)) }
        } else if counts.ready == 0 && due.is_none_or(|due| due > at.wall) {
            Waits::NothingReady { due_in: due.map(till) }
        } else if let Some((name, begun)) = &trouble.closed {
            Waits::Gate { name: name.clone(), since: since(*begun) }
        } else if let (Some(runs), Some((begun, oldest))) = (survey.alone, oldest_running) {
            Waits::Alone { runs, oldest: oldest.clone(), since: since(*begun) }
        } else if let Some(until) = survey.full {
            Waits::Limited { limit: LimitOf::Queue, held: counts.ready, left: until.map(till) }
        } else if let Some((limit, held, until)) = survey.held.as_ref().filter(|_| survey.only_held) {
            Waits::Limited { limit: limit.clone(), held: *held, left: until.map(till) }
        } else if survey.only_in_lines && untaken.len() == survey.lines.len() {
            Waits::OtherKinds
        } else {
            match (self.shared.slots(), oldest_busy) {
                (Some(slots), Some((begun, oldest))) if busy >= slots => {
                    Waits::Busy { slots, since: since(*begun), oldest: oldest.clone() }
                }
                (None, _) if !self.shared.is_awaited() && survey.running == 0 => Waits::NoWorker,
                _ => Waits::No,
            }
        };
        let age = |since: u64| Duration::from_millis(at.wall.saturating_sub(since));
        let oldest_ready = survey.oldest_ready.map(|(id, since)| (id, age(since)));
        let (queue, unknown_kinds) = (self.name().to_owned(), self.shared.kinds.unhandled());
        let untaken = untaken.into_iter().map(|(kind, jobs)| UntakenKind { kind: kind.clone(), jobs: *jobs }).collect();
        let vantage = match (self.capabilities().one_process, self.writable()) {
            (false, _) => Vantage::Shared,
            (true, Err(_)) => Vantage::Beside,
            (true, Ok(())) => Vantage::Whole,
        };
        let stuck = stuck.map(|Stuck { count, first: (lost, first), .. }| {
            let since = since(lost);
            StuckSlots { slots: count, first, since }
        });
        let own = trouble.set_back.map(|(by, noticed)| (by, since(noticed)));
        let set_back = survey.set_back.or(own).map(|(by, since)| SetBack { by, since });
        let set_back = set_back.filter(|set_back| set_back.since < TOLD_FOR);
        let counts = survey.counts;
        Ok(QueueStatus { queue, counts, oldest_ready, waits, unknown_kinds, untaken, stuck, set_back, vantage })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the status of a queue without a job.
    pub(in crate::queue) fn status(waits: Waits) -> QueueStatus {
        let (queue, counts, vantage) = ("mail".to_owned(), Counts::default(), Vantage::Whole);
        let (oldest_ready, stuck, set_back, unknown_kinds, untaken) = (None, None, None, Vec::new(), Vec::new());
        QueueStatus { queue, counts, oldest_ready, waits, unknown_kinds, untaken, stuck, set_back, vantage }
    }
}
