//! A queue with a manual clock, and the databases that keep it.
#![allow(missing_docs, clippy::missing_panics_doc, reason = "only tests use it")]

use crossbeam_channel::bounded;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use waterline::Store;
use waterline::testing::FaultyStore;
use waterline_queue::testing::QueueModel;
use waterline_queue::{
    Accept, Capabilities, Clock, ConfigError, JobInfo, JobState, Lease, LimitOf, NewJob, PushOutcome, Queue, QueueError,
};
use waterline_queue::{GroupBuilder, QueueOptions};

pub use crate::sorts::{awaiting, for_each_sort, handlers, in_a_runtime};

pub const MILLI: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);
pub const MINUTE: Duration = Duration::from_secs(60);
pub const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The states of jobs, without that of damaged ones.
pub const STATES: [JobState; 6] =
    [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Finished, JobState::Dead, JobState::Waiting];

/// The wall time at which each test begins.
pub fn noon() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

/// Opens a queue by its name.
pub(crate) type Opener = dyn Fn(&str, QueueOptions) -> Result<Queue, QueueError> + Send + Sync;

/// Begins the next process of a database.
pub(crate) type Beginner = dyn Fn() -> Arc<Opener> + Send + Sync;

/// The database that keeps the queues of a test.
#[derive(Clone)]
pub enum Database {
    /// A store, and a value that lives as long as it does.
    Store(Store, Option<Arc<dyn Any + Send + Sync>>),
    /// A store whose process can die.
    Disk(Arc<FaultyStore>),
    Model(QueueModel),
    /// A database that a user of the suite brings.
    Other(Arc<Opener>),
    /// The same for one whose process can die: the second call begins the next process.
    Mortal(Arc<Opener>, Arc<Beginner>),
}

impl Database {
    /// Opens a queue of this database.
    ///
    /// # Errors
    /// Those of [`Queue::open`].
    pub fn open(&self, name: &str, options: QueueOptions) -> Result<Queue, QueueError> {
        match self {
            Self::Store(store, _) => Queue::open(store, name, options),
            Self::Disk(disk) => Queue::open(&disk.store(), name, options),
            Self::Model(model) => model.open(name, options),
            Self::Other(open) | Self::Mortal(open, _) => open(name, options),
        }
    }

    /// Returns the database as the next process finds it; `None` if the process cannot die.
    ///
    /// # Errors
    /// Those of the store that the next process opens.
    pub fn next_life(&self) -> Result<Option<Self>, waterline::Error> {
        Ok(match self {
            Self::Disk(disk) => Some(Self::Disk(Arc::new(disk.after_crash()?))),
            Self::Model(model) => Some(Self::Model(model.after_crash())),
            Self::Mortal(_, begin) => Some(Self::Mortal(begin(), Arc::clone(begin))),
            Self::Store(..) | Self::Other(_) => None,
        })
    }

    /// True if its process can die.
    pub fn is_mortal(&self) -> bool {
        !matches!(self, Self::Store(..) | Self::Other(_))
    }

    pub fn group(&self) -> GroupBuilder {
        let database = self.clone();
        GroupBuilder::over(move |name, options| database.open(name, options))
    }
}

impl From<&Store> for Database {
    fn from(store: &Store) -> Self {
        Self::Store(store.clone(), None)
    }
}

impl From<&Self> for Database {
    fn from(database: &Self) -> Self {
        database.clone()
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").finish_non_exhaustive()
    }
}

/// Makes the databases of a suite, each of them empty.
pub(crate) struct Benches<'a> {
    pub(super) make: Box<dyn Fn() -> Database + 'a>,
    /// How many calls each case of random calls makes, and their seed.
    pub(super) calls: u64,
    pub(super) seed: u64,
}

impl Benches<'_> {
    pub(super) fn database(&self) -> Database {
        (self.make)()
    }

    pub(super) fn bench(&self) -> Bench {
        self.bench_with(QueueOptions::default())
    }

    pub(super) fn bench_with(&self, options: QueueOptions) -> Bench {
        Bench::over(self.database(), &Clock::manual(noon()), options)
    }
}

/// A queue, and the manual clock that a test moves.
#[derive(Debug)]
pub struct Bench {
    pub queue: Queue,
    pub clock: Clock,
    pub database: Database,
    pub options: QueueOptions,
}

