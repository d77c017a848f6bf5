//! The state of a queue as it is stored.

use crate::base::error::Error;
use crate::kv::{Family, KeyRange, Kv, Order};
use crate::queue::entry;
use crate::queue::head::Head;
use crate::queue::job::JobId;
use crate::queue::keys::{self, Fronts, Keys, List, split_running};

/// The state of a queue as it is stored, with the jobs that run according to it.
pub(in crate::queue) struct Stored {
    pub(in crate::queue) head: Head,
    pub(in crate::queue) from: Fronts,
    /// By the tokens of their leases: their ids, or the reason why an entry cannot be read.
    pub(in crate::queue) running: Vec<(u64, Result<JobId, String>)>,
    /// The number of jobs that are set aside.
    pub(in crate::queue) damaged: u64,
}

/// Reads what is stored of a queue.
pub(in crate::queue) fn load(
    kv: &dyn Kv,
    name: &str,
    number: u32,
    [rows, entries]: &[Family; 2],
) -> Result<Stored, Error> {
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
    Ok(Stored { head, from, running, damaged })
}
