//! Group commit: intents of several products become one batch, and one thread writes it atomically.
//! A product takes part through the trait [`Participant`](participant::Participant). This room
//! names no product.

pub(crate) mod adds;
mod batches;
pub(crate) mod changes;
mod cleanup;
pub(crate) mod counter;
pub(crate) mod counter_cache;
pub(crate) mod draft;
pub(crate) mod intent;
pub(crate) mod overlay;
pub(crate) mod participant;
pub(crate) mod refusal;
pub(crate) mod sealed;
pub(crate) mod sql;
pub(crate) mod statements;
pub(crate) mod writer;

use std::time::Duration;

/// The shortest time between two saves while jobs go on and nobody waits for the watermark. A save
/// costs as much as hundreds of short jobs, and after a crash only the jobs that finished since the
/// last save run again.
pub(crate) const SAVE_PACE: Duration = Duration::from_millis(1);
