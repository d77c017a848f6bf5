//! The changes that a transactional job requests.

#[cfg(feature = "tokio")]
use crate::base::BoxError;
use crate::base::{Error, config::ConfigError, error::describe, guard::guarded, structure::shows};
use crate::commit::adds::Add;
use crate::commit::changes::{Changes, Home};
use crate::kv::batch::LARGEST;
use crate::log::{Codec, JobLog, commit::push_op};
use crate::store::{Store, Table};
use std::borrow::Cow;
#[cfg(feature = "tokio")]
use std::sync::atomic::{AtomicU64, Ordering};

mod execute;
mod replace;
mod seek;
mod write;

/// Changes that are made in one atomic write, or not at all.
///
/// Two kinds of closures get it: a job of
/// [`Builder::start_transactional`](crate::Builder::start_transactional) and its variants, whose
/// changes are in one write with the fact that the job is done; and [`Store::write`] and
/// [`StoreProgress::remove_with`](crate::StoreProgress::remove_with), for changes outside of jobs.
///
/// Nothing changes before the closure has returned `Ok`; the effects of a closure that fails or
/// panics vanish. Changes of one closure are made in their order, those of concurrent jobs in the
/// order in which the jobs finish.
///
/// It has no reads: another job may change what a job reads from a [`Table`] before the job writes
/// it back, which would undo that change. Use [`add`](Self::add) instead. A job that must read what
/// an earlier one of its key wrote needs [`ordered_by`](crate::Builder::ordered_by): each job is
/// written before the next one of the key starts. `max_search_ahead(1)` does that for all jobs.
#[doc(alias("exactly once", "idempotent"))]
pub struct Effects {
    pub(crate) changes: Changes,
    /// The store whose tables and logs it accepts.
    store: Home,
    limit: usize,
    /// Tells the effects of futures apart: each future hands back its own.
    #[cfg(feature = "tokio")]
    mark: u64,
    /// Makes the error of the last change that was refused. The caller got one of these, too.
    refused: Option<Box<dyn Fn() -> Error + Send + Sync>>,
}

/// The most bytes of a record beside its key and value: a tag, a family and two lengths.
const OVERHEAD: usize = 16;

impl Effects {
    /// Collects the effects of a job in an empty buffer.
    pub(crate) fn new(changes: Changes, store: Home, limit: usize) -> Self {
        debug_assert!(changes.is_empty());
        Self {
            changes,
            store,
            limit,
            #[cfg(feature = "tokio")]
            mark: 0,
            refused: None,
        }
    }

