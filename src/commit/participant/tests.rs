//! A toy product whose jobs move from state to state, in batches that are made step by step.

use super::*;
use crate::base::sync::{Mutex, Ordering};
use crate::commit::batches::{Batches, Pending};
use crate::commit::{changes::Changes, draft::Draft, intent::Intent};
use crate::kv::{Family, batch::Batch, memory::MemoryKv};
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

/// A row per job, whose value is its state. An operation moves a job to its next state.
struct Toy {
    family: Family,
    /// How many moves are written.
    moves: Mutex<u64>,
    copies: Arc<AtomicUsize>,
}

struct ToyTail {
    moves: u64,
    copies: Arc<AtomicUsize>,
}

impl Clone for ToyTail {
    fn clone(&self) -> Self {
        self.copies.fetch_add(1, Ordering::Relaxed);
        Self { moves: self.moves, copies: self.copies.clone() }
    }
}

impl Participant for Toy {
    type Staged = ToyTail;

    fn staged(&self) -> ToyTail {
        ToyTail { moves: *self.moves.lock(), copies: self.copies.clone() }
    }

    fn apply(&self, staged: &mut ToyTail, op: &[u8], batch: &mut Overlay<'_>) -> Result<(), BoxError> {
        let state = batch.get(&self.family, op)?.ok_or("there is no such job")?;
        let next = match state.as_slice() {
            b"waiting" => "running",
            b"running" => "done",
            _ => return Err("it is done".into()),
        };
        batch.put(self.family.id, &[op], &[next.as_bytes()])?;
        staged.moves += 1;
        Ok(())
    }

    fn publish(self: Arc<Self>, staged: ToyTail) -> Option<Cleanup> {
        *self.moves.lock() = staged.moves;
        None
    }
}

/// Moves jobs of participants, and then fails if told to.
struct Moves {
    moves: Vec<(Arc<Toy>, &'static str)>,
    fails: bool,
}

impl Intent for Moves {
    fn resolve(&self, draft: &mut Draft<'_>) -> Result<bool, BoxError> {
        let mut changes = Changes::default();
        self.moves.iter().for_each(|(toy, job)| changes.op(toy.clone(), job.as_bytes().to_vec()));
        assert!(draft.append(&[changes])?.is_empty());
        if self.fails { Err("it fails behind its operations".into()) } else { Ok(true) }
    }

    fn synced(&self) -> bool {
        false
    }

    fn written(&self) {}

    fn failed(&self, _: BoxError) -> Option<Duration> {
        None
    }
}

struct Bench {
    kv: Arc<MemoryKv>,
    copies: Arc<AtomicUsize>,
    batches: Batches,
}

impl Bench {
    fn new() -> Self {
        let kv = Arc::new(MemoryKv::default());
        let batches = Batches::new(kv.clone(), Arc::default(), Instant::now());
        Self { kv, copies: Arc::default(), batches }
    }

    /// A participant with these jobs, all waiting.
    fn toy(&self, jobs: &[&str]) -> Arc<Toy> {
        let [family, ..] = self.kv.families();
        let mut batch = Batch::default();
        jobs.iter().for_each(|job| batch.put(family.id, &[job.as_bytes()], &[b"waiting"]).unwrap());
        self.kv.write(&batch, false).unwrap();
        Arc::new(Toy { family, moves: Mutex::new(0), copies: self.copies.clone() })
    }

