//! The state of an open queue: its part in each batch, and those who wait for its jobs.

use super::bell::Bell;
use super::durations::Averages;
use super::enqueue::decode_pushes;
use super::head::{Head, Lane};
use super::intent::refusal;
use super::keys::{Fronts, Keys};
use super::limit::LimitSet;
use super::limit::gate::Gate;
use super::lines::Lines;
use super::new_job::NewJob;
use super::notes::decode_change;
use super::options::QueueOptions;
use super::periodic::Periodics;
use super::prepare::prepare;
use super::progress::Shown;
use super::row::Row;
use super::step::{AT_ONCE, Happened, Push, Room, Step, Tail};
use super::subscription::Subscribers;
use crate::base::clock::{Moment, Waits};
use crate::base::config::ConfigError;
use crate::base::error::{Error, StoreError};
use crate::base::index::BoxError;
use crate::base::sync::{Arc, AtomicU64, Condvar, Mutex, MutexGuard, Ordering};
use crate::commit::overlay::Overlay;
use crate::commit::participant::{Chore, Participant};
use crate::kv::Family;
use crate::queue::error::QueueError;
use crate::queue::job::{JobId, JobState};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Weak;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

mod bells;
pub(super) mod loading;
mod runs;
mod sleeping;

/// The longest sleep of a thread that waits for a due time. The clock on the wall may be set while
/// it sleeps.
pub(super) const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// A queue that is open.
pub(crate) struct QueueState {
    pub(super) name: String,
    pub(super) keys: Keys,
    /// The family of rows and payloads.
    pub(super) rows: Family,
    /// The family of the entries by which jobs are found.
    pub(super) entries: Family,
    pub(super) options: QueueOptions,
    pub(super) limits: LimitSet,
    /// The next number for an id. It is handed out before the batch is made.
    next_id: AtomicU64,
    live: Mutex<Live>,
    /// Threads that wait for a job sleep here.
    changed: Condvar,
    /// Threads that could take no job now sleep here, so that they use up no wake-up of another.
    called: Condvar,
    /// Threads that wait for room sleep here.
    pub(super) room: Condvar,
    pub(super) subscribers: Subscribers,
    pub(super) periodics: Periodics,
    /// The slots of the runner; 0: there is none.
    slots: AtomicUsize,
    pub(super) averages: Averages,
    pub(super) lines: Lines,
}

/// The right to run a queue, until it is dropped.
pub(super) struct RunnerName(Arc<QueueState>);

impl Drop for RunnerName {
    fn drop(&mut self) {
        self.0.slots.store(0, Ordering::Release);
        self.0.note_gate(None);
    }
}

/// The state that everybody sees: that of the last batch.
pub(super) struct Live {
    pub(super) head: Head,
    pub(super) from: Fronts,
    pub(super) gate: Gate,
    /// The number of jobs that are set aside, since they cannot be read.
    pub(super) damaged: u64,
    /// The running jobs by the tokens of their leases.
    pub(super) running: HashMap<u64, Holder>,
    /// The ends of the leases that end by silence.
    deadlines: BTreeSet<(Instant, u64)>,
    /// The number of threads that sleep until there is a job.
    pub(super) asleep: usize,
    /// The number of those who sleep until there is a job, but do not take each one.
    picky: usize,
    /// The number of threads that sleep although there may be a job, since their slots are taken.
    full: usize,
    /// The number of threads that wait for room.
    pub(super) blocked: usize,
    /// Counts the changes that a sleeper has to look at.
    news: u64,
    /// The bells of the groups that it is in.
    bells: Vec<Weak<Bell>>,
    /// The reason why the last write failed, and the time of the first such failure.
    pub(super) failing: Option<(String, Instant)>,
    /// The gate of the runner that is closed, and since when.
    pub(super) closed: Option<(String, Instant)>,
}

/// The jobs that a thread takes when it is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    Each,
    /// Those that are due by a time of its own.
    Some,
    /// None, since its slots are taken.
    Nothing,
}

