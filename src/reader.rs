//! The thread that calls the source: reads runs in index order, ahead of the workers.
//!
//! If the last read took less than 20 µs and this thread only supervises the workers, the worker
//! that runs dry reads the next run itself, and no thread is woken. One thread at a time calls the
//! source, and it holds no other lock meanwhile.

use crate::base::guard::{drop_guarded, guarded};
use crate::base::sync::{Arc, Mutex};
use crate::base::time::{self, Now, Sleep};
use crate::base::{BoxError, Error, Index, caught::Caught, clock::Clock};
use crate::source::wakeup::{Bell, Rung};
use crate::source::{Gate, Jobs, Sparse, Steps, next_of};
use std::num::NonZero;
use std::time::{Duration, Instant};

mod looks;
mod payloads;
mod weights;

pub(crate) use self::looks::Due;
use self::looks::Looks;
pub(crate) use self::payloads::Payloads;
pub(crate) use self::weights::Weights;

/// Reading a run in less time than this is worth no second thread: waking one takes as long.
const QUICK: Duration = Duration::from_micros(20);

/// What the reader does next.
pub(crate) enum Order {
    Read(Ask),
    Look,
    /// Note that a read did not bring a job that should exist.
    Note,
    /// Wait for work, at most until this time.
    Wait(Option<Instant>),
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) first: Index,
    /// The last index that a job may have, if there are gaps.
    pub(crate) last: Index,
    /// Nonzero, so that an `Option` of this takes no extra room.
    most: NonZero<u32>,
}

impl Ask {
    pub(crate) fn new(first: Index, last: Index, most: u64) -> Self {
        let most = u32::try_from(most).ok().and_then(NonZero::new).unwrap_or(NonZero::<u32>::MAX);
        Self { first, last, most }
    }

    /// The most jobs.
    pub(crate) fn most(self) -> usize {
        self.most.get() as usize
    }
}

/// The result of a read.
pub(crate) struct Fetched {
    /// The jobs from the first index of the run.
    pub(crate) jobs: Box<dyn Payloads>,
    /// The gaps between and behind the jobs; empty if there are none.
    pub(crate) steps: Steps,
    pub(crate) weights: Weights,
    /// Why there are no more jobs.
    pub(crate) then: Then,
    /// True if the call took less time than waking a thread.
    pub(crate) quick: bool,
    /// When the call ended.
    pub(crate) ended: Instant,
}

/// Why no more jobs were read.
pub(crate) enum Then {
    /// No more were requested, or the source stopped early.
    Unasked,
    Missing,
    /// The next job is gone for good: the source begins at `first`.
    Truncated {
        next: Index,
        first: Index,
    },
    Failed(Caught),
}

impl Fetched {
    /// True if the source answered nothing at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.len() == 0 && self.steps.is_empty()
    }

    /// Returns the lowest index for which the source gave no answer, when asked from `first` on.
    pub(crate) fn next(&self, first: Index) -> Index {
        next_of(first, &self.steps, self.jobs.len())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Good,
    /// A job that should exist is missing.
    Missing,
    Failed,
}

impl From<&Then> for Outcome {
    fn from(then: &Then) -> Self {
        match then {
            Then::Unasked => Outcome::Good,
            Then::Missing | Then::Truncated { .. } => Outcome::Missing,
            Then::Failed(_) => Outcome::Failed,
        }
    }
}

/// Gives orders to the reader, and takes the results.
pub(crate) trait ReadPort: Send + Sync + 'static {
    /// Takes what was read, and returns the next order, in one critical section. For
    /// [`Order::Look`] the reader asks the source for its head; during [`Order::Wait`] it
    /// supervises the workers.
    fn order(&self, fetched: Option<Fetched>, now: &Now, look: Due) -> Order;
    /// Checks whether the workers cope. Returns the time until the next check; `None` if there is
    /// nothing left to supervise.
    fn supervise(&self, now: &Now) -> Option<Duration>;
    /// Takes the answer to a look. Returns true if the head has changed.
    fn looked(&self, look: Look) -> bool;
    /// Hears that the source is about to be asked for its gate alone.
    fn asking(&self, now: Instant);
    /// Takes the gate. Returns whether it lets through more than the source is known to have.
    fn gated(&self, gate: Gate) -> Beyond;
    /// Hears that a look failed. Returns until when the source is left alone.
    fn look_failed(&self, failure: Caught) -> Option<Instant>;
}

/// Whether the gate lets through more than the source is known to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beyond {
    No,
    /// It does now: the head is out of date.
    Newly,
    /// It did before, too.
    Still,
}

pub(crate) struct Look {
    pub(crate) head: Option<Index>,
    pub(crate) gate: Gate,
    /// Why there is no job above the head yet.
    pub(crate) waits_for: Option<String>,
}

/// The source, called by one thread at a time.
pub(crate) struct SharedSource<J> {
    jobs: J,
    clock: Clock,
    turn: Mutex<()>,
}

/// The result of one call into the source.
pub(crate) struct Reply<R> {
    answer: Result<R, BoxError>,
    took: Duration,
    ended: Instant,
}

