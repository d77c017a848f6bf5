//! The limit up to which the jobs of a source may start.

use crate::base::Index;

/// The limit below its head up to which a source lets jobs start; see
/// [`Jobs::gate`](crate::Jobs::gate).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gate {
    /// No limit but the head.
    #[default]
    Open,
    /// Up to and including this index.
    UpTo(Index),
    /// No job at all.
    Closed,
}

impl Gate {
    /// Combines two gates into one that lets through only what both do.
    ///
    /// ```
    /// use waterline::Gate;
    ///
    /// assert_eq!(Gate::Open.and(Gate::UpTo(7)), Gate::UpTo(7));
    /// assert_eq!(Gate::UpTo(3).and(Gate::UpTo(7)), Gate::UpTo(3));
    /// assert_eq!(Gate::Closed.and(Gate::Open), Gate::Closed);
    /// ```
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Closed, _) | (_, Self::Closed) => Self::Closed,
            (Self::Open, gate) | (gate, Self::Open) => gate,
            (Self::UpTo(one), Self::UpTo(other)) => Self::UpTo(one.min(other)),
        }
    }

    /// One past the last index that the gate lets through.
    pub(crate) fn open_below(self) -> Index {
        match self {
            Self::Open => Index::MAX,
            Self::UpTo(last) => last.saturating_add(1),
            Self::Closed => 0,
        }
    }
}