/// The holder of a lease.
pub(super) struct Holder {
    pub(super) id: JobId,
    pub(super) since: Instant,
    deadline: Option<Instant>,
    /// The progress that it shows, if any.
    pub(super) shown: Option<Box<Shown>>,
}

impl Holder {
    /// True if the lease holds at this time. It ends at its deadline, and not before.
    pub(super) fn holds(&self, now: Instant) -> bool {
        self.deadline.is_none_or(|deadline| deadline > now)
    }
}

impl QueueState {
    pub(super) fn new(
        name: &str,
        number: u32,
        [rows, entries]: [Family; 2],
        options: QueueOptions,
        (head, from, damaged): (Head, Fronts, u64),
        averages: Averages,
    ) -> Self {
        let next_id = AtomicU64::new(head.next_id);
        let limits = LimitSet::new(&options.limits);
        let live = Live {
            head,
            from,
            gate: Gate::new(limits.queue.at_once),
            damaged,
            running: HashMap::new(),
            deadlines: BTreeSet::new(),
            asleep: 0,
            picky: 0,
            full: 0,
            blocked: 0,
            news: 0,
            bells: Vec::new(),
            failing: None,
            closed: None,
        };
        Self {
            name: name.to_owned(),
            keys: Keys(number),
            rows,
            entries,
            options,
            limits,
            next_id,
            live: Mutex::new(live),
            changed: Condvar::new(),
            called: Condvar::new(),
            room: Condvar::new(),
            subscribers: Subscribers::default(),
            periodics: Periodics::default(),
            slots: AtomicUsize::new(0),
            averages,
            lines: Lines::default(),
        }
    }

    /// Takes the right to run the queue, with so many slots. `None` while another runner has it.
    pub(super) fn take_runner(self: &Arc<Self>, slots: usize) -> Option<RunnerName> {
        let taken = self.slots.compare_exchange(0, slots, Ordering::AcqRel, Ordering::Acquire);
        taken.ok().map(|_| RunnerName(self.clone()))
    }

    /// Changes the number of slots of the runner that there is.
    pub(super) fn set_slots(&self, slots: usize) {
        self.slots.store(slots, Ordering::Release);
    }

    /// Returns the number of slots of the runner, if there is one.
    pub(super) fn slots(&self) -> Option<usize> {
        Some(self.slots.load(Ordering::Acquire)).filter(|slots| *slots > 0)
    }

    pub(super) fn corrupt(&self, reason: String) -> Error {
        Error::Corrupt { name: self.name.clone(), reason }
    }

    /// The error of a worker whose lease is over.
    pub(super) fn halt(&self, id: &str) -> QueueError {
        QueueError::Halt { queue: self.name.clone(), id: id.to_owned() }
    }

    pub(super) fn not_found(&self, id: &str) -> QueueError {
        QueueError::NotFound { queue: self.name.clone(), id: id.to_owned() }
    }

    pub(super) fn decode_row(&self, id: &str, bytes: &[u8]) -> Result<Row, Error> {
        Row::decode(&self.name, id, bytes)
            .map_err(|reason| self.corrupt(format!("the row of the job {id:?}: {reason}")))
    }

    pub(super) fn moment(&self) -> Moment {
        self.options.clock.moment()
    }

    /// Returns a number that is in no id so far.
    pub(super) fn make_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Checks a job, and gives it an id if it has none.
    pub(super) fn prepare(&self, new: NewJob, wall: u64) -> Result<Push, ConfigError> {
        prepare(new, wall, || self.make_id())
    }

    pub(super) fn look<R>(&self, look: impl FnOnce(&Live) -> R) -> R {
        look(&self.live.lock())
    }

