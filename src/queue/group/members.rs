//! The queues that the claims of a group take from, and the threads that wait for their jobs.
//!
//! Nothing is remembered of what is ready: each choice looks at the states of the queues in memory.
//! They are those of the last write, and were read from the tables when the queue was opened.

use crate::base::clock::{Clock, Moment};
use crate::base::sync::{Arc, AtomicU64, Mutex, Ordering};
use crate::queue::embedded::codec::entry;
use crate::queue::embedded::codec::head::FREED;
use crate::queue::embedded::keys::List;
use crate::queue::embedded::state::Live;
use crate::queue::embedded::step::Claimed;
use crate::queue::handle::Queue;
use crate::queue::rules::fair::{Draw, Rule};
use crate::queue::rules::lanes::Lane;
use crate::queue::waits::bell::{Bell, Takes};
use crate::queue::words::error::QueueError;
use crate::queue::words::job::JobState;
use crate::queue::words::row::Row;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The entries of a ready log that one look reads for the age of its first job. If all of them are
/// stale, the next look goes on behind them.
const LOOKS: u64 = 64;

/// The time for which a runner claims nothing from a queue with a record that cannot be read.
const ASIDE: Duration = Duration::from_secs(1);

/// The queues that the claims of a group take from.
pub(in crate::queue) struct Members {
    list: Vec<Member>,
    bell: Arc<Bell>,
    rule: Rule,
    seed: u64,
    turns: AtomicU64,
    /// The places of the queues that a runner leaves aside, and the ends of these times.
    aside: Mutex<Vec<(usize, Instant)>>,
}

struct Member {
    queue: Queue,
    /// Those of the ready logs, and that of the log of freed places.
    fronts: Mutex<[Front; FREED + 1]>,
}

/// The first job of a ready log, as far as somebody has looked.
#[derive(Clone, Copy, Default)]
struct Front {
    /// Everything below this index is stale.
    index: u64,
    /// The time since which the job at this index is ready, if it is known.
    since: Option<u64>,
}

/// The queue that a claim is to take from.
#[derive(Clone, Copy, Debug)]
pub(in crate::queue) struct Choice {
    pub(in crate::queue) place: usize,
    /// No job is due, so the claim takes one that is due later.
    is_early: bool,
}

impl Members {
    /// Makes the claims from these queues. The number of the first choice is `turn`.
    pub(super) fn new(queues: Vec<Queue>, rule: Rule, turn: u64) -> Self {
        let (bell, seed) = (Arc::new(Bell::default()), queues[0].inner().moment().chance);
        queues.iter().for_each(|queue| queue.inner().hang(&bell));
        let member = |queue| Member { queue, fronts: Mutex::default() };
        let list = queues.into_iter().map(member).collect();
        Self { list, bell, rule, seed: seed.to_bits(), turns: AtomicU64::new(turn), aside: Mutex::default() }
    }

    pub(in crate::queue) fn queue(&self, place: usize) -> &Queue {
        &self.list[place].queue
    }

    pub(in crate::queue) fn queues(&self) -> impl Iterator<Item = &Queue> {
        self.list.iter().map(|member| &member.queue)
    }

    pub(in crate::queue) fn bell(&self) -> &Bell {
        &self.bell
    }

    fn clock(&self) -> &Clock {
        &self.queue(0).inner().options.clock
    }

    fn moment(&self) -> Moment {
        self.clock().moment()
    }

    // The choice.

