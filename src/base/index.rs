//! The index of a job, and the type of the user's errors.

use std::error::Error as StdError;

/// The position of a job in its stream: a block's height, an event's sequence number, a row's id.
///
/// [`Index::MAX`] itself is never a job, so that "one past the last" always fits.
#[doc(alias = "offset")]
pub type Index = u64;

/// Any error of yours. Sources, workers and progress stores return it.
pub type BoxError = Box<dyn StdError + Send + Sync + 'static>;
