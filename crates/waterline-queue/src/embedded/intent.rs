//! A call that changes something, as an intent of the store's writer.

use crate::embedded::state::QueueState;
use crate::embedded::step::Step;
use crate::rules::ends::Run;
use crate::types::error::QueueError;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use waterline::seam::{Changes, Draft, Intent, Moment, Ticket, failed};
use waterline::{BoxError, Error, Store, seam};

/// The transitions of one call, which is answered once the batch is written.
struct Call<Q, R, F> {
    queues: Q,
    at: Moment,
    run: F,
    /// The user's changes that belong to it.
    effects: Changes,
    synced: bool,
    doing: &'static str,
    /// The answer or the refusal, until the batch is written.
    answer: Mutex<Option<Result<R, BoxError>>>,
    /// Carries the answer, and whether a batch was written for it.
    told: Arc<Ticket<Result<(R, bool), QueueError>>>,
}

/// The queues of a call, within one batch.
pub(crate) struct Steps<'s, 'k> {
    queues: &'s [Arc<QueueState>],
    draft: &'s mut Draft<'k>,
    at: Moment,
    /// The user's changes that are still to be made.
    effects: Option<&'s Changes>,
    /// Whether anything was changed.
    wrote: bool,
}

impl<'k> Steps<'_, 'k> {
    /// Makes a transition of the queue at this place of the call's list.
    pub(crate) fn at<R>(
        &mut self,
        place: usize,
        run: impl FnOnce(&mut Step<'_, 'k>) -> Result<R, BoxError>,
    ) -> Result<R, BoxError> {
        let queue = &self.queues[place];
        let (staged, batch) = self.draft.part(queue)?;
        let mut step = queue.step(staged, batch, self.at);
        let answer = run(&mut step);
        self.wrote |= step.txn.wrote;
        answer
    }

    pub(crate) fn run_of(&self, place: usize, token: u64) -> Run {
        self.queues[place].run_of(token, self.at.now)
    }

    /// Makes the user's changes. They come last, unless the call makes them earlier.
    pub(crate) fn make_effects(&mut self) -> Result<(), BoxError> {
        let Some(effects) = self.effects.take().filter(|effects| !effects.is_empty()) else { return Ok(()) };
        self.wrote = true;
        match self.draft.append(std::slice::from_ref(effects))?.pop() {
            Some(refused) => Err(refused.error.into()),
            None => Ok(()),
        }
    }
}

impl<Q, R, F> Call<Q, R, F>
where
    Q: AsRef<[Arc<QueueState>]>,
    F: Fn(&mut Steps<'_, '_>) -> Result<R, BoxError>,
{
    /// Makes the transitions. Returns the answer, and whether anything was changed.
    fn run(&self, draft: &mut Draft<'_>) -> Result<(R, bool), BoxError> {
        let (queues, effects) = (self.queues.as_ref(), Some(&self.effects));
        let mut steps = Steps { queues, draft, at: self.at, effects, wrote: false };
        let answer = (self.run)(&mut steps)?;
        steps.make_effects()?;
        Ok((answer, steps.wrote))
    }
}

impl<Q, R, F> Call<Q, R, F> {
    /// Returns the error of a failed call. A queue's own error stays as it is.
    fn refused(&self, error: BoxError) -> QueueError {
        let error = match error.downcast::<QueueError>() {
            Ok(own) => return *own,
            Err(error) => error,
        };
        match error.downcast::<Error>() {
            Ok(error) => (*error).into(),
            Err(error) => Error::from(failed(self.doing, error)).into(),
        }
    }
}

impl<Q, R, F> Intent for Call<Q, R, F>
where
    Q: AsRef<[Arc<QueueState>]> + Send,
    R: Send + 'static,
    F: Fn(&mut Steps<'_, '_>) -> Result<R, BoxError> + Send,
{
    fn resolve(&self, draft: &mut Draft<'_>) -> Result<bool, BoxError> {
        let (is_first, before) = (!draft.is_touched(), draft.mark());
        let (answer, wrote) = match self.run(draft) {
            Ok((answer, wrote)) => (Ok(answer), wrote),
            Err(error) if is_first => return Err(error),
            Err(error) => {
                draft.go_back(before);
                (Err(error), false)
            }
        };
        if wrote || !is_first {
            // Even an answer without changes, or an error, may depend on what others changed in
            // this batch. It is true only if the batch is written.
            *self.answer.lock() = Some(answer);
            return Ok(true);
        }
        for queue in self.queues.as_ref() {
            let (staged, _) = draft.part(queue)?;
            queue.learn(staged);
        }
        self.told.tell(Ok(answer.map(|answer| (answer, false)).map_err(|error| self.refused(error))));
        Ok(false)
    }

    fn synced(&self) -> bool {
        self.synced
    }

    fn written(&self) {
        match self.answer.lock().take() {
            Some(Ok(answer)) => self.told.tell(Ok(Ok((answer, true)))),
            Some(Err(error)) => drop(self.failed(error)),
            None => {}
        }
    }

    fn failed(&self, error: BoxError) -> Option<Duration> {
        // Workers may have gone to sleep because this call took the job that they saw.
        self.queues.as_ref().iter().for_each(|queue| queue.shared.ring());
        self.told.tell(Ok(Err(self.refused(error))));
        None
    }
}

