//! The bytes of a counter: eight, in big-endian two's complement. A missing key counts as 0.

use crate::base::Error;

#[cfg_attr(not(test), allow(dead_code))]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_is_no_counter_is_named_with_a_remedy() {
        let text = read("visits", b"a\0b", Some(b"nine bytes")).unwrap_err().to_string();
        let begins =
            r#"the key "a\x00b" of the table "visits" cannot be counted under: its value is 10 bytes long instead"#;
        assert!(text.starts_with(begins) && text.contains("delete this value"), "{text}");
        for (count, by) in [(i64::MAX, 1), (i64::MIN, -1)] {
            let text = full("visits", b"k", count, by).to_string();
            assert!(text.contains(&format!("it counts {count}, and {by} more is too much")), "{text}");
        }
    }

    #[test]
    fn a_count_is_eight_bytes_or_refused() {
        for count in [0, 1, -1, i64::MIN, i64::MAX] {
            assert_eq!(decode(Some(&encode(count))), Ok(count));
        }
        assert_eq!(encode(-2), [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe]);
        assert_eq!(decode(None), Ok(0));
        for length in [0, 7, 9] {
            assert_eq!(decode(Some(&vec![0; length])), Err(length));
        }
    }
}
