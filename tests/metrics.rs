//! The metrics of a consumer as a recorder gets them; the example `metrics` as a process that is
//! scraped; and the dashboard beside it.
//!
//! `cargo test --features metrics` builds the example first. `--test metrics` alone does not: it
//! uses the program that is there.

mod common;

use common::recorder::Kept;
use common::*;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use waterline::{
    Builder, Consumer, Error, Failure, Jobs, MemoryJobs, MemoryProgress, OnExhausted, Progress, Retry, Store,
};

const NOW: Retry = Retry::fixed(Duration::ZERO);

/// Reads the metrics of the consumer `p`.
trait OfConsumer {
    /// Starts a consumer whose metrics are kept here.
    fn start<J: Jobs, P: Progress>(
        &self,
        builder: Builder<J, P>,
        start: impl FnOnce(Builder<J, P>) -> Result<Consumer, Error>,
    ) -> Consumer;
    fn get(&self, name: &str) -> f64;
    fn all<const N: usize>(&self, names: [&str; N]) -> [f64; N];
    fn until<const N: usize>(&self, names: [&str; N], values: [f64; N]);
}

impl OfConsumer for Kept {
    fn start<J: Jobs, P: Progress>(
        &self,
        builder: Builder<J, P>,
        start: impl FnOnce(Builder<J, P>) -> Result<Consumer, Error>,
    ) -> Consumer {
        metrics::with_local_recorder(self, || start(builder.metrics())).unwrap()
    }

    fn get(&self, name: &str) -> f64 {
        self.number(&format!("waterline_{name}"), &[("consumer", "p")])
    }

    fn all<const N: usize>(&self, names: [&str; N]) -> [f64; N] {
        names.map(|name| self.get(name))
    }

