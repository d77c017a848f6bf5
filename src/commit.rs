//! One atomic write for what several products want written: intents, the batch that they become,
//! and the thread that writes it. A product takes part through a
//! [`Participant`](participant::Participant); this room names none.

mod batches;
pub(crate) mod changes;
mod chores;
pub(crate) mod counter;
pub(crate) mod draft;
pub(crate) mod intent;
pub(crate) mod overlay;
pub(crate) mod participant;
pub(crate) mod sealed;
pub(crate) mod writer;

use std::time::Duration;

/// The shortest time from one save to the next while jobs go on and nobody waits for the watermark:
/// a save costs as much as hundreds of short jobs, and a crash repeats only what finished since the
/// last one.
pub(crate) const SAVE_PACE: Duration = Duration::from_millis(1);
