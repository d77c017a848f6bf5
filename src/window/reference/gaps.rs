//! The choice about gaps: a fetch that ends with jobs and gaps.

use super::{Trial, model::Hold};
use crate::base::Index;
use core::ops::RangeInclusive;

/// Several numbers from a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

impl Trial {
    /// Ends the fetch under way with alternating jobs and gaps, and a last gap of any length.
    pub(super) fn end_sparse_fetch(&mut self, seed: u8, last: u8) {
        let Some(run) = self.model.fetch.take() else { return };
        let is_new = self.is_new(*run.start());
        let mut numbers = Numbers(u64::from(seed) << 8 | u64::from(last));
        // A caller may hold back jobs that the gate of the source lets through.
        let gate = self.model.gate.map_or(0, |gate| gate.saturating_add(1));
        let open_below = if seed.is_multiple_of(2) { gate } else { Index::MAX };
        let through = self.window.fetch_through(&run, open_below);
        assert!(through >= *run.end() && (is_new || through == *run.end()));
        let mut most = run.end() - run.start() + 1;
        let mut next = *run.start();
        let mut goes_on = true;
        for _ in 0..=seed % 8 {
            let gap = numbers.below(4) * (1 + numbers.below(8) / 7 * 20);
            if gap > 0 && goes_on && next < through {
                let end = next.saturating_add(gap).min(through);
                goes_on = self.gap(is_new, next..=end - 1, open_below);
                next = end;
            }
            let jobs = (1 + numbers.below(5)).min(most);
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
