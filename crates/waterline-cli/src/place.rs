//! The places that a command looks at and changes: the files of a store, or the page of an
//! application. The commands know this seam alone.

use crate::args::{Change, CommandLine, State};
use crate::fault::Fault;
use crate::rows::{Consumer, Jobs, Log, Move, Parked, Periodic, Queue, Whole};
use clap::error::ErrorKind;
use serde_json::{Map, Value};
use std::path::PathBuf;
use waterline::Store;

#[cfg(feature = "postgres")]
mod database;
pub(crate) mod files;
mod handles;
mod http;
mod page;

/// The jobs of a queue that are wanted: a page of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'w> {
    pub(crate) state: State,
    pub(crate) kind: Option<&'w str>,
    /// The cursor of the page before.
    pub(crate) behind: Option<&'w str>,
    pub(crate) most: usize,
}

/// A place with consumers and queues. It is opened for one command, or for one look of several:
/// files show what was saved when they were opened, and a page what is there at the call.
///
/// A queue that is named is there: see [`check_queue`]. A consumer may be gone meanwhile.
pub(crate) trait Place {
    /// Returns the consumers.
    fn consumers(&self) -> Result<Vec<Consumer>, Fault>;

    /// Returns one consumer, with all that is known of it.
    fn consumer(&self, name: &str) -> Result<Option<Consumer>, Fault> {
        Ok(self.consumers()?.into_iter().find(|consumer| consumer.name == name))
    }

    /// Returns the logs.
    fn logs(&self) -> Result<Vec<Log>, Fault>;

    /// Returns the parked jobs of a consumer.
    fn parked(&self, consumer: &str) -> Result<Vec<Parked>, Fault>;

    /// Returns the moves of a consumer that were made on purpose, the oldest first.
    fn history(&self, consumer: &str) -> Result<Vec<Move>, Fault>;

    /// Returns the names of the queues.
    fn queue_names(&self) -> Result<Vec<String>, Fault>;

    /// Returns the queues.
    fn queues(&self) -> Result<Vec<Queue>, Fault> {
        self.queue_names()?.iter().map(|name| self.queue(name)).collect()
    }

    /// Returns one queue.
    fn queue(&self, name: &str) -> Result<Queue, Fault>;

    /// Returns jobs of a queue: a page, which may have fewer than are wanted and still a next one.
    fn jobs(&self, queue: &str, wanted: Wanted<'_>) -> Result<Jobs, Fault>;

    /// Returns one job.
    fn job(&self, queue: &str, id: &str) -> Result<Option<Whole>, Fault>;

    /// Returns the periodic jobs of a queue.
    fn periodics(&self, queue: &str) -> Result<Vec<Periodic>, Fault>;

    /// Returns the store, if this place is its files: logs and tables are read from it.
    fn store(&self) -> Option<&Store> {
        None
    }

    /// True if changes are made by the processes that run the consumers and the queues.
    fn has_processes(&self) -> bool {
        false
    }

    /// Says what a push does not ask for, if there is anything.
    fn unasked(&self) -> &'static str {
        ""
    }

    /// Says what the looks show, and how fresh they are.
    fn freshness(&self) -> String;

    /// Returns the way in which this place is open to its processes, for the sentences of the
    /// doctor.
    fn holders(&self) -> Holders;

    /// Says why a change would be refused now, if that is known.
    fn hindrance(&self) -> Result<Option<String>, Fault>;

    /// Makes a change, and returns the fields of its record that are known only then. The look is
    /// closed before.
    fn change(self: Box<Self>, change: &Change) -> Result<Map<String, Value>, Fault>;
}

/// A process that has a store open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) process: u32,
    pub(crate) program: String,
}

/// Those who have the place open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holders {
    /// This process.
    One(Holder),
    /// None that this process can see.
    None,
    /// Nobody tells.
    Unknown,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.process, self.program)
    }
}

/// The way to a place, as a command line names it.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    Store(PathBuf),
    Url(String),
    Postgres { url: String, schema: String },
}

impl Way {
    /// Reads it.
    ///
    /// # Errors
    /// The misuse: there is none, or more than one.
    pub(crate) fn of(line: &CommandLine) -> Result<Self, (ErrorKind, &'static str)> {
        let postgres = line.postgres.clone().map(|url| Self::Postgres { url, schema: line.schema.clone() });
        let ways = [line.store.clone().map(Self::Store), line.url.clone().map(Self::Url), postgres];
        let mut ways = ways.into_iter().flatten();
        match (ways.next(), ways.next()) {
            (Some(way), None) => Ok(way),
            (None, _) => {
                Err((ErrorKind::MissingRequiredArgument, "say where it is: --store PATH, --url URL or --postgres URL"))
            }
            _ => Err((
                ErrorKind::ArgumentConflict,
                "one of --store, --url and --postgres is enough: they may be several places",
            )),
        }
    }
}

/// Opens a place to look at it.
pub(crate) fn open(way: &Way) -> Result<Box<dyn Place>, Fault> {
    Ok(match way {
        Way::Store(path) => Box::new(files::Files::look(path)?),
        Way::Url(url) => Box::new(page::Page::new(url)?),
        #[cfg(feature = "postgres")]
        Way::Postgres { url, schema } => Box::new(database::Database::connect(url, schema)?),
        #[cfg(not(feature = "postgres"))]
        Way::Postgres { .. } => {
            return Err(Fault::new("this program was built without PostgreSQL: build it with the feature `postgres`"));
        }
    })
}

/// Returns the consumer of this name, or the fault that names the nearest one.
pub(crate) fn consumer(place: &dyn Place, name: &str) -> Result<Consumer, Fault> {
    if let Some(consumer) = place.consumer(name)? {
        return Ok(consumer);
    }
    let known: Vec<_> = place.consumers()?.into_iter().map(|consumer| consumer.name).collect();
    Err(Fault::unknown("consumer", name, &known))
}

/// Makes sure that there is a queue of this name, or names the nearest one.
pub(crate) fn check_queue(place: &dyn Place, name: &str) -> Result<(), Fault> {
    let known = place.queue_names()?;
    if known.iter().any(|known| known == name) { Ok(()) } else { Err(Fault::unknown("queue", name, &known)) }
}

/// Calls this with each job of a queue that is in this state, until it returns false.
pub(crate) fn each_job(
    place: &dyn Place,
    queue: &str,
    state: State,
    kind: Option<&str>,
    mut job: impl FnMut(crate::rows::Job) -> bool,
) -> Result<(), Fault> {
    let mut cursor: Option<String> = None;
    loop {
        let page = place.jobs(queue, Wanted { state, kind, behind: cursor.as_deref(), most: CHUNK })?;
        if !page.jobs.into_iter().all(&mut job) || page.next.is_none() {
            return Ok(());
        }
        if page.next == cursor {
            return Err(Fault::new(format!("the list of the jobs of {queue:?} does not go on: look again")));
        }
        cursor = page.next;
    }
}

/// The jobs that are read at once.
const CHUNK: usize = 500;

/// Returns the fault for a command that needs the files.
pub(crate) fn needs_files(what: &str) -> Fault {
    Fault::new(format!("{what} are read from the files of a store: call it with --store PATH on its machine"))
}
