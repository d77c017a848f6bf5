//! An entry of a ready log, a line or the table of running jobs: the id of a job, with a checksum.

use crate::types::job::JobId;
use waterline::seam::Kind;

pub(crate) const SEAL: Kind = Kind { label: "queue.entry", versions: &[1] };

pub(crate) fn encode(queue: &str, key: &[u8], id: &str) -> Vec<u8> {
    SEAL.begin(id.len()).bytes(id.as_bytes()).seal(queue, key)
}

/// Returns the id in the entry under this key, or why it cannot be read.
pub(crate) fn id_in(queue: &str, key: &[u8], entry: &[u8]) -> Result<JobId, String> {
    let id = SEAL.open(queue, key, entry)?.rest;
    String::from_utf8(id.to_vec()).map_err(|_| "it is no text".to_owned())
}
