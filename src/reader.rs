//! The thread that calls into the source: reads in index order, in runs, ahead of the workers.
//!
//! A source that answers in less time than waking a thread takes is read by the worker that needs more, for as long as this
//! thread watches; so what only its workers can slow down costs no hand-over. One thread at a time calls the source, and no lock
//! but that turn is held meanwhile.

use crate::base::error::Error;
use crate::base::guard::{Failure, drop_guarded, guarded};
use crate::base::index::{BoxError, Index};
use crate::base::sync::{Arc, Mutex};
use crate::source::wakeup::{Bell, Rung};
use crate::source::{Gate, Jobs};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

mod looks;
mod weights;

use self::looks::Looks;
pub(crate) use self::looks::{Answer, Due, SOURCE_BACK_OFF};
pub(crate) use self::weights::Weights;

/// A source that reads a run in less time than this is worth no second thread: waking one takes as long.
const QUICK: Duration = Duration::from_micros(20);

/// What the reader should do next.
pub(crate) enum Order {
    Read(RangeInclusive<Index>),
    /// Ask for the head.
    Look,
    /// A read did not go well: this is to be noted.
    Note(Answer),
    /// Nothing to read; look again at this time at the latest.
    Wait(Option<Instant>),
    End,
}

/// What came of an order to read.
pub(crate) struct Fetched<T> {
    /// From the start of the order's run.
    pub(crate) jobs: Vec<T>,
    /// Of each of these jobs.
    pub(crate) weights: Weights,
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

impl From<&Then> for Answer {
    fn from(then: &Then) -> Self {
        match then {
            Then::Unasked => Answer::Good,
            Then::Missing | Then::Truncated { .. } => Answer::Missing,
            Then::Failed(_) => Answer::Failed,
        }
    }
}

/// Who gives orders to the reader, and is told what came of them.
pub(crate) trait ReadDesk<T>: Send + Sync + 'static {
    /// Takes what was read and says what is next, in one critical section. After [`Order::Look`] the source is being asked for
    /// its head; after [`Order::Wait`] the reader is on watch.
    fn order(&self, fetched: Option<Fetched<T>>, now: Instant, look: Due) -> Order;
    /// A moment has passed on watch: sees whether the workers cope. How long until the next such look; `None`: the watch is over.
    fn watch_on(&self, now: Instant) -> Option<Duration>;
    /// What the source has, and how much of that may start. Whether that is another head than before.
    fn looked(&self, head: Option<Index>, gate: Gate) -> bool;
    /// The source is about to be asked for its gate alone.
    fn asking(&self, now: Instant);
    /// How much of what the source has may start, and whether that is more than it is known to have.
    fn gated(&self, gate: Gate) -> Beyond;
    /// The source could not be asked.
    fn look_failed(&self, failure: Failure);
}

/// Whether a gate that moved lets through more than the source is known to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beyond {
    No,
    /// It did not do so before: the head is out of date.
    Newly,
    /// It did so before.
    Still,
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

    /// Head and gate, and how long the source took to say them.
    fn look(&self) -> (Result<(Option<Index>, Gate), BoxError>, Duration) {
        let _turn = self.turn.lock();
        let begun = Instant::now();
        let answer = guarded(|| Ok((self.jobs.head()?, self.jobs.gate())));
        (answer, begun.elapsed())
    }

    fn gate(&self) -> Result<Gate, BoxError> {
        let _turn = self.turn.lock();
        guarded(|| Ok(self.jobs.gate()))
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
        let (weights, outcome) = match guarded(|| Ok(jobs.iter().map(|job| self.jobs.weight(job)).collect())) {
            Ok(weights) => (weights, outcome),
            // The jobs are sound; it is the source that has to be mended.
            Err(panic) => (Weights::equal(jobs.len(), size_of::<J::Job>()), outcome.and(Err(panic))),
        };
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
        Fetched { jobs, weights, then, quick: begun.elapsed() < QUICK }
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
        let mut looks = Looks::new(Instant::now());
        let mut fetched = None;
        loop {
            let now = Instant::now();
            match self.desk.order(fetched.take(), now, looks.due(now, self.poll_every)) {
                Order::Look => self.look(&mut looks, now),
                Order::Read(run) => {
                    let read = self.source.read_run(run);
                    // Reading goes on for as long as there is something to read; looks are not to wait for its end.
                    let rung = self.bell.take();
                    if rung.look && read.jobs.is_empty() {
                        looks.echo(Instant::now());
                    }
                    self.hear(&mut looks, Rung { look: rung.look && !read.jobs.is_empty(), ..rung });
                    fetched = Some(read);
                }
                Order::Note(answer) => looks.note(answer),
                Order::Wait(deadline) => {
                    let until = deadline.into_iter().chain(looks.next(now, self.poll_every)).min();
                    self.watch(until);
                    let rung = self.bell.wait(until);
                    if rung.closed {
                        return;
                    }
                    self.hear(&mut looks, rung);
                }
                Order::End => return,
            }
        }
    }

    fn hear(&self, looks: &mut Looks, rung: Rung) {
        if rung.look {
            looks.ring();
        }
        // The head may be slow to ask for, and need not have moved.
        if rung.gate {
            match self.ask_gate(looks) {
                Beyond::No => {}
                Beyond::Newly => looks.ring(),
                // The source may have more, and its gate may always be ahead of it: so that is asked at a pace.
                Beyond::Still => looks.echo(Instant::now()),
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
    fn look(&self, looks: &mut Looks, now: Instant) {
        looks.begin(now);
        let (answer, took) = self.source.look();
        let showed_new = match answer {
            Ok((head, gate)) => self.desk.looked(head, gate),
            Err(error) => {
                self.desk.look_failed(error.into());
                looks.note(Answer::Failed);
                false
            }
        };
        let rung = self.bell.take();
        looks.end(Instant::now(), took, showed_new, rung.look);
        self.hear(looks, Rung { look: false, ..rung });
    }

    /// Asks for the gate alone. Whether it lets through more than is known.
    fn ask_gate(&self, looks: &mut Looks) -> Beyond {
        self.desk.asking(Instant::now());
        match self.source.gate() {
            Ok(gate) => self.desk.gated(gate),
            Err(error) => {
                self.desk.look_failed(error.into());
                looks.note(Answer::Failed);
                Beyond::No
            }
        }
    }
}
