//! What an error of the database means for a call on a queue.

use crate::error::Error;
use crate::error_class::{ends_connection, is_read_only};
use postgres::error::{DbError, SqlState};
use std::sync::Arc;
use waterline::BoxError;
use waterline_queue::remote::{CallError, NO_TEXT, Refused};

/// Why a call has failed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub(crate) struct Failed {
    #[source]
    error: Error,
    is_misread: bool,
}

impl<E: Into<Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self { error: error.into(), is_misread: false }
    }
}

impl Failed {
    pub(super) fn misread(error: impl Into<Error>) -> Self {
        Self { error: error.into(), is_misread: true }
    }

    fn answer(&self) -> Option<&DbError> {
        let Error::Database(failed) = &self.error else { return None };
        failed.as_db_error()
    }
}

impl CallError for Failed {
    fn refused(&self) -> Option<Refused<'_>> {
        let answer = self.answer()?;
        let code = match answer.code().code() {
            "22021" | "22P05" => NO_TEXT,
            code => code,
        };
        let [detail, hint] = [answer.detail(), answer.hint()].map(Option::unwrap_or_default);
        Some(Refused { code, detail, hint, message: answer.message() })
    }

    fn queue(&self) -> Option<&str> {
        self.answer()?.table()
    }

    fn is_undone(&self) -> bool {
        matches!(&self.error, Error::Database(error) if !ends_connection(error))
    }

    fn is_misread(&self) -> bool {
        self.is_misread
    }

    fn look_at(&self) -> &'static str {
        look_at(&self.error)
    }

    fn shared(self) -> impl Fn() -> Self {
        let error = Arc::new(self.error);
        move || Error::Shared(Arc::clone(&error)).into()
    }

    fn of_panic() -> Self {
        Error::Closed.into()
    }

    fn in_full(&self) -> String {
        self.error.in_full()
    }

    fn into_source(self) -> BoxError {
        self.error.or_read_only().into()
    }
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
