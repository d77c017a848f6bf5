//! What the requests of a page share: consumers, queues, and the thread that samples them.

use crate::failure::Failure;
use crate::parts::{Part, Watched};
use crate::samples::{OfQueue, OfStream, Samples};
use crate::session::{Sessions, Wrong};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};
use waterline::{ConsumerInfo, Handle, PipelineHandle, Status, Store};
use waterline_queue::{Group, JobState, Queue, QueueError, QueueOptions, QueueStatus, RunTimes, RunnerHandle};

/// The time between two samples.
const EVERY: Duration = Duration::from_secs(1);

pub(crate) struct Stream {
    /// Its unique name on the page.
    pub(crate) name: String,
    pub(crate) handle: Handle,
    /// The index of its pipeline, if it is a stage.
    pub(crate) pipeline: Option<usize>,
    pub(crate) samples: Mutex<Samples<OfStream>>,
}

pub(crate) struct QueueRow {
    /// Its unique name on the page.
    pub(crate) name: String,
    pub(crate) queue: Queue,
    /// The index of its group, if that is on the page.
    pub(crate) group: Option<usize>,
    /// The run times when the page began.
    pub(crate) before: BTreeMap<String, RunTimes>,
    pub(crate) samples: Mutex<Samples<OfQueue>>,
}

/// The state of a page that its requests share.
pub(crate) struct Shared {
    store: Option<Store>,
    pub(crate) title: String,
    /// True if it also shows the saved state of consumers that other programs run.
    pub(crate) is_stored: bool,
    pub(crate) streams: Vec<Stream>,
    pub(crate) pipelines: Vec<PipelineHandle>,
    queues: RwLock<Vec<Arc<QueueRow>>>,
    /// The queues of the store that cannot be opened, each with the reason.
    pub(crate) unopened: Mutex<BTreeMap<String, String>>,
    groups: Vec<Group>,
    runners: Vec<RunnerHandle>,
    pub(crate) sessions: Sessions,
    pub(crate) wrong: Wrong,
    /// Ends the sampling thread when it is dropped.
    _sampler: Sender<()>,
}

/// Returns the time in milliseconds since 1970.
pub(crate) fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Returns this name, with a number if it is taken.
fn free_name(name: &str, taken: impl Fn(&str) -> bool) -> String {
    let others = (2..).map(|nth| format!("{name} ({nth})"));
    std::iter::once(name.to_owned()).chain(others).find(|name| !taken(name)).unwrap_or_default()
}

impl Shared {
    /// Returns the store of parked jobs and history.
    pub(crate) fn store(&self) -> Result<&Store, Failure> {
        let none = "this page was made without a store (Page::of), so it has no parked jobs and no history: Page::new takes one";
        self.store.as_ref().ok_or_else(|| Failure::not_found(none))
    }

    pub(crate) fn saved(&self) -> Result<Vec<ConsumerInfo>, waterline::Error> {
        self.store.as_ref().map_or_else(|| Ok(Vec::new()), Store::consumers)
    }

