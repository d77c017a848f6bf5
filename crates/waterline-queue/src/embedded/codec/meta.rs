//! The bytes of the metadata of a job.

use crate::types::meta::Meta;
use waterline::seam::Kind;

pub(crate) const SEAL: Kind = Kind { label: "queue.meta", versions: &[1] };

/// Returns the record of this text.
pub(crate) fn encode(queue: &str, id: &str, text: &[u8]) -> Vec<u8> {
    SEAL.begin(text.len()).bytes(text).seal(queue, id)
}

pub(crate) fn decode(queue: &str, id: &str, bytes: &[u8]) -> Result<Meta, String> {
    let text = SEAL.open(queue, id, bytes)?.rest;
    serde_json::from_slice(text).map_err(|error| format!("it is no object of JSON: {error}"))
}
