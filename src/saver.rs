//! The thread that saves a user's own progress while jobs go on.

use crate::base::Error;
use crate::base::clock::{Clock, Waits};
use crate::base::guard::{drop_guarded, guarded};
use crate::base::sync::{Arc, Mutex};
use crate::base::time::{Now, Sleep};
use crate::commit::{SAVE_PACE, changes::Changes};
use crate::progress::{
    CommitError, Commits, Life, NewRecords, NotWritten, Opening, Progress, SaveBackend, SaveError, SavePort, Saved,
    open_life,
};
use crossbeam_channel::{Receiver, Sender, TryRecvError, unbounded};
use std::time::{Duration, Instant};

enum SaverMessage {
    Save {
        port: Arc<dyn SavePort>,
        hurry: bool,
    },
    /// Cuts the wait short.
    Hurry,
    /// The clock was set.
    Clock,
}

/// The driver's side. The thread ends when this is dropped.
pub(crate) struct SaverHandle(Sender<SaverMessage>);

struct Inbox(Receiver<SaverMessage>);

// Not generic, so that the channel is compiled once and not for each type of progress.
impl Inbox {
    fn try_recv(&self) -> Result<SaverMessage, TryRecvError> {
        self.0.try_recv()
    }

    /// Waits for a message until this time, if any.
    fn recv_until(&self, until: Option<Instant>) -> Option<SaverMessage> {
        match until {
            Some(until) => self.0.recv_deadline(until).ok(),
            None => self.0.recv().ok(),
        }
    }
}

pub(crate) struct SaverThread<P> {
    inbox: Inbox,
    clock: Clock,
    progress: Arc<Mutex<P>>,
    keeps: Keeps<P>,
    asked: Option<DueSave>,
    /// The end of the pause after the last save.
    paced: When,
}

pub(crate) enum Keeps<P> {
    /// Only the watermark.
    Watermark,
    /// Everything done.
    All,
    /// The records of single jobs as well.
    Records(Box<Recorded<P>>),
}

/// The parts of a save that has records.
pub(crate) struct Recorded<P> {
    /// True if the progress keeps the jobs done above the watermark.
    done_ahead: bool,
    /// Writes the results of jobs with the save, if there are any.
    commits: Option<Box<dyn Commits<P>>>,
    changes: Vec<Changes>,
}

impl<P> Keeps<P> {
    pub(crate) fn records(done_ahead: bool, commits: Option<Box<dyn Commits<P>>>) -> Self {
        Self::Records(Box::new(Recorded { done_ahead, commits, changes: Vec::new() }))
    }
}

/// A save that was requested and not made.
struct DueSave {
    port: Arc<dyn SavePort>,
    when: When,
}

/// When a requested save is due. A call to hurry makes each of them `AtOnce`.
#[derive(Clone, Copy)]
enum When {
    AtOnce,
    From(Instant),
    /// The time is beyond the clock's end.
    InAHurryAlone,
}

impl When {
    fn after(pause: Duration, clock: &Clock) -> Self {
        clock.now().checked_add(pause).map_or(Self::InAHurryAlone, Self::From)
    }
}

/// Creates both sides. The progress is shared with the owner that keeps its name in use.
pub(crate) fn saver<P: Progress>(
    progress: Arc<Mutex<P>>,
    keeps: Keeps<P>,
    clock: Clock,
) -> (SaverHandle, SaverThread<P>) {
    let (handle, inbox) = channel();
    (handle, SaverThread { inbox, clock, progress, keeps, asked: None, paced: When::AtOnce })
}

fn channel() -> (SaverHandle, Inbox) {
    let (sender, receiver) = unbounded();
    (SaverHandle(sender), Inbox(receiver))
}

impl SaveBackend for SaverHandle {
    fn save(&self, port: Arc<dyn SavePort>, hurry: bool) {
        // The thread lives as long as this side does.
        let _ = self.0.send(SaverMessage::Save { port, hurry });
    }

    fn hurry(&self) {
        let _ = self.0.send(SaverMessage::Hurry);
    }
}

impl Waits for SaverHandle {
    fn clock_was_set(&self) {
        let _ = self.0.send(SaverMessage::Clock);
    }
}

impl<P: Progress> SaverThread<P> {
    pub(crate) fn run(mut self) {
        loop {
            // If the clock is set after this moment, a message says so.
            let now = self.clock.when_asked();
            let heard = match self.step(&now) {
                Sleep::No | Sleep::Spin | Sleep::Awhile(_) => continue,
                Sleep::Until(until) => self.inbox.recv_until(self.clock.deadline(until)),
                Sleep::End => break,
            };
            heard.into_iter().for_each(|message| self.take(message));
        }
        drop_guarded(self.progress);
    }

    /// Closes the record of a life in which nothing ran, instead of [`run`](Self::run).
    pub(crate) fn close_unused(self, closed: &Life, saved: &mut Saved, name: &str) -> Result<(), Error> {
        let Keeps::Records(mut recorded) = self.keeps else { return Ok(()) };
        let commits = recorded.commits.as_deref_mut().map(|commits| commits as _);
        let opening = Opening { life: closed, suspects: Vec::new(), passed: &[], saved: Some(saved), name };
        open_life(&mut *self.progress.lock(), commits, opening)
    }

