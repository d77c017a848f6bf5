// README.md defines its links at its end. Markdown takes the first definition of a link, so these
// ones lead to a page of this documentation, or to the file on docs.rs.
#![cfg_attr(
    all(feature = "rocksdb", any(feature = "tokio", not(doctest))),
    doc = concat!(
        "[async]: crate::async_code\n",
        "[compare]: crate::compare\n",
        "[costs]: crate::costs\n",
        "[design]: crate::design\n",
        "[exactly_once]: crate::exactly_once\n",
        "[failures]: crate::failures\n",
        "[operating]: crate::operating\n",
        "[run_again]: crate::run_again\n",
        "[service_page]: crate::service\n",
        "[storage]: crate::storage\n",
        "[why]: crate::why\n",
        "[your_database]: crate::your_database\n",
        "[changelog]: https://docs.rs/crate/waterline/", env!("CARGO_PKG_VERSION"), "/source/CHANGELOG.md\n",
        "[alerts]: https://docs.rs/crate/waterline/", env!("CARGO_PKG_VERSION"), "/source/examples/alerts.yml\n",
        "[examples]: https://docs.rs/crate/waterline/", env!("CARGO_PKG_VERSION"), "/source/examples/README.md\n",
        "[grafana]: https://docs.rs/crate/waterline/", env!("CARGO_PKG_VERSION"), "/source/examples/grafana.json\n",
        "[json_rpc]: https://docs.rs/crate/waterline/", env!("CARGO_PKG_VERSION"), "/source/examples/json_rpc/node.rs\n",
        "[mailer]: https://docs.rs/crate/waterline/", env!("CARGO_PKG_VERSION"), "/source/examples/mailer.rs\n",
        "[metrics]: https://docs.rs/crate/waterline/", env!("CARGO_PKG_VERSION"), "/source/examples/metrics.rs\n",
        "[page]: https://docs.rs/crate/waterline/", env!("CARGO_PKG_VERSION"), "/source/docs/page.png\n",
        "[service]: https://docs.rs/crate/waterline/", env!("CARGO_PKG_VERSION"), "/source/examples/service.rs\n",
        "[sqlite]: https://docs.rs/crate/waterline/", env!("CARGO_PKG_VERSION"), "/source/examples/sqlite.rs\n",
        "[tokio]: https://docs.rs/crate/waterline/", env!("CARGO_PKG_VERSION"), "/source/examples/tokio.rs\n",
    )
)]
#![cfg_attr(all(feature = "rocksdb", any(feature = "tokio", not(doctest))), doc = include_str!("../README.md"))]
#![cfg_attr(not(feature = "rocksdb"), doc = "Process an ordered stream in parallel, by index, and never skip a job.")]
//!
//! ## Where to look
//!
//! * [`Consumer`] and its [`Builder`]: the promises (at least once, exactly once), and all settings
//!   (retries, prefetch, backpressure).
//! * [`Jobs`]: the source that you implement; [`Lines`] of files that grow and rotate;
//!   [`MemoryJobs`] for tests.
//! * [`Worker`], [`Job`], [`Done`]: the code that you run.
//! * [`Handle`], [`Status`], [`Blocked`], [`Ended`], [`Watermark`]: watch and steer a consumer
//!   (lag, throughput).
//! * [`Verdict`], [`Advice`]: whether it needs an operator, and what helps (health check).
//! * [`Observer`], [`Event`], [`AttemptOutcome`]: hear of everything that happens (events, hooks).
//! * [`Pipeline`], [`Stage`], [`Gated`]: consumers that follow each other.
//! * [`Store`], [`Table`], [`Progress`]: the watermark, and rows beside it.
//! * [`JobLog`], [`Codec`], [`Json`], [`Bytes`]: a durable log of items, which one stage passes to
//!   the next one.
//! * [`exactly_once`]: a program with exactly-once effects, and one with stages.
//! * For a queue of jobs that are pushed one by one, scheduled, retried, and visibly dead after
//!   their last attempt, see the crate [`waterline-queue`](https://docs.rs/waterline-queue). It
//!   uses the same [`Store`].
//! * [`OnExhausted`], [`Failure`], [`Parked`]: jobs that fail for good, or are not ready.
//! * [`StoreProgress::seek`], [`StoreProgress::skip`], [`Move`]: move a progress by hand, with a
//!   history.
//! * [`Saved`], [`SaveError`], [`Tenure`]: the parts for an engine of your own.
//! * [`design`]: the parts and what they do. [`storage`]: the stored format, and the guarantees
//!   that the disk must give.
//! * [`failures`]: retries, parked jobs, crashes, timeouts, moves by hand.
//! * [`run_again`]: what to do once the logic was wrong.
//! * [`service`]: log lines, metrics, a standby, inspection from another process.
//! * [`operating`]: what to do for each reason to wait, alerts, backup and restore, upgrades,
//!   moving to another machine.
//! * [`async_code`]: a consumer in async code.
//! * [`your_database`]: progress and results in a database of yours, in one transaction
//!   ([`Transactional`], [`Sparse`]), and tests of it.
//! * [`costs`]: the cost of a job, next to a floor. [`compare`]: next to the alternatives.
//! * [`why`]: when to use another tool: rayon, a channel, a job queue on a server, Kafka (consumer
//!   groups).
#![cfg_attr(
    feature = "tokio",
    doc = "* [`Builder::start_async`] (also transactional, ordered and writing), [`AsyncJobs`]: jobs and sources that are futures on a tokio runtime."
)]
#![cfg_attr(
    feature = "metrics",
    doc = "* [`Builder::metrics`]: gauges, counters and histograms for Prometheus and others."
)]
#![cfg_attr(
    feature = "testing",
    doc = "* [`testing`]: suites for a source or a progress of yours, and parts that fail on demand."
)]
// Tests of the library may read clocks.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
// The seam is no public API. Builds without it check everything that is one.
#![cfg_attr(
    feature = "seam",
    allow(missing_docs, missing_debug_implementations, rustdoc::private_intra_doc_links),
    allow(clippy::missing_errors_doc, clippy::missing_panics_doc),
    allow(clippy::len_without_is_empty, clippy::new_ret_no_self, clippy::must_use_candidate),
    warn(unreachable_pub)
)]
#![warn(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

