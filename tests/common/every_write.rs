//! Runs a scenario on a disk with a fault at its first write, then at its second, and so on: proves
//! a promise wherever a process dies and whichever write fails.

use std::sync::Arc;
use waterline::testing::FaultyStore;
use waterline::{Durability, Store};

/// A fault of a disk at one of its writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// The process dies: this write and all later ones seem to work, but do not reach the disk. The
    /// next life finds what a crash leaves.
    Stop,
    /// The same on a synced store: the next life finds what a loss of power leaves.
    PowerLoss,
    /// This many writes fail, starting with this one. The disk recovers after the life, and the
    /// next one uses the same store.
    Fail(u64),
}

/// Both ways a process can die.
pub const DEATHS: [DiskFault; 2] = [DiskFault::Stop, DiskFault::PowerLoss];

/// More writes than any life here makes.
const MOST: u64 = 1_000;

/// A disk with one fault, on which a life runs; after that, the disk of the next life.
pub struct Trial {
    pub disk: Arc<FaultyStore>,
    pub fault: DiskFault,
    /// The faulty write, counted from 0 at the start of the life.
    pub write: u64,
    /// For the next life: whether this one met its fault.
    pub struck: bool,
}

impl Trial {
    pub fn store(&self) -> Store {
        self.disk.store()
    }
}

/// Prints the fault if a test fails.
struct Place(DiskFault, u64);

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the fault of the disk was {:?} at write {}", self.0, self.1);
        }
    }
}

/// Runs a life for each kind of fault and each write, until a life ends before its fault, and
/// checks after each what the next life finds. Returns the number of lives that met their fault,
/// for the kind with the fewest.
///
/// # Panics
/// If no fault of a kind ever struck.
pub fn every_write<T>(faults: &[DiskFault], live: impl FnMut(&Trial) -> T, check: impl FnMut(&Trial, T)) -> u64 {
    every_write_after(|_| {}, faults, live, check)
}

/// Does the same on a disk that is first prepared, or replaced, without a fault.
pub fn every_write_after<T>(
    mut prepare: impl FnMut(&mut Arc<FaultyStore>),
    faults: &[DiskFault],
    mut live: impl FnMut(&Trial) -> T,
    mut check: impl FnMut(&Trial, T),
) -> u64 {
    let mut strikes = |fault, write| {
        let _place = Place(fault, write);
        assert!(write < MOST, "a life has no end");
        let durability = if fault == DiskFault::PowerLoss { Durability::Synced } else { Durability::Buffered };
        let mut disk = Arc::new(FaultyStore::with_durability(durability).unwrap());
        prepare(&mut disk);
        let before = disk.writes();
        match fault {
            DiskFault::Stop | DiskFault::PowerLoss => disk.freeze_at(write),
            DiskFault::Fail(length) => disk.fail(write..write + length),
        }
        let mut trial = Trial { disk, fault, write, struck: false };
        let lived = live(&trial);
        trial.struck = trial.disk.writes() - before > write;
        match fault {
            DiskFault::Stop => trial.disk = Arc::new(trial.disk.after_crash().unwrap()),
            DiskFault::PowerLoss => trial.disk = Arc::new(trial.disk.after_power_loss().unwrap()),
            DiskFault::Fail(_) => trial.disk.heal(),
        }
        check(&trial, lived);
        trial.struck
    };
    let fewest = faults.iter().map(|&fault| {
        let struck = (0..).take_while(|&write| strikes(fault, write)).count() as u64;
        assert!(struck > 0, "{fault:?} never struck: the life writes nothing");
        struck
    });
    fewest.min().expect("a scenario has a kind of fault")
}
