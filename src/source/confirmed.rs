//! A source whose newest jobs may still be replaced.

use crate::base::sync::AtomicU64;

/// Jobs without the newest ones, which may still be replaced. Created by
/// [`Jobs::confirmed`](crate::Jobs::confirmed).
#[doc(alias = "reorg")]
#[derive(Debug)]
pub struct Confirmed<J> {
    pub(super) jobs: J,
    pub(super) behind: u64,
    /// One past the last head shown. Reads up to there need not ask for the head again.
    pub(super) shown: AtomicU64,
}

impl<J> Confirmed<J> {
    pub(super) fn new(jobs: J, behind: u64) -> Self {
        Self { jobs, behind, shown: AtomicU64::new(0) }
    }
}

#[cfg(test)]
mod tests {
    use crate::base::sync::Ordering;
    use crate::source::{Item, Jobs as _, MemoryJobs, Sparse};

    #[test]
    fn the_newest_jobs_are_neither_shown_nor_read() {
        for (jobs, behind, head) in
            [(0, 0, None), (0, 3, None), (3, 3, None), (4, 3, Some(0)), (9, 0, Some(8)), (9, u64::MAX, None)]
        {
            let source = (0..jobs).collect::<MemoryJobs<u64>>().confirmed(behind);
            let count = head.map_or(0, |head| head + 1);
            let mut read = Sparse::new(0);
            source.read_sparse(0..=20, 64, &mut read).unwrap();
            assert!(read.into_iter().eq((0..count).map(|index| Item::Job(index, index))), "{jobs} {behind}");
            assert_eq!(source.head().unwrap(), head, "{jobs} jobs without the last {behind}");
            let mut read = Vec::new();
            source.read(0..=20, &mut read).unwrap();
            assert!(read.into_iter().eq(0..count), "{jobs} {behind}");
            for index in 0..12 {
                assert_eq!(source.at_index(index).unwrap(), (index < count).then_some(index));
            }
        }
    }

    #[test]
    fn a_read_asks_for_the_head_only_above_the_last_shown() {
        let jobs: MemoryJobs<u64> = (0..9).collect();
        let source = jobs.clone().confirmed(2);
        assert_eq!(source.at_index(7).unwrap(), None);
        (9..12).for_each(|job| _ = jobs.push(job));
        assert_eq!((source.shown.load(Ordering::Relaxed), source.at_index(6).unwrap()), (7, Some(6)));
        assert_eq!(source.shown.load(Ordering::Relaxed), 7, "the head was not asked for");
        assert_eq!((source.at_index(9).unwrap(), source.shown.load(Ordering::Relaxed)), (Some(9), 10));
    }
}
