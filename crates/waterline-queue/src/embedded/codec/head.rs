//! The head of a queue: its counters and cursors, in one stored record.

use crate::rules::lanes::Lane;
use crate::types::job::JobState;
use waterline::seam::Kind;

/// Version 1 is the short form. A head that needs one of the further numbers has version 2.
pub(crate) const SEAL: Kind = Kind { label: "queue.head", versions: &[1, 2] };

/// The record with the number of a queue.
pub(crate) const NAME: Kind = Kind { label: "queue.name", versions: &[1] };

/// The counters and cursors of a queue. Each batch that changes one writes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    /// The lowest number that no id has.
    pub(crate) next_id: u64,
    /// The token of the next lease. No token is ever used again.
    pub(crate) next_token: u64,
    /// How often a process has opened the queue.
    pub(crate) epoch: u64,
    /// The number of claims.
    pub(crate) claims: u64,
    /// Until when it is paused, in milliseconds since 1970; 0: it is not.
    pub(crate) paused_until: u64,
    /// When the pause began.
    pub(crate) paused_since: u64,
    /// The latest time seen when it was written. A clock behind it was set back.
    pub(crate) seen: u64,
    /// The jobs in each state.
    pub(crate) counts: [u64; JobState::ALL.len()],
    /// The ready logs, the most urgent one first.
    pub(crate) lanes: [Lane; 4],
    /// The freed log: limits that have a place, in turn. An entry is the name of a limit.
    pub(crate) freed: Lane,
    /// The number of ready jobs that a limit holds, which are in no ready log.
    pub(crate) held: u64,
}

/// The number of the freed log among the logs.
pub(crate) const FREED: usize = 4;

/// The states that the short form counts.
const SHORT_STATES: usize = 5;

const NUMBERS: usize = 7 + SHORT_STATES + 4 * 3;

/// The further numbers of the long form: the waiting jobs, the freed log, and the held jobs.
const MORE: usize = 1 + 3 + 1;

impl Head {
    pub(crate) fn encode(&self, queue: &str) -> Vec<u8> {
        let (version, count) = if self.has_more() { (2, NUMBERS + MORE) } else { (1, NUMBERS) };
        let mut head = self.clone();
        let numbers = head.numbers().take(count).map(|number| *number);
        SEAL.begin_as(version, count * 8).numbers(numbers).seal(queue, "")
    }

    pub(crate) fn decode(queue: &str, bytes: &[u8]) -> Result<Self, String> {
        SEAL.open(queue, "", bytes)?.all("head of a queue", |rest| {
            let mut head = Self::default();
            let count = if rest.version == 1 { NUMBERS } else { NUMBERS + MORE };
            for number in head.numbers().take(count) {
                *number = rest.number()?;
            }
            // Each head has exactly one form.
            let has_its_form = head.has_more() == (rest.version > 1);
            Some(head).filter(|head| has_its_form && head.is_sound())
        })
    }

    /// Returns its numbers in the order in which they are stored.
    fn numbers(&mut self) -> impl Iterator<Item = &mut u64> {
        let Self { next_id, next_token, epoch, claims, paused_until, paused_since, seen, counts, lanes, freed, held } =
            self;
        let (short, more) = counts.split_at_mut(SHORT_STATES);
        let first = [next_id, next_token, epoch, claims, paused_until, paused_since, seen].into_iter().chain(short);
        first.chain(lanes.iter_mut().flat_map(Lane::numbers)).chain(more).chain(freed.numbers()).chain([held])
    }

    /// True if it has a number that the short form has no room for.
    fn has_more(&self) -> bool {
        self.counts[SHORT_STATES..].iter().any(|count| *count > 0) || self.freed != Lane::default() || self.held > 0
    }

    fn is_sound(&self) -> bool {
        self.lanes.iter().chain([&self.freed]).all(|lane| lane.deleted <= lane.next && lane.next <= lane.end)
    }

    /// Returns the number of jobs that wait for a time, a worker or other jobs.
    pub(crate) fn waiting(&self) -> u64 {
        let waiting = JobState::ALL.iter().filter(|state| state.waits());
        waiting.map(|state| self.counts[state.number()]).sum()
    }

    /// Returns the ready log with this number, or the freed log.
    pub(crate) fn log(&self, number: usize) -> &Lane {
        self.lanes.get(number).unwrap_or(&self.freed)
    }

    pub(crate) fn log_mut(&mut self, number: usize) -> &mut Lane {
        self.lanes.get_mut(number).unwrap_or(&mut self.freed)
    }

    /// True if a limit has a place for a job that it holds.
    pub(crate) fn has_freed(&self) -> bool {
        self.freed.next < self.freed.end
    }

    pub(crate) fn is_paused(&self, wall: u64) -> bool {
        wall < self.paused_until
    }
}

/// Returns the record with the number of a queue.
pub(crate) fn encode_number(queue: &str, number: u32) -> Vec<u8> {
    NAME.begin(4).count(number).seal(queue, "")
}

pub(crate) fn decode_number(queue: &str, bytes: &[u8]) -> Result<u32, String> {
    let body = NAME.open(queue, "", bytes)?.rest;
    let number = body.try_into().map_err(|_| "its number has another length than 4 bytes".to_owned())?;
    Ok(u32::from_be_bytes(number))
}
