//! All kinds of sealed records in one table, and the tests that each of them has to pass.
//!
//! Each module with records lists them in a module `samples`, as they are stored. So this also
//! tests that no change of the code changes what is stored.

use crate::commit::sealed::checks::{check_any, check_records};
use crate::commit::sealed::samples::Sample;
use proptest::prelude::*;

/// All kinds: the label, and the versions that are read. A label never gets another meaning. Labels
/// that begin with `queue.` belong to the queue, whose crate has its own table.
const KINDS: [(&str, &[u8]); 12] = [
    ("", &[]),  // the numbers of a store, and the deltas of a progress
    ("", &[1]), // the page of a progress
    ("format", &[1]),
    ("gone", &[1]),
    ("life", &[1]),
    ("log", &[1, 2, 3]),
    ("move", &[1]),
    ("moved", &[1]),
    ("owns", &[1]),
    ("parked", &[1]),
    ("reads", &[1]),
    ("table", &[1]),
];

fn all() -> Vec<Sample> {
    let rooms = [crate::store::samples::samples(), crate::progress::samples::samples(), crate::log::samples::samples()];
    rooms.into_iter().flatten().collect()
}

#[test]
fn promise_08_records_stay_as_stored_or_are_refused() {
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