    fn take(&mut self, message: SaverMessage) {
        match message {
            SaverMessage::Save { port, hurry } => {
                let when = if hurry || port.is_hurried() { When::AtOnce } else { self.paced };
                self.asked = Some(DueSave { port, when });
            }
            // It may come late, after the save that it meant, or before the request.
            SaverMessage::Hurry => self.asked.iter_mut().for_each(|asked| asked.when = When::AtOnce),
            SaverMessage::Clock => {}
        }
    }

    /// Takes the messages that have arrived, and saves if a save is due.
    pub(crate) fn step(&mut self, now: &Now) -> Sleep {
        loop {
            if let Some(asked) = self.asked.take() {
                let is_due = match asked.when {
                    When::AtOnce => true,
                    When::From(at) => now.get() >= at,
                    When::InAHurryAlone => false,
                };
                if is_due {
                    self.save(asked.port);
                    return Sleep::No;
                }
                self.asked = Some(asked);
            }
            match (self.inbox.try_recv(), &mut self.asked) {
                (Ok(message), _) => self.take(message),
                (Err(TryRecvError::Empty), None) => return Sleep::Until(None),
                (Err(TryRecvError::Empty), Some(DueSave { when: When::From(at), .. })) => {
                    return Sleep::Until(Some(*at));
                }
                (Err(TryRecvError::Empty), Some(_)) => return Sleep::Until(None),
                // The end waits only for this save.
                (Err(TryRecvError::Disconnected), Some(asked)) => asked.when = When::AtOnce,
                (Err(TryRecvError::Disconnected), None) => return Sleep::End,
            }
        }
    }

    fn save(&mut self, port: Arc<dyn SavePort>) {
        let again = match self.try_save(&*port) {
            None => None,
            Some(Ok(())) => {
                port.saved();
                None
            }
            Some(Err(NotWritten::Error(CommitError::Lost(error)))) => {
                port.save_lost(error);
                None
            }
            Some(Err(NotWritten::Error(CommitError::Retry(error)))) => port.save_failed(error),
            Some(Err(NotWritten::Error(CommitError::Write(error)))) => {
                port.write_failed(error);
                Some(Duration::ZERO)
            }
            Some(Err(NotWritten::Unknown(error))) => {
                port.save_unknown(error);
                None
            }
        };
        match again {
            Some(pause) => self.asked = Some(DueSave { port, when: When::after(pause, &self.clock) }),
            None => self.paced = self.paced(),
        }
    }

    /// Returns when the pause after a save ends.
    fn paced(&self) -> When {
        // A progress that panics has no pace of its own.
        let pace = guarded(|| Ok(self.progress.lock().pace())).unwrap_or(SAVE_PACE);
        // The least pace only gathers jobs, for which a store's writer uses the machine's time.
        let is_none = self.clock.is_manual() && pace <= SAVE_PACE;
        if is_none { When::AtOnce } else { When::after(pace, &self.clock) }
    }

    /// Saves the current state. Returns `None` if there is nothing more to save. Everything done is
    /// listed only for a progress that keeps it.
    fn try_save(&mut self, port: &dyn SavePort) -> Option<Result<(), NotWritten>> {
        let Self { progress, keeps, .. } = self;
        let saved = match keeps {
            Keeps::Watermark => {
                let checkpoint = port.checkpoint()?;
                let saved = guarded(|| progress.lock().save(&checkpoint));
                return Some(saved.map_err(|error| not_saved(SaveError::from(error))));
            }
            Keeps::Records(recorded) => return recorded.try_save(progress, port),
            Keeps::All => port.snapshot(true, &mut Vec::new())?.into_saved(),
        };
        let saved = saved.expect("all of it was asked for");
        Some(save_all(progress, &saved))
    }
}

impl<P: Progress> Recorded<P> {
    /// Saves everything with the new records and the results of jobs.
    fn try_save(&mut self, progress: &Mutex<P>, port: &dyn SavePort) -> Option<Result<(), NotWritten>> {
        let mut snapshot = port.snapshot(true, &mut self.changes)?;
        let (batch, life) = (snapshot.batch.take().unwrap_or_default(), snapshot.life.take());
        let mut records = NewRecords::default();
        self.changes.iter().for_each(|changes| records.take(changes));
        batch.unparked.iter().for_each(|index| records.remove_job(*index));
        life.iter().for_each(|life| records.put_life(life));
        let mut saved = snapshot.into_saved().expect("all of it was asked for");
        if !self.done_ahead {
            // Only parked jobs are done above the watermark, and their records say so.
            saved.done.clear();
        }
        (saved.records, saved.parked) = records.list();
        let outcome = match &mut self.commits {
            Some(commits) => commits.commit(&mut progress.lock(), &saved, &batch.jobs),
            None => save_all(progress, &saved),
        };
        let outcome = match outcome {
            // It contains nothing of the user's, so it is no failure of a job.
            Err(NotWritten::Error(CommitError::Write(error))) if batch.jobs.is_empty() => {
                Err(NotWritten::Error(CommitError::Retry(error)))
            }
            outcome => outcome,
        };
        if outcome.is_ok() {
            self.changes.clear();
        }
        Some(outcome)
    }
}

fn save_all<P: Progress>(progress: &Mutex<P>, saved: &Saved) -> Result<(), NotWritten> {
    let outcome = guarded(|| Ok(progress.lock().save_all(saved)));
    outcome.unwrap_or_else(|panic| Err(SaveError::Retry(panic))).map_err(not_saved)
}

fn not_saved(error: SaveError) -> NotWritten {
    NotWritten::Error(error.into())
}
