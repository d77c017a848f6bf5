//! A model of a server: writers, a sequence, and a log that a crash cuts. Random steps look for an
//! id that was said to be final and gets a row later.

use super::{Holder, Looks, Lsn, Seen};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::collections::{BTreeMap, BTreeSet};

/// The writers, which take turns.
const WRITERS: usize = 4;
/// The values of the sequence that one record of the log covers; 32 on a real server.
const COVERED: i64 = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Takes the lock, or an id, or inserts a row of it.
    Write(usize),
    Commit(usize, bool),
    Rollback(usize),
    Prepare(usize),
    /// The nth prepared transaction, modulo how many there are.
    Finish(usize, bool),
    /// Flushes a part of what the log has.
    Flush(u8),
    /// The next of the three parts of a look.
    Look,
    Crash,
}

/// The rule that is left out, to show that the model needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    Holders,
    Flush,
    Prepared,
    /// The value is read last.
    Order,
    /// The position is read first.
    Position,
    Void,
}

#[derive(Clone, Debug, Default)]
struct Transaction {
    id: String,
    ids: Vec<i64>,
}

enum Part {
    Value(i64),
    Holders(Vec<Holder>),
    Position(u64),
}

#[derive(Default)]
struct World {
    renames: bool,
    writers: [Option<Transaction>; WRITERS],
    prepared: Vec<Transaction>,
    begun: u64,
    /// The last value, and the values that the log covers, each with the position of its record.
    value: i64,
    covered: i64,
    records: Vec<(u64, i64)>,
    log: u64,
    flushed: u64,
    /// The rows, with the position of their commit.
    rows: BTreeMap<i64, u64>,
    looks: Looks,
    /// The parts of the current look that were read.
    parts: Vec<Part>,
    /// The ids that were said to be gaps.
    gaps: BTreeSet<i64>,
}

impl World {
    fn holders(&self) -> Vec<Holder> {
        let holder = |prepared| move |transaction: &Transaction| Holder { id: transaction.id.clone(), prepared };
        let running = self.writers.iter().flatten().map(holder(false));
        running.chain(self.prepared.iter().map(holder(true))).collect()
    }

    fn commit(&mut self, transaction: Transaction, flush: bool) {
        self.log += 1;
        for id in transaction.ids {
            assert!(!self.gaps.contains(&id), "{id} was said to be a gap");
            self.rows.insert(id, self.log);
        }
        if flush {
            self.flushed = self.log;
        }
    }

    fn write(&mut self, writer: usize) {
        match &mut self.writers[writer] {
            none @ None => {
                self.begun += 1;
                *none = Some(Transaction { id: format!("{writer}/{}", self.begun), ids: Vec::new() });
            }
            Some(transaction) => {
                self.value += 1;
                transaction.ids.push(self.value);
                if self.value > self.covered {
                    self.log += 1;
                    self.covered = self.value + COVERED;
                    self.records.push((self.log, self.covered));
                }
            }
        }
    }

    /// Reads the next part of a look, which the third one ends.
    fn look(&mut self, without: Without) {
        let order = match without {
            Without::Order => [1, 2, 0],
            Without::Position => [2, 0, 1],
            _ => [0, 1, 2],
        };
        let part = match order[self.parts.len()] {
            0 => Part::Value(self.value),
            1 => Part::Holders(self.holders()),
            _ => Part::Position(self.log),
        };
        self.parts.push(part);
        if self.parts.len() < 3 {
            return;
        }
        let flushed = Lsn(if without == Without::Flush { u64::MAX } else { self.flushed });
        let mut seen = Seen { last: None, holders: Vec::new(), inserted: Lsn(0), flushed };
        for part in self.parts.drain(..) {
            match part {
                Part::Value(value) => seen.last = (value > 0).then_some(value),
                Part::Holders(holders) => seen.holders = holders,
                Part::Position(position) => seen.inserted = Lsn(position),
            }
        }
        let left_out = |holder: &Holder| without == Without::Holders || without == Without::Prepared && holder.prepared;
        seen.holders.retain(|holder| !left_out(holder));
        self.looks.look(seen);
        let settled = self.looks.settled().unwrap_or(0);
        self.gaps.extend((1..=settled).filter(|id| !self.rows.contains_key(id)));
    }

