//! PostgreSQL for [`waterline`]: the progress of a consumer in the database that has its results,
//! in one transaction with them, and a table as its stream. PostgreSQL 13 or later.
//!
//! * [`PgStore`] connects, and makes the tables ([`PgStore::migrate`]).

#![warn(unreachable_pub, clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod admin;
mod bounded;
mod connection;
mod error;
mod fault;
mod jobs;
mod keeper;
mod lease;
mod options;
mod pieces;
mod progress;
mod row;
mod schema;
mod sql;
mod store;
mod tls;

pub use error::Error;
pub use jobs::PgJobs;
pub use options::PgOptions;
pub use postgres;
pub use progress::PgProgress;
pub use store::PgStore;
