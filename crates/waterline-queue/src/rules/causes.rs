//! The order in which dead jobs are requeued.

use crate::types::job::JobId;
use std::collections::HashSet;

/// Dead jobs in an order in which none comes before a dead one that it still waited for. It can be
/// resumed after each write, so each write may be short, however long a chain is.
pub(crate) struct CausesFirst {
    /// The next jobs, the first one at the end. True: those that it waited for come before.
    stack: Vec<(JobId, bool)>,
    /// The jobs that were visited. Two that waited for each other come in any order.
    seen: HashSet<JobId>,
}

impl CausesFirst {
    pub(crate) fn new(jobs: Vec<JobId>) -> Self {
        Self { stack: jobs.into_iter().rev().map(|id| (id, false)).collect(), seen: HashSet::new() }
    }

    /// Returns the next job. `waited_for` returns what a dead job waited for; `None`: it is not
    /// dead.
    pub(crate) fn next<E>(
        &mut self,
        mut waited_for: impl FnMut(&str) -> Result<Option<Vec<JobId>>, E>,
    ) -> Result<Option<JobId>, E> {
        while let Some((id, is_next)) = self.stack.pop() {
            if is_next {
                return Ok(Some(id));
            }
            if self.seen.insert(id.clone())
                && let Some(others) = waited_for(&id)?
            {
                self.stack.push((id, true));
                self.stack.extend(others.into_iter().rev().map(|other| (other, false)));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    /// Returns the order of the jobs in this list, each of which waited for those after it.
    fn order(list: &[&str], waited_for: &[(&str, &[&str])]) -> Vec<String> {
        let waited_for: BTreeMap<_, _> = waited_for.iter().copied().collect();
        let mut order = CausesFirst::new(list.iter().map(|id| (*id).to_owned()).collect());
        let dead = |id: &str| -> Result<_, Infallible> {
            Ok(waited_for.get(id).map(|others| others.iter().map(|id| (*id).to_owned()).collect()))
        };
        std::iter::from_fn(|| order.next(dead).unwrap_or_else(|never| match never {})).collect()
    }

    #[test]
    fn each_dead_job_comes_once_after_its_causes() {
        let (none, b): (&[&str], &[&str]) = (&[], &["b"]);
        for (list, waited_for, expected) in [
            // In the order of the list, if none waited.
            (&["b", "a"][..], &[("a", none), ("b", none)][..], &["b", "a"][..]),
            // After those that the list has later, or not at all.
            (&["a", "b", "c"], &[("a", b), ("b", &["c"]), ("c", none)], &["c", "b", "a"]),
            (&["a"], &[("a", b), ("b", none)], &["b", "a"]),
            (&["d", "a"], &[("a", none), ("d", &["b", "c"]), ("b", &["a"]), ("c", &["a"])], &["a", "b", "c", "d"]),
            // One that is alive, or gone, is not among them.
            (&["a", "gone"], &[("a", b)], &["a"]),
            // Neither of two that waited for each other blocks the other one.
            (&["a", "b"], &[("a", b), ("b", &["a"])], &["b", "a"]),
            (&["a"], &[("a", &["a"])], &["a"]),
        ] {
            assert_eq!(order(list, waited_for), expected, "{list:?} {waited_for:?}");
        }
    }

    #[test]
    fn a_long_chain_is_walked_once() {
        const LINKS: usize = 100_000;
        let ids: Vec<_> = (0..LINKS).map(|n| format!("{n:06}")).collect();
        let mut order = CausesFirst::new(ids.iter().rev().cloned().collect());
        let mut looks = 0;
        let mut before = |id: &str| -> Result<_, Infallible> {
            looks += 1;
            let n: usize = id.parse().unwrap();
            Ok(Some(n.checked_sub(1).map(|n| ids[n].clone()).into_iter().collect()))
        };
        for id in &ids {
            assert_eq!(order.next(&mut before), Ok(Some(id.clone())));
        }
        assert_eq!((order.next(&mut before), looks), (Ok(None), LINKS));
    }
}
