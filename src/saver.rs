//! The thread around a progress of the user's own, which saves while jobs go on.

use crate::error::guarded;
use crate::progress::{Checkpoint, Progress, SaveDesk, Saves};
use crate::sync::{Arc, Mutex};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::time::Instant;

enum Message {
    Save(Checkpoint, Arc<dyn SaveDesk>),
    /// A back-off is cut short.
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
    fn save(&self, checkpoint: Checkpoint, desk: Arc<dyn SaveDesk>) {
        // The thread lives as long as this side does.
        let _ = self.0.send(Message::Save(checkpoint, desk));
    }

    fn hurry(&self) {
        let _ = self.0.send(Message::Hurry);
    }
}

impl<P: Progress> Saver<P> {
    pub(crate) fn run(self) {
        while let Ok(message) = self.inbox.recv() {
            if let Message::Save(checkpoint, desk) = message {
                self.save(&checkpoint, &*desk);
            }
        }
    }

    fn save(&self, checkpoint: &Checkpoint, desk: &dyn SaveDesk) {
        loop {
            let saved = guarded(|| self.progress.lock().save(checkpoint));
            let Err(error) = saved else { return desk.saved() };
            let Some(pause) = desk.save_failed(error) else { return };
            // Only a call to hurry can arrive while a save is under way, and it is meant to end the wait; so is the end.
            let _ = self.inbox.recv_deadline(Instant::now() + pause);
        }
    }
}
