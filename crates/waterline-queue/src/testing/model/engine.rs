//! The model as an engine: each call is one change, or one read, under the lock.

use crate::engine::{
    Beside, Claim, Edit, Ending, Held, NoteRead, Opened, Peek, QueueEngine, QueueNo, StatusInputs, Steer, Turned,
};
use crate::notify::presence::own_worker;
use crate::notify::shared::{Shared, Wake};
use crate::rules::fleet::Fleet;
use crate::rules::notes::{Change, Noted, changed, counted_in};
use crate::rules::pushing::{Push, has_room};
use crate::testing::model::job::Job;
use crate::testing::model::jobs::{Jobs, Tick};
use crate::testing::model::{Model, ModelQueue};
use crate::types::capabilities::Capabilities;
use crate::types::config::ConfigError;
use crate::types::error::QueueError;
use crate::types::info::{JobInfo, PeriodicInfo};
use crate::types::job::{Counts, JobId, JobState, Pushed, time};
use crate::types::meta;
use crate::types::meta::Meta;
use crate::types::new_job::NewJob;
use crate::types::options::QueueOptions;
use crate::types::page::Place;
use crate::types::periodic::Periodic;
use crate::types::progress::JobProgress;
use crate::types::row::Row;
use crate::types::schedule::Schedule;
use crate::types::used::Related;
use crate::types::wanted::is_among;
use crate::types::worker::WorkerInfo;
use parking_lot::MutexGuard;
use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use waterline::Error;
use waterline::seam::{ClockExt, Home, Moment};

type Queues<'a> = MutexGuard<'a, BTreeMap<QueueNo, ModelQueue>>;

fn of<'a>(queues: &'a mut Queues<'_>, queue: QueueNo) -> &'a mut ModelQueue {
    queues.get_mut(&queue).unwrap_or_else(|| unreachable!("a queue is open while somebody asks for it"))
}

impl Model {
    /// Makes a change of a queue, and wakes its waiters.
    fn change<R>(&self, queue: QueueNo, change: impl FnOnce(&mut Jobs, &Moment) -> R) -> R {
        let mut queues = self.queues.lock();
        let kept = of(&mut queues, queue);
        let at = kept.jobs.options.clock.moment();
        kept.jobs.note_time(&at);
        kept.jobs.follow_time(&at);
        let answer = change(&mut kept.jobs, &at);
        tell(queues, [queue]);
        answer
    }

    fn look<R>(&self, queue: QueueNo, look: impl FnOnce(&Jobs, &Moment) -> R) -> R {
        let mut queues = self.queues.lock();
        let jobs = &of(&mut queues, queue).jobs;
        look(jobs, &jobs.options.clock.moment())
    }
}

/// Announces to the waiters of a queue what has happened, without the lock.
fn tell(mut queues: Queues<'_>, changed: impl IntoIterator<Item = QueueNo>) {
    let mut all = Vec::new();
    for queue in changed {
        let kept = of(&mut queues, queue);
        let told = kept.jobs.take_told();
        if !told.is_empty() {
            all.extend(kept.shared.clone().map(|shared| (shared, told)));
        }
    }
    drop(queues);
    for (shared, told) in all {
        shared.told(told, 0);
        shared.wake(Wake { all: true, room: true, sooner: true, ..Wake::default() });
        shared.settle();
    }
}

impl QueueEngine for Model {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn capabilities(&self) -> Capabilities {
        self.can
    }

    fn home(&self) -> Home {
        Home { address: std::ptr::from_ref(self) as usize, takes_sql: false }
    }

