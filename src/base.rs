//! Foundations that every other module uses: indices, errors, settings, locks and time.

pub(crate) mod advice;
pub(crate) mod caught;
pub(crate) mod clock;
pub(crate) mod config;
pub(crate) mod counted;
pub(crate) mod error;
pub(crate) mod failure;
pub(crate) mod guard;
#[cfg(feature = "metrics")]
pub(crate) mod recorder;
pub(crate) mod retry;
pub(crate) mod serialized;
pub(crate) mod structure;
pub(crate) mod sync;
pub(crate) mod time;
#[cfg(any(feature = "seam", feature = "tokio"))]
pub(crate) mod wakers;

pub(crate) use error::Error;

/// The position of a job in its stream: a block's height, an event's sequence number, a row's id.
///
/// [`Index::MAX`] itself is never a job, so that "one past the last" always fits.
#[doc(alias = "offset")]
pub type Index = u64;

/// Any error of yours. Sources, workers and progress stores return it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;
