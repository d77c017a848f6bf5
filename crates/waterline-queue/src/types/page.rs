//! A page of a list of jobs, and the place in the list after which the next one begins.
#![allow(missing_docs, reason = "no user sees these types, and the names say it")]

use crate::types::config::ConfigError;
use crate::types::info::JobInfo;
use crate::types::job::{JobId, JobState, Priority};
use crate::types::limit::name_of;

/// Some of the jobs in a state, from [`Queue::page`](crate::Queue::page).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Page {
    /// The jobs, in the order of [`Queue::list`](crate::Queue::list).
    pub jobs: Vec<JobInfo>,
    /// The cursor of the next page; `None`: these were the last jobs.
    pub next: Option<String>,
}

/// A place in the list of a state: that of a job, which may have left the list since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub priority: Priority,
    /// The number of the job in its list.
    pub number: u64,
    /// Its place among those with the same number.
    pub tie: u64,
    pub id: JobId,
    /// The name of the limit that held the job.
    pub limit: Option<String>,
}

/// The first byte of a cursor, for this format.
const FORM: u8 = 1;

impl Place {
    /// Returns the place that a job has, or had, in the list of this state.
    pub(crate) fn of(job: &JobInfo, state: JobState) -> Self {
        let (number, limit) = (job.list_place(state), job.held_by.as_ref().map(name_of));
        Self { priority: job.priority, number, tie: job.tie, id: job.id.clone(), limit }
    }

    /// Returns it as a cursor for this list: text that may be part of a URL.
    pub(crate) fn cursor(&self, queue: &str, state: JobState) -> String {
        let mut bytes = vec![FORM, state.number() as u8, self.priority as u8];
        bytes.extend(self.number.to_be_bytes());
        bytes.extend(self.tie.to_be_bytes());
        let limit = self.limit.as_deref().unwrap_or_default();
        bytes.extend((limit.len() as u32).to_be_bytes());
        bytes.extend([limit.as_bytes(), self.id.as_bytes()].concat());
        bytes.extend(check(queue, &bytes).to_be_bytes());
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads a cursor for this list.
    pub(crate) fn of_cursor(cursor: &str, queue: &str, state: JobState) -> Result<Self, ConfigError> {
        let misfit = || ConfigError::Cursor { queue: queue.to_owned(), state: state.to_string() };
        Self::read(cursor, queue, state).ok_or_else(misfit)
    }

    fn read(cursor: &str, queue: &str, state: JobState) -> Option<Self> {
        let digits = cursor.as_bytes();
        let digit = |digit: u8| (digit as char).to_digit(16).map(|value| value as u8);
        let bytes: Option<Vec<u8>> =
            digits.chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect();
        let bytes = bytes?;
        let (bytes, sum) = bytes.split_last_chunk()?;
        let (&[form, of, lane], rest) = bytes.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (tie, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (limit, id) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        let is_own = u32::from_be_bytes(*sum) == check(queue, bytes) && form == FORM && of == state.number() as u8;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        Some(Self {
            priority: *Priority::ALL.get(lane as usize)?,
            number: u64::from_be_bytes(*number),
            tie: u64::from_be_bytes(*tie),
            id: text(id)?,
            limit: Some(text(limit)?).filter(|limit| !limit.is_empty()),
        })
        .filter(|_| is_own)
    }
}

/// Returns a checksum of these bytes for this queue, so that foreign or cut cursors are refused.
fn check(queue: &str, bytes: &[u8]) -> u32 {
    crc32fast::hash(&[queue.as_bytes(), &[0], bytes].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_round_trips_and_no_part_of_it_is_valid() {
        for (id, limit) in [("a", None), ("~7", Some("tmail".to_owned())), ("ä/&? =", Some("k".to_owned()))] {
            let place = Place { priority: Priority::Low, number: u64::MAX - 1, tie: 7, id: id.to_owned(), limit };
            let cursor = place.cursor("q", JobState::Ready);
            assert!(cursor.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{cursor}");
            assert_eq!(Place::of_cursor(&cursor, "q", JobState::Ready), Ok(place));
            let refused = |cursor: &str, queue: &str, state| {
                let error = Place::of_cursor(cursor, queue, state).expect_err(cursor);
                assert_eq!(error, ConfigError::Cursor { queue: queue.to_owned(), state: state.to_string() });
            };
            refused(&cursor, "q", JobState::Dead);
            refused(&cursor, "other", JobState::Ready);
            (0..cursor.len()).for_each(|at| refused(&cursor[..at], "q", JobState::Ready));
            for at in 0..cursor.len() {
                let other = if &cursor[at..=at] == "0" { "1" } else { "0" };
                refused(&[&cursor[..at], other, &cursor[at + 1..]].concat(), "q", JobState::Ready);
            }
            for garbage in ["g0", "ää", "0", "01", "dead", &format!("{cursor}00"), &format!("+{}", &cursor[1..])] {
                refused(garbage, "q", JobState::Ready);
            }
        }
    }
}
