//! Group commit: one thread writes the intents of several products as one atomic batch. A product
//! implements [`Participant`](participant::Participant). This room names no product.

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
pub(crate) mod prefixes;
pub(crate) mod refusal;
pub(crate) mod sealed;
pub(crate) mod sql;
pub(crate) mod statements;
pub(crate) mod writer;

use std::time::Duration;

/// The shortest time between two saves while jobs go on and no caller waits for the watermark. A
/// save costs as much as hundreds of short jobs; a crash repeats only the jobs since the last.
pub(crate) const SAVE_PACE: Duration = Duration::from_millis(1);
