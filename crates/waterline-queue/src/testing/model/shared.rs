//! What differs where many processes share the queue, and why.
//!
//! * Nothing moves a job when its time comes, since there may be no process. So a job is ready by
//!   the clock, from that time on, and the ready ones are in the order of these times.
//! * Of the jobs that are due at the same time, failed ones come first: by their pushes. Then those
//!   that were pushed or moved, in that order. (A store orders them by their ids.)
//! * The death of a process is not seen. Its jobs are taken back when their leases end, and that is
//!   a crash, unless their holder had to renew them: then it is a failure.
//! * A job that is to run alone does so in its process. The one that takes it up lets its other
//!   jobs end first, and leaves it to other processes if that takes longer than a lease.
//! * Without a steady clock, leases are measured by the wall clock.
//! * Those that wait for a job hear of its end in the order of their first pushes: by the numbers
//!   of their rows. (A store tells them by their ids, and those that hold on its death last.)
//! * A job that a claim of other kinds has met stays ready if the clock is set back, since that is
//!   in its row. Where keys take turns, lines have entries that count by the times of their jobs,
//!   so it waits again. Lanes have entries, too, so that what is ready and goes back with the clock
//!   is as if it had just become ready.

use crate::rules::ends::{Over, waiting};
use crate::rules::set_back::SetBack;
use crate::testing::model::job::{Job, ModelLease, SharedView};
use crate::testing::model::jobs::Jobs;
use crate::types::info::JobInfo;
use crate::types::job::{JobId, JobState, time};
use crate::types::json::from_json;
use crate::types::related::OnDead;
use std::time::{Duration, Instant};
use waterline::seam::Moment;

/// The place of a job in the list of its state.
pub(super) type ListPlace = (usize, u64, u64, u64, JobId);

impl SharedView {
    /// Returns what is known of a job after the end of an attempt.
    pub(super) fn ended(&self) -> Self {
        Self { worker: None, alone_until: 0, ..self.clone() }
    }
}

impl ModelLease {
    fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

impl Jobs {
    /// Returns an empty queue with entries or without. With them places may go down, so they begin
    /// above zero.
    pub(super) fn with(has_entries: bool, new: Self) -> Self {
        Self { has_entries, next: if has_entries { 1_000 } else { 0 }, ..new }
    }

    /// Returns what is known of a job before it takes its place, which may be that of an old one.
    pub(super) fn beside_of(&self, id: &str, is_moved: bool) -> SharedView {
        // For the jobs that wait for an ended one, it takes its place.
        let is_awaited = || self.in_state(JobState::Waiting).any(|(_, job)| job.after.contains(id));
        let old = self.all.get(id).filter(|_| is_moved || is_awaited());
        SharedView { number: old.map_or(0, |old| old.beside.number), ..SharedView::default() }
    }

    /// Returns since when a job is in its state.
    pub(super) fn ready_since(&self, job: &Job) -> u64 {
        let by_time = self.is_shared() && job.row.state == JobState::Ready;
        if by_time { job.row.since.max(job.beside.at) } else { job.row.since }
    }

    pub(super) fn is_shared(&self) -> bool {
        !self.can.one_process
    }

    /// Returns the queue as the next process finds it.
    pub(super) fn in_next_process(&self) -> Self {
        Self { process: self.process + 1, ..self.clone() }
    }

    /// Returns the time by the clock that measures leases.
    pub(super) fn lease_time(&self, at: &Moment) -> Instant {
        if self.can.steady_clock {
            return at.now;
        }
        let (then, wall) = self.origin;
        let millis = |time: u64| Duration::from_millis(time);
        if at.wall >= wall { then + millis(at.wall - wall) } else { then - millis(wall - at.wall) }
    }

    pub(super) fn is_over(&self, lease: &ModelLease, at: &Moment) -> bool {
        lease.is_over(self.lease_time(at))
    }

    /// Renews a lease for this silence of its holder, or as its process does.
    pub(super) fn prolong(&mut self, id: &str, token: u64, silence: Option<Duration>, at: &Moment) -> bool {
        let now = self.lease_time(at);
        // A process that has died renews nothing.
        let time = silence.or_else(|| self.is_shared().then_some(self.options.lease));
        let Ok(Some(lease)) = self.leased(id, token).map(|job| job.lease.as_mut()) else { return false };
        (lease.until, lease.by_silence) = (time.and_then(|time| now.checked_add(time)), silence.is_some());
        true
    }

