//! The modes of a consumer: how to start one in each with the same jobs, and what they have done.

use crate::database::{Database, Engine};
use crate::{Place, a_store, numbers};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use waterline::{
    BoxError, Builder, Consumer, Done, Effects, Error, Index, Job, Jobs, MemoryJobs, Progress, Store, StoreProgress,
    Table,
};

/// A way to run the jobs of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Direct,
    Deferred,
    /// Deferred, with a token that is used on a thread of the test's own.
    Handed,
    Async,
    Ordered,
    /// Ordered, and it is the sink that runs the test's job.
    Sunk,
    Batched,
    Transactional,
    BatchedTransactional,
    Writing,
    /// Writing, and it is the write that runs the test's job.
    Written,
    /// Writing with an engine that keeps the watermark alone.
    InOrder,
    WrittenInOrder,
    /// The same with jobs that are futures.
    OrderedAsync,
    SunkAsync,
    TransactionalAsync,
    WritingAsync,
}

impl Mode {
    pub const ALL: &[Self] = &[
        Self::Direct,
        Self::Deferred,
        Self::Handed,
        #[cfg(feature = "tokio")]
        Self::Async,
        Self::Ordered,
        Self::Sunk,
        Self::Batched,
        Self::Transactional,
        Self::BatchedTransactional,
        Self::Writing,
        Self::Written,
        Self::InOrder,
        Self::WrittenInOrder,
        #[cfg(feature = "tokio")]
        Self::OrderedAsync,
        #[cfg(feature = "tokio")]
        Self::SunkAsync,
        #[cfg(feature = "tokio")]
        Self::TransactionalAsync,
        #[cfg(feature = "tokio")]
        Self::WritingAsync,
    ];

    /// Whether the job runs in a user's transaction.
    #[must_use]
    pub fn is_written(self) -> bool {
        matches!(self, Self::Written | Self::WrittenInOrder)
    }

    /// Whether it hands results over in index order, and a result without a turn is not awaited.
    #[must_use]
    pub fn is_ordered(self) -> bool {
        matches!(self, Self::Ordered | Self::OrderedAsync)
    }

    /// Whether the sink runs the job.
    #[must_use]
    pub fn is_sunk(self) -> bool {
        matches!(self, Self::Sunk | Self::SunkAsync)
    }

    #[must_use]
    pub fn is_async(self) -> bool {
        matches!(
            self,
            Self::Async | Self::OrderedAsync | Self::SunkAsync | Self::TransactionalAsync | Self::WritingAsync
        )
    }

    #[must_use]
    pub fn is_batched(self) -> bool {
        matches!(self, Self::Batched | Self::BatchedTransactional)
    }

    /// Whether its progress is in a database of the user, and not in a store.
    #[must_use]
    pub fn is_in_database(self) -> bool {
        matches!(self, Self::Writing | Self::WritingAsync | Self::InOrder) || self.is_written()
    }

    /// Whether what a job changes is written together with the fact that it is done.
    #[must_use]
    pub fn has_effects(self) -> bool {
        self.is_in_database()
            || matches!(self, Self::Transactional | Self::TransactionalAsync | Self::BatchedTransactional)
    }

    /// Whether the timeout ends an attempt that holds a thread. In the other modes the attempt is
    /// told, and its result counts.
    #[must_use]
    pub fn expires(self) -> bool {
        matches!(self, Self::Deferred | Self::Handed)
    }

    /// How many jobs run beside each other if four may be in flight: a batch runs its three jobs
    /// one after the other, and a sink or a transaction has only one.
    #[must_use]
    pub fn beside(self) -> usize {
        match self {
            Self::Batched | Self::BatchedTransactional => 2,
            Self::Sunk | Self::SunkAsync | Self::Written | Self::WrittenInOrder => 1,
            _ => 4,
        }
    }
}

/// An attempt at a job.
pub struct Attempt<'a> {
    pub index: Index,
    pub attempt: u32,
    job: Job<u64>,
    token: Option<&'a Done>,
}

impl Attempt<'_> {
    /// Whether it is told to end, on any thread.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.token.map_or_else(|| self.job.is_stopping(), Done::is_stopping)
    }
}

