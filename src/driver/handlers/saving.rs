//! The driver's side of saving: when to hurry, retry or abandon a save.

use crate::base::{BoxError, Error, caught::Caught, guard::drop_guarded, retry::Retry, time::Now};
use crate::commit::changes::{Changes, Refused};
use crate::driver::{Driver, core::Core, outbox::Ctx};
use crate::observe::{Event, EventKind, observers::Notice};
use crate::progress::{Checkpoint, DoneAhead, SavePort, Snapshot};
use crate::window::SaveContent;
use std::time::Duration;

const SAVE_BACK_OFF: Retry = Retry::exponential(Duration::from_millis(20), Duration::from_secs(5));

impl Core {
    /// Begins a save that is due. `None`: none is due, or no save may be made any more.
    fn begin_save(&mut self) -> Option<SaveContent<'_>> {
        self.saving.deadline.end();
        if self.tenancy.lost {
            self.abandon_save();
            return None;
        }
        if let Some(writing) = self.saving.writing.as_mut().filter(|_| self.window.is_saving()) {
            writing.take_batch(&mut self.failed_jobs, &mut self.window);
        }
        self.window.handle_saving()
    }

    /// Returns the watermark to be written now.
    pub(crate) fn checkpoint(&mut self) -> Option<Checkpoint> {
        self.begin_save()?.last_processed.map(Checkpoint::new)
    }

    /// Returns the content of a save that keeps everything that is done.
    pub(crate) fn snapshot(&mut self, all: bool, effects: &mut Vec<Changes>) -> Option<Snapshot> {
        let SaveContent { last_processed, next, ahead, .. } = self.begin_save()?;
        let ahead = match ahead.new {
            Some(new) if !all => DoneAhead::New(new.to_vec()),
            _ => {
                let (first, words) = ahead.words();
                DoneAhead::All { first, words: words.collect() }
            }
        };
        // The same critical section, so a job's effects and its completion are written together.
        self.out.effects.hand_over(effects);
        self.running.batches.iter_mut().for_each(|batches| batches.hand_over());
        self.running.keys.iter_mut().for_each(|keys| keys.hand_over());
        self.failed_jobs.taken();
        let batch = self.saving.writing.as_ref().and_then(|writing| writing.batch());
        Some(Snapshot { last_processed, next, ahead, life: self.failed_jobs.life.take(), batch })
    }

    /// Takes back that these jobs are done, the lowest first: their attempts failed, for good if
    /// the writer can never make their adds. Returns values to be dropped without the lock.
    pub(crate) fn refused(&mut self, jobs: Vec<Refused>, now: &Now) -> Vec<BoxError> {
        self.out.waiters = true;
        self.out.reader = true;
        let (mut for_good, mut in_batch, mut surplus) = (Vec::new(), false, Vec::new());
        for Refused { index, attempt, error } in jobs {
            let never = error.is_for_good();
            let failure = Caught::from(BoxError::from(error));
            if self.batch_refused(index, &failure.text, now) {
                // It may be another job's failure; the job at fault then fails alone.
                in_batch |= never;
                surplus.push(failure.error);
                continue;
            }
            self.saving.done -= 1;
            self.running.keys.iter_mut().for_each(|keys| keys.refused(index));
            // The window already counts a redriven job as done, outside of the save.
            let (failed_jobs, mut at) = self.failed_jobs(now);
            if failed_jobs.records.undo(index) {
                failed_jobs.failed += 1;
                failed_jobs.redrive_refused(index, attempt, &failure.text, &mut at);
                surplus.push(failure.error);
                continue;
            }
            let revoked = at.window.handle_revoked(index);
            debug_assert!(revoked, "job {index} was done, and is in the save that is being written");
            failed_jobs.records.take_back(index);
            if !never {
                // The next attempt may not meet this error.
                surplus.extend(failed_jobs.job_failed(index, attempt, failure, &mut at));
                continue;
            }
            failed_jobs.failed += 1;
            if in_batch {
                failed_jobs.failures.note(index, 0, failure.text, Duration::ZERO, now);
                surplus.push(failure.error);
            } else {
                for_good.push((index, attempt, failure));
            }
        }
        let mut lowest = true;
        for (index, attempt, failure) in for_good {
            let halted = self.ending.error.is_some();
            let (failed_jobs, mut at) = self.failed_jobs(now);
            // The lowest job that cannot be parked halts the consumer. Others wait for the next
            // life.
            if std::mem::take(&mut lowest) || !halted && failed_jobs.records.has_room(index) {
                surplus.extend(failed_jobs.exhausted(index, attempt, failure, &mut at));
            } else {
                failed_jobs.failures.note(index, 0, failure.text, Duration::ZERO, now);
                surplus.push(failure.error);
            }
        }
        surplus
    }

    pub(crate) fn saved(&mut self, now: &Now) {
        self.saving.saves += 1;
        let begun = std::mem::take(&mut self.saving.under_way).begun;
        let before = self.window.lowest_unprocessed();
        self.window.handle_saved();
        if self.window.lowest_unprocessed() > before {
            self.watching.stalls.moved(now);
        }
        if let Some(limits) = self.failed_jobs.life.saved(self.window.limits()) {
            self.set_limits(limits, now);
        }
        let mut at = Ctx { window: &mut self.window, ending: &mut self.ending, out: &mut self.out, now };
        self.failed_jobs.saved(&mut at);
        if let Some(writing) = &mut self.saving.writing {
            self.saving.done += writing.written(&mut self.failed_jobs, &mut at) as u64;
        }
        self.out.effects.written();
        self.running.batches.iter_mut().for_each(|batches| batches.written());
        let written = self.running.keys.as_mut().map(|keys| keys.written());
        written.into_iter().flatten().for_each(|index| self.out.pass(index));
        self.window.set_full(self.out.effects.is_full());
        if self.tenancy.lost {
            self.abandon_save();
        }
        let last_processed = self.window.last_processed();
        self.out.notice(|| {
            let elapsed = begun.map(|begun| now.get().saturating_duration_since(begun)).unwrap_or_default();
            Notice::Saved { last_processed, elapsed, count: 1 }
        });
    }

    /// Notes that the content of a save is now fixed. Reads the clock only for observers.
    fn save_begins(&mut self) {
        if self.out.is_observed() && self.saving.under_way.begun.is_none() {
            self.saving.under_way.begun = Some(self.clock.now());
        }
    }

    /// Returns the pause before the next try, if there is one, and a value to drop without the
    /// lock.
    pub(crate) fn save_failed(&mut self, failure: Caught, now: &Now) -> (Option<Duration>, Option<BoxError>) {
        if self.tenancy.lost {
            self.abandon_save();
            return (None, Some(failure.error));
        }
        let index = self.window.lowest_undone();
        self.out.tell(&Event::new(EventKind::SaveFailed, index).error(&failure.text), now);
        self.saving.under_way.error = Some(failure.text);
        // From now on only the end of the consumer hurries the save.
        self.saving.under_way.hurried = false;
        self.saving.under_way.failures = self.saving.under_way.failures.saturating_add(1);
        if !self.window.is_stopping() || self.window.in_flight() > 0 {
            let pause = SAVE_BACK_OFF.jitter(0.2).delay(self.saving.under_way.failures, now.chance());
            return (pause, Some(failure.error));
        }
        if !std::mem::replace(&mut self.saving.under_way.last_try, true) {
            self.saving.under_way.hurried = true;
            return (Some(Duration::ZERO), Some(failure.error));
        }
        self.window.handle_save_abandoned();
        if self.ending.error.is_some() {
            return (None, Some(failure.error));
        }
        let text = self.saving.under_way.error.take().unwrap_or_default();
        let index = self.window.lowest_unprocessed();
        let error = Error::Progress { source: failure.error };
        self.ctx(now).halt_for(index, format!("the progress could not be saved: {text}"), error, &text);
        (None, None)
    }

    /// Notes that the user's part of a transaction failed, so nothing of it is written. Returns a
    /// value to be dropped without the lock.
    fn write_failed(&mut self, failure: Caught, now: &Now) -> Option<BoxError> {
        let mut at = Ctx { window: &mut self.window, ending: &mut self.ending, out: &mut self.out, now };
        match &mut self.saving.writing {
            Some(writing) => writing.failed(failure, &mut self.failed_jobs, &mut at),
            None => Some(failure.error),
        }
    }
}

