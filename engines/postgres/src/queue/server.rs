//! The functions of the schema, as the engine of all servers calls them.

use super::answers::{all_of, each_of};
use super::calls::{Database, values};
use super::faults::Failed;
use super::rows;
use crate::connection::in_transaction;
use crate::error::Error;
use crate::schema;
use crate::sql::Value;
use postgres::types::Json;
use postgres::{Client, Row};
use std::any::Any;
use std::collections::HashSet;
use waterline_queue::Capabilities;
use waterline_queue::engine_api::{NO_CAPABILITIES, QueueNo};
use waterline_queue::remote::{
    Answer, Answers, At, Average, EditCall, LimitRow, PeriodicCall, PeriodicRow, Place, PlainPush, PushCall, Renewal,
    Renewer, Ring, Runs, Server, Shown, TurnCall, WorkerRow, said, signed,
};

/// The most jobs with settings whose outcomes fit into an answer of 8 kB, which the server keeps
/// until the commit, so no caller keeps the transaction open. Larger pushes commit before they
/// answer.
const ANSWERED: usize = 8;
/// The most plain jobs whose numbers fit.
const PLAIN: usize = 640;
/// The most jobs, and the bytes of their data and errors, whose ends are answered within their
/// transaction. Other turns commit before they answer, too.
const FEW: usize = 16;
const SHORT: usize = 1_000;

type Result<T> = std::result::Result<T, Failed>;

impl Server for Database {
    type Error = Failed;

    const CAPABILITIES: Capabilities = {
        let mut can = NO_CAPABILITIES;
        can.names_limits = true;
        can
    };

    const THREADS: &'static str = "wl-pg";

    /// While one waits for the disk of the server, the other brings jobs. More would wait for each
    /// other, and take every connection of the server under load.
    const TURNS: usize = 2;

    const JOINED: usize = PLAIN;

    fn worker(&self) -> &str {
        &self.store.options().holder
    }

    fn names(&self) -> Result<Vec<String>> {
        let (names, version) = (self.sql_of("queues", 0), self.sql_of("schema_version", 0));
        Ok(self.with(None, |client, _| {
            self.check(client, &version)?;
            client.query_typed(&names, &[])?.iter().map(|row| Ok(row.try_get(0)?)).collect()
        })?)
    }

    fn open(&self, name: &str, options: Option<&str>) -> Result<(QueueNo, Vec<Average>)> {
        let version = self.sql_of("schema_version", 0);
        let (create, averages) = (self.sql_of("create_queue", 2), self.sql_of("averages_of", 1));
        let create = create.replace("$2", "$2::text::jsonb");
        let stays = self.sql_of("create_queue", 1);
        Ok(self.with(None, |client, _| {
            if options.is_some() {
                // Later calls rely on this check: newer versions serve older programs.
                self.check(client, &version)?;
            }
            let values = values![TEXT name, TEXT options];
            let number = match options {
                Some(_) => client.query_typed(&create, &values)?,
                None => client.query_typed(&stays, &values[..1])?,
            };
            let number: i32 = number.first().map_or(Ok(0), |row| row.try_get(0))?;
            let number = u32::try_from(number).unwrap_or(0);
            let known = if options.is_some() { client.query_typed(&averages, &values[..1])? } else { Vec::new() };
            let average = |row: &Row| Ok((row.try_get(0)?, [1, 2, 3].map(|at| row.try_get(at).ok())));
            Ok((number, known.iter().map(average).collect::<std::result::Result<_, Error>>()?))
        })?)
    }

    fn listen(&self, at: At<'_>, ring: Ring) -> Result<Option<Box<dyn Any + Send + Sync>>> {
        let channel = self.rows(at, "listen_to", &values![TEXT at.queue])?;
        let channel: String = channel.first().map(|row| row.get(0)).unwrap_or_default();
        Ok(Some(Box::new(self.store.keeper().listen(&channel, ring)?)))
    }

    fn push(&self, at: At<'_>, jobs: &PushCall) -> Answers<Failed> {
        let values = push_values(&at, jobs);
        if jobs.kinds.len() > ANSWERED {
            return self.committed(at, "push_and_commit", &values);
        }
        let sql = self.push_sql();
        let rows = self.with(at.clock, |client, _| Ok(client.query_typed(&sql, &values)?));
        Ok(each_of(&rows?)?)
    }

