//! The progress of a running job: a fraction and a note.

use super::Queue;
use super::intent::call;
use super::row::Row;
use super::state::QueueState;
use crate::base::config::ConfigError;
use crate::base::error::Error;
use crate::commit::sealed::Fields;
use crate::commit::sealed::{Kind, SUM};
use crate::queue::error::QueueError;
use crate::queue::job::{JobState, time};
use std::time::{Duration, Instant, SystemTime};

pub(crate) const SEAL: Kind = Kind { label: "queue.progress", versions: &[1] };

/// The longest note, in bytes: some sentences. Each write has it whole.
const LONGEST: usize = 1024;

/// The pause between two writes of a job's progress. A person who looks sees it twice a second
/// anyway, and the process that runs the job sees each one.
const PACE: Duration = Duration::from_millis(500);

/// The progress of a job, as its worker has shown it: see
/// [`Running::progress`](crate::queue::Running::progress).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct JobProgress {
    /// The part that is done: 0 to 1.
    pub fraction: f64,
    /// The note of the worker, which may be empty.
    pub note: String,
    /// The time at which it was shown.
    pub at: SystemTime,
}

impl JobProgress {
    /// Returns the progress that a worker shows at this time, in milliseconds since 1970.
    fn new(fraction: f64, note: &str, wall: u64) -> Result<Self, ConfigError> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(ConfigError::Fraction { value: fraction });
        }
        if note.len() > LONGEST {
            return Err(ConfigError::ProgressNote { length: note.len() });
        }
        Ok(Self { fraction, note: note.to_owned(), at: time(wall) })
    }
}

impl JobProgress /* bytes */ {
    pub(super) fn encode(&self, queue: &str, id: &str) -> Vec<u8> {
        let at = super::job::millis(self.at).unwrap_or(0);
        let mut bytes = SEAL.begin(1 + 2 * 8 + self.note.len() + SUM);
        bytes.extend_from_slice(&self.fraction.to_be_bytes());
        bytes.extend_from_slice(&at.to_be_bytes());
        bytes.extend_from_slice(self.note.as_bytes());
        SEAL.close(queue, id.as_bytes(), &mut bytes);
        bytes
    }

    pub(super) fn decode(queue: &str, id: &str, bytes: &[u8]) -> Result<Self, String> {
        let mut rest = Fields(SEAL.open(queue, id.as_bytes(), bytes)?.body);
        let mut read = || {
            let (fraction, wall) = (f64::from_be_bytes(rest.take()?), rest.number()?);
            Self::new(fraction, std::str::from_utf8(rest.0).ok()?, wall).ok()
        };
        read().ok_or_else(|| "its fields are no progress".to_owned())
    }
}

/// True if progress is to be written so long after the last time: the first one at once, and later
/// ones from time to time.
fn is_due(since_written: Option<Duration>) -> bool {
    since_written.is_none_or(|since| since >= PACE)
}

/// The progress that the holder of a lease shows.
pub(super) struct Shown {
    progress: JobProgress,
    /// The time of the last write; `None`: there was none that succeeded.
    written: Option<Instant>,
    /// True if the store has an older one.
    is_ahead: bool,
}

/// The effect of showing progress.
enum Showed {
    /// The lease is over.
    Halt,
    InMemory,
    /// It has to be written too.
    Due,
}

impl QueueState {
    pub(super) fn decode_progress(&self, id: &str, bytes: &[u8]) -> Result<JobProgress, Error> {
        JobProgress::decode(&self.name, id, bytes)
            .map_err(|reason| self.corrupt(format!("the progress of the job {id:?}: {reason}")))
    }

    /// Shows progress to the readers in this process.
    fn show(&self, id: &str, token: u64, progress: &JobProgress, now: Instant) -> Showed {
        self.change(|live| {
            let Some(holder) = live.running.get_mut(&token).filter(|holder| holder.holds(now)) else {
                return Showed::Halt;
            };
            let written = holder.shown.as_ref().and_then(|shown| shown.written);
            let is_due = is_due(written.map(|written| now.saturating_duration_since(written)));
            let written = if is_due { Some(now) } else { written };
            let shown = Shown { progress: progress.clone(), written, is_ahead: !is_due };
            match &mut holder.shown {
                Some(old) => **old = shown,
                none => *none = Some(Box::new(shown)),
            }
            // With the lock, so that it is told before the end of the job.
            self.subscribers.tell_progress(id, progress);
            if is_due { Showed::Due } else { Showed::InMemory }
        })
    }

