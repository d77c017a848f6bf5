//! Records of logs, as stored on disks.

use super::bounds::{Bounds, SEAL};
use super::codec::CodecName;
use crate::commit::sealed::samples::{Sample, samples as of};

pub(crate) fn samples() -> Vec<Sample> {
    let bounds =
        |codec| Bounds { id: 7, first: 5, end: 900, deleted: 3, kept: 0, codec: CodecName::new(codec).unwrap() };
    let records = [
        (bounds("json"), "01 4:7 8:5 8:900 8:3 9b235e14"),
        (bounds("bytes"), "02 4:7 8:5 8:900 8:3 'bytes' ca13522f"),
        (Bounds { kept: 3, ..bounds("json") }, "03 4:7 8:5 8:900 8:3 8:3 'json' b4142574"),
        (
            bounds("12345678901234567890123456789012"),
            "02 4:7 8:5 8:900 8:3 '12345678901234567890123456789012' 4ff6bd59",
        ),
    ];
    of(
        SEAL,
        ("blocks", ""),
        |bounds, name, _| bounds.encode(name),
        |name, _, bytes| Bounds::decode(name, bytes),
        records,
    )
}
