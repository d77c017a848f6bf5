//! A kind of sealed record, and its checksum.

/// The length of the checksum at the end of each record.
pub const SUM: usize = 4;

/// A kind of record: the parameters of its seal.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The first bytes under the checksum. New kinds have a unique label, the oldest have none.
    pub label: &'static str,
    /// The versions that this program reads. It writes the last one. Empty without a version byte.
    pub versions: &'static [u8],
}

impl Kind {
    /// Appends the checksum to a record.
    pub(crate) fn close(&self, name: &str, place: &[u8], record: &mut Vec<u8>) {
        let sum = self.checksum(name, place, record);
        record.extend_from_slice(&sum);
    }

    /// Returns the checksum of a record.
    pub fn checksum(&self, name: &str, place: &[u8], sealed: &[u8]) -> [u8; SUM] {
        let mut hasher = crc32fast::Hasher::new();
        [self.label.as_bytes(), name.as_bytes(), place, sealed].iter().for_each(|bytes| hasher.update(bytes));
        hasher.finalize().to_be_bytes()
    }
}
