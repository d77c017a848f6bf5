//! The stored state of a queue.

use crate::embedded::codec::durations::DurationsRecord;
use crate::embedded::codec::entry;
use crate::embedded::codec::head::Head;
use crate::embedded::keys;
use crate::embedded::keys::{Fronts, Keys, List, id_of_row, split_line, split_running};
use crate::embedded::kind_lines::KindLines;
use crate::rules::lanes::LANES;
use crate::types::durations::Durations;
use crate::types::error::QueueError;
use crate::types::job::{JobId, after};
use std::collections::HashMap;
use std::time::Duration;
use waterline::seam::{Family, KeyRange, Kv, Order};
use waterline::{Error, Store, seam};

/// The stored state of a queue, with the jobs that run according to it.
pub(crate) struct Stored {
    pub(crate) head: Head,
    pub(crate) from: Fronts,
    pub(crate) kinds: KindLines,
    /// The running jobs by token: the id, or why the entry cannot be read.
    pub(crate) running: Vec<(u64, Result<JobId, String>)>,
    /// The number of jobs that are set aside.
    pub(crate) damaged: u64,
}

/// Reads the stored state of a queue.
pub(crate) fn load(kv: &dyn Kv, name: &str, number: u32, [rows, entries]: &[Family; 2]) -> Result<Stored, Error> {
    let corrupt = |reason| Error::Corrupt { name: name.to_owned(), reason };
    let keys = Keys(number);
    let head = kv.get(rows, &keys.head())?;
    let head = head.map_or(Ok(Head::default()), |bytes| Head::decode(name, &bytes)).map_err(corrupt)?;
    let mut from = Fronts::EMPTY;
    for list in List::ALL {
        let range = KeyRange { from: keys.entries_from(list, 0), to: Some(keys.entries_end(list)) };
        if let Some(first) = kv.rows(entries, range, Order::Ascending).next() {
            from.set(list, keys::number_of_entry(&first?.0));
        }
    }
    let mut running = Vec::new();
    for pair in kv.scan(rows, &keys.all_running()) {
        let (key, entry) = pair?;
        let Some(token) = split_running(&key) else { continue };
        running.push((token, entry::id_in(name, &key, &entry)));
    }
    let range = KeyRange { from: keys.entries_from(List::Damaged, 0), to: Some(keys.entries_end(List::Damaged)) };
    let mut damaged = 0;
    for pair in kv.rows(entries, range, Order::Ascending) {
        pair?;
        damaged += 1;
    }
    let kinds = load_lines(kv, keys, entries)?;
    Ok(Stored { head, from, kinds, running, damaged })
}

/// Looks for the first entry in each lane of each line.
fn load_lines(kv: &dyn Kv, keys: Keys, entries: &Family) -> Result<KindLines, Error> {
    let KeyRange { mut from, to } = KeyRange::prefix(&keys.all_lines());
    let mut kinds = KindLines::default();
    loop {
        let range = KeyRange { from, to: to.clone() };
        let Some(first) = kv.rows(entries, range, Order::Ascending).next() else { return Ok(kinds) };
        let (key, _) = first?;
        from = match split_line(&key).filter(|(_, lane, _)| *lane < LANES) {
            Some((kind, lane, index)) => {
                kinds.note(kind, lane, index);
                keys.line(kind, lane + 1, 0)
            }
            // Not a key of a line.
            None => [&key[..], &[0]].concat(),
        };
    }
}

/// The stored durations.
pub(crate) struct StoredDurations {
    pub(crate) by_kind: HashMap<String, Durations>,
    /// The keys of records that are too old.
    pub(crate) old: Vec<Vec<u8>>,
}

/// Reads the stored durations. A damaged record is left out, and overwritten in time.
pub(crate) fn load_durations(
    kv: &dyn Kv,
    queue: &str,
    keys: Keys,
    rows: &Family,
    wall: u64,
) -> Result<StoredDurations, Error> {
    let (mut by_kind, mut old) = (HashMap::new(), Vec::new());
    for pair in kv.scan(rows, &keys.all_durations()) {
        let (key, bytes) = pair?;
        let Some(kind) = id_of_row(&key) else { continue };
        match DurationsRecord::decode(queue, kind, &bytes) {
            Ok(record) if after(record.at, KEPT_FOR).is_some_and(|until| until <= wall) => old.push(key),
            Ok(record) => drop(by_kind.insert(kind.to_owned(), record.durations)),
            Err(reason) => {
                tracing::warn!(target: "waterline", queue, kind, reason, "the durations of a kind of jobs cannot be read, so they are counted anew");
            }
        }
    }
    Ok(StoredDurations { by_kind, old })
}

/// The age from which a stored average says nothing about today's jobs.
const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Returns the names of all queues in a store.
pub(crate) fn names(store: &Store) -> Result<Vec<String>, QueueError> {
    let [rows, _] = seam::queue_families(store)?;
    let mut names = Vec::new();
    for pair in seam::kv(store).scan(&rows, &keys::all_names()) {
        let (key, _) = pair?;
        let name = keys::split_name(&key).ok_or_else(|| Error::Corrupt {
            name: rows.name.to_string(),
            reason: format!("the key \"{}\" has no name of a queue", key.escape_ascii()),
        })?;
        names.push(name.to_owned());
    }
    Ok(names)
}
