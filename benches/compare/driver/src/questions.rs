//! The questions: their rows, and the columns of the programs.

/// A table of the comparison.
pub struct Question {
    /// The name, as the programs know it.
    pub name: &'static str,
    /// The heading of its table in docs/compare.md.
    pub heading: &'static str,
    /// The programs and the names of their columns.
    pub columns: &'static [(&'static str, &'static str)],
    pub rows: Vec<Row>,
}

/// A row of a table.
pub struct Row {
    pub name: String,
    /// The question, and the words that go to the programs.
    pub words: Vec<String>,
    /// The jobs of one round.
    pub jobs: u64,
    pub kind: Kind,
}

/// Which figure a row has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The time of a job.
    Time,
    /// The percentiles of the time of one job at a time.
    Latency,
    /// How many jobs are done a second, and the CPU time of the server for one.
    Served,
    /// The jobs that run again after the program was killed.
    Killed,
}

const STREAM: &[(&str, &str)] = &[
    ("ours", "waterline"),
    ("ours", "without read"),
    ("ours", "async"),
    ("by_hand", "by hand"),
    ("rayon", "rayon"),
    ("disruptor", "disruptor"),
    ("futures", "buffer_unordered"),
    ("futures", "spawned tasks"),
];

const ONCE: &[(&str, &str)] = &[
    ("ours", "waterline"),
    ("ours", "a write a job"),
    ("ours", "256 a write"),
    ("ours", "10,000 a write"),
    ("ours", "rayon, 10,000 a write"),
];

const LOG: &[(&str, &str)] = &[
    ("ours", "on RocksDB"),
    ("ours", "on SQLite"),
    ("ours", "SQLite NORMAL"),
    ("ours", "SQLite FULL"),
    ("yaque", "yaque"),
];

const QUEUE: &[(&str, &str)] = &[
    ("ours", "on RocksDB"),
    ("ours", "on SQLite"),
    ("effectum", "effectum"),
    ("apalis", "apalis-sqlite"),
    ("ours", "raw RocksDB"),
    ("ours", "raw SQLite"),
];

const REDIS: &[(&str, &str)] = &[
    ("ours_redis", "waterline-redis"),
    ("bullmq", "BullMQ"),
    ("apalis_redis", "apalis-redis"),
    ("sidekiq", "sidekiq-rs"),
];

const IN_MEMORY: &[(&str, &str)] =
    &[("ours", "waterline"), ("by_hand", "by hand"), ("disruptor", "disruptor"), ("futures", "buffer_unordered")];

const DURABLE: &[(&str, &str)] = &[
    ("ours", "on RocksDB"),
    ("ours", "on SQLite"),
    ("yaque", "yaque"),
    ("ours", "queue on RocksDB"),
    ("ours", "queue on SQLite"),
    ("effectum", "effectum"),
    ("apalis", "apalis-sqlite"),
];

/// Returns all questions. `iterations` take a microsecond.
pub fn all(iterations: f64) -> Vec<Question> {
    let question = |name, heading, columns, rows| Question { name, heading, columns, rows };
    vec![
        question("stream", "Ordered stream", STREAM, stream(iterations)),
        question("shapes", "One stuck job, and results in order", STREAM, shapes(iterations)),
        question("killed", "Jobs that run again after `kill -9`", STREAM, killed(iterations)),
        question("once", "Exactly once", ONCE, once(iterations)),
        question("log", "Log", LOG, log()),
        question("queue", "Queue", QUEUE, queue()),
        question("redis", "Queue in Redis", REDIS, redis()),
        question("latency", "Latency in memory", IN_MEMORY, in_memory()),
        question("durable", "Latency on disk", DURABLE, vec![latency("push → run", "pushed store=disk")]),
    ]
}

fn row(name: impl Into<String>, kind: Kind, jobs: u64, words: &str) -> Row {
    let words = words.split(' ').map(str::to_owned).collect();
    Row { name: name.into(), words, jobs, kind }
}

