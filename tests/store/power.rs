//! Loss of power under a store on SQLite. A disk writes sectors in any order, so any of the writes
//! since the last flush may be on it. The next life finds everything that was flushed, and a prefix
//! of the later commits.
//!
//! The test copies the files at each commit, and mixes the sectors in which two copies differ.

use common::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use waterline::{Durability, Engine, Store};

const SEED: u64 = 20_261_125;
/// The number of bytes that a disk writes atomically.
const SECTOR: usize = 512;
/// The log of SQLite: a header, and frames, each a page behind a header.
const LOG_HEADER: usize = 32;
const FRAME: usize = 24 + 4096;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// The files of a store at a moment, without the shared memory, which a loss of power takes.
#[derive(Clone, Default)]
struct Image {
    database: Vec<u8>,
    log: Vec<u8>,
}

fn names(directory: &Path) -> [PathBuf; 2] {
    ["waterline.sqlite", "waterline.sqlite-wal"].map(|name| directory.join(name))
}

impl Image {
    fn of(directory: &Path) -> Self {
        let [database, log] = names(directory).map(|name| fs::read(name).unwrap_or_default());
        Self { database, log }
    }

    /// Returns the rows that the next life finds, and checks that it can write and that a third
    /// life finds the same.
    fn rows(&self, what: &str) -> Rows {
        let directory = tempfile::tempdir().unwrap();
        let [database, log] = names(directory.path());
        fs::write(database, &self.database).unwrap();
        fs::write(log, &self.log).unwrap();
        let open = || open_in(directory.path()).unwrap_or_else(|e| panic!("{what}: {}", e.report()));
        let store = open();
        let mut found = rows(&store);
        store.table("rows").unwrap().put("of the next life", "1").unwrap();
        drop(store);
        found.insert(b"of the next life".to_vec(), b"1".to_vec());
        assert_eq!(rows(&open()), found, "{what}");
        found.remove(&b"of the next life"[..]);
        found
    }
}

fn rows(store: &Store) -> Rows {
    store.table("rows").unwrap().iter().map(Result::unwrap).collect()
}

/// A store, and its files and rows after each commit.
struct Life {
    directory: tempfile::TempDir,
    store: Store,
    random: fastrand::Rng,
    commits: Vec<(Image, Rows)>,
}

impl Life {
    fn new(durability: Durability) -> Option<Self> {
        let directory = a_directory_of(Engine::Sqlite)?;
        let store = on_engine().durability(durability).open(directory.path()).unwrap();
        let random = fastrand::Rng::with_seed(SEED + seed());
        let mut life = Self { directory, store, random, commits: Vec::new() };
        life.note();
        Some(life)
    }

    fn image(&self) -> Image {
        Image::of(self.directory.path())
    }

    fn note(&mut self) {
        self.commits.push((self.image(), rows(&self.store)));
    }

    fn commit(&mut self) {
        let (table, random, number) = (self.store.table("rows").unwrap(), &mut self.random, self.commits.len());
        let changed = self.store.write(|effects| {
            effects.put(&table, "number", number.to_string())?;
            for _ in 0..random.usize(1..12) {
                let key = random.u8(..60);
                if random.u8(..4) == 0 {
                    effects.delete(&table, [key])?;
                } else {
                    effects.put(&table, [key], vec![number as u8; random.usize(..900)])?;
                }
            }
            Ok::<(), waterline::Error>(())
        });
        changed.unwrap();
        self.note();
    }

    /// Checkpoints the log into the database. Returns the files before that.
    fn checkpoint(&self) -> Image {
        let before = self.image();
        let [database, _] = names(self.directory.path());
        let beside = rusqlite::Connection::open(database).unwrap();
        beside.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
        before
    }

    /// Checks that these files hold the state of a commit in this range, and returns which.
    #[track_caller]
    fn check(&self, image: &Image, commits: Range<usize>, what: &str) -> usize {
        let what = format!("{what}, of the commits {commits:?}");
        let found = image.rows(&what);
        let at = self.commits.iter().position(|(_, rows)| *rows == found);
        let at = at.unwrap_or_else(|| panic!("{what}: it is a state that the store never had: {:?}", found.keys()));
        assert!(commits.contains(&at), "{what}: the state of commit {at} is there");
        at
    }
}

