//! A call of a queue that changes something, as an intent of the store's writer.

use super::state::QueueState;
use super::step::Step;
use crate::base::error::{Error, describe};
use crate::base::index::BoxError;
use crate::base::sync::{Arc, Mutex};
use crate::commit::changes::Changes;
use crate::commit::draft::Draft;
use crate::commit::intent::{Intent, Ticket};
use crate::queue::clock::Moment;
use crate::queue::error::QueueError;
use crate::store::Store;
use std::time::Duration;

/// The transition of one call. Its answer is told once its batch is written.
struct Call<R, F> {
    queue: Arc<QueueState>,
    at: Moment,
    run: F,
    /// The writes of the user's that belong to it.
    effects: Changes,
    synced: bool,
    doing: &'static str,
    answer: Mutex<Option<R>>,
    /// Its answer, and true if the batch was written.
    told: Arc<Ticket<Result<(R, bool), QueueError>>>,
}

impl<R, F> Intent for Call<R, F>
where
    R: Send + 'static,
    F: Fn(&mut Step<'_, '_>) -> Result<R, BoxError> + Send,
{
    fn resolve(&self, draft: &mut Draft<'_>) -> Result<bool, BoxError> {
        let is_first = draft.batch().is_empty();
        let (tail, batch) = draft.part(&self.queue)?;
        let mut step = self.queue.step(tail, batch, self.at);
        let answer = (self.run)(&mut step)?;
        let wrote = step.wrote;
        if !self.effects.is_empty()
            && let Some(refused) = draft.append(std::slice::from_ref(&self.effects))?
        {
            return Err(refused.error.into());
        }
        if wrote || !is_first || !self.effects.is_empty() {
            // Also an answer that changes nothing may come from what others have in this batch. It
            // is true only if the batch is written.
            *self.answer.lock() = Some(answer);
            return Ok(true);
        }
        let (tail, _) = draft.part(&self.queue)?;
        self.queue.learn(tail);
        self.told.tell(Ok(Ok((answer, false))));
        Ok(false)
    }

    fn synced(&self) -> bool {
        self.synced
    }

    fn written(&self) {
        if let Some(answer) = self.answer.lock().take() {
            self.told.tell(Ok(Ok((answer, true))));
        }
    }

    fn failed(&self, error: BoxError) -> Option<Duration> {
        // Others may have gone to sleep, since this call took the job that they saw.
        self.queue.ring();
        self.told.tell(Ok(Err(QueueError::of_intent(self.doing, error))));
        None
    }
}

/// Makes one transition, and waits until it is written.
pub(super) fn call<R, F>(store: &Store, queue: &Arc<QueueState>, doing: &'static str, run: F) -> Result<R, QueueError>
where
    R: Send + 'static,
    F: Fn(&mut Step<'_, '_>) -> Result<R, BoxError> + Send + 'static,
{
    call_with(store, queue, doing, Changes::default(), run)
}

/// The same with writes of the user's in the same batch.
pub(super) fn call_with<R, F>(
    store: &Store,
    queue: &Arc<QueueState>,
    doing: &'static str,
    effects: Changes,
    run: F,
) -> Result<R, QueueError>
where
    R: Send + 'static,
    F: Fn(&mut Step<'_, '_>) -> Result<R, BoxError> + Send + 'static,
{
    store.writable()?;
    let told = Ticket::new();
    let call = Call {
        queue: queue.clone(),
        at: queue.moment(),
        run,
        effects,
        synced: store.is_synced(),
        doing,
        answer: Mutex::new(None),
        told: told.clone(),
    };
    store.writer().write_together(Box::new(call));
    let answer = told.wait().map_err(QueueError::from).and_then(|answer| answer);
    match &answer {
        Err(error @ QueueError::Store(Error::Store { .. } | Error::Corrupt { .. })) => {
            queue.note_failing(Some(describe(error)));
        }
        // A call that writes nothing says nothing about the store.
        Ok((_, true)) if queue.look(|live| live.failing.is_some()) => queue.note_failing(None),
        _ => {}
    }
    answer.map(|(answer, _)| answer)
}
