//! Workers as processes of their own, which write to a file what they are told: runners, and the
//! examples in Python and Node.

use super::pushing::Payload;
use crate::languages::Language;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use waterline::Retry;
use waterline_queue::{AttemptEnd, Limit, Outcome, QueueOptions, Retention, Runner, Running};
use waterline_redis::{RedisStore, RunnerExt};

/// The variables that make a process a worker: the server, its name, and the file.
const URL: &str = "WATERLINE_CHAOS_URL";
const NAME: &str = "WATERLINE_CHAOS_NAME";
const TOLD: &str = "WATERLINE_CHAOS_TOLD";
/// What the counters of jobs begin with, which are written with their ends.
pub const WRITTEN: &str = "written by ";
pub const LEASE: Duration = Duration::from_secs(2);

pub fn options() -> QueueOptions {
    QueueOptions::default()
        .lease(LEASE)
        .retry(Retry::fixed(Duration::ZERO))
        .unlimited_crashes()
        .retention(Retention::Keep)
        .limit(Limit::each_key().at_once(1))
        .limit(Limit::kind("narrow").at_once(2))
}

/// Where a worker in another language writes what it logs.
pub fn log_of(told: &Path, at: usize) -> PathBuf {
    told.with_extension(at.to_string())
}

pub struct Worker {
    child: Child,
    language: Option<Language>,
}

impl Worker {
    /// Starts one of this language, or of Rust, on the queue at this place.
    pub fn start(url: &str, place: &str, language: Option<Language>, at: usize, told: &Path) -> Self {
        let mut command = language.map_or_else(
            || Self::in_rust(url, at, told),
            |language| {
                let mut command = language.command();
                let examples = language.file("examples", "worker").parent().unwrap().to_owned();
                command.arg(language.file("tests/queue/handlers", "chaos")).arg(examples).args([url, place]);
                let log = File::options().create(true).append(true).open(log_of(told, at)).unwrap();
                command.arg(LEASE.as_secs_f64().to_string()).arg(told).stderr(log);
                command
            },
        );
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        Self { child, language }
    }

    fn in_rust(url: &str, at: usize, told: &Path) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "chaos::workers::worker", "--nocapture"]);
        // Each process is another worker, also if it takes the place of one that was killed.
        command.env(URL, url).env(NAME, format!("{at} {}", fastrand::u64(..))).env(TOLD, told);
        command
    }

    /// Kills it, and starts another one in its place.
    pub fn kill(&mut self, url: &str, place: &str, at: usize, told: &Path) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        *self = Self::start(url, place, self.language, at, told);
    }

    pub fn freeze(&self, time: Duration) {
        self.signal("STOP");
        std::thread::park_timeout(time);
        self.signal("CONT");
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(sent.expect("there is a program kill").success());
    }

    /// Lets it end what it has, and waits for its end.
    pub fn end(mut self) -> bool {
        match self.language {
            Some(_) => self.signal("TERM"),
            None => drop(self.child.stdin.take()),
        }
        // (A wait would end its input, which is the death of the test for those that are told.)
        let mut status = None;
        common::eventually("the end of a worker", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        // One that was about to begin has no handler for the signal yet, and no job.
        status.is_some_and(|status| status.success() || status.signal() == Some(15))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Does nothing as a test. As a process of its own it works until it is killed, or its input ends.
#[test]
fn worker() {
    let Ok(url) = std::env::var(URL) else { return };
    let name = std::env::var(NAME).unwrap();
    let queue = loop {
        let store = RedisStore::connect(&*url, crate::bench::options().holder(&*name));
        // The server may be away now.
        match store.map(|store| store.queue("q", options())) {
            Ok(Ok(queue)) => break queue,
            _ => std::thread::park_timeout(Duration::from_millis(50)),
        }
    };
    let told = std::fs::OpenOptions::new().append(true).create(true).open(std::env::var(TOLD).unwrap()).unwrap();
    let times = Arc::new(Mutex::new(HashMap::new()));
    let known = Arc::clone(&times);
    let builder = Runner::builder(&queue).max_processing(4).teardown(move |job, end| {
        let run: Option<(String, u128, u128)> = known.lock().remove(&(job.id().to_owned(), job.attempt()));
        if *end == AttemptEnd::Finished {
            let (key, begun, ended) = run.unwrap();
            let line = format!("{} {} {key} {begun} {ended} rust\n", job.id(), job.kind());
            (&told).write_all(line.as_bytes()).unwrap();
        }
    });
    let run = Arc::new(move |job: &Running, payload: Payload| {
        let begun = now();
        if payload.n.is_multiple_of(13) && job.attempt() == 1 {
            return Err("not in the first attempt".into());
        }
        std::thread::park_timeout(Duration::from_millis(payload.n % 20));
        let run = (payload.key.unwrap_or_else(|| "-".to_owned()), begun, now());
        times.lock().insert((job.id().to_owned(), job.attempt()), run);
        Ok(Outcome::Done)
    });
    let same = Arc::clone(&run);
    let builder = builder.on("narrow", move |job: &Running, payload| run(job, payload));
    let builder = builder.on_writing_redis("plain", move |job: &Running, payload, w| {
        w.incr(format!("{WRITTEN}{}", job.id()), 1);
        same(job, payload)
    });
    let runner = builder.start().unwrap();
    _ = std::io::stdin().read_to_end(&mut Vec::new());
    runner.stop().unwrap();
}

fn now() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros()
}
