//! What an open queue knows of the clock on the wall.

use crate::rules::set_back::Latest;
use waterline::seam::Moment;

/// What a queue knows of the clock on the wall.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wall {
    pub(crate) latest: Latest,
    /// The clock was set back, and not all has moved that is to go back with it.
    pub(crate) back: Option<Box<Back>>,
}

/// A clock that was set back, and how far the lists were gone through since.
#[derive(Clone, Debug)]
pub(crate) struct Back {
    /// The milliseconds by which it went back.
    pub(crate) by: u64,
    /// The number of the list among those with times, and the key of the last entry of it.
    pub(crate) list: usize,
    pub(crate) behind: Vec<u8>,
}

impl Back {
    /// Begins with the first list.
    pub(crate) fn of(by: u64) -> Self {
        Self { by, list: 0, behind: Vec::new() }
    }
}

impl Wall {
    /// What is known of it when a queue is opened that has seen this time last.
    pub(crate) fn stored(seen: u64) -> Self {
        Self { latest: Latest::stored(seen), back: None }
    }

    /// Returns the latest time, unless what was written at a later one is still to go back.
    pub(crate) fn seen(&self) -> Option<u64> {
        Some(self.latest.wall()).filter(|seen| *seen > 0 && self.back.is_none())
    }

    /// True if something is to go back.
    pub(crate) fn is_behind(&self, at: &Moment) -> bool {
        self.back.is_some() || self.latest.set_back(at.wall, at.now).is_some()
    }
}
