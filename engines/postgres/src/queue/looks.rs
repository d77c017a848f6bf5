//! Reads of a queue for a status, lists and waiters.

use super::answers::{count, name_of, priority_of, signed, skipped_of, state_of, time, unsigned};
use super::faults::misread;
use super::opened::Opened;
use super::presence::said;
use super::queues::Queues;
use postgres::Row;
use postgres::types::Type;
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};
use waterline_queue::engine_api::{
    Counts, Extras, Fleet, JobId, JobInfo, JobRow, LONGEST_SLEEP, Meta, NO_EXTRAS, NoteRead, Noted, Peek, Place,
    STATES, StatusInputs, counts_of, job_info, limit_of, limit_use, progress, related,
};
use waterline_queue::{JobProgress, JobState, LimitUse, QueueError, Related, Root};

/// How often a queue that keeps changing is read again.
const LOOKS: u32 = 4;

/// A job as it is shown, with all that belongs to it.
pub(super) struct Shown {
    id: JobId,
    row: JobRow,
    tie: u64,
    payload: String,
    data: Option<String>,
    meta: Option<String>,
    progress: Option<JobProgress>,
}

impl Shown {
    fn of(row: &Row) -> Result<Self, postgres::Error> {
        let text = |name: &str| row.try_get::<_, Option<String>>(name);
        let number = |name: &str| row.try_get::<_, Option<i64>>(name);
        let state = state_of(&row.try_get::<_, String>("state")?).unwrap_or(JobState::Ready);
        let root = text("root")?.zip(number("root_at")?);
        let meta = text("meta")?;
        let fraction: Option<f64> = row.try_get("fraction")?;
        let noted = number("noted")?;
        let shown = fraction.zip(noted).map(|(fraction, noted)| (fraction, unsigned(Some(noted))));
        let progress = match shown {
            Some((fraction, at)) => progress(fraction, &text("note")?.unwrap_or_default(), at).ok(),
            None => None,
        };
        let extras = Extras {
            root: root.map(|(signature, at)| Root::new(signature, time(unsigned(Some(at))))),
            is_root: row.try_get::<_, Option<bool>>("is_root")?.unwrap_or(false),
            expires: number("expires")?.map(|time| unsigned(Some(time))),
            key: text("key")?,
            cost: count(Some(row.try_get("cost")?)),
            after: count(Some(row.try_get("pending")?)),
            held: text("held_by")?,
            skipped: text("skipped")?.as_deref().and_then(skipped_of),
            has_meta: meta.is_some(),
            has_progress: progress.is_some(),
            is_suspect: row.try_get("suspect")?,
            ..NO_EXTRAS.clone()
        };
        let shown = JobRow {
            state,
            priority: priority_of(row.try_get("priority")?),
            kind: row.try_get("kind")?,
            retry: None,
            retention: None,
            failures: count(Some(row.try_get("failures")?)),
            crashes: count(Some(row.try_get("crashes")?)),
            pushed: unsigned(number("pushed")?),
            due: unsigned(number("due")?),
            named: false,
            since: unsigned(number("since")?),
            place: unsigned(number("place")?),
            resubmit: number("resubmit")?.map(|time| unsigned(Some(time))),
            resubmitted: 0,
            has_data: text("data")?.is_some(),
            error: text("error")?.unwrap_or_default(),
            extras: (extras != NO_EXTRAS).then(|| Box::new(extras)),
        };
        Ok(Self {
            id: row.try_get("id")?,
            row: shown,
            tie: unsigned(number("tie")?),
            payload: row.try_get("payload")?,
            data: text("data")?,
            meta,
            progress,
        })
    }

    fn info(self) -> JobInfo {
        let data = self.data.as_deref().and_then(|data| serde_json::from_str(data).ok());
        let meta = meta_of(self.meta.as_deref());
        let mut info = job_info(&self.id, &self.row, self.tie, self.payload.into_bytes(), data, meta, self.progress);
        if info.state == JobState::Damaged {
            // The reason takes the place of the last error.
            info.damaged = info.error.take();
        }
        info
    }
}