type Run = Arc<dyn Fn(&Attempt<'_>) -> Result<(), BoxError> + Send + Sync>;

/// What the jobs of all lives did.
#[derive(Default)]
pub struct Seen {
    running: BTreeSet<Index>,
    /// The most that ran at once.
    pub most: usize,
    /// The jobs that began while they ran.
    pub twice: Vec<Index>,
    /// With how many other jobs each ran last.
    pub others: BTreeMap<Index, usize>,
    /// The jobs that succeeded, in this order, in the modes without effects.
    pub done: Vec<Index>,
}

/// The job of a test, watched.
#[derive(Clone)]
struct Work {
    run: Run,
    seen: Arc<Mutex<Seen>>,
}

/// Jobs that run. Dropped when they end.
struct Running<'w>(&'w Mutex<Seen>, Vec<Index>);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut seen = self.0.lock();
        self.1.iter().for_each(|index| _ = seen.running.remove(index));
    }
}

impl Work {
    /// Runs these jobs together.
    fn run(&self, jobs: &[Job<u64>], token: Option<&Done>) -> Result<(), BoxError> {
        let indices: Vec<Index> = jobs.iter().map(|job| job.index).collect();
        let _running = {
            let seen = &mut *self.seen.lock();
            for index in &indices {
                seen.others.insert(*index, jobs.len() - 1);
                if !seen.running.insert(*index) {
                    seen.twice.push(*index);
                }
            }
            seen.most = seen.most.max(seen.running.len());
            Running(&self.seen, indices)
        };
        let attempt = |job: &Job<u64>| Attempt { index: job.index, attempt: job.attempt, job: *job, token };
        jobs.iter().try_for_each(|job| (self.run)(&attempt(job)))
    }

    fn done(&self, jobs: &[Job<u64>]) {
        self.seen.lock().done.extend(jobs.iter().map(|job| job.index));
    }

    fn run_all(&self, jobs: &[Job<u64>]) -> Result<(), BoxError> {
        self.run(jobs, None).map(|()| self.done(jobs))
    }

    /// Runs a deferred job.
    fn report(&self, job: Job<u64>, done: Done) {
        match self.run(&[job], Some(&done)).map(|()| self.done(&[job])) {
            Ok(()) => done.complete(),
            Err(error) => done.fail(error),
        }
    }
}

/// Where the consumers of a mode live, one after the other.
pub trait Home {
    type Progress: Progress;

    fn mode(&self) -> Mode;
    fn seen(&self) -> &Mutex<Seen>;
    fn progress(&self) -> Self::Progress;
    /// Returns the saved watermark.
    fn last_processed(&self) -> Option<Index>;
    /// Returns the parked jobs with the number of their attempts.
    fn parked(&self) -> Vec<(Index, u32)>;
    /// Returns how often each job was done.
    fn done(&self) -> BTreeMap<Index, i64>;

