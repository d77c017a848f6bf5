//! How long the pieces are.

use super::super::ask::Outcome;
use super::piece::{Answer, Piece};
use crate::base::Index;

/// The longest piece that is tried, in jobs.
pub(super) const LONGEST: u32 = 1024;

/// After so many answers of the usual length, longer pieces are tried once more.
const TRY_LONGER: u32 = 4096;

/// How long a piece is: as long as the source likes to answer, and as wide as its gaps make it.
pub(super) struct Lengths {
    /// The number of jobs.
    pub(super) jobs: u32,
    /// True if a longer piece was not answered as a whole.
    short: bool,
    /// The answers of this length.
    answers: u32,
    /// The indices for each job.
    pub(super) stride: u64,
}

impl Default for Lengths {
    fn default() -> Self {
        Self { jobs: 1, short: false, answers: 0, stride: 1 }
    }
}

impl Lengths {
    pub(super) fn learn<A: Answer>(&mut self, first: Index, piece: &Piece<A>, answer: &A) {
        let (jobs, next) = (u32::try_from(answer.jobs()).unwrap_or(LONGEST), answer.next(first));
        if answer.outcome() != Outcome::Good {
            return;
        }
        let stride = (next - first).checked_div(jobs.into()).unwrap_or(self.stride.saturating_mul(2));
        self.stride = (self.stride - self.stride / 4).saturating_add(stride.min(u64::MAX / 4) / 4).max(1);
        if stride <= 1 {
            self.stride = 1;
        }
        if jobs < piece.most && next <= piece.last {
            (self.jobs, self.short, self.answers) = (self.jobs.min(jobs.max(1)), true, 0);
        } else if piece.most == self.jobs {
            self.answers += 1;
            if !self.short || self.answers >= TRY_LONGER {
                (self.jobs, self.answers, self.short) = ((self.jobs * 2).min(LONGEST), 0, false);
            }
        }
    }
}
