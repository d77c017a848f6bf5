//! Metadata of a job: small named values beside its payload, which anybody may change at any time.

use super::Queue;
use super::intent::call;
use super::row::Row;
use super::state::QueueState;
use crate::base::config::ConfigError;
use crate::base::error::Error;
use crate::commit::sealed::{Kind, SUM};
use crate::queue::error::QueueError;
use crate::queue::job::{JobId, check_depth};
use serde_json::Value;
use std::collections::BTreeMap;

pub(crate) const SEAL: Kind = Kind { label: "queue.meta", versions: &[1] };

/// The longest key, in bytes.
const LONGEST: usize = 255;

/// The most bytes of all metadata of a job, and of a note. A record is rewritten whole by each
/// change, so it has to be small.
const MOST: usize = 64 * 1024;

pub(super) type Meta = BTreeMap<String, Value>;

pub(super) fn check_key(key: &str) -> Result<(), ConfigError> {
    match key.len() {
        1..=LONGEST => Ok(()),
        length => Err(ConfigError::MetaKey { length }),
    }
}

/// Refuses the text of metadata or of a note that is too long, or that could not be read again.
pub(super) fn check_text(text: &[u8]) -> Result<(), ConfigError> {
    match text.len() {
        0..=MOST => check_depth(text),
        bytes => Err(ConfigError::MetaSize { bytes }),
    }
}

/// Returns the text of metadata: an object of JSON, with its keys in ascending order.
pub(super) fn text(meta: &Meta) -> Vec<u8> {
    let members = meta.iter().map(|(key, value)| (key.clone(), value.clone()));
    Value::Object(members.collect()).to_string().into_bytes()
}

/// Returns the record of this text.
pub(super) fn encode(queue: &str, id: &str, text: &[u8]) -> Vec<u8> {
    let mut bytes = SEAL.begin(1 + text.len() + SUM);
    bytes.extend_from_slice(text);
    SEAL.close(queue, id.as_bytes(), &mut bytes);
    bytes
}

pub(super) fn decode(queue: &str, id: &str, bytes: &[u8]) -> Result<Meta, String> {
    let body = SEAL.open(queue, id.as_bytes(), bytes)?.body;
    serde_json::from_slice(body).map_err(|error| format!("it is no object of JSON: {error}"))
}

impl QueueState {
    pub(super) fn decode_meta(&self, id: &str, bytes: &[u8]) -> Result<Meta, Error> {
        decode(&self.name, id, bytes)
            .map_err(|reason| self.corrupt(format!("the metadata of the job {id:?}: {reason}")))
    }
}

impl Queue {
    /// Sets a value of the metadata of a job in any state; `None` takes it away. It is one atomic
    /// write, and the other values stay. A worker that runs the job sees it by
    /// [`Running::meta`](crate::queue::Running::meta).
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline::queue::{NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "imports", QueueOptions::default())?;
    /// let id = queue.push(NewJob::new("import", "a.csv")?.meta("for", "ann")?)?.id;
    /// queue.set_meta(&id, "ticket", Some(4711.into()))?;
    /// queue.set_meta(&id, "for", None)?;
    /// let job = queue.get(&id)?.expect("it waits");
    /// assert_eq!((job.meta.get("for"), job.meta.get("ticket")), (None, Some(&4711.into())));
    /// # Ok::<(), waterline::queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::NotFound`] for an unknown id, [`QueueError::Config`] for a key that does not
    /// have 1 to 255 bytes, when the metadata of the job would take more than 64 KiB, and for a
    /// value that is nested too deep; [`QueueError::Store`] when the database fails. Nothing is
    /// changed then.
    pub fn set_meta(
        &self,
        id: impl Into<JobId>,
        key: impl Into<String>,
        value: Option<Value>,
    ) -> Result<(), QueueError> {
        let (id, key) = (id.into(), key.into());
        check_key(&key)?;
        call(&self.store, &self.state, "set metadata of a job", move |step| {
            step.set_meta(&id, None, &key, value.as_ref()).map(|_| ())
        })
    }

    /// Returns the metadata of a job with this row.
    pub(super) fn meta_of(&self, id: &str, row: &Row) -> Result<Meta, QueueError> {
        if row.extras().has_meta { self.meta(id) } else { Ok(Meta::new()) }
    }

    /// Returns the metadata that is stored for a job.
    pub(super) fn meta(&self, id: &str) -> Result<Meta, QueueError> {
        let bytes = self.bytes(&self.state.keys.meta(id))?;
        Ok(bytes.map_or(Ok(Meta::new()), |bytes| self.state.decode_meta(id, &bytes))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{Accept, NewJob, QueueOptions};
    use crate::store::Store;
    use proptest::prelude::*;

    fn queue() -> Queue {
        Queue::open(&Store::in_memory(), "q", QueueOptions::default()).unwrap()
    }

    #[test]
    fn a_push_and_a_removal_leave_no_record_of_the_job_before() {
        let queue = queue();
        let keys = queue.inner().keys;
        let stored = || [keys.meta("a"), keys.progress("a")].map(|key| queue.bytes(&key).unwrap().is_some());
        let job = || NewJob::new("k", &1).unwrap().id("a");
        for goes in ["pushed", "removed"] {
            queue.push(job().meta("k", &1).unwrap()).unwrap();
            let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
            lease.progress(0.5, "").unwrap();
            lease.bury("no way").unwrap();
            assert_eq!(stored(), [true, true]);
            match goes {
                "pushed" => drop(queue.push(job()).unwrap()),
                _ => queue.remove("a").unwrap(),
            }
            assert_eq!(stored(), [false, false], "{goes}");
            let _ = queue.remove("a");
        }
    }

    #[test]
    fn a_change_in_the_batch_of_another_lease_is_refused() {
        let queue = queue();
        queue.push(NewJob::new("k", &1).unwrap().id("a")).unwrap();
        let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
        let set = call(queue.store(), queue.inner(), "test", |step| {
            step.set_meta("a", Some(99), "k", Some(&1.into())).map(drop)
        });
        assert!(matches!(set.unwrap_err(), QueueError::Halt { .. }));
        assert_eq!(queue.meta("a").unwrap(), Meta::new());
        lease.finish(None).unwrap();
    }

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
