//! Log lines, which wait until their batch is written.

use crate::types::ended::AttemptEnd;
use crate::types::events::{About, Damaged, Fate, Line, Passed};
use crate::types::limit::of_name;
use crate::types::related::Skipped;
use crate::types::rfc3339::rfc3339;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tracing::Level;
use tracing::level_filters::LevelFilter;
use waterline::seam as time;
use waterline::seam::guarded;

/// True if a subscriber wants lines of this level. Otherwise they need not be made.
pub(crate) fn is_wanted(level: Level) -> bool {
    level <= LevelFilter::current()
}

/// The pause between two lines about dead jobs, if many die.
const PACE: Duration = Duration::from_secs(1);

/// How many such lines may come at once, each with its job.
const BURST: u32 = 10;

/// The lines of a queue that are not written yet.
#[derive(Default)]
pub(crate) struct Lines {
    waiting: Mutex<VecDeque<Line>>,
    dead: Mutex<LinePace>,
    untold: Mutex<LinePace>,
}

/// The pace of the lines about dead jobs, and of others that may be many.
#[derive(Default)]
struct LinePace {
    /// When the lines so far would have been written, one after each pause.
    until: Option<Instant>,
    /// How many dead jobs there were since the last line.
    left_out: u64,
}

impl LinePace {
    /// Adds `of` jobs. Returns how many a line stands for; `None`: it is too soon for one.
    fn count(&mut self, now: Instant, of: u64) -> Option<u64> {
        self.left_out += of;
        let until = self.until.map_or(now, |until| until.max(now));
        let is_soon = until.saturating_duration_since(now) > PACE * (BURST - 1);
        (!is_soon).then(|| {
            self.until = until.checked_add(PACE);
            std::mem::take(&mut self.left_out)
        })
    }
}

impl Lines {
    pub(crate) fn add(&self, lines: impl IntoIterator<Item = Line>) {
        self.waiting.lock().extend(lines);
    }

    /// Writes the lines. The caller holds no lock.
    pub(crate) fn write(&self, queue: &str) {
        loop {
            let Some(line) = self.waiting.lock().pop_front() else { return };
            // The work of the caller is done by now, whatever the subscriber does. If it panics, no
            // line can report it, and the panic hook has done so.
            let _ = guarded(|| {
                line.write(self, queue);
                Ok(())
            });
        }
    }
}

impl Lines {
    /// Writes a line about a dead job: after the first ones one a second, for all since the last.
    fn dead(&self, queue: &str, (id, kind, attempt): (&str, &str, u32), error: &str) {
        let Some(count) = self.dead.lock().count(time::now(), 1) else { return };
        tracing::warn!(target: "waterline", queue, id, kind, attempt, error, count, "a job is dead: mend its cause and requeue it, or remove it");
    }
}

impl Line {
    fn write(&self, lines: &Lines, queue: &str) {
        match self {
            Self::Died { job: About { id, kind, attempt }, error } => lines.dead(queue, (id, kind, *attempt), error),
            Self::TakenBack { job: About { id, kind, attempt }, error } => {
                tracing::warn!(target: "waterline", queue, id, kind, attempt, "{error}, so the job is taken back");
            }
            Self::Skipped { job: About { id, kind, attempt }, why } => match why {
                Skipped::Executed => {
                    tracing::debug!(target: "waterline", queue, id, kind, attempt, "a job is skipped, since a twin of it began after its push, and succeeded");
                }
                Skipped::Superseded => {
                    tracing::debug!(target: "waterline", queue, id, kind, attempt, "a job is skipped, since a newer root of its tree was pushed");
                }
            },
            Self::Held { job: About { id, kind, attempt }, limit } => {
                tracing::debug!(target: "waterline", queue, id, kind, attempt, %limit, "a limit has no place for a job, so it waits for its turn");
            }
            Self::Damaged(damaged) => damaged.write(queue),
            Self::Unhandled { kind, fate: Fate::Left } => {
                tracing::warn!(target: "waterline", queue, kind, "jobs of a kind are pushed that the runner has no handler for, so it leaves them to one that has: start one, or correct the kind");
            }
            Self::Unhandled { kind, fate: Fate::Dead } => {
                tracing::warn!(target: "waterline", queue, kind, "jobs of a kind are pushed that the runner has no handler for, so each is dead as soon as the runner takes it: add a handler, or correct the kind, and requeue the dead ones");
            }
            Self::Unhandled { kind, fate: Fate::Snoozed(time) } => {
                tracing::warn!(target: "waterline", queue, kind, "jobs of a kind are pushed that the runner has no handler for, so it snoozes each of them for {time:.1?}, again and again: add a handler, or correct the kind");
            }
            Self::SetBack { by } => {
                let by = format!("{by:.1?}");
                tracing::warn!(target: "waterline", queue, by, "the clock on the wall was set back, and what the queue had written at times that are ahead now goes back with it: back-offs, delays, pauses, ticks, and the times until which rows are kept; a minute that was left is left, and a time that you named (`run_at`) stays");
            }
            Self::Untold { count } => {
                let Some(count) = lines.untold.lock().count(time::now(), *count) else { return };
                tracing::warn!(target: "waterline", queue, count, "the answers of the server had no room for so many more lines: jobs that died or are damaged are in the lists of these states, those that were taken back from a silent worker are ready again with that as their error, and a damaged schedule is among the schedules");
            }
            Self::Unmade { name, error } => {
                tracing::error!(target: "waterline", queue, periodic = name, error, "a tick of a periodic job makes no job, since its push is refused: register it with settings that a push takes, or remove it");
            }
            Self::Passed { name, tick, why, run } => {
                let (tick, id) = (rfc3339(*tick), run.as_deref());
                match why {
                    Passed::Skipped => {
                        tracing::info!(target: "waterline", queue, periodic = name, tick, id, "a tick of a periodic job makes no job, since the last run has not ended");
                    }
                    Passed::Missed => {
                        tracing::info!(target: "waterline", queue, periodic = name, tick, "ticks of a periodic job from this one on were missed, and make no job of their own");
                    }
                }
            }
        }
    }
}