/// Makes one transition, and waits until it is written.
pub(crate) fn call<R, F>(store: &Store, queue: &Arc<QueueState>, doing: &'static str, run: F) -> Result<R, QueueError>
where
    R: Send + 'static,
    F: Fn(&mut Step<'_, '_>) -> Result<R, BoxError> + Send + 'static,
{
    call_on(store, [queue.clone()], doing, Changes::default(), move |steps| steps.at(0, |step| run(step)))
}

/// Makes transitions of one or more queues of a store in one batch, and waits until it is written.
/// The queues have the same clock.
pub(crate) fn call_on<Q, R, F>(
    store: &Store,
    queues: Q,
    doing: &'static str,
    effects: Changes,
    run: F,
) -> Result<R, QueueError>
where
    Q: AsRef<[Arc<QueueState>]> + Clone + Send + 'static,
    R: Send + 'static,
    F: Fn(&mut Steps<'_, '_>) -> Result<R, BoxError> + Send + 'static,
{
    seam::writable(store)?;
    let told = Ticket::new();
    let call = Call {
        queues: queues.clone(),
        at: queues.as_ref()[0].moment(),
        run,
        effects,
        synced: seam::is_synced(store),
        doing,
        answer: Mutex::new(None),
        told: told.clone(),
    };
    seam::write_together(store, Box::new(call));
    let answer = told.wait().map_err(QueueError::from).and_then(|answer| answer);
    for queue in queues.as_ref() {
        queue.shared.settle();
        match &answer {
            Err(error @ QueueError::Store(Error::Store { .. })) => queue.shared.note_failing(Some(error)),
            // The damaged record is in this queue.
            Err(error @ QueueError::Store(Error::Corrupt { name, .. }))
                if queues.as_ref().len() == 1 || *name == queue.name =>
            {
                queue.shared.note_failing(Some(error));
            }
            // A call that writes nothing says nothing about the store.
            Ok((_, true)) if queue.shared.is_failing() => queue.shared.note_failing(None),
            _ => {}
        }
    }
    answer.map(|(answer, _)| answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accept::Accept;
    use crate::handle::Queue;
    use crate::rules::ends::End;
    use crate::types::new_job::NewJob;
    use crate::types::options::QueueOptions;
    use waterline::fuzzing::Disk;

    type Told = Arc<Ticket<Result<((), bool), QueueError>>>;

    /// Submits a call for the next write, without waiting for its answer.
    fn leave<F>(queue: &Queue, run: F) -> Told
    where
        F: Fn(&mut Step<'_, '_>) -> Result<(), BoxError> + Send + 'static,
    {
        let (told, state) = (Ticket::new(), queue.state_of());
        let call = Call {
            queues: [state.clone()],
            at: state.moment(),
            run: move |steps: &mut Steps<'_, '_>| steps.at(0, &run),
            effects: Changes::default(),
            synced: false,
            doing: "test",
            answer: Mutex::new(None),
            told: told.clone(),
        };
        seam::write_together(queue.store(), Box::new(call));
        told
    }

    #[test]
    fn a_refusal_counts_only_once_its_batch_is_written() {
        for fails in [true, false] {
            let disk = Disk::default();
            let store = disk.open(&Store::options()).unwrap();
            let queue = Queue::open(&store, "q", QueueOptions::default()).unwrap();
            queue.push(NewJob::new("k", &1).unwrap().id("a")).unwrap();
            let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
            let token = 0;
            let ((begun, begins), (go, goes)) = (crossbeam_channel::bounded(0), crossbeam_channel::bounded::<()>(0));
            let calls = queue.clone();
            let writing = std::thread::spawn(move || {
                calls.call(move |_| {
                    begun.send(())?;
                    Ok(goes.recv()?)
                })
            });
            // During the write, a removal and the end of the removed job arrive.
            begins.recv().unwrap();
            let removed = leave(&queue, |step| step.remove("a"));
            let ended = leave(&queue, move |step| step.end("a", token, End::Finished, None, &Run::default()).map(drop));
            if fails {
                disk.fail(0..1);
            }
            go.send(()).unwrap();
            writing.join().unwrap().unwrap();
            let (removed, ended) = (removed.wait().unwrap(), ended.wait().unwrap());
            if fails {
                assert!(matches!(removed, Err(QueueError::Store(_))), "{removed:?}");
                assert!(matches!(ended, Err(QueueError::Store(_))), "nobody has removed it: {ended:?}");
                lease.finish(None).unwrap();
            } else {
                removed.unwrap();
                assert!(matches!(ended, Err(QueueError::Halt { .. })), "{ended:?}");
                assert!(matches!(lease.finish(None), Err(QueueError::Halt { .. })));
            }
        }
    }
}
