//! The record of the consumer's life: open from its start, closed with its last save. A halt is in
//! it at once.

use super::core::Core;
use crate::base::time::Now;
use crate::progress::{Halt, Life};
use crate::window::Limits;

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

    /// The consumer halts, and the record is to say so.
    pub(super) fn halts(&mut self) {
        self.owed = self.keeps;
    }

    /// Returns the record for the save that begins.
    pub(super) fn take(&mut self) -> Option<Box<Life>> {
        if self.writing == Writing::No {
            return None;
        }
        self.writing = Writing::Taken;
        self.record.clone()
    }
}

impl Core {
    /// Closes the record with the last save, once nothing is in flight and nothing starts any more.
    #[inline]
    pub(super) fn close_life(&mut self, now: &Now) {
        // The window is asked first, since each job has brought it into the cache.
        if self.window.is_ending() && self.life.keeps && !self.has_to_write() {
            // Until its effects are written, a job may be refused them, and has to run again.
            if self.window.is_stopping() || self.saving.effects.is_empty() {
                self.write_end(now);
            }
        } else if self.window.is_stopping() {
            self.write_halt();
        }
    }

    /// Writes why the consumer halts while other jobs still run. They may run for ever, and then
    /// somebody kills the process.
    #[cold]
    pub(super) fn write_halt(&mut self) {
        if !self.life.keeps || self.ending.halted.is_none() || self.life.has_halt {
            return;
        }
        if self.window.in_flight() > 0 && !self.tenancy.is_lost() {
            self.note_halt();
            self.write_life();
        }
    }

    fn note_halt(&mut self) {
        let Some((index, text)) = self.ending.halted.as_deref() else { return };
        if !std::mem::replace(&mut self.life.has_halt, true) {
            let halt = Halt { index: *index, at: self.clock.wall(), text: text.clone() };
            self.life.record.get_or_insert_default().halted = Some(halt);
        }
    }

    #[cold]
    fn write_end(&mut self, now: &Now) {
        if let Some(error) = self.gates.reach.error(&self.window).filter(|_| self.ending.error.is_none()) {
            self.halt_for(self.window.lowest_undone(), error.to_string(), error, "", now);
        }
        if !std::mem::take(&mut self.life.owed) {
            return;
        }
        // A parked job that is to run once more from now on would run in a life that is closed.
        self.window.handle_stop();
        self.release_alone();
        self.note_halt();
        let (counts, careful, wall) = (self.counts_crashes(), self.careful_until(), self.clock.wall());
        let record = self.life.record.get_or_insert_default();
        if counts {
            (record.open, record.careful) = (false, careful);
        }
        record.ended = wall;
        self.write_life();
    }

    fn write_life(&mut self) {
        self.life.writing = Writing::Due;
        self.window.handle_changed();
    }

    /// A save is on the disk, maybe with the record.
    pub(super) fn life_saved(&mut self) {
        if self.life.writing != Writing::Taken {
            return;
        }
        self.life.writing = Writing::No;
        self.life.width = self.life.record.as_ref().map_or(0, |record| record.width);
        if let Some(max_search_ahead) = self.life.wider.take() {
            self.set_limits(Limits { max_search_ahead, ..self.window.limits() });
        }
    }

    /// Sets new limits. If the next life has to know how far this one has started jobs, a wider
    /// window is recorded before it holds.
    pub(super) fn change_limits(&mut self, limits: Limits) {
        let limits = self.narrow_for_writing(limits);
        let now = self.window.limits().max_search_ahead;
        let recorded = self.life.record.as_ref().filter(|record| record.open && self.counts_crashes());
        let Some(width) = recorded.map(|_| self.life.width).filter(|width| limits.max_search_ahead > *width) else {
            self.life.wider = None;
            return self.set_limits(limits);
        };
        self.set_limits(Limits { max_search_ahead: now.max(width.min(limits.max_search_ahead)), ..limits });
        self.life.wider = Some(limits.max_search_ahead);
        if let Some(record) = &mut self.life.record {
            record.width = limits.max_search_ahead;
        }
        self.write_life();
    }

    fn set_limits(&mut self, limits: Limits) {
        self.window.set_limits(limits);
        self.put_off_turn();
        self.fit_prefetch();
    }
}
