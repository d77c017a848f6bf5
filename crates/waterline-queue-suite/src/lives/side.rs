//! One of the two queues of a life: it makes the calls, and returns what it shows.

use crate::bench::*;
use crate::lives::calls::{Call, Id, Spec, Work, own_ids};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::{Duration, SystemTime};
use waterline::{Effects, Error, Table};
use waterline_queue::{
    Accept, Clock, Every, JobInfo, JobState, Lease, NewJob, PeriodicInfo, Queue, QueueError, QueueOptions, QueueStatus,
    Waits,
};

/// One of the two queues, and the leases of its worker.
pub(super) struct Side {
    bench: Bench,
    is_limited: bool,
    leases: Vec<Lease>,
    wall: SystemTime,
    /// True once the clock was set back: then the first ready job may not be the oldest.
    is_back: bool,
    /// The generated ids, in the order of their appearance. Each engine numbers its own.
    made: Vec<String>,
    /// How often the worker has written for each job, if it does.
    writes: Option<BTreeMap<String, i64>>,
}

/// The answer to a call whose write has failed.
pub(super) const FAILED: &str = "a write has failed";
/// What a queue shows while its store fails.
pub(super) const FAILS: &str = "the store fails";

fn said(answer: Result<impl Debug, QueueError>) -> String {
    match answer {
        Err(QueueError::Store(Error::Store { .. })) => FAILED.to_owned(),
        Err(error) => error.to_string(),
        Ok(answer) => format!("{answer:?}"),
    }
}

/// Returns the answer of a push as text. Of several faults, any may be the one reported.
fn said_pushed(answer: Result<impl Debug, QueueError>) -> String {
    match answer {
        Err(QueueError::Cycle { .. } | QueueError::NotFound { .. }) => "it waits for none, or for itself".to_owned(),
        answer => said(answer),
    }
}

/// Returns a job as text, without what differs by engine: its place and its limit.
fn shown(mut job: JobInfo) -> String {
    job.held_by = None;
    let text = format!("{job:?}");
    text.rsplit_once(", place:").map_or(text.clone(), |(text, _)| text.to_owned())
}

impl Side {
    pub(super) fn new(database: Database, name: &str, options: QueueOptions, is_limited: bool) -> Self {
        let clock = Clock::manual(noon());
        let options = options.clock(clock.clone());
        let queue = database.open(name, options.clone()).unwrap();
        let bench = Bench { queue, clock, database, options };
        Self { bench, is_limited, leases: Vec::new(), wall: noon(), is_back: false, made: Vec::new(), writes: None }
    }

    /// Returns the id by which this queue knows a job.
    fn named(&self, id: Id) -> String {
        match id {
            Id::Own(id) => id.to_owned(),
            Id::Made(n) => self.made.iter().rev().nth(n).cloned().unwrap_or_else(|| "~99999999999999999".to_owned()),
        }
    }

