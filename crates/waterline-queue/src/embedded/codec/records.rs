//! All kinds of records of a queue, and the tests that each has to pass: no change of the code
//! changes what is stored.

use super::samples::samples as all;
use proptest::prelude::*;
use waterline::seam::{check_any, check_records};

/// The label and the versions of each kind. A label never gets another meaning.
const KINDS: [(&str, &[u8]); 11] = [
    ("queue.durations", &[1]),
    ("queue.entry", &[1]),
    ("queue.head", &[1, 2]),
    ("queue.job", &[1, 2]),
    ("queue.limit", &[1]),
    ("queue.mark", &[1]),
    ("queue.meta", &[1]),
    ("queue.name", &[1]),
    ("queue.note", &[1]),
    ("queue.periodic", &[1]),
    ("queue.progress", &[1]),
];

#[test]
fn promise_08_records_stay_as_written_and_damage_is_refused() {
    check_records(&all(), &KINDS);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn promise_08_any_sealed_bytes_are_read_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..120), at in any::<usize>(), change in 1..4usize,
    ) {
        check_any(&all(), &bytes, at, change);
    }
}
