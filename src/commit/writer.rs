//! The writer thread of a store. All intents that arrive during a write go into the next batch.
//!
//! This is group commit without a setting. An intent that a caller waits for is written at once.
//! Any other intent is written a millisecond after the last write began, in a batch of any size.
//! Two other kinds of threads also write: a thread that pushes to a log while no other writes, and
//! a worker that finds a save overdue because busy threads use all cores.
//!
//! This file is the shell with the threads: it alone reads the clock, and [`Batches`] decides.

use crate::base::counted::{Counted, waits};
#[cfg(feature = "seam")]
use crate::base::sync::try_lock_awake;
use crate::base::sync::{Arc, Mutex, MutexGuard, RwLock};
use crate::base::time;
use crate::commit::batches::{Batches, Next, Pending};
use crate::commit::participant::Cleanup;
use crate::commit::prefixes::Prefixes;
use crate::commit::{cleanup::Cleanups, counter_cache::CounterCache, intent::Intent};
use crate::kv::Kv;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use std::fmt;
use std::sync::Weak;
use std::thread::JoinHandle;
use std::time::Instant;

enum WriterMessage {
    Intent {
        intent: Box<dyn Intent>,
        hurry: bool,
    },
    /// Ends all waits for the pace or for a back-off.
    Hurry,
    /// Another thread has left an intent on the list.
    Look,
}

/// A handle to a store's writer thread, which ends when this is dropped.
pub(crate) struct Writer {
    batches: Arc<Mutex<Batches>>,
    rows: Arc<RwLock<CounterCache>>,
    thread: Arc<Mutex<Option<Started>>>,
    /// The intents of threads that wait for their turn to write.
    arrived: Arc<Mutex<Vec<Pending>>>,
    chores: Arc<Cleanups>,
}

/// The running thread.
struct Started {
    sender: Sender<WriterMessage>,
    /// The thread's inbox, for other threads that write.
    inbox: Receiver<WriterMessage>,
    handle: JoinHandle<()>,
}

/// A handle that does not keep the store open, which would close late, on the caller's thread.
#[derive(Clone)]
pub(crate) struct WeakWriter(Weak<Mutex<Option<Started>>>);

impl WeakWriter {
    /// True if its store is open.
    pub(crate) fn is_open(&self) -> bool {
        self.0.upgrade().is_some_and(|thread| thread.lock().is_some())
    }

    /// Sends an intent to the thread, if there still is one.
    pub(crate) fn submit(&self, intent: Box<dyn Intent>, hurry: bool) {
        if let Some(thread) = self.0.upgrade()
            && let Some(started) = &*thread.lock()
        {
            let _ = started.sender.send(WriterMessage::Intent { intent, hurry });
        }
    }
}

impl Writer {
    pub(crate) fn new(kv: Arc<dyn Kv>) -> Self {
        let rows: Arc<RwLock<CounterCache>> = Arc::default();
        let chores = Cleanups::new(kv.clone());
        let batches = Arc::new(Mutex::new(Batches::new(kv, rows.clone(), time::now())));
        Self { batches, rows, thread: Arc::default(), arrived: Arc::default(), chores }
    }

    pub(crate) fn downgrade(&self) -> WeakWriter {
        WeakWriter(Arc::downgrade(&self.thread))
    }

    /// Returns the lock on rows. A thread that only writes rows beside this writer holds it for
    /// reading. One that reads rows and writes changed values back holds it for writing, so that it
    /// overwrites no change made in between.
    pub(crate) fn rows(&self) -> &Arc<RwLock<CounterCache>> {
        &self.rows
    }

    /// Returns the prefixes of the tables, for reads without a lock.
    pub(crate) fn prefixes(&self) -> Arc<Prefixes> {
        self.rows.read().prefixes.clone()
    }

