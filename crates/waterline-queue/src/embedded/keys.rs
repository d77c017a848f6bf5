//! The keys of queues. `docs/storage.md` lists them.

/// The first bytes of the record of a queue's name, where other keys have the queue's number. (No
/// store gives out the number 2^32 - 1.)
const NAMES: [u8; 4] = [u8::MAX; 4];

/// The keys of one queue. Each begins with the queue's number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys(pub(crate) u32);

/// The lists beside the ready logs, by the byte of their keys. An entry is a number, by which the
/// list is sorted, and the id of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// By the time at which the job is due.
    Scheduled = b's' as isize,
    /// By the time at which the row goes away.
    Finished = b'f' as isize,
    Dead = b'x' as isize,
    /// Jobs that wait and have to begin by some time.
    Expiring = b'e' as isize,
    /// Marks, by the time at which they go away. The id is the end of the mark's key.
    Marks = b'm' as isize,
    /// Limits that look again for tokens, by the time. The id is the name of the limit.
    Refills = b'r' as isize,
    /// Jobs that wait for others, by the time since which they do.
    Waiting = b'w' as isize,
    /// Lists of waiting jobs that the end of another job still has to be told to, by their numbers.
    /// See [`ending`].
    Untold = b't' as isize,
    /// Ids of the user's whose rows have gone, by the time at which they are forgotten.
    Gone = b'g' as isize,
    /// Jobs that cannot be read, by the number 0.
    Damaged = b'd' as isize,
}

impl List {
    /// All lists from which time takes something, in the order of [`Fronts`].
    pub(crate) const ALL: [Self; 8] = [
        Self::Scheduled,
        Self::Finished,
        Self::Dead,
        Self::Expiring,
        Self::Marks,
        Self::Refills,
        Self::Untold,
        Self::Gone,
    ];

    /// Returns its place in `ALL`; `None`: nothing happens to it by time.
    pub(crate) fn number(self) -> Option<usize> {
        Self::ALL.iter().position(|list| *list == self)
    }
}

/// A number for each list: no entry has a lower one. A look begins there, and passes no tombstones.
/// The number behind them is the time of the next tick of a periodic job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fronts([u64; TICKS + 1]);

/// The place of the next tick in [`Fronts`].
const TICKS: usize = List::ALL.len();

impl Fronts {
    /// Those of empty lists.
    pub(crate) const EMPTY: Self = Self([u64::MAX; TICKS + 1]);

    /// Returns the number of a list. A list to which time does nothing begins at 0.
    pub(crate) fn of(&self, list: List) -> u64 {
        list.number().map_or(0, |number| self.0[number])
    }

    pub(crate) fn set(&mut self, list: List, front: u64) {
        if let Some(number) = list.number() {
            self.0[number] = front;
        }
    }

    /// Returns the time before which no periodic job has a tick.
    pub(crate) fn ticks(&self) -> u64 {
        self.0[TICKS]
    }

    pub(crate) fn set_ticks(&mut self, at: u64) {
        self.0[TICKS] = at;
    }

    /// Notes an entry.
    pub(crate) fn note(&mut self, list: List, at: u64) {
        self.set(list, self.of(list).min(at));
    }

    /// True if ends are still to be told to those who wait for them.
    pub(crate) fn has_untold(&self) -> bool {
        self.of(List::Untold) < u64::MAX
    }

    /// Returns the time of the first entry of all.
    pub(crate) fn first(&self) -> u64 {
        // The ends that are still to be told have numbers, and wait for no time.
        let timed = List::ALL.iter().filter(|list| **list != List::Untold).filter_map(|list| list.number());
        timed.chain([TICKS]).map(|number| self.0[number]).min().unwrap_or(u64::MAX)
    }

    /// True if a list begins earlier than in `before`.
    pub(crate) fn are_sooner_than(&self, before: &Self) -> bool {
        self.0.iter().zip(&before.0).any(|(new, old)| new < old)
    }
}

/// The marks of jobs, by the first byte of the last part of their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// A unique job, by its fingerprint.
    Unique = b'u' as isize,
    /// The last run that succeeded, by its fingerprint.
    Executed = b'e' as isize,
    /// The newest root, by its signature.
    Root = b'r' as isize,
    /// A note of a kind of jobs, by the length of the kind as two digits, the kind and its key.
    Note = b'n' as isize,
}

