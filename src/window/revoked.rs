//! Jobs that were done, and are not any more.

use super::{SaveState, Window};
use crate::base::index::Index;

impl Window {
    /// The save that is being written has this job, and cannot have it: the job failed after all.
    /// It waits as one that [failed](Self::handle_failed) in flight does, and holds the watermark
    /// back; what is done above it stays done. Ask [`handle_saving`](Self::handle_saving) again for
    /// what to write, before anything else happens.
    ///
    /// The job must have been done since the last save that succeeded: the window does not know it
    /// from one that is on the disk. False, and nothing changes, when no save is being written, or
    /// when the job is not done or is below the watermark.
    pub fn handle_revoked(&mut self, index: Index) -> bool {
        let SaveState::Writing(end) = self.saving else { return false };
        let passed = (self.saved..self.done).contains(&index);
        let ahead = (self.done..self.next).contains(&index) && self.ahead.contains(index);
        if !passed && !ahead {
            return false;
        }
        self.done = self.ahead.revoke(index, self.done);
        self.saving = SaveState::Writing(end.min(self.done));
        self.retries.wait(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::{Action, Limits};
    use alloc::vec::Vec;

    /// Jobs 0 to 199 in flight, of which these are done, and what is saved of them is being
    /// written.
    fn saving(done: impl IntoIterator<Item = Index>) -> Window {
        let mut window = Window::begin(0, Limits { max_processing: 200, max_search_ahead: 1000 });
        window.keep_done_ahead();
        window.handle_head(Some(199));
        assert_eq!(window.poll(), Some(Action::Fetch(0..=199)));
        window.handle_fetched(200);
        while window.poll_run().is_some() {}
        assert!(done.into_iter().all(|index| window.handle_done(index)));
        assert_eq!(window.poll(), Some(Action::Save));
        window.handle_saving();
        window
    }

    /// The lowest index that is not done, and the ones that are done above it, as the next save has
    /// them.
    fn saved(window: &mut Window) -> (Index, Vec<Index>) {
        let save = window.handle_saving().unwrap();
        let (first, words) = save.ahead.words();
        let words = words.enumerate().map(|(at, word)| (first + 64 * at as u64, word));
        let bits =
            |(first, word): (Index, u64)| (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit);
        (save.next, words.flat_map(bits).collect())
    }

    #[test]
    fn a_job_that_is_revoked_below_the_lowest_undone_one_leaves_those_above_it_done_ahead() {
        for revoked in [0, 1, 62, 63, 64, 127, 128, 148, 149] {
            let mut window = saving((0..150).chain([160]));
            assert!(window.handle_revoked(revoked));
            assert!(!window.handle_revoked(revoked), "it is done no more");
            let above: Vec<_> = (revoked + 1..150).chain([160]).collect();
            assert_eq!((window.lowest_undone(), window.done_ahead(), window.unsaved()), (revoked, 150, 150));
            assert_eq!(saved(&mut window), (revoked, above), "without {revoked}");
            window.handle_saved();
            assert_eq!(window.last_processed(), revoked.checked_sub(1));
        }
    }

    #[test]
    fn jobs_may_be_revoked_in_any_order_and_be_done_again() {
        for order in [[3, 70, 160], [160, 70, 3], [70, 160, 3]] {
            let mut window = saving((0..150).chain([160]));
            assert!(order.into_iter().all(|index| window.handle_revoked(index)));
            let above: Vec<_> = (4..150).filter(|index| *index != 70).collect();
            assert_eq!(saved(&mut window), (3, above), "{order:?}");
            window.handle_saved();
            assert_eq!(window.poll(), Some(Action::Announce(0..=2)));
            for (index, next) in [(70, 3), (160, 3), (3, 150)] {
                assert!(window.handle_due(index) && window.poll() == Some(Action::Fetch(index..=index)));
                window.handle_fetched(1);
                assert_eq!(window.poll_run().map(|run| (run.index, run.retry)), Some((index, true)));
                assert!(window.handle_done(index));
                assert_eq!(window.lowest_undone(), next);
                assert_eq!(window.poll(), Some(Action::Save));
                window.handle_saving();
                window.handle_saved();
                while window.poll().is_some() {}
            }
            assert_eq!((window.last_processed(), window.unsaved(), window.done_ahead()), (Some(149), 0, 1));
        }
    }

    #[test]
    fn only_a_job_that_the_save_under_way_has_is_revoked() {
        let mut window = saving(0..2);
        assert!(!window.handle_revoked(2), "it is in flight");
        assert!(!window.handle_revoked(200), "it was never started");
        window.handle_saved();
        assert!(!window.handle_revoked(1), "it is saved");
        assert!(window.handle_done(3) && !window.handle_revoked(3), "no save is being written");
    }
}
