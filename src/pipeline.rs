//! Consumers that follow each other, as one: started downstream first, stopped upstream first, and halted together.

use crate::base::config::ConfigError;
use crate::base::error::Error;
use crate::base::index::Index;
use crate::base::sync::{Arc, Mutex};
use crate::consumer::{Builder, Consumer, Handle, lowest_end};
use crate::progress::Progress;
use crate::source::Jobs;
use crate::source::watermark::Watermark;
use std::cell::RefCell;
use std::fmt;
use std::time::{Duration, Instant};

mod rate;
mod running;
mod status;

use self::rate::{Rate, Weight};
use self::running::{End, Running, Shared};
pub use self::status::{PipelineStatus, StageStatus};

type Start<'a> = Box<dyn FnOnce(&Stage<'_>) -> Result<Consumer, Error> + 'a>;

/// Consumers that follow each other, run as one.
///
/// Each stage is a [`Consumer`] like any other. It gets its jobs from the stage before it in one of two ways: through a
/// [`JobLog`](crate::JobLog), to which the jobs of that stage [push](crate::Effects::push) (fan-out: one job becomes many); or
/// by going through the same stream behind it, with [`Jobs::gated_by`] (fan-in: behind several, one gate behind the other).
///
/// * Stages are added upstream first. They are started downstream first, so that nobody is there to listen too late.
/// * [`stop`](Self::stop), [`run_to`](Self::run_to) and [`join`](Self::join) end them upstream first: each one is ended when all
///   before it have, and after it has processed what they left it, the items of its log up to the head, or everything up to
///   the lowest watermark among its upstreams. One that goes through the stream of the first stage beside it, so that a later
///   one is behind both, has the first one's to reach; any other that is behind nobody, the head of its source, however far
///   that is. One that is paused is stopped where it is.
/// * A stage may also be gated by a consumer that is no part of the pipeline. If that one ends
///   below the index that the stage is to get to, the stage processes what it lets through, and
///   ends there. That is [`Error::UpstreamEnded`] where somebody counts on the rest: for the first
///   stage if it has an index to stop at, by `stop_at`, `run_to` or `run_to_head`; for the others
///   behind it in `run_to` and `run_to_head`. [`stop`](Self::stop) leaves the rest to the next
///   life, and is Ok.
/// * When a stage halts, all before it are asked to stop, so that they do not pile up work for it. Those behind it process
///   what it left them. The first failure is what `join` returns, with the name of the stage.
///
/// ```
/// use waterline::{Jobs, MemoryJobs, Pipeline, Store};
///
/// let store = Store::in_memory();            // `Store::open("some/directory")` to keep it
/// let blocks: MemoryJobs<_> = ["to be", "or", "not to be"].into_iter().collect();
/// let words = store.log::<String>("words")?;
/// let counts = store.table("counts")?;
///
/// let pipeline = Pipeline::builder()
///     .stage("split", |stage| {
///         let words = words.clone();
///         stage.consumer(blocks.clone(), store.progress("split")).start_transactional(move |job, effects| {
///             job.payload.split(' ').try_for_each(|word| effects.push(&words, &word.to_owned()))?;
///             Ok(())
///         })
///     })
///     .stage("count", |stage| {
///         let counts = counts.clone();
///         stage
///             .consumer(words.clone(), store.progress("count"))
///             .start_transactional(move |job, effects| Ok(effects.add(&counts, job.payload, 1)?))
///     })
///     .stage("report", |stage| {
///         let behind = blocks.clone().gated_by(stage.after("split")?);
///         stage.consumer(behind, store.progress("report")).start(|job| Ok(println!("{} is split", job.payload)))
///     })
///     .start()?;
/// println!("{}", pipeline.status());
/// pipeline.run_to_head()?;
/// assert_eq!((counts.counter("be")?, counts.counter("or")?), (2, 1));
/// # Ok::<(), waterline::Error>(())
/// ```
#[must_use = "dropping a pipeline stops it"]
pub struct Pipeline {
    /// Until it is ended.
    consumers: Vec<Consumer>,
    shared: Arc<Shared>,
}

/// Sets up a [`Pipeline`]; made by [`Pipeline::builder`].
#[must_use = "nothing happens before it is started"]
pub struct PipelineBuilder<'a> {
    stages: Vec<(String, Start<'a>)>,
    stop_at: Option<Index>,
}

/// A stage that is about to be started: where its consumer is made, and the stages before it are found.
pub struct Stage<'a> {
    name: &'a str,
    watermark: &'a Watermark,
    before: &'a [(&'a str, Watermark)],
    /// Of the first one.
    stop_at: Option<Index>,
    weight: RefCell<Option<Weight>>,
}