    /// It is one call: if this process froze between several, it would block others from all of
    /// these queues.
    fn push_across(&self, pushes: &[(At<'_>, &PushCall)]) -> Result<Vec<Vec<Answer>>> {
        let queues: Vec<_> = pushes.iter().map(|(at, _)| at.queue).collect();
        let counts: Vec<_> = pushes.iter().map(|(_, jobs)| int(jobs.kinds.len())).collect();
        let kinds: Vec<_> = pushes.iter().flat_map(|(_, jobs)| &jobs.kinds).collect();
        let payloads: Vec<_> = pushes.iter().flat_map(|(_, jobs)| &jobs.payloads).collect();
        let settings: Vec<_> = pushes.iter().flat_map(|(_, jobs)| &jobs.settings).collect();
        let batches: Vec<_> = pushes.iter().map(|(_, jobs)| jobs.is_batch).collect();
        let values = values![
            TEXT_ARRAY queues, INT4_ARRAY counts, TEXT_ARRAY kinds, TEXT_ARRAY payloads,
            TEXT_ARRAY settings, BOOL_ARRAY batches,
        ];
        let call = self.call_of("push_across_and_commit", values.len(), 2);
        let clock = pushes.first().and_then(|(at, _)| at.clock);
        let rows = self.with_level(clock, true, |client, _| Ok(client.query_typed(&call, &values)?));
        let answers = all_of(&rows?)?;
        Ok(answers.split(|answer| answer.what == "next").map(<[_]>::to_vec).collect())
    }

    fn push_plain(&self, at: At<'_>, jobs: &PlainPush) -> Result<Option<Vec<i64>>> {
        let values = values![TEXT at.queue, TEXT_ARRAY jobs.kinds, TEXT_ARRAY jobs.payloads];
        let is_long = jobs.kinds.len() > PLAIN;
        let sql = if is_long { self.call_of("push_plain_and_commit", 3, 1) } else { self.sql_of("push_plain", 3) };
        Ok(self.with_level(at.clock, is_long, |client, statements| {
            let rows = statements.query(client, &sql, &values)?;
            Ok(rows.first().map_or(Ok(None), |row| row.try_get(0))?)
        })?)
    }

    fn turn(&self, at: At<'_>, turn: &TurnCall<'_>) -> Answers<Failed> {
        let TurnCall { runs, ends, errors, datas, most, .. } = turn;
        let values = values![
            INT8_ARRAY runs.numbers, INT8_ARRAY runs.tokens, TEXT_ARRAY *ends, INT8_ARRAY turn.ats, TEXT_ARRAY *errors,
            TEXT_ARRAY *datas, TEXT turn.is_of_queue.then_some(at.queue), INT4 most.unwrap_or(0),
            TEXT_ARRAY turn.kinds, INT8 turn.due_by, INT8 turn.lease, TEXT self.worker(), BOOL turn.tick,
            INT8 turn.arm, INT8 turn.due_since, TEXT turn.about,
        ];
        let texts = datas.iter().flatten().map(|data| data.len()).chain(errors.iter().flatten().map(String::len));
        let is_few = most.is_none_or(|most| most <= int(FEW)) && ends.len() <= FEW && texts.sum::<usize>() <= SHORT;
        if is_few { self.answers(at, "turn", &values) } else { self.committed(at, "turn_and_commit", &values) }
    }

    fn edit(&self, at: At<'_>, edit: &EditCall<'_>) -> Answers<Failed> {
        let values = values![
            TEXT at.queue, TEXT edit.id, INT8 edit.number, INT8 edit.token, TEXT edit.what,
            TEXT edit.key, TEXT edit.value, INT8 edit.at, FLOAT8 edit.fraction,
        ];
        self.answers(at, "edit", &values)
    }

    fn steer(&self, at: At<'_>, what: &str, id: Option<&str>, time: Option<i64>) -> Answers<Failed> {
        let values = values![TEXT at.queue, TEXT what, TEXT id, INT8 time];
        self.answers(at, "steer", &values)
    }

    fn change_note(
        &self,
        at: At<'_>,
        of: &str,
        what: &str,
        value: Option<&str>,
        time: i64,
    ) -> Result<[Option<(String, i64)>; 2]> {
        let values = values![TEXT at.queue, TEXT of, TEXT what, TEXT value, INT8 time];
        let sql = self.call_of("change_note_and_commit", values.len(), 4);
        let rows =
            self.with_level(at.clock, true, |client, statements| Ok(statements.query(client, &sql, &values)?))?;
        let note = |column| {
            let row = rows.first()?;
            let until: Option<i64> = row.try_get(column + 1).ok().flatten();
            Some((row.try_get::<_, Option<String>>(column).ok().flatten()?, until.unwrap_or(0)))
        };
        Ok([0, 2].map(note))
    }

    fn renew(&self, at: At<'_>, runs: &Runs, renewal: Renewal) -> Result<Vec<bool>> {
        let values = values![
            INT8_ARRAY runs.numbers, INT8_ARRAY runs.tokens, INT8 renewal.lease,
            BOOL renewal.is_silent, BOOL renewal.is_stopping.then_some(true),
        ];
        holds(runs, &self.rows(at, "renew", &values)?)
    }

    fn renewer(&self) -> Renewer<Failed> {
        let (mut connection, sql) = (self.store.connection(), self.sql_of("renew", 6));
        Box::new(move |runs, about| {
            let about = said(about.to_vec());
            let renewed = connection.ask(|client, statements| {
                let values = values![
                    INT8_ARRAY runs.numbers, INT8_ARRAY runs.tokens, INT8 None::<i64>,
                    BOOL None::<bool>, BOOL None::<bool>, TEXT about,
                ];
                if statements.is_direct() {
                    return Ok(client.query_typed(&sql, &values)?);
                }
                // Behind a pooler the session may have a level in which concurrent renewals fail.
                in_transaction(client, |client| Ok(client.query_typed(&sql, &values)?))
            });
            holds(runs, &renewed?)
        })
    }

    fn note_stop(&self, at: At<'_>, runs: &Runs, about: &[serde_json::Value]) -> Result<()> {
        let about = said(about.to_vec());
        let values = values![INT8_ARRAY runs.numbers, INT8_ARRAY runs.tokens, TEXT about];
        Ok(self.rows(at, "note_stop", &values).map(drop)?)
    }

    fn register_periodic(
        &self,
        at: At<'_>,
        periodic: &PeriodicCall<'_>,
        schedule: &str,
        at_next: bool,
    ) -> Answers<Failed> {
        let values = values![
            TEXT at.queue, TEXT periodic.name, TEXT schedule, INT8 None::<i64>,
            TEXT periodic.kind, TEXT periodic.payload, TEXT periodic.settings, BOOL at_next, INT8 periodic.next,
        ];
        self.answers(at, "register_periodic", &values)
    }

    fn tick_once(
        &self,
        at: At<'_>,
        periodic: &PeriodicCall<'_>,
        (last, new): (i64, i64),
        ticks: &[i64],
        may_overlap: bool,
    ) -> Answers<Failed> {
        let values = values![
            TEXT at.queue, TEXT periodic.name, INT8 last, INT8 new, INT8_ARRAY ticks,
            BOOL may_overlap, TEXT periodic.kind, TEXT periodic.payload, TEXT periodic.settings, INT8 periodic.next,
        ];
        self.answers(at, "tick_once", &values)
    }

    fn set_average(&self, at: At<'_>, kind: &str, [count, mean, last]: [i64; 3]) -> Result<()> {
        let values = values![TEXT at.queue, TEXT kind, INT8 count, INT8 mean, INT8 last];
        Ok(self.rows(at, "set_average", &values).map(drop)?)
    }

    fn load(&self, at: At<'_>, runs: &Runs) -> Answers<Failed> {
        let values = values![INT8_ARRAY runs.numbers, INT8_ARRAY runs.tokens];
        self.read(at, "load", &values, |row| {
            Ok(Answer {
                token: row.try_get(1)?,
                id: row.try_get(2)?,
                kind: row.try_get(3)?,
                payload: row.try_get(4)?,
                data: row.try_get(5)?,
                more: row.try_get(9)?,
                error: row.try_get(10)?,
                ..Answer::default()
            })
        })
    }

    fn ended_by(&self, at: At<'_>, runs: &Runs) -> Result<Vec<(String, Option<String>)>> {
        let values = values![INT8_ARRAY runs.numbers, INT8_ARRAY runs.tokens];
        Ok(self.read(at, "ended_by", &values, known)?.concat())
    }

    fn peek_now(&self, at: At<'_>, kinds: Option<&[String]>, about: Option<&str>) -> Answers<Failed> {
        let values = values![TEXT at.queue, TEXT self.worker(), TEXT_ARRAY kinds, TEXT about];
        self.answers(at, "peek_now", &values)
    }

    fn get(&self, at: At<'_>, id: &str) -> Result<Option<Shown>> {
        Ok(self.read(at, "get", &values![TEXT at.queue, TEXT id], rows::shown)?.pop())
    }

    fn list(&self, at: At<'_>, state: &str, behind: Option<&Place>, most: i64) -> Result<Vec<Shown>> {
        let values = values![
            TEXT at.queue, TEXT state, TEXT behind.and_then(|place| place.limit.as_deref()),
            INT4 behind.map(|place| place.priority as i32), INT8 behind.map(|place| signed(place.number)),
            INT8 behind.map(|place| signed(place.tie)), INT8 most,
        ];
        self.read(at, "list", &values, rows::shown)
    }

    fn states_of(&self, at: At<'_>, ids: &[&str]) -> Result<Vec<Shown>> {
        self.read(at, "states_of", &values![TEXT at.queue, TEXT_ARRAY ids], rows::state)
    }

    fn counts(&self, at: At<'_>) -> Result<Vec<(String, i64, i64)>> {
        let count = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
        self.read(at, "counts", &values![TEXT at.queue], count)
    }

    fn status_inputs(&self, at: At<'_>) -> Result<serde_json::Value> {
        let values = values![TEXT at.queue, TEXT self.worker()];
        let inputs = self.read(at, "status_inputs", &values, |row| row.try_get(0))?.pop();
        Ok(inputs.map_or_else(Default::default, |Json(inputs)| inputs))
    }

    fn who_runs(&self, at: At<'_>) -> Result<(i64, Option<String>, Option<i64>)> {
        let runs = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
        Ok(self.read(at, "who_runs", &values![TEXT at.queue], runs)?.pop().unwrap_or_default())
    }

    fn waits_since(&self, at: At<'_>) -> Result<Option<i64>> {
        Ok(self.read(at, "waits_since", &values![TEXT at.queue], |row| row.try_get(0))?.pop().flatten())
    }

    fn limits_used(&self, at: At<'_>) -> Result<Vec<LimitRow>> {
        self.read(at, "limits_used", &values![TEXT at.queue], rows::limit)
    }

    fn related_to(&self, at: At<'_>, id: &str, most: i64) -> Result<(Vec<String>, Vec<String>)> {
        let values = values![TEXT at.queue, TEXT id, INT8 most];
        let related = self.read(at, "related_to", &values, |row| Ok((row.try_get(0)?, row.try_get(1)?)));
        Ok(related?.pop().unwrap_or_default())
    }

    fn notes_of(
        &self,
        at: At<'_>,
        prefix: &str,
        behind: Option<&str>,
        most: i64,
    ) -> Result<Vec<(String, String, i64)>> {
        let values = values![TEXT at.queue, TEXT prefix, TEXT behind, INT8 most];
        self.read(at, "notes_of", &values, |row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)))
    }

