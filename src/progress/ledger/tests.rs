//! The ledger compared with a set of indices, and how many bytes its saves cost.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const NAME: &str = "blocks";

/// The true state, the content of the disk, and the ledger that writes it.
struct Life {
    next: Index,
    ahead: BTreeSet<Index>,
    new: BTreeSet<Index>,
    watermark: bool,
    ledger: Ledger,
    disk: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: usize,
}

impl Life {
    fn new(first: Index) -> Self {
        let mut ledger = Ledger::empty(NAME);
        ledger.set_id(7);
        let (ahead, new, disk) = Default::default();
        Self { next: first, ahead, new, watermark: false, ledger, disk, bytes: 0 }
    }

    fn done(&mut self, index: Index) {
        if index >= self.next && self.ahead.insert(index) {
            self.new.insert(index);
            while self.ahead.remove(&self.next) {
                self.next += 1;
                self.watermark = true;
            }
        }
    }

    fn snapshot(&self) -> Snapshot {
        let ahead = if self.ledger.wants_page() {
            let first = self.next / 64 * 64;
            let last = self.ahead.last().map_or(0, |last| last / 64 - first / 64 + 1);
            let mut words = vec![0; last as usize];
            self.ahead.iter().for_each(|i| words[((i - first) / 64) as usize] |= 1 << (i % 64));
            DoneAhead::All { first, words }
        } else {
            DoneAhead::New(self.new.range(self.next..).copied().collect())
        };
        Snapshot {
            last_processed: self.watermark.then(|| self.next - 1),
            next: self.next,
            ahead,
            life: None,
            batch: None,
        }
    }

    /// Makes a save. A failed save may be on the disk nevertheless.
    fn save(&mut self, succeeds: bool, is_there: bool) {
        let entry = self.ledger.entry(&self.snapshot()).unwrap();
        let (key, value) = entry.put.clone();
        self.bytes += key.len() + value.len();
        if succeeds || is_there {
            self.disk.insert(key, value);
        }
        if succeeds {
            self.ledger.written(&entry);
            self.new.clear();
        }
    }

    fn load(&self) -> Result<Option<Loaded>, Error> {
        let Some(page) = self.disk.get(&format::page_key(NAME)) else { return Ok(None) };
        let deltas = self.disk.iter().filter(|(key, _)| key.starts_with(&format::delta_prefix(7)));
        Ledger::load(NAME, page, deltas.map(|(k, v)| Ok((k.clone(), v.clone())))).map(Some)
    }

    /// Checks that the next life finds everything that was true at the last save.
    fn expect(&self) {
        let Some(loaded) = self.load().unwrap() else { return assert!(!self.watermark && self.ahead.is_empty()) };
        assert_eq!(loaded.next, self.next);
        assert_eq!(loaded.last_processed, self.watermark.then(|| self.next - 1));
        let done: BTreeSet<Index> = loaded.done.into_iter().flatten().filter(|i| *i >= self.next).collect();
        assert_eq!(done, self.ahead);
    }
}

fn corrupt(result: Result<Option<Loaded>, Error>) -> bool {
    matches!(result, Err(Error::Corrupt { name, .. }) if name == NAME)
}

proptest! {
    #[test]
    fn promise_10_what_was_saved_is_found_again(
        first in prop_oneof![Just(0), 0..300u64, Just(Index::MAX - 200)],
        steps in proptest::collection::vec((proptest::collection::vec(0..190u64, 0..30), any::<u8>()), 0..60),
    ) {
        let mut life = Life::new(first);
        for (done, then) in steps {
            done.iter().for_each(|by| life.done(life.next.max(first).saturating_add(*by).min(Index::MAX - 1)));
            if then % 8 == 0 {
                life.save(false, then >= 128);
            }
            life.save(true, true);
            life.expect();
            if then % 5 == 0 {
                life.ledger = life.load().unwrap().unwrap().ledger;
            }
        }
    }

    #[test]
    fn promise_08_any_flipped_bit_or_missing_delta_is_refused(
        done in proptest::collection::vec(0..5_000u64, 1..60), at in any::<prop::sample::Index>(), bit in any::<prop::sample::Index>(),
    ) {
        let mut life = Life::new(0);
        done.chunks(4).for_each(|done| {
            done.iter().for_each(|index| life.done(*index));
            life.save(true, true);
        });
        let key = at.get(&life.disk.keys().cloned().collect::<Vec<_>>()).clone();
        let value = life.disk.get_mut(&key).unwrap();
        let bit = bit.index(value.len() * 8);
        value[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(corrupt(life.load()));
        life.disk.get_mut(&key).unwrap()[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(life.load().is_ok());
        let last = life.disk.keys().rfind(|key| key[0] == b'd').cloned();
        if key[0] == b'd' && Some(&key) != last.as_ref() {
            life.disk.remove(&key);
            prop_assert!(corrupt(life.load()));
        }
    }
}

#[test]
fn promise_10_a_save_costs_24_bytes_and_3_per_job() {
    const WINDOW: u64 = 100_000;
    for each in [1, 2, 3, 5, 10, 30, 100, 1_000, 4_000] {
        let mut random = fastrand::Rng::with_seed(each);
        let mut life = Life::new(0);
        life.done(0);
        life.save(true, true);
        life.bytes = 0;
        // The next job starts as soon as another is done, so the window slides.
        let mut running: Vec<Index> = (1..=WINDOW).collect();
        let mut started = WINDOW;
        let commits = (100_000 / each).min(8_000);
        for _ in 0..commits {
            for _ in 0..each {
                let at = random.usize(..running.len());
                life.done(running[at]);
                started += 1;
                running[at] = started;
            }
            life.save(true, true);
        }
        let most = commits * (24 + 3 * each);
        assert!(life.bytes as u64 <= most, "{each} a save: {} bytes, and {most} are allowed", life.bytes);
        life.expect();
    }
}

#[test]
fn slots_of_void_deltas_are_reused() {
    let mut life = Life::new(0);
    for index in (1..80_000).step_by(2) {
        life.done(index);
        life.save(true, true);
    }
    let slots = life.disk.len();
    assert!(slots < 20_000, "{slots} keys for 40,000 saves");
    life.expect();
    assert_eq!(life.load().unwrap().unwrap().ledger.page.unwrap().slots, life.ledger.page.unwrap().slots);
}

#[test]
fn deltas_of_an_earlier_page_are_void_near_the_last_index() {
    // Added to the lowest index of the second page, the distances in these deltas would overflow.
    let mut life = Life::new(Index::MAX - 100_000);
    let page = |life: &Life| life.ledger.page.map(|page| page.series.generation);
    life.save(true, true);
    while page(&life) == Some(0) {
        (0..20).for_each(|_| life.done(life.next));
        life.save(true, true);
    }
    life.done(Index::MAX - 10);
    life.save(true, true);
    assert_eq!(page(&life), Some(1));
    life.expect();
}
