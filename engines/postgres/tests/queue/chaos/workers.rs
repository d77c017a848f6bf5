//! The workers in Rust, as processes: a runner, and one with its rows in the end's transaction.

use super::settings::{LEASE, options};
use parking_lot::Mutex;
use postgres::{Client, Config, NoTls, Transaction};
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use waterline::BoxError;
use waterline_postgres::{PgOptions, PgStore, RunnerExt};
use waterline_queue::{AttemptEnd, Outcome, Runner, Running};

/// The variables that make a process a worker: the database, its user, and the file for what it was
/// told.
const URL: &str = "WATERLINE_CHAOS_URL";
const USER: &str = "WATERLINE_CHAOS_USER";
const TOLD: &str = "WATERLINE_CHAOS_TOLD";
pub const SLOTS: u32 = 4;

pub fn command(url: &str, user: &str, told: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "chaos::workers::worker", "--nocapture"]);
    command.env(URL, url).env(USER, user).env(TOLD, told);
    command
}

/// Does nothing as a test. As a process of its own it works until it is killed, or its input ends.
#[test]
fn worker() {
    let Ok(url) = std::env::var(URL) else { return };
    let config: Config = url.parse().unwrap();
    let queue = loop {
        let store = PgStore::connect(config.clone(), NoTls, PgOptions::new().ttl(LEASE));
        // The server may be away now.
        match store.map(|store| store.queue("q", options())) {
            Ok(Ok(queue)) => break queue,
            _ => std::thread::park_timeout(Duration::from_millis(50)),
        }
    };
    let told = std::fs::OpenOptions::new().append(true).create(true).open(std::env::var(TOLD).unwrap()).unwrap();
    let told = Mutex::new(told);
    let mut builder = Runner::builder(&queue).max_processing(SLOTS as usize).teardown(move |job, end| {
        if *end == AttemptEnd::Finished {
            told.lock().write_all(format!("{}\n", job.id()).as_bytes()).unwrap();
        }
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let _context = runtime.enter();
    let writes = std::env::var(USER).unwrap() == "writer";
    let client = Arc::new(Mutex::new(None::<Client>));
    for kind in ["plain", "narrow"] {
        if writes {
            let write = |transaction: &mut Transaction<'_>, runs: &[(Running, SystemTime)]| -> Result<(), BoxError> {
                for (job, begun) in runs {
                    transaction.execute(RUN, &[&job.id(), &"writer", begun])?;
                }
                Ok(())
            };
            builder = if kind == "plain" {
                builder.on_writing(kind, work, write)
            } else {
                let future = |job: Running, number| async move { tokio::task::block_in_place(|| work(&job, number)) };
                builder.on_writing_async(kind, future, write)
            };
        } else {
            let (client, config) = (Arc::clone(&client), config.clone());
            builder = builder.on(kind, move |job, number: u64| {
                let begun = work(job, number)?;
                // This is no effect: if it is killed between this and the end, the job runs again.
                note(&mut client.lock(), &config, job.id(), begun);
                Ok(Outcome::Done)
            });
        }
    }
    let runner = builder.start().unwrap();
    _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(runner);
}

const RUN: &str = "INSERT INTO runs VALUES ($1, $2, $3, clock_timestamp())";

fn work(job: &Running, number: u64) -> Result<SystemTime, BoxError> {
    let begun = SystemTime::now();
    if number.is_multiple_of(13) && job.attempt() == 1 {
        return Err("not in the first attempt".into());
    }
    std::thread::park_timeout(Duration::from_millis(number % 20));
    Ok(begun)
}

/// Records a run, even if the server is away for a time: that is no failure of the job.
fn note(client: &mut Option<Client>, config: &Config, id: &str, begun: SystemTime) {
    loop {
        let open = client.take().map_or_else(|| config.connect(NoTls), Ok);
        let noted = open.and_then(|mut open| {
            open.execute(RUN, &[&id, &"rust noted", &begun])?;
            Ok(open)
        });
        match noted {
            Ok(open) => return *client = Some(open),
            Err(_) => std::thread::park_timeout(Duration::from_millis(20)),
        }
    }
}
