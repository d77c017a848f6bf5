//! A progress that shares a transaction with the user's writes.

use super::{Progress, SaveError, Saved, life::Life, parked::ParkedRecord, records::NewRecords};
use crate::base::{BoxError, Error, Index, caught::Caught, error::describe, guard::guarded};
use std::error::Error as StdError;
use std::fmt;

/// A progress that shares a transaction with the user's writes, for
/// [`Builder::start_writing`](crate::Builder::start_writing).
///
/// One transaction contains the rows that the user writes for some jobs, and the fact that these
/// jobs are done. So after a crash both are there, or neither, and each job has its rows *exactly
/// once*. The trait names no engine: [`Tx`](Self::Tx) is whatever your engine calls a transaction.
///
/// # The rules
///
/// The rules of [`Progress`] hold, and these:
///
/// * [`commit`](Self::commit) writes all of `saved`, with its [records](crate::Saved::records),
///   and everything that `write` wrote, in one transaction. The transaction compares the token of
///   this life, as each save does.
/// * [`acquire_all`](Progress::acquire_all) returns what the last commit saved, with all records,
///   even if [`keeps_done_ahead`](Progress::keeps_done_ahead) is false.
/// * If the database's answer is lost, it is unknown whether the transaction is written. The
///   engine must find out before it returns: for example, each commit adds 1 to a number in the
///   row of the name, which the engine compares after it has reconnected. If it cannot find out,
///   it returns [`CommitError::Lost`].
///
/// `waterline::testing::ProgressSuite` (feature `testing`) checks these rules, too.
///
/// ```
/// use std::sync::{Arc, Mutex, PoisonError};
/// use waterline::*;
///
/// /// A database in memory: a counter of the user's, and the row of one name.
/// #[derive(Clone, Default)]
/// struct Database {
///     sum: u64,
///     saved: Option<Saved>,
///     records: std::collections::BTreeMap<Vec<u8>, Vec<u8>>,
///     token: u64,
/// }
///
/// struct Engine {
///     database: Arc<Mutex<Database>>,
///     token: u64,
/// }
///
/// impl Progress for Engine {
///     fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
///         Ok(self.acquire_all()?.and_then(|saved| saved.last_processed).map(Checkpoint::new))
///     }
///     fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
///         Ok(self.save_all(&Saved::from(*checkpoint))?)
///     }
///     fn keeps_done_ahead(&self) -> bool {
///         true
///     }
///     fn acquire_all(&mut self) -> Result<Option<Saved>, Error> {
///         let mut database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
///         database.token += 1;
///         self.token = database.token;
///         let records = database.records.iter().map(|(key, value)| Record::new(key, Some(value)));
///         let records = records.collect();
///         Ok(database.saved.clone().map(|mut saved| {
///             saved.records = records;
///             saved
///         }))
///     }
///     fn save_all(&mut self, saved: &Saved) -> Result<(), SaveError> {
///         Ok(self.commit(saved, &mut |_| Ok(()))?)
///     }
/// }
///
/// impl Transactional for Engine {
///     type Tx<'t> = Database;
///
///     fn commit(
///         &mut self,
///         saved: &Saved,
///         write: &mut (dyn FnMut(&mut Database) -> Result<(), BoxError> + Send),
///     ) -> Result<(), CommitError> {
///         let mut database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
///         let mut tx = database.clone();                          // it begins
///         if self.token == 0 || tx.token != self.token {
///             return Err(CommitError::Lost("another life has the name".into()));
///         }
///         write(&mut tx).map_err(CommitError::Write)?;            // and is rolled back
///         for Record { key, value, .. } in saved.records.clone() {
///             match value {
///                 Some(value) => tx.records.insert(key, value),
///                 None => tx.records.remove(&key),
///             };
///         }
///         tx.saved = Some(saved.clone());
///         *database = tx;                                         // it is committed
///         Ok(())
///     }
/// }
///
/// let database = Arc::default();
/// let engine = Engine { database: Arc::clone(&database), token: 0 };
/// Consumer::builder((0..100).collect::<MemoryJobs<u64>>(), engine)
///     .stop_at(99)
///     .start_writing(
///         |job| Ok(job.payload * 2),                              // in parallel
///         |tx, results| {                                         // one transaction at a time
///             tx.sum += results.iter().map(|(_, double)| double).sum::<u64>();
///             Ok(())
///         },
///     )?
///     .join()?;
/// assert_eq!(database.lock().unwrap().sum, 9_900);
/// # Ok::<(), waterline::Error>(())
/// ```
pub trait Transactional: Progress {
    /// The engine's transaction, as passed to `write`.
    type Tx<'t>;

