//! The one thread that calls into the source: reads in index order, in runs, and holds no lock meanwhile.

use crate::error::guarded;
use crate::index::{BoxError, Index};
use crate::jobs::Jobs;
use crate::retry::Retry;
use crate::sync::Arc;
use crate::wakeup::Bell;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// How soon a failing source is asked again.
const SOURCE_BACK_OFF: Retry = Retry::exponential(Duration::from_millis(50), Duration::from_secs(5));

/// What the reader should do next.
pub(crate) enum Order {
    Read(RangeInclusive<Index>),
    /// Nothing to read; look again at this time at the latest.
    Wait(Option<Instant>),
    End,
}

/// Who gives orders to the reader, and is told what came of them.
pub(crate) trait ReadDesk<T>: Send + Sync + 'static {
    /// After [`Order::Wait`] the reader stays awake for a moment, and then says that it is [`dozing`](Self::dozing).
    fn order(&self, now: Instant) -> Order;
    fn dozing(&self);
    /// The source is about to be asked for its head.
    fn looking(&self, now: Instant);
    fn head(&self, head: Option<Index>);
    /// These jobs were read, from the start of the order's run.
    fn fetched(&self, jobs: Vec<T>);
    /// These jobs were read, and the one after them is not there.
    fn missing(&self, jobs: Vec<T>);
    /// These jobs were read, and the `next` one is gone for good: the source begins at `first`, above it.
    fn truncated(&self, jobs: Vec<T>, next: Index, first: Index);
    /// These jobs were read, and reading the one after them failed.
    fn failed(&self, jobs: Vec<T>, error: BoxError);
    /// The look failed.
    fn look_failed(&self, error: BoxError);
}

/// Reads until the desk says that it is the end.
pub(crate) struct Reader<J, D> {
    pub(crate) jobs: J,
    pub(crate) desk: Arc<D>,
    pub(crate) bell: Arc<Bell>,
    /// How often the source is looked at when nobody rings; `None`: never.
    pub(crate) poll_every: Option<Duration>,
}

impl<J: Jobs, D: ReadDesk<J::Job>> Reader<J, D> {
    pub(crate) fn run(self) {
        let mut wanted = true;
        let mut failures = Failures::default();
        let mut polled = Instant::now();
        loop {
            let now = Instant::now();
            let looked = wanted && failures.over(now);
            let mut failed = false;
            if looked {
                (wanted, polled) = (false, now);
                failed |= !self.look(now);
            }
            let deadline = loop {
                match self.desk.order(Instant::now()) {
                    Order::Read(run) => failed |= !self.read(run),
                    Order::Wait(deadline) => break deadline,
                    Order::End => return,
                }
            };
            failures.count_pass(looked, failed);
            // A failing source is left alone for a while, however often it rings; that it rang is not forgotten.
            wanted |= failures.until.is_some();
            let next_look = failures.until.or_else(|| self.poll_every.map(|every| polled + every));
            if !self.bell.watch() {
                self.desk.dozing();
            }
            let rung = self.bell.wait(deadline.into_iter().chain(next_look).min());
            if rung.closed {
                return;
            }
            wanted |= rung.look || next_look.is_some_and(|at| Instant::now() >= at);
        }
    }

    /// Asks for the head; whether that worked.
    fn look(&self, now: Instant) -> bool {
        self.desk.looking(now);
        match guarded(|| self.jobs.head()) {
            Ok(head) => {
                self.desk.head(head);
                true
            }
            Err(error) => {
                self.desk.look_failed(error);
                false
            }
        }
    }

    /// Reads a run, or as much of it as there is; false when the source failed.
    fn read(&self, run: RangeInclusive<Index>) -> bool {
        let start = *run.start();
        let asked = usize::try_from(run.end() - start).unwrap_or(usize::MAX).saturating_add(1);
        let mut jobs = Vec::new();
        let outcome = guarded(|| self.jobs.read(run, &mut jobs)).and_then(|()| match jobs.len() {
            more if more > asked => Err(format!("it returned {more} jobs when {asked} were asked for").into()),
            _ => Ok(()),
        });
        jobs.truncate(asked);
        let after = start + jobs.len() as Index;
        match outcome {
            Ok(()) if !jobs.is_empty() => self.desk.fetched(jobs),
            Ok(()) => match guarded(|| self.jobs.first()) {
                Ok(first) if first > after => self.desk.truncated(jobs, after, first),
                Ok(_) => self.desk.missing(jobs),
                Err(error) => {
                    self.desk.failed(jobs, error);
                    return false;
                }
            },
            Err(error) => {
                self.desk.failed(jobs, error);
                return false;
            }
        }
        true
    }
}

/// How often in a row the source failed, and until when it is left alone.
#[derive(Default)]
struct Failures {
    count: u32,
    until: Option<Instant>,
}

impl Failures {
    /// A pass is over: with or without a look, with or without a failure.
    fn count_pass(&mut self, looked: bool, failed: bool) {
        if failed {
            self.count = self.count.saturating_add(1);
            let pause = SOURCE_BACK_OFF.jitter(0.2).delay(self.count, fastrand::f64()).unwrap_or_default();
            self.until = Some(Instant::now() + pause);
        } else if looked {
            *self = Self::default();
        }
    }

    fn over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }
}
