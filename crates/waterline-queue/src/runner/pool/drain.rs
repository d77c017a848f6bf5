//! The end of a runner, and what it has done until then.

use crate::runner::drain::Reached;
use crate::types::ended::AttemptEnd;

#[derive(Default)]
pub(super) struct Drain {
    /// True once no more jobs are claimed.
    pub(super) ending: bool,
    /// How many notes of the stop are being written.
    pub(super) noting: usize,
    /// True once the jobs that still run are given up.
    pub(super) abandoned: bool,
    pub(super) over: bool,
    pub(super) claims: u64,
    /// How many claims there were when the queue was last found paused.
    pub(super) paused_at: Option<u64>,
    pub(super) tallies: Vec<Tally>,
    pub(super) reached: Option<Reached>,
    pub(super) panicked: bool,
}

impl Drain {
    /// Returns the tally of the queue at this index of the source.
    pub(super) fn tally(&mut self, place: usize) -> &mut Tally {
        if self.tallies.len() <= place {
            self.tallies.resize(place + 1, Tally::default());
        }
        &mut self.tallies[place]
    }
}

/// The ends of the jobs of one queue.
#[derive(Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) finished: u64,
    pub(super) retried: u64,
    pub(super) snoozed: u64,
    pub(super) dead: u64,
    pub(super) lost: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        let Self { finished, retried, snoozed, dead, lost } = *other;
        self.finished += finished;
        self.retried += retried;
        self.snoozed += snoozed;
        self.dead += dead;
        self.lost += lost;
    }

    pub(super) fn count(&mut self, ended: &AttemptEnd) {
        let count = match ended {
            AttemptEnd::Finished => &mut self.finished,
            AttemptEnd::Retried { .. } => &mut self.retried,
            AttemptEnd::Snoozed | AttemptEnd::PutBack { .. } => &mut self.snoozed,
            AttemptEnd::Dead { .. } => &mut self.dead,
            AttemptEnd::Lost => &mut self.lost,
        };
        *count += 1;
    }
}
