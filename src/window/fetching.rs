//! Which jobs are to be read next.

use super::{Fetch, Window};
use crate::index::Index;
use core::ops::RangeInclusive;

impl Window {
    #[inline]
    pub(super) fn poll_fetch(&mut self) -> Option<RangeInclusive<Index>> {
        if self.fetch.is_some() || self.stopping || self.ended {
            return None;
        }
        // In turn, so that neither retries nor new jobs wait for the end of the others.
        let (fetch, run) = if self.fetched_again {
            self.new_fetch().or_else(|| self.fetch_again())?
        } else {
            self.fetch_again().or_else(|| self.new_fetch())?
        };
        self.fetched_again = fetch != Fetch::New;
        if let Fetch::Again(index) = fetch {
            self.due.remove(&index);
        }
        self.fetch = Some(fetch);
        Some(run)
    }

    /// Read and not started.
    #[inline]
    fn idle(&self) -> u64 {
        self.unstarted + self.ready.len() as u64
    }

    #[inline]
    fn new_fetch(&self) -> Option<(Fetch, RangeInclusive<Index>)> {
        let (most, idle) = (self.limits.read_ahead(), self.idle());
        // Not before half is used up, so that the source is read by the run.
        if self.new_held || idle > most / 2 || self.read >= self.bound() {
            return None;
        }
        let end = self.bound().min(self.read.saturating_add(most - idle));
        Some((Fetch::New, self.read..=self.ahead.trim(self.read, end) - 1))
    }

    #[inline]
    fn fetch_again(&self) -> Option<(Fetch, RangeInclusive<Index>)> {
        let index = self.due.first().copied().filter(|index| *index < self.closed_from())?;
        // One that may start is always read: it may be what everything that was read waits for.
        let wanted = self.idle() < self.limits.read_ahead() || !self.can_retry();
        wanted.then_some((Fetch::Again(index), index..=index))
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
