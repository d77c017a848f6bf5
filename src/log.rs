//! A durable job log: items with gap-free indices, pushed by any thread and consumed as a stream.

use crate::base::config::{check_codec, check_name};
use crate::base::sync::{Arc, Mutex, Ordering};
use crate::base::{BoxError, Error, Index, error::describe, guard::guarded};
use crate::commit::intent::Ticket;
use crate::source::watermark::{Listener, Watermark};
use crate::source::{Jobs, wakeup::Wakeup};
use crate::store::Store;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::any::{TypeId, type_name};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Range, RangeInclusive, RangeToInclusive};
use std::sync::Weak;
use std::sync::atomic::AtomicUsize;

pub(crate) mod bounds;
pub(crate) mod codec;
pub(crate) mod commit;
mod held;
mod keeping;
mod kept;
mod looking;
mod push;
mod reading;
mod replace;
#[cfg(test)]
pub(crate) mod samples;
pub(crate) mod state;
mod trim;

pub use codec::{Bytes, Codec, Json};
pub use looking::LogInfo;

use self::codec::check_stored;
use self::push::{PushIntent, Values};
use self::reading::{ItemSource, ReadAhead};
use self::state::LogState;
use self::trim::{TrimIntent, TrimTo, Trimmer};

/// A durable first-in first-out log of jobs in a [`Store`], from [`Store::log`].
///
/// Items get their indices when they are written: gap-free, from 1, in the order of the writes. A
/// push is as durable as the store, and concurrent pushes share a write. A log is a source of jobs
/// ([`Jobs`]) for any number of consumers, and wakes them. Clones are the same log.
///
/// A [`Codec`] turns items into bytes: [`Json`] by default, or with [`Store::log_with`] [`Bytes`]
/// or your own. The log keeps the codec's name, and opens with no other.
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
pub struct JobLog<T, C = Json> {
    /// Dropped before the store: from then on no thread of it has the database.
    ahead: Mutex<ReadAhead>,
    store: Store,
    state: Arc<LogState>,
    codec: Arc<C>,
    /// The mean length of the items that were last read, in bytes.
    mean: AtomicUsize,
    /// The type of its items. The store knows by it that the log is open.
    item: Arc<ItemType>,
    /// The same type, for the compiler.
    items: PhantomData<fn() -> T>,
}

/// The logs that are open, and some that no longer are. All handles to the store share it.
#[derive(Default)]
struct OpenLogs(Mutex<Vec<OpenLog>>);

/// One log. Its state may outlive its handles, since a trim or a chore needs it. Its type does not:
/// then the log may be opened with another one.
struct OpenLog {
    state: Weak<LogState>,
    item: Weak<ItemType>,
}

impl OpenLog {
    /// The entry of a log that has no handle.
    fn of_no_type(state: &Arc<LogState>) -> Self {
        Self { state: Arc::downgrade(state), item: Weak::new() }
    }

    /// True if a handle is left.
    fn is_open(&self) -> bool {
        self.item.strong_count() > 0
    }
}

/// The type of a log's items.
struct ItemType {
    id: TypeId,
    name: &'static str,
}

