//! The first phase of a start: the progress gets its [`Tenure`], takes its name, and is loaded.

use crate::base::config::ConfigError;
use crate::base::error::Error;
use crate::base::guard::guarded;
use crate::base::index::Index;
use crate::driver::tenure::fenced;
use crate::progress::{Earlier, Progress, Saved, Tenure, acquire_all, load_earlier};
use crate::window::{Limits, Window};

/// A progress that has its name.
pub(super) struct Acquired {
    pub(super) name: Option<String>,
    pub(super) fence: u64,
    /// True if it keeps the jobs that are done above the watermark.
    pub(super) keeps_all: bool,
    /// Everything that earlier lives have saved.
    pub(super) saved: Option<Saved>,
    /// The records of single jobs and of the life before, if it keeps any.
    pub(super) earlier: Option<Earlier>,
}

impl Acquired {
    pub(super) fn last_processed(&self) -> Option<Index> {
        self.saved.as_ref()?.last_processed
    }

    /// Returns the lowest index that is not done, if anything was ever saved.
    pub(super) fn next(&self) -> Option<Index> {
        Some(self.saved.as_ref()?.next)
    }

    /// Makes the window that goes on from here, or begins with `next`.
    pub(super) fn window(&mut self, next: Index, limits: Limits) -> Window {
        let loaded = self.last_processed();
        let mut window = loaded.map_or_else(|| Window::begin(next, limits), |last| Window::resume(last, limits));
        if self.keeps_all {
            window.keep_done_ahead();
            window.restore(self.saved.iter_mut().flat_map(|saved| std::mem::take(&mut saved.done)));
        }
        window
    }
}

/// The things that the progress has to keep, beside all that is done.
#[derive(Clone, Copy)]
pub(super) struct Keeps {
    pub(super) parked: bool,
    pub(super) crashes: bool,
}

/// Takes the name, and loads everything that is saved under it.
pub(super) fn acquire(progress: &mut impl Progress, keeps: Keeps, tenure: &Tenure) -> Result<Acquired, Error> {
    let keeps_all = asked(|| {
        progress.subscribe(tenure.clone());
        progress.keeps_done_ahead()
    })?;
    let loaded = asked(|| if keeps_all { acquire_all(progress) } else { Ok(progress.acquire()?.map(Saved::from)) })?;
    let saved = loaded?;
    let (name, fence) = asked(|| (progress.label(), progress.fence()))?;
    let named = || name.clone().unwrap_or_else(|| "unnamed".to_owned());
    if let Some(Err(reason)) = saved.as_ref().map(Saved::check) {
        return Err(Error::Corrupt { name: named(), reason });
    }
    let earlier = load_earlier(progress, keeps.parked || keeps.crashes)?;
    match keeps {
        Keeps { parked: true, .. } if earlier.is_none() => return Err(ConfigError::ParkUnsupported.into()),
        Keeps { crashes: true, .. } if earlier.is_none() => return Err(ConfigError::MaxCrashesUnsupported.into()),
        _ => {}
    }
    match tenure.take_lost() {
        Some(error) => Err(fenced(named(), error)),
        None => Ok(Acquired { name, fence, keeps_all, saved, earlier }),
    }
}

/// Calls the user's code, and turns a panic in it into an error of the progress.
fn asked<R>(ask: impl FnOnce() -> R) -> Result<R, Error> {
    guarded(|| Ok(ask())).map_err(|source| Error::Progress { source })
}
