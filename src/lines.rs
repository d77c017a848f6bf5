//! A source of lines: of one file that grows, or of the files of a directory.

use crate::base::sync::{Arc, Mutex};
use crate::base::{BoxError, Error, Index};
use crate::source::Jobs;
use crate::store::Table;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::ops::RangeInclusive;
use std::path::Path;

mod error;
mod files;
mod known;
mod place;

pub use error::{LinesError, LinesFault};
use files::{BLOCK, Files, nearest};
use known::Known;
use place::Place;

/// How many bytes a read collects before it returns what it has.
const ENOUGH: usize = 4 << 20;

/// The default of [`Lines::max_line`].
const MAX_LINE: usize = 16 << 20;

/// A source whose jobs are the lines of a file that grows, or of the files of a directory.
///
/// A job is the bytes of a line (`Vec<u8>`) without its line feed, and without a carriage return
/// before that. An empty line is a job, too. They are bytes since a line that is no UTF-8 is then
/// the fault of its own job, which is retried, parked or fails as you say; an error of the source
/// would stop the stream at it. `String::from_utf8(job.payload)?` makes a text of them.
///
/// The index of a line is its number since the first line ever counted, from 0. A last line without
/// a line feed is still being written: it is above the head until its end is there
/// ([`Status::blocked`](crate::Status::blocked) says so).
///
/// ```
/// use waterline::{Consumer, Lines, Store};
///
/// let dir = tempfile::tempdir()?;
/// let log = dir.path().join("access.log");
/// std::fs::write(&log, "GET /\nGET /about\nGET /ab")?; // the third line is not whole
///
/// let store = Store::in_memory();
/// let lines = Lines::open(&log, store.table("access.log")?)?;
/// let lengths = store.table("lengths")?;
/// let table = lengths.clone();
/// Consumer::builder(lines, store.progress("lengths"))
///     .stop_at(1) // leave it out to follow the file for ever
///     .start(move |job| {
///         let line = String::from_utf8(job.payload)?;
///         Ok(table.put(line, job.index.to_be_bytes())?)
///     })?
///     .join()?;
/// assert_eq!(lengths.get("GET /about")?, Some(1u64.to_be_bytes().to_vec()));
/// assert_eq!(lengths.iter().count(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # The table
///
/// It keeps how far each file is counted, and the offset of each 4,096th line. So a restart counts
/// on where the last process stopped, and finds a line by reading at most 4,095 others. Take a
/// table for these rows alone, in the store of the progress: the two must not be lost one without
/// the other. Share one source by `Arc`. A file has a row of about 100 bytes, also when it was
/// removed, since errors name it.
///
/// # Files that rotate
///
/// [`directory`](Self::directory) reads one file after the other, from the oldest to the newest.
/// Only the newest may grow: a file is final once a newer one has its first byte, and its last line
/// then needs no line feed. On Unix a file may be renamed, as `logrotate` does; elsewhere it has to
/// keep its name. A file that is copied and then cut (`copytruncate`) is refused, since lines that
/// are written in between are lost. A file that was compressed is no file of the stream: leave out
/// its name with [`directory_by`](Self::directory_by), and keep it until its lines are done.
///
/// A file that was cut, replaced, or removed before it was read, and any other surprise, is a
/// [`LinesError`] which names the file, the index, and what to do. No line is skipped, and none
/// gets another index. A file is recognised by its first 1,024 bytes, and by its inode or its name.
/// So a copy that was restored under the same name is the same file. What cannot be seen is a file
/// that is cut behind these bytes and has grown beyond its old length before the next look, if it
/// has a line feed where the counted part ended, and bytes that are overwritten in place. A
/// consumer that starts after files were removed whose lines it needs gets [`Error::Truncated`],
/// which names the indices.
///
/// # Costs
///
/// The source asks for the sizes of the files each time it is polled
/// ([`poll_every`](crate::Builder::poll_every)). It counts the line feeds of what is new, and reads
/// each line once more when its turn comes. A first look at large files counts them all before the
/// first job runs. Memory: a block of 64 KiB, about 200 bytes for each file, and the lines of one
/// read, which ends after 4 MiB.
pub struct Lines {
    place: Arc<Place>,
    table: Table,
    max_line: usize,
    /// Locked while files are counted.
    files: Mutex<Files>,
    /// What the last look saw, for reads that do not wait for the next one.
    seen: Mutex<Vec<Arc<Known>>>,
    waits_for: Mutex<Option<String>>,
    /// The line after those that were read last: its index and its offset.
    cursor: Mutex<(Index, u64)>,
}