impl Damaged {
    fn write(&self, queue: &str) {
        match self {
            Self::Limit { name, reason } => {
                tracing::warn!(target: "waterline", queue, limit = %of_name(name), reason, "the record of a limit cannot be read, and is made anew");
            }
            Self::Note { error } => {
                tracing::warn!(target: "waterline", queue, error, "a note that cannot be read is replaced");
            }
            Self::Mark { id, error } => {
                tracing::warn!(target: "waterline", queue, id, error, "a job cannot be compared with others, so it runs as if it had no twin and no newer root");
            }
            Self::Job { id, error } => {
                tracing::error!(target: "waterline", queue, id, error, "a job cannot be read, so it is set aside and the others go on: remove it, and push it again if it is still wanted");
            }
            Self::Entry { place, error } => {
                tracing::error!(target: "waterline", queue, place, error, "an entry cannot be read, so all jobs are counted anew, and the one that has lost it gets another one");
            }
            Self::Periodic { name, error } => {
                tracing::error!(target: "waterline", queue, periodic = name, error, "the record of a periodic job cannot be read, so it makes no jobs and everything else goes on: remove it, and register it again");
            }
        }
    }
}

/// Writes the line about the end of an attempt, if there is one. The caller holds no lock.
pub(crate) fn ended(lines: &Lines, queue: &str, (id, kind, attempt): (&str, &str, u32), ended: &AttemptEnd) {
    match ended {
        AttemptEnd::Finished => {}
        AttemptEnd::Snoozed => {
            tracing::debug!(target: "waterline", queue, id, kind, attempt, "a job is not ready; it runs again later, and the attempt does not count");
        }
        AttemptEnd::PutBack { error } => {
            tracing::debug!(target: "waterline", queue, id, kind, attempt, error, "a job was cut short by the stop of its runner; it runs again, and the attempt does not count");
        }
        AttemptEnd::Retried { error } => {
            tracing::debug!(target: "waterline", queue, id, kind, attempt, error, "a job failed, and is tried again");
        }
        AttemptEnd::Dead { error } => lines.dead(queue, (id, kind, attempt), error),
        AttemptEnd::Lost => {
            tracing::warn!(target: "waterline", queue, id, kind, attempt, "a job was removed or taken over while it ran; its end was not written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_dead_jobs_are_paced_and_count_each_once() {
        let (mut pace, begin) = (LinePace::default(), time::now());
        let mut told = Vec::new();
        // A hundred die in five seconds, and one a while after them.
        let times = (0..100).map(|n| Duration::from_millis(50 * n)).chain([Duration::from_secs(60)]);
        times.for_each(|after| told.extend(pace.count(begin + after, 1)));
        assert_eq!((told.iter().sum::<u64>(), &told[..10]), (101, &[1; 10][..]));
        assert_eq!(told.len(), 10 + 4 + 1, "{told:?}");
    }
}
