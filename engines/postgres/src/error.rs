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
    /// Something is set up in a way that cannot work. Nothing is tried again.
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
        /// The one who has it now, or the reason why nobody has.
        holder: String,
    },
    /// A consumer of another process has the name for a time.
    #[error("the name {name:?} is in use by {holder}, for {} ms unless it is renewed", expires_in.as_millis())]
    Leased {
        /// The name of the progress.
        name: String,
        /// The one who has it.
        holder: String,
        /// The time for which it has the name, by the server's clock.
        expires_in: Duration,
    },
    /// The tables are of a newer version than this program knows, and do not serve it any more.
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
    /// The tables are not there, are of an older version, or a table or column of them is gone.
    #[error("the tables in schema {schema:?} do not fit: {what}; call `PgStore::migrate`, or restore what is gone")]
    Schema {
        /// The schema.
        schema: String,
        /// The part that is not there.
        what: String,
    },
    /// The server cannot be reached, or refused a statement. It may work later.
    #[error("the database failed")]
    Database(#[from] postgres::Error),
    /// The server takes no writes (25006). It is tried again, and works as soon as that has gone.
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
    /// The code that decodes a row failed. The source is asked again.
    #[error("the row {index} of {table} cannot be decoded")]
    Decode {
        /// The table.
        table: String,
        /// The id of the row.
        index: waterline::Index,
        /// The error of that code.
        source: waterline::BoxError,
    },
    /// The ids of a table are no longer those that were shown. Nothing more is read.
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
    /// The call that several threads of this process shared failed, with this error.
    #[error(transparent)]
    Shared(std::sync::Arc<Self>),
    /// The library refused something: see its documentation.
    #[error(transparent)]
    Refused(#[from] waterline::Error),
}

impl Error {
    /// Makes a [`Config`](Self::Config).
    pub(crate) fn config(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::Config { what: what.into(), advice: advice.into() }
    }

    /// The same, where the server takes no writes as the reason that says so.
    pub(crate) fn or_read_only(self) -> Self {
        match self {
            Self::Database(error) if is_read_only(&error) => Self::ReadOnly(error),
            other => other,
        }
    }

    /// The text with its causes.
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

/// Errors of a start, as a consumer knows them.
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

/// The error of a name that is lost, as a consumer knows it.
pub(crate) fn fenced(name: &str, holder: impl Into<String>) -> waterline::Error {
    waterline::Error::Fenced { name: name.to_owned(), holder: holder.into() }
}
