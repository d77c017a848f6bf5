//! A durable job log: items with gap-free indices, pushed by any number of threads, and consumed as a stream.

use crate::base::config::check_name;
use crate::base::error::{Error, StoreError};
use crate::base::index::{BoxError, Index};
use crate::base::sync::{Arc, Mutex, Ordering};
use crate::commit::draft::Draft;
use crate::commit::writer::Intent;
use crate::kv::batch::{Batch, FamilyId};
use crate::source::Jobs;
use crate::source::wakeup::Wakeup;
use crate::source::watermark::{Listener, Watermark};
use crate::store::Store;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::any::{TypeId, type_name};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Range, RangeInclusive, RangeToInclusive};
use std::sync::Weak;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

mod held;
mod reading;
pub(crate) mod state;
mod trim;

pub use held::Held;

use self::reading::Ahead;
use self::state::{Bounds, LogState, Ticket, bounds_key, index_of, item_key};
use self::trim::{Trim, Trimmer, Wanted};

/// A durable first-in first-out log of jobs in a [`Store`]: what one stage of a pipeline hands to the next. Made by
/// [`Store::log`].
///
/// Items get their indices when they are written: gap-free, from 1, in the order of the writes. Pushing is as durable as the
/// store, and threads that push at the same time share a write. A log is a source of jobs ([`Jobs`]) for any number of
/// consumers, and rings them by itself. A clone is the same log. Items are stored as JSON: what that cannot say, a float that is no
/// number for one, is pushed and then cannot be read.
///
/// ```
/// use waterline::{Consumer, Store};
///
/// let store = Store::in_memory();            // `Store::open("some/directory")` to keep it
/// let log = store.log::<String>("greetings")?;
/// assert_eq!(log.push(&"hello".to_owned())?, 1);
/// assert_eq!(log.push_all(&["good".to_owned(), "morning".to_owned()])?, 2..4);
/// Consumer::builder(log.clone(), store.progress("greet"))
///     .stop_at(3)
///     .start(|job| Ok(println!("{}: {}", job.index, job.payload)))?
///     .join()?;
/// log.trim(..=3)?;
/// # use waterline::Jobs;
/// # assert_eq!((log.first()?, log.head()?), (4, Some(3)));
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct JobLog<T> {
    store: Store,
    state: Arc<LogState>,
    ahead: Mutex<Ahead>,
    /// The mean length of the items that were read last, in bytes.
    mean: AtomicUsize,
    /// It has none of them.
    items: PhantomData<fn() -> T>,
}

impl Store {
    /// The log with this name: 1 to 255 bytes. It is made if there is none, unless
    /// [`StoreOptions::create`](crate::StoreOptions::create) is `false`.
    ///
    /// # Errors
    /// [`Error::Config`] for a bad name; [`Error::NotFound`] for a log that is not there and is not
    /// made; [`Error::LogType`] while the same log is open with items of another type;
    /// [`Error::Corrupt`] when it cannot be read, [`Error::Store`] when the database fails, [`Error::Spawn`] when the thread
    /// that writes cannot be started.
    pub fn log<T: Serialize + DeserializeOwned + Send + 'static>(
        &self,
        name: impl AsRef<str>,
    ) -> Result<JobLog<T>, Error> {
        let name = name.as_ref();
        check_name("log", name)?;
        self.writer().start().map_err(|source| Error::Spawn { source })?;
        let item = (TypeId::of::<T>(), type_name::<T>());
        let mut logs = self.open_logs().lock();
        logs.retain(|log| log.strong_count() > 0);
        let open = logs.iter().filter_map(Weak::upgrade).find(|log| log.name == name);
        let state = match open {
            Some(state) if state.item.0 == item.0 => state,
            Some(state) => {
                let (open, asked) = (state.item.1.to_owned(), item.1.to_owned());
                return Err(Error::LogType { name: name.to_owned(), open, asked });
            }
            None => {
                let state = Arc::new(self.load_log(name, item)?);
                logs.push(Arc::downgrade(&state));
                state
            }
        };
        Ok(JobLog {
            store: self.clone(),
            state,
            ahead: Mutex::default(),
            mean: AtomicUsize::new(0),
            items: PhantomData,
        })
    }

    /// What is stored of a log, which is made if there is none.
    fn load_log(&self, name: &str, item: (TypeId, &'static str)) -> Result<LogState, Error> {
        let corrupt =
            |reason| Error::Corrupt { name: name.to_owned(), reason: format!("the bounds of the log: {reason}") };
        let key = bounds_key(name);
        let Some(stored) = self.kv().get(self.system(), &key)? else {
            if !self.creates() {
                return self.not_found("log", name);
            }
            let bounds = Bounds::of_a_new_log(self.ids().next()?);
            let mut batch = Batch::default();
            batch.put(self.system().id, &[&key], &[&bounds.encode(name)])?;
            self.write(&batch)?;
            return Ok(LogState::new(name, item, self.logs().clone(), bounds, bounds.end));
        };
        let bounds = Bounds::decode(name, &stored).map_err(corrupt)?;
        // What was trimmed may still be there, and is not to be looked through.
        let start = item_key(bounds.id, bounds.end.max(bounds.first));
        let last = match self.kv().last(self.logs(), &bounds.id.to_be_bytes())? {
            Some(key) if key.as_slice() >= &start[..] => index_of(&key).map(|index| index + 1),
            _ => None,
        };
        Ok(LogState::new(name, item, self.logs().clone(), bounds, last.unwrap_or(bounds.end)))
    }
}

