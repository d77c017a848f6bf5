//! Gaps: indices that will never have a job.
//!
//! A gap is settled like a job done in an earlier life: it never starts, and the watermark passes
//! it. If everything below is done, the window jumps over it, however wide it is. Otherwise each of
//! its indices is a bit above the lowest undone index, so the gap is cut off at the end of the
//! window, and the source is asked for the rest once the window has moved.

use super::{Fetch, LAST_JOB, Window};
use crate::base::Index;
use core::ops::RangeInclusive;

/// The widest window once there are gaps: its bits take 16 MiB. Gaps are wider than runs of jobs.
const WIDEST: u64 = 1 << 27;

impl Window {
    /// Returns the last index that an answer to the fetch of this run may reach if there are gaps,
    /// with at most as many jobs as the run has. `open_below` is the gate of the source: a caller
    /// may hold back further jobs, but no gaps.
    pub fn fetch_through(&self, run: &RangeInclusive<Index>, open_below: Index) -> Index {
        let last = *run.end();
        if self.fetch != Some(Fetch::New) {
            return last;
        }
        self.open_below(last, open_below).min(self.starts_below()).max(last + 1) - 1
    }

    /// Reports some jobs of the fetch under way. After the last part,
    /// [`handle_fetched`](Self::handle_fetched) or [`handle_unreadable`](Self::handle_unreadable)
    /// ends the fetch, without further jobs.
    pub fn handle_part(&mut self, jobs: RangeInclusive<Index>) {
        match self.fetch {
            Some(Fetch::New) => {
                // Below `read` are jobs done in an earlier life.
                let (start, end) = (self.read.max(*jobs.start()), jobs.end() + 1);
                if start < end {
                    let elsewhere = self.ahead.restored_within(start, end) + self.behind_within(start, end);
                    self.unstarted += end - start - elsewhere;
                    self.read = end;
                    self.pass_restored();
                }
            }
            Some(Fetch::Again) => self.retries.end_part(*jobs.end(), reach!(self)),
            None => debug_assert!(false, "no fetch is under way"),
        }
    }

    /// Reports that these indices, which come next in the answer to the fetch under way, will never
    /// have a job. `open_below` is the gate of the source. Returns false if a part of the gap is
    /// not settled, since it is above the head, the gate, the end or the window: the source is
    /// asked for it again, and the rest of the answer is useless.
    ///
    /// Of jobs to be read again, the [redriven](Self::handle_redriven) ones are missing, and the
    /// caller gives them up with [`handle_withdrawn`](Self::handle_withdrawn). The others are done.
    pub fn handle_gap(&mut self, gap: RangeInclusive<Index>, open_below: Index) -> bool {
        match self.fetch {
            Some(Fetch::New) => {
                self.gaps = true;
                // Below `read` are jobs that were done, or had failed, in an earlier life.
                let start = self.read.max(*gap.start());
                let end = gap.end().saturating_add(1).min(self.gap_bound(start, open_below));
                if self.done >= start {
                    self.jump(end);
                } else if start < end {
                    self.absent += self.ahead.settle(start..=end - 1);
                    self.found.note(start..end, self.saved);
                    self.read = self.read.max(end);
                    self.pass_restored();
                }
                end > *gap.end()
            }
            Some(Fetch::Again) => {
                for index in self.retries.end_absent(*gap.end(), &self.redriven) {
                    self.absent += 1;
                    self.found.note(index..index + 1, self.saved);
                    self.done = self.ahead.insert(index, self.done);
                }
                true
            }
            None => {
                debug_assert!(false, "no fetch is under way");
                true
            }
        }
    }

    /// Returns the number of indices found to be gaps.
    pub fn absent(&self) -> u64 {
        self.absent
    }

    /// Returns one past the last index to settle of a gap that begins at `start`.
    fn gap_bound(&self, start: Index, open_below: Index) -> Index {
        let open = self.open_below(start, open_below);
        // Until a save has ended, its jobs may be revoked, and all done above them become bits.
        let is_free = self.done >= start && self.done == self.saved;
        if is_free { open } else { open.min(self.starts_below()) }
    }

    /// Returns one past the last index for which the source may answer, from `start` on.
    fn open_below(&self, start: Index, gate: Index) -> Index {
        let Some(head) = self.head else { return 0 };
        let open = head.min(self.stop_at.unwrap_or(LAST_JOB)).saturating_add(1).min(gate);
        // A job that failed in an earlier life is read by itself, which shows that it is gone.
        open.min(self.held_from(start))
    }

    /// Returns one past the highest index that may start for the first time, by the window's width.
    #[inline]
    pub(super) fn starts_below(&self) -> Index {
        self.saved.saturating_add(self.width())
    }

    /// Returns the width of the window above the watermark for jobs that start for the first time.
    #[inline]
    pub(super) fn width(&self) -> u64 {
        let width = self.limits.max_search_ahead;
        if self.gaps { width.min(WIDEST) } else { width }
    }

    /// Passes everything below `end`, given that everything started is done.
    fn jump(&mut self, end: Index) {
        if end <= self.done {
            return;
        }
        debug_assert_eq!(self.next, self.done, "nothing is in flight, or fails, below a gap that is passed");
        self.found.note(self.done..end, self.saved);
        self.absent += end - self.done - self.ahead.jump(end);
        self.next = end;
        // `next` moves first: `advance` forgets the bits that it passes.
        self.pass_restored();
        self.done = self.ahead.advance(end);
    }
}
