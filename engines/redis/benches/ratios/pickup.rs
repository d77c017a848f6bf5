//! How long it takes until an idle worker in another process has a job, from the start of its push.

use crate::row::row;
use crate::server::Server;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use waterline_queue::{NewJob, Outcome, QueueOptions, Runner};
use waterline_redis::{RedisOptions, RedisStore};

const URL: &str = "WATERLINE_PICKUP_URL";
const PUSHES: usize = 400;

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// If this is the process of a worker, works until its input ends.
pub fn is_worker() -> bool {
    let Ok(url) = std::env::var(URL) else { return false };
    let store = RedisStore::connect(&*url, RedisOptions::new()).expect("the server runs");
    let queue = store.queue("q", QueueOptions::default()).expect("it has the functions");
    let took = |_: &_, pushed: u64| {
        println!("{}", now().saturating_sub(pushed));
        Ok(Outcome::Done)
    };
    let runner = Runner::builder(&queue).max_processing(2).on("k", took).start().expect("the queue is open");
    _ = std::io::stdin().read_line(&mut String::new());
    drop(runner);
    true
}

/// Prints the rows. Returns whether both are within their limits.
pub fn measure(server: &Server) -> bool {
    server.ask(&["FLUSHALL"]);
    let store = RedisStore::connect(server.url(), RedisOptions::new()).expect("the server runs");
    store.migrate().expect("it takes the functions");
    let queue = store.queue("q", QueueOptions::default()).expect("it has the functions");
    let mut worker = Command::new(std::env::current_exe().expect("this program"));
    let worker = worker.env(URL, server.url()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut worker = worker.expect("this program runs");
    let mut lines = BufReader::new(worker.stdout.take().expect("it is piped"));
    let mut took = Vec::new();
    for _ in 0..PUSHES {
        // Until the worker listens again.
        std::thread::park_timeout(Duration::from_millis(15));
        queue.push(NewJob::new("k", &now()).expect("it is JSON")).expect("the server runs");
        let mut line = String::new();
        lines.read_line(&mut line).expect("the worker writes a line for each job");
        took.push(line.trim().parse::<u64>().expect("it is a number") as f64 / 1_000.0);
    }
    drop(worker.stdin.take());
    _ = worker.wait();
    took.sort_by(f64::total_cmp);
    let half = row("pick-up by an idle worker of another process, p50", took[PUSHES / 2], 0.6, "ms");
    half & row("the same, p99", took[PUSHES * 99 / 100], 5.0, "ms")
}
