//! The record of the consumer's life: open from its start, closed with its last save. A halt is in
//! it at once.

use crate::base::index::Index;
use crate::driver::outbox::{Ctx, Ending};
use crate::progress::{Halt, Life};
use crate::window::{Limits, Window};

/// The record of the life, if the progress keeps one.
#[derive(Default)]
pub(crate) struct KeptLife {
    /// The record, if there is one. A life that counts no crashes has one only once it has halted.
    record: Option<Box<Life>>,
    /// True if the progress keeps the record.
    keeps: bool,
    /// True if the record is to be written before the end.
    owed: bool,
    /// True once the record has the halt of this life.
    has_halt: bool,
    writing: Writing,
    /// The width that the record on the disk has, or a smaller one.
    width: u64,
    /// The width that the window gets once the record has it.
    wider: Option<u64>,
}

/// The way of the record to the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Writing {
    #[default]
    No,
    /// The next save has it.
    Due,
    /// The save under way has it.
    Taken,
}

impl KeptLife {
    /// Goes on with this record. If crashes count, the record is open, and is closed at the end.
    pub(super) fn keep(&mut self, record: Option<Box<Life>>, counts_crashes: bool) {
        let width = record.as_ref().map_or(0, |record| record.width);
        *self = Self { record, width, keeps: true, owed: counts_crashes, ..Self::default() };
    }

    /// True if the progress keeps the record.
    pub(in crate::driver) fn is_kept(&self) -> bool {
        self.keeps
    }

    /// Returns the record for the save that begins.
    pub(in crate::driver) fn take(&mut self) -> Option<Box<Life>> {
        if self.writing == Writing::No {
            return None;
        }
        self.writing = Writing::Taken;
        self.record.clone()
    }

    /// Writes why the consumer halts while other jobs still run. They may run for ever, and then
    /// somebody kills the process.
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

    /// True if the record is still to be closed, and says so once. A halt is always in it.
    pub(super) fn is_owed(&mut self, ending: &mut Ending) -> bool {
        if std::mem::take(&mut ending.unrecorded) {
            self.owed = self.keeps;
        }
        std::mem::take(&mut self.owed)
    }

    /// Closes the record with the next save. `careful`: the last job that is still to be recorded
    /// before it starts, if crashes count.
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
        self.writing = Writing::Due;
        window.handle_changed();
    }

    /// A save is on the disk, maybe with the record. Returns the limits that hold from now on, if
    /// they have waited for that.
    pub(in crate::driver) fn saved(&mut self, limits: Limits) -> Option<Limits> {
        if self.writing != Writing::Taken {
            return None;
        }
        self.writing = Writing::No;
        self.width = self.record.as_ref().map_or(0, |record| record.width);
        self.wider.take().map(|max_search_ahead| Limits { max_search_ahead, ..limits })
    }

    /// Takes new limits, and returns those that hold now. If the next life has to know how far this
    /// one has started jobs, a wider window is recorded before it holds.
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