impl<T> JobLog<T> {
    /// The name that it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.state.name
    }

    pub(crate) fn state(&self) -> &Arc<LogState> {
        &self.state
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Removes all items up to and including this index; beyond the head, all there are. The log goes on counting.
    ///
    /// Their disk space is given back in pieces of several thousand items or a hundred megabytes, as RocksDB gets to it.
    ///
    /// # Errors
    /// [`Error::Needed`] when a consumer that is running on this log, or one that it [retains](Self::retain) items for, has
    /// not processed all of them; [`Error::Store`] when the database fails. Nothing is removed then.
    pub fn trim(&self, to: RangeToInclusive<Index>) -> Result<(), Error> {
        let first = to.end.saturating_add(1).min(self.state.end());
        if let Some(needed) = self.state.needed_from().filter(|needed| *needed < first) {
            let log = self.state.name.clone();
            return Err(Error::Needed { log, index: to.end, last_processed: needed.checked_sub(1) });
        }
        if first <= self.state.first() {
            return Ok(());
        }
        let told = Ticket::new();
        let asked = Wanted::Asked { first, told: told.clone() };
        self.store.writer().write_now(Box::new(Trim::new(&self.store, &self.state, asked)));
        told.wait()
    }

    /// From now on the log trims itself up to the lowest watermark of these consumers, by [`Handle`](crate::Handle), and
    /// [`trim`](Self::trim) does not pass it. One that ended counts with its last watermark. To be called again in each
    /// life; the last call is the one that holds, and with nobody in it the log trims itself no more.
    pub fn retain<W: AsRef<Watermark>>(&self, consumers: impl IntoIterator<Item = W>) {
        let watermarks: Vec<Watermark> = consumers.into_iter().map(|consumer| consumer.as_ref().clone()).collect();
        let trimmer = Trimmer::new(&self.store, &self.state);
        let listener: Arc<dyn Listener> = trimmer.clone();
        watermarks.iter().for_each(|watermark| watermark.listen(Arc::downgrade(&listener)));
        self.state.retain(watermarks, listener);
        trimmer.changed();
    }

    /// The item is gone, or never was.
    fn check_first(&self, index: Index) -> Result<(), Error> {
        let first = self.state.first();
        if index < first { Err(Error::Truncated { next: index, first }) } else { Ok(()) }
    }

    fn corrupt(&self, index: Index, reason: impl fmt::Display) -> Error {
        Error::Corrupt { name: self.state.name.clone(), reason: format!("item {index} of the log: {reason}") }
    }
}

impl<T: Serialize> JobLog<T> {
    /// Appends an item, and returns its index once it is written, as durable as the store.
    ///
    /// # Errors
    /// [`Error::Item`] when it cannot be turned into JSON, [`Error::Store`] when the database fails: then the item is not in
    /// the log in this life, and may be in the next.
    pub fn push(&self, item: &T) -> Result<Index, Error> {
        Ok(self.push_values(Values::of(&self.state.name, std::slice::from_ref(item))?)?.start)
    }

    /// Appends items with consecutive indices in one atomic write. Nothing in, nothing out.
    ///
    /// # Errors
    /// Those of [`push`](Self::push); all of them are in the log then, or none is.
    pub fn push_all(&self, items: &[T]) -> Result<Range<Index>, Error> {
        if items.is_empty() {
            let end = self.state.end();
            return Ok(end..end);
        }
        self.push_values(Values::of(&self.state.name, items)?)
    }

