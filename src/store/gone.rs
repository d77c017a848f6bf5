//! Rows that are gone: out of sight since a replacement, and deleted behind it, a piece at a time.
//! A record lists each prefix until no row has it any more, so that goes on after a crash.

use super::keys;
use crate::base::Error;
use crate::base::sync::Arc;
use crate::commit::{sealed::Kind, writer::Writer};
use crate::kv::batch::{Batch, FamilyId};
use crate::kv::{Family, Kv, LOGS, PARKED, TABLES, prefix_end};

/// The record of a prefix, in whose key it stands behind the mark of its family.
pub(super) const SEAL: Kind = Kind { label: "gone", versions: &[1] };

/// The families with such rows, and their marks.
const FAMILIES: [(&str, u8); 3] = [(TABLES, b't'), (LOGS, b'l'), (PARKED, b'p')];

/// All rows of a family whose keys have this prefix.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) family: &'static str,
    pub(crate) prefix: Vec<u8>,
}

impl Gone {
    fn place(&self) -> Vec<u8> {
        let mark = FAMILIES.iter().find(|(name, _)| *name == self.family).map(|(_, mark)| *mark);
        [&[mark.unwrap_or_default()], &self.prefix[..]].concat()
    }

    pub(super) fn put(&self, system: FamilyId, batch: &mut Batch) -> Result<(), Error> {
        let place = self.place();
        Ok(batch.put(system, &[keys::GONE, &place], &[&encode(&place)])?)
    }

    fn of(key: &[u8], value: &[u8]) -> Result<Self, Error> {
        let place = key.strip_prefix(keys::GONE).unwrap_or_default();
        let corrupt = |reason: String| Error::Corrupt { name: format!("gone {}", place.escape_ascii()), reason };
        decode(place, value).map_err(corrupt)?;
        let found = place.split_first().and_then(|(mark, prefix)| {
            let (family, _) = FAMILIES.iter().find(|(_, of)| of == mark)?;
            Some(Self { family, prefix: prefix.to_vec() })
        });
        found.filter(|gone| prefix_end(&gone.prefix).is_some()).ok_or_else(|| corrupt("it names no rows".to_owned()))
    }
}

pub(super) fn encode(place: &[u8]) -> Vec<u8> {
    SEAL.begin(0).seal("", place)
}

pub(super) fn decode(place: &[u8], bytes: &[u8]) -> Result<(), String> {
    let rest = SEAL.open("", place, bytes)?.rest;
    if rest.is_empty() { Ok(()) } else { Err(format!("it is {} bytes too long", rest.len())) }
}

/// Deletes as many rows as take a few milliseconds. Returns false if there were none. A damaged
/// record is an error once no other one is left.
fn delete_piece(kv: &dyn Kv, system: &Family) -> Result<bool, Error> {
    let (mut found, mut damage) = (None, None);
    for record in kv.scan(system, keys::GONE) {
        let (key, value) = record?;
        match Gone::of(&key, &value) {
            Ok(gone) => {
                found = Some((key, gone));
                break;
            }
            Err(error) => damage = Some(error),
        }
    }
    let Some((key, gone)) = found else { return damage.map_or(Ok(false), Err) };
    let (from, mut to) = (&gone.prefix, prefix_end(&gone.prefix).unwrap_or_default());
    let mut batch = Batch::default();
    if let Some(id) = kv.family(gone.family)? {
        let (costs, mut rows, mut bytes, mut end) = (kv.deletion(), 0, 0, None);
        // Otherwise the range costs the same whatever is in it.
        if costs.rows < u64::MAX {
            kv.range(&Family::new(gone.family, id), &from[..]..&to[..], &mut |key, value| {
                (rows, bytes) = (rows + 1, bytes + (key.len() + value.len()) as u64);
                let is_full = rows == costs.rows || bytes >= costs.bytes;
                end = is_full.then(|| [key, &[0]].concat());
                !is_full
            })?;
        }
        let has_more = end.is_some();
        to = end.unwrap_or(to);
        batch.delete_range(id, from, &to)?;
        if has_more {
            kv.write(&batch, false)?;
            return Ok(true);
        }
    }
    batch.delete(system.id, &[&key])?;
    kv.write(&batch, false)?;
    Ok(true)
}

