//! Batches: jobs that a thread takes in one critical section, and that are done, or fail, together.
//!
//! A partial batch may *linger*: its jobs wait in the window, not in flight, so a pause, a stop or
//! a lower limit has nothing to take back. One thread sleeps until the linger is over; if the batch
//! is full before, any thread that wakes takes it.
//!
//! When a batch of several jobs fails, that is no failed attempt. Each of its jobs runs alone until
//! it succeeds, so that the job at fault fails by itself.

use super::handing_out::{Found, Rest, Search};
use crate::base::{BoxError, Index, caught::Caught, guard::drop_guarded, time::Now};
use crate::commit::changes::Changes;
use crate::driver::{
    Driver, core::Core, effects, flights::Flight, outbox::Wakes, running::BatchSettings, whole::CoreGuard,
};
use crate::observe::{Event, EventKind};
use crate::run::{Assignment, Batch, JobPort, Task, Ticket, worker::Report};
use crate::window::batches::Next;
use std::time::Duration;

/// The attempt of each job in a batch of several: jobs that have failed are in none.
const FIRST: u32 = 1;

type BatchOutcome = Result<(), Box<Caught>>;

impl Core {
    /// Hands out the jobs of the next batch, if one starts now. The caller still [takes](Self::job)
    /// the values. Returns true if the calling thread lingers with a partial batch.
    fn gather(&mut self, tickets: &mut Vec<Ticket>, now: &Now) -> bool {
        let Some(batches) = &mut self.running.batches else { return false };
        let next = batches.look(&self.window, &self.failed_jobs.failures, || now.get());
        let max = batches.max;
        match next {
            Next::Nothing => return false,
            Next::Partial => {
                batches.lingering += 1;
                return true;
            }
            Next::One => {
                if let Some(run) = self.window.poll_alone() {
                    tickets.push(self.assign(run, now.coarse(), now));
                }
            }
            Next::Whole => {
                batches.until = None;
                while tickets.len() < max {
                    let failures = &self.failed_jobs.failures;
                    let Some(run) = self.window.poll_together(|index| failures.is_alone(index)) else { break };
                    tickets.push(self.assign(run, now.coarse(), now));
                }
            }
        }
        false
    }

    /// Returns what a thread does next that lingers with a partial batch.
    fn linger(&mut self, search: &mut Search, wakes: &Wakes) -> Rest {
        if let Some(rest) = self.stay_awake(search, wakes) {
            return rest;
        }
        self.workers.lingers();
        Rest::Linger(self.running.batches.as_ref().and_then(|batches| batches.until))
    }

    /// Takes the report of a batch and removes its tickets. Returns a value of the user, to be
    /// dropped without the lock.
    fn report_batch(
        &mut self,
        tickets: &mut Vec<Ticket>,
        outcome: BatchOutcome,
        effects: &mut Changes,
        now: &Now,
    ) -> Option<BoxError> {
        match (outcome, tickets.as_slice()) {
            (outcome, [Ticket { token, .. }]) => {
                let token = *token;
                tickets.clear();
                self.report(token, outcome, effects, now)
            }
            (Ok(()), _) => {
                self.batch_done(tickets, effects);
                None
            }
            (Err(failure), _) => {
                self.batch_failed(tickets, &failure.text, now);
                Some(failure.error)
            }
        }
    }

