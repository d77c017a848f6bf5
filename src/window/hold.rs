//! The fetch under way, and why nothing new is read.

/// Why nothing new is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Hold {
    #[default]
    No,
    /// The source did not have the index `read`. A look at the source ends the pause early.
    Missing,
    /// The source failed at the index `read`.
    Failed,
}

/// The fetch under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetch {
    New,
    Again,
}