    fn open(&self, name: &str, options: &QueueOptions) -> Result<Opened, QueueError> {
        let mut queues = self.queues.lock();
        let next = queues.len() as QueueNo;
        let number = queues.iter().find(|(_, kept)| kept.jobs.name == name).map_or(next, |(number, _)| *number);
        let kept = queues.entry(number).or_insert_with(|| {
            let jobs = Jobs::with(self.has_entries, Jobs::new(name, self.can, options));
            ModelQueue { jobs, shared: None, keep: Weak::new() }
        });
        let keep = kept.keep.upgrade().unwrap_or_else(|| {
            kept.shared = None;
            Arc::default()
        });
        let shared = self.open.open::<QueueError>(name, options, |known| {
            Ok(known.cloned().unwrap_or_else(|| Shared::new(name, options, HashMap::new(), false)))
        })?;
        if kept.shared.is_none() {
            kept.jobs.reopen(options);
            let at = options.clock.moment();
            kept.jobs.note_time(&at);
            kept.jobs.recover(&at);
        }
        (kept.shared, kept.keep) = (Some(shared.clone()), Arc::downgrade(&keep));
        tell(queues, [number]);
        Ok(Opened { number, shared, keep })
    }

    fn prepare(&self, queue: QueueNo, new: Vec<NewJob>) -> Result<Vec<Push>, ConfigError> {
        self.change(queue, |jobs, at| new.into_iter().map(|job| jobs.prepare(job, at.wall)).collect())
    }

    fn push(&self, pushes: Vec<(QueueNo, Vec<Push>)>) -> Result<Vec<Pushed>, QueueError> {
        let mut queues = self.queues.lock();
        let mut before = HashMap::new();
        let mut pushed = Vec::new();
        let made = pushes.iter().try_for_each(|(queue, pushes)| {
            let jobs = &mut of(&mut queues, *queue).jobs;
            let at = jobs.options.clock.moment();
            before.entry(*queue).or_insert_with(|| {
                jobs.note_time(&at);
                jobs.tidy(&at);
                jobs.clone()
            });
            pushed.extend(jobs.push_batch(pushes, &at)?);
            Ok(())
        });
        if made.is_err() {
            before.into_iter().for_each(|(queue, jobs)| of(&mut queues, queue).jobs = jobs);
        }
        tell(queues, pushes.iter().map(|(queue, _)| *queue));
        made.map(|()| pushed)
    }

    fn turns_at_once(&self) -> Option<usize> {
        Some(1)
    }

    fn turn(&self, ends: &[Ending], claim: Option<Claim>, beside: Beside) -> Result<Turned, QueueError> {
        let mut turned = Turned::default();
        for Ending { job, end, data, .. } in ends {
            turned.ended.push(self.change(job.queue, |jobs, at| {
                if beside == Beside::Tidy {
                    jobs.keep_up(at);
                }
                let lease = jobs.leased(&job.id, job.token).ok()?.lease;
                let run = jobs.run_of(lease, at);
                Some(jobs.end(&job.id, end.clone(), data.clone(), &run, at))
            }));
        }
        if let Some(claim) = claim {
            turned.claimed = self.change(claim.queue, |jobs, at| {
                jobs.keep_up(at);
                let next = std::iter::from_fn(|| jobs.claim(&claim.wanted, at));
                next.take(claim.most).collect()
            });
            turned.claimed.iter_mut().for_each(|claimed| claimed.queue = claim.queue);
        }
        Ok(turned)
    }

    fn edit(&self, queue: QueueNo, id: &str, token: Option<u64>, edit: Edit) -> Result<Row, QueueError> {
        self.change(queue, |jobs, _| {
            let job = match token {
                Some(token) => jobs.leased(id, token)?,
                None => jobs.job_mut(id)?,
            };
            match edit {
                Edit::Nothing => {}
                Edit::Resubmit(due) => (job.row.resubmit, job.row.resubmitted) = (Some(due), 0),
                Edit::Data(data) => {
                    (job.data, job.row.has_data) = (Some(data.clone()), true);
                    jobs.tell_data(id, data);
                }
                Edit::Meta(key, value) => {
                    let mut all = job.meta.clone();
                    match value {
                        Some(value) => drop(all.insert(key, value)),
                        None => drop(all.remove(&key)),
                    }
                    meta::check_text(&meta::text(&all))?;
                    job.meta = all;
                }
            }
            Ok(jobs.job_mut(id)?.row.clone())
        })
    }

