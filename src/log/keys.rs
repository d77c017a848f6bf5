//! The keys of a log's items.

use crate::base::Index;

/// Returns the key of an item.
pub(crate) fn item_key(id: u32, index: Index) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&id.to_be_bytes());
    key[4..].copy_from_slice(&index.to_be_bytes());
    key
}

/// Returns the index in an item's key.
pub(crate) fn index_of(key: &[u8]) -> Option<Index> {
    Some(Index::from_be_bytes(*key.get(4..)?.first_chunk()?))
}
