//! Items that a log keeps only for parked jobs, beside a model: none that may still run is lost,
//! and nothing else stays.

use common::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use waterline::testing::FaultyStore;
use waterline::{Consumer, Error, Failure, Index, JobLog, Jobs, OnExhausted, Store};

/// The model of a log with one consumer.
#[derive(Debug, Default)]
struct Model {
    head: Index,
    first: Index,
    parked: BTreeSet<Index>,
    wanted: BTreeSet<Index>,
}

/// The disk of the log: one that crashes, or the engine of the tests.
enum Disk {
    Crashing(Arc<FaultyStore>),
    Engine(Place),
}

impl Disk {
    fn open(&self) -> Store {
        match self {
            Self::Crashing(disk) => disk.store(),
            Self::Engine(place) => place.open(),
        }
    }

    /// Loses what is only in memory.
    fn crash(&mut self) {
        if let Self::Crashing(disk) = self {
            *disk = Arc::new(disk.after_crash().unwrap());
        }
    }
}

fn item(index: Index) -> u64 {
    index * 7
}

fn read(log: &JobLog<u64>, index: Index) -> Option<u64> {
    log.at_index(index).unwrap_or_else(|error| {
        let error = error.downcast::<Error>().unwrap();
        assert!(matches!(*error, Error::Truncated { next, .. } if next == index), "{error:?}");
        None
    })
}

impl Model {
    /// Checks which items are there. With `exact` the consumer runs, so no others may be.
    fn check(&self, store: &Store, log: &JobLog<u64>, exact: bool) {
        assert_eq!((log.first().unwrap(), log.head().unwrap().unwrap_or(0)), (self.first, self.head));
        let there: BTreeSet<Index> = (1..self.first).filter(|index| read(log, *index).is_some()).collect();
        for index in there.iter().copied().chain(self.first..=self.head) {
            assert_eq!(read(log, index), Some(item(index)));
        }
        let wanted: BTreeSet<Index> = self.parked.iter().copied().filter(|index| *index < self.first).collect();
        assert!(there.is_superset(&wanted), "lost: {there:?}, {self:?}");
        assert!(!exact || there == wanted, "left: {there:?}, {self:?}");
        assert_eq!(store.logs().unwrap()[0].parked, there.len() as u64);
    }

    /// Runs a life that fails at every `poison`-th job, and trims automatically or by hand.
    fn live(&mut self, store: &Store, log: &JobLog<u64>, poison: u64, by_hand: bool) {
        let fails = move |index: Index| index.is_multiple_of(poison);
        let park = OnExhausted::Park { budget: 10_000 };
        let consumer = Consumer::builder(log.clone(), store.progress("p")).on_exhausted(park).max_processing(2);
        let before = self.first;
        let consumer = consumer
            .start(move |job| {
                assert_eq!(job.payload, item(job.index));
                if fails(job.index) { Err(Failure::permanent("poison").into()) } else { Ok(()) }
            })
            .unwrap();
        // Trims by hand need not wait for consumers that an earlier life named.
        log.retain((!by_hand).then(|| consumer.handle()));
        assert!(self.head == 0 || consumer.handle().wait_for(self.head, LONG));
        self.parked.extend((before..=self.head).filter(|index| fails(*index)));
        for index in std::mem::take(&mut self.wanted) {
            if !fails(index) {
                self.parked.remove(&index);
            }
        }
        self.first = self.head + 1;
        let is_done = || {
            let records = store.parked("p").unwrap();
            records.iter().map(|job| job.index).eq(self.parked.iter().copied())
                && records.iter().all(|job| !job.redrive_wanted)
        };
        eventually("the jobs that run once more", is_done);
        eventually("the trim", || {
            if by_hand {
                log.trim(..=self.head).unwrap();
            }
            log.first().unwrap() == self.first && store.logs().unwrap()[0].parked == self.parked.len() as u64
        });
        self.check(store, log, true);
        consumer.stop().unwrap();
    }

    fn any_parked(&self, random: &mut fastrand::Rng) -> Option<Index> {
        let nth = random.usize(0..self.parked.len().max(1));
        self.parked.iter().nth(nth).copied()
    }
}

fn random_life(mut disk: Disk, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut model = Model { first: 1, ..Model::default() };
    let mut open = (disk.open(), None);
    for _ in 0..size(25, 60) {
        let (store, log) = &mut open;
        let log = log.get_or_insert_with(|| store.log::<u64>("l").unwrap());
        match random.u8(0..9) {
            0 | 1 => {
                let more = random.u64(1..30);
                log.push_all(&(model.head + 1..=model.head + more).map(item).collect::<Vec<_>>()).unwrap();
                model.head += more;
            }
            2 | 3 => model.live(store, log, random.u64(2..6), random.bool()),
            4 => {
                if let Some(index) = model.any_parked(&mut random) {
                    store.redrive("p", index).unwrap();
                    model.wanted.insert(index);
                }
            }
            5 => {
                if let Some(index) = model.any_parked(&mut random) {
                    store.discard("p", index).unwrap();
                    model.parked.remove(&index);
                    model.wanted.remove(&index);
                }
            }
            6 => {
                let from = random.u64(0..model.head + 1);
                let range = from..from + random.u64(0..40);
                let many = model.parked.iter().filter(|index| range.contains(index)).count() as u64;
                assert_eq!(store.discard_all("p", range.clone()).unwrap(), many);
                model.parked.retain(|index| !range.contains(index));
                model.wanted.retain(|index| !range.contains(index));
            }
            reopens => {
                drop(open);
                if reopens == 7 {
                    disk.crash();
                }
                open = (disk.open(), None);
                continue;
            }
        }
        model.check(store, log, false);
    }
}

#[test]
fn promise_01_exactly_the_needed_items_are_kept() {
    for seed in seeds(8, 300) {
        random_life(Disk::Crashing(Arc::new(FaultyStore::new().unwrap())), seed);
    }
}

#[test]
fn exactly_the_needed_items_are_kept_on_a_disk() {
    for seed in seeds(2, 50) {
        random_life(Disk::Engine(Place::default()), 1_000 + seed);
    }
}
