//! How long it takes until an idle worker in another process has a job, from the start of its push.

use crate::costs::connection;
use crate::row::row;
use crate::server::Server;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use waterline_queue::{NewJob, Outcome, QueueOptions, Runner};
use waterline_redis::redis::{self, Commands};
use waterline_redis::{RedisOptions, RedisStore};

const URL: &str = "WATERLINE_PICKUP_URL";
const PUSHES: usize = 400;

/// What picks up: a worker of a queue, or the bare commands with as many messages (a list, a
/// channel, and a thread that takes from the list once it hears), the least that a machine needs.
const KINDS: [&str; 2] = ["queue", "bare"];

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

fn took(pushed: u64) {
    println!("{}", now().saturating_sub(pushed));
}

/// If this is the process of a worker, works until its input ends.
pub fn is_worker() -> bool {
    let Ok(url) = std::env::var(URL) else { return false };
    if let Some(url) = url.strip_prefix("bare ") {
        let client = redis::Client::open(url).expect("it is a URL");
        let mut hears = client.get_connection().expect("the server runs");
        let mut takes = client.get_connection().expect("the server runs");
        std::thread::spawn(move || {
            let mut channel = hears.as_pubsub();
            channel.subscribe("bell").expect("the server runs");
            println!("up");
            // (The end of the process ends it.)
            while channel.get_message().is_ok() {
                let pushed: Option<u64> = takes.lpop("list", None).expect("the server runs");
                pushed.into_iter().for_each(took);
            }
        });
        _ = std::io::stdin().read_line(&mut String::new());
        return true;
    }
    let url = url.trim_start_matches("queue ");
    let store = RedisStore::connect(url, RedisOptions::new()).expect("the server runs");
    let queue = store.queue("q", QueueOptions::default()).expect("it has the functions");
    let handler = |_: &_, pushed: u64| {
        took(pushed);
        Ok(Outcome::Done)
    };
    let runner = Runner::builder(&queue).max_processing(2).on("k", handler).start().expect("the queue is open");
    println!("up");
    _ = std::io::stdin().read_line(&mut String::new());
    drop(runner);
    true
}

/// The times until pushed jobs were picked up, in milliseconds.
fn times(server: &Server, kind: &str, push: &mut dyn FnMut()) -> Vec<f64> {
    let mut worker = Command::new(std::env::current_exe().expect("this program"));
    let worker =
        worker.env(URL, format!("{kind} {}", server.url())).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut worker = worker.expect("this program runs");
    let mut lines = BufReader::new(worker.stdout.take().expect("it is piped"));
    let mut took = Vec::new();
    lines.read_line(&mut String::new()).expect("the worker says that it is up");
    for _ in 0..PUSHES {
        // Until the worker listens again.
        std::thread::park_timeout(Duration::from_millis(15));
        push();
        let mut line = String::new();
        lines.read_line(&mut line).expect("the worker writes a line for each job");
        took.push(line.trim().parse::<u64>().expect("it is a number") as f64 / 1_000.0);
    }
    drop(worker.stdin.take());
    _ = worker.wait();
    took.sort_by(f64::total_cmp);
    took
}

/// Prints the rows. Returns whether both are within their limits.
pub fn measure(server: &Server) -> bool {
    server.ask(&["FLUSHALL"]);
    let store = RedisStore::connect(server.url(), RedisOptions::new()).expect("the server runs");
    store.migrate().expect("it takes the functions");
    let queue = store.queue("q", QueueOptions::default()).expect("it has the functions");
    let mut bare = connection(server);
    let [took, least] = KINDS.map(|kind| {
        times(server, kind, &mut || match kind {
            "queue" => _ = queue.push(NewJob::new("k", &now()).expect("it is JSON")).expect("the server runs"),
            _ => {
                let mut push = redis::pipe();
                push.rpush("list", now()).publish("bell", "");
                push.query::<()>(&mut bare).expect("the server runs");
            }
        })
    });
    let [p50, p99] = [PUSHES / 2, PUSHES * 99 / 100];
    println!(
        "pick-up by an idle worker of another process, p50: {:.2} ms; by the bare commands: {:.2} ms",
        took[p50], least[p50]
    );
    let half = row("pick-up by an idle worker, p50, against the bare commands", took[p50] / least[p50], 2.2, "x");
    half & row("the same, p99", took[p99], 5.0, "ms")
}
