//! The modes in which a consumer runs its jobs, and the settings of each.

use crate::base::config::{self, ConfigError, check_effects, check_supported, check_zero};

/// How jobs run: a mode for each `start_*` call of the builder. In four of them jobs may also be
/// futures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A job is done when the closure or worker returns: [`direct`](super::direct).
    Direct,
    /// A job is done when its token says so: [`deferred`](super::deferred).
    Deferred,
    /// A job is done when the sink has taken its result, in order: [`ordered`](super::ordered).
    Ordered,
    /// A job's effects and its completion are one write: [`direct`](super::direct).
    Transactional,
    /// Several jobs are done together: [`batched`](super::batched).
    Batched,
    /// Several jobs are done together, in one write with their effects.
    BatchedTransactional,
    /// A job is done when a user's transaction has its result: [`writing`](super::writing).
    Writing,
}

/// The settings that only some modes have, if the user has set them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    /// True if the jobs are futures. Workers only begin them, and serve the sink.
    pub(crate) futures: bool,
    /// True if the jobs of one key run in order.
    pub(crate) by_key: bool,
    pub(crate) threads: Option<usize>,
    pub(crate) max_effects: Option<usize>,
    pub(crate) max_unwritten: Option<u64>,
}

/// These settings with the defaults of the mode; `None` if the mode has no such limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// The number of worker threads; by default as many as jobs in flight.
    pub(crate) threads: Option<usize>,
    /// The bytes of effects that may wait to be written.
    pub(crate) effects: Option<usize>,
    /// The results that may wait for their transaction, if any may. The window is a bound, too.
    pub(crate) unwritten: Option<u64>,
}

impl Mode {
    /// Refuses settings that do not fit this mode, since a setting without an effect is a mistake.
    pub(crate) fn settings(self, asked: Asked) -> Result<Settings, ConfigError> {
        let why = "threads is only for `start_deferred`: leave it out, and limit the jobs in flight by max_processing instead";
        check_supported("threads", asked.threads.is_none() || self == Self::Deferred, why)?;
        let has_effects = matches!(self, Self::Transactional | Self::BatchedTransactional);
        let why = "max_effects is only for `start_transactional`, also in batches and with futures; here jobs have no effects: leave it out";
        check_supported("max_effects", asked.max_effects.is_none() || has_effects, why)?;
        let why = "max_unwritten is only for `start_writing`, also with futures; here no job waits to be written: leave it out";
        check_supported("max_unwritten", asked.max_unwritten.is_none() || self == Self::Writing, why)?;
        let in_batches = matches!(self, Self::Batched | Self::BatchedTransactional);
        let why = "ordered_by is not for batches, whose jobs run together: leave it out, or start the jobs one by one";
        check_supported("ordered_by", !(asked.by_key && in_batches), why)?;
        let mut settings = Settings { threads: None, effects: None, unwritten: None };
        match self {
            Self::Direct | Self::Ordered | Self::Batched => {}
            Self::Deferred => {
                let threads = asked.threads.unwrap_or_else(config::available_parallelism);
                let why = "threads is 0, so no job would ever run: use at least 1, or leave it out";
                check_zero("threads", threads == 0, why)?;
                settings.threads = Some(threads);
            }
            Self::Transactional | Self::BatchedTransactional => {
                let bytes = asked.max_effects.unwrap_or(config::DEFAULT_EFFECTS);
                check_effects(bytes)?;
                settings.effects = Some(bytes);
            }
            Self::Writing => {
                let jobs = asked.max_unwritten.unwrap_or(u64::MAX);
                let why = "max_unwritten is 0, so no job would ever start: use 1 or more, or leave it out";
                check_zero("max_unwritten", jobs == 0, why)?;
                settings.unwritten = Some(jobs);
            }
        }
        if asked.futures {
            // A sink that blocks keeps no job from beginning.
            settings.threads = Some(config::available_parallelism() + usize::from(self == Self::Ordered));
        }
        Ok(settings)
    }
}