impl SavePort for Driver {
    fn wall(&self) -> u64 {
        self.clock.wall()
    }

    fn is_hurried(&self) -> bool {
        self.core.lock().saving.under_way.hurried
    }

    fn checkpoint(&self) -> Option<Checkpoint> {
        let mut core = self.core.lock();
        core.save_begins();
        let checkpoint = core.checkpoint();
        if checkpoint.is_none() {
            // If the save was abandoned, the end of the consumer may have waited for it.
            self.settle_saving(core, &self.clock.when_asked());
        }
        checkpoint
    }

    fn snapshot(&self, all: bool, effects: &mut Vec<Changes>) -> Option<Snapshot> {
        let mut core = self.core.lock_awake();
        core.save_begins();
        let snapshot = core.snapshot(all, effects);
        if snapshot.is_none() {
            self.settle_saving(core, &self.clock.when_asked());
        }
        snapshot
    }

    fn refused(&self, refused: Vec<Refused>, all: bool, effects: &mut Vec<Changes>) -> Option<Snapshot> {
        let (surplus, snapshot) = self.step_saving(|core, now| {
            let surplus = core.refused(refused, now);
            // This save includes the halt, if there is one.
            core.write_halt(now);
            (surplus, core.snapshot(all, effects))
        });
        surplus.into_iter().for_each(drop_guarded);
        snapshot
    }

