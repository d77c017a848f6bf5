//! When a queue stands still: all slots are busy, and no job ends.
//!
//! Log and status share this rule, for the slots of one runner or of all workers.

use std::time::Duration;

/// How many usual runs of its kind a job may take, however slow it is.
const RUNS: u32 = 10;

/// Returns how long jobs may hold all slots before it is a standstill, given their `usual` run.
pub(crate) fn patience(lease: Duration, usual: Option<Duration>) -> Duration {
    usual.map_or(lease, |usual| lease.max(usual.saturating_mul(RUNS)))
}

/// True if all slots have been busy for this long without an end, so that the queue stands still.
pub(crate) fn stands_still(no_end: Duration, patience: Duration) -> bool {
    no_end >= patience
}

/// Returns after how long without an end the next log line is due: each of the `told` lines so far
/// doubles it.
pub(crate) fn next_line(patience: Duration, told: u32) -> Duration {
    patience.saturating_mul(1_u32.checked_shl(told).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_takes_a_lease_or_ten_usual_runs() {
        let second = Duration::from_secs(1);
        for (lease, usual, patience_of) in
            [(60, None, 60), (60, Some(0), 60), (60, Some(6), 60), (60, Some(7), 70), (1, Some(u64::MAX), u64::MAX)]
        {
            let patience = patience(second * lease, usual.map(Duration::from_secs));
            assert_eq!(patience.as_secs(), patience_of, "{lease} {usual:?}");
            assert!(stands_still(patience, patience) && !stands_still(patience - second, patience));
        }
    }

    #[test]
    fn each_line_comes_after_twice_the_time() {
        let minute = Duration::from_secs(60);
        assert_eq!([0, 1, 2, 5].map(|told| next_line(minute, told)), [1, 2, 4, 32].map(|times| minute * times));
        assert_eq!(next_line(minute, 40), minute * u32::MAX, "no line is due at once");
    }
}
