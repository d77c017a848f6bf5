//! The keys of queues. `src/design.md` lists them.

/// The first bytes of the record of a queue's name, where other keys have the queue's number. (No
/// store gives out the number 2^32 - 1.)
const NAMES: [u8; 4] = [u8::MAX; 4];

/// The keys of one queue. Each begins with the queue's number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keys(pub(super) u32);

/// The lists beside the ready logs, by the byte of their keys. An entry is a number, by which the
/// list is sorted, and the id of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    /// By the time at which the job is due.
    Scheduled = b's' as isize,
    /// By the time at which the row goes away.
    Finished = b'f' as isize,
    Dead = b'x' as isize,
}

/// The key of the record with the number of the queue of this name.
pub(super) fn name(name: &str) -> Vec<u8> {
    [&NAMES[..], name.as_bytes()].concat()
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
    pub(super) fn head(self) -> Vec<u8> {
        self.of(b'h', &[])
    }

    pub(super) fn row(self, id: &str) -> Vec<u8> {
        self.of(b'j', &[id.as_bytes()])
    }

    pub(super) fn all_rows(self) -> Vec<u8> {
        self.of(b'j', &[])
    }

    pub(super) fn payload(self, id: &str) -> Vec<u8> {
        self.of(b'p', &[id.as_bytes()])
    }

    pub(super) fn data(self, id: &str) -> Vec<u8> {
        self.of(b'd', &[id.as_bytes()])
    }

    /// A running job, by the token of its lease.
    pub(super) fn running(self, token: u64) -> Vec<u8> {
        self.of(b'r', &[&token.to_be_bytes()])
    }

    pub(super) fn all_running(self) -> Vec<u8> {
        self.of(b'r', &[])
    }

    // In the family `waterline.ready`:

    /// An entry of a ready log.
    pub(super) fn ready(self, lane: usize, index: u64) -> Vec<u8> {
        self.of(lane as u8, &[&index.to_be_bytes()])
    }

    pub(super) fn entry(self, list: List, at: u64, id: &str) -> Vec<u8> {
        self.of(list as u8, &[&at.to_be_bytes(), id.as_bytes()])
    }

    /// The lowest key of a list that has this number.
    pub(super) fn entries_from(self, list: List, at: u64) -> Vec<u8> {
        self.of(list as u8, &[&at.to_be_bytes()])
    }

    /// A key above all of a list.
    pub(super) fn entries_end(self, list: List) -> Vec<u8> {
        self.of(list as u8 + 1, &[])
    }
}

/// The length of the key before the number of an entry.
const PREFIX: usize = 5;

/// Reads the number and the id of an entry.
pub(super) fn split_entry(key: &[u8]) -> Option<(u64, &str)> {
    let (at, id) = key.get(PREFIX..)?.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*at), std::str::from_utf8(id).ok()?))
}

/// Reads the token of a running job.
pub(super) fn split_running(key: &[u8]) -> Option<u64> {
    let token = key.get(PREFIX..)?;
    Some(u64::from_be_bytes(token.try_into().ok()?))
}

/// Reads the id from the key of a row.
pub(super) fn id_of_row(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.get(PREFIX..)?).ok()
}
