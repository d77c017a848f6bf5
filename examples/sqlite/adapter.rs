//! A source, a progress and its transaction for an SQLite database. Copy this file, and adapt it.

use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use std::ops::RangeInclusive;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};
use waterline::{BoxError, Checkpoint, CommitError, Error, Index, Item, Jobs, Progress, Record, SaveError};
use waterline::{Saved, Sparse, Tenure, Transactional};

/// The rows of a table, by their column `id`. An id that no row has is a gap, and stays one. So the
/// table needs an `INTEGER PRIMARY KEY AUTOINCREMENT`: without that word SQLite gives the id of a
/// deleted row to a new one. SQLite has one writer at a time, so ids become visible in order.
pub struct RowsById<T> {
    connection: Mutex<Connection>,
    table: &'static str,
    read: fn(&Row<'_>) -> rusqlite::Result<T>,
}

impl<T> RowsById<T> {
    pub fn new(connection: Connection, table: &'static str, read: fn(&Row<'_>) -> rusqlite::Result<T>) -> Self {
        Self { connection: Mutex::new(connection), table, read }
    }
}

impl<T: Send + 'static> Jobs for RowsById<T> {
    type Job = T;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        let head = format!("SELECT max(id) FROM {}", self.table);
        let id: Option<i64> = self.connection.lock().prepare_cached(&head)?.query_one([], |row| row.get(0))?;
        Ok(id.map(i64::cast_unsigned))
    }

    fn at_index(&self, index: Index) -> Result<Option<T>, BoxError> {
        let mut answer = Sparse::new(index);
        self.read_sparse(index..=index, 1, &mut answer)?;
        Ok(answer.into_iter().find_map(|item| if let Item::Job(_, job) = item { Some(job) } else { None }))
    }

    fn read_sparse(&self, run: RangeInclusive<Index>, most: usize, into: &mut Sparse<T>) -> Result<(), BoxError> {
        // First the head, then the rows: a row that appears in between is no gap.
        let head = self.head()?;
        let Ok(first) = i64::try_from(*run.start()) else { return Ok(()) };
        let connection = self.connection.lock();
        let rows = format!("SELECT * FROM {} WHERE id >= ?1 ORDER BY id LIMIT ?2", self.table);
        let mut rows = connection.prepare_cached(&rows)?;
        let mut rows = rows.query(params![first, i64::try_from(most)?])?;
        for _ in 0..most {
            let Some(row) = rows.next()? else {
                head.into_iter().for_each(|head| into.none_through(head));
                break;
            };
            let id = row.get::<_, i64>("id")?.cast_unsigned();
            if id > *run.end() {
                into.none_through(id - 1);
                break;
            }
            into.job(id, (self.read)(row)?);
        }
        Ok(())
    }
}

/// The tables of [`SqliteProgress`]. An index is stored with its 64 bits: SQLite has no unsigned
/// integers.
pub const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS progress (
        name TEXT PRIMARY KEY, fence INTEGER NOT NULL, last INTEGER, next INTEGER, done TEXT NOT NULL DEFAULT '[]',
        holder TEXT NOT NULL DEFAULT '', expires_at INTEGER NOT NULL DEFAULT 0);
    CREATE TABLE IF NOT EXISTS progress_records (
        name TEXT, key BLOB, value BLOB NOT NULL, PRIMARY KEY (name, key)) WITHOUT ROWID;";

/// The progress of one consumer, as a row of `progress`. The fence of the row grows with each life.
/// Every write of a life checks its fence, so an earlier life, however late, writes nothing.
///
/// With a [lease](Self::leased) no other process takes the name while this life renews it. A
/// standby needs that: without it, each of two processes would take the name from the other one.
pub struct SqliteProgress {
    connection: Connection,
    name: String,
    fence: i64,
    tenure: Option<Tenure>,
    lease: Option<Lease>,
}

/// The lease of a name. A thread renews it until this is dropped, and then gives it back.
struct Lease {
    holder: String,
    time: Duration,
    connection: Option<Connection>,
    renewal: Option<(Sender<()>, JoinHandle<()>)>,
}

impl SqliteProgress {
    pub fn new(connection: Connection, name: &str) -> Self {
        Self { connection, name: name.to_owned(), fence: 0, tenure: None, lease: None }
    }

    /// Holds the name for this time, and renews it on another connection. If the process dies,
    /// another one can take the name when the time is over. All processes must have the same clock.
    pub fn leased(self, connection: Connection, holder: &str, time: Duration) -> Self {
        let lease = Lease { holder: holder.to_owned(), time, connection: Some(connection), renewal: None };
        Self { lease: Some(lease), ..self }
    }

