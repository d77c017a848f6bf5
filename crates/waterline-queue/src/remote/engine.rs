//! The calls of a queue, made by functions of the server.

use super::answers::{Answer, happened, name_of, signed, unsigned, untold};
use super::faults::{is_no_number, queue_error};
use super::queues::Remote;
use super::rows::{LimitRow, Shown};
use super::server::{EditCall, Server};
use crate::engine::{
    Beside, Claim, Edit, Ending, Held, NoteRead, Opened, Peek, QueueEngine, QueueNo, StatusInputs, Steer, Traffic,
    Turned,
};
use crate::rules::notes::{Change, Noted, counted_in};
use crate::rules::pushing::{Push, prepare};
use crate::types::capabilities::Capabilities;
use crate::types::config::ConfigError;
use crate::types::error::QueueError;
use crate::types::info::{JobInfo, PeriodicInfo};
use crate::types::job::{Counts, JobId, JobState, Priority, Pushed};
use crate::types::meta::Meta;
use crate::types::new_job::NewJob;
use crate::types::options::QueueOptions;
use crate::types::page::Place;
use crate::types::periodic::Periodic;
use crate::types::progress::JobProgress;
use crate::types::row::Row;
use crate::types::used::{LimitUse, Related};
use crate::types::worker::WorkerInfo;
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};
use waterline::seam::{self, Home};

