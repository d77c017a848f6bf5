//! A simple model of the window's promises, and a trial that runs the window and the model side by
//! side.
//!
//! The model is made of sets: the jobs that are done, running, failed, or on disk. [`Trial`] makes
//! the same choices ("finish the third running job", "restart") in a [`Window`] and in the model,
//! and panics if they differ or if a promise is broken.

mod fetches;
mod model;
mod saves;

use self::model::{Hold, Reference};
use super::{Action, Limits, Window};
use crate::base::Index;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

/// A choice. Its number selects from what is possible, so that any sequence of choices makes sense.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice {
    /// The head grows by this much, or appears.
    Grow(u8),
    /// The head goes back by this much.
    Shrink(u8),
    /// The gate moves to this distance above the watermark, or closes, or opens for all jobs.
    Gate(u8),
    /// The fetch under way returns this share of its jobs.
    Fetched(u8),
    /// The fetch under way returns this share of its jobs, or none, and the next one is missing.
    Missing(u8),
    /// The fetch under way returns this share of its jobs, or none, and then the source fails.
    Unreadable(u8),
    /// The fetch under way returns jobs and gaps by the first number, and a last gap by the second.
    Sparse(u8, u8),
    /// This many more jobs may be read, by their weight. A large number means any number.
    Room(u8),
    /// Workers ask for this many jobs.
    Run(u8),
    Done(u8),
    /// A running job has a result that waits for its turn.
    Aside(u8),
    /// The lowest job that is not done takes its turn, if its result waits.
    TakeUp,
    Fail(u8),
    /// A back-off is over, or the pause before a missing failed job is read again.
    Due(u8),
    /// The pause before new jobs are read again is over.
    Readable,
    /// A failed job that backs off is parked.
    Park(u8),
    /// A parked job is to run once more.
    Redrive(u8),
    /// A redriven job that was not read is given up.
    Withdraw(u8),
    /// Only this failed job may start.
    Alone(u8),
    /// Any job may start again.
    Together,
    /// A due job that was not read waits for another back-off.
    PutBack(u8),
    /// The fetch under way returns all its jobs. Each new one waits behind another one if its turn
    /// among eight has a bit.
    Behind(u8),
    /// A read job that ran before waits behind another one.
    BehindAgain(u8),
    /// A job no longer waits behind another one.
    Ready(u8),
    /// Too many jobs wait behind others, or no longer do.
    Crowded(bool),
    /// At most this many new jobs begin in a row, and those with a bit, in turn, are done at once.
    InARow(u8, u8),
    /// The save that is due is being written.
    Saving,
    /// The save under way is on disk.
    Saved,
    /// Up to eight jobs of the save under way, from here on, failed after all.
    Revoke(u8),
    Limits(u8, u8),
    /// The window is paused or resumed.
    Pause(bool),
    /// Too much waits for a save, or no longer does.
    Full(bool),
    /// The window ends once everything up to this distance above the watermark is processed.
    StopAt(u8),
    Stop,
    /// The save under way is given up.
    SaveAbandoned,
    /// The process dies, and a new life begins with what is on disk.
    Restart,
    /// The same, and the new life knows that jobs had failed at some distances above the watermark:
    /// at each square of which this has a bit.
    RestartKnowing(u8),
}

pub(crate) struct Trial {
    window: Window,
    model: Reference,
    /// The jobs of any life that were reported done, from the saved watermark on.
    ever_done: BTreeSet<Index>,
}

impl Trial {
    pub(crate) fn new(first: Index, limits: Limits, stop_at: Option<Index>, keeps: bool) -> Self {
        let model = Reference { keeps, ..Reference::begin(first, None, limits, stop_at) };
        let mut trial = Self { window: Window::begin(first, limits), model, ever_done: BTreeSet::new() };
        trial.restart();
        trial.drain();
        trial
    }

    /// Makes one choice and checks everything.
    pub(crate) fn choose(&mut self, choice: Choice) {
        self.apply(choice);
        self.drain();
        self.check();
    }

