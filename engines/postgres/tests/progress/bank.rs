//! Rows of a user, which show whether anything was written twice or not at all.

use crate::server::Database;
use postgres::Transaction;
use std::collections::BTreeMap;
use waterline::{BoxError, Index};

/// A row for each job, and a counter of all jobs. No constraint refuses a second row of a job.
const TABLES: &str = "
    CREATE TABLE effects (job bigint NOT NULL, fence bigint NOT NULL, written timestamptz DEFAULT clock_timestamp());
    CREATE TABLE counter (jobs bigint NOT NULL);
    INSERT INTO counter VALUES (0);";

pub fn open(database: &Database) {
    database.client().batch_execute(TABLES).unwrap();
}

/// Writes a row for each of these jobs, which ran in the life with this fence, and counts them.
pub fn write(tx: &mut Transaction<'_>, results: &[(Index, u64)]) -> Result<(), BoxError> {
    let (jobs, fences): (Vec<i64>, Vec<i64>) =
        results.iter().map(|(job, fence)| (job.cast_signed(), fence.cast_signed())).unzip();
    tx.execute("INSERT INTO effects (job, fence) SELECT * FROM unnest($1::bigint[], $2::bigint[])", &[&jobs, &fences])?;
    tx.execute("UPDATE counter SET jobs = jobs + $1", &[&i64::try_from(jobs.len())?])?;
    Ok(())
}

/// The number of jobs that have a row.
pub fn count(database: &Database) -> i64 {
    database.client().query_one("SELECT jobs FROM counter", &[]).unwrap().get(0)
}

/// Asserts that each of the jobs from 0 on has one row, and is counted once.
#[track_caller]
pub fn assert_exact(database: &Database, jobs: u64) {
    assert_these(database, 0..jobs);
}

/// Asserts that each of these jobs has one row and is counted once, and no other has.
#[track_caller]
pub fn assert_these(database: &Database, jobs: impl IntoIterator<Item = Index>) {
    let mut rows = BTreeMap::<u64, i64>::new();
    let found = database.client().query("SELECT job, count(*) FROM effects GROUP BY job", &[]).unwrap();
    rows.extend(found.iter().map(|row| (row.get::<_, i64>(0).unsigned_abs(), row.get(1))));
    let wanted: BTreeMap<u64, i64> = jobs.into_iter().map(|job| (job, 1)).collect();
    let wrong: Vec<_> = rows.iter().filter(|(job, count)| wanted.get(job) != Some(count)).take(9).collect();
    assert!(wrong.is_empty(), "jobs with another number of rows than one: {wrong:?}");
    let missing: Vec<_> = wanted.keys().filter(|job| !rows.contains_key(job)).take(9).collect();
    assert!(missing.is_empty(), "jobs without a row: {missing:?}");
    assert_eq!(count(database), i64::try_from(wanted.len()).unwrap(), "the counter");
}
