//! The files of a store, and the processes that have it open.

use super::handles::{self, Handles};
use super::{Backend, Holder, Holders, Made, Wanted, redrive_each};
use crate::advice;
use crate::args::{self, Change};
use crate::error::Fault;
use crate::format::{At, plain};
use crate::rows::{self, Consumer, Jobs, Log, Move, ParkedRow, Periodic, Whole, Worker, read};
use std::fs;
use std::path::{Path, PathBuf};
use waterline::{Store, StoreOptions};
use waterline_queue::{Queue, QueueOptions};

/// The files whose locks show who has a store open: that of SQLite, and that of RocksDB.
const LOCKS: [&str; 2] = ["waterline.sqlite-lock", "LOCK"];

/// How often the list of locks is read before a store counts as not open.
const LISTS: usize = 3;

/// The files of a store, open read-only.
pub(crate) struct Files {
    path: PathBuf,
    store: Store,
    handles: Handles<Queue>,
}

impl Files {
    /// Opens the store read-only. Nothing is written or created.
    pub(crate) fn look(path: &Path) -> Result<Self, Fault> {
        let store = open(Store::options().read_only(), path)?;
        Ok(Self { path: path.to_owned(), store, handles: Handles::default() })
    }

    /// Opens a queue with default options, which a read-only store does not save.
    fn handle(&self, name: &str) -> Result<Queue, Fault> {
        self.handles.of(name, || Ok(Queue::open(&self.store, name, QueueOptions::default())?))
    }
}

impl Backend for Files {
    fn consumers(&self) -> Result<Vec<Consumer>, Fault> {
        advice::saved(self.store.consumers()?)
    }

    fn logs(&self) -> Result<Vec<Log>, Fault> {
        read(self.store.logs()?)
    }

    fn parked(&self, consumer: &str) -> Result<Vec<ParkedRow>, Fault> {
        read(self.store.parked(consumer)?)
    }

    fn history(&self, consumer: &str) -> Result<Vec<Move>, Fault> {
        read(self.store.progress(consumer).history()?)
    }

    fn queue_names(&self) -> Result<Vec<String>, Fault> {
        Ok(Queue::names(&self.store)?)
    }

    fn queue(&self, name: &str) -> Result<rows::Queue, Fault> {
        handles::row(&self.handle(name)?)
    }

    fn jobs(&self, queue: &str, wanted: Wanted<'_>) -> Result<Jobs, Fault> {
        handles::jobs(&self.handle(queue)?, wanted)
    }

    fn job(&self, queue: &str, id: &str) -> Result<Option<Whole>, Fault> {
        handles::job(&self.handle(queue)?, id)
    }

    fn periodics(&self, queue: &str) -> Result<Vec<Periodic>, Fault> {
        read(self.handle(queue)?.periodics()?)
    }

    /// The only worker of a store is the process that has it open. Without one, jobs that are saved
    /// as running belong to a process that died.
    fn workers(&self, queue: &str) -> Result<Vec<Worker>, Fault> {
        let mut workers: Vec<Worker> = read(self.handle(queue)?.workers()?)?;
        match self.holders() {
            // Without a running job, nothing tells whether the process has a runner.
            Holders::One(holder) => {
                for worker in &mut workers {
                    (worker.process, worker.name) = (Some(holder.process), Some(holder.program.clone()));
                }
            }
            Holders::None => workers.iter_mut().for_each(|worker| worker.is_silent = true),
            Holders::Unknown => {}
        }
        Ok(workers)
    }

    fn store(&self) -> Option<&Store> {
        Some(&self.store)
    }

    fn unasked(&self) -> &'static str {
        ", whose hook and bound are not asked"
    }

    fn freshness(&self) -> String {
        let now = At::now().clock();
        match self.holders() {
            Holders::One(holder) => format!("saved by {now}; the process {holder} has the store open"),
            Holders::None => format!("saved by {now}; no process that is seen from here has the store open"),
            Holders::Unknown => format!("saved by {now}; this system does not tell who has the store open"),
        }
    }

    fn holders(&self) -> Holders {
        holders(&self.path)
    }

    fn hindrance(&self) -> Result<Option<String>, Fault> {
        let Holders::One(holder) = self.holders() else { return Ok(None) };
        Ok(Some(format!("The process {holder} has the store open: stop it before, or steer it with --url.")))
    }

    fn change(self: Box<Self>, change: &Change, seen: Option<&str>) -> Result<Made, Fault> {
        // Close the read-only store first, so that the store is open only once.
        let Self { path, store, handles } = *self;
        drop((store, handles));
        let store = open_to_change(&path, matches!(change, Change::Seek { new: true, .. }))?;
        let progress = |name: &str| store.progress(name);
        match change {
            Change::Redrive { name, index: Some(index), .. } => store.redrive(name, *index)?,
            Change::Redrive { name, index: None, .. } => {
                let parked: Vec<_> = store.parked(name)?.iter().map(|job| job.index).collect();
                let redrive = |index| Ok(store.redrive(name, index).map_err(Fault::from)?);
                return Ok(redrive_each(name, &parked, redrive));
            }
            Change::Discard { name, which: args::Parked { index: Some(index), .. }, .. } => {
                store.discard(name, *index)?;
            }
            Change::Discard { name, which, .. } => {
                return Ok(Made::of([("discarded", store.discard_all(name, which.range())?.into())]));
            }
            Change::Skip { name, index, how } => progress(name).skip(*index, &how.reason)?,
            Change::Seek { name, next, how, .. } => progress(name).seek(*next, &how.reason)?,
            Change::Replace { from, to, .. } => store.replace(&[(from, to)])?,
            // What belongs to it is cleared in the same write.
            Change::Remove { name, .. } => progress(name).remove_with(|_| Ok(()))?,
            Change::Check { .. } => {
                return Err(Fault::new("a consumer looks at its source in its process alone: use --url"));
            }
            // Already refused when the change was planned.
            Change::RemoveQueue { .. } => return Err(Fault::new("a queue is removed from a database alone")),
            Change::OfQueue(change) => return handles::change(&Queue::admin(&store, change.queue())?, change, seen),
        }
        Ok(Made::default())
    }
}

