//! Polls the jobs that are waited for in this process, and the queues that are watched. Workers in
//! other processes change them, and a notification of each change would make all commits of some
//! servers take turns.

use super::opened::Opened;
use super::queues::Remote;
use super::rows::Shown;
use super::server::Server;
use super::watch::Watching;
use crate::notify::shared::Wake;
use crate::notify::subscribers::{Read, Watched};
use crate::types::error::QueueError;
use crate::types::job::{JobId, JobState};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The pause between two looks: at first, and after a long wait.
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(1);
/// The most jobs of one look.
const MOST: usize = 1_000;

impl<S: Server> Remote<S> {
    /// Wakes waiters when another process pushes.
    pub(super) fn listen(&self, queue: &Arc<Opened>) -> Result<(), QueueError> {
        let weak: Weak<Opened> = Arc::downgrade(queue);
        let ring = move || {
            if let Some(queue) = weak.upgrade() {
                queue.forget_peek();
                queue.shared.wake(Wake { jobs: 1, sooner: true, ..Wake::default() });
                queue.shared.settle();
            }
        };
        let listens = self.server.listen(queue.at(), Arc::new(ring));
        *queue.listens.lock() = queue.explained("listen to a queue", listens)?;
        Ok(())
    }

    /// Makes sure that the thread runs if a job of this queue is waited for. `is_new`: the caller
    /// may just have begun to wait.
    pub(super) fn watch(&self, queue: &Opened, is_new: bool) {
        if !self.is_waited_for(queue) {
            return;
        }
        let mut state = self.watching.state.lock();
        if is_new {
            state.is_new = true;
            self.watching.changed.notify_all();
        }
        if state.runs {
            return;
        }
        let (me, watching) = (self.me.clone(), Arc::clone(&self.watching));
        match std::thread::Builder::new().name(format!("{}-watch", S::THREADS)).spawn(move || look(&me, &watching)) {
            Ok(_) => state.runs = true,
            Err(error) => {
                tracing::error!(target: "waterline", queue = queue.name(), %error, "changes that other processes make are not told, since a thread cannot be started; whoever waits tries it again");
            }
        }
    }

    /// Whether the thread looks at this queue.
    fn is_waited_for(&self, queue: &Opened) -> bool {
        queue.shared.has_subscribers() || S::TELLS && queue.shared.has_watchers()
    }

    /// Looks at the watched jobs and queues. `None`: there are none.
    fn look_at_watched(&self) -> Option<bool> {
        let open: Vec<Arc<Opened>> = self.queues.read().values().cloned().collect();
        let (mut is_any, mut is_new) = (false, false);
        for queue in &open {
            // Before it hears, so that another look ends the listening behind the last watch.
            is_any |= self.is_waited_for(queue);
            self.hear_of(queue);
            let mut watched = queue.shared.watched();
            while !watched.is_empty() {
                let piece = watched.split_off(watched.len().saturating_sub(MOST));
                match self.look_at(queue, piece) {
                    Ok(news) => is_new |= news,
                    Err(error) => {
                        // It is retried, and all other calls report the same error.
                        tracing::debug!(target: "waterline", queue = queue.name(), %error, "the jobs that somebody waits for cannot be looked at");
                        break;
                    }
                }
            }
        }
        is_any.then_some(is_new)
    }

    fn look_at(&self, queue: &Opened, watched: Vec<Watched>) -> Result<bool, QueueError> {
        let mut ids: Vec<_> = watched.iter().map(Watched::id).collect();
        ids.sort_unstable();
        ids.dedup();
        let found = queue.explained("look at jobs", self.server.states_of(queue.at(), &ids))?;
        let reads: HashMap<_, _> = found.into_iter().map(read).collect();
        let seen = watched.into_iter().map(|one| {
            let read = reads.get(one.id()).cloned();
            (one, read)
        });
        let is_new = queue.shared.told_by_look(seen.collect());
        queue.shared.settle();
        Ok(is_new)
    }
}

fn read(shown: Shown) -> (JobId, Read) {
    let (state, progress) = (shown.state(), shown.progress());
    let error = shown.error.filter(|_| state == JobState::Dead);
    (shown.id, (state, shown.data.map(String::into_bytes), error, progress))
}

/// The loop of the thread. It keeps no store open while it sleeps.
fn look<S: Server>(queues: &Weak<Remote<S>>, watching: &Watching) {
    let mut pause = SHORTEST;
    loop {
        let Some(queues) = queues.upgrade() else { return };
        let seen = queues.look_at_watched();
        drop(queues);
        let mut state = watching.state.lock();
        let Some(is_new) = seen else {
            if std::mem::take(&mut state.is_new) {
                continue;
            }
            // The next waiter starts another thread.
            state.runs = false;
            return;
        };
        pause = if is_new || std::mem::take(&mut state.is_new) { SHORTEST } else { (pause * 5 / 4).min(LONGEST) };
        if !state.is_rung {
            watching.changed.wait_for(&mut state, pause);
        }
        state.is_rung = false;
    }
}
