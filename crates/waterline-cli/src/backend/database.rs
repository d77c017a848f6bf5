//! Streams and queues in PostgreSQL. The grants of the role decide what the tool may do.

use super::handles::{self, Handles};
use super::passfile;
use super::tls::{self, Address};
use super::{Backend, Holders, Made, Wanted, discard_each, redrive_each};
use crate::advice;
use crate::args::{self, Change};
use crate::error::Fault;
use crate::format::At;
use crate::rows::{self, Consumer, Jobs, Log, Move, ParkedRow, Periodic, Whole, Worker, read};
use waterline_postgres::postgres::config::{Host, SslMode};
use waterline_postgres::postgres::{Config, NoTls};
use waterline_postgres::{PgOptions, PgStore};
use waterline_queue::QueueAdmin;

/// The error for a URL that cannot be parsed.
const NO_URL: &str = "the URL is none of a database, or has a part behind its ? that this tool does not know: write it as \
                      postgres://user@host:5432/database";

pub(crate) struct Database {
    store: PgStore,
    /// Its host and its name, without a password.
    shown: String,
    handles: Handles<QueueAdmin>,
}

impl Database {
    /// Connects. Creates nothing: the programs of the database migrate it.
    pub(crate) fn connect(url: &str, schema: &str) -> Result<Self, Fault> {
        // The driver's error may repeat the URL, with a password in it.
        let address = Address::of(url)?;
        let mut config: Config = address.rest.parse().map_err(|_| Fault::new(NO_URL))?;
        passfile::complete(&mut config, |name| std::env::var(name).ok().filter(|value| !value.is_empty()))?;
        if config.get_application_name().is_none() {
            config.application_name("waterline-cli");
        }
        let host = match config.get_hosts() {
            [Host::Tcp(host), ..] => host.clone(),
            #[cfg(unix)]
            [Host::Unix(path), ..] => path.display().to_string(),
            [] => return Err(Fault::new("the URL has no host: write it as postgres://user@host:5432/database")),
        };
        let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
        let shown = format!("{database:?} at {host}");
        let options = PgOptions::new().schema(schema);
        let store = match config.get_ssl_mode() {
            SslMode::Require => PgStore::connect(config, address.connector()?, options),
            _ => PgStore::connect(config, NoTls, options),
        };
        let store = store.map_err(|error| {
            let text = format!("the database {shown} cannot be used: {}", Fault::from(error));
            Fault::new(match tls::advice(&text) {
                Some(help) => format!("{text}; {help}"),
                None => text,
            })
        })?;
        Ok(Self { store, shown, handles: Handles::default() })
    }

    fn handle(&self, name: &str) -> Result<QueueAdmin, Fault> {
        self.handles.of(name, || Ok(self.store.queue_admin(name)?))
    }
}

impl Backend for Database {
    fn consumers(&self) -> Result<Vec<Consumer>, Fault> {
        advice::saved(self.store.consumers()?)
    }

    fn logs(&self) -> Result<Vec<Log>, Fault> {
        Ok(Vec::new())
    }

    fn parked(&self, consumer: &str) -> Result<Vec<ParkedRow>, Fault> {
        read(self.store.parked(consumer)?)
    }

    fn history(&self, consumer: &str) -> Result<Vec<Move>, Fault> {
        read(self.store.history(consumer)?)
    }

    fn queue_names(&self) -> Result<Vec<String>, Fault> {
        Ok(self.store.queue_names()?)
    }

    fn left_to_processes(&self) -> &'static str {
        "Gates, and the retries of consumers, are known to their processes alone."
    }

    fn queue(&self, name: &str) -> Result<rows::Queue, Fault> {
        handles::row(self.handle(name)?.look())
    }

    fn jobs(&self, queue: &str, wanted: Wanted<'_>) -> Result<Jobs, Fault> {
        handles::jobs(self.handle(queue)?.look(), wanted)
    }

    fn job(&self, queue: &str, id: &str) -> Result<Option<Whole>, Fault> {
        handles::job(self.handle(queue)?.look(), id)
    }

    fn periodics(&self, queue: &str) -> Result<Vec<Periodic>, Fault> {
        read(self.handle(queue)?.look().periodics()?)
    }

    fn workers(&self, queue: &str) -> Result<Vec<Worker>, Fault> {
        read(self.handle(queue)?.look().workers()?)
    }

    fn unasked(&self) -> &'static str {
        ", whose hook is not asked"
    }

    fn freshness(&self) -> String {
        format!("read from the database {}, {}", self.shown, At::now().clock())
    }

    fn holders(&self) -> Holders {
        Holders::Unknown
    }

    fn is_database(&self) -> bool {
        true
    }

    fn hindrance(&self) -> Result<Option<String>, Fault> {
        Ok(None)
    }

    fn change(self: Box<Self>, change: &Change, seen: Option<&str>) -> Result<Made, Fault> {
        let store = &self.store;
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
                let parked: Vec<_> = store.parked(name)?.iter().map(|job| job.index).collect();
                let discard = |index| Ok(store.discard(name, index).map_err(Fault::from)?);
                return Ok(discard_each(name, &parked, &which.range(), discard));
            }
            Change::Skip { name, index, how } => store.skip(name, *index, &how.reason)?,
            Change::Seek { name, next, how, .. } => store.seek(name, *next, &how.reason)?,
            Change::Replace { .. } => {
                return Err(Fault::new(
                    "in a database, a program gives a consumer the name of another one, in the transaction that renames its tables: call \
                     `PgStore::replace_in` there",
                ));
            }
            Change::Remove { name, .. } => store.remove(name)?,
            Change::Check { .. } => {
                return Err(Fault::new("a consumer looks at its source in its process alone: use --url"));
            }
            Change::RemoveQueue { queue, .. } => {
                return Ok(Made::of([("jobs", store.remove_queue(queue)?.into())]));
            }
            Change::OfQueue(change) => return handles::change(&self.handle(change.queue())?, change, seen),
        }
        Ok(Made::default())
    }
}
