//! The keys of queues. `docs/storage.md` lists them.

/// The first bytes of the key of a queue's name, where other keys have the queue's number. (No
/// store gives out the number 2^32 - 1.)
const NAMES: [u8; 4] = [u8::MAX; 4];

/// The keys of one queue. Each begins with the queue's number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys(pub(crate) u32);

/// The lists beside the ready logs, by the byte of their keys. An entry is a number, which sorts
/// the list, and the id of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// Scheduled jobs, by due time.
    Scheduled = b's' as isize,
    /// Finished or dead jobs, by the time at which the row expires.
    Finished = b'f' as isize,
    Dead = b'x' as isize,
    /// Waiting jobs that expire, by that time.
    Expiring = b'e' as isize,
    /// Marks, by the time at which they expire. The id is the end of the mark's key.
    Marks = b'm' as isize,
    /// Limits that wait for tokens, by the time of the next look. The id is the limit's name.
    Refills = b'r' as isize,
    /// Jobs that wait for others, by the time since which they do.
    Waiting = b'w' as isize,
    /// Lists of waiting jobs that still have to be told of an end, by number. See [`ending`].
    Untold = b't' as isize,
    /// Ids of removed jobs that users chose, by the time at which they are forgotten.
    Gone = b'g' as isize,
    /// Jobs that are set aside, by the number 0.
    Damaged = b'd' as isize,
}

impl List {
    /// The lists whose entries fall due, in the order of [`Fronts`].
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

    /// Returns its place in `ALL`; `None`: its entries never fall due.
    pub(crate) fn number(self) -> Option<usize> {
        Self::ALL.iter().position(|list| *list == self)
    }
}

/// Where each list begins: no entry has a lower number. A look begins there, and skips tombstones.
/// The last number is the time of the next tick of a periodic job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fronts([u64; TICKS + 1]);

/// The place of the next tick in [`Fronts`].
const TICKS: usize = List::ALL.len();

impl Fronts {
    /// The fronts of empty lists.
    pub(crate) const EMPTY: Self = Self([u64::MAX; TICKS + 1]);

    /// Returns the front of a list; 0 if its entries never fall due.
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

    pub(crate) fn note(&mut self, list: List, at: u64) {
        self.set(list, self.of(list).min(at));
    }

    /// True if ends still have to be told to waiting jobs.
    pub(crate) fn has_untold(&self) -> bool {
        self.of(List::Untold) < u64::MAX
    }

    /// Returns the earliest due time.
    pub(crate) fn first(&self) -> u64 {
        // Ends that are still to be told have numbers and no time.
        let timed = List::ALL.iter().filter(|list| **list != List::Untold).filter_map(|list| list.number());
        timed.chain([TICKS]).map(|number| self.0[number]).min().unwrap_or(u64::MAX)
    }

    /// True if a list begins earlier than in `before`.
    pub(crate) fn are_sooner_than(&self, before: &Self) -> bool {
        self.0.iter().zip(&before.0).any(|(new, old)| new < old)
    }
}

/// The kinds of marks, by the first byte of the last part of their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// A unique job, by its fingerprint.
    Unique = b'u' as isize,
    /// The last successful run, by fingerprint.
    Executed = b'e' as isize,
    /// The newest root, by its signature.
    Root = b'r' as isize,
    /// A note of a kind, by the length of the kind as two digits, the kind, and the note's key.
    Note = b'n' as isize,
}

/// Returns the key of the record with the number of the queue of this name.
pub(crate) fn name(name: &str) -> Vec<u8> {
    [&NAMES[..], name.as_bytes()].concat()
}

/// Returns the prefix of the keys of all names.
pub(crate) fn all_names() -> Vec<u8> {
    NAMES.to_vec()
}