    fn batch_done(&mut self, tickets: &mut Vec<Ticket>, effects: &mut Changes) {
        let mut added = if effects.may_be_refused() { Vec::with_capacity(tickets.len()) } else { Vec::new() };
        let mut lowest = None;
        for Ticket { token, .. } in tickets.drain(..) {
            let flight = self.running.flights.end(token).filter(|_| !self.ending.abandoned);
            let Some(Flight { index, again, .. }) = flight else { continue };
            self.saving.done += 1;
            self.window.handle_done(index);
            if again {
                self.failed_jobs.failures.forget(index);
            }
            if self.failed_jobs.has_records {
                self.failed_jobs.unpark(index, effects, &mut self.window);
            }
            lowest = Some(lowest.map_or(index, |lowest: Index| lowest.min(index)));
            if added.capacity() > 0 {
                added.push(index);
            }
        }
        let Some(lowest) = lowest.filter(|_| !effects.is_empty()) else { return };
        if let Some(batches) = self.running.batches.as_mut().filter(|_| !added.is_empty()) {
            added.sort_unstable();
            batches.added[0].push(added.into_boxed_slice());
        }
        self.out.effects.take(effects, lowest, FIRST);
        self.window.set_full(self.out.effects.is_full());
    }

    #[cold]
    fn batch_failed(&mut self, tickets: &mut Vec<Ticket>, error: &str, now: &Now) {
        let (count, mut lowest) = (tickets.len(), None);
        for Ticket { token, .. } in tickets.drain(..) {
            let flight = self.running.flights.end(token).filter(|_| !self.ending.abandoned);
            let Some(Flight { index, .. }) = flight else { continue };
            lowest = Some(lowest.map_or(index, |lowest: Index| lowest.min(index)));
            self.window.handle_failed(index);
            self.run_alone(index, count, error, now);
        }
        // A stopping consumer runs none of them again.
        self.out.waiters |= self.window.is_stopping();
        let text = format!("{count} jobs: {error}");
        let event = lowest.map(|lowest| Event::new(EventKind::BatchFailed, lowest).error(&text));
        event.into_iter().for_each(|event| self.out.tell(&event, now));
    }

    /// Makes a job of a failed batch due again at once, by itself.
    fn run_alone(&mut self, index: Index, count: usize, error: &str, now: &Now) {
        let text = format!("it was in a batch of {count} jobs that failed, so it runs alone: {error}");
        let (failed_jobs, mut at) = self.failed_jobs(now);
        failed_jobs.defer(index, FIRST, text, Duration::ZERO, &mut at);
    }

    /// Takes back the success of a batch of several, if this is its lowest job: the writer cannot
    /// make one of its effects, and does not know whose.
    pub(super) fn batch_refused(&mut self, lowest: Index, error: &str, now: &Now) -> bool {
        let batch = self.running.batches.as_mut().and_then(|batches| batches.take_added(lowest));
        let Some(batch) = batch else { return false };
        self.saving.done -= batch.len() as u64;
        for index in &batch {
            let revoked = self.window.handle_revoked(*index);
            debug_assert!(revoked, "job {index} was done, and is in the save that is being written");
            self.failed_jobs.records.take_back(*index);
            self.run_alone(*index, batch.len(), error, now);
        }
        let text = format!("{} jobs: {error}", batch.len());
        self.out.tell(&Event::new(EventKind::BatchFailed, lowest).error(&text), now);
        true
    }
}

impl Driver {
    /// Makes jobs run in batches of at most `max`. Has to be called before anything runs.
    pub(crate) fn set_batches(&self, max: usize, linger: Duration) {
        let mut core = self.core.lock();
        core.running.batches = Some(BatchSettings::new(max, linger));
        core.workers.in_batches = true;
    }

