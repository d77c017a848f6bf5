//! The costs of the engine, each beside a floor that is measured in the same run, on a real server
//! that waits for its disk. `make bench-engines` runs it. Compare ratios, on a quiet machine.

#[path = "../../tests/server/mod.rs"]
mod server;

mod cpu;
mod edges;
mod graphile;
mod held;
mod kinds;
mod looks;
mod member;
mod pickup;
mod queue;
mod row;
mod takeover;

use postgres::{Client, NoTls, Transaction};
use row::{PAYLOAD, ROUNDS, line, median, per_second, rate};
use server::{Database, Server};
use std::time::Instant;
use waterline::{BoxError, Consumer, Index, MemoryJobs};
use waterline_postgres::{PgOptions, PgStore, QueueExt, RunnerExt};
use waterline_queue::{DrainLimits, NewJob, Queue, QueueOptions, Runner, Running};

/// The jobs of a round, and those of a round with a transaction for each.
const JOBS: u64 = 40_000;
const SINGLE_JOBS: u64 = 1_000;
/// The jobs of a round that go through a queue.
const SHARED_JOBS: u64 = 10_000;
/// The rows in one transaction of the bare loop.
const BATCH: usize = 1_024;
/// The connections that make a transaction for each job.
const CONNECTIONS: u64 = 8;

const PARTS: [&str; 3] = ["queue", "writing", "looks"];

const INSERT: &str = "INSERT INTO rows SELECT id, $2 FROM unnest($1::bigint[]) id";
const COUNT: &str = "UPDATE counter SET n = n + $1";

fn main() {
    if takeover::is_member()
        || pickup::is_worker()
        || graphile::is_worker()
        || std::env::args().any(|arg| arg == "--test")
    {
        return;
    }
    let server = Server::start(&[("fsync", "on"), ("max_wal_size", "2GB"), ("max_connections", "400")]);
    println!("{:<68} {:>12} {:>12} {:>8}", "", "floor", "ours", "ratio");
    // The parts that are named, or all of them. Any other word selects rows of the queue.
    let named: Vec<_> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let (parts, words): (Vec<_>, Vec<_>) = named.iter().partition(|name| PARTS.contains(&name.as_str()));
    let has = |part: &str| parts.is_empty() || parts.iter().any(|name| *name == part);
    let wanted = |row: &str| words.is_empty() || words.iter().any(|word| row.contains(word.as_str()));
    let mut is_within = !has("queue") || queue::measure(&server, &wanted);
    is_within &= !has("queue") || !wanted("pick-up") || pickup::measure(&server);
    is_within &= !has("queue") || !wanted("whole runners") || graphile::measure(&server);
    is_within &= !has("queue") || !wanted("a transaction stays open") || held::measure(&server);
    is_within &= !has("queue") || !wanted("claims of kinds") || kinds::measure(&server);
    is_within &= !has("queue") || !wanted("jobs that wait for one") || edges::measure(&server);
    is_within &= !has("writing") || measure_writing(&server);
    is_within &= !has("looks") || looks::measure(&server);
    assert!(is_within, "a ratio is beyond its limit");
}

/// Measures a stream whose results are rows, and the takeover of a standby. Returns whether both
/// ratios are within their limits.
fn measure_writing(server: &Server) -> bool {
    let (mut bare, mut ours, mut single) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (database, store) = database(server);
        bare.push(rate(JOBS, || bare_loop(&mut database.client())));
        ours.push(rate(JOBS, || writing(&store, JOBS)));
        single.push(rate(SINGLE_JOBS, || one_by_one(&database)));
    }
    takeover::measure(server);
    through_queue(server);
    let (bare, ours, single) = (median(bare), median(ours), median(single));
    line("start_writing, 100 B row + a counter, jobs/s: a bare loop (>= 0.6)", bare, ours);
    line("the same: a transaction a job on 8 connections (>= 5)", single, ours);
    ours >= 0.6 * bare && ours >= 5.0 * single
}

