//! JSON that can be read again once it is written.

use crate::types::config::ConfigError;
use crate::types::error::QueueError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use waterline::BoxError;

/// Turns a value of the job with this id into JSON.
pub(crate) fn to_json(id: &str, value: &(impl Serialize + ?Sized)) -> Result<Vec<u8>, QueueError> {
    json_of(value).map_err(|source| QueueError::Payload { id: id.to_owned(), source })
}

/// Turns a value into JSON that can be read again. A panic of its code is returned as an error.
pub(crate) fn json_of(value: &(impl Serialize + ?Sized)) -> Result<Vec<u8>, BoxError> {
    let text = waterline::seam::guarded(|| Ok(serde_json::to_vec(value)?))?;
    check_depth(&text)?;
    Ok(text)
}

/// The deepest nesting of arrays and objects that `serde_json` reads.
const DEEPEST: usize = 127;

/// Refuses JSON text that could be written, but not read again.
pub(crate) fn check_depth(text: &[u8]) -> Result<(), ConfigError> {
    let (mut depth, mut deepest, mut bytes) = (0_usize, 0, text.iter());
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            // Skips to the end of the string, together with each escaped byte.
            b'"' => {
                while bytes.next().is_some_and(|byte| *byte != b'"' && (*byte != b'\\' || bytes.next().is_some())) {}
            }
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    if deepest <= DEEPEST { Ok(()) } else { Err(ConfigError::JsonDepth) }
}

/// Turns JSON into a value. A panic of its code is returned as an error.
pub(crate) fn from_json<P: DeserializeOwned>(bytes: &[u8]) -> Result<P, BoxError> {
    waterline::seam::guarded(|| Ok(serde_json::from_slice(bytes)?))
}
