//! The write that gives tables other names, and how a read-only store follows such writes.

use super::register::{self, Renamed, WriteMoves};
use super::{Store, gone, keys};
use crate::base::Error;
use crate::kv::batch::Batch;

impl Store {
    /// Gives tables other names in the write that `prepare` makes, and deletes what is gone by that
    /// behind it. Meanwhile nothing else writes rows or items.
    pub(crate) fn write_moves<R>(
        &self,
        tables: &[(String, String)],
        prepare: impl FnOnce(WriteMoves<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let renamed = |(from, to): &(String, String)| {
            Ok(Renamed { from: from.clone(), to: to.clone(), fresh: self.ids().next()? })
        };
        let tables = tables.iter().map(renamed).collect::<Result<Vec<_>, Error>>()?;
        let (kv, system, prefixes) = (self.kv(), self.system(), &self.inner.prefixes);
        let mut has_gone = false;
        let prepared = self.writer().alone(|| {
            prepare(&mut |records, mut gone, moved| {
                let mut batch = Batch::default();
                batch.append(records);
                let (places, left) = register::moves(prefixes, system.id, &tables, &mut gone)?;
                if !tables.is_empty() {
                    batch.append(&places);
                }
                gone.iter().try_for_each(|gone| gone.put(system.id, &mut batch))?;
                let mut write = |note: Option<Vec<u8>>| {
                    note.map_or(Ok(()), |note| batch.put(system.id, &[keys::FORMAT], &[&note]))?;
                    // With a flush: what is gone is deleted at once.
                    if let Err(error) = kv.write(&batch, true)
                        && (tables.is_empty() || register::generation(kv, system)? == prefixes.generation())
                    {
                        return Err(Error::from(error));
                    }
                    Ok(())
                };
                // Earlier programs refuse a store in which rows or items are at other places.
                if tables.is_empty() && gone.is_empty() {
                    write(None)?;
                } else {
                    self.inner.format.noting(register::IN_USE, write)?;
                }
                if !tables.is_empty() {
                    prefixes.replace(self.inner.tables.id, left);
                }
                moved();
                has_gone = !gone.is_empty();
                Ok(())
            })
        })?;
        if has_gone {
            gone::delete_behind(self.writer(), system, &self.inner.open);
        }
        Ok(prepared)
    }

    /// Takes over the tables that another process has replaced, if only that one writes. Returns
    /// true if there are any.
    pub(super) fn follow(&self) -> Result<bool, Error> {
        let (kv, system, prefixes) = (self.kv(), self.system(), &self.inner.prefixes);
        let is_behind = self.inner.follows && register::generation(kv, system)? > prefixes.generation();
        if is_behind {
            register::load(kv, system, prefixes)?;
        }
        Ok(is_behind)
    }
}