    /// Collects the parts, and starts sampling.
    pub(crate) fn start(store: Option<&Store>, parts: &[Part], title: &str, is_stored: bool) -> Arc<Self> {
        let (sampler, end) = channel();
        let (title, sessions) = (title.to_owned(), Sessions::default());
        let mut shared = Self {
            store: store.cloned(),
            title,
            is_stored,
            streams: Vec::new(),
            pipelines: Vec::new(),
            queues: RwLock::default(),
            unopened: Mutex::default(),
            groups: Vec::new(),
            runners: Vec::new(),
            sessions,
            wrong: Wrong::default(),
            _sampler: sampler,
        };
        parts.iter().for_each(|part| shared.add(part));
        let shared = Arc::new(shared);
        shared.sample();
        let weak = Arc::downgrade(&shared);
        let take = move || {
            while end.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let Some(shared) = Weak::upgrade(&weak) else { return };
                shared.sample();
            }
        };
        if let Err(error) = std::thread::Builder::new().name("wl-samples".to_owned()).spawn(take) {
            tracing::error!(target: "waterline", %error, "the page has no plots and no rates, since their thread cannot be started");
        }
        shared
    }

    fn add(&mut self, part: &Part) {
        match part {
            Part::Watched(Watched::Consumer(handle)) => self.add_stream(&handle.name(), handle, None),
            Part::Watched(Watched::Pipeline(pipeline)) => {
                let place = self.pipelines.len();
                for stage in pipeline.status().stages {
                    if let Some(handle) = pipeline.stage(&stage.name) {
                        self.add_stream(&Some(stage.name), &handle, Some(place));
                    }
                }
                self.pipelines.push(pipeline.clone());
            }
            Part::Watched(Watched::Queue(queue)) => self.add_queue(queue, None),
            Part::Watched(Watched::Group(group)) => {
                let place = self.groups.len();
                self.groups.push(group.clone());
                group.queues().iter().for_each(|queue| self.add_queue(queue, Some(place)));
            }
            Part::Runner(runner) => self.runners.push(runner.clone()),
        }
    }

    fn add_stream(&mut self, name: &Option<String>, handle: &Handle, pipeline: Option<usize>) {
        // A stage may be watched by itself, too.
        if self.streams.iter().any(|stream| stream.handle.as_ref().is_same(handle.as_ref())) {
            return;
        }
        let name = name.as_deref().unwrap_or("unnamed consumer");
        let name = free_name(name, |name| self.streams.iter().any(|stream| stream.name == name));
        self.streams.push(Stream { name, handle: handle.clone(), pipeline, samples: Mutex::default() });
    }

    fn add_queue(&self, queue: &Queue, group: Option<usize>) {
        let name = free_name(queue.name(), |name| self.queue(name).is_some());
        let before = queue.activity().run_times;
        let row = QueueRow { name, queue: queue.clone(), group, before, samples: Mutex::default() };
        self.queues.write().push(Arc::new(row));
    }

    /// Reads what other processes have written, and adds the queues that they have made.
    fn look_anew(&self) -> Result<(), QueueError> {
        let Some(store) = &self.store else { return Ok(()) };
        store.refresh()?;
        // Queues of a writable store are opened by its program, with its own options.
        if !store.is_read_only() {
            return Ok(());
        }
        let known = self.queues();
        let mut unopened = BTreeMap::new();
        for name in Queue::names(store)? {
            if known.iter().all(|row| row.queue.name() != name) {
                match Queue::open(store, &name, QueueOptions::default()) {
                    Ok(queue) => self.add_queue(&queue, None),
                    Err(error) => drop(unopened.insert(name, error.report())),
                }
            }
        }
        *self.unopened.lock() = unopened;
        Ok(())
    }

    /// Samples each name, from counters in memory.
    fn sample(&self) {
        let at = millis(SystemTime::now());
        // It also shows what other processes write.
        if self.is_stored
            && let Err(error) = self.look_anew()
        {
            tracing::warn!(target: "waterline", %error, "the page shows the store as it was, since it cannot be read anew");
        }
        for stream in &self.streams {
            let status = stream.handle.status();
            let Status { head, last_processed, done, .. } = status;
            let (lag, processing) = (head.map(|_| status.lag()), status.processing as u64);
            let sample = OfStream { at, head, last_processed, lag, done, processing };
            stream.samples.lock().add(sample);
        }
        for row in self.queues() {
            let counts = row.queue.counts();
            let waiting = counts.ready + counts.scheduled + counts.waiting;
            let traffic = row.traffic(self.store.as_ref().is_some_and(Store::is_read_only));
            row.samples.lock().add(OfQueue { at, waiting, running: counts.running, traffic });
        }
    }

    /// Returns the status of each of these queues; in a group, as the group has it.
    pub(crate) fn statuses(&self, queues: &[Arc<QueueRow>]) -> Vec<Result<QueueStatus, QueueError>> {
        let of_groups: Vec<_> = self.groups.iter().map(Group::status).collect();
        let status = |row: &Arc<QueueRow>| {
            let of_group = row.group.and_then(|place| of_groups[place].as_ref().ok());
            let of_group = of_group.and_then(|all| all.queues.iter().find(|status| status.queue == row.queue.name()));
            of_group.map_or_else(|| row.queue.status(), |status| Ok(status.clone()))
        };
        queues.iter().map(status).collect()
    }

    /// Returns the name of the queue that runs this job: this one, or another one of its group.
    pub(crate) fn home_of(&self, row: &QueueRow, id: &str) -> String {
        let runs = |other: &QueueRow| matches!(other.queue.state(id), Ok(Some(JobState::Running)));
        let is_beside = |other: &QueueRow| row.group.is_some() && other.group == row.group;
        let found = self.queues().into_iter().find(|other| is_beside(other) && runs(other));
        found.map_or_else(|| row.name.clone(), |other| other.name.clone())
    }

    pub(crate) fn status_of(&self, row: &QueueRow) -> Result<QueueStatus, QueueError> {
        let of_group = row.group.map(|place| self.groups[place].status()).transpose()?;
        let of_group = of_group.and_then(|all| all.queues.into_iter().find(|status| status.queue == row.queue.name()));
        of_group.map_or_else(|| row.queue.status(), Ok)
    }

    pub(crate) fn stream(&self, name: &str) -> Option<&Stream> {
        self.streams.iter().find(|stream| stream.name == name)
    }

    pub(crate) fn queues(&self) -> Vec<Arc<QueueRow>> {
        self.queues.read().clone()
    }

    pub(crate) fn queue(&self, name: &str) -> Option<Arc<QueueRow>> {
        self.queues.read().iter().find(|row| row.name == name).cloned()
    }

    /// Returns the runner of a queue, if it is on the page.
    pub(crate) fn runner_of(&self, row: &QueueRow) -> Option<&RunnerHandle> {
        self.runners.iter().rfind(|runner| runner.queues().iter().any(|name| name == row.queue.name()))
    }
}

impl QueueRow {
    /// True if other processes may have the queue, too, whose traffic is not counted here.
    pub(crate) fn is_shared(&self) -> bool {
        !self.queue.capabilities().one_process
    }

    /// Returns the pushes, starts and ends. Without the runner, a process does not know what starts
    /// and ends elsewhere.
    fn traffic(&self, is_beside: bool) -> [Option<u64>; 3] {
        let activity = self.queue.activity();
        let runs_elsewhere = is_beside || self.is_shared() && activity.slots.is_none() && activity.started == Some(0);
        let of_runner = |count: Option<u64>| count.filter(|_| !runs_elsewhere);
        [activity.pushed.filter(|_| !is_beside), of_runner(activity.started), of_runner(activity.ended)]
    }
}
