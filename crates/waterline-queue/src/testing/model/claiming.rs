//! Claims: the jobs that may run now, in their order.

use crate::engine::Claimed;
use crate::rules::bucket::Bucket;
use crate::rules::lanes::lanes;
use crate::testing::model::job::Job;
use crate::testing::model::jobs::{EXPIRED, Jobs};
use crate::types::job::{JobId, JobState};
use crate::types::limit::QUEUE;
use crate::types::unique::Until;
use crate::types::wanted::Wanted;
use std::collections::BTreeSet;
use waterline::seam::Moment;

impl Jobs {
    pub(super) fn claim(&mut self, wanted: &Wanted, at: &Moment) -> Option<Claimed> {
        for (name, bucket) in &mut self.buckets {
            self.limits.bounds(name).rate.into_iter().for_each(|rate| bucket.fill(rate, at.wall));
        }
        while at.wall >= self.paused_until && !self.is_full(at) {
            let is_early = self.has_none_ready(wanted);
            let mut has_ended = false;
            // The limits whose tokens an earlier job waits for.
            let mut awaited = BTreeSet::new();
            for candidate in self.candidates(wanted, at) {
                let Some(job) = self.all.get(&candidate).filter(|job| job.row.state.waits()) else { continue };
                if self.is_shared() && self.is_passed_by(&candidate, at) {
                    continue;
                }
                let (cost, names) = (job.row.extras().cost, self.limits.names(&job.row));
                if names.iter().any(|name| awaited.contains(name)) || !self.has_place(&candidate, at) {
                    awaited.extend(names.iter().filter(|name| !self.has_tokens(name, cost, at)).cloned());
                    continue;
                }
                let end = match job.row.extras().expires {
                    Some(expires) if expires <= at.wall => Some(Err(EXPIRED.to_owned())),
                    _ => self.skips(&job.row, at).map(Ok),
                };
                let is_suspect = job.row.extras().is_suspect;
                if let Some(end) = end {
                    self.end_unrun(&candidate, end, at);
                    has_ended = true;
                    if is_early {
                        // All jobs that are not due yet are tried before the next round.
                        continue;
                    }
                    break;
                }
                if is_suspect && self.is_shared() {
                    if self.takes_up(&candidate, at) {
                        return None;
                    }
                } else if is_suspect {
                    let is_held = self.in_state(JobState::Running).next().is_some();
                    self.is_next_alone = is_held;
                    if is_held {
                        self.meet_others(wanted, Some(&candidate), at);
                        return None;
                    }
                }
                self.meet_others(wanted, Some(&candidate), at);
                // The first wanted job may cost more than the first of all.
                return self.has_tokens(QUEUE, cost, at).then(|| self.begin(candidate, at));
            }
            if !has_ended {
                self.meet_others(wanted, None, at);
                return None;
            }
        }
        None
    }

    /// Notes the jobs of other kinds that a claim meets before this one; `None`: all of them.
    fn meet_others(&mut self, wanted: &Wanted, found: Option<&JobId>, at: &Moment) {
        if wanted.is_older(at.wall) {
            return;
        }
        let lanes = lanes(self.claims);
        let place = |job: &Job| (lanes.iter().position(|lane| *lane == job.row.priority as usize), self.order(job));
        let end = found.and_then(|found| self.all.get(found)).filter(|job| job.row.state == JobState::Ready).map(place);
        let others = self.in_state(JobState::Ready).filter(|(_, job)| !wanted.has_kind(&job.row.kind));
        let before = others.filter(|(_, job)| end.is_none_or(|end| place(job) < end));
        let met: Vec<_> = before.map(|(id, job)| (id.clone(), job.row.place)).collect();
        self.met.extend(met);
    }

    /// Returns the jobs that a claim may take, in its order.
    pub(super) fn candidates(&self, wanted: &Wanted, at: &Moment) -> Vec<JobId> {
        let lanes = lanes(self.claims);
        let rank = |job: &Job| lanes.iter().position(|lane| *lane == job.row.priority as usize);
        let takes = |(_, job): &(&JobId, &Job)| wanted.takes(&job.row, at.wall);
        let mut ready: Vec<_> = self.in_state(JobState::Ready).filter(takes).collect();
        ready.sort_by_key(|(_, job)| (rank(job), self.order(job)));
        if self.has_none_ready(wanted) {
            return self.early(wanted);
        }
        ready.into_iter().map(|(id, _)| id.clone()).collect()
    }