    /// Changes what is in memory alone.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut MutexGuard<'_, Live>) -> R) -> R {
        change(&mut self.live.lock())
    }

    /// Begins a step of this queue in a batch.
    pub(super) fn step<'s, 'k>(&'s self, tail: &'s mut Tail, batch: &'s mut Overlay<'k>, at: Moment) -> Step<'s, 'k> {
        Step {
            queue: self,
            tail,
            batch,
            at,
            wrote: false,
            room: Room::Any,
            endings: VecDeque::new(),
            is_telling: false,
            has_lost: false,
        }
    }

    /// Notes where the lists begin, from a look at what is stored that changed nothing.
    pub(super) fn learn(&self, tail: &Tail) {
        let mut live = self.live.lock();
        (live.from, live.gate) = (tail.from, tail.gate);
    }

    /// Notes that a write failed, or that one succeeded.
    pub(super) fn note_failing(&self, error: Option<String>) {
        let now = self.moment().now;
        let mut live = self.live.lock();
        live.failing = error.map(|error| (error, live.failing.take().map_or(now, |(_, since)| since)));
    }

    // Leases.

    /// Makes a lease end at this time unless it is renewed; `None`: it never ends by silence.
    /// Returns false if it is over.
    pub(super) fn renew(&self, token: u64, deadline: Option<Instant>) -> bool {
        let mut live = self.live.lock();
        let Live { running, deadlines, .. } = &mut *live;
        let Some(holder) = running.get_mut(&token) else { return false };
        // A lease that is only prolonged wakes nobody.
        let first = deadlines.first().map(|(first, _)| *first);
        if let Some(old) = std::mem::replace(&mut holder.deadline, deadline) {
            deadlines.remove(&(old, token));
        }
        let is_first = deadline.is_some_and(|new| first.is_none_or(|first| new < first));
        deadlines.extend(deadline.map(|deadline| (deadline, token)));
        if is_first {
            self.wake_all(&mut live);
            drop(live);
            self.subscribers.ring();
        }
        true
    }

    /// True if the lease holds at this time.
    pub(super) fn holds(&self, token: u64, now: Instant) -> bool {
        self.live.lock().running.get(&token).is_some_and(|holder| holder.holds(now))
    }

    /// Returns the leases that are over by now.
    pub(super) fn silent(&self, now: Instant) -> Vec<(u64, JobId)> {
        let live = self.live.lock();
        let over = live.deadlines.iter().take_while(|(deadline, _)| *deadline <= now);
        over.filter_map(|(_, token)| Some((*token, live.running.get(token)?.id.clone()))).collect()
    }
}

impl Live {
    pub(super) fn ready(&self) -> u64 {
        if self.gate.room() == 0 {
            return 0;
        }
        self.logs().map(|log| log.end - log.next).sum()
    }

    /// Returns the logs in which a claim looks for a job.
    fn logs(&self) -> impl Iterator<Item = &Lane> {
        self.head.lanes.iter().chain([&self.head.freed])
    }

    /// Returns the number of ready jobs that may begin by what was released since.
    fn places_since(&self, before: &Gate) -> u64 {
        self.gate.room().saturating_sub(before.room()).min(self.ready())
    }

    /// True if limits hold jobs that are ready.
    pub(super) fn is_limited(&self, wall: u64) -> bool {
        let ready = self.head.counts[JobState::Ready.number()];
        self.head.held > 0 || self.gate.is_full(wall) && ready > 0
    }

    /// Returns the number of entries that were ever made for ready jobs.
    fn entered(&self) -> u64 {
        self.logs().map(|log| log.end).sum()
    }

    /// Returns the time until something happens without anybody's doing; `None`: nothing will.
    pub(super) fn next_change(&self, at: &Moment) -> Option<Duration> {
        if self.from.has_untold() { Some(Duration::ZERO) } else { self.next_time(at) }
    }

    /// Returns the time until time brings something; `None`: it will not.
    pub(super) fn next_time(&self, at: &Moment) -> Option<Duration> {
        let listed = self.from.first();
        let paused = if self.head.is_paused(at.wall) { self.head.paused_until } else { u64::MAX };
        let shut = self.gate.shut_until(at.wall).unwrap_or(u64::MAX);
        let wall = listed.min(paused).min(shut);
        let wall = (wall < u64::MAX).then(|| Duration::from_millis(wall.saturating_sub(at.wall)).min(LONGEST_SLEEP));
        let silence = self.deadlines.first().map(|(deadline, _)| deadline.saturating_duration_since(at.now));
        wall.into_iter().chain(silence).min()
    }

