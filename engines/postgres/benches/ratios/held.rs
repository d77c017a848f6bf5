//! Jobs that go through the queue while a transaction stays open all the time, so that no dead row
//! can be cleaned up: the last round beside the first one.

use crate::row::{PAYLOAD, line, rate};
use crate::server::{Database, Server};
use std::sync::atomic::{AtomicU64, Ordering};
use waterline_postgres::PgOptions;
use waterline_queue::{Limit, NewJob, Queue, QueueOptions, Retention};

const ROUNDS: usize = 5;
/// The jobs of a round, those of a round with keys, and the keys.
const JOBS: u64 = 40_000;
const KEYED: u64 = 8_000;
const KEYS: u64 = 400;
const CLIENTS: u64 = 4;
const BATCH: i32 = 16;

const TURN: &str =
    "SELECT * FROM waterline.turn($1, $2, $3, '{}', '{}', '{}', $4, $5, $6, NULL, NULL, 'w', false, NULL, NULL)";

/// Prints the rows. Returns whether all are within their limits.
pub fn measure(server: &Server) -> bool {
    let database = server.database();
    let set = format!("ALTER DATABASE {} SET synchronous_commit = off", database.name);
    database.client().batch_execute(&set).expect("the server runs");
    let store = database.store(PgOptions::new());
    let options = QueueOptions::default().retention(Retention::Drop);
    let plain = store.queue("plain", options.clone()).expect("it is new");
    let keyed = store.queue("keyed", options.limit(Limit::each_key().at_once(1))).expect("it is new");
    let mut holder = database.client();
    let held = holder.build_transaction().isolation_level(postgres::IsolationLevel::RepeatableRead);
    let mut held = held.start().expect("the server runs");
    held.query("SELECT 1 FROM waterline.queue", &[]).expect("the server runs");
    let job = |_| NewJob::new("k", PAYLOAD).expect("it is JSON");
    let (first, last) = rounds(&database, &plain, JOBS, &job);
    line("a transaction stays open, 200,000 jobs, jobs/s: the first round (>= 0.8)", first, last);
    let of_key = |number: u64| job(number).key(format!("key {}", number % KEYS));
    let (keyed_first, keyed_last) = rounds(&database, &keyed, KEYED, &of_key);
    line("the same with 400 keys, one at once of each: the first round (>= 0.5)", keyed_first, keyed_last);
    last >= 0.8 * first && keyed_last >= 0.5 * keyed_first
}

/// Returns the rates of the first round and of the last one.
fn rounds(database: &Database, queue: &Queue, jobs: u64, job: &dyn Fn(u64) -> NewJob) -> (f64, f64) {
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        for from in (0..jobs).step_by(1_000) {
            queue.push_all((from..from + 1_000).map(job)).expect("the server runs");
        }
        rates.push(rate(jobs, || work(database, queue.name(), jobs, None)));
    }
    (rates[0], rates[ROUNDS - 1])
}

/// Claims and ends jobs of these kinds; `None`: of all.
pub fn work(database: &Database, queue: &str, jobs: u64, kinds: Option<&[String]>) {
    let ended = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = database.client();
                let turn = client.prepare(TURN).expect("it is right");
                let mut held: (Vec<i64>, Vec<i64>) = Default::default();
                while !held.0.is_empty() || ended.load(Ordering::Relaxed) < jobs {
                    let ends = vec!["finished"; held.0.len()];
                    let rows =
                        client.query(&turn, &[&held.0, &held.1, &ends, &queue, &BATCH, &kinds]).expect("it is right");
                    ended.fetch_add(ends.len() as u64, Ordering::Relaxed);
                    let claimed = rows.iter().filter(|row| row.get::<_, &str>(0) == "claimed");
                    held = claimed.map(|row| (row.get::<_, i64>(1), row.get::<_, i64>(5))).unzip();
                }
            });
        }
    });
    assert_eq!(ended.into_inner(), jobs);
}
