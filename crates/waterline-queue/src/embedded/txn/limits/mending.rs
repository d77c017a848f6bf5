//! Records of limits that cannot be read: they are rebuilt from the jobs.

use crate::embedded::codec::limit::{KEY, LimitRecord};
use crate::embedded::keys::split_held;
use crate::embedded::txn::Txn;
use crate::embedded::txn::limits::LimitCache;
use crate::rules::bucket::Bucket;
use crate::types::events::Damaged;
use crate::types::row::Row;
use std::collections::HashMap;
use waterline::BoxError;
use waterline::seam::KeyRange;

impl LimitCache {
    /// Rebuilds the record of a limit from its log and the running jobs. It has no token: too late
    /// is better than too often.
    pub(super) fn mend(txn: &mut Txn<'_, '_>, name: &str, reason: &str) -> Result<LimitRecord, BoxError> {
        let queue = txn.queue;
        txn.log_damage(Damaged::Limit { name: name.to_owned(), reason: reason.to_owned() });
        let (from, to) = (queue.keys.held(name, 0), queue.keys.held(name, u64::MAX));
        let mut places = Vec::new();
        for pair in txn.batch.rows(&queue.entries, KeyRange { from, to: Some(to) }) {
            places.extend(split_held(&pair?.0));
        }
        let mut record = LimitRecord { epoch: txn.staged.head.epoch, ..LimitRecord::default() };
        record.next = places.first().copied().unwrap_or(0);
        record.end = places.last().map_or(0, |place| place + 1);
        // An entry may be damaged, too. The claim that meets it has all jobs counted again.
        record.held = places.len() as u64;
        for id in txn.running_ids()? {
            let row = txn.row(&id).unwrap_or_default();
            record.running += u64::from(row.is_some_and(|row| txn.is_under(name, &row)));
        }
        let wall = txn.tokens_at;
        record.bucket = queue.limits.bounds(name).rate.map(|rate| {
            let full = Bucket::full(rate, wall);
            Bucket { level: 0, ..full }
        });
        Ok(record)
    }
}

impl Txn<'_, '_> {
    fn is_under(&self, name: &str, row: &Row) -> bool {
        self.queue.limits.names(row).iter().any(|other| other == name)
    }

    /// Counts the jobs of all limits again, from the rows that can be read: the running ones, and
    /// the held ones if `held` has their counts.
    pub(crate) fn recount_limits(
        &mut self,
        held: Option<HashMap<String, u64>>,
        running: &[Row],
    ) -> Result<(), BoxError> {
        let names = self.limit_names()?;
        if let Some(held) = &held {
            // Even if no limit has a record: the last held job may be the damaged one.
            self.head().held = held.values().sum();
        }
        let mut cache = LimitCache::default();
        let mut waiting: HashMap<String, u64> = HashMap::new();
        for name in &names {
            let at = cache.open(self, name)?;
            let Some((kind, place)) = cache.record(at).waits.clone() else { continue };
            let next = cache.open(self, &kind)?;
            let entry = self.batch.get(&self.queue.entries, &self.queue.keys.held(&kind, place))?;
            if place < cache.record(next).next || entry != Some([&[KEY], name.as_bytes()].concat()) {
                // Its entry is lost.
                cache.record(at).waits = None;
            } else {
                *waiting.entry(kind).or_default() += 1;
            }
        }
        for name in &names {
            let at = cache.open(self, name)?;
            let count = |counts: &HashMap<String, u64>| counts.get(name).copied().unwrap_or(0);
            let has_at_once = self.queue.limits.bounds(name).at_once.is_some();
            let runs = running.iter().filter(|row| has_at_once && self.is_under(name, row)).count();
            let record = cache.record(at);
            if let Some(held) = &held {
                record.held = (count(held) + count(&waiting)).min(record.end - record.next);
            }
            record.running = runs as u64;
        }
        cache.write(self)
    }
}
