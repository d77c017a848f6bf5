//! A change that is planned, and not made yet.

use serde_json::{Map, Value};

pub(super) struct Plan {
    pub(super) change: &'static str,
    /// The change in words, behind "would": `redrive job 3 of "blocks"`.
    pub(super) what: String,
    /// The fields of its record, beyond those that each change has.
    pub(super) fields: Map<String, Value>,
    /// The state of the job when the change was planned.
    pub(super) seen: Option<String>,
}

impl Plan {
    pub(super) fn new(change: &'static str, what: String, fields: Value) -> Self {
        let fields = if let Value::Object(fields) = fields { fields } else { Map::new() };
        Self { change, what, fields, seen: None }
    }
}
