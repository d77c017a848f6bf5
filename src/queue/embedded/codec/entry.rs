//! The entry of a ready log, and of the table of running jobs: the id of a job, with a checksum.

use crate::commit::sealed::Kind;
use crate::queue::words::job::JobId;

/// No text begins with the first byte of such an entry. One of an older version is the id alone.
pub(crate) const SEAL: Kind = Kind { label: "queue.entry", versions: &[u8::MAX] };

/// Returns the entry of a job under this key.
pub(crate) fn encode(queue: &str, key: &[u8], id: &str) -> Vec<u8> {
    SEAL.begin(id.len()).bytes(id.as_bytes()).seal(queue, key)
}

/// Returns the id in the entry under this key, or the reason why it cannot be read.
pub(crate) fn id_in(queue: &str, key: &[u8], entry: &[u8]) -> Result<JobId, String> {
    let id = match entry.first() {
        None => return Err("it is empty".to_owned()),
        Some(&u8::MAX) => SEAL.open(queue, key, entry)?.rest,
        Some(_) => entry,
    };
    String::from_utf8(id.to_vec()).map_err(|_| "it is no text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_an_older_version_is_the_id_alone() {
        assert_eq!(id_in("q", b"key", b"id").as_deref(), Ok("id"));
    }
}
