//! The bytes of a counter: eight of them, in big-endian two's complement. A key that is not there counts as 0.

#[cfg_attr(not(test), allow(dead_code))]
pub(crate) fn encode(count: i64) -> [u8; 8] {
    count.to_be_bytes()
}

/// The count of what is stored, or why it is none.
pub(crate) fn decode(stored: Option<&[u8]>) -> Result<i64, String> {
    let Some(bytes) = stored else { return Ok(0) };
    let whole = <[u8; 8]>::try_from(bytes).map_err(|_| format!("{} bytes long instead of 8", bytes.len()))?;
    Ok(i64::from_be_bytes(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_eight_bytes_or_refused() {
        for count in [0, 1, -1, i64::MIN, i64::MAX] {
            assert_eq!(decode(Some(&encode(count))), Ok(count));
        }
        assert_eq!(encode(-2), [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe]);
        assert_eq!(decode(None), Ok(0));
        for length in [0, 7, 9] {
            assert_eq!(decode(Some(&vec![0; length])), Err(format!("{length} bytes long instead of 8")));
        }
    }
}
