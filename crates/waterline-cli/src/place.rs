//! The store that a command looks at, and those who have it open.

use crate::fault::Fault;
use crate::words::{clock, plain};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use waterline::{Error, Store};

/// The files whose locks say who has a store open: that of SQLite, and that of RocksDB.
const LOCKS: [&str; 2] = ["waterline.sqlite-lock", "LOCK"];

/// A process that has the store open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) process: u32,
    pub(crate) program: String,
}

/// Those who have a store open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holders {
    /// This process.
    One(Holder),
    /// None that this process can see.
    None,
    /// The system does not tell.
    Unknown,
}

/// The place of a store.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
}

impl Place {
    /// Opens the store to look at it. Nothing is written, and nothing is made.
    pub(crate) fn look(&self) -> Result<Store, Fault> {
        Ok(Store::options().read_only().open(&self.path)?)
    }

    /// Opens the store to change it, while nobody else has it open. Nothing is made.
    pub(crate) fn change(&self) -> Result<Store, Fault> {
        Store::options().create(false).open(&self.path).map_err(|error| match error {
            Error::Locked { path } => {
                let who = match self.holders() {
                    Holders::One(holder) => format!("the process {holder}"),
                    _ => "another process".to_owned(),
                };
                Fault::new(format!(
                    "nothing was changed, since {who} has the store at {} open: stop it, and try again",
                    path.display()
                ))
            }
            other => other.into(),
        })
    }

    /// Returns those who have the store open, as the system tells.
    pub(crate) fn holders(&self) -> Holders {
        let Ok(locks) = fs::read_to_string("/proc/locks") else { return Holders::Unknown };
        for file in LOCKS.map(|name| self.path.join(name)) {
            let Some(inode) = inode(&file) else { continue };
            let held = locks.lines().filter_map(|line| holder_of(line, inode));
            if let Some(process) = held.filter(|process| has_open(*process, &file)).min() {
                let program = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
                return Holders::One(Holder { process, program: plain(program.trim()) });
            }
        }
        Holders::None
    }

    /// Says how fresh a look is, and who has the store open.
    pub(crate) fn freshness(&self) -> String {
        let now = clock(SystemTime::now());
        match self.holders() {
            Holders::One(holder) => format!("saved by {now}; the process {holder} has the store open"),
            Holders::None => format!("saved by {now}; no process that is seen from here has the store open"),
            Holders::Unknown => format!("saved by {now}; this system does not tell who has the store open"),
        }
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.process, self.program)
    }
}

#[cfg(unix)]
fn inode(file: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    Some(fs::metadata(file).ok()?.ino())
}

#[cfg(not(unix))]
fn inode(_file: &Path) -> Option<u64> {
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

/// True unless the process is seen to have no such file open: another disk may have the same inode.
fn has_open(process: u32, file: &Path) -> bool {
    let (Ok(real), Ok(open)) = (file.canonicalize(), fs::read_dir(format!("/proc/{process}/fd"))) else { return true };
    open.flatten().any(|open| fs::read_link(open.path()).is_ok_and(|target| target == real))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lock_for_writing_on_that_file_names_a_process() {
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
