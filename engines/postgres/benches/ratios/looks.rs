//! The table as a stream: the cost of asking for the head, and the time from a commit until the row
//! may be read.

use crate::row::{ROUNDS, line, median};
use crate::server::{Database, Server};
use parking_lot::Mutex;
use postgres::{Client, NoTls};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use waterline::{Index, Jobs};
use waterline_postgres::{PgJobs, PgOptions, PgStore};

const WRITERS: usize = 8;
/// The calls for the head and the reads of a round.
const CALLS: u32 = 300;
/// How long the writers write in a round.
const ROUND: Duration = Duration::from_secs(1);

const TABLE: &str = "
    CREATE TABLE events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload text NOT NULL,
        by xid8 NOT NULL DEFAULT pg_current_xact_id());
    INSERT INTO events (payload) SELECT repeat('x', 100) FROM generate_series(1, 10000)";

/// The rule that many use, though it skips rows: a row may be read once its transaction is older
/// than the oldest running one.
const OLDEST: &str = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1";

/// Prints both rows. Returns whether both are within their limits.
pub fn measure(server: &Server) -> bool {
    let database = server.database();
    let mut client = database.client();
    client.batch_execute(TABLE).expect("it is new");
    let store = PgStore::connect(database.config.clone(), NoTls, PgOptions::new()).expect("the server runs");
    let jobs = PgJobs::table(&store, "events", |_| Ok(())).expect("the table is a stream");
    let (read, look) = cost_of_a_look(&database, &mut client, &jobs);
    line("a look at a busy table, us: a read by the primary key (<= 10)", read, look);
    let oldest = client.prepare(OLDEST).expect("the server runs");
    let mut oldest = || client.query_one(&oldest, &[]).expect("the server runs").get::<_, i64>(0).cast_unsigned();
    let (theirs, ours) = in_turn(
        || until_readable(&database, |row| row.transaction, &mut oldest),
        || until_readable(&database, |row| row.id, || jobs.head().expect("the server runs").unwrap_or(0)),
    );
    // A row waits for the next call for the head, for the last writer that this call saw, and for
    // the call that no longer sees that one. Commits are flushed together, so a writer that began a
    // moment later often ends a flush later: calls that cost a quarter brought a tenth. The rule by
    // the oldest transaction does not wait for later writers. It skips the rows of writers that
    // take an id before they write.
    line("commit to readable, 8 writers, us: the rule by the oldest one (<= 8)", theirs, ours);
    look <= 10.0 * read && ours <= 8.0 * theirs
}

/// Measures two things in turn. Returns the medians, in microseconds.
fn in_turn(mut floor: impl FnMut() -> Duration, mut ours: impl FnMut() -> Duration) -> (f64, f64) {
    let (mut floors, mut all) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        floors.push(floor().as_secs_f64() * 1e6);
        all.push(ours().as_secs_f64() * 1e6);
    }
    (median(floors), median(all))
}

struct Row {
    id: Index,
    transaction: u64,
    committed: Instant,
}

/// Inserts a row in a transaction that stays open for a moment.
fn write(client: &mut Client) -> Row {
    let mut transaction = client.transaction().expect("the server runs");
    let insert = "INSERT INTO events (payload) VALUES (repeat('x', 100)) RETURNING id, by::text::bigint";
    let row = transaction.query_one(insert, &[]).expect("it is there");
    transaction.execute("SELECT pg_sleep(0.002)", &[]).expect("the server runs");
    transaction.commit().expect("the server runs");
    let number = |at| row.get::<_, i64>(at).cast_unsigned();
    Row { id: number(0), transaction: number(1), committed: Instant::now() }
}

/// Ends the writers when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Measures while eight writers write. Returns their rows, too.
fn while_written<R>(database: &Database, measured: impl FnOnce() -> R) -> (R, Vec<Row>) {
    let (ends, commits) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let answer = thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                let (mut client, mut mine) = (database.client(), Vec::new());
                while !ends.load(Ordering::Relaxed) {
                    mine.push(write(&mut client));
                }
                commits.lock().extend(mine);
            });
        }
        // Also if it panics: the scope waits for the writers.
        let _ends = Ends(&ends);
        measured()
    });
    (answer, commits.into_inner())
}

/// Returns the time of a read by primary key, and of a call for the head, beside eight writers.
fn cost_of_a_look(database: &Database, client: &mut Client, jobs: &PgJobs<()>) -> (f64, f64) {
    let read = client.prepare("SELECT * FROM events WHERE id = $1").expect("it is there");
    let ((read, looked), _) = while_written(database, || {
        let mut id = 0_i64;
        in_turn(
            || {
                let begun = Instant::now();
                for _ in 0..CALLS {
                    id = id % 10_000 + 1;
                    client.query_one(&read, &[&id]).expect("it is there");
                }
                begun.elapsed() / CALLS
            },
            || {
                let begun = Instant::now();
                (0..CALLS).for_each(|_| _ = jobs.head().expect("the server runs"));
                begun.elapsed() / CALLS
            },
        )
    });
    (read, looked)
}

/// Returns the mean time from the commit of a row to the first head at or above its number, for a
/// reader that asks again and again.
fn until_readable(database: &Database, number: impl Fn(&Row) -> u64, mut head: impl FnMut() -> u64) -> Duration {
    let (mut heads, rows) = while_written(database, || {
        let (begun, mut heads) = (Instant::now(), Vec::new());
        while begun.elapsed() < ROUND {
            let head = head();
            heads.push((head, Instant::now()));
        }
        heads
    });
    // The last rows, when all writers have ended.
    let last = rows.iter().map(&number).max().unwrap_or(0);
    while heads.last().is_none_or(|(head, _)| *head < last) {
        let head = head();
        heads.push((head, Instant::now()));
    }
    let waited = rows.iter().map(|row| {
        let at = heads.partition_point(|(head, _)| *head < number(row));
        heads[at].1.saturating_duration_since(row.committed)
    });
    waited.sum::<Duration>() / u32::try_from(rows.len()).expect("there are not so many")
}
