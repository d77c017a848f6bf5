//! The bytes of a note, and of the operation that changes one.

use crate::commit::sealed::{Fields, Kind, SUM};
use crate::queue::rules::notes::{Change, Noted};
use crate::queue::words::json::from_json;

pub(crate) const SEAL: Kind = Kind { label: "queue.note", versions: &[1] };

impl Noted {
    pub(crate) fn encode(&self, queue: &str, of: &str) -> Vec<u8> {
        let value = self.value.to_string();
        let mut bytes = SEAL.begin(1 + 8 + value.len() + SUM);
        bytes.extend_from_slice(&self.until.to_be_bytes());
        bytes.extend_from_slice(value.as_bytes());
        SEAL.close(queue, of.as_bytes(), &mut bytes);
        bytes
    }

    pub(crate) fn decode(queue: &str, of: &str, bytes: &[u8]) -> Result<Self, String> {
        let mut rest = Fields(SEAL.open(queue, of.as_bytes(), bytes)?.body);
        let mut read = || Some(Self { until: rest.number()?, value: from_json(rest.0).ok()? });
        read().ok_or_else(|| "its fields are no note".to_owned())
    }
}

/// The first byte of the operation of a note. That of a push begins with a number below 2^63, or
/// with the highest one.
const NOTE: u8 = 0x80;

/// The operation of a change of a note: the byte 128, the length of the note's place (4 bytes) and
/// that place, `+` and a number (8 bytes) or `=` and a value. It is never stored.
pub(crate) fn encode_change(of: &str, change: &Change) -> Vec<u8> {
    let mut op = vec![NOTE];
    op.extend_from_slice(&(of.len() as u32).to_be_bytes());
    op.extend_from_slice(of.as_bytes());
    match change {
        Change::Add(by) => {
            op.push(b'+');
            op.extend_from_slice(&by.to_be_bytes());
        }
        Change::Set(value, _) => {
            op.push(b'=');
            op.extend_from_slice(value.to_string().as_bytes());
        }
        Change::Keep(_) | Change::Remove => {}
    }
    op
}

/// Reads the operation of a change of a note; `None`: it is another one.
pub(crate) fn decode_change(op: &[u8]) -> Option<(String, Change)> {
    let (length, rest) = op.strip_prefix(&[NOTE])?.split_first_chunk::<4>()?;
    let (of, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    let change = match rest.split_first()? {
        (b'+', by) => Change::Add(i64::from_be_bytes(by.try_into().ok()?)),
        (b'=', value) => Change::Set(from_json(value).ok()?, 0),
        _ => return None,
    };
    Some((std::str::from_utf8(of).ok()?.to_owned(), change))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::rules::notes::place;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_of_a_note_stay_as_they_are() {
        let of = place("kind", "key");
        assert_eq!(of, "04kindkey");
        let noted = Noted { until: 258, value: serde_json::json!({"a": 1}) };
        let bytes = noted.encode("q", &of);
        assert_eq!(bytes[..bytes.len() - SUM], *b"\x01\0\0\0\0\0\0\x01\x02{\"a\":1}");
        assert_eq!(Noted::decode("q", &of, &bytes), Ok(noted));
        assert!(Noted::decode("q", "04kindkez", &bytes).is_err());
    }

    #[test]
    fn the_operation_of_a_note_is_read_as_it_was_made_and_is_never_taken_for_a_push() {
        for change in [Change::Add(-3), Change::Set("x".into(), 0)] {
            let op = encode_change("04kindkey", &change);
            assert_eq!(decode_change(&op), Some(("04kindkey".to_owned(), change)));
        }
        for made in [0, 1, u64::MAX >> 1, u64::MAX] {
            assert_eq!(decode_change(&[&made.to_be_bytes()[..], &[0; 40]].concat()), None);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Noted::decode("q", "04kindkey", &bytes);
            let _ = decode_change(&[&[NOTE], &bytes[..]].concat());
        }
    }
}
