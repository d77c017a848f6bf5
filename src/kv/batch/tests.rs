//! The bytes of a batch: records of any length are read back, and invalid ones end the reading.

use super::*;
use proptest::prelude::*;

/// One change, on its own.
type Change = (u32, Vec<u8>, Option<Vec<u8>>);

fn text() -> impl Strategy<Value = Vec<u8>> {
    // Around the lengths at which the length itself takes another byte, and often empty.
    let length = prop_oneof![Just(0usize), 0..4usize, 126..130usize, 16_382..16_387usize];
    (length, any::<u8>()).prop_map(|(length, byte)| vec![byte; length])
}

fn change() -> impl Strategy<Value = Change> {
    let family = prop_oneof![Just(0u32), 1..4u32, 126..130u32, 16_382..16_387u32, Just(u32::MAX)];
    (family, text(), proptest::option::of(text()))
}

fn add(records: &mut Records, (family, key, value): &Change) {
    let (front, back) = key.split_at(key.len() / 2);
    let family = FamilyId(*family);
    match value {
        Some(value) => records.put(family, &[front, back], &[value]).unwrap(),
        None => records.delete(family, &[front, back]).unwrap(),
    }
}

fn said<'a>(records: impl Iterator<Item = RowChange<'a>>) -> Vec<Change> {
    let said = |record: RowChange<'_>| match record {
        RowChange::Put { family, key, value } => (family.0, key.to_vec(), Some(value.to_vec())),
        RowChange::Delete { family, key } => (family.0, key.to_vec(), None),
        RowChange::DeleteRange { .. } => panic!("none was put"),
    };
    records.map(said).collect()
}

#[test]
fn a_batch_has_the_bytes_of_its_format() {
    let mut batch = Batch::default();
    assert_eq!(batch.bytes(), [0; 12]);
    batch.put(FamilyId(0), &[b"k"], &[b"v", b"w"]).unwrap();
    batch.delete(FamilyId(0x80), &[b"p", b"q"]).unwrap();
    batch.delete_range(FamilyId(3), b"a", b"bc").unwrap();
    let header = [0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0];
    let records = [&b"\x01\x01k\x02vw"[..], b"\x04\x80\x01\x02pq", b"\x0e\x03\x01a\x02bc"].concat();
    assert_eq!(batch.bytes(), [&header[..], &records].concat());
    let range = RowChange::DeleteRange { family: FamilyId(3), from: b"a", to: b"bc" };
    assert_eq!(batch.records().last(), Some(range));
}

#[test]
fn a_record_too_large_adds_nothing() {
    // Zeros that are never touched take no memory.
    let large = vec![0u8; 1 << 30];
    let parts = [&large[..]; 4];
    let mut batch = Batch::default();
    batch.put(FamilyId(1), &[b"k"], &[b"v"]).unwrap();
    let before = batch.clone();
    for refused in [
        batch.put(FamilyId(1), &parts, &[]),
        batch.put(FamilyId(1), &[b"k"], &parts),
        batch.delete(FamilyId(0), &parts),
    ] {
        let text = crate::base::error::describe(&refused.unwrap_err());
        assert!(text.contains("4294967296 bytes are too many") && text.contains("999 MB"), "{text}");
    }
    assert_eq!(batch, before);
    let (most, more) = (&large[..LARGEST as usize - 1], &large[..LARGEST as usize]);
    assert!(length(&[b"k", most]).is_ok() && length(&[b"k", more]).is_err());
    assert!(batch.put(FamilyId(1), &[b"k"], &[more]).is_err(), "a key and its value are one row");
    assert_eq!(batch, before);
}

#[test]
fn invalid_bytes_end_the_reading() {
    for bytes in [&b"\x07\x01k"[..], b"\x01\x02k", b"\x05\xff\xff\xff\xff\x7f\x00\x00", b"\x05\x80\x80\x80\x80\x80"] {
        assert_eq!(RecordReader(bytes).count(), 0, "{bytes:?}");
    }
}

proptest! {
    #[test]
    fn a_batch_reads_back_its_changes(changes in proptest::collection::vec(change(), 0..12), cut in 0..12usize) {
        let mut whole = Records::default();
        changes.iter().for_each(|change| add(&mut whole, change));
        prop_assert_eq!(said(whole.records()), changes.clone());
        prop_assert_eq!(whole.count() as usize, changes.len());
        prop_assert_eq!(whole.is_empty(), changes.is_empty());

        // The same in two parts, after an addition that is undone.
        let (front, back) = changes.split_at(cut.min(changes.len()));
        let (mut first, mut second) = (Records::default(), Records::default());
        front.iter().for_each(|change| add(&mut first, change));
        back.iter().for_each(|change| add(&mut second, change));
        let mut batch = Batch::default();
        batch.append(&first);
        let mark = batch.mark();
        batch.append(&whole);
        batch.truncate(mark);
        batch.append(&second);
        let mut at_once = Batch::default();
        at_once.append(&whole);
        prop_assert_eq!(batch.bytes(), at_once.bytes());
        prop_assert_eq!(batch.len(), HEADER + whole.len());
        prop_assert_eq!(batch.is_empty(), changes.is_empty());
        prop_assert_eq!(said(records(batch.checked().unwrap())), changes);
        first.append(&second);
        prop_assert_eq!(&first, &whole);
        first.clear();
        prop_assert_eq!(first, Records::default());
    }
}
