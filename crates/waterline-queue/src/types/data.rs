//! The data that a job leaves.

use crate::types::error::QueueError;
use crate::types::json::json_of;
use crate::types::options::QueueOptions;
use serde::Serialize;
use serde_json::Value;
use waterline::BoxError;

/// The data that a job leaves: for its next attempt, and for readers of the job.
///
/// Each call that takes data accepts a reference to a value of yours, which is turned into JSON at
/// once, a [`serde_json::Value`], or an `Option` of such a value. `None` keeps the data that the
/// job has; a reference to a `None` is JSON's `null`. For a value that cannot be JSON, that call
/// fails with [`QueueError::Payload`].
///
/// ```
/// use std::collections::BTreeMap;
/// use waterline::Store;
/// use waterline_queue::{Accept, NewJob, Queue, QueueError, QueueOptions};
///
/// let queue = Queue::open(&Store::in_memory(), "orders", QueueOptions::default())?;
/// let id = queue.push(NewJob::new("order", &3)?)?.id;
/// let mut lease = queue.accept(Accept::new())?.expect("a job is ready");
/// lease.update(Some("half".into()))?;
/// lease.update(None)?;                        // it keeps the data
/// lease.finish(&BTreeMap::from([("receipt", 7)]))?;      // or a struct that derives `Serialize`
/// let data = queue.get(id)?.expect("it is kept").data.expect("it has left some");
/// assert_eq!(data["receipt"], 7);
/// # Ok::<(), QueueError>(())
/// ```
#[derive(Debug)]
pub struct JobData(Result<Option<Vec<u8>>, BoxError>);

impl JobData {
    /// Returns it as JSON, for the job with this id; `None`: nothing was left.
    pub(crate) fn json_of_any_size(self, id: &str) -> Result<Option<Vec<u8>>, QueueError> {
        self.0.map_err(|source| QueueError::Payload { id: id.to_owned(), source })
    }

    /// Returns the same for a job of a queue with these options, which refuse too large data.
    pub(crate) fn json(self, id: &str, options: &QueueOptions) -> Result<Option<Vec<u8>>, QueueError> {
        let data = self.json_of_any_size(id)?;
        options.check_payload("data", data.as_ref().map_or(0, Vec::len))?;
        Ok(data)
    }
}

impl<T: Serialize + ?Sized> From<&T> for JobData {
    fn from(value: &T) -> Self {
        Self(json_of(value).map(Some))
    }
}

impl<T: Serialize + ?Sized> From<&mut T> for JobData {
    fn from(value: &mut T) -> Self {
        Self::from(&*value)
    }
}

impl From<Value> for JobData {
    fn from(value: Value) -> Self {
        Self::from(&value)
    }
}

impl From<Option<Value>> for JobData {
    fn from(value: Option<Value>) -> Self {
        value.map_or(Self(Ok(None)), Self::from)
    }
}