    /// Writes all of `saved` and the user's part in one transaction, under the fence of the name. A
    /// separate thread calls it, one call at a time.
    ///
    /// The engine begins a transaction, calls `write` with it, and returns the error of `write` as
    /// [`CommitError::Write`]. It may call `write` again within one commit, in a new transaction,
    /// for example after a serialization failure. The last call counts. An `Ok` without a
    /// successful last call of `write` halts the consumer, as does a panic: the result is unknown.
    ///
    /// A consumer also commits without jobs, for example to end its life; `write` is a no-op then.
    ///
    /// # Errors
    /// See [`CommitError`].
    fn commit(
        &mut self,
        saved: &Saved,
        write: &mut (dyn FnMut(&mut Self::Tx<'_>) -> Result<(), BoxError> + Send),
    ) -> Result<(), CommitError>;
}

/// Why a [commit](Transactional::commit) failed, and so what becomes of the jobs.
///
/// A [`BoxError`] converts to a `Retry`, so `?` works in a function that returns one. A commit
/// error converts to a [`SaveError`]: [`save_all`](Progress::save_all) can commit an empty `write`.
#[derive(Debug)]
#[non_exhaustive]
pub enum CommitError {
    /// The user's part failed, nothing is written, and the connection works. If the transaction had
    /// several jobs, each is then written once alone; one that fails alone has a failed attempt.
    Write(BoxError),
    /// Nothing is written. The consumer retries the same with back-off until it succeeds.
    Retry(BoxError),
    /// Another consumer has the name now, or it cannot be found out whether the transaction is
    /// written. The consumer halts at once with [`Error::Fenced`](crate::Error::Fenced), whose
    /// `holder` is the text of this error. The next life reads the truth.
    Lost(BoxError),
}

impl From<BoxError> for CommitError {
    /// Returns a `Retry`, unless the error is a `CommitError` or a [`SaveError`] already.
    fn from(error: BoxError) -> Self {
        match error.downcast::<Self>() {
            Ok(error) => *error,
            Err(error) => SaveError::from(error).into(),
        }
    }
}

impl From<SaveError> for CommitError {
    fn from(error: SaveError) -> Self {
        match error {
            SaveError::Retry(error) => Self::Retry(error),
            SaveError::Lost(error) => Self::Lost(error),
        }
    }
}

impl From<CommitError> for SaveError {
    /// Returns a `Retry` for an error of the user's part.
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Write(error) | CommitError::Retry(error) => Self::Retry(error),
            CommitError::Lost(error) => Self::Lost(error),
        }
    }
}

impl fmt::Display for CommitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(error) => write!(f, "the user's part failed: {}", describe(&**error)),
            Self::Retry(error) => write!(f, "the transaction failed: {}", describe(&**error)),
            Self::Lost(error) => write!(f, "another consumer has the name: {}", describe(&**error)),
        }
    }
}

impl StdError for CommitError {}

/// Why a transaction with jobs is not known to be written.
pub(crate) enum NotWritten {
    Error(CommitError),
    /// It is unknown what is written.
    Unknown(BoxError),
}

/// Writes the results of jobs with a save, for a progress that can.
pub(crate) trait Commits<P>: Send {
    /// Writes the results of these jobs, in ascending order, together with the save.
    fn commit(&mut self, progress: &mut P, saved: &Saved, jobs: &[Index]) -> Result<(), NotWritten>;
}

