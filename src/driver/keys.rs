//! Order by key: which job has its key, and which jobs wait behind it.
//!
//! A key is taken when its lowest job is read, and free when that job is over. The jobs of a key
//! form a line in index order. Keys are known by a hash, so two keys of one hash share a line,
//! which costs order nothing.

use crate::base::Index;
use crate::reader::Key;
use crate::run::writing::ByIndex;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::BuildHasherDefault;

/// The most jobs that wait behind others. While there are more, nothing new is read.
pub(super) const MOST_BEHIND: u64 = 1 << 17;

type Map<K, V> = HashMap<K, V, BuildHasherDefault<ByIndex>>;
type Set = HashSet<Index, BuildHasherDefault<ByIndex>>;

/// The place of a job when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It has its key, or has none.
    Free,
    /// It waits for the jobs of its key before it.
    Behind,
}

#[derive(Debug, Default)]
pub(crate) struct Keys {
    lines: Map<Key, Line>,
    /// The keys of the jobs that have one or wait for one.
    keys: Map<Index, Key>,
    behind: u64,
    /// True if a key is free only once the write of its job is on the disk. Otherwise the next job
    /// of the key would not see it, and one that is refused would run again behind a later one.
    until_saved: bool,
    /// The jobs that are done and keep their keys until a save: those of the next one, and of the
    /// one under way.
    unsaved: [Set; 2],
    /// The jobs of an earlier life that wait for a retry and whose keys are not known yet.
    pub(super) unread: BTreeSet<Index>,
}

/// The jobs of a key.
#[derive(Debug)]
struct Line {
    /// The job that has the key.
    holder: Index,
    /// The jobs behind it, ascending.
    behind: VecDeque<Index>,
}

impl Keys {
    pub(crate) fn new(until_saved: bool) -> Box<Self> {
        Box::new(Self { until_saved, ..Self::default() })
    }

    /// Gives a job that was read its place in the line of its key, before the higher ones that
    /// wait. A job that has a place keeps it.
    pub(super) fn enter(&mut self, index: Index, key: Option<Key>) -> Place {
        let Some(key) = key else { return Place::Free };
        let known = self.keys.insert(index, key);
        if let Some(before) = known {
            self.keys.insert(index, before);
            let has_it = self.lines.get(&before).is_none_or(|line| line.holder == index);
            return if has_it { Place::Free } else { Place::Behind };
        }
        let mut place = Place::Free;
        self.lines
            .entry(key)
            .and_modify(|line| {
                place = Place::Behind;
                let at = line.behind.partition_point(|waits| *waits < index);
                line.behind.insert(at, index);
            })
            .or_insert(Line { holder: index, behind: VecDeque::new() });
        self.behind += u64::from(place == Place::Behind);
        place
    }

    /// Takes a job out of its line: it is over. Returns the job that has the key now, if it waited.
    pub(super) fn leave(&mut self, index: Index) -> Option<Index> {
        let key = self.keys.remove(&index)?;
        let line = self.lines.get_mut(&key)?;
        if line.holder != index {
            let at = line.behind.binary_search(&index).ok()?;
            line.behind.remove(at);
            self.behind -= 1;
            return None;
        }
        let Some(next) = line.behind.pop_front() else {
            self.lines.remove(&key);
            return None;
        };
        line.holder = next;
        self.behind -= 1;
        Some(next)
    }

    /// Notes that a job is done. Returns true if it leaves its line at once.
    pub(super) fn done(&mut self, index: Index) -> bool {
        if self.until_saved {
            self.unsaved[0].insert(index);
        }
        !self.until_saved
    }

    /// Notes that a save takes the effects of all jobs that are done.
    pub(super) fn hand_over(&mut self) {
        let [waiting, writing] = &mut self.unsaved;
        writing.extend(waiting.drain());
    }

    /// Notes that a job of the save under way is not done after all, so it keeps its key.
    pub(super) fn refused(&mut self, index: Index) {
        self.unsaved[1].remove(&index);
    }

