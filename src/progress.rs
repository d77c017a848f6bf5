//! Where the watermark is kept: the trait, and what is written through it.

use crate::base::error::Error;
use crate::base::index::{BoxError, Index};
use crate::commit::changes::{Changes, Refused};
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

pub(crate) mod embedded;
pub(crate) mod format;
mod ledger;
mod memory;

pub use embedded::StoreProgress;
pub use memory::MemoryProgress;

/// What a progress keeps: everything that a new life needs to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checkpoint {
    /// The watermark: every index up to and including this one is processed.
    pub last_processed: Index,
}

impl Checkpoint {
    /// Everything up to and including this index is processed.
    #[must_use]
    pub fn new(last_processed: Index) -> Self {
        Self { last_processed }
    }
}

/// Keeps one consumer's watermark across lives, under a name that one live consumer has at a time.
///
/// [`MemoryProgress`] and [`StoreProgress`] are ready-made; the latter alone keeps what is done above the watermark, too. Implement it to keep the watermark beside your own data; the
/// conditions are few: one live value at a time has a name, a saved checkpoint survives what you need it to survive, a save that
/// returned an error left the old value or the new one, and a value that cannot be read is an error, never `None`. The feature
/// `testing` has a suite that checks them: `waterline::testing::ProgressSuite`.
///
/// ```
/// use std::{fs, io, path::PathBuf};
/// use waterline::{BoxError, Checkpoint, Error, Progress};
///
/// /// The watermark in a file of its own, in a directory that is there for nothing else.
/// struct FileProgress {
///     directory: PathBuf,
///     claimed: bool,
/// }
///
/// impl Progress for FileProgress {
///     fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
///         let name = self.directory.display().to_string();
///         // Whoever makes the file has the name. (After a crash it has to be removed by hand.)
///         match fs::File::create_new(self.directory.join("claimed")) {
///             Ok(_) => self.claimed = true,
///             Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Err(Error::InUse { name }),
///             Err(e) => return Err(Error::Progress { source: e.into() }),
///         }
///         match fs::read_to_string(self.directory.join("watermark")) {
///             Ok(text) => match text.trim().parse() {
///                 Ok(index) => Ok(Some(Checkpoint::new(index))),
///                 Err(e) => Err(Error::Corrupt { name, reason: format!("{text:?} is no index: {e}") }),
///             },
///             Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
///             Err(e) => Err(Error::Progress { source: e.into() }),
///         }
///     }
///     fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
///         if !self.claimed {
///             return Err("another one may have the name: call `acquire` first".into());
///         }
///         let beside = self.directory.join("watermark.new");
///         fs::write(&beside, checkpoint.last_processed.to_string())?;
///         Ok(fs::rename(&beside, self.directory.join("watermark"))?)      // all of it or nothing
///     }
/// }
///
/// impl Drop for FileProgress {
///     fn drop(&mut self) {
///         if self.claimed {
///             let _ = fs::remove_file(self.directory.join("claimed"));
///         }
///     }
/// }
///
/// # use waterline::{Consumer, MemoryJobs};
/// # let directory = tempfile::tempdir().unwrap();
/// # let progress = || FileProgress { directory: directory.path().into(), claimed: false };
/// # let jobs: MemoryJobs<_> = (0..9).collect();
/// # let consumer = Consumer::builder(jobs.clone(), progress()).stop_at(4).start(|_| Ok(()))?;
/// # assert!(matches!(Consumer::builder(jobs.clone(), progress()).start(|_| Ok(())), Err(Error::InUse { .. })));
/// # consumer.join()?;
/// # let again = Consumer::builder(jobs, progress()).start(|job| Ok(assert!(job.index > 4)))?;
/// # assert!(again.handle().wait_for(8, std::time::Duration::from_secs(20)));
/// # again.stop()?;
/// # Ok::<(), Error>(())
/// ```
pub trait Progress: Send + 'static {
    /// Takes the name, and loads what was saved last; `None` when nothing ever was. Called once, when a consumer starts.
    /// The name is free again when the value is dropped.
    ///
    /// # Errors
    /// [`Error::InUse`] when another live consumer has the name, [`Error::Corrupt`] when the value cannot be read,
    /// [`Error::Progress`] when it cannot be reached. Whatever it is, `start` returns it.
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error>;

    /// Saves. Called on a thread of its own, one call at a time, with a checkpoint that never goes
    /// back; never when nothing finished. While jobs go on that is a millisecond after the last
    /// call returned, or later if busy threads have all the cores: with 8 of them on two cores up
    /// to 30 ms. Without the name, before [`acquire`](Self::acquire) or after it was refused, it is
    /// an error and changes nothing.
    ///
    /// # Errors
    /// Retried with back-off and shown by `status().blocked`; the watermark stands still meanwhile.
    fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError>;

    /// What it is called in errors and statuses.
    #[doc(hidden)]
    fn label(&self) -> Option<String> {
        None
    }

    /// The shared writer that saves for this progress instead of [`save`](Self::save), and keeps what is done above the
    /// watermark too. Asked for once, after [`acquire`](Self::acquire).
    #[doc(hidden)]
    fn writer(&mut self) -> Option<SharedWriter> {
        None
    }
}

