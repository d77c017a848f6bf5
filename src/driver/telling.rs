//! The lines that a critical section leaves. They are written outside of the lock, by one thread at
//! a time.

use super::Driver;
use super::core::Core;
use crate::base::error::Error;
use crate::base::guard::guarded;
use crate::base::time::Now;
use crate::observe::{Event, Kind};
use crate::reader::Then;

impl<T: Send + 'static> Core<T> {
    /// Tells of something that is not the success of a job. The clock is read only if anybody
    /// listens.
    #[cold]
    pub(super) fn tell(&mut self, event: &Event<'_>, now: &Now) {
        if event.kind.is_heard() {
            self.watching.telling.push(now.get(), event);
        }
    }

    /// Tells of the job after those that were read, if something became of it.
    pub(super) fn tell_unread(&mut self, read: usize, then: &Then, now: &Now) {
        let kind = match then {
            Then::Unasked | Then::Truncated { .. } => return,
            Then::Missing => Kind::Missing,
            Then::Failed(_) => Kind::SourceFailed,
        };
        let start = self.reading.fetch.as_ref().map_or(self.window.lowest_undone(), |run| *run.start());
        let event = Event::new(kind, start.saturating_add(read as u64));
        self.tell(&if let Then::Failed(failure) = then { event.error(&failure.text) } else { event }, now);
    }

    /// The operating system gave no thread. Its error is no code of the user's, so its text may be
    /// made here.
    pub(super) fn tell_of_refusal(&mut self, error: &Error, now: &Now) {
        let (index, text) = (self.window.lowest_undone(), error.report());
        self.tell(&Event::new(Kind::ThreadRefused, index).error(&text), now);
    }

    /// The last line, behind all that is not said yet.
    pub(super) fn tell_end(&mut self, now: &Now) {
        self.watching.telling.end();
        let error = self.ending.halted.as_ref().map(|(_, text)| text.clone());
        let index = self.window.last_processed();
        self.tell(&Event { kind: Kind::Ended, index, attempt: None, error: error.as_deref(), elapsed: None }, now);
    }

    /// True if the caller is to [write lines](Driver::tell). It is counted as present meanwhile, so
    /// that `stop` awaits it.
    #[inline]
    pub(super) fn begin_telling(&mut self) -> bool {
        let begins = self.watching.telling.begin();
        if begins {
            self.roster.count_in();
        }
        begins
    }
}

impl<T: Send + 'static> Driver<T> {
    /// Writes lines until there are none, after [`Core::begin_telling`] said so.
    pub(super) fn tell(&self) {
        // Whoever listens may be anything: a stop in there would wait for this very line.
        let own = self.crew.enter();
        let name = self.watermark.name();
        loop {
            let Some(lines) = self.core.lock().watching.telling.take() else { break };
            for line in lines {
                // A subscriber that panics: of that nobody can be told.
                let _ = guarded(|| {
                    line.write(&name);
                    Ok(())
                });
            }
        }
        self.crew.leave();
        drop(own);
    }
}
