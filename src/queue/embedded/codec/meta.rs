//! The bytes of the metadata of a job.

use crate::commit::sealed::{Kind, SUM};
use crate::queue::words::meta::Meta;

pub(crate) const SEAL: Kind = Kind { label: "queue.meta", versions: &[1] };

/// Returns the record of this text.
pub(crate) fn encode(queue: &str, id: &str, text: &[u8]) -> Vec<u8> {
    let mut bytes = SEAL.begin(1 + text.len() + SUM);
    bytes.extend_from_slice(text);
    SEAL.close(queue, id.as_bytes(), &mut bytes);
    bytes
}

pub(crate) fn decode(queue: &str, id: &str, bytes: &[u8]) -> Result<Meta, String> {
    let body = SEAL.open(queue, id.as_bytes(), bytes)?.body;
    serde_json::from_slice(body).map_err(|error| format!("it is no object of JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::words::meta::text;
    use proptest::prelude::*;
    use serde_json::Value;

    #[test]
    fn the_bytes_of_a_record_stay_as_they_are() {
        let meta = Meta::from([("b".to_owned(), 1.into()), ("a".to_owned(), "x".into())]);
        let bytes = encode("q", "id", &text(&meta));
        assert_eq!(bytes[..bytes.len() - SUM], *b"\x01{\"a\":\"x\",\"b\":1}");
        assert_eq!(decode("q", "id", &bytes), Ok(meta));
        assert!(decode("q", "other", &bytes).is_err() && decode("p", "id", &bytes).is_err());
    }

    proptest! {
        #[test]
        fn metadata_is_read_as_it_was_written(
            pairs in proptest::collection::btree_map(".{1,20}", prop_oneof![
                any::<i64>().prop_map(Value::from), ".*".prop_map(Value::from), any::<bool>().prop_map(Value::from),
            ], 0..8),
        ) {
            let bytes = encode("q", "id", &text(&pairs));
            prop_assert_eq!(decode("q", "id", &bytes), Ok(pairs));
        }

        #[test]
        fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode("q", "id", &bytes);
        }
    }
}
