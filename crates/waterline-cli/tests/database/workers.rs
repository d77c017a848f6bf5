//! Worker processes: this test program, started again, with a runner, a page of its own, and its
//! log on standard error.

use crate::program::{At, TOKEN};
use crate::server::{Database, PATIENCE, Server};
use crate::url;
use parking_lot::Mutex;
use postgres::{Config, NoTls};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use waterline::{BoxError, Consumer, Index, Jobs};
use waterline_postgres::{PgOptions, PgStore};
use waterline_queue::{NewJob, Outcome, Queue, QueueOptions, Runner};
use waterline_ui::{Page, Watched};

/// The variables that turn a process into a worker: its database, its name, and its kinds.
const URL: &str = "WATERLINE_OUTAGE_URL";
const NAME: &str = "WATERLINE_OUTAGE_NAME";
const KINDS: &str = "WATERLINE_OUTAGE_KINDS";

/// The words before the address of the page.
const SERVED: &str = "the page is at ";

/// The kind of a process that runs a stream with a broken source instead of a queue.
pub(crate) const STREAM: &str = "stream";

/// Short, so that a death is noticed soon.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// The slots of each worker.
pub(crate) const SLOTS: usize = 2;

pub(crate) fn options() -> QueueOptions {
    QueueOptions::default().lease(LEASE).max_crashes(2)
}

/// A worker in a process of its own, until it is dropped.
pub(crate) struct Worker {
    child: Child,
    said: Arc<Mutex<String>>,
    pub(crate) page: At,
}