/// The work of a job: its name, its words, and the jobs of a tenth of a second on one thread.
fn works(iterations: f64) -> [(&'static str, String, u64); 5] {
    let spin = |micros: f64| format!("work=spin iterations={}", (iterations * micros) as u64);
    [
        ("no-op", "work=none".to_owned(), 300_000),
        ("1 µs", spin(1.0), 100_000),
        ("10 µs", spin(10.0), 10_000),
        ("100 µs", spin(100.0), 1_000),
        ("1 ms of sleep", "work=sleep".to_owned(), 100),
    ]
}

fn stream(iterations: f64) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, words, jobs) in works(iterations) {
        for in_flight in [1, 2, 8, 64] {
            let at_a_time = if words.contains("sleep") { in_flight } else { 1 };
            let words = format!("stream {words} in_flight={in_flight}");
            rows.push(row(format!("{name}, {in_flight} in flight"), Kind::Time, jobs * at_a_time, &words));
        }
    }
    rows
}

fn shapes(iterations: f64) -> Vec<Row> {
    let [nothing, _, ten, ..] = works(iterations);
    let mut rows = Vec::new();
    for (name, words, _) in [&nothing, &ten] {
        let words = format!("stream shape=stuck {words} in_flight=8");
        // As many as the window of the programs that have one.
        rows.push(row(format!("one stuck, {name}, 8 in flight"), Kind::Time, protocol::WINDOW, &words));
    }
    for (name, words, jobs) in [&nothing, &ten] {
        for in_flight in [2, 8] {
            let words = format!("stream shape=ordered {words} in_flight={in_flight}");
            rows.push(row(format!("in order, {name}, {in_flight} in flight"), Kind::Time, *jobs, &words));
        }
    }
    rows
}

fn killed(iterations: f64) -> Vec<Row> {
    let [_, _, (_, words, _), ..] = works(iterations);
    let words = format!("stream {words} in_flight=8");
    [("no job is stuck", ""), ("one is stuck", " hangs=1000")]
        .map(|(name, hangs)| row(name, Kind::Killed, 100_000, &format!("{words}{hangs}")))
        .into()
}

fn once(iterations: f64) -> Vec<Row> {
    let mut rows = Vec::new();
    for (engine, name, more) in [("rocksdb", "RocksDB", 100_000), ("sqlite", "SQLite", 50_000)] {
        let [nothing, _, ten, ..] = works(iterations);
        for ((work, words, _), jobs) in [(nothing, more), (ten, 20_000)] {
            let words = format!("once engine={engine} {words} in_flight=2");
            rows.push(row(format!("{name}, {work}, 2 in flight"), Kind::Time, jobs, &words));
        }
    }
    rows
}

fn log() -> Vec<Row> {
    [
        ("push, one by one", 20_000, "push block=1"),
        ("push, 256 at a time", 102_400, "push block=256"),
        ("consume, read in runs of 256", 102_400, "consume block=256"),
        ("push, each on the disk", 300, "flushed block=1"),
    ]
    .map(|(name, jobs, words)| row(name, Kind::Time, jobs, &format!("log call={words}")))
    .into()
}

fn queue() -> Vec<Row> {
    [
        ("push, one by one", 512, "push block=1"),
        ("push, 256 at a time", 5_120, "push block=256"),
        ("run, 8 at a time", 2_560, "run block=256 in_flight=8"),
    ]
    .map(|(name, jobs, words)| row(name, Kind::Time, jobs, &format!("queue call={words}")))
    .into()
}

fn redis() -> Vec<Row> {
    [
        ("push, one by one", 1_024, "push block=1"),
        ("push, 256 at a time", 20_480, "push block=256"),
        ("run, as recommended", 2_048, "run block=256"),
        ("run, 50 at a time", 2_048, "run block=256 in_flight=50"),
    ]
    .map(|(name, jobs, words)| row(name, Kind::Served, jobs, &format!("redis call={words}")))
    .into()
}

fn latency(name: &str, words: &str) -> Row {
    row(name, Kind::Latency, 1, words)
}

fn in_memory() -> Vec<Row> {
    vec![
        latency("push → run", "pushed store=memory"),
        latency("done → seen, in memory", "seen store=memory"),
        latency("done → seen, on RocksDB", "seen store=rocksdb"),
        latency("done → seen, on SQLite", "seen store=sqlite"),
    ]
}
