//! Standby: the wait for a name that another consumer has, and the takeover.
//!
//! A consumer on standby has an empty window, no source and no worker. What a handle sets meanwhile
//! is kept in the core, and holds from the takeover on.

use crate::base::{Error, Index, error::describe, guard::drop_guarded, sync::Arc, time::Now};
use crate::driver::{
    Driver, core::Core, failed_jobs::Recovered, running::Pool, save_deadline::SaveDeadline, tenure::NameInUse,
};
use crate::observe::{Event, EventKind, observers::Notice};
use crate::progress::SaveBackend;
use crate::reader::ReadRuns;
use crate::source::wakeup::{Bell, Met};
use crate::source::watermark::Watermark;
use crate::window::{Limits, Window};
use std::any::Any;
use std::sync::Weak;
use std::time::{Duration, Instant};

/// The name of a consumer whose progress has no label; its real name is unknown.
const UNNAMED: &str = "unnamed";

/// The consumers of this process on standby, which are called when another one releases its name.
/// Without a call they retry at their own pace.
#[cfg(not(waterline_loom))]
static WAITING: crate::base::sync::Mutex<Vec<Weak<Driver>>> = crate::base::sync::Mutex::new(Vec::new());

/// Everything that a consumer begins with once it has its name.
pub(crate) struct Takeover {
    pub(crate) window: Window,
    /// The saved watermark of earlier lives.
    pub(crate) last_processed: Option<Index>,
    pub(crate) met: Met,
    pub(crate) fence: u64,
    pub(crate) recovered: Option<Recovered>,
    pub(crate) pool: Arc<dyn Pool>,
    pub(crate) source: Arc<dyn ReadRuns>,
    pub(crate) saves: Arc<dyn SaveBackend>,
    /// The progress, which keeps the name in use.
    pub(crate) name: Box<dyn Any + Send>,
}

impl Core {
    pub(crate) fn await_name(&mut self, refusal: NameInUse, now: &Now) {
        self.tenancy.waits_on(refusal, now);
        let Some(awaited) = &self.tenancy.awaited else { return };
        let text = awaited.blocked(now).to_string();
        self.out.tell(&Event { index: None, ..Event::new(EventKind::Waits, 0).error(&text) }, now);
        if self.out.is_observed() {
            let status = Box::new(self.status(now));
            self.out.telling.notice(Notice::Waiting { status });
        }
    }

    /// Begins a life with the settings made on standby. True if the progress keeps parked records.
    fn begin_life(&mut self, window: Window, recovered: Option<Recovered>, now: &Now) -> bool {
        let before = std::mem::replace(&mut self.window, window);
        before.ends_at().into_iter().for_each(|last| self.window.stop_at(last));
        self.tenancy.fit_pause(&mut self.window);
        let keeps_parked = recovered.and_then(|recovered| self.go_on(recovered)).is_some();
        self.change_limits(before.limits(), now);
        self.out.waiters = true;
        self.watching.stalls.restart(now.get());
        let elapsed = self.tenancy.awaited.take().map(|awaited| now.get().saturating_duration_since(awaited.since));
        self.out.tell(&Event { elapsed, ..Event::new(EventKind::TookOver, self.window.lowest_undone()) }, now);
        if self.out.is_observed() {
            let (elapsed, status) = (elapsed.unwrap_or_default(), Box::new(self.status(now)));
            self.out.telling.notice(Notice::TookOver { elapsed, status });
        }
        keeps_parked
    }
}

impl Driver {
    /// Calls the consumers of this process that may wait for the name of this one.
    pub(in crate::driver) fn call_standbys(&self) {
        if with_list(|list| !list.is_empty()) {
            call_standbys_for(&self.watermark.name());
        }
    }

    /// Tries to acquire the name at once if it is this one.
    pub(in crate::driver) fn hear_of_free(&self, name: &str) {
        if name != self.watermark.name() && name != UNNAMED {
            return;
        }
        let mut core = self.core.lock();
        core.tenancy.awaited.iter_mut().for_each(|awaited| awaited.called = true);
        self.news.notify_all();
    }

    /// Makes the driver of a consumer on standby.
    pub(crate) fn waiting(core: Core, bell: Arc<Bell>, watermark: Watermark) -> Arc<Self> {
        let driver = Self::with(core, bell, watermark, None);
        // Its next try finds a name that was released since the first one.
        with_list(|list| list.push(driver.threads.host().clone()));
        driver
    }

