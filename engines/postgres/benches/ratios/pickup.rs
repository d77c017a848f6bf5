//! How long it takes until an idle worker in another process has a job, from the start of its push.

use crate::member::{self, queue};
use crate::server::{Database, Server};
use postgres::NoTls;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use waterline_postgres::{PgOptions, PgStore};
use waterline_queue::{NewJob, Outcome, Runner};

const ROLE: &str = "pick-up";

/// The pushes, and those whose bell is lost.
const PUSHES: usize = 200;
const UNHEARD: usize = 5;
/// How long a worker waits without a bell before it asks.
const POLL: Duration = Duration::from_secs(1);

/// If this is the process of a worker, works until its input ends.
pub fn is_worker() -> bool {
    let Some(config) = member::config(ROLE) else { return false };
    let store = PgStore::connect(config, NoTls, PgOptions::new()).expect("the server runs");
    let queue = queue(&store);
    let took = |_: &_, pushed: u64| {
        println!("{}", now().saturating_sub(pushed));
        Ok(Outcome::Done)
    };
    let runner = Runner::builder(&queue).max_processing(2).on("k", took).start().expect("the queue is open");
    _ = std::io::stdin().read_line(&mut String::new());
    drop(runner);
    true
}

/// Microseconds, by the clock of this machine.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// A worker that is killed on drop.
struct Worker(Child, BufReader<ChildStdout>);

impl Worker {
    fn start(server: &Server, database: &Database) -> Self {
        let child = member::command(ROLE, server.port(), database).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("this program runs");
        let out = BufReader::new(child.stdout.take().expect("it is piped"));
        Self(child, out)
    }

    fn took(&mut self) -> Duration {
        let mut line = String::new();
        self.1.read_line(&mut line).expect("the worker writes a line for each job");
        Duration::from_micros(line.trim().parse().expect("it is a number"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Prints the rows. Returns whether all are within their limits.
pub fn measure(server: &Server) -> bool {
    let database = server.database();
    let queue = queue(&database.store(PgOptions::new()));
    let mut client = database.client();
    let mut worker = Worker::start(server, &database);
    // The register of the bell is above 0 while a worker listens.
    let bell = "SELECT coalesce(pg_sequence_last_value(bell), 0) FROM waterline.queue WHERE name = 'q'";
    let mut is_idle = || {
        while client.query_one(bell, &[]).expect("the server runs").get::<_, i64>(0) <= 0 {
            std::thread::park_timeout(Duration::from_millis(2));
        }
        // It asks once more after that.
        std::thread::park_timeout(Duration::from_millis(25));
    };
    let (mut pushes, mut pickups, mut unheard) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..PUSHES {
        is_idle();
        let begun = Instant::now();
        queue.push(NewJob::new("k", &now()).expect("it is JSON")).expect("the server runs");
        pushes.push(begun.elapsed());
        pickups.push(worker.took());
    }
    let mut silence = database.client();
    for _ in 0..UNHEARD {
        is_idle();
        // As if the notification were lost.
        silence.batch_execute("SELECT setval(bell, 0) FROM waterline.queue").expect("the server runs");
        queue.push(NewJob::new("k", &now()).expect("it is JSON")).expect("the server runs");
        unheard.push(worker.took());
    }
    [&mut pushes, &mut pickups, &mut unheard].into_iter().for_each(|times| times.sort_unstable());
    let (push, half) = (pushes[PUSHES / 2], pickups[PUSHES / 2]);
    let (most, latest) = (pickups[PUSHES * 99 / 100], unheard[UNHEARD - 1]);
    println!(
        "pick-up by an idle worker of another process, durable: p50 {half:.1?} (<= push {push:.1?} + 2 ms), \
         p99 {most:.1?} (< 20 ms), with the bell lost {latest:.1?} (<= 1.2 s)"
    );
    half <= push + Duration::from_millis(2)
        && most < Duration::from_millis(20)
        && latest <= POLL + Duration::from_millis(200)
}
