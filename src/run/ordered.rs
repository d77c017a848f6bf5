//! Mode *ordered*: jobs run in parallel, and one sink takes their results in index order.
//!
//! A result whose turn has not come waits here. Its job then holds no thread and no slot of
//! `max_processing`, only its place in the window: if it held a slot, waiting results could keep
//! the very job that they wait for from being retried.
//!
//! The worker that finishes the lowest job hands over its result, and then those that wait behind
//! it: each of its reports brings the next turn. If a task of a runtime finishes it, a worker does
//! so: a sink may block. While the consumer is paused, no result is handed over; afterwards a
//! worker goes on. A stopping consumer hands over none: waiting results are dropped with it.

use crate::base::guard::{Guarded, guarded};
use crate::base::sync::Mutex;
use crate::base::{BoxError, Index, caught::Caught};
use crate::commit::changes::Changes;
use crate::observe::spans::Spans;
#[cfg(feature = "tokio")]
use crate::run::asynchronous::Completion;
use crate::run::worker::{Job, Report};
use crate::run::{Assignment, Delivery, Runner};
use foldhash::fast::RandomState;
use std::collections::HashMap;

/// The sink, and the results that wait for it. Only one thread at a time has a turn.
pub(crate) struct Sink<S, R> {
    sink: Mutex<Guarded<S>>,
    /// The waiting results. The window limits their number.
    waiting: Mutex<HashMap<Index, Guarded<R>, RandomState>>,
}

impl<S, R> Sink<S, R>
where
    S: FnMut(Index, R) -> Result<(), BoxError>,
{
    pub(crate) fn new(sink: S) -> Self {
        Self { sink: Mutex::new(Guarded::new(sink)), waiting: Mutex::default() }
    }

    fn keep(&self, index: Index, result: R) {
        drop(self.waiting.lock().insert(index, Guarded::new(result)));
    }

    /// Hands over the result whose turn it is. Its report brings the next turn, or a job.
    fn deliver(&self, Delivery { index, token }: Delivery) -> Report {
        let result = self.waiting.lock().remove(&index).and_then(Guarded::take);
        let outcome = guarded(|| match (self.sink.lock().get_mut(), result) {
            (Some(sink), Some(result)) => sink(index, result),
            _ => Err("its result is gone".into()),
        });
        Report { token, index, outcome: outcome.map_err(Caught::boxed) }
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

    fn end(&self, report: Report) -> Report {
        Report::for_sink(report.token, report.index)
    }

    fn deliver(&self, turn: Delivery) -> Option<Report> {
        Some(Self::deliver(self, turn))
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
        Some(match ran {
            Ok(result) => {
                self.sink.keep(index, result);
                Report::for_sink(token, index)
            }
            Err(error) => Report { token, index, outcome: Err(Caught::boxed(error)) },
        })
    }

    fn deliver(&self, turn: Delivery) -> Option<Report> {
        Some(self.sink.deliver(turn))
    }
}
