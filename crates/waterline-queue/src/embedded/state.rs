//! The state of an open queue: its part in each batch, and the leases of its running jobs.

use crate::embedded::codec::durations::{DurationsRecord, Pair};
use crate::embedded::codec::head::{FREED, Head};
use crate::embedded::codec::push::decode_pushes;
use crate::embedded::codec::side_records::decode_change;
use crate::embedded::ctx::Ctx;
use crate::embedded::keys::Fronts;
use crate::embedded::kind_lines::KindLines;
use crate::embedded::periodics::Periodics;
use crate::embedded::staged::Staged;
use crate::embedded::state::loading::Stored;
use crate::embedded::step::{Room, Step};
use crate::embedded::txn::{AT_ONCE, Txn};
use crate::embedded::wall::Wall;
use crate::engine::Traffic;
use crate::notify::shared::{Shared, Wake};
use crate::rules::gate::Gate;
use crate::rules::lanes::Lane;
use crate::types::durations::Durations;
use crate::types::error::QueueError;
use crate::types::events::{Damaged, Event, Line};
use crate::types::job::{JobId, JobState};
use crate::types::options::LONGEST_SLEEP;
use crate::types::progress::JobProgress;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeSet, HashMap};
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};
use waterline::seam::{Cleanup, ClockExt, Family, Moment, Overlay, Participant, Refusal};
use waterline::{BoxError, Error, StoreError};

pub(crate) mod loading;
mod runs;
pub(crate) mod shown;

/// An open queue.
pub(crate) struct QueueState {
    ctx: Ctx,
    live: Mutex<Live>,
    /// Waiting threads and subscribers, which hear of each batch.
    pub(crate) shared: Arc<Shared>,
    pub(crate) periodics: Periodics,
    /// The first job of each ready log and of the freed log, as far as known.
    pub(crate) fronts: Mutex<[Front; FREED + 1]>,
}

/// The first job of a log.
#[derive(Clone, Copy, Default)]
pub(crate) struct Front {
    /// All entries before it are stale.
    pub(crate) index: u64,
    /// Since when it is ready, in milliseconds since 1970.
    pub(crate) since: Option<u64>,
}

/// The state that all callers see: that after the last batch.
pub(crate) struct Live {
    pub(crate) head: Head,
    pub(crate) from: Fronts,
    pub(crate) kinds: KindLines,
    pub(crate) gate: Gate,
    pub(crate) wall: Wall,
    /// The number of jobs set aside because they cannot be read.
    pub(crate) damaged: u64,
    /// The work since the queue was opened.
    pub(crate) traffic: Traffic,
    /// The first token since the queue was opened. A job with an earlier one does not run.
    life: u64,
    /// The running jobs, by token.
    pub(crate) running: HashMap<u64, Holder>,
    /// The deadlines of the leases that end by silence.
    deadlines: BTreeSet<(Instant, u64)>,
}

/// The holder of a lease.
pub(crate) struct Holder {
    pub(crate) id: JobId,
    pub(crate) since: Instant,
    deadline: Option<Instant>,
    /// Whether its runner gave it up when stopping. The note in the store may come later.
    is_stopping: bool,
    pub(crate) shown: Option<Box<Shown>>,
}

/// The progress that a running job shows.
pub(crate) struct Shown {
    progress: JobProgress,
    /// The time of the last successful write, if any.
    written: Option<Instant>,
    /// Whether the store has an older one.
    is_ahead: bool,
}

impl Holder {
    /// Returns a holder, perhaps of another process, whose lease ends by silence at `deadline`.
    pub(crate) fn new(id: &str, since: Instant, deadline: Option<Instant>) -> Self {
        Self { id: id.to_owned(), since, deadline, is_stopping: false, shown: None }
    }

    /// True if the lease holds at this time. It ends at its deadline.
    pub(crate) fn holds(&self, now: Instant) -> bool {
        self.deadline.is_none_or(|deadline| deadline > now)
    }
}

impl Deref for QueueState {
    type Target = Ctx;

    fn deref(&self) -> &Ctx {
        &self.ctx
    }
}