/// Watches and steers a [`Pipeline`] from anywhere. Keeps nothing running.
#[derive(Clone)]
pub struct PipelineHandle {
    shared: Arc<Shared>,
}

impl<'a> PipelineBuilder<'a> {
    /// Adds a stage, behind those that were added before. The closure starts its consumer, which it makes with
    /// [`Stage::consumer`].
    pub fn stage(
        mut self,
        name: impl Into<String>,
        start: impl FnOnce(&Stage<'_>) -> Result<Consumer, Error> + 'a,
    ) -> Self {
        self.stages.push((name.into(), Box::new(start)));
        self
    }

    /// The first stage processes everything up to and including this index, none above it, and
    /// ends; [`Pipeline::join`] then ends the others, as they have processed what came of that. Of
    /// several such indices the lowest holds, also of one that the stage itself gives to
    /// [`Builder::stop_at`].
    pub fn stop_at(mut self, index: Index) -> Self {
        self.stop_at = Some(lowest_end(self.stop_at, index));
        self
    }

    /// Starts all stages, the last one first.
    ///
    /// # Errors
    /// [`Error::Stage`] with what the closure of a stage returned, or [`Error::Config`] when it made its consumer without
    /// [`Stage::consumer`]; the stages behind it are stopped again. [`Error::Config`] for a pipeline without a stage, and for
    /// two with one name.
    pub fn start(self) -> Result<Pipeline, Error> {
        let names: Vec<String> = self.stages.iter().map(|(name, _)| name.clone()).collect();
        if names.is_empty() {
            return Err(ConfigError::NoStages.into());
        }
        if let Some(twice) = names.iter().enumerate().find(|(nth, name)| names[..*nth].contains(name)) {
            return Err(ConfigError::StageTwice { name: twice.1.clone() }.into());
        }
        let known: Vec<(&str, Watermark)> = names.iter().map(|name| (name.as_str(), Watermark::new())).collect();
        let (mut consumers, mut running) = (Vec::new(), Vec::new());
        for (nth, (name, start)) in self.stages.into_iter().enumerate().rev() {
            let (before, own) = known.split_at(nth);
            let stage = Stage {
                name: &name,
                watermark: &own[0].1,
                before,
                stop_at: self.stop_at.filter(|_| nth == 0),
                weight: RefCell::default(),
            };
            let started = start(&stage).and_then(|consumer| {
                let same = consumer.handle().as_ref().is_same(stage.watermark);
                same.then_some(consumer).ok_or_else(|| ConfigError::StageForeign { name: name.clone() }.into())
            });
            let weight = stage.weight.into_inner();
            let consumer = started.map_err(|source| Error::Stage { name: name.clone(), source: source.into() })?;
            let handle = consumer.handle();
            let rate = Mutex::new(Rate::new(Instant::now(), handle.status().unprocessed));
            consumers.insert(0, consumer);
            running.insert(0, Running { name, handle, weight, rate });
        }
        Ok(Pipeline { consumers, shared: Shared::new(running) })
    }
}

impl Stage<'_> {
    /// A builder for the consumer of this stage: [`Consumer::builder`], with a watermark that the stages behind it know.
    pub fn consumer<J: Jobs, P: Progress>(&self, jobs: J, progress: P) -> Builder<J, P> {
        let builder = Consumer::builder(jobs, progress).watermark(self.watermark.clone());
        match self.stop_at {
            Some(index) => builder.stop_at(index),
            None => builder,
        }
    }

    /// The watermark of a stage before this one, to be gated by: `jobs.gated_by(stage.after("fetch")?)`.
    ///
    /// # Errors
    /// [`Error::Config`] when no stage before this one has that name.
    pub fn after(&self, name: &str) -> Result<Watermark, Error> {
        let found = self.before.iter().find(|(other, _)| *other == name);
        let unknown = || ConfigError::StageUnknown { stage: self.name.to_owned(), name: name.to_owned() };
        Ok(found.ok_or_else(unknown)?.1.clone())
    }

    /// What a job at an index weighs, for an estimate of the time left where later jobs take longer than earlier ones: the size
    /// of a block, say. It is asked for some of the jobs at each [`status`](Pipeline::status), so it should be quick.
    pub fn weight(&self, weight: impl Fn(Index) -> u64 + Send + Sync + 'static) -> &Self {
        *self.weight.borrow_mut() = Some(Box::new(weight));
        self
    }
}

impl Pipeline {
    /// A pipeline without stages, to which they are added upstream first.
    pub fn builder<'a>() -> PipelineBuilder<'a> {
        PipelineBuilder { stages: Vec::new(), stop_at: None }
    }

    /// A handle, to be cloned to wherever the pipeline is watched or steered from.
    #[must_use]
    pub fn handle(&self) -> PipelineHandle {
        PipelineHandle { shared: self.shared.clone() }
    }

