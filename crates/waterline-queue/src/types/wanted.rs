//! The jobs that a claim takes.

use crate::types::row::Row;
use std::sync::Arc;

/// Which jobs a claim takes: by default each one that is due.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The time by which a job must be due, in milliseconds since 1970; a future time hands out
    /// jobs before they are due. `None`: now.
    pub due_by: Option<u64>,
    /// The kinds that a job may have; `None`: any.
    pub kinds: Option<Arc<[String]>>,
}

impl Wanted {
    /// True if only jobs are wanted that were already due at a time in the past.
    pub fn is_older(&self, wall: u64) -> bool {
        self.due_by.is_some_and(|due_by| due_by < wall)
    }

    /// True if a job of this kind is wanted.
    pub fn has_kind(&self, kind: &str) -> bool {
        is_among(kind, self.kinds.as_deref())
    }

    /// True if a ready job with this row is wanted at this time.
    pub fn takes(&self, row: &Row, wall: u64) -> bool {
        self.due_by.is_none_or(|most| most >= wall || row.due <= most) && self.has_kind(&row.kind)
    }

    /// Returns the future time by which jobs are wanted before they are due.
    pub fn early(&self, wall: u64) -> Option<u64> {
        self.due_by.filter(|due_by| *due_by >= wall)
    }
}

/// True if a kind is one of these; `None`: any.
pub(crate) fn is_among(kind: &str, kinds: Option<&[String]>) -> bool {
    kinds.is_none_or(|kinds| kinds.iter().any(|wanted| wanted == kind))
}