impl Store {
    /// Opens the log with this name (1 to 255 bytes), or creates it, unless
    /// [`StoreOptions::create`](crate::StoreOptions::create) is `false`. Its items are [`Json`].
    ///
    /// # Errors
    /// [`Error::Config`] for a bad name; [`Error::NotFound`] if it is missing and not created;
    /// [`Error::Codec`] if its items have another codec; [`Error::LogType`] while it is open with
    /// items of another type; [`Error::Corrupt`] if it cannot be read, [`Error::Store`] if the
    /// database fails, [`Error::Spawn`] if the writer thread cannot be started.
    pub fn log<T: Serialize + DeserializeOwned + Send + 'static>(
        &self,
        name: impl AsRef<str>,
    ) -> Result<JobLog<T>, Error> {
        self.log_with(name, Json)
    }

    /// Opens the log with this name, like [`log`](Self::log), with a codec for its items.
    ///
    /// A new log keeps the [name of the codec](Codec::NAME), which alone identifies the codec. Once
    /// a store has a log that is not [`Json`], library versions without codecs refuse the store
    /// ([`Error::Format`]).
    ///
    /// ```
    /// use waterline::{Bytes, Error, Store};
    ///
    /// let store = Store::in_memory();
    /// let blocks = store.log_with::<Vec<u8>, _>("blocks", Bytes)?;
    /// assert_eq!(blocks.push(&b"block 1".to_vec())?, 1);
    /// assert!(matches!(store.log::<Vec<u8>>("blocks"), Err(Error::Codec { .. })));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// A [read-only](crate::StoreOptions::read_only) store opens every log with
    /// [`Bytes`](codec::Bytes), whatever its codec and its other handles: the items are the stored
    /// bytes. The log shows the state of the last [`refresh`](Self::refresh).
    ///
    /// # Errors
    /// Those of [`log`](Self::log); [`Error::Config`] also for a codec name not of 1 to 32 bytes.
    pub fn log_with<T: Send + 'static, C: Codec<T>>(
        &self,
        name: impl AsRef<str>,
        codec: C,
    ) -> Result<JobLog<T, C>, Error> {
        let asked = ItemType { id: TypeId::of::<T>(), name: type_name::<T>() };
        let (state, item) = self.open_log(name.as_ref(), C::NAME, asked)?;
        Ok(JobLog {
            store: self.clone(),
            state,
            codec: Arc::new(codec),
            ahead: Mutex::default(),
            mean: AtomicUsize::new(0),
            item,
            items: PhantomData,
        })
    }

    fn open_log(
        &self,
        name: &str,
        codec: &'static str,
        asked: ItemType,
    ) -> Result<(Arc<LogState>, Arc<ItemType>), Error> {
        check_name("log", name)?;
        check_codec(codec)?;
        if self.writable().is_ok() {
            self.writer().start().map_err(|source| Error::Spawn { source })?;
        }
        let as_bytes = self.reads_bytes(codec) && asked.id == TypeId::of::<Vec<u8>>();
        let open_logs = self.extension::<OpenLogs>();
        let mut logs = open_logs.0.lock();
        logs.retain(|log| log.state.strong_count() > 0);
        let known = logs.iter_mut().find_map(|log| Some((log.state.upgrade().filter(|log| log.name == name)?, log)));
        let Some((state, log)) = known else {
            let (state, item) = (Arc::new(self.load_log(name, codec)?), Arc::new(asked));
            // The stored bytes can be read while items of any type are.
            let known = if as_bytes { Weak::new() } else { Arc::downgrade(&item) };
            logs.push(OpenLog { state: Arc::downgrade(&state), item: known });
            return Ok((state, item));
        };
        if as_bytes {
            return Ok((state, Arc::new(asked)));
        }
        check_stored(name, state.codec.as_str(), codec)?;
        match log.item.upgrade() {
            Some(open) if open.id != asked.id => {
                let (open, asked) = (open.name.to_owned(), asked.name.to_owned());
                Err(Error::LogType { name: name.to_owned(), open, asked })
            }
            Some(open) => Ok((state, open)),
            None => {
                let item = Arc::new(asked);
                log.item = Arc::downgrade(&item);
                Ok((state, item))
            }
        }
    }
}

impl<T, C> JobLog<T, C> {
    /// Returns the name of the log.
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

    pub(crate) fn codec(&self) -> &C {
        &self.codec
    }