    /// Runs this while no batch is made and no other thread changes rows: for a write that moves
    /// tables.
    pub(crate) fn alone<R>(&self, run: impl FnOnce() -> R) -> R {
        let batches = self.batches.lock();
        let rows = self.rows.write();
        let done = run();
        drop(rows);
        self.leave_rest(batches);
        done
    }

    /// Runs chores soon, on a thread that no caller waits for.
    pub(crate) fn hand_over(&self, chores: Vec<Cleanup>) {
        self.chores.hand_over(chores);
    }

    /// Starts the thread unless it runs. A store that is only read needs none.
    pub(crate) fn start(&self) -> std::io::Result<()> {
        self.start_with(Thread::run)
    }

    fn start_with(&self, run: impl FnOnce(Thread) + Send + 'static) -> std::io::Result<()> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (sender, inbox) = unbounded();
            let (batches, arrived, chores) = (self.batches.clone(), self.arrived.clone(), self.chores.clone());
            let side = Thread { inbox: inbox.clone(), batches, arrived, chores };
            let handle = std::thread::Builder::new().name("wl-writer".to_owned()).spawn(move || run(side))?;
            *thread = Some(Started { sender, inbox, handle });
        }
        Ok(())
    }

    /// Starts a thread that gets no core, so to say, until the sender of this channel is dropped.
    #[cfg(test)]
    pub(crate) fn start_without_a_core(&self, until: Receiver<()>) {
        let started = self.start_with(move |side| {
            let _ = until.recv();
            side.run();
        });
        started.expect("there is a thread");
    }

    /// Sends an intent to the thread, which must have been started.
    pub(crate) fn submit(&self, intent: Box<dyn Intent>, hurry: bool) {
        let started = self.tell(WriterMessage::Intent { intent, hurry });
        debug_assert!(started, "the writer was not started");
    }

    /// Returns false if the thread was not started.
    fn tell(&self, message: WriterMessage) -> bool {
        let thread = self.thread.lock();
        // The thread lives until the sender is dropped, so it receives every message.
        thread.as_ref().is_some_and(|started| started.sender.send(message).is_ok())
    }

    /// Writes an intent on the calling thread, unless another one is writing. In that case the
    /// writer thread writes it together with other intents. So a single caller waits for no other
    /// thread, and several callers share one write.
    pub(crate) fn write_now(&self, intent: Box<dyn Intent>) {
        match self.batches.try_lock() {
            Some(mut batches) => {
                batches.pending.push(Pending::new(intent, true));
                write(&mut batches, time::now());
                self.leave_rest(batches);
            }
            None => self.submit(intent, true),
        }
    }

    /// Writes an intent on the calling thread, together with those of other such callers, or leaves
    /// it to the next write if another thread is writing. The caller waits only for the result.
    #[cfg(feature = "seam")]
    pub(crate) fn write_together(&self, intent: Box<dyn Intent>) {
        self.arrived.lock().push(Pending::new(intent, true));
        // A write takes a few microseconds, and a wake-up takes longer.
        let Some(mut batches) = try_lock_awake(&self.batches) else { return };
        let arrived = std::mem::take(&mut *self.arrived.lock());
        if !arrived.is_empty() {
            batches.pending.extend(arrived);
            write(&mut batches, time::now());
        }
        self.leave_rest(batches);
    }

    /// Writes everything that is due on the calling thread, unless another one is writing. It helps
    /// while the writer thread gets no core.
    ///
    /// It leaves flushes to the writer thread, since the caller would wait for the disk, and a
    /// failing store, since that thread keeps the back-off.
    pub(crate) fn help(&self) {
        let Some(inbox) = self.thread.lock().as_ref().map(|started| started.inbox.clone()) else { return };
        let Some(mut batches) = self.batches.try_lock() else { return };
        if batches.failing {
            drop(batches);
            self.leave_late(false);
            return;
        }
        take_all(&inbox, &mut batches);
        let now = time::now();
        let flushes = || batches.pending.iter().any(Pending::is_synced);
        if batches.next(now) == Next::Write && !flushes() {
            write(&mut batches, now);
        }
        self.leave_rest(batches);
    }

    /// Hands over the chores, and wakes the thread if an intent is left on the list: the thread may
    /// not know of it, or may sleep for too long.
    fn leave_rest(&self, mut batches: MutexGuard<'_, Batches>) {
        let (rest, chores) = (!batches.pending.is_empty(), batches.take_chores());
        drop(batches);
        self.leave_late(rest);
        self.chores.hand_over(chores);
    }

    /// Wakes the thread for the rest of the list, and for callers that arrived while the list was
    /// locked: they have left their intents, and wait for the results.
    fn leave_late(&self, rest: bool) {
        if rest || !self.arrived.lock().is_empty() {
            self.tell(WriterMessage::Look);
        }
    }

    /// Does the maintenance after a write beside this writer, on the thread for chores.
    pub(crate) fn tidy(&self) {
        self.chores.tidy();
    }

    /// Writes all intents at once that wait for the pace or for a back-off.
    pub(crate) fn hurry(&self) {
        self.tell(WriterMessage::Hurry);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let started = self.thread.lock().take();
        if let Some(Started { sender, inbox, handle }) = started {
            drop((sender, inbox));
            // The last owner may be a report on this very thread, which then ends by itself.
            if handle.thread().id() != std::thread::current().id() && handle.join().is_err() {
                tracing::error!("the store's writer thread panicked");
            }
        }
        // The writer may hand over more chores. The database stays open until they have run.
        self.chores.finish();
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

/// The state of the thread itself.
struct Thread {
    inbox: Receiver<WriterMessage>,
    batches: Arc<Mutex<Batches>>,
    arrived: Arc<Mutex<Vec<Pending>>>,
    chores: Arc<Cleanups>,
}

impl Thread {
    fn run(self) {
        loop {
            let Next::Sleep(until) = self.step(time::now()) else { continue };
            let heard = match until {
                Some(until) => self.inbox.recv_deadline(until),
                None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match (heard, until) {
                (Ok(message), _) => take(message, &mut self.batches.lock()),
                (Err(RecvTimeoutError::Timeout), _) => {}
                // No sender is left. Callers that wait for a report keep the store, so retry until
                // they give up.
                (Err(RecvTimeoutError::Disconnected), Some(until)) => {
                    std::thread::park_timeout(until.saturating_duration_since(time::now()));
                }
                (Err(RecvTimeoutError::Disconnected), None) => return,
            }
        }
    }

    /// Takes the messages that have arrived, and writes if a write is due.
    fn step(&self, now: Instant) -> Next {
        let waits = waits(Counted::Writer);
        let mut batches = self.batches.lock();
        let holds = waits.over();
        take_all(&self.inbox, &mut batches);
        batches.pending.append(&mut self.arrived.lock());
        let next = batches.next(now);
        if next == Next::Write {
            write(&mut batches, now);
        }
        let chores = batches.take_chores();
        drop((holds, batches));
        self.chores.hand_over(chores);
        // Some may have arrived since the list was locked.
        if self.arrived.lock().is_empty() { next } else { Next::Write }
    }
}

fn take_all(inbox: &Receiver<WriterMessage>, batches: &mut Batches) {
    inbox.try_iter().for_each(|message| take(message, batches));
}

fn take(message: WriterMessage, batches: &mut Batches) {
    match message {
        WriterMessage::Intent { intent, hurry } => batches.pending.push(Pending::new(intent, hurry)),
        WriterMessage::Hurry => {
            for pending in &mut batches.pending {
                (pending.hurry, pending.due) = (true, None);
            }
        }
        WriterMessage::Look => {}
    }
}

/// Writes everything that is due. After a failure it reads the clock again: the pause begins then.
fn write(batches: &mut Batches, now: Instant) {
    if let Some(pause) = batches.write(now) {
        batches.rests_until = time::now() + pause;
        batches.failing = true;
    }
}

#[cfg(test)]
mod tests;
