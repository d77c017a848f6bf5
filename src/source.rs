//! The sources that jobs come from: the trait, gates, a source in memory, and the calls that say that there is more.

use crate::base::index::{BoxError, Index};
use crate::base::sync::Arc;
use crate::source::wakeup::Wakeup;
use crate::source::watermark::Watermark;
use std::ops::RangeInclusive;

mod gated;
mod memory;
pub(crate) mod wakeup;
pub(crate) mod watermark;

pub use gated::Gated;
pub(crate) use gated::Rings;
pub use memory::MemoryJobs;

/// How far a source lets jobs start, whatever its head is; see [`Jobs::gate`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gate {
    /// As far as the head.
    #[default]
    Open,
    /// Up to and including this index.
    UpTo(Index),
    /// No job at all.
    Closed,
}

impl Gate {
    /// Both gates, one behind the other: what both let through.
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

    /// One past the last index that it lets through.
    pub(crate) fn open_below(self) -> Index {
        match self {
            Self::Open => Index::MAX,
            Self::UpTo(last) => last.saturating_add(1),
            Self::Closed => 0,
        }
    }
}

/// How long the default [`Jobs::read`] begins further calls before it hands over what it has, so that a source that takes a second for
/// each job does not keep workers waiting for a whole run.
const READ_PATIENCE: coarsetime::Duration = coarsetime::Duration::from_millis(10);

/// An ordered source that is addressed by index: it is pulled from, never pushed to.
///
/// What it shows is final: an index never changes its job. A head that may still be reorganised belongs behind a source that
/// shows only what no longer can. One thread at a time calls these methods, with no lock held, so they may block, and may
/// call back into the [`Handle`](crate::Handle). Errors and panics are retried with back-off; jobs that were read before
/// them run meanwhile. The feature `testing` has a suite that checks a source of yours: `waterline::testing::JobsSuite`.
///
/// ```
/// use waterline::{BoxError, Index, Jobs};
///
/// /// The lines of a text, numbered from 0.
/// struct Lines(Vec<String>);
///
/// impl Jobs for Lines {
///     type Job = String;
///     fn head(&self) -> Result<Option<Index>, BoxError> {
///         Ok((self.0.len() as Index).checked_sub(1))
///     }
///     fn at_index(&self, index: Index) -> Result<Option<String>, BoxError> {
///         Ok(self.0.get(index as usize).cloned())
///     }
/// }
/// # assert_eq!(Lines(vec!["a".into()]).head().unwrap(), Some(0));
/// ```
pub trait Jobs: Send + Sync + 'static {
    /// What a worker is given. It need not be `Clone`: a retry reads it again.
    type Job: Send + 'static;

    /// The lowest index that is still there; head + 1 when everything was removed. Default: 0.
    ///
    /// # Errors
    /// At start, an error here is [`Error::Source`](crate::Error::Source); later it is retried.
    fn first(&self) -> Result<Index, BoxError> {
        Ok(0)
    }

    /// The highest index that is available; `None` while there is none.
    ///
    /// # Errors
    /// Retried with back-off, and shown by `status().blocked`.
    fn head(&self) -> Result<Option<Index>, BoxError>;

    /// The job at this index. `None`: it is not there (yet), and no later index is started before it.
    ///
    /// # Errors
    /// Retried with back-off, and shown by `status().blocked`.
    fn at_index(&self, index: Index) -> Result<Option<Self::Job>, BoxError>;

    /// A run of consecutive jobs in one call, for sources where one read of many is cheaper than many of one.
    ///
    /// Appends in index order and stops at the first that is not there. It may stop earlier too,
    /// once it has appended something: the rest is asked for again. Runs are at most max(64, 2 ×
    /// `max_processing`) long. The default calls [`at_index`](Self::at_index) in a loop, and returns
    /// after the first call that ends later than 10 ms. Its clock is coarse, since an exact one takes
    /// longer than many a call: the limit may be 1 to 16 ms late.
    ///
    /// # Errors
    /// What was appended before the error is valid and runs; the failing index is the run's start + the number appended.
    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Self::Job>) -> Result<(), BoxError> {
        read_one_by_one(run, into, |index| self.at_index(index), coarsetime::Instant::now_without_cache_update)
    }

    /// The bytes of memory that this job takes, about. They count towards
    /// [`Builder::max_read_ahead`](crate::Builder::max_read_ahead) from when the job was read until it is handed out. Default:
    /// the size of the type, which leaves out the memory that it points to: say more where jobs are large.
    ///
    /// ```
    /// use waterline::{BoxError, Index, Jobs};
    ///
    /// struct Blocks(Vec<Vec<u8>>);
    ///
    /// impl Jobs for Blocks {
    ///     type Job = Vec<u8>;
    ///     fn head(&self) -> Result<Option<Index>, BoxError> {
    ///         Ok((self.0.len() as Index).checked_sub(1))
    ///     }
    ///     fn at_index(&self, index: Index) -> Result<Option<Vec<u8>>, BoxError> {
    ///         Ok(self.0.get(index as usize).cloned())
    ///     }
    ///     fn weight(&self, block: &Vec<u8>) -> usize {
    ///         block.len()
    ///     }
    /// }
    /// # assert_eq!(Blocks(vec![]).weight(&vec![1, 2, 3]), 3);
    /// ```
    fn weight(&self, job: &Self::Job) -> usize {
        let _ = job;
        size_of::<Self::Job>()
    }

    /// Called once, before the first look at the source. Keep the wake-up, ring it whenever a job appears, and return true:
    /// then the source is not polled on a timer (unless `poll_every` is set). Default: false.
    fn subscribe(&self, wakeup: Wakeup) -> bool {
        let _ = wakeup;
        false
    }

    /// How far jobs may start, though the source has more: asked for with each look at the [head](Self::head), which stays the
    /// true one. A gate that goes back takes nothing back: what has started finishes, and is tried again if it fails. A panic is
    /// treated as a source's error. Default: [`Gate::Open`].
    fn gate(&self) -> Gate {
        Gate::Open
    }

    /// The same jobs, of which none starts before the upstream has processed its index, and that is saved: a stage that
    /// follows another one through the same stream. The consumer is woken as soon as the upstream's watermark moves. With
    /// several, one behind the other, none starts before all of them have.
    ///
    /// ```
    /// use waterline::{Consumer, Jobs, MemoryJobs, MemoryProgress};
    ///
    /// let blocks: MemoryJobs<_> = (0..5).collect();
    /// let fetch = Consumer::builder(blocks.clone(), MemoryProgress::new()).start(|_| Ok(()))?;
    /// let index = Consumer::builder(blocks.gated_by(fetch.handle()), MemoryProgress::new())
    ///     .stop_at(4)
    ///     .start({
    ///         let fetch = fetch.handle();
    ///         move |job| Ok(assert!(fetch.last_processed_index() >= Some(job.index)))
    ///     })?;
    /// index.join()?;
    /// fetch.stop()?;
    /// # Ok::<(), waterline::Error>(())
    /// ```
    fn gated_by(self, upstream: impl AsRef<Watermark>) -> Gated<Self>
    where
        Self: Sized,
    {
        Gated::new(self, upstream.as_ref().clone())
    }

    /// Whose watermarks the gate depends on. An adapter of yours around a source that is gated should forward it, so that a
    /// circle of gates is refused when it is started.
    #[doc(hidden)]
    fn upstreams(&self) -> Vec<Watermark> {
        Vec::new()
    }

    /// The jobs without the gates that they are behind, and those gates, so that a further gate is
    /// put beside them and not around them. For sources of this crate; an adapter of yours leaves
    /// it as it is.
    #[doc(hidden)]
    fn ungated(&self) -> Option<gated::Ungated<Self::Job>> {
        None
    }
}