    /// Takes the jobs of a save that is on the disk.
    pub(super) fn written(&mut self) -> impl Iterator<Item = Index> + use<> {
        std::mem::take(&mut self.unsaved[1]).into_iter()
    }

    /// True if jobs wait behind others and keys wait for a save.
    pub(super) fn await_save(&self) -> bool {
        self.behind > 0 && self.unsaved.iter().any(|jobs| !jobs.is_empty())
    }

    /// Returns how many jobs wait behind others.
    pub(super) fn behind(&self) -> u64 {
        self.behind
    }

    /// Returns the job of the longest line that has the key, and how many wait behind it.
    pub(super) fn busiest(&self) -> Option<(Index, u64)> {
        let lines = self.lines.values().filter(|line| !line.behind.is_empty());
        let longest = lines.max_by_key(|line| (line.behind.len(), std::cmp::Reverse(line.holder)))?;
        Some((longest.holder, longest.behind.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::num::NonZero;

    proptest! {
        /// Jobs that enter in order, and again, and leave in any order, leave each key to the
        /// lowest one that waits.
        #[test]
        fn a_key_goes_to_the_lowest_job_of_its_line(steps in prop::collection::vec((0_u8..4, any::<u8>(), 0_u64..5), 0..200)) {
            let mut keys = Keys::new(false);
            // The jobs of each key: the one that has it, and those behind it.
            let mut lines = BTreeMap::<Key, (Index, BTreeSet<Index>)>::new();
            let (mut next, mut left) = (0, BTreeSet::new());
            for (step, pick, key) in steps {
                let Some(key) = NonZero::new(key) else {
                    prop_assert_eq!(keys.enter(1_000_000, None), Place::Free);
                    continue;
                };
                // Now and then one comes once more that left, as a redriven job does.
                let again = left.iter().copied().nth(usize::from(pick)).filter(|_| step == 1);
                if step < 2 {
                    let index = again.unwrap_or(next);
                    left.remove(&index);
                    next += u64::from(again.is_none());
                    let expected = match lines.get_mut(&key) {
                        Some((_, behind)) => { behind.insert(index); Place::Behind }
                        None => { lines.insert(key, (index, BTreeSet::new())); Place::Free }
                    };
                    prop_assert_eq!([keys.enter(index, Some(key)), keys.enter(index, Some(key))], [expected; 2]);
                } else if let Some((holder, behind)) = lines.get_mut(&key) {
                    let leaves = if step == 2 { *holder } else { behind.first().copied().unwrap_or(*holder) };
                    left.insert(leaves);
                    let freed = if leaves == *holder { behind.pop_first() } else { behind.remove(&leaves); None };
                    prop_assert_eq!((keys.leave(leaves), keys.leave(leaves)), (freed, None));
                    match freed {
                        Some(next) => *holder = next,
                        None if leaves == *holder => drop(lines.remove(&key)),
                        None => {}
                    }
                }
                prop_assert_eq!(keys.behind() as usize, lines.values().map(|(_, behind)| behind.len()).sum::<usize>());
                let longest = lines.values().map(|(_, behind)| behind.len()).max().unwrap_or(0);
                prop_assert_eq!(keys.busiest().map_or(0, |(_, behind)| behind as usize), longest);
                prop_assert_eq!(keys.keys.len(), lines.values().map(|(_, behind)| 1 + behind.len()).sum::<usize>());
            }
        }
    }

    #[test]
    fn a_key_is_kept_until_the_save_of_its_job() {
        let (mut keys, key) = (Keys::new(true), NonZero::new(7));
        assert_eq!([1, 2, 3].map(|index| keys.enter(index, key)), [Place::Free, Place::Behind, Place::Behind]);
        assert!(!keys.done(1) && keys.await_save() && keys.written().next().is_none());
        keys.hand_over();
        keys.refused(1);
        assert!(keys.written().next().is_none() && !keys.await_save(), "it runs again");
        keys.done(1);
        keys.hand_over();
        assert_eq!((keys.written().next(), keys.leave(1), keys.busiest()), (Some(1), Some(2), Some((2, 1))));
        assert!(Keys::new(false).done(1));
    }
}