    /// Removes all items up to and including this index, or up to the head. Indices go on counting.
    ///
    /// The items of [parked](crate::OnExhausted::Park) jobs stay individually while a consumer has
    /// them parked that is running on this log, or that the log [retains](Self::retain) items for:
    /// until the job is redriven with success, or discarded. So the budget of these consumers
    /// bounds what stays, and [`LogInfo::parked`] counts it. Any other consumer keeps nothing. (If
    /// a job was discarded while no consumer had its name, the first trim after the next start
    /// removes its item.)
    ///
    /// Disk space is given back in pieces of several thousand items or a hundred megabytes, on a
    /// separate thread: no caller waits for it. A store that closes gives back first what is due.
    ///
    /// # Errors
    /// [`Error::Needed`] if a consumer that is running on this log, or that it
    /// [retains](Self::retain) items for, has not processed all of them; [`Error::ReadOnly`] if the
    /// store is read-only; [`Error::Store`] if the database fails. Then nothing is removed.
    pub fn trim(&self, to: RangeToInclusive<Index>) -> Result<(), Error> {
        self.store.writable()?;
        let first = to.end.saturating_add(1).min(self.state.end());
        self.state.check_needed(first)?;
        if first <= self.state.first() && !self.state.has_items_to_free() {
            return Ok(());
        }
        let told = Ticket::new();
        let asked = TrimTo::Asked { first, told: told.clone() };
        self.store.writer().write_now(Box::new(TrimIntent::new(&self.state, self.store.is_synced(), asked)));
        told.wait()
    }

    /// Makes the log trim itself up to the lowest watermark of these consumers.
    ///
    /// Pass their [`Handle`](crate::Handle)s. [`trim`](Self::trim) does not pass that watermark,
    /// either, and [`backlog`](Self::backlog) and [`hold_back`](Self::hold_back) go by it. Items of
    /// parked jobs below it stay individually. A consumer that ended counts with its last watermark
    /// and parked jobs. Call this again in each life. The last call holds; with no consumer the log
    /// no longer trims itself. On a [read-only](crate::StoreOptions::read_only) store it does
    /// nothing.
    pub fn retain<W: AsRef<Watermark>>(&self, consumers: impl IntoIterator<Item = W>) {
        if self.store.writable().is_err() {
            return;
        }
        let watermarks: Vec<Watermark> = consumers.into_iter().map(|consumer| consumer.as_ref().clone()).collect();
        let trimmer = Trimmer::new(&self.store, &self.state);
        watermarks.iter().for_each(|watermark| watermark.listen(Arc::<Trimmer>::downgrade(&trimmer)));
        self.state.retain(watermarks, trimmer.clone());
        trimmer.changed();
    }

    /// Returns the operation that removes all items.
    ///
    /// # Errors
    /// [`Error::Needed`] if a consumer still needs one of them.
    pub(crate) fn clear_op(&self) -> Result<Vec<u8>, Error> {
        self.state.clear_op()
    }

    fn corrupt(&self, index: Index, reason: impl fmt::Display) -> Error {
        Error::Corrupt { name: self.state.name.clone(), reason: format!("item {index} of the log: {reason}") }
    }
}

impl<T, C: Codec<T>> JobLog<T, C> {
    /// Appends an item, and returns its index once it is written, as durable as the store.
    ///
    /// # Errors
    /// [`Error::Item`] if its [`Codec`] cannot encode it, or panics, and [`Error::ReadOnly`] if the
    /// store is read-only: nothing is pushed. [`Error::Store`] if the database fails: the item is
    /// not in the log in this life, but may be in the next.
    pub fn push(&self, item: &T) -> Result<Index, Error> {
        self.store.writable()?;
        Ok(self.push_values(Values::of(&self.state.name, &*self.codec, std::slice::from_ref(item))?)?.start)
    }

    /// Appends items with consecutive indices in one atomic write. No items are a no-op.
    ///
    /// # Errors
    /// Those of [`push`](Self::push); then all items are in the log, or none is.
    pub fn push_all(&self, items: &[T]) -> Result<Range<Index>, Error> {
        self.store.writable()?;
        if items.is_empty() {
            let end = self.state.end();
            return Ok(end..end);
        }
        self.push_values(Values::of(&self.state.name, &*self.codec, items)?)
    }