    fn early(&self, wanted: &Wanted) -> Vec<JobId> {
        let due_by = wanted.due_by.unwrap_or(0);
        let is_wanted = |(_, job): &(&JobId, &Job)| job.row.due <= due_by && wanted.has_kind(&job.row.kind);
        let mut early: Vec<_> = self.in_state(JobState::Scheduled).filter(is_wanted).collect();
        early.sort_by_key(|(id, job)| (job.row.due, *id));
        early.into_iter().map(|(id, _)| id.clone()).collect()
    }

    /// True if no job of the wanted kinds is ready, however long it has been due.
    fn has_none_ready(&self, wanted: &Wanted) -> bool {
        !self.in_state(JobState::Ready).any(|(_, job)| wanted.has_kind(&job.row.kind))
    }

    /// True if no job may start, since a limit of the queue is full or a job runs alone.
    pub(super) fn is_full(&self, at: &Moment) -> bool {
        let running = || self.in_state(JobState::Running);
        let is_alone = match self.is_shared() {
            true => self.is_kept_alone(at),
            false => running().any(|(_, job)| self.is_next_alone || job.row.extras().is_suspect),
        };
        let most = self.limits.queue.at_once;
        let first = || self.candidates(&Wanted::default(), at).first().map(|id| self.all[id].row.extras().cost);
        let shut = self.limits.queue.rate.is_some() && first().is_some_and(|cost| !self.has_tokens(QUEUE, cost, at));
        is_alone || most.is_some_and(|most| running().count() >= most as usize) || shut
    }

    pub(super) fn bucket(&self, name: &str, at: &Moment) -> Option<Bucket> {
        let rate = self.limits.bounds(name).rate?;
        let mut bucket = self.buckets.get(name).copied().unwrap_or_else(|| Bucket::full(rate, at.wall));
        bucket.fill(rate, at.wall);
        Some(bucket)
    }

    pub(super) fn has_tokens(&self, name: &str, cost: u32, at: &Moment) -> bool {
        let rate = self.limits.bounds(name).rate;
        rate.zip(self.bucket(name, at)).is_none_or(|(rate, bucket)| bucket.has(rate, cost))
    }

    /// True if the limits of its key and its kind have room for a job.
    pub(super) fn has_place(&self, id: &str, at: &Moment) -> bool {
        if !self.limits.has_records() {
            return true;
        }
        let row = &self.all[id].row;
        self.limits.names(row).iter().all(|name| self.is_open(name, row.extras().cost, at))
    }

    pub(super) fn begin(&mut self, id: JobId, at: &Moment) -> Claimed {
        let row = self.all[&id].row.clone();
        for name in self.limits.names(&row).iter().chain([&QUEUE.to_owned()]) {
            if let Some(mut bucket) = self.bucket(name, at) {
                bucket.take(row.extras().cost);
                self.buckets.insert(name.clone(), bucket);
            }
        }
        if row.extras().unique == Some(Until::Claimed) {
            self.release_unique(&id, &row);
        }
        let job = self.all.get_mut(&id);
        if let Some(job) = job {
            if let Some(extras) = &mut job.row.extras {
                extras.expires = None;
                if extras.unique == Some(Until::Claimed) {
                    extras.unique = None;
                    extras.fingerprint = extras.fingerprint.filter(|_| extras.skips_from.is_some());
                }
            }
            job.row.state = JobState::Running;
            job.row.resubmit = job.row.resubmit.filter(|due| *due > at.wall);
            job.row.resubmitted = if job.row.resubmit.is_some() { job.row.resubmitted } else { 0 };
        }
        self.claims += 1;
        self.is_next_alone = false;
        self.enter(&id, at);
        self.tell(&id, None);
        let Job { row, payload, .. } = self.all[&id].clone();
        Claimed { queue: 0, id, row, payload }
    }
}
