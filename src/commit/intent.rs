//! The wish to have something written, and the way in which its result is told.

use crate::base::error::{Error, StoreError};
use crate::base::index::BoxError;
use crate::base::sync::{Arc, Condvar, Mutex};
use crate::commit::draft::Draft;
use crate::commit::participant::Cleanup;
use std::fmt;
use std::time::Duration;

/// A wish to have something written. It is resolved when its batch is made, so its content is true
/// at that moment.
pub trait Intent: Send {
    /// Adds its changes to the draft, anew for each try. Returns false when there is nothing left
    /// to write.
    ///
    /// # Errors
    /// Any error takes back what it added, is told to [`failed`](Self::failed), and holds up no
    /// other intent.
    fn resolve(&self, draft: &mut Draft<'_>) -> Result<bool, BoxError>;
    /// Returns true if its write has to survive the loss of power. One such intent is enough for
    /// the whole batch.
    fn synced(&self) -> bool;
    /// Notes that its batch is written.
    fn written(&self);
    /// Notes that it could not be resolved, or that its batch could not be written. Its changes do
    /// not count then. Returns the pause before the next try, or `None` if there is no next try.
    fn failed(&self, error: BoxError) -> Option<Duration>;
    /// Returns the work that its failure leaves behind, for example a line to be logged. The writer
    /// holds its lock in all calls above, and a subscriber may write to this very store. So this
    /// work runs as a chore.
    fn aftermath(&self) -> Option<Cleanup> {
        None
    }
}

/// Returns the error of an intent that could not do this. If the store could not write, its cause
/// takes the place of that error: otherwise the report would say twice where to look.
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

/// The place where one thread waits for what another one tells it: the answer to an intent.
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
