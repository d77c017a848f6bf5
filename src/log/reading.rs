//! Reading a log from the front on, with a prefetch: each look at RocksDB costs as much as reading
//! a dozen items, so the items that a consumer will ask for next are read along.

use super::state::{LogState, index_of};
use crate::base::error::StoreError;
use crate::base::index::Index;
use crate::kv::{Family, Kv};

/// The bounds of the prefetch: so many items, and none more once they have so many bytes.
const ITEMS: u64 = 1024;
const BYTES: usize = 256 * 1024;

/// Items that were read and not yet asked for, as they are stored. Items never change, so these
/// stay true.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    /// The index after the last one that was asked for.
    next: Index,
    bytes: Vec<u8>,
    /// The end of each item.
    ends: Vec<usize>,
    /// The number of items that were taken.
    taken: usize,
}

impl ReadAhead {
    /// Shows the items of this run, in order, until one is answered with false or is not there.
    pub(super) fn read(
        &mut self,
        (kv, family, log): (&dyn Kv, &Family, &LogState),
        run: std::ops::Range<Index>,
        each: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), StoreError> {
        let in_order = self.next == run.start;
        if !in_order {
            self.forget();
        }
        self.next = run.start;
        while self.next < run.end {
            if self.taken == self.ends.len() {
                self.fill(kv, family, log, if in_order { run.end.max(self.next + ITEMS) } else { run.end })?;
            }
            let Some(&end) = self.ends.get(self.taken) else { break };
            let start = self.taken.checked_sub(1).map_or(0, |before| self.ends[before]);
            if !each(&self.bytes[start..end]) {
                break;
            }
            self.taken += 1;
            self.next += 1;
        }
        if self.taken == self.ends.len() {
            self.forget();
        }
        Ok(())
    }

    fn forget(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(BYTES);
        self.ends.clear();
        self.taken = 0;
    }

    /// Reads from the next index on, and no further than here.
    fn fill(&mut self, kv: &dyn Kv, family: &Family, log: &LogState, end: Index) -> Result<(), StoreError> {
        self.forget();
        let (start, end) = (self.next, end.min(log.end()));
        let mut expected = start;
        let mut take = |key: &[u8], value: &[u8]| {
            if index_of(key) != Some(expected) {
                return false;
            }
            self.bytes.extend_from_slice(value);
            self.ends.push(self.bytes.len());
            expected += 1;
            self.bytes.len() < BYTES
        };
        if end - start == 1 {
            // Cheaper than looking for a range.
            let key = log.key(start);
            if let Some(value) = kv.get(family, &key)? {
                take(&key, &value);
                log.passed(value.len() as u64);
            }
            return Ok(());
        }
        kv.range(family, &log.key(start)[..]..&log.key(end)[..], &mut take)?;
        log.passed(self.bytes.len() as u64);
        Ok(())
    }
}
