//! Workers and producers in Python and Node: the files in `examples`, with the handlers of
//! `handlers`.

use crate::bench::{bench, options};
use crate::server::Server;
use crate::server::cluster::Cluster;
use crate::server::proxy::{Fate, Proxy};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use waterline::Retry;
use waterline_queue::{Accept, JobState, NewJob, Queue, QueueOptions, Retention};
use waterline_redis::{RedisStore, redis};

const NO_PYTHON: &str = "there is no Python with redis 4.3 on this machine: run `bash .ci/setup engines`, or \
    `apt-get install python3-redis`";
const NO_NODE: &str = "there is no Node with redis 4.6 on this machine: run `bash .ci/setup engines`, or \
    `npm install --global redis@4`";

/// Where `redis` is: the folders of a distribution, and of the package managers of Node.
const NODE_PATH: &str = "/usr/lib/node_modules:/usr/local/lib/node_modules:/usr/share/nodejs";

/// A lease that does not end within a test, and a time for which a worker does not look by itself.
const NEVER: f64 = 3600.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    Python,
    Node,
}

impl Language {
    pub const ALL: [Self; 2] = [Self::Python, Self::Node];

    pub fn command(self) -> Command {
        let mut command = match self {
            Self::Python => Command::new(python()),
            Self::Node => node(),
        };
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    pub fn file(self, directory: &str, name: &str) -> PathBuf {
        let ending = if self == Self::Python { "py" } else { "js" };
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory).join(format!("{name}.{ending}"));
        assert!(file.is_file(), "{}", file.display());
        file
    }
}

/// A Python that has the driver: the packages of a distribution belong to its own Python.
fn python() -> &'static str {
    static FOUND: OnceLock<&str> = OnceLock::new();
    FOUND.get_or_init(|| {
        let has_it = |python: &&str| {
            let version = "import redis; assert [*map(int, redis.__version__.split('.')[:2])] >= [4, 3]";
            let output = Command::new(python).args(["-c", version]).output();
            output.is_ok_and(|output| output.status.success())
        };
        ["/usr/bin/python3", "python3"].into_iter().find(has_it).expect(NO_PYTHON)
    })
}

fn node() -> Command {
    static FOUND: OnceLock<()> = OnceLock::new();
    let command = || {
        let mut command = Command::new("node");
        let given = std::env::var("NODE_PATH").map(|given| format!("{given}:")).unwrap_or_default();
        command.env("NODE_PATH", format!("{given}{NODE_PATH}"));
        command
    };
    FOUND.get_or_init(|| {
        let output = command().args(["-e", "if (!require('redis').createClient().sSubscribe) throw 1"]).output();
        assert!(output.is_ok_and(|output| output.status.success()), "{NO_NODE}");
    });
    command()
}

/// A process that works on a queue. It is killed on drop.
pub struct Worker {
    child: Child,
    said: PathBuf,
}

