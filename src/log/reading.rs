//! Reads a log in order, with a prefetch: each database read costs as much as a dozen items, so the
//! items that a consumer will ask for next are read, too. If the consumer uses them about as fast
//! as they are read, a thread reads the next ones meanwhile.

use super::{bounds::index_of, state::LogState};
use crate::base::{Index, error::StoreError, sync::Arc, time};
use crate::kv::{Family, Kv};
use std::ops::Range;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The bounds of the prefetch: this many items, and none more after this many bytes.
const ITEMS: u64 = 1024;
const BYTES: usize = 256 * 1024;

/// The most items that a thread reads: starting it costs as much as reading a hundred.
const BY_THREAD: u64 = 4 * ITEMS;

/// A read that takes this long is worth a thread, which costs a tenth of it to start.
const WORTH_A_THREAD: Duration = Duration::from_micros(200);

/// If using the items takes this many times as long as reading them, a thread saves under a tenth.
const SLOW_USE: u32 = 10;

/// Where the items are: their database, and their log.
#[derive(Clone, Copy)]
pub(super) struct ItemSource<'a> {
    pub(super) kv: &'a Arc<dyn Kv>,
    pub(super) family: &'a Family,
    pub(super) log: &'a Arc<LogState>,
}

/// Stored items that were read but not yet asked for. They stay valid, as items never change.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    /// The index after the last one that was asked for.
    next: Index,
    read: Items,
    /// The thread that reads the next items.
    thread: Option<JoinHandle<Result<Items, StoreError>>>,
}

/// Consecutive items, as stored.
#[derive(Debug, Default)]
struct Items {
    bytes: Vec<u8>,
    /// The end of each item.
    ends: Vec<usize>,
    /// How many items were taken.
    taken: usize,
    /// How long it took to read them, and when that ended.
    looked: Option<(Duration, Instant)>,
}

impl ReadAhead {
    /// Shows the items of this run, in order, until `each` returns false or an item is missing.
    pub(super) fn read(
        &mut self,
        place: ItemSource<'_>,
        run: Range<Index>,
        each: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), StoreError> {
        let in_order = self.next == run.start;
        if !in_order {
            self.read.forget();
            self.wait();
        }
        self.next = run.start;
        while self.next < run.end {
            if self.read.is_used_up() {
                self.fill(place, if in_order { run.end.max(self.next + ITEMS) } else { run.end })?;
            }
            let Some(item) = self.read.item() else { break };
            if !each(item) {
                break;
            }
            self.read.taken += 1;
            self.next += 1;
        }
        if self.read.is_used_up() {
            self.read.forget();
        }
        Ok(())
    }

    /// Waits for the reading thread, if there is one, and takes its items.
    fn wait(&mut self) -> Option<Items> {
        // A read that failed there is repeated here, and then reports why.
        self.thread.take()?.join().ok()?.ok()
    }

    /// Reads from the next index on, up to `end` at most.
    fn fill(&mut self, place: ItemSource<'_>, end: Index) -> Result<(), StoreError> {
        let is_worth_a_thread = self.read.is_worth_a_thread(time::now());
        let came = self.wait().filter(|came| !came.ends.is_empty());
        let mut used_up = std::mem::take(&mut self.read);
        match came {
            Some(came) => self.read = came,
            None => self.read = std::mem::take(&mut used_up).look(place, self.next, end)?,
        }
        if is_worth_a_thread && self.read.is_full() {
            let (kv, family, log) = (place.kv.clone(), place.family.clone(), place.log.clone());
            let first = self.next + self.read.ends.len() as Index;
            let look =
                move || used_up.look(ItemSource { kv: &kv, family: &family, log: &log }, first, first + BY_THREAD);
            // Without a thread they are read on demand.
            self.thread = std::thread::Builder::new().name("wl-ahead".to_owned()).spawn(look).ok();
        }
        Ok(())
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        // Until then the thread holds the database.
        self.wait();
    }
}

impl Items {
    fn is_used_up(&self) -> bool {
        self.taken == self.ends.len()
    }

    /// True if more may follow.
    fn is_full(&self) -> bool {
        self.ends.len() as u64 >= ITEMS || self.bytes.len() >= BYTES
    }

    /// True if a thread would have saved time by reading these while the previous ones were used.
    fn is_worth_a_thread(&self, now: Instant) -> bool {
        let Some((took, ended)) = self.looked else { return false };
        took >= WORTH_A_THREAD && now.saturating_duration_since(ended) < took.saturating_mul(SLOW_USE)
    }

