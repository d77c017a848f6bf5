//! First phase of a start: the progress gets its [`Tenure`], takes its name, and is loaded.

use crate::base::{Error, Index, config::check_supported, guard::guarded};
use crate::driver::tenure::fenced;
use crate::progress::{Earlier, Progress, Saved, Tenure, acquire_all, load_earlier, load_records};
use crate::window::{Limits, Window};

/// Jobs done this far above the lowest unfinished one are suspicious: few windows are that wide.
const FAR: Index = 1 << 27;

/// A progress that has taken its name.
pub(super) struct Acquired {
    pub(super) name: Option<String>,
    pub(super) fence: u64,
    /// True if it keeps the jobs done above the watermark.
    pub(super) keeps_all: bool,
    /// Everything that earlier lives have saved.
    pub(super) saved: Option<Saved>,
    /// The records of single jobs and of the previous life, if it keeps any.
    pub(super) earlier: Option<Earlier>,
    /// What the first save of this life writes, if an engine keeps the records. The save that
    /// closes a life in which nothing ran writes the same.
    pub(super) opening: Option<Saved>,
}

impl Acquired {
    pub(super) fn last_processed(&self) -> Option<Index> {
        self.saved.as_ref()?.last_processed
    }

    /// Returns the lowest unfinished index, if anything was ever saved.
    pub(super) fn next(&self) -> Option<Index> {
        Some(self.saved.as_ref()?.next)
    }

    /// Builds the window that resumes here, or begins with `next`.
    pub(super) fn window(&mut self, next: Index, limits: Limits) -> Window {
        let loaded = self.last_processed();
        self.tell_of_far_jobs(limits);
        let mut window = loaded.map_or_else(|| Window::begin(next, limits), |last| Window::resume(last, limits));
        if self.keeps_all {
            window.keep_done_ahead();
            window.restore(self.saved.iter_mut().flat_map(|saved| std::mem::take(&mut saved.done)));
        }
        window
    }

    /// Warns of jobs recorded as done further above the lowest unfinished one than the window is
    /// wide. No life with these limits wrote that record, so it may be damaged, and its jobs would
    /// never run.
    fn tell_of_far_jobs(&self, limits: Limits) {
        let Some(saved) = self.saved.as_ref().filter(|_| self.keeps_all) else { return };
        let far = saved.next.saturating_add(limits.max_search_ahead.max(FAR));
        let Some(run) = saved.done.iter().find(|run| *run.end() >= far) else { return };
        let consumer = self.name.as_deref().unwrap_or("unnamed");
        tracing::warn!(target: "waterline", consumer, first = run.start(), last = run.end(), next = saved.next, "the progress says that jobs far above the lowest one that is not done are done, so they do not run: if no earlier life had so large a max_search_ahead, its record is damaged, so stop the consumer and restore it");
    }
}

/// What the progress has to keep besides the watermark.
#[derive(Clone, Copy)]
pub(super) struct Keeps {
    pub(super) parked: bool,
    pub(super) crashes: bool,
    /// True if it keeps the jobs done above the watermark.
    pub(super) all: bool,
    /// True if it keeps records of single jobs, as the transactions of an engine do.
    pub(super) records: bool,
}

/// Passes the tenure to the progress. Returns whether it keeps the jobs done above the watermark,
/// and whether it keeps records.
pub(super) fn subscribe(progress: &mut impl Progress, tenure: &Tenure) -> Result<(bool, bool), Error> {
    asked(|| {
        progress.subscribe(tenure.clone());
        (progress.keeps_done_ahead(), progress.keeps_records())
    })
}

/// Takes the name, and loads everything saved under it.
pub(super) fn acquire(progress: &mut impl Progress, keeps: Keeps, tenure: &Tenure) -> Result<Acquired, Error> {
    let Keeps { all: keeps_all, records: keeps_records, .. } = keeps;
    let loads_all = keeps_all || keeps_records;
    let loaded = asked(|| if loads_all { acquire_all(progress) } else { Ok(progress.acquire()?.map(Saved::from)) })?;
    let mut saved = loaded?;
    let (name, fence) = asked(|| (progress.label(), progress.fence()))?;
    let named = || name.clone().unwrap_or_else(|| "unnamed".to_owned());
    if let Some(Err(reason)) = saved.as_ref().map(Saved::check) {
        return Err(Error::Corrupt { name: named(), reason });
    }
    let asks = keeps.parked || keeps.crashes;
    let mut earlier = load_earlier(progress, asks)?;
    let mut opening = None;
    if keeps_records && earlier.is_none() {
        let rows = |saved: &mut Saved| (std::mem::take(&mut saved.records), std::mem::take(&mut saved.parked));
        let rows = saved.as_mut().map(rows).unwrap_or_default();
        earlier = load_records(rows, asks, &named())?;
        if !keeps_all {
            saved.iter_mut().for_each(|saved| saved.done.clear());
        }
        opening = earlier.as_ref().and(saved.clone());
    }
    let why = "this progress cannot keep parked jobs: use `Store::progress` or one that keeps records, or `OnExhausted::Halt`";
    check_supported("on_exhausted", earlier.is_some() || !keeps.parked, why)?;
    let why =
        "this progress cannot count crashes: use `Store::progress` or one that keeps records, or leave max_crashes out";
    check_supported("max_crashes", earlier.is_some() || !keeps.crashes, why)?;
    match tenure.take_lost() {
        Some(error) => Err(fenced(named(), error)),
        None => Ok(Acquired { name, fence, keeps_all, saved, earlier, opening }),
    }
}

/// Calls user code, and turns a panic there into an error of the progress.
fn asked<R>(ask: impl FnOnce() -> R) -> Result<R, Error> {
    guarded(|| Ok(ask())).map_err(|source| Error::Progress { source })
}