impl<S: Server> QueueEngine for Remote<S> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn capabilities(&self) -> Capabilities {
        S::CAPABILITIES
    }

    fn home(&self) -> Home {
        Home { address: std::ptr::from_ref(self) as usize, takes_sql: false }
    }

    fn open(&self, name: &str, options: &QueueOptions) -> Result<Opened, QueueError> {
        self.open_once(name, options)
    }

    fn prepare(&self, queue: QueueNo, jobs: Vec<NewJob>) -> Result<Vec<Push>, ConfigError> {
        let queue = self.of(queue);
        let (wall, options) = (queue.moment().wall, &queue.shared.options);
        jobs.iter().try_for_each(|job| options.check_payload("payload", job.payload.len()))?;
        jobs.into_iter().map(|job| prepare(job, wall, || 0)).collect()
    }

    fn push(&self, pushes: Vec<(QueueNo, Vec<Push>)>) -> Result<Vec<Pushed>, QueueError> {
        self.push_all(&pushes)
    }

    fn turns_at_once(&self) -> Option<usize> {
        Some(S::TURNS)
    }

    fn turn(&self, ends: &[Ending], claim: Option<Claim>, beside: Beside) -> Result<Turned, QueueError> {
        self.turn_all(ends, claim.as_ref(), beside)
    }

    fn edit(&self, queue: QueueNo, id: &str, token: Option<u64>, edit: Edit) -> Result<Row, QueueError> {
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
        let (key, value_text, own) = (key.as_deref(), value.as_deref(), token.map(signed));
        let edit = EditCall { id, number, token: own, what, key, value: value_text, at, fraction: None };
        let mut answers = queue.explained(doing, self.server.edit(queue.at(), &edit))?;
        // The answer does not repeat the data.
        answers.iter_mut().filter(|answer| answer.what == "told").for_each(|answer| answer.data.clone_from(&value));
        self.tell(&queue, happened(&answers), untold(&answers));
        Ok(edited(token.unwrap_or(0), &answers))
    }

    fn show(&self, job: &Held, fraction: f64, note: &str) -> Result<Option<Row>, QueueError> {
        let queue = self.of(job.queue);
        // Some servers have no text with a NUL. Errors of workers are shown in the same way.
        let note = note.replace('\0', "\u{fffd}");
        let progress = JobProgress::new(fraction, &note, queue.server_time())?;
        if !self.holds(job) {
            return Err(QueueError::Halt { queue: queue.name().to_owned(), id: job.id.clone() });
        }
        let edit = EditCall {
            id: &job.id,
            number: self.leases.number(job),
            token: Some(signed(job.token)),
            what: "progress",
            value: Some(&note),
            fraction: Some(fraction),
            ..EditCall::default()
        };
        let answers = queue.explained("show the progress of a job", self.server.edit(queue.at(), &edit))?;
        queue.shared.told_progress(&job.id, &progress);
        queue.shared.settle();
        Ok(Some(edited(job.token, &answers)))
    }

    fn note_stop(&self, queues: &[QueueNo], jobs: &[Held]) -> Result<(), QueueError> {
        let Some(first) = queues.first().map(|queue| self.of(*queue)) else { return Ok(()) };
        let about = |queue: &QueueNo| {
            let queue = self.of(*queue);
            queue.about(queue.moment().now, None)
        };
        let about: Vec<_> = queues.iter().filter_map(about).collect();
        if jobs.is_empty() && about.is_empty() {
            return Ok(());
        }
        let noted = self.server.note_stop(first.at(), &self.leases.runs(jobs.iter()), &about);
        first.explained("note that a runner stops", noted)
    }

    fn steer(&self, queue: QueueNo, steer: Steer) -> Result<u64, QueueError> {
        let (queue, doing) = (self.of(queue), steer.doing());
        let (what, id, time): (_, Option<String>, Option<i64>) = match steer {
            Steer::Remove(id) => ("remove", Some(id), None),
            Steer::Requeue(id) => ("requeue", Some(id), None),
            Steer::RunNow(id) => ("run_now", Some(id), None),
            Steer::Purge(state) => ("purge", Some(name_of(state).to_owned()), None),
            Steer::RequeueDead => ("requeue_dead", None, None),
            Steer::Pause(0) => ("pause", None, Some(0)),
            Steer::Pause(u64::MAX) => ("pause", None, None),
            Steer::Pause(until) => ("pause", None, Some(queue.time_until(until))),
            Steer::RemovePeriodic(name) => ("remove_periodic", Some(name), None),
        };
        let mut count = 0; // a piece of many in each call
        loop {
            let called = seam::now();
            let answers = self.server.steer(queue.at(), what, id.as_deref(), time);
            let answers = queue.explained(doing, answers)?;
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
        let notes = self.server.change_note(queue.at(), of, what, value.as_deref(), time);
        let notes = notes.map_err(|error| match is_no_number(&error) {
            Some(reason) => {
                let (table, key) = counted_in(queue.name(), of);
                QueueError::Store(waterline::Error::Counter { table, key, reason })
            }
            None => queue_error(queue.name(), "change a note", error),
        })?;
        let [before, after] = notes.map(|note| note.and_then(|(value, until)| noted_of(&value, until).ok()));
        Ok((before, after))
    }

    fn run_maintenance(&self, queue: QueueNo) -> Result<(), QueueError> {
        let queue = self.of(queue);
        let came = seam::now();
        let begun = queue.tending.lock();
        // Waiters wake together. A turn that began after this call serves it, too.
        if begun.get().is_some_and(|begun| begun > came) {
            return Ok(());
        }
        begun.set(Some(seam::now()));
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

    fn hear(&self, queue: QueueNo) {
        let queue = self.of(queue);
        let begins = self.hear_of(&queue);
        self.watch(&queue, begins);
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
        let queue = self.of(queue);
        let limits = queue.explained("look at limits", self.server.limits_used(queue.at()))?;
        Ok(limits.into_iter().map(LimitRow::used).collect())
    }

    fn related(&self, queue: QueueNo, id: &str, most: usize) -> Result<Related, QueueError> {
        let (queue, most) = (self.of(queue), whole(most));
        let found = self.server.related_to(queue.at(), id, most);
        let (waits_for, awaited_by) = queue.explained("look at the jobs that wait for each other", found)?;
        Ok(Related { waits_for, awaited_by })
    }

    fn workers(&self, queue: QueueNo, jobs: usize) -> Result<Vec<WorkerInfo>, QueueError> {
        self.read_workers(self.of(queue).at(), jobs)
    }

    fn status_inputs(&self, queue: QueueNo) -> Result<StatusInputs, QueueError> {
        self.inspect(&self.of(queue))
    }

    fn oldest(&self, queue: QueueNo) -> u64 {
        let since = self.server.waits_since(self.of(queue).at()).ok().flatten();
        since.map_or(u64::MAX, |since| unsigned(Some(since)))
    }

    fn running(&self, queue: QueueNo) -> (usize, Option<(Instant, JobId)>) {
        self.who_runs(&self.of(queue)).unwrap_or_default()
    }

    fn job(&self, queue: QueueNo, id: &str) -> Result<Option<JobInfo>, QueueError> {
        Ok(self.shown(&self.of(queue), id)?.map(|shown| shown.info()))
    }

    fn list(
        &self,
        queue: QueueNo,
        state: JobState,
        behind: Option<&Place>,
        most: usize,
    ) -> Result<Vec<JobInfo>, QueueError> {
        let queue = self.of(queue);
        let shown = self.server.list(queue.at(), name_of(state), behind, whole(most));
        Ok(queue.explained("list jobs", shown)?.into_iter().map(Shown::info).collect())
    }

    fn row(&self, queue: QueueNo, id: &str) -> Result<Option<Row>, QueueError> {
        let queue = self.of(queue);
        self.watch(&queue, true);
        Ok(self.shown(&queue, id)?.map(|mut shown| shown.take_row()))
    }

    fn data(&self, queue: QueueNo, id: &str) -> Result<Option<Vec<u8>>, QueueError> {
        Ok(self.shown(&self.of(queue), id)?.and_then(|shown| shown.data).map(String::into_bytes))
    }

    fn meta(&self, queue: QueueNo, id: &str) -> Result<Meta, QueueError> {
        Ok(self.shown(&self.of(queue), id)?.map(|shown| shown.meta()).unwrap_or_default())
    }

    fn progress(&self, queue: QueueNo, id: &str) -> Result<Option<JobProgress>, QueueError> {
        Ok(self.shown(&self.of(queue), id)?.and_then(|shown| shown.progress()))
    }

    fn noted(&self, queue: QueueNo, of: &str) -> Result<Option<Noted>, QueueError> {
        let notes = self.notes(queue, of, None, 1)?;
        Ok(notes.into_iter().find(|(place, _)| place == of).and_then(|(_, noted)| noted.ok()))
    }

    fn notes(
        &self,
        queue: QueueNo,
        prefix: &str,
        behind: Option<&str>,
        most: usize,
    ) -> Result<Vec<NoteRead>, QueueError> {
        let queue = self.of(queue);
        let notes = queue.explained("read notes", self.server.notes_of(queue.at(), prefix, behind, whole(most)))?;
        Ok(notes.into_iter().map(|(place, value, until)| (place, noted_of(&value, until))).collect())
    }

    fn periodics(&self, queue: QueueNo) -> Result<Vec<PeriodicInfo>, QueueError> {
        self.list_periodics(&self.of(queue))
    }
}

/// The row of a running job, as far as the answers to an edit have it.
fn edited(token: u64, answers: &[Answer]) -> Row {
    let resubmit = answers.iter().find(|answer| answer.what == "job").and_then(|answer| answer.due);
    Row {
        state: JobState::Running,
        has_data: false,
        extras: None,
        resubmit: resubmit.map(|due| unsigned(Some(due))),
        ..Row::unreadable(Priority::Normal, token, None)
    }
}

fn noted_of(value: &str, until: i64) -> Result<Noted, String> {
    let value = serde_json::from_str(value).map_err(|error| format!("it is no JSON: {error}"))?;
    Ok(Noted { until: unsigned(Some(until)), since: 0, value })
}

fn whole(most: usize) -> i64 {
    i64::try_from(most).unwrap_or(i64::MAX)
}
