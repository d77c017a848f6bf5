//! Reads how full the limits are, and which jobs come before and after a job.

use crate::embedded::codec::limit::LimitRecord;
use crate::embedded::keys::{name_of_limit, split_waiting};
use crate::embedded::reader::Reader;
use crate::types::error::QueueError;
use crate::types::job::{JobId, JobState};
use crate::types::limit::{LimitOf, QUEUE, of_name};
use crate::types::used::{LimitUse, Related};
use std::collections::BTreeSet;
use waterline::Error;
use waterline::seam::{KeyRange, Order};

/// The most records of keys that one look reads. There may be one for each key.
const LOOKS: usize = 64;

impl Reader<'_> {
    /// Returns the limits that are set, and those of keys that have jobs.
    pub(crate) fn limits_used(&self) -> Result<Vec<LimitUse>, QueueError> {
        let mut names: BTreeSet<String> = self.queue.limits.named().map(str::to_owned).collect();
        let range = KeyRange::prefix(&self.queue.keys.all_limits());
        for pair in self.kv.rows(&self.queue.rows, range, Order::Ascending).take(LOOKS) {
            let (key, _) = pair.map_err(Error::from)?;
            names.extend(name_of_limit(&key).map(str::to_owned));
        }
        names.remove(QUEUE);
        let has_own = self.queue.limits.queue != Default::default();
        let own = has_own.then(|| self.limit_used(QUEUE)).into_iter();
        let each_key = self.queue.limits.each_key().map(|bounds| {
            let rate = bounds.rate;
            Ok(LimitUse {
                limit: LimitOf::EachKey,
                at_once: bounds.at_once,
                running: 0,
                rate: rate.map(|rate| (rate.count, rate.per)),
                burst: rate.map(|rate| rate.burst),
                tokens: None,
                held: 0,
            })
        });
        own.chain(each_key).chain(names.iter().map(|name| self.limit_used(name))).collect()
    }

    fn limit_used(&self, name: &str) -> Result<LimitUse, QueueError> {
        let bytes = self.bytes(&self.queue.keys.limit(name))?;
        // The next claim rebuilds a record that cannot be read.
        let record =
            bytes.and_then(|bytes| LimitRecord::decode(&self.queue.name, name, &bytes).ok()).unwrap_or_default();
        let (bounds, wall) = (self.queue.limits.bounds(name), self.queue.moment().wall);
        let (epoch, running) = self.queue.look(|live| (live.head.epoch, live.running.len() as u64));
        let tokens = bounds.rate.map(|rate| match record.bucket {
            Some(mut bucket) => {
                bucket.fill(rate, wall);
                bucket.tokens()
            }
            None => f64::from(rate.burst),
        });
        Ok(LimitUse {
            limit: of_name(name),
            at_once: bounds.at_once,
            // Jobs of an earlier opening do not run any more.
            running: if name == QUEUE { running } else { record.running * u64::from(record.epoch == epoch) },
            rate: bounds.rate.map(|rate| (rate.count, rate.per)),
            burst: bounds.rate.map(|rate| rate.burst),
            tokens,
            held: record.held,
        })
    }

    /// Returns the jobs that this one waits for, or waited for when it died, and those that wait
    /// for it.
    pub(crate) fn related(&self, id: &str, most: usize) -> Result<Related, QueueError> {
        let mut related = Related::default();
        let Some(row) = self.row(id)? else { return Ok(related) };
        let (keys, rows) = (self.queue.keys, &self.queue.rows);
        for pair in self.kv.scan(rows, &keys.all_awaits(Some(id))).take(most) {
            let (_, other) = pair.map_err(Error::from)?;
            related.waits_for.push(String::from_utf8_lossy(&other).into_owned());
        }
        for list in [row.extras().awaited, row.extras().held_up].into_iter().flatten() {
            for pair in self.kv.scan(rows, &keys.waiting(list, "")) {
                let (key, _) = pair.map_err(Error::from)?;
                if related.awaited_by.len() >= most {
                    break;
                }
                let Some(waiter) = split_waiting(&key) else { continue };
                // An entry without this record is stale, and so is that of a job that died.
                let is_stale = self.bytes(&keys.awaits(waiter, list))?.is_none();
                if !is_stale && self.row(waiter)?.is_some_and(|row| row.state == JobState::Waiting) {
                    related.awaited_by.push(JobId::from(waiter));
                }
            }
        }
        Ok(related)
    }
}
