//! Third phase of a start: read from the records of the previous life which jobs failed, and which
//! may have killed the process.

use super::acquire::Acquired;
use crate::base::{Error, Index};
use crate::driver::Recovered;
use crate::progress::{Commits, Earlier, Life, Opening, ParkedRecord, Progress, Saved, open_life};
use crate::window::Window;

/// The settings that say how to resume after earlier lives.
#[derive(Clone, Copy)]
pub(super) struct Going {
    /// How many jobs may be parked; `None`: no job is parked.
    pub(super) budget: Option<u64>,
    /// How many crashes a job may cause; `None`: they are not counted.
    pub(super) max_crashes: Option<u32>,
    /// True if a sink takes the results in order.
    pub(super) in_order: bool,
    /// True if jobs of one key run in order. Then those that failed are read like new ones, and
    /// take their keys, before they wait.
    pub(super) by_key: bool,
    /// The wall clock: milliseconds since 1970.
    pub(super) wall: u64,
}

/// Tells the window which jobs failed in earlier lives, and opens the record of this life.
pub(super) fn recover<P: Progress>(
    progress: &mut P,
    commits: Option<&mut dyn Commits<P>>,
    acquired: &mut Acquired,
    window: &mut Window,
    going: Going,
) -> Result<Option<Recovered>, Error> {
    let Some(Earlier { place, jobs, life }) = acquired.earlier.take() else { return Ok(None) };
    let Some(max_crashes) = going.max_crashes else {
        // The records of jobs that are not parked stay as they are.
        let jobs = jobs.into_iter().filter(|job| !job.pending).collect();
        return Ok(Some(Recovered { life, ..Recovered::new(place, jobs, going.budget) }));
    };
    let (before, width) = (life.unwrap_or_default(), window.limits().max_search_ahead);
    let (mut kept, mut passed, mut failed) = (Vec::with_capacity(jobs.len()), Vec::new(), Vec::new());
    for job in jobs {
        // After a seek back, parked jobs may be in the window again.
        let is_done = window.is_done(job.index);
        if job.pending && is_done {
            // Another program has run it, or the watermark was moved.
            passed.push(job.index);
            continue;
        }
        let job = suspected(job, is_done, before.open);
        if !is_done && (job.suspect || job.pending && job.attempts > 0) {
            failed.push(job.index);
        }
        kept.push(job);
    }
    let (careful, died) = (careful_until(&before, window.lowest_undone()), before.open);
    let life = Life { open: true, opened: going.wall, ended: 0, width, careful, halted: before.halted };
    let suspects = kept.iter().filter(|job| job.suspect).collect();
    let saved = acquired.opening.get_or_insert_with(|| Saved::new(None, window.lowest_undone(), Vec::new()));
    let (saved, name) = (Some(saved), acquired.name.as_deref().unwrap_or("unnamed"));
    open_life(progress, commits, Opening { life: &life, suspects, passed: &passed, saved, name })?;
    // A job above the last one to run stays out of this life.
    failed.retain(|index| window.ends_at().is_none_or(|last| *index <= last));
    let waiting = if going.by_key { failed } else { window.restore_waiting(failed) };
    let careful = careful.map(|last| (last, before.width == u64::MAX));
    let seen = before.opened.max(before.ended);
    let recovered = Recovered {
        waiting,
        careful,
        died,
        in_order: going.in_order,
        seen,
        ..Recovered::new(place, kept, going.budget)
    };
    Ok(Some(Recovered { life: Some(life), max_crashes: Some(max_crashes), ..recovered }))
}

/// Marks a job as suspect if it was one, or may have been in flight when the previous life died. A
/// parked job that was to run once more still is.
fn suspected(job: ParkedRecord, is_done: bool, died: bool) -> ParkedRecord {
    let was_running = job.started && died;
    let suspect = job.suspect || was_running || !is_done && job.crashes > 0;
    let wanted = job.wanted || !job.pending && was_running;
    ParkedRecord { suspect, wanted, started: false, ..job }
}

/// Returns the last job that may have been in flight when the previous life, or one before, died.
fn careful_until(before: &Life, next: Index) -> Option<Index> {
    if before.open {
        return Some(next.saturating_add(before.width.max(1) - 1).min(Index::MAX - 1).max(before.careful.unwrap_or(0)));
    }
    before.careful.filter(|last| *last >= next)
}
