//! The cost of a page: the CPU time of its threads.

use crate::http::begin;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use waterline::{Consumer, MemoryJobs, Store};
use waterline_queue::{NewJob, Queue, QueueOptions};
use waterline_ui::Page;

/// How long a measurement takes.
const TIME: Duration = Duration::from_secs(20);

/// Returns the CPU time of each thread of the page, in nanoseconds.
fn threads() -> BTreeMap<String, u64> {
    let of = |task: std::io::Result<fs::DirEntry>| {
        let task = task.ok()?.path();
        let name = fs::read_to_string(task.join("comm")).ok()?;
        let stat = fs::read_to_string(task.join("schedstat")).ok()?;
        let nanos = stat.split(' ').next()?.parse().ok()?;
        name.starts_with("wl-page").then_some(()).or(name.starts_with("wl-samples").then_some(()))?;
        Some((format!("{} {}", task.display(), name.trim()), nanos))
    };
    fs::read_dir("/proc/self/task").unwrap().filter_map(of).collect()
}

/// Returns how much of a core the page needs while this goes on, in percent.
fn percent(mut goes_on: impl FnMut()) -> f64 {
    let (before, begun) = (threads(), Instant::now());
    while begun.elapsed() < TIME {
        goes_on();
    }
    let spent: u64 = threads().iter().map(|(thread, nanos)| nanos - before.get(thread).copied().unwrap_or(0)).sum();
    spent as f64 / begun.elapsed().as_nanos() as f64 * 100.0
}

/// Follows a view, and reads the next line of it.
fn follow(served: &waterline_ui::Served, view: &str) -> std::io::Lines<BufReader<TcpStream>> {
    begin(served.addr(), "GET", view, &[], "").0.lines()
}

#[test]
#[ignore = "it measures: cargo test --release -p waterline-ui --test page -- --ignored --nocapture cost"]
fn a_page_in_use_needs_a_hundredth_of_a_core() {
    let store = Store::in_memory();
    let mut page = Page::new(&store);
    let mut consumers = Vec::new();
    for n in 0..10_u64 {
        let jobs: MemoryJobs<u64> = (0..1_000).collect();
        // Job 500 fails for ever, so the window has a strip.
        let retry = waterline::Retry::fixed(Duration::from_secs(36_000));
        let consumer = Consumer::builder(jobs, store.progress(format!("stream {n}"))).retry(retry);
        consumers.push(consumer.start(|job| if job.index == 500 { Err("no".into()) } else { Ok(()) }).unwrap());
        page = page.watch(consumers.last().unwrap().handle());
    }
    for n in 0..10_u64 {
        let queue = Queue::open(&store, format!("queue {n}"), QueueOptions::default()).unwrap();
        let job = |n: u64| NewJob::new("kind", &n).unwrap().delay(Duration::from_secs(86_400 * (n % 2)));
        queue.push_all((0..10_000).map(job)).unwrap();
        page = page.queue(&queue);
    }
    let served = page.serve("127.0.0.1:0").unwrap();
    let nobody = percent(|| std::thread::park_timeout(Duration::from_millis(100)));
    let mut overview = follow(&served, "/api/live/overview");
    assert!(overview.any(|line| line.unwrap().contains("stream 9")));
    let looked_at = percent(|| drop(overview.next()));
    let mut jobs = follow(&served, "/api/live/jobs?queue=queue%203&state=ready");
    drop(jobs.next());
    let both = percent(|| drop(overview.next()));
    println!("nobody looks: {nobody:.4} % of a core; the overview: {looked_at:.3} %; and a list of jobs: {both:.3} %");
    assert!(nobody <= 0.01 && both <= 1.0);
}
