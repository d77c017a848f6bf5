//! Where the watermark is kept: the trait that an engine implements, and what is written through
//! it.

use crate::base::error::Error;
use crate::base::index::{BoxError, Index};
use crate::commit::SAVE_PACE;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

pub(crate) mod embedded;
pub(crate) mod format;
mod ledger;
mod memory;
mod saved;
mod saves;
mod tenure;

pub use embedded::StoreProgress;
pub use memory::MemoryProgress;
pub use saved::{SaveError, Saved};
pub(crate) use saves::{DoneAhead, Restored, SaveDesk, Saves, Snapshot};
pub(crate) use tenure::Tenant;
pub use tenure::Tenure;

/// What a progress keeps that has nothing but the watermark.
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

/// Keeps one consumer's progress across lives, under a name that one live consumer has at a time.
///
/// [`MemoryProgress`] and [`StoreProgress`] are ready-made. Implement the trait to keep the
/// watermark beside your own data: [`acquire`](Self::acquire) and [`save`](Self::save) are enough.
/// An engine that implements [`keeps_done_ahead`](Self::keeps_done_ahead),
/// [`acquire_all`](Self::acquire_all) and [`save_all`](Self::save_all) too also keeps the jobs that
/// are done above the watermark. A struct around a progress forwards all methods, and loses
/// nothing.
///
/// # The rules
///
/// * A save that returned `Ok` survives what you need it to survive.
/// * A save that returned an error left the old value or the new one.
/// * A value that cannot be read is an error, never `None`.
/// * One live value at a time has a name. [`acquire`](Self::acquire) refuses the second one, or it
///   takes the name over. Then it has to *shut out the writer before*: once it has returned, no
///   save of an earlier life may change anything, however late it arrives. That writer may be
///   alive, cut off by a network or merely slow, so a look before each write is not enough: the
///   storage itself has to compare a token, in one step with the write.
///
/// The feature `testing` has a suite that checks them: `waterline::testing::ProgressSuite`.
///
/// # A name that can be taken over
///
/// This engine counts the lives of a name. The number of a life is its token, and the row changes
/// only for the newest one. A database does the same with `UPDATE … WHERE token = $1`.
///
/// ```
/// use std::sync::{Arc, Mutex, PoisonError};
/// use waterline::{BoxError, Checkpoint, Error, Progress, SaveError};
///
/// #[derive(Default)]
/// struct Row {
///     last_processed: Option<u64>,
///     token: u64,
/// }
///
/// struct Fenced {
///     row: Arc<Mutex<Row>>,
///     /// The token of this life; 0 before `acquire`.
///     token: u64,
/// }
///
/// impl Progress for Fenced {
///     fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
///         let mut row = self.row.lock().unwrap_or_else(PoisonError::into_inner);
///         row.token += 1;                     // from now on the life before changes nothing
///         self.token = row.token;
///         Ok(row.last_processed.map(Checkpoint::new))
///     }
///
///     fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
///         let mut row = self.row.lock().unwrap_or_else(PoisonError::into_inner);
///         if self.token == 0 {
///             return Err("this value has no name: call `acquire` first".into());
///         }
///         if self.token != row.token {
///             let by = format!("life {} has it, and this is life {}", row.token, self.token);
///             return Err(SaveError::Lost(by.into()).into());
///         }
///         row.last_processed = Some(checkpoint.last_processed);
///         Ok(())
///     }
///
///     fn label(&self) -> Option<String> {
///         Some("orders".to_owned())
///     }
///
///     fn fence(&self) -> u64 {
///         self.token                                  // each job has it, as `Job::fence`
///     }
/// }
///
/// # use waterline::{Consumer, MemoryJobs};
/// let row = Arc::new(Mutex::new(Row::default()));
/// let progress = || Fenced { row: row.clone(), token: 0 };
/// let jobs = MemoryJobs::new();
/// let first = Consumer::builder(jobs.clone(), progress()).start(|_| Ok(()))?;
/// // Takes the name over.
/// let second = Consumer::builder(jobs.clone(), progress()).start(|_| Ok(()))?;
/// jobs.push("a job for both");
/// assert!(matches!(first.join(), Err(Error::Fenced { .. })));
/// assert!(second.handle().wait_for(0, std::time::Duration::from_secs(20)));
/// # second.stop()?;
/// # Ok::<(), Error>(())
/// ```
///
/// # A name that is refused
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
///             Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
///                 return Err(Error::InUse { name });
///             }
///             Err(e) => return Err(Error::Progress { source: e.into() }),
///         }
///         match fs::read_to_string(self.directory.join("watermark")) {
///             Ok(text) => match text.trim().parse() {
///                 Ok(index) => Ok(Some(Checkpoint::new(index))),
///                 Err(e) => {
///                     let reason = format!("{text:?} is no index: {e}");
///                     Err(Error::Corrupt { name, reason })
///                 }
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
/// # let refused = Consumer::builder(jobs.clone(), progress()).start(|_| Ok(()));
/// # assert!(matches!(refused, Err(Error::InUse { .. })));
/// # consumer.join()?;
/// # let again = Consumer::builder(jobs, progress()).start(|job| Ok(assert!(job.index > 4)))?;
/// # assert!(again.handle().wait_for(8, std::time::Duration::from_secs(20)));
/// # again.stop()?;
/// # Ok::<(), Error>(())
/// ```
pub trait Progress: Send + 'static {
    /// Takes the name, and loads what was saved last; `None` when nothing ever was. Called once,
    /// when a consumer starts. It refuses a name that another live value has, or shuts that one
    /// out: see [the rules](Self#the-rules). The name is free again when the value is dropped.
    ///
    /// # Errors
    /// [`Error::InUse`] when another live consumer of this process has the name, [`Error::Leased`]
    /// when somebody elsewhere has it for a time, [`Error::Corrupt`] when the value cannot be read,
    /// [`Error::Progress`] when it cannot be reached. `start` returns it as it is.
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error>;

    /// Saves the watermark. Called on a thread of its own, one call at a time, with a checkpoint
    /// that never goes back; never when nothing finished. While jobs go on that is one
    /// [`pace`](Self::pace) after the last call returned, or later if busy threads have all the
    /// cores: with 8 of them on two cores up to 30 ms. Without the name, before
    /// [`acquire`](Self::acquire) or after it was refused, it is an error and changes nothing.
    ///
    /// # Errors
    /// Retried with back-off and shown by `status().blocked`; the watermark stands still meanwhile.
    /// An error that is a [`SaveError::Lost`] halts the consumer instead.
    fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError>;

    /// Returns true if it also keeps the jobs that are done above the watermark. Then
    /// [`acquire_all`](Self::acquire_all) and [`save_all`](Self::save_all) are called in place of
    /// [`acquire`](Self::acquire) and [`save`](Self::save), and no job runs again once it is saved
    /// as done. Asked once, before the name is taken. Default: false.
    fn keeps_done_ahead(&self) -> bool {
        false
    }

    /// Takes the name as [`acquire`](Self::acquire) does, and loads all that was saved last. An
    /// engine that keeps what is done ahead implements it; the default has the watermark alone.
    ///
    /// # Errors
    /// Those of [`acquire`](Self::acquire).
    fn acquire_all(&mut self) -> Result<Option<Saved>, Error> {
        Ok(self.acquire()?.map(Saved::from))
    }

    /// Saves all that is done, under the rules of [`save`](Self::save). An engine that keeps what
    /// is done ahead implements it; the default saves the watermark alone.
    ///
    /// Each call lists everything, so it costs a step for each run. The watermark may be the one
    /// that was saved before, or still be `None`, while more is done above it.
    ///
    /// # Errors
    /// [`SaveError::Retry`] is tried again with back-off, as an error of [`save`](Self::save) is.
    /// [`SaveError::Lost`] halts the consumer at once with [`Error::Fenced`], also when it is about
    /// to stop; nothing is saved after it, and what was handed over counts as not saved.
    fn save_all(&mut self, saved: &Saved) -> Result<(), SaveError> {
        match saved.last_processed {
            Some(last) => Ok(self.save(&Checkpoint::new(last))?),
            None => Ok(()),
        }
    }

    /// Returns its name, for statuses, errors and lines. Asked once, after the name was taken.
    /// Default: none.
    fn label(&self) -> Option<String> {
        None
    }

    /// Returns the least time from the end of one save to the next while jobs go on and none waits
    /// for the watermark. A longer one saves writes; a crash repeats what finished since the last
    /// save. Asked after each save. Default: 1 ms.
    fn pace(&self) -> Duration {
        SAVE_PACE
    }

    /// Returns the token of this life, for the writes that jobs make elsewhere: it grows from life
    /// to life of a name, so a storage can refuse the writes of an earlier life. Each job has it,
    /// as [`Job::fence`](crate::Job::fence). Asked once, after the name was taken. Default: 0, for
    /// none.
    fn fence(&self) -> u64 {
        0
    }

    /// Keeps the way back to the consumer, for an engine that holds its names for a time. Called
    /// once, before the name is taken. The default ignores it.
    fn subscribe(&mut self, tenure: Tenure) {
        let _ = tenure;
    }
}

/// Gives the writer that a progress of this crate shares with others, once its name is taken. It is
/// quicker and no more: a struct around such a progress, which nobody recognises here, saves the
/// same with [`Progress::save_all`].
pub(crate) fn shared_writer<P: Progress>(progress: &mut P) -> Option<Arc<dyn Saves>> {
    let any: &mut dyn Any = progress;
    any.downcast_mut::<StoreProgress>()?.writer()
}

/// What a save without the name is answered with.
const NOT_ACQUIRED: &str = "the progress was not acquired, so another consumer may have its name: call `acquire` first";
