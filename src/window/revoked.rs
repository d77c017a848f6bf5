//! Jobs that were done and then failed, before the save with them was written.

use super::{SaveState, Window};
use crate::base::Index;

impl Window {
    /// Reports that a job of the save under way failed after all. It waits like one that
    /// [failed](Self::handle_failed) in flight, and holds the watermark back; the jobs above it
    /// stay done. Call [`handle_saving`](Self::handle_saving) for the new content of the save
    /// before anything else happens.
    ///
    /// The job must have been done since the last successful save: the window cannot tell other
    /// jobs from those on disk. Returns false, and changes nothing, if no save is being written, or
    /// if the job is not done or below the watermark.
    pub fn handle_revoked(&mut self, index: Index) -> bool {
        self.revoke(index) && self.retries.wait(index)
    }

    /// Takes back that a job is done, though it has not failed: its result waits again, like that
    /// of a job [set aside](Self::handle_set_aside).
    pub fn handle_put_aside(&mut self, index: Index) -> bool {
        self.revoke(index)
    }

    fn revoke(&mut self, index: Index) -> bool {
        let SaveState::Writing(end) = self.saving else { return false };
        let passed = (self.saved..self.done).contains(&index);
        let ahead = (self.done..self.next).contains(&index) && self.ahead.contains(index);
        if !passed && !ahead {
            return false;
        }
        self.done = self.ahead.revoke(index, self.done);
        self.saving = SaveState::Writing(end.min(self.done));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::{Action, Limits};
    use alloc::vec::Vec;

    /// A window with jobs 0 to 199 in flight, except for those in the save under way: 0 to 149, and
    /// 160.
    fn saving() -> Window {
        let mut window = Window::begin(0, Limits { max_processing: 200, max_search_ahead: 1000 });
        window.keep_done_ahead();
        window.handle_head(Some(199));
        assert_eq!(window.poll(), Some(Action::Fetch(0..=199)));
        window.handle_fetched(200);
        while window.poll_run().is_some() {}
        assert!((0..150).chain([160]).all(|index| window.handle_done(index)));
        assert_eq!(window.poll(), Some(Action::Save));
        window.handle_saving();
        window
    }

    /// Returns the content of the next save: the lowest undone index, and the done ones above.
    fn saved(window: &mut Window) -> (Index, Vec<Index>) {
        let save = window.handle_saving().unwrap();
        let (first, words) = save.ahead.words();
        let words = words.enumerate().map(|(at, word)| (first + 64 * at as u64, word));
        let bits =
            |(first, word): (Index, u64)| (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit);
        (save.next, words.flat_map(bits).collect())
    }

    #[test]
    fn jobs_put_aside_can_be_done_again() {
        let mut window = saving();
        for index in [160, 149, 70, 3, 2] {
            assert!(window.handle_put_aside(index) && !window.handle_put_aside(index));
            assert!(!window.handle_due(index), "it waits for no back-off");
        }
        let above: Vec<_> = (4..149).filter(|index| *index != 70).collect();
        assert_eq!(saved(&mut window), (2, above));
        for (index, next) in [(70, 2), (3, 2), (2, 149), (149, 150), (160, 150)] {
            window.handle_taken_up();
            assert!(window.handle_done(index));
            assert_eq!(window.lowest_undone(), next);
        }
        assert_eq!((saved(&mut window), window.unsaved()), ((150, [160].to_vec()), 151));
        window.handle_saved();
        assert_eq!((window.last_processed(), window.unsaved(), window.in_flight()), (Some(149), 0, 49));
    }
}
