//! The calls of a queue, made by functions of the database.

use super::answers::{happened, signed, unsigned, untold};
use super::faults::{is_no_number, queue_error};
use super::looks;
use super::presence::said;
use super::queues::Queues;
use crate::sql::Value;
use postgres::types::Type;
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};
use waterline_queue::ConfigError;
use waterline_queue::engine_api::{
    Beside, Change, Claim, Counts, Edit, Ending, Held, Home, JobId, JobInfo, JobPush, JobRow, Meta, NO_CAPABILITIES,
    NewJob, NoteRead, Noted, Opened as Shown, Peek, Periodic, Place, QueueEngine, QueueNo, StatusInputs, Steer,
    Traffic, Turned, check_payload, counted_in, counter_error, halt_error, home, prepare,
};
use waterline_queue::{
    Capabilities, JobProgress, JobState, LimitUse, PeriodicInfo, Pushed, QueueError, QueueOptions, Related, WorkerInfo,
};

/// How many turns a runner has under way: while one waits for the disk of the server, the other
/// brings jobs. More would wait for each other, and take every connection of the server under load.
const TURNS: usize = 2;

impl QueueEngine for Queues {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = NO_CAPABILITIES;
        can.names_limits = true;
        can
    }

    fn home(&self) -> Home {
        home(std::ptr::from_ref(self) as usize)
    }

    fn open(&self, name: &str, options: &QueueOptions) -> Result<Shown, QueueError> {
        self.open_once(name, options)
    }

    fn prepare(&self, queue: QueueNo, jobs: Vec<NewJob>) -> Result<Vec<JobPush>, ConfigError> {
        let queue = self.of(queue);
        let wall = queue.moment().wall;
        jobs.iter().try_for_each(|job| check_payload(&queue.shared, job))?;
        jobs.into_iter().map(|job| prepare(job, wall, || 0)).collect()
    }

    fn push(&self, pushes: Vec<(QueueNo, Vec<JobPush>)>) -> Result<Vec<Pushed>, QueueError> {
        self.push_all(&pushes)
    }

    fn turns_at_once(&self) -> Option<usize> {
        Some(TURNS)
    }

    fn turn(&self, ends: &[Ending], claim: Option<Claim>, beside: Beside) -> Result<Turned, QueueError> {
        self.turn_all(ends, claim.as_ref(), beside)
    }

    fn edit(&self, queue: QueueNo, id: &str, token: Option<u64>, edit: Edit) -> Result<JobRow, QueueError> {
        let (queue, doing) = (self.of(queue), edit.doing());
        let number =
            token.and_then(|token| self.leases.number(&Held { queue: queue.number, id: id.to_owned(), token }));
        let (what, key, value, at) = match edit {
            Edit::Nothing => ("nothing", None, None, None),
            Edit::Data(data) => ("data", None, Some(String::from_utf8_lossy(&data).into_owned()), None),
            Edit::Meta(key, value) => ("meta", Some(key), value.map(|value| value.to_string()), None),
            Edit::Resubmit(due) => {
                ("resubmit", None, None, Some(if due == 0 { 0 } else { signed(queue.on_server(due)) }))
            }
        };
        let values: [Value<'_>; 9] = [
            (&queue.name(), Type::TEXT),
            (&id, Type::TEXT),
            (&number, Type::INT8),
            (&token.map(signed), Type::INT8),
            (&what, Type::TEXT),
            (&key, Type::TEXT),
            (&value, Type::TEXT),
            (&at, Type::INT8),
            (&None::<f64>, Type::FLOAT8),
        ];
        let mut answers = self.answers(&queue, doing, "edit", &values)?;
        let resubmit = answers.iter().find(|answer| answer.what == "job").and_then(|answer| answer.due);
        // The answer does not repeat the data.
        answers.iter_mut().filter(|answer| answer.what == "told").for_each(|answer| answer.data.clone_from(&value));
        self.tell(&queue, happened(&answers), untold(&answers));
        let mut row = waterline_queue::engine_api::running_row(token.unwrap_or(0));
        row.resubmit = resubmit.map(|due| unsigned(Some(due)));
        Ok(row)
    }

    fn show(&self, job: &Held, fraction: f64, note: &str) -> Result<Option<JobRow>, QueueError> {
        let queue = self.of(job.queue);
        // No text of PostgreSQL has a NUL. Errors of workers are shown in the same way.
        let note = note.replace('\0', "\u{fffd}");
        let progress = waterline_queue::engine_api::progress(fraction, &note, queue.server_time())?;
        if !self.holds(job) {
            return Err(halt_error(queue.name().to_owned(), job.id.clone()));
        }
        let values: [Value<'_>; 9] = [
            (&queue.name(), Type::TEXT),
            (&job.id, Type::TEXT),
            (&self.leases.number(job), Type::INT8),
            (&signed(job.token), Type::INT8),
            (&"progress", Type::TEXT),
            (&None::<&str>, Type::TEXT),
            (&note, Type::TEXT),
            (&None::<i64>, Type::INT8),
            (&fraction, Type::FLOAT8),
        ];
        let answers = self.answers(&queue, "show the progress of a job", "edit", &values)?;
        queue.shared.told_progress(&job.id, &progress);
        queue.shared.settle();
        let resubmit = answers.iter().find(|answer| answer.what == "job").and_then(|answer| answer.due);
        let mut row = waterline_queue::engine_api::running_row(job.token);
        row.resubmit = resubmit.map(|due| unsigned(Some(due)));
        Ok(Some(row))
    }

    fn note_stop(&self, queues: &[QueueNo], jobs: &[Held]) -> Result<(), QueueError> {
        let Some(first) = queues.first().map(|queue| self.of(*queue)) else { return Ok(()) };
        let about = |queue: &QueueNo| {
            let queue = self.of(*queue);
            queue.about(queue.moment().now, None)
        };
        let about = said(queues.iter().filter_map(about));
        if jobs.is_empty() && about.is_none() {
            return Ok(());
        }
        let (numbers, tokens): (Vec<_>, Vec<_>) =
            jobs.iter().map(|job| (self.leases.number(job).unwrap_or(0), signed(job.token))).unzip();
        let values: [Value<'_>; 3] = [(&numbers, Type::INT8_ARRAY), (&tokens, Type::INT8_ARRAY), (&about, Type::TEXT)];
        self.rows(&first, "note that a runner stops", "note_stop", &values).map(drop)
    }

    fn steer(&self, queue: QueueNo, steer: Steer) -> Result<u64, QueueError> {
        let (queue, doing) = (self.of(queue), steer.doing());
        let (what, id, time): (_, Option<String>, Option<i64>) = match steer {
            Steer::Remove(id) => ("remove", Some(id), None),
            Steer::Requeue(id) => ("requeue", Some(id), None),
            Steer::RunNow(id) => ("run_now", Some(id), None),
            Steer::Purge(state) => ("purge", Some(super::answers::name_of(state).to_owned()), None),
            Steer::RequeueDead => ("requeue_dead", None, None),
            Steer::Pause(0) => ("pause", None, Some(0)),
            Steer::Pause(u64::MAX) => ("pause", None, None),
            Steer::Pause(until) => ("pause", None, Some(queue.time_until(until))),
            Steer::RemovePeriodic(name) => ("remove_periodic", Some(name), None),
        };
        let values: [Value<'_>; 4] =
            [(&queue.name(), Type::TEXT), (&what, Type::TEXT), (&id, Type::TEXT), (&time, Type::INT8)];
        let mut count = 0; // a piece of many in each call
        loop {
            let called = Instant::now();
            let answers = self.answers(&queue, doing, "steer", &values)?;
            let told = happened(&answers);
            let lost = self.note_lost(&queue, told.iter(), called);
            self.tell(&queue, told, untold(&answers));
            lost.tell();
            let steered: u64 = answers.iter().filter(|of| of.what == "steered").map(|of| unsigned(of.number)).sum();
            count += steered;
            if steered == 0 || !matches!(what, "purge" | "requeue_dead") {
                break;
            }
        }
        if what == "remove_periodic" {
            queue.periodics.lock().retain(|one| Some(&one.periodic.name) != id.as_ref());
        }
        Ok(count)
    }

    fn start_periodic(&self, queue: QueueNo, periodic: Arc<Periodic>) -> Result<u64, QueueError> {
        self.register(&self.of(queue), periodic)
    }

    fn note(&self, queue: QueueNo, of: &str, change: Change) -> Result<(Option<Noted>, Option<Noted>), QueueError> {
        let queue = self.of(queue);
        let time = |until: u64| if until == 0 { 0 } else { queue.time_until(until).max(1) };
        let (what, value, time) = match &change {
            Change::Set(value, until) => ("set", Some(value.to_string()), time(*until)),
            Change::Add(by) => ("add", Some(by.to_string()), 0),
            Change::Keep(until) => ("keep", None, time(*until)),
            Change::Remove => ("remove", None, 0),
        };
        let values: [Value<'_>; 5] = [
            (&queue.name(), Type::TEXT),
            (&of, Type::TEXT),
            (&what, Type::TEXT),
            (&value, Type::TEXT),
            (&time, Type::INT8),
        ];
        let sql = self.call_of("change_note_and_commit", values.len(), 4);
        let rows = self
            .with_level(queue.test_clock(), true, |client, statements| Ok(statements.query(client, &sql, &values)?));
        let rows = rows.map_err(|error| match is_no_number(&error) {
            Some(reason) => {
                let (table, key) = counted_in(queue.name(), of);
                counter_error(table, key, reason)
            }
            None => queue_error(queue.name(), "change a note", error),
        })?;
        let note = |at: usize| {
            let row = rows.first()?;
            let value: String = row.try_get::<_, Option<String>>(at).ok().flatten()?;
            looks::noted_of(&value, row.try_get::<_, Option<i64>>(at + 1).ok().flatten().unwrap_or(0)).ok()
        };
        Ok((note(0), note(2)))
    }

    fn run_maintenance(&self, queue: QueueNo) -> Result<(), QueueError> {
        let queue = self.of(queue);
        let came = Instant::now();
        let begun = queue.tending.lock();
        // Waiters wake together. A turn that began after this call serves it, too.
        if begun.get().is_some_and(|begun| begun > came) {
            return Ok(());
        }
        begun.set(Some(Instant::now()));
        queue.forget_peek();
        self.turn_of(&queue, &[], None, true).map(drop)
    }

    fn give_up(&self, jobs: &[Held], is_stopping: bool) {
        self.give_up_all(jobs, is_stopping);
    }

    fn renew(&self, job: &Held, silence: Option<Duration>) -> bool {
        self.prolong(job, silence)
    }

    fn holds(&self, job: &Held) -> bool {
        self.leases.holds(job, self.of(job.queue).moment().now)
    }

    fn peek(&self, queue: QueueNo, kinds: Option<&[String]>) -> Peek {
        let queue = self.of(queue);
        self.watch(&queue, false);
        queue.peek(kinds).unwrap_or_else(|| self.look_for_all(&queue, kinds))
    }

    fn counts(&self, queue: QueueNo) -> Counts {
        self.count(&self.of(queue))
    }

    fn traffic(&self, queue: QueueNo) -> Option<Traffic> {
        Some(self.of(queue).work.traffic())
    }

    fn limits(&self, queue: QueueNo) -> Result<Vec<LimitUse>, QueueError> {
        self.limits_used(&self.of(queue))
    }

    fn related(&self, queue: QueueNo, id: &str, most: usize) -> Result<Related, QueueError> {
        self.waits(&self.of(queue), id, most)
    }

    fn workers(&self, queue: QueueNo, jobs: usize) -> Result<Vec<WorkerInfo>, QueueError> {
        self.workers_of(&self.of(queue), jobs)
    }

    fn status_inputs(&self, queue: QueueNo) -> Result<StatusInputs, QueueError> {
        self.inspect(&self.of(queue))
    }

    fn oldest(&self, queue: QueueNo) -> u64 {
        self.waits_since(&self.of(queue)).unwrap_or(u64::MAX)
    }

    fn running(&self, queue: QueueNo) -> (usize, Option<(Instant, JobId)>) {
        self.who_runs(&self.of(queue)).unwrap_or_default()
    }

    fn job(&self, queue: QueueNo, id: &str) -> Result<Option<JobInfo>, QueueError> {
        self.info(&self.of(queue), id)
    }

    fn list(
        &self,
        queue: QueueNo,
        state: JobState,
        behind: Option<&Place>,
        most: usize,
    ) -> Result<Vec<JobInfo>, QueueError> {
        self.page(&self.of(queue), state, behind, most)
    }

    fn row(&self, queue: QueueNo, id: &str) -> Result<Option<JobRow>, QueueError> {
        let queue = self.of(queue);
        self.watch(&queue, true);
        self.job_row(&queue, id)
    }

    fn data(&self, queue: QueueNo, id: &str) -> Result<Option<Vec<u8>>, QueueError> {
        self.job_data(&self.of(queue), id)
    }

    fn meta(&self, queue: QueueNo, id: &str) -> Result<Meta, QueueError> {
        self.job_meta(&self.of(queue), id)
    }

    fn progress(&self, queue: QueueNo, id: &str) -> Result<Option<JobProgress>, QueueError> {
        self.job_progress(&self.of(queue), id)
    }

    fn noted(&self, queue: QueueNo, of: &str) -> Result<Option<Noted>, QueueError> {
        let notes = self.read_notes(&self.of(queue), of, None, 1)?;
        Ok(notes.into_iter().find(|(place, _)| place == of).and_then(|(_, noted)| noted.ok()))
    }

    fn notes(
        &self,
        queue: QueueNo,
        prefix: &str,
        behind: Option<&str>,
        most: usize,
    ) -> Result<Vec<NoteRead>, QueueError> {
        self.read_notes(&self.of(queue), prefix, behind, most)
    }

    fn periodics(&self, queue: QueueNo) -> Result<Vec<PeriodicInfo>, QueueError> {
        self.list_periodics(&self.of(queue))
    }
}
