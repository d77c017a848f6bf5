//! Pushes of several threads that go together: one call, one transaction, one wait for the disk.
//!
//! Only plain jobs join. They wait for no lock, so no push waits for that of another job.

use super::faults::CallError;
use super::server::PlainPush;
use crate::types::error::QueueError;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use waterline::seam;

/// The most jobs of a push that joins others.
pub(super) const FEW: usize = 64;
/// The bytes after which a call takes no more pushes.
const BYTES: usize = 1 << 20;
/// A shorter call has not waited for a disk.
const SHORT: Duration = Duration::from_millis(1);

impl PlainPush {
    fn bytes(&self) -> usize {
        self.payloads.iter().map(String::len).sum()
    }
}

#[derive(Debug)]
pub(super) enum Joined {
    /// The numbers of its jobs.
    Pushed(Vec<i64>),
    /// Nothing is written. Alone, the push may succeed, or turn out to be the one at fault.
    Alone,
    Failed(QueueError),
}

/// The pushes of one queue.
#[derive(Debug, Default)]
pub(super) struct Joining {
    state: Mutex<JoinState>,
}

#[derive(Debug, Default)]
struct JoinState {
    waiting: VecDeque<Arc<Seat>>,
    /// How many calls are under way.
    calls: usize,
    /// True if the last call was too short to have waited for a disk.
    is_short: bool,
}

impl JoinState {
    /// True if another call may begin. Beside a long one it would wait for the disk twice, for the
    /// end of that call's flush and for its own. Beside a short one it keeps the server busy while
    /// this process handles the answers.
    fn has_room(&self) -> bool {
        self.calls == 0 || self.is_short && self.calls < 2
    }
}

#[derive(Debug)]
struct Seat {
    now: Mutex<Now>,
    changed: Condvar,
}

#[derive(Debug)]
enum Now {
    Waits(PlainPush),
    /// It has to write what waits.
    Leads(PlainPush),
    /// Its jobs are in a call.
    Sent,
    Done(Joined),
    Taken,
}

impl Joining {
    /// Pushes jobs together with those of other threads: at most `most` in one call. `call` returns
    /// a number for each, or `None` if the jobs were not pushed and have to go alone; `explain`
    /// makes its error that of a push.
    pub(super) fn push<E: CallError>(
        &self,
        plain: PlainPush,
        most: usize,
        call: impl Fn(&PlainPush) -> Result<Option<Vec<i64>>, E>,
        explain: impl Fn(E) -> QueueError,
    ) -> Joined {
        let seat = Arc::new(Seat { now: Mutex::new(Now::Waits(plain)), changed: Condvar::new() });
        {
            let mut state = self.state.lock();
            if state.has_room() {
                state.calls += 1;
                seat.lead();
            } else {
                state.waiting.push_back(Arc::clone(&seat));
            }
        }
        match seat.wait() {
            Now::Leads(own) => self.write(own, most, call, explain),
            Now::Done(joined) => joined,
            Now::Waits(_) | Now::Sent | Now::Taken => unreachable!("a thread waits for its turn or its answer"),
        }
    }

    fn write<E: CallError>(
        &self,
        own: PlainPush,
        most: usize,
        call: impl Fn(&PlainPush) -> Result<Option<Vec<i64>>, E>,
        explain: impl Fn(E) -> QueueError,
    ) -> Joined {
        let of_panic = || explain(E::of_panic());
        let mut lead = Lead { joining: self, seats: Vec::new(), goes_on: false, is_short: false, of_panic: &of_panic };
        let (mut all, mut lengths) = (own, Vec::new());
        lengths.push(all.kinds.len());
        let mut bytes = all.bytes();
        while all.kinds.len() < most && bytes < BYTES {
            let Some(seat) = self.state.lock().waiting.pop_front() else { break };
            let plain = seat.send();
            lengths.push(plain.kinds.len());
            bytes += plain.bytes();
            all.kinds.extend(plain.kinds);
            all.payloads.extend(plain.payloads);
            lead.seats.push(seat);
        }
        let begun = seam::now();
        let answer = call(&all);
        lead.is_short = seam::now().saturating_duration_since(begun) < SHORT;
        // The next call begins while the waiters are told of this one.
        lead.hand_on();
        let is_shared = lengths.len() > 1;
        let mut numbers = match answer {
            Ok(Some(numbers)) if numbers.len() == all.kinds.len() => numbers.into_iter(),
            Ok(_) => return lead.answer_all(|| Joined::Alone),
            Err(error) if !is_shared => return Joined::Failed(explain(error)),
            // One of the jobs may be the reason.
            Err(error) if error.is_undone() => return lead.answer_all(|| Joined::Alone),
            Err(error) => {
                let error = error.shared();
                return lead.answer_all(|| Joined::Failed(explain(error())));
            }
        };
        let mut of = lengths.into_iter().map(|length| Joined::Pushed(numbers.by_ref().take(length).collect()));
        let own = of.next().unwrap_or(Joined::Alone);
        lead.seats.drain(..).zip(of).for_each(|(seat, answer)| seat.answer(answer));
        own
    }
}