    fn show(&self, job: &Held, fraction: f64, note: &str) -> Result<Option<Row>, QueueError> {
        let (row, progress) = self.change(job.queue, |jobs, at| {
            let progress = JobProgress::new(fraction, note, at.wall)?;
            let lease = jobs.leased(&job.id, job.token)?.lease;
            if lease.is_some_and(|lease| jobs.is_over(&lease, at)) {
                return Err(QueueError::Halt { queue: jobs.name.clone(), id: job.id.clone() });
            }
            let own = jobs.leased(&job.id, job.token)?;
            own.progress = Some(progress.clone());
            Ok::<_, QueueError>((own.row.clone(), progress))
        })?;
        let shared = of(&mut self.queues.lock(), job.queue).shared.clone();
        if let Some(shared) = &shared {
            shared.told_progress(&job.id, &progress);
            shared.settle();
        }
        Ok(Some(row))
    }

    fn note_stop(&self, _queues: &[QueueNo], jobs: &[Held]) -> Result<(), QueueError> {
        jobs.iter().for_each(|job| self.change(job.queue, |jobs, _| jobs.note_stop(&job.id, job.token)));
        Ok(())
    }

    fn steer(&self, queue: QueueNo, steer: Steer) -> Result<u64, QueueError> {
        self.change(queue, |jobs, at| match steer {
            Steer::Remove(id) => jobs.remove(&id, true, at).map(|()| 1),
            Steer::Requeue(id) => jobs.requeue(&id, at).map(u64::from),
            Steer::RunNow(id) => jobs.run_now(&id, at).map(u64::from),
            Steer::Purge(state) => {
                let ids = jobs.ids(|job| job.row.state == state);
                ids.iter().try_for_each(|id| jobs.remove(id, true, at))?;
                Ok(ids.len() as u64)
            }
            Steer::RequeueDead => jobs.requeue_dead(at),
            Steer::Pause(until) => {
                jobs.pause(until, at);
                Ok(1)
            }
            Steer::RemovePeriodic(name) => Ok(u64::from(jobs.periodics.remove(&name).is_some())),
        })
    }

    fn start_periodic(&self, queue: QueueNo, periodic: Arc<Periodic>) -> Result<u64, QueueError> {
        self.change(queue, |jobs, at| match jobs.periodics.get(&periodic.name) {
            Some((last, Some(other))) if **other == *periodic => Ok(last.tick),
            Some((_, Some(_))) => Err(periodic.registered_otherwise().into()),
            _ => Ok(jobs.start_periodic(&periodic, at)),
        })
    }

    fn note(&self, queue: QueueNo, of: &str, change: Change) -> Result<(Option<Noted>, Option<Noted>), QueueError> {
        self.change(queue, |jobs, at| {
            jobs.tidy(at);
            let old = jobs.notes.get(of).cloned();
            let new = changed(old.as_ref(), &change, at.wall).map_err(|reason| {
                let (table, key) = counted_in(&jobs.name, of);
                Error::Counter { table, key, reason }
            })?;
            match &new {
                Some(new) => drop(jobs.notes.insert(of.to_owned(), new.clone())),
                None => drop(jobs.notes.remove(of)),
            }
            Ok((old, new))
        })
    }

    fn run_maintenance(&self, queue: QueueNo) -> Result<(), QueueError> {
        self.change(queue, |jobs, at| jobs.keep_up(at));
        Ok(())
    }

    fn renew(&self, job: &Held, silence: Option<Duration>) -> bool {
        let mut queues = self.queues.lock();
        let kept = of(&mut queues, job.queue);
        let at = kept.jobs.options.clock.moment();
        if !kept.jobs.prolong(&job.id, job.token, silence, &at) {
            return false;
        }
        let shared = kept.shared.clone();
        drop(queues);
        if let Some(shared) = &shared {
            shared.wake(Wake { all: true, sooner: true, ..Wake::default() });
            shared.settle();
        }
        true
    }