impl QueueState {
    pub(crate) fn new(
        shared: Arc<Shared>,
        number: u32,
        families: [Family; 2],
        (head, from, kinds, damaged): (Head, Fronts, KindLines, u64),
    ) -> Self {
        let ctx = Ctx::new(&shared.name, number, families, shared.options.clone(), head.next_id);
        let live = Live {
            wall: Wall::stored(head.seen),
            head,
            from,
            kinds,
            gate: Gate::new(ctx.limits.queue.at_once),
            damaged,
            traffic: Traffic::default(),
            life: u64::MAX,
            running: HashMap::new(),
            deadlines: BTreeSet::new(),
        };
        let (periodics, fronts) = (Periodics::default(), Mutex::default());
        Self { ctx, live: Mutex::new(live), shared, periodics, fronts }
    }

    /// Leaves the jobs that ran, and times that are ahead of the clock, to the next opening.
    pub(crate) fn keep_running(&self) {
        let mut live = self.live.lock();
        (live.life, live.wall) = (0, Wall::default());
    }

    pub(crate) fn moment(&self) -> Moment {
        self.options.clock.moment()
    }

    pub(crate) fn look<R>(&self, look: impl FnOnce(&Live) -> R) -> R {
        look(&self.live.lock())
    }

    /// Changes what is only in memory.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut MutexGuard<'_, Live>) -> R) -> R {
        change(&mut self.live.lock())
    }

    /// Begins a step of this queue in a batch.
    pub(crate) fn step<'s, 'k>(
        &'s self,
        staged: &'s mut Staged,
        batch: &'s mut Overlay<'k>,
        at: Moment,
    ) -> Step<'s, 'k> {
        if !self.options.admin && !staged.wall.is_behind(&at) {
            staged.wall.latest.note(at.wall, at.now);
        }
        let has_ticks = staged.from.ticks() <= at.wall || staged.wall.is_behind(&at);
        let periodics = if has_ticks { self.periodics.all() } else { Vec::new() };
        // Calls overtake each other: with their own times, some moments would fill a bucket twice.
        let tokens_at = if self.limits.has_rates { self.moment().wall } else { at.wall };
        Step::new(Txn::new(&self.ctx, staged, batch, at, tokens_at), periodics)
    }

    /// Keeps what a step that changed nothing has learned, such as where the lists begin.
    pub(crate) fn learn(&self, staged: &Staged) {
        let mut live = self.live.lock();
        (live.from, live.gate, live.wall) = (staged.from, staged.gate, staged.wall.clone());
        live.kinds = staged.kinds.clone();
    }

    // Leases.

    /// Makes a lease end at `deadline` unless it is renewed; `None`: it never ends by silence.
    /// Returns false if it is over.
    pub(crate) fn renew(&self, token: u64, deadline: Option<Instant>) -> bool {
        let mut live = self.live.lock();
        let Live { running, deadlines, .. } = &mut *live;
        let Some(holder) = running.get_mut(&token) else { return false };
        // A lease that is only prolonged wakes no worker.
        let first = deadlines.first().map(|(first, _)| *first);
        if let Some(old) = std::mem::replace(&mut holder.deadline, deadline) {
            deadlines.remove(&(old, token));
        }
        let is_first = deadline.is_some_and(|new| first.is_none_or(|first| new < first));
        deadlines.extend(deadline.map(|deadline| (deadline, token)));
        drop(live);
        if is_first {
            self.shared.wake(Wake { all: true, sooner: true, ..Wake::default() });
            self.shared.settle();
        }
        true
    }

    /// Notes that the runner of a job stops, and gave it up.
    pub(crate) fn note_stop(&self, token: u64) {
        if let Some(holder) = self.live.lock().running.get_mut(&token) {
            holder.is_stopping = true;
        }
    }

    /// True if the lease holds at this time.
    pub(crate) fn holds(&self, token: u64, now: Instant) -> bool {
        self.live.lock().running.get(&token).is_some_and(|holder| holder.holds(now))
    }

    /// Returns the leases that are over by now, each with whether its runner has stopped.
    pub(crate) fn silent(&self, now: Instant) -> Vec<(u64, JobId, bool)> {
        let live = self.live.lock();
        let over = live.deadlines.iter().take_while(|(deadline, _)| *deadline <= now);
        let silent = |(_, token): &(Instant, u64)| {
            let holder = live.running.get(token)?;
            Some((*token, holder.id.clone(), holder.is_stopping))
        };
        over.filter_map(silent).collect()
    }
}