/// The key of the record with the number of the queue of this name.
pub(crate) fn name(name: &str) -> Vec<u8> {
    [&NAMES[..], name.as_bytes()].concat()
}

/// A key below those of all names.
pub(crate) fn all_names() -> Vec<u8> {
    NAMES.to_vec()
}

/// Reads the name of a queue from the key of its record.
pub(crate) fn split_name(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.strip_prefix(&NAMES)?).ok()
}

impl Keys {
    fn of(self, part: u8, rest: &[&[u8]]) -> Vec<u8> {
        let mut key = Vec::with_capacity(5 + rest.iter().map(|rest| rest.len()).sum::<usize>());
        key.extend_from_slice(&self.0.to_be_bytes());
        key.push(part);
        rest.iter().for_each(|rest| key.extend_from_slice(rest));
        key
    }

    // In the family `waterline.queue`:

    /// The counters and cursors.
    pub(crate) fn head(self) -> Vec<u8> {
        self.of(b'h', &[])
    }

    pub(crate) fn row(self, id: &str) -> Vec<u8> {
        self.of(b'j', &[id.as_bytes()])
    }

    pub(crate) fn all_rows(self) -> Vec<u8> {
        self.of(b'j', &[])
    }

    pub(crate) fn payload(self, id: &str) -> Vec<u8> {
        self.of(b'p', &[id.as_bytes()])
    }

    pub(crate) fn data(self, id: &str) -> Vec<u8> {
        self.of(b'd', &[id.as_bytes()])
    }

    /// The metadata of a job.
    pub(crate) fn meta(self, id: &str) -> Vec<u8> {
        self.of(b'i', &[id.as_bytes()])
    }

    /// The progress of a job.
    pub(crate) fn progress(self, id: &str) -> Vec<u8> {
        self.of(b'g', &[id.as_bytes()])
    }

    /// A mark.
    pub(crate) fn mark(self, mark: Mark, of: &str) -> Vec<u8> {
        self.of(b'm', &[&[mark as u8], of.as_bytes()])
    }

    /// A mark, by the id of its entry in the list of marks.
    pub(crate) fn mark_of_entry(self, id: &str) -> Vec<u8> {
        self.of(b'm', &[id.as_bytes()])
    }

    /// The last tick of a periodic job.
    pub(crate) fn periodic(self, name: &str) -> Vec<u8> {
        self.of(b'y', &[name.as_bytes()])
    }

    /// The record of a limit, by its name.
    pub(crate) fn limit(self, name: &str) -> Vec<u8> {
        self.of(b'l', &[name.as_bytes()])
    }

    pub(crate) fn all_limits(self) -> Vec<u8> {
        self.of(b'l', &[])
    }

    /// A running job, by the token of its lease.
    pub(crate) fn running(self, token: u64) -> Vec<u8> {
        self.of(b'r', &[&token.to_be_bytes()])
    }

    pub(crate) fn all_running(self) -> Vec<u8> {
        self.of(b'r', &[])
    }

    /// The durations of the attempts of a kind.
    pub(crate) fn durations(self, kind: &str) -> Vec<u8> {
        self.of(b't', &[kind.as_bytes()])
    }

    pub(crate) fn all_durations(self) -> Vec<u8> {
        self.of(b't', &[])
    }

    /// A job that waits, in the list of the job that it waits for.
    pub(crate) fn waiting(self, list: u64, id: &str) -> Vec<u8> {
        self.of(b'a', &[&list.to_be_bytes(), id.as_bytes()])
    }

    /// A list that a waiting job is in.
    pub(crate) fn awaits(self, id: &str, list: u64) -> Vec<u8> {
        self.of(b'o', &[&[id.len() as u8], id.as_bytes(), &list.to_be_bytes()])
    }

    /// All lists that a waiting job is in; `None`: those of all jobs.
    pub(crate) fn all_awaits(self, id: Option<&str>) -> Vec<u8> {
        id.map_or_else(|| self.of(b'o', &[]), |id| self.of(b'o', &[&[id.len() as u8], id.as_bytes()]))
    }

    // In the family `waterline.ready`:

    /// An entry of a ready log.
    pub(crate) fn ready(self, lane: usize, index: u64) -> Vec<u8> {
        self.of(lane as u8, &[&index.to_be_bytes()])
    }