/// The thread that writes. When it ends, even by a panic, another one writes what waits by then.
struct Lead<'j> {
    joining: &'j Joining,
    /// The threads that have no answer yet.
    seats: Vec<Arc<Seat>>,
    goes_on: bool,
    is_short: bool,
    of_panic: &'j dyn Fn() -> QueueError,
}

impl Lead<'_> {
    fn hand_on(&mut self) {
        if std::mem::replace(&mut self.goes_on, true) {
            return;
        }
        let mut state = self.joining.state.lock();
        state.calls -= 1;
        state.is_short = self.is_short;
        if state.has_room()
            && let Some(next) = state.waiting.pop_front()
        {
            state.calls += 1;
            next.lead();
        }
    }

    /// Gives all waiters the same answer, and returns this thread's.
    fn answer_all(mut self, answer: impl Fn() -> Joined) -> Joined {
        self.seats.drain(..).for_each(|seat| seat.answer(answer()));
        answer()
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.hand_on();
        // Only a panic of the driver leaves some.
        self.seats.drain(..).for_each(|seat| seat.answer(Joined::Failed((self.of_panic)())));
    }
}

impl Seat {
    fn lead(&self) {
        let mut now = self.now.lock();
        if let Now::Waits(plain) = std::mem::replace(&mut *now, Now::Taken) {
            *now = Now::Leads(plain);
        }
        self.changed.notify_one();
    }

    fn send(&self) -> PlainPush {
        match std::mem::replace(&mut *self.now.lock(), Now::Sent) {
            Now::Waits(plain) => plain,
            _ => unreachable!("one that waits has its jobs"),
        }
    }

    fn answer(&self, answer: Joined) {
        *self.now.lock() = Now::Done(answer);
        self.changed.notify_one();
    }

    /// Waits until it has to lead, or has its answer.
    fn wait(&self) -> Now {
        let mut now = self.now.lock();
        while matches!(*now, Now::Waits(_) | Now::Sent) {
            self.changed.wait(&mut now);
        }
        std::mem::replace(&mut *now, Now::Taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::faults::{queue_error, tests::Broken};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn plain(payloads: &[&str]) -> PlainPush {
        let payloads: Vec<_> = payloads.iter().map(|payload| (*payload).to_owned()).collect();
        PlainPush { kinds: vec!["k".to_owned(); payloads.len()], payloads }
    }

    /// Pushes from a first thread, whose call ends once others wait, and from those. Returns the
    /// payloads of each call, and the answers.
    fn pushed(call: impl Fn(&PlainPush) -> Result<Option<Vec<i64>>, Broken> + Sync) -> (Vec<Vec<String>>, Vec<Joined>) {
        let (joining, begun, calls, others) = (Joining::default(), Barrier::new(2), Mutex::default(), 3);
        let first = AtomicUsize::new(0);
        let call = |all: &PlainPush| {
            let mut known: parking_lot::MutexGuard<'_, Vec<Vec<String>>> = Mutex::lock(&calls);
            known.push(all.payloads.clone());
            drop(known);
            if first.fetch_add(1, Ordering::SeqCst) == 0 {
                begun.wait();
                while joining.state.lock().waiting.len() < others {
                    std::thread::yield_now();
                }
            }
            call(all)
        };
        let explain = |error| queue_error("q", "push jobs", error);
        let answers = std::thread::scope(|scope| {
            let leader = scope.spawn(|| joining.push(plain(&["0"]), 640, call, explain));
            begun.wait();
            let threads: Vec<_> =
                (0..others).map(|_| scope.spawn(|| joining.push(plain(&["1", "2"]), 640, call, explain))).collect();
            std::iter::once(leader).chain(threads).map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(joining.state.lock().calls, 0, "the next one may begin");
        (calls.into_inner(), answers)
    }

    #[test]
    fn pushes_during_a_call_share_the_next_one() {
        let next = AtomicUsize::new(10);
        let (calls, answers) =
            pushed(|all| Ok(Some(all.kinds.iter().map(|_| next.fetch_add(1, Ordering::SeqCst) as i64).collect())));
        assert_eq!(calls, [vec!["0"], vec!["1", "2", "1", "2", "1", "2"]]);
        let mut numbers: Vec<_> = answers
            .into_iter()
            .map(|answer| match answer {
                Joined::Pushed(numbers) => numbers,
                other => panic!("{other:?}"),
            })
            .collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [vec![10], vec![11, 12], vec![13, 14], vec![15, 16]]);
    }

    #[test]
    fn unmade_pushes_go_alone_and_failed_ones_share_the_error() {
        let (_, answers) = pushed(|_| Ok(None));
        assert!(answers.iter().all(|answer| matches!(answer, Joined::Alone)), "{answers:?}");
        for (is_undone, expected) in [(false, [1, 3, 0]), (true, [1, 0, 3])] {
            let (_, answers) = pushed(|_| Err(if is_undone { Broken::Undone } else { Broken::Lost }));
            let own = if is_undone { "Undone" } else { "Lost" };
            let count = |what: &str| answers.iter().filter(|answer| format!("{answer:?}").contains(what)).count();
            assert_eq!([own, "Shared", "Alone"].map(count), expected, "{answers:?}");
        }
    }
}