impl Live {
    /// Takes over what another process has stored.
    pub(crate) fn show(&mut self, stored: Stored, running: HashMap<u64, Holder>) {
        (self.head, self.from, self.damaged) = (stored.head, stored.from, stored.damaged);
        self.kinds = stored.kinds;
        self.gate.running = running.len() as u64;
        self.running = running;
    }

    /// Returns how many ready jobs a claim of these kinds (`None`: of all) may find. A line counts
    /// as at most one of each priority.
    pub(crate) fn ready(&self, kinds: Option<&[String]>) -> u64 {
        if self.gate.room() == 0 {
            return 0;
        }
        let in_logs = self.logs().map(|log| log.end - log.next).sum::<u64>();
        in_logs.saturating_sub(self.kinds.turns_of_others(kinds)) + self.kinds.count(kinds)
    }

    /// Returns the logs in which a claim looks for a job.
    fn logs(&self) -> impl Iterator<Item = &Lane> {
        self.head.lanes.iter().chain([&self.head.freed])
    }

    /// True if a ready log has an entry that no claim has read.
    pub(crate) fn has_front(&self) -> bool {
        self.head.lanes.iter().any(|lane| lane.next < lane.end)
    }

    /// Returns how many ready jobs may begin in places released since `before`.
    fn places_since(&self, before: &Gate) -> u64 {
        self.gate.room().saturating_sub(before.room()).min(self.ready(None))
    }

    /// True if limits hold back ready jobs.
    pub(crate) fn is_limited(&self, wall: u64) -> bool {
        let ready = self.head.counts[JobState::Ready.number()];
        self.head.held > 0 || self.gate.is_full(wall) && ready > 0
    }

    /// Returns the end of each log.
    fn ends(&self) -> [u64; FREED + 1] {
        std::array::from_fn(|log| self.head.log(log).end)
    }

    /// Returns how many unclaimed entries were added since the logs had these ends.
    fn entered(&self, before: &[u64]) -> u64 {
        self.logs().zip(before).map(|(log, before)| log.end.saturating_sub(log.next.max(*before))).sum()
    }

    /// Returns how long until something changes without a call; `None`: nothing will.
    pub(crate) fn next_change(&self, at: &Moment) -> Option<Duration> {
        if self.from.has_untold() { Some(Duration::ZERO) } else { self.next_time(at) }
    }

    /// Returns how long until something is due; `None`: nothing is.
    pub(crate) fn next_time(&self, at: &Moment) -> Option<Duration> {
        if self.wall.is_behind(at) {
            return Some(Duration::ZERO);
        }
        let listed = self.from.first();
        let paused = if self.head.is_paused(at.wall) { self.head.paused_until } else { u64::MAX };
        let shut = self.gate.shut_until(at.wall).unwrap_or(u64::MAX);
        let wall = listed.min(paused).min(shut);
        let wall = (wall < u64::MAX).then(|| Duration::from_millis(wall.saturating_sub(at.wall)).min(LONGEST_SLEEP));
        let silence = self.deadlines.first().map(|(deadline, _)| deadline.saturating_duration_since(at.now));
        wall.into_iter().chain(silence).min()
    }

