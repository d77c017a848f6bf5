//! The errors of this crate.

use crate::error_class::is_read_only;
use std::error::Error as StdError;
use std::time::Duration;

/// The reason why a call into the database failed.
///
/// Where waterline's own calls return an error, it is the `source` of a
/// [`waterline::Error::Progress`], so `downcast_ref` finds it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The setup cannot work as it is. Nothing is retried.
    #[error("{what}: {advice}")]
    Config {
        /// The fault.
        what: String,
        /// The remedy.
        advice: String,
    },
    /// Another consumer took the name over, or the row of this life is gone. Nothing was written.
    #[error("the name {name:?} is lost: {holder}")]
    Fenced {
        /// The name of the progress.
        name: String,
        /// Who has it now, or why no consumer has.
        holder: String,
    },
    /// Another consumer has a lease on the name.
    #[error("the name {name:?} is in use by {holder}, for {} ms unless it is renewed", expires_in.as_millis())]
    Leased {
        /// The name of the progress.
        name: String,
        /// Who has it.
        holder: String,
        /// How long its lease still lasts, by the server's clock.
        expires_in: Duration,
    },
    /// The tables have a newer version, which no longer serves this program.
    #[error(
        "the tables in schema {schema:?} have version {found}, and this program knows up to {known}: install a newer version of it"
    )]
    NewerSchema {
        /// The schema.
        schema: String,
        /// The version of the tables.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// The tables are missing or older, or one of them or a column is gone.
    #[error("the tables in schema {schema:?} do not fit: {what}; call `PgStore::migrate`, or restore what is gone")]
    Schema {
        /// The schema.
        schema: String,
        /// What is missing.
        what: String,
    },
    /// The server cannot be reached, or refused a statement. A retry may succeed.
    #[error("the database failed")]
    Database(#[from] postgres::Error),
    /// The server takes no writes (25006). Calls are retried until it does.
    #[error(
        "the database takes no writes: it is a replica, or `default_transaction_read_only` is on for it or its role, as hosts set it when a disk is full: ask for room, and then for the end of that setting"
    )]
    ReadOnly(#[source] postgres::Error),
    /// A value in a table cannot be true.
    #[error("the row of {name:?} cannot be true: {what}")]
    Corrupt {
        /// The name of the progress.
        name: String,
        /// The part that cannot be true.
        what: String,
    },
    /// The code that decodes a row failed. The row is read again.
    #[error("the row {index} of {table} cannot be decoded")]
    Decode {
        /// The table.
        table: String,
        /// The id of the row.
        index: waterline::Index,
        /// The error of that code.
        source: waterline::BoxError,
    },
    /// The ids of a table are no longer those that were read before. Nothing more is read.
    #[error(
        "the ids of {table} are other ones than before ({what}): start the consumer again, so that it reads everything anew"
    )]
    OtherIds {
        /// The table.
        table: String,
        /// The difference.
        what: String,
    },
    /// The connection was closed. The next call opens another one.
    #[error("the connection to the database was closed")]
    Closed,
    /// A call that several threads of this process shared failed with this error.
    #[error(transparent)]
    Shared(std::sync::Arc<Self>),
    /// The library refused something: see its documentation.
    #[error(transparent)]
    Refused(#[from] waterline::Error),
}

impl Error {
    pub(crate) fn config(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::Config { what: what.into(), advice: advice.into() }
    }

    /// Turns the error of a server that takes no writes into a [`ReadOnly`](Self::ReadOnly).
    pub(crate) fn or_read_only(self) -> Self {
        match self {
            Self::Database(error) if is_read_only(&error) => Self::ReadOnly(error),
            other => other,
        }
    }

    /// The text with those of its causes.
    pub(crate) fn in_full(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let more = error.to_string();
            // Some errors repeat their cause in their own text.
            if !text.contains(&more) {
                text = format!("{text}: {more}");
            }
            cause = error.source();
        }
        text
    }
}

/// The error of a start, as a consumer reports it.
impl From<Error> for waterline::Error {
    fn from(error: Error) -> Self {
        match error.or_read_only() {
            Error::Leased { name, holder, expires_in } => Self::Leased { name, holder, expires_in },
            Error::Fenced { name, holder } => Self::Fenced { name, holder },
            Error::Corrupt { name, what } => Self::Corrupt { name, reason: what },
            Error::Refused(error) => error,
            other => Self::Progress { source: other.into() },
        }
    }
}

/// The error of a lost name, as a consumer reports it.
pub(crate) fn fenced(name: &str, holder: impl Into<String>) -> waterline::Error {
    waterline::Error::Fenced { name: name.to_owned(), holder: holder.into() }
}
