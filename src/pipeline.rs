//! Consumers that follow each other, run as one: they start downstream first, stop upstream first,
//! and halt together.

use crate::base::sync::{Arc, Mutex};
use crate::base::{Error, Index, config::ConfigError, structure::shows, time};
use crate::consumer::{Builder, Consumer, Handle, lowest_end};
use crate::progress::Progress;
use crate::source::{Jobs, watermark::Watermark};
use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

#[cfg(feature = "tokio")]
mod awaiting;
mod rate;
mod running;
mod status;

use self::rate::{Rate, Weight};
use self::running::{End, RunningStage, Stages};
pub use self::status::{PipelineStatus, StageStatus};

type Start<'a> = Box<dyn FnOnce(&Stage<'_>) -> Result<Consumer, Error> + 'a>;

/// Consumers that follow each other, run as one.
///
/// Each stage is a [`Consumer`] like any other. It gets its jobs from the stage before it in one of
/// two ways: through a [`JobLog`](crate::JobLog), to which the jobs of that stage
/// [push](crate::Effects::push) (fan-out: one job becomes many); or from the same stream, behind
/// that stage, with [`Jobs::gated_by`] (fan-in: a stage can be behind several gates).
///
/// * **Start**: add the stages upstream first. They start downstream first, so that each one
///   listens before its upstream moves.
/// * **End**: [`stop`](Self::stop), [`run_to`](Self::run_to) and [`join`](Self::join) end the
///   stages upstream first. A stage ends once all stages before it have ended, and it has processed
///   the jobs that they left: the items of its log up to the head, or everything up to the lowest
///   watermark of its upstreams. A stage beside the first one, which goes through the same stream
///   and has a later stage behind both, goes as far as the first stage. Any other stage without an
///   upstream goes as far as the head of its source. A stage that is paused, or waits for its name
///   ([`Builder::standby`]), stops at once. But if the first stage has reached its end, the later
///   ones are awaited until they have their names.
/// * **Upstreams outside**: a stage may also be gated by a consumer outside the pipeline. If that
///   consumer ends below the index to which the stage goes, the stage processes the jobs that its
///   gate lets through, and ends there. This is [`Error::UpstreamEnded`] where the rest was
///   requested: for the first stage if it has an index to stop at, by `stop_at`, `run_to` or
///   `run_to_head`; for the later stages in `run_to` and `run_to_head`. [`stop`](Self::stop) leaves
///   the rest to the next life, and is Ok.
/// * **Failure**: when a stage halts, all stages before it are asked to stop, so that they do not
///   pile up work for it. The stages behind it process the jobs that it left them. `join` returns
///   the first failure, with the name of the stage.
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
    /// The consumers, until they are ended.
    consumers: Vec<Consumer>,
    shared: Arc<Stages>,
}

/// Configures a [`Pipeline`]; created by [`Pipeline::builder`].
#[must_use = "nothing happens before it is started"]
pub struct PipelineBuilder<'a> {
    stages: Vec<(String, Start<'a>)>,
    stop_at: Option<Index>,
}

/// A stage that is about to start. It builds the stage's consumer, and finds the stages before it.
pub struct Stage<'a> {
    name: &'a str,
    watermark: &'a Watermark,
    before: &'a [(&'a str, Watermark)],
    /// The index to stop at, for the first stage.
    stop_at: Option<Index>,
    weight: RefCell<Option<Weight>>,
}

/// Watches and steers a [`Pipeline`] from anywhere. It keeps nothing running.
#[derive(Clone)]
pub struct PipelineHandle {
    shared: Arc<Stages>,
}