    fn apply(&mut self, choice: Choice) {
        match choice {
            Choice::Grow(by) => {
                let head =
                    self.model.head.unwrap_or(self.model.first).saturating_add(u64::from(by % 64)).min(Index::MAX - 1);
                self.set_head(Some(head));
            }
            Choice::Shrink(by) => self.set_head(self.model.head.and_then(|head| head.checked_sub(u64::from(by)))),
            Choice::Gate(by) => self.set_gate(by),
            fetched @ (Choice::Fetched(_) | Choice::Missing(_) | Choice::Unreadable(_)) => self.end_fetch(fetched),
            Choice::Sparse(seed, last) => self.end_sparse_fetch(seed, last),
            Choice::Room(jobs) => self.set_room(if jobs < 200 { u64::from(jobs % 20) } else { u64::MAX }),
            Choice::Run(times) => (0..times % 8).for_each(|_| self.run()),
            Choice::Done(pick) => {
                if let Some(index) = nth(&self.model.running, pick) {
                    assert!(self.window.handle_done(index));
                    assert!(!self.window.handle_done(index), "a job is done once");
                    self.model.running.remove(&index);
                    if self.model.redriven.remove(&index) {
                        return self.unpark(index);
                    }
                    self.count_done(index);
                }
            }
            Choice::InARow(most, done) => self.run_in_a_row(most, done),
            Choice::Aside(pick) => {
                if let Some(index) = nth(&self.model.running, pick) {
                    if self.model.redriven.contains(&index) {
                        return assert!(!self.window.handle_set_aside(index), "a redriven job awaits no turn");
                    }
                    assert!(self.window.handle_set_aside(index));
                    self.model.running.remove(&index);
                    self.model.aside.insert(index);
                }
            }
            Choice::TakeUp => {
                let slot = self.model.running.len() < self.model.limits.max_processing;
                let turn = self.window.lowest_undone();
                if slot && !self.model.finished && self.model.aside.remove(&turn) {
                    self.window.handle_taken_up();
                    self.model.running.insert(turn);
                }
            }
            Choice::Fail(pick) => {
                if let Some(index) = nth(&self.model.running, pick) {
                    assert!(self.window.handle_failed(index));
                    self.model.running.remove(&index);
                    if !self.model.redriven.remove(&index) {
                        self.model.waiting.insert(index);
                    }
                }
            }
            Choice::Due(pick) => self.end_pause(pick),
            Choice::Park(pick) => self.park(pick),
            Choice::Redrive(pick) => self.redrive(pick),
            Choice::Withdraw(pick) => self.withdraw(pick),
            Choice::PutBack(pick) => self.put_back(pick),
            Choice::Behind(turns) => self.end_fetch_behind(turns),
            Choice::BehindAgain(pick) => self.behind_again(pick),
            Choice::Ready(pick) => self.ready(pick),
            saving @ (Choice::Saving | Choice::Saved | Choice::Revoke(_) | Choice::SaveAbandoned) => self.save(saving),
            other => self.steer(other),
        }
    }

    fn steer(&mut self, choice: Choice) {
        match choice {
            Choice::Limits(processing, ahead) => {
                let limits = limits(processing, ahead);
                self.window.set_limits(limits);
                self.model.limits = limits;
            }
            Choice::Readable => {
                self.window.handle_readable();
                self.model.hold = None;
            }
            Choice::Pause(paused) => {
                self.window.set_paused(paused);
                self.model.paused = paused;
            }
            Choice::Full(full) => {
                self.window.set_full(full);
                self.model.full = full;
            }
            Choice::Crowded(crowded) => {
                self.window.set_crowded(crowded);
                self.model.crowded = crowded;
            }
            Choice::StopAt(by) => {
                let index = self.model.base().saturating_add(u64::from(by)).saturating_sub(5).min(Index::MAX - 1);
                self.window.stop_at(index);
                self.model.stop_at = Some(self.model.stop_at.map_or(index, |earlier| earlier.min(index)));
            }
            Choice::Stop => {
                self.window.handle_stop();
                self.model.stopping = true;
            }
            Choice::Alone(pick) => {
                self.model.only = nth(&self.model.waiting, pick).or(self.model.only);
                self.window.handle_alone(self.model.only);
            }
            Choice::Together => {
                self.window.handle_alone(None);
                self.model.only = None;
            }
            Choice::RestartKnowing(by) => {
                self.restart();
                self.restore_waiting(by);
            }
            _ => self.restart(),
        }
    }

    fn set_head(&mut self, head: Option<Index>) {
        self.window.handle_head(head);
        self.model.head = head;
        self.model.hold = self.model.hold.filter(|hold| *hold == Hold::Failed);
        self.model.due.append(&mut self.model.missing);
    }

