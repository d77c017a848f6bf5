//! The thread around a progress of the user's own, which saves while jobs go on.

use crate::base::guard::{drop_guarded, guarded};
use crate::base::sync::{Arc, Mutex};
use crate::commit::SAVE_PACE;
use crate::progress::{Progress, SaveDesk, Saves};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::time::Instant;

enum Message {
    Save {
        desk: Arc<dyn SaveDesk>,
        hurry: bool,
    },
    /// The wait is cut short.
    Hurry,
}

/// The driver's side: the thread ends when this is dropped.
pub(crate) struct Seat(Sender<Message>);

/// The thread's side.
pub(crate) struct Saver<P> {
    inbox: Receiver<Message>,
    progress: Arc<Mutex<P>>,
}

/// Both sides. The progress is shared with whoever keeps its name in use.
pub(crate) fn saver<P: Progress>(progress: Arc<Mutex<P>>) -> (Seat, Saver<P>) {
    let (sender, inbox) = unbounded();
    (Seat(sender), Saver { inbox, progress })
}

impl Saves for Seat {
    fn save(&self, desk: Arc<dyn SaveDesk>, hurry: bool) {
        // The thread lives as long as this side does.
        let _ = self.0.send(Message::Save { desk, hurry });
    }

    fn hurry(&self) {
        let _ = self.0.send(Message::Hurry);
    }
}

impl<P: Progress> Saver<P> {
    pub(crate) fn run(self) {
        let mut paced = Instant::now();
        while let Ok(message) = self.inbox.recv() {
            // A call to hurry may come late, after what it meant was saved.
            let Message::Save { desk, hurry } = message else { continue };
            if !hurry {
                // Only a call to hurry can arrive now, and it is meant to end the wait; so is the end.
                let _ = self.inbox.recv_deadline(paced);
            }
            self.save(&*desk);
            paced = Instant::now() + SAVE_PACE;
        }
        drop_guarded(self.progress);
    }

    fn save(&self, desk: &dyn SaveDesk) {
        while let Some(checkpoint) = desk.checkpoint() {
            let Err(error) = guarded(|| self.progress.lock().save(&checkpoint)) else { return desk.saved() };
            let Some(pause) = desk.save_failed(error) else { return };
            let _ = self.inbox.recv_deadline(Instant::now() + pause);
        }
    }
}
