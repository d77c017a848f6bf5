//! The life record: opened at the start of the consumer, closed by its last save, with any halt.

use crate::base::Index;
use crate::driver::outbox::{Ctx, Ending};
use crate::progress::{Halt, Life};
use crate::window::{Limits, Window};

#[derive(Default)]
pub(crate) struct KeptLife {
    /// The record, if there is one. Without counted crashes, only a halt makes one.
    record: Option<Box<Life>>,
    /// True if the progress keeps the record.
    pub(in crate::driver) keeps: bool,
    /// True if the record has to be written before the end.
    owed: bool,
    /// True once the record includes this life's halt.
    has_halt: bool,
    writing: RecordWrite,
    /// At most the width that the record on disk has.
    width: u64,
    /// The width of the window once the record has it.
    wider: Option<u64>,
}

/// How far the record is on its way to the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RecordWrite {
    #[default]
    No,
    /// The next save includes it.
    Due,
    /// The save under way includes it.
    Taken,
}

impl KeptLife {
    /// Continues with this record. If crashes count, it is open now and will be closed at the end.
    pub(super) fn keep(&mut self, record: Option<Box<Life>>, counts_crashes: bool) {
        let width = record.as_ref().map_or(0, |record| record.width);
        *self = Self { record, width, keeps: true, owed: counts_crashes, ..Self::default() };
    }

    /// Returns the record for the save that begins, if it has changed.
    pub(in crate::driver) fn take(&mut self) -> Option<Box<Life>> {
        if self.writing == RecordWrite::No {
            return None;
        }
        self.writing = RecordWrite::Taken;
        self.record.clone()
    }

    /// Writes the reason of a halt while jobs still run: they may run until the process is killed.
    #[cold]
    pub(in crate::driver) fn write_halt(&mut self, is_lost: bool, at: &mut Ctx<'_>) {
        if !self.keeps || at.ending.halted.is_none() || self.has_halt {
            return;
        }
        if at.window.in_flight() > 0 && !is_lost {
            self.note_halt(at.ending, at.now.wall());
            self.write(at.window);
        }
    }

    fn note_halt(&mut self, ending: &Ending, wall: u64) {
        let Some((index, text)) = ending.halted.as_deref() else { return };
        if !std::mem::replace(&mut self.has_halt, true) {
            let halt = Halt { index: *index, at: wall, text: text.clone() };
            self.record.get_or_insert_default().halted = Some(halt);
        }
    }

    /// Returns true, once, if the record is still to be closed. A halt always makes it so.
    pub(super) fn is_owed(&mut self, ending: &mut Ending) -> bool {
        if std::mem::take(&mut ending.unrecorded) {
            self.owed = self.keeps;
        }
        std::mem::take(&mut self.owed)
    }

    /// Closes the record with the next save. `careful`: the last job that is still recorded before
    /// it starts, if crashes count.
    pub(super) fn close(&mut self, careful: Option<Option<Index>>, at: &mut Ctx<'_>) {
        let wall = at.now.wall();
        self.note_halt(at.ending, wall);
        let record = self.record.get_or_insert_default();
        if let Some(careful) = careful {
            (record.open, record.careful) = (false, careful);
        }
        record.ended = wall;
        self.write(at.window);
    }

    fn write(&mut self, window: &mut Window) {
        self.writing = RecordWrite::Due;
        window.handle_changed();
    }

    /// Notes that a save is on disk. Returns the limits that have waited for it and now hold.
    pub(in crate::driver) fn saved(&mut self, limits: Limits) -> Option<Limits> {
        if self.writing != RecordWrite::Taken {
            return None;
        }
        self.writing = RecordWrite::No;
        self.width = self.record.as_ref().map_or(0, |record| record.width);
        self.wider.take().map(|max_search_ahead| Limits { max_search_ahead, ..limits })
    }

    /// Takes new limits, and returns those that hold now. If crashes count, a wider window holds
    /// only once it is recorded, since the next life has to know how far this one may have started
    /// jobs.
    pub(super) fn change_limits(&mut self, limits: Limits, counts_crashes: bool, window: &mut Window) -> Limits {
        self.wider = None;
        let Some(record) = self.record.as_mut().filter(|record| record.open && counts_crashes) else { return limits };
        let wider = limits.max_search_ahead;
        if wider <= self.width {
            return limits;
        }
        record.width = wider;
        self.wider = Some(wider);
        self.write(window);
        let now = window.limits().max_search_ahead;
        Limits { max_search_ahead: now.max(self.width.min(wider)), ..limits }
    }
}