    fn set_gate(&mut self, by: u8) {
        let gate = match by {
            0..200 => self.model.base().saturating_add(u64::from(by % 100)).checked_sub(20),
            200..220 => None,
            _ => Some(Index::MAX),
        };
        self.window.handle_gate(gate.map_or(0, |gate| gate.saturating_add(1)));
        self.model.gate = gate;
    }

    fn run(&mut self) {
        let expected = self.model.expected_run();
        assert_eq!(self.window.can_run(), expected.is_some());
        let got = self.window.poll_run().map(|run| (run.index, run.retry));
        assert_eq!(got, expected);
        let Some((index, retry)) = got else { return };
        if retry {
            self.model.retries_read.remove(&index);
        } else {
            assert!(self.model.started.insert(index), "promise 3: a new job is handed out once");
            self.model.read.remove(&index);
        }
        self.model.retried = retry;
        self.model.running.insert(index);
        assert!(self.model.running.len() <= self.model.limits.max_processing, "promise 2");
    }

    fn count_done(&mut self, index: Index) {
        self.model.done.insert(index);
        self.model.unwritten = true;
        self.ever_done.insert(index);
    }

    /// Runs jobs without the window, which hears of them afterwards.
    fn run_in_a_row(&mut self, most: u8, done: u8) {
        let jobs = self.window.next_in_a_row(u64::from(most));
        let mut unheard = 0;
        for index in jobs {
            if self.model.running.len() >= self.model.limits.max_processing {
                break;
            }
            if done >> (index % 8) & 1 == 0 {
                self.window.handle_begun_and_done(core::mem::take(&mut unheard));
                self.run();
                continue;
            }
            assert_eq!(self.model.expected_run(), Some((index, false)), "another job goes before this one");
            assert!(self.model.started.insert(index), "promise 3: a new job is handed out once");
            self.model.read.remove(&index);
            self.model.retried = false;
            self.count_done(index);
            unheard += 1;
        }
        self.window.handle_begun_and_done(unheard);
    }

    fn restart(&mut self) {
        let Reference { first, disk, limits, stop_at, keeps, .. } = self.model;
        let restored = core::mem::take(&mut self.model.disk_ahead);
        // The records of jobs that are parked on disk.
        let mut parked = core::mem::take(&mut self.model.parked);
        parked.retain(|index| disk.is_some_and(|last| *index <= last) || restored.contains(index));
        self.window = match disk {
            Some(last) => Window::resume(last, limits),
            None => Window::begin(first, limits),
        };
        if keeps {
            self.window.keep_done_ahead();
            self.window.restore(runs(&restored));
        }
        if let Some(index) = stop_at {
            self.window.stop_at(index);
        }
        let fresh = Reference::begin(first, disk, limits, stop_at);
        self.model =
            Reference { keeps, done: restored.clone(), disk_ahead: restored.clone(), restored, parked, ..fresh };
    }

    /// Polls until `None`, which must come soon, and compares each action with the model.
    fn drain(&mut self) {
        for _ in 0..8 {
            match self.window.poll() {
                None => return self.expect_nothing_left(),
                Some(Action::Fetch(run)) => self.check_fetch(run),
                Some(Action::Save) => {
                    assert!(!self.model.save_due, "one save at a time");
                    assert!(self.model.needs_save(), "promise 7: nothing is saved when nothing finished");
                    self.model.save_due = true;
                }
                Some(Action::Announce(run)) => {
                    assert_eq!(*run.start(), self.model.announced, "announcements have no gap");
                    assert_eq!(Some(*run.end()), self.model.disk, "only what is saved is announced");
                    self.model.announced = run.end() + 1;
                }
                Some(Action::Finish) => {
                    assert!(!self.model.finished && self.model.drained(), "finished too early, or twice");
                    self.model.finished = true;
                }
            }
        }
        panic!("the window is not drained after 8 polls");
    }

    fn expect_nothing_left(&self) {
        let model = &self.model;
        assert!(!model.needs_save() || model.save_due || model.abandoned_save, "what finished is saved at once");
        assert_eq!(model.finished, model.drained() || model.finished, "promise 6: the end is reached");
        assert_eq!(model.announced, model.base(), "everything saved is announced");
        let reads = model.fetch.is_some() || model.stopping || model.finished;
        let new = model.hold.is_none() && !model.crowded && model.starved() && model.may_start(model.unread());
        let again = model.first_of(&model.due).is_some() && model.first_of(&model.retries_read).is_none();
        assert!(reads || !new && !again, "what may start is read, unless another job can start");
    }