    /// Replaces generated ids by the order in which they were seen.
    fn renamed(&mut self, text: &str) -> String {
        let mut parts = text.split('~');
        let mut renamed = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(part.len());
            let (number, rest) = part.split_at(end);
            let id = format!("~{number}");
            let known = self.made.iter().position(|made| *made == id);
            let known = known.unwrap_or_else(|| {
                self.made.push(id);
                self.made.len() - 1
            });
            renamed.push_str(&format!("~{known}{rest}"));
        }
        renamed
    }

    fn jobs(&self, specs: &[Spec]) -> Vec<NewJob> {
        specs.iter().map(|spec| spec.job(|id| self.named(id))).collect()
    }

    pub(super) fn act(&mut self, call: &Call) -> String {
        let answer = match call {
            Call::Accept(early, kind, is_kept) => self.accept(*early, *kind, *is_kept),
            Call::AcceptOld(time) => {
                let due = self.wall - *time;
                self.claim(Accept::new().max_run_at(due), false)
            }
            // The newest lease comes first, since the earlier ones are mostly over.
            Call::Work(n, work) => match self.leases.len().checked_sub(n + 1) {
                None => String::new(),
                Some(n) if matches!(work, Work::Write | Work::FinishWith) => self.write_with(n, *work),
                Some(n) => self.work(n, *work),
            },
            Call::Advance(time) => {
                self.pass(*time);
                String::new()
            }
            Call::Set(time, is_back) => {
                self.set_clock(*time, *is_back);
                String::new()
            }
            Call::Reopen => {
                self.leases.clear();
                self.bench.reopen();
                String::new()
            }
            Call::Crash => {
                self.crash();
                String::new()
            }
            call => self.ask(call),
        };
        self.renamed(&answer)
    }

    /// Makes a call that needs no lease.
    fn ask(&self, call: &Call) -> String {
        let (queue, named) = (&self.bench.queue, |id: &Id| self.named(*id));
        let job = |spec: &Spec| spec.job(|id| self.named(id));
        match call {
            Call::Push(spec) => said_pushed(queue.push(job(spec))),
            Call::PushAll(specs) => said_pushed(queue.push_all(self.jobs(specs))),
            Call::Batch(specs, then) => said_pushed(queue.push_batch(self.jobs(specs), job(then))),
            Call::Enqueue(specs) => said_pushed(self.enqueue(self.jobs(specs))),
            Call::SetMeta(id, value) => said(queue.set_meta(named(id), "by", value.map(Into::into))),
            Call::Remove(id) => said(queue.remove(named(id))),
            Call::Requeue(id) => said(queue.requeue(named(id))),
            Call::RunNow(id) => said(queue.run_now(named(id))),
            Call::RequeueDead => said(queue.requeue_dead()),
            Call::Purge => said(queue.purge()),
            Call::Pause(time) => said(queue.pause(*time)),
            Call::Resume => said(queue.resume()),
            Call::SetNote(value, None) => said(queue.notes("k").unwrap().set("n", *value)),
            Call::SetNote(value, Some(time)) => said(queue.notes("k").unwrap().set_for("n", *value, *time)),
            Call::AddNote(by) => said(queue.notes("k").unwrap().add("n", *by)),
            Call::RemoveNote => said(queue.notes("k").unwrap().remove("n")),
            Call::Periodic(every, overlap, catch_up, spec) => {
                let periodic = queue.periodic("p", Every::new(*every), job(spec));
                said(periodic.overlap(*overlap).catch_up(*catch_up).start())
            }
            Call::RemovePeriodic => said(queue.remove_periodic("p")),
            _ => unreachable!("it is none of these"),
        }
    }

    fn accept(&mut self, early: Option<Duration>, kind: Option<&'static str>, is_kept: bool) -> String {
        let accept = early.map(|early| self.wall + early).into_iter().fold(Accept::new(), Accept::max_run_at);
        let accept = kind.into_iter().fold(accept, |accept, kind| accept.kinds([kind]));
        self.claim(accept, is_kept)
    }

    fn claim(&mut self, accept: Accept, is_kept: bool) -> String {
        let lease = match self.bench.queue.accept(accept) {
            Ok(lease) => lease,
            Err(error) => return said(Err::<(), _>(error)),
        };
        let kept = lease.as_ref().filter(|_| is_kept).map(Lease::keep);
        let text = lease.as_ref().map(|lease| (lease.id().to_owned(), lease.attempt(), lease.crashes()));
        self.leases.extend(lease);
        format!("{text:?} {kept:?}")
    }

    fn work(&mut self, n: usize, work: Work) -> String {
        let at = |time: Duration| self.wall + time;
        let lease = &mut self.leases[n];
        match work {
            Work::Finish => said(lease.finish(Some(1.into()))),
            Work::Retry => said(lease.retry("it fails")),
            Work::RetryAt(time) => said(lease.retry_at(at(time), "it fails")),
            Work::Snooze(time) => said(lease.snooze(at(time))),
            Work::Bury => said(lease.bury("no way")),
            Work::GiveBack => format!("{:?}", drop(self.leases.remove(n))),
            Work::Leave => format!("{:?}", self.leases.remove(n).lose()),
            Work::Keep => format!("{:?}", lease.keep()),
            Work::Update(data) => said(lease.update(Some(data.into()))),
            Work::Show(percent) => {
                // A store writes progress twice a second at most, and a crash loses what came
                // sooner.
                self.bench.clock.advance(SECOND);
                self.wall += SECOND;
                said(lease.progress(f64::from(percent) / 100.0, "so far"))
            }
            Work::Meta(value) => said(lease.set_meta("by", Some(value.into()))),
            Work::Resubmit(time) => said(lease.resubmit(time.map(at))),
            Work::Write | Work::FinishWith => unreachable!("it is none of these"),
        }
    }

    /// The table of the worker, if it has one.
    fn table(&self) -> Option<Table> {
        let Database::Disk(disk) = &self.bench.database else { return None };
        self.writes.as_ref().map(|_| disk.store().table("writes").unwrap())
    }

    /// Writes for a job, in one write with a call of its lease.
    fn write_with(&mut self, n: usize, work: Work) -> String {
        let table = self.table();
        let lease = &mut self.leases[n];
        let id = lease.id().to_owned();
        let add = |writes: &mut Effects| table.iter().try_for_each(|table| writes.add(table, &id, 1));
        let answer = match (work, &table) {
            (Work::FinishWith, Some(_)) => lease.finish_with(add),
            (Work::FinishWith, None) => lease.finish(None),
            (_, Some(_)) => lease.write(add).map(|()| None),
            (_, None) => lease.update(None).map(|()| None),
        };
        if let (Ok(_), Some(writes)) = (&answer, &mut self.writes) {
            *writes.entry(id).or_default() += 1;
        }
        said(answer)
    }

    /// Pushes jobs in a write of the user's, or one by one on an engine that has none.
    fn enqueue(&self, jobs: Vec<NewJob>) -> Result<(), QueueError> {
        match &self.bench.database {
            Database::Disk(disk) => {
                let queue = &self.bench.queue;
                let mut jobs = jobs.into_iter();
                let written = disk.store().write(|all| jobs.try_for_each(|job| queue.push_with(all, job).map(drop)));
                written.map_err(QueueError::from)
            }
            _ => self.bench.queue.push_all(jobs).map(drop),
        }
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.bench.clock.advance(time);
        self.wall += time;
    }

    fn set_clock(&mut self, time: Duration, is_back: bool) {
        // Where only claims promote jobs, a clock set back a little makes a due job wait again,
        // unless a claim has met it. So it goes back further.
        let goes_further = is_back && !self.bench.can().one_process;
        let time = if goes_further { time + 2 * (SECOND + MILLI) } else { time };
        if goes_further {
            // A server notes the time once a second.
            self.pass(SECOND + MILLI);
        }
        // A call notes the time before and after. (A crash may lose that note.)
        self.note_time();
        self.wall = if is_back { self.wall - time } else { self.wall + time };
        self.is_back |= is_back;
        self.bench.clock.set_wall(self.wall);
        self.note_time();
    }

    /// Makes a call that claims nothing, but promotes and expires jobs.
    pub(super) fn note_time(&self) {
        let taken = self.bench.queue.accept(Accept::new().kinds(["none"])).unwrap();
        assert!(taken.is_none(), "a job of no kind: {taken:?}");
    }

    fn crash(&mut self) {
        let next = self.bench.database.next_life().unwrap().expect("its process can die");
        assert_eq!(self.begin(next), Ok(()));
    }

    /// Kills the process, and lets the next one open the queue on this database.
    pub(super) fn begin(&mut self, next: Database) -> Result<(), String> {
        // These speak to the process that has died.
        self.leases.drain(..).for_each(Lease::lose);
        let opened = next.open(self.bench.queue.name(), self.bench.options.clone());
        self.bench.queue = opened.map_err(|error| said(Err::<(), _>(error)))?;
        self.bench.database = next;
        Ok(())
    }

    /// Returns what the queue shows: everything, or only its counts.
    pub(super) fn looks(&mut self, is_whole: bool) -> Vec<String> {
        if is_whole { self.look() } else { vec![format!("{:?}", self.bench.queue.counts())] }
    }

    /// Returns all that the queue shows, and asserts that another process sees the same.
    fn look(&mut self) -> Vec<String> {
        let mut all = stored(&self.bench.queue, &self.made, self.is_limited);
        let status = self.bench.queue.status().unwrap();
        let is_shared = !self.bench.can().one_process;
        // Of two jobs that have waited equally long, either may be the oldest.
        let age = |status: &QueueStatus| status.oldest_ready.as_ref().map(|(_, age)| *age);
        if let Some(beside) = self.bench.beside() {
            assert_eq!(stored(&beside, &self.made, self.is_limited), all, "beside the process (left) and within it");
            let seen = beside.status().unwrap();
            // Only the process itself knows which job runs alone, when the next tick is, and which
            // write has failed.
            if !matches!(status.waits, Waits::Alone { .. } | Waits::NothingReady { .. } | Waits::StoreFails { .. }) {
                assert_eq!(format!("{:?}", seen.waits), format!("{:?}", status.waits));
            }
            assert_eq!(age(&seen), age(&status));
        }
        let oldest = age(&status).filter(|_| !self.is_back);
        let waits = match &status.waits {
            // Of two jobs that began together, either may be the oldest.
            Waits::Alone { runs, since, .. } if !is_shared => format!("alone {runs} {since:?}"),
            waits @ (Waits::Paused { .. } | Waits::NothingReady { .. }) => format!("{waits:?}"),
            // The model's claims read every job, and those of others only some.
            _ => "some may begin".to_owned(),
        };
        let fails = matches!(status.waits, Waits::StoreFails { .. });
        all.push(if fails { FAILS.to_owned() } else { format!("{waits} {oldest:?}") });
        all.extend(self.written());
        all.into_iter().map(|text| self.renamed(&text)).collect()
    }
}

