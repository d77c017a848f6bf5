//! Metrics for Prometheus, on a port of this machine.
//!
//! `cargo run --no-default-features --features metrics --example metrics` prints the address, and
//! `-- 9100` chooses the port. Then `curl http://127.0.0.1:9100/metrics` shows the metrics, and
//! `examples/grafana.json` is a dashboard for them.
//!
//! The recorder is minimal. Use a maintained one in your program, for example that of the crate
//! `metrics-exporter-prometheus`.

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use waterline::{Consumer, MemoryJobs, MemoryProgress, Retry};

/// The upper bounds of the buckets of a histogram, in seconds.
const BUCKETS: [f64; 7] = [0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0];

/// One metric: its number, or its count and buckets.
#[derive(Default)]
struct Cell(Mutex<Values>);

#[derive(Default)]
struct Values {
    /// The value of a counter or a gauge; the sum of a histogram.
    number: f64,
    count: u64,
    buckets: [u64; BUCKETS.len()],
}

impl CounterFn for Cell {
    fn increment(&self, by: u64) {
        self.0.lock().number += by as f64;
    }

    fn absolute(&self, value: u64) {
        let mut values = self.0.lock();
        values.number = values.number.max(value as f64);
    }
}

impl GaugeFn for Cell {
    fn increment(&self, by: f64) {
        self.0.lock().number += by;
    }

    fn decrement(&self, by: f64) {
        self.0.lock().number -= by;
    }

    fn set(&self, value: f64) {
        self.0.lock().number = value;
    }
}

impl HistogramFn for Cell {
    fn record(&self, value: f64) {
        let mut values = self.0.lock();
        values.number += value;
        values.count += 1;
        for (bucket, bound) in values.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(value <= bound);
        }
    }
}

/// The metrics of one name, by their labels.
#[derive(Default)]
struct Family {
    kind: &'static str,
    help: String,
    cells: BTreeMap<String, Arc<Cell>>,
}

/// Keeps all metrics, by their names.
#[derive(Clone, Default)]
struct Registry(Arc<Mutex<BTreeMap<String, Family>>>);

impl Registry {
    fn describe(&self, name: &KeyName, help: SharedString) {
        self.0.lock().entry(name.as_str().to_owned()).or_default().help = help.into_owned();
    }

    fn cell(&self, key: &Key, kind: &'static str) -> Arc<Cell> {
        let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let label = |label: &metrics::Label| format!("{}=\"{}\"", label.key(), escaped(label.value()));
        let labels = key.labels().map(label).collect::<Vec<_>>().join(",");
        let mut families = self.0.lock();
        let family = families.entry(key.name().to_owned()).or_default();
        family.kind = kind;
        family.cells.entry(labels).or_default().clone()
    }

    /// Returns all metrics in the text format of Prometheus.
    fn render(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        for (name, Family { kind, help, cells }) in self.0.lock().iter().filter(|(_, family)| !family.cells.is_empty())
        {
            writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}")?;
            for (labels, cell) in cells {
                let values = cell.0.lock();
                let number = values.number;
                if *kind != "histogram" {
                    writeln!(text, "{name}{{{labels}}} {number}")?;
                    continue;
                }
                for (bound, count) in BUCKETS.iter().zip(values.buckets) {
                    writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}")?;
                }
                let count = values.count;
                writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}")?;
                writeln!(text, "{name}_sum{{{labels}}} {number}\n{name}_count{{{labels}}} {count}")?;
            }
        }
        Ok(text)
    }
}

impl Recorder for Registry {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&key, help);
    }

    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&key, help);
    }

    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&key, help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.cell(key, "counter"))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.cell(key, "gauge"))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.cell(key, "histogram"))
    }
}

/// Answers one request.
fn answer(stream: TcpStream, registry: &Registry) -> Result<(), Box<dyn std::error::Error>> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut lines = BufReader::new(&stream).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    // The client may not read before it has written all of its headers.
    while lines.next().transpose()?.is_some_and(|header| !header.is_empty()) {}
    let (status, body) = match request.starts_with("GET /metrics ") {
        true => ("200 OK", registry.render()?),
        false => ("404 Not Found", "ask for /metrics\n".to_owned()),
    };
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\n");
    write!(&stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len())?;
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = std::env::args().nth(1).map_or(Ok(0), |port| port.parse::<u16>())?;
    let registry = Registry::default();
    metrics::set_global_recorder(registry.clone()).map_err(|error| error.to_string())?;

    // Each tenth job fails once, and the last one never ends.
    let jobs: MemoryJobs<u64> = (0..=100).collect();
    let _consumer = Consumer::builder(jobs, MemoryProgress::new())
        .max_processing(4)
        .retry(Retry::fixed(Duration::from_millis(10)))
        .metrics()
        .start(|job| match (job.payload, job.attempt) {
            (100, _) => loop {
                if job.is_stopping() {
                    return Err("cut short".into());
                }
                std::thread::park_timeout(Duration::from_millis(10));
            },
            (payload, 1) if payload % 10 == 3 => Err("not yet".into()),
            _ => Ok(()),
        })?;

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    println!("http://{}/metrics", listener.local_addr()?);
    for stream in listener.incoming() {
        if let Err(error) = stream.map_err(Into::into).and_then(|stream| answer(stream, &registry)) {
            eprintln!("a request failed: {error}");
        }
    }
    Ok(())
}
