//! Mode *ordered*: jobs run in parallel, and one sink takes their results in index order.
//!
//! A result whose turn has not come waits here. Its job then holds no thread and no slot of
//! `max_processing`, only its place in the window: if it held a slot, waiting results could keep
//! the very job that they wait for from being retried.
//!
//! The worker that finishes the lowest job hands over its result, and then those that wait behind
//! it. If a task of a runtime finishes it, a worker does so: a sink may block. While the consumer
//! is paused, no result is handed over; afterwards a worker goes on. A stopping consumer hands over
//! none: waiting results are dropped with the runner.

use crate::base::guard::{Guarded, guarded};
use crate::base::sync::{Arc, Mutex};
use crate::base::{BoxError, Index, caught::Caught};
use crate::commit::changes::Changes;
use crate::observe::spans::Spans;
#[cfg(feature = "tokio")]
use crate::run::asynchronous::Completion;
use crate::run::worker::{Job, Report};
use crate::run::{Assignment, Delivery, Runner};
use std::collections::HashMap;

/// Decides whose turn it is. Only one thread at a time has a turn.
pub(crate) trait SinkPort: Send + Sync {
    /// Sets a job aside whose result waits for its turn. Returns the turn if it is now.
    fn set_aside(&self, token: usize) -> Option<Delivery>;
    /// Reports the job whose turn it was, with the sink's answer. Returns the next turn, if any.
    fn taken(&self, report: Report) -> Option<Delivery>;
}

/// The sink, and the results that wait for it.
pub(crate) struct Sink<S, R> {
    sink: Mutex<Guarded<S>>,
    /// The waiting results. The window limits their number.
    waiting: Mutex<HashMap<Index, Guarded<R>>>,
    port: Arc<dyn SinkPort>,
}

impl<S, R> Sink<S, R>
where
    S: FnMut(Index, R) -> Result<(), BoxError>,
{
    pub(crate) fn new(sink: S, port: Arc<dyn SinkPort>) -> Self {
        Self { sink: Mutex::new(Guarded::new(sink)), waiting: Mutex::default(), port }
    }

    fn keep(&self, index: Index, result: R) {
        drop(self.waiting.lock().insert(index, Guarded::new(result)));
    }

    /// Sets a job aside whose result is kept, and takes its turn if it is now.
    fn set_aside(&self, token: usize) {
        if let Some(turn) = self.port.set_aside(token) {
            self.deliver(turn);
        }
    }

    fn deliver(&self, turn: Delivery) {
        let mut turn = Some(turn);
        while let Some(Delivery { index, token }) = turn {
            let result = self.waiting.lock().remove(&index).and_then(Guarded::take);
            let outcome = guarded(|| match (self.sink.lock().get_mut(), result) {
                (Some(sink), Some(result)) => sink(index, result),
                _ => Err("its result is gone".into()),
            });
            turn = self.port.taken(Report { token, index, outcome: outcome.map_err(Caught::boxed) });
        }
    }
}

#[cfg(feature = "tokio")]
impl<S, R> Completion<R> for Sink<S, R>
where
    R: Send + 'static,
    S: FnMut(Index, R) -> Result<(), BoxError> + Send + 'static,
{
    const ORDERED: bool = true;

    fn keep(&self, index: Index, output: R, _: &mut Changes) {
        Self::keep(self, index, output);
    }

    fn end(&self, report: Report) -> Option<Report> {
        self.set_aside(report.token);
        None
    }

    fn deliver(&self, turn: Delivery) {
        Self::deliver(self, turn);
    }
}

pub(crate) struct Ordered<W, S, R> {
    pub(crate) sink: Sink<S, R>,
    pub(crate) spans: Spans,
    /// Last, so that nothing is left to drop if its destructor panics.
    pub(crate) work: W,
}

impl<T, W, S, R> Runner<T> for Ordered<W, S, R>
where
    T: Send + 'static,
    R: Send + 'static,
    W: Fn(Job<T>) -> Result<R, BoxError> + Send + Sync + 'static,
    S: FnMut(Index, R) -> Result<(), BoxError> + Send + 'static,
{
    fn run(&self, Assignment { token, job }: Assignment<T>, _: &mut Changes) -> Option<Report> {
        let index = job.index;
        let ran = guarded(|| {
            let _span = self.spans.enter(index, job.attempt);
            (self.work)(job)
        });
        match ran {
            Ok(result) => self.sink.keep(index, result),
            Err(error) => return Some(Report { token, index, outcome: Err(Caught::boxed(error)) }),
        }
        self.sink.set_aside(token);
        None
    }

    fn deliver(&self, turn: Delivery) {
        self.sink.deliver(turn);
    }
}
