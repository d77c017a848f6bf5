//! Concurrent jobs of several consumers and writes of the user, which put, add, clear and push.
//! Each notes its changes in a log by the same write, so the log has all changes in order. At any
//! time, and after any crash, the store must be what a replay of the log gives.

use common::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use waterline::testing::FaultyStore;
use waterline::{BoxError, Consumer, Effects, Error, JobLog, Jobs, Retry, Store, Table};

const PUT: u8 = 0;
const DELETE: u8 = 1;
const ADD: u8 = 2;
const CLEAR: u8 = 3;
const PUSH: u8 = 4;
const CLEAR_LOG: u8 = 5;
/// Puts a value that is no counter, so that the next add is refused.
const TEXT: u8 = 6;

const KINDS: [u8; 16] =
    [PUT, PUT, DELETE, ADD, ADD, ADD, ADD, ADD, ADD, CLEAR, CLEAR, CLEAR, PUSH, PUSH, CLEAR_LOG, TEXT];

/// One change: its kind, a table, a key, and a number.
type Change = (u8, usize, u8, i64);

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn changes(seed: u64) -> Vec<Change> {
    let mut random = fastrand::Rng::with_seed(seed);
    let change = |random: &mut fastrand::Rng| {
        let number = if random.u8(..40) == 0 { i64::MAX } else { random.i64(-3..4) };
        (KINDS[random.usize(..KINDS.len())], random.usize(..2), 0xff - random.u8(..4), number)
    };
    (0..random.u8(..5)).map(|_| change(&mut random)).collect()
}

/// A store with a table, a family of its own, and two logs.
#[derive(Clone)]
struct Home {
    store: Store,
    tables: [Table; 2],
    items: JobLog<i64>,
    /// All changes, in order.
    told: JobLog<Vec<Change>>,
    attempts: Arc<AtomicU64>,
}

/// The tables, the first index of the items, and the items.
#[derive(Debug, PartialEq)]
struct State {
    tables: [Rows; 2],
    first: u64,
    items: Vec<i64>,
}

fn all<T: Send + 'static>(log: &JobLog<T>) -> Vec<T>
where
    JobLog<T>: Jobs<Job = T>,
{
    let (first, mut items) = (log.first().unwrap(), Vec::new());
    if let Some(head) = log.head().unwrap().filter(|head| *head >= first) {
        log.read(first..=head, &mut items).unwrap();
    }
    items
}

impl Home {
    fn on(store: &Store) -> Self {
        let tables = [store.table("rows").unwrap(), theirs(store)];
        let (items, told) = (store.log("items").unwrap(), store.log("told").unwrap());
        Self { store: store.clone(), tables, items, told, attempts: Arc::default() }
    }

    fn ask(&self, changes: &Vec<Change>, effects: &mut Effects) -> Result<(), Error> {
        effects.push(&self.told, changes)?;
        for &(kind, table, key, number) in changes {
            let (table, key) = (&self.tables[table], [key]);
            match kind {
                PUT => effects.put(table, key, number.to_be_bytes())?,
                DELETE => effects.delete(table, key)?,
                ADD => effects.add(table, key, number)?,
                CLEAR => effects.clear(table)?,
                PUSH => effects.push(&self.items, &number)?,
                CLEAR_LOG => effects.clear_log(&self.items)?,
                _ => effects.put(table, key, "no counter")?,
            }
        }
        Ok(())
    }

    fn state(&self) -> State {
        let tables = [0, 1].map(|table| self.tables[table].iter().collect::<Result<_, _>>().unwrap());
        State { tables, first: self.items.first().unwrap(), items: all(&self.items) }
    }

    /// Returns the state that a replay of the log gives.
    fn replayed(&self) -> State {
        let (mut tables, mut first, mut items) = ([Rows::new(), Rows::new()], 1, Vec::new());
        for (kind, table, key, number) in all(&self.told).into_iter().flatten() {
            let (table, key) = (&mut tables[table], vec![key]);
            match kind {
                PUT => drop(table.insert(key, number.to_be_bytes().to_vec())),
                DELETE => drop(table.remove(&key)),
                ADD => {
                    let row = table.entry(key).or_insert_with(|| 0i64.to_be_bytes().to_vec());
                    let count = i64::from_be_bytes(row.as_slice().try_into().expect("the add was to be refused"));
                    *row = count.checked_add(number).expect("the add was to be refused").to_be_bytes().to_vec();
                }
                CLEAR => table.clear(),
                PUSH => items.push(number),
                CLEAR_LOG => first += items.drain(..).len() as u64,
                _ => drop(table.insert(key, b"no counter".to_vec())),
            }
        }
        State { tables, first, items }
    }

    #[track_caller]
    fn check(&self) {
        assert_eq!(self.state(), self.replayed(), "{:?}", all(&self.told));
    }

    /// Starts a consumer whose jobs make other changes in each attempt, so that the next life can
    /// do a refused job.
    fn consumer(&self, name: &str, jobs: u64, max_effects: usize) -> Consumer {
        let home = self.clone();
        let builder = Consumer::builder(numbers(jobs), self.store.progress(name))
            .max_processing(4)
            .max_effects(max_effects)
            .stop_at(jobs - 1)
            .retry(Retry::fixed(Duration::ZERO).max_attempts(3));
        let consumer = builder.start_transactional(move |job, effects| {
            home.ask(&changes(job.index << 32 | home.attempts.fetch_add(1, Ordering::Relaxed)), effects)?;
            if job.attempt == 1 && job.index % 5 == 0 { Err::<(), BoxError>("again".into()) } else { Ok(()) }
        });
        consumer.unwrap()
    }

    /// Runs two consumers beside writes, and returns the number of writes and that of consumers
    /// whose add was refused.
    fn live(&self, seed: u64) -> [u64; 2] {
        self.attempts.store(seed << 16, Ordering::Relaxed);
        let consumers = [self.consumer("few", 40, 600), self.consumer("many", 60, 1 << 20)];
        let mut refused = [0, 0];
        for number in 0..30 {
            match self.store.write(|effects| self.ask(&changes(!(seed << 16 | number)), effects)) {
                Ok(()) | Err(Error::Store(_)) => {}
                Err(Error::Counter { .. }) => refused[0] += 1,
                Err(error) => panic!("{error:?}"),
            }
        }
        for consumer in consumers {
            match consumer.join() {
                Ok(()) | Err(Error::Progress { .. }) => {}
                Err(Error::Job { source, .. }) if matches!(source.downcast_ref(), Some(Error::Counter { .. })) => {
                    refused[1] += 1;
                }
                Err(error) => panic!("{error:?}"),
            }
        }
        refused
    }
}

#[test]
fn promise_09_replayed_writes_make_the_store_at_any_crash() {
    let mut refused = [0, 0];
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut disk = FaultyStore::new().unwrap();
        for life in 0..3 {
            let home = Home::on(&disk.store());
            disk.freeze_at(random.u64(..40));
            let first = random.u64(..30);
            disk.fail(first..first + random.u64(..3));
            let [writes, jobs] = home.live(seed << 2 | life);
            refused = [refused[0] + writes, refused[1] + jobs];
            home.check();
            disk = disk.after_crash().unwrap();
            Home::on(&disk.store()).check();
        }
    }
    assert!(refused.iter().all(|refused| *refused > 30), "it proves little: {refused:?} adds were refused");
}

#[test]
fn promise_09_replayed_writes_make_the_store_in_each_life() {
    for seed in 0..10 {
        let place = Place::with_theirs();
        for life in 0..3 {
            let home = Home::on(&place.open());
            home.check();
            home.live(seed << 2 | life);
            home.check();
        }
    }
}
