//! The functions of the library, as the engine of all servers calls them.

use super::args::Args;
use super::door::Door;
use super::rows::{self, Odd};
use crate::calls::Effect;
use crate::error::Error;
use crate::store::RedisStore;
use redis::Value;
use std::any::Any;
use std::sync::Arc;
use waterline_queue::Capabilities;
use waterline_queue::engine_api::{NO_CAPABILITIES, QueueNo};
use waterline_queue::remote::{
    Answer, Answers, At, Average, EditCall, LimitRow, PeriodicCall, PeriodicRow, Place, PlainPush, PushCall, Renewal,
    Renewer, Ring, Runs, Server, Shown, TurnCall, WorkerRow, signed,
};

type Result<T> = std::result::Result<T, Error>;

/// For how long, in milliseconds, the server keeps changes behind the last look at them.
const KEPT: i64 = 30_000;

/// The server, and how to call its functions.
pub(crate) struct Functions {
    store: RedisStore,
    pub(super) door: Door,
}

impl Functions {
    pub(super) fn new(store: RedisStore) -> Self {
        let door = Door::new(Arc::clone(store.calls()), store.options());
        Self { store, door }
    }

    fn change<T>(
        &self,
        at: At<'_>,
        function: &str,
        args: &Args<'_>,
        read: impl FnOnce(Value) -> std::result::Result<T, Odd>,
    ) -> Result<T> {
        self.door.call(at.queue, function, args, Effect::Confirmed, read)
    }

    fn answers(&self, at: At<'_>, function: &str, args: &Args<'_>) -> Answers<Error> {
        self.change(at, function, args, |answer| rows::rows(answer, rows::answer))
    }

    /// Makes a call that changes nothing, or nothing the second time.
    fn look<T>(
        &self,
        at: At<'_>,
        function: &str,
        args: &Args<'_>,
        read: impl FnOnce(Value) -> std::result::Result<T, Odd>,
    ) -> Result<T> {
        self.door.call(at.queue, function, args, Effect::Repeats, read)
    }

    fn rows<R>(
        &self,
        at: At<'_>,
        function: &str,
        args: &Args<'_>,
        read: impl Fn(&mut rows::Columns) -> std::result::Result<R, Odd>,
    ) -> Result<Vec<R>> {
        self.look(at, function, args, |answer| rows::rows(answer, read))
    }
}

impl Server for Functions {
    type Error = Error;

    const CAPABILITIES: Capabilities = {
        let mut can = NO_CAPABILITIES;
        can.names_limits = true;
        can.keys_take_turns = true;
        can
    };

    const THREADS: &'static str = "wl-redis";

    /// While one is on its way, the other brings jobs.
    const TURNS: usize = 2;

    const JOINED: usize = 256;

    const FORGETS: bool = true;

    const TELLS: bool = true;

    fn worker(&self) -> &str {
        &self.store.options().holder
    }

    fn names(&self) -> Result<Vec<String>> {
        self.store.queue_names()
    }

    fn open(&self, name: &str, options: Option<&str>) -> Result<(QueueNo, Vec<Average>)> {
        let at = At { queue: name, clock: None };
        if options.is_some() {
            let args = Args::at(at).plain(name).text(options).text(None);
            self.look(at, "wl_open", &args, |_| Ok(()))?;
        }
        let known = self.rows(at, "wl_averages_of", &Args::at(at), |row| {
            Ok((row.plain()?, [row.number()?, row.number()?, row.number()?]))
        })?;
        Ok((self.door.number_of(name), known))
    }

    fn listen(&self, at: At<'_>, ring: Ring) -> Result<Option<Box<dyn Any + Send + Sync>>> {
        Ok(Some(Box::new(self.store.listen(at.queue, ring)?)))
    }

    fn hear(&self, at: At<'_>, ring: Ring) -> Result<Option<Box<dyn Any + Send + Sync>>> {
        Ok(Some(Box::new(self.store.hear(at.queue, ring)?)))
    }

    fn changes(&self, at: At<'_>, behind: Option<i64>) -> Answers<Error> {
        self.rows(at, "wl_told", &Args::at(at).number(Some(KEPT)).number(behind), rows::answer)
    }

    fn push(&self, at: At<'_>, jobs: &PushCall) -> Answers<Error> {
        self.answers(at, "wl_push", &pushed(Args::at(at), jobs))
    }

