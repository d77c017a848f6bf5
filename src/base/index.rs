//! The one number that everything is counted in.

use std::error::Error as StdError;

/// The position of a job in its stream: a block's height, an event's sequence number, a row's id.
///
/// [`Index::MAX`] itself is never a job, so that "one past the last" always fits.
pub type Index = u64;

/// Any error of yours: what sources, workers and progress stores return.
pub type BoxError = Box<dyn StdError + Send + Sync + 'static>;