    pub(super) fn over(&self, lease: Option<ModelLease>) -> Over {
        let is_silent = lease.is_none_or(|lease| lease.by_silence);
        if is_silent { Over::Silent(self.options.lease) } else { Over::Died }
    }

    /// Gives a job that enters a state its place there.
    pub(super) fn enter_by_time(&mut self, id: &str, at: &Moment) {
        let (shared, process, place) = (self.is_shared(), self.process, self.next);
        let Some(job) = self.all.get_mut(id).filter(|_| shared) else { return };
        if job.row.state.is_ended() {
            job.beside = job.beside.ended();
            return;
        }
        if matches!(job.row.state, JobState::Scheduled | JobState::Waiting) {
            job.row.place = place;
            self.next += 1;
        }
        let beside = &mut job.beside;
        beside.number = if beside.number == 0 { place + 1 } else { beside.number };
        beside.at = job.row.due.max(at.wall);
        if job.row.state == JobState::Running {
            beside.worker = Some(process);
        }
    }

    /// Puts a job after an attempt, if it is not due, behind those that were pushed before it.
    pub(super) fn leave_attempt(&mut self, id: &str) {
        let shared = self.is_shared();
        let Some(job) = self.all.get_mut(id).filter(|_| shared) else { return };
        job.beside = job.beside.ended();
        if job.row.state == JobState::Scheduled {
            job.row.place = job.beside.number - 1;
        }
    }

    /// Returns the place of a job among those that hear of the end of another one.
    pub(super) fn turn_to_hear(&self, job: &Job) -> (bool, u64) {
        let holds = job.row.extras().on_dead == OnDead::Hold;
        if self.is_shared() { (false, job.beside.number) } else { (holds, 0) }
    }

    /// Updates each job that waits for its time, by whether it has come.
    pub(super) fn follow_time(&mut self, at: &Moment) {
        if !self.is_shared() {
            return;
        }
        let met = std::mem::take(&mut self.met);
        for (id, job) in &mut self.all {
            let is_met = || !self.has_entries && met.contains(&(id.clone(), job.row.place));
            if job.row.state == JobState::Scheduled || job.row.state == JobState::Ready && !is_met() {
                job.row.state = waiting(job.beside.at, at.wall);
            }
        }
        self.met = met;
    }

    /// Moves the times of a job that are ahead, since the clock was set back.
    pub(super) fn go_back(&mut self, id: &str, set: &SetBack, at: &Moment) {
        let (now, lease_for) = (self.lease_time(at), self.options.lease);
        let Some(job) = self.all.get_mut(id) else { return };
        let ahead = |time: u64| set.moved(time, time).is_some();
        let waits = matches!(job.row.state, JobState::Ready | JobState::Scheduled);
        let was_due = job.beside.at <= at.wall + set.by;
        if self.has_entries && waits && job.beside.at > at.wall && (was_due || ahead(job.row.since)) {
            // Its entry is void, so it takes another place.
            job.row.place -= 1;
        }
        if let Some(lease) = job.lease.as_mut().filter(|_| !self.can.steady_clock) {
            let by = |written: Instant| {
                let ahead = written.saturating_duration_since(now);
                if ahead.is_zero() { ahead } else { ahead.max(Duration::from_millis(set.by)) }
            };
            let renewed = lease.until.and_then(|until| until.checked_sub(lease_for));
            lease.until = lease.until.map(|until| until - by(renewed.unwrap_or(lease.since).max(lease.since)));
            lease.since -= by(lease.since);
        }
        let is_ahead = match job.row.state {
            JobState::Running => ahead(job.row.since) || ahead(job.row.resubmitted),
            // Those that are kept forever are in no index by their time.
            JobState::Finished | JobState::Dead => {
                job.row.place < u64::MAX && ahead(job.row.place) && ahead(job.row.since)
            }
            _ => ahead(job.beside.at) && ahead(job.row.since),
        };
        if !is_ahead {
            return;
        }
        let since = job.row.since;
        job.row.go_back(set);
        let moved = job.beside.at.saturating_sub(since - job.row.since);
        job.beside.at = if job.row.named { job.row.due.max(job.row.since) } else { moved };
        if self.has_entries && waits && job.beside.at <= at.wall {
            (job.beside.at, job.row.since) = (at.wall, at.wall);
        }
    }