    fn take_name(&mut self) -> Result<Option<Saved>, BoxError> {
        let begun = Instant::now();
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let now = expiry(Duration::ZERO);
        let held = "SELECT holder, expires_at - ?2 FROM progress WHERE name = ?1 AND expires_at > ?2";
        let held = transaction.query_one(held, params![self.name, now], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)));
        if let Some((holder, left)) = held.optional()?.filter(|_| self.lease.is_some()) {
            let expires_in = Duration::from_millis(left.unsigned_abs());
            return Err(Error::Leased { name: self.name.clone(), holder, expires_in }.into());
        }
        let take = "INSERT INTO progress (name, fence, holder, expires_at) VALUES (?1, 1, ?2, ?3)
            ON CONFLICT (name) DO UPDATE SET fence = fence + 1, holder = ?2, expires_at = ?3
            RETURNING fence, last, next, done";
        let (holder, expires_at) =
            self.lease.as_ref().map_or(("", 0), |lease| (lease.holder.as_str(), expiry(lease.time)));
        let row = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get::<_, String>(3)?));
        let (fence, last, next, done): (_, Option<i64>, Option<i64>, _) =
            transaction.query_one(take, params![self.name, holder, expires_at], row)?;
        let saved = match next {
            None => None,
            Some(next) => {
                let done: Vec<(Index, Index)> = serde_json::from_str(&done)?;
                let done = done.into_iter().map(|(first, last)| first..=last).collect();
                let mut saved = Saved::new(last.map(i64::cast_unsigned), next.cast_unsigned(), done);
                let mut rows = transaction.prepare("SELECT key, value FROM progress_records WHERE name = ?1")?;
                let mut rows = rows.query([&self.name])?;
                while let Some(row) = rows.next()? {
                    let (key, value) = (row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob()?);
                    saved.records.push(Record::new(key, Some(value)));
                }
                Some(saved)
            }
        };
        transaction.commit()?;
        self.fence = fence;
        self.renew(begun);
        Ok(saved)
    }

    /// Starts the thread that renews the lease just taken.
    fn renew(&mut self, begun: Instant) {
        let (Some(lease), Some(tenure)) = (&mut self.lease, &self.tenure) else { return };
        let Some(connection) = lease.connection.take() else { return };
        let (name, fence, time, tenure) = (self.name.clone(), self.fence, lease.time, tenure.clone());
        let (end, ends) = channel();
        let renew = move || renew(&connection, &name, fence, begun, time, &tenure, &ends);
        lease.renewal = Some((end, std::thread::spawn(renew)));
    }
}

/// Renews a lease until the sender is dropped, and then gives it back. If it cannot, the consumer
/// is told while the lease still holds, and starts no further job.
fn renew(
    connection: &Connection,
    name: &str,
    fence: i64,
    begun: Instant,
    time: Duration,
    tenure: &Tenure,
    ends: &Receiver<()>,
) {
    let set = |expires_at: i64| {
        let renew = "UPDATE progress SET expires_at = ?3 WHERE name = ?1 AND fence = ?2";
        connection.execute(renew, params![name, fence, expires_at])
    };
    let (pause, mut until) = (time / 4, begun + time);
    while ends.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let now = Instant::now();
        match set(expiry(time)) {
            Ok(0) => return tenure.lost("another life has the name".into()),
            Ok(_) => until = now + time,
            Err(error) if Instant::now() + pause >= until => {
                return tenure.lost(format!("the lease could not be renewed: {error}").into());
            }
            Err(_) => {}
        }
    }
    // If this fails, the lease expires by itself.
    let _ = set(0);
}

/// Returns the time this long from now, in milliseconds since 1970.
fn expiry(time: Duration) -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from((now + time).as_millis()).unwrap_or(i64::MAX)
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some((end, thread)) = self.renewal.take() else { return };
        drop(end);
        // The renewing thread itself may be the last owner of the consumer.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl Progress for SqliteProgress {
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
        Ok(self.acquire_all()?.and_then(|saved| saved.last_processed).map(Checkpoint::new))
    }

    fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
        Ok(self.save_all(&Saved::from(*checkpoint))?)
    }

    fn keeps_done_ahead(&self) -> bool {
        true
    }

    fn keeps_records(&self) -> bool {
        true
    }

    fn acquire_all(&mut self) -> Result<Option<Saved>, Error> {
        // The library has its own error for a name that is in use.
        self.take_name().map_err(|source| match source.downcast() {
            Ok(error) => *error,
            Err(source) => Error::Progress { source },
        })
    }

    fn subscribe(&mut self, tenure: Tenure) {
        self.tenure = Some(tenure);
    }

    fn save_all(&mut self, saved: &Saved) -> Result<(), SaveError> {
        self.commit(saved, &mut |_| Ok(())).map_err(SaveError::from)
    }

    fn label(&self) -> Option<String> {
        Some(self.name.clone())
    }

    fn fence(&self) -> u64 {
        self.fence.cast_unsigned()
    }
}

impl Transactional for SqliteProgress {
    type Tx<'t> = Transaction<'t>;

    fn commit(
        &mut self,
        saved: &Saved,
        write: &mut (dyn FnMut(&mut Transaction<'_>) -> Result<(), BoxError> + Send),
    ) -> Result<(), CommitError> {
        let retry = |error: rusqlite::Error| CommitError::Retry(error.into());
        let done: Vec<_> = saved.done.iter().map(|run| (run.start(), run.end())).collect();
        let done = serde_json::to_string(&done).map_err(|error| CommitError::Retry(error.into()))?;
        let last = saved.last_processed.map(Index::cast_signed);
        // No other process writes from here on. A drop rolls back.
        let mut transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(retry)?;
        let save = "UPDATE progress SET last = ?3, next = ?4, done = ?5 WHERE name = ?1 AND fence = ?2";
        let values = params![self.name, self.fence, last, saved.next.cast_signed(), done];
        if transaction.prepare_cached(save).and_then(|mut save| save.execute(values)).map_err(retry)? == 0 {
            return Err(CommitError::Lost("another life has the name".into()));
        }
        for record in &saved.records {
            let (sql, values) = match &record.value {
                Some(value) => ("INSERT OR REPLACE INTO progress_records VALUES (?1, ?2, ?3)", value.as_slice()),
                None => ("DELETE FROM progress_records WHERE name = ?1 AND key = ?2 AND ?3 IS NOT NULL", &[][..]),
            };
            transaction.execute(sql, params![self.name, record.key, values]).map_err(retry)?;
        }
        write(&mut transaction).map_err(CommitError::Write)?;
        transaction.commit().map_err(retry)
    }
}
