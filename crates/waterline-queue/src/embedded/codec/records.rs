//! All kinds of records of a queue in one table, and the tests that each record has to pass: so
//! also the test that no change of the code changes what is stored.

use super::samples::samples as all;
use proptest::prelude::*;
use waterline::seam::{check_any, check_records};

/// All kinds: the label, and the versions that are read. A label never gets another meaning.
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
fn promise_08_each_record_is_written_as_ever_and_a_damaged_one_is_refused() {
    check_records(&all(), &KINDS);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn promise_08_any_bytes_under_a_right_checksum_are_read_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..120), at in any::<usize>(), change in 1..4usize,
    ) {
        check_any(&all(), &bytes, at, change);
    }
}
