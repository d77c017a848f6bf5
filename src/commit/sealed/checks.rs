//! The checks that every sealed record has to pass, in any crate.

use super::samples::Sample;

/// Checks that these are all kinds, that each record keeps its bytes and is read back, and that
/// damage is refused.
pub fn check_records(all: &[Sample], expected: &[(&str, &[u8])]) {
    check_kinds(all, expected);
    check_bytes(all);
    check_damage(all);
}

/// Checks that these are all kinds, with all versions that are read, and a sample of each version.
fn check_kinds(all: &[Sample], expected: &[(&str, &[u8])]) {
    let mut kinds: Vec<_> = all.iter().map(|sample| (sample.kind.label, sample.kind.versions)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds, expected);
    for (label, versions) in kinds {
        let of_kind = || all.iter().filter(|sample| (sample.kind.label, sample.kind.versions) == (label, versions));
        assert!(versions.iter().all(|version| of_kind().any(|sample| sample.bytes[0] == *version)), "{label}");
    }
}

/// Checks that each record keeps its bytes, and is read as it was written.
fn check_bytes(all: &[Sample]) {
    for sample in all {
        let (key, bytes) = (sample.key(), sample.bytes.escape_ascii().to_string());
        assert_eq!(sample.read(&sample.bytes), Ok(true), "{key:?}: {bytes}");
        let written = sample.written.escape_ascii().to_string();
        assert_eq!(written, bytes, "{key:?}");
        let is_same = |body: &[u8]| sample.read(&sample.seal(body)) == Ok(true);
        let body = sample.body();
        assert!(!(0..body.len()).any(|length| is_same(&body[..length])), "{key:?}: the end counts");
        // The text of a halt counts only in the record of a life that halted.
        assert!(!is_same(&[body, b"x"].concat()) || sample.kind.label == "life", "{key:?}: what follows counts");
    }
}

/// Checks that a flipped bit, a missing byte and the record of another key are refused.
fn check_damage(all: &[Sample]) {
    for sample in all {
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
        // Records of some kinds have no name, or no place.
        let place = sample.place.replace(|last| sample.place.ends_with(last), "z");
        let name = if sample.name.is_empty() { "" } else { "another" };
        for (name, place) in [(name, sample.place), (sample.name, &place)] {
            let is_elsewhere = (name, place) != (sample.name, sample.place);
            assert!(!is_elsewhere || (sample.read)(name, place, &sample.bytes).is_err(), "{:?}", sample.key());
        }
    }
}

/// Checks that any bytes with a valid checksum are read or refused without a panic: some after the
/// record, and some that replace `change` of its bytes from `at` on.
pub fn check_any(all: &[Sample], bytes: &[u8], at: usize, change: usize) {
    for sample in all {
        let (body, version) = (sample.body(), !sample.kind.versions.is_empty());
        let at = at % (body.len() + 1);
        let mut bent = body.to_vec();
        bent.iter_mut().skip(at.max(1)).zip(bytes).take(change).for_each(|(byte, other)| *byte = *other);
        let bodies = [
            [&body[..usize::from(version)], bytes].concat(),
            [&body[..at], bytes].concat(),
            [body, bytes].concat(),
            body[..at].to_vec(),
            bent,
        ];
        for body in bodies {
            let _ = sample.read(&sample.seal(&body));
        }
        let _ = sample.read(bytes);
    }
}
