//! The leases of this process, as far as it knows them.

use super::answers::signed;
use super::opened::{Opened, WorkCount};
use super::server::Runs;
use crate::engine::{Claimed, Held, QueueNo};
use crate::types::events::Event;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use waterline::seam;

/// How long a lease that ended by silence is remembered.
const FORGET: Duration = Duration::from_secs(600);

#[derive(Default)]
pub(super) struct Leases {
    pub(super) state: Mutex<LeaseTable>,
    pub(super) changed: Condvar,
}

#[derive(Default)]
pub(super) struct LeaseTable {
    pub(super) held: HashMap<(QueueNo, u64), Lease>,
    /// True while the thread that renews is there.
    pub(super) runs: bool,
}

#[derive(Clone)]
pub(super) struct Lease {
    pub(super) number: i64,
    pub(super) queue: Weak<Opened>,
    id: String,
    /// When this process learned of its claim.
    since: Instant,
    /// Its end by this process's clock; `None` if a test has set the clock and it is renewed by
    /// itself.
    until: Option<Instant>,
    /// It ends by the silence of its holder, who alone renews it.
    by_silence: bool,
    is_lost: bool,
    /// Its end was sent, and there was no answer.
    is_doubted: bool,
}

/// A lease with its queue and its token.
pub(super) type OwnLease = ((QueueNo, u64), Lease);

/// Leases that were just found lost, of which their workers have to hear.
#[derive(Default)]
#[must_use = "a worker that hears nothing runs on"]
pub(super) struct Lost(Vec<(Arc<Opened>, u64)>);

impl Lost {
    /// Tells the workers. The caller must hold no lock.
    pub(super) fn tell(self) {
        for (queue, token) in self.0 {
            queue.shared.told(vec![Event::Lost { token }], 0);
            queue.shared.settle();
        }
    }

    /// Marks a lease as lost, if that is new.
    fn note(&mut self, token: u64, lease: &mut Lease) {
        if !std::mem::replace(&mut lease.is_lost, true) {
            self.0.extend(lease.queue.upgrade().map(|queue| (queue, token)));
        }
    }
}

impl Leases {
    /// Adds jobs that were just claimed, with their numbers.
    pub(super) fn add(&self, queue: &Arc<Opened>, claimed: &[(i64, Claimed)], asked: Instant) -> Lost {
        let until = if queue.clock().is_some() { None } else { asked.checked_add(queue.lease()) };
        let lease = |number: i64, id: &str| Lease {
            number,
            queue: Arc::downgrade(queue),
            id: id.to_owned(),
            since: seam::now(),
            until,
            by_silence: false,
            is_lost: false,
            is_doubted: false,
        };
        WorkCount::add(&queue.work.started, claimed.len());
        let numbers: HashSet<_> = claimed.iter().map(|(number, _)| *number).collect();
        let mut state = self.state.lock();
        // Earlier runs of these jobs in this process have ended, though their numbers are renewed.
        let mut lost = Lost::default();
        for ((of, token), lease) in &mut state.held {
            if *of == queue.number && numbers.contains(&lease.number) {
                lost.note(*token, lease);
            }
        }
        for (number, claimed) in claimed {
            state.held.insert((queue.number, claimed.row.place), lease(*number, &claimed.id));
        }
        lost
    }

    pub(super) fn remove(&self, job: &Held) {
        let removed = self.state.lock().held.remove(&(job.queue, job.token));
        if let Some(queue) = removed.and_then(|lease| lease.queue.upgrade()) {
            WorkCount::add(&queue.work.ended, 1);
        }
    }

    pub(super) fn number(&self, job: &Held) -> Option<i64> {
        self.state.lock().held.get(&(job.queue, job.token)).map(|lease| lease.number)
    }

    /// Returns the number and token by which the server knows the run of a job; no number is 0.
    pub(super) fn key(&self, job: &Held) -> (i64, i64) {
        (self.number(job).unwrap_or(0), signed(job.token))
    }

