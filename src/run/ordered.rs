//! Results of parallel jobs, handed to one sink in index order.
//!
//! A result that is not yet due waits beside its job, which then holds neither a thread nor a slot of `max_processing`, only its
//! place in the window: or those that wait would keep the one that they wait for from being tried again. The thread that
//! finishes the lowest job hands it over, and then what waits behind it. While the consumer is paused nothing is handed
//! over; afterwards a thread of the pool goes on. Once it stops nothing is either: what waits is dropped with the runner.

use crate::base::guard::{Failure, Guarded, guarded};
use crate::base::index::{BoxError, Index};
use crate::base::sync::{Arc, Mutex};
use crate::commit::changes::Changes;
use crate::run::worker::{Job, Report};
use crate::run::{Assignment, Runner, Turn};
use std::collections::HashMap;

/// Who knows whose turn it is. As long as one thread has a turn, no other is given one.
pub(crate) trait SinkDesk: Send + Sync {
    /// The result of this job waits for its turn, which may be now.
    fn set_aside(&self, token: usize) -> Option<Turn>;
    /// What the sink said of the job whose turn it was; and who is next.
    fn taken(&self, report: Report) -> Option<Turn>;
}

/// Jobs that are done when the sink has taken their results.
pub(crate) struct Ordered<W, S, R> {
    sink: Mutex<Guarded<S>>,
    /// As many as fit into the window.
    waiting: Mutex<HashMap<Index, Guarded<R>>>,
    desk: Arc<dyn SinkDesk>,
    /// The last, so that nothing is left to be dropped when its destructor panics.
    work: W,
}

impl<W, S, R> Ordered<W, S, R> {
    pub(crate) fn new(work: W, sink: S, desk: Arc<dyn SinkDesk>) -> Self {
        Self { sink: Mutex::new(Guarded::new(sink)), waiting: Mutex::default(), desk, work }
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
        match guarded(|| (self.work)(job)) {
            Ok(result) => drop(self.waiting.lock().insert(index, Guarded::new(result))),
            Err(error) => return Some(Report { token, index, outcome: Err(Failure::boxed(error)) }),
        }
        if let Some(turn) = self.desk.set_aside(token) {
            Runner::<T>::deliver(self, turn);
        }
        None
    }

    fn deliver(&self, turn: Turn) {
        let mut turn = Some(turn);
        while let Some(Turn { index, token }) = turn {
            let result = self.waiting.lock().remove(&index).and_then(Guarded::take);
            let outcome = guarded(|| match (self.sink.lock().get_mut(), result) {
                (Some(sink), Some(result)) => sink(index, result),
                _ => Err("its result is gone".into()),
            });
            turn = self.desk.taken(Report { token, index, outcome: outcome.map_err(Failure::boxed) });
        }
    }
}
