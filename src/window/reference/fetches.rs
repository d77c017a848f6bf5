//! Choices about reading: the run to read, and the end of a fetch.

use super::{Choice, Trial, model::Hold, nth};
use crate::base::Index;
use core::ops::RangeInclusive;

impl Trial {
    pub(super) fn set_room(&mut self, jobs: u64) {
        self.window.set_room(jobs);
        self.model.room = jobs;
    }

    pub(super) fn is_new(&self, index: Index) -> bool {
        let model = &self.model;
        !model.started.contains(&index) && !model.held.contains(&index) && !model.redriven.contains(&index)
    }

    /// Ends the fetch under way with a share of its jobs.
    pub(super) fn end_fetch(&mut self, choice: Choice) {
        let Some(run) = self.model.fetch.take() else { return };
        let asked = run.end() - run.start() + 1;
        let part = |share: u8| asked * u64::from(share) / 256;
        let count = match choice {
            Choice::Missing(share) => {
                self.window.handle_missing(part(share));
                part(share)
            }
            Choice::Unreadable(share) => {
                self.window.handle_unreadable(part(share));
                part(share)
            }
            Choice::Fetched(share) => {
                let count = (asked * (u64::from(share) + 1)).div_ceil(256);
                self.window.handle_fetched(count);
                count
            }
            _ => unreachable!("no other choice ends a fetch"),
        };
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

    /// Ends the back-off of a job, or the pause of a missing one.
    pub(super) fn end_pause(&mut self, pick: u8) {
        let waits = self.model.waiting.union(&self.model.missing).copied().collect();
        let Some(index) = nth(&waits, pick) else { return };
        assert!(self.window.handle_due(index));
        assert!(!self.window.handle_due(index), "a back-off is over once");
        self.model.due.insert(index);
        // A missing job keeps its place.
        if !self.model.missing.remove(&index) {
            self.model.waiting.remove(&index);
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
            assert_eq!(model.hold, None, "the source is left alone");
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
}