    /// # Errors
    /// Those of the start.
    fn start<J: Jobs<Job = u64>>(
        &self,
        builder: Builder<J, Self::Progress>,
        run: impl Fn(&Attempt<'_>) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Result<Consumer, Error>;

    /// Returns a consumer of the jobs 0 to `jobs - 1`, of which four may be in flight.
    fn builder(&self, jobs: u64) -> Builder<MemoryJobs<u64>, Self::Progress> {
        Consumer::builder(numbers(jobs), self.progress()).max_processing(4)
    }

    /// Asserts that exactly these jobs were done, each once.
    #[track_caller]
    fn assert_done(&self, jobs: impl IntoIterator<Item = Index>) {
        assert_eq!(self.done(), jobs.into_iter().map(|index| (index, 1)).collect());
    }
}

/// Requests what a job changes before it runs.
fn effects_before(rows: &Table, marks: &Table, job: &Job<u64>, effects: &mut Effects) -> Result<(), Error> {
    effects.add(rows, job.index.to_be_bytes(), 1)?;
    effects.put(marks, job.index.to_be_bytes(), "")
}

#[cfg(feature = "tokio")]
fn runtime_of(mode: Mode) -> Option<tokio::runtime::Runtime> {
    mode.is_async().then(|| tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap())
}

/// An attempt becomes a task. The second one is ready at once, on a thread of the consumer.
#[cfg(feature = "tokio")]
async fn begin(job: &Job<u64>) {
    if job.attempt != 2 {
        tokio::task::yield_now().await;
    }
}

/// The modes whose progress is in the store of the run.
pub struct InStore {
    mode: Mode,
    pub store: Store,
    _place: Place,
    seen: Arc<Mutex<Seen>>,
    #[cfg(feature = "tokio")]
    runtime: Option<tokio::runtime::Runtime>,
}

impl InStore {
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        let (store, place) = a_store();
        Self {
            mode,
            store,
            _place: place,
            seen: Arc::default(),
            #[cfg(feature = "tokio")]
            runtime: runtime_of(mode),
        }
    }

    fn rows(&self) -> Table {
        self.store.table("rows").unwrap()
    }

    /// Holds the marks of jobs that have begun and not ended.
    fn marks(&self) -> Table {
        self.store.table("marks").unwrap()
    }

    #[cfg(feature = "tokio")]
    fn start_async<J: Jobs<Job = u64>>(
        &self,
        builder: Builder<J, StoreProgress>,
        work: Work,
    ) -> Result<Consumer, Error> {
        let (runtime, mode, rows, marks) =
            (self.runtime.as_ref().unwrap().handle(), self.mode, self.rows(), self.marks());
        let sink = work.clone();
        match self.mode {
            Mode::TransactionalAsync => builder.start_transactional_async(runtime, move |job, mut effects| {
                let (work, rows, marks) = (work.clone(), rows.clone(), marks.clone());
                async move {
                    effects_before(&rows, &marks, &job, &mut effects)?;
                    begin(&job).await;
                    work.run(&[job], None)?;
                    effects.delete(&marks, job.index.to_be_bytes())?;
                    Ok(effects)
                }
            }),
            Mode::OrderedAsync | Mode::SunkAsync => builder.start_ordered_async(
                runtime,
                move |job| {
                    let work = work.clone();
                    async move {
                        begin(&job).await;
                        if mode == Mode::OrderedAsync {
                            work.run(&[job], None)?;
                        }
                        Ok(job)
                    }
                },
                move |_, job| match mode {
                    Mode::OrderedAsync => {
                        sink.done(&[job]);
                        Ok(())
                    }
                    _ => sink.run_all(&[job]),
                },
            ),
            _ => builder.start_async(runtime, move |job| {
                let work = work.clone();
                async move {
                    begin(&job).await;
                    work.run_all(&[job])
                }
            }),
        }
    }

    #[cfg(not(feature = "tokio"))]
    fn start_async<J: Jobs<Job = u64>>(&self, _: Builder<J, StoreProgress>, _: Work) -> Result<Consumer, Error> {
        unreachable!("there are no futures without tokio")
    }

    /// Returns the effects of jobs, which are made before they run, and what they end with.
    fn effects(&self) -> impl Fn(&Work, &[Job<u64>], &mut Effects) -> Result<(), BoxError> + Send + Sync + use<> {
        let (rows, marks) = (self.rows(), self.marks());
        move |work, jobs, effects| {
            jobs.iter().try_for_each(|job| effects_before(&rows, &marks, job, effects))?;
            work.run(jobs, None)?;
            jobs.iter().try_for_each(|job| Ok(effects.delete(&marks, job.index.to_be_bytes())?))
        }
    }
}

impl Home for InStore {
    type Progress = StoreProgress;

    fn mode(&self) -> Mode {
        self.mode
    }

    fn seen(&self) -> &Mutex<Seen> {
        &self.seen
    }

    fn progress(&self) -> StoreProgress {
        self.store.progress("p")
    }

    fn last_processed(&self) -> Option<Index> {
        self.progress().last_processed().unwrap()
    }

    fn parked(&self) -> Vec<(Index, u32)> {
        self.store.parked("p").unwrap().iter().map(|parked| (parked.index, parked.attempts)).collect()
    }

    fn done(&self) -> BTreeMap<Index, i64> {
        let mut times = BTreeMap::new();
        if self.mode.has_effects() {
            assert_eq!(self.marks().iter().count(), 0, "a mark is deleted in the write that puts it");
            let number = |bytes: Vec<u8>| <[u8; 8]>::try_from(bytes).unwrap();
            let rows = self.rows();
            let row = |(key, value)| (u64::from_be_bytes(number(key)), i64::from_be_bytes(number(value)));
            return rows.iter().map(|pair| row(pair.unwrap())).collect();
        }
        self.seen.lock().done.iter().for_each(|index| *times.entry(*index).or_default() += 1);
        times
    }