    /// An entry of the log of jobs that a limit holds. The name has 256 bytes at most, and its
    /// first byte is not counted.
    pub(crate) fn held(self, limit: &str, index: u64) -> Vec<u8> {
        let length = (limit.len().saturating_sub(1) as u8).to_be_bytes();
        self.of(b'l', &[&length, limit.as_bytes(), &index.to_be_bytes()])
    }

    /// An entry of the line of a kind: the lane and the index of the ready log in which the job was
    /// before.
    pub(crate) fn line(self, kind: &str, lane: usize, index: u64) -> Vec<u8> {
        self.of(b'k', &[&[kind.len() as u8], kind.as_bytes(), &[lane as u8], &index.to_be_bytes()])
    }

    /// A key below those of all lines of kinds.
    pub(crate) fn all_lines(self) -> Vec<u8> {
        self.of(b'k', &[])
    }

    pub(crate) fn entry(self, list: List, at: u64, id: &str) -> Vec<u8> {
        self.of(list as u8, &[&at.to_be_bytes(), id.as_bytes()])
    }

    /// The lowest key of a list that has this number.
    pub(crate) fn entries_from(self, list: List, at: u64) -> Vec<u8> {
        self.of(list as u8, &[&at.to_be_bytes()])
    }

    /// A key above all of a list.
    pub(crate) fn entries_end(self, list: List) -> Vec<u8> {
        self.of(list as u8 + 1, &[])
    }
}

/// The length of the key before the number of an entry.
const PREFIX: usize = 5;

/// Reads the number and the id of an entry.
pub(crate) fn split_entry(key: &[u8]) -> Option<(u64, &str)> {
    let (at, id) = key.get(PREFIX..)?.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*at), std::str::from_utf8(id).ok()?))
}

/// Reads the number of an entry, also if its id cannot be read.
pub(crate) fn number_of_entry(key: &[u8]) -> u64 {
    key.get(PREFIX..).and_then(<[u8]>::first_chunk).map_or(0, |at| u64::from_be_bytes(*at))
}

/// Reads the id and the list from the key of a list that a waiting job is in.
pub(crate) fn split_awaits(key: &[u8]) -> Option<(&str, u64)> {
    let (length, rest) = key.get(PREFIX..)?.split_first()?;
    let (id, list) = rest.split_at_checked(usize::from(*length))?;
    Some((std::str::from_utf8(id).ok()?, u64::from_be_bytes(list.try_into().ok()?)))
}

/// Reads the id of a waiting job from its entry in a list.
pub(crate) fn split_waiting(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.get(PREFIX + 8..)?).ok()
}

/// Returns the last part of the entry of a list that the end of a job has to be told to.
pub(crate) fn ending(of: &str, died: bool) -> String {
    format!("{}{of}", if died { 'x' } else { 'f' })
}

/// Reads what [`ending`] has made: the id of the job, and true if it died.
pub(crate) fn split_ending(entry: &str) -> Option<(&str, bool)> {
    let of = entry.strip_prefix(['x', 'f'])?;
    Some((of, entry.starts_with('x')))
}

/// Reads the token of a running job.
pub(crate) fn split_running(key: &[u8]) -> Option<u64> {
    let token = key.get(PREFIX..)?;
    Some(u64::from_be_bytes(token.try_into().ok()?))
}

/// Reads the name from the key of a limit's record.
pub(crate) fn name_of_limit(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.get(PREFIX..)?).ok()
}

/// Reads the index of an entry of held jobs.
pub(crate) fn split_held(key: &[u8]) -> Option<u64> {
    key.last_chunk::<8>().map(|index| u64::from_be_bytes(*index))
}

/// Reads the kind, the lane and the index of an entry of the line of a kind.
pub(crate) fn split_line(key: &[u8]) -> Option<(&str, usize, u64)> {
    let (length, rest) = key.get(PREFIX..)?.split_first()?;
    let (kind, rest) = rest.split_at_checked(usize::from(*length))?;
    let (lane, index) = rest.split_first()?;
    Some((std::str::from_utf8(kind).ok()?, usize::from(*lane), u64::from_be_bytes(index.try_into().ok()?)))
}

/// Reads the id from the key of a row, or the name from that of a periodic job.
pub(crate) fn id_of_row(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.get(PREFIX..)?).ok()
}

/// Reads the last part of the key of a note.
pub(crate) fn note_of(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.get(PREFIX + 1..)?).ok()
}
