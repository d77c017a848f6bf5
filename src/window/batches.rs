//! Jobs that start together, as one batch.
//!
//! A job that failed before may have to run alone, as a batch of its own. Such jobs and batches of
//! others take turns. A partial batch may wait for more jobs; the caller says when it has waited
//! long enough, since the window has no clock.

use super::{Run, Window};
use crate::base::Index;

/// The batch that may start next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Nothing,
    /// A job that runs alone, see [`Window::poll_alone`].
    One,
    /// A batch that is full, or that no other job can join, see [`Window::poll_together`].
    Whole,
    /// A batch that other jobs may join soon.
    Partial,
}

impl Window {
    /// Returns the batch of at most `max` jobs that may start next. `over`: a partial batch has
    /// waited long enough, so a job that runs alone does not go before it out of turn.
    pub(crate) fn next_batch(&self, max: usize, over: bool, is_alone: impl Fn(Index) -> bool) -> Next {
        if !self.has_slot() {
            return Next::Nothing;
        }
        if self.only.is_some() {
            return if self.can_start_alone() { Next::One } else { Next::Nothing };
        }
        let one = self.retries.first_read().is_some_and(&is_alone);
        match self.together(max, is_alone) {
            Next::Whole if one && !self.retried => Next::One,
            Next::Partial if one && !(over && self.retried) => Next::One,
            Next::Nothing if one => Next::One,
            next => next,
        }
    }

    /// Hands out the job that runs alone, after [`Next::One`].
    pub(crate) fn poll_alone(&mut self) -> Option<Run> {
        self.retried = false;
        self.poll_run()
    }

    /// Hands out the next job of a batch, once for each, after [`Next::Whole`] or
    /// [`Next::Partial`].
    #[inline]
    pub(crate) fn poll_together(&mut self, is_alone: impl Fn(Index) -> bool) -> Option<Run> {
        if !self.has_slot() || self.only.is_some() {
            return None;
        }
        let again = self.retries.first_read().is_some_and(|index| !is_alone(index));
        if !again && !self.can_start_new() {
            return None;
        }
        self.retried = !again;
        self.poll_run()
    }

    /// Returns the batch of jobs that need not run alone. The caller has checked for a free slot.
    fn together(&self, max: usize, is_alone: impl Fn(Index) -> bool) -> Next {
        let again = self.retries.read_in_turn().take_while(|index| !is_alone(*index)).take(max).count() as u64;
        let count = again.saturating_add(self.startable());
        if count == 0 {
            return Next::Nothing;
        }
        let slots = self.limits.max_processing - self.in_flight;
        // Nothing can start behind it before it has ended, or ever.
        let last = self.read >= self.starts_below() || self.stop_at.is_some_and(|last| self.read > last);
        // There is no room to read more before some of the read jobs have started.
        let stuffed = || self.has_unread() && self.fetch.is_none() && self.new_run().is_none();
        if count >= max.min(slots) as u64 || last || stuffed() { Next::Whole } else { Next::Partial }
    }