impl Side {
    /// A side whose worker writes for its jobs.
    pub(super) fn writing(self) -> Self {
        Self { writes: Some(BTreeMap::new()), ..self }
    }

    /// Returns what the worker has written for the jobs.
    fn written(&self) -> Option<String> {
        let table = self.table();
        let writes = self.writes.as_ref()?;
        let count = |id: &str| match &table {
            Some(table) => table.counter(id).unwrap(),
            None => writes.get(id).copied().unwrap_or_default(),
        };
        let ids = own_ids().into_iter().chain(self.made.iter().map(String::as_str));
        let counts: Vec<_> = ids.map(|id| (id, count(id))).filter(|(_, count)| *count != 0).collect();
        Some(format!("writes: {counts:?}"))
    }

    /// Returns what a process that begins now would find.
    pub(super) fn past(&self) -> Past {
        let database = self.bench.database.next_life().unwrap().expect("its process can die");
        Past { database, made: self.made.len(), writes: self.writes.clone() }
    }

    /// Forgets everything since this past.
    pub(super) fn forget(&mut self, past: &Past) {
        self.made.truncate(past.made);
        self.writes.clone_from(&past.writes);
    }

    pub(super) fn is_drained(&self) -> bool {
        let counts = self.bench.queue.counts();
        counts.scheduled + counts.ready + counts.running + counts.waiting == 0
    }
}