    /// The server crashes, and comes back with what was flushed.
    fn crash(&mut self, without: Without) {
        let flushed = self.flushed;
        self.writers = Default::default();
        self.rows.retain(|_, committed| *committed <= flushed);
        self.records.retain(|(at, _)| *at <= flushed);
        self.covered = self.records.last().map_or(0, |(_, covered)| *covered);
        self.value = self.covered;
        self.log = flushed;
        self.parts.clear();
        if without != Without::Void {
            self.looks.void();
        }
    }

    fn step(&mut self, step: Step, without: Without) {
        match step {
            Step::Write(writer) => self.write(writer),
            Step::Commit(writer, flush) => {
                if let Some(transaction) = self.writers[writer].take() {
                    self.commit(transaction, flush);
                }
            }
            Step::Rollback(writer) => _ = self.writers[writer].take(),
            Step::Prepare(writer) => {
                if let Some(mut transaction) = self.writers[writer].take() {
                    self.log += 1;
                    self.flushed = self.log;
                    if self.renames {
                        transaction.id = format!("-1/{}", self.log);
                    }
                    self.prepared.push(transaction);
                }
            }
            Step::Finish(at, commits) => {
                if !self.prepared.is_empty() {
                    let transaction = self.prepared.swap_remove(at % self.prepared.len());
                    if commits {
                        self.commit(transaction, true);
                    }
                }
            }
            Step::Flush(part) => self.flushed += (self.log - self.flushed) * u64::from(part) / 255,
            Step::Look => self.look(without),
            Step::Crash => self.crash(without),
        }
    }

    /// Ends all that runs, so that each id is final.
    fn end(&mut self) {
        self.writers = Default::default();
        std::mem::take(&mut self.prepared).into_iter().for_each(|transaction| self.commit(transaction, true));
        self.parts.clear();
        (0..3).for_each(|_| self.look(Without::Nothing));
        self.flushed = self.log;
        self.looks.flushed(Lsn(self.flushed));
        assert_eq!(self.looks.settled().unwrap_or(0), self.value);
        assert!(!self.looks.is_waiting(), "all have ended");
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let writer = || 0..WRITERS;
    let step = prop_oneof![
        8 => writer().prop_map(Step::Write),
        3 => (writer(), any::<bool>()).prop_map(|(writer, flush)| Step::Commit(writer, flush)),
        1 => writer().prop_map(Step::Rollback),
        1 => writer().prop_map(Step::Prepare),
        1 => (0..3_usize, any::<bool>()).prop_map(|(at, commits)| Step::Finish(at, commits)),
        1 => any::<u8>().prop_map(Step::Flush),
        8 => Just(Step::Look),
        1 => Just(Step::Crash),
    ];
    proptest::collection::vec(step, 0..120)
}

fn run(steps: &[Step], renames: bool, without: Without) {
    let mut world = World { renames, ..World::default() };
    steps.iter().for_each(|step| world.step(*step, without));
    world.end();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_final_id_gets_a_row_and_all_become_final(
        steps in steps(),
        renames in any::<bool>(),
    ) {
        run(&steps, renames, Without::Nothing);
    }
}

#[test]
fn each_omitted_rule_is_found() {
    for without in
        [Without::Holders, Without::Flush, Without::Prepared, Without::Order, Without::Position, Without::Void]
    {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let found = (0..20_000).any(|_| {
            let steps = steps().new_tree(&mut runner).expect("there are steps").current();
            std::panic::catch_unwind(|| run(&steps, true, without)).is_err()
        });
        assert!(found, "{without:?} does no harm");
    }
}