    /// Returns the first item that was not taken.
    fn item(&self) -> Option<&[u8]> {
        let start = self.taken.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.bytes[start..*self.ends.get(self.taken)?])
    }

    fn forget(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(BYTES);
        self.ends.clear();
        self.taken = 0;
    }

    /// Reads the items from `first` on into the memory of these.
    fn look(
        mut self,
        ItemSource { kv, family, log }: ItemSource<'_>,
        first: Index,
        end: Index,
    ) -> Result<Self, StoreError> {
        let begun = time::now();
        self.forget();
        let end = end.min(log.end());
        let mut expected = first;
        let mut take = |key: &[u8], value: &[u8]| {
            if index_of(key) != Some(expected) {
                return false;
            }
            self.bytes.extend_from_slice(value);
            self.ends.push(self.bytes.len());
            expected += 1;
            self.bytes.len() < BYTES
        };
        if end.saturating_sub(first) == 1 {
            // Cheaper than a range.
            let key = log.key(first);
            if let Some(value) = kv.get(family, &key)? {
                take(&key, &value);
            }
        } else if first < end {
            kv.range(family, &log.key(first)[..]..&log.key(end)[..], &mut take)?;
        }
        log.passed(self.bytes.len() as u64);
        let ended = time::now();
        self.looked = Some((ended - begun, ended));
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{Each, double::Double, memory::MemoryKv};
    use crate::log::JobLog;
    use crate::{Bytes, Jobs as _, Store, StoreOptions};
    use parking_lot::Mutex;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    type Log = JobLog<Vec<u8>, Bytes>;

    /// A database with a scripted result for each of the next range reads.
    #[derive(Default)]
    struct Moody {
        memory: MemoryKv,
        looks: Mutex<VecDeque<Look>>,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Look {
        Good,
        Fails,
        Panics,
    }

    impl Double for Moody {
        fn memory(&self) -> &MemoryKv {
            &self.memory
        }

        fn range(&self, family: &Family, keys: Range<&[u8]>, each: Each<'_>) -> Result<(), StoreError> {
            let look = self.looks.lock().pop_front().unwrap_or(Look::Good);
            match look {
                Look::Good => self.memory.range(family, keys, each),
                Look::Fails => Err(StoreError::new("read".to_owned(), "the disk is away".into())),
                Look::Panics => panic!("the disk is away"),
            }
        }
    }

    /// An item of this log. Some blocks end by their bytes, and some by their count.
    fn item(index: Index) -> Vec<u8> {
        index.to_be_bytes().repeat(if index.is_multiple_of(3_000) { 40_000 } else { 1 })
    }

    fn opened(items: Index) -> (Arc<Moody>, Log) {
        let kv = Arc::new(Moody::default());
        let store = Store::on(kv.clone(), &StoreOptions::default(), &"memory").unwrap();
        let log = store.log_with::<Vec<u8>, _>("l", Bytes).unwrap();
        log.push_all(&(1..=items).map(item).collect::<Vec<_>>()).unwrap();
        (kv, log)
    }

    /// Reads this many items from `first` on, as if each read had taken long before.
    fn read(log: &Log, first: Index, items: Index) -> Result<Vec<Vec<u8>>, crate::BoxError> {
        log.ahead.lock().read.looked = Some((Duration::from_secs(60), time::now()));
        let mut into = Vec::new();
        log.read(first..=first + items - 1, &mut into).map(|()| into)
    }

    #[test]
    fn only_slow_reads_of_items_in_demand_get_a_thread() {
        let now = time::now();
        let (ms, us) = (Duration::from_millis, Duration::from_micros);
        for (took, used, is_worth) in
            [(us(199), us(1), false), (us(200), us(1), true), (ms(1), ms(9), true), (ms(1), ms(10), false)]
        {
            let items = Items { looked: Some((took, now)), ..Items::default() };
            assert_eq!(items.is_worth_a_thread(now + used), is_worth, "{took:?}, used in {used:?}");
        }
        assert!(!Items::default().is_worth_a_thread(now));
    }

    #[test]
    fn a_failed_prefetch_is_read_again() {
        for look in [Look::Fails, Look::Panics] {
            let (kv, log) = opened(5_000);
            // The first read and the next one succeed. Then the thread reads.
            *kv.looks.lock() = [Look::Good, Look::Good, look].into();
            for first in (1..5_000).step_by(64) {
                let items = 64.min(5_001 - first);
                assert_eq!(read(&log, first, items).unwrap(), (first..first + items).map(item).collect::<Vec<_>>());
            }
            assert!(kv.looks.lock().is_empty());
            // A read that fails here, too, is reported.
            *kv.looks.lock() = [Look::Good, Look::Good, look, look].into();
            let failed = (1..5_000).step_by(64).find(|first| read(&log, *first, 64).is_err());
            assert_eq!((failed, kv.looks.lock().len()), (Some(1 + 64 + ITEMS), 0), "{look:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Returns the items that exist, whatever is asked for, in order or not, while items come
        /// and go. No thread holds the database once the log is dropped.
        #[test]
        fn items_are_read_as_they_were_pushed(steps in prop::collection::vec((0_u8..12, 1_u64..1_500), 1..40)) {
            let (kv, log) = opened(4_000);
            let (mut next, mut first, mut end) = (1, 1, 4_001);
            for (step, number) in steps {
                match step {
                    0 => next = first + number % (end - first),
                    1 => {
                        log.push_all(&(end..end + number).map(item).collect::<Vec<_>>()).unwrap();
                        end += number;
                    }
                    2 => {
                        first = (first + number / 4).min(end - 1);
                        log.trim(..=first - 1).unwrap();
                        next = next.max(first);
                    }
                    _ => {
                        let items = number.min(end - next);
                        if items > 0 {
                            let expected: Vec<_> = (next..next + items).map(item).collect();
                            prop_assert!(read(&log, next, items).unwrap() == expected, "{items} from {next} on");
                            next += items;
                        }
                    }
                }
            }
            let shared = Arc::downgrade(&kv);
            drop((log, kv));
            prop_assert_eq!(shared.strong_count(), 0, "nobody has the database any more");
        }
    }
}
