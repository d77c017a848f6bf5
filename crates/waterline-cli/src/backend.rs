//! What a command reads and changes: the files of a store, a database, or the page of an
//! application. The commands know only the trait [`Backend`].

use crate::args::{Change, State};
use crate::error::Fault;
use crate::format::count;
use crate::rows::{Consumer, Jobs, Log, Move, ParkedRow, Periodic, Queue, Whole, Worker};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use waterline::Store;

#[cfg(feature = "postgres")]
mod database;
pub(crate) mod files;
mod handles;
mod http;
mod page;
#[cfg(feature = "postgres")]
mod passfile;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "postgres")]
mod tls;
mod way;

pub(crate) use way::{Way, open};

/// A request for one page of the jobs of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'w> {
    pub(crate) state: State,
    pub(crate) kind: Option<&'w str>,
    /// The cursor that the previous page returned.
    pub(crate) behind: Option<&'w str>,
    pub(crate) most: usize,
}

/// A place with consumers and queues, opened for one command or for one look of a watch.
///
/// Files show what was saved when they were opened, a page the state at each call. Callers check
/// first that a queue exists ([`check_queue`]); a consumer may have gone meanwhile.
pub(crate) trait Backend {
    fn consumers(&self) -> Result<Vec<Consumer>, Fault>;

    /// Returns one consumer, with all that is known of it.
    fn consumer(&self, name: &str) -> Result<Option<Consumer>, Fault> {
        Ok(self.consumers()?.into_iter().find(|consumer| consumer.name == name))
    }

    fn logs(&self) -> Result<Vec<Log>, Fault>;

    fn parked(&self, consumer: &str) -> Result<Vec<ParkedRow>, Fault>;

    /// Returns the moves of a consumer that were made on purpose, the oldest first.
    fn history(&self, consumer: &str) -> Result<Vec<Move>, Fault>;

    fn queue_names(&self) -> Result<Vec<String>, Fault>;

    fn queues(&self) -> Result<Vec<Queue>, Fault> {
        self.queue_names()?.iter().map(|name| self.queue(name)).collect()
    }

    fn queue(&self, name: &str) -> Result<Queue, Fault>;

    /// Returns one page of jobs, which may be short even if another page follows.
    fn jobs(&self, queue: &str, wanted: Wanted<'_>) -> Result<Jobs, Fault>;

    fn job(&self, queue: &str, id: &str) -> Result<Option<Whole>, Fault>;

    fn periodics(&self, queue: &str) -> Result<Vec<Periodic>, Fault>;

    /// Returns the workers of a queue. Files know only the process that has them open and the jobs
    /// that are saved as running.
    fn workers(&self, queue: &str) -> Result<Vec<Worker>, Fault>;

    /// Returns the store if this place is its files; logs and tables are read from it.
    fn store(&self) -> Option<&Store> {
        None
    }

    /// True for a server: only there can a queue be removed.
    fn is_database(&self) -> bool {
        false
    }

    /// True if changes are made by the processes that run the consumers and the queues.
    fn has_processes(&self) -> bool {
        false
    }

    /// Says what only the running process knows.
    fn left_to_processes(&self) -> &'static str {
        "Retries, gates, limits and what runs are known to the process alone."
    }

    /// Says which checks a push bypasses, if any.
    fn unasked(&self) -> &'static str {
        ""
    }

    /// Says what is shown, and how fresh it is.
    fn freshness(&self) -> String;

    /// Returns who has this place open, for the findings of the doctor.
    fn holders(&self) -> Holders;

    /// Says why a change would be refused now, if that is known.
    fn hindrance(&self) -> Result<Option<String>, Fault>;

    /// Makes a change, and says what it did. A store that is open for a look is closed first.
    ///
    /// `seen` is the state of the job when the change was planned, if it changes one job.
    fn change(self: Box<Self>, change: &Change, seen: Option<&str>) -> Result<Made, Fault>;
}

/// The result of a change.
#[derive(Debug, Default)]
pub(crate) struct Made {
    /// Fields of its record that are known only afterwards.
    pub(crate) fields: Map<String, Value>,
    /// Why a part of it was not done.
    pub(crate) failed: Option<Fault>,
}

impl Made {
    fn of<const N: usize>(fields: [(&str, Value); N]) -> Self {
        Self { fields: fields.map(|(field, value)| (field.to_owned(), value)).into_iter().collect(), failed: None }
    }
}

/// Why one of many jobs was not changed.
enum NotDone {
    /// The job is no longer parked: another caller was quicker.
    Gone,
    /// This one is refused. Others may not be.
    This(Fault),
    /// Others would fail, too.
    All(Fault),
}

impl From<Fault> for NotDone {
    fn from(fault: Fault) -> Self {
        if fault.is_not_parked { Self::Gone } else { Self::All(fault) }
    }
}

/// Redrives these parked jobs one by one, and counts those that could not be.
fn redrive_each(name: &str, jobs: &[u64], redrive: impl FnMut(u64) -> Result<(), NotDone>) -> Made {
    let (done, gone, failed, why) = each_parked(jobs, redrive);
    let failed_of = |why: Fault| {
        let (all, done) = (count(jobs.len() as u64, "parked job"), done.len());
        Fault::new(format!("{done} of {all} of {name:?} will run once more, and {failed} will not: {why}"))
    };
    let failure = why.map(failed_of);
    let made = Made::of([("indices", done.into()), ("not_parked", gone.into()), ("failed", failed.into())]);
    Made { failed: failure, ..made }
}

