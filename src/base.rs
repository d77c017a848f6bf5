//! Words that every room uses: the index, errors, settings that are checked, and the locks.

pub(crate) mod config;
pub(crate) mod error;
pub(crate) mod guard;
pub(crate) mod index;
pub(crate) mod retry;
pub(crate) mod structure;
pub(crate) mod sync;