/// What a worker needs of the source.
pub(crate) trait ReadRuns: Send + Sync {
    /// Reads a run, or as much of it as there is.
    fn read_run(&self, run: Ask) -> Fetched;
}

/// What the reader needs of the source.
pub(crate) trait Source: ReadRuns {
    /// Asks for the head, the gate, and what the source waits for.
    fn look(&self) -> Reply<Look>;
    /// Asks for the gate alone.
    fn gate(&self) -> Reply<Gate>;
    fn clock(&self) -> &Clock;
}

impl<J: Jobs> SharedSource<J> {
    pub(crate) fn new(jobs: J, clock: Clock) -> Self {
        Self { jobs, clock, turn: Mutex::new(()) }
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

impl<J: Jobs> ReadRuns for SharedSource<J> {
    fn read_run(&self, ask: Ask) -> Fetched {
        let (start, last, most) = (ask.first, ask.last, ask.most());
        let _turn = self.turn.lock();
        let begun = time::now();
        let mut read = Sparse::within(start, last, most);
        let outcome = guarded(|| self.jobs.read_sparse(start..=last, most, &mut read));
        let (jobs, steps, surplus, fault) = read.into_parts();
        let outcome = outcome.and(fault.map_or(Ok(()), |fault| Err(fault.into())));
        surplus.into_iter().for_each(drop_guarded);
        let (weights, outcome) = match guarded(|| Ok(jobs.iter().map(|job| self.jobs.weight(job)).collect())) {
            Ok(weights) => (weights, outcome),
            // The jobs are sound; only their weights are missing, so the source fails.
            Err(panic) => (Weights::equal(jobs.len(), size_of::<J::Job>()), outcome.and(Err(panic))),
        };
        let is_empty = jobs.is_empty() && steps.is_empty();
        let then = match outcome {
            Ok(()) if !is_empty => Then::Unasked,
            Ok(()) => match guarded(|| self.jobs.first()) {
                Ok(first) if first > start => Then::Truncated { next: start, first },
                Ok(_) => Then::Missing,
                Err(error) => Then::Failed(error.into()),
            },
            // A source may report by itself that it begins above.
            Err(error) => match error.downcast_ref() {
                Some(Error::Truncated { first, .. }) if is_empty && *first > start => {
                    Then::Truncated { next: start, first: *first }
                }
                _ => Then::Failed(error.into()),
            },
        };
        let ended = time::now();
        let quick = ended.saturating_duration_since(begun) < QUICK;
        Fetched { jobs: <dyn Payloads>::new(jobs), steps, weights, then, quick, ended: self.clock.at(|| ended) }
    }
}

/// The reader thread, which carries out orders until the end.
pub(crate) struct Reader {
    source: Arc<dyn Source>,
    port: Arc<dyn ReadPort>,
    bell: Arc<Bell>,
    /// The time between two looks when the bell does not ring; `None`: no limit.
    poll_every: Option<Duration>,
    looks: Looks,
    /// The result of the last order, if that was to read.
    fetched: Option<Fetched>,
    /// Set while there is no order.
    wait: Option<Wait>,
}

/// The wait for an order.
struct Wait {
    until: Option<Instant>,
    /// True while it supervises the workers.
    supervises: bool,
}

impl Reader {
    pub(crate) fn new(
        source: Arc<dyn Source>,
        port: Arc<dyn ReadPort>,
        bell: Arc<Bell>,
        poll_every: Option<Duration>,
    ) -> Self {
        let looks = Looks::new(source.clock().now());
        Self { source, port, bell, poll_every, looks, fetched: None, wait: None }
    }

    pub(crate) fn run(mut self) {
        loop {
            // A clock that is set after this moment rings the bell.
            let now = self.source.clock().when_asked();
            match self.step(&now) {
                Sleep::No => {}
                Sleep::Spin => self.bell.spin(),
                Sleep::Until(until) => self.bell.sleep(self.source.clock().deadline(until)),
                Sleep::Awhile(pause) => self.bell.sleep(time::now().checked_add(pause)),
                Sleep::End => break,
            }
        }
        drop_guarded(self.fetched);
        drop_guarded(self.source);
    }

    /// Takes an order and carries it out, or supervises the workers while there is none.
    pub(crate) fn step(&mut self, now: &Now) -> Sleep {
        let Some(wait) = &mut self.wait else { return self.obey(now) };
        let is_over = wait.until.is_some_and(|until| now.get() >= until);
        if !is_over && !self.bell.has_rung() {
            if wait.supervises {
                if let Some(pause) = self.port.supervise(now) {
                    let left = wait.until.map(|until| until.saturating_duration_since(now.get()));
                    return Sleep::Awhile(left.map_or(pause, |left| left.min(pause)));
                }
                wait.supervises = false;
            }
            return Sleep::Until(wait.until);
        }
        self.wait = None;
        let rung = self.bell.take_all();
        if rung.closed {
            return Sleep::End;
        }
        if self.hear(rung, now.get()) { Sleep::No } else { self.obey(now) }
    }

    fn obey(&mut self, now: &Now) -> Sleep {
        let due = self.looks.due(now.get(), self.poll_every);
        match self.port.order(self.fetched.take(), now, due) {
            Order::Look => self.look(now),
            Order::Read(run) => {
                let read = self.source.read_run(run);
                // Reading goes on while there is something to read. Looks must not wait for that.
                let rung = self.bell.take();
                if rung.look && read.is_empty() {
                    self.looks.echo(read.ended);
                }
                self.hear(Rung { look: rung.look && !read.is_empty(), ..rung }, read.ended);
                self.fetched = Some(read);
            }
            Order::Note => self.looks.read_in_vain(),
            Order::Wait(deadline) => {
                let until = deadline.into_iter().chain(self.looks.next(now.get(), self.poll_every)).min();
                self.wait = Some(Wait { until, supervises: true });
                return Sleep::Spin;
            }
            Order::End => return Sleep::End,
        }
        Sleep::No
    }

    /// Takes in what the bell rang for. Returns true if that called the source, which may take
    /// long.
    fn hear(&mut self, rung: Rung, at: Instant) -> bool {
        if rung.look {
            self.looks.ring();
        }
        // Asking for the head may be slow, and the head need not have moved.
        if rung.gate {
            self.ask_gate(at);
        }
        rung.gate
    }

    fn look(&mut self, now: &Now) {
        self.looks.begin(now.get());
        let Reply { answer, took, ended } = self.source.look();
        let showed_new = match answer {
            Ok(look) => self.port.looked(look),
            Err(error) => {
                self.looks.failed(self.port.look_failed(error.into()));
                false
            }
        };
        let rung = self.bell.take();
        self.looks.end(ended, took, showed_new, rung.look);
        self.hear(Rung { look: false, ..rung }, ended);
    }

    /// Asks for the gate alone.
    fn ask_gate(&mut self, at: Instant) {
        self.port.asking(at);
        let Reply { answer, ended, .. } = self.source.gate();
        match answer.map(|gate| self.port.gated(gate)) {
            Ok(Beyond::No) => {}
            Ok(Beyond::Newly) => self.looks.ring(),
            // The source may have more, or its gate may always be ahead of it. So the look is
            // paced.
            Ok(Beyond::Still) => self.looks.echo(ended),
            Err(error) => self.looks.failed(self.port.look_failed(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemoryJobs;
    use std::collections::VecDeque;

    const PAUSE: Duration = Duration::from_micros(100);

    /// Gives these orders, and has something to supervise this many times.
    struct ScriptedPort {
        orders: Mutex<VecDeque<Order>>,
        sights: Mutex<u32>,
    }

    impl ReadPort for ScriptedPort {
        fn order(&self, _: Option<Fetched>, _: &Now, _: Due) -> Order {
            self.orders.lock().pop_front().unwrap_or(Order::End)
        }
        fn supervise(&self, _: &Now) -> Option<Duration> {
            let mut left = self.sights.lock();
            *left = left.checked_sub(1)?;
            Some(PAUSE)
        }
        fn looked(&self, _: Look) -> bool {
            true
        }
        fn asking(&self, _: Instant) {}
        fn gated(&self, _: Gate) -> Beyond {
            Beyond::No
        }
        fn look_failed(&self, _: Caught) -> Option<Instant> {
            None
        }
    }

    fn reader(orders: impl IntoIterator<Item = Order>, sights: u32, now: Instant) -> Reader {
        let port = ScriptedPort { orders: Mutex::new(orders.into_iter().collect()), sights: Mutex::new(sights) };
        let source = Arc::new(SharedSource::new(MemoryJobs::<()>::new(), Clock::default()));
        let mut reader = Reader::new(source, Arc::new(port), Arc::default(), None);
        reader.looks.begin(now);
        reader
    }

    #[test]
    fn an_idle_reader_supervises_until_its_deadline() {
        let now = Instant::now();
        let mut reader = reader([Order::Wait(Some(now + PAUSE * 5 / 2))], 9, now);
        let steps: Vec<_> = [0, 0, 2, 4, 5].map(|halves| reader.step(&Now::at(now + PAUSE * halves / 2))).into();
        let awhile = |halves| Sleep::Awhile(PAUSE * halves / 2);
        assert_eq!(steps, [Sleep::Spin, awhile(2), awhile(2), awhile(1), Sleep::End]);
    }

    #[test]
    fn an_idle_reader_sleeps_until_the_bell_rings() {
        let now = Instant::now();
        let mut reader = reader([Order::Wait(None)], 1, now);
        let steps: Vec<_> = [0, 0, 1, 2].map(|pauses| reader.step(&Now::at(now + PAUSE * pauses))).into();
        assert_eq!(steps, [Sleep::Spin, Sleep::Awhile(PAUSE), Sleep::Until(None), Sleep::Until(None)]);
        reader.bell.work();
        assert_eq!(reader.step(&Now::at(now)), Sleep::End, "it asks for an order again");
    }
}