    /// Reports the batch that has run, if there is one, and takes the next in the same critical
    /// section. Returns false if the calling thread has to end.
    pub(super) fn take_batch<T: Send + 'static>(&self, batch: &mut Batch<T>, effects: &mut Changes) -> bool {
        // Most batches are as large as the one before, so this allocates without the lock.
        batch.jobs.reserve(batch.tickets.len());
        let outcome = std::mem::replace(&mut batch.outcome, Ok(()));
        let Some((mut core, wakes)) = self.next_batch_of(&mut batch.tickets, outcome, effects) else { return false };
        batch.jobs.extend(batch.tickets.iter().map(|ticket| core.job(*ticket)));
        drop(core);
        self.carry_out(wakes);
        if self.observes {
            self.observe_begin(batch.tickets.iter().map(|ticket| (ticket.index, ticket.attempt)));
        }
        true
    }

    /// Reports the batch with these tickets, if there is one, and replaces them with those of the
    /// next. The caller takes the jobs from the core, and then carries out the wakes without the
    /// lock. `None`: the thread has to end.
    fn next_batch_of(
        &self,
        tickets: &mut Vec<Ticket>,
        mut outcome: BatchOutcome,
        effects: &mut Changes,
    ) -> Option<(CoreGuard<'_>, Wakes)> {
        self.confirm_batch(tickets, &mut outcome);
        let mut core = self.core.lock();
        let mut now = self.clock.when_asked();
        if !tickets.is_empty() {
            let surplus = core.report_batch(tickets, outcome, effects, &now);
            effects::clear(effects);
            if surplus.is_some() {
                self.unlocked(&mut core, || drop_guarded(surplus));
                now = self.clock.when_asked();
            }
        }
        if core.saving.is_late(&now) {
            core = self.help_saving(core, &now);
            now = self.clock.when_asked();
        }
        let mut search = Search::default();
        loop {
            if let Some((source, run)) = core.begin_reading(&now) {
                core = self.read_for_itself(core, source, run, &mut search);
                now = self.clock.when_asked();
            }
            let lingers = core.gather(tickets, &now);
            let wakes = core.drain(&now);
            if !tickets.is_empty() {
                return Some((core, wakes));
            }
            let rest = if lingers { core.linger(&mut search, &wakes) } else { core.rest(&mut search, &wakes, &now) };
            core = self.rest(core, rest, wakes, &mut search)?;
            if lingers {
                // A thread that has lingered was not idle.
                search.slept = false;
                core.running.batches.iter_mut().for_each(|batches| batches.lingering -= 1);
            }
            now = self.clock.when_asked();
        }
    }

    /// Calls `on_job_done` for each job of a successful batch, which counts unless that panics. The
    /// observers hear of it first.
    fn confirm_batch(&self, tickets: &[Ticket], outcome: &mut BatchOutcome) {
        if !self.confirms || tickets.is_empty() {
            return;
        }
        if outcome.is_ok() {
            *outcome = self.call_on_job_done(tickets.iter().map(|ticket| ticket.index));
        }
        if self.observes {
            self.observe_end(tickets.iter().map(|ticket| ticket.index), outcome);
        }
    }
}

