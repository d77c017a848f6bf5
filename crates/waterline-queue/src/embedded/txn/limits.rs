//! Limits: the places that a job takes when it begins and gives back when it ends, and the logs of
//! the jobs that wait for one.
//!
//! A job with a key waits in the log of its key. If only the limit of the job's kind is full, the
//! key itself waits in the log of the kind, for its first job. So a job moves once at most, and no
//! key can fill the log of a kind.

use crate::embedded::codec::head::FREED;
use crate::embedded::codec::limit::{JOB, KEY, LimitRecord};
use crate::embedded::keys::{List, name_of_limit};
use crate::embedded::txn::Txn;
use crate::rules::bucket::Bucket;
use crate::types::events::Line;
use crate::types::job::{JobState, LATEST};
use crate::types::limit::{Bounds, LimitOf, Names, QUEUE, of_name};
use crate::types::row::Row;
use tracing::Level;
use waterline::BoxError;
use waterline::seam::KeyRange;

mod mending;

/// How long the record of a full bucket is kept, in milliseconds, so that a key in regular use does
/// not have it deleted and written again each time.
const FORGET_AFTER: u64 = 60_000;

/// The records of limits that one transition changes: each is read and written once.
#[derive(Default)]
pub(crate) struct LimitCache(Vec<OpenLimit>);

/// A record of a limit in a [`LimitCache`].
pub(crate) struct OpenLimit {
    pub(crate) name: String,
    pub(crate) bounds: Bounds,
    pub(crate) record: LimitRecord,
    /// The record as it was.
    before: LimitRecord,
    is_stored: bool,
    /// The cost of the first held job; 1 if it is not known.
    pub(crate) need: u32,
    /// True if only a job was added at the end of the log, which does not affect the first one.
    pub(crate) is_quiet: bool,
}

impl OpenLimit {
    /// True if one more job may run at once.
    pub(crate) fn has_room(&self) -> bool {
        self.bounds.at_once.is_none_or(|most| self.record.running < u64::from(most))
    }

    fn has_tokens(&self, cost: u32) -> bool {
        let tokens = self.bounds.rate.zip(self.record.bucket);
        tokens.is_none_or(|(rate, bucket)| bucket.has(rate, cost))
    }

    /// True if this limit lets a job of this cost begin.
    pub(crate) fn has_place(&self, cost: u32) -> bool {
        self.has_room() && self.has_tokens(cost)
    }

    /// True if it is to enter the freed log as soon as it has tokens.
    fn is_awaited(&self) -> bool {
        self.record.held > 0 && !self.record.called && self.record.waits.is_none() && self.has_room()
    }

    /// Returns when the limit is to be looked at, unless its timer is earlier.
    fn wants_timer(&self) -> Option<u64> {
        let (rate, bucket) = self.bounds.rate.zip(self.record.bucket)?;
        if self.record.held > 0 {
            (self.is_awaited() && !self.is_quiet).then(|| bucket.has_at(rate, self.need))
        } else {
            let full = bucket.has_at(rate, rate.burst);
            (!bucket.has(rate, rate.burst)).then(|| full.saturating_add(FORGET_AFTER).min(LATEST))
        }
        .filter(|time| self.record.timer == 0 || *time < self.record.timer)
    }

    /// True if the limit is in the same state as one without a record.
    fn is_idle(&self) -> bool {
        let LimitRecord { running, held, called, .. } = self.record;
        let is_full = self.bounds.rate.is_none_or(|rate| self.has_tokens(rate.burst));
        running == 0 && held == 0 && !called && is_full
    }
}

impl LimitCache {
    pub(crate) fn at(&mut self, at: usize) -> &mut OpenLimit {
        &mut self.0[at]
    }

    pub(crate) fn record(&mut self, at: usize) -> &mut LimitRecord {
        &mut self.0[at].record
    }
}

/// Whether the limits let a job begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It has its places.
    Yes,
    /// A limit holds it.
    Held,
    /// The rate of the whole queue has no token. Nothing was changed.
    Full,
}

impl OpenLimit {
    fn append(&mut self, txn: &mut Txn<'_, '_>, cost: u32, what: u8, of: &str) -> Result<u64, BoxError> {
        let record = &mut self.record;
        if record.held == 0 {
            self.need = cost;
        } else {
            // Without a timer, the record was just rebuilt, and nothing else would call the limit.
            self.is_quiet = record.timer > 0;
        }
        let place = record.end;
        (record.end, record.held) = (place + 1, record.held + 1);
        let value = [&[what], of.as_bytes()].concat();
        txn.put(txn.entries(), &txn.queue.keys.held(&self.name, place), &value)?;
        Ok(place)
    }

    fn remove(&mut self, txn: &mut Txn<'_, '_>, place: u64) -> Result<(), BoxError> {
        let record = &mut self.record;
        record.held = record.held.saturating_sub(1);
        if record.held == 0 {
            // All entries before the end are gaps.
            record.next = record.end;
        } else if place == record.next {
            record.next += 1;
        }
        let key = txn.queue.keys.held(&self.name, place);
        Ok(txn.delete(txn.entries(), &key)?)
    }
}