/// Opens the store in a directory, or in an SQLite file of the user's.
pub(crate) fn open(options: StoreOptions, path: &Path) -> Result<Store, Fault> {
    #[cfg(feature = "sqlite")]
    if path.is_file() {
        return options.attach_sqlite(path).map_err(|error| match error {
            waterline::Error::NotFound { .. } => {
                let path = path.display();
                Fault::new(format!("the file {path} has no tables of waterline, and is left as it is: check the path"))
            }
            other => other.into(),
        });
    }
    open_directory(options, path)
}

#[cfg(any(feature = "rocksdb", feature = "sqlite"))]
fn open_directory(options: StoreOptions, path: &Path) -> Result<Store, Fault> {
    Ok(options.open(path)?)
}

/// A program for pages or databases alone needs no engine.
#[cfg(not(any(feature = "rocksdb", feature = "sqlite")))]
fn open_directory(_options: StoreOptions, path: &Path) -> Result<Store, Fault> {
    let path = path.display();
    Err(Fault::new(format!(
        "this program was built without stores, as that at {path}: build it with the feature `sqlite`"
    )))
}

/// Opens a store for a change, unless another process has it open. New names are created only with
/// `makes_names`. (The store exists: the change was planned from it.)
fn open_to_change(path: &Path, makes_names: bool) -> Result<Store, Fault> {
    let in_use = |path: &Path| {
        let who = match holders(path) {
            Holders::One(holder) => format!("the process {holder}"),
            _ => "another process".to_owned(),
        };
        Fault::new(format!(
            "nothing was changed, since {who} has the store at {} open: stop it, and try again, or go through the page \
             that it serves, with --url",
            path.display()
        ))
    };
    // Ask first: RocksDB rotates its text log before it finds that the database is locked.
    if matches!(holders(path), Holders::One(_)) {
        return Err(in_use(path));
    }
    let opened = open(Store::options().create(makes_names), path);
    opened.map_err(|fault| if fault.is_locked { in_use(path) } else { fault })
}

/// Returns who has a store open, according to the operating system.
fn holders(path: &Path) -> Holders {
    // The kernel hands this list out in pieces, so a line may be missing if it changes meanwhile.
    for _ in 0..LISTS {
        let Ok(locks) = fs::read_to_string("/proc/locks") else { return Holders::Unknown };
        if let Some(holder) = holder(path, &locks) {
            return Holders::One(holder);
        }
    }
    Holders::None
}

/// Returns the files whose locks show who has a store open.
fn locks_of(path: &Path) -> Vec<PathBuf> {
    if !path.is_file() {
        return LOCKS.map(|name| path.join(name)).to_vec();
    }
    let mut lock = path.as_os_str().to_owned();
    lock.push("-lock");
    vec![lock.into()]
}

/// Finds the process that has a store open in a list of locks.
fn holder(path: &Path, locks: &str) -> Option<Holder> {
    for file in locks_of(path) {
        let Some(lock) = identity(&file) else { continue };
        let held = locks.lines().filter_map(|line| holder_of(line, lock.1));
        if let Some(process) = held.filter(|process| has_open(*process, lock)).min() {
            let program = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
            return Some(Holder { process, program: plain(program.trim()) });
        }
    }
    None
}

/// Identifies a file by its device and inode, whatever path leads to it.
#[cfg(unix)]
fn identity(file: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let found = fs::metadata(file).ok()?;
    Some((found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn identity(_file: &Path) -> Option<(u64, u64)> {
    None
}

/// Returns the process that holds a lock for writing, from a line of `/proc/locks`:
/// `1: POSIX  ADVISORY  WRITE 708 08:01:1312 0 EOF`.
fn holder_of(line: &str, inode: u64) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, kind, _, "WRITE", process, file, ..] = words[..] else { return None };
    let is_ours = kind != "->" && file.rsplit(':').next()?.parse() == Ok(inode);
    process.parse().ok().filter(|process| is_ours && *process > 0)
}

/// False if the process visibly does not have the file open: another disk may have the same inode.
/// Paths are not compared, since a container has its own.
fn has_open(process: u32, file: (u64, u64)) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{process}/fd")) else { return true };
    open.flatten().any(|open| identity(&open.path()) == Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_write_lock_on_the_file_names_its_process() {
        for (line, process) in [
            ("1: POSIX  ADVISORY  WRITE 708 08:01:1312 0 EOF", Some(708)),
            ("1: FLOCK  ADVISORY  WRITE 708 00:1f:1312 0 EOF", Some(708)),
            ("1: POSIX  ADVISORY  READ  708 08:01:1312 0 EOF", None),
            ("1: -> POSIX ADVISORY WRITE 708 08:01:1312 0 EOF", None),
            ("1: OFDLCK ADVISORY  WRITE -1 08:01:1312 0 EOF", None),
            ("1: POSIX  ADVISORY  WRITE 708 08:01:1313 0 EOF", None),
            ("", None),
        ] {
            assert_eq!(holder_of(line, 1312), process, "{line}");
        }
    }
}