/// More than anything takes on the slowest machine. Only a failing test waits for it.
pub const LONG: Duration = Duration::from_secs(60);
pub const HOUR: Duration = Duration::from_secs(3600);

/// Waits until a condition is true, and panics if it never is.
#[track_caller]
pub fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_true() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        rest();
    }
}

/// Runs this on a thread of its own, and panics if it does not end.
#[track_caller]
pub fn ends<R: Send + 'static>(what: &str, run: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, is_done) = bounded(1);
    std::thread::spawn(move || {
        let _ = done.send(run());
    });
    is_done.recv_timeout(LONG).unwrap_or_else(|_| panic!("{what} does not end"))
}

/// Lets other threads run for a moment.
///
/// A loop of yields would take minutes on a busy machine, since each of them hands a whole time
/// slice to another process.
pub fn rest() {
    std::thread::park_timeout(Duration::from_micros(20));
}

/// Opens the queue `q`, whose last handle the writer may hold a moment longer.
pub fn open_anew(database: impl Into<Database>, options: &QueueOptions) -> Queue {
    open_named(&database.into(), "q", options)
}

/// Does the same with the queue of this name.
pub fn open_named(database: &Database, name: &str, options: &QueueOptions) -> Queue {
    loop {
        match database.open(name, options.clone()) {
            Err(QueueError::Config(ConfigError::QueueOptions { .. })) => std::thread::yield_now(),
            queue => return queue.unwrap(),
        }
    }
}

#[track_caller]
pub fn until(queue: &Queue, id: &str, wanted: JobState) {
    eventually(&format!("{id} to be {wanted:?}"), || queue.state(id).unwrap() == Some(wanted));
}

/// Loses a lease without giving its job back, as a process that dies does.
pub fn leak<T>(value: T) {
    let _ = std::mem::ManuallyDrop::new(value);
}

pub fn job(id: &str) -> NewJob {
    NewJob::new("k", &1).unwrap().id(id)
}

/// A job with this payload.
pub fn with(id: &str, payload: u32) -> NewJob {
    NewJob::new("k", &payload).unwrap().id(id)
}

impl Bench {
    /// Opens the queue `q` in this store.
    pub fn on(store: Store, clock: &Clock, options: QueueOptions) -> Self {
        Self::over(Database::Store(store, None), clock, options)
    }

    pub fn over(database: Database, clock: &Clock, options: QueueOptions) -> Self {
        let options = options.clock(clock.clone());
        let queue = database.open("q", options.clone()).unwrap();
        Self { queue, clock: clock.clone(), database, options }
    }

    /// Returns the store, for tests that need one.
    pub fn store(&self) -> Store {
        match &self.database {
            Database::Store(store, _) => store.clone(),
            Database::Disk(disk) => disk.store(),
            Database::Model(_) | Database::Other(_) | Database::Mortal(..) => {
                panic!("this test needs a store: run it with on_store")
            }
        }
    }

    pub fn in_memory(options: QueueOptions) -> Self {
        Self::on(Store::in_memory(), &Clock::manual(noon()), options)
    }

    /// Returns the queue and its clock, for threads and handlers.
    pub fn handles(&self) -> (Queue, Clock) {
        (self.queue.clone(), self.clock.clone())
    }

    pub fn push(&self, job: NewJob) -> PushOutcome {
        self.queue.push(job).unwrap().outcome
    }

    pub fn info(&self, id: &str) -> JobInfo {
        self.queue.get(id).unwrap().unwrap_or_else(|| panic!("there is no {id}"))
    }

    pub fn state(&self, id: &str) -> Option<JobState> {
        self.queue.state(id).unwrap()
    }

    pub fn payload(&self, id: &str) -> u32 {
        self.info(id).payload().unwrap()
    }

    pub fn accept(&self) -> Option<Lease> {
        self.queue.accept(Accept::new()).unwrap()
    }

    #[track_caller]
    pub fn claim(&self) -> Lease {
        self.accept().expect("a job is ready")
    }

    /// Claims the next job, and asserts that it has this id.
    #[track_caller]
    pub fn take(&self, id: &str) -> Lease {
        let lease = self.accept().unwrap_or_else(|| panic!("{id} is ready"));
        assert_eq!(lease.id(), id);
        lease
    }

