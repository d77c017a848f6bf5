//! The state of an open queue: its part in each batch, and those who wait for its jobs.

use super::clock::{Moment, Waits};
use super::enqueue::decode_push;
use super::head::Head;
use super::keys::{self, Keys, List, split_running};
use super::options::QueueOptions;
use super::row::Row;
use super::step::{Happened, Step, Tail};
use super::subscription::Subscribers;
use crate::base::error::{Error, StoreError};
use crate::base::index::BoxError;
use crate::base::sync::{Arc, AtomicU64, Condvar, Mutex, Ordering, wait_until};
use crate::commit::overlay::Overlay;
use crate::commit::participant::{Chore, Participant};
use crate::kv::{Family, KeyRange, Kv, Order};
use crate::queue::job::JobId;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

/// The longest sleep of a thread that waits for a due time. The clock on the wall may be set while
/// it sleeps.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// A queue that is open.
pub(crate) struct QueueState {
    pub(super) name: String,
    pub(super) keys: Keys,
    /// The family of rows and payloads.
    pub(super) rows: Family,
    /// The family of the entries by which jobs are found.
    pub(super) entries: Family,
    pub(super) options: QueueOptions,
    /// The next number for an id. It is handed out before the batch is made.
    next_id: AtomicU64,
    live: Mutex<Live>,
    /// Threads that wait for a job sleep here.
    changed: Condvar,
    /// Threads that could take no job now sleep here, so that they use up no wake-up of another.
    called: Condvar,
    pub(super) subscribers: Subscribers,
    /// The slots of the runner; 0: there is none.
    slots: AtomicUsize,
}

/// The right to run a queue, until it is dropped.
pub(super) struct RunnerName(Arc<QueueState>);

impl Drop for RunnerName {
    fn drop(&mut self) {
        self.0.slots.store(0, Ordering::Release);
    }
}

/// The state that everybody sees: that of the last batch.
pub(super) struct Live {
    pub(super) head: Head,
    pub(super) from: [u64; 3],
    /// The running jobs by the tokens of their leases.
    pub(super) running: HashMap<u64, Holder>,
    /// The ends of the leases that end by silence.
    deadlines: BTreeSet<(Instant, u64)>,
    /// The number of threads that sleep until there is a job.
    asleep: usize,
    /// The number of those who sleep until there is a job, but do not take each one.
    picky: usize,
    /// The number of threads that sleep although there may be a job, since their slots are taken.
    full: usize,
    /// Counts the changes that a sleeper has to look at.
    news: u64,
    /// The reason why the last write failed, and the time of the first such failure.
    pub(super) failing: Option<(String, Instant)>,
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
}

impl QueueState {
    pub(super) fn new(
        name: &str,
        number: u32,
        [rows, entries]: [Family; 2],
        options: QueueOptions,
        (head, from): (Head, [u64; 3]),
    ) -> Self {
        let next_id = AtomicU64::new(head.next_id);
        let live = Live {
            head,
            from,
            running: HashMap::new(),
            deadlines: BTreeSet::new(),
            asleep: 0,
            picky: 0,
            full: 0,
            news: 0,
            failing: None,
        };
        Self {
            name: name.to_owned(),
            keys: Keys(number),
            rows,
            entries,
            options,
            next_id,
            live: Mutex::new(live),
            changed: Condvar::new(),
            called: Condvar::new(),
            subscribers: Subscribers::default(),
            slots: AtomicUsize::new(0),
        }
    }

    /// Takes the right to run the queue, with so many slots. `None` while another runner has it.
    pub(super) fn take_runner(self: &Arc<Self>, slots: usize) -> Option<RunnerName> {
        let taken = self.slots.compare_exchange(0, slots, Ordering::AcqRel, Ordering::Acquire);
        taken.ok().map(|_| RunnerName(self.clone()))
    }

    /// Returns the number of slots of the runner, if there is one.
    pub(super) fn slots(&self) -> Option<usize> {
        Some(self.slots.load(Ordering::Acquire)).filter(|slots| *slots > 0)
    }

    pub(super) fn corrupt(&self, reason: String) -> Error {
        Error::Corrupt { name: self.name.clone(), reason }
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

    pub(super) fn look<R>(&self, look: impl FnOnce(&Live) -> R) -> R {
        look(&self.live.lock())
    }

    /// Begins a step of this queue in a batch.
    pub(super) fn step<'s, 'k>(&'s self, tail: &'s mut Tail, batch: &'s mut Overlay<'k>, at: Moment) -> Step<'s, 'k> {
        Step { queue: self, tail, batch, at, wrote: false }
    }

    /// Notes where the lists begin, from a look at what is stored that changed nothing.
    pub(super) fn learn(&self, tail: &Tail) {
        self.live.lock().from = tail.from;
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
        }
        true
    }