    fn happened(&mut self, happened: &Happened, now: Instant) {
        match happened {
            Happened::Claimed { id, token } => {
                self.running.insert(*token, Holder { id: id.clone(), since: now, deadline: None, shown: None });
            }
            Happened::Released { token } => {
                if let Some(Holder { deadline: Some(deadline), .. }) = self.running.remove(token) {
                    self.deadlines.remove(&(deadline, *token));
                }
            }
            Happened::Seen { .. } | Happened::Line(_) | Happened::Anew { .. } | Happened::Paused { .. } => {}
        }
    }
}

impl Participant for QueueState {
    type Tail = Tail;

    fn tail(&self) -> Tail {
        let live = self.live.lock();
        Tail::new(live.head.clone(), live.from, live.gate, live.damaged)
    }

    fn apply(&self, tail: &mut Tail, op: &[u8], batch: &mut Overlay<'_>) -> Result<(), BoxError> {
        tail.owes_lines = true;
        if let Some((of, change)) = decode_change(op) {
            let changed = self.step(tail, batch, self.moment()).change_note(&of, &change);
            return changed.map(drop).map_err(refusal);
        }
        let pushes = decode_pushes(op).ok_or("an operation of a queue is no push")?;
        let wall = pushes.first().map_or(0, |push| push.row.pushed);
        let at = Moment { wall, ..self.moment() };
        let mut step = self.step(tail, batch, at);
        step.keep_house(AT_ONCE)?;
        step.room = Room::AtBegin;
        step.push_batch(&pushes).map(drop).map_err(refusal)
    }

    fn close(&self, tail: &mut Tail, batch: &mut Overlay<'_>) -> Result<(), StoreError> {
        if tail.is_changed() {
            batch.put(self.rows.id, &[&self.keys.head()], &[&tail.head.encode(&self.name)])?;
        }
        Ok(())
    }

    fn publish(self: Arc<Self>, tail: Tail) -> Option<Chore> {
        let mut told = tail.take_told();
        let now = self.moment().now;
        let sooner;
        {
            let mut live = self.live.lock();
            let before = (live.entered(), live.from, live.head.paused_until);
            let gate = live.gate;
            told.iter().for_each(|happened| live.happened(happened, now));
            if live.blocked > 0 && tail.head.waiting() < live.head.waiting() {
                self.room.notify_all();
            }
            (live.head, live.from, live.gate) = (tail.head, tail.from, tail.gate);
            live.damaged = tail.damaged;
            // Claims of the same batch hide nothing: a thread may have looked before the push.
            let more = live.entered().saturating_sub(before.0);
            let more = more.saturating_add(live.places_since(&gate));
            // A thread that is picky may take a job that waits for its time, and is in no log. It
            // may be about to sleep.
            let is_released = live.gate.released != gate.released;
            sooner = live.from.are_sooner_than(&before.1);
            if sooner || live.head.paused_until != before.2 {
                self.wake_all(&mut live);
            } else if more > 0 || is_released {
                self.wake(&mut live, more);
            }
        }
        let is_line = |happened: &mut Happened| matches!(happened, Happened::Line(_));
        let lines: Vec<_> = told.extract_if(.., is_line).filter_map(Happened::line).collect();
        let owes = tail.owes_lines && !lines.is_empty();
        self.lines.add(lines);
        self.subscribers.tell(told);
        if sooner {
            self.subscribers.ring();
        }
        owes.then(|| -> Chore { Box::new(move |_| self.lines.write(&self.name)) })
    }
}

impl Waits for QueueState {
    fn clock_was_set(&self) {
        self.ring();
        self.subscribers.ring();
    }
}

