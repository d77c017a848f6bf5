//! A life of a consumer: what it knows of its row, and of what is saved.

use crate::bitmap_chunks::Run;
use crate::keeper::Kept;
use crate::row::Mine;

pub(super) struct Life {
    pub(super) mine: Mine,
    /// How many saves are written.
    pub(super) saves: i64,
    /// The jobs above the watermark that are stored as done.
    pub(super) done: Vec<Run>,
    /// No row is below this piece in the table of pieces.
    pub(super) lowest_piece: i64,
    pub(super) kept: Kept,
}