    fn start<J: Jobs<Job = u64>>(
        &self,
        builder: Builder<J, StoreProgress>,
        run: impl Fn(&Attempt<'_>) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Result<Consumer, Error> {
        let (work, effects) = (Work { run: Arc::new(run), seen: self.seen.clone() }, self.effects());
        match self.mode {
            Mode::Direct => builder.start(move |job| work.run_all(&[job])),
            Mode::Deferred => builder.threads(4).start_deferred(move |job, done| work.report(job, done)),
            Mode::Handed => builder.start_deferred(move |job, done| {
                let work = work.clone();
                std::thread::spawn(move || work.report(job, done));
            }),
            Mode::Async | Mode::OrderedAsync | Mode::SunkAsync | Mode::TransactionalAsync => {
                self.start_async(builder, work)
            }
            Mode::Ordered => {
                let sink = work.clone();
                builder.start_ordered(
                    move |job| work.run(&[job], None).map(|()| job),
                    move |_, job| {
                        sink.done(&[job]);
                        Ok(())
                    },
                )
            }
            Mode::Sunk => builder.start_ordered(Ok, move |_, job| work.run_all(&[job])),
            Mode::Batched => builder.start_batched(3, Duration::ZERO, move |jobs| work.run_all(&jobs)),
            Mode::Transactional => builder.start_transactional(move |job, changes| effects(&work, &[job], changes)),
            Mode::BatchedTransactional => {
                let run = move |jobs: Vec<_>, changes: &mut _| effects(&work, &jobs, changes);
                builder.start_batched_transactional(3, Duration::ZERO, run)
            }
            Mode::Writing | Mode::Written | Mode::InOrder | Mode::WrittenInOrder | Mode::WritingAsync => {
                unreachable!("see InDatabase")
            }
        }
    }
}

/// The modes with a database of the user.
pub struct InDatabase {
    mode: Mode,
    database: Database,
    seen: Arc<Mutex<Seen>>,
    #[cfg(feature = "tokio")]
    runtime: Option<tokio::runtime::Runtime>,
}

impl InDatabase {
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            database: Database::default(),
            seen: Arc::default(),
            #[cfg(feature = "tokio")]
            runtime: runtime_of(mode),
        }
    }
}

impl Home for InDatabase {
    type Progress = Engine;

    fn mode(&self) -> Mode {
        self.mode
    }

    fn seen(&self) -> &Mutex<Seen> {
        &self.seen
    }

    fn progress(&self) -> Engine {
        match self.mode {
            Mode::InOrder | Mode::WrittenInOrder => self.database.in_order(),
            _ => self.database.engine(),
        }
    }

    fn last_processed(&self) -> Option<Index> {
        self.database.content().saved?.last_processed
    }

    fn parked(&self) -> Vec<(Index, u32)> {
        self.database.content().parked()
    }

    fn done(&self) -> BTreeMap<Index, i64> {
        self.database.content().rows.into_iter().map(|(index, times)| (index, times as i64)).collect()
    }

    fn start<J: Jobs<Job = u64>>(
        &self,
        builder: Builder<J, Engine>,
        run: impl Fn(&Attempt<'_>) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Result<Consumer, Error> {
        let work = Work { run: Arc::new(run), seen: self.seen.clone() };
        #[cfg(feature = "tokio")]
        if let Some(runtime) = &self.runtime {
            let run = move |job: Job<u64>| {
                let work = work.clone();
                async move {
                    begin(&job).await;
                    work.run(&[job], None).map(|()| job)
                }
            };
            return builder.start_writing_async(runtime.handle(), run, |tx, results| {
                tx.write(results);
                Ok(())
            });
        }
        let (in_run, in_write) = if self.mode.is_written() { (None, Some(work)) } else { (Some(work), None) };
        builder.start_writing(
            move |job| in_run.iter().try_for_each(|work| work.run(&[job], None)).map(|()| job),
            move |tx, results| {
                tx.write(results);
                let work = in_write.iter().flat_map(|work| results.iter().map(move |(_, job)| work.run(&[*job], None)));
                work.collect()
            },
        )
    }
}
