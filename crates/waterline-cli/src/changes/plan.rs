//! A change that is planned, and not made so far.

use serde_json::{Map, Value};

/// A change that is planned.
pub(super) struct Plan {
    /// The command.
    pub(super) change: &'static str,
    /// The change in words, behind "would": `redrive job 3 of "blocks"`.
    pub(super) what: String,
    /// The fields of its record, beside those that each change has.
    pub(super) fields: Map<String, Value>,
    /// The state in which it has seen the job.
    pub(super) seen: Option<String>,
}

impl Plan {
    pub(super) fn new(change: &'static str, what: String, fields: Value) -> Self {
        let fields = if let Value::Object(fields) = fields { fields } else { Map::new() };
        Self { change, what, fields, seen: None }
    }
}