    /// Returns the number of new jobs that are read and may start.
    fn startable(&self) -> u64 {
        let end = self.bound();
        if end >= self.read {
            return self.unstarted;
        }
        // The gate or a limit was lowered since they were read, or jobs wait for their records.
        if end <= self.next {
            return 0;
        }
        let failed = if self.held.is_empty() { 0 } else { self.held.range(self.next..end).count() as u64 };
        end - self.next - self.ahead.restored_within(self.next, end) - failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::{Action, Limits};
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    fn window(max_processing: usize, max_search_ahead: u64, head: Index) -> Window {
        let mut window = Window::begin(0, Limits { max_processing, max_search_ahead });
        window.handle_head(Some(head));
        read(&mut window);
        window
    }

    /// Reads everything that the window asks for.
    fn read(window: &mut Window) {
        while let Some(action) = window.poll() {
            match action {
                Action::Fetch(run) => window.handle_fetched(run.end() - run.start() + 1),
                Action::Save => {
                    window.handle_saving();
                    window.handle_saved();
                }
                _ => {}
            }
        }
    }

    /// Takes the next batch, if one starts now.
    fn take(window: &mut Window, max: usize, over: bool, alone: &BTreeSet<Index>) -> Vec<Index> {
        let is_alone = |index| alone.contains(&index);
        let mut batch = Vec::new();
        match window.next_batch(max, over, is_alone) {
            Next::Nothing => {}
            Next::One => batch.extend(window.poll_alone()),
            Next::Partial if !over => {}
            Next::Whole | Next::Partial => {
                while batch.len() < max {
                    let Some(run) = window.poll_together(is_alone) else { break };
                    batch.push(run);
                }
            }
        }
        assert!(batch.len() <= max && window.in_flight() <= window.limits().max_processing);
        batch.into_iter().map(|run| run.index).collect()
    }

    const NONE: &BTreeSet<Index> = &BTreeSet::new();

    #[test]
    fn a_partial_batch_waits_while_more_can_come() {
        let next = |window: &Window| window.next_batch(4, false, |_| false);
        assert_eq!(next(&window(8, 100, 9)), Next::Whole, "it is full");
        assert_eq!(next(&window(8, 100, 2)), Next::Partial, "the head may grow");
        assert_eq!(next(&window(3, 100, 2)), Next::Whole, "all slots are used up");
        assert_eq!(next(&window(8, 3, 9)), Next::Whole, "the window is closed behind it");
        assert_eq!(next(&window(8, 4, 2)), Next::Partial, "there is room for one more");
        let mut ends = window(8, 100, 2);
        ends.stop_at(2);
        assert_eq!(next(&ends), Next::Whole, "job 2 is the last one");
        let holds: [fn(&mut Window); 3] =
            [|window| window.set_paused(true), |window| window.set_full(true), Window::handle_stop];
        for hold in holds {
            let mut held = window(8, 100, 9);
            hold(&mut held);
            assert_eq!(next(&held), Next::Nothing);
        }
        let mut gated = window(8, 100, 9);
        gated.handle_gate(2);
        assert_eq!((next(&gated), take(&mut gated, 4, true, NONE)), (Next::Partial, [0, 1].into()));
        assert_eq!(next(&gated), Next::Nothing);
    }

    /// Reads jobs with these indices, and gaps between them.
    fn read_sparse(window: &mut Window, jobs: &[Index]) {
        assert!(matches!(window.poll(), Some(Action::Fetch(_))));
        let mut next = window.unread_from();
        for job in jobs {
            if next < *job {
                window.handle_gap(next..=job - 1, Index::MAX);
            }
            window.handle_part(*job..=*job);
            next = job + 1;
        }
        window.handle_fetched(0);
    }

    #[test]
    fn gaps_below_a_gate_are_no_jobs_of_a_batch() {
        let mut window = Window::begin(0, Limits { max_processing: 8, max_search_ahead: 100 });
        window.handle_head(Some(50));
        read_sparse(&mut window, &[0, 10, 20, 30]);
        let next = |window: &Window| window.next_batch(3, false, |_| false);
        assert_eq!(next(&window), Next::Whole);
        window.handle_gate(20);
        assert_eq!(next(&window), Next::Partial, "only jobs 0 and 10 may start");
        assert_eq!(take(&mut window, 3, true, NONE), [0, 10]);
        assert_eq!(next(&window), Next::Nothing);
    }

    #[test]
    fn no_batch_waits_beyond_a_gap_wider_than_the_window() {
        let mut window = Window::begin(0, Limits { max_processing: 8, max_search_ahead: u64::MAX });
        window.handle_head(Some(1 << 40));
        read_sparse(&mut window, &[0]);
        assert_eq!(window.next_batch(4, false, |_| false), Next::Partial);
        while let Some(action) = window.poll() {
            if let Action::Fetch(run) = action {
                window.handle_gap(*run.start()..=1 << 40, Index::MAX);
                window.handle_fetched(0);
            }
        }
        assert_eq!(window.next_batch(4, false, |_| false), Next::Whole, "nothing can join job 0");
    }

    #[test]
    fn a_batch_starts_if_no_room_is_left_to_read() {
        let mut window = Window::begin(0, Limits { max_processing: 8, max_search_ahead: 100 });
        window.handle_head(Some(99));
        window.set_room(2);
        assert_eq!(window.poll(), Some(Action::Fetch(0..=1)));
        assert_eq!(window.next_batch(4, false, |_| false), Next::Nothing);
        window.set_room(0);
        window.handle_fetched(2);
        assert_eq!(window.poll(), None, "there is no room");
        assert_eq!(window.next_batch(4, false, |_| false), Next::Whole);
        window.set_room(1);
        assert_eq!(window.next_batch(4, false, |_| false), Next::Partial, "one more is about to be read");
        assert_eq!(window.poll(), Some(Action::Fetch(2..=2)));
        assert_eq!(window.next_batch(4, false, |_| false), Next::Partial, "it is being read");
    }

    /// A window in which jobs 0 to 3 have failed and were read again.
    fn failed() -> Window {
        let mut window = window(8, 100, 3);
        assert_eq!(take(&mut window, 4, false, NONE), [0, 1, 2, 3]);
        (0..4).for_each(|index| assert!(window.handle_failed(index) && window.handle_due(index)));
        read(&mut window);
        window
    }

    #[test]
    fn lone_jobs_and_batches_take_turns() {
        let alone = BTreeSet::from([0, 1, 2, 3]);
        let mut window = failed();
        window.handle_head(Some(7));
        read(&mut window);
        let order: Vec<_> = (0..6).map(|_| take(&mut window, 2, false, &alone)).collect();
        // The batch started last, so a job that runs alone is next.
        assert_eq!(order, [vec![0], vec![4, 5], vec![1], vec![6, 7], vec![2], vec![3]]);
    }

    #[test]
    fn lone_jobs_go_first_until_a_batch_has_waited() {
        let alone = BTreeSet::from([0, 1, 2, 3]);
        let mut window = failed();
        window.handle_head(Some(4));
        read(&mut window);
        let waits: Vec<_> = (0..2).map(|_| take(&mut window, 2, false, &alone)).collect();
        assert_eq!(waits, [[0], [1]]);
        assert_eq!(take(&mut window, 2, true, &alone), [4]);
        assert_eq!(take(&mut window, 2, true, &alone), [2]);
    }

    #[test]
    fn a_job_that_blocks_all_others_is_its_own_batch() {
        let mut window = Window::begin(0, Limits { max_processing: 8, max_search_ahead: 100 });
        assert_eq!(window.restore_waiting([0]), [0]);
        window.handle_head(Some(3));
        read(&mut window);
        window.handle_alone(Some(0));
        assert_eq!(window.next_batch(4, true, |_| false), Next::Nothing);
        assert!(window.handle_due(0));
        read(&mut window);
        assert_eq!((take(&mut window, 4, true, NONE), take(&mut window, 4, true, NONE)), ([0].into(), [].into()));
    }
}