    /// Makes the next progress of a job one that is due, since a write of it has failed.
    fn progress_was_not_written(&self, token: u64) {
        self.change(|live| {
            let shown = live.running.get_mut(&token).and_then(|holder| holder.shown.as_mut());
            shown.into_iter().for_each(|shown| (shown.written, shown.is_ahead) = (None, true));
        });
    }

    /// Returns the progress that the holder of a lease shows.
    fn shown(&self, token: u64) -> Option<JobProgress> {
        self.look(|live| Some(live.running.get(&token)?.shown.as_ref()?.progress.clone()))
    }

    /// Returns the progress that the holder of a lease shows, if the store has an older one.
    pub(super) fn unwritten_progress(&self, token: u64) -> Option<JobProgress> {
        self.look(|live| {
            let shown = live.running.get(&token)?.shown.as_ref()?;
            shown.is_ahead.then(|| shown.progress.clone())
        })
    }
}

impl Queue {
    /// Shows the progress of a running job. Readers in this process see it at once, and the store
    /// gets it from time to time. Returns the row if it was written.
    pub(super) fn show(&self, id: &str, token: u64, fraction: f64, note: &str) -> Result<Option<Row>, QueueError> {
        let at = self.state.moment();
        let progress = JobProgress::new(fraction, note, at.wall)?;
        match self.state.show(id, token, &progress, at.now) {
            Showed::Halt => return Err(self.inner().halt(id)),
            Showed::InMemory => return Ok(None),
            Showed::Due => {}
        }
        let of = id.to_owned();
        let written = call(&self.store, &self.state, "write the progress of a job", move |step| {
            step.put_progress(&of, token, &progress)
        });
        if written.is_err() {
            self.state.progress_was_not_written(token);
        }
        written.map(Some)
    }

    /// Returns the progress of a job with this row: that which its worker shows, or the stored one.
    pub(super) fn progress_of(&self, id: &str, row: &Row) -> Result<Option<JobProgress>, QueueError> {
        let shown = if row.state == JobState::Running { self.state.shown(row.place) } else { None };
        if shown.is_some() || !row.extras().has_progress {
            return Ok(shown);
        }
        let bytes = self.bytes(&self.state.keys.progress(id))?;
        Ok(bytes.map(|bytes| self.state.decode_progress(id, &bytes)).transpose()?)
    }

    /// Returns the progress of a running job.
    pub(super) fn progress(&self, id: &str) -> Result<Option<JobProgress>, QueueError> {
        self.row(id)?.map_or(Ok(None), |row| self.progress_of(id, &row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_of_progress_stay_as_they_are() {
        let progress = JobProgress::new(0.5, "row 3", 258).unwrap();
        let bytes = progress.encode("q", "id");
        assert_eq!(bytes[..bytes.len() - SUM], *b"\x01\x3f\xe0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x02row 3");
        assert_eq!(JobProgress::decode("q", "id", &bytes), Ok(progress));
        assert!(JobProgress::decode("q", "other", &bytes).is_err());
    }

    #[test]
    fn progress_is_written_at_first_and_then_from_time_to_time() {
        assert!(is_due(None) && is_due(Some(PACE)));
        assert!(!is_due(Some(PACE - Duration::from_nanos(1))));
    }

    proptest! {
        #[test]
        fn progress_is_read_as_it_was_written(fraction in any::<f64>(), note in ".{0,300}", wall in 0..1u64 << 47) {
            let Ok(progress) = JobProgress::new(fraction, &note, wall) else {
                prop_assert!(!(0.0..=1.0).contains(&fraction) || note.len() > LONGEST);
                return Ok(());
            };
            prop_assert_eq!(JobProgress::decode("q", "id", &progress.encode("q", "id")), Ok(progress));
        }

        #[test]
        fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = JobProgress::decode("q", "id", &bytes);
        }
    }
}
