//! The jobs of a queue in plain maps, and each transition as a function of them and of the time.

use crate::engine::StatusInputs;
use crate::rules::bucket::Bucket;
use crate::rules::fleet::Fleet;
use crate::rules::notes::Noted;
use crate::rules::pushing::{Push, prepare};
use crate::rules::set_back::Latest;
use crate::testing::model::job::{Job, ModelLease, ModelMark};
use crate::types::capabilities::Capabilities;
use crate::types::config::ConfigError;
use crate::types::error::QueueError;
use crate::types::events::{About, Event, Line};
use crate::types::job::{Counts, JobId, JobState, MADE, after};
use crate::types::limit::{LimitSet, QUEUE, of_name};
use crate::types::new_job::NewJob;
use crate::types::options::{LONGEST_SLEEP, QueueOptions};
use crate::types::periodic::Periodic;
use crate::types::row::Row;
use crate::types::wanted::{Wanted, is_among};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use waterline::seam::{ClockExt, Moment};

pub(super) const EXPIRED: &str = "it expired: no worker had taken it in time";

#[derive(Clone)]
pub(super) struct Jobs {
    pub(super) name: String,
    pub(super) can: Capabilities,
    pub(super) has_entries: bool,
    /// The number of the process that has the queue open.
    pub(super) process: u64,
    /// The first moment, from which the wall clock measures leases.
    pub(super) origin: (Instant, u64),
    pub(super) options: QueueOptions,
    pub(super) limits: LimitSet,
    pub(super) all: BTreeMap<JobId, Job>,
    pub(super) notes: BTreeMap<String, Noted>,
    pub(super) periodics: BTreeMap<String, (Tick, Option<Arc<Periodic>>)>,
    pub(super) paused_until: u64,
    pub(super) paused_since: u64,
    /// The latest moment, which shows whether the clock was set back.
    pub(super) latest: Latest,
    /// The ids of removed jobs, when they were removed, and when they are forgotten.
    pub(super) gone: HashMap<JobId, (u64, u64)>,
    pub(super) marks: HashMap<(char, String), ModelMark>,
    pub(super) buckets: HashMap<String, Bucket>,
    /// One more than the largest made id that was pushed.
    pub(super) next_id: u64,
    /// The next number for an id. A refused push leaves its number unused in this process.
    pub(super) next_made: u64,
    /// The next number for a lease, or for a place among the ready jobs.
    pub(super) next: u64,
    pub(super) claims: u64,
    pub(super) told: Vec<Event>,
    /// The ends to apply to waiting jobs: of which job, and whether it died.
    pub(super) endings: VecDeque<(JobId, bool)>,
    pub(super) is_telling: bool,
    /// The ready jobs that claims of other kinds have met, and their places then.
    pub(super) met: BTreeSet<(JobId, u64)>,
    /// True once a claim has met a job that is to run alone while others ran.
    pub(super) is_next_alone: bool,
}

#[derive(Clone, Default)]
pub(super) struct Tick {
    pub(super) tick: u64,
    pub(super) skipped: u64,
    pub(super) run: JobId,
}

pub(super) type ModelResult<T> = Result<T, QueueError>;

impl Jobs {
    pub(super) fn new(name: &str, can: Capabilities, options: &QueueOptions) -> Self {
        let Moment { now, wall, .. } = options.clock.moment();
        Self {
            name: name.to_owned(),
            can,
            has_entries: false,
            process: 0,
            origin: (now, wall),
            limits: LimitSet::new(&options.limits),
            options: options.clone(),
            all: BTreeMap::new(),
            notes: BTreeMap::new(),
            periodics: BTreeMap::new(),
            paused_until: 0,
            paused_since: 0,
            latest: Latest::default(),
            gone: HashMap::new(),
            marks: HashMap::new(),
            buckets: HashMap::new(),
            next_id: 0,
            next_made: 0,
            next: 0,
            claims: 0,
            told: Vec::new(),
            endings: VecDeque::new(),
            is_telling: false,
            met: BTreeSet::new(),
            is_next_alone: false,
        }
    }