    fn give_up(&self, jobs: &[Held], is_stopping: bool) {
        let _ = self.note_stop(&[], if is_stopping { jobs } else { &[] });
        for job in jobs {
            let lease = of(&mut self.queues.lock(), job.queue).jobs.options.lease;
            self.renew(job, Some(lease));
        }
    }

    fn holds(&self, job: &Held) -> bool {
        let mut queues = self.queues.lock();
        let jobs = &mut of(&mut queues, job.queue).jobs;
        let at = jobs.options.clock.moment();
        let lease = jobs.leased(&job.id, job.token).ok().and_then(|job| job.lease);
        lease.is_some_and(|lease| !jobs.is_over(&lease, &at))
    }

    fn peek(&self, queue: QueueNo, kinds: Option<&[String]>) -> Peek {
        self.look(queue, |jobs, at| {
            let next = jobs.next_time(at);
            let placed = jobs.in_state(JobState::Ready).filter(|(id, _)| jobs.has_place(id, at));
            let count = |(all, own), (_, job): (_, &Job)| (all + 1, own + u64::from(is_among(&job.row.kind, kinds)));
            let (ready, own) = placed.fold((0, 0), count);
            let (is_paused, is_full) = (at.wall < jobs.paused_until, jobs.is_full(at));
            Peek {
                ready: if is_full { 0 } else { own },
                is_paused,
                is_full,
                is_limited: ready < jobs.in_state(JobState::Ready).count() as u64 || is_full && ready > 0,
                has_room: has_room(jobs.waiting(), jobs.options.max_waiting) || jobs.has_expired(at),
                due: jobs.in_state(JobState::Scheduled).map(|(_, job)| job.row.due).min().unwrap_or(u64::MAX),
                expires: jobs
                    .all
                    .values()
                    .filter(|job| job.row.state.waits())
                    .filter_map(|job| job.row.extras().expires)
                    .min()
                    .unwrap_or(u64::MAX),
                next_time: next,
                next_change: next,
            }
        })
    }

    fn counts(&self, queue: QueueNo) -> Counts {
        self.look(queue, |jobs, _| jobs.counts())
    }

    fn related(&self, queue: QueueNo, id: &str, most: usize) -> Result<Related, QueueError> {
        Ok(self.look(queue, |jobs, _| {
            let waits_for = jobs.all.get(id).map(|job| &job.after).into_iter().flatten();
            let awaited_by = jobs.in_state(JobState::Waiting).filter(|(_, job)| job.after.contains(id));
            let (waits_for, awaited_by) = (waits_for.take(most), awaited_by.map(|(id, _)| id).take(most));
            Related { waits_for: waits_for.cloned().collect(), awaited_by: awaited_by.cloned().collect() }
        }))
    }

    fn workers(&self, queue: QueueNo, most: usize) -> Result<Vec<WorkerInfo>, QueueError> {
        let shared = of(&mut self.queues.lock(), queue).shared.clone();
        let presence = shared.and_then(|shared| shared.presence());
        Ok(self.look(queue, |jobs, at| {
            let since = |(id, job): (&JobId, &Job)| Some((job.lease?.since, id.clone()));
            let running = jobs.in_state(JobState::Running).filter_map(since).collect();
            let kind = |id: &str| Some(jobs.all.get(id)?.row.kind.clone());
            own_worker(at, presence, true, running, most, kind).into_iter().collect()
        }))
    }

    fn status_inputs(&self, queue: QueueNo) -> Result<StatusInputs, QueueError> {
        let (running, oldest_running) = self.running(queue);
        let fleet = Fleet::of(&self.workers(queue, 1)?);
        Ok(self.look(queue, |jobs, at| jobs.status_inputs(at, running, oldest_running, fleet)))
    }

    fn oldest(&self, queue: QueueNo) -> u64 {
        self.oldest_of(queue, None)
    }

    fn oldest_of(&self, queue: QueueNo, kinds: Option<&[String]>) -> u64 {
        self.look(queue, |jobs, _| jobs.oldest(kinds))
    }