/// A queue as the next process finds it.
pub(super) struct Past {
    pub(super) database: Database,
    made: usize,
    writes: Option<BTreeMap<String, i64>>,
}

/// Returns a sort key of an id that is the same for each engine: generated numbers go up.
fn rank(made: &[String], id: &str) -> (bool, usize, usize, String) {
    let is_made = id.starts_with('~');
    let known = made.iter().position(|made| made == id).unwrap_or(usize::MAX);
    (is_made, known, if is_made { id.len() } else { 0 }, id.to_owned())
}

/// Returns all that is stored of a queue that has generated these ids.
fn stored(queue: &Queue, made: &[String], is_limited: bool) -> Vec<String> {
    let mut all = vec![format!("{:?}", queue.counts())];
    let mut jobs = Vec::new();
    for state in STATES {
        let listed = queue.list(state, None, usize::MAX).unwrap();
        let (mut paged, mut next) = (Vec::new(), None);
        loop {
            let page = queue.page(state, next.as_deref(), 3).unwrap();
            paged.extend(page.jobs);
            next = page.next;
            if next.is_none() {
                break;
            }
        }
        assert_eq!(paged, listed, "the pages of the {state} jobs (left) and their list");
        let mut ids: Vec<_> = listed.iter().map(|job| job.id.clone()).collect();
        if is_limited {
            // An engine may list held jobs apart.
            ids.sort_by_key(|id| rank(made, id));
        }
        all.push(format!("{state:?}: {ids:?}"));
        jobs.extend(listed);
    }
    // A call to a server takes long, and `get` has no rules of its own there.
    for job in jobs.iter().take(if queue.capabilities().one_process { usize::MAX } else { 1 }) {
        assert_eq!(queue.get(&job.id).unwrap().as_ref(), Some(job), "a job by itself (left) and in its list");
    }
    for job in jobs.iter().filter(|job| job.state == JobState::Waiting) {
        let mut waits_for = queue.related(&job.id, 99).unwrap().waits_for;
        waits_for.sort_by_key(|id| rank(made, id));
        all.push(format!("{} waits for {waits_for:?}", job.id));
    }
    jobs.sort_by_key(|job| rank(made, &job.id));
    all.extend(jobs.into_iter().map(shown));
    for id in own_ids().into_iter().filter(|_| queue.capabilities().one_process) {
        all.push(format!("{id} is {:?}", queue.state(id).unwrap()));
    }
    all.push(format!("{:?}", queue.notes("k").unwrap().list(None, 9).unwrap()));
    let ticks = |of: &PeriodicInfo| (of.name.clone(), of.last_tick, of.last_run.clone(), of.skipped);
    all.push(format!("{:?}", queue.periodics().unwrap().iter().map(ticks).collect::<Vec<_>>()));
    all
}
