//! A queue that this process has open, with its state in memory.

use super::answers::{Answer, unsigned};
use super::faults::{CallError, queue_error};
use super::joining::Joining;
use super::presence::{Own, Said};
use super::registered::Registered;
use super::server::At;
use super::settings::whole;
use super::watch::Heard;
use crate::engine::{Peek, QueueNo, Traffic};
use crate::notify::presence::Presence;
use crate::notify::shared::{Shared, Wake};
use crate::types::error::QueueError;
use crate::types::options::LONGEST_SLEEP;
use parking_lot::{Mutex, ReentrantMutex};
use std::any::Any;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use waterline::seam::{self, ClockExt, Moment};

/// How long a peek from memory serves before the server is asked again.
const FRESH: Duration = Duration::from_secs(1);

/// When a look began, its kinds, and what it found.
type Looking = (Instant, Option<Arc<[String]>>, Peek);

pub(super) struct Opened {
    pub(super) number: QueueNo,
    pub(super) shared: Arc<Shared>,
    /// Keep-alive guard: the queue closes when the last clone is dropped.
    pub(super) keep: Weak<dyn Any + Send + Sync>,
    pub(super) seen: Mutex<LastAnswers>,
    pub(super) periodics: Mutex<Vec<Registered>>,
    pub(super) joining: Joining,
    /// Wakes waiters when another process notifies.
    pub(super) listens: Mutex<Option<Box<dyn Any + Send + Sync>>>,
    pub(super) heard: Mutex<Heard>,
    pub(super) work: WorkCount,
    /// This process as a worker of the queue, and what it last reported of itself.
    pub(super) own: Arc<Own>,
    pub(super) said: Mutex<Said>,
    /// The last look at the queue.
    pub(super) looking: Mutex<Option<Looking>>,
    /// When the last maintenance began. Reentrant: a log that reads the queue comes here again.
    pub(super) tending: ReentrantMutex<Cell<Option<Instant>>>,
}

/// How many jobs this process has handled since it opened the queue.
#[derive(Default)]
pub(super) struct WorkCount {
    pub(super) pushed: AtomicU64,
    pub(super) started: AtomicU64,
    pub(super) ended: AtomicU64,
}

impl WorkCount {
    pub(super) fn add(number: &AtomicU64, more: usize) {
        number.fetch_add(more as u64, Ordering::Relaxed);
    }

    pub(super) fn traffic(&self) -> Traffic {
        let [pushed, started, ended] =
            [&self.pushed, &self.started, &self.ended].map(|number| number.load(Ordering::Relaxed));
        Traffic { pushed, started, ended }
    }
}

/// What the last answers said.
#[derive(Default)]
pub(super) struct LastAnswers {
    peek: Option<Looked>,
    /// How many changes this process knows of.
    changes: u64,
    /// Up to when this process was told which jobs have become due.
    pub(super) told_until: u64,
    /// How far the server's clock is ahead of this process's, in milliseconds.
    offset: i64,
    /// The server's clock, and the moment of that.
    server: Option<(u64, Instant)>,
    /// When, by the server's clock, the last tick ended that left nothing to do.
    ticked: Option<u64>,
}

impl LastAnswers {
    /// Records the time of the server, which is at `wall` by the clock of this process.
    fn note_time(&mut self, at: u64, wall: u64) {
        self.offset = at as i64 - wall as i64;
        self.server = Some((at, seam::now()));
    }
}

#[derive(Clone)]
struct Looked {
    read: Instant,
    at: u64,
    ready: bool,
    /// The kinds of the look; `None`: all.
    kinds: Option<Arc<[String]>>,
    /// True if jobs of these kinds are in lines, where claims of other kinds have put them.
    in_line: bool,
    /// True if jobs of any kind may be in lines.
    has_lines: bool,
    paused_until: u64,
    is_full: bool,
    is_limited: bool,
    has_room: bool,
    due: u64,
    expires: u64,
    next: u64,
}

