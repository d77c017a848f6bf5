//! A [`Retry`] in the row of a job.

use std::time::Duration;
use waterline::Retry;
use waterline::seam::{Growth, check_retry, retry_of, retry_parts};

/// The length of a stored [`Retry`].
pub(crate) const RETRY_BYTES: usize = 1 + 3 * 8 + 4 + 8;

/// Returns its bytes: the growth (1 byte), the first pause, the cap and the factor (8 each), the
/// attempts (4; 0: no limit) and the jitter (8). Pauses are in nanoseconds, and at most 584 years.
pub(crate) fn to_bytes(retry: &Retry) -> [u8; RETRY_BYTES] {
    let (first, growth, cap, attempts, jitter) = retry_parts(retry);
    let (growth, factor) = match growth {
        Growth::None => (0, 0.0),
        Growth::Doubling => (1, 0.0),
        Growth::Factor(factor) => (2, factor),
        Growth::Quadratic => (3, 0.0),
    };
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).to_be_bytes();
    let mut bytes = [0; RETRY_BYTES];
    bytes[0] = growth;
    bytes[1..9].copy_from_slice(&nanos(first));
    bytes[9..17].copy_from_slice(&nanos(cap));
    bytes[17..25].copy_from_slice(&f64::to_be_bytes(factor));
    bytes[25..29].copy_from_slice(&attempts.unwrap_or(0).to_be_bytes());
    bytes[29..].copy_from_slice(&jitter.to_be_bytes());
    bytes
}

/// Reads its bytes; `None` if its values are not acceptable.
pub(crate) fn of_bytes(bytes: &[u8; RETRY_BYTES]) -> Option<Retry> {
    let number = |at: usize| bytes[at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    let attempts = u32::from_be_bytes(*bytes[25..].first_chunk()?);
    let (first, cap) = (Duration::from_nanos(number(1)), Duration::from_nanos(number(9)));
    let growth = match bytes[0] {
        0 => Growth::None,
        1 => Growth::Doubling,
        2 => Growth::Factor(f64::from_bits(number(17))),
        3 => Growth::Quadratic,
        _ => return None,
    };
    let retry = retry_of((first, growth, cap, (attempts > 0).then_some(attempts), f64::from_bits(number(29))));
    check_retry(&retry).is_ok().then_some(retry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_retry_round_trips() {
        let (second, day) = (Duration::from_secs(1), Duration::from_secs(86_400));
        let exponential = Retry::exponential(second, day);
        for retry in [
            Retry::none(),
            Retry::fixed(second).max_attempts(3),
            exponential.jitter(0.25),
            exponential.factor(6.0),
            Retry::quadratic(second, day),
        ] {
            assert_eq!(of_bytes(&to_bytes(&retry)), Some(retry));
        }
    }
}
