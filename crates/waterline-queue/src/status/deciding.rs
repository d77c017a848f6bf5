//! Why no job starts, from what is known of the queue, its runner and its workers.

use crate::engine::StatusInputs;
use crate::notify::losses::{AllBusy, Stuck};
use crate::notify::shared::Trouble;
use crate::rules::still::{patience, stands_still};
use crate::status::{UNTAKEN, Waits};
use crate::types::limit::LimitOf;
use std::time::{Duration, Instant};
use waterline::seam::Moment;

/// What is known of a queue at a moment.
pub(super) struct Facts<'a> {
    pub(super) at: &'a Moment,
    pub(super) inputs: &'a StatusInputs,
    pub(super) trouble: &'a Trouble,
    /// The slots of the runner in this process.
    pub(super) slots: Option<usize>,
    /// The slots among them whose jobs are lost.
    pub(super) stuck: Option<&'a Stuck>,
    /// Those slots, if all of them are busy.
    pub(super) all_busy: Option<&'a AllBusy>,
    /// True if that runner claims no more jobs.
    pub(super) is_stopping: bool,
    /// True if a thread here waits for a job.
    pub(super) is_awaited: bool,
    /// How many of the kinds in lines no worker takes.
    pub(super) untaken: usize,
    pub(super) is_shared: bool,
    pub(super) lease: Duration,
}

