//! The log that a consumer reads, stored with its progress, so that a call that moves the progress
//! knows where the stream begins. It is written with the first save of a life that reads another
//! stream than the previous one. The empty name means that the stream is no log of this store.

use crate::base::Error;
use crate::commit::sealed::Kind;
use crate::kv::Pair;
use crate::store::{Store, keys};

pub(super) const SEAL: Kind = Kind { label: "reads", versions: &[1] };

pub(super) fn key(name: &str) -> Vec<u8> {
    keys::key(keys::READS, name.as_bytes())
}

pub(super) fn entry(name: &str, log: &str) -> Pair {
    (key(name), SEAL.begin(log.len()).bytes(log.as_bytes()).seal(name, ""))
}

pub(super) fn decode(name: &str, bytes: &[u8]) -> Result<String, String> {
    let mut fields = SEAL.open(name, "", bytes).map_err(|why| format!("the log that it reads: {why}"))?;
    fields.last_text().ok_or_else(|| "the name of the log that it reads is no text".to_owned())
}

/// Reads the name of the log that this progress's consumer last read, if it is one of this store.
pub(super) fn load(store: &Store, name: &str) -> Result<Option<String>, Error> {
    let Some(bytes) = store.kv().get(store.system(), &key(name))? else { return Ok(None) };
    let log = decode(name, &bytes).map_err(|reason| Error::Corrupt { name: name.to_owned(), reason })?;
    Ok(Some(log).filter(|log| !log.is_empty()))
}