/// Discards the parked jobs within the range, one by one.
fn discard_each(
    name: &str,
    parked: &[u64],
    range: &RangeInclusive<u64>,
    discard: impl FnMut(u64) -> Result<(), NotDone>,
) -> Made {
    let jobs: Vec<_> = parked.iter().copied().filter(|index| range.contains(index)).collect();
    let (done, _gone, failed, why) = each_parked(&jobs, discard);
    let failed_of = |why: Fault| {
        let all = count(jobs.len() as u64, "parked job");
        Fault::new(format!("{} of {all} of {name:?} are given up, and {failed} are not: {why}", done.len()))
    };
    let failure = why.map(failed_of);
    Made { failed: failure, ..Made::of([("discarded", done.len().into())]) }
}

/// Changes each of these jobs. Returns the changed ones, how many were no longer parked, how many
/// are left, and why.
fn each_parked(
    jobs: &[u64],
    mut change: impl FnMut(u64) -> Result<(), NotDone>,
) -> (Vec<u64>, usize, usize, Option<Fault>) {
    let (mut done, mut gone, mut failed, mut why) = (Vec::new(), 0, 0, None);
    for (at, index) in jobs.iter().enumerate() {
        match change(*index) {
            Ok(()) => done.push(*index),
            Err(NotDone::Gone) => gone += 1,
            Err(NotDone::This(fault)) => {
                failed += 1;
                why.get_or_insert(fault);
            }
            Err(NotDone::All(fault)) => {
                failed += jobs.len() - at;
                why = Some(fault);
                break;
            }
        }
    }
    (done, gone, failed, why)
}

/// A process that has a store open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) process: u32,
    pub(crate) program: String,
}

/// Who has a place open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holders {
    /// One process.
    One(Holder),
    /// No process that can be seen from here.
    None,
    /// It cannot be determined.
    Unknown,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.process, self.program)
    }
}

/// Returns the consumer of this name, or a fault that suggests the nearest one.
pub(crate) fn consumer(place: &dyn Backend, name: &str) -> Result<Consumer, Fault> {
    if let Some(consumer) = place.consumer(name)? {
        return Ok(consumer);
    }
    let known: Vec<_> = place.consumers()?.into_iter().map(|consumer| consumer.name).collect();
    Err(Fault::unknown("consumer", name, &known))
}

/// Checks that there is a queue of this name, or suggests the nearest one.
pub(crate) fn check_queue(place: &dyn Backend, name: &str) -> Result<(), Fault> {
    let known = place.queue_names()?;
    if known.iter().any(|known| known == name) { Ok(()) } else { Err(Fault::unknown("queue", name, &known)) }
}

/// Calls `job` with each job of a queue in this state, until it returns false.
pub(crate) fn each_job(
    place: &dyn Backend,
    queue: &str,
    state: State,
    kind: Option<&str>,
    mut job: impl FnMut(crate::rows::Job) -> bool,
) -> Result<(), Fault> {
    let (mut cursor, mut cursors) = (None::<String>, BTreeSet::new());
    loop {
        let found = place.jobs(queue, Wanted { state, kind, behind: cursor.as_deref(), most: CHUNK })?;
        if !found.jobs.into_iter().all(&mut job) || found.next.is_none() {
            return Ok(());
        }
        // A repeated cursor would loop for ever.
        if found.next.as_ref().is_some_and(|next| !cursors.insert(next.clone())) {
            return Err(Fault::new(format!("the list of the jobs of {queue:?} does not go on: look again")));
        }
        cursor = found.next;
    }
}

/// How many jobs are read at a time.
const CHUNK: usize = 500;

/// Returns the fault for a command that needs the files.
pub(crate) fn needs_files(what: &str) -> Fault {
    Fault::new(format!("{what} are read from the files of a store: call it with --store PATH on its machine"))
}

/// Returns the fault for a change that only a process makes.
pub(crate) fn needs_process(what: &str) -> Fault {
    Fault::new(format!("a consumer is {what} by its process alone: go through its page, with --url"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_redrives_count_gone_and_failed_jobs() {
        let found = |ends: fn(u64) -> Result<(), NotDone>| {
            let Made { fields, failed } = redrive_each("p", &[3, 5, 7, 9], ends);
            let failed = failed.map(|fault| fault.to_string()).unwrap_or_default();
            (Value::Object(fields).to_string(), failed)
        };
        assert_eq!(
            found(|index| if index == 5 { Err(NotDone::Gone) } else { Ok(()) }),
            ("{\"failed\":0,\"indices\":[3,7,9],\"not_parked\":1}".to_owned(), String::new())
        );
        let (fields, failed) = found(|index| if index == 5 { Err(NotDone::This(Fault::new("no"))) } else { Ok(()) });
        assert_eq!(fields, "{\"failed\":1,\"indices\":[3,7,9],\"not_parked\":0}");
        assert_eq!(failed, "3 of 4 parked jobs of \"p\" will run once more, and 1 will not: no");
        let (fields, failed) = found(|index| if index == 5 { Err(Fault::new("no").into()) } else { Ok(()) });
        assert_eq!(fields, "{\"failed\":3,\"indices\":[3],\"not_parked\":0}");
        assert_eq!(failed, "1 of 4 parked jobs of \"p\" will run once more, and 3 will not: no");
        let gone: Fault = waterline::Error::NotParked { name: "p".to_owned(), index: 5 }.into();
        assert!(matches!(NotDone::from(gone), NotDone::Gone));
    }
}
