//! Reads the records beside jobs: notes, and those of periodic jobs.

use crate::embedded::codec::side_records::Last;
use crate::embedded::keys::{Mark, id_of_row, note_of};
use crate::embedded::reader::Reader;
use crate::engine::NoteRead;
use crate::rules::notes::Noted;
use crate::types::error::QueueError;
use crate::types::info::PeriodicInfo;
use crate::types::job::{JobId, time};
use crate::types::schedule::Schedule;
use waterline::Error;
use waterline::seam::{KeyRange, Order};

impl Reader<'_> {
    /// Returns a note, even if its time is over.
    pub(crate) fn noted(&self, of: &str) -> Result<Option<Noted>, QueueError> {
        let bytes = self.bytes(&self.queue.keys.mark(Mark::Note, of))?;
        Ok(bytes.map(|bytes| self.queue.decode_note(of, &bytes)).transpose()?)
    }

    /// Returns up to `most` notes with this prefix, behind `behind`, that are not over.
    pub(crate) fn notes(&self, prefix: &str, behind: Option<&str>, most: usize) -> Result<Vec<NoteRead>, QueueError> {
        let mut range = KeyRange::prefix(&self.queue.keys.mark(Mark::Note, prefix));
        if let Some(behind) = behind {
            range.from = self.queue.keys.mark(Mark::Note, behind);
            range.from.push(0);
        }
        let wall = self.queue.moment().wall;
        let mut notes = Vec::new();
        for pair in self.kv.rows(&self.queue.rows, range, Order::Ascending) {
            if notes.len() == most {
                break;
            }
            let (key, bytes) = pair.map_err(Error::from)?;
            let Some(of) = note_of(&key) else { continue };
            let noted = self.queue.decode_note(of, &bytes).map_err(|error| error.report());
            if !noted.as_ref().is_ok_and(|noted| noted.is_over(wall)) {
                notes.push((of.to_owned(), noted));
            }
        }
        Ok(notes)
    }

    /// Returns the periodic jobs that have a record.
    pub(crate) fn periodics(&self) -> Result<Vec<PeriodicInfo>, QueueError> {
        let registered = self.queue.periodics.all();
        let mut infos = Vec::new();
        for pair in self.kv.scan(&self.queue.rows, &self.queue.keys.periodic("")) {
            let (key, bytes) = pair.map_err(Error::from)?;
            let Some(name) = id_of_row(&key) else { continue };
            let (last, damaged) = match self.queue.decode_last(name, &bytes) {
                Ok(last) => (last, None),
                Err(error) => (Last { tick: 0, skipped: 0, run: JobId::new() }, Some(error.report())),
            };
            let Last { tick, skipped, run } = last;
            let schedule = registered.iter().find(|periodic| periodic.name == name).map(|periodic| &periodic.schedule);
            infos.push(PeriodicInfo {
                name: name.to_owned(),
                schedule: schedule.map(Schedule::to_string),
                last_tick: PeriodicInfo::ticked(tick, &run, skipped),
                next_tick: schedule.filter(|_| damaged.is_none()).and_then(|schedule| schedule.next(tick)).map(time),
                last_run: Some(run).filter(|run| !run.is_empty()),
                skipped,
                damaged,
            });
        }
        Ok(infos)
    }
}
