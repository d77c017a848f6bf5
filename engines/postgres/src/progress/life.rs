//! A life of a consumer: what it knows of its row, and of what is saved.

use crate::bitmap_chunks::Run;
use crate::keeper::Kept;
use crate::row::Mine;

/// A life that has the name.
pub(super) struct Life {
    pub(super) mine: Mine,
    /// The number of saves that are written.
    pub(super) saves: i64,
    /// The jobs above the watermark that are stored as done.
    pub(super) done: Vec<Run>,
    /// The piece below which no row is, in the table of the pieces.
    pub(super) lowest_piece: i64,
    pub(super) kept: Kept,
}
