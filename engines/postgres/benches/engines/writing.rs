//! Results that are written in one transaction with the progress, beside the same statements by
//! hand: a row of 100 bytes a job, and counters. By hand means one thread that has the rows at
//! hand: no source, no threads, no progress.

use crate::server::{Database, Server};
use crate::{Limit, Table, in_turn};
use postgres::Transaction;
use std::thread;
use std::time::{Duration, Instant};
use waterline::{BoxError, Consumer, Index, MemoryJobs};
use waterline_postgres::PgOptions;

const JOBS: u64 = 100_000;
/// A number of transactions that can be made in a moment.
const ALONE: u64 = 2_000;
const BATCH: u64 = 1_024;
const CONNECTIONS: u64 = 8;
const COUNTERS: u64 = 100;

const TABLES: &str = "
    CREATE TABLE results (job bigint PRIMARY KEY, value bytea NOT NULL);
    CREATE TABLE counters (id bigint PRIMARY KEY, value bigint NOT NULL);
    INSERT INTO counters SELECT id, 0 FROM generate_series(0, 99) AS id;";

pub(crate) fn rows(table: &mut Table, server: &Server) {
    let batches = "start_writing: share of a loop of batches of 1,024";
    if table.wants(batches) {
        let (floor, ours) = in_turn(|| by_hand(server), || written(server, JOBS));
        table.row(batches, Limit::AtLeast(0.6), floor / ours, "");
        println!("|   {:.0} jobs/s, and {:.0} jobs/s by hand", JOBS as f64 / ours, JOBS as f64 / floor);
    }
    let alone = "start_writing: times a transaction a job on 8 connections";
    if table.wants(alone) {
        let (floor, ours) = in_turn(|| one_by_one(server), || written(server, JOBS));
        let (floor, ours) = (ALONE as f64 / floor, JOBS as f64 / ours);
        table.row(alone, Limit::AtLeast(5.0), ours / floor, "");
        println!("|   {ours:.0} jobs/s, and {floor:.0} jobs/s by a transaction each");
    }
}

fn with_tables(server: &Server) -> Database {
    let database = server.database();
    database.client().batch_execute(TABLES).expect("it is new");
    database
}

/// Writes the rows of these jobs, and counts them.
fn write(tx: &mut Transaction<'_>, jobs: impl Iterator<Item = Index>) -> Result<(), BoxError> {
    let jobs: Vec<i64> = jobs.map(Index::cast_signed).collect();
    let values = vec![&[7_u8; 100][..]; jobs.len()];
    tx.execute("INSERT INTO results SELECT * FROM unnest($1::bigint[], $2::bytea[])", &[&jobs, &values])?;
    let mut counts = vec![0_i64; COUNTERS as usize];
    jobs.iter().for_each(|job| counts[(job.cast_unsigned() % COUNTERS) as usize] += 1);
    let ids: Vec<i64> = (0..COUNTERS.cast_signed()).filter(|id| counts[*id as usize] > 0).collect();
    counts.retain(|count| *count > 0);
    let add = "UPDATE counters c SET value = value + n.count FROM unnest($1::bigint[], $2::bigint[]) AS n (id, count)
        WHERE c.id = n.id";
    tx.execute(add, &[&ids, &counts])?;
    Ok(())
}

fn by_hand(server: &Server) -> Duration {
    let mut client = with_tables(server).client();
    let begun = Instant::now();
    for first in (0..JOBS).step_by(BATCH as usize) {
        let mut transaction = client.transaction().expect("the server runs");
        write(&mut transaction, first..JOBS.min(first + BATCH)).expect("the server runs");
        transaction.commit().expect("the server runs");
    }
    begun.elapsed()
}

/// A transaction for each job, as most people begin.
fn one_by_one(server: &Server) -> Duration {
    let database = with_tables(server);
    let clients: Vec<_> = (0..CONNECTIONS).map(|_| database.client()).collect();
    let begun = Instant::now();
    thread::scope(|scope| {
        for (mut client, first) in clients.into_iter().zip(0..) {
            scope.spawn(move || {
                let insert = client.prepare("INSERT INTO results VALUES ($1, $2)").expect("it is there");
                let add = client.prepare("UPDATE counters SET value = value + 1 WHERE id = $1").expect("it is there");
                for job in (first..ALONE).step_by(CONNECTIONS as usize) {
                    let mut transaction = client.transaction().expect("the server runs");
                    let (id, counter) = (job.cast_signed(), (job % COUNTERS).cast_signed());
                    transaction.execute(&insert, &[&id, &&[7_u8; 100][..]]).expect("the server runs");
                    transaction.execute(&add, &[&counter]).expect("the server runs");
                    transaction.commit().expect("the server runs");
                }
            });
        }
    });
    begun.elapsed()
}

fn written(server: &Server, jobs: u64) -> Duration {
    let database = with_tables(server);
    let store = database.store(PgOptions::new());
    let source: MemoryJobs<u64> = (0..jobs).collect();
    let begun = Instant::now();
    Consumer::builder(source, store.progress("rows"))
        .max_processing(2)
        .stop_at(jobs - 1)
        .start_writing(|_| Ok(()), |tx, jobs| write(tx, jobs.iter().map(|(index, ())| *index)))
        .and_then(Consumer::join)
        .expect("every job is written");
    begun.elapsed()
}
