//! What the reader needs of the consumer and of the source.

use super::ask::{Ask, Fetched};
use super::looks::Due;
use crate::base::{BoxError, Index, caught::Caught, clock::Clock, time::Now};
use crate::source::Gate;
use std::time::{Duration, Instant};

/// What the reader does next.
pub(crate) enum Order {
    Read(Ask),
    /// Start the reads that the [`Reads`] were asked for, and drop these.
    Start(Vec<Fetched>),
    Look,
    /// Note that a read did not bring a job that should exist.
    Note,
    /// Wait for work, at most until this time.
    Wait(Option<Instant>),
    End,
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
    /// Wakes workers without a job, which make calls into a source of functions. True if there are
    /// none, and the reader is to make the call that is waited for.
    fn reads_itself(&self) -> bool {
        true
    }
    /// Runs this as one of the consumer's own threads, which do not wait for its end.
    #[cfg(feature = "tokio")]
    fn as_own_thread(&self, work: &mut dyn FnMut()) {
        work();
    }
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

/// The answer to a look at the source.
pub(crate) struct Look {
    pub(crate) head: Option<Index>,
    pub(crate) gate: Gate,
    /// Why there is no job above the head yet.
    pub(crate) waits_for: Option<String>,
}

/// The result of one call into the source.
pub(crate) struct Reply<R> {
    pub(super) answer: Result<R, BoxError>,
    pub(super) took: Duration,
    pub(super) ended: Instant,
}

/// A call into a source of futures.
#[cfg(feature = "tokio")]
pub(crate) type ReadFuture = std::pin::Pin<Box<dyn Future<Output = Fetched> + Send>>;

/// What a worker needs of the source.
pub(crate) trait ReadRuns: Send + Sync {
    /// Reads a run, or as much of it as there is. One thread at a time does.
    fn read_run(&self, run: Ask) -> Fetched;
    /// Does the same beside other calls.
    fn read_beside(&self, run: Ask) -> Fetched;
}

/// What the reader needs of the source.
pub(crate) trait Source: ReadRuns {
    /// Asks for the head, the gate, and what the source waits for.
    fn look(&self) -> Reply<Look>;
    /// Asks for the gate alone.
    fn gate(&self) -> Reply<Gate>;
    fn clock(&self) -> &Clock;
    /// Returns a read as a future, with its runtime. `None` for a source of functions.
    #[cfg(feature = "tokio")]
    fn begin_read(self: std::sync::Arc<Self>, run: Ask) -> Option<(tokio::runtime::Handle, ReadFuture)>;
    /// Returns how long a call may take, if the source has futures.
    fn timeout_of_futures(&self) -> Option<Duration>;
}
