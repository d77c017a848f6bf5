//! A queue with a clock that the test moves.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use waterline::queue::{
    Accept, Clock, JobInfo, JobState, Lease, LimitOf, NewJob, PushOutcome, Queue, QueueError, QueueOptions,
};
use waterline::testing::{FaultyStore, QueueModel};
use waterline::{ConfigError, Error, Store};

pub const MILLI: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);
pub const MINUTE: Duration = Duration::from_secs(60);
pub const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The time on the wall at which each test begins.
pub fn noon() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

/// The database that keeps the queues of a test.
#[derive(Clone)]
pub enum Database {
    Store(Store),
    Model(QueueModel),
}

impl Database {
    /// Opens a queue of it.
    ///
    /// # Errors
    /// Those of [`Queue::open`].
    pub fn open(&self, name: &str, options: QueueOptions) -> Result<Queue, QueueError> {
        match self {
            Self::Store(store) => Queue::open(store, name, options),
            Self::Model(model) => model.open(name, options),
        }
    }
}

impl From<&Store> for Database {
    fn from(store: &Store) -> Self {
        Self::Store(store.clone())
    }
}

impl From<&Self> for Database {
    fn from(database: &Self) -> Self {
        database.clone()
    }
}

/// A queue, with the clock that the test moves.
pub struct Bench {
    pub queue: Queue,
    pub clock: Clock,
    pub database: Database,
    pub options: QueueOptions,
    /// The disk of a bench whose process can die.
    disk: Option<FaultyStore>,
    /// The directory of the store, if it has one.
    _place: Option<tempfile::TempDir>,
}

/// Runs a test in which the process dies while jobs run, in memory.
pub fn in_lives(test: impl Fn(Bench)) {
    test(Bench::on_disk(FaultyStore::new().unwrap(), &Clock::manual(noon()), QueueOptions::default()));
}

/// Runs a test on the store of this build (see [`a_store`](crate::a_store)), and on the model.
pub fn on_each(test: impl Fn(Bench)) {
    on_each_with(QueueOptions::default(), test);
}

pub fn on_each_with(options: QueueOptions, test: impl Fn(Bench)) {
    let model = Database::Model(QueueModel::new());
    test(Bench::over(model, &Clock::manual(noon()), options.clone()));
    on_store_with(options, test);
}

/// Runs a test that writes or reads in the store beside the queue.
pub fn on_store(test: impl Fn(Bench)) {
    on_store_with(QueueOptions::default(), test);
}

pub fn on_store_with(options: QueueOptions, test: impl Fn(Bench)) {
    let (store, place) = crate::a_store();
    test(Bench { _place: place, ..Bench::on(store, &Clock::manual(noon()), options) });
}

/// Returns a queue in this store, with a clock that the test moves.
pub fn queue_in(store: &Store, options: QueueOptions) -> (Queue, Clock) {
    let clock = Clock::manual(noon());
    let queue = Queue::open(store, "q", options.clock(clock.clone())).unwrap();
    (queue, clock)
}

/// Opens a queue whose last handle was dropped. The writer may have one for a moment longer.
pub fn open_anew(database: impl Into<Database>, options: &QueueOptions) -> Queue {
    let database = database.into();
    loop {
        match database.open("q", options.clone()) {
            Err(QueueError::Config(ConfigError::QueueOptions { .. })) => std::thread::yield_now(),
            queue => return queue.unwrap(),
        }
    }
}

/// Waits until a job is in this state.
#[track_caller]
pub fn until(queue: &Queue, id: &str, wanted: JobState) {
    super::eventually(&format!("{id} to be {wanted:?}"), || queue.state(id).unwrap() == Some(wanted));
}

/// Loses a lease without giving its job back, as a process does that dies.
pub fn leak<T>(value: T) {
    let _ = std::mem::ManuallyDrop::new(value);
}

