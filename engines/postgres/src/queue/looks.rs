//! Looks at a queue.

use super::Queues;
use super::answers::{count, name_of, priority_of, signed, skipped_of, state_of, time, unsigned};
use super::faults::queue_error;
use super::opened::Opened;
use postgres::Row;
use postgres::types::Type;
use serde_json::Value;
use std::time::{Duration, Instant};
use waterline::engine::{
    Counts, Extras, Glance, JobId, JobInfo, JobRow, LONGEST_SLEEP, Meta, NO_EXTRAS, NoteRead, Noted, Place, STATES,
    Survey, counts_of, job_info, limit_of, progress,
};
use waterline::queue::{JobProgress, JobState, QueueError, Root};

/// The error of an answer that has another form than this program knows.
pub(super) fn misread(queue: &Opened, error: postgres::Error) -> QueueError {
    queue_error(queue.name(), "read an answer", error.into())
}

/// A job as it is shown, with all that belongs to it.
pub(super) struct Shown {
    id: JobId,
    row: JobRow,
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
            since: unsigned(number("since")?),
            place: unsigned(number("place")?),
            resubmit: number("resubmit")?.map(|time| unsigned(Some(time))),
            has_data: text("data")?.is_some(),
            error: text("error")?.unwrap_or_default(),
            extras: (extras != NO_EXTRAS).then(|| Box::new(extras)),
        };
        Ok(Self {
            id: row.try_get("id")?,
            row: shown,
            payload: row.try_get("payload")?,
            data: text("data")?,
            meta,
            progress,
        })
    }

    fn info(self) -> JobInfo {
        let data = self.data.as_deref().and_then(|data| serde_json::from_str(data).ok());
        let meta = meta_of(self.meta.as_deref());
        job_info(&self.id, &self.row, self.payload.into_bytes(), data, meta, self.progress)
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
        let values: [crate::sql::Value<'_>; 6] = [
            (&queue.name(), Type::TEXT),
            (&name_of(state), Type::TEXT),
            (&behind.map(|place| place.priority as i32), Type::INT4),
            (&behind.map(|place| signed(place.number)), Type::INT8),
            (&behind.map(|place| place.id.as_str()), Type::TEXT),
            (&i64::try_from(most).unwrap_or(i64::MAX), Type::INT8),
        ];
        let rows = self.rows(queue, "list jobs", "list", &values)?;
        let infos: Result<Vec<_>, _> = rows.iter().map(|row| Shown::of(row).map(Shown::info)).collect();
        infos.map_err(|error| misread(queue, error))
    }

    pub(super) fn count(&self, queue: &Opened) -> Result<Counts, QueueError> {
        let rows = self.rows(queue, "count jobs", "counts", &[(&queue.name(), Type::TEXT)])?;
        let mut counts = [0; STATES.len()];
        for row in &rows {
            let (name, count): (String, i64) = (row.get(0), row.get(1));
            if let Some(state) = state_of(&name) {
                counts[state as usize] += unsigned(Some(count));
            }
        }
        Ok(counts_of(counts))
    }

    fn surveyed(&self, queue: &Opened) -> Result<Value, QueueError> {
        let rows = self.rows(queue, "look at a queue", "survey", &[(&queue.name(), Type::TEXT)])?;
        let text = rows.first().map(|row| row.try_get::<_, postgres::types::Json<Value>>(0)).transpose();
        Ok(text.map_err(|error| misread(queue, error))?.map(|json| json.0).unwrap_or_default())
    }

    pub(super) fn inspect(&self, queue: &Opened) -> Result<Survey, QueueError> {
        let counts = self.count(queue)?;
        let seen = self.surveyed(queue)?;
        let number = |name: &str| seen.get(name).and_then(Value::as_u64);
        let text = |name: &str| seen.get(name).and_then(Value::as_str).map(str::to_owned);
        let is = |name: &str| seen.get(name).and_then(Value::as_bool);
        let ticks = queue.periodics.lock().iter().filter_map(super::periodics::Registered::next).min();
        let until = |time: u64| if time >= i64::MAX as u64 { u64::MAX } else { time };
        Ok(Survey {
            counts,
            oldest_ready: text("oldest_ready").zip(number("oldest_ready_since")),
            only_held: is("only_held").unwrap_or(false),
            due: number("due").into_iter().chain(ticks).min(),
            paused_until: number("paused_until").map(until),
            alone: is("alone"),
            full: is("full").unwrap_or(false).then(|| number("full_until")),
            held: text("held_by").map(|name| (limit_of(&name), number("held").unwrap_or(0), number("held_until"))),
            running: number("running").and_then(|count| usize::try_from(count).ok()).unwrap_or(0),
            oldest_running: running_since(queue, &seen),
        })
    }

    pub(super) fn who_runs(&self, queue: &Opened) -> Result<(usize, Option<(Instant, JobId)>), QueueError> {
        let seen = self.surveyed(queue)?;
        let running = seen.get("running").and_then(Value::as_u64).and_then(|count| usize::try_from(count).ok());
        Ok((running.unwrap_or(0), running_since(queue, &seen)))
    }

    pub(super) fn waits_since(&self, queue: &Opened) -> Result<u64, QueueError> {
        let seen = self.surveyed(queue)?;
        let ready = seen.get("oldest_ready_since").and_then(Value::as_u64);
        Ok(ready.or_else(|| seen.get("due").and_then(Value::as_u64)).unwrap_or(u64::MAX))
    }

    pub(super) fn look_again(&self, queue: &Opened) -> Result<(), QueueError> {
        let changes = queue.changes();
        let answers = self.answers(queue, "look at a queue", "glance_now", &[(&queue.name(), Type::TEXT)])?;
        for answer in answers {
            queue.note_glance(&answer, false, changes);
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
    Ok(Noted { until: unsigned(Some(until)), value })
}

fn running_since(queue: &Opened, seen: &Value) -> Option<(Instant, JobId)> {
    let number = |name: &str| seen.get(name).and_then(Value::as_u64);
    let id = seen.get("oldest_running").and_then(Value::as_str)?;
    let ran = number("now")?.saturating_sub(number("oldest_running_since")?);
    let now = queue.moment().now;
    Some((now.checked_sub(Duration::from_millis(ran)).unwrap_or(now), id.to_owned()))
}

/// Returns what is known of a queue that cannot be looked at now.
pub(super) fn unknown() -> Glance {
    Glance {
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