    fn push_values(&self, values: Values) -> Result<Range<Index>, Error> {
        let told = Ticket::new();
        let push = Push {
            state: self.state.clone(),
            logs: self.store.logs().id,
            synced: self.store.is_synced(),
            values,
            range: Mutex::new(0..0),
            told: told.clone(),
        };
        self.store.writer().write_now(Box::new(push));
        told.wait()
    }
}

impl<T: DeserializeOwned + Send + 'static> Jobs for JobLog<T> {
    type Job = T;

    fn first(&self) -> Result<Index, BoxError> {
        Ok(self.state.first())
    }

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(self.state.end().checked_sub(1).filter(|head| *head > 0))
    }

    /// # Errors
    /// [`Error::Truncated`] below [`first`](Self::first), [`Error::Corrupt`] for an item that cannot be read, [`Error::Store`]
    /// when the database fails.
    fn at_index(&self, index: Index) -> Result<Option<T>, BoxError> {
        let mut items = Vec::new();
        self.read(index..=index, &mut items)?;
        Ok(items.pop())
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<T>) -> Result<(), BoxError> {
        let (start, end) = (*run.start(), run.end().saturating_add(1).min(self.state.end()));
        self.check_first(start)?;
        if start >= end {
            return Ok(());
        }
        let (mut next, mut bad, mut bytes) = (start, None, 0);
        let mut take = |value: &[u8]| {
            bytes += value.len();
            match serde_json::from_slice(value) {
                Ok(item) => into.push(item),
                Err(e) => {
                    bad = Some(e);
                    return false;
                }
            }
            next += 1;
            true
        };
        let place = (self.store.kv(), self.store.logs(), &*self.state);
        // Taken out meanwhile, since items are the user's own code, and the store may take its time.
        let mut ahead = std::mem::take(&mut *self.ahead.lock());
        let read = ahead.read(place, start..end, &mut take);
        *self.ahead.lock() = ahead;
        if let Ok(items @ 1..) = usize::try_from(next - start) {
            self.mean.store(bytes / items, Ordering::Relaxed);
        }
        read?;
        match bad {
            Some(e) => Err(self.corrupt(next, e).into()),
            None if next < end => {
                // Unless it was trimmed just now.
                self.check_first(next)?;
                Err(self.corrupt(next, "it is not there").into())
            }
            None => Ok(()),
        }
    }

    /// The mean length of the items that were read last, as they are stored: the length of a single item is not known any more
    /// once it is decoded.
    fn weight(&self, _item: &T) -> usize {
        self.mean.load(Ordering::Relaxed).max(size_of::<T>())
    }

    fn subscribe(&self, wakeup: Wakeup) -> bool {
        self.state.subscribe(wakeup);
        true
    }
}

impl<T> Clone for JobLog<T> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            state: self.state.clone(),
            ahead: Mutex::default(),
            mean: AtomicUsize::new(self.mean.load(Ordering::Relaxed)),
            items: PhantomData,
        }
    }
}

impl<T> fmt::Debug for JobLog<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobLog").field("log", &self.state).finish_non_exhaustive()
    }
}

/// Items as they are stored.
struct Values {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Values {
    fn of<T: Serialize>(log: &str, items: &[T]) -> Result<Self, Error> {
        let mut values = Self { bytes: Vec::new(), ends: Vec::with_capacity(items.len()) };
        for item in items {
            let failed = |e: serde_json::Error| Error::Item { log: log.to_owned(), source: e.into() };
            serde_json::to_writer(&mut values.bytes, item).map_err(failed)?;
            values.ends.push(values.bytes.len());
        }
        Ok(values)
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }
}

/// Items to be appended, until that is written or has failed.
struct Push {
    state: Arc<LogState>,
    logs: FamilyId,
    synced: bool,
    values: Values,
    range: Mutex<Range<Index>>,
    told: Arc<Ticket<Range<Index>>>,
}

impl Intent for Push {
    fn resolve(&self, draft: &mut Draft<'_>) -> Result<bool, BoxError> {
        let mut range = self.range.lock();
        range.start = draft.end_of(&self.state);
        for value in self.values.iter() {
            draft.push(&self.state, self.logs, value)?;
        }
        range.end = draft.end_of(&self.state);
        Ok(true)
    }

    fn synced(&self) -> bool {
        self.synced
    }

    fn written(&self) {
        self.told.tell(Ok(self.range.lock().clone()));
    }

    fn failed(&self, error: BoxError) -> Option<Duration> {
        self.told.tell(Err(failed("push to a log", error)));
        None
    }
}

fn failed(doing: &str, error: BoxError) -> Error {
    StoreError { doing: doing.to_owned(), source: error }.into()
}
