//! The window as the page draws it.

use crate::base::time::Now;
use crate::driver::core::Core;
use crate::observe::status::Attempt;
use crate::observe::strip::{LISTED, Ruler, Strip, StripCell, StripRetry};

/// A strip shows at most this many times the started indices: an endless window is empty beyond.
const EMPTY: u64 = 4;

impl Core {
    /// Returns the window in at most this many cells. Looks at one bit of each index.
    pub(crate) fn strip(&self, most: usize, now: &Now) -> Strip {
        let (window, limits) = (&self.window, self.window.limits());
        let (from, reached) = (window.lowest_unprocessed(), window.reached());
        let started = reached.saturating_sub(from).max(most as u64);
        let open = window.head().map_or(from, |head| head.saturating_add(1));
        let widest = from.saturating_add(limits.max_search_ahead.min(started.saturating_mul(EMPTY)));
        let ruler = Ruler::new(from, open.min(widest).max(reached), most);
        let done =
            |(start, end)| StripCell::of(end - start, window.done_within(start, end), window.gaps_within(start, end));
        let mut cells: Vec<StripCell> = ruler.cells().map(done).collect();
        let mut mark = |index, state| {
            if let Some(cell) = ruler.cell_of(index).and_then(|at| cells.get_mut(at)) {
                *cell = state;
            }
        };
        let flights = || self.running.flights.iter().filter(|_| !self.ending.abandoned);
        flights().for_each(|flight| mark(flight.index, StripCell::Running));
        self.failed_jobs.records.parked_jobs().for_each(|index| mark(index, StripCell::Parked));
        let failures = || self.failed_jobs.failures.all_waiting();
        failures().for_each(|(index, _)| mark(index, StripCell::Failed));
        let mut running: Vec<_> = flights().map(|flight| self.attempt(flight, now)).collect();
        running.sort_unstable_by_key(|attempt: &Attempt| attempt.index);
        running.truncate(LISTED);
        let retries = failures().take(LISTED).map(|(index, failed)| {
            let retry_in = failed.due.saturating_duration_since(now.get());
            StripRetry { index, attempt: failed.attempt, retry_in, error: failed.error.to_string() }
        });
        Strip {
            from: ruler.from,
            end: ruler.end,
            per_cell: ruler.per_cell,
            cells,
            max_processing: limits.max_processing,
            max_search_ahead: limits.max_search_ahead,
            running,
            retries: retries.collect(),
            retrying: failures().count() as u64,
        }
    }
}
