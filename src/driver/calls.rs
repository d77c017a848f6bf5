//! Counts calls into the source and decides how long to leave it alone after a failure.
//!
//! The first failure is retried at once, so an occasional one costs a call and no pause. Further
//! failures in a row back off. Each kind of call counts for itself: asks for the head, reads of new
//! jobs, and reads of one failed job. So a job that can never be read is not asked for all the time
//! because others can, and slows down no other.

use crate::base::{retry::Retry, time::Now};
use crate::observe::status::SourceCalls;
use crate::source::MISSING;
use std::time::{Duration, Instant};

/// The default back-off after calls that failed in a row.
pub(crate) const SOURCE_RETRY: Retry =
    Retry::exponential(Duration::from_millis(50), Duration::from_secs(5)).jitter(0.2);

pub(crate) struct Calls {
    retry: Retry,
    /// How long a call may take before the source gives it up, if it can.
    pub(super) timeout: Option<Duration>,
    made: u64,
    failed: u64,
    /// The number of failures since the last answer.
    in_a_row: u32,
}

/// The fruitless calls of one kind since its last success.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InVain {
    failed: u32,
    missing: u32,
    /// When the first of them was made.
    pub(super) since: Option<Instant>,
}

impl Calls {
    pub(crate) fn new(retry: Retry, timeout: Option<Duration>) -> Self {
        Self { retry, timeout, made: 0, failed: 0, in_a_row: 0 }
    }

    /// Counts a call that returned.
    pub(super) fn returned(&mut self) {
        self.made += 1;
    }

    /// Counts a call that was made again by itself.
    pub(super) fn failed_beside(&mut self, failed: bool) {
        self.made += 1;
        self.failed += u64::from(failed);
    }

    pub(super) fn answered(&mut self) {
        self.in_a_row = 0;
    }

    /// True if no call has failed since the last answer.
    pub(super) fn is_sound(&self) -> bool {
        self.in_a_row == 0
    }

    /// Counts a failure. Returns the pause before the next call of this kind: none for the first
    /// failure after an answer.
    pub(super) fn fail(&mut self, kind: &mut InVain, now: &Now) -> Duration {
        let is_first = self.in_a_row == 0 && kind.failed == 0;
        self.failed += 1;
        self.in_a_row = self.in_a_row.saturating_add(1);
        kind.failed = kind.failed.saturating_add(1);
        kind.since.get_or_insert_with(|| now.get());
        if is_first {
            return Duration::ZERO;
        }
        self.retry.delay((kind.failed - 1).max(1), now.chance()).unwrap_or_default()
    }

    /// Counts a job that should exist and does not. Returns the pause before it is read again.
    pub(super) fn miss(&mut self, kind: &mut InVain, now: &Now) -> Duration {
        self.answered();
        kind.missing = kind.missing.saturating_add(1);
        kind.since.get_or_insert_with(|| now.get());
        MISSING.delay(kind.missing, 1.0).unwrap_or_default()
    }

    /// Returns the numbers for a status. `again`: when the source is asked next.
    pub(super) fn numbers(&self, again: Option<Instant>, now: &Now) -> SourceCalls {
        let retry_in = again.map(|again| again.saturating_duration_since(now.get()));
        let Self { timeout, made, failed, in_a_row, .. } = *self;
        SourceCalls { made, failed, failed_in_a_row: in_a_row, retry_in, timeout }
    }
}

impl Default for Calls {
    fn default() -> Self {
        Self::new(SOURCE_RETRY, None)
    }
}

/// Returns the end of a pause; one beyond the end of the clock lasts over a century.
pub(super) fn after(pause: Duration, now: Instant) -> Instant {
    now.checked_add(pause).unwrap_or(now + Duration::from_secs(u32::MAX.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Fails or answers in this order, and returns the pause after each failure.
    fn pauses(calls: &mut Calls, kind: &mut InVain, outcomes: &str) -> Vec<u128> {
        let now = Now::at(Instant::now());
        let outcomes = outcomes.chars().map(|outcome| {
            calls.returned();
            match outcome {
                'x' => Some(calls.fail(kind, &now)),
                // An answer to a call of another kind.
                'o' => {
                    calls.answered();
                    None
                }
                '-' => Some(calls.miss(kind, &now)),
                _ => {
                    calls.answered();
                    *kind = InVain::default();
                    None
                }
            }
        });
        outcomes.flatten().map(|pause| pause.as_millis()).collect()
    }

    #[test]
    fn failures_in_a_row_back_off_after_the_first() {
        let table: [(&str, &[u128]); 7] = [
            ("x.x.x.x", &[0, 0, 0, 0]),
            ("xxxxxxxxxx", &[0, 50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]),
            ("xxx.xxx", &[0, 50, 100, 0, 50, 100]),
            ("xoxoxox", &[0, 50, 100, 200]),
            ("--------", &[20, 40, 80, 160, 320, 640, 1_000, 1_000]),
            ("--.-", &[20, 40, 20]),
            ("x-x-x", &[0, 20, 50, 40, 100]),
        ];
        for (outcomes, expected) in table {
            let (mut calls, mut kind) = (Calls::new(SOURCE_RETRY, None), InVain::default());
            assert_eq!(pauses(&mut calls, &mut kind, outcomes), expected, "{outcomes}");
        }
    }

    #[test]
    fn no_kind_of_call_retries_at_once_in_an_outage() {
        let (mut calls, mut heads, mut reads) = (Calls::new(SOURCE_RETRY, None), InVain::default(), InVain::default());
        assert_eq!(pauses(&mut calls, &mut reads, "xxx"), [0, 50, 100]);
        assert_eq!(pauses(&mut calls, &mut heads, "xxx"), [50, 50, 100]);
        let now = Now::at(Instant::now());
        let numbers = calls.numbers(Some(now.get() + MS), &now);
        assert_eq!((numbers.made, numbers.failed, numbers.failed_in_a_row, numbers.retry_in), (6, 6, 6, Some(MS)));
        assert_eq!(pauses(&mut calls, &mut heads, ".x"), [0], "its own failures are over");
        assert_eq!(pauses(&mut calls, &mut reads, "ox"), [200], "and those of the reads are not");
    }

    #[test]
    fn the_user_sets_the_pauses() {
        let mut calls = Calls::new(Retry::fixed(7 * MS), None);
        assert_eq!(pauses(&mut calls, &mut InVain::default(), "xxxx.xx"), [0, 7, 7, 7, 0, 7]);
    }
}