fn database(server: &Server) -> (Database, PgStore) {
    let database = server.database();
    let tables =
        "CREATE TABLE rows (id bigint, payload text); CREATE TABLE counter (n bigint); INSERT INTO counter VALUES (0)";
    database.client().batch_execute(tables).expect("the database is new");
    let store = database.store(PgOptions::new());
    (database, store)
}

/// Makes a transaction for each 1,024 rows, and nothing else.
fn bare_loop(client: &mut Client) {
    let ids: Vec<i64> = (0..JOBS.cast_signed()).collect();
    for batch in ids.chunks(BATCH) {
        let mut transaction = client.transaction().expect("the server runs");
        write(&mut transaction, batch).expect("the tables are there");
        transaction.commit().expect("the server runs");
    }
}

fn write(transaction: &mut Transaction<'_>, ids: &[i64]) -> Result<(), BoxError> {
    transaction.execute(INSERT, &[&ids, &PAYLOAD])?;
    transaction.execute(COUNT, &[&i64::try_from(ids.len())?])?;
    Ok(())
}

fn writing(store: &PgStore, count: u64) {
    let jobs: MemoryJobs<u64> = (0..count).collect();
    let consumer = Consumer::builder(jobs, store.progress("p")).stop_at(count - 1);
    let consumer = consumer.start_writing(
        |job| Ok(job.payload),
        |tx: &mut Transaction<'_>, results: &[(Index, u64)]| {
            let ids: Vec<i64> = results.iter().map(|(index, _)| index.cast_signed()).collect();
            write(tx, &ids)
        },
    );
    consumer.expect("the name is free").join().expect("nothing fails");
}

/// Measures what it costs a stream to hand its jobs to a queue that other machines run: its own
/// part, and all of it if the one runner is on this machine.
fn through_queue(server: &Server) {
    let (mut alone, mut pushing, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (_alone, store) = database(server);
        alone.push(rate(SHARED_JOBS, || writing(&store, SHARED_JOBS)));
        let (_shared, store) = database(server);
        let queue = store.queue("rows", QueueOptions::default()).expect("the database is new");
        let begun = Instant::now();
        pushing.push(rate(SHARED_JOBS, || push(&store, &queue)));
        run(&queue);
        whole.push(per_second(SHARED_JOBS, begun));
    }
    let (alone, pushing, whole) = (median(alone), median(pushing), median(whole));
    line("a stream that pushes each job (beside start_writing, jobs/s)", alone, pushing);
    line("the same, until one runner here has run them all", alone, whole);
}

fn push(store: &PgStore, queue: &Queue) {
    let (jobs, queue): (MemoryJobs<u64>, _) = ((0..SHARED_JOBS).collect(), queue.clone());
    let consumer = Consumer::builder(jobs, store.progress("p")).stop_at(SHARED_JOBS - 1).start_writing(
        |job| Ok(job.payload),
        move |tx: &mut Transaction<'_>, results: &[(Index, u64)]| {
            let jobs: Result<Vec<_>, _> = results.iter().map(|(_, number)| NewJob::new("row", number)).collect();
            queue.push_all_in(tx, jobs?)?;
            Ok(())
        },
    );
    consumer.expect("the name is free").join().expect("nothing fails");
}

fn run(queue: &Queue) {
    let runner = Runner::builder(queue).max_processing(256).on_writing(
        "row",
        |_job, number: u64| Ok(number.cast_signed()),
        |tx: &mut Transaction<'_>, rows: &[(Running, i64)]| {
            write(tx, &rows.iter().map(|(_, number)| *number).collect::<Vec<_>>())
        },
    );
    runner.drain(DrainLimits::default()).expect("the server runs");
}

fn one_by_one(database: &Database) {
    std::thread::scope(|scope| {
        for of in 0..CONNECTIONS {
            scope.spawn(move || {
                let mut client = database.config.connect(NoTls).expect("the server runs");
                for id in (of..SINGLE_JOBS).step_by(8) {
                    let mut transaction = client.transaction().expect("the server runs");
                    write(&mut transaction, &[id.cast_signed()]).expect("the tables are there");
                    transaction.commit().expect("the server runs");
                }
            });
        }
    });
}
