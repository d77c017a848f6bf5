//! What an error of a server means for a call on a queue.

use crate::types::config::ConfigError;
use crate::types::error::QueueError;
use crate::types::meta::size_error;
use crate::types::options::payload_error;
use std::error::Error as StdError;
use waterline::{Error, seam};

/// A rule of a queue that a call has broken, as the server says. Nothing was written.
#[derive(Clone, Copy, Debug)]
pub struct Refused<'e> {
    /// One of the codes of the functions, such as `WQ005`, or [`NO_TEXT`].
    pub code: &'e str,
    /// The id or the number that it is about, or nothing.
    pub detail: &'e str,
    /// The other id or number, or nothing.
    pub hint: &'e str,
    pub message: &'e str,
}

/// The code of a text that the server cannot have. The same call always fails.
pub const NO_TEXT: &str = "no text";

/// An error of a call to a server.
pub trait CallError: StdError + Send + Sync + Sized + 'static {
    /// Returns the rule that the call has broken, if the server named one.
    fn refused(&self) -> Option<Refused<'_>>;

    /// Returns the queue that the server names as the one at fault.
    fn queue(&self) -> Option<&str> {
        None
    }

    /// True if the server says that nothing was written. Otherwise the outcome is unknown.
    fn is_undone(&self) -> bool;

    /// True for an answer whose form this program does not know.
    fn is_misread(&self) -> bool;

    /// Says where the user finds the reason.
    fn look_at(&self) -> &'static str;

    /// Makes errors for all threads whose calls have failed by this one.
    fn shared(self) -> impl Fn() -> Self;

    /// The error of a call whose thread has panicked.
    fn of_panic() -> Self;

    /// The text with those of its causes.
    fn in_full(&self) -> String;

    /// Returns it as the source of a [`QueueError`].
    fn into_source(self) -> waterline::BoxError {
        self.into()
    }
}

/// Makes the error of a call on a queue from that of a server.
pub fn queue_error(queue: &str, doing: &str, error: impl CallError) -> QueueError {
    let Some(Refused { code, detail, hint, message }) = error.refused() else { return other(doing, error) };
    let (queue, id) = (queue.to_owned(), detail.to_owned());
    match code {
        // Without a hint, the search for a cycle was given up.
        "WQ003" if hint.is_empty() => QueueError::Cycle { queue, id, through: None },
        "WQ003" => QueueError::Cycle { queue, id: hint.to_owned(), through: Some(id) },
        "WQ004" => QueueError::NotFound { queue, id },
        "WQ005" => QueueError::Full { queue, max_waiting: id.parse().unwrap_or(0) },
        "WQ006" => QueueError::AlreadyRuns { queue, id },
        "WQ007" => QueueError::Halt { queue, id },
        "WQ008" => size_error(id.parse().unwrap_or(0)).into(),
        "WQ012" => {
            let what = if message.contains("payload") { "payload" } else { "data" };
            payload_error(what, id.parse().unwrap_or(0), hint.parse().unwrap_or(0)).into()
        }
        NO_TEXT => ConfigError::Nul { subject: format!("a text of the call to {doing}") }.into(),
        _ => other(doing, error),
    }
}

fn other(doing: &str, error: impl CallError) -> QueueError {
    let doing = if error.is_misread() { "read an answer" } else { doing };
    let look_at = error.look_at();
    QueueError::Store(Error::Store(seam::store_error(doing.to_owned(), look_at, error.into_source())))
}

/// The error of a call on a queue that does not exist; `None` for any other error.
pub fn not_found(queue: &str, error: &impl CallError) -> Option<QueueError> {
    let is_it = error.refused().is_some_and(|refused| refused.code == "WQ001");
    is_it.then(|| Error::NotFound { what: "queue", name: queue.to_owned() }.into())
}

/// Returns why a note is no number to add to.
pub(super) fn is_no_number(error: &impl CallError) -> Option<String> {
    let refused = error.refused().filter(|refused| refused.code == "WQ009")?;
    Some(refused.message.trim_start_matches("waterline: ").to_owned())
}