    fn periodics_of(&self, at: At<'_>) -> Result<Vec<PeriodicRow>> {
        self.read(at, "periodics_of", &values![TEXT at.queue], rows::periodic)
    }

    fn workers_of(&self, at: At<'_>, jobs: i32) -> Result<Vec<WorkerRow>> {
        let read = self.rows(at, "workers_of", &values![TEXT at.queue, INT4 jobs])?;
        Ok(read.iter().map(rows::worker).collect::<std::result::Result<_, _>>()?)
    }
}

impl Database {
    fn check(&self, client: &mut Client, version: &str) -> std::result::Result<(), Error> {
        let schema = &self.store.options().schema;
        let row = client.query_typed(version, &[]).map_err(|error| schema::explained(error, schema))?;
        schema::fits(schema::Version::of(row.first())?, schema)
    }

    pub(super) fn push_sql(&self) -> String {
        let call = self.sql_of("push_jobs", 5);
        call.replacen("SELECT * FROM ", "SELECT a.* FROM unnest(", 1) + ") a"
    }
}

pub(super) fn push_values<'a>(at: &'a At<'_>, jobs: &'a PushCall) -> [Value<'a>; 5] {
    values![TEXT at.queue, TEXT_ARRAY jobs.kinds, TEXT_ARRAY jobs.payloads, TEXT_ARRAY jobs.settings, BOOL jobs.is_batch]
}

/// Reads what became of ends, in their order: the outcome, and the state of the job.
pub(super) fn known(row: &Row) -> std::result::Result<Vec<(String, Option<String>)>, postgres::Error> {
    let (outcomes, states): (Option<Vec<String>>, Option<Vec<Option<String>>>) = (row.try_get(0)?, row.try_get(1)?);
    Ok(outcomes.unwrap_or_default().into_iter().zip(states.unwrap_or_default()).collect())
}

/// Reads which of these leases are renewed.
fn holds(runs: &Runs, rows: &[Row]) -> Result<Vec<bool>> {
    let row = rows.first().ok_or_else(|| Failed::misread(Error::Closed))?;
    let renewed: Vec<i64> = row.try_get(0).map_err(Failed::misread)?;
    let renewed: HashSet<_> = renewed.into_iter().collect();
    Ok(runs.numbers.iter().map(|number| renewed.contains(number)).collect())
}

fn int(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