    fn check(&self) {
        let (model, window) = (&self.model, &self.window);
        let base = model.base();
        assert!(model.running.iter().all(|i| *i >= base || model.redriven.contains(i)));
        assert!(model.parked.iter().all(|i| window.is_redriven(*i) == model.redriven.contains(i)));
        assert_eq!(window.last_processed(), model.disk);
        let closed = model.next() - base >= model.limits.max_search_ahead;
        let may_start = !model.stopping && (model.fetch.is_some() || model.expected_run().is_some());
        let idle = model.running.is_empty() && !may_start;
        let awaited = model.save_due && model.saving.is_none() && (closed || idle || model.full);
        assert_eq!(window.awaits_save(), awaited);
        assert_eq!(window.in_flight(), model.running.len());
        assert_eq!(window.done_ahead() as usize, model.done.range(base..).count());
        let on_disk = |i: &Index| model.disk_ahead.contains(i) || model.keeps && model.gaps.contains(i);
        let unsaved = model.done.range(base..).filter(|i| !on_disk(i)).count();
        assert_eq!(window.unsaved() as usize, unsaved);
        assert_eq!(window.absent(), model.absent);
        assert_eq!(window.gaps_within(base, Index::MAX) as usize, model.found.range(base..).count());
        assert_eq!(window.lowest_undone(), model.lowest_undone());
        assert_eq!(window.next(), model.next());
        assert_eq!(window.unstarted as usize, model.read.len());
        let restored = model.restored.range(base..).filter(|i| !model.started.contains(i)).count();
        let failed = model.held.range(base..).count();
        assert_eq!(window.size() as usize, model.started.range(base..).count() + restored + failed);
    }

    /// Returns counts that change as long as anything happens.
    fn progress(&self) -> (Option<Index>, usize, usize, usize) {
        let model = &self.model;
        (model.disk, model.done.len(), model.started.len(), model.redriven.len())
    }

    /// Runs on with a source, workers and a disk that do all they are asked for, and checks that
    /// everything that may run does.
    pub(crate) fn settle(mut self) {
        self.choose(Choice::Pause(false));
        self.choose(Choice::Full(false));
        self.choose(Choice::Crowded(false));
        self.choose(Choice::Together);
        self.choose(Choice::Gate(u8::MAX));
        let head = self.model.head;
        for _ in 0..100_000 {
            self.set_head(head);
            self.choose(Choice::Readable);
            while !(self.model.waiting.is_empty() && self.model.behind.is_empty()) {
                self.choose(Choice::Due(0));
            }
            let before = self.progress();
            self.choose(Choice::Fetched(255));
            self.choose(Choice::TakeUp);
            self.choose(Choice::Run(7));
            self.choose(Choice::Done(0));
            self.choose(Choice::Saving);
            self.choose(Choice::Saved);
            let busy = self.model.fetch.is_some() || self.model.save_due || !self.model.running.is_empty();
            if !busy && before == self.progress() {
                break;
            }
        }
        if self.model.stopping {
            return assert!(self.model.finished, "promise 6: a stopped window ends");
        }
        let last = self.model.head.map(|head| head.min(self.model.stop_at.unwrap_or(Index::MAX)));
        let want = last.filter(|last| *last >= self.model.base());
        assert_eq!(want, None, "promise 4: everything up to the head was processed");
        assert_eq!(self.model.finished, self.model.stop_at.is_some_and(|last| self.model.base() > last));
    }
}

/// Makes small limits, which meet their edges more often.
pub(crate) fn limits(processing: u8, ahead: u8) -> Limits {
    let max_search_ahead = if ahead >= 250 { u64::MAX } else { u64::from(ahead) + 1 };
    Limits { max_processing: usize::from(processing % 80) + 1, max_search_ahead }
}

/// Returns the unbroken runs of a set.
fn runs(set: &BTreeSet<Index>) -> Vec<RangeInclusive<Index>> {
    let all: Vec<_> = set.iter().copied().collect();
    all.chunk_by(|one, next| one + 1 == *next).map(|run| run[0]..=run[run.len() - 1]).collect()
}

fn nth(set: &BTreeSet<Index>, pick: u8) -> Option<Index> {
    set.iter().nth(usize::from(pick) % set.len().max(1)).copied()
}
