//! The schedules that this process has registered. It computes their ticks, and the server decides
//! which process makes each.

use super::answers::{Answer, happened, signed, unsigned, untold};
use super::opened::Opened;
use super::queues::Remote;
use super::registered::Registered;
use super::rows::PeriodicRow;
use super::server::{PeriodicCall, Server};
use super::settings::{of_job, text};
use crate::rules::due::due;
use crate::rules::pushing::prepare;
use crate::rules::set_back::last_tick;
use crate::types::error::QueueError;
use crate::types::events::{Event, Line, Passed};
use crate::types::info::PeriodicInfo;
use crate::types::job::time;
use crate::types::periodic::Periodic;
use crate::types::schedule::Overlap;
use std::sync::Arc;

const MAKE: &str = "make the jobs of a schedule";

impl<S: Server> Remote<S> {
    pub(super) fn register(&self, queue: &Opened, periodic: Arc<Periodic>) -> Result<u64, QueueError> {
        let known =
            queue.periodics.lock().iter().find(|one| one.periodic.name == periodic.name).map(|one| {
                if *one.periodic == *periodic { Ok(one.last) } else { Err(periodic.registered_otherwise()) }
            });
        if let Some(known) = known {
            return Ok(queue.of_server(known?));
        }
        let next = periodic.schedule.next(queue.server_time()).map(signed);
        let (call, schedule) = (call_of(&periodic, next)?, periodic.schedule.to_string());
        let made = self.server.register_periodic(queue.at(), &call, &schedule, periodic.at_next);
        let answers = queue.explained("register a schedule", made)?;
        let registered = answers.iter().find(|answer| answer.what == "periodic");
        let last = registered.map_or(0, |answer| unsigned(answer.number));
        // The clock of this process may be wrong, and the ticks below go by the server's.
        registered.into_iter().for_each(|answer| queue.note_time(unsigned(answer.since)));
        let name = periodic.name.clone();
        self.tell(queue, happened(&answers), untold(&answers));
        if periodic.schedule.next(last).map(signed) != next {
            // An earlier life has ticked, and an interval is counted from there.
            self.tick_once(queue, &periodic, (last, last), &[])?;
        }
        queue.periodics.lock().push(Registered { periodic, last });
        self.tick_all(queue)?;
        let all = queue.periodics.lock();
        let last = all.iter().find(|one| one.periodic.name == name).map_or(last, |one| one.last);
        Ok(queue.of_server(last))
    }

    pub(super) fn tick_all(&self, queue: &Opened) -> Result<(), QueueError> {
        let wall = queue.server_time();
        let is_due = |one: &&Registered| one.next(wall).is_some_and(|next| next <= wall);
        let own = queue
            .periodics
            .lock()
            .iter()
            .filter(is_due)
            .map(|one| (one.periodic.clone(), one.last))
            .collect::<Vec<_>>();
        own.into_iter().try_for_each(|(periodic, last)| self.tick_one(queue, &periodic, last, wall))
    }

    fn tick_one(&self, queue: &Opened, periodic: &Periodic, mut last: u64, wall: u64) -> Result<(), QueueError> {
        loop {
            let counts = last_tick(&periodic.schedule, last, wall);
            // Only the database knows whether the run before has ended.
            let due = due(&periodic.schedule, (periodic.overlap, periodic.catch_up), (counts, false), wall, MOST);
            if due.last == last {
                return Ok(());
            }
            let answers = self.tick_once(queue, periodic, (last, due.last), &due.run)?;
            let mut told = happened(&answers);
            let ticked = answers.iter().find(|answer| answer.what == "ticked");
            let (now, outcome) =
                ticked.map_or((None, ""), |answer| (answer.number, answer.outcome.as_deref().unwrap_or_default()));
            if outcome != "other" {
                let mut passed = |tick, why, run| {
                    let name = periodic.name.clone();
                    told.push(Event::Line(Line::Passed { name, tick, why, run }));
                };
                if let Some(missed) = due.missed {
                    passed(missed, Passed::Missed, None);
                }
                if outcome == "skipped" {
                    passed(due.last, Passed::Skipped, ticked.and_then(|answer| answer.id.clone()));
                }
            }
            // A removed schedule stays registered until the queue is closed, and makes no jobs.
            last = now.map_or(u64::MAX, |now| unsigned(Some(now)));
            let mut periodics = queue.periodics.lock();
            periodics.iter_mut().filter(|one| one.periodic.name == periodic.name).for_each(|one| one.last = last);
            drop(periodics);
            self.tell(queue, told, untold(&answers));
            if now.is_none() {
                return Ok(());
            }
        }
    }

    /// Makes the jobs of these ticks and sets the schedule's last tick to `new`, if it is `last`.
    fn tick_once(
        &self,
        queue: &Opened,
        periodic: &Periodic,
        (last, new): (u64, u64),
        run: &[u64],
    ) -> Result<Vec<Answer>, QueueError> {
        let call = call_of(periodic, periodic.schedule.next(new).map(signed))?;
        let (last, ticks): (_, Vec<_>) = ((signed(last), signed(new)), run.iter().map(|tick| signed(*tick)).collect());
        let may_overlap = periodic.overlap == Overlap::Allow;
        queue.explained(MAKE, self.server.tick_once(queue.at(), &call, last, &ticks, may_overlap))
    }

    pub(super) fn list_periodics(&self, queue: &Opened) -> Result<Vec<PeriodicInfo>, QueueError> {
        let rows = queue.explained("list schedules", self.server.periodics_of(queue.at()))?;
        let own = queue.periodics.lock();
        let info = |row: PeriodicRow| {
            let last = unsigned(Some(row.last));
            let registered = own.iter().find(|one| one.periodic.name == row.name);
            let stored = row.next.map(|next| unsigned(Some(next)));
            let next = registered.map_or(stored, |one| one.periodic.schedule.next(last));
            let last_run = row.run.as_deref().unwrap_or_default();
            let skipped = unsigned(Some(row.skipped));
            PeriodicInfo {
                last_tick: PeriodicInfo::ticked(last, last_run, skipped),
                name: row.name,
                schedule: registered.map(|one| one.periodic.schedule.to_string()).or(row.schedule),
                next_tick: next.map(time),
                last_run: row.run,
                skipped,
                damaged: row.damaged,
            }
        };
        Ok(rows.into_iter().map(info).collect())
    }
}

fn call_of(periodic: &Periodic, next: Option<i64>) -> Result<PeriodicCall<'_>, QueueError> {
    let push = prepare(periodic.job.clone(), 0, || 0)?;
    let (name, kind) = (&*periodic.name, &*periodic.job.kind);
    Ok(PeriodicCall { name, kind, payload: text(&push), settings: of_job(&push), next })
}

/// The most jobs that one call makes of a schedule.
const MOST: usize = 64;
