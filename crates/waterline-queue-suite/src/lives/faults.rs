//! Lives on a disk that fails or stops taking writes, beside the model, which has no disk.
//!
//! A call whose write fails says so, changes nothing, and works when repeated. After the disk has
//! stopped, the next process finds the queue as it was before that write.

use crate::bench::*;
use crate::lives::calls::{Call, Work};
use crate::lives::differs::{Differs, lived, same};
use crate::lives::side::{FAILED, FAILS, Past, Side};
use std::sync::Arc;
use waterline::Durability;
use waterline::testing::FaultyStore;
use waterline_queue::QueueOptions;
use waterline_queue::testing::QueueModel;

/// The most jobs that run at the end of a life.
const LAST: usize = 300;

/// Makes these calls on both, compares everything after each, and kills the process. The next one
/// runs all jobs to their end.
pub(super) fn live(name: &str, options: &QueueOptions, is_synced: bool, calls: &[Call]) -> Result<(), Differs> {
    lived(|behind| {
        let mut pair = Pair::new(name, options, is_synced);
        for (n, call) in calls.iter().enumerate() {
            *behind = n + 1;
            pair.step(call)?;
        }
        pair.step(&Call::Crash)?;
        pair.drain()
    })
}

struct Pair {
    disk: Side,
    model: Side,
    store: Arc<FaultyStore>,
    is_synced: bool,
    /// The write of the next call that fails.
    fails: Option<u64>,
    stops: Stops,
    /// True once the model cannot tell what the next process finds, so the life is over.
    is_over: bool,
}

/// Whether the disk stops.
enum Stops {
    Not,
    /// It will stop, at the write with this number.
    At(u64),
    /// It has stopped, and the next process finds this.
    Has(Past),
    /// It has stopped amid the writes of one call.
    Amid,
}

impl Pair {
    fn new(name: &str, options: &QueueOptions, is_synced: bool) -> Self {
        let durability = if is_synced { Durability::Synced } else { Durability::Buffered };
        let store = Arc::new(FaultyStore::with_durability(durability).unwrap());
        let side = |database: Database| Side::new(database, name, options.clone(), false).writing();
        let (disk, model) = (side(Database::Disk(store.clone())), side(Database::Model(QueueModel::new())));
        Self { disk, model, store, is_synced, fails: None, stops: Stops::Not, is_over: false }
    }

    fn step(&mut self, call: &Call) -> Result<(), String> {
        match call {
            _ if self.is_over => {}
            Call::Fail(write) => self.fails = Some(*write),
            Call::Stop(write) if matches!(self.stops, Stops::Not) => {
                self.store.freeze_at(*write);
                self.stops = Stops::At(self.store.writes() + write);
            }
            Call::Stop(_) => {}
            Call::Crash => self.crash()?,
            call => self.make(call)?,
        }
        Ok(())
    }

    fn make(&mut self, call: &Call) -> Result<(), String> {
        let before = self.store.writes();
        let past = matches!(self.stops, Stops::At(_)).then(|| self.model.past());
        // A queue that cannot be reopened would end the life, and `Show` moves the clock.
        let is_sure = matches!(call, Call::Reopen | Call::Work(_, Work::Show(_)));
        match self.fails.take().filter(|_| !is_sure) {
            Some(write) => self.act_at_fault(call, write)?,
            None => same(&[self.disk.act(call)], &[self.model.act(call)])?,
        }
        self.look(true)?;
        if let Stops::At(at) = self.stops
            && self.store.writes() > at
        {
            self.stops = past.filter(|_| at == before).map_or(Stops::Amid, Stops::Has);
        }
        Ok(())
    }

    /// Makes a call of which a write fails, and then makes it again.
    fn act_at_fault(&mut self, call: &Call, write: u64) -> Result<(), String> {
        let before = self.store.writes();
        self.store.fail(write..=write);
        let mut answer = self.disk.act(call);
        self.store.heal();
        let has_failed = self.store.writes() - before > write;
        if let (true, Call::Work(n, Work::GiveBack)) = (has_failed, call) {
            // The queue does not hear of it, so the job is left as by a silent worker.
            self.model.act(&Call::Work(*n, Work::Leave));
            return Ok(());
        }
        if has_failed {
            same(&[answer], &[FAILED.to_owned()])?;
            if write == 0 {
                self.look(true)?;
            }
            answer = self.disk.act(call);
        }
        let expected = self.model.act(call);
        // A purge makes several writes, and counts only what its last call has removed.
        let counts_less = has_failed && write > 0 && matches!(call, Call::Purge);
        if counts_less { Ok(()) } else { same(&[answer], &[expected]) }
    }

    fn look(&mut self, is_whole: bool) -> Result<(), String> {
        let (mut disk, mut model) = (self.disk.looks(is_whole), self.model.looks(is_whole));
        // A model never shows that a write has failed, as the status of a store does.
        if let Some(line) = disk.iter().position(|line| line == FAILS) {
            disk.remove(line);
            model.remove(line);
        }
        same(&disk, &model)
    }

    /// Kills the process, and lets the next one open the queue, again if the first try fails.
    fn crash(&mut self) -> Result<(), String> {
        let stops = std::mem::replace(&mut self.stops, Stops::Not);
        let is_amid = matches!(stops, Stops::Amid);
        let past = if let Stops::Has(past) = stops { past } else { self.model.past() };
        let next = if self.is_synced { self.store.after_power_loss() } else { self.store.after_crash() };
        self.store = Arc::new(next.unwrap());
        let fails = self.fails.take();
        fails.into_iter().for_each(|write| self.store.fail(write..=write));
        let begun = self.disk.begin(Database::Disk(self.store.clone()));
        self.store.heal();
        if fails.is_some_and(|write| self.store.writes() > write) {
            same(&[format!("{begun:?}")], &[format!("{:?}", Err::<(), _>(FAILED))])?;
            self.disk.begin(Database::Disk(self.store.clone()))?;
        }
        if is_amid {
            // The queue is intact, and its counts match its lists.
            drop(self.disk.looks(true));
            self.is_over = true;
            return Ok(());
        }
        self.disk.forget(&past);
        self.model.forget(&past);
        self.model.begin(past.database)?;
        self.look(true)
    }

    fn drain(&mut self) -> Result<(), String> {
        self.step(&Call::RemovePeriodic)?;
        self.step(&Call::Resume)?;
        let run = [Call::Accept(None, None, false), Call::Work(0, Work::FinishWith), Call::Advance(12 * HOUR)];
        for _ in 0..LAST {
            if self.is_over || self.disk.is_drained() {
                return if self.is_over { Ok(()) } else { self.look(true) };
            }
            for call in &run {
                same(&[self.disk.act(call)], &[self.model.act(call)])?;
                self.look(false)?;
            }
        }
        Err("the jobs never end".to_owned())
    }
}