/// Reads one job after the other, as the default [`Jobs::read`] does. The clock is read for each
/// job, so it is a coarse one: 5 to 10 ns. An exact one takes 30 to 50, which is as much as all
/// else that a short job costs.
fn read_one_by_one<T>(
    run: RangeInclusive<Index>,
    into: &mut Vec<T>,
    mut at_index: impl FnMut(Index) -> Result<Option<T>, BoxError>,
    mut now: impl FnMut() -> coarsetime::Instant,
) -> Result<(), BoxError> {
    let begun = now();
    for index in run {
        match at_index(index)? {
            Some(job) => into.push(job),
            None => break,
        }
        if now().duration_since(begun) >= READ_PATIENCE {
            break;
        }
    }
    Ok(())
}

impl<J: Jobs + ?Sized> Jobs for Arc<J> {
    type Job = J::Job;

    fn first(&self) -> Result<Index, BoxError> {
        (**self).first()
    }

    fn head(&self) -> Result<Option<Index>, BoxError> {
        (**self).head()
    }

    fn at_index(&self, index: Index) -> Result<Option<Self::Job>, BoxError> {
        (**self).at_index(index)
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Self::Job>) -> Result<(), BoxError> {
        (**self).read(run, into)
    }

    fn weight(&self, job: &Self::Job) -> usize {
        (**self).weight(job)
    }

    fn subscribe(&self, wakeup: Wakeup) -> bool {
        (**self).subscribe(wakeup)
    }

    fn gate(&self) -> Gate {
        (**self).gate()
    }

    fn upstreams(&self) -> Vec<Watermark> {
        (**self).upstreams()
    }

    fn ungated(&self) -> Option<gated::Ungated<J::Job>> {
        (**self).ungated()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The jobs that are handed over by a read of 0 to 9, where the clock stands at these
    /// milliseconds when it is asked.
    fn handed_over(clock: &[u64]) -> Vec<Index> {
        let (mut clock, mut into) = (clock.iter(), Vec::new());
        let now =
            || coarsetime::Instant::from_ticks(coarsetime::Duration::from_millis(*clock.next().unwrap()).as_ticks());
        read_one_by_one(0..=9, &mut into, |index| Ok(Some(index)), now).unwrap();
        into
    }

    #[test]
    fn the_default_read_hands_over_what_it_has_with_the_call_that_passes_ten_milliseconds() {
        assert_eq!(handed_over(&[100; 11]).len(), 10, "no time passes");
        assert_eq!(handed_over(&[100, 100, 104, 108, 112]), [0, 1, 2, 3], "ticks of 4 ms");
        assert_eq!(handed_over(&[100, 100, 116]), [0, 1], "a tick of 16 ms");
        assert_eq!(handed_over(&[100, 1_100]), [0], "one job at least");
        assert_eq!(handed_over(&[100, 90, 90, 90, 90, 90, 90, 90, 90, 90, 90]).len(), 10, "a clock that was put back");
    }

    #[test]
    fn the_default_read_of_a_slow_source_hands_over_each_job_as_it_comes() {
        struct Slow;
        impl Jobs for Slow {
            type Job = Index;
            fn head(&self) -> Result<Option<Index>, BoxError> {
                Ok(Some(Index::MAX - 1))
            }
            fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
                // Longer than the patience and a tick of any clock together.
                let until = std::time::Instant::now() + std::time::Duration::from_millis(40);
                while let Some(left) = until.checked_duration_since(std::time::Instant::now()) {
                    std::thread::park_timeout(left);
                }
                Ok(Some(index))
            }
        }
        let mut into = Vec::new();
        Slow.read(7..=70, &mut into).unwrap();
        assert_eq!(into, [7]);
    }
}