    /// True if the lease holds at this time. It ends at its deadline, and not before.
    pub(super) fn holds(&self, token: u64, now: Instant) -> bool {
        let live = self.live.lock();
        live.running.get(&token).is_some_and(|holder| holder.deadline.is_none_or(|deadline| deadline > now))
    }

    /// Returns the leases that are over by now.
    pub(super) fn silent(&self, now: Instant) -> Vec<(u64, JobId)> {
        let live = self.live.lock();
        let over = live.deadlines.iter().take_while(|(deadline, _)| *deadline <= now);
        over.filter_map(|(_, token)| Some((*token, live.running.get(token)?.id.clone()))).collect()
    }

    // Waiting.

    /// Returns the number of changes so far. A thread asks before it looks for a job.
    pub(super) fn news(&self) -> u64 {
        self.live.lock().news
    }

    /// Sleeps until there is news, until time brings something, or until the deadline. A thread
    /// that takes no job is not woken for one. True: there is something to do that time has
    /// brought.
    pub(super) fn sleep(&self, news: u64, deadline: Option<Instant>, takes: Takes) -> bool {
        let mut live = self.live.lock();
        if live.news != news {
            return false;
        }
        let at = self.moment();
        let next = live.next_change(&at);
        let pause = match (next, deadline.map(|deadline| deadline.saturating_duration_since(at.now))) {
            (Some(next), Some(rest)) => Some(next.min(rest)),
            (next, rest) => next.or(rest),
        };
        if pause.is_some_and(|pause| pause.is_zero()) {
            return next.is_some_and(|next| next.is_zero());
        }
        let until = self.options.clock.deadline(&at, pause);
        if takes != Takes::Nothing {
            let picky = usize::from(takes == Takes::Some);
            live.asleep += 1;
            live.picky += picky;
            while live.news == news && !wait_until(&self.changed, &mut live, until) {}
            live.asleep -= 1;
            live.picky -= picky;
        } else {
            live.full += 1;
            wait_until(&self.called, &mut live, until);
            live.full -= 1;
        }
        false
    }

    fn wake(&self, live: &mut Live, jobs: u64) {
        live.news += 1;
        if live.picky > 0 {
            // The one who is woken may not take the job that another one takes.
            self.changed.notify_all();
            return;
        }
        for _ in 0..jobs.min(live.asleep as u64) {
            self.changed.notify_one();
        }
    }

    fn wake_all(&self, live: &mut Live) {
        live.news += 1;
        if live.asleep > 0 {
            self.changed.notify_all();
        }
        if live.full > 0 {
            self.called.notify_all();
        }
    }

    /// Wakes one thread that waits, since there is more than the caller takes.
    pub(super) fn pass_on(&self) {
        let mut live = self.live.lock();
        if live.asleep > 0 && live.ready() > 0 {
            self.wake(&mut live, 1);
        }
    }

    /// Makes the threads look again that could take no job, since a slot may be free now.
    pub(super) fn slot_is_free(&self) {
        let live = self.live.lock();
        if live.full > 0 {
            self.called.notify_all();
        }
    }

    /// Makes every thread that waits look again.
    pub(super) fn ring(&self) {
        self.wake_all(&mut self.live.lock());
    }
}

impl Live {
    /// True if a thread waits for a job.
    pub(super) fn is_awaited(&self) -> bool {
        self.asleep > 0
    }

    pub(super) fn ready(&self) -> u64 {
        self.head.lanes.iter().map(|lane| lane.end - lane.next).sum()
    }

    /// Returns the number of entries that were ever made for ready jobs.
    fn entered(&self) -> u64 {
        self.head.lanes.iter().map(|lane| lane.end).sum()
    }

    /// Returns the time until something happens without anybody's doing; `None`: nothing will.
    fn next_change(&self, at: &Moment) -> Option<Duration> {
        let [scheduled, finished, dead] = self.from;
        let paused = if self.head.is_paused(at.wall) { self.head.paused_until } else { u64::MAX };
        let wall = scheduled.min(finished).min(dead).min(paused);
        let wall = (wall < u64::MAX).then(|| Duration::from_millis(wall.saturating_sub(at.wall)).min(LONGEST_SLEEP));
        let silence = self.deadlines.first().map(|(deadline, _)| deadline.saturating_duration_since(at.now));
        wall.into_iter().chain(silence).min()
    }

