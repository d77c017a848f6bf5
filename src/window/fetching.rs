//! Which jobs are to be read next, and what became of those that were.

use super::{Fetch, Window};
use crate::base::index::Index;
use core::ops::RangeInclusive;

impl Window {
    /// By their weight, so many jobs more may be read for now. One is read all the same when nothing that was read can start.
    pub fn set_room(&mut self, jobs: u64) {
        self.room = jobs;
    }

    /// The fetch under way is over: this many jobs, at least one, were read from its start. The rest is asked for again.
    pub fn handle_fetched(&mut self, count: u64) {
        self.take_in(count);
        self.retries.rest_is_due(self.closed_from());
    }

    /// The fetch under way is over: this many jobs were read, and the one after them was not there. It is asked for again
    /// after the next [`handle_head`](Self::handle_head).
    pub fn handle_missing(&mut self, count: u64) {
        self.hold_new(count);
        self.take_in(count);
        self.retries.first_is_missing();
        self.retries.rest_is_due(self.closed_from());
    }

    /// The fetch under way is over: this many jobs were read, and the rest could not be. New jobs are asked for again after
    /// the next [`handle_head`](Self::handle_head), and each failed job after its own [`handle_due`](Self::handle_due): one
    /// that cannot be read again holds up no other job.
    pub fn handle_unreadable(&mut self, count: u64) {
        self.hold_new(count);
        self.take_in(count);
        self.retries.rest_waits();
    }

    /// Reads nothing new before the next look, as the job behind this many is not to be had.
    fn hold_new(&mut self, count: u64) {
        let wanted = self.read.saturating_add(count);
        // One that is done already is not missed.
        self.new_held |= self.fetch == Some(Fetch::New) && !self.ahead.contains(wanted);
    }

    fn take_in(&mut self, count: u64) {
        match self.fetch.take() {
            Some(Fetch::New) => {
                self.unstarted += count - self.ahead.restored_within(self.read, self.read + count);
                self.read += count;
                self.pass_restored();
            }
            Some(Fetch::Again) => {
                self.retries.end_read(usize::try_from(count).unwrap_or(usize::MAX), self.closed_from());
            }
            None => debug_assert!(false, "no fetch is under way"),
        }
    }

    #[inline]
    pub(super) fn poll_fetch(&mut self) -> Option<RangeInclusive<Index>> {
        if self.fetch.is_some() || self.stopping || self.ended {
            return None;
        }
        // In turn, so that neither retries nor new jobs wait for the end of the others.
        let new = |window: &Self| Some((Fetch::New, window.new_run()?));
        let again = |window: &Self| Some((Fetch::Again, window.run_again()?));
        let (fetch, run) =
            if self.fetched_again { new(self).or_else(|| again(self)) } else { again(self).or_else(|| new(self)) }?;
        self.fetched_again = fetch == Fetch::Again;
        if self.fetched_again {
            self.retries.begin_read(&run);
        }
        self.fetch = Some(fetch);
        Some(run)
    }

    /// Read and not started.
    #[inline]
    fn idle(&self) -> u64 {
        self.unstarted + self.retries.len_read()
    }

    #[inline]
    fn new_run(&self) -> Option<RangeInclusive<Index>> {
        if !self.has_unread() {
            return None;
        }
        let most = self.limits.read_ahead();
        // Room is kept for retries, so that they are read by the run too.
        let share = if self.retries.has_due() || self.retries.can_start() { most / 2 } else { most };
        // Not before half is used up, so that the source is read by the run.
        if self.unstarted > share / 2 {
            return None;
        }
        let room = (share - self.unstarted).min(most.saturating_sub(self.idle())).min(self.room);
        let starved = !self.retries.can_start() && !self.can_start_new();
        let count = room.max(u64::from(starved));
        let end = self.bound().min(self.read.saturating_add(count));
        (count > 0).then(|| self.read..=self.ahead.trim(self.read, end) - 1)
    }

    /// Due jobs have half of the room, so that jobs which fail for ever leave room for new ones.
    #[inline]
    fn run_again(&self) -> Option<RangeInclusive<Index>> {
        if !self.retries.has_due() {
            return None;
        }
        let (most, retries) = (self.limits.read_ahead(), self.retries.len_read());
        let room = (most / 2).saturating_sub(retries).min(most.saturating_sub(self.idle())).min(self.room);
        // One that may start is always read: it may be the one that everything which was read waits for.
        let count = if self.retries.can_start() { room } else { room.max(1) };
        let wanted = !self.retries.can_start() || retries <= most / 4;
        self.retries.next_run(count).filter(|_| wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::{Action, Limits};

    #[test]
    fn what_is_done_already_is_not_missed() {
        let mut window = Window::begin(0, Limits { max_processing: 4, max_search_ahead: 100 });
        window.restore([2..=4]);
        window.handle_head(Some(9));
        assert_eq!(window.poll(), Some(Action::Fetch(0..=9)));
        // 0 and 1 were read, and 2 could not be.
        window.handle_missing(2);
        assert_eq!(window.poll(), Some(Action::Fetch(5..=9)), "2, 3 and 4 are done");
        window.handle_missing(1);
        assert_eq!(window.poll(), None, "6 is waited for");
    }
}