    /// How each stage does.
    #[must_use]
    pub fn status(&self) -> PipelineStatus {
        self.shared.status()
    }

    /// Waits until the first stage has ended, by its own `stop_at`, by a failure or by [`PipelineHandle::request_stop`], and
    /// then ends the others one by one, as they have processed what was left to them.
    ///
    /// # Errors
    /// [`Error::Stage`] with the first failure; the source in it is [`Error::UpstreamEnded`] when a
    /// consumer outside of the pipeline keeps it below the index that it was to get to. On a thread
    /// of one of its consumers [`Error::Config`], and all stages are only asked to stop.
    pub fn join(self) -> Result<(), Error> {
        self.end(End::Itself, None)
    }

    /// Stops the first stage, and then ends the others one by one, as they have processed what was left to them: that takes as
    /// long as that takes, retries included; see [`stop_within`](Self::stop_within).
    ///
    /// # Errors
    /// Those of [`join`](Self::join).
    pub fn stop(self) -> Result<(), Error> {
        self.end(End::Now, None)
    }

    /// [`stop`](Self::stop) for those who cannot wait so long: what was left to the stages is processed within half of the time,
    /// and then all of them are stopped where they are, as by [`Consumer::stop_within`], in what is left of it. What they have
    /// not processed stays where it is for the next life.
    ///
    /// # Errors
    /// Those of [`join`](Self::join); [`Error::StopTimeout`] of a stage with jobs that were still running.
    pub fn stop_within(self, limit: Duration) -> Result<(), Error> {
        self.end(End::Now, Some(limit))
    }

    /// Runs until the first stage has processed everything up to and including this index, and all
    /// others what came of that. What has started above it by now is processed too; to go so far
    /// and no further, use [`PipelineBuilder::stop_at`]. Where the first stage stops at a lower
    /// index, that holds.
    ///
    /// # Errors
    /// Those of [`join`](Self::join).
    pub fn run_to(self, index: Index) -> Result<(), Error> {
        if index == Index::MAX {
            return Err(ConfigError::StopAtMax.into());
        }
        self.end(End::At(index), None)
    }

    /// [`run_to`](Self::run_to) what the source of the first stage has when it is next asked.
    ///
    /// # Errors
    /// Those of [`join`](Self::join).
    pub fn run_to_head(self) -> Result<(), Error> {
        self.end(End::Head, None)
    }

    fn end(mut self, end: End, limit: Option<Duration>) -> Result<(), Error> {
        let shared = self.shared.clone();
        if shared.is_own_thread() {
            // Dropping it asks them to stop.
            return Err(ConfigError::OwnThread.into());
        }
        let now = Instant::now();
        // A limit beyond the clock's end is none.
        let [drained, ended] = [1, 2].map(|halves| limit.and_then(|limit| now.checked_add(limit / 2 * halves)));
        let in_time = (0..shared.stages.len()).all(|nth| {
            if nth == 0 {
                shared.stages[0].end(end);
            } else {
                shared.leave_rest_to(nth, end);
            }
            shared.wait_ended(nth, drained)
        });
        if !in_time {
            shared.request_stop_of(shared.stages.len());
        }
        let mut errors = Vec::new();
        for (nth, consumer) in std::mem::take(&mut self.consumers).into_iter().enumerate() {
            let outcome = match ended {
                None => consumer.join(),
                Some(ended) => consumer.stop_within(ended.saturating_duration_since(Instant::now())),
            };
            errors.extend(outcome.err().map(|error| (nth, error)));
        }
        shared.first_of(errors).map_or(Ok(()), Err)
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if self.consumers.is_empty() {
            return;
        }
        self.shared.request_stop_of(self.consumers.len());
        if self.shared.is_own_thread() {
            // The job that runs here may be what a job of another stage waits for.
            self.consumers.drain(..).for_each(Consumer::let_go);
        }
    }
}

impl PipelineHandle {
    /// How each stage does. Never waits for a source, a store or a job.
    #[must_use]
    pub fn status(&self) -> PipelineStatus {
        self.shared.status()
    }

    /// Asks the first stage to stop; [`Pipeline::join`] then ends the others.
    pub fn request_stop(&self) {
        self.shared.request_stop_of(1);
    }

    /// The handle of the stage with this name.
    #[must_use]
    pub fn stage(&self, name: &str) -> Option<Handle> {
        self.shared.stages.iter().find(|stage| stage.name == name).map(|stage| stage.handle.clone())
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl fmt::Debug for PipelineHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipelineHandle").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl fmt::Debug for PipelineBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.stages.iter().map(|(name, _)| name).collect();
        f.debug_struct("PipelineBuilder").field("stages", &names).finish()
    }
}

impl fmt::Debug for Stage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stage").field("name", &self.name).finish_non_exhaustive()
    }
}
