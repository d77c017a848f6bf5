//! Foundations that every other module uses: indices, errors, settings, locks and time.

pub(crate) mod advice;
pub(crate) mod caught;
pub(crate) mod clock;
pub(crate) mod config;
pub(crate) mod error;
pub(crate) mod failure;
pub(crate) mod guard;
pub(crate) mod index;
#[cfg(feature = "seam")]
pub(crate) mod process;
#[cfg(feature = "metrics")]
pub(crate) mod recorder;
pub(crate) mod retry;
pub(crate) mod serialized;
pub(crate) mod structure;
pub(crate) mod sync;
pub(crate) mod time;
#[cfg(any(feature = "seam", feature = "tokio"))]
pub(crate) mod wakers;
