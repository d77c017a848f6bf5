//! The lag in seconds: how long the head has been above the current watermark.

use crate::base::Index;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

const MARKS: usize = 64;

/// The shortest time between two marks.
const STEP: Duration = Duration::from_millis(10);

/// The times at which the head rose, thinned out to a bounded number of marks.
///
/// The lag is never too short. It is too long by at most 10 ms, or a sixteenth of the longest lag
/// since the consumer had caught up.
#[derive(Debug)]
pub(crate) struct Behind {
    /// Ascending. A mark's first index was there at its time, its last one less than a step later.
    marks: VecDeque<Mark>,
    /// The current shortest time between two marks.
    step: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    head: Index,
    since: Instant,
}

impl Default for Behind {
    fn default() -> Self {
        Self { marks: VecDeque::new(), step: STEP }
    }
}

impl Behind {
    /// Records a head that the source reported. Everything below `unprocessed` is processed.
    pub(crate) fn shows(&mut self, head: Option<Index>, unprocessed: Index, now: Instant) {
        self.forget(unprocessed);
        let Some(head) = head.filter(|head| *head >= unprocessed) else { return };
        match self.marks.back_mut() {
            Some(last) if head <= last.head => {}
            Some(last) if now.saturating_duration_since(last.since) < self.step => last.head = head,
            _ => self.marks.push_back(Mark { head, since: now }),
        }
        if self.marks.len() > MARKS {
            self.thin_out();
        }
    }

    /// Returns how long the head has been at or above this index, or zero if it is not.
    pub(crate) fn elapsed(&mut self, unprocessed: Index, now: Instant) -> Duration {
        self.forget(unprocessed);
        self.marks.front().map_or(Duration::ZERO, |mark| now.saturating_duration_since(mark.since))
    }

    fn forget(&mut self, unprocessed: Index) {
        while self.marks.front().is_some_and(|mark| mark.head < unprocessed) {
            self.marks.pop_front();
        }
        if self.marks.is_empty() {
            self.step = STEP;
        }
    }

    /// Joins close neighbours until half of the marks are left. Each mark spans less than a step,
    /// which is at most a sixteenth of the time that all marks span.
    fn thin_out(&mut self) {
        while self.marks.len() > MARKS / 2 {
            self.step = self.step.saturating_mul(2);
            let mut joined: VecDeque<Mark> = VecDeque::with_capacity(MARKS);
            for mark in self.marks.drain(..) {
                match joined.back_mut() {
                    Some(last) if mark.since.saturating_duration_since(last.since) < self.step => last.head = mark.head,
                    _ => joined.push_back(mark),
                }
            }
            self.marks = joined;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every head with its time, nothing thinned out.
    #[derive(Default)]
    struct Model(Vec<Mark>);

    impl Model {
        fn elapsed(&self, unprocessed: Index, now: Instant) -> Duration {
            let first = self.0.iter().find(|mark| mark.head >= unprocessed);
            first.map_or(Duration::ZERO, |mark| now - mark.since)
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Show {
            more: u64,
            after: u64,
        },
        /// The source shows an earlier head, or none.
        Back {
            by: u64,
        },
        Process {
            share: u64,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        let after = prop_oneof![5 => 0..30u64, 2 => 0..3_000u64, 1 => 0..4_000_000u64];
        // Rarely, so that the marks are thinned out many times before one is forgotten.
        prop_oneof![
            60 => (0..4u64, after).prop_map(|(more, after)| Step::Show { more, after }),
            5 => (1..9u64).prop_map(|by| Step::Back { by }),
            1 => (0..=10u64).prop_map(|share| Step::Process { share }),
        ]
    }

    proptest! {
        #[test]
        fn the_lag_is_too_long_by_at_most_a_sixteenth(
            steps in proptest::collection::vec(step(), 0..1_200),
        ) {
            let (mut behind, mut model, mut now) = (Behind::default(), Model::default(), Instant::now());
            let (mut head, mut unprocessed, mut longest) = (0, 0, Duration::ZERO);
            for step in steps {
                match step {
                    Step::Show { more, after } => {
                        now += Duration::from_millis(after);
                        head += more;
                        if head > unprocessed && model.0.last().is_none_or(|last| last.head < head - 1) {
                            model.0.push(Mark { head: head - 1, since: now });
                        }
                        behind.shows(head.checked_sub(1), unprocessed, now);
                    }
                    Step::Back { by } => behind.shows(head.checked_sub(1 + by), unprocessed, now),
                    Step::Process { share } => unprocessed += (head - unprocessed) * share / 10,
                }
                let (is, was) = (behind.elapsed(unprocessed, now), model.elapsed(unprocessed, now));
                longest = if unprocessed == head { Duration::ZERO } else { longest.max(was) };
                prop_assert!(is >= was, "{is:?} is shorter than {was:?}");
                prop_assert!(is - was <= STEP.max(longest / 16), "{is:?} is longer than {was:?} of {longest:?}");
                prop_assert!(behind.marks.len() <= MARKS && behind.marks.capacity() <= 2 * MARKS);
            }
        }
    }
}
