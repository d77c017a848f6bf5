//! The lines of kinds: ready jobs that claims of other kinds have passed.

use crate::embedded::codec::entry;
use crate::embedded::keys::split_held;
use crate::embedded::txn::{LOOKS, Txn};
use crate::rules::lanes;
use crate::types::events::Damaged;
use crate::types::job::{JobId, JobState};
use crate::types::row::Row;
use crate::types::wanted::Wanted;
use waterline::seam::KeyRange;
use waterline::{BoxError, StoreError};

pub(crate) struct InLine {
    pub(crate) lane: usize,
    pub(crate) index: u64,
    pub(crate) id: JobId,
    pub(crate) row: Row,
}

impl Txn<'_, '_> {
    /// Puts a log's first job into the line of its kind. The caller moves the front past it.
    pub(crate) fn put_in_line(&mut self, lane: usize, index: u64, id: &str, kind: &str) -> Result<(), StoreError> {
        self.put_place(self.entries(), &self.queue.keys.line(kind, lane, index), id)?;
        self.staged.note_in_line(kind, lane, index);
        Ok(())
    }

    /// Takes a ready job out of the line of its kind, if it is there. All ready jobs before the
    /// front of their log are in lines.
    pub(crate) fn leave_kind(&mut self, row: &Row) -> Result<(), StoreError> {
        let lane = row.priority as usize;
        if row.place >= self.staged.head.lanes[lane].next {
            return Ok(());
        }
        self.delete(self.entries(), &self.queue.keys.line(&row.kind, lane, row.place))
    }

    /// Returns the first wanted job in a line.
    pub(crate) fn first_in_lines(&mut self, wanted: &Wanted) -> Result<Option<InLine>, BoxError> {
        if self.staged.kinds.is_empty() {
            return Ok(None);
        }
        for lane in lanes::lanes(self.staged.head.claims) {
            if let Some(first) = self.first_in_lane(lane, wanted)? {
                return Ok(Some(first));
            }
        }
        Ok(None)
    }

    /// Returns the first wanted job in a line of one lane.
    pub(crate) fn first_in_lane(&mut self, lane: usize, wanted: &Wanted) -> Result<Option<InLine>, BoxError> {
        let mut first: Option<InLine> = None;
        let mut own = wanted.kinds.as_deref().map(|kinds| self.staged.kinds.of_kinds(lane, kinds).into_iter());
        let mut place = None;
        loop {
            let next = match &mut own {
                Some(own) => own.next(),
                // A line that was just passed may come again, behind the first job found.
                None => self.staged.kinds.behind(lane, place.as_ref()),
            };
            let Some((from, kind)) = next else { break };
            if first.as_ref().is_some_and(|first| from >= first.index) {
                break;
            }
            if let Some(found) = self.first_in_line(&kind, (lane, from), wanted)?
                && first.as_ref().is_none_or(|first| found.index < first.index)
            {
                first = Some(found);
            }
            place = Some((from, kind));
        }
        Ok(first)
    }

    /// Looks for a wanted job among the first ones of a line. Stale entries are deleted.
    fn first_in_line(
        &mut self,
        kind: &str,
        (lane, mut from): (usize, u64),
        wanted: &Wanted,
    ) -> Result<Option<InLine>, BoxError> {
        let (queue, mut is_front, mut looks, mut page) = (self.queue, true, LOOKS, 1);
        while looks > 0 {
            let range =
                KeyRange { from: queue.keys.line(kind, lane, from), to: Some(queue.keys.line(kind, lane, u64::MAX)) };
            let entries = self.batch.rows(&queue.entries, range).take(page.min(looks));
            let entries = entries.collect::<Result<Vec<_>, _>>()?;
            (looks, page) = (looks.saturating_sub(entries.len()), page * 4);
            if entries.is_empty() {
                if is_front {
                    self.staged.kinds.pass(kind, lane, u64::MAX);
                }
                return Ok(None);
            }
            for (key, entry) in entries {
                let index = split_held(&key).unwrap_or_default();
                from = index + 1;
                let row = match entry::id_in(&queue.name, &key, &entry) {
                    Ok(id) => self.row_in(JobState::Ready, &id)?.map(|row| (id, row)),
                    Err(error) => {
                        // The job of this entry is found when all are counted again.
                        self.has_lost = true;
                        let place = format!("{index} of the line of the kind {kind:?}");
                        self.log_damage(Damaged::Entry { place, error });
                        None
                    }
                };
                let Some((id, row)) = row.filter(|(_, row)| row.is_at(lane, index) && row.kind == kind) else {
                    self.delete(self.entries(), &key)?;
                    continue;
                };
                if std::mem::take(&mut is_front) {
                    self.staged.kinds.pass(kind, lane, index);
                }
                if wanted.takes(&row, self.at.wall) {
                    return Ok(Some(InLine { lane, index, id, row }));
                }
            }
        }
        Ok(None)
    }
}