    /// Collects the effects of a future, with a mark that no others have.
    #[cfg(feature = "tokio")]
    pub(crate) fn of_future(store: Home, limit: usize) -> (Self, u64) {
        static MARKS: AtomicU64 = AtomicU64::new(1);
        let mark = MARKS.fetch_add(1, Ordering::Relaxed);
        (Self { mark, ..Self::new(Changes::default(), store, limit) }, mark)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn has_mark(&self, mark: u64) -> bool {
        self.mark == mark
    }

    /// Returns the requested changes of the future that got this mark.
    #[cfg(feature = "tokio")]
    pub(crate) fn finish_future(self, mark: u64) -> Result<Changes, BoxError> {
        if !self.has_mark(mark) {
            return Err("it handed back the effects of another attempt: a future returns those that it got".into());
        }
        let (changes, refused) = self.finish();
        refused?;
        Ok(changes)
    }

    /// Sets the value of this key.
    ///
    /// # Errors
    /// [`Error::Config`] for a table of another store, [`Error::ReadOnly`] for a table from a
    /// read-only handle of the same store, [`Error::EffectsTooLarge`] if the effects would exceed
    /// [`Builder::max_effects`](crate::Builder::max_effects), or 64 MiB in [`Store::write`]. An
    /// attempt or a write that was refused a change fails even if the closure then returns `Ok`.
    pub fn put(&mut self, table: &Table, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<(), Error> {
        let (key, value) = (key.as_ref(), value.as_ref());
        let prefix = self.admit_row(table, key.len().saturating_add(value.len()))?;
        Ok(self.changes.put(table.family().id, &[&prefix, key], value)?)
    }

    /// Removes this key, if it exists.
    ///
    /// # Errors
    /// The errors of [`put`](Self::put).
    pub fn delete(&mut self, table: &Table, key: impl AsRef<[u8]>) -> Result<(), Error> {
        let key = key.as_ref();
        let prefix = self.admit_row(table, key.len())?;
        Ok(self.changes.delete(table.family().id, &[&prefix, key])?)
    }

    /// Removes all rows of this table as one range, at a cost that does not grow with the rows.
    ///
    /// An [`add`](Self::add) after it counts from 0. Rows that others put before the write are
    /// removed too; rows put after it stay. RocksDB frees the disk space as it compacts. Until then
    /// each read next to the removed range pays a little, so clear now and then, not in each job.
    ///
    /// ```
    /// let store = waterline::Store::in_memory();
    /// let table = store.table("sums")?;
    /// table.put("total", 7i64.to_be_bytes())?;
    /// store.write(|effects| {
    ///     effects.clear(&table)?;
    ///     effects.add(&table, "total", 1)
    /// })?;
    /// assert_eq!(table.counter("total")?, 1);
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`put`](Self::put).
    pub fn clear(&mut self, table: &Table) -> Result<(), Error> {
        // The record has two keys of this length.
        let prefix = self.admit_row(table, table.name().len() + 1)?;
        Ok(self.changes.clear_prefix(table.family(), &prefix)?)
    }

    /// Removes all items of a log as one range. The log's indices go on.
    ///
    /// This removes what is there when it is written, and what the same closure pushed before. An
    /// item that another caller pushes meanwhile, and that a consumer needs by then, stays. A
    /// consumer that starts at the moment of the write may come too late for the items. It then
    /// halts with [`Error::Truncated`], and skips nothing.
    ///
    /// Each removed range slows the reads next to it until RocksDB has compacted it away, and the
    /// disk is flushed after it. So clear now and then, not in each job.
    ///
    /// ```
    /// use waterline::Jobs;
    ///
    /// let store = waterline::Store::in_memory();
    /// let log = store.log::<u64>("l")?;
    /// log.push_all(&[1, 2, 3])?;
    /// store.write(|effects| {
    ///     effects.clear_log(&log)?;
    ///     effects.push(&log, &4)
    /// })?;
    /// assert_eq!((log.first()?, log.head()?, log.at_index(4)?), (4, Some(4), Some(4)));
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`put`](Self::put), and [`Error::Needed`] if a consumer that runs on this log,
    /// or one for which it [retains](JobLog::retain) items, has not processed all of them.
    pub fn clear_log<T, C>(&mut self, log: &JobLog<T, C>) -> Result<(), Error> {
        self.admit(log.store(), "log", log.name(), 0)?;
        match log.clear_op() {
            Ok(op) => self.changes.op(log.state().clone(), op),
            Err(Error::Needed { log, index, last_processed }) => {
                let needed = move || Error::Needed { log: log.clone(), index, last_processed };
                return Err(self.refuse(needed));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Adds to the counter under this key, which [`Table::counter`] reads.
    ///
    /// A missing counter is 0. However many jobs add to it concurrently, no addition is lost or
    /// counted twice. Only the write finds that the key holds no counter, or that the sum does not
    /// fit 64 bits. That is a bug of the job, which no retry mends, so the job fails for good even
    /// if retries are left: nothing of its effects is written, it is not done, and the consumer
    /// halts at it with [`Error::Job`], whose source is an [`Error::Counter`] with the table and
    /// the key. The effects of all other jobs are written, even those of higher indices. Mend the
    /// value, and the next life runs the job again.
    ///
    /// [`on_job_done`](crate::Builder::on_job_done) has been called for the job by then.
    ///
    /// ```
    /// use waterline::{Consumer, Error, MemoryJobs, Store};
    ///
    /// let store = Store::in_memory();
    /// let table = store.table("sums")?;
    /// table.put("title", "no counter")?;
    /// let start = || {
    ///     let (jobs, table) = ((0..2).collect::<MemoryJobs<_>>(), table.clone());
    ///     Consumer::builder(jobs, store.progress("p"))
    ///         .max_search_ahead(1)
    ///         .stop_at(1)
    ///         .start_transactional(move |job, effects| {
    ///             Ok(effects.add(&table, ["total", "title"][job.payload], 1)?)
    ///         })
    /// };
    /// let error = start()?.join().unwrap_err();
    /// assert!(matches!(error, Error::Job { index: 1, .. }));
    /// assert!(error.report().contains(r#"the key "title" of the table "sums" cannot be"#));
    ///
    /// table.delete("title")?;
    /// start()?.join()?;
    /// assert_eq!((table.counter("total")?, table.counter("title")?), (1, 1));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`put`](Self::put).
    pub fn add(&mut self, table: &Table, key: impl AsRef<[u8]>, by: i64) -> Result<(), Error> {
        let key = key.as_ref();
        let prefix = self.admit_row(table, key.len().saturating_add(Add::size(0)))?;
        self.changes.add((table.family(), table.name()), [&prefix, key], by);
        Ok(())
    }

    /// Appends an item to a log. The write assigns its index, and wakes the log's consumers.
    ///
    /// # Errors
    /// The errors of [`put`](Self::put), and [`Error::Item`] if the log's [`Codec`] cannot encode
    /// it, or panics.
    #[doc(alias = "outbox")]
    pub fn push<T, C: Codec<T>>(&mut self, log: &JobLog<T, C>, item: &T) -> Result<(), Error> {
        let mut value = Vec::new();
        if let Err(source) = guarded(|| log.codec().encode(item, &mut value)) {
            self.refuse_item(log.name(), describe(&*source));
            return Err(Error::Item { log: log.name().to_owned(), source });
        }
        if value.len() >= LARGEST as usize - 64 {
            // Found only at the save, it would fail the other jobs too.
            let reason = format!("it has {} bytes, and {} is the limit", value.len(), LARGEST - 64);
            return Err(self.refuse_item(log.name(), reason));
        }
        self.admit(log.store(), "log", log.name(), value.len())?;
        self.changes.op(log.state().clone(), push_op(value));
        Ok(())
    }

    /// Checks that the job may request this much more of this table. Returns its keys' prefix.
    fn admit_row<'t>(&mut self, table: &'t Table, length: usize) -> Result<Cow<'t, [u8]>, Error> {
        let (mut prefix, mut generation) = table.place();
        self.admit(table.store(), "table", table.name(), length.saturating_add(prefix.len()))?;
        while !self.changes.is_in(generation) {
            // A table was replaced since the last change.
            self.changes = self.changes.renewed(table.prefixes())?;
            (prefix, generation) = table.place();
        }
        Ok(prefix)
    }

    /// Checks that the job may request this many more bytes of this store.
    pub(crate) fn admit(&mut self, store: &Store, what: &'static str, name: &str, length: usize) -> Result<(), Error> {
        if store.home() != self.store {
            let name = name.to_owned();
            Err(self.refuse(move || ConfigError::Foreign { what, name: name.clone() }.into()))
        } else if store.writable().is_err() {
            Err(self.refuse(|| Error::ReadOnly))
        } else {
            self.admit_more(length)
        }
    }

    fn admit_more(&mut self, length: usize) -> Result<(), Error> {
        let more = length.saturating_add(OVERHEAD);
        if self.changes.len().saturating_add(more) > self.limit {
            let limit = self.limit;
            return Err(self.refuse(move || Error::EffectsTooLarge { limit }));
        }
        Ok(())
    }

    fn refuse_item(&mut self, log: &str, reason: String) -> Error {
        let log = log.to_owned();
        self.refuse(move || Error::Item { log: log.clone(), source: reason.clone().into() })
    }

    /// Refuses a change with the error that `make` creates, and returns the error.
    pub(crate) fn refuse(&mut self, make: impl Fn() -> Error + Send + Sync + 'static) -> Error {
        let error = make();
        self.refused = Some(Box::new(make));
        error
    }

    /// Returns the requested changes, and an error if one was refused.
    pub(crate) fn finish(self) -> (Changes, Result<(), Error>) {
        (self.changes, self.refused.map_or(Ok(()), |make| Err(make())))
    }
}

shows!(Effects, of: bytes = of.changes.len());
