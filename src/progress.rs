//! Storage of the watermark: the trait that an engine implements, and the values that a consumer
//! saves through it.

use crate::base::error::Error;
use crate::base::index::BoxError;
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

pub use embedded::StoreProgress;
pub use history::{Move, MoveKind};
pub(crate) use life::{Halt, Life};
pub use listing::{ConsumerInfo, LastHalt};
pub use memory::MemoryProgress;
pub use parked::Parked;
pub(crate) use parked::{Earlier, LiveParking, ParkedRecord, ParkedRecords, Within};
pub use records::Record;
pub(crate) use records::{NewRecords, load as load_records};
pub use saved::{Checkpoint, SaveError, Saved};
pub(crate) use saves::{DoneAhead, SavePort, Saves, Snapshot, WrittenJobs};
pub(crate) use shortcuts::{acquire_all, close_unused, load_earlier, note_log, open_life, shared_writer};
pub use tenure::Tenure;
pub(crate) use tenure::{Tenant, Wish};
pub use transactional::{CommitError, Transactional};
pub(crate) use transactional::{Commits, NotWritten, Opening, commit};

/// Keeps the progress of one consumer across lives, under a name. Only one live consumer has the
/// name at a time.
///
/// [`MemoryProgress`] and [`StoreProgress`] are ready-made. Implement the trait to keep the
/// watermark beside your own data: [`acquire`](Self::acquire) and [`save`](Self::save) are enough.
/// An engine can also keep the jobs that are done above the watermark. It then implements
/// [`keeps_done_ahead`](Self::keeps_done_ahead), [`acquire_all`](Self::acquire_all) and
/// [`save_all`](Self::save_all) as well. A struct around a progress forwards all methods, and loses
/// nothing.
///
/// # The rules
///
/// * A save that returned `Ok` survives what you need it to survive.
/// * A save that returned an error left the old value or the new one.
/// * A value that cannot be read is an error, never `None`.
/// * One live value at a time has a name. For a second value, [`acquire`](Self::acquire) fails, or
///   it takes the name over. A call that takes the name over has to *shut out the writer before*:
///   once the call has returned, no save of an earlier life may change anything, however late it
///   arrives. That writer may be alive, and only slow or cut off by the network. So a check before
///   each write is not enough: the storage itself has to compare a token, in one step with the
///   write.
///
/// The feature `testing` has a suite that checks these rules:
/// `waterline::testing::ProgressSuite`.
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
    /// Takes the name, and loads the last saved checkpoint, or `None` if nothing was ever saved. A
    /// consumer calls it when it starts, once. A [standby](crate::Builder::standby) calls it again
    /// after [`Error::InUse`] and [`Error::Leased`], from a thread of its own, and not after it
    /// succeeded or failed otherwise. If another live value has the name, it fails or shuts that
    /// value out: see [the rules](Self#the-rules). The name is free again when the value is
    /// dropped.
    ///
    /// # Errors
    /// * [`Error::InUse`] if another live consumer of this process has the name.
    /// * [`Error::Leased`] if a consumer elsewhere has the name for a time.
    /// * [`Error::Corrupt`] if the stored value cannot be read.
    /// * [`Error::Progress`] if the storage cannot be reached.
    ///
    /// `start` returns the error unchanged. A [standby](crate::Builder::standby) waits after the
    /// first two.
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error>;

    /// Saves the watermark. A separate thread calls it, one call at a time. The checkpoint never
    /// goes back, and no call is made if no job finished. While jobs go on, the next call begins
    /// one [`pace`](Self::pace) after the last one returned. It begins later if busy threads use
    /// all the cores: with 8 of them on two cores, up to 30 ms later. A call without the name, so
    /// before [`acquire`](Self::acquire) or after it failed, returns an error and changes nothing.
    ///
    /// # Errors
    /// The consumer tries the save again with back-off, and `status().blocked` shows the error. The
    /// watermark stands still meanwhile. A [`SaveError::Lost`] halts the consumer instead.
    fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError>;

    /// Returns true if the progress also keeps the jobs that are done above the watermark. The
    /// consumer then calls [`acquire_all`](Self::acquire_all) and [`save_all`](Self::save_all)
    /// instead of [`acquire`](Self::acquire) and [`save`](Self::save), and a job that is saved as
    /// done never runs again. A consumer calls it once, before it takes the name. Default: false.
    fn keeps_done_ahead(&self) -> bool {
        false
    }

    /// Returns true if the progress also keeps the small rows in
    /// [`Saved::records`](Saved::records). The consumer then calls
    /// [`acquire_all`](Self::acquire_all) and [`save_all`](Self::save_all) as well, and can
    /// [park](crate::OnExhausted::Park) jobs and [count crashes](crate::Builder::max_crashes). A
    /// progress that is [`Transactional`] keeps them in each commit, whatever this returns. A
    /// consumer calls it once, before it takes the name. Default: false.
    fn keeps_records(&self) -> bool {
        false
    }

    /// Takes the name as [`acquire`](Self::acquire) does, and loads everything that the last save
    /// listed. An engine that keeps the jobs done ahead implements it. The default loads only the
    /// watermark.
    ///
    /// # Errors
    /// The same as those of [`acquire`](Self::acquire). `start` refuses what cannot be true as
    /// [`Error::Corrupt`]: a job that is listed as done and as not done, for example.
    fn acquire_all(&mut self) -> Result<Option<Saved>, Error> {
        Ok(self.acquire()?.map(Saved::from))
    }

    /// Saves everything that is done, under the rules of [`save`](Self::save). An engine that keeps
    /// the jobs done ahead implements it. The default saves only the watermark.
    ///
    /// Each call lists all runs, so it costs a step for each run. If only jobs above the watermark
    /// finished, the watermark is the same as in the save before, or still `None`.
    ///
    /// # Errors
    /// After [`SaveError::Retry`] the consumer tries again with back-off, as after an error of
    /// [`save`](Self::save). [`SaveError::Lost`] halts the consumer at once with
    /// [`Error::Fenced`], also a consumer that is about to stop. The consumer saves nothing after
    /// it, and the content of this save counts as not saved.
    fn save_all(&mut self, saved: &Saved) -> Result<(), SaveError> {
        match saved.last_processed {
            Some(last) => Ok(self.save(&Checkpoint::new(last))?),
            None => Ok(()),
        }
    }

    /// Returns the name, for statuses, errors and log lines. A consumer calls it once, after it
    /// took the name. Default: none.
    fn label(&self) -> Option<String> {
        None
    }

    /// Returns the least time between the end of one save and the begin of the next. It holds while
    /// jobs go on and no job waits for the watermark. A longer time means fewer writes, but after a
    /// crash the jobs that finished since the last save run again. A consumer calls it after each
    /// save. Default: 1 ms.
    fn pace(&self) -> Duration {
        SAVE_PACE
    }

    /// Returns the token of this life, for the writes that jobs make elsewhere. The token grows
    /// from life to life of a name, so a storage can refuse the writes of an earlier life. Each job
    /// carries it as [`Job::fence`](crate::Job::fence). A consumer calls it once, after it took the
    /// name. Default: 0, which means that there is no token.
    fn fence(&self) -> u64 {
        0
    }

    /// Receives the handle by which an engine that holds its names for a time steers its consumer.
    /// A consumer calls it once, before it takes the name. The default ignores the handle.
    fn subscribe(&mut self, tenure: Tenure) {
        let _ = tenure;
    }
}

/// The error of a save without the name.
const NOT_ACQUIRED: &str = "the progress was not acquired, so another consumer may have its name: call `acquire` first";
