//! The example `metrics` as a process that is scraped, and its dashboard.

use crate::example;
use common::{LONG, eventually};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The running example, which is killed on drop.
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
        let child = Command::new(example("metrics")).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
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
        // The example drops slow clients, as this one may be.
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

/// The samples by name and labels, and the kind of each family.
#[derive(Debug)]
struct Scraped {
    samples: BTreeMap<String, f64>,
    kinds: BTreeMap<String, String>,
}

impl Scraped {
    /// Parses each line, and panics at one that breaks the format.
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
fn a_scrape_shows_counters_and_live_gauges() {
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
        // 101 jobs, ten of which failed once.
        ("attempts_total", 111.0),
        ("failures_total", 10.0),
        ("deferrals_total", 0.0),
        ("retries_total", 10.0),
        ("attempt_seconds_count", 110.0),
    ];
    // A scrape may come between two updates.
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
    // The last job hangs, so nothing happens any more, yet the lag grows.
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

fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("waterline_")).map(str::to_owned).collect()
}

#[test]
fn dashboard_and_docs_name_existing_metrics() {
    let example = Example::start();
    let scraped = example.scrape();
    let root = common::tree::root();
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
