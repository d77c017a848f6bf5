//! Forwards calls from an adapter to its inner source.

/// Forwards these calls of [`Jobs`](crate::Jobs) to the jobs inside: `forward!(self: self.jobs =>
/// first, weight);`.
macro_rules! forward {
    ($this:ident: $jobs:expr => $($call:ident),+) => { $($crate::source::forward! { @ $call $this $jobs })+ };
    (@ first $this:ident $jobs:expr) => {
        fn first(&$this) -> Result<$crate::Index, $crate::BoxError> {
            $jobs.first()
        }
    };
    (@ head $this:ident $jobs:expr) => {
        fn head(&$this) -> Result<Option<$crate::Index>, $crate::BoxError> {
            $jobs.head()
        }
    };
    (@ at_index $this:ident $jobs:expr) => {
        fn at_index(&$this, index: $crate::Index) -> Result<Option<Self::Job>, $crate::BoxError> {
            $jobs.at_index(index)
        }
    };
    (@ read $this:ident $jobs:expr) => {
        fn read(
            &$this,
            run: std::ops::RangeInclusive<$crate::Index>,
            into: &mut Vec<Self::Job>,
        ) -> Result<(), $crate::BoxError> {
            $jobs.read(run, into)
        }
    };
    (@ read_sparse $this:ident $jobs:expr) => {
        fn read_sparse(
            &$this,
            run: std::ops::RangeInclusive<$crate::Index>,
            most: usize,
            into: &mut $crate::Sparse<Self::Job>,
        ) -> Result<(), $crate::BoxError> {
            $jobs.read_sparse(run, most, into)
        }
    };
    (@ weight $this:ident $jobs:expr) => {
        fn weight(&$this, job: &Self::Job) -> usize {
            $jobs.weight(job)
        }
    };
    (@ subscribe $this:ident $jobs:expr) => {
        fn subscribe(&$this, wakeup: $crate::Wakeup) -> bool {
            $jobs.subscribe(wakeup)
        }
    };
    (@ gate $this:ident $jobs:expr) => {
        fn gate(&$this) -> $crate::Gate {
            $jobs.gate()
        }
    };
    (@ call_timeout $this:ident $jobs:expr) => {
        fn call_timeout(&$this, after: Option<std::time::Duration>) -> Option<std::time::Duration> {
            $jobs.call_timeout(after)
        }
    };
    (@ futures $this:ident $jobs:expr) => {
        #[cfg(feature = "tokio")]
        fn futures(&$this) -> Option<$crate::source::futures::Futures<'_, Self::Job>> {
            $jobs.futures()
        }
    };
    (@ waits_for $this:ident $jobs:expr) => {
        fn waits_for(&$this) -> Option<String> {
            $jobs.waits_for()
        }
    };
}

pub(crate) use forward;