    #[track_caller]
    fn until<const N: usize>(&self, names: [&str; N], values: [f64; N]) {
        let deadline = Instant::now() + LONG;
        while self.all(names) != values {
            assert!(Instant::now() < deadline, "{names:?} are {:?} and not {values:?}", self.all(names));
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}

/// The gauges that say where the consumer is, without the lag in seconds.
const PLACE: [&str; 7] = ["up", "head", "watermark", "lag_jobs", "in_flight", "done_ahead", "parked"];

#[test]
fn an_attempt_counts_as_failed_or_deferred_or_neither_and_a_later_one_as_a_retry() {
    let (kept, store) = (Kept::default(), Store::in_memory());
    let builder = Consumer::builder(numbers(4), store.progress("p")).retry(NOW).stop_at(3);
    let deferred = Mutex::new(false);
    let consumer = kept.start(builder, |builder| {
        builder.start(move |job| match (job.index, job.attempt) {
            (1, 1..=2) => Err("not yet".into()),
            (2, _) if !std::mem::replace(&mut *deferred.lock(), true) => Err(Failure::defer(Duration::ZERO).into()),
            _ => Ok(()),
        })
    });
    let handle = consumer.handle();
    consumer.join().unwrap();
    let counters = ["attempts_total", "failures_total", "deferrals_total", "retries_total", "attempt_seconds"];
    assert_eq!(kept.all(counters), [7.0, 2.0, 1.0, 2.0, 7.0]);
    let status = handle.status();
    assert_eq!((status.failed, status.retries), (2, 2), "the status counts the same");
    assert_eq!(kept.all(["saves_total", "save_seconds"]), [status.saves as f64; 2]);
    assert_eq!(kept.all(PLACE), [0.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(kept.get("lag_seconds"), 0.0);
}

#[test]
fn the_gauges_of_an_idle_consumer_show_its_place_and_redriven_and_discarded_jobs() {
    let (kept, store) = (Kept::default(), Store::in_memory());
    let builder = Consumer::builder(numbers(4), store.progress("p"));
    let (worker, started) = manual_worker();
    let consumer = kept.start(builder.on_exhausted(OnExhausted::Park { budget: 9 }).retry(Retry::none()), |builder| {
        builder.start_worker(worker)
    });
    for index in 0..4 {
        let job = started.job(index);
        if index < 3 { job.fail("refused") } else { job.succeed() }
    }
    kept.until(PLACE, [1.0, 3.0, 3.0, 0.0, 0.0, 0.0, 3.0]);
    // It has caught up, and no new job comes.
    let handle = consumer.handle();
    handle.redrive(1).unwrap();
    let redriven = started.job(1);
    kept.until(PLACE, [1.0, 3.0, 3.0, 0.0, 1.0, 0.0, 3.0]);
    redriven.succeed();
    kept.until(PLACE, [1.0, 3.0, 3.0, 0.0, 0.0, 0.0, 2.0]);
    store.discard("p", 0).unwrap();
    kept.until(PLACE, [1.0, 3.0, 3.0, 0.0, 0.0, 0.0, 1.0]);
    assert_eq!(handle.redrive_all().unwrap(), 1);
    started.job(2).succeed();
    kept.until(PLACE, [1.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0]);
    consumer.stop().unwrap();
    kept.until(PLACE, [0.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn a_consumer_that_gave_jobs_up_leaves_none_in_flight_and_the_next_one_of_its_name_sets_each_gauge() {
    let kept = Kept::default();
    let (worker, started) = manual_worker();
    let first = Store::in_memory();
    let builder = Consumer::builder(numbers(4), first.progress("p")).max_processing(3);
    let consumer = kept.start(builder, |builder| builder.start_worker(worker));
    started.job(0).succeed();
    let given_up = started.job(1);
    started.job(2).succeed();
    kept.until(PLACE, [1.0, 3.0, 0.0, 3.0, 2.0, 1.0, 0.0]);
    assert!(matches!(consumer.stop_within(Duration::ZERO), Err(Error::StopTimeout { .. })));
    // The place at which the next life begins. A stop without any time does not wait for the thread
    // that tells of it.
    kept.until(PLACE, [0.0, 3.0, 0.0, 3.0, 0.0, 1.0, 0.0]);
    drop(given_up);

    let other = Store::in_memory();
    let empty = MemoryJobs::<u64>::new();
    let builder = Consumer::builder(empty.clone(), other.progress("p"));
    let consumer = kept.start(builder, |builder| builder.start(|_| Ok(())));
    kept.until(PLACE, [1.0, -1.0, -1.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(kept.get("lag_seconds"), 0.0);
    empty.push(7);
    kept.until(PLACE, [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    consumer.stop().unwrap();
}

#[test]
fn a_halt_is_seen_at_once_and_the_jobs_that_still_run_stay_in_flight() {
    let (kept, store) = (Kept::default(), Store::in_memory());
    let (worker, started) = manual_worker();
    let builder = Consumer::builder(numbers(2), store.progress("p")).retry(Retry::none());
    let consumer = kept.start(builder, |builder| builder.start_worker(worker));
    let runs = started.job(1);
    kept.until(["up", "in_flight"], [1.0, 2.0]);
    started.job(0).fail("refused");
    kept.until(["up", "in_flight"], [0.0, 1.0]);
    runs.succeed();
    assert!(consumer.join().is_err());
    assert_eq!(kept.all(["up", "in_flight", "done_ahead", "failures_total"]), [0.0, 0.0, 1.0, 1.0]);
}

#[test]
fn a_consumer_that_waits_for_its_name_shows_that_it_is_not_up_and_sets_nothing_before_the_takeover() {
    let (store, theirs, mine) = (Store::in_memory(), Kept::default(), Kept::default());
    let builder = || Consumer::builder((0..9).collect::<MemoryJobs<u64>>(), store.progress("p")).standby();
    let holder = theirs.start(builder(), |builder| builder.start(|_| Ok(())));
    theirs.until(["up", "watermark"], [1.0, 8.0]);
    let waiting = mine.start(builder(), |builder| builder.start(|_| Ok(())));
    let stopped = theirs.start(builder(), |builder| builder.start(|_| Ok(())));
    stopped.stop().unwrap();
    assert_eq!(theirs.all(["up", "watermark"]), [1.0, 8.0], "one that waits leaves them alone, also at its end");
    assert_eq!(mine.all(["up", "watermark", "head"]), [0.0; 3]);
    holder.stop().unwrap();
    mine.until(["up", "watermark", "head"], [1.0, 8.0, 8.0]);
    waiting.stop().unwrap();
    assert_eq!(mine.all(["up", "watermark"]), [0.0, 8.0]);
}

#[test]
fn the_head_of_a_consumer_that_starts_caught_up_is_shown_though_the_first_look_takes_long() {
    let (kept, store) = (Kept::default(), Store::in_memory());
    let builder = Consumer::builder(numbers(9), store.progress("p")).stop_at(8);
    builder.start(|_| Ok(())).unwrap().join().unwrap();
    let source = Script::up_to(8);
    let gate = source.gated();
    let consumer =
        kept.start(Consumer::builder(source.clone(), store.progress("p")), |builder| builder.start(|_| Ok(())));
    gate.wait_for("head");
    kept.until(["up", "watermark", "head"], [1.0, 8.0, -1.0]);
    source.ungate();
    drop(gate);
    kept.until(["up", "watermark", "head"], [1.0, 8.0, 8.0]);
    consumer.stop().unwrap();
}

#[test]
fn a_consumer_without_metrics_registers_none_and_one_whose_recorder_panics_runs() {
    struct Panics;
    impl Recorder for Panics {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
            panic!("the recorder is broken")
        }
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            Counter::noop()
        }
        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }
        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }
    let builder = || Consumer::builder(numbers(3), MemoryProgress::new()).stop_at(2);
    let kept = Kept::default();
    metrics::with_local_recorder(&kept, || builder().start(|_| Ok(()))).unwrap().join().unwrap();
    assert!(kept.is_empty());
    metrics::with_local_recorder(&Panics, || builder().metrics().start(|_| Ok(()))).unwrap().join().unwrap();
}

/// The example. It is killed when the test is over.
struct Example {
    child: Child,
    address: String,
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Example {
    fn start() -> Self {
        let own = std::env::current_exe().unwrap();
        let path = own.parent().and_then(Path::parent).unwrap().join("examples/metrics");
        assert!(path.is_file(), "{} is not built: run through `cargo test`, which builds the examples", path.display());
        let child = Command::new(path).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut example = Self { child, address: String::new() };
        let mut line = String::new();
        BufReader::new(example.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics"));
        example.address = address.expect("it prints its address").to_owned();
        example
    }

    fn get(&self, path: &str) -> (String, String) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address);
        let mut answer = String::new();
        // The example gives up a client that takes long to write, as this one may.
        eventually("an answer", || {
            let mut stream = TcpStream::connect(&self.address).unwrap();
            let answered = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
            answered.is_ok() && !answer.is_empty()
        });
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        (head.to_owned(), body.to_owned())
    }

    fn scrape(&self) -> Scraped {
        let (head, body) = self.get("/metrics");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        Scraped::parse(&body)
    }
}

/// All samples by name and labels, and the kind of each family.
#[derive(Debug)]
struct Scraped {
    samples: BTreeMap<String, f64>,
    kinds: BTreeMap<String, String>,
}

impl Scraped {
    /// Parses each line, and panics at one that is not of the format.
    fn parse(body: &str) -> Self {
        let (mut samples, mut kinds, mut helped) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        for line in body.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, text) = rest.split_once(' ').expect("a name and a text");
                assert!(text.ends_with('.') && helped.insert(name.to_owned()), "{line}");
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a name and a kind");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{line}");
            } else {
                let (sample, value) = line.rsplit_once(' ').expect("a sample and a value");
                let (name, labels) = sample.split_once('{').expect("labels");
                let of = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
                let family = of.filter(|family| kinds.get(*family).is_some_and(|kind| kind == "histogram"));
                assert!(kinds.contains_key(family.unwrap_or(name)), "{line} has no type");
                assert!(labels.starts_with("consumer=\"unnamed\"") && labels.ends_with('}'), "{line}");
                assert!(samples.insert(sample.to_owned(), value.parse().expect(value)).is_none(), "{line}");
            }
        }
        assert_eq!(kinds.keys().collect::<BTreeSet<_>>(), helped.iter().collect(), "each has a help");
        Self { samples, kinds }
    }

    fn get(&self, name: &str) -> f64 {
        let found = self.samples.get(&format!("{name}{{consumer=\"unnamed\"}}"));
        *found.unwrap_or_else(|| panic!("{name} is missing: {self:#?}"))
    }

    fn buckets(&self, name: &str) -> Vec<f64> {
        let start = format!("{name}_bucket{{");
        self.samples.iter().filter(|(sample, _)| sample.starts_with(&start)).map(|(_, count)| *count).collect()
    }
}

#[test]
fn a_scrape_shows_what_the_consumer_did_and_its_gauges_move_without_a_job() {
    let example = Example::start();
    let deadline = Instant::now() + LONG;
    let wanted = [
        ("up", 1.0),
        ("watermark", 99.0),
        ("in_flight", 1.0),
        ("head", 100.0),
        ("parked", 0.0),
        ("lag_jobs", 1.0),
        ("done_ahead", 0.0),
        // 101 jobs, of which ten failed once.
        ("attempts_total", 111.0),
        ("failures_total", 10.0),
        ("deferrals_total", 0.0),
        ("retries_total", 10.0),
        ("attempt_seconds_count", 110.0),
    ];
    // A scrape may come between two of them.
    let settled = |scraped: &Scraped| {
        let at = |name: &str| scraped.samples.get(&format!("waterline_{name}{{consumer=\"unnamed\"}}")).copied();
        wanted.iter().all(|(name, value)| at(name) == Some(*value)) && at("saves_total") == at("save_seconds_count")
    };
    let scraped = loop {
        let scraped = example.scrape();
        if settled(&scraped) {
            break scraped;
        }
        assert!(Instant::now() < deadline, "it does not get there: {scraped:#?}");
        std::thread::park_timeout(Duration::from_millis(20));
    };
    let saves = scraped.get("waterline_saves_total");
    assert!((1.0..=110.0).contains(&saves), "{scraped:#?}");
    for name in ["waterline_attempt_seconds", "waterline_save_seconds"] {
        let (buckets, count) = (scraped.buckets(name), scraped.get(&format!("{name}_count")));
        assert!(buckets.len() == 8 && buckets.iter().all(|bucket| *bucket <= count), "{name}: {buckets:?}");
        assert!(buckets.contains(&count) && scraped.get(&format!("{name}_sum")) > 0.0, "{name}: {buckets:?}");
    }
    let kind = |name: &str| scraped.kinds[&format!("waterline_{name}")].clone();
    assert_eq!(["head", "saves_total", "save_seconds"].map(kind), ["gauge", "counter", "histogram"]);
    // The last job hangs, so nothing happens any more. Its lag grows even so.
    let before = scraped.get("waterline_lag_seconds");
    loop {
        let later = example.scrape();
        assert_eq!(later.get("waterline_attempts_total"), 111.0);
        if later.get("waterline_lag_seconds") > before {
            break;
        }
        assert!(Instant::now() < deadline, "the lag stands still: {later:#?}");
        std::thread::park_timeout(Duration::from_millis(50));
    }
    assert!(example.get("/else").0.starts_with("HTTP/1.1 404"));
}

/// The names in a text that begin with `waterline_`.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("waterline_")).map(str::to_owned).collect()
}

#[test]
fn the_dashboard_and_the_documentation_name_the_metrics_that_there_are() {
    let example = Example::start();
    let scraped = example.scrape();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let text = read("examples/grafana.json");
    serde_json::from_str::<serde_json::Value>(&text).expect("the dashboard is JSON");
    let histogram = |name: &str| {
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        family.filter(|family| scraped.kinds.contains_key(*family)).unwrap_or(name).to_owned()
    };
    let shown: BTreeSet<String> = names(&text).iter().map(|name| histogram(name)).collect();
    let all: BTreeSet<String> = scraped.kinds.keys().cloned().collect();
    assert_eq!(shown, all, "the dashboard shows each metric");
    let docs: String =
        read("src/consumer/listeners.rs").lines().filter(|line| line.contains("/// | `waterline_")).collect();
    assert_eq!(names(&docs), all, "the documentation of `Builder::metrics` lists each metric");
}
