//! Handles through which nothing is written, beside one that writes.

use super::*;

fn read_only(store: &Store) -> Store {
    store.with(&Store::options().read_only())
}

#[test]
fn a_read_only_handle_refuses_every_write_and_changes_nothing() {
    let kv = Arc::new(MemoryKv::default());
    let store = on(&kv);
    rows(&store, 3).join().unwrap();
    let (before, strict) = (kv.writes(), read_only(&store));
    let table = strict.table("rows").unwrap();
    assert!(matches!(table.put(0u64.to_be_bytes(), "changed"), Err(Error::ReadOnly)));
    assert!(matches!(table.delete(0u64.to_be_bytes()), Err(Error::ReadOnly)));
    assert!(matches!(strict.progress("p").acquire(), Err(Error::ReadOnly)));
    assert!(matches!(strict.note_in_use("known to tests"), Err(Error::ReadOnly)));
    let started = Consumer::builder(numbers(9), strict.progress("p")).start(|_| Ok(()));
    assert!(matches!(started, Err(Error::ReadOnly)), "{started:?}");
    // Neither is anything made, whatever the other option says.
    let strict = store.with(&Store::options().read_only().create(true));
    assert!(matches!(strict.table("others"), Err(Error::NotFound { what: "table", .. })));
    assert_eq!(kv.writes(), before);
    assert_eq!(table.get(0u64.to_be_bytes()).unwrap().as_deref(), Some(b"done".as_slice()));
    assert_eq!(strict.progress("p").last_processed().unwrap(), Some(2));
    // The name was not taken, and the handle that writes goes on.
    assert_eq!(watermark(&store), Some(2));
}
