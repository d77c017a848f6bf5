//! A kind of sealed record, and its checksum.

/// The length of the checksum at the end of each record.
pub const SUM: usize = 4;

/// A kind of record: the parameters of its seal.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The first bytes under the checksum. A new kind has a label that no other one has. The oldest
    /// kinds have none.
    pub label: &'static str,
    /// The versions that this program reads; it writes the last one. Empty for a kind whose records
    /// have no version byte.
    pub versions: &'static [u8],
}

impl Kind {
    /// Ends a record with its checksum.
    pub(crate) fn close(&self, name: &str, place: &[u8], record: &mut Vec<u8>) {
        let sum = self.checksum(name, place, record);
        record.extend_from_slice(&sum);
    }

    /// Returns the checksum of a record that ends here.
    pub fn checksum(&self, name: &str, place: &[u8], sealed: &[u8]) -> [u8; SUM] {
        let mut hasher = crc32fast::Hasher::new();
        [self.label.as_bytes(), name.as_bytes(), place, sealed].iter().for_each(|bytes| hasher.update(bytes));
        hasher.finalize().to_be_bytes()
    }
}
