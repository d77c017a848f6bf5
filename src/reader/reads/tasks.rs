//! The calls into a source of futures, as tasks of its runtime.

use crate::base::guard::{drop_guarded, guarded};
use crate::base::sync::{Arc, Mutex, RwLock};
use crate::base::{Error, Index};
use crate::reader::ask::Fetched;
use crate::reader::port::{ReadFuture, ReadPort, Source};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

/// The future of a task. The reader takes it out to drop it, which a runtime that stands still
/// would not do.
type Slot = Arc<Mutex<Option<ReadFuture>>>;

#[derive(Default)]
pub(super) struct Tasks {
    /// The calls under way by their first indices.
    calls: Mutex<BTreeMap<Index, (Slot, Option<AbortHandle>)>>,
    /// Shared by the polls, so that the end of the consumer waits for those in progress.
    polls: RwLock<()>,
}

/// Takes the answers of tasks.
pub(super) trait TaskHost: Send + Sync {
    fn tasks(&self) -> &Tasks;
    fn is_closed(&self) -> bool;
    fn now(&self) -> Instant;
    fn answered(&self, first: Index, fetched: Fetched);
    /// Starts what may follow an answer.
    fn start_more(&self, reach: &Reach);
}

/// What a task reaches, beside its call.
#[derive(Clone)]
pub(super) struct Reach {
    pub(super) host: Arc<dyn TaskHost>,
    /// The reader owns it: its destructor is over when the consumer has ended.
    pub(super) source: Weak<dyn Source>,
    pub(super) port: Arc<dyn ReadPort>,
}

impl Tasks {
    /// Starts the call from `first` on.
    pub(super) fn start(&self, first: Index, runtime: &Handle, future: ReadFuture, reach: &Reach) {
        let slot: Slot = Arc::new(Mutex::new(Some(future)));
        self.calls.lock().insert(first, (slot.clone(), None));
        let task = runtime.spawn(ReadTask { slot, reach: reach.clone(), first });
        if let Some((_, abort)) = self.calls.lock().get_mut(&first) {
            *abort = Some(task.abort_handle());
        }
    }

    /// Drops the future of this call. False if it has returned meanwhile.
    pub(super) fn drop_one(&self, first: Index) -> bool {
        let Some((slot, abort)) = self.calls.lock().remove(&first) else { return false };
        let future = slot.lock().take();
        abort.into_iter().for_each(|abort| abort.abort());
        let is_dropped = future.is_some();
        drop_guarded(future);
        is_dropped
    }

    /// Drops all futures, once the host is closed. No task uses the source after that.
    pub(super) fn drop_all(&self) {
        // A poll in progress may still start calls.
        drop(self.polls.write());
        while let Some(first) = { self.calls.lock().keys().next().copied() } {
            self.drop_one(first);
        }
    }
}

struct ReadTask {
    slot: Slot,
    reach: Reach,
    first: Index,
}

impl Future for ReadTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut outcome = Poll::Pending;
        // A source that stops its consumer must not wait for itself.
        self.reach.port.as_own_thread(&mut || outcome = self.poll_call(context));
        outcome
    }
}

impl ReadTask {
    fn poll_call(&self, context: &mut Context<'_>) -> Poll<()> {
        let host = &self.reach.host;
        let _poll = host.tasks().polls.read();
        // Once it is closed, the reader drops the future.
        let Some(source) = self.reach.source.upgrade().filter(|_| !host.is_closed()) else { return Poll::Ready(()) };
        let mut slot = self.slot.lock();
        let Some(future) = slot.as_mut() else { return Poll::Ready(()) };
        let fetched = match guarded(|| Ok(future.as_mut().poll(context))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(fetched)) => fetched,
            Err(panic) => Fetched::failed(panic, host.now()),
        };
        let future = slot.take();
        drop(slot);
        drop_guarded(future);
        self.end(fetched);
        host.start_more(&self.reach);
        drop_guarded(source);
        Poll::Ready(())
    }

    fn end(&self, fetched: Fetched) {
        self.reach.host.tasks().calls.lock().remove(&self.first);
        self.reach.host.answered(self.first, fetched);
    }
}

impl Drop for ReadTask {
    /// The task was cancelled before its call returned: the runtime shuts down.
    fn drop(&mut self) {
        // The reader waits for the slot: the future owns the source, which is to end before it.
        let mut slot = self.slot.lock();
        let mut future = slot.take();
        if future.is_none() {
            return;
        }
        self.reach.port.as_own_thread(&mut || drop_guarded(future.take()));
        drop(slot);
        self.end(Fetched::failed(Box::new(Error::Runtime), self.reach.host.now()));
    }
}