impl Lines {
    /// Reads the lines of one file, which need not exist yet.
    ///
    /// If the file is renamed, and another one takes its name, use [`directory`](Self::directory).
    ///
    /// # Errors
    /// [`Error::Store`] if the table fails, and [`Error::Corrupt`] if it has other rows. What is
    /// wrong with the file shows when it is read.
    pub fn open(path: impl AsRef<Path>, table: Table) -> Result<Self, Error> {
        Self::new(Place::file(path.as_ref().to_owned()), table)
    }

    /// Reads the lines of all files of a directory, in ascending order of their names by bytes.
    ///
    /// So a newer file needs a name that comes later: `2026-11-29.log`, or `log.000017` with all
    /// zeros. Names that begin with a dot, links and directories are left out.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn directory(path: impl AsRef<Path>, table: Table) -> Result<Self, Error> {
        Self::directory_by(path, table, |name| (!name.starts_with('.')).then(|| name.to_owned()))
    }

    /// Reads the lines of those files of a directory for whose names `age` returns a key, in
    /// ascending order of the keys: the lowest is that of the oldest file. It is called for each
    /// name whenever the files are looked at, and must not call this source.
    ///
    /// ```
    /// use std::cmp::Reverse;
    /// use waterline::{Jobs, Lines, Store};
    ///
    /// /// `app.log` is the newest, then `app.log.1`, `app.log.2` and so on.
    /// fn age(name: &str) -> Option<Reverse<u32>> {
    ///     match name.strip_prefix("app.log")? {
    ///         "" => Some(Reverse(0)),
    ///         number => Some(Reverse(number.strip_prefix('.')?.parse().ok()?)),
    ///     }
    /// }
    ///
    /// let dir = tempfile::tempdir()?;
    /// std::fs::write(dir.path().join("app.log.10"), "a\n")?;
    /// std::fs::write(dir.path().join("app.log.9"), "b\n")?;
    /// std::fs::write(dir.path().join("app.log"), "c\n")?;
    /// std::fs::write(dir.path().join("app.log.11.gz"), "no lines")?;
    /// let lines = Lines::directory_by(dir.path(), Store::in_memory().table("app.log")?, age)?;
    /// assert_eq!(lines.head().unwrap(), Some(2));
    /// assert_eq!(lines.at_index(1).unwrap().as_deref(), Some(b"b".as_slice()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn directory_by<K: Ord>(
        path: impl AsRef<Path>,
        table: Table,
        age: impl Fn(&str) -> Option<K> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        Self::new(Place::directory(path.as_ref().to_owned(), age), table)
    }

    fn new(place: Place, table: Table) -> Result<Self, Error> {
        let place = Arc::new(place);
        let files = Mutex::new(Files::load(place.clone(), table.clone())?);
        let (seen, waits_for, cursor) = <(Mutex<_>, Mutex<_>, Mutex<_>)>::default();
        Ok(Self { place, table, max_line: MAX_LINE, files, seen, waits_for, cursor })
    }

    /// Sets how many bytes a line may have. A longer one is [`LinesFault::TooLong`].
    ///
    /// Default: 16 MiB, which is more than any line of a log, so that a file without line feeds
    /// does not fill the memory.
    #[must_use]
    pub fn max_line(mut self, bytes: usize) -> Self {
        self.max_line = bytes;
        self
    }

    /// Gives up the newest file, which was cut, replaced or removed, and returns the index of the
    /// next line.
    ///
    /// Lines that were counted in it keep their indices. If they are not done, move the progress on
    /// with [`StoreProgress::seek`](crate::StoreProgress::seek). What is under its name now is read
    /// from its beginning, as a new file.
    ///
    /// # Errors
    /// [`LinesFault::NotNewest`] if this is not the name of the newest file that was counted, and
    /// [`LinesFault::Store`] if the table fails.
    pub fn forget(&self, name: &str) -> Result<Index, LinesError> {
        self.change(|files| files.forget(name))
    }

    /// Changes what is known of the files. Reads go on meanwhile with what was known before.
    fn change<T>(&self, change: impl FnOnce(&mut Files) -> T) -> T {
        let mut files = self.files.lock();
        let changed = change(&mut files);
        self.seen.lock().clone_from(&files.all);
        changed
    }

    /// Counts what is new, and returns the lowest index that is there, and one past the highest.
    fn look(&self) -> Result<(Index, Index), LinesError> {
        self.change(|files| {
            // What fails may be a rename at this moment.
            *self.waits_for.lock() = files.look().or_else(|_| files.look())?;
            let there = files.all.iter().rev().take_while(|known| known.is_there).last();
            Ok((there.map_or(files.next(), |known| known.first), files.next()))
        })
    }

    /// Reads a run, to the end of one file at most. Reads nothing if its first line is not counted.
    fn read_run(&self, run: &RangeInclusive<Index>, into: &mut Vec<Vec<u8>>) -> Result<(), LinesError> {
        let seen = self.seen.lock();
        let known = seen.get(seen.partition_point(|known| known.next <= *run.start())).cloned();
        drop(seen);
        let (Some(known), had) = (known, into.len()) else { return Ok(()) };
        self.read_file(&known, run, into).map_err(|fault| {
            let index = run.start() + (into.len() - had) as Index;
            LinesError { file: self.place.path_of(&known.name), index, fault }
        })
    }

    fn read_file(&self, known: &Known, run: &RangeInclusive<Index>, into: &mut Vec<Vec<u8>>) -> Result<(), LinesFault> {
        if !known.is_there {
            return Err(LinesFault::Removed);
        }
        let cursor = *self.cursor.lock();
        // The line after the last one of a file begins another one.
        let goes_on = cursor.0 == *run.start() && cursor.0 > known.first;
        let (mut line, mut offset) = if goes_on { cursor } else { nearest(&self.table, known, *run.start())? };
        let file = known.open(&self.place.path_of(&known.name), offset)?;
        let mut file = BufReader::with_capacity(BLOCK, file.take(known.end.saturating_sub(offset)));
        while line < *run.start() {
            offset += file.skip_until(b'\n')? as u64;
            line += 1;
        }
        let (had, mut bytes) = (into.len(), 0);
        while line <= *run.end() && line < known.next && bytes < ENOUGH {
            let mut job = Vec::new();
            // With its line feed and a carriage return: no byte more than it takes to refuse it.
            let most = (self.max_line as u64).saturating_add(2);
            offset += file.by_ref().take(most).read_until(b'\n', &mut job)? as u64;
            let is_whole = job.pop_if(|byte| *byte == b'\n').is_some();
            if is_whole {
                job.pop_if(|byte| *byte == b'\r');
            }
            if job.len() > self.max_line {
                return Err(LinesFault::TooLong(self.max_line));
            }
            // Only the last line of a file that is final has no line feed, and only it ends there.
            let is_last = line + 1 == known.next;
            let may_be_torn = is_last && known.closed && !job.is_empty();
            if !is_whole && !may_be_torn || is_last != (offset == known.end) {
                into.truncate(had);
                return Err(LinesFault::Replaced);
            }
            bytes += job.len();
            line += 1;
            into.push(job);
        }
        *self.cursor.lock() = (line, offset);
        Ok(())
    }
}

impl Jobs for Lines {
    type Job = Vec<u8>;

    /// The first line of the oldest file that is there, if all newer ones are.
    fn first(&self) -> Result<Index, BoxError> {
        Ok(self.look()?.0)
    }

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(self.look()?.1.checked_sub(1))
    }

    fn at_index(&self, index: Index) -> Result<Option<Vec<u8>>, BoxError> {
        let mut line = Vec::new();
        self.read(index..=index, &mut line)?;
        Ok(line.pop())
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Vec<u8>>) -> Result<(), BoxError> {
        let had = into.len();
        let answer = self.read_run(&run, into);
        if into.len() > had {
            return Ok(answer?);
        }
        // It is not counted yet, or its file was renamed since the last look.
        self.look()?;
        Ok(self.read_run(&run, into)?)
    }

    fn weight(&self, job: &Vec<u8>) -> usize {
        size_of::<Vec<u8>>() + job.capacity()
    }

    fn waits_for(&self) -> Option<String> {
        self.waits_for.lock().clone()
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lines").field(&self.place.path).finish()
    }
}
