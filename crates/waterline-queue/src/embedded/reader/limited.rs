//! Reads the jobs that limits hold, for the status.

use crate::embedded::codec::limit::{JOB, LimitRecord};
use crate::embedded::keys::split_held;
use crate::embedded::reader::Reader;
use crate::types::error::QueueError;
use crate::types::job::JobId;
use crate::types::limit::{LimitOf, of_name};
use std::collections::BTreeMap;
use waterline::seam::{KeyRange, Order};

/// The most limits that one look reads. There may be one for each key.
const LOOKS: usize = 64;

/// The jobs that limits hold, as far as one look reads.
#[derive(Default)]
pub(crate) struct HeldJobs {
    /// The limit that holds the most, their number, and the time of its next token.
    pub(crate) most: Option<(LimitOf, u64, Option<u64>)>,
    /// The first job of each limit, with the time since which it is ready.
    pub(crate) first: Vec<(JobId, u64)>,
}

impl Reader<'_> {
    /// Reads the first limits that hold jobs.
    pub(crate) fn look_at_held(&self) -> Result<HeldJobs, QueueError> {
        let mut look = HeldJobs::default();
        let state = self.queue;
        if state.look(|live| live.head.held) == 0 {
            return Ok(look);
        }
        // A key that waits for a kind counts there as one job: its first.
        let mut holds: BTreeMap<String, (u64, Option<u64>)> = BTreeMap::new();
        let mut looks = 0;
        self.each_limit("", |name, record| {
            match &record.waits {
                Some((kind, _)) => holds.entry(kind.clone()).or_default().0 += record.held - 1,
                None => {
                    let holds = holds.entry(name.to_owned()).or_default();
                    let most = state.limits.bounds(name).at_once.map_or(u64::MAX, u64::from);
                    holds.0 += record.held;
                    holds.1 = Some(record.timer).filter(|timer| *timer > 0 && record.running < most);
                }
            }
            look.first.extend(self.first_held(name, record, false)?);
            looks += 1;
            Ok(looks < LOOKS)
        })?;
        let most = holds.into_iter().max_by_key(|(_, (held, _))| *held);
        look.most = most.map(|(name, (held, until))| (of_name(&name), held, until));
        Ok(look)
    }

    /// Returns the first job that a limit holds, with the time since which it is ready. If a key
    /// comes before it, that is the first job of the key, or none without `with_keys`.
    pub(crate) fn first_held(
        &self,
        name: &str,
        record: &LimitRecord,
        with_keys: bool,
    ) -> Result<Option<(JobId, u64)>, QueueError> {
        let state = self.queue;
        let (from, to) = (state.keys.held(name, record.next), state.keys.held(name, record.end));
        for pair in self.kv.rows(&state.entries, KeyRange { from, to: Some(to) }, Order::Ascending) {
            let (key, entry) = pair?;
            let Some((what, of)) = entry.split_first() else { break };
            let (place, of) = (split_held(&key).unwrap_or_default(), String::from_utf8_lossy(of));
            if *what == JOB {
                if let Some(Ok(row)) = self.found(&of)?
                    && row.is_held(name, place)
                {
                    return Ok(Some((of.into_owned(), row.since)));
                }
            } else if with_keys {
                let waits =
                    |key: &LimitRecord| key.waits.as_ref().is_some_and(|(kind, at)| (&**kind, *at) == (name, place));
                if let Some(key) = self.limit_record(&of)?.filter(waits) {
                    return self.first_held(&of, &key, false);
                }
            } else {
                break;
            }
        }
        Ok(None)
    }

    /// Returns the record of a limit. The next claim rebuilds one that cannot be read.
    pub(crate) fn limit_record(&self, name: &str) -> Result<Option<LimitRecord>, QueueError> {
        let bytes = self.bytes(&self.queue.keys.limit(name))?;
        Ok(bytes.and_then(|bytes| LimitRecord::decode(&self.queue.name, name, &bytes).ok()))
    }

    /// Returns since when the first job of a limit in the freed log is ready. `None`: it has none.
    pub(crate) fn called_since(&self, name: &str) -> Result<Option<u64>, QueueError> {
        let Some(record) = self.limit_record(name)?.filter(|record| record.held > 0) else { return Ok(None) };
        Ok(self.first_held(name, &record, true)?.map(|(_, since)| since))
    }
}
