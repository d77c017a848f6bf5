//! What an error of the database means for a call on a queue.

use super::opened::Opened;
use crate::error::Error;
use crate::error_class::is_read_only;
use postgres::error::SqlState;
use waterline_queue::engine_api::store_error;
use waterline_queue::{ConfigError, QueueError};

pub(super) fn queue_error(queue: &str, doing: &str, error: Error) -> QueueError {
    let Error::Database(failed) = &error else { return other(doing, error) };
    let Some(answer) = failed.as_db_error() else { return other(doing, error) };
    let (queue, id) = (queue.to_owned(), answer.detail().unwrap_or_default().to_owned());
    match answer.code().code() {
        // Without a hint, the search for a cycle was given up.
        "WQ003" => match answer.hint().filter(|own| !own.is_empty()) {
            Some(own) => waterline_queue::engine_api::cycle_error(queue, own.to_owned(), Some(id)),
            None => waterline_queue::engine_api::cycle_error(queue, id, None),
        },
        "WQ004" => waterline_queue::engine_api::not_found_error(queue, id),
        "WQ005" => QueueError::Full { queue, max_waiting: id.parse().unwrap_or(0) },
        "WQ006" => waterline_queue::engine_api::already_runs_error(queue, id),
        "WQ007" => waterline_queue::engine_api::halt_error(queue, id),
        // A character that no text of the server has, so the same call always fails.
        "22021" | "22P05" => ConfigError::Nul { subject: format!("a text of the call to {doing}") }.into(),
        "WQ008" => waterline_queue::engine_api::meta_error(id.parse().unwrap_or(0)).into(),
        "WQ012" => {
            let what = if answer.message().contains("payload") { "payload" } else { "data" };
            let most = answer.hint().and_then(|most| most.parse().ok()).unwrap_or(0);
            waterline_queue::engine_api::payload_error(what, id.parse().unwrap_or(0), most).into()
        }
        _ => other(doing, error),
    }
}

/// The error of an answer whose form this program does not know.
pub(super) fn misread(queue: &Opened, error: postgres::Error) -> QueueError {
    queue_error(queue.name(), "read an answer", error.into())
}

fn other(doing: &str, error: Error) -> QueueError {
    store_error(doing, look_at(&error), error.or_read_only().into())
}

/// Says where the user finds the reason.
fn look_at(error: &Error) -> &'static str {
    match error {
        Error::Shared(error) => look_at(error),
        Error::Schema { .. } | Error::NewerSchema { .. } => "its schema, which its owner makes by `PgStore::migrate`",
        Error::Database(failed) if failed.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            "the rights of its user, of which the role `waterline_operate` (named after the schema) has all"
        }
        Error::Database(failed) if is_of_level(failed) => {
            "the isolation level of its transaction, which is to be READ COMMITTED (`default_transaction_isolation` is that of one which names none)"
        }
        Error::Database(failed) if is_read_only(failed) => "the reason why its server takes no writes",
        _ => "its server, the connection and what the server answers",
    }
}

pub(super) fn is_of_level(error: &postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code() == "WQ010")
}

/// The error of a call on a queue that does not exist; `None` for any other error.
pub(super) fn not_found(queue: &str, error: &Error) -> Option<QueueError> {
    let Error::Database(error) = error else { return None };
    let is_it = error.code().is_some_and(|code| code.code() == "WQ001");
    is_it.then(|| waterline::Error::NotFound { what: "queue", name: queue.to_owned() }.into())
}

/// Returns why a note is no number to add to.
pub(super) fn is_no_number(error: &Error) -> Option<String> {
    let Error::Database(failed) = error else { return None };
    let answer = failed.as_db_error()?;
    let reason = answer.message().trim_start_matches("waterline: ");
    (answer.code().code() == "WQ009").then(|| reason.to_owned())
}