    pub(super) fn runs<'j>(&self, jobs: impl Iterator<Item = &'j Held>) -> Runs {
        let state = self.state.lock();
        let number = |job: &Held| state.held.get(&(job.queue, job.token)).map_or(0, |lease| lease.number);
        jobs.map(|job| (job.queue, number(job), signed(job.token))).collect()
    }

    pub(super) fn holds(&self, job: &Held, now: Instant) -> bool {
        let state = self.state.lock();
        let lease = state.held.get(&(job.queue, job.token));
        lease.is_some_and(|lease| !lease.is_lost && lease.until.is_none_or(|until| until > now))
    }

    /// Records that a call sent at `called` took these jobs away. A job that was claimed since is
    /// not among them, or the next renewal finds out.
    pub(super) fn lose(&self, queue: QueueNo, ids: &HashSet<&str>, called: Instant) -> Lost {
        let (mut lost, mut state) = (Lost::default(), self.state.lock());
        for ((of, token), lease) in &mut state.held {
            if *of == queue && lease.since <= called && ids.contains(&*lease.id) {
                lost.note(*token, lease);
            }
        }
        lost
    }

    /// Records that a lease is renewed. Returns false if it has ended.
    pub(super) fn prolong(&self, job: &Held, now: Instant, silence: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        let lease = state.held.get_mut(&(job.queue, job.token)).filter(|lease| !lease.is_lost);
        let Some(lease) = lease else { return false };
        lease.until = silence.and_then(|silence| now.checked_add(silence));
        lease.by_silence = silence.is_some();
        true
    }

    /// Records that the ends of these jobs were sent without an answer.
    pub(super) fn doubt<'j>(&self, jobs: impl Iterator<Item = &'j Held>) {
        let mut state = self.state.lock();
        for job in jobs {
            if let Some(lease) = state.held.get_mut(&(job.queue, job.token)) {
                lease.is_doubted = true;
            }
        }
    }

    pub(super) fn is_doubted(&self, job: &Held) -> bool {
        self.state.lock().held.get(&(job.queue, job.token)).is_some_and(|lease| lease.is_doubted)
    }

    pub(super) fn mark_lost(&self, job: &Held) -> Lost {
        let mut lost = Lost::default();
        if let Some(lease) = self.state.lock().held.get_mut(&(job.queue, job.token)) {
            lost.note(job.token, lease);
        }
        lost
    }

    /// Returns the leases to renew, and when to check next. `None`: without leases the thread ends.
    pub(super) fn due(&self) -> Option<(Duration, Vec<OwnLease>)> {
        let mut state = self.state.lock();
        // Those that end by silence are forgotten some time after that.
        let now = seam::now();
        state.held.retain(|_, lease| {
            let is_over = lease.until.is_some_and(|until| until + FORGET < now);
            lease.queue.strong_count() > 0 && !(lease.by_silence && is_over)
        });
        if state.held.is_empty() {
            state.runs = false;
            return None;
        }
        let shortest = state.held.values().filter_map(|lease| Some(lease.queue.upgrade()?.lease())).min();
        let own = state.held.iter().filter(|(_, lease)| !lease.by_silence && !lease.is_lost && lease.until.is_some());
        let own = own.map(|(key, lease)| (*key, lease.clone())).collect();
        Some((shortest.unwrap_or(FORGET) / 3, own))
    }

    /// Records which of the leases that were to be renewed still hold.
    pub(super) fn note_renewed(&self, asked: Instant, sent: &[OwnLease], holds: &[bool]) -> Lost {
        let (mut lost, mut state) = (Lost::default(), self.state.lock());
        for ((key, lease), holds) in sent.iter().zip(holds) {
            let Some(held) = state.held.get_mut(key) else { continue };
            if !holds {
                // A lease whose end had no answer may have ended by it.
                if !held.is_doubted {
                    lost.note(key.1, held);
                }
            } else if let Some(queue) = lease.queue.upgrade()
                && !held.by_silence
            {
                held.until = asked.checked_add(queue.lease());
            }
        }
        lost
    }
}
