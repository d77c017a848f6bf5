//! What an open queue knows of the wall clock.

use crate::rules::set_back::Latest;
use waterline::seam::Moment;

#[derive(Clone, Debug, Default)]
pub(crate) struct Wall {
    pub(crate) latest: Latest,
    /// Set while times have to go back with the clock.
    pub(crate) back: Option<Box<Back>>,
}

/// How far the lists were worked through since the clock was set back.
#[derive(Clone, Debug)]
pub(crate) struct Back {
    /// The milliseconds by which it went back.
    pub(crate) by: u64,
    /// The list, by its place among those with times, and the key of its last entry that was done.
    pub(crate) list: usize,
    pub(crate) behind: Vec<u8>,
}

impl Back {
    pub(crate) fn of(by: u64) -> Self {
        Self { by, list: 0, behind: Vec::new() }
    }
}

impl Wall {
    /// Returns what is known when a queue is opened whose last seen time is this.
    pub(crate) fn stored(seen: u64) -> Self {
        Self { latest: Latest::stored(seen), back: None }
    }

    /// Returns the latest time seen, unless times still have to go back.
    pub(crate) fn seen(&self) -> Option<u64> {
        Some(self.latest.wall()).filter(|seen| *seen > 0 && self.back.is_none())
    }

    /// True if times have to go back.
    pub(crate) fn is_behind(&self, at: &Moment) -> bool {
        self.back.is_some() || self.latest.set_back(at.wall, at.now).is_some()
    }
}
