//! The progress of running jobs in memory.

use crate::embedded::state::{Holder, QueueState, Shown};
use crate::types::error::QueueError;
use crate::types::progress::JobProgress;
use std::time::{Duration, Instant};

/// The pause between two writes of a job's progress: often enough for a person to watch. The
/// process that runs the job sees every change.
const PACE: Duration = Duration::from_millis(500);

/// True if progress is to be written this long after the last write (`None`: it is the first).
fn is_due(since_written: Option<Duration>) -> bool {
    since_written.is_none_or(|since| since >= PACE)
}

impl QueueState {
    /// Shows progress to readers in this process. Returns whether it has to be written, too.
    pub(crate) fn show(&self, id: &str, token: u64, progress: &JobProgress, now: Instant) -> Result<bool, QueueError> {
        self.change(|live| {
            let Some(holder) = live.running.get_mut(&token).filter(|holder| holder.holds(now)) else {
                return Err(self.halt(id));
            };
            let written = holder.shown.as_ref().and_then(|shown| shown.written);
            let is_due = is_due(written.map(|written| now.saturating_duration_since(written)));
            let written = if is_due { Some(now) } else { written };
            let shown = Shown { progress: progress.clone(), written, is_ahead: !is_due };
            match &mut holder.shown {
                Some(old) => **old = shown,
                none => *none = Some(Box::new(shown)),
            }
            // Under the lock, so that it is told before the end of the job.
            self.shared.told_progress(id, progress);
            Ok(is_due)
        })
    }

    /// Makes the next progress of a job due, since a write has failed.
    pub(crate) fn progress_was_not_written(&self, token: u64) {
        self.change(|live| {
            let shown = live.running.get_mut(&token).and_then(|holder| holder.shown.as_mut());
            shown.into_iter().for_each(|shown| (shown.written, shown.is_ahead) = (None, true));
        });
    }

    /// Returns the progress that a running job shows.
    pub(crate) fn shown(&self, token: u64) -> Option<JobProgress> {
        self.look(|live| Some(live.running.get(&token)?.shown.as_ref()?.progress.clone()))
    }
}

impl Holder {
    /// Returns the progress that it shows, if the store has an older one.
    pub(super) fn unwritten(&self) -> Option<JobProgress> {
        let shown = self.shown.as_ref()?;
        shown.is_ahead.then(|| shown.progress.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_written_at_once_then_twice_a_second() {
        assert!(is_due(None) && is_due(Some(PACE)));
        assert!(!is_due(Some(PACE - Duration::from_nanos(1))));
    }
}
