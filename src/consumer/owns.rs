//! The setting of what belongs to a progress.

use super::builder::Builder;
use crate::progress::{Owned, Progress};
use crate::source::Jobs;

impl<J: Jobs, P: Progress> Builder<J, P> {
    /// Says that this table or log belongs to the progress: its jobs alone fill it. Call it once
    /// for each, in an order that you keep.
    ///
    /// The store keeps the list from the start on, and other calls go by it:
    /// [`Store::replace`](crate::Store::replace) gives the parts of one progress the names of those
    /// of another, and [`StoreProgress::remove_with`](crate::StoreProgress::remove_with) clears
    /// them. A start with another list replaces it. By default nothing belongs to a progress, and
    /// all of that is up to you.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, Store};
    ///
    /// let store = Store::in_memory();
    /// let (sums, notes) = (store.table("sums")?, store.log::<String>("notes")?);
    /// let jobs: MemoryJobs<i64> = [3, 4].into_iter().collect();
    /// let consumer = Consumer::builder(jobs, store.progress("count")).owns(&sums).owns(&notes).stop_at(1);
    /// consumer.start_transactional(move |job, effects| Ok(effects.add(&sums, "total", job.payload)?))?.join()?;
    /// let owned = &store.consumers()?[0].owns;
    /// assert_eq!((owned[0].what, owned[0].name.as_str()), ("table", "sums"));
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// The start returns [`Error::Config`](crate::Error::Config) unless the progress is one of a
    /// [`Store`](crate::Store) and the part is in the same one. A [column
    /// family](crate::Store::column_family) keeps its name, so it belongs to no progress.
    pub fn owns(mut self, part: impl Into<Owned>) -> Self {
        self.owns.push(part.into());
        self
    }
}