    fn happened(&mut self, happened: &Event, now: Instant, lease: Duration) {
        match happened {
            Event::Claimed { id, token } => {
                self.traffic.started += 1;
                self.running.insert(*token, Holder::new(id, now, None));
            }
            Event::Released { token } => {
                self.traffic.ended += 1;
                if let Some(Holder { deadline: Some(deadline), .. }) = self.running.remove(token) {
                    self.deadlines.remove(&(deadline, *token));
                }
            }
            Event::Kept { id, token } => {
                let silence = now.checked_add(lease);
                if !self.running.contains_key(token) {
                    self.running.insert(*token, Holder::new(id, now, silence));
                    self.deadlines.extend(silence.map(|deadline| (deadline, *token)));
                }
            }
            Event::Seen { .. } | Event::Lost { .. } | Event::Line(_) | Event::Anew { .. } | Event::Paused { .. } => {}
        }
    }
}

impl QueueState {
    pub(crate) fn record_of(&self, kind: &str, durations: Durations) -> Pair {
        let record = DurationsRecord { durations, at: self.moment().wall };
        (self.keys.durations(kind), record.encode(&self.name, kind))
    }

    /// Makes the next call look for the next tick of each periodic job.
    pub(crate) fn look_for_ticks(&self) {
        self.live.lock().from.set_ticks(0);
        self.shared.ring();
        self.shared.settle();
    }
}

impl Participant for QueueState {
    type Staged = Staged;

    fn staged(&self) -> Staged {
        let live = self.live.lock();
        let is_watched = self.shared.subscribers.is_any();
        let Live { head, from, kinds, gate, wall, damaged, life, .. } = &*live;
        Staged::new(head.clone(), (*from, kinds.clone()), *gate, wall.clone(), *damaged, *life, is_watched)
    }

    fn apply(&self, staged: &mut Staged, op: &[u8], batch: &mut Overlay<'_>) -> Result<(), BoxError> {
        staged.nobody_settles = true;
        if let Some((of, change)) = decode_change(op) {
            let changed = self.step(staged, batch, self.moment()).txn.change_note(&of, &change);
            return changed.map(drop).map_err(refusal);
        }
        let pushes = decode_pushes(op).ok_or("an operation of a queue is no push")?;
        let mut step = self.step(staged, batch, self.moment());
        step.run_maintenance(AT_ONCE)?;
        step.room = Room::AtBegin;
        step.push_batch(&pushes).map(drop).map_err(refusal)
    }

    fn close(&self, staged: &mut Staged, batch: &mut Overlay<'_>) -> Result<(), StoreError> {
        if staged.is_changed() {
            staged.head.seen = staged.wall.seen().unwrap_or(staged.head.seen);
            batch.put(self.rows.id, &[&self.keys.head()], &[&staged.head.encode(&self.name)])?;
        }
        Ok(())
    }

    fn publish(self: Arc<Self>, staged: Staged) -> Option<Cleanup> {
        let mut told = staged.take_told();
        let now = self.moment().now;
        let mut wake = Wake::default();
        {
            let mut live = self.live.lock();
            let before = (live.ends(), live.from, live.head.paused_until);
            let gate = live.gate;
            told.iter().for_each(|happened| live.happened(happened, now, self.options.lease));
            wake.room = staged.head.waiting() < live.head.waiting();
            (live.head, live.from, live.gate) = (staged.head, staged.from, staged.gate);
            (live.wall, live.damaged, live.life) = (staged.wall, staged.damaged, staged.life);
            live.kinds = staged.kinds;
            live.traffic.pushed += staged.placed;
            // Jobs claimed in the batch that made them ready are no news. Claims hide no other job:
            // a thread may have looked before the push.
            let entered = live.entered(&before.0).saturating_add(staged.met);
            wake.jobs = entered.saturating_add(live.places_since(&gate));
            // A claim may take a scheduled job early, which is in no log. Its thread may fall
            // asleep now.
            wake.early = live.gate.released != gate.released;
            // The deadline of a lease that goes on is in no list.
            let goes_on = told.iter().any(|happened| matches!(happened, Event::Kept { .. }));
            wake.sooner = goes_on || live.from.are_sooner_than(&before.1);
            wake.all = wake.sooner || live.head.paused_until != before.2;
        }
        self.shared.wake(Wake { sooner: false, ..wake });
        let is_known = |damaged: &Damaged| matches!(damaged, Damaged::Periodic { name, .. } if !self.periodics.is_damage_new(name));
        told.retain(|happened| !matches!(happened, Event::Line(Line::Damaged(damaged)) if is_known(damaged)));
        let has_lines = told.iter().any(|happened| matches!(happened, Event::Line(_)));
        self.shared.told(told, staged.untold);
        self.shared.wake(Wake { sooner: wake.sooner, ..Wake::default() });
        let owes = staged.nobody_settles && (has_lines || self.shared.has_called());
        owes.then(|| -> Cleanup { Box::new(move |_| self.shared.settle()) })
    }
}

