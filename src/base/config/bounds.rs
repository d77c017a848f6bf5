//! The defaults of settings, their bounds, and the checks of both.

use super::ConfigError;
use std::time::Duration;

/// Returns the default number of threads that run a consumer's jobs, which is also their limit.
pub(crate) fn available_parallelism() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The default of `max_search_ahead`. It is wide, so that one slow job in thousands stalls nothing.
/// It is narrow enough that a stuck job shows before the jobs done above it are expensive to
/// repeat.
pub(crate) const DEFAULT_SEARCH_AHEAD: u64 = 10_000;

/// The default of `max_crashes` for a consumer that parks jobs: a machine that is restarted by
/// force a few times in a row parks nothing that is sound.
pub(crate) const DEFAULT_CRASHES: u32 = 5;

/// The default of `poll_every`: rarely enough to cost nothing, often enough for a source that rings
/// nobody.
pub(crate) const DEFAULT_POLL: Duration = Duration::from_secs(1);

/// The longest name, in bytes. The store's keys have one byte for its length.
pub(crate) const MAX_NAME: usize = 255;

/// The longest reason of a move, in bytes: room for a few sentences, or for a link to them.
pub(crate) const MAX_REASON: usize = 1024;

/// The distance from the lowest job that is not done at which no job can be skipped any more. A
/// consumer keeps a bit for each job between the two, so this is 128 MiB.
pub(crate) const MAX_SKIP: u64 = 1 << 30;

/// The longest name of a codec, in bytes.
pub(crate) const MAX_CODEC: usize = 32;

/// Refuses an empty name, and one that is too long.
pub(crate) fn check_name(what: &'static str, name: &str) -> Result<(), ConfigError> {
    match name.len() {
        1..=MAX_NAME => Ok(()),
        length => Err(ConfigError::Name { what, length }),
    }
}

/// Refuses an empty name of a codec, and one that is too long.
pub(crate) fn check_codec(name: &str) -> Result<(), ConfigError> {
    match name.len() {
        1..=MAX_CODEC => Ok(()),
        _ => Err(ConfigError::CodecName { name: name.to_owned() }),
    }
}

/// Refuses an empty reason of a move, and one that is too long.
pub(crate) fn check_reason(reason: &str) -> Result<(), ConfigError> {
    match reason.len() {
        1..=MAX_REASON => Ok(()),
        length => Err(ConfigError::Reason { length }),
    }
}

/// The default of `max_effects`: the most bytes of effects that wait for their save.
pub(crate) const DEFAULT_EFFECTS: usize = 64 << 20;

/// The bound of `max_effects`. RocksDB takes at most 4 GiB in one write, and several consumers may
/// share one.
pub(crate) const MAX_EFFECTS: usize = 1 << 30;

pub(crate) fn check_effects(bytes: usize) -> Result<(), ConfigError> {
    if (1..=MAX_EFFECTS).contains(&bytes) { Ok(()) } else { Err(ConfigError::MaxEffects { bytes }) }
}

/// The default of `max_read_ahead`: the most bytes of jobs that were read and have not started.
pub(crate) const DEFAULT_READ_AHEAD: usize = 64 << 20;

pub(crate) fn check_read_ahead(bytes: usize) -> Result<(), ConfigError> {
    if bytes == 0 { Err(ConfigError::MaxReadAheadZero) } else { Ok(()) }
}

pub(crate) fn check_max_processing(n: usize) -> Result<(), ConfigError> {
    if n == 0 { Err(ConfigError::MaxProcessingZero) } else { Ok(()) }
}

pub(crate) fn check_batch(max: usize, max_processing: usize) -> Result<(), ConfigError> {
    if (1..=max_processing).contains(&max) { Ok(()) } else { Err(ConfigError::BatchSize { max, max_processing }) }
}

pub(crate) fn check_search_ahead(n: u64) -> Result<(), ConfigError> {
    if n == 0 { Err(ConfigError::SearchAheadZero) } else { Ok(()) }
}