/// Returns the parts in which these differ: sectors, also cut at the end of the header.
fn differ(before: &[u8], after: &[u8]) -> Vec<Range<usize>> {
    let starts: BTreeSet<usize> = (0..after.len()).step_by(SECTOR).chain([LOG_HEADER.min(after.len())]).collect();
    let ends = starts.iter().copied().skip(1).chain([after.len()]);
    let parts = starts.iter().copied().zip(ends).map(|(start, end)| start..end);
    parts.filter(|part| before.get(part.clone()) != Some(&after[part.clone()])).collect()
}

/// Returns the earlier file with these parts of the later one.
fn mixed<'a>(before: &[u8], after: &[u8], parts: impl IntoIterator<Item = &'a Range<usize>>) -> Vec<u8> {
    let mut mixed = before.to_vec();
    for part in parts {
        if mixed.len() < part.end {
            mixed.resize(part.end, 0);
        }
        mixed[part.clone()].copy_from_slice(&after[part.clone()]);
    }
    mixed
}

/// Returns sets of these parts: none, all, all but one, one alone, and random ones.
fn sets<'a>(random: &mut fastrand::Rng, parts: &'a [Range<usize>], many: usize) -> Vec<Vec<&'a Range<usize>>> {
    let mut sets = vec![Vec::new(), parts.iter().collect()];
    for _ in 0..many {
        let one = random.usize(..parts.len().max(1));
        sets.push(parts.iter().enumerate().filter(|(at, _)| *at != one).map(|(_, part)| part).collect());
        sets.push(parts.get(one).into_iter().collect());
        let share = random.u8(1..8);
        sets.push(parts.iter().filter(|_| random.u8(..8) < share).collect());
    }
    sets
}

fn each_loss(durability: Durability) {
    let Some(mut life) = Life::new(durability) else { return };
    let (mut random, many) = (fastrand::Rng::with_seed(SEED ^ seed()), size(2, 20));
    let mut found = BTreeSet::new();
    for round in 0..size(3, 12) {
        // The log goes on, or begins anew, which flushes its header before a frame is written.
        let begun = life.commits.len() - 1;
        let flushed = life.image();
        (0..random.usize(4..9)).for_each(|_| life.commit());
        let last = life.commits.len() - 1;
        for at in begun + 1..=last {
            let after = life.commits[at].0.clone();
            assert!(after.database == flushed.database, "nothing is written back so far");
            // What was flushed is the state at the beginning, or that of a later commit.
            for from in [begun, random.usize(begun..at)] {
                let before = if from == begun { &flushed } else { &life.commits[from].0 };
                let mut parts = differ(&before.log, &after.log);
                let begins_anew = parts.first().is_some_and(|part| part.start == 0);
                assert_eq!(begins_anew, round > 0 && from == begun, "each checkpoint lets it begin anew");
                let header = if begins_anew { parts.remove(0) } else { 0..0 };
                for set in sets(&mut random, &parts, many) {
                    let log = mixed(&before.log, &after.log, set.iter().copied().chain([&header]));
                    let image = Image { log, ..before.clone() };
                    found.insert(life.check(&image, from..at + 1, &format!("round {round}, {set:?}")));
                }
            }
        }
        // A checkpoint flushes the log first, so the log is whole.
        let before = life.checkpoint();
        let after = life.image();
        assert!(before.log == after.log);
        let parts = differ(&before.database, &after.database);
        assert!(!parts.is_empty(), "something is written back");
        for set in sets(&mut random, &parts, 2 * many) {
            let database = mixed(&before.database, &after.database, set.iter().copied());
            let image = Image { database, ..before.clone() };
            life.check(&image, last..last + 1, &format!("round {round}, a checkpoint, {set:?}"));
        }
        // After the checkpoint nothing of the log is needed.
        for length in [0, LOG_HEADER, LOG_HEADER + FRAME, after.log.len()] {
            let image = Image { log: after.log[..length].to_vec(), ..after.clone() };
            life.check(
                &image,
                last..last + 1,
                &format!("round {round}, after a checkpoint, {length} bytes of the log"),
            );
        }
    }
    assert!(2 * found.len() > life.commits.len(), "of {} commits few were lost: {found:?}", life.commits.len());
}

#[test]
fn a_loss_of_power_leaves_a_prefix_beyond_the_flushed() {
    each_loss(Durability::Buffered);
}

#[test]
fn a_loss_of_power_keeps_each_flushed_commit() {
    each_loss(Durability::Synced);
}