impl<'a> PipelineBuilder<'a> {
    /// Adds a stage behind those added before.
    ///
    /// The closure starts the stage's consumer, which it builds with [`Stage::consumer`].
    pub fn stage(
        mut self,
        name: impl Into<String>,
        start: impl FnOnce(&Stage<'_>) -> Result<Consumer, Error> + 'a,
    ) -> Self {
        self.stages.push((name.into(), Box::new(start)));
        self
    }

    /// Ends the first stage once it has processed everything up to and including this index.
    ///
    /// It processes nothing above the index. [`Pipeline::join`] then ends the other stages, once
    /// they have processed the jobs that come of it. Of several such indices, the lowest holds; an
    /// index that the stage gives to [`Builder::stop_at`] counts too.
    pub fn stop_at(mut self, index: Index) -> Self {
        self.stop_at = Some(lowest_end(self.stop_at, index));
        self
    }

    /// Starts all stages, the last one first.
    ///
    /// # Errors
    /// [`Error::Stage`] with the error that the closure of a stage returned, or with
    /// [`Error::Config`] if its consumer was not built with [`Stage::consumer`]. The stages behind
    /// it are stopped again. [`Error::Config`] for a pipeline without a stage, or with two stages
    /// of one name.
    pub fn start(self) -> Result<Pipeline, Error> {
        let names: Vec<String> = self.stages.iter().map(|(name, _)| name.clone()).collect();
        if names.is_empty() {
            return Err(refused("none", [], "the pipeline has no stage: give it at least one".to_owned()));
        }
        if let Some((_, name)) = names.iter().enumerate().find(|(nth, name)| names[..*nth].contains(name)) {
            let why = format!("two stages have the name {name:?}: give each stage a name of its own");
            return Err(refused("twice", [name], why));
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
                let why = "returned a consumer that was not made with `Stage::consumer`: call that instead of `Consumer::builder`";
                same.then_some(consumer).ok_or_else(|| refused("foreign", [&name], format!("the stage {name:?} {why}")))
            });
            let weight = stage.weight.into_inner();
            let consumer = started.map_err(|source| Error::Stage { name: name.clone(), source: source.into() })?;
            let handle = consumer.handle();
            let rate = Mutex::new(Rate::of(handle.control.now(), &handle.status()));
            consumers.insert(0, consumer);
            running.insert(0, RunningStage { name, handle, weight, rate });
        }
        Ok(Pipeline { consumers, shared: Stages::new(running) })
    }
}

fn refused<const N: usize>(fault: &'static str, names: [&str; N], why: String) -> Error {
    ConfigError::Stage { fault, names: names.map(str::to_owned).into(), why }.into()
}

impl Stage<'_> {
    /// Returns a builder for this stage's consumer: [`Consumer::builder`] with a shared watermark.
    ///
    /// The stages behind this one follow that watermark.
    pub fn consumer<J: Jobs, P: Progress>(&self, jobs: J, progress: P) -> Builder<J, P> {
        let builder = Consumer::builder(jobs, progress).watermark(self.watermark.clone());
        match self.stop_at {
            Some(index) => builder.stop_at(index),
            None => builder,
        }
    }

    /// Returns the watermark of a stage before this one, for a gate:
    /// `jobs.gated_by(stage.after("fetch")?)`.
    ///
    /// # Errors
    /// [`Error::Config`] if no stage before this one has that name.
    pub fn after(&self, name: &str) -> Result<Watermark, Error> {
        let found = self.before.iter().find(|(other, _)| *other == name);
        let why = format!("no stage before {:?} has the name {name:?}: add the upstream stages first", self.name);
        Ok(found.ok_or_else(|| refused("unknown", [self.name, name], why))?.1.clone())
    }

    /// Sets the weight of the job at an index, such as the size of a block.
    ///
    /// The estimate of the remaining time needs it if later jobs take longer than earlier ones.
    /// Each [`status`](Pipeline::status) calls it for some of the jobs, so it should be fast.
    pub fn weight(&self, weight: impl Fn(Index) -> u64 + Send + Sync + 'static) -> &Self {
        *self.weight.borrow_mut() = Some(Box::new(weight));
        self
    }
}

impl Pipeline {
    /// Returns a builder without stages. Add them upstream first.
    pub fn builder<'a>() -> PipelineBuilder<'a> {
        PipelineBuilder { stages: Vec::new(), stop_at: None }
    }

    /// Returns a handle, with which any thread can watch and steer the pipeline.
    #[must_use]
    pub fn handle(&self) -> PipelineHandle {
        PipelineHandle { shared: self.shared.clone() }
    }

    /// Returns the status of each stage.
    #[must_use]
    pub fn status(&self) -> PipelineStatus {
        self.shared.status()
    }

