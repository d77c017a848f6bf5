//! How progress is stored: the trait that an engine implements, and the values that it saves.

use crate::base::{BoxError, Error};
use crate::commit::SAVE_PACE;
use std::time::Duration;

mod by_hand;
pub(crate) mod embedded;
pub(crate) mod format;
mod history;
mod ledger;
mod life;
mod listing;
mod memory;
mod moves;
mod parked;
mod reads;
mod records;
mod replace;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod said;
#[cfg(test)]
pub(crate) mod samples;
mod saved;
mod saves;
mod serialized;
mod shortcuts;
mod tenure;
mod transactional;

pub use crate::store::Owned;
pub use embedded::StoreProgress;
pub use history::{Move, MoveKind};
pub(crate) use life::{Halt, Life};
pub use listing::{ConsumerInfo, LastHalt};
pub use memory::MemoryProgress;
pub use parked::Parked;
pub(crate) use parked::{Earlier, LiveParking, ParkedRecord, ParkedRecords};
pub use records::Record;
pub(crate) use records::{NewRecords, load as load_records};
pub(crate) use replace::{Replacement, readers};
pub use saved::{Checkpoint, SaveError, Saved};
pub(crate) use saves::{DoneAhead, SaveBackend, SavePort, Snapshot, WrittenJobs};
pub(crate) use shortcuts::{
    acquire_all, check_owned, close_unused, load_earlier, note_log, note_owned, open_life, shared_writer,
};
pub use tenure::Tenure;
pub(crate) use tenure::{Tenant, Wish};
pub use transactional::{CommitError, Transactional};
pub(crate) use transactional::{Commits, NotWritten, Opening, commit};

