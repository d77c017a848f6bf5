//! The fetch that is under way, and the reason why none is.

/// The reason why nothing new is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    No,
    /// The source did not have the index `read`. A look at the source ends the pause, too.
    Missing,
    /// The source failed at the index `read`.
    Failed,
}

/// The fetch that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetch {
    New,
    Again,
}
