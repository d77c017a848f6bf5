//! The thread for chores: disk work that a write leaves behind, and that nobody waits for.

use crate::base::sync::{Arc, Mutex};
use crate::commit::batches::kept;
use crate::commit::participant::Chore;
use crate::kv::Kv;
use std::collections::VecDeque;
use std::thread::JoinHandle;

/// The chores that are owed. A thread is started for them, and ends when none is left: there are
/// few, and neither the writer's thread nor one of the user's may be kept from its work by a slow
/// disk.
pub(super) struct Chores {
    kv: Arc<dyn Kv>,
    owed: Mutex<Owed>,
}

#[derive(Default)]
struct Owed {
    chores: VecDeque<Chore>,
    /// True while a thread takes chores from here.
    running: bool,
    /// The thread that was started last.
    thread: Option<JoinHandle<()>>,
}

impl Chores {
    pub(super) fn new(kv: Arc<dyn Kv>) -> Arc<Self> {
        Arc::new(Self { kv, owed: Mutex::default() })
    }

    /// Takes chores over, to be run soon, one after the other. Called once everybody was told of
    /// the write, without a lock.
    pub(super) fn hand_over(self: &Arc<Self>, chores: Vec<Chore>) {
        if chores.is_empty() {
            return;
        }
        let mut owed = self.owed.lock();
        owed.chores.extend(chores);
        if owed.running {
            return;
        }
        let (this, before) = (self.clone(), owed.thread.take());
        let run = move || {
            // It has nothing left to do, but may not have let go of the database yet.
            before.map(JoinHandle::join);
            this.run();
        };
        match std::thread::Builder::new().name("wl-chores".to_owned()).spawn(run) {
            Ok(thread) => (owed.running, owed.thread) = (true, Some(thread)),
            Err(error) => {
                tracing::warn!(%error, "no thread could be started to give back disk space; the next trim tries it again");
            }
        }
    }

    fn run(&self) {
        while let Some(chore) = self.next() {
            kept(|| chore(&*self.kv));
        }
    }

    fn next(&self) -> Option<Chore> {
        let mut owed = self.owed.lock();
        let chore = owed.chores.pop_front();
        owed.running = chore.is_some();
        chore
    }

    /// Waits until the chores that were handed over have run. The calling thread may be the one
    /// that runs them; it ends by itself then.
    pub(super) fn finish(&self) {
        let thread = self.owed.lock().thread.take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the store's thread for chores panicked");
        }
    }
}
