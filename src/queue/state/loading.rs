//! The state of a queue as it is stored.

use crate::base::error::Error;
use crate::kv::{Family, KeyRange, Kv, Order};
use crate::queue::head::Head;
use crate::queue::job::JobId;
use crate::queue::keys::{self, Fronts, Keys, List, split_running};

/// The state of a queue as it is stored, with the jobs that run according to it.
pub(in crate::queue) struct Stored {
    pub(in crate::queue) head: Head,
    pub(in crate::queue) from: Fronts,
    pub(in crate::queue) running: Vec<(u64, JobId)>,
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
            let (key, _) = first?;
            let (at, _) = keys::split_entry(&key).ok_or_else(|| corrupt("an entry has no id".to_owned()))?;
            from.set(list, at);
        }
    }
    let mut running = Vec::new();
    for pair in kv.scan(rows, &keys.all_running()) {
        let (key, id) = pair?;
        let (token, id) = (split_running(&key), String::from_utf8(id).ok());
        running.push(token.zip(id).ok_or_else(|| corrupt("the record of a running job is damaged".to_owned()))?);
    }
    Ok(Stored { head, from, running })
}
