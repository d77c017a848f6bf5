//! The end of a consumer, for callers that do not own it.

use crate::observe::status::State;

/// How a consumer ended, as [`Handle::wait_end`](crate::Handle::wait_end) returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// The last state: [`State::Finished`] or [`State::Halted`].
    pub state: State,
    /// The [report](crate::Error::report) of the error that
    /// [`Consumer::join`](crate::Consumer::join) returns or has returned. `None` if the consumer
    /// finished.
    pub error: Option<String>,
}
