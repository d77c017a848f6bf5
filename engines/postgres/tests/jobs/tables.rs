//! Tables of the tests, and sources on them.

use crate::server::{Database, PATIENCE};
use parking_lot::Mutex;
use postgres::{Client, Row};
use std::ops::RangeInclusive;
use std::time::Instant;
use waterline::{BoxError, Handle, Index, Item, Jobs, Sparse, Status};
use waterline_postgres::{PgJobs, PgOptions, PgStore};

pub const EVENTS: &str =
    "CREATE TABLE events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload text NOT NULL)";

pub fn payload(row: &Row) -> Result<String, BoxError> {
    Ok(row.try_get("payload")?)
}

/// A source on the table `events` of this store.
pub fn events(store: &PgStore) -> PgJobs<String> {
    PgJobs::table(store, "events", payload).expect("the table is a stream")
}

/// A database with the table, a client for the test, and a store.
pub fn with_events(database: &Database) -> (Client, PgStore) {
    let mut client = database.client();
    client.batch_execute(EVENTS).expect("it is new");
    let store = PgStore::connect(database.config.clone(), postgres::NoTls, PgOptions::new()).expect("the server runs");
    (client, store)
}

pub fn insert(client: &mut Client, payload: &str) -> Index {
    let row = client.query_one("INSERT INTO events (payload) VALUES ($1) RETURNING id::bigint", &[&payload]);
    row.expect("the table is there").get::<_, i64>(0).cast_unsigned()
}

/// Asks until the head is this one.
pub fn wait_for_head(jobs: &impl Jobs, head: Index) {
    let begun = Instant::now();
    loop {
        let now = jobs.head();
        if matches!(now, Ok(Some(now)) if now == head) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "the head is {now:?}, and not {head}");
    }
}

/// Returns the jobs of a source up to its head.
pub fn all<J: Jobs>(jobs: &J) -> Vec<(Index, J::Job)> {
    let Some(head) = jobs.head().expect("it can be read") else { return Vec::new() };
    let mut read = Sparse::new(0);
    while read.next() <= head {
        jobs.read_sparse(read.next()..=head, 1_000, &mut read).expect("it can be read");
    }
    let job = |item| if let Item::Job(index, job) = item { Some((index, job)) } else { None };
    read.into_iter().filter_map(job).collect()
}

/// Returns the jobs of a source once its head is this one: it is lower until the log is flushed.
pub fn all_up_to<J: Jobs>(jobs: &J, head: Index) -> Vec<(Index, J::Job)> {
    wait_for_head(jobs, head);
    all(jobs)
}

/// Waits until the status of a consumer is as wanted.
pub fn until(handle: &Handle, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
    let begun = Instant::now();
    loop {
        let status = handle.status();
        if wanted(&status) {
            return status;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: {status}");
        // Returns at once if the consumer has ended.
        _ = handle.wait_for(Index::MAX - 1, std::time::Duration::from_millis(5));
    }
}

/// A source with a wrong rule: its head is the result of a statement.
pub struct Wrong {
    client: Mutex<Client>,
    head: &'static str,
}

impl Wrong {
    /// The highest visible id.
    pub const HIGHEST: &str = "SELECT max(id) FROM events";
    /// The highest id among the rows that are older than the oldest transaction.
    pub const OLDEST: &str = "SELECT max(id) FROM events WHERE by < pg_snapshot_xmin(pg_current_snapshot())";

    pub fn new(client: Client, head: &'static str) -> Self {
        Self { client: Mutex::new(client), head }
    }
}

impl Jobs for Wrong {
    type Job = ();

    fn head(&self) -> Result<Option<Index>, BoxError> {
        let row = self.client.lock().query_one(self.head, &[])?;
        Ok(row.get::<_, Option<i64>>(0).map(i64::cast_unsigned))
    }

    fn at_index(&self, index: Index) -> Result<Option<()>, BoxError> {
        let mut answer = Sparse::new(index);
        self.read_sparse(index..=index, 1, &mut answer)?;
        Ok(answer.into_iter().any(|item| matches!(item, Item::Job(..))).then_some(()))
    }

    fn read_sparse(&self, run: RangeInclusive<Index>, most: usize, into: &mut Sparse<()>) -> Result<(), BoxError> {
        let head = self.head()?.unwrap_or(0).min(*run.end());
        let bounds = (run.start().cast_signed(), head.cast_signed());
        let rows = "SELECT id FROM events WHERE id >= $1 AND id <= $2 ORDER BY id LIMIT $3";
        let rows = self.client.lock().query(rows, &[&bounds.0, &bounds.1, &(most as i64)])?;
        rows.iter().for_each(|row| into.job(row.get::<_, i64>(0).cast_unsigned(), ()));
        if rows.len() < most {
            into.none_through(head);
        }
        Ok(())
    }
}
