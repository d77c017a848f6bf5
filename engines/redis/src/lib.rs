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
//! * [`RedisStore::queue`] opens a queue, with all that a [`Queue`](waterline_queue::Queue) has.
//! * [`LeaseExt::finish_with_redis`] and [`RunnerExt::on_writing_redis`] end a job together with
//!   [`Writes`] of yours.
//! * [`Error`] says what happened, where, and what to do. After [`Error::Unsure`] a call may
//!   count or not; after all others nothing was changed.
//!
//! ## What can be lost
//!
//! [`RedisStore::persistence`] says how often the server writes its data to a disk. With
//! [`Persistence::Always`] nothing that was acknowledged is lost, whatever dies. With
//! [`Persistence::EachSecond`] this holds for a server that is killed, and up to two seconds are
//! lost with the machine. A failover to a replica loses what it had not received, unless
//! [`RedisOptions::replicas`] lets pushes and ends wait for it.
//!
//! ## Writes with the end of a job
//!
//! A job that counts in Redis, and dies before its end, counts again when it runs again. So its
//! writes may be part of its end: both are made in one call, or neither.
//!
//! ```no_run
//! # use waterline_redis::{RedisOptions, RedisStore};
//! use waterline_queue::{Outcome, QueueOptions, Runner};
//! use waterline_redis::RunnerExt;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let store = RedisStore::connect("redis://localhost/0", RedisOptions::new())?;
//! let queue = store.queue("orders", QueueOptions::default())?;
//! let runner = Runner::builder(&queue).on_writing_redis("ship", |_job, order: String, w| {
//!     w.incr("{orders}:shipped", 1).hset("{orders}:state", order, "shipped");
//!     Ok(Outcome::Done)
//! });
//! runner.start()?.stop()?;
//! # Ok(())
//! # }
//! ```
//!
//! Redis undoes nothing, so all is checked before the first write: a key of another type, a counter
//! that is no number, or a missing right is an error that names the key, and leaves all keys and
//! the job as they were. Writes of a [`Store`](waterline::Store) are elsewhere, and cannot be part
//! of it; see [`Capabilities`](waterline_queue::Capabilities).
//!
//! ## Threads and time
//!
//! Everything works within a tokio runtime too, though each call blocks. Calls return: a server
//! that does not answer is given up after [`RedisOptions::answer_timeout`]. While a caller listens
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
mod queue;
mod store;
#[cfg(feature = "tls")]
mod tls;

pub use address::Urls;
pub use checks::Persistence;
pub use error::{Error, WriteFault};
pub use options::RedisOptions;
pub use queue::{LeaseExt, RunnerExt, Writes};
pub use redis;
pub use store::RedisStore;

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

#[doc = include_str!("../docs/operating.md")]
pub mod operating {}

#[doc = include_str!("../docs/parity.md")]
pub mod parity {}

#[doc = include_str!("../docs/coming_from.md")]
#[doc = "\n## The example `outbox`\n\n```rust,no_run"]
#[doc = include_str!("../examples/outbox.rs")]
#[doc = "```"]
pub mod coming_from {}

/// Compiles the program of README.md with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
