//! The thread around a progress of the user's own, which saves while jobs go on.

use crate::base::guard::{drop_guarded, guarded};
use crate::base::sync::{Arc, Mutex};
use crate::commit::SAVE_PACE;
use crate::progress::{Progress, SaveDesk, SaveError, Saves};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::time::{Duration, Instant};

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
    /// True if it keeps what is done above the watermark.
    keeps_all: bool,
}

/// Both sides. The progress is shared with whoever keeps its name in use.
pub(crate) fn saver<P: Progress>(progress: Arc<Mutex<P>>, keeps_all: bool) -> (Seat, Saver<P>) {
    let (sender, inbox) = unbounded();
    (Seat(sender), Saver { inbox, progress, keeps_all })
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
        let mut paced = Some(Instant::now());
        while let Ok(message) = self.inbox.recv() {
            // A call to hurry may come late, after what it meant was saved.
            let Message::Save { desk, hurry } = message else { continue };
            if !hurry {
                self.wait(paced);
            }
            self.save(&*desk);
            paced = Instant::now().checked_add(self.pace());
        }
        drop_guarded(self.progress);
    }

    /// Waits until this time, and for ever if it is beyond the clock's end. Only a call to hurry
    /// can arrive meanwhile, and it is meant to end the wait; so is the end.
    fn wait(&self, until: Option<Instant>) {
        match until {
            Some(until) => _ = self.inbox.recv_deadline(until),
            None => _ = self.inbox.recv(),
        }
    }

    fn pace(&self) -> Duration {
        // One that panics has none of its own.
        guarded(|| Ok(self.progress.lock().pace())).unwrap_or(SAVE_PACE)
    }

    fn save(&self, desk: &dyn SaveDesk) {
        while let Some(outcome) = self.try_save(desk) {
            let error = match outcome {
                Ok(()) => return desk.saved(),
                Err(SaveError::Lost(error)) => return desk.save_lost(error),
                Err(SaveError::Retry(error)) => error,
            };
            let Some(pause) = desk.save_failed(error) else { return };
            self.wait(Instant::now().checked_add(pause));
        }
    }

    /// Saves what is true now; `None`: nothing any more. All that is done is listed only for a
    /// progress that keeps it.
    fn try_save(&self, desk: &dyn SaveDesk) -> Option<Result<(), SaveError>> {
        if self.keeps_all {
            let saved = desk.snapshot(true, &mut Vec::new())?.into_saved();
            let saved = saved.expect("all of it was asked for");
            let outcome = guarded(|| Ok(self.progress.lock().save_all(&saved)));
            return Some(outcome.unwrap_or_else(|panic| Err(SaveError::Retry(panic))));
        }
        let checkpoint = desk.checkpoint()?;
        Some(guarded(|| self.progress.lock().save(&checkpoint)).map_err(SaveError::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::Error;
    use crate::base::index::BoxError;
    use crate::commit::changes::{Changes, Refused};
    use crate::progress::{Checkpoint, DoneAhead, Saved, Snapshot};

    /// Counts how often it lists the watermark, and how often all that is done.
    #[derive(Default)]
    struct Counting(Mutex<(u32, u32)>);

    impl SaveDesk for Counting {
        fn checkpoint(&self) -> Option<Checkpoint> {
            self.0.lock().0 += 1;
            Some(Checkpoint::new(4))
        }
        fn snapshot(&self, all: bool, _: &mut Vec<Changes>) -> Option<Snapshot> {
            assert!(all);
            self.0.lock().1 += 1;
            let ahead = DoneAhead::All { first: 0, words: vec![0b1100_0000] };
            Some(Snapshot { last_processed: Some(4), next: 5, ahead })
        }
        fn refused(&self, _: Refused, _: bool, _: &mut Vec<Changes>) -> Option<Snapshot> {
            panic!("there are no effects");
        }
        fn saved(&self) {}
        fn save_failed(&self, error: BoxError) -> Option<Duration> {
            panic!("{error}");
        }
        fn save_lost(&self, error: BoxError) {
            panic!("{error}");
        }
    }

    #[derive(Default)]
    struct Takes(Vec<Option<Saved>>);

    impl Progress for Takes {
        fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
            Ok(None)
        }
        fn save(&mut self, _: &Checkpoint) -> Result<(), BoxError> {
            self.0.push(None);
            Ok(())
        }
        fn save_all(&mut self, saved: &Saved) -> Result<(), SaveError> {
            self.0.push(Some(saved.clone()));
            Ok(())
        }
    }

    #[test]
    fn all_that_is_done_is_listed_only_for_a_progress_that_keeps_it() {
        let all = Saved::new(Some(4), 5, vec![6..=7]);
        for (keeps_all, counted, saved) in [(false, (2, 0), None), (true, (0, 2), Some(all))] {
            let (progress, desk) = (Arc::new(Mutex::new(Takes::default())), Arc::new(Counting::default()));
            let (seat, saver) = saver(progress.clone(), keeps_all);
            (0..2).for_each(|_| seat.save(desk.clone(), true));
            drop(seat);
            saver.run();
            assert_eq!((*desk.0.lock(), &progress.lock().0), (counted, &vec![saved; 2]));
        }
    }
}