    fn submit(&mut self, moves: &[(&Arc<Toy>, &'static str)], fails: bool) {
        let moves = moves.iter().map(|(toy, job)| (Arc::clone(toy), *job)).collect();
        self.batches.pending.push(Pending::new(Box::new(Moves { moves, fails }), true));
    }

    /// Writes all intents in one batch.
    fn write(&mut self) {
        let writes = self.kv.writes();
        assert_eq!(self.batches.write(Instant::now()), None);
        assert_eq!((self.kv.writes(), self.batches.pending.len()), (writes + 1, 0));
    }

    fn state(&self, toy: &Toy, job: &str) -> String {
        String::from_utf8(self.kv.get(&toy.family, job.as_bytes()).unwrap().unwrap()).unwrap()
    }
}

#[test]
fn a_failed_intent_leaves_tails_and_rows_unchanged() {
    let mut bench = Bench::new();
    let (toy, other) = (bench.toy(&["a"]), bench.toy(&["b"]));
    // One is in the batch before it fails, and one is not.
    bench.submit(&[(&toy, "a")], false);
    bench.submit(&[(&toy, "a"), (&other, "b"), (&other, "b")], true);
    bench.write();
    assert_eq!((bench.state(&toy, "a"), *toy.moves.lock()), ("running".to_owned(), 1));
    assert_eq!((bench.state(&other, "b"), *other.moves.lock()), ("waiting".to_owned(), 0));
    // An intent after the failed one finds the same.
    bench.submit(&[(&other, "b")], true);
    bench.submit(&[(&toy, "a"), (&other, "b")], false);
    bench.write();
    assert_eq!((bench.state(&toy, "a"), *toy.moves.lock()), ("done".to_owned(), 2));
    assert_eq!((bench.state(&other, "b"), *other.moves.lock()), ("running".to_owned(), 1));
}

#[test]
fn an_intent_copies_only_tails_it_touches_again() {
    const COUNT: usize = 100;
    let mut bench = Bench::new();
    let job = |n: usize| -> &'static str { Box::leak(format!("job {n}").into_boxed_str()) };
    let toys: Vec<_> = (0..COUNT).map(|n| bench.toy(&[job(n)])).collect();
    // Each intent has its own participant.
    (0..COUNT).for_each(|n| bench.submit(&[(&toys[n], job(n))], false));
    // Intents that touch nothing, fail or not.
    (0..COUNT).for_each(|n| bench.submit(&[], n % 2 == 0));
    bench.write();
    assert_eq!(bench.copies.load(Ordering::Relaxed), 0);
    assert!(toys.iter().all(|toy| *toy.moves.lock() == 1));
    // All touch two, which are in the batch from the second intent on.
    (0..COUNT / 2).for_each(|n| bench.submit(&[(&toys[0], job(n)), (&toys[1], job(n + COUNT / 2))], false));
    bench.write();
    assert_eq!(bench.copies.load(Ordering::Relaxed), 2 * (COUNT / 2 - 1));
}

#[test]
fn many_participants_keep_their_tails_after_an_undo() {
    let bench = Bench::new();
    let toys: Vec<_> = (0..3 * FEW).map(|_| bench.toy(&[])).collect();
    let mut tails = Tails::default();
    let set = |tails: &mut Tails, toys: &[Arc<Toy>], by: u64| {
        toys.iter().zip(by..).for_each(|(toy, moves)| tails.staged(toy).unwrap().moves += moves);
    };
    for known in [0, 1, FEW - 1, FEW, FEW + 1, 2 * FEW] {
        let before = tails.mark();
        set(&mut tails, &toys[..known], 1);
        let mark = tails.mark();
        set(&mut tails, &toys, 1_000);
        tails.go_back(mark);
        assert_eq!(tails.parts.len(), known);
        set(&mut tails, &toys[known..], 1 + known as u64);
        let moves = toys.iter().map(|toy| tails.staged(toy).unwrap().moves);
        assert!(moves.eq(1..=toys.len() as u64), "{known} were known");
        tails.go_back(before);
        assert!(tails.parts.is_empty());
    }
}

#[test]
fn an_earlier_mark_is_restored_after_later_ones() {
    let bench = Bench::new();
    let toy = bench.toy(&[]);
    let mut tails = Tails::default();
    let first = tails.mark();
    tails.staged(&toy).unwrap().moves = 1;
    let second = tails.mark();
    tails.staged(&toy).unwrap().moves = 2;
    let third = tails.mark();
    tails.staged(&toy).unwrap().moves = 3;
    tails.go_back(third);
    assert_eq!(tails.staged(&toy).unwrap().moves, 2);
    tails.staged(&toy).unwrap().moves = 4;
    tails.go_back(second);
    assert_eq!(tails.staged(&toy).unwrap().moves, 1);
    // Touched only after a mark that was undone.
    let second = tails.mark();
    let third = tails.mark();
    tails.staged(&toy).unwrap().moves = 5;
    tails.go_back(third);
    tails.staged(&toy).unwrap().moves = 6;
    tails.go_back(second);
    assert_eq!(tails.staged(&toy).unwrap().moves, 1);
    tails.go_back(first);
    assert!(tails.parts.is_empty());
}