    /// Sleeps until the next try to acquire the name, or until a consumer of this process releases
    /// it. Returns false once the consumer has ended.
    pub(crate) fn sleep_until_try(&self, until: Instant) -> bool {
        let mut timed_out = false;
        let mut core = self.core.lock();
        while !core.window.has_ended() && !timed_out && !core.tenancy.is_called_to_try() {
            timed_out = core.wait_by(&self.clock, &self.news, Some(until));
        }
        !core.window.has_ended()
    }

    /// True if the consumer has not ended on standby.
    pub(crate) fn still_waits(&self) -> bool {
        !self.core.lock().window.has_ended()
    }

    /// Takes this consumer off the list of those that are called when a name is released.
    pub(crate) fn tries_no_more(&self) {
        let me = self.threads.host();
        with_list(|list| list.retain(|other| !Weak::ptr_eq(other, me) && other.strong_count() > 0));
    }

    /// Notes that another consumer still has the name.
    pub(crate) fn waits_on(&self, refusal: NameInUse, now: &Now) {
        self.core.lock().tenancy.waits_on(refusal, now);
    }

    /// Notes that the storage failed during a try. Returns the pause before the next one.
    pub(crate) fn waits_out(&self, error: &Error, now: &Now) -> Duration {
        let mut core = self.core.lock();
        let text = describe(error);
        core.out.tell(&Event { index: None, ..Event::new(EventKind::NotAsked, 0).error(&text) }, now);
        let pause = core.tenancy.waits_out(text, now);
        self.settle(core, now);
        pause
    }

    /// Returns the current limits and the index at which to end, which a handle may have changed.
    pub(crate) fn asked_meanwhile(&self) -> (Limits, Option<Index>) {
        let window = &self.core.lock().window;
        (window.limits(), window.ends_at())
    }

    /// Begins the life of a consumer that has acquired its name. Returns true if the progress keeps
    /// records of parked jobs, or gives everything back if the consumer has ended.
    pub(crate) fn take_over(&self, takeover: Takeover) -> Result<bool, Box<Takeover>> {
        let mut core = self.core.lock();
        if core.window.is_stopping() || core.window.has_ended() {
            return Err(Box::new(takeover));
        }
        let Takeover { window, last_processed, met, fence, recovered, pool, source, saves, name } = takeover;
        let now = self.clock.when_asked();
        let next = window.lowest_undone();
        core.gates.meet(met);
        core.tenancy.fence = fence;
        (core.running.pool, core.reading.runs) = (Some(pool), Some(source));
        core.saving.deadline = SaveDeadline::new(saves.takes_help());
        *self.saves.lock() = Some(saves);
        core.registry.keep_name(name);
        core.out.observers.iter().for_each(|observers| observers.rename(self.watermark.name()));
        let keeps_parked = core.begin_life(window, recovered, &now);
        self.watermark.note_parked(core.take_parked_news().parked);
        self.watermark.begin(next);
        if let Some(last) = last_processed {
            self.watermark.publish(last);
            core.waiters.call_up_to(last);
        }
        // Nothing runs yet, so the observers hear of the takeover before any attempt.
        let tells = core.begin_telling();
        drop(core);
        self.wake_called();
        if tells {
            self.tell();
        }
        Ok(keeps_parked)
    }

    /// Finishes a takeover: an upstream may have ended before this consumer listened, and a caller
    /// may wait for the takeover.
    pub(crate) fn taken_over(&self) {
        self.step(|core, _| core.end_within_reach());
        self.changed.notify_all();
    }

    /// Halts the consumer with an error of its start, which was delayed by the standby.
    pub(crate) fn fail_late(&self, error: Error) {
        let (text, source) = (describe(&error), std::error::Error::source(&error).map(describe));
        drop_guarded(self.step(|core, now| {
            let index = match &error {
                Error::Source { index, .. } => *index,
                Error::Truncated { next, .. } => *next,
                _ => core.window.lowest_undone(),
            };
            core.ctx(now).halt(index, text, error, source.as_deref().unwrap_or_default())
        }));
    }

    /// Waits until the consumer has its name or has ended.
    pub(crate) fn wait_for_name(&self) {
        let mut core = self.core.lock();
        while core.tenancy.awaited.is_some() && !core.window.has_ended() {
            core.wait_until(&self.changed, None);
        }
    }
}

#[cfg(not(waterline_loom))]
fn with_list<R: Default>(change: impl FnOnce(&mut Vec<Weak<Driver>>) -> R) -> R {
    change(&mut WAITING.lock())
}