    fn push_across(&self, pushes: &[(At<'_>, &PushCall)]) -> Result<Vec<Vec<Answer>>> {
        let keys: Vec<_> = pushes.iter().map(|(at, _)| self.door.keys(at.queue)).collect();
        let keys: Vec<_> = keys.iter().collect();
        let args = Args::clocked(pushes.first().and_then(|(at, _)| at.clock));
        let args = pushes.iter().fold(args, |args, (_, jobs)| pushed(args, jobs));
        let answer = self.door.calls.fcall(&keys, "wl_push_across", &args.all(), Effect::Confirmed)?;
        let answers = rows::rows(answer, rows::answer);
        let answers = answers.map_err(|odd| Error::odd("wl_push_across", odd).about(&keys))?;
        Ok(answers.split(|answer| answer.what == "next").map(<[_]>::to_vec).collect())
    }

    fn push_plain(&self, at: At<'_>, jobs: &PlainPush) -> Result<Option<Vec<i64>>> {
        let args = Args::at(at).length(jobs.kinds.len());
        let args =
            jobs.kinds.iter().zip(&jobs.payloads).fold(args, |args, (kind, payload)| args.plain(kind).plain(payload));
        self.change(at, "wl_push_plain", &args, |answer| match answer {
            Value::Nil => Ok(None),
            numbers => rows::list(numbers)?.into_iter().map(rows::number).collect(),
        })
    }

    fn turn(&self, at: At<'_>, turn: &TurnCall<'_>) -> Answers<Error> {
        let args = Args::at(at)
            .flag(turn.is_of_queue)
            .number(turn.most.map(i64::from))
            .number(turn.due_by)
            .number(turn.lease)
            .text(Some(self.worker()))
            .flag(turn.tick)
            .number(turn.arm)
            .number(turn.due_since)
            .text(turn.about.as_deref())
            .list(turn.kinds)
            .length(turn.ends.len());
        let args = (0..turn.ends.len()).fold(args, |args, at| {
            args.number(turn.runs.numbers[at])
                .number(turn.runs.tokens[at])
                .plain(turn.ends[at])
                .number(turn.ats[at])
                .text(turn.errors[at].as_deref())
                .text(turn.datas[at].as_deref())
        });
        // A claim that a replica does not know of is no loss: its jobs are there.
        let effect = if turn.ends.is_empty() { Effect::Writes } else { Effect::Confirmed };
        self.door.call(at.queue, "wl_turn", &args, effect, |answer| rows::rows(answer, rows::answer))
    }

    fn edit(&self, at: At<'_>, edit: &EditCall<'_>) -> Answers<Error> {
        let fraction = edit.fraction.map_or_else(String::new, |fraction| fraction.to_string());
        let args = Args::at(at)
            .plain(edit.id)
            .number(edit.number)
            .number(edit.token)
            .plain(edit.what)
            .text(edit.key)
            .text(edit.value)
            .number(edit.at)
            .plain(&fraction);
        self.answers(at, "wl_edit", &args)
    }

    fn steer(&self, at: At<'_>, what: &str, id: Option<&str>, time: Option<i64>) -> Answers<Error> {
        self.answers(at, "wl_steer", &Args::at(at).plain(what).text(id).number(time))
    }

    fn change_note(
        &self,
        at: At<'_>,
        of: &str,
        what: &str,
        value: Option<&str>,
        time: i64,
    ) -> Result<[Option<(String, i64)>; 2]> {
        let args = Args::at(at).plain(of).plain(what).text(value).number(time);
        self.change(at, "wl_note", &args, |answer| {
            let both = rows::rows(answer, |row| {
                let mut note = || Ok::<_, Odd>((row.text()?, row.whole()?));
                Ok([note()?, note()?])
            })?;
            let both = both.into_iter().next().unwrap_or_default();
            Ok(both.map(|(value, until)| value.map(|value| (value, until))))
        })
    }

    fn renew(&self, at: At<'_>, runs: &Runs, renewal: Renewal) -> Result<Vec<bool>> {
        self.door.renew(at.clock, runs, Some(renewal), &[])
    }

    fn renewer(&self) -> Renewer<Error> {
        let door = self.door.clone();
        Box::new(move |runs, about| door.renew(None, runs, None, about))
    }

    fn note_stop(&self, at: At<'_>, runs: &Runs, about: &[serde_json::Value]) -> Result<()> {
        self.door.each_queue(runs, about, |queue, places, about| {
            let args = Args::at(at).text(about.as_deref()).runs(runs, places);
            self.door.call(queue, "wl_note_stop", &args, Effect::Repeats, |_| Ok(()))
        })
    }

    fn register_periodic(
        &self,
        at: At<'_>,
        periodic: &PeriodicCall<'_>,
        schedule: &str,
        at_next: bool,
    ) -> Answers<Error> {
        let args = Args::at(at)
            .plain(periodic.name)
            .text(Some(schedule))
            .number(None)
            .plain(periodic.kind)
            .plain(&periodic.payload)
            .text(periodic.settings.as_deref())
            .flag(at_next)
            .number(periodic.next);
        self.answers(at, "wl_register_periodic", &args)
    }

    fn tick_once(
        &self,
        at: At<'_>,
        periodic: &PeriodicCall<'_>,
        (last, new): (i64, i64),
        ticks: &[i64],
        may_overlap: bool,
    ) -> Answers<Error> {
        let args = Args::at(at)
            .plain(periodic.name)
            .number(last)
            .number(new)
            .flag(may_overlap)
            .plain(periodic.kind)
            .plain(&periodic.payload)
            .text(periodic.settings.as_deref())
            .number(periodic.next)
            .length(ticks.len());
        self.answers(at, "wl_tick_once", &ticks.iter().fold(args, |args, tick| args.number(*tick)))
    }

    fn set_average(&self, at: At<'_>, kind: &str, [count, mean, last]: [i64; 3]) -> Result<()> {
        let args = Args::at(at).plain(kind).number(count).number(mean).number(last);
        self.look(at, "wl_set_average", &args, |_| Ok(()))
    }

    fn load(&self, at: At<'_>, runs: &Runs) -> Answers<Error> {
        let all: Vec<_> = (0..runs.numbers.len()).collect();
        self.rows(at, "wl_load", &Args::at(at).runs(runs, &all), rows::loaded)
    }

    fn ended_by(&self, at: At<'_>, runs: &Runs) -> Result<Vec<(String, Option<String>)>> {
        let all: Vec<_> = (0..runs.numbers.len()).collect();
        self.rows(at, "wl_ended_by", &Args::at(at).runs(runs, &all), |row| Ok((row.plain()?, row.text()?)))
    }

    fn peek_now(&self, at: At<'_>, kinds: Option<&[String]>, about: Option<&str>) -> Answers<Error> {
        let args = Args::at(at).text(Some(self.worker())).text(about).list(kinds);
        self.rows(at, "wl_peek_now", &args, rows::answer)
    }

    fn get(&self, at: At<'_>, id: &str) -> Result<Option<Shown>> {
        Ok(self.rows(at, "wl_get", &Args::at(at).plain(id), rows::shown)?.pop())
    }

    fn list(&self, at: At<'_>, state: &str, behind: Option<&Place>, most: i64) -> Result<Vec<Shown>> {
        let args = Args::at(at)
            .plain(state)
            .text(behind.and_then(|place| place.limit.as_deref()))
            .number(behind.map(|place| i64::from(place.priority as u8)))
            .number(behind.map(|place| signed(place.number)))
            .number(behind.map(|place| signed(place.tie)))
            .number(most);
        self.rows(at, "wl_list", &args, rows::shown)
    }

    fn states_of(&self, at: At<'_>, ids: &[&str]) -> Result<Vec<Shown>> {
        self.rows(at, "wl_states_of", &Args::at(at).list(Some(ids)), rows::state)
    }

    fn counts(&self, at: At<'_>) -> Result<Vec<(String, i64, i64)>> {
        self.rows(at, "wl_counts", &Args::at(at), |row| Ok((row.plain()?, row.whole()?, row.whole()?)))
    }

    fn status_inputs(&self, at: At<'_>) -> Result<serde_json::Value> {
        self.look(at, "wl_status_inputs", &Args::at(at).text(Some(self.worker())), |answer| {
            let json = rows::text(answer)?.unwrap_or_default();
            serde_json::from_str(&json).map_err(|error| format!("its status is no JSON: {error}"))
        })
    }

    fn who_runs(&self, at: At<'_>) -> Result<(i64, Option<String>, Option<i64>)> {
        let runs = self.rows(at, "wl_who_runs", &Args::at(at), |row| Ok((row.whole()?, row.text()?, row.number()?)));
        Ok(runs?.pop().unwrap_or_default())
    }

    fn waits_since(&self, at: At<'_>) -> Result<Option<i64>> {
        self.look(at, "wl_waits_since", &Args::at(at), rows::number)
    }

    fn limits_used(&self, at: At<'_>) -> Result<Vec<LimitRow>> {
        self.rows(at, "wl_limits_used", &Args::at(at), rows::limit)
    }

    fn related_to(&self, at: At<'_>, id: &str, most: i64) -> Result<(Vec<String>, Vec<String>)> {
        self.look(at, "wl_related_to", &Args::at(at).plain(id).number(most), |answer| {
            let mut both = rows::list(answer)?.into_iter().map(rows::texts);
            let mut next = || both.next().unwrap_or_else(|| Ok(Vec::new()));
            Ok((next()?, next()?))
        })
    }

    fn notes_of(
        &self,
        at: At<'_>,
        prefix: &str,
        behind: Option<&str>,
        most: i64,
    ) -> Result<Vec<(String, String, i64)>> {
        let args = Args::at(at).plain(prefix).text(behind).number(most);
        self.rows(at, "wl_notes_of", &args, |row| Ok((row.plain()?, row.plain()?, row.whole()?)))
    }

    fn periodics_of(&self, at: At<'_>) -> Result<Vec<PeriodicRow>> {
        self.rows(at, "wl_periodics_of", &Args::at(at), rows::periodic)
    }

    fn workers_of(&self, at: At<'_>, jobs: i32) -> Result<Vec<WorkerRow>> {
        self.rows(at, "wl_workers_of", &Args::at(at).number(i64::from(jobs)), rows::worker)
    }
}

/// Adds the arguments of a push.
fn pushed<'a>(args: Args<'a>, jobs: &'a PushCall) -> Args<'a> {
    let args = args.flag(jobs.is_batch).length(jobs.kinds.len());
    (0..jobs.kinds.len()).fold(args, |args, at| {
        args.plain(&jobs.kinds[at]).plain(&jobs.payloads[at]).plain(jobs.settings[at].as_deref().unwrap_or_default())
    })
}
