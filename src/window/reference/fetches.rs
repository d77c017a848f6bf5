//! Choices about reading: the run to read, and the end of a fetch, with and without gaps.

use super::{Choice, Trial, Window, model::Hold, nth};
use crate::base::Index;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

impl Trial {
    pub(super) fn set_room(&mut self, jobs: u64) {
        self.window.set_room(jobs);
        self.model.room = jobs;
    }

    fn is_new(&self, index: Index) -> bool {
        let model = &self.model;
        !model.started.contains(&index) && !model.held.contains(&index) && !model.redriven.contains(&index)
    }

    /// Ends the fetch under way with a share of its jobs.
    pub(super) fn end_fetch(&mut self, choice: Choice) {
        let Some(run) = self.model.fetch.take() else { return };
        let asked = run.end() - run.start() + 1;
        let part = |share: u8| asked * u64::from(share) / 256;
        let (handle, count): (fn(&mut Window, u64), _) = match choice {
            Choice::Missing(share) => (Window::handle_missing, part(share)),
            Choice::Unreadable(share) => (Window::handle_unreadable, part(share)),
            Choice::Fetched(share) => (Window::handle_fetched, (asked * (u64::from(share) + 1)).div_ceil(256)),
            _ => unreachable!("no other choice ends a fetch"),
        };
        handle(&mut self.window, count);
        let is_new = self.is_new(*run.start());
        let model = &mut self.model;
        if is_new {
            match choice {
                Choice::Missing(_) => model.hold_new(run.start() + count, Hold::Missing),
                Choice::Unreadable(_) => model.hold_new(run.start() + count, Hold::Failed),
                _ => {}
            }
            let read = (*run.start()..*run.start() + count).filter(|i| !model.restored.contains(i));
            return model.read.extend(read);
        }
        for (at, index) in (0..).zip(run) {
            let to = match choice {
                _ if at < count => &mut model.retries_read,
                Choice::Missing(_) if at == count => &mut model.missing,
                Choice::Unreadable(_) => &mut model.waiting,
                _ => &mut model.due,
            };
            to.insert(index);
        }
    }

    /// Ends the fetch under way with all its jobs. Some of the new ones wait behind others.
    pub(super) fn end_fetch_behind(&mut self, turns: u8) {
        let new = self.model.fetch.clone().filter(|run| self.is_new(*run.start()));
        let Some(run) = new else { return self.end_fetch(Choice::Fetched(u8::MAX)) };
        self.model.fetch = None;
        let (mut behind, mut read) = (Vec::new(), Vec::new());
        for (turn, index) in run.clone().filter(|i| !self.model.restored.contains(i)).enumerate() {
            if turns >> (turn % 8) & 1 == 1 { behind.push(index) } else { read.push(index) }
        }
        behind.iter().for_each(|index| self.window.handle_behind(*index));
        self.window.handle_fetched(run.end() - run.start() + 1);
        self.model.held.extend(&behind);
        self.model.behind.extend(behind);
        self.model.read.extend(read);
    }

    pub(super) fn behind_again(&mut self, pick: u8) {
        let model = &mut self.model;
        let may = model.retries_read.iter().copied().filter(|index| model.reaches(*index)).collect();
        let Some(index) = nth(&may, pick) else { return };
        assert!(self.window.handle_behind_again(index));
        assert!(!self.window.handle_behind_again(index), "it waits already");
        model.retries_read.remove(&index);
        model.behind.insert(index);
    }

    /// Makes a job start that waited behind another one.
    pub(super) fn ready(&mut self, pick: u8) {
        let Some(index) = nth(&self.model.behind, pick) else { return };
        assert!(self.window.handle_ready(index));
        assert!(!self.window.handle_ready(index), "it waits no more");
        let model = &mut self.model;
        model.retried = false;
        model.behind.remove(&index);
        model.retries_read.insert(index);
        model.places.insert(index, model.next_place);
        model.next_place += 1;
    }

    /// Ends the back-off of a job, or the pause of a missing one.
    pub(super) fn end_pause(&mut self, pick: u8) {
        let model = &self.model;
        let waits = model.waiting.iter().chain(&model.missing).chain(&model.behind).copied().collect();
        let Some(index) = nth(&waits, pick) else { return };
        assert!(self.window.handle_due(index));
        assert!(!self.window.handle_due(index), "a back-off is over once");
        self.model.due.insert(index);
        // A missing job keeps its place.
        if !self.model.missing.remove(&index) {
            self.model.waiting.remove(&index);
            self.model.behind.remove(&index);
            self.model.places.insert(index, self.model.next_place);
            self.model.next_place += 1;
        }
    }

