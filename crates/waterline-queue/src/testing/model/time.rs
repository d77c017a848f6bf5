//! What falls due: ticks, scheduled jobs, expiries, and leases of silent workers.

use crate::rules::due::due;
use crate::rules::ends::{End, Over, Run, end_of_lease};
use crate::rules::pushing::prepare;
use crate::rules::set_back::last_tick;
use crate::testing::model::job::{Job, ModelLease};
use crate::testing::model::jobs::{EXPIRED, Jobs, Tick};
use crate::types::events::{Event, Line, Passed};
use crate::types::job::{JobId, JobState, time};
use crate::types::periodic::Periodic;
use crate::types::schedule::Overlap;
use std::sync::Arc;
use std::time::Duration;
use waterline::seam::Moment;

impl Jobs {
    /// Runs all maintenance. Where processes share the queue, each first makes its own ticks.
    pub(super) fn keep_up(&mut self, at: &Moment) {
        if self.is_shared() {
            self.tick_all(at);
        }
        self.take_back(at);
        self.tidy(at);
    }

    fn tick_all(&mut self, at: &Moment) {
        for name in self.periodics.keys().cloned().collect::<Vec<_>>() {
            self.tick(&name, at);
        }
    }

    /// Runs all maintenance but that of leases.
    pub(super) fn tidy(&mut self, at: &Moment) {
        self.follow_clock(at);
        self.tick_all(at);
        self.follow_time(at);
        let due = self.in_state(JobState::Scheduled).filter(|(_, job)| self.can.one_process && job.row.due <= at.wall);
        let mut due: Vec<_> = due.collect();
        due.sort_by_key(|(id, job)| (job.row.due, *id));
        for id in due.into_iter().map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            if let Some(job) = self.all.get_mut(&id) {
                job.row.state = JobState::Ready;
            }
            self.enter(&id, at);
            self.tell(&id, None);
        }
        let expires = |job: &Job| job.row.state.waits() && job.row.extras().expires.is_some_and(|time| time <= at.wall);
        let mut expired = self.ids(expires);
        expired.sort_by_key(|id| self.all[id].row.extras().expires);
        for id in expired {
            // It may have died with one before it.
            if self.all.get(&id).is_some_and(|job| job.row.state.waits()) {
                self.end_unrun(&id, Err(EXPIRED.to_owned()), at);
            }
        }
        for id in self.ids(|job| job.row.state.is_ended() && job.row.place <= at.wall) {
            let _ = self.remove(&id, false, at);
        }
        self.gone.retain(|_, (_, until)| *until >= at.wall);
        self.notes.retain(|_, noted| !noted.is_over(at.wall));
        if self.is_shared() {
            // A server forgets them then, so a clock that is set back does not bring them back.
            self.marks.retain(|_, mark| mark.until == 0 || mark.until > at.wall);
        }
    }

    pub(super) fn note_time(&mut self, at: &Moment) {
        if self.latest.set_back(at.wall, at.now).is_none() {
            self.latest.note(at.wall, at.now);
        }
    }

    /// Moves the times that were written ahead of a clock that was set back.
    fn follow_clock(&mut self, at: &Moment) {
        let Some(set) = self.latest.set_back(at.wall, at.now) else { return };
        self.latest.begin_at(at.wall, at.now);
        self.told.push(Event::Line(Line::SetBack { by: Duration::from_millis(set.by) }));
        if set.move_both(&mut self.paused_since, &mut self.paused_until) {
            self.told.push(Event::Paused { until: self.paused_until });
        }
        if self.is_shared() {
            self.ids(|_| true).iter().for_each(|id| self.go_back(id, &set, at));
            self.follow_time(at);
        }
        for job in self.all.values_mut().filter(|_| self.can.one_process) {
            // A ready job waits for no time, unless it expires.
            if job.row.state == JobState::Ready && job.row.extras().expires.is_none() {
                continue;
            }
            job.row.go_back(&set);
            if job.row.state == JobState::Waiting {
                job.row.place = job.row.since;
            }
        }
        let marks = self.marks.values_mut().map(|mark| (&mut mark.since, &mut mark.until));
        let notes = self.notes.values_mut().map(|note| (&mut note.since, &mut note.until));
        let gone = self.gone.values_mut().map(|(since, until)| (since, until));
        for (since, until) in marks.chain(notes).chain(gone) {
            set.move_both(since, until);
        }
    }

    pub(super) fn ids(&self, wanted: impl Fn(&Job) -> bool) -> Vec<JobId> {
        self.all.iter().filter(|(_, job)| wanted(job)).map(|(id, _)| id.clone()).collect()
    }

    /// Takes back the jobs of silent workers, in the order in which their leases ended.
    pub(super) fn take_back(&mut self, at: &Moment) {
        let mut silent = self.ids(|job| job.lease.is_some_and(|lease| self.is_over(&lease, at)));
        silent.sort_by_key(|id| (self.all[id].lease.map(|lease| lease.until), self.all[id].row.place));
        for id in silent {
            let Job { row, lease, .. } = self.all[&id].clone();
            let run = self.run_of(lease, at);
            let end = end_of_lease(self.over(lease), row.extras().is_stopping);
            let state = self.end(&id, end.clone(), None, &run, at);
            let End::Failed { error, .. } = end else { continue };
            self.line(&id, &row, |job| Line::TakenBack { job, error: error.clone() });
            if state.is_none_or(|state| state == JobState::Dead) {
                self.line(&id, &row, |job| Line::Died { job, error });
            }
        }
    }

    /// Notes that the runner of a job is stopping, unless its lease is over.
    pub(super) fn note_stop(&mut self, id: &str, token: u64) {
        if let Ok(job) = self.leased(id, token) {
            job.row.extras_mut().is_stopping = true;
        }
    }

    /// Returns what is known of a run. The silence at its end does not count.
    pub(super) fn run_of(&self, lease: Option<ModelLease>, at: &Moment) -> Run {
        let now = self.lease_time(at);
        let lasted = lease.map_or(Duration::ZERO, |lease| {
            let over = lease.until.filter(|until| *until <= now);
            let seen = over.and_then(|until| until.checked_sub(self.options.lease)).unwrap_or(now);
            seen.saturating_duration_since(lease.since)
        });
        Run { lasted, progress: None }
    }

    /// Counts a crash for each job that ran when its process died.
    pub(super) fn recover(&mut self, at: &Moment) -> u64 {
        self.follow_clock(at);
        let mut count = 0;
        self.periodics.values_mut().for_each(|(_, registered)| *registered = None);
        if self.is_shared() {
            return 0;
        }
        let mut running: Vec<_> =
            self.in_state(JobState::Running).map(|(id, job)| (job.row.place, id.clone())).collect();
        running.sort_unstable();
        for (_, id) in running {
            let end = end_of_lease(Over::Died, self.all[&id].row.extras().is_stopping);
            count += u64::from(end == End::Crashed);
            self.end(&id, end, None, &Run::default(), at);
        }
        count
    }

    pub(super) fn start_periodic(&mut self, periodic: &Arc<Periodic>, at: &Moment) -> u64 {
        self.follow_clock(at);
        let name = periodic.name.clone();
        let last = self.periodics.get(&name).map(|(last, _)| last.clone());
        let last = last.map(|last| Tick { tick: last_tick(&periodic.schedule, last.tick, at.wall), ..last });
        let last = last.unwrap_or_else(|| {
            let run = if periodic.at_next { JobId::new() } else { self.push_tick(periodic, at.wall, at) };
            Tick { tick: at.wall, skipped: 0, run }
        });
        let tick = last.tick;
        self.periodics.insert(name.clone(), (last, Some(periodic.clone())));
        self.tick(&name, at);
        tick
    }

    pub(super) fn tick(&mut self, name: &str, at: &Moment) {
        let Some((mut last, Some(periodic))) = self.periodics.get(name).cloned() else { return };
        last.tick = last_tick(&periodic.schedule, last.tick, at.wall);
        let is_unfinished = self.all.get(&last.run).is_some_and(|job| !job.row.state.is_ended());
        let overlaps = periodic.overlap == Overlap::Skip && is_unfinished;
        let rules = (periodic.overlap, periodic.catch_up);
        let due = due(&periodic.schedule, rules, (last.tick, overlaps), at.wall, usize::MAX);
        let mut last = Tick { tick: due.last, ..last };
        for tick in due.run {
            last.run = self.push_tick(&periodic, tick, at);
        }
        let mut passed = |tick, why, run| {
            let name = name.to_owned();
            self.told.push(Event::Line(Line::Passed { name, tick, why, run }));
        };
        if let Some(missed) = due.missed {
            passed(missed, Passed::Missed, None);
        }
        if due.skipped {
            last.skipped += 1;
            passed(due.last, Passed::Skipped, Some(last.run.clone()));
        }
        self.periodics.insert(name.to_owned(), (last, Some(periodic)));
    }

    pub(super) fn push_tick(&mut self, periodic: &Periodic, tick: u64, at: &Moment) -> JobId {
        let job = periodic.job.clone().run_at(time(tick));
        let Ok(mut push) = prepare(job, at.wall, || self.make_id()) else { return JobId::new() };
        (push.row.pushed, push.row.named) = (tick, false);
        self.push(&push, false, at).map(|pushed| pushed.id).unwrap_or_default()
    }
}