fn meta_of(text: Option<&str>) -> Meta {
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

impl Queues {
    fn shown(&self, queue: &Opened, id: &str) -> Result<Option<Shown>, QueueError> {
        let rows = self.rows(queue, "look at a job", "get", &[(&queue.name(), Type::TEXT), (&id, Type::TEXT)])?;
        rows.first().map(Shown::of).transpose().map_err(|error| misread(queue, error))
    }

    pub(super) fn info(&self, queue: &Opened, id: &str) -> Result<Option<JobInfo>, QueueError> {
        Ok(self.shown(queue, id)?.map(Shown::info))
    }

    pub(super) fn job_row(&self, queue: &Opened, id: &str) -> Result<Option<JobRow>, QueueError> {
        Ok(self.shown(queue, id)?.map(|shown| shown.row))
    }

    pub(super) fn job_data(&self, queue: &Opened, id: &str) -> Result<Option<Vec<u8>>, QueueError> {
        Ok(self.shown(queue, id)?.and_then(|shown| shown.data).map(String::into_bytes))
    }

    pub(super) fn job_meta(&self, queue: &Opened, id: &str) -> Result<Meta, QueueError> {
        Ok(self.shown(queue, id)?.map(|shown| meta_of(shown.meta.as_deref())).unwrap_or_default())
    }

    pub(super) fn job_progress(&self, queue: &Opened, id: &str) -> Result<Option<JobProgress>, QueueError> {
        Ok(self.shown(queue, id)?.and_then(|shown| shown.progress))
    }

    pub(super) fn page(
        &self,
        queue: &Opened,
        state: JobState,
        behind: Option<&Place>,
        most: usize,
    ) -> Result<Vec<JobInfo>, QueueError> {
        let values: [crate::sql::Value<'_>; 7] = [
            (&queue.name(), Type::TEXT),
            (&name_of(state), Type::TEXT),
            (&behind.and_then(|place| place.limit.as_deref()), Type::TEXT),
            (&behind.map(|place| place.priority as i32), Type::INT4),
            (&behind.map(|place| signed(place.number)), Type::INT8),
            (&behind.map(|place| signed(place.tie)), Type::INT8),
            (&i64::try_from(most).unwrap_or(i64::MAX), Type::INT8),
        ];
        let rows = self.rows(queue, "list jobs", "list", &values)?;
        let infos: Result<Vec<_>, _> = rows.iter().map(|row| Shown::of(row).map(Shown::info)).collect();
        infos.map_err(|error| misread(queue, error))
    }

    /// Returns the jobs in each state, or the last known counts if the server cannot be asked.
    pub(super) fn count(&self, queue: &Opened) -> Counts {
        let rows = match self.rows(queue, "count jobs", "counts", &[(&queue.name(), Type::TEXT)]) {
            Ok(rows) => rows,
            Err(error) => {
                queue.shared.note_failing(Some(&error));
                return self.counted_last(queue);
            }
        };
        let (mut counts, mut damaged, mut age) = ([0; STATES.len()], 0, Duration::ZERO);
        for row in &rows {
            let (name, count, old): (String, i64, i64) = (row.get(0), row.get(1), row.get(2));
            match state_of(&name) {
                Some(JobState::Damaged) => damaged += unsigned(Some(count)),
                Some(state) => counts[state as usize] += unsigned(Some(count)),
                None => {}
            }
            age = age.max(Duration::from_millis(unsigned(Some(old))));
        }
        let counts = counts_of(counts, damaged, age);
        self.note_counted(queue, counts);
        counts
    }

    fn note_counted(&self, queue: &Opened, counts: Counts) {
        self.counted.lock().insert(queue.number, (queue.moment().now, counts));
    }

    /// Returns the last known counts, whose age has grown since.
    fn counted_last(&self, queue: &Opened) -> Counts {
        let counted = self.counted.lock().get(&queue.number).copied();
        let (at, mut counts) = counted.unwrap_or((queue.moment().now, counts_of([0; STATES.len()], 0, Duration::MAX)));
        counts.age = queue.moment().now.saturating_duration_since(at).saturating_add(counts.age);
        counts
    }

    pub(super) fn inspect(&self, queue: &Opened) -> Result<StatusInputs, QueueError> {
        let values: [crate::sql::Value<'_>; 2] =
            [(&queue.name(), Type::TEXT), (&self.store.options().holder, Type::TEXT)];
        let rows = self.rows(queue, "look at a queue", "status_inputs", &values)?;
        let text = rows.first().map(|row| row.try_get::<_, postgres::types::Json<Value>>(0)).transpose();
        let seen = text.map_err(|error| misread(queue, error))?.map(|json| json.0).unwrap_or_default();
        let number = |name: &str| seen.get(name).and_then(Value::as_u64);
        let text = |name: &str| seen.get(name).and_then(Value::as_str).map(str::to_owned);
        let is = |name: &str| seen.get(name).and_then(Value::as_bool);
        let time = queue.server_time();
        let ticks = queue.periodics.lock().iter().filter_map(|one| one.next(time)).min();
        let until = |time: u64| if time >= i64::MAX as u64 { u64::MAX } else { time };
        let counted =
            |name: &str| seen.get("counts").and_then(|counts| counts.get(name)).and_then(Value::as_u64).unwrap_or(0);
        let age = number("now").unwrap_or(0).saturating_sub(counted("at"));
        let counts = counts_of(
            STATES.map(|state| counted(name_of(state))),
            number("damaged").unwrap_or(0),
            Duration::from_millis(age),
        );
        self.note_counted(queue, counts);
        let lines: Vec<_> = seen.get("lines").and_then(Value::as_object).map_or_else(Vec::new, |lines| {
            lines.iter().map(|(kind, count)| (kind.clone(), count.as_u64().unwrap_or(0))).collect()
        });
        Ok(StatusInputs {
            counts,
            oldest_ready: text("oldest_ready").zip(number("oldest_ready_since")),
            only_held: is("only_held").unwrap_or(false),
            only_in_lines: is("only_held").unwrap_or(false) && text("held_by").is_none() && !lines.is_empty(),
            lines,
            due: number("due").into_iter().chain(ticks).min(),
            paused_until: number("paused_until").map(until),
            alone: is("alone"),
            full: is("full").unwrap_or(false).then(|| number("full_until")),
            held: text("held_by").map(|name| (limit_of(&name), number("held").unwrap_or(0), number("held_until"))),
            running: number("running").and_then(|count| usize::try_from(count).ok()).unwrap_or(0),
            oldest_running: running_since(queue, text("oldest_running"), number("oldest_running_ran")),
            fleet: Fleet::of(&self.workers_of(queue, 1)?),
            lapsed: (
                number("lapsed").and_then(|count| usize::try_from(count).ok()).unwrap_or(0),
                Duration::from_millis(number("lapsed_for").unwrap_or(0)),
            ),
            usual: number("usual").map(Duration::from_nanos),
            lease: number("lease").map(Duration::from_millis),
            set_back: number("set_back_by")
                .zip(number("set_back_for"))
                .map(|(by, since)| (Duration::from_millis(by), Duration::from_millis(since))),
        })
    }

    pub(super) fn who_runs(&self, queue: &Opened) -> Result<(usize, Option<(Instant, JobId)>), QueueError> {
        let rows = self.rows(queue, "look at running jobs", "who_runs", &[(&queue.name(), Type::TEXT)])?;
        let Some(row) = rows.first() else { return Ok((0, None)) };
        let (running, id, ran): (i64, Option<String>, Option<i64>) = (row.get(0), row.get(1), row.get(2));
        let oldest = running_since(queue, id, ran.map(|ran| unsigned(Some(ran))));
        Ok((usize::try_from(running).unwrap_or(0), oldest))
    }

    pub(super) fn waits_since(&self, queue: &Opened) -> Result<u64, QueueError> {
        let rows = self.rows(queue, "look at the oldest job", "waits_since", &[(&queue.name(), Type::TEXT)])?;
        let since = rows.first().and_then(|row| row.get::<_, Option<i64>>(0));
        Ok(since.map_or(u64::MAX, |since| unsigned(Some(since))))
    }

    /// Returns the limits that are set, and those of keys that have jobs.
    pub(super) fn limits_used(&self, queue: &Opened) -> Result<Vec<LimitUse>, QueueError> {
        let rows = self.rows(queue, "look at limits", "limits_used", &[(&queue.name(), Type::TEXT)])?;
        let limit = |row: &Row| -> Result<_, postgres::Error> {
            let number = |at: usize| Ok(row.try_get::<_, Option<i64>>(at)?.map(|number| unsigned(Some(number))));
            let small = |at: usize| Ok(number(at)?.map(|number| u32::try_from(number).unwrap_or(u32::MAX)));
            let rate = match (small(2)?, number(3)?, small(4)?) {
                (Some(count), Some(per), Some(burst)) => Some((count, Duration::from_nanos(per), burst)),
                _ => None,
            };
            let [running, held] = [number(5)?, number(7)?].map(Option::unwrap_or_default);
            Ok(limit_use(row.try_get(0)?, small(1)?, rate, (running, row.try_get(6)?, held)))
        };
        let limits: Result<Vec<_>, _> = rows.iter().map(limit).collect();
        limits.map_err(|error| misread(queue, error))
    }

    /// Returns the jobs that a job waits for, and those that wait for it.
    pub(super) fn waits(&self, queue: &Opened, id: &str, most: usize) -> Result<Related, QueueError> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let values: [crate::sql::Value<'_>; 3] = [(&queue.name(), Type::TEXT), (&id, Type::TEXT), (&most, Type::INT8)];
        let rows = self.rows(queue, "look at the jobs that wait for each other", "related_to", &values)?;
        let Some(row) = rows.first() else { return Ok(Related::default()) };
        let ids = |at: usize| row.try_get(at).map_err(|error| misread(queue, error));
        Ok(related(ids(0)?, ids(1)?))
    }

    /// Asks the server what there is. Waiters wake together, and one asks for all: a look that
    /// began after another waiter came serves that one, too.
    pub(super) fn look_for_all(&self, queue: &Opened, kinds: Option<&[String]>) -> Peek {
        let came = Instant::now();
        let mut last = queue.looking.lock();
        if let Some((begun, of, peek)) = &*last
            && *begun > came
            && of.as_deref() == kinds
        {
            return queue.peek(kinds).unwrap_or(*peek);
        }
        let begun = Instant::now();
        let mut looks = 0;
        let peek = loop {
            if let Some(peek) = queue.peek(kinds) {
                break peek;
            }
            if looks == LOOKS {
                // It keeps changing, so there may be a job.
                break Peek { ready: 1, ..unknown() };
            }
            if let Err(error) = self.look_again(queue, kinds) {
                queue.shared.note_failing(Some(&error));
                break unknown();
            }
            looks += 1;
        };
        *last = Some((begun, kinds.map(Arc::from), peek));
        peek
    }

    fn look_again(&self, queue: &Opened, kinds: Option<&[String]>) -> Result<(), QueueError> {
        let changes = queue.changes();
        let about = said(queue.about(queue.moment().now, None));
        let values: [crate::sql::Value<'_>; 4] = [
            (&queue.name(), Type::TEXT),
            (&self.store.options().holder, Type::TEXT),
            (&kinds, Type::TEXT_ARRAY),
            (&about, Type::TEXT),
        ];
        let answers = self.answers(queue, "look at a queue", "peek_now", &values)?;
        for answer in answers {
            queue.note_peek(&answer, false, changes, kinds.map(Arc::from).as_ref());
        }
        Ok(())
    }

    pub(super) fn read_notes(
        &self,
        queue: &Opened,
        prefix: &str,
        behind: Option<&str>,
        most: usize,
    ) -> Result<Vec<NoteRead>, QueueError> {
        let values: [crate::sql::Value<'_>; 4] = [
            (&queue.name(), Type::TEXT),
            (&prefix, Type::TEXT),
            (&behind, Type::TEXT),
            (&i64::try_from(most).unwrap_or(i64::MAX), Type::INT8),
        ];
        let rows = self.rows(queue, "read notes", "notes_of", &values)?;
        let note = |row: &Row| {
            let (place, value, until): (String, String, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            let noted = noted_of(&value, until);
            Ok((place, noted))
        };
        let notes: Result<Vec<_>, _> = rows.iter().map(note).collect();
        notes.map_err(|error| misread(queue, error))
    }
}

pub(super) fn noted_of(value: &str, until: i64) -> Result<Noted, String> {
    let value = serde_json::from_str(value).map_err(|error| format!("it is no JSON: {error}"))?;
    Ok(Noted { until: unsigned(Some(until)), since: 0, value })
}

/// Returns the job that has run the longest. `ran` is in milliseconds, by the server's clock.
fn running_since(queue: &Opened, id: Option<String>, ran: Option<u64>) -> Option<(Instant, JobId)> {
    let now = queue.moment().now;
    Some((now.checked_sub(Duration::from_millis(ran?)).unwrap_or(now), id?))
}

/// What is assumed of a queue that cannot be read now.
fn unknown() -> Peek {
    Peek {
        ready: 0,
        is_paused: false,
        is_full: false,
        is_limited: false,
        has_room: true,
        due: u64::MAX,
        expires: u64::MAX,
        next_time: Some(LONGEST_SLEEP),
        next_change: Some(LONGEST_SLEEP),
    }
}
