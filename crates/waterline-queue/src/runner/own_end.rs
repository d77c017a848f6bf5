//! The end of a deferred job that its holder writes together with other writes.

use crate::runner::attempt::{Attempt, Report, Written};
use crate::runner::handler::Finisher;
use crate::runner::outcome::Outcome;
use std::fmt;
use waterline::BoxError;
use waterline::seam::Own;

/// The end of a deferred job that its holder writes, together with writes of its own.
#[must_use = "an end that is dropped fails its job"]
pub struct OwnEnd(Option<Attempt>);

impl Finisher {
    /// Takes the right to end the job; `None` if it was taken before.
    pub(crate) fn take(mut self) -> Option<OwnEnd> {
        let attempt = self.0.take()?;
        attempt.claim_end().then(|| OwnEnd(Some(attempt)))
    }
}

impl OwnEnd {
    /// Makes the calling thread one of the runner's own until the returned guard is dropped. User
    /// code that stops the runner there must not wait for this very job.
    #[must_use]
    pub fn enter(&self) -> Option<Own> {
        self.0.as_ref().map(Attempt::enter)
    }

    /// Calls the hooks that come before the end is written.
    ///
    /// # Errors
    /// The error of the outcome, and the panic of a hook, which fails the attempt.
    pub fn after(&self, outcome: Result<Outcome, BoxError>) -> Result<Outcome, BoxError> {
        let Some(attempt) = &self.0 else { return outcome };
        let _own = attempt.enter();
        attempt.hooks().after(attempt.job(), outcome)
    }

    /// Tells the runner that the end is written, and the state of the job (`Some(None)`: its row is
    /// gone; `None`: the lease was over). An error ends the attempt, which the runner writes.
    pub fn written(mut self, written: Result<Written, BoxError>) {
        if let Some(attempt) = self.0.take() {
            attempt.hand_in(|attempt| Report::written_elsewhere(attempt, written));
        }
    }
}

impl Drop for OwnEnd {
    fn drop(&mut self) {
        if let Some(attempt) = self.0.take() {
            let error = Err("the end of the job was dropped before it was written".into());
            attempt.hand_in(|attempt| Report::written_elsewhere(attempt, error));
        }
    }
}

impl fmt::Debug for OwnEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnEnd").finish_non_exhaustive()
    }
}
