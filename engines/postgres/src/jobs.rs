//! A table as a stream.

use crate::error::Error;
use crate::keeper::Waiting;
use crate::store::PgStore;
use parking_lot::Mutex;
use postgres::Row;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use waterline::{BoxError, Index, Item, Jobs, Sparse, Wakeup};

mod look;
mod looks;
mod reading;
mod table;

use reading::Reading;

type Decode<T> = Box<dyn Fn(&Row) -> Result<T, BoxError> + Send + Sync>;

/// The rows of a table, in the order of its identity column, whose values are the indices. A value
/// without a row is a gap: a transaction rolled back, or the row was deleted.
///
/// Many writers may insert at once, and their rows become visible in another order than that of
/// their ids. So the head is the last id at or below which no transaction can still commit a row. A
/// transaction that has inserted into the table, or only updated it, and stays open holds the head
/// back, and `status().blocked` names it after a second.
///
/// ```no_run
/// use waterline::{Consumer, MemoryProgress};
/// use waterline_postgres::postgres::{Config, NoTls};
/// use waterline_postgres::{PgJobs, PgOptions, PgStore};
///
/// // CREATE TABLE events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload text NOT NULL)
/// let config: Config = "host=127.0.0.1 user=app dbname=app".parse()?;
/// let store = PgStore::connect(config, NoTls, PgOptions::new())?;
/// let events = PgJobs::table(&store, "events", |row| Ok(row.try_get::<_, String>("payload")?))?;
/// let consumer = Consumer::builder(events, MemoryProgress::new()).start(|job| {
///     println!("{}: {}", job.index, job.payload);
///     Ok(())
/// })?;
/// # consumer.stop()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Polling and notifications
///
/// A consumer polls the table once a second, or as [`poll_every`](waterline::Builder::poll_every)
/// says. A trigger that notifies the channel with the name of the table wakes it at once:
///
/// ```sql
/// CREATE FUNCTION notify_waterline() RETURNS trigger LANGUAGE plpgsql AS
///     $$ BEGIN PERFORM pg_notify(TG_TABLE_NAME, ''); RETURN NULL; END $$;
/// CREATE TRIGGER notify_waterline AFTER INSERT ON events
///     FOR EACH STATEMENT EXECUTE FUNCTION notify_waterline();
/// ```
///
/// Transactions that notify commit one after the other. With thousands of them a second, leave the
/// trigger out and poll every 20 ms.
///
/// # Connections
///
/// Each source has one connection, which it reopens by itself: after a loss the consumer retries
/// with its backoff, and what the source knew of running transactions is void. Notifications arrive
/// on the one connection that a store has for them. A call ends within the time that
/// [`ttl`](crate::PgOptions::ttl) gives it.
///
/// # Requirements of the table
///
/// The column is `GENERATED ALWAYS AS IDENTITY` (or see [`trust_writers`](Self::trust_writers)),
/// and has a unique index; that of a partitioned table may have more columns behind it. Its
/// sequence has `CACHE 1`, counts up, and has no `CYCLE`. The server is the primary. Anything else
/// is an [`Error::Config`] that says what to do. The store's user may read the table and its
/// sequence.
///
/// `OVERRIDING SYSTEM VALUE`, a `COPY` that brings ids, `setval` and `RESTART` can give a new row
/// an id that was a gap, and no consumer sees that row: use them only above all ids. The same holds
/// for a table with rows that becomes a partition, and for an explicit id in an insert into a
/// partition by its name. If the ids went back or began anew (`TRUNCATE … RESTART IDENTITY`,
/// however many rows came since), or are those of another table or of another timeline of the
/// server, a running source reads nothing more ([`Error::OtherIds`]): start the consumer again, and
/// move a progress that is above the ids with [`seek`](PgStore::seek). A `setval` back and forth
/// between two polls leaves no trace; nor does a column that is `BY DEFAULT` only for a time.
///
/// A table with `INHERITS` children gives them no ids. So it needs
/// [`trust_writers`](Self::trust_writers), and each child a default that takes values from its
/// sequence.
pub struct PgJobs<T> {
    table: String,
    decode: Decode<T>,
    trusts: bool,
    reading: Mutex<Reading>,
    wakeups: Arc<Mutex<Vec<Wakeup>>>,
    store: PgStore,
    /// While it is there, notifications ring the wake-ups.
    listening: Mutex<Option<Waiting>>,
}

