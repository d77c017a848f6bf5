//! What is remembered about jobs: unique ones, runs that have succeeded, and roots.

use crate::rules::pushing::Push;
use crate::testing::model::job::ModelMark;
use crate::testing::model::jobs::Jobs;
use crate::types::job::JobId;
use crate::types::related::Skipped;
use crate::types::row::Row;
use crate::types::unique::{Until, refuses_twins};
use waterline::seam::Moment;

pub(super) const DAY: u64 = 24 * 60 * 60 * 1000;

impl ModelMark {
    /// Makes a mark that names no job, and is kept for this many milliseconds.
    pub(super) fn kept_for(time: u64, number: u64, at: &Moment) -> Self {
        Self { number, until: at.wall.saturating_add(time), since: at.wall, id: JobId::new() }
    }
}

impl Jobs {
    pub(super) fn mark(&self, kind: char, of: &str, at: &Moment) -> Option<&ModelMark> {
        let mark = self.marks.get(&(kind, of.to_owned()));
        mark.filter(|mark| mark.until == 0 || mark.until > at.wall)
    }

    pub(super) fn twin_of(&self, push: &Push, at: &Moment) -> Option<JobId> {
        let extras = push.row.extras();
        let (_, fingerprint) = extras.unique.zip(extras.fingerprint)?;
        let mark = self.mark('u', &fingerprint.text(), at)?;
        let is_twin = |row: &Row| {
            let refuses = row.extras().unique.is_some_and(|until| refuses_twins(until, row.state));
            refuses && row.extras().fingerprint == Some(fingerprint)
        };
        let refuses = mark.until > 0 || self.all.get(&mark.id).is_some_and(|job| is_twin(&job.row));
        refuses.then(|| mark.id.clone())
    }

    pub(super) fn register(&mut self, id: &str, window: u64, at: &Moment) {
        let extras = self.all[id].row.extras().clone();
        if let Some((until, fingerprint)) = extras.unique.zip(extras.fingerprint) {
            let until = if until == Until::Time { at.wall.saturating_add(window) } else { 0 };
            let mark = ModelMark { number: 0, until, since: at.wall, id: id.to_owned() };
            self.marks.insert(('u', fingerprint.text()), mark);
        }
        if let Some(root) = extras.root.filter(|_| extras.is_root) {
            let number = root.millis();
            if self.mark('r', &root.signature, at).is_none_or(|old| old.number <= number) {
                let mark = ModelMark::kept_for(28 * DAY, number, at);
                self.marks.insert(('r', root.signature), mark);
            }
        }
    }

    pub(super) fn release_unique(&mut self, id: &str, row: &Row) {
        if let Some(fingerprint) = row.extras().fingerprint {
            let key = ('u', fingerprint.text());
            if self.marks.get(&key).is_some_and(|mark| mark.id == id) {
                self.marks.remove(&key);
            }
        }
    }

    pub(super) fn release_ended(&mut self, id: &str, row: &Row, is_removed: bool) {
        match row.extras().unique {
            Some(Until::Time) if !is_removed => {}
            Some(_) => self.release_unique(id, row),
            None => {}
        }
    }

    pub(super) fn begin_anew(&self, row: &mut Row) {
        if row.extras().skips_from.is_some() {
            row.extras_mut().skips_from = Some(self.next);
        }
    }

    pub(super) fn skips(&self, row: &Row, at: &Moment) -> Option<Skipped> {
        let extras = row.extras();
        if let Some(root) = &extras.root
            && self.mark('r', &root.signature, at).is_some_and(|newest| newest.number > root.millis())
        {
            return Some(Skipped::Superseded);
        }
        let (from, fingerprint) = extras.skips_from.zip(extras.fingerprint)?;
        let last = self.mark('e', &fingerprint.text(), at).filter(|_| row.failures == 0 && row.crashes == 0);
        last.filter(|last| last.number >= from).map(|_| Skipped::Executed)
    }
}
