//! A program with something of everything, in a state that lasts.

use parking_lot::Mutex;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use waterline::{BoxError, Consumer, Jobs, MemoryJobs, OnExhausted, Pipeline, Retry, Store};
use waterline_queue::{Accept, Every, Lease, Limit, NewJob, Outcome, Queue, QueueOptions, Rate, Runner};
use waterline_ui::Page;

pub(crate) const TOKEN: &str = "the token of the tests";

/// Texts that do harm if they are not escaped: in a title, and in errors of streams and queues.
const HOSTILE: [&str; 3] = [" <of the tests>", ": <script>alert('no')</script>", ": <img src=x onerror=alert(1)>"];

pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) pipeline: Pipeline,
    pub(crate) blocks: Consumer,
    pub(crate) mails: Queue,
    pub(crate) thumbs: Queue,
    title: String,
    runner: Runner,
    _leases: Vec<Lease>,
    /// The jobs of `blocks` that fail.
    pub(crate) broken: Arc<Mutex<Vec<u64>>>,
}

#[track_caller]
pub(crate) fn until(so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < Duration::from_secs(90), "it never came");
        std::thread::yield_now();
    }
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(HOSTILE)
    }

    /// The program in the screenshots of the documentation.
    pub(crate) fn harmless() -> Self {
        Self::with([""; 3])
    }

    fn with([title, refused, bounced]: [&'static str; 3]) -> Self {
        let store = Store::in_memory();
        let broken = Arc::new(Mutex::new(vec![40, 41, 77, 300, 301, 302]));
        let blocks = blocks(&store, broken.clone(), refused);
        let pipeline = pipeline(&store);
        let (mails, leases) = mails(&store, bounced);
        let (thumbs, runner) = thumbs(&store);
        let handle = blocks.handle();
        until(|| handle.status().parked == 2 && handle.wait_for(76, Duration::from_secs(1)));
        until(|| handle.strip(10).retrying == 4);
        let title = format!("indexer{title}");
        Self { store, pipeline, blocks, mails, thumbs, title, runner, _leases: leases, broken }
    }

    pub(crate) fn page(&self) -> Page {
        Page::new(&self.store)
            .watch(self.blocks.handle())
            .watch(self.pipeline.handle())
            .queue(&self.mails)
            .queue(&self.thumbs)
            .runner(&self.runner.handle())
            .title(&self.title)
    }
}

/// Jobs 40 and 41 are parked, and the other broken jobs are retried for hours.
fn blocks(store: &Store, broken: Arc<Mutex<Vec<u64>>>, refused: &'static str) -> Consumer {
    let jobs: MemoryJobs<u64> = (0..400).collect();
    Consumer::builder(jobs, store.progress("blocks"))
        .max_processing(4)
        .max_search_ahead(10_000)
        .retry(Retry::fixed(Duration::from_secs(7_200)).max_attempts(9))
        .on_exhausted(OnExhausted::Park { budget: 100 })
        .start(move |job| {
            if !broken.lock().contains(&job.index) {
                return Ok(());
            }
            let error: BoxError = format!("the node refused block {}{refused}", job.index).into();
            Err(if job.index < 50 { waterline::Failure::permanent(error).into() } else { error })
        })
        .unwrap()
}

/// The stage `parse` hangs at job 20, which holds up `store`.
fn pipeline(store: &Store) -> Pipeline {
    let jobs: MemoryJobs<u64> = (0..1_000).collect();
    let (parsed, stored) = (jobs.clone(), jobs.clone());
    let of = |name: &str| store.progress(name);
    Pipeline::builder()
        .stage("fetch", |stage| stage.consumer(jobs, of("fetch")).start(|_| Ok(())))
        .stage("parse", |stage| {
            let source = parsed.gated_by(stage.after("fetch")?);
            let retry = Retry::fixed(Duration::from_secs(7_200));
            stage.consumer(source, of("parse")).max_search_ahead(100).retry(retry).start(|job| match job.index {
                20 => Err("the block has no header".into()),
                _ => Ok(()),
            })
        })
        .stage("store", |stage| stage.consumer(stored.gated_by(stage.after("parse")?), of("store")).start(|_| Ok(())))
        .start()
        .unwrap()
}

/// A queue without a runner: some of its jobs are with workers, some are dead.
fn mails(store: &Store, bounced: &str) -> (Queue, Vec<Lease>) {
    let options = QueueOptions::default()
        .retry(Retry::fixed(Duration::from_secs(3_600)))
        .limit(Limit::kind("welcome").at_once(4).rate(Rate::new(10, Duration::from_secs(60)).burst(10)))
        .limit(Limit::each_key().at_once(2));
    let queue = Queue::open(store, "mail", options).unwrap();
    let welcome = |n: u32| {
        NewJob::new("welcome", &json!({"to": format!("ann{n}@example.org"), "text": "<b>hello</b>", "number": n}))
            .unwrap()
    };
    queue.push_all((0..6).map(|n| welcome(n).id(format!("dead/{n}")))).unwrap();
    for _ in 0..6 {
        let mut lease = queue.accept(Accept::new().timeout(Duration::from_secs(60))).unwrap().unwrap();
        lease.bury(format!("550 no such mailbox{bounced}")).unwrap();
    }
    queue.push_all((0..120).map(|n| welcome(n).id(format!("mail/{n}")).key(format!("tenant {}", n % 7)))).unwrap();
    let mut first = queue.accept(Accept::new().timeout(Duration::from_secs(60))).unwrap().unwrap();
    first.progress(0.4, "2 of 5 recipients").unwrap();
    let second = queue.accept(Accept::new().timeout(Duration::from_secs(60))).unwrap().unwrap();
    queue
        .push(welcome(900).id("tomorrow").delay(Duration::from_secs(86_400)).meta("asked by", "ann").unwrap())
        .unwrap();
    queue.push(NewJob::new("report", &json!({"of": "tomorrow"})).unwrap().id("report").after(["tomorrow"])).unwrap();
    (queue, vec![first, second])
}

/// A queue with a runner that has done its jobs.
fn thumbs(store: &Store) -> (Queue, Runner) {
    let queue = Queue::open(store, "thumbnails", QueueOptions::default()).unwrap();
    queue
        .periodic("sweep", Every::hours(1).anchor(SystemTime::UNIX_EPOCH), NewJob::new("sweep", &()).unwrap())
        .start()
        .unwrap();
    let runner = Runner::builder(&queue)
        .on("png", |_job, _n: u32| Ok(Outcome::Done))
        .on("sweep", |_job, ()| Ok(Outcome::Done))
        .max_processing(3)
        .start()
        .unwrap();
    queue.push_all((0..200_u32).map(|n| NewJob::new("png", &n).unwrap())).unwrap();
    until(|| queue.counts().ready == 0 && queue.counts().running == 0);
    (queue, runner)
}