    /// Waits until the first stage has ended, then ends the other stages one by one.
    ///
    /// The first stage ends by its own `stop_at`, a failure, or [`PipelineHandle::request_stop`].
    /// Each other stage ends once it has processed the jobs that were left to it.
    ///
    /// # Errors
    /// [`Error::Stage`] with the first failure. The error in it is [`Error::UpstreamEnded`] if a
    /// consumer outside the pipeline has ended below the index to which the stage goes. On a thread
    /// of one of the consumers it is [`Error::Config`], and all stages are only asked to stop.
    pub fn join(self) -> Result<(), Error> {
        self.end(End::Itself, None)
    }

    /// Stops the first stage, then ends the other stages one by one.
    ///
    /// Each of them first processes the jobs that were left to it, with all retries. That may take
    /// long: see [`stop_within`](Self::stop_within).
    ///
    /// # Errors
    /// The errors of [`join`](Self::join).
    pub fn stop(self) -> Result<(), Error> {
        self.end(End::Now, None)
    }

    /// Stops the pipeline within a time limit.
    ///
    /// The stages have half of the time to process the jobs that were left to them. In the rest of
    /// it all are stopped where they are, as by [`Consumer::stop_within`]. The next life processes
    /// the rest.
    ///
    /// # Errors
    /// The errors of [`join`](Self::join), and [`Error::StopTimeout`] of a stage with running jobs.
    pub fn stop_within(self, limit: Duration) -> Result<(), Error> {
        self.end(End::Now, Some(limit))
    }

    /// Runs until the first stage has processed everything up to and including this index, and all
    /// other stages what comes of it.
    ///
    /// Jobs above the index that have already started are processed too; to go no further than an
    /// index, use [`PipelineBuilder::stop_at`]. If the first stage stops lower, that holds.
    ///
    /// # Errors
    /// The errors of [`join`](Self::join).
    pub fn run_to(self, index: Index) -> Result<(), Error> {
        self.end(End::At(index), None)
    }

    /// Runs like [`run_to`](Self::run_to), up to the head that the first source reports next.
    ///
    /// # Errors
    /// The errors of [`join`](Self::join).
    pub fn run_to_head(self) -> Result<(), Error> {
        self.end(End::Head, None)
    }

    /// Lets go of the remaining stages without waiting for their end.
    fn let_go(&mut self) {
        self.consumers.drain(..).for_each(Consumer::let_go);
    }

    fn end(mut self, end: End, limit: Option<Duration>) -> Result<(), Error> {
        end.check()?;
        let shared = self.shared.clone();
        if shared.is_own_thread() {
            // Dropping `self` asks the stages to stop.
            return Err(ConfigError::OwnThread.into());
        }
        let now = time::now();
        // A limit beyond the range of the clock is no limit.
        let [drained, ended] = [1, 2].map(|halves| limit.and_then(|limit| now.checked_add(limit / 2 * halves)));
        let in_time = (0..shared.stages.len()).all(|nth| {
            shared.lead_to(nth, end);
            shared.wait_ended(nth, drained)
        });
        if !in_time {
            shared.request_stop_of(shared.stages.len());
        }
        let mut errors = Vec::new();
        for (nth, consumer) in std::mem::take(&mut self.consumers).into_iter().enumerate() {
            let outcome = match ended {
                None => consumer.join(),
                Some(ended) => consumer.stop_within(ended.saturating_duration_since(time::now())),
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
            // A job of another stage may wait for the job on this thread.
            self.let_go();
        }
    }
}

impl PipelineHandle {
    /// Returns the status of each stage. It never waits for a source, a store or a job.
    #[must_use]
    pub fn status(&self) -> PipelineStatus {
        self.shared.status()
    }

    /// Asks the first stage to stop. [`Pipeline::join`] then ends the others.
    pub fn request_stop(&self) {
        self.shared.request_stop_of(1);
    }

    /// Returns the handle of the stage with this name.
    #[must_use]
    pub fn stage(&self, name: &str) -> Option<Handle> {
        self.shared.stages.iter().find(|stage| stage.name == name).map(|stage| stage.handle.clone())
    }
}

shows!(Pipeline, of: status = of.status());

shows!(PipelineHandle, of: status = of.status());

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