/// A model has no list.
#[cfg(waterline_loom)]
fn with_list<R: Default>(_: impl FnOnce(&mut Vec<Weak<Driver>>) -> R) -> R {
    R::default()
}

/// Calls the consumers that may wait for this name.
fn call_standbys_for(name: &str) {
    let waiting: Vec<Arc<Driver>> = with_list(|list| list.iter().filter_map(Weak::upgrade).collect());
    for one in waiting {
        one.hear_of_free(name);
        // This may be the last reference to a consumer.
        drop_guarded(one);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::samples;
    use crate::observe::status::Blocked;
    use crate::reader::Fetched;
    use crate::run::Runner;

    const HOUR: Duration = Duration::from_secs(3600);

    fn leased(expires_in: Duration) -> NameInUse {
        let error = Error::Leased { name: "a name".to_owned(), holder: "node a".to_owned(), expires_in };
        NameInUse::of(error).unwrap()
    }

    /// A consumer on standby since this time.
    fn waiting(name: &str, now: Instant) -> Arc<Driver> {
        let mut core = samples::core(2, 9, now);
        core.await_name(leased(Duration::from_secs(3)), &Now::at(now));
        let watermark = Watermark::new();
        watermark.reserve(Some(name.to_owned()), Vec::new()).unwrap();
        Driver::waiting(core, Arc::default(), watermark)
    }

    #[test]
    fn the_lease_shrinks_until_a_refusal_renews_it() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let driver = waiting("a name", now);
        let rest = |after| match driver.core.lock().status(&Now::at(now + after)).blocked {
            Blocked::InUse { expires_in, .. } => expires_in,
            other => panic!("{other:?}"),
        };
        assert_eq!([rest(second), rest(9 * second)], [Some(2 * second), Some(Duration::ZERO)]);
        driver.waits_on(leased(3 * second), &Now::at(now + 5 * second));
        assert_eq!(rest(6 * second), Some(2 * second));
        driver.waits_on(leased(Duration::MAX), &Now::at(now + 5 * second));
        assert_eq!(rest(6 * second), None, "beyond the end of the clock is for ever");
    }

    #[test]
    fn a_freed_name_or_a_stop_ends_the_sleep_at_once() {
        let now = Instant::now();
        let (driver, other) = (waiting("a name of this test", now), waiting("another name of this test", now));
        let sleeper = |driver: &Arc<Driver>| {
            let driver = driver.clone();
            std::thread::spawn(move || driver.sleep_until_try(now + HOUR))
        };
        let (mine, others) = (sleeper(&driver), sleeper(&other));
        call_standbys_for("a name of this test");
        assert!(mine.join().unwrap(), "it tries");
        other.request_stop();
        assert!(!others.join().unwrap(), "it has ended, and nobody has called it");
        driver.tries_no_more();
        call_standbys_for("a name of this test");
        assert!(!driver.core.lock().tenancy.is_called_to_try());
    }

    struct IdleRunner;

    impl Runner<()> for IdleRunner {}

    impl ReadRuns for IdleRunner {
        fn read_run(&self, _: crate::reader::Ask) -> Fetched {
            unreachable!("there is no reader")
        }

        fn read_beside(&self, _: crate::reader::Ask) -> Fetched {
            unreachable!("there is no reader")
        }
    }

    #[test]
    fn settings_made_on_standby_hold_after_a_takeover() {
        let driver = waiting("a name", Instant::now());
        driver.set_paused(true);
        driver.stop_at(8);
        driver.set_limits(&|limits| limits.max_search_ahead = 5).unwrap();
        let never = |index| driver.core.lock().never(index);
        assert!(never(Index::MAX) && !never(9), "the one who has the name may be that far");
        let takeover = Takeover {
            window: Window::resume(3, Limits { max_processing: 2, max_search_ahead: 9 }),
            last_processed: Some(3),
            met: Met::default(),
            fence: 7,
            recovered: None,
            pool: driver.pool(Arc::new(IdleRunner)),
            source: Arc::new(IdleRunner),
            saves: Arc::new(samples::ByHand),
            name: Box::new(()),
        };
        assert_eq!(driver.take_over(takeover).ok(), Some(false));
        assert!(never(9));
        let core = driver.core.lock();
        let window = &core.window;
        assert_eq!((window.is_paused(), window.ends_at(), window.next()), (true, Some(8), 4));
        assert_eq!((window.limits().max_search_ahead, core.tenancy.fence), (5, 7));
        assert_eq!((core.state(), driver.watermark.last_processed()), (crate::State::Paused, Some(3)));
    }
}
