//! PostgreSQL for [`waterline`]: the progress of a consumer in the database that has its results,
//! in one transaction with them, and a table as its stream. PostgreSQL 13 or later.
//!
//! * [`PgStore`] connects, and makes the tables ([`PgStore::migrate`]).

#![warn(unreachable_pub, clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod connection;
mod error;
mod jobs;
mod options;
mod schema;
mod store;
mod tls;

pub use error::Error;
pub use jobs::PgJobs;
pub use options::PgOptions;
pub use postgres;
pub use store::PgStore;