/// The part that knows the type of the jobs: small, since it is compiled once for each type.
impl<T: Send + 'static> JobPort<T> for Driver {
    fn next(&self, report: &mut Option<Report>, effects: &mut Changes) -> Option<Task<T>> {
        let (mut core, wakes, found) = self.next_task(report, effects)?;
        let task = match found {
            Found::Run(ticket) => Task::Run(Assignment { token: ticket.token, job: core.job(ticket) }),
            Found::Deliver(turn) => Task::Deliver(turn),
        };
        core.fill_tray();
        self.carry_out(wakes);
        if self.observes
            && let Task::Run(Assignment { job, .. }) = &task
        {
            self.observe_begin(std::iter::once((job.index, job.attempt)));
        }
        Some(task)
    }

    #[inline]
    fn next_at_hand(&self, report: &mut Option<Report>) -> Option<Assignment<T>> {
        self.core.next_in_tray(report)
    }

    fn goes_on(&self) {
        self.step(|core, _| core.leave_tray());
    }

    fn next_batch(&self, batch: &mut Batch<T>, effects: &mut Changes) -> bool {
        self.take_batch(batch, effects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::time;
    use crate::driver::samples::{self, read};
    use crate::observe::listening::Listens;
    use std::time::Instant;

    const LINGER: Duration = Duration::from_millis(10);

    /// A consumer that has caught up, with batches of at most four jobs.
    fn core(linger: Duration) -> Core {
        let mut core = samples::core(8, 1000, time::now());
        core.running.batches = Some(BatchSettings::new(4, linger));
        core
    }

    /// Lets a thread ask at this time. Returns the jobs that it gets, and whether it lingers.
    fn ask(core: &mut Core, now: Instant) -> (Vec<u64>, bool) {
        let mut batch = Vec::new();
        let lingers = core.gather(&mut batch, &Now::at(now));
        if lingers {
            core.running.batches.as_mut().unwrap().lingering -= 1;
        }
        (batch.into_iter().map(|ticket| core.job::<u64>(ticket).payload).collect(), lingers)
    }

    fn wants(core: &mut Core, now: Instant) -> bool {
        core.running.has_work(&core.window, &core.failed_jobs.failures, now)
    }

    #[test]
    fn the_linger_begins_when_a_batch_is_first_seen() {
        let begin = Instant::now();
        let mut core = core(LINGER);
        read(&mut core, 1);
        assert!(wants(&mut core, begin), "a thread is to wait with it");
        assert_eq!(ask(&mut core, begin + LINGER), (vec![0], false));
    }

    #[test]
    fn one_thread_lingers_and_a_full_batch_wakes_another() {
        let begin = Instant::now();
        let mut core = core(LINGER);
        read(&mut core, 1);
        assert!(core.gather(&mut Vec::new(), &Now::at(begin)));
        assert!(!wants(&mut core, begin) && !wants(&mut core, begin + LINGER / 2), "one thread is enough");
        read(&mut core, 3);
        assert!(wants(&mut core, begin + LINGER / 2));
        assert_eq!(ask(&mut core, begin + LINGER / 2).0, [0, 1, 2, 3]);
        // The thread that lingers wakes early for the next batch, and goes on waiting.
        read(&mut core, 1);
        assert!(!wants(&mut core, begin + LINGER / 2));
        assert_eq!(ask(&mut core, begin + LINGER), (vec![], true));
        assert_eq!(ask(&mut core, begin + LINGER * 3 / 2), (vec![4], false));
    }

    #[test]
    fn a_linger_may_be_zero_or_endless() {
        let begin = Instant::now();
        let mut never = core(Duration::ZERO);
        read(&mut never, 1);
        assert_eq!(ask(&mut never, begin), (vec![0], false));
        let mut long = core(Duration::MAX);
        read(&mut long, 1);
        assert_eq!(ask(&mut long, begin), (vec![], true));
        assert_eq!(ask(&mut long, begin + Duration::from_secs(86_400)), (vec![], true));
        long.window.stop_at(0);
        assert_eq!(ask(&mut long, begin), (vec![0], false), "nothing more can come");
    }

    #[test]
    fn a_batch_lingers_anew_after_a_pause() {
        let begin = Instant::now();
        let mut core = core(LINGER);
        read(&mut core, 1);
        assert_eq!(ask(&mut core, begin), (vec![], true));
        core.window.set_paused(true);
        assert_eq!(ask(&mut core, begin + LINGER), (vec![], false));
        core.window.set_paused(false);
        assert_eq!(ask(&mut core, begin + LINGER * 2), (vec![], true), "more may come after the pause");
        assert_eq!(ask(&mut core, begin + LINGER * 3), (vec![0], false));
    }

    #[test]
    fn a_batch_failure_is_told_unless_abandoned() {
        let _listens = tracing::subscriber::set_default(Listens::default());
        let now = Now::at(Instant::now());
        for abandoned in [false, true] {
            let mut core = core(LINGER);
            read(&mut core, 4);
            let mut batch = Vec::new();
            assert!(!core.gather(&mut batch, &now) && batch.len() == 4);
            if abandoned {
                core.abandon(&now);
            }
            let refused = Err(Caught::boxed("refused".into()));
            drop(core.report_batch(&mut batch, refused, &mut Changes::default(), &now));
            assert_eq!(core.begin_telling(), !abandoned);
        }
    }
}