impl Worker {
    /// Starts one with four slots on the queue at this place. Its input ends with the test's
    /// process. What it says is in this folder.
    pub fn of(language: Language, urls: &str, place: &str, directory: &Path, lease: f64, poll: f64) -> Self {
        let said = directory.join(format!("{language:?}.log"));
        let file = File::options().create(true).append(true).open(&said).unwrap();
        let mut command = language.command();
        let examples = language.file("examples", "worker").parent().unwrap().to_owned();
        command.arg(language.file("tests/queue/handlers", "handlers")).arg(examples).args([urls, place, "4"]);
        command.args([lease.to_string(), poll.to_string()]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(file).spawn().unwrap();
        Self { child, said }
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(sent.expect("there is a program kill").success());
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.said).unwrap_or_default()).into_owned()
    }

    /// Waits until it has ended by itself.
    fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        common::eventually("the end of a worker", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// A queue `q`, and where workers find it.
struct Bench {
    store: RedisStore,
    queue: Queue,
    urls: String,
    place: String,
    directory: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let (server, options) = bench();
        Self::on(RedisStore::connect(server.url(), options).unwrap(), server.url())
    }

    fn on(store: RedisStore, urls: String) -> Self {
        let retry = Retry::fixed(Duration::ZERO).max_attempts(2);
        let options = QueueOptions::default().retry(retry).retention(Retention::Keep).max_payload(1000);
        let place = store.place_of("q").0.strip_suffix("head").unwrap().to_owned();
        let queue = store.queue("q", options).unwrap();
        Self { store, queue, urls, place, directory: tempfile::tempdir().unwrap() }
    }

    fn worker(&self, language: Language, lease: f64, poll: f64) -> Worker {
        Worker::of(language, &self.urls, &self.place, self.directory.path(), lease, poll)
    }

    fn push(&self, kind: &str, payload: &serde_json::Value) -> String {
        self.queue.push(NewJob::new(kind, payload).unwrap()).unwrap().id
    }

    /// Pushes a job that runs until its file is there.
    fn push_slow(&self, file: &str) -> (String, PathBuf) {
        let path = self.directory.path().join(file);
        (self.push("slow", &path.to_str().unwrap().into()), path)
    }

    fn state(&self, id: &str) -> Option<JobState> {
        self.queue.state(id).unwrap()
    }

    #[track_caller]
    fn until(&self, worker: &Worker, id: &str, wanted: JobState) {
        let begun = Instant::now();
        while self.state(id) != Some(wanted) {
            let late = begun.elapsed() > Duration::from_secs(60);
            assert!(!late, "{id} is {:?}, not {wanted:?}: {}", self.state(id), worker.said());
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }
}

/// Does the same with each language at the same time.
fn each(test: impl Fn(Language) + Sync) {
    common::watch();
    let test = &test;
    std::thread::scope(|scope| {
        let runs = Language::ALL.map(|language| scope.spawn(move || test(language)));
        runs.into_iter().for_each(|run| run.join().unwrap());
    });
}

#[test]
fn a_waiting_worker_is_woken_by_a_push_and_hands_json_on_byte_for_byte() {
    each(|language| {
        let bench = Bench::new();
        let worker = bench.worker(language, NEVER, NEVER);
        let (server, channel) = (crate::bench::bench().0, format!("{}bell", bench.place));
        common::eventually("it listens", || {
            format!("{:?}", server.ask(&["PUBSUB", "SHARDNUMSUB", &channel])).contains("int(1)")
        });
        // A conversion to values of a language would change these.
        for json in [
            r#"{"b": 1, "a": 2, "a": 3, "\u0000": " "}"#,
            "[1e400, -0.0, 1.0, 1E2, 123456789012345678901234567890]",
            r#"["\ud800", "\u00e9", "é", "e\u0301", "\/", "🌊👩‍👩‍👧‍👦", "\u2028"]"#,
        ] {
            // (A push of the library would have converted it already.)
            let push = ["", "", "1", "echo", json, r#"{"id": "odd"}"#].map(str::as_bytes);
            bench.store.fcall("q", "wl_push", &push, false).unwrap();
            bench.until(&worker, "odd", JobState::Finished);
            assert_eq!(bench.queue.get("odd").unwrap().unwrap().payload, json.as_bytes(), "{language:?}");
            let left = server.ask(&["HVALS", &format!("{}data", bench.place)]);
            assert_eq!(redis::from_redis_value::<Vec<String>>(left).unwrap(), [json], "{language:?}");
            bench.queue.remove("odd").unwrap();
        }
    });
}

#[test]
fn a_failed_attempt_fails_alone() {
    each(|language| {
        let bench = Bench::new();
        // In one claim, and perhaps in one call with their ends.
        let jobs =
            ["odd", "echo", "wrong", "thrown", "large", "half", "echo"].map(|kind| NewJob::new(kind, "1").unwrap());
        let pushed = bench.queue.push_all(jobs).unwrap();
        let worker = bench.worker(language, 30.0, 1.0);
        let not_json = if language == Language::Python { "JSONDecodeError" } else { "JSON" };
        let odd = if language == Language::Python { r"odd: \x00 \ud800 🌊" } else { r"odd: \u0000 \ud800 🌊" };
        for (job, says) in pushed.iter().zip([odd, "", not_json, "", "2002 bytes", "", ""]) {
            let is_echo = [1, 6].map(|at| &pushed[at].id).contains(&&job.id);
            let wanted = if is_echo { JobState::Finished } else { JobState::Dead };
            bench.until(&worker, &job.id, wanted);
            let left = bench.queue.get(&job.id).unwrap().unwrap();
            let error = left.error.unwrap_or_default();
            assert!(error.contains(says), "{language:?}: {error}");
            assert_eq!((left.failures, left.crashes), if is_echo { (0, 0) } else { (2, 0) });
        }
    });
}

#[test]
fn leases_are_renewed_and_lost_ones_stop_jobs() {
    each(|language| {
        let bench = Bench::new();
        let worker = bench.worker(language, 3.0, 0.1);
        let (kept, file) = bench.push_slow("kept");
        bench.until(&worker, &kept, JobState::Running);
        let begun = Instant::now();
        let left = || bench.queue.workers().unwrap()[0].lease_left.unwrap();
        let mut is_longest = Duration::ZERO;
        common::eventually("two leases", || {
            is_longest = is_longest.max(left());
            begun.elapsed() > Duration::from_secs(6)
        });
        assert!(is_longest > Duration::from_secs(2) && bench.queue.get(&kept).unwrap().unwrap().crashes == 0);
        // It freezes, and this process takes the job.
        worker.signal("STOP");
        let mut lease = None;
        common::eventually("the end of the lease", || {
            lease = bench.queue.accept(Accept::new()).unwrap();
            lease.is_some()
        });
        worker.signal("CONT");
        common::eventually("it hears of that", || worker.said().contains(&format!("lost {kept}")));
        // Its slots are free again, and its end was not written.
        File::create(file).unwrap();
        let echo = bench.push("echo", &1.into());
        bench.until(&worker, &echo, JobState::Finished);
        assert_eq!(bench.state(&kept), Some(JobState::Running));
        assert_eq!(lease.unwrap().finish(None).unwrap(), Some(JobState::Finished));
    });
}

#[test]
fn a_stopping_worker_ends_its_jobs_and_its_death_is_no_crash() {
    each(|language| {
        let bench = Bench::new();
        let mut worker = bench.worker(language, 30.0, 0.1);
        let (slow, file) = bench.push_slow("slow");
        bench.until(&worker, &slow, JobState::Running);
        let stops = || bench.queue.workers().unwrap().iter().any(|worker| worker.is_stopping);
        worker.signal("TERM");
        common::eventually("the note that it stops", stops);
        let later = bench.push("echo", &1.into());
        File::create(file).unwrap();
        assert!(worker.ended().success() && worker.said().contains("stopped"), "{}", worker.said());
        assert_eq!([&slow, &later].map(|id| bench.state(id)), [Some(JobState::Finished), Some(JobState::Ready)]);
        bench.queue.remove(later).unwrap();
        for (name, crashes) in [("stopping", 0), ("dying", 1)] {
            let mut worker = bench.worker(language, 3.0, 0.1);
            let (slow, file) = bench.push_slow(name);
            bench.until(&worker, &slow, JobState::Running);
            if name == "stopping" {
                worker.signal("TERM");
                common::eventually("the note that it stops", stops);
            }
            worker.kill();
            bench.until(&worker, &slow, JobState::Running);
            let worker = bench.worker(language, 3.0, 0.1);
            File::create(file).unwrap();
            bench.until(&worker, &slow, JobState::Finished);
            let left = bench.queue.get(&slow).unwrap().unwrap();
            assert_eq!((left.crashes, left.failures), (crashes, 0), "{language:?}, {name}");
        }
        // One that is cut short by a stop loses no attempt.
        let mut worker = bench.worker(language, 30.0, 0.1);
        let cut = bench.push("cut", &1.into());
        bench.until(&worker, &cut, JobState::Running);
        worker.signal("TERM");
        assert!(worker.ended().success() && worker.said().contains("cut short"), "{}", worker.said());
        let left = bench.queue.get(&cut).unwrap().unwrap();
        assert_eq!((left.state, left.failures, left.crashes), (JobState::Ready, 0, 0), "{language:?}");
    });
}

#[test]
fn workers_are_listed_until_they_stop() {
    each(|language| {
        let bench = Bench::new();
        let mut worker = bench.worker(language, 30.0, 0.1);
        let (slow, file) = bench.push_slow("slow");
        bench.until(&worker, &slow, JobState::Running);
        let found = bench.queue.workers().unwrap().remove(0);
        let named = if language == Language::Python { "python" } else { "javascript" };
        assert_eq!((found.language.as_deref(), found.process), (Some(named), Some(worker.child.id())));
        assert_eq!((found.slots, found.busy, &found.jobs[0].id, found.is_silent), (Some(4), 1, &slow, false));
        assert_eq!(found.kinds.map(|kinds| kinds.len()), Some(8));
        worker.signal("TERM");
        File::create(file).unwrap();
        assert!(worker.ended().success(), "{}", worker.said());
        assert_eq!(bench.queue.workers().unwrap(), []);
    });
}

#[test]
fn an_end_whose_answer_is_lost_is_sent_again_and_counts_once() {
    each(|language| {
        let server = Server::start(&[("appendfsync", "always")]);
        let store = RedisStore::connect(server.url(), options()).unwrap();
        store.migrate().unwrap();
        let proxy = Proxy::start(server.port());
        let bench = Bench::on(store, proxy.url());
        let worker = bench.worker(language, 60.0, 0.1);
        for fate in [Fate::CutAnswer, Fate::Cut] {
            let (job, file) = bench.push_slow(if matches!(fate, Fate::Cut) { "request" } else { "answer" });
            bench.until(&worker, &job, JobState::Running);
            proxy.next("finished", fate);
            File::create(file).unwrap();
            bench.until(&worker, &job, JobState::Finished);
            assert!(proxy.is_done());
            let left = bench.queue.get(&job).unwrap().unwrap();
            assert_eq!((left.failures, left.crashes), (0, 0), "{language:?}");
        }
        // The server dies and comes back, while a job runs. (It says so before the worker has heard
        // of its claim. If that answer is lost, the job comes back with its lease.)
        let (job, file) = bench.push_slow("dead");
        common::eventually("the worker to begin", || file.with_extension("begun").exists());
        server.kill();
        File::create(file).unwrap();
        common::eventually("the worker has seen it", || worker.said().matches("no answer, again").count() > 3);
        server.start_again();
        common::eventually("the end", || bench.queue.state(&job).is_ok_and(|state| state == Some(JobState::Finished)));
        assert_eq!(bench.queue.get(&job).unwrap().unwrap().crashes, 0);
    });
}

#[test]
fn a_worker_follows_its_queue_through_a_cluster() {
    each(|language| {
        let (cluster, store) = Cluster::with_store(options().tag("t"));
        let slot = store.place_of("q").1;
        let mut urls = cluster.urls();
        // It knows one of those that do not have the queue.
        urls.sort_by_key(|url| url.ends_with(&store.node_of("q").unwrap()));
        let bench = Bench::on(store.clone(), urls[0].clone());
        let worker = bench.worker(language, 30.0, 0.1);
        let mut ids = Vec::new();
        for to in &cluster.nodes {
            let from = cluster.at(&store.node_of("q").unwrap());
            let mut push = || ids.push(bench.push("echo", &ids.len().into()));
            push();
            if from.port() != to.port() {
                cluster.move_slot(slot, from, to, || ());
            }
            push();
        }
        ids.iter().for_each(|id| bench.until(&worker, id, JobState::Finished));
        let crashes: u32 = ids.iter().map(|id| bench.queue.get(id).unwrap().unwrap().crashes).sum();
        assert_eq!(crashes, 0, "{language:?}: {}", worker.said());
    });
}

#[test]
fn a_producer_whose_answer_is_lost_makes_one_job() {
    each(|language| {
        let (cluster, store) = Cluster::with_store(options());
        let queue = store.queue("mail", QueueOptions::default().retention(Retention::Drop)).unwrap();
        let produce = |urls: &str, number: &str| {
            let mut command = language.command();
            let command = command.arg(language.file("examples", "producer")).args([number, "ann@example.org"]);
            let output = command.env("REDIS_URL", urls).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            said
        };
        let mut urls = cluster.urls();
        urls.sort_by_key(|url| url.ends_with(&store.node_of("mail").unwrap()));
        assert_eq!(produce(&urls[0], "1"), "receipt-1 added", "{language:?}");
        let proxy = Proxy::start(cluster.at(&store.node_of("mail").unwrap()).port());
        proxy.next("receipt-2", Fate::CutAnswer);
        assert_eq!(produce(&proxy.url(), "2"), "receipt-2 duplicate", "{language:?}");
        assert!(proxy.is_done());
        let job = queue.get("receipt-2").unwrap().unwrap();
        assert_eq!((job.payload::<serde_json::Value>().unwrap()["order"].as_i64(), job.key.as_deref()), {
            (Some(2), Some("ann@example.org"))
        });
        assert_eq!(queue.counts().ready, 2);
        // The job has ended and is gone before the answer would have come.
        for _ in 0..2 {
            assert_eq!(queue.accept(Accept::new()).unwrap().unwrap().finish(None).unwrap(), None);
        }
        assert_eq!(produce(&urls[0], "2"), "receipt-2 duplicate", "{language:?}");
    });
}