    /// Chooses the queue for the next claim, but none of those. `None`: no other one has a job.
    pub(in crate::queue) fn choose(&self, without: &[usize], most: Option<u64>) -> Option<Choice> {
        let at = self.moment();
        let others = || (0..self.list.len()).filter(|place| !without.contains(place));
        let ready: Vec<_> = others().filter(|place| self.look(*place, |live| has_work(live, &at))).collect();
        if ready.is_empty() {
            let most = most.filter(|most| *most >= at.wall)?;
            let front = |place| self.look(place, |live| (live.head.is_paused(at.wall), live.from.of(List::Scheduled)));
            let early = others().map(|place| (front(place), place)).filter(|((paused, at), _)| !paused && *at <= most);
            return early.min().map(|(_, place)| Choice { place, is_early: true });
        }
        let turn = if ready.len() > 1 { self.turns.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let place = self.rule.choose(&ready, Draw::new(self.seed, turn), |place| self.age(place, at.wall));
        place.map(|place| Choice { place, is_early: false })
    }

    /// Claims a job of the queue that was chosen.
    pub(super) fn claim(&self, choice: Choice, most: Option<u64>) -> Result<Option<Box<Claimed>>, QueueError> {
        let wall = self.moment().wall;
        let claimed = self.queue(choice.place).claim(most.filter(|most| choice.is_early || *most < wall));
        if matches!(claimed, Ok(Some(_))) {
            self.pass_on();
        }
        claimed
    }

    /// True if a claim from another queue than these may find a job.
    pub(in crate::queue) fn have_ready(&self, without: &[usize]) -> bool {
        let at = self.moment();
        (0..self.list.len()).any(|place| !without.contains(&place) && self.look(place, |live| is_ready(live, &at)))
    }

    /// True if a claim from one of the queues has something to do.
    pub(in crate::queue) fn have_work(&self) -> bool {
        let at = self.moment();
        (0..self.list.len()).any(|place| self.look(place, |live| has_work(live, &at)))
    }

    fn look<R>(&self, place: usize, look: impl FnOnce(&Live) -> R) -> R {
        self.queue(place).inner().look(look)
    }

    /// Returns the milliseconds for which the first job of this queue has waited.
    fn age(&self, place: usize, wall: u64) -> u64 {
        let (is_paused, logs, from) = self.look(place, |live| {
            (live.head.is_paused(wall), (0..=FREED).map(|log| *live.head.log(log)).collect::<Vec<_>>(), live.from)
        });
        let mut fronts = self.list[place].fronts.lock();
        let lanes: Vec<_> =
            logs.into_iter().enumerate().filter(|(_, lane)| !is_paused && lane.next < lane.end).collect();
        // Without a job that is ready, it is chosen for what time has brought.
        let mut oldest = if lanes.is_empty() && from.has_untold() {
            0
        } else if lanes.is_empty() {
            from.first()
        } else {
            from.of(List::Scheduled)
        };
        for (lane, Lane { next, end, .. }) in lanes {
            let front = &mut fronts[lane];
            if front.index < next || front.since.is_none() {
                let index = front.index.max(next);
                *front = self.front(place, lane, index..end.min(index + LOOKS));
            }
            oldest = oldest.min(front.since.unwrap_or(u64::MAX));
        }
        wall.saturating_sub(oldest)
    }

    /// Looks for the first job among these entries of a ready log.
    fn front(&self, place: usize, lane: usize, entries: Range<u64>) -> Front {
        let end = entries.end;
        for index in entries {
            match self.since(place, lane, index) {
                Ok(None) => {}
                Ok(since) => return Front { index, since },
                // A job that cannot be read counts as an old one, so that a claim finds it.
                Err(_) => return Front { index, since: Some(0) },
            }
        }
        Front { index: end, since: None }
    }

    /// Returns the time since which the job at this place of a ready log is ready; `None` if the
    /// entry is stale.
    fn since(&self, place: usize, lane: usize, index: u64) -> Result<Option<u64>, QueueError> {
        let queue = self.queue(place);
        let state = queue.inner();
        let key = state.keys.ready(lane, index);
        let Some(entry) = queue.store().kv().get(&state.entries, &key)? else { return Ok(None) };
        if lane == FREED {
            // The entry names a limit, which holds the job.
            return String::from_utf8(entry).map_or(Ok(None), |limit| queue.called_since(&limit));
        }
        let Ok(id) = entry::id_in(queue.name(), &key, &entry) else { return Ok(None) };
        let row = queue.row(&id)?;
        let is_here = |row: &Row| row.state == JobState::Ready && row.priority as usize == lane && row.place == index;
        Ok(row.filter(is_here).map(|row| row.since))
    }

    // Waiting.

    /// Sleeps until there is news of one of the queues, until time brings something, or until the
    /// deadline. The caller has looked for jobs at the places in `looked`, and leaves those in
    /// `aside` alone. True: there is something to do that time has brought.
    pub(in crate::queue) fn sleep(
        &self,
        news: u64,
        deadline: Option<Instant>,
        takes: Takes,
        looked: &[usize],
        aside: &[usize],
    ) -> bool {
        let at = self.moment();
        let mut pause = deadline.map(|deadline| deadline.saturating_duration_since(at.now));
        for place in (0..self.list.len()).filter(|place| !aside.contains(place)) {
            let (is_ready, next) = self.look(place, |live| (is_ready(live, &at), live.next_change(&at)));
            if is_ready && takes != Takes::Nothing && !looked.contains(&place) {
                return false;
            }
            if next.is_some_and(|next| next.is_zero()) {
                return true;
            }
            pause = pause.into_iter().chain(next).min();
        }
        if !pause.is_some_and(|pause| pause.is_zero()) {
            self.bell.sleep(news, self.clock().deadline(at.after(pause)), takes);
        }
        false
    }

    /// Wakes one thread that waits, since there is more than the caller takes.
    pub(in crate::queue) fn pass_on(&self) {
        if self.bell.is_awaited() && self.have_ready(&[]) {
            self.bell.ring(1);
        }
    }

    /// Does what time has brought to the queues, for a runner that claims nothing.
    pub(in crate::queue) fn tidy(&self) -> Result<(), QueueError> {
        let at = self.moment();
        let (aside, _) = self.aside();
        for queue in (0..self.list.len()).filter(|place| !aside.contains(place)).map(|place| self.queue(place)) {
            if queue.inner().look(|live| is_due(live, &at)) {
                queue.tidy()?;
            }
        }
        Ok(())
    }

    // Queues with a record that cannot be read.

    /// Leaves the queue with this name aside for a while. False: none has it.
    pub(in crate::queue) fn set_aside(&self, name: &str) -> bool {
        let Some(place) = self.list.iter().position(|member| member.queue.name() == name) else { return false };
        self.aside.lock().extend(self.moment().now.checked_add(ASIDE).map(|until| (place, until)));
        true
    }

    /// Returns the places of the queues that are left aside, and the end of the first such time.
    pub(in crate::queue) fn aside(&self) -> (Vec<usize>, Option<Instant>) {
        let mut aside = self.aside.lock();
        if !aside.is_empty() {
            let now = self.moment().now;
            aside.retain(|(_, until)| *until > now);
        }
        (aside.iter().map(|(place, _)| *place).collect(), aside.iter().map(|(_, until)| *until).min())
    }
}

/// True if a claim may find a job that is ready. A limit of the whole queue that is full hands out
/// none.
fn is_ready(live: &Live, at: &Moment) -> bool {
    live.ready() > 0 && !live.head.is_paused(at.wall) && !live.gate.is_full(at.wall)
}

/// True if time has brought something, which a claim does: mostly a job that is due.
fn is_due(live: &Live, at: &Moment) -> bool {
    live.next_change(at).is_some_and(|next| next.is_zero())
}

fn has_work(live: &Live, at: &Moment) -> bool {
    is_ready(live, at) || is_due(live, at)
}
