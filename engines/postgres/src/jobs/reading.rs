//! The state of a stream on its connection: what it was found to be, the looks, and the rows.

use super::look::{LookStatements, Server};
use super::looks::{Looks, Lsn, Seen};
use super::table::{Origin, Stream, check, find};
use crate::connection::Connection;
use crate::error::Error;
use postgres::Row;
use postgres::error::SqlState;
use std::time::{Duration, Instant};

/// How long a look may wait before that is explained.
const PATIENCE: Duration = Duration::from_secs(1);

/// The connection of a stream, and what is known of it.
pub(crate) struct Reading {
    name: String,
    ttl: Duration,
    connection: Connection,
    /// The table as it was found on this connection; `None` on a new one.
    found: Option<FoundRows>,
    looks: Looks,
    /// The origin of the ids that were shown first.
    origin: Option<Origin>,
    /// The highest position up to which the log was seen to be flushed.
    flushed: Lsn,
    /// Why the ids are no longer those that were shown. It stays.
    other: Option<String>,
    stuck: Option<Stuck>,
}

struct FoundRows {
    stream: Stream,
    statements: LookStatements,
    /// The number of the connection.
    opened: u64,
    /// The server and the last value of the last look.
    server: Option<Server>,
    last: Option<i64>,
}

/// Set while the oldest look waits.
struct Stuck {
    settled: Option<i64>,
    since: Instant,
    /// The explanation, and when it was made.
    why: Option<(Instant, String)>,
}

impl Reading {
    pub(crate) fn new(name: &str, ttl: Duration, connection: Connection) -> Self {
        Self {
            name: name.to_owned(),
            ttl,
            connection,
            found: None,
            looks: Looks::default(),
            origin: None,
            flushed: Lsn::default(),
            other: None,
            stuck: None,
        }
    }

    pub(crate) fn settled(&self) -> Option<i64> {
        self.looks.settled()
    }

    /// True if another look may settle more, though nothing new is inserted.
    pub(crate) fn is_waiting(&self) -> bool {
        self.looks.is_waiting()
    }

    /// Says why a look waits, once it has waited for long.
    pub(crate) fn explain(&self) -> Option<String> {
        self.stuck.as_ref()?.why.as_ref().map(|(_, why)| why.clone())
    }

    /// Starts over with what is there now, since no reader is left that has seen other ids.
    pub(crate) fn begin_anew(&mut self) {
        self.found = None;
        (self.looks, self.origin, self.other, self.flushed) = Default::default();
        self.stuck = None;
    }

    /// Finds the table if the connection is new.
    pub(crate) fn stream(&mut self) -> Result<&Stream, Error> {
        if let Some(what) = &self.other {
            return Err(Error::OtherIds { table: self.name.clone(), what: what.clone() });
        }
        if self.found.is_none() {
            self.find()?;
        }
        let Some(found) = &self.found else { unreachable!("it was found above") };
        Ok(&found.stream)
    }

    /// Makes the next call find the table again.
    pub(crate) fn find_anew(&mut self) {
        self.found = None;
    }

    fn find(&mut self) -> Result<(), Error> {
        // The known lock holders are void, since the server may have crashed in between.
        self.looks.void();
        let (name, ttl) = (&self.name, self.ttl);
        let found = self.connection.call(|client| find(client, &super::look::settings(ttl), name))?;
        if let (Some(shown), Some(now)) = (&self.origin, found.origin()) {
            if let Some(what) = shown.differs(&now) {
                return Err(self.are_other(what));
            }
            // Other parameters of the sequence are no other ids, even if they are refused for now.
            self.origin = Some(now);
        }
        let stream = check(name, &found)?;
        let (opened, statements) = (self.connection.opened(), LookStatements::new(&stream, ttl));
        self.found = Some(FoundRows { stream, statements, opened, server: None, last: None });
        Ok(())
    }

    fn are_other(&mut self, what: String) -> Error {
        self.other = Some(what.clone());
        Error::OtherIds { table: self.name.clone(), what }
    }

    /// Makes a call on the connection on which the table was found, or finds it again after a loss.
    fn call<R: Send>(
        &mut self,
        mut call: impl FnMut(&LookStatements, &mut postgres::Client) -> Result<R, Error> + Send,
    ) -> Result<R, Error> {
        let mut tries = 0;
        loop {
            tries += 1;
            self.stream()?;
            let Some(found) = &self.found else { unreachable!("it was found above") };
            let (opened, statements) = (found.opened, &found.statements);
            let answer = self.connection.call(|client| call(statements, client));
            let is_other = self.connection.opened() != opened || answer.as_ref().is_err_and(is_of_table);
            if is_other {
                self.found = None;
            }
            match answer {
                // An answer on a new connection, of which nothing is known.
                Ok(_) if is_other && tries < 3 => {}
                Ok(_) if is_other => return Err(Error::Closed),
                // The table may have been dropped, or its names may have changed.
                Err(error) if is_of_table(&error) && tries > 1 => return Err(error),
                Err(error) if is_of_table(&error) => {}
                answer => return answer,
            }
        }
    }