/// The way into a shared writer, and what it knows of earlier lives.
#[doc(hidden)]
pub struct SharedWriter {
    pub saves: std::sync::Arc<dyn Saves>,
    pub restored: Restored,
}

impl fmt::Debug for SharedWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedWriter").field("restored", &self.restored).finish_non_exhaustive()
    }
}

/// What an earlier life left behind beside its watermark.
#[doc(hidden)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// The lowest index that was not done; `None`: nothing was ever saved.
    pub next: Option<Index>,
    /// What was done above it.
    pub done: Vec<RangeInclusive<Index>>,
}

/// What is true when a save is made.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The watermark to be; `None` while even the first index is not done.
    pub last_processed: Option<Index>,
    /// The lowest index that is not done.
    pub next: Index,
    pub ahead: DoneAhead,
}

/// What is done above the lowest index that is not.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DoneAhead {
    /// What is new since the last save, ascending.
    New(Vec<Index>),
    /// All of it, a bit for each index; `first` is that of the first word's lowest bit.
    All { first: Index, words: Vec<u64> },
}

/// What a save without the name is answered with.
const NOT_ACQUIRED: &str = "the progress was not acquired, so another consumer may have its name: call `acquire` first";

/// Who saves for the driver: the store's shared writer, or a thread around a [`Progress`].
#[doc(hidden)]
pub trait Saves: Send + Sync {
    /// Begins a save, one at a time; the desk is asked for the checkpoint when it is written, so that everything that
    /// finishes until then is in it. Unless there is a `hurry`, that is not before `SAVE_PACE` after the last one.
    fn save(&self, desk: std::sync::Arc<dyn SaveDesk>, hurry: bool);
    /// Cuts the wait for the pace, or for a back-off, short.
    fn hurry(&self);
    /// True if threads of the consumer's pool are to [`help`](Self::help).
    fn takes_help(&self) -> bool {
        false
    }
    /// Makes a save that is late on the calling thread, if nobody is making one.
    fn help(&self) {}
}

/// Who knows what is to be saved, and is told what became of it. Called on the thread that saves.
#[doc(hidden)]
pub trait SaveDesk: Send + Sync {
    /// What is to be saved now; `None`: nothing any more.
    fn checkpoint(&self) -> Option<Checkpoint>;
    /// The same for those who keep what is done above the watermark, which is listed whole if that is asked for, or if it is
    /// the shorter way.
    ///
    /// The effects of the jobs that finished are moved behind those that are there, in the same moment: both are to be written
    /// together, or neither.
    fn snapshot(&self, all: bool, effects: &mut Vec<Changes>) -> Option<Snapshot>;
    /// The effects of these jobs, which were handed over, cannot be written: the jobs failed for
    /// good and are not done. The caller has taken their effects out. The answer is what to save
    /// without them, as [`snapshot`](Self::snapshot) says it in the same moment; it also hands over
    /// the effects of jobs that finished since.
    fn refused(&self, refused: Refused, all: bool, effects: &mut Vec<Changes>) -> Option<Snapshot>;
    /// It is saved.
    fn saved(&self);
    /// It failed. The answer says when to try again; `None`: not at all.
    fn save_failed(&self, error: BoxError) -> Option<Duration>;
}
