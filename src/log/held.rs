//! Backpressure: a source is held back while the log that its jobs fill is full.

use super::{JobLog, state::LogState};
use crate::base::{Index, sync::Arc};
use crate::source::bound::{BehindConsumer, Bound, Full};
use crate::source::{Gate, Gated, Jobs, Keeper, Rings, wakeup::Wakeup};

/// The gate of jobs that do not start while a log is full.
#[derive(Clone, Debug)]
struct Held {
    log: Arc<LogState>,
    most: u64,
    /// The consumers of this source. The gate is computed from their lowest watermark.
    rings: Arc<Rings>,
}

impl<T, C> JobLog<T, C> {
    /// Returns the number of items still to be processed: those above the lowest watermark of the
    /// consumers that the log [retains](Self::retain) items for, or, if there are none, all that
    /// are not trimmed.
    #[must_use]
    pub fn backlog(&self) -> u64 {
        self.state.undone().0
    }

    /// Returns the same jobs with backpressure: none starts while this log is full.
    ///
    /// It is full if its [backlog](Self::backlog) is `most` items (at least 1) or more. Use it for
    /// the stage that fills the log, so that it does not outrun the stage that empties it. Name
    /// that stage with [`retain`](Self::retain): each move of its watermark makes room, and a job
    /// that it parks takes none. Without a named consumer, the log must be [trimmed](Self::trim),
    /// or the jobs are held back for ever.
    ///
    /// Jobs that push one item each never exceed `most`; jobs that push `n` items each may reach
    /// `n` times as many. While the log is full, the status names the stage behind:
    /// [`Blocked::LogFull`](crate::Blocked::LogFull).
    ///
    /// ```
    /// use waterline::{Gate, Jobs, MemoryJobs, Store};
    ///
    /// let log = Store::in_memory().log::<u64>("chunks")?;
    /// let blocks = log.hold_back((0..9).collect::<MemoryJobs<u64>>(), 2);
    /// assert_eq!(blocks.gate(), Gate::Open);
    /// log.push_all(&[1, 2])?;
    /// assert_eq!((log.backlog(), blocks.gate()), (2, Gate::Closed));
    /// # Ok::<(), waterline::Error>(())
    /// ```
    pub fn hold_back<J: Jobs>(&self, jobs: J, most: u64) -> Gated<J> {
        let rings = Arc::<Rings>::default();
        self.state.listen(Arc::<Rings>::downgrade(&rings));
        let held = Held { log: self.state.clone(), most: most.max(1), rings };
        Gated::new(jobs, Arc::new(held))
    }
}

impl Keeper for Held {
    fn subscribe(&self, wakeup: &Wakeup) {
        // The gate also depends on the watermark, which moves after the items are there.
        wakeup.watermark().listen(Arc::<Rings>::downgrade(&self.rings));
        self.rings.add(wakeup.clone());
        wakeup.bounded_by(Arc::new(self.clone()));
    }

    fn gate(&self) -> Gate {
        let next = self.rings.lowest_next();
        // Measured after the watermark, so it includes what the jobs up to there have pushed.
        let room = self.most.saturating_sub(self.log.undone().0);
        match next {
            _ if room == 0 => Gate::Closed,
            Some(next) => Gate::UpTo(next.saturating_add(room - 1)),
            None => Gate::Open,
        }
    }
}

impl Bound for Held {
    fn full(&self, index: Index) -> Option<Full> {
        let is_held = index >= self.gate().open_below();
        let (items, last) = self.log.undone();
        let behind = last.map(|watermark| BehindConsumer { name: watermark.name(), ended: watermark.has_ended() });
        is_held.then(|| Full { log: self.log.name.clone(), items, most: self.most, behind })
    }
}