/// Calls `commit` with a user's part, and checks that the part was called if it must be.
pub(crate) fn commit<P: Transactional>(
    progress: &mut P,
    saved: &Saved,
    has_jobs: bool,
    write: &mut (dyn FnMut(&mut P::Tx<'_>) -> Result<(), BoxError> + Send),
) -> Result<(), NotWritten> {
    let mut wrote = None;
    let answer = guarded(|| {
        Ok(progress.commit(saved, &mut |tx| {
            wrote = None;
            let written = guarded(|| write(tx));
            wrote = Some(written.is_ok());
            written
        }))
    });
    let unknown = |why: &str| Err(NotWritten::Unknown(format!("{UNKNOWN}: {why}").into()));
    match (answer, wrote) {
        (Err(panic), _) => unknown(&format!("the commit {panic}")),
        (Ok(Ok(())), None) if has_jobs => unknown("the commit succeeded, and has not called `write`"),
        (Ok(Ok(())), Some(false)) => unknown("the commit succeeded, though `write` had failed"),
        (Ok(answer), _) => answer.map_err(NotWritten::Error),
    }
}

const UNKNOWN: &str = "nobody knows if a transaction is written; the next start reads the truth";

/// The parts of the write that opens a life.
pub(crate) struct Opening<'a> {
    pub(crate) life: &'a Life,
    /// The jobs that are to run alone.
    pub(crate) suspects: Vec<&'a ParkedRecord>,
    /// The jobs that were passed, whose records are removed.
    pub(crate) passed: &'a [Index],
    /// Everything that is saved, if an engine keeps the records.
    pub(crate) saved: Option<&'a mut Saved>,
    pub(crate) name: &'a str,
}

/// Writes the records that open a life, in one save. Everything else in it is as loaded.
pub(super) fn open_life<P: Progress>(
    progress: &mut P,
    commits: Option<&mut dyn Commits<P>>,
    Opening { life, suspects, passed, saved, name }: Opening<'_>,
) -> Result<(), Error> {
    let Some(saved) = saved else { return Ok(()) };
    let mut records = NewRecords::default();
    records.put_life(life);
    suspects.into_iter().for_each(|suspect| records.put_job(suspect));
    passed.iter().for_each(|index| records.remove_job(*index));
    saved.records.clear();
    (saved.records, saved.parked) = records.list();
    // They were parked by an earlier save.
    saved.parked.clear();
    let outcome = match commits {
        Some(commits) => commits.commit(progress, saved, &[]),
        None => guarded(|| Ok(progress.save_all(saved)))
            .map_err(NotWritten::Unknown)
            .and_then(|saved| saved.map_err(|error| NotWritten::Error(error.into()))),
    };
    match outcome {
        Ok(()) => Ok(()),
        Err(NotWritten::Error(CommitError::Lost(error))) => {
            Err(Error::Fenced { name: name.to_owned(), holder: Caught::from(error).text })
        }
        Err(
            NotWritten::Error(CommitError::Write(source) | CommitError::Retry(source)) | NotWritten::Unknown(source),
        ) => Err(Error::Progress { source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn save_and_commit_errors_convert_to_each_other() {
        assert!(matches!(CommitError::from(BoxError::from("no disk")), CommitError::Retry(_)));
        let lost = BoxError::from(SaveError::Lost("taken by b".into()));
        assert!(matches!(CommitError::from(lost), CommitError::Lost(by) if by.to_string() == "taken by b"));
        let write = BoxError::from(CommitError::Write("twice".into()));
        assert!(matches!(CommitError::from(write), CommitError::Write(_)));
        let write = CommitError::Write("twice".into());
        assert!(matches!(SaveError::from(write), SaveError::Retry(by) if by.to_string() == "twice"));
        assert!(matches!(SaveError::from(CommitError::Lost("b".into())), SaveError::Lost(_)));
    }
}