impl Facts<'_> {
    /// Returns the first reason, in the order in which an operator has to deal with them.
    pub(super) fn waits(&self) -> Waits {
        let Self { at, inputs, trouble, .. } = self;
        let till = |wall: u64| Duration::from_millis(wall.saturating_sub(at.wall));
        let counts = &inputs.counts;
        if let Some((error, begun)) = &trouble.failing {
            return Waits::StoreFails { error: error.clone(), since: self.since(*begun) };
        }
        if let Some(until) = inputs.paused_until {
            return Waits::Paused { left: (until < u64::MAX).then(|| till(until)) };
        }
        // Jobs may be meant to run for long. They hold nothing up while no other one is due.
        if counts.ready == 0 && inputs.lapsed.0 == 0 && inputs.due.is_none_or(|due| due > at.wall) {
            return Waits::NothingReady { due_in: inputs.due.map(till) };
        }
        if let Some(stands_still) = self.standstill() {
            return stands_still;
        }
        // The gate is closed in this process only.
        if let Some((name, begun)) = trouble.closed.as_ref().filter(|_| !self.is_shared || self.is_alone()) {
            return Waits::Gate { name: name.clone(), since: self.since(*begun) };
        }
        if let (Some(runs), Some((begun, oldest))) = (inputs.alone, &inputs.oldest_running) {
            return Waits::Alone { runs, oldest: oldest.clone(), since: self.since(*begun) };
        }
        if let Some(until) = inputs.full {
            return Waits::Limited { limit: LimitOf::Queue, held: counts.ready, left: until.map(till) };
        }
        if let Some((limit, held, until)) = inputs.held.as_ref().filter(|_| inputs.only_held) {
            return Waits::Limited { limit: limit.clone(), held: *held, left: until.map(till) };
        }
        let no_worker = self.is_shared && self.has_no_worker();
        if inputs.only_in_lines && self.untaken == inputs.lines.len() && !no_worker {
            return Waits::OtherKinds;
        }
        if self.is_shared && !self.is_only_worker() { self.of_fleet() } else { self.of_workers() }
    }

    fn since(&self, since: Instant) -> Duration {
        self.at.now.saturating_duration_since(since)
    }

    /// Returns the reason if no job ends, so that none starts.
    fn standstill(&self) -> Option<Waits> {
        let fleet = &self.inputs.fleet;
        if !self.is_shared || self.is_only_worker() {
            return self.standstill_here();
        }
        let (slots, no_end, (worker, job)) = (fleet.full()?, fleet.newest_ran_for?, fleet.oldest.as_ref()?);
        let waits = Waits::StandsStill {
            slots: usize::try_from(slots).unwrap_or(usize::MAX),
            workers: Some(fleet.workers),
            worker: Some(worker.to_string()),
            oldest: job.id.clone(),
            kind: job.kind.clone(),
            since: job.ran_for,
            no_end,
        };
        stands_still(no_end, patience(self.lease, self.inputs.usual)).then_some(waits)
    }

    /// Does the same for the runner in this process.
    fn standstill_here(&self) -> Option<Waits> {
        let AllBusy { slots, since, patience, oldest: (begun, oldest), kind } = self.all_busy?;
        let no_end = self.since(*since);
        let (oldest, kind, slots) = (oldest.clone(), kind.clone(), *slots);
        let since = self.since(*begun);
        let waits = Waits::StandsStill { slots, workers: None, worker: None, oldest, kind, since, no_end };
        stands_still(no_end, *patience).then_some(waits)
    }

    /// True if this process has a runner, and is the only one. Then it knows best.
    fn is_only_worker(&self) -> bool {
        self.slots.is_some() && self.is_alone()
    }

    /// True if no other process takes jobs. A stopping process does not take any.
    fn is_alone(&self) -> bool {
        self.inputs.fleet.workers + usize::from(self.is_stopping) <= 1
    }

    /// True if no known process takes jobs, or ends those that it has within a minute.
    ///
    /// This process may not have reported itself yet, and a busy one may be in no list.
    fn has_no_worker(&self) -> bool {
        let StatusInputs { fleet, running, lapsed: (lapsed, _), .. } = self.inputs;
        let (stops, is_late) = (fleet.stopping > 0, self.due_for() >= UNTAKEN);
        let is_seen = running <= lapsed || !fleet.silent.is_empty() || stops;
        fleet.workers == 0 && (!stops || is_late) && is_seen && self.slots.is_none() && !self.is_awaited
    }

    /// Returns how long the oldest job has been due.
    fn due_for(&self) -> Duration {
        let due = self.inputs.oldest_ready.as_ref();
        Duration::from_millis(due.map_or(0, |(_, since)| self.at.wall.saturating_sub(*since)))
    }

    /// Returns the reason if there is no worker, all slots of all workers are busy, or none of them
    /// takes a due job for a minute. A job of a silent worker does not count as running.
    fn of_fleet(&self) -> Waits {
        let (inputs, fleet) = (self.inputs, &self.inputs.fleet);
        if self.has_no_worker() {
            return Waits::NoWorker;
        }
        if let (Some(slots), Some((_, job))) = (fleet.full(), &fleet.oldest) {
            let slots = usize::try_from(slots).unwrap_or(usize::MAX);
            return Waits::Busy { slots, since: job.ran_for, oldest: job.id.clone() };
        }
        let none_began = fleet.newest_ran_for.is_none_or(|ran| ran >= UNTAKEN);
        // Jobs that limits hold, or that wait in lines, may be old.
        let is_late = inputs.held.is_none() && inputs.lines.is_empty() && self.due_for() >= UNTAKEN;
        // Full slots without a job are those of jobs that were removed.
        if is_late && none_began && (fleet.has_free || fleet.full().is_some()) {
            let free = fleet.slots.map(|slots| slots.saturating_sub(fleet.busy));
            return Waits::Idle { workers: fleet.workers, free };
        }
        Waits::No
    }

    /// Returns the reason if all slots of this process are busy, or there are none.
    fn of_workers(&self) -> Waits {
        let running = self.inputs.running;
        let busy = running + self.stuck.map_or(0, |stuck| stuck.count);
        // A lost job still runs, though the store does not list it.
        let oldest = self.inputs.oldest_running.iter().chain(self.stuck.map(|stuck| &stuck.oldest)).min();
        match (self.slots, oldest) {
            (Some(slots), Some((begun, oldest))) if busy >= slots => {
                Waits::Busy { slots, since: self.since(*begun), oldest: oldest.clone() }
            }
            (None, _) if !self.is_awaited && running == 0 => Waits::NoWorker,
            _ => Waits::No,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fleet;
    use crate::rules::fleet::Fleet;
    use crate::types::job::{Counts, JobId};
    use crate::types::worker::WorkerInfo;
    use std::sync::LazyLock;

    const SECOND: Duration = Duration::from_secs(1);
    const WALL: u64 = 1_000_000_000;

    /// A worker with two slots, whose jobs have run for these seconds.
    fn worker(name: &str, jobs: &[u32]) -> WorkerInfo {
        fleet::tests::worker(name, Some(2), Some(&["k"]), jobs)
    }

    /// A queue that these workers share, with a job that has been due for `due_for` seconds.
    fn inputs(workers: &[WorkerInfo], due_for: u64) -> StatusInputs {
        let oldest_ready: Option<(JobId, u64)> = Some(("due".to_owned(), WALL - due_for * 1_000));
        StatusInputs {
            counts: Counts { ready: 1, ..Counts::default() },
            oldest_ready,
            only_held: false,
            lines: Vec::new(),
            only_in_lines: false,
            due: None,
            paused_until: None,
            alone: None,
            full: None,
            held: None,
            running: workers.iter().map(|worker| worker.jobs.len()).sum(),
            oldest_running: None,
            fleet: Fleet::of(workers),
            lapsed: (0, Duration::ZERO),
            usual: None,
            lease: None,
            set_back: None,
        }
    }

    fn waits_with<'f>(inputs: &'f StatusInputs, change: impl FnOnce(&mut Facts<'f>)) -> Waits {
        static AT: LazyLock<Moment> = LazyLock::new(|| Moment { wall: WALL, now: Instant::now(), chance: 0.0 });
        static NO_TROUBLE: LazyLock<Trouble> = LazyLock::new(Trouble::default);
        let mut facts = Facts {
            at: &AT,
            inputs,
            trouble: &NO_TROUBLE,
            slots: None,
            stuck: None,
            all_busy: None,
            is_stopping: false,
            is_awaited: false,
            untaken: 0,
            is_shared: true,
            lease: SECOND * 60,
        };
        change(&mut facts);
        facts.waits()
    }

    fn waits(inputs: &StatusInputs) -> Waits {
        waits_with(inputs, |_| ())
    }

    #[test]
    fn a_standstill_needs_all_slots_of_all_workers_busy() {
        let stands_still = |oldest: &str, worker: &str, since: u32, no_end: u32| Waits::StandsStill {
            slots: 4,
            workers: Some(2),
            worker: Some(worker.to_owned()),
            oldest: oldest.to_owned(),
            kind: "k".to_owned(),
            since: SECOND * since,
            no_end: SECOND * no_end,
        };
        let busy =
            |oldest: &str, since: u32| Waits::Busy { slots: 4, since: SECOND * since, oldest: oldest.to_owned() };
        let hangs = inputs(&[worker("a", &[720, 60]), worker("b", &[80, 70])], 0);
        assert_eq!(waits(&hangs), stands_still("a720", "a", 720, 60));
        // Without a due job, they hold nothing up.
        let nothing_due = StatusInputs { counts: Counts::default(), ..hangs.clone() };
        assert_eq!(waits(&nothing_due), Waits::NothingReady { due_in: None });
        // A job has ended, and its slot was claimed again.
        assert_eq!(waits(&inputs(&[worker("a", &[720, 59]), worker("b", &[80, 70])], 0)), busy("a720", 720));
        assert_eq!(waits(&StatusInputs { usual: Some(SECOND * 7), ..hangs.clone() }), busy("a720", 720));
        assert_eq!(
            waits(&StatusInputs { usual: Some(SECOND * 6), ..hangs.clone() }),
            stands_still("a720", "a", 720, 60)
        );
        assert_eq!(waits(&inputs(&[worker("a", &[720, 60]), worker("b", &[80])], 0)), Waits::No);
        // Slots of a silent worker do not count.
        let dead = WorkerInfo { is_silent: true, ..worker("dead", &[]) };
        assert_eq!(
            waits(&inputs(&[worker("a", &[720, 60]), worker("b", &[80, 70]), dead], 0)),
            stands_still("a720", "a", 720, 60)
        );
        let unbounded = WorkerInfo { slots: None, ..worker("c", &[]) };
        assert_eq!(waits(&inputs(&[worker("a", &[720, 60]), worker("b", &[80, 70]), unbounded], 0)), Waits::No);
        // A pause is what the operator asked for.
        assert_eq!(waits(&StatusInputs { paused_until: Some(u64::MAX), ..hangs }), Waits::Paused { left: None });
    }

    #[test]
    fn jobs_of_silent_workers_do_not_hide_due_jobs() {
        let dead = WorkerInfo { is_silent: true, ..worker("dead", &[500]) };
        assert_eq!(waits(&inputs(std::slice::from_ref(&dead), 471)), Waits::NoWorker);
        assert_eq!(waits(&inputs(&[dead.clone(), worker("a", &[])], 1)), Waits::No);
        let stops = WorkerInfo { is_stopping: true, ..worker("stops", &[5]) };
        let stopping = std::slice::from_ref(&stops);
        assert_eq!(waits(&inputs(stopping, 59)), Waits::No, "it ends its job");
        assert_eq!(waits(&inputs(stopping, 60)), Waits::NoWorker, "another one should be there by now");
        // A stopping worker does not count as the only one beside another with free slots.
        let beside = inputs(&[stops, worker("a", &[])], 1);
        let since = Instant::now().checked_sub(SECOND * 90).unwrap();
        let (oldest, kind) = ((since, "x".to_owned()), "k".to_owned());
        let full = AllBusy { slots: 2, since, patience: SECOND * 60, oldest, kind };
        let seen = |is_stopping| {
            waits_with(&beside, |facts| {
                (facts.slots, facts.all_busy, facts.is_stopping) = (Some(2), Some(&full), is_stopping);
            })
        };
        assert!(matches!(seen(false), Waits::StandsStill { .. }));
        assert_eq!(seen(true), Waits::No);
        // A worker of this process may not have reported itself yet.
        assert_eq!(waits_with(&inputs(std::slice::from_ref(&dead), 1), |facts| facts.is_awaited = true), Waits::No);
        assert_eq!(waits_with(&inputs(std::slice::from_ref(&dead), 1), |facts| facts.slots = Some(1)), Waits::No);
        // Its job is the only one, and no worker takes it back.
        let lapsed = |workers: &[WorkerInfo]| StatusInputs {
            counts: Counts::default(),
            lapsed: (1, SECOND),
            ..inputs(workers, 0)
        };
        assert_eq!(waits(&lapsed(std::slice::from_ref(&dead))), Waits::NoWorker);
        assert_eq!(waits(&lapsed(&[dead.clone(), worker("a", &[])])), Waits::No);
        // A job that a worker has just taken which is in no list yet.
        assert_eq!(waits(&StatusInputs { running: 1, ..inputs(&[], 1) }), Waits::No);
        let leased = StatusInputs { counts: Counts::default(), ..inputs(&[dead], 0) };
        assert_eq!(waits(&leased), Waits::NothingReady { due_in: None });
    }

    #[test]
    fn workers_that_start_nothing_for_a_minute_are_idle() {
        let idle = Waits::Idle { workers: 2, free: Some(3) };
        let workers = [worker("a", &[60]), worker("b", &[])];
        assert_eq!((waits(&inputs(&workers, 59)), waits(&inputs(&workers, 60))), (Waits::No, idle));
        assert_eq!(waits(&inputs(&[worker("a", &[59]), worker("b", &[])], 600)), Waits::No, "one has begun a job");
        // A caller of accept may be busy, and how much more it would take is unknown.
        let unbounded = |jobs: &[u32]| WorkerInfo { slots: None, ..worker("c", jobs) };
        assert_eq!([&[][..], &[90]].map(|jobs| waits(&inputs(&[unbounded(jobs)], 600))), [Waits::No, Waits::No]);
        // All slots hold jobs that were removed and do not end.
        let stuck = WorkerInfo { busy: 2, ..worker("a", &[]) };
        assert_eq!(waits(&inputs(&[stuck], 60)), Waits::Idle { workers: 1, free: Some(0) });
        // Jobs that limits hold, or that are in lines, may have any age.
        let held = StatusInputs { held: Some((LimitOf::Queue, 1, None)), ..inputs(&workers, 600) };
        let in_line = StatusInputs { lines: vec![("x".to_owned(), 1)], ..inputs(&workers, 600) };
        assert_eq!([&held, &in_line].map(waits), [Waits::No, Waits::No]);
    }

    #[test]
    fn untaken_kinds_are_a_reason_only_with_workers() {
        let in_line = |workers: &[WorkerInfo]| {
            let lines = vec![("x".to_owned(), 4)];
            StatusInputs { lines, only_held: true, only_in_lines: true, ..inputs(workers, 1) }
        };
        let there = in_line(&[worker("a", &[])]);
        assert!(there.fleet.takes("k") && !there.fleet.takes("x"));
        assert_eq!(waits_with(&there, |facts| facts.untaken = 1), Waits::OtherKinds);
        assert_eq!(waits(&there), Waits::No, "another one takes them");
        assert_eq!(waits_with(&in_line(&[]), |facts| facts.untaken = 1), Waits::NoWorker);
    }

    #[test]
    fn a_closed_gate_here_counts_without_other_workers() {
        let trouble = Trouble { closed: Some(("disk".to_owned(), Instant::now())), ..Trouble::default() };
        let of = |workers: &[WorkerInfo]| {
            let inputs = inputs(workers, 1);
            let waits = waits_with(&inputs, |facts| (facts.trouble, facts.slots) = (&trouble, Some(2)));
            matches!(waits, Waits::Gate { .. })
        };
        assert_eq!([of(&[worker("a", &[])]), of(&[worker("a", &[]), worker("b", &[])])], [true, false]);
    }
}
