//! The bytes of a counter: eight, in big-endian two's complement. A missing key counts as 0.

use crate::base::Error;

pub(crate) fn encode(count: i64) -> [u8; 8] {
    count.to_be_bytes()
}

/// Returns the count in a stored value, or the length of a value that is no counter.
pub(crate) fn decode(stored: Option<&[u8]>) -> Result<i64, usize> {
    let Some(bytes) = stored else { return Ok(0) };
    <[u8; 8]>::try_from(bytes).map(i64::from_be_bytes).map_err(|_| bytes.len())
}

/// Returns the count under this key of a table.
///
/// # Errors
/// [`Error::Counter`] if the stored value is no counter.
pub(crate) fn read(table: &str, key: &[u8], stored: Option<&[u8]>) -> Result<i64, Error> {
    decode(stored).map_err(|length| none(table, key, length))
}

/// Returns the error for a value of this length, which is no counter.
#[cold]
pub(crate) fn none(table: &str, key: &[u8], length: usize) -> Error {
    let reason = format!(
        "its value is {length} bytes long instead of 8: count only under keys that nothing else is put under, and delete \
         this value or put a count of 8 bytes in its place"
    );
    Error::Counter { table: table.to_owned(), key: key.to_vec(), reason }
}

/// Returns the error for an addition that overflows the counter.
#[cold]
pub(crate) fn full(table: &str, key: &[u8], count: i64, by: i64) -> Error {
    let reason = format!(
        "it counts {count}, and {by} more is too much for 64 bits: put a smaller count in its place, or count under several \
         keys"
    );
    Error::Counter { table: table.to_owned(), key: key.to_vec(), reason }
}
