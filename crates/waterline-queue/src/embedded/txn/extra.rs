//! The records that few jobs have beside their rows: metadata, progress and data.

use crate::embedded::codec::side_records::encode_meta;
use crate::embedded::txn::Txn;
use crate::engine::Edit;
use crate::rules::ends::Run;
use crate::rules::pushing::Push;
use crate::types::error::QueueError;
use crate::types::events::Event;
use crate::types::job::JobState;
use crate::types::meta;
use crate::types::meta::Meta;
use crate::types::progress::JobProgress;
use crate::types::row::Row;
use serde_json::Value;
use waterline::{BoxError, StoreError};

impl Txn<'_, '_> {
    /// Returns the row of a job; with a token, only if that lease holds.
    fn row_of(&mut self, id: &str, token: Option<u64>) -> Result<Row, BoxError> {
        match token {
            Some(token) => self.leased(id, token),
            None => Ok(self.row(id)?.ok_or_else(|| self.queue.not_found(id))?),
        }
    }

    /// Sets or removes a value of a job's metadata. Returns its row.
    pub(crate) fn set_meta(
        &mut self,
        id: &str,
        token: Option<u64>,
        key: &str,
        value: Option<&Value>,
    ) -> Result<Row, BoxError> {
        let (queue, mut row) = (self.queue, self.row_of(id, token)?);
        let had_meta = row.extras().has_meta;
        let bytes = if had_meta { self.batch.get(&queue.rows, &queue.keys.meta(id))? } else { None };
        let mut all = bytes.map_or(Ok(Meta::new()), |bytes| queue.decode_meta(id, &bytes))?;
        let old = match value {
            Some(value) => all.insert(key.to_owned(), value.clone()),
            None => all.remove(key),
        };
        if old.as_ref() == value {
            return Ok(row);
        }
        if all.is_empty() {
            self.delete(queue.rows.id, &queue.keys.meta(id))?;
        } else {
            let text = meta::text(&all);
            meta::check_text(&text).map_err(QueueError::from)?;
            self.put_meta(id, &text)?;
        }
        if had_meta == all.is_empty() {
            row.extras_mut().has_meta = !had_meta;
            self.write_row(id, &row)?;
        }
        Ok(row)
    }

    fn put_meta(&mut self, id: &str, text: &[u8]) -> Result<(), StoreError> {
        self.put(self.rows(), &self.queue.keys.meta(id), &encode_meta(&self.queue.name, id, text))
    }

    /// Writes the records beside the row of a push, in place of those of the old row.
    pub(crate) fn replace_extra(&mut self, id: &str, old: Option<&Row>, push: &Push) -> Result<(), StoreError> {
        if let Some(old) = old {
            self.erase_extra(id, old)?;
            if old.extras().has_progress {
                self.staged.tell(Event::Anew { id: id.to_owned() });
            }
        }
        if push.row.extras().has_meta { self.put_meta(id, &push.meta) } else { Ok(()) }
    }

    /// Removes the records that a job has beside its row.
    pub(crate) fn erase_extra(&mut self, id: &str, row: &Row) -> Result<(), StoreError> {
        let extras = row.extras();
        if extras.has_progress {
            self.delete(self.rows(), &self.queue.keys.progress(id))?;
        }
        if extras.has_meta { self.delete(self.rows(), &self.queue.keys.meta(id)) } else { Ok(()) }
    }

    // Progress.

    /// Writes the progress of a running job. Returns its row.
    pub(crate) fn put_progress(&mut self, id: &str, token: u64, progress: &JobProgress) -> Result<Row, BoxError> {
        let mut row = self.leased(id, token)?;
        self.put(self.rows(), &self.queue.keys.progress(id), &progress.encode(&self.queue.name, id))?;
        if !row.extras().has_progress {
            row.extras_mut().has_progress = true;
            self.write_row(id, &row)?;
        }
        Ok(row)
    }

    /// Writes the last progress of an attempt with its end.
    pub(crate) fn keep_progress(&mut self, id: &str, row: &Row, run: &Run) -> Result<(), StoreError> {
        if !row.extras().has_progress || row.state != JobState::Running {
            return Ok(());
        }
        match &run.progress {
            Some(last) => self.put(self.rows(), &self.queue.keys.progress(id), &last.encode(&self.queue.name, id)),
            None => Ok(()),
        }
    }

    /// Forgets the progress of a job that begins anew.
    pub(crate) fn clear_progress(&mut self, id: &str, row: &mut Row) -> Result<(), StoreError> {
        if !row.extras().has_progress {
            return Ok(());
        }
        row.extras_mut().has_progress = false;
        self.staged.tell(Event::Anew { id: id.to_owned() });
        self.delete(self.rows(), &self.queue.keys.progress(id))
    }

    /// Changes a job; with a token, only if that lease holds. Returns its row.
    pub(crate) fn edit(&mut self, id: &str, token: Option<u64>, edit: &Edit) -> Result<Row, BoxError> {
        let lease = token.unwrap_or_default();
        match edit {
            Edit::Nothing => self.leased(id, lease),
            Edit::Data(data) => self.update(id, lease, data),
            Edit::Meta(key, value) => self.set_meta(id, token, key, value.as_ref()),
            Edit::Resubmit(due) => {
                let row = Row { resubmit: Some(*due), resubmitted: 0, ..self.leased(id, lease)? };
                self.write_row(id, &row)?;
                Ok(row)
            }
        }
    }

    /// Writes the data of a running job.
    fn update(&mut self, id: &str, token: u64, data: &[u8]) -> Result<Row, BoxError> {
        let mut row = self.leased(id, token)?;
        let had_data = row.has_data;
        self.set_data(id, &mut row, data)?;
        if !had_data {
            self.write_row(id, &row)?;
        }
        self.tell(id, Some(JobState::Running), Some(Some(data.to_vec())));
        Ok(row)
    }
}