impl LimitCache {
    /// Opens the record of a limit, and returns its place in the cache.
    pub(crate) fn open(&mut self, txn: &mut Txn<'_, '_>, name: &str) -> Result<usize, BoxError> {
        if let Some(at) = self.0.iter().position(|opened| opened.name == name) {
            return Ok(at);
        }
        let (queue, wall) = (txn.queue, txn.tokens_at);
        let stored = txn.batch.get(&queue.rows, &queue.keys.limit(name))?;
        let is_stored = stored.is_some();
        let mut record = match stored.map(|bytes| LimitRecord::decode(&queue.name, name, &bytes)) {
            None => LimitRecord::default(),
            Some(Ok(record)) => record,
            Some(Err(reason)) => Self::mend(txn, name, &reason)?,
        };
        let epoch = txn.staged.head.epoch;
        if record.epoch != epoch {
            (record.epoch, record.running) = (epoch, 0);
        }
        let bounds = queue.limits.bounds(name);
        record.bucket = bounds.rate.map(|rate| {
            let mut bucket = record.bucket.unwrap_or_else(|| Bucket::full(rate, wall));
            bucket.fill(rate, wall);
            bucket
        });
        let before = record.clone();
        let name = name.to_owned();
        self.0.push(OpenLimit { name, bounds, record, before, is_stored, need: 1, is_quiet: false });
        Ok(self.0.len() - 1)
    }

    /// Writes the records that have changed. A limit with held jobs and a place enters the freed
    /// log; one that waits for tokens gets a timer; the record of an idle one is deleted.
    pub(crate) fn write(self, txn: &mut Txn<'_, '_>) -> Result<(), BoxError> {
        for mut opened in self.0 {
            if opened.is_awaited() && !opened.is_quiet && opened.has_tokens(opened.need) {
                let freed = txn.head().log_mut(FREED);
                let index = freed.end;
                freed.end += 1;
                txn.put(txn.entries(), &txn.queue.keys.ready(FREED, index), opened.name.as_bytes())?;
                opened.record.called = true;
            }
            if let Some(time) = opened.wants_timer() {
                if opened.record.timer > 0 {
                    txn.remove_entry(List::Refills, opened.record.timer, &opened.name)?;
                }
                txn.put_entry(List::Refills, time, &opened.name)?;
                opened.record.timer = time;
            }
            let key = txn.queue.keys.limit(&opened.name);
            if !opened.is_idle() {
                if !opened.is_stored || opened.record != opened.before {
                    let bytes = opened.record.encode(&txn.queue.name, &opened.name);
                    txn.put(txn.rows(), &key, &bytes)?;
                }
            } else if opened.is_stored {
                if opened.record.timer > 0 {
                    txn.remove_entry(List::Refills, opened.record.timer, &opened.name)?;
                }
                txn.delete(txn.rows(), &key)?;
            }
        }
        Ok(())
    }

    /// True if the queue's rate has tokens for a job. If not, no job is claimed until it has.
    pub(crate) fn queue_has_tokens(&mut self, txn: &mut Txn<'_, '_>, cost: u32) -> Result<bool, BoxError> {
        if txn.queue.limits.queue.rate.is_none() {
            return Ok(true);
        }
        let at = self.open(txn, QUEUE)?;
        let opened = self.at(at);
        if opened.has_tokens(cost) {
            return Ok(true);
        }
        if let Some((rate, bucket)) = opened.bounds.rate.zip(opened.record.bucket) {
            txn.staged.gate.shut(bucket.since, bucket.has_at(rate, cost));
        }
        Ok(false)
    }

    pub(crate) fn take_places(&mut self, txn: &mut Txn<'_, '_>, names: &Names, cost: u32) -> Result<(), BoxError> {
        let queue = Some(QUEUE.to_owned()).filter(|_| txn.queue.limits.queue.rate.is_some());
        for name in names.iter().chain(&queue) {
            let at = self.open(txn, name)?;
            let OpenLimit { bounds, record, .. } = self.at(at);
            if bounds.at_once.is_some() && name != QUEUE {
                record.running += 1;
            }
            record.bucket.iter_mut().for_each(|bucket| bucket.take(cost));
        }
        Ok(())
    }

    /// Puts a ready job at the end of the log of a limit.
    pub(crate) fn hold(&mut self, txn: &mut Txn<'_, '_>, at: usize, id: &str, row: &Row) -> Result<(), BoxError> {
        let cost = row.extras().cost;
        let place = self.at(at).append(txn, cost, JOB, id)?;
        let mut row = Row { place, ..row.clone() };
        row.extras_mut().held = Some(self.at(at).name.clone());
        txn.head().held += 1;
        Ok(txn.write_row(id, &row)?)
    }