    pub(super) fn check_fetch(&mut self, run: RangeInclusive<Index>) {
        let model = &self.model;
        assert!(model.fetch.is_none() && !model.stopping && !run.is_empty());
        let most = (model.limits.max_processing as u64 * 2).max(64);
        let (read, retries) = (model.read.len() as u64, model.retries_read.len() as u64);
        let count = run.end() - run.start() + 1;
        if self.is_new(*run.start()) {
            assert_eq!(*run.start(), model.unread(), "new jobs are read in order, and done jobs are skipped");
            assert!(model.hold.is_none() && !model.crowded, "the source is left alone");
            assert!(model.alone != Some(*run.start()) || count == 1, "a missing job is asked for alone");
            assert!(!model.restored.contains(run.end()), "a done job is read");
            assert!(run.clone().all(|i| !model.held.contains(&i)), "a job that had failed is read as a new one");
            assert!(model.may_start(*run.end()), "a job above the window or the gate is read");
            assert!(read + retries + count <= most || count == 1 && model.starved(), "read too far ahead");
            assert!(count <= model.room || count == 1 && model.starved(), "more is read than may weigh");
        } else {
            let only = model.only.filter(|only| model.due.contains(only) && model.reaches(*only));
            assert_eq!(
                Some(*run.start()),
                only.or_else(|| model.first_of(&model.due)),
                "the job that has been due the longest is read first"
            );
            assert!(only.is_none() || count == 1, "others are read with the only job that may start");
            assert!(run.clone().all(|i| model.due.contains(&i)), "a failed job is read only when it is due");
            assert!(model.reaches(*run.end()), "a retry above the window is read");
            let needed = count == 1 && (model.first_of(&model.retries_read).is_none() || only.is_some());
            assert!(
                retries + count <= most / 2 && read + retries + count <= most || needed,
                "retries leave no room for new jobs"
            );
            assert!(count <= model.room || needed, "more is read than may weigh");
            self.model.due.retain(|i| !run.contains(i));
        }
        self.model.fetch = Some(run);
    }

    /// Ends the fetch under way with alternating jobs and gaps, and a last gap of any length.
    pub(super) fn end_sparse_fetch(&mut self, seed: u8, last: u8) {
        let Some(run) = self.model.fetch.take() else { return };
        let is_new = self.is_new(*run.start());
        let mut numbers = fastrand::Rng::with_seed(u64::from(seed) << 8 | u64::from(last));
        // A caller may hold back jobs that the gate of the source lets through.
        let gate = self.model.gate.map_or(0, |gate| gate.saturating_add(1));
        let open_below = if seed.is_multiple_of(2) { gate } else { Index::MAX };
        let through = self.window.fetch_through(&run, open_below);
        assert!(through >= *run.end() && (is_new || through == *run.end()));
        let mut most = run.end() - run.start() + 1;
        let mut next = *run.start();
        let mut goes_on = true;
        for _ in 0..=seed % 8 {
            let gap = numbers.u64(..4) * (1 + numbers.u64(..8) / 7 * 20);
            if gap > 0 && goes_on && next < through {
                let end = next.saturating_add(gap).min(through);
                goes_on = self.gap(is_new, next..=end - 1, open_below);
                next = end;
            }
            let jobs = numbers.u64(1..6).min(most);
            if jobs > 0 && goes_on && next <= through {
                let end = next.saturating_add(jobs).min(through + 1);
                self.part(is_new, next..=end - 1);
                most -= end - next;
                next = end;
            }
        }
        let beyond = match last {
            0..60 => 0,
            60..150 => u64::from(last % 30),
            150..240 => u64::from(last) * 2,
            _ => Index::MAX - next,
        };
        if beyond > 0 && goes_on && (is_new || next <= *run.end()) {
            let end = next.saturating_add(beyond);
            let end = if is_new { end } else { end.min(run.end() + 1) };
            self.gap(is_new, next..=end - 1, open_below);
            next = end;
        }
        let fails = last.is_multiple_of(5);
        if fails {
            self.window.handle_unreadable(0);
            if is_new {
                let wanted = self.model.unread();
                self.model.hold_new(wanted, Hold::Failed);
            }
        } else {
            self.window.handle_fetched(0);
        }
        if !is_new && next <= *run.end() {
            let rest = if fails { &mut self.model.waiting } else { &mut self.model.due };
            rest.extend(next..=*run.end());
        }
    }

    fn part(&mut self, is_new: bool, jobs: RangeInclusive<Index>) {
        self.window.handle_part(jobs.clone());
        let model = &mut self.model;
        if is_new {
            model.read.extend(jobs.filter(|i| !model.restored.contains(i)));
        } else {
            model.retries_read.extend(jobs);
        }
    }

    /// Returns false if the gap is cut off.
    fn gap(&mut self, is_new: bool, gap: RangeInclusive<Index>, open_below: Index) -> bool {
        let (start, end) = (*gap.start(), gap.end() + 1);
        let whole = self.window.handle_gap(gap.clone(), open_below);
        let model = &mut self.model;
        if !is_new {
            for index in gap {
                if model.redriven.contains(&index) {
                    model.missing.insert(index);
                    continue;
                }
                model.absent += 1;
                model.found.insert(index);
                model.done.insert(index);
                model.unwritten = true;
                self.ever_done.insert(index);
            }
            return whole;
        }
        let start = start.max(model.unread());
        let last = model.head.map(|head| head.min(model.stop_at.unwrap_or(Index::MAX)));
        let open = last.map_or(0, |last| last + 1).min(open_below);
        let is_free = model.lowest_undone() >= start && model.lowest_undone() == model.base();
        let width = if is_free { u64::MAX } else { model.limits.max_search_ahead };
        let held = model.held.range(start..).next().copied().unwrap_or(Index::MAX);
        let settled = end.min(open).min(model.base().saturating_add(width)).min(held);
        model.found.extend(start.max(model.lowest_undone())..settled);
        for index in start..settled {
            if model.done.insert(index) {
                model.absent += 1;
                model.gaps.insert(index);
                model.restored.insert(index);
                self.ever_done.insert(index);
            }
        }
        assert_eq!(whole, settled >= end, "the rest of an answer counts if no gap was cut off");
        whole
    }
}