#[cfg(test)]
mod tests {
    use crate::queue::{Accept, Clock, Every, Limit, NewJob, Queue, QueueOptions, Retention};
    use crate::store::Store;
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_lease_that_is_prolonged_wakes_nobody() {
        let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).expect("it opens");
        queue.push(NewJob::new("k", &1).expect("it is JSON")).expect("it is pushed");
        let mut lease = queue.accept(Accept::new()).expect("it works").expect("a job is ready");
        let news = queue.inner().news();
        lease.update(None).expect("the lease holds");
        assert_eq!(queue.inner().news(), news);
    }

    #[test]
    fn a_place_that_gets_free_while_a_thread_that_takes_early_jobs_falls_asleep_is_not_overlooked() {
        let options = QueueOptions::default().clock(Clock::manual(SystemTime::UNIX_EPOCH));
        let options = options.retention(Retention::Drop).limit(Limit::each_key().at_once(1));
        let queue = Queue::open(&Store::in_memory(), "q", options).expect("it opens");
        let job = || NewJob::new("k", &1).expect("it is JSON").key("a");
        queue.push_all([job(), job().delay(Duration::from_secs(1))]).expect("they are pushed");
        let mut lease = queue.accept(Accept::new()).expect("it works").expect("a job is ready");
        let news = queue.inner().news();
        assert!(queue.claim(Some(1000)).expect("it works").is_none(), "the key has no place");
        lease.finish(None).expect("the lease holds");
        // The thread sleeps until there is news.
        assert_ne!(queue.inner().news(), news);
        assert!(queue.claim(Some(1000)).expect("it works").is_some());
    }

    #[test]
    fn a_job_that_is_pushed_for_later_than_one_that_is_held_wakes_who_takes_early_jobs() {
        let options = QueueOptions::default().clock(Clock::manual(SystemTime::UNIX_EPOCH));
        let queue =
            Queue::open(&Store::in_memory(), "q", options.limit(Limit::each_key().at_once(1))).expect("it opens");
        let job = |key: &str| NewJob::new("k", &1).expect("it is JSON").key(key);
        queue.push_all([job("a"), job("a").delay(Duration::from_secs(1))]).expect("they are pushed");
        let _holder = queue.accept(Accept::new()).expect("it works").expect("a job is ready");
        let news = queue.inner().news();
        assert!(queue.claim(Some(5000)).expect("it works").is_none(), "the key has no place");
        queue.push(job("b").delay(Duration::from_secs(2))).expect("it is pushed");
        assert_ne!(queue.inner().news(), news);
        assert!(queue.claim(Some(5000)).expect("it works").is_some());
    }

    #[test]
    fn a_thread_that_waits_wakes_for_the_next_tick() {
        let clock = Clock::manual(SystemTime::UNIX_EPOCH + Duration::from_secs(1));
        let options = QueueOptions::default().clock(clock);
        let queue = Queue::open(&Store::in_memory(), "q", options).expect("it opens");
        let next = || queue.inner().look(|live| live.next_change(&queue.inner().moment()));
        assert_eq!(next(), None);
        let digest = NewJob::new("digest", &1).expect("it is JSON");
        let every = Every::new(Duration::from_millis(300));
        queue.periodic("digest", every, digest).start_at_next().start().expect("it is registered");
        assert_eq!(next(), Some(Duration::from_millis(300)));
    }

    #[test]
    fn a_periodic_job_whose_removal_failed_goes_on_although_somebody_has_looked_for_ticks_meanwhile() {
        let disk = crate::fuzzing::Disk::default();
        let clock = Clock::manual(SystemTime::now());
        let store = disk.open(&Store::options()).expect("it opens");
        let queue = Queue::open(&store, "q", QueueOptions::default().clock(clock.clone())).expect("it opens");
        let hour = Duration::from_secs(3600);
        let job = NewJob::new("k", &1).expect("it is JSON");
        queue.periodic("p", Every::new(hour), job).start_at_next().start().expect("it is registered");
        // A call of another thread sees the name taken out of the register, and no tick.
        queue.inner().change(|live| live.from.set_ticks(u64::MAX));
        disk.fail(0..1);
        assert!(queue.remove_periodic("p").is_err());
        clock.advance(hour);
        assert!(queue.accept(Accept::new()).expect("it works").is_some(), "the tick is due");
    }
}