impl Looked {
    /// Returns whether a claim of these kinds may find a job; `None`: the look was for others.
    fn is_ready(&self, now: u64, kinds: Option<&[String]>) -> Option<bool> {
        if self.is_full {
            return Some(false);
        }
        if self.ready || self.due <= now {
            return Some(true);
        }
        match (self.kinds.as_deref(), kinds) {
            (of, kinds) if of == kinds => Some(self.in_line),
            (Some(_), None) if self.in_line => Some(true),
            (None, Some(_)) if !self.in_line => Some(false),
            _ => (!self.has_lines).then_some(false),
        }
    }
}

impl Opened {
    pub(super) fn name(&self) -> &str {
        &self.shared.name
    }

    /// Makes the error of a call on this queue from that of the server.
    pub(super) fn explained<T>(&self, doing: &str, made: Result<T, impl CallError>) -> Result<T, QueueError> {
        made.map_err(|error| queue_error(self.name(), doing, error))
    }

    pub(super) fn moment(&self) -> Moment {
        self.shared.moment()
    }

    pub(super) fn lease(&self) -> Duration {
        self.shared.options.lease
    }

    /// Returns the time that a test has set.
    pub(super) fn clock(&self) -> Option<u64> {
        let clock = &self.shared.options.clock;
        clock.is_manual().then(|| clock.moment().wall)
    }

