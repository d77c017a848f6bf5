//! What an error of a server means for a call on a queue.

use crate::types::config::ConfigError;
use crate::types::error::QueueError;
use crate::types::meta::size_error;
use crate::types::options::payload_error;
use std::error::Error as StdError;
use waterline::seam::{describe, store_error};
use waterline::{BoxError, Error};

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
    fn refused(&self) -> Option<Refused<'_>> {
        None
    }

    /// Returns the queue that the server names as the one at fault.
    fn queue(&self) -> Option<&str> {
        None
    }

    /// True if the server says that nothing was written. Otherwise the outcome is unknown.
    fn is_undone(&self) -> bool;

    /// True if the user has to hear that the outcome is unknown: [`QueueError::Unsure`].
    fn is_unsure(&self) -> bool {
        false
    }

    /// True for an answer whose form this program does not know.
    fn is_misread(&self) -> bool {
        false
    }

    /// Says where the user finds the reason.
    fn look_at(&self) -> &'static str;

    /// Makes errors for all threads whose calls have failed by this one.
    fn shared(self) -> impl Fn() -> Self;

    /// The error of a call whose thread has panicked.
    fn of_panic() -> Self;

    /// The text with those of its causes.
    fn in_full(&self) -> String {
        describe(self)
    }

    /// Returns it as the source of a [`QueueError`].
    fn into_source(self) -> BoxError {
        self.into()
    }
}

/// Makes the error of a call on a queue from that of a server.
pub fn queue_error(queue: &str, doing: &str, error: impl CallError) -> QueueError {
    if error.is_unsure() {
        let (queue, doing) = (queue.to_owned(), doing.to_owned());
        return QueueError::Unsure { queue, doing, source: error.into_source() };
    }
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
    QueueError::Store(Error::Store(store_error(doing.to_owned(), look_at, error.into_source())))
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An error of a call, or one that its threads share.
    #[derive(Debug, PartialEq, thiserror::Error)]
    #[error("{self:?}")]
    pub(in crate::remote) enum Broken {
        Rule([&'static str; 4]),
        Undone,
        Unsure,
        Lost,
        Shared,
    }

    impl CallError for Broken {
        fn refused(&self) -> Option<Refused<'_>> {
            let Self::Rule([code, detail, hint, message]) = self else { return None };
            Some(Refused { code, detail, hint, message })
        }

        fn is_undone(&self) -> bool {
            *self == Self::Undone
        }

        fn is_unsure(&self) -> bool {
            *self == Self::Unsure
        }

        fn look_at(&self) -> &'static str {
            "the server"
        }

        fn shared(self) -> impl Fn() -> Self {
            || Self::Shared
        }

        fn of_panic() -> Self {
            Self::Shared
        }
    }

    #[test]
    fn each_code_has_its_error() {
        let error = |error| format!("{:#?}", queue_error("q", "push jobs", error)).replace(['\n', ' '], "");
        let is = |rule, start: &str| {
            let found = error(Broken::Rule(rule));
            assert!(found.starts_with(start), "{rule:?}: {found}");
        };
        is(["WQ003", "a", "b", ""], r#"Cycle{queue:"q",id:"b",through:Some("a",),}"#);
        is(["WQ003", "a", "", ""], r#"Cycle{queue:"q",id:"a",through:None,}"#);
        is(["WQ004", "a", "", ""], r#"NotFound{queue:"q",id:"a",}"#);
        is(["WQ005", "7", "", ""], r#"Full{queue:"q",max_waiting:7,}"#);
        is(["WQ006", "a", "", ""], r#"AlreadyRuns{queue:"q",id:"a",}"#);
        is(["WQ007", "a", "", ""], r#"Halt{queue:"q",id:"a",}"#);
        is(["WQ012", "9", "8", "the payload is long"], r#"Config(Length{what:"payload",length:9,most:8"#);
        is([NO_TEXT, "", "", ""], r#"Config(Nul{subject:"atextofthecalltopushjobs",}"#);
        is(["WQ002", "", "", ""], "Store(Store(");
        assert!(error(Broken::Unsure).starts_with(r#"Unsure{queue:"q",doing:"pushjobs",source:Unsure"#));
        assert!(error(Broken::Lost).starts_with("Store(Store("));
        assert!(
            not_found("q", &Broken::Rule(["WQ001", "", "", ""])).is_some() && not_found("q", &Broken::Lost).is_none()
        );
    }
}
