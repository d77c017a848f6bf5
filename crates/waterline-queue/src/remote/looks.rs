//! Reads of a queue for a status, lists and waiters.

use super::answers::{name_of, signed, state_of, unsigned};
use super::opened::Opened;
use super::presence::said;
use super::queues::Remote;
use super::rows::{LimitRow, Shown};
use super::server::{ListCall, Server};
use crate::engine::{NoteRead, Peek, StatusInputs};
use crate::rules::fleet::Fleet;
use crate::rules::notes::Noted;
use crate::types::error::QueueError;
use crate::types::info::JobInfo;
use crate::types::job::{Counts, JobId, JobState};
use crate::types::limit::of_name;
use crate::types::options::LONGEST_SLEEP;
use crate::types::page::Place;
use crate::types::used::{LimitUse, Related};
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};
use waterline::seam;

/// How often a queue that keeps changing is read again.
const LOOKS: u32 = 4;
/// No job in any state.
const NONE: [u64; JobState::ALL.len()] = [0; JobState::ALL.len()];

impl<S: Server> Remote<S> {
    pub(super) fn shown(&self, queue: &Opened, id: &str) -> Result<Option<Shown>, QueueError> {
        queue.explained("look at a job", self.server.get(queue.at(), id))
    }

    pub(super) fn page(
        &self,
        queue: &Opened,
        state: JobState,
        behind: Option<&Place>,
        most: usize,
    ) -> Result<Vec<JobInfo>, QueueError> {
        let list = ListCall {
            state: name_of(state),
            held_by: behind.and_then(|place| place.limit.as_deref()),
            priority: behind.map(|place| place.priority as i32),
            place: behind.map(|place| signed(place.number)),
            tie: behind.map(|place| signed(place.tie)),
            most: i64::try_from(most).unwrap_or(i64::MAX),
        };
        let shown = queue.explained("list jobs", self.server.list(queue.at(), &list))?;
        Ok(shown.into_iter().map(Shown::info).collect())
    }

    /// Returns the jobs in each state, or the last known counts if the server cannot be asked.
    pub(super) fn count(&self, queue: &Opened) -> Counts {
        let rows = match queue.explained("count jobs", self.server.counts(queue.at())) {
            Ok(rows) => rows,
            Err(error) => {
                queue.shared.note_failing(Some(&error));
                return self.counted_last(queue);
            }
        };
        let (mut counts, mut damaged, mut age) = (NONE, 0, Duration::ZERO);
        for (name, count, old) in rows {
            match state_of(&name) {
                Some(JobState::Damaged) => damaged += unsigned(Some(count)),
                Some(state) => counts[state as usize] += unsigned(Some(count)),
                None => {}
            }
            age = age.max(Duration::from_millis(unsigned(Some(old))));
        }
        let counts = Counts { age, ..Counts::of(counts, damaged) };
        self.note_counted(queue, counts);
        counts
    }

    fn note_counted(&self, queue: &Opened, counts: Counts) {
        self.counted.lock().insert(queue.number, (queue.moment().now, counts));
    }

    /// Returns the last known counts, whose age has grown since.
    fn counted_last(&self, queue: &Opened) -> Counts {
        let counted = self.counted.lock().get(&queue.number).copied();
        let (at, mut counts) =
            counted.unwrap_or((queue.moment().now, Counts { age: Duration::MAX, ..Counts::of(NONE, 0) }));
        counts.age = queue.moment().now.saturating_duration_since(at).saturating_add(counts.age);
        counts
    }

    pub(super) fn inspect(&self, queue: &Opened) -> Result<StatusInputs, QueueError> {
        let seen = queue.explained("look at a queue", self.server.status_inputs(queue.at()))?;
        let number = |name: &str| seen.get(name).and_then(Value::as_u64);
        let text = |name: &str| seen.get(name).and_then(Value::as_str).map(str::to_owned);
        let is = |name: &str| seen.get(name).and_then(Value::as_bool);
        let time = queue.server_time();
        let ticks = queue.periodics.lock().iter().filter_map(|one| one.next(time)).min();
        let until = |time: u64| if time >= i64::MAX as u64 { u64::MAX } else { time };
        let counted =
            |name: &str| seen.get("counts").and_then(|counts| counts.get(name)).and_then(Value::as_u64).unwrap_or(0);
        let age = Duration::from_millis(number("now").unwrap_or(0).saturating_sub(counted("at")));
        let counts = JobState::ALL.map(|state| counted(name_of(state)));
        let counts = Counts { age, ..Counts::of(counts, number("damaged").unwrap_or(0)) };
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
            held: text("held_by").map(|name| (of_name(&name), number("held").unwrap_or(0), number("held_until"))),
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
        let (running, id, ran) = queue.explained("look at running jobs", self.server.who_runs(queue.at()))?;
        let oldest = running_since(queue, id, ran.map(|ran| unsigned(Some(ran))));
        Ok((usize::try_from(running).unwrap_or(0), oldest))
    }

    pub(super) fn waits_since(&self, queue: &Opened) -> Result<u64, QueueError> {
        let since = queue.explained("look at the oldest job", self.server.waits_since(queue.at()))?;
        Ok(since.map_or(u64::MAX, |since| unsigned(Some(since))))
    }

    /// Returns the limits that are set, and those of keys that have jobs.
    pub(super) fn limits_used(&self, queue: &Opened) -> Result<Vec<LimitUse>, QueueError> {
        let limits = queue.explained("look at limits", self.server.limits_used(queue.at()))?;
        Ok(limits.into_iter().map(LimitRow::used).collect())
    }

    /// Returns the jobs that a job waits for, and those that wait for it.
    pub(super) fn waits(&self, queue: &Opened, id: &str, most: usize) -> Result<Related, QueueError> {
        let found = self.server.related_to(queue.at(), id, i64::try_from(most).unwrap_or(i64::MAX));
        let (waits_for, awaited_by) = queue.explained("look at the jobs that wait for each other", found)?;
        Ok(Related { waits_for, awaited_by })
    }

    /// Asks the server what there is. Waiters wake together, and one asks for all: a look that
    /// began after another waiter came serves that one, too.
    pub(super) fn look_for_all(&self, queue: &Opened, kinds: Option<&[String]>) -> Peek {
        let came = seam::now();
        let mut last = queue.looking.lock();
        if let Some((begun, of, peek)) = &*last
            && *begun > came
            && of.as_deref() == kinds
        {
            return queue.peek(kinds).unwrap_or(*peek);
        }
        let begun = seam::now();
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
        let answers = self.server.peek_now(queue.at(), kinds, about.as_deref());
        for answer in queue.explained("look at a queue", answers)? {
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
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let notes = queue.explained("read notes", self.server.notes_of(queue.at(), prefix, behind, most))?;
        Ok(notes.into_iter().map(|(place, value, until)| (place, noted_of(&value, until))).collect())
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
