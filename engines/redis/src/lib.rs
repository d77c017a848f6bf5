//! Redis and Valkey for [`waterline_queue`](https://docs.rs/waterline-queue): job queues that many
//! processes share, in several languages, on the server where the users of Sidekiq, BullMQ and
//! asynq have their jobs. It needs Redis 7.0 or Valkey 7.2, or a later version.
//!
//! ```no_run
//! use waterline_redis::{RedisOptions, RedisStore};
//!
//! # fn main() -> Result<(), waterline_redis::Error> {
//! let store = RedisStore::connect("redis://localhost/0", RedisOptions::new())?;
//! store.migrate()?;                               // loads the functions
//! # Ok(())
//! # }
//! ```
//!
//! ## Overview
//!
//! * [`RedisStore`] connects to one server, to the master that Sentinels name, or to a cluster, and
//!   loads the functions.
//! * [`RedisOptions`]: the prefix of the keys, the slot of the queues, what may be lost, and how
//!   many replicas a push waits for.
//! * [`Error`] says what happened, where, and what to do. After [`Error::Unsure`] nobody knows
//!   whether a call counts; after all others nothing was changed.
//!
//! ## What can be lost
//!
//! [`RedisStore::persistence`] says how often the server writes its data to a disk. With
//! [`Persistence::Always`] nothing that was acknowledged is lost, whatever dies. With
//! [`Persistence::EachSecond`] this holds for a server that is killed, and up to two seconds are
//! lost with the machine. A failover to a replica loses what it had not received, unless
//! [`RedisOptions::replicas`] lets pushes and ends wait for it.
//!
//! ## Threads and time
//!
//! Everything works within a tokio runtime too, though each call blocks. Calls return: a server
//! that does not answer is given up after [`RedisOptions::answer_timeout`]. While somebody listens
//! to a queue, there is one thread for its server, which ends soon after the last listener.

#![warn(unreachable_pub, clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod address;
mod bells;
mod calls;
mod checks;
mod connection;
mod error;
mod error_class;
mod keys;
mod library;
mod nodes;
mod options;
mod pool;
mod store;

pub use address::Urls;
pub use checks::Persistence;
pub use error::Error;
pub use options::RedisOptions;
pub use redis;
pub use store::RedisStore;