extern crate alloc;

mod base;
mod commit;
mod consumer;
mod driver;
mod effects;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzzing;
mod kv;
mod lines;
mod log;
mod observe;
mod pipeline;
mod progress;
mod reader;
mod run;
mod saver;
#[cfg(feature = "seam")]
#[doc(hidden)]
pub mod seam;
mod source;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod threads;
#[doc(hidden)]
pub mod window;

pub use base::advice::{Advice, Verdict};
pub use base::clock::Clock;
pub use base::config::{ConfigError, OnExhausted};
#[cfg(feature = "_counted")]
#[doc(hidden)]
pub use base::counted::{Counted, LockTimes, take_counted};
pub use base::error::{Error, StoreError};
pub use base::failure::Failure;
pub use base::retry::Retry;
pub use base::{BoxError, Index};
pub use consumer::{Builder, Consumer, Handle};
pub use effects::Effects;
pub use kv::statement::{SqlParams, SqlValue};
pub use lines::{Lines, LinesError, LinesFault};
pub use log::{Bytes, Codec, JobLog, Json, LogInfo};
pub use observe::busy_key::BusyKey;
pub use observe::events::{AttemptOutcome, Event, Observer};
pub use observe::status::{Attempt, Blocked, Ended, SourceCalls, State, Status};
pub use observe::strip::{Strip, StripCell, StripRetry};
pub use pipeline::{Pipeline, PipelineBuilder, PipelineHandle, PipelineStatus, Stage, StageStatus};
pub use progress::{
    Checkpoint, CommitError, ConsumerInfo, LastHalt, MemoryProgress, Move, MoveKind, Owned, Parked, Progress, Record,
    SaveError, Saved, StoreProgress, Tenure, Transactional,
};
pub use run::worker::{Done, Job, Worker};
pub use source::wakeup::Wakeup;
pub use source::watermark::Watermark;
#[cfg(feature = "tokio")]
pub use source::{AsyncJobs, OnRuntime};
pub use source::{Confirmed, Gate, Gated, Item, Jobs, MemoryJobs, Sparse, SparseError};
pub use store::{Durability, Engine, Rows, Store, StoreOptions, Table};

// The pages. The programs of this one need `tokio`, so without it none of them is run.
#[cfg_attr(any(feature = "tokio", not(doctest)), doc = include_str!("../docs/async.md"))]
pub mod async_code {}

#[doc = include_str!("../docs/service.md")]
pub mod service {}

// Rustdoc keeps no files beside a page. These link definitions contain the plots, and must come
// before those of the page.
#[doc = include_str!("../docs/plots.txt")]
#[doc = include_str!("../docs/compare.md")]
pub mod compare {}

#[doc = include_str!("../docs/costs.md")]
pub mod costs {}

#[doc = include_str!("../docs/design.md")]
pub mod design {}

#[doc = include_str!("../docs/exactly_once.md")]
pub mod exactly_once {}

#[doc = include_str!("../docs/failures.md")]
pub mod failures {}

#[doc = include_str!("../docs/operating.md")]
pub mod operating {}

#[doc = include_str!("../docs/run_again.md")]
pub mod run_again {}

#[doc = include_str!("../docs/storage.md")]
pub mod storage {}

#[doc = include_str!("../docs/why.md")]
pub mod why {}

#[doc = include_str!("../docs/your_database.md")]
pub mod your_database {}
