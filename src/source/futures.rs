//! The calls into a source as futures.

use super::sparse::Sparse;
use crate::base::{BoxError, Index};
use std::ops::RangeInclusive;
use std::pin::Pin;
use tokio::runtime::Handle;

/// The calls of a source as futures, several of which may be under way at once.
#[doc(hidden)]
#[allow(missing_debug_implementations, reason = "no user sees it")]
pub struct Futures<'a, T> {
    pub(crate) runtime: &'a Handle,
    jobs: &'a dyn ReadFutures<T>,
    /// No index from here on is shown.
    below: Index,
}

impl<'a, T> Futures<'a, T> {
    pub(super) fn new(runtime: &'a Handle, jobs: &'a dyn ReadFutures<T>) -> Self {
        Self { runtime, jobs, below: Index::MAX }
    }

    /// Shows no index from this one on.
    pub(super) fn below(self, index: Index) -> Self {
        Self { below: self.below.min(index), ..self }
    }

    pub(crate) async fn first(&self) -> Result<Index, BoxError> {
        self.jobs.first().await
    }

    pub(crate) async fn read_sparse(
        &self,
        run: RangeInclusive<Index>,
        most: usize,
        into: &mut Sparse<T>,
    ) -> Result<(), BoxError> {
        match self.below.checked_sub(1).filter(|last| run.start() <= last) {
            Some(last) => self.jobs.read_sparse(*run.start()..=last.min(*run.end()), most, into).await,
            None => Ok(()),
        }
    }
}

pub(super) type Call<'a, R> = Pin<Box<dyn Future<Output = Result<R, BoxError>> + Send + 'a>>;

/// `AsyncJobs` whose futures have one type.
pub(super) trait ReadFutures<T>: Send + Sync {
    fn first(&self) -> Call<'_, Index>;
    fn read_sparse<'a>(&'a self, run: RangeInclusive<Index>, most: usize, into: &'a mut Sparse<T>) -> Call<'a, ()>;
}
