//! The record of the format: later versions, damage, and names that come into use.

use super::reading::decode;
use super::*;
use crate::base::sync::Arc;
use crate::kv::memory::MemoryKv;
use crate::store::Store;

const NAME: &str = "known to tests";

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn sealed(version: u8, body: &[u8]) -> Vec<u8> {
    let mut record = [&[version], body].concat();
    SEAL.close("", &[], &mut record);
    record
}

/// Opens the store on this memory.
fn opened(kv: &Arc<MemoryKv>, create: bool) -> Result<Store, Error> {
    Store::on(kv.clone(), &Store::options().create(create), &"/data")
}

fn stored(kv: &MemoryKv) -> Option<Vec<u8>> {
    kv.get(&kv.families()[0], keys::FORMAT).unwrap()
}

fn with(record: &[u8]) -> Arc<MemoryKv> {
    let kv = Arc::new(MemoryKv::default());
    let mut batch = Batch::default();
    batch.put(kv.families()[0].id, &[keys::FORMAT], &[record]).unwrap();
    kv.write(&batch, true).unwrap();
    kv
}

#[test]
fn a_new_store_gets_its_record_by_one_flushed_write() {
    let kv = Arc::new(MemoryKv::default());
    kv.fail(0..1);
    assert!(matches!(opened(&kv, true), Err(Error::Store(_))));
    assert_eq!(stored(&kv), None);
    let before = kv.writes();
    for create in [true, false] {
        drop(opened(&kv, create).unwrap());
        assert_eq!((stored(&kv).unwrap(), kv.writes() - before), (encode(&names(&[])), 1), "create: {create}");
    }
    assert_eq!(stored(&kv.after_power_loss()), stored(&kv));
}

#[test]
fn promise_08_any_damage_of_the_format_is_corrupt() {
    for record in [encode(&names(&[])), encode(&names(&[NAME])), sealed(2, b"")] {
        let flipped = (0..record.len() * 8).map(|bit| {
            let mut flipped = record.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            flipped
        });
        let cut = (0..record.len()).map(|length| record[..length].to_vec());
        for damaged in flipped.chain(cut) {
            let kv = with(&damaged);
            let before = kv.writes();
            let opened = opened(&kv, true);
            assert!(matches!(&opened, Err(Error::Corrupt { name, .. }) if name == "format"), "{damaged:?}: {opened:?}");
            assert_eq!((stored(&kv).unwrap(), kv.writes()), (damaged, before));
        }
    }
}

#[test]
fn an_intact_record_of_no_version_is_corrupt() {
    let bodies: [&[u8]; 5] = [b"\x05que", b"\x00", b"\x02\xff\xfe", b"\x01b\x01a", b"\x01a\x01a"];
    let records = bodies.map(|body| sealed(1, body)).into_iter().chain([sealed(0, b"")]);
    for record in records {
        let decoded = decode(&record, &"/data");
        assert!(matches!(decoded, Err(Error::Corrupt { .. })), "{record:?}: {decoded:?}");
    }
}

#[test]
fn a_name_in_use_is_stored_by_one_write() {
    let kv = Arc::new(MemoryKv::default());
    let store = opened(&kv, true).unwrap();
    let before = kv.writes();
    kv.fail(0..1);
    assert!(store.note_in_use(NAME).is_err());
    assert_eq!(decode(&stored(&kv).unwrap(), &"/data").unwrap(), names(&[]));
    store.note_in_use(NAME).unwrap();
    assert_eq!(stored(&kv.after_power_loss()).unwrap(), encode(&names(&[NAME])));
    store.clone().note_in_use(NAME).unwrap();
    assert_eq!(kv.writes() - before, 2, "one that failed and one that did not");
    drop(store);
    let store = opened(&kv, false).unwrap();
    store.note_in_use(NAME).unwrap();
    assert_eq!(kv.writes() - before, 2, "it is known from the disk");
    // A store in memory has its list, too.
    Store::in_memory().note_in_use(NAME).unwrap();
}