/// Reads the name of a queue from such a key.
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

    pub(crate) fn meta(self, id: &str) -> Vec<u8> {
        self.of(b'i', &[id.as_bytes()])
    }

    pub(crate) fn progress(self, id: &str) -> Vec<u8> {
        self.of(b'g', &[id.as_bytes()])
    }

    pub(crate) fn mark(self, mark: Mark, of: &str) -> Vec<u8> {
        self.of(b'm', &[&[mark as u8], of.as_bytes()])
    }

    /// A mark, by the id of its entry in the list of marks.
    pub(crate) fn mark_of_entry(self, id: &str) -> Vec<u8> {
        self.of(b'm', &[id.as_bytes()])
    }

    pub(crate) fn periodic(self, name: &str) -> Vec<u8> {
        self.of(b'y', &[name.as_bytes()])
    }

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

    /// An entry in a list of waiting jobs.
    pub(crate) fn waiting(self, list: u64, id: &str) -> Vec<u8> {
        self.of(b'a', &[&list.to_be_bytes(), id.as_bytes()])
    }

    /// The record of a list that a waiting job is in.
    pub(crate) fn awaits(self, id: &str, list: u64) -> Vec<u8> {
        self.of(b'o', &[&[id.len() as u8], id.as_bytes(), &list.to_be_bytes()])
    }

    /// The prefix of the records of all lists that a waiting job is in; `None`: that any job is in.
    pub(crate) fn all_awaits(self, id: Option<&str>) -> Vec<u8> {
        id.map_or_else(|| self.of(b'o', &[]), |id| self.of(b'o', &[&[id.len() as u8], id.as_bytes()]))
    }

    // In the family `waterline.ready`:

    pub(crate) fn ready(self, lane: usize, index: u64) -> Vec<u8> {
        self.of(lane as u8, &[&index.to_be_bytes()])
    }

    /// An entry of the log of a limit. The length of the name, 1 to 256, is stored less one.
    pub(crate) fn held(self, limit: &str, index: u64) -> Vec<u8> {
        let length = (limit.len().saturating_sub(1) as u8).to_be_bytes();
        self.of(b'l', &[&length, limit.as_bytes(), &index.to_be_bytes()])
    }

    /// An entry of the line of a kind, by the lane and the index that the job had in the ready log.
    pub(crate) fn line(self, kind: &str, lane: usize, index: u64) -> Vec<u8> {
        self.of(b'k', &[&[kind.len() as u8], kind.as_bytes(), &[lane as u8], &index.to_be_bytes()])
    }

    /// The prefix of the entries of all lines.
    pub(crate) fn all_lines(self) -> Vec<u8> {
        self.of(b'k', &[])
    }

    pub(crate) fn entry(self, list: List, at: u64, id: &str) -> Vec<u8> {
        self.of(list as u8, &[&at.to_be_bytes(), id.as_bytes()])
    }

    /// The lowest key with this number in a list.
    pub(crate) fn entries_from(self, list: List, at: u64) -> Vec<u8> {
        self.of(list as u8, &[&at.to_be_bytes()])
    }

    /// A key above all keys of a list.
    pub(crate) fn entries_end(self, list: List) -> Vec<u8> {
        self.of(list as u8 + 1, &[])
    }
}

/// The length of the part of a key before the number of an entry.
const PREFIX: usize = 5;

/// Reads the number and the id of an entry.
pub(crate) fn split_entry(key: &[u8]) -> Option<(u64, &str)> {
    let (at, id) = key.get(PREFIX..)?.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*at), std::str::from_utf8(id).ok()?))
}

/// Reads the number of an entry, even if its id cannot be read.
pub(crate) fn number_of_entry(key: &[u8]) -> u64 {
    key.get(PREFIX..).and_then(<[u8]>::first_chunk).map_or(0, |at| u64::from_be_bytes(*at))
}

/// Reads the id and the list from a key of [`Keys::awaits`].
pub(crate) fn split_awaits(key: &[u8]) -> Option<(&str, u64)> {
    let (length, rest) = key.get(PREFIX..)?.split_first()?;
    let (id, list) = rest.split_at_checked(usize::from(*length))?;
    Some((std::str::from_utf8(id).ok()?, u64::from_be_bytes(list.try_into().ok()?)))
}

/// Reads the id from a key of [`Keys::waiting`].
pub(crate) fn split_waiting(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.get(PREFIX + 8..)?).ok()
}

/// Returns the last part of an entry of [`List::Untold`].
pub(crate) fn ending(of: &str, died: bool) -> String {
    format!("{}{of}", if died { 'x' } else { 'f' })
}

/// Reads what [`ending`] made: the id of the job, and whether it died.
pub(crate) fn split_ending(entry: &str) -> Option<(&str, bool)> {
    let of = entry.strip_prefix(['x', 'f'])?;
    Some((of, entry.starts_with('x')))
}

/// Reads the token from a key of [`Keys::running`].
pub(crate) fn split_running(key: &[u8]) -> Option<u64> {
    let token = key.get(PREFIX..)?;
    Some(u64::from_be_bytes(token.try_into().ok()?))
}

/// Reads the name from a key of [`Keys::limit`].
pub(crate) fn name_of_limit(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.get(PREFIX..)?).ok()
}

/// Reads the index from a key of [`Keys::held`] or [`Keys::line`].
pub(crate) fn split_held(key: &[u8]) -> Option<u64> {
    key.last_chunk::<8>().map(|index| u64::from_be_bytes(*index))
}

/// Reads the kind, the lane and the index from a key of [`Keys::line`].
pub(crate) fn split_line(key: &[u8]) -> Option<(&str, usize, u64)> {
    let (length, rest) = key.get(PREFIX..)?.split_first()?;
    let (kind, rest) = rest.split_at_checked(usize::from(*length))?;
    let (lane, index) = rest.split_first()?;
    Some((std::str::from_utf8(kind).ok()?, usize::from(*lane), u64::from_be_bytes(index.try_into().ok()?)))
}

/// Reads the id, name or kind that ends a key.
pub(crate) fn id_of_row(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.get(PREFIX..)?).ok()
}

/// Reads the last part of the key of a note.
pub(crate) fn note_of(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.get(PREFIX + 1..)?).ok()
}
