//! Changes of notes.

use crate::embedded::keys::{List, Mark};
use crate::embedded::txn::Txn;
use crate::embedded::txn::dedup::entry_of;
use crate::rules::notes::{Change, Noted, changed, counted_in};
use crate::types::events::Damaged;
use waterline::seam::describe;
use waterline::{BoxError, Error};

impl Txn<'_, '_> {
    fn note(&mut self, of: &str) -> Result<Option<Noted>, BoxError> {
        let queue = self.queue;
        let bytes = self.batch.get(&queue.rows, &queue.keys.mark(Mark::Note, of))?;
        Ok(bytes.map(|bytes| queue.decode_note(of, &bytes)).transpose()?)
    }

    /// Changes a note. Returns it as it was and as it is now.
    pub(crate) fn change_note(
        &mut self,
        of: &str,
        change: &Change,
    ) -> Result<(Option<Noted>, Option<Noted>), BoxError> {
        let old = match self.note(of) {
            // A new value mends a note that cannot be read.
            Err(error) if matches!(change, Change::Set(..) | Change::Remove) => {
                self.log_damage(Damaged::Note { error: describe(&*error) });
                self.delete(self.rows(), &self.queue.keys.mark(Mark::Note, of))?;
                None
            }
            old => old?,
        };
        let seen = old.clone().filter(|old| !old.is_over(self.at.wall));
        let new = changed(seen.as_ref(), change, self.at.wall).map_err(|reason| {
            let (table, key) = counted_in(&self.queue.name, of);
            Error::Counter { table, key, reason }
        })?;
        if new == old {
            return Ok((seen, new));
        }
        let key = self.queue.keys.mark(Mark::Note, of);
        let time_of = |noted: &Option<Noted>| noted.as_ref().map(|noted| noted.until).filter(|until| *until > 0);
        let (until, new_until) = (time_of(&old), time_of(&new));
        if let Some(until) = until.filter(|_| until != new_until) {
            self.remove_entry(List::Marks, until, &entry_of(Mark::Note, of))?;
        }
        if let Some(until) = new_until.filter(|_| until != new_until) {
            self.put_entry(List::Marks, until, &entry_of(Mark::Note, of))?;
        }
        match &new {
            Some(new) => self.put(self.rows(), &key, &new.encode(&self.queue.name, of))?,
            None => self.delete(self.rows(), &key)?,
        }
        Ok((seen, new))
    }

    /// Deletes a note whose time is over, by its entry.
    pub(crate) fn forget_note(&mut self, at: u64, entry: &str, of: &str) -> Result<(), BoxError> {
        // A note that cannot be read stays, to be seen and mended.
        if self.note(of).is_ok_and(|noted| noted.is_some_and(|noted| noted.until == at)) {
            self.delete(self.rows(), &self.queue.keys.mark(Mark::Note, of))?;
        }
        Ok(self.remove_entry(List::Marks, at, entry)?)
    }
}