    #[track_caller]
    pub fn none(&self) {
        assert_eq!(self.accept().map(|lease| lease.id().to_owned()), None);
    }

    #[track_caller]
    pub fn finish(&self, id: &str) {
        self.take(id).finish(None).unwrap();
    }

    #[track_caller]
    pub fn bury(&self, id: &str) {
        self.take(id).bury("no way").unwrap();
    }

    pub fn states<const N: usize>(&self, ids: [&str; N]) -> [Option<JobState>; N] {
        ids.map(|id| self.state(id))
    }

    pub fn can(&self) -> Capabilities {
        self.queue.capabilities()
    }

    /// Asserts which jobs limits hold, if the queue shows that.
    #[track_caller]
    pub fn assert_held<const N: usize>(&self, expected: [(&str, LimitOf); N]) {
        if self.can().names_limits {
            assert_eq!(self.held(), expected.map(|(id, limit)| (id.to_owned(), limit)));
        }
    }

    /// Returns the jobs that limits hold, each with that limit.
    pub fn held(&self) -> Vec<(String, LimitOf)> {
        let ready = self.queue.list(JobState::Ready, None, usize::MAX).unwrap();
        ready.into_iter().filter_map(|job| Some((job.id, job.held_by?))).collect()
    }

    /// Returns the number of scheduled, ready and waiting jobs.
    pub fn waiting(&self) -> u64 {
        let counts = self.queue.counts();
        counts.scheduled + counts.ready + counts.waiting
    }

    pub fn meta(&self, id: &str) -> serde_json::Value {
        serde_json::json!(self.info(id).meta)
    }

    /// Moves the clock, and lets the queue promote and expire jobs. None may be ready then.
    #[track_caller]
    pub fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.none();
    }

    /// Pushes a job and claims it.
    pub fn running(&self, id: &str) -> Lease {
        self.push(job(id));
        let lease = self.claim();
        assert_eq!(lease.id(), id);
        lease
    }

    pub fn finished(&self, id: &str) {
        self.running(id).finish(None).unwrap();
    }

    /// A bench whose process can die.
    pub fn on_disk(disk: FaultyStore, clock: &Clock, options: QueueOptions) -> Self {
        Self::over(Database::Disk(Arc::new(disk)), clock, options)
    }

    pub fn on_model(clock: &Clock, options: QueueOptions) -> Self {
        Self::over(Database::Model(QueueModel::new()), clock, options)
    }

    /// Returns the queue as another process reads it; `None` unless the bench is on a disk.
    pub fn beside(&self) -> Option<Queue> {
        let Database::Disk(disk) = &self.database else { return None };
        let store = disk.store_with(&Store::options().read_only());
        Some(Queue::open(&store, self.queue.name(), self.options.clone()).unwrap())
    }

    /// Returns the bench of the next process, while the old one may still be in use.
    #[must_use]
    pub fn next_life(&self) -> Self {
        let next = self.database.next_life().unwrap();
        Self::over(next.expect("this process can die"), &self.clock, self.options.clone())
    }

    /// Closes the queue, which must have no lease, and opens it with the bench's options.
    pub fn reopen(&mut self) {
        let name = self.queue.name().to_owned();
        let other = self.database.open("while the queue is closed", QueueOptions::default()).unwrap();
        // The old queue is closed before the new one reads what is stored.
        drop(std::mem::replace(&mut self.queue, other));
        self.queue = open_named(&self.database, &name, &self.options);
    }

    #[must_use]
    pub fn reopened_with(mut self, options: QueueOptions) -> Self {
        self.options = options;
        self.reopen();
        self
    }

    /// Ends the process, and starts it again after this time.
    #[must_use]
    pub fn restart_after(mut self, time: Duration) -> Self {
        self.clock.advance(time);
        self.reopen();
        self
    }

    /// Claims and finishes all ready jobs, and returns their ids.
    pub fn claim_all(&self) -> Vec<String> {
        std::iter::from_fn(|| self.accept())
            .map(|mut lease| {
                let id = lease.id().to_owned();
                lease.finish(None).unwrap();
                id
            })
            .collect()
    }
}
