//! What a source has shown so far, and the basic calls of every rule.

use crate::base::Index;
use crate::source::Jobs;
use crate::testing::{Checked, ask};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

pub(super) const ANSWERS: &str = "a healthy source answers, with no error and no panic";
pub(super) const FINAL: &str = "an index never changes its job";

/// The jobs that a source has shown.
pub(super) struct Known<T> {
    pub(super) first: Index,
    pub(super) head: Option<Index>,
    /// The jobs that were read; all of them if the source has gaps.
    pub(super) jobs: BTreeMap<Index, T>,
    /// The gaps between them; `None` if the source may have none.
    pub(super) gaps: Option<Vec<RangeInclusive<Index>>>,
}

pub(super) fn first<J: Jobs>(jobs: &J) -> Checked<Index> {
    ask(|| jobs.first()).good(ANSWERS, || "first()".to_owned())
}

pub(super) fn head<J: Jobs>(jobs: &J) -> Checked<Option<Index>> {
    ask(|| jobs.head()).good(ANSWERS, || "head()".to_owned())
}

pub(super) fn at_index<J: Jobs>(jobs: &J, index: Index) -> Checked<Option<J::Job>> {
    ask(|| jobs.at_index(index)).good(ANSWERS, || format!("at_index({index})"))
}