    fn push_values(&self, values: Values) -> Result<Range<Index>, Error> {
        let (push, told) = PushIntent::new(&self.state, values, self.store.is_synced());
        self.store.writer().write_now(Box::new(push));
        told.wait()
    }
}

impl<T: Send + 'static, C: Codec<T>> Jobs for JobLog<T, C> {
    type Job = T;

    fn first(&self) -> Result<Index, BoxError> {
        Ok(self.state.first())
    }

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(self.state.end().checked_sub(1).filter(|head| *head > 0))
    }

    /// # Errors
    /// [`Error::Truncated`] below [`first`](Self::first), except for an item that a parked job
    /// keeps; [`Error::Corrupt`] for an unreadable item, [`Error::Store`] if the database fails.
    fn at_index(&self, index: Index) -> Result<Option<T>, BoxError> {
        let mut items = Vec::new();
        self.read(index..=index, &mut items)?;
        Ok(items.pop())
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<T>) -> Result<(), BoxError> {
        let (start, end) = (*run.start(), run.end().saturating_add(1).min(self.state.end()));
        let first = self.state.first();
        if start < first {
            return self.read_kept(start..end.min(first), first, into);
        }
        if start >= end {
            return Ok(());
        }
        let (mut next, mut bad, mut bytes) = (start, None, 0);
        let mut take = |value: &[u8]| {
            bytes += value.len();
            match self.codec.decode(value) {
                Ok(item) => into.push(item),
                Err(e) => {
                    bad = Some(e);
                    return false;
                }
            }
            next += 1;
            true
        };
        let place = ItemSource { kv: self.store.shared_kv(), family: self.store.log_items(), log: &self.state };
        // Taken out meanwhile: items are decoded by user code, and the store may be slow.
        let mut ahead = std::mem::take(&mut *self.ahead.lock());
        // Panics of the codec are caught once per run, since the index of the item is known.
        let read = guarded(|| Ok(ahead.read(place, start..end, &mut take)));
        // Dropped after the lock is released: this waits for a concurrent caller's thread.
        let others = std::mem::replace(&mut *self.ahead.lock(), ahead);
        drop(others);
        if let Ok(items @ 1..) = usize::try_from(next - start) {
            self.mean.store(bytes / items, Ordering::Relaxed);
        }
        match read {
            Ok(read) => read?,
            Err(panic) => bad = Some(panic),
        }
        match bad {
            Some(e) => Err(self.corrupt(next, describe(&*e)).into()),
            None if next < end => {
                // It may have been trimmed just now, here or by the application.
                self.store.refresh_log(&self.state)?;
                match self.trimmed_to(next)? {
                    // The caller asks for it again.
                    Some(_) if next > start => Ok(()),
                    Some(first) => self.read_kept(next..next + 1, first, into),
                    None => Err(self.corrupt(next, "it is not there").into()),
                }
            }
            None => Ok(()),
        }
    }

    /// Returns the mean stored length of the items that were last read: that of a decoded item is
    /// unknown.
    fn weight(&self, _item: &T) -> usize {
        self.mean.load(Ordering::Relaxed).max(size_of::<T>())
    }

    fn subscribe(&self, wakeup: Wakeup) -> bool {
        wakeup.reads(self.state.clone(), self.store.home().address);
        self.state.subscribe(wakeup);
        true
    }
}

impl<T, C> Clone for JobLog<T, C> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            state: self.state.clone(),
            codec: self.codec.clone(),
            ahead: Mutex::default(),
            mean: AtomicUsize::new(self.mean.load(Ordering::Relaxed)),
            item: self.item.clone(),
            items: PhantomData,
        }
    }
}

impl<T, C> fmt::Debug for JobLog<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobLog").field("log", &self.state).finish_non_exhaustive()
    }
}
