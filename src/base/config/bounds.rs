//! The defaults of settings, their bounds, and the checks of both.

use super::ConfigError;
use crate::base::Index;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Returns the default number of threads that run a consumer's jobs, which is also their limit.
pub(crate) fn available_parallelism() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The default of `max_search_ahead`: wide enough that one slow job in thousands stalls nothing,
/// narrow enough that a stuck job shows before the jobs done above it are expensive to repeat.
pub(crate) const DEFAULT_SEARCH_AHEAD: u64 = 10_000;

/// The default of `max_crashes` for a consumer that parks jobs. A machine that is killed and
/// restarted a few times in a row must not park sound jobs.
pub(crate) const DEFAULT_CRASHES: u32 = 5;

/// The default of `poll_every`: rare enough to cost nothing, often enough for a source without
/// notifications.
pub(crate) const DEFAULT_POLL: Duration = Duration::from_secs(1);

/// The longest name, in bytes. The store's keys have one byte for its length.
pub(crate) const MAX_NAME: usize = 255;

/// The longest reason of a move, in bytes: room for a few sentences, or for a link to them.
pub(crate) const MAX_REASON: usize = 1024;

/// How far above the lowest unfinished job a job can be skipped (exclusive). A consumer keeps a bit
/// for each job between the two, so this is 128 MiB.
pub(crate) const MAX_SKIP: u64 = 1 << 30;

/// The longest name of a codec, in bytes.
pub(crate) const MAX_CODEC: usize = 32;

/// Refuses a setting of 0. The sentence says why, and what to write instead.
pub fn check_zero(setting: &'static str, is_zero: bool, why: &str) -> Result<(), ConfigError> {
    if is_zero { Err(ConfigError::Zero { setting, why: why.to_owned() }) } else { Ok(()) }
}

/// Refuses a setting that a part of this consumer cannot keep to.
pub fn check_supported(setting: &'static str, supported: bool, why: &str) -> Result<(), ConfigError> {
    if supported { Ok(()) } else { Err(ConfigError::Unsupported { setting, why: why.to_owned() }) }
}

/// Refuses a number outside its range. `of` names the number, and `instead` says what to write.
pub fn check_number(
    setting: &'static str,
    value: f64,
    range: RangeInclusive<f64>,
    (of, instead): (&str, &str),
) -> Result<(), ConfigError> {
    let why = || format!("{of} is {value}: {instead}");
    if range.contains(&value) { Ok(()) } else { Err(ConfigError::Number { setting, value, why: why() }) }
}

/// Refuses a size of 0, and one above its bound.
fn check_size(setting: &'static str, value: usize, most: usize, why: String) -> Result<(), ConfigError> {
    if (1..=most).contains(&value) { Ok(()) } else { Err(ConfigError::Size { setting, value, most, why }) }
}

/// Refuses [`Index::MAX`], which is never a job.
pub(crate) fn check_index(setting: &'static str, index: Index) -> Result<(), ConfigError> {
    let last = Index::MAX - 1;
    let (of, instead) = match setting {
        _ if index <= last => return Ok(()),
        "start_at" => ("the first index would be", format!("start at {last} or below")),
        "stop_at" => ("stop_at is", "leave `stop_at` out to follow the stream for ever".to_owned()),
        _ => ("the index is", format!("seek to {last} or below, and skip jobs up to there")),
    };
    Err(ConfigError::NoJob { setting, why: format!("{of} {index}, which is never a job: {instead}") })
}

/// Refuses an empty text, and one that is too long.
pub(crate) fn check_length(
    what: &'static str,
    text: &str,
    most: usize,
    why: impl FnOnce(usize) -> String,
) -> Result<(), ConfigError> {
    let length = text.len();
    if (1..=most).contains(&length) {
        Ok(())
    } else {
        Err(ConfigError::Length { what, length, most, why: why(length) })
    }
}

pub(crate) fn check_name(what: &'static str, name: &str) -> Result<(), ConfigError> {
    check_length(what, name, MAX_NAME, |length| {
        format!("the {what} name is {length} bytes long: use 1 to {MAX_NAME} bytes")
    })
}

pub(crate) fn check_codec(name: &str) -> Result<(), ConfigError> {
    check_length("codec", name, MAX_CODEC, |length| {
        format!("the name of the codec {name:?} is {length} bytes long: use 1 to {MAX_CODEC} bytes")
    })
}

pub(crate) fn check_reason(reason: &str) -> Result<(), ConfigError> {
    check_length("move reason", reason, MAX_REASON, |length| {
        format!("the reason of the move is {length} bytes long: use 1 to {MAX_REASON} bytes")
    })
}

/// The default of `max_effects`: how many bytes of effects may wait for their save.
pub(crate) const DEFAULT_EFFECTS: usize = 64 << 20;

/// The bound of `max_effects`. RocksDB takes at most 4 GiB in a write, which consumers may share.
pub(crate) const MAX_EFFECTS: usize = 1 << 30;

pub(crate) fn check_effects(bytes: usize) -> Result<(), ConfigError> {
    let why = format!("max_effects is {bytes} bytes: use 1 to {MAX_EFFECTS} (1 GiB)");
    check_size("max_effects", bytes, MAX_EFFECTS, why)
}

/// The default of `max_read_ahead`: how many bytes of jobs may be read and not yet started.
pub(crate) const DEFAULT_READ_AHEAD: usize = 64 << 20;

pub(crate) fn check_read_ahead(bytes: usize) -> Result<(), ConfigError> {
    let why =
        "max_read_ahead is 0 bytes, which has no room for any job: use 1 or more (with 1, jobs are read one at a time)";
    check_zero("max_read_ahead", bytes == 0, why)
}

pub fn check_max_processing(n: usize) -> Result<(), ConfigError> {
    let why = "max_processing is 0, so no job would ever run: use at least 1 (to hold a consumer or a queue back, use `pause`)";
    check_zero("max_processing", n == 0, why)
}

pub(crate) fn check_batch(max: usize, max_processing: usize) -> Result<(), ConfigError> {
    let instead = format!("use 1 to {max_processing}, which is max_processing, or raise that");
    check_size("batch", max, max_processing, format!("the most jobs of a batch are {max}: {instead}"))
}

pub(crate) fn check_search_ahead(n: u64) -> Result<(), ConfigError> {
    let why = "max_search_ahead is 0, so no job would ever start: use 1 to run the jobs strictly one after the \
               other, or `unlimited_search_ahead()` for no limit";
    check_zero("max_search_ahead", n == 0, why)
}

pub fn check_max_crashes(most: Option<u32>) -> Result<(), ConfigError> {
    let why = "max_crashes is 0, so a job that ran while its process died could never run again: use 1 or more";
    check_zero("max_crashes", most == Some(0), why)
}

pub fn check_attempt_timeout(after: Option<Duration>) -> Result<(), ConfigError> {
    let why = "attempt_timeout is zero, so no attempt could end in time: leave it out for no timeout";
    check_zero("attempt_timeout", after == Some(Duration::ZERO), why)
}