impl Worker {
    /// Starts a worker of this name for these kinds, and waits until its page is served.
    pub(crate) fn start(database: &Database, server: &Server, name: &str, kinds: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "workers::worker", "--nocapture"])
            .envs([(URL, &*url_at(database, server)), (NAME, name), (KINDS, kinds)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (said, hears) = (Arc::new(Mutex::new(String::new())), BufReader::new(child.stderr.take().unwrap()));
        let keeps = said.clone();
        std::thread::spawn(move || {
            hears.lines().map_while(Result::ok).for_each(|line| *keeps.lock() += &(line + "\n"));
        });
        let mut out = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let page = out.find_map(|line| Some(format!("http://{}", line.split_once(SERVED)?.1)));
        let page = At::url(&page.unwrap_or_else(|| panic!("the worker has ended early: {}", said.lock())));
        // Keep reading what it prints, or it would block on a full pipe.
        std::thread::spawn(move || out.for_each(drop));
        Self { child, said, page }
    }

    pub(crate) fn said(&self) -> String {
        self.said.lock().clone()
    }

    pub(crate) fn has_died(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Kills it, and returns the time of its death.
    pub(crate) fn kill(&mut self) -> Instant {
        self.child.kill().unwrap();
        _ = self.child.wait().unwrap();
        Instant::now()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

pub(crate) fn url_at(database: &Database, server: &Server) -> String {
    url(database, "postgres").replace(&Server::shared().port().to_string(), &server.port().to_string())
}

/// Does nothing as a test. As a process of its own it works until it is killed or its input ends.
#[test]
fn worker() {
    let Ok(url) = std::env::var(URL) else { return };
    tracing::subscriber::set_global_default(Lines).unwrap();
    let config: Config = url.parse().unwrap();
    let options_of_store = PgOptions::new().holder(std::env::var(NAME).unwrap());
    let store = PgStore::connect(config, NoTls, options_of_store).unwrap();
    let kinds = std::env::var(KINDS).unwrap();
    if kinds == STREAM {
        let consumer = Consumer::builder(Down, store.progress("blocks")).standby().start(|_| Ok(())).unwrap();
        let page = Page::of([] as [Watched; 0]).watch(consumer.handle());
        return serve(page);
    }
    let queue = store.queue("mail", options()).unwrap();
    let mut builder = Runner::builder(&queue).max_processing(SLOTS);
    for kind in kinds.split(',') {
        builder = builder.on(kind, |job, ()| Ok(work(job.kind())));
    }
    let _runner = builder.start().unwrap();
    serve(Page::of([Watched::from(&queue)]));
}

fn serve(page: Page) {
    let served = page.token(TOKEN).serve("127.0.0.1:0").unwrap();
    println!("{SERVED}{}", served.addr());
    _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn work(kind: &str) -> Outcome {
    match kind {
        // Kills each process that runs it.
        "poison" => std::process::abort(),
        "hangs" => loop {
            std::thread::park();
        },
        _ => Outcome::Done,
    }
}

/// A source that is down.
struct Down;

impl Jobs for Down {
    type Job = u64;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Err("no route to the node".into())
    }

    fn at_index(&self, _: Index) -> Result<Option<u64>, BoxError> {
        Err("no route to the node".into())
    }
}

/// Writes log lines to standard error.
struct Lines;

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "waterline" && metadata.is_event() && *metadata.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                _ = write!(self.0, " {}={value:?}", field.name());
            }
        }
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        eprintln!("{}", text.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Three workers of one queue, and a handle that pushes to it.
pub(crate) struct Fleet {
    pub(crate) database: Database,
    pub(crate) queue: Queue,
    pub(crate) workers: Vec<Worker>,
    pub(crate) tool: At,
}

impl Fleet {
    pub(crate) fn start(server: &Server, kinds: &str) -> Self {
        let database = server.database();
        let queue = database.store(PgOptions::new()).queue("mail", options()).unwrap();
        let workers = ["w1", "w2", "w3"].map(|name| Worker::start(&database, server, name, kinds)).into();
        let tool = At::postgres(&url_at(&database, server));
        Self { database, queue, workers, tool }
    }

    pub(crate) fn push(&self, kind: &str, id: &str) {
        self.queue.push(NewJob::new(kind, &()).unwrap().id(id)).unwrap();
    }

    /// The tool at the database, and through the page of the last worker.
    pub(crate) fn doctors(&self) -> [(&'static str, &At); 2] {
        let page = &self.workers.last().expect("one is left").page;
        [("the doctor at the database", &self.tool), ("the doctor through the page", page)]
    }

    /// Waits until the doctor says this at the database and through a page, and a worker says it
    /// in its log, each within three seconds of `since`.
    #[track_caller]
    pub(crate) fn says(&self, since: Instant, doctor: &[&str], log: &str) {
        for (who, at) in self.doctors() {
            within(since, who, || {
                let said = at.call("doctor").out;
                doctor.iter().all(|part| said.contains(part)).then_some(()).ok_or_else(|| format!("{doctor:?}: {said}"))
            });
        }
        within(since, "the log", || {
            let said: Vec<_> = self.workers.iter().map(Worker::said).collect();
            said.iter()
                .any(|said| said.contains(log))
                .then_some(())
                .ok_or_else(|| format!("{log:?}: {}", said.join("\n")))
        });
    }
}

/// How soon a sentence has to be there after its condition holds.
const SOON: Duration = Duration::from_secs(3);

/// Waits until this is so, and checks that it is soon enough.
#[track_caller]
pub(crate) fn within(since: Instant, who: &str, mut is_so: impl FnMut() -> Result<(), String>) {
    let mut longest = Duration::ZERO;
    let asked = loop {
        // The answer counts for the time at which it was asked.
        let asked = Instant::now();
        let is_said = is_so();
        longest = longest.max(asked.elapsed());
        match is_said {
            Ok(()) => break asked,
            Err(said) if asked > since + PATIENCE => panic!("{who} does not say {said}"),
            Err(_) => std::thread::park_timeout(Duration::from_millis(20)),
        }
    };
    // On a busy machine the questions themselves take long, and so does the worker.
    assert!(asked <= since + SOON + 2 * longest, "{who} says it {:?} late", asked - since);
}