    fn running(&self, queue: QueueNo) -> (usize, Option<(Instant, JobId)>) {
        let since = |(id, job): (&JobId, &Job)| Some((job.lease?.since, id.clone()));
        self.look(queue, |jobs, _| {
            (jobs.in_state(JobState::Running).count(), jobs.in_state(JobState::Running).filter_map(since).min())
        })
    }

    fn job(&self, queue: QueueNo, id: &str) -> Result<Option<JobInfo>, QueueError> {
        Ok(self.look(queue, |jobs, _| jobs.all.get(id).map(|job| jobs.info(id, job))))
    }

    fn list(
        &self,
        queue: QueueNo,
        state: JobState,
        behind: Option<&Place>,
        most: usize,
    ) -> Result<Vec<JobInfo>, QueueError> {
        let of_lane = state == JobState::Ready || state == JobState::Waiting && !self.can.one_process;
        let behind = behind.map(|place| (if of_lane { place.priority as usize } else { 0 }, place));
        Ok(self.look(queue, |jobs, _| {
            let behind = behind.map(|(lane, at)| (lane, at.number, at.tie, jobs.tie_of(state, &at.id), at.id.clone()));
            let mut listed: Vec<_> = jobs.in_state(state).map(|(id, job)| (jobs.list_place(id, job), job)).collect();
            listed.sort_by(|(one, _), (other, _)| one.cmp(other));
            listed.retain(|(place, _)| behind.as_ref().is_none_or(|behind| place > behind));
            listed.into_iter().take(most).map(|((.., id), job)| jobs.info(&id, job)).collect()
        }))
    }

    fn row(&self, queue: QueueNo, id: &str) -> Result<Option<Row>, QueueError> {
        Ok(self.look(queue, |jobs, _| jobs.all.get(id).map(|job| job.row.clone())))
    }

    fn data(&self, queue: QueueNo, id: &str) -> Result<Option<Vec<u8>>, QueueError> {
        Ok(self.look(queue, |jobs, _| jobs.all.get(id)?.data.clone()))
    }

    fn meta(&self, queue: QueueNo, id: &str) -> Result<Meta, QueueError> {
        Ok(self.look(queue, |jobs, _| jobs.all.get(id).map(|job| job.meta.clone())).unwrap_or_default())
    }

    fn progress(&self, queue: QueueNo, id: &str) -> Result<Option<JobProgress>, QueueError> {
        Ok(self.look(queue, |jobs, _| jobs.all.get(id)?.progress.clone()))
    }

    fn noted(&self, queue: QueueNo, of: &str) -> Result<Option<Noted>, QueueError> {
        Ok(self.look(queue, |jobs, _| jobs.notes.get(of).cloned()))
    }

    fn notes(
        &self,
        queue: QueueNo,
        prefix: &str,
        behind: Option<&str>,
        most: usize,
    ) -> Result<Vec<NoteRead>, QueueError> {
        Ok(self.look(queue, |jobs, at| {
            let notes = jobs.notes.iter().filter(|(of, noted)| of.starts_with(prefix) && !noted.is_over(at.wall));
            let rest = notes.filter(|(of, _)| behind.is_none_or(|behind| of.as_str() > behind));
            rest.take(most).map(|(of, noted)| (of.clone(), Ok(noted.clone()))).collect()
        }))
    }

    fn periodics(&self, queue: QueueNo) -> Result<Vec<PeriodicInfo>, QueueError> {
        let info = |(name, (last, registered)): (&String, &(Tick, Option<Arc<Periodic>>))| {
            let schedule = registered.as_ref().map(|periodic| &periodic.schedule);
            PeriodicInfo {
                name: name.clone(),
                schedule: schedule.map(Schedule::to_string),
                last_tick: PeriodicInfo::ticked(last.tick, &last.run, last.skipped),
                next_tick: schedule.and_then(|schedule| schedule.next(last.tick)).map(time),
                last_run: Some(last.run.clone()).filter(|run| !run.is_empty()),
                skipped: last.skipped,
                damaged: None,
            }
        };
        Ok(self.look(queue, |jobs, _| jobs.periodics.iter().map(info).collect()))
    }
}