    /// Makes a key wait for the limit of a kind, since its first job does.
    pub(crate) fn wait_for_kind(
        &mut self,
        txn: &mut Txn<'_, '_>,
        key: usize,
        kind: usize,
        cost: u32,
    ) -> Result<(), BoxError> {
        let name = self.at(key).name.clone();
        let place = self.at(kind).append(txn, cost, KEY, &name)?;
        // A claim that skips the kind's turn has not seen this key there.
        if let LimitOf::Kind(kind) = of_name(&self.at(kind).name) {
            txn.staged.kinds.end_turn_of(&kind);
        }
        self.record(key).waits = Some((self.at(kind).name.clone(), place));
        Ok(())
    }

    /// Takes a job out of the log of the limit that holds it.
    pub(crate) fn take_out(&mut self, txn: &mut Txn<'_, '_>, limit: &str, place: u64) -> Result<(), BoxError> {
        let at = self.open(txn, limit)?;
        let is_first = place == self.record(at).next;
        self.at(at).remove(txn, place)?;
        let head = txn.head();
        head.held = head.held.saturating_sub(1);
        if is_first || self.record(at).held == 0 {
            self.leave_line(txn, at)?;
        }
        Ok(())
    }

    /// Ends the wait of a key for the limit of a kind.
    pub(crate) fn leave_line(&mut self, txn: &mut Txn<'_, '_>, key: usize) -> Result<(), BoxError> {
        let Some((kind, place)) = self.record(key).waits.take() else { return Ok(()) };
        let at = self.open(txn, &kind)?;
        self.at(at).remove(txn, place)
    }
}

impl Txn<'_, '_> {
    /// Gives a job its places, or puts a ready one into the log of a full limit. A job that is not
    /// ready yet stays where it is.
    pub(crate) fn admit(&mut self, id: &str, row: &Row) -> Result<Admission, BoxError> {
        if !self.queue.limits.has_records() {
            return Ok(Admission::Yes);
        }
        let (names, cost, mut cache) = (self.queue.limits.names(row), row.extras().cost, LimitCache::default());
        if !cache.queue_has_tokens(self, cost)? {
            return Ok(Admission::Full);
        }
        let mut opened = Vec::with_capacity(2);
        let mut full = None;
        for name in names.iter() {
            let at = cache.open(self, name)?;
            opened.push(at);
            // Jobs that the limit already holds come first.
            if cache.record(at).held > 0 || !cache.at(at).has_place(cost) {
                full = Some(at);
                break;
            }
        }
        let Some(full) = full else {
            cache.take_places(self, &names, cost)?;
            cache.write(self)?;
            return Ok(Admission::Yes);
        };
        if row.state == JobState::Ready {
            self.leave_kind(row)?;
            let limit = of_name(&cache.at(full).name);
            self.log(Level::DEBUG, id, row, |job| Line::Held { job, limit });
            cache.hold(self, opened[0], id, row)?;
            if full != opened[0] {
                cache.wait_for_kind(self, opened[0], full, cost)?;
            }
            cache.write(self)?;
        }
        Ok(Admission::Held)
    }

    pub(crate) fn release_limits(&mut self, row: &Row) -> Result<(), BoxError> {
        if self.queue.options.limits.is_empty() {
            return Ok(());
        }
        self.staged.gate.released += 1;
        let mut cache = LimitCache::default();
        for name in self.queue.limits.names(row).iter() {
            if self.queue.limits.bounds(name).at_once.is_some() {
                let at = cache.open(self, name)?;
                let record = cache.record(at);
                record.running = record.running.saturating_sub(1);
            }
        }
        cache.write(self)
    }

    /// Takes a held job out of the log of its limit.
    pub(crate) fn unhold(&mut self, row: &Row) -> Result<(), BoxError> {
        let Some(limit) = &row.extras().held else { return Ok(()) };
        let mut cache = LimitCache::default();
        cache.take_out(self, limit, row.place)?;
        cache.write(self)
    }

    // Time.

    /// Looks at a limit whose timer is due.
    pub(crate) fn refill(&mut self, time: u64, name: &str) -> Result<(), BoxError> {
        self.remove_entry(List::Refills, time, name)?;
        let mut cache = LimitCache::default();
        let at = cache.open(self, name)?;
        let record = cache.record(at);
        if record.timer == time {
            record.timer = 0;
        }
        cache.write(self)
    }

    /// Looks at all limits that have a record: when a queue is opened, perhaps with other limits,
    /// and after the clock was set back.
    pub(crate) fn look_at_limits(&mut self) -> Result<(), BoxError> {
        for name in self.limit_names()? {
            let mut cache = LimitCache::default();
            cache.open(self, &name)?;
            cache.write(self)?;
        }
        Ok(())
    }

    pub(crate) fn limit_names(&mut self) -> Result<Vec<String>, BoxError> {
        let queue = self.queue;
        let mut names = Vec::new();
        for pair in self.batch.rows(&queue.rows, KeyRange::prefix(&queue.keys.all_limits())) {
            let (key, _) = pair?;
            names.extend(name_of_limit(&key).map(str::to_owned));
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests;
