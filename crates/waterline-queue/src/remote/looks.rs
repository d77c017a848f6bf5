//! Reads of a queue for a status, lists and waiters.

use super::answers::{name_of, state_of, unsigned};
use super::opened::Opened;
use super::presence::said;
use super::queues::Remote;
use super::rows::Shown;
use super::server::Server;
use crate::engine::{Peek, StatusInputs};
use crate::rules::fleet::Fleet;
use crate::types::error::QueueError;
use crate::types::job::{Counts, JobId, JobState};
use crate::types::limit::of_name;
use crate::types::options::LONGEST_SLEEP;
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
            fleet: Fleet::of(&self.read_workers(queue.at(), 1)?),
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