    pub(super) fn at(&self) -> At<'_> {
        At { queue: self.name(), clock: self.clock() }
    }

    /// Returns the time of the server as far as this process knows it. It advances by the monotonic
    /// clock, since that of this process may be set.
    pub(super) fn server_time(&self) -> u64 {
        let server = self.seen.lock().server;
        match server {
            Some((at, read)) => {
                let passed = seam::now().saturating_duration_since(read).as_millis();
                at.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
            }
            None => self.moment().wall,
        }
    }

    /// Turns a time by this process's clock into one by the server's.
    pub(super) fn on_server(&self, wall: u64) -> u64 {
        wall.saturating_add_signed(self.seen.lock().offset)
    }

    /// Turns a time by the server's clock into one by this process's.
    pub(super) fn of_server(&self, wall: u64) -> u64 {
        wall.saturating_add_signed(self.seen.lock().offset.saturating_neg())
    }

    /// Returns the time from now until `wall`, in milliseconds.
    pub(super) fn time_until(&self, wall: u64) -> i64 {
        whole(Duration::from_millis(wall.saturating_sub(self.moment().wall)))
    }

    /// Returns the number of changes so far. The caller reads it before its call to the server.
    pub(super) fn changes(&self) -> u64 {
        self.seen.lock().changes
    }

    pub(super) fn note_time(&self, at: u64) {
        if self.clock().is_none() {
            self.seen.lock().note_time(at, self.moment().wall);
        }
    }

    /// Records what an answer says of the queue, unless something changed since the call began,
    /// which the answer may not show. `is_done`: a tick left nothing to do. `kinds` are those of
    /// the look.
    pub(super) fn note_peek(&self, answer: &Answer, is_done: bool, changes: u64, kinds: Option<&Arc<[String]>>) {
        let at = unsigned(answer.since);
        let words: Vec<_> = answer.more.as_deref().unwrap_or_default().split(' ').collect();
        let is = |word| words.contains(&word);
        let time = |time: Option<i64>| time.map_or(u64::MAX, |time| unsigned(Some(time)));
        let mut seen = self.seen.lock();
        if self.clock().is_none() {
            seen.note_time(at, self.moment().wall);
        }
        if is_done {
            seen.ticked = Some(at);
        }
        if seen.changes != changes {
            return;
        }
        seen.peek = Some(Looked {
            read: seam::now(),
            at,
            ready: is("ready"),
            kinds: kinds.cloned(),
            in_line: is("kinds"),
            has_lines: is("kinds") || is("others"),
            paused_until: unsigned(answer.pushed),
            is_full: is("full"),
            is_limited: is("limited"),
            has_room: is("room"),
            due: time(answer.due),
            expires: time(answer.token),
            next: time(answer.number),
        });
    }

    /// Makes the next look ask the server.
    pub(super) fn forget_peek(&self) {
        let mut seen = self.seen.lock();
        (seen.peek, seen.changes) = (None, seen.changes + 1);
    }

    /// Makes the next look ask the server, unless a peek is recorded with the number that this
    /// returns. The caller's answer shows its own change, and all before it if `changes` counts
    /// them.
    pub(super) fn note_own_change(&self, changes: u64) -> u64 {
        let mut seen = self.seen.lock();
        let shows_all = seen.changes == changes;
        (seen.peek, seen.changes) = (None, seen.changes + 1);
        if shows_all { seen.changes } else { changes }
    }

    /// Records that a claim, behind ends that bring back no job, found fewer jobs than it wanted,
    /// or as many (`has_more`). The rest of the last look stays valid, except for what blocks other
    /// jobs: a claim makes room, and the end of a job that ran alone lets the others begin.
    pub(super) fn note_claimed(&self, changes: u64, has_more: bool, kinds: Option<&[String]>) {
        let mut seen = self.seen.lock();
        let shows_all = seen.changes == changes;
        seen.changes += 1;
        match &mut seen.peek {
            Some(peek) if shows_all && peek.has_room && !peek.is_full => {
                peek.ready = has_more;
                // A claim of all kinds takes what is in any line.
                if !has_more && (kinds.is_none() || peek.kinds.as_deref() == kinds) {
                    peek.in_line = false;
                    peek.has_lines &= kinds.is_some();
                }
            }
            peek => *peek = None,
        }
    }

    /// Records that a claim found as many jobs as it wanted.
    pub(super) fn note_more(&self) {
        if let Some(peek) = &mut self.seen.lock().peek {
            peek.ready = true;
        }
    }

    /// Returns the last look for a claim of these kinds, unless it is too old; `None`: nothing is
    /// known of them.
    pub(super) fn peek(&self, kinds: Option<&[String]>) -> Option<Peek> {
        self.peek_if(|looked, now| looked.is_ready(now, kinds))
    }

    /// Returns the last look for whatever kinds, unless it is too old: a claim may find a job
    /// unless it is known to find none.
    pub(super) fn last_peek(&self) -> Option<Peek> {
        self.peek_if(|looked, now| Some(looked.is_ready(now, None).unwrap_or(true)))
    }

    fn peek_if(&self, is_ready: impl FnOnce(&Looked, u64) -> Option<bool>) -> Option<Peek> {
        let now = self.server_time();
        let next_tick = self.periodics.lock().iter().filter_map(|one| one.next(now)).min();
        let seen = self.seen.lock();
        let looked = seen.peek.as_ref().filter(|looked| {
            let is_old = seam::now().saturating_duration_since(looked.read) >= FRESH;
            !is_old && now >= looked.at && (now < looked.next || now == looked.at)
        })?;
        let left = |time: u64| Duration::from_millis(time.saturating_sub(now)).min(LONGEST_SLEEP);
        // A tick of this very moment leaves only jobs that are locked.
        let own = if seen.ticked == Some(now) && looked.next <= now { LONGEST_SLEEP } else { left(looked.next) };
        let next = Some(next_tick.map_or(own, |tick| own.min(left(tick))));
        Some(Peek {
            ready: u64::from(is_ready(looked, now)?),
            is_paused: looked.paused_until > now,
            is_full: looked.is_full,
            is_limited: looked.is_limited,
            has_room: looked.has_room,
            due: looked.due,
            // Another process makes room without a sign, so whoever waits for it looks again.
            expires: looked.expires.min(self.moment().wall.saturating_add(FRESH.as_millis() as u64)),
            next_time: next,
            next_change: next,
        })
    }

    /// Returns what this process reports of itself with a call about the queue, if it is due.
    pub(super) fn about(&self, now: Instant, by_hand: Option<Presence>) -> Option<serde_json::Value> {
        self.own.about(&self.shared, &self.said, now, by_hand)
    }

    pub(super) fn wake_all(&self) {
        self.shared.wake(Wake { all: true, room: true, sooner: true, ..Wake::default() });
        self.shared.settle();
    }
}
