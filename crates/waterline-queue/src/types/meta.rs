//! Values beside a job.

use crate::types::config::{ConfigError, check_part};
use crate::types::json::check_depth;
use serde_json::Value;
use std::collections::BTreeMap;

/// The maximum size of a job's metadata, and of a note, in bytes. A change rewrites all of it.
const MOST: usize = 64 * 1024;

/// The values beside a job.
pub(crate) type Meta = BTreeMap<String, Value>;

pub(crate) fn check_key(key: &str) -> Result<(), ConfigError> {
    check_part("metadata key", "a key of metadata, or of a note,", key)
}

/// Refuses the text of metadata or of a note that is too long, or could not be read again.
pub(crate) fn check_text(text: &[u8]) -> Result<(), ConfigError> {
    match text.len() {
        0..=MOST => check_depth(text),
        bytes => Err(size_error(bytes)),
    }
}

/// Makes the error for metadata, or a note, that is too large.
pub(crate) fn size_error(length: usize) -> ConfigError {
    let why =
        format!("the metadata, or the note, would have {length} bytes: use at most 65,536, and keep more in a table");
    ConfigError::Length { what: "metadata", length, most: MOST, why }
}

/// Returns metadata as text: a JSON object with its keys in ascending order.
pub(crate) fn text(meta: &Meta) -> Vec<u8> {
    let members = meta.iter().map(|(key, value)| (key.clone(), value.clone()));
    Value::Object(members.collect()).to_string().into_bytes()
}