/// Makes a call once more if its write has failed. Counts the failures, of which one may be.
pub fn again<T>(failed: &mut u64, mut call: impl FnMut() -> Result<T, QueueError>) -> T {
    loop {
        match call() {
            Ok(answer) => return answer,
            Err(QueueError::Store(Error::Store { .. })) if *failed == 0 => *failed += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
}

pub fn job(id: &str) -> NewJob {
    NewJob::new("k", &1).unwrap().id(id)
}

/// A job with this number as its payload.
pub fn with(id: &str, payload: u32) -> NewJob {
    NewJob::new("k", &payload).unwrap().id(id)
}

impl Bench {
    /// Returns a queue in this store, with this clock.
    pub fn on(store: Store, clock: &Clock, options: QueueOptions) -> Self {
        Self::over(Database::Store(store), clock, options)
    }

    fn over(database: Database, clock: &Clock, options: QueueOptions) -> Self {
        let options = options.clock(clock.clone());
        let queue = database.open("q", options.clone()).unwrap();
        Self { queue, clock: clock.clone(), database, options, disk: None, _place: None }
    }

    /// Returns the store of a test that runs on a store alone.
    ///
    /// # Panics
    /// On the model, which has none.
    pub fn store(&self) -> &Store {
        match &self.database {
            Database::Store(store) => store,
            Database::Model(_) => panic!("this test needs a store: run it with on_store"),
        }
    }

    pub fn in_memory(options: QueueOptions) -> Self {
        Self::on(Store::in_memory(), &Clock::manual(noon()), options)
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

    /// Claims the next job, if one is ready.
    pub fn accept(&self) -> Option<Lease> {
        self.queue.accept(Accept::new()).unwrap()
    }

    #[track_caller]
    pub fn claim(&self) -> Lease {
        self.accept().expect("a job is ready")
    }

    /// Claims the next job, which has this id.
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

    /// Returns the jobs that wait for a place in a limit, each with that limit.
    pub fn held(&self) -> Vec<(String, LimitOf)> {
        let ready = self.queue.list(JobState::Ready, None, usize::MAX).unwrap();
        ready.into_iter().filter_map(|job| Some((job.id, job.held_by?))).collect()
    }

    /// Returns the number of jobs that wait.
    pub fn waiting(&self) -> u64 {
        let counts = self.queue.counts();
        counts.scheduled + counts.ready + counts.waiting
    }

    pub fn meta(&self, id: &str) -> serde_json::Value {
        serde_json::json!(self.info(id).meta)
    }

    /// Lets some time pass, and lets the queue do what it has brought.
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
        let bench = Self::on(disk.store(), clock, options);
        Self { disk: Some(disk), ..bench }
    }

    pub fn on_model(clock: &Clock, options: QueueOptions) -> Self {
        Self::over(Database::Model(QueueModel::new()), clock, options)
    }

    /// Returns the bench after the process has died, whatever still has the old one.
    #[must_use]
    pub fn next_life(&self) -> Self {
        if let Database::Model(model) = &self.database {
            return Self::over(Database::Model(model.after_crash()), &self.clock, self.options.clone());
        }
        let disk = self.disk.as_ref().expect("a bench on a disk").after_crash().unwrap();
        Self::on_disk(disk, &self.clock, self.options.clone())
    }

    /// Closes the queue, which has no lease, and opens it again with the options that the bench has
    /// by now.
    pub fn reopen(&mut self) {
        let other = self.database.open("while the queue is closed", QueueOptions::default()).unwrap();
        // The old one is closed before the new one reads what is stored.
        drop(std::mem::replace(&mut self.queue, other));
        self.queue = open_anew(&self.database, &self.options);
    }

    /// Closes the queue and opens it again with these options.
    #[must_use]
    pub fn reopened_with(mut self, options: QueueOptions) -> Self {
        self.options = options;
        self.reopen();
        self
    }

    /// Ends the process and starts it again, after this time.
    #[must_use]
    pub fn restart_after(mut self, time: Duration) -> Self {
        self.clock.advance(time);
        self.reopen();
        self
    }

    /// Returns the ids of the jobs that can be claimed now, and claims them.
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
