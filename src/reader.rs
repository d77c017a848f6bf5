//! The thread that calls into the source: reads in index order, in runs, ahead of the workers.
//!
//! A source that answers in less time than waking a thread takes is read by the worker that needs more, for as long as this
//! thread watches; so what only its workers can slow down costs no hand-over. One thread at a time calls the source, and no lock
//! but that turn is held meanwhile.

use crate::config::DEFAULT_POLL;
use crate::error::{Error, Failure, drop_guarded, guarded};
use crate::index::{BoxError, Index};
use crate::jobs::{Gate, Jobs};
use crate::retry::Retry;
use crate::sync::{Arc, Mutex};
use crate::wakeup::Bell;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// How soon a failing source is asked again.
const SOURCE_BACK_OFF: Retry = Retry::exponential(Duration::from_millis(50), Duration::from_secs(5));

/// A source that reads a run in less time than this is worth no second thread: waking one takes as long.
const QUICK: Duration = Duration::from_micros(20);

/// What the reader should do next.
pub(crate) enum Order {
    Read(RangeInclusive<Index>),
    /// A worker has read, and it did not go well: this is to be noted.
    Note(Answer),
    /// Nothing to read; look again at this time at the latest.
    Wait(Option<Instant>),
    End,
}

/// What came of an order to read.
pub(crate) struct Fetched<T> {
    /// From the start of the order's run.
    pub(crate) jobs: Vec<T>,
    /// What became of the job after them.
    pub(crate) then: Then,
    /// It took less time than waking a thread.
    pub(crate) quick: bool,
}

/// What became of the job after those that were read.
pub(crate) enum Then {
    /// It was not asked for, or the source stopped before it.
    Unasked,
    Missing,
    /// It is gone for good: the source begins at `first`, above the `next` one.
    Truncated {
        next: Index,
        first: Index,
    },
    Failed(Failure),
}

/// Who gives orders to the reader, and is told what came of them.
pub(crate) trait ReadDesk<T>: Send + Sync + 'static {
    /// Takes what was read and says what is next, in one critical section. After [`Order::Wait`] the reader is on watch.
    fn order(&self, fetched: Option<Fetched<T>>, now: Instant) -> Order;
    /// A moment has passed on watch: sees whether the workers cope. How long until the next such look; `None`: the watch is over.
    fn watch_on(&self, now: Instant) -> Option<Duration>;
    /// The source is about to be asked for its head.
    fn looking(&self, fetched: Option<Fetched<T>>, now: Instant);
    /// What the source has, and how much of that may start.
    fn looked(&self, head: Option<Index>, gate: Gate);
    /// The look failed.
    fn look_failed(&self, failure: Failure);
}

/// The source, called by one thread at a time.
pub(crate) struct Turns<J> {
    jobs: J,
    turn: Mutex<()>,
}

/// What a worker needs of the source.
pub(crate) trait ReadRuns<T>: Send + Sync {
    /// Reads a run, or as much of it as there is.
    fn read_run(&self, run: RangeInclusive<Index>) -> Fetched<T>;
}

impl<J: Jobs> Turns<J> {
    pub(crate) fn new(jobs: J) -> Self {
        Self { jobs, turn: Mutex::new(()) }
    }

    fn look(&self) -> Result<(Option<Index>, Gate), BoxError> {
        let _turn = self.turn.lock();
        guarded(|| Ok((self.jobs.head()?, self.jobs.gate())))
    }
}

impl<J: Jobs> ReadRuns<J::Job> for Turns<J> {
    fn read_run(&self, run: RangeInclusive<Index>) -> Fetched<J::Job> {
        let _turn = self.turn.lock();
        let begun = Instant::now();
        let start = *run.start();
        let asked = usize::try_from(run.end() - start).unwrap_or(usize::MAX).saturating_add(1);
        let mut jobs = Vec::new();
        let outcome = guarded(|| self.jobs.read(run, &mut jobs)).and_then(|()| match jobs.len() {
            more if more > asked => Err(format!("it returned {more} jobs when {asked} were asked for").into()),
            _ => Ok(()),
        });
        if jobs.len() > asked {
            jobs.drain(asked..).for_each(drop_guarded);
        }
        let then = match outcome {
            Ok(()) if !jobs.is_empty() => Then::Unasked,
            Ok(()) => match guarded(|| self.jobs.first()) {
                Ok(first) if first > start => Then::Truncated { next: start, first },
                Ok(_) => Then::Missing,
                Err(error) => Then::Failed(error.into()),
            },
            // A source may say by itself that it begins above.
            Err(error) => match error.downcast_ref() {
                Some(Error::Truncated { first, .. }) if jobs.is_empty() && *first > start => {
                    Then::Truncated { next: start, first: *first }
                }
                _ => Then::Failed(error.into()),
            },
        };
        Fetched { jobs, then, quick: begun.elapsed() < QUICK }
    }
}

