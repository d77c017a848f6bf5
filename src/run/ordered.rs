//! Mode *ordered*: jobs run in parallel, and one sink takes their results in index order.
//!
//! A result whose turn has not come waits here. Its job then holds no thread and no slot of
//! `max_processing`, only its place in the window: if it held a slot, waiting results could keep
//! the very job that they wait for from being retried.
//!
//! The thread that finishes the lowest job hands over its result, and then those that wait behind
//! it. While the consumer is paused, no result is handed over; afterwards a worker goes on. A
//! stopping consumer hands over none: waiting results are dropped with the runner.

use crate::base::guard::{Guarded, guarded};
use crate::base::sync::{Arc, Mutex};
use crate::base::{BoxError, Index, caught::Caught};
use crate::commit::changes::Changes;
use crate::observe::spans::Spans;
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

pub(crate) struct Ordered<W, S, R> {
    sink: Mutex<Guarded<S>>,
    /// The waiting results. The window limits their number.
    waiting: Mutex<HashMap<Index, Guarded<R>>>,
    port: Arc<dyn SinkPort>,
    spans: Spans,
    /// Last, so that nothing is left to drop if its destructor panics.
    work: W,
}

impl<W, S, R> Ordered<W, S, R> {
    pub(crate) fn new(work: W, sink: S, port: Arc<dyn SinkPort>, spans: Spans) -> Self {
        Self { sink: Mutex::new(Guarded::new(sink)), waiting: Mutex::default(), port, spans, work }
    }
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
            Ok(result) => drop(self.waiting.lock().insert(index, Guarded::new(result))),
            Err(error) => return Some(Report { token, index, outcome: Err(Caught::boxed(error)) }),
        }
        if let Some(turn) = self.port.set_aside(token) {
            Runner::<T>::deliver(self, turn);
        }
        None
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
