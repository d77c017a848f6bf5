//! PostgreSQL for [`waterline`]: the progress of a consumer is in the database that has its
//! results, and is committed with them. So each job has its rows *exactly once*, whatever dies, and
//! a second process is a hot standby. It needs PostgreSQL 13 or later.
//!
//! ```no_run
//! use waterline::{Consumer, MemoryJobs};
//! use waterline_postgres::postgres::{Config, NoTls, Transaction};
//! use waterline_postgres::{PgOptions, PgStore};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let config: Config = "host=localhost user=app dbname=bank".parse()?;
//!     let store = PgStore::connect(config, NoTls, PgOptions::new())?;
//!     store.migrate()?;                           // the tables of this crate, in a schema of their own
//!
//!     let jobs: MemoryJobs<i64> = (1..=100).collect();
//!     Consumer::builder(jobs, store.progress("transfers"))
//!         .standby()                              // waits if another process has the name
//!         .start_writing(
//!             |job| Ok(job.payload * 2),          // in parallel
//!             |tx: &mut Transaction<'_>, results| {
//!                 for (_, amount) in results {    // one transaction at a time, with the progress
//!                     tx.execute("UPDATE accounts SET balance = balance + $1 WHERE id = 1", &[amount])?;
//!                 }
//!                 Ok(())
//!             },
//!         )?
//!         .join()?;
//!     Ok(())
//! }
//! ```
//!
//! ## Overview
//!
//! * [`PgStore`] connects, makes the tables, and has the calls of an operator: lists, parked jobs,
//!   moves by hand.
//! * [`PgProgress`] is the progress of one consumer: how it holds its name, what a transaction may
//!   do, and what is tried again.
//! * [`PgJobs`] is a table as a stream, into which many writers may insert at once: which ids are
//!   final, and what the table has to be.
//! * [`PgStore::queue`] opens a job queue that many processes share, in several languages: see
//!   [`from_another_language`]. [`QueueExt`], [`LeaseExt`] and [`RunnerExt`] push and end its jobs
//!   in a transaction with your own rows. [`which_queue`](waterline_queue::which_queue) compares it
//!   with the others, and [`moving`] shows how to move one; [`operating`] says what to watch;
//!   [`parity`] has what is different.
//! * The examples `own_transaction` and `own_transaction_sqlx` call the functions with
//!   `tokio-postgres` and with `sqlx`, in a transaction of their own.
//! * The example `run_again` processes a stream again with new code, whose rows and progress take
//!   the place of the old ones in one transaction ([`PgStore::replace_in`]).
//! * The example `tls` has a connector for [rustls](https://docs.rs/rustls).
//! * [`PgOptions`]: the schema, and the time after which a standby takes over.
//!
//! ## Servers and poolers
//!
//! It is tested with PostgreSQL 13 to 18: [`operating`] has a table.
//!
//! A pooler in transaction mode may stand in front of the server: PgBouncer is tested in version
//! 1.18, which has no prepared statements. No setting and no lock of this crate outlives a
//! transaction. Only notifications do not come through, since they belong to a connection. So a
//! standby takes over within half a second after a clean stop, and not at once; a redrive or
//! discard is taken up within a third of the TTL; and [`PgJobs`] polls at its pace
//! ([`poll_every`](waterline::Builder::poll_every)). If a table has a column of a type of your own,
//! the driver keeps a statement for it, which such a pooler may lose: then a read fails, and is
//! retried. A pooler in statement mode does not work.
//!
//! ## Threads and time
//!
//! Everything works within a tokio runtime too, though each call blocks. Calls return: a server
//! that does not answer is given up after one and a half times the TTL and a second. A Unix socket
//! is the exception: there only the server itself ends a call that takes too long.

#![warn(unreachable_pub, clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod admin;
mod bitmap_chunks;
mod bounded;
mod connection;
mod error;
mod error_class;
mod jobs;
mod keeper;
mod lease;
mod options;
mod progress;
#[cfg(feature = "queue")]
mod queue;
mod replace;
mod row;
mod schema;
mod sql;
mod statements;
mod store;
mod stream;
mod tls;

pub use error::Error;
pub use jobs::PgJobs;
pub use options::PgOptions;
pub use postgres;
pub use progress::PgProgress;
#[cfg(feature = "queue")]
pub use queue::{LeaseExt, QueueExt, RunnerExt};
pub use store::PgStore;

#[doc = include_str!("../docs/from_another_language.md")]
#[doc = "\n## A worker in Python\n\n```python"]
#[doc = include_str!("../examples/worker.py")]
#[doc = "```\n\n## A worker in Node\n\n```javascript"]
#[doc = include_str!("../examples/worker.js")]
#[doc = "```\n\n## A producer in Python\n\n```python"]
#[doc = include_str!("../examples/producer.py")]
#[doc = "```\n\n## A producer in Node\n\n```javascript"]
#[doc = include_str!("../examples/producer.js")]
#[doc = "```"]
pub mod from_another_language {}

#[doc = include_str!("../docs/moving.md")]
#[doc = "\n## The example `move_queue`\n\n```rust,no_run"]
#[doc = include_str!("../examples/move_queue.rs")]
#[doc = "```"]
pub mod moving {}

#[doc = include_str!("../docs/operating.md")]
pub mod operating {}

#[doc = include_str!("../docs/parity.md")]
pub mod parity {}

/// The program of README.md is compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
