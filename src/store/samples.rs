//! Records of a store, as stored on disks.

use super::{Owned, format, format::reading::decode, gone, ids, owned, register};
use crate::commit::sealed::samples::{Sample, samples as of};
use std::collections::BTreeSet;

fn in_use(record: &[u8]) -> Result<BTreeSet<String>, String> {
    decode(record, &"a path").map_err(|error| error.to_string())
}

pub(crate) fn samples() -> Vec<Sample> {
    let names = ["parked", "queue"].map(str::to_owned).into();
    let formats = [(BTreeSet::new(), "01 b3b7aa2c"), (names, "01 06 'parked' 05 'queue' 909f3126")];
    let formats =
        of(format::SEAL, ("", ""), |names, _, _| format::encode(names), |_, _, record| in_use(record), formats);
    let lowest = [(0x0102_0304, "01020304 b63cfbcd")];
    let lowest =
        of(ids::SEAL, ("", ""), |lowest, _, _| ids::encode(*lowest), |_, _, record| ids::decode(record), lowest);
    let places = [(b"\x0abalances-2".to_vec(), "01 0a 'balances-2' bb87f0c0")];
    let write = |prefix: &Vec<u8>, name: &str, _: &str| register::encode(name, prefix);
    let places = of(register::SEAL, ("balances", ""), write, |name, _, bytes| register::decode(name, bytes), places);
    let write = |(): &(), _: &str, place: &str| gone::encode(place.as_bytes());
    let read = |_: &str, place: &str, bytes: &[u8]| gone::decode(place.as_bytes(), bytes);
    let gone = of(gone::SEAL, ("", "t\x08balances"), write, read, [((), "01 1e9faf72")]);
    let parts = ["table", "log"].map(|what| Owned::stored(what, "sums"));
    let parts = [(parts.to_vec(), "01 00 04 'sums' 01 04 'sums' 865ce1eb"), (Vec::new(), "01 d6e43faa")];
    let write = |parts: &Vec<Owned>, name: &str, _: &str| owned::entry(name, parts).1;
    let parts = of(owned::SEAL, ("p", ""), write, |name, _, bytes| owned::decode(name, bytes), parts);
    [formats, lowest, places, gone, parts].into_iter().flatten().collect()
}