/// Returns an error of an operation as one of the store, whose write failed. It is a [`Refusal`] if
/// the operation is to blame: a full queue or a failing database would fail every one.
fn refusal(error: BoxError) -> BoxError {
    let error = match error.downcast::<QueueError>() {
        Ok(error) if matches!(*error, QueueError::Full { .. }) => return Error::from(*error).into(),
        Ok(error) => Error::from(*error),
        Err(other) => match other.downcast::<Error>() {
            Ok(error) => *error,
            Err(other) => return other,
        },
    };
    match error {
        error @ (Error::Refused { .. } | Error::Counter { .. } | Error::Corrupt { .. }) => Refusal(error).into(),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use crate::Clock;
    use crate::accept::Accept;
    use crate::embedded::step::ClaimResult;
    use crate::handle::Queue;
    use crate::notify::watchers::QueueChange;
    use crate::types::job::{JobState, Retention};
    use crate::types::limit::Limit;
    use crate::types::new_job::NewJob;
    use crate::types::options::QueueOptions;
    use crate::types::schedule::every::Every;
    use crate::types::wanted::Wanted;
    use std::time::{Duration, SystemTime};
    use waterline::Store;

    fn due_by(most: u64) -> Wanted {
        Wanted { due_by: Some(most), kinds: None }
    }

    #[test]
    fn prolonging_a_lease_wakes_no_worker() {
        let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).expect("it opens");
        queue.push(NewJob::new("k", &1).expect("it is JSON")).expect("it is pushed");
        let mut lease = queue.accept(Accept::new()).expect("it works").expect("a job is ready");
        let news = queue.shared.bell.news();
        lease.update(None).expect("the lease holds");
        assert_eq!(queue.shared.bell.news(), news);
    }

    #[test]
    fn a_job_passed_over_in_its_push_batch_wakes_workers() {
        let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).expect("it opens");
        let push = queue.prepare(NewJob::new("k", &1).expect("it is JSON")).expect("it is a job");
        let others = Wanted { due_by: None, kinds: Some(["other".to_owned()].into()) };
        let news = queue.shared.bell.news();
        let claim = queue.call(move |step| {
            step.push_bounded(std::slice::from_ref(&push), &mut Vec::new())?;
            step.claim(&others)
        });
        assert!(!matches!(claim.expect("it is written"), ClaimResult::Job(_)));
        assert_ne!(queue.shared.bell.news(), news);
    }

    #[test]
    fn a_watch_begun_during_a_push_reports_a_missed_change() {
        let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).expect("it opens");
        let push = queue.prepare(NewJob::new("k", &1).expect("it is JSON")).expect("it is a job");
        let watched = queue.clone();
        // The batch has begun when this runs.
        let pushed = queue.call(move |step| {
            let watch = watched.watch();
            step.push_bounded(std::slice::from_ref(&push), &mut Vec::new()).map(|()| watch)
        });
        let mut watch = pushed.expect("it is written");
        assert_eq!(watch.wait(Duration::ZERO), Some(QueueChange::Missed { changes: 1 }));
        assert_eq!(watch.wait(Duration::ZERO), None);
    }

    #[test]
    fn a_subscriber_sees_a_job_removed_and_pushed_anew() {
        let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).expect("it opens");
        let job = || NewJob::new("k", &1).expect("it is JSON").id("a");
        queue.push(job()).expect("it is pushed");
        let push = queue.prepare(job()).expect("it is a job");
        let other = queue.clone();
        let written = queue.call(move |step| {
            let subscription = other.subscribe("a")?;
            step.remove("a")?;
            step.push_bounded(std::slice::from_ref(&push), &mut Vec::new()).map(|()| subscription)
        });
        let mut subscription = written.expect("it is written");
        let seen = subscription.wait(Duration::ZERO).expect("it works").expect("it has changed");
        assert_eq!((seen.state, subscription.state()), (Some(JobState::Ready), Some(JobState::Ready)));
    }

    #[test]
    fn a_freed_place_wakes_an_early_taker_going_to_sleep() {
        let options = QueueOptions::default().clock(Clock::manual(SystemTime::UNIX_EPOCH));
        let options = options.retention(Retention::Drop).limit(Limit::each_key().at_once(1));
        let queue = Queue::open(&Store::in_memory(), "q", options).expect("it opens");
        let job = || NewJob::new("k", &1).expect("it is JSON").key("a");
        queue.push_all([job(), job().delay(Duration::from_secs(1))]).expect("they are pushed");
        let mut lease = queue.accept(Accept::new()).expect("it works").expect("a job is ready");
        let news = queue.shared.bell.news();
        assert!(queue.claim(&due_by(1000)).expect("it works").is_none(), "the key has no place");
        lease.finish(None).expect("the lease holds");
        assert_ne!(queue.shared.bell.news(), news);
        assert!(queue.claim(&due_by(1000)).expect("it works").is_some());
    }

    #[test]
    fn a_job_due_after_a_held_one_wakes_early_takers() {
        let options = QueueOptions::default().clock(Clock::manual(SystemTime::UNIX_EPOCH));
        let queue =
            Queue::open(&Store::in_memory(), "q", options.limit(Limit::each_key().at_once(1))).expect("it opens");
        let job = |key: &str| NewJob::new("k", &1).expect("it is JSON").key(key);
        queue.push_all([job("a"), job("a").delay(Duration::from_secs(1))]).expect("they are pushed");
        let _holder = queue.accept(Accept::new()).expect("it works").expect("a job is ready");
        let news = queue.shared.bell.news();
        assert!(queue.claim(&due_by(5000)).expect("it works").is_none(), "the key has no place");
        queue.push(job("b").delay(Duration::from_secs(2))).expect("it is pushed");
        assert_ne!(queue.shared.bell.news(), news);
        assert!(queue.claim(&due_by(5000)).expect("it works").is_some());
    }

    #[test]
    fn a_waiting_thread_wakes_for_the_next_tick() {
        let clock = Clock::manual(SystemTime::UNIX_EPOCH + Duration::from_secs(1));
        let options = QueueOptions::default().clock(clock);
        let queue = Queue::open(&Store::in_memory(), "q", options).expect("it opens");
        let next = || queue.state_of().look(|live| live.next_change(&queue.state_of().moment()));
        assert_eq!(next(), None);
        let digest = NewJob::new("digest", &1).expect("it is JSON");
        let every = Every::new(Duration::from_millis(300));
        queue.periodic("digest", every, digest).start_at_next().start().expect("it is registered");
        assert_eq!(next(), Some(Duration::from_millis(300)));
    }

    #[test]
    fn a_periodic_job_ticks_on_after_a_failed_removal() {
        let disk = waterline::fuzzing::Disk::default();
        let clock = Clock::manual(SystemTime::now());
        let store = disk.open(&Store::options()).expect("it opens");
        let queue = Queue::open(&store, "q", QueueOptions::default().clock(clock.clone())).expect("it opens");
        let hour = Duration::from_secs(3600);
        let job = NewJob::new("k", &1).expect("it is JSON");
        queue.periodic("p", Every::new(hour), job).start_at_next().start().expect("it is registered");
        // Meanwhile, a call of another thread sees the name unregistered, and no tick.
        queue.state_of().change(|live| live.from.set_ticks(u64::MAX));
        disk.fail(0..1);
        assert!(queue.remove_periodic("p").is_err());
        clock.advance(hour);
        assert!(queue.accept(Accept::new()).expect("it works").is_some(), "the tick is due");
    }
}
