//! Requests to write something, and how their results are reported.

use crate::base::sync::{Arc, Condvar, Mutex};
use crate::base::{BoxError, Error, error::StoreError};
use crate::commit::{draft::Draft, participant::Cleanup};
use std::fmt;
use std::time::Duration;

/// A request to write something. It is resolved when its batch is made, to be up to date.
pub trait Intent: Send {
    /// Adds its changes to the draft, again for each attempt. False if there is nothing to write.
    ///
    /// # Errors
    /// An error undoes what it added, goes to [`failed`](Self::failed), and affects no other
    /// intent.
    fn resolve(&self, draft: &mut Draft<'_>) -> Result<bool, BoxError>;
    /// True if its write must survive a loss of power. One such intent syncs the whole batch.
    fn synced(&self) -> bool;
    /// Called when its batch is written.
    fn written(&self);
    /// Called when it could not be resolved, or its batch could not be written; its changes are
    /// undone. Returns the pause before the next attempt, or `None` to give up.
    fn failed(&self, error: BoxError) -> Option<Duration>;
    /// Returns work that its failure leaves behind, such as a line to log. It runs as a chore: in
    /// all calls above the writer holds its lock, and a log subscriber may write to this store.
    fn aftermath(&self) -> Option<Cleanup> {
        None
    }
}

/// Returns the error of an intent that could not do this. If the store could not write, the cause
/// of its error replaces it: otherwise the message would say twice where to look.
pub fn failed(doing: &str, error: BoxError) -> StoreError {
    let source = match error.downcast::<Arc<StoreError>>() {
        Ok(shared) => Box::new(CauseOf(*shared)),
        Err(error) => error,
    };
    StoreError::new(doing.to_owned(), source)
}

/// The cause of an error that several intents share.
#[derive(Debug)]
struct CauseOf(Arc<StoreError>);

impl fmt::Display for CauseOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.source.fmt(f)
    }
}

impl std::error::Error for CauseOf {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.source()
    }
}

/// A one-shot channel for the result of an intent, on which one thread waits for another.
pub struct Ticket<R> {
    told: Mutex<Option<Result<R, Error>>>,
    changed: Condvar,
}

impl<R> Ticket<R> {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { told: Mutex::new(None), changed: Condvar::new() })
    }

    pub fn tell(&self, outcome: Result<R, Error>) {
        *self.told.lock() = Some(outcome);
        self.changed.notify_one();
    }

    pub fn wait(&self) -> Result<R, Error> {
        let mut told = self.told.lock();
        loop {
            if let Some(outcome) = told.take() {
                return outcome;
            }
            self.changed.wait(&mut told);
        }
    }
}