    pub(super) fn take_told(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.told)
    }

    pub(super) fn make_id(&mut self) -> u64 {
        self.next_made += 1;
        self.next_made - 1
    }

    pub(super) fn prepare(&mut self, new: NewJob, wall: u64) -> Result<Push, ConfigError> {
        self.options.check_payload("payload", new.payload.len())?;
        prepare(new, wall, || self.make_id())
    }

    /// Returns since when one of these kinds is ready, or when a job is due.
    pub(super) fn oldest(&self, kinds: Option<&[String]>) -> u64 {
        let ready = self.in_state(JobState::Ready).filter(|(_, job)| is_among(&job.row.kind, kinds));
        let ready = ready.map(|(_, job)| self.ready_since(job)).min();
        ready.or_else(|| self.in_state(JobState::Scheduled).map(|(_, job)| job.row.due).min()).unwrap_or(u64::MAX)
    }

    pub(super) fn in_state(&self, state: JobState) -> impl Iterator<Item = (&JobId, &Job)> {
        self.all.iter().filter(move |(_, job)| job.row.state == state)
    }

    pub(super) fn waiting(&self) -> u64 {
        self.all.values().filter(|job| job.row.state.waits()).count() as u64
    }

    pub(super) fn not_found(&self, id: &str) -> QueueError {
        QueueError::NotFound { queue: self.name.clone(), id: id.to_owned() }
    }

    /// Returns the job that has this lease.
    pub(super) fn leased(&mut self, id: &str, token: u64) -> ModelResult<&mut Job> {
        let halt = QueueError::Halt { queue: self.name.clone(), id: id.to_owned() };
        let job = self.all.get_mut(id);
        job.filter(|job| job.row.state == JobState::Running && job.row.place == token).ok_or(halt)
    }

    pub(super) fn job_mut(&mut self, id: &str) -> ModelResult<&mut Job> {
        let missing = self.not_found(id);
        self.all.get_mut(id).ok_or(missing)
    }

    pub(super) fn tell(&mut self, id: &str, data: Option<Option<Vec<u8>>>) {
        let row = self.all.get(id).map(|job| &job.row);
        let error = row.filter(|row| row.state == JobState::Dead).map(|row| row.error.clone());
        let state = row.map(|row| row.state);
        self.told.push(Event::Seen { id: id.to_owned(), state, data, error });
    }

    pub(super) fn tell_data(&mut self, id: &str, data: Vec<u8>) {
        self.tell(id, Some(Some(data)));
    }

    pub(super) fn line(&mut self, id: &str, row: &Row, line: impl FnOnce(About) -> Line) {
        let about = About { id: id.to_owned(), kind: row.kind.clone(), attempt: row.failures.saturating_add(1) };
        self.told.push(Event::Line(line(about)));
    }

    // Places.

    /// Brings a job into the state that its row has.
    pub(super) fn enter(&mut self, id: &str, at: &Moment) {
        self.enter_given(id, at.wall, at);
    }

    /// Does the same for a job that was given its due time before, if it is not due yet.
    pub(super) fn enter_given(&mut self, id: &str, given: u64, at: &Moment) {
        let Some(job) = self.all.get_mut(id) else { return };
        // A job that was to run alone has left its place.
        self.is_next_alone &= !job.row.extras().is_suspect || job.lease.is_some();
        job.row.since = if job.row.state == JobState::Scheduled { given } else { at.wall };
        job.row.clear_state();
        job.lease = None;
        self.enter_by_time(id, at);
        let since = self.lease_time(at);
        let Some(job) = self.all.get_mut(id) else { return };
        match job.row.state {
            JobState::Ready | JobState::Running => {
                job.row.place = self.next;
                self.next += 1;
                if job.row.state == JobState::Running {
                    job.lease = Some(ModelLease { since, until: None, by_silence: false });
                }
            }
            JobState::Waiting if self.can.one_process => job.row.place = at.wall,
            _ => {}
        }
        if !matches!(job.row.state, JobState::Waiting | JobState::Dead) {
            job.after.clear();
        }
        let after = job.after.len() as u32;
        if after != job.row.extras().after {
            job.row.extras_mut().after = after;
        }
    }

    pub(super) fn pause(&mut self, until: u64, at: &Moment) {
        (self.paused_until, self.paused_since) = (until, at.wall);
        self.told.push(Event::Paused { until });
    }

    /// Removes a job, on request, or because its retention is over.
    pub(super) fn remove(&mut self, id: &str, is_wanted: bool, at: &Moment) -> ModelResult<()> {
        let Some(job) = self.all.remove(id) else { return Err(self.not_found(id)) };
        self.is_next_alone &= !job.row.extras().is_suspect || !job.row.state.waits();
        if job.row.state == JobState::Running {
            self.told.push(Event::Lost { token: job.row.place });
        }
        self.forget(id, &job, is_wanted, at);
        self.tell(id, Some(None));
        Ok(())
    }

    pub(super) fn forget(&mut self, id: &str, job: &Job, is_wanted: bool, at: &Moment) {
        self.release_ended(id, &job.row, is_wanted);
        if !id.starts_with(MADE)
            && !self.options.ids_for.is_zero()
            && let Some(until) = after(at.wall, self.options.ids_for)
        {
            self.gone.insert(id.to_owned(), (at.wall, until));
        }
        self.end_waits(id, false, at);
    }

    // Reads.

    /// Opens the queue again in a new process, with these options.
    pub(super) fn reopen(&mut self, options: &QueueOptions) {
        (self.options, self.limits) = (options.clone(), LimitSet::new(&options.limits));
        self.next_made = self.next_id;
        self.is_next_alone = false;
        // The monotonic clock belongs to a process.
        self.latest = Latest::stored(self.latest.wall());
    }

    pub(super) fn counts(&self) -> Counts {
        Counts::of(JobState::ALL.map(|state| self.in_state(state).count() as u64), 0)
    }

    pub(super) fn has_expired(&self, at: &Moment) -> bool {
        let expires = |job: &Job| job.row.extras().expires.filter(|_| job.row.state.waits());
        self.all.values().filter_map(expires).any(|expires| expires <= at.wall)
    }

    /// Returns the time until something falls due; `None`: nothing does.
    pub(super) fn next_time(&self, at: &Moment) -> Option<Duration> {
        if self.latest.set_back(at.wall, at.now).is_some() {
            return Some(Duration::ZERO);
        }
        let of_job = |job: &Job| {
            let own = match job.row.state {
                JobState::Scheduled => job.row.due,
                JobState::Finished | JobState::Dead => job.row.place,
                _ => u64::MAX,
            };
            own.min(job.row.extras().expires.filter(|_| job.row.state.waits()).unwrap_or(u64::MAX))
        };
        let ticks = self.periodics.values().filter_map(|(last, periodic)| periodic.as_ref()?.schedule.next(last.tick));
        let paused = Some(self.paused_until).filter(|until| *until > at.wall);
        let ready = self.in_state(JobState::Ready).filter(|_| self.limits.has_rates);
        let tokens = ready.filter_map(|(id, _)| self.tokens_at(id, at));
        let wall = self.all.values().map(of_job).chain(ticks).chain(paused).chain(tokens).min();
        let wall = wall.filter(|wall| *wall < u64::MAX);
        let wall = wall.map(|wall| Duration::from_millis(wall.saturating_sub(at.wall)).min(LONGEST_SLEEP));
        let silent = self.all.values().filter_map(|job| job.lease?.until);
        let now = self.lease_time(at);
        wall.into_iter().chain(silent.map(|end| end.saturating_duration_since(now))).min()
    }

    /// Returns when the limits of a ready job have the tokens that it lacks now.
    pub(super) fn tokens_at(&self, id: &str, at: &Moment) -> Option<u64> {
        let row = &self.all[id].row;
        let names = self.limits.names(row);
        let missing = names.iter().map(String::as_str).chain([QUEUE]).filter_map(|name| {
            let (rate, bucket) = (self.limits.bounds(name).rate?, self.bucket(name, at)?);
            Some(bucket.has_at(rate, row.extras().cost))
        });
        missing.filter(|time| *time > at.wall).max()
    }

    pub(super) fn status_inputs(
        &self,
        at: &Moment,
        running: usize,
        oldest_running: Option<(Instant, JobId)>,
        fleet: Fleet,
    ) -> StatusInputs {
        let ready = || self.in_state(JobState::Ready);
        let is_suspect = |job: &Job| job.row.extras().is_suspect;
        let runs_alone = self.in_state(JobState::Running).any(|(_, job)| is_suspect(job));
        let alone = if runs_alone { Some(true) } else { (self.is_next_alone && running > 0).then_some(false) };
        let first = self.candidates(&Wanted::default(), at).into_iter().next();
        let mut held: BTreeMap<String, u64> = BTreeMap::new();
        for (_, job) in ready().filter(|(id, _)| !self.has_place(id, at)) {
            let names = self.limits.names(&job.row);
            let full = names.iter().find(|name| !self.is_open(name, job.row.extras().cost, at));
            full.into_iter().for_each(|name| *held.entry(name.clone()).or_default() += 1);
        }
        let held = held.into_iter().max_by_key(|(_, count)| *count);
        let due = self.in_state(JobState::Scheduled).map(|(_, job)| job.row.due);
        let ticks = self.periodics.values().filter_map(|(last, periodic)| periodic.as_ref()?.schedule.next(last.tick));
        let room = self.limits.queue.at_once.is_none_or(|most| running < most as usize);
        StatusInputs {
            counts: self.counts(),
            oldest_ready: ready().map(|(id, job)| (id.clone(), self.ready_since(job))).min_by_key(|(_, since)| *since),
            only_held: ready().all(|(id, _)| !self.has_place(id, at)),
            lines: self.lines(),
            only_in_lines: ready().next().is_some() && ready().all(|(id, job)| self.is_met(id, job)),
            due: due.chain(ticks).min(),
            paused_until: Some(self.paused_until).filter(|until| at.wall < *until),
            alone,
            full: self.is_full(at).then(|| first.filter(|_| room).and_then(|id| self.tokens_at(&id, at))),
            held: held.map(|(name, count)| {
                let waiting = ready().find(|(_, job)| self.limits.names(&job.row).iter().any(|of| *of == name));
                let until = waiting.and_then(|(id, _)| self.tokens_at(id, at));
                (of_name(&name), count, until)
            }),
            running,
            oldest_running,
            fleet,
            lapsed: (0, Duration::ZERO),
            usual: None,
            lease: None,
            set_back: None,
        }
    }

    fn is_met(&self, id: &JobId, job: &Job) -> bool {
        self.met.contains(&(id.clone(), job.row.place))
    }

    /// Returns how many ready jobs of each kind claims of other kinds have met.
    fn lines(&self) -> Vec<(String, u64)> {
        let mut lines = BTreeMap::new();
        for (_, job) in self.in_state(JobState::Ready).filter(|(id, job)| self.is_met(id, job)) {
            *lines.entry(job.row.kind.clone()).or_default() += 1;
        }
        lines.into_iter().collect()
    }

    pub(super) fn is_open(&self, name: &str, cost: u32, at: &Moment) -> bool {
        let running = self.in_state(JobState::Running);
        let running = running.filter(|(_, job)| self.limits.names(&job.row).iter().any(|of| of == name)).count();
        self.limits.bounds(name).at_once.is_none_or(|most| running < most as usize) && self.has_tokens(name, cost, at)
    }
}