/// Deletes rows that are gone, on the thread for chores. If the store is closed meanwhile, or a
/// write fails, its next opening or the next replacement goes on.
pub(super) fn delete_behind(writer: &Writer, system: &Family, open: &Arc<()>) {
    let (system, open) = (system.clone(), Arc::downgrade(open));
    let delete = move |kv: &dyn Kv| {
        while open.strong_count() > 0 {
            match delete_piece(kv, &system) {
                Ok(true) if kv.is_untidy() => kv.tidy(),
                Ok(true) => {}
                Ok(false) => return,
                Err(error @ Error::Corrupt { .. }) => {
                    tracing::warn!(%error, "rows of a replaced table are out of sight and stay on the disk, since the record of them is damaged");
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "rows of a replaced table are out of sight, and are deleted when the store is opened next");
                    return;
                }
            }
        }
    };
    writer.hand_over(vec![Box::new(delete)]);
}

/// True if rows of an earlier life are left to delete.
pub(super) fn is_left(kv: &dyn Kv, system: &Family) -> bool {
    kv.scan(system, keys::GONE).next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{Deletion, double::Double, memory::MemoryKv};

    /// A database in which few rows can be deleted at a time.
    #[derive(Default)]
    struct Slow(MemoryKv);

    impl Double for Slow {
        fn memory(&self) -> &MemoryKv {
            &self.0
        }

        fn deletion(&self) -> Deletion {
            Deletion { rows: 3, bytes: 100, reclaims: false }
        }
    }

    fn rows(kv: &Slow) -> (usize, usize) {
        let [system, tables, logs] = kv.0.families();
        let count = |family: &Family, prefix: &[u8]| kv.0.scan(family, prefix).count();
        (count(&tables, b"") + count(&logs, b""), count(&system, keys::GONE))
    }

    #[test]
    fn rows_go_piece_by_piece_and_a_crash_loses_none() -> Result<(), Error> {
        let kv = Slow::default();
        let [system, tables, logs] = kv.0.families();
        let mut batch = Batch::default();
        for row in 0..10u8 {
            batch.put(tables.id, &[b"\x03old", &[row]], &[b""])?;
            batch.put(tables.id, &[b"\x03ole", &[row]], &[&[0; 60]])?;
            batch.put(logs.id, &[b"\x03old", &[row]], &[b""])?;
        }
        for (family, prefix) in [(TABLES, "\u{3}old"), (LOGS, "\u{3}old"), (PARKED, "\u{3}old")] {
            Gone { family, prefix: prefix.into() }.put(system.id, &mut batch)?;
        }
        kv.0.write(&batch, false)?;
        let (mut before, mut pieces) = (rows(&kv), 0);
        assert_eq!(before, (30, 3));
        while delete_piece(&kv, &system)? {
            // A failed write deletes nothing, and the next life goes on from here.
            let now = rows(&kv);
            assert!(now < before && before.0 - now.0 <= 3, "{before:?} {now:?}");
            assert_eq!(rows(&Slow(kv.0.after_crash())), now);
            kv.0.fail(0..1);
            assert!(now == (10, 0) || delete_piece(&kv, &system).is_err());
            kv.0.fail(0..0);
            assert_eq!(rows(&kv), now);
            (before, pieces) = (now, pieces + 1);
        }
        // Three full pieces and the rest of the two tables, and nothing of the last.
        assert_eq!((before, pieces), ((10, 0), 9));
        // A wide row ends a piece early.
        let mut batch = Batch::default();
        Gone { family: TABLES, prefix: b"\x03ole".to_vec() }.put(system.id, &mut batch)?;
        kv.0.write(&batch, false)?;
        assert!(delete_piece(&kv, &system)?);
        assert_eq!(rows(&kv), (8, 1));
        Ok(())
    }

    #[test]
    fn a_record_of_no_rows_is_refused_and_stops_no_other() -> Result<(), Error> {
        for place in [&b""[..], b"t", b"x\x03old", b"l\xff\xff"] {
            let kv = MemoryKv::default();
            let [system, ..] = kv.families();
            let mut batch = Batch::default();
            batch.put(system.id, &[keys::GONE, place], &[&encode(place)])?;
            kv.write(&batch, false)?;
            assert!(matches!(delete_piece(&kv, &system), Err(Error::Corrupt { .. })), "{place:?}");
            // It stops no other one.
            let mut batch = Batch::default();
            Gone { family: PARKED, prefix: b"z".to_vec() }.put(system.id, &mut batch)?;
            kv.write(&batch, false)?;
            assert!(matches!(delete_piece(&kv, &system), Ok(true)), "{place:?}");
            assert!(matches!(delete_piece(&kv, &system), Err(Error::Corrupt { .. })), "{place:?}");
        }
        Ok(())
    }
}