/// Keeps the progress of one consumer across restarts, under a name.
///
/// Only one live consumer has the name at a time. [`MemoryProgress`] and [`StoreProgress`] are
/// ready-made. Implement the trait to keep the watermark beside your own data:
/// [`acquire`](Self::acquire) and [`save`](Self::save) are enough. An engine that also keeps the
/// jobs that are done above the watermark implements [`keeps_done_ahead`](Self::keeps_done_ahead),
/// [`acquire_all`](Self::acquire_all) and [`save_all`](Self::save_all), too. A struct around a
/// progress forwards all methods, and loses nothing.
///
/// # The rules
///
/// * A save that returned `Ok` survives what you need it to survive.
/// * A save that returned an error left the old value or the new one.
/// * A value that cannot be read is an error, never `None`.
/// * One live value at a time has a name. For a second value, [`acquire`](Self::acquire) fails, or
///   it takes the name over. A call that takes the name over must *fence off the earlier writer*:
///   once the call has returned, no save of an earlier life may change anything, however late it
///   arrives. That writer may be alive, and only slow or partitioned. So a check before each write
///   is not enough: the storage itself has to compare a token, atomically with the write.
///
/// The feature `testing` has a suite that checks these rules:
/// `waterline::testing::ProgressSuite`.
///
/// # A name that can be taken over
///
/// This engine counts the lives of a name. The number of a life is its token, and only the newest
/// one may change the row. A database does the same with `UPDATE … WHERE token = $1`.
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
///         row.token += 1;                     // from now on the earlier life changes nothing
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
///             let by = format!("life {} has the name; this is life {}", row.token, self.token);
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
/// /// The watermark in a file, in a directory that has no other content.
/// struct FileProgress {
///     directory: PathBuf,
///     claimed: bool,
/// }
///
/// impl Progress for FileProgress {
///     fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
///         let name = self.directory.display().to_string();
///         // The value that creates the file has the name. (After a crash, remove it by hand.)
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
///             return Err("another value may have the name: call `acquire` first".into());
///         }
///         let beside = self.directory.join("watermark.new");
///         fs::write(&beside, checkpoint.last_processed.to_string())?;
///         Ok(fs::rename(&beside, self.directory.join("watermark"))?)      // all or nothing
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
#[doc(alias("checkpoint", "offset"))]
pub trait Progress: Send + 'static {
    /// Takes the name, and loads the last saved checkpoint, or `None` if nothing was ever saved.
    ///
    /// A consumer calls it once, when it starts. A [standby](crate::Builder::standby) calls it from
    /// its own thread, again after [`Error::InUse`] and [`Error::Leased`], but not after success or
    /// another error. If another live value has the name, it fails or fences that value off: see
    /// [the rules](Self#the-rules). The name is free again when the value is dropped.
    ///
    /// # Errors
    /// * [`Error::InUse`] if another live consumer of this process has the name.
    /// * [`Error::Leased`] if a consumer elsewhere has the name for a limited time.
    /// * [`Error::Corrupt`] if the stored value cannot be read.
    /// * [`Error::Progress`] if the storage cannot be reached.
    ///
    /// `start` returns the error unchanged. A [standby](crate::Builder::standby) waits after the
    /// first two.
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error>;

    /// Saves the watermark. A separate thread calls it, one call at a time.
    ///
    /// The checkpoint never goes back, and no call is made if no job finished. While jobs go on,
    /// the next call begins one [`pace`](Self::pace) after the last one returned, or later if busy
    /// threads use all cores: with 8 of them on two cores, up to 30 ms later. A call before
    /// [`acquire`](Self::acquire), or after it failed, is an error and changes nothing.
    ///
    /// # Errors
    /// The consumer retries the save with back-off, and `status().blocked` shows the error. The
    /// watermark stands still meanwhile. A [`SaveError::Lost`] halts the consumer instead.
    fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError>;

    /// Returns whether the progress also keeps the jobs done above the watermark. Default: false.
    ///
    /// If so, the consumer calls [`acquire_all`](Self::acquire_all) and
    /// [`save_all`](Self::save_all) instead of [`acquire`](Self::acquire) and [`save`](Self::save),
    /// and a job saved as done never runs again. A consumer asks once, before it takes the name.
    fn keeps_done_ahead(&self) -> bool {
        false
    }

    /// Returns whether the progress also keeps [`Saved::records`](Saved::records). Default: false.
    ///
    /// If so, the consumer also calls [`acquire_all`](Self::acquire_all) and
    /// [`save_all`](Self::save_all), and can [park](crate::OnExhausted::Park) jobs and [count
    /// crashes](crate::Builder::max_crashes). A [`Transactional`] progress keeps them in each
    /// commit, whatever this returns. A consumer calls this once, before it takes the name.
    fn keeps_records(&self) -> bool {
        false
    }

    /// Takes the name as [`acquire`](Self::acquire) does, and loads everything that was saved. The
    /// default loads only the watermark; an engine that keeps the jobs done ahead implements it.
    ///
    /// # Errors
    /// Those of [`acquire`](Self::acquire). `start` refuses what cannot be true as
    /// [`Error::Corrupt`], for example a job that is listed as done and as not done.
    fn acquire_all(&mut self) -> Result<Option<Saved>, Error> {
        Ok(self.acquire()?.map(Saved::from))
    }

    /// Saves everything that is done, under the rules of [`save`](Self::save). The default saves
    /// only the watermark; an engine that keeps the jobs done ahead implements it.
    ///
    /// Each call lists all runs, and costs a step per run. If only jobs above the watermark
    /// finished, the watermark is as in the previous save, or still `None`.
    ///
    /// # Errors
    /// After [`SaveError::Retry`] the consumer retries with back-off, as after an error of
    /// [`save`](Self::save). [`SaveError::Lost`] halts the consumer at once with [`Error::Fenced`],
    /// even if it is about to stop. It saves nothing more, and this save counts as not made.
    fn save_all(&mut self, saved: &Saved) -> Result<(), SaveError> {
        match saved.last_processed {
            Some(last) => Ok(self.save(&Checkpoint::new(last))?),
            None => Ok(()),
        }
    }

    /// Returns the name, for statuses, errors and log lines. Default: none. A consumer calls it
    /// once, after it took the name.
    fn label(&self) -> Option<String> {
        None
    }

    /// Returns the least time between the end of a save and the start of the next. Default: 1 ms.
    ///
    /// It holds while jobs go on and no job waits for the watermark. A longer time means fewer
    /// writes, but after a crash more jobs run again. A consumer asks after each save.
    fn pace(&self) -> Duration {
        SAVE_PACE
    }

    /// Returns the token of this life, for the writes that jobs make elsewhere. Default: 0 (none).
    ///
    /// The token grows with each life of a name, so a storage can refuse earlier writers. Each job
    /// carries it as [`Job::fence`](crate::Job::fence). A consumer calls this once, after it took
    /// the name.
    fn fence(&self) -> u64 {
        0
    }

    /// Receives the handle by which an engine with leases steers its consumer. The default ignores
    /// it. A consumer calls it once, before it takes the name.
    fn subscribe(&mut self, tenure: Tenure) {
        let _ = tenure;
    }
}

/// The error of a save without the name.
const NOT_ACQUIRED: &str = "the progress was not acquired, so another consumer may have its name: call `acquire` first";
