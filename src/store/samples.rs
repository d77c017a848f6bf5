//! Records of a store, as stored on disks.

use super::{format, format::reading::decode, ids};
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
    formats.into_iter().chain(lowest).collect()
}
