//! The keys of the shared family `waterline.system`, and of tables.

/// Declares each kind of key once: its name and the prefix of its keys.
macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {
        $($(#[$doc])* pub(crate) const $name: &[u8] = $prefix;)*

        /// All kinds of keys.
        #[cfg(test)]
        pub(crate) const ALL: &[&[u8]] = &[$($prefix),*];
    };
}

// No prefix may begin with another: a scan of one kind would return keys of the other.
keys! {
    /// The key of the store's format: its version, and the names in use.
    FORMAT = b"format";
    /// The key of the lowest number that was never given out.
    IDS = b"ids";
    /// The prefix of a progress's page. The name follows.
    PAGE = b"p";
    /// The prefix of a delta. The number of the progress (4 bytes) and the slot (3 bytes) follow.
    DELTA = b"d";
    /// The prefix of the record of a consumer's life. The name follows.
    LIFE = b"s";
    /// The prefix of the time of a progress's last move. The name follows.
    MOVED = b"m";
    /// The prefix of the name of the log that a consumer reads. The name of its progress follows.
    READS = b"r";
    /// The prefix of the bounds of a log. The name follows.
    LOG = b"l";
    /// The prefix of the record of a move of a progress. The length of the name (one byte), the
    /// name and the number of the move (8 bytes) follow.
    HISTORY = b"h";
    /// The prefix of the place of a table that has been replaced. The name of the table follows, or
    /// nothing in the key of the generation.
    TABLE = b"t";
    /// The prefix of the record of rows that are gone. A mark of their family (one byte) and the
    /// prefix of their keys follow.
    GONE = b"g";
    /// The prefix of the list of what belongs to a progress. The name of the progress follows.
    OWNS = b"o";
}

/// Returns the key of this kind with this name, or with what else follows the prefix.
pub(crate) fn key(prefix: &[u8], rest: &[u8]) -> Vec<u8> {
    [prefix, rest].concat()
}

/// Returns the prefix of a table's rows in the family `waterline.tables`; `None` for a name above
/// 255 bytes. It begins with the length, so that no table's prefix begins with that of another.
pub(crate) fn table_prefix(name: &str) -> Option<Vec<u8>> {
    let length = u8::try_from(name.len()).ok()?;
    Some(key(&[length], name.as_bytes()))
}

/// Returns the prefix of a table that begins anew, since another one has its rows by now. The
/// number is used for nothing else. No name has the length 0.
pub(crate) fn fresh_prefix(number: u32) -> [u8; 5] {
    let mut prefix = [0; 5];
    prefix[1..].copy_from_slice(&number.to_be_bytes());
    prefix
}

/// Returns the prefix of the table that has this key, and the name in it, if it is no
/// [fresh](fresh_prefix) one; `None` if no table has the key.
pub(crate) fn table_of(key: &[u8]) -> Option<(&[u8], Option<&str>)> {
    let length = match *key.first()? {
        0 => 4,
        length => usize::from(length),
    };
    let prefix = key.get(..1 + length)?;
    let name = if prefix[0] == 0 { None } else { Some(std::str::from_utf8(&prefix[1..]).ok()?) };
    Some((prefix, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails if keys with one of these prefixes could be taken for those of another.
    fn are_apart(prefixes: &[&[u8]]) {
        for (at, prefix) in prefixes.iter().enumerate() {
            for other in &prefixes[at + 1..] {
                assert!(!prefix.starts_with(other) && !other.starts_with(prefix), "{prefix:?} and {other:?}");
            }
        }
    }

    #[test]
    fn no_prefix_begins_with_another() {
        assert_eq!(ALL.len(), 12);
        are_apart(ALL);
    }

    #[test]
    fn no_table_has_rows_of_another() {
        let names = ["a", "ab", "b", "\u{1}a", &"x".repeat(255)];
        let prefixes: Vec<_> = names.iter().map(|name| table_prefix(name).unwrap()).collect();
        are_apart(&prefixes.iter().map(Vec::as_slice).collect::<Vec<_>>());
        assert_eq!(table_prefix(&"x".repeat(256)), None);
        for (name, prefix) in names.iter().zip(&prefixes) {
            assert_eq!(table_of(&key(prefix, b"\x01row")), Some((&prefix[..], Some(*name))));
            assert_eq!(table_of(prefix), Some((&prefix[..], Some(*name))));
            assert_eq!(table_of(&prefix[..prefix.len() - 1]), None);
        }
        assert_eq!(table_of(&key(&fresh_prefix(7), b"row")), Some((&fresh_prefix(7)[..], None)));
        assert!([&b""[..], b"\0", b"\0row", b"\x01\xff"].iter().all(|key| table_of(key).is_none()));
    }
}
