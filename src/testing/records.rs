//! All kinds of sealed records in one table, and the tests that each record has to pass.
//!
//! Each room lists its records in a module `samples`, as they lie on disks. So this is also the
//! test that no change of the code changes what is stored.

use crate::commit::sealed::samples::Sample;
use proptest::prelude::*;

/// All kinds: the label, and the versions that are read. A label never gets another meaning.
const KINDS: [(&str, &[u8]); 20] = [
    ("", &[]),  // the numbers of a store, and the deltas of a progress
    ("", &[1]), // the page of a progress
    ("format", &[1]),
    ("life", &[1]),
    ("log", &[1, 2, 3]),
    ("move", &[1]),
    ("moved", &[1]),
    ("parked", &[1]),
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
    ("reads", &[1]),
];

fn all() -> Vec<Sample> {
    let rooms = [
        crate::store::samples::samples(),
        crate::progress::samples::samples(),
        crate::log::samples::samples(),
        crate::queue::samples::samples(),
    ];
    rooms.into_iter().flatten().collect()
}

#[test]
fn each_version_of_each_kind_is_in_the_table() {
    let all = all();
    let mut kinds: Vec<_> = all.iter().map(|sample| (sample.kind.label, sample.kind.versions)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds, KINDS);
    for (label, versions) in KINDS {
        let of_kind = || all.iter().filter(|sample| (sample.kind.label, sample.kind.versions) == (label, versions));
        assert!(versions.iter().all(|version| of_kind().any(|sample| sample.bytes[0] == *version)), "{label}");
    }
}

#[test]
fn promise_08_each_record_is_written_as_ever_and_is_read_as_it_was_written() {
    for sample in all() {
        let (key, bytes) = (sample.key(), sample.bytes.escape_ascii().to_string());
        assert_eq!(sample.read(&sample.bytes), Ok(true), "{key:?}: {bytes}");
        let written = sample.written.escape_ascii().to_string();
        assert_eq!(written, bytes, "{key:?}");
        let is_same = |body: &[u8]| sample.read(&sample.seal(body)) == Ok(true);
        let body = sample.body();
        assert!(!(0..body.len()).any(|length| is_same(&body[..length])), "{key:?}: the end counts");
        // The text of a halt counts only in a record of a life that halted.
        assert!(!is_same(&[body, b"x"].concat()) || sample.kind.label == "life", "{key:?}: what follows counts");
    }
}

#[test]
fn promise_08_any_flipped_bit_any_missing_byte_and_the_record_of_another_one_is_refused() {
    let all = all();
    for sample in &all {
        let refused = |bytes: &[u8]| sample.read(bytes).is_err();
        for bit in 0..sample.bytes.len() * 8 {
            let mut flipped = sample.bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(refused(&flipped), "{:?}: bit {bit}", sample.key());
        }
        for cut in 0..sample.bytes.len() {
            assert!(refused(&sample.bytes[..cut]), "{:?}: {cut} bytes", sample.key());
        }
        for other in all.iter().filter(|other| other.key() != sample.key()) {
            assert!(refused(&other.bytes), "{:?} in the place of {:?}", other.key(), sample.key());
        }
        // The records of some kinds have no name, or no place.
        let place = sample.place.replace(|last| sample.place.ends_with(last), "z");
        let name = if sample.name.is_empty() { "" } else { "another" };
        for (name, place) in [(name, sample.place), (sample.name, &place)] {
            let is_elsewhere = (name, place) != (sample.name, sample.place);
            assert!(!is_elsewhere || (sample.read)(name, place, &sample.bytes).is_err(), "{:?}", sample.key());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn promise_08_any_bytes_under_a_right_checksum_are_read_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..120),
        at in any::<prop::sample::Index>(), change in 1..4usize,
    ) {
        for sample in all() {
            let (body, version) = (sample.body(), !sample.kind.versions.is_empty());
            let at = at.index(body.len() + 1);
            let mut bent = body.to_vec();
            bent.iter_mut().skip(at.max(1)).zip(&bytes).take(change).for_each(|(byte, other)| *byte = *other);
            let bodies = [
                [&body[..usize::from(version)], &bytes].concat(),
                [&body[..at], &bytes].concat(),
                [body, &bytes].concat(),
                body[..at].to_vec(),
                bent,
            ];
            for body in bodies {
                let _ = sample.read(&sample.seal(&body));
            }
            let _ = sample.read(&bytes);
        }
    }
}