/// Reads until the desk says that it is the end.
pub(crate) struct Reader<J, D> {
    pub(crate) source: Arc<Turns<J>>,
    pub(crate) desk: Arc<D>,
    pub(crate) bell: Arc<Bell>,
    /// How often the source is looked at when nobody rings; `None`: never.
    pub(crate) poll_every: Option<Duration>,
}

impl<J: Jobs, D: ReadDesk<J::Job>> Reader<J, D> {
    pub(crate) fn run(self) {
        self.read_on();
        drop_guarded(self.source);
    }

    fn read_on(&self) {
        let mut looks = Looks::default();
        let mut fetched = None;
        loop {
            let mut now = Instant::now();
            if looks.due(now, self.poll_every) {
                looks.begin(now);
                let looked = self.look(fetched.take(), now);
                looks.note(looked);
                now = Instant::now();
            }
            match self.desk.order(fetched.take(), now) {
                Order::Read(run) => {
                    let read = self.source.read_run(run);
                    looks.note(Answer::from(&read.then));
                    fetched = Some(read);
                    // Reading goes on for as long as there is something to read; looks are not to wait for its end.
                    looks.wanted |= self.bell.take_look();
                }
                Order::Note(answer) => looks.note(answer),
                Order::Wait(deadline) => {
                    let until = deadline.into_iter().chain(looks.next(self.poll_every)).min();
                    self.watch(until);
                    let rung = self.bell.wait(until);
                    if rung.closed {
                        return;
                    }
                    looks.wanted |= rung.look;
                }
                Order::End => return,
            }
        }
    }

    /// Sees to the workers until somebody rings, there is nothing to see to, or the time has come.
    fn watch(&self, until: Option<Instant>) {
        if self.bell.watch() {
            return;
        }
        let mut now = Instant::now();
        while let Some(pause) = self.desk.watch_on(now) {
            let pause_ends = now + pause;
            if self.bell.nap(until.map_or(pause_ends, |until| until.min(pause_ends))) {
                return;
            }
            now = Instant::now();
            if until.is_some_and(|until| now >= until) {
                return;
            }
        }
    }

    /// Asks for the head.
    fn look(&self, fetched: Option<Fetched<J::Job>>, now: Instant) -> Answer {
        self.desk.looking(fetched, now);
        match self.source.look() {
            Ok((head, gate)) => {
                self.desk.looked(head, gate);
                Answer::Good
            }
            Err(error) => {
                self.desk.look_failed(error.into());
                Answer::Failed
            }
        }
    }
}

/// What the source answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Good,
    /// A job that should be there is not.
    Missing,
    Failed,
}

impl From<&Then> for Answer {
    fn from(then: &Then) -> Self {
        match then {
            Then::Unasked => Answer::Good,
            Then::Missing | Then::Truncated { .. } => Answer::Missing,
            Then::Failed(_) => Answer::Failed,
        }
    }
}

/// When the source is looked at next.
struct Looks {
    /// Somebody rang, or nothing is known yet.
    wanted: bool,
    last: Instant,
    /// Since the last look nothing failed.
    clean: bool,
    /// Since the last look a job was missing, which nobody may ever ring for.
    missing: bool,
    /// How many looks in a row were followed by a failure.
    failures: u32,
    /// Until then a failing source is left alone, however often it rings; that it rang is not forgotten.
    until: Option<Instant>,
}

impl Default for Looks {
    fn default() -> Self {
        Self { wanted: true, last: Instant::now(), clean: true, missing: false, failures: 0, until: None }
    }
}

impl Looks {
    /// When it is due if nobody rings; `None`: never. A source that fails, or misses a job, is looked at again in any case.
    fn next(&self, poll_every: Option<Duration>) -> Option<Instant> {
        // An interval beyond the clock's end is for ever.
        let polled = || poll_every.and_then(|every| self.last.checked_add(every));
        self.until.or_else(polled).or_else(|| self.missing.then(|| self.last + DEFAULT_POLL))
    }

    fn due(&self, now: Instant, poll_every: Option<Duration>) -> bool {
        match self.until {
            Some(until) => now >= until,
            None => self.wanted || self.next(poll_every).is_some_and(|next| now >= next),
        }
    }

    fn begin(&mut self, now: Instant) {
        if self.clean {
            self.failures = 0;
        }
        *self = Self { wanted: false, last: now, clean: true, missing: false, until: None, ..*self };
    }

    /// A call into the source is over.
    fn note(&mut self, answer: Answer) {
        self.missing |= answer == Answer::Missing;
        if answer == Answer::Failed && std::mem::take(&mut self.clean) {
            self.failures = self.failures.saturating_add(1);
            let pause = SOURCE_BACK_OFF.jitter(0.2).delay(self.failures, fastrand::f64()).unwrap_or_default();
            self.until = Some(Instant::now() + pause);
        }
    }
}