    fn happened(&mut self, happened: &Happened, now: Instant) {
        match happened {
            Happened::Claimed { id, token } => {
                self.running.insert(*token, Holder { id: id.clone(), since: now, deadline: None });
            }
            Happened::Released { token } => {
                if let Some(Holder { deadline: Some(deadline), .. }) = self.running.remove(token) {
                    self.deadlines.remove(&(deadline, *token));
                }
            }
            Happened::Seen { .. } => {}
        }
    }
}

impl Participant for QueueState {
    type Tail = Tail;

    fn tail(&self) -> Tail {
        let live = self.live.lock();
        Tail::new(live.head.clone(), live.from)
    }

    fn apply(&self, tail: &mut Tail, op: &[u8], batch: &mut Overlay<'_>) -> Result<(), BoxError> {
        let push = decode_push(op).ok_or("an operation of a queue is no push")?;
        let at = Moment { wall: push.row.pushed, ..self.moment() };
        self.step(tail, batch, at).push(&push)?;
        Ok(())
    }

    fn close(&self, tail: &mut Tail, batch: &mut Overlay<'_>) -> Result<(), StoreError> {
        if tail.is_changed() {
            batch.put(self.rows.id, &[&self.keys.head()], &[&tail.head.encode(&self.name)])?;
        }
        Ok(())
    }

    fn publish(self: Arc<Self>, tail: Tail) -> Option<Chore> {
        let told = tail.take_told();
        let now = self.moment().now;
        {
            let mut live = self.live.lock();
            let before = (live.entered(), live.from, live.head.paused_until);
            told.iter().for_each(|happened| live.happened(happened, now));
            (live.head, live.from) = (tail.head, tail.from);
            // Claims of the same batch hide nothing: a thread may have looked before the push.
            let more = live.entered().saturating_sub(before.0);
            let sooner = live.from.iter().zip(&before.1).any(|(new, old)| new < old);
            if sooner || live.head.paused_until != before.2 {
                self.wake_all(&mut live);
            } else if more > 0 {
                self.wake(&mut live, more);
            }
        }
        self.subscribers.tell(told);
        None
    }
}

impl Waits for QueueState {
    fn clock_was_set(&self) {
        self.ring();
        self.subscribers.ring();
    }
}

/// The state of a queue as it is stored, with the jobs that run according to it.
pub(super) struct Stored {
    pub(super) head: Head,
    pub(super) from: [u64; 3],
    pub(super) running: Vec<(u64, JobId)>,
}

/// Reads what is stored of a queue.
pub(super) fn load(kv: &dyn Kv, name: &str, number: u32, [rows, entries]: &[Family; 2]) -> Result<Stored, Error> {
    let corrupt = |reason| Error::Corrupt { name: name.to_owned(), reason };
    let keys = Keys(number);
    let head = kv.get(rows, &keys.head())?;
    let head = head.map_or(Ok(Head::default()), |bytes| Head::decode(name, &bytes)).map_err(corrupt)?;
    let mut from = [u64::MAX; 3];
    for list in [List::Scheduled, List::Finished, List::Dead] {
        let range = KeyRange { from: keys.entries_from(list, 0), to: Some(keys.entries_end(list)) };
        if let Some(first) = kv.rows(entries, range, Order::Ascending).next() {
            let (key, _) = first?;
            let (at, _) = keys::split_entry(&key).ok_or_else(|| corrupt("an entry has no id".to_owned()))?;
            from[super::step::number_of(list)] = at;
        }
    }
    let mut running = Vec::new();
    for pair in kv.scan(rows, &keys.all_running()) {
        let (key, id) = pair?;
        let (token, id) = (split_running(&key), String::from_utf8(id).ok());
        running.push(token.zip(id).ok_or_else(|| corrupt("the record of a running job is damaged".to_owned()))?);
    }
    Ok(Stored { head, from, running })
}

#[cfg(test)]
mod tests {
    use crate::queue::{Accept, NewJob, Queue, QueueOptions};
    use crate::store::Store;

    #[test]
    fn a_lease_that_is_prolonged_wakes_nobody() {
        let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).expect("it opens");
        queue.push(NewJob::new("k", &1).expect("it is JSON")).expect("it is pushed");
        let mut lease = queue.accept(Accept::new()).expect("it works").expect("a job is ready");
        let news = queue.inner().news();
        lease.update(None).expect("the lease holds");
        assert_eq!(queue.inner().news(), news);
    }
}