impl<T: Send + 'static> PgJobs<T> {
    /// Makes a source of a table, named as in a statement: `events`, `app.events`, `"Events"`.
    /// `decode` gets each row with all its columns. If it fails, the source counts as failed at
    /// this row, and the row is read again.
    ///
    /// # Errors
    /// [`Error::Config`] if the table cannot be a stream; a column that is not `GENERATED ALWAYS`
    /// is refused only at the start of the consumer, unless [`trust_writers`](Self::trust_writers)
    /// was called. [`Error::Database`] if the server fails.
    pub fn table(
        store: &PgStore,
        table: impl Into<String>,
        decode: impl Fn(&Row) -> Result<T, BoxError> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let table = table.into();
        let mut reading = Reading::new(&table, store.options().ttl, store.connection());
        reading.stream()?;
        Ok(Self {
            table,
            decode: Box::new(decode),
            trusts: false,
            reading: Mutex::new(reading),
            wakeups: Arc::default(),
            store: store.clone(),
            listening: Mutex::default(),
        })
    }

    /// Accepts a column whose values a writer may choose: `GENERATED BY DEFAULT AS IDENTITY`,
    /// `bigserial`, or one of a table with `INHERITS` children. You promise that no writer does,
    /// and that each takes its id in the inserting transaction after it has the table's lock, as
    /// `INSERT` does by itself: then no row appears where a gap was.
    #[must_use]
    pub fn trust_writers(mut self) -> Self {
        self.trusts = true;
        self
    }

    /// Checks what the caller has not promised. A refused table is looked up anew next time.
    fn insist(&self, reading: &mut Reading) -> Result<(), Error> {
        let stream = reading.stream()?;
        let insisted = if self.trusts { Ok(()) } else { stream.insist_on_always(&self.table) };
        insisted.inspect_err(|_| reading.find_anew())
    }

    /// Checks the same, and returns the last id that is final.
    fn settled(&self, reading: &mut Reading, looks: bool) -> Result<Option<i64>, Error> {
        self.insist(reading)?;
        if looks || reading.settled().is_none() {
            reading.look()?;
            // It may have found another column than before.
            self.insist(reading)?;
        }
        Ok(reading.settled())
    }

    /// Listens to the channel of the table, if a consumer is there to be woken.
    fn listen(&self, channel: &str) -> Result<(), Error> {
        let mut listening = self.listening.lock();
        if listening.is_none() && !self.wakeups.lock().is_empty() {
            let wakeups = Arc::clone(&self.wakeups);
            let ring = move || wakeups.lock().retain(Wakeup::ring);
            *listening = Some(self.store.keeper().listen(channel, Arc::new(ring))?);
        }
        Ok(())
    }

    /// Reads rows from this id on, and returns them with the last id that is final.
    fn rows(&self, first: i64, most: usize) -> Result<(Vec<(i64, Row)>, i64), Error> {
        let reading = &mut *self.reading.lock();
        let Some(head) = self.settled(reading, false)?.filter(|head| first <= *head) else {
            return Ok((Vec::new(), first - 1));
        };
        let rows = reading.rows(first, most)?;
        let rows: Result<Vec<_>, Error> = rows.into_iter().map(|row| Ok((reading.id_of(&row)?, row))).collect();
        Ok((rows?, head))
    }
}

impl<T: Send + 'static> Jobs for PgJobs<T> {
    type Job = T;

    fn first(&self) -> Result<Index, BoxError> {
        self.insist(&mut self.reading.lock())?;
        Ok(0)
    }

    fn head(&self) -> Result<Option<Index>, BoxError> {
        let (head, again) = {
            let reading = &mut *self.reading.lock();
            let head = self.settled(reading, true)?;
            self.listen(&reading.stream()?.channel)?;
            (head, reading.is_waiting())
        };
        if again {
            // A ring during a look is answered after a pause, which grows while nothing is new.
            self.wakeups.lock().retain(Wakeup::ring);
        }
        Ok(head.and_then(|head| Index::try_from(head).ok()))
    }

    fn at_index(&self, index: Index) -> Result<Option<T>, BoxError> {
        let mut answer = Sparse::new(index);
        self.read_sparse(index..=index, 1, &mut answer)?;
        Ok(answer.into_iter().find_map(|item| if let Item::Job(_, job) = item { Some(job) } else { None }))
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<T>) -> Result<(), BoxError> {
        let most = run.end().saturating_sub(*run.start()).saturating_add(1);
        let mut answer = Sparse::new(*run.start());
        if !run.is_empty() {
            self.read_sparse(run, usize::try_from(most).unwrap_or(usize::MAX), &mut answer)?;
        }
        // Up to the first gap.
        into.extend(answer.into_iter().map_while(|item| if let Item::Job(_, job) = item { Some(job) } else { None }));
        Ok(())
    }

    fn read_sparse(&self, run: RangeInclusive<Index>, most: usize, into: &mut Sparse<T>) -> Result<(), BoxError> {
        let Ok(first) = i64::try_from(*run.start()) else { return Ok(()) };
        let (rows, head) = self.rows(first, most)?;
        let all = rows.len() < most;
        for (id, row) in rows {
            let index = Index::try_from(id)?;
            // Also for a row that cannot be decoded: the error is that of its index.
            if index > 0 {
                into.none_through(index - 1);
            }
            if index > *run.end() {
                return Ok(());
            }
            let job = (self.decode)(&row);
            into.job(index, job.map_err(|source| Error::Decode { table: self.table.clone(), index, source })?);
        }
        if let Ok(head) = Index::try_from(head)
            && all
        {
            into.none_through(head);
        }
        Ok(())
    }

    fn waits_for(&self) -> Option<String> {
        self.reading.lock().explain()
    }

    fn subscribe(&self, wakeup: Wakeup) -> bool {
        // A look locks the wake-ups while it holds the reading, so they are not held together here.
        let is_first = {
            let mut wakeups = self.wakeups.lock();
            wakeups.retain(Wakeup::ring);
            wakeups.is_empty()
        };
        if is_first {
            // No consumer is left that has seen other ids.
            self.reading.lock().begin_anew();
        }
        self.wakeups.lock().push(wakeup);
        // A notification may get lost, so the consumer has to poll, too.
        false
    }
}

impl<T> fmt::Debug for PgJobs<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgJobs").field("table", &self.table).field("trusts", &self.trusts).finish_non_exhaustive()
    }
}