    fn saved(&self) {
        let mut core = self.core.lock_awake();
        let now = self.clock.when_asked();
        core.saved(&now);
        // Published under the lock, so every caller that hears of the save sees it, and a reader
        // that sees a parked job passed also sees that it is still needed.
        let news = core.take_parked_news();
        self.watermark.note_parked(news.parked);
        core.window.last_processed().into_iter().for_each(|last| self.watermark.publish(last));
        self.settle_saving(core, &now);
        self.watermark.announce();
        self.watermark.note_unparked(&news.released);
    }

    fn save_failed(&self, error: BoxError) -> Option<Duration> {
        let failure = Caught::from(error);
        let (again, surplus) = self.step_saving(|core, now| core.save_failed(failure, now));
        drop_guarded(surplus);
        again
    }

    fn save_lost(&self, error: BoxError) {
        self.lose_name(error);
    }

    fn write_failed(&self, error: BoxError) {
        let failure = Caught::from(error);
        drop_guarded(self.step_saving(|core, now| {
            let surplus = core.write_failed(failure, now);
            core.saving.under_way.begins_anew();
            surplus
        }));
    }

    /// Halts the consumer, since it is unknown whether a transaction is written.
    fn save_unknown(&self, error: BoxError) {
        let Caught { error: source, text, .. } = Caught::from(error);
        self.halt_after_last_save(Error::Progress { source }, text.clone(), &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::sync::{Arc, Mutex};
    use crate::base::{clock::Clock, time::Sleep};
    use crate::driver::samples;
    use crate::progress::{MemoryProgress, Progress};
    use crate::saver::{Keeps, saver};
    use crate::source::watermark::Watermark;
    use std::time::Instant;

    /// A progress that saves once an hour while jobs run.
    struct Hourly(MemoryProgress);

    impl Progress for Hourly {
        fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
            self.0.acquire()
        }

        fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
            self.0.save(checkpoint)
        }

        fn pace(&self) -> Duration {
            Duration::from_secs(3600)
        }
    }

    #[test]
    fn a_hurry_that_overtakes_its_save_is_not_lost() {
        let mut core = samples::core(2, 9, Instant::now());
        samples::read(&mut core, 3);
        let memory = MemoryProgress::new();
        let mut progress = Hourly(memory.clone());
        assert!(progress.acquire().unwrap().is_none());
        let (handle, mut saver) = saver(Arc::new(Mutex::new(progress)), Keeps::Watermark, Clock::default());
        let driver = Driver::new(core, Arc::default(), Watermark::new(), Arc::new(handle));
        let now = Now::at(Instant::now());
        let end = |index| {
            let mut core = driver.core.lock();
            while core.window.next() <= index {
                assert!(core.window.poll_run().is_some());
            }
            assert!(core.window.handle_done(index));
            core.drain(&now)
        };
        driver.carry_out(end(0));
        assert_eq!((saver.step(&now), memory.last_processed()), (Sleep::No, Some(0)), "the first has no pace");
        // Two threads report a job each, and the second one carries out its wakes first.
        (0..2).for_each(|_| assert!(driver.core.lock().window.poll_run().is_some()));
        let (first, second) = (end(1), end(2));
        assert!(first.save && !first.hurry && !second.save && second.hurry);
        driver.carry_out(second);
        driver.carry_out(first);
        assert_eq!((saver.step(&now), memory.last_processed()), (Sleep::No, Some(2)));
    }
}
