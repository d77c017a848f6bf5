//! One atomic write for whatever several products want written: intents, the batch that they become, and who writes it.

pub(crate) mod changes;
pub(crate) mod counter;
pub(crate) mod draft;
pub(crate) mod sealed;
pub(crate) mod writer;

use std::time::Duration;

/// At least this long from one save to the next, while jobs go on and none waits for the watermark: a save costs as much as
/// hundreds of short jobs, and a crash repeats no more than what finished since the last one.
pub(crate) const SAVE_PACE: Duration = Duration::from_millis(1);
