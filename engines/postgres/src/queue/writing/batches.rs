//! Jobs that are done, on their way into a transaction.

use super::{Finisher, Outcome, OwnEnd, Running, Transaction, Wrote, queues_of, running_parts, take_end, write_with};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use waterline::seam::drop_guarded;
use waterline::{BoxError, Failure};

/// The most jobs in one transaction.
const MOST: usize = 256;

/// The jobs of a handler that are done, and the function that writes their rows.
pub(super) struct Writer<R, W> {
    state: Mutex<State<R>>,
    write: W,
}

/// A job that is done, its result, and the right to end it.
type Done<R> = (Running, R, Finisher);

struct State<R> {
    done: Vec<Done<R>>,
    /// True while a thread writes.
    writes: bool,
}

impl<R> Default for State<R> {
    fn default() -> Self {
        Self { done: Vec::new(), writes: false }
    }
}

/// Jobs with their results, and their ends, which only this batch may write now.
struct Batch<R> {
    results: Vec<(Running, R)>,
    ends: Vec<OwnEnd>,
}

impl<R: Send + Sync, W> Writer<R, W>
where
    W: Fn(&mut Transaction<'_>, &[(Running, R)]) -> Result<(), BoxError> + Sync,
{
    pub(super) fn new(write: W) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), write })
    }

    /// Takes the result of a job. If no other thread writes, this one does, until nothing is left.
    pub(super) fn add(&self, job: Running, result: R, done: Finisher) {
        if self.is_first((job, result, done)) {
            self.write_all();
        }
    }

    /// Takes the result of a future, whose thread must not wait: if no other one writes, a new one
    /// does, until nothing is left.
    pub(super) fn add_of_future(self: &Arc<Self>, job: Running, result: R, done: Finisher)
    where
        R: 'static,
        W: Send + 'static,
    {
        if !self.is_first((job, result, done)) {
            return;
        }
        let me = Arc::clone(self);
        let writing = std::thread::Builder::new().name("wl-write".to_owned()).spawn(move || me.write_all());
        let Err(error) = writing else { return };
        let all = std::mem::take(&mut *self.state.lock()).done;
        for (_, result, done) in all {
            drop_guarded(result);
            done.fail(format!("no thread can be started that writes its rows: {error}"));
        }
    }

    /// Notes a job that is done. Returns true if no thread writes, so that the caller has to.
    fn is_first(&self, done: Done<R>) -> bool {
        let mut state = self.state.lock();
        state.done.push(done);
        !std::mem::replace(&mut state.writes, true)
    }

    fn write_all(&self) {
        loop {
            let some: Vec<_> = {
                let mut state = self.state.lock();
                let most = state.done.len().min(MOST);
                state.writes = most > 0;
                state.done.drain(..most).collect()
            };
            if some.is_empty() {
                return;
            }
            let (queue, jobs) = (running_parts(&some[0].0).0.name().to_owned(), some.len());
            // If a user's destructor panics, these ends are dropped, and so fail. The others go on.
            if catch_unwind(AssertUnwindSafe(|| self.write_some(some))).is_err() {
                tracing::error!(target: "waterline", queue, jobs, "code of the user's panicked while the ends of jobs were written; those that are not written fail");
            }
        }
    }

    fn write_some(&self, some: Vec<Done<R>>) {
        let mut batch = Batch { results: Vec::new(), ends: Vec::new() };
        for (job, result, done) in some {
            // If the attempt has timed out, another end counts, and its rows are dropped.
            let Some(end) = take_end(done) else { continue };
            match end.after(Ok(Outcome::Done)) {
                Ok(_) => {
                    batch.results.push((job, result));
                    batch.ends.push(end);
                }
                Err(error) => end.written(Err(error)),
            }
        }
        self.write_batch(batch);
    }

    /// Writes jobs in one transaction, or each one alone if that fails.
    fn write_batch(&self, mut batch: Batch<R>) {
        while let Some((first, _)) = batch.results.first() {
            let queues = match queues_of(running_parts(first).0) {
                Ok((queues, _)) => queues,
                Err(error) => return batch.fail(|| Failure::permanent(error.to_string()).into()),
            };
            let jobs: Vec<_> = batch.results.iter().map(|(job, _)| running_parts(job).1).collect();
            let results = &batch.results;
            let _own = batch.ends.first().and_then(OwnEnd::enter);
            let written = write_with(queues, &jobs, &mut |transaction| {
                let called = catch_unwind(AssertUnwindSafe(|| (self.write)(transaction, results)));
                called.unwrap_or_else(|_| Err("the write of its rows panicked".into()))
            });
            match written {
                Wrote::Written(states) => {
                    batch.ends.drain(..).zip(states).for_each(|(end, state)| end.written(Ok(Some(state))));
                    return;
                }
                // From the last one, so that the places before it stay.
                Wrote::Lost(lost) => lost.into_iter().rev().for_each(|at| {
                    batch.results.remove(at);
                    batch.ends.remove(at).written(Ok(None));
                }),
                Wrote::Failed(_) if jobs.len() > 1 => {
                    let alone = batch.results.into_iter().zip(batch.ends);
                    alone.for_each(|(result, end)| self.write_batch(Batch { results: vec![result], ends: vec![end] }));
                    return;
                }
                Wrote::Failed(error) => {
                    let mut error = Some(error);
                    return batch.fail(|| error.take().unwrap_or_else(|| "it failed".into()));
                }
                Wrote::Unknown(error) => {
                    let (queue, id, jobs) = (running_parts(first).0.name(), first.id(), jobs.len());
                    tracing::error!(target: "waterline", queue, id, jobs, error, "the server does not say if the ends of these jobs, of which the first is named, are written; those that are not written run again");
                    batch.ends.drain(..).for_each(|end| end.written(Ok(None)));
                    return;
                }
            }
        }
    }
}

impl<R> Batch<R> {
    fn fail(self, mut error: impl FnMut() -> BoxError) {
        self.ends.into_iter().for_each(|end| end.written(Err(error())));
    }
}