    pub(crate) fn look(&mut self) -> Result<(), Error> {
        let (seen, server) = self.see()?;
        self.check(&seen, server)?;
        self.looks.look(seen);
        self.flush()?;
        if self.origin.is_none() && self.looks.settled().is_some() {
            self.origin = self.found.as_ref().map(|found| found.stream.origin.clone());
        }
        self.note_stuck();
        Ok(())
    }

    /// Looks at the table that has the name now.
    fn see(&mut self) -> Result<(Seen, Server), Error> {
        for _ in 0..3 {
            if let Some(seen) = self.call(|statements, client| statements.look(client))? {
                return Ok(seen);
            }
            // Finding the table tells whether its ids are those that were shown.
            self.found = None;
        }
        Err(Error::Closed)
    }

    /// Refuses ids that are not those that were shown.
    fn check(&mut self, seen: &Seen, server: Server) -> Result<(), Error> {
        let Some(found) = &mut self.found else { return Ok(()) };
        if self.origin.as_ref().is_some_and(|origin| origin.timeline != server.timeline) {
            return Err(
                self.are_other(format!("the timeline of the server is {}, and was another one", server.timeline))
            );
        }
        if seen.flushed < self.flushed {
            return Err(self.are_other("the log of the server is shorter than it was".to_owned()));
        }
        // Behind a pooler the server may restart while the connection stays. A server that recovers
        // from the crash of one of its processes keeps its start time, so that goes unnoticed.
        let is_same = found.server.replace(server.clone()).is_none_or(|before| before == server);
        let before = found.last.take().filter(|_| is_same).max(self.looks.settled());
        found.last = seen.last;
        if !is_same {
            self.looks.void();
        }
        if seen.last < before {
            let text = |id: Option<i64>| id.map_or("none".to_owned(), |id| id.to_string());
            let what = format!("the last id was {} and is {}", text(before), text(seen.last));
            return Err(self.are_other(what));
        }
        self.flushed = seen.flushed;
        Ok(())
    }

    /// Flushes the log if nothing else is awaited and no other commit does it.
    fn flush(&mut self) -> Result<(), Error> {
        if !self.looks.wants_flush() {
            return Ok(());
        }
        let before = self.flushed;
        let flushed = self.call(|statements, client| statements.flushed(client))?;
        self.looks.flushed(flushed);
        // A position that moves shows that others commit, and the next look sees that.
        if self.looks.wants_flush() && flushed <= before {
            let flushed = self.call(|statements, client| statements.flush(client))?;
            self.looks.flushed(flushed);
        }
        Ok(())
    }

    /// Explains a look that has waited for long.
    fn note_stuck(&mut self) {
        let (now, settled) = (Instant::now(), self.looks.settled());
        if !self.looks.is_waiting() {
            self.stuck = None;
            return;
        }
        if self.stuck.as_ref().is_none_or(|stuck| stuck.settled != settled) {
            self.stuck = Some(Stuck { settled, since: now, why: None });
        }
        let Some(stuck) = &self.stuck else { return };
        let explained = stuck.why.as_ref().map_or(stuck.since, |(at, _)| *at);
        // A source without a head seems to have lost its jobs, so that is explained at once.
        let patience = if settled.is_none() && stuck.why.is_none() { Duration::ZERO } else { PATIENCE };
        if now.saturating_duration_since(explained) < patience {
            return;
        }
        let holders = self.looks.holders().to_vec();
        let why = if holders.is_empty() {
            Some("the server has not flushed its log for a while".to_owned())
        } else {
            // A look that succeeded must not fail by its explanation.
            let oldest = self.call(|statements, client| statements.oldest(client, &holders));
            oldest.ok().flatten().map(|writer| writer.explain(&self.name))
        };
        if let Some(stuck) = &mut self.stuck {
            stuck.why = why.map(|why| (now, why));
        }
    }

    /// Reads at most `most` rows up to the last id that is final.
    pub(crate) fn rows(&mut self, first: i64, most: usize) -> Result<Vec<Row>, Error> {
        let Some(last) = self.looks.settled() else { return Ok(Vec::new()) };
        self.call(|statements, client| statements.rows(client, first, last, most))
    }

    pub(crate) fn id_of(&self, row: &Row) -> Result<i64, Error> {
        let id = self.found.as_ref().map_or("", |found| &found.stream.id);
        super::look::id_of(row, id)
    }
}

/// True if a statement named something that is missing, or may not be read.
fn is_of_table(error: &Error) -> bool {
    let Error::Database(error) = error else { return false };
    let codes = [
        SqlState::UNDEFINED_TABLE,
        SqlState::UNDEFINED_COLUMN,
        SqlState::INVALID_SCHEMA_NAME,
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        // Behind a pooler a statement may have been prepared on another connection.
        SqlState::INVALID_SQL_STATEMENT_NAME,
        SqlState::DUPLICATE_PSTATEMENT,
    ];
    error.code().is_some_and(|code| codes.contains(code))
}
