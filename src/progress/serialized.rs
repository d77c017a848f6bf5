//! How `serde` writes the records of a consumer, for HTTP or files.
//!
//! Times are in whole milliseconds since 1970.

use super::{ConsumerInfo, LastHalt, Move, MoveKind, Parked};
use crate::base::serialized::{at, fields};
use serde::ser::{Serialize, Serializer};

fields!(ConsumerInfo, of: name, last_processed, next, done_ahead, parked, moved_at = of.moved_at.map(at), life_open,
    last_halt, log, owns, unreadable);

fields!(LastHalt, of: index, error, at = at(of.at), is_of_job = of.is_of_job());

fields!(Parked, of: index, attempts, crashes, error, first_failed_at = at(of.first_failed_at),
    last_failed_at = at(of.last_failed_at), parked_at = at(of.parked_at), redrive_wanted);

fields!(Move, of: at = at(of.at), kind, from, to, reason);

impl Serialize for MoveKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Seek => "seek",
            Self::Skip => "skip",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn records_serialize_with_milliseconds_and_nulls() {
        let time = UNIX_EPOCH + Duration::from_millis(1_500);
        let mut info = ConsumerInfo { name: "blocks".to_owned(), moved_at: Some(time), ..ConsumerInfo::default() };
        info.last_halt = Some(LastHalt { index: 7, error: "no".to_owned(), at: time });
        let halt = json!({"index": 7, "error": "no", "at": 1_500, "is_of_job": false});
        let saved = json!({"name": "blocks", "last_processed": null, "next": null, "done_ahead": 0, "parked": 0,
            "moved_at": 1_500, "life_open": null, "last_halt": halt, "log": null, "owns": [], "unreadable": null});
        assert_eq!(json!(info), saved);
        let made = Move::new(time, MoveKind::Skip, None, 3, "empty");
        assert_eq!(json!(made), json!({"at": 1_500, "kind": "skip", "from": null, "to": 3, "reason": "empty"}));
    }
}
