//! The hook that sees each job before it is pushed.

use crate::types::error::QueueError;
use crate::types::json::from_json;
use serde::de::DeserializeOwned;
use std::fmt;
use std::sync::Arc;
use waterline::BoxError;

/// A job that is about to be pushed, as the hook of
/// [`QueueOptions::before_push`](crate::QueueOptions::before_push) sees it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Proposed<'a> {
    /// The kind of the job.
    pub kind: &'a str,
    /// The id that it was given; `None`: the queue makes one.
    pub id: Option<&'a str>,
    /// Its payload, as JSON.
    pub payload: &'a [u8],
}

impl Proposed<'_> {
    /// Returns its payload.
    ///
    /// # Errors
    /// [`QueueError::Payload`] if it does not fit the type.
    pub fn payload<P: DeserializeOwned>(&self) -> Result<P, QueueError> {
        let id = self.id.unwrap_or(self.kind);
        from_json(self.payload).map_err(|source| QueueError::Payload { id: id.to_owned(), source })
    }
}

type Hook = dyn Fn(&Proposed<'_>) -> Result<(), BoxError> + Send + Sync;

/// The hook of a queue, if it has one. Two are equal if they are clones of each other.
#[derive(Clone, Default)]
pub(crate) struct BeforePush(pub(crate) Option<Arc<Hook>>);

impl BeforePush {
    pub(crate) fn new(hook: impl Fn(&Proposed<'_>) -> Result<(), BoxError> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }
}

impl PartialEq for BeforePush {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

impl fmt::Debug for BeforePush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Some(hook)" } else { "None" })
    }
}