    /// Returns the order of a ready job among those of its priority.
    pub(super) fn order(&self, job: &Job) -> (u64, u64, u64) {
        (if self.is_shared() { job.beside.at } else { 0 }, job.row.place, job.beside.number)
    }

    pub(super) fn info(&self, id: &str, job: &Job) -> JobInfo {
        let data = job.data.as_ref().and_then(|data| from_json(data).ok());
        let (meta, progress) = (job.meta.clone(), job.progress.clone());
        let (_, place, tie, ..) = self.list_place(id, job);
        let since = time(self.ready_since(job));
        JobInfo { meta, progress, place, tie, since, ..JobInfo::of(id, &job.row, job.payload.clone(), data) }
    }

    pub(super) fn list_place(&self, id: &str, job: &Job) -> ListPlace {
        let (state, beside) = (job.row.state, &job.beside);
        let of_lane = matches!(state, JobState::Ready) || self.is_shared() && state == JobState::Waiting;
        let lane = if of_lane { job.row.priority as usize } else { 0 };
        let (at, tie) = match state {
            JobState::Scheduled | JobState::Ready | JobState::Waiting if self.is_shared() => (beside.at, job.row.place),
            JobState::Finished | JobState::Dead if self.is_shared() => (job.row.place, beside.number),
            JobState::Scheduled => (job.row.due, 0),
            _ => (job.row.place, 0),
        };
        (lane, at, tie, self.tie_of(state, id), id.to_owned())
    }

    /// Returns the order of two ready jobs of one place, which they may have behind a clock that
    /// was set back.
    pub(super) fn tie_of(&self, state: JobState, id: &str) -> u64 {
        let job = self.all.get(id).filter(|_| self.has_entries && state == JobState::Ready);
        job.map_or(0, |job| job.beside.number)
    }

    /// True if another process keeps a job that is to run alone, or this one leaves it to others.
    fn is_others(&self, job: &Job, at: &Moment) -> bool {
        let until = job.beside.alone_until;
        match job.beside.worker == Some(self.process) {
            false => until > at.wall,
            true => until > 0 && until <= at.wall && until + self.options.lease.as_millis() as u64 > at.wall,
        }
    }

    /// True if a job of this process runs alone, or is to.
    fn has_alone(&self, at: &Moment) -> bool {
        self.all.values().any(|job| {
            let is_own = job.row.extras().is_suspect && job.beside.worker == Some(self.process);
            is_own && (job.row.state == JobState::Running || job.row.state.waits() && job.beside.alone_until > at.wall)
        })
    }

    fn is_busy(&self) -> bool {
        self.in_state(JobState::Running).any(|(_, job)| job.beside.worker == Some(self.process))
    }

    /// True if this process starts no job, since one of its jobs runs alone or is to.
    pub(super) fn is_kept_alone(&self, at: &Moment) -> bool {
        self.has_alone(at) && self.is_busy()
    }

    /// True if a claim skips this job: it, or another one, is to run alone.
    pub(super) fn is_passed_by(&self, id: &str, at: &Moment) -> bool {
        let job = &self.all[id];
        if job.row.extras().is_suspect { self.is_others(job, at) } else { self.has_alone(at) }
    }

    /// Takes up a job that is to run alone. Returns true if jobs of this process must end first.
    pub(super) fn takes_up(&mut self, id: &str, at: &Moment) -> bool {
        let (is_busy, process, lease) = (self.is_busy(), self.process, self.options.lease);
        let Some(job) = self.all.get_mut(id) else { return false };
        if is_busy && job.beside.alone_until <= at.wall {
            job.beside.worker = Some(process);
            job.beside.alone_until = at.wall + lease.as_millis() as u64;
        }
        is_busy
    }
}
