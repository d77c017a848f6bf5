//! The schedules that this process has registered. It computes their ticks, and the database
//! decides which process makes each.

use super::answers::{Answer, happened, signed, time, unsigned, untold};
use super::faults::misread;
use super::opened::Opened;
use super::queues::Queues;
use super::registered::Registered;
use super::settings::{of_job, text};
use crate::sql::Value;
use postgres::types::Type;
use std::sync::Arc;
use waterline_queue::engine_api::{Event, Line, Passed, Periodic, due, last_tick, next_tick, periodic_info, prepare};
use waterline_queue::{Overlap, PeriodicInfo, QueueError};

const MAKE: &str = "make the jobs of a schedule";

impl Queues {
    pub(super) fn register(&self, queue: &Opened, periodic: Arc<Periodic>) -> Result<u64, QueueError> {
        let known =
            queue.periodics.lock().iter().find(|one| one.periodic.name == periodic.name).map(|one| {
                if *one.periodic == *periodic { Ok(one.last) } else { Err(periodic.registered_otherwise()) }
            });
        if let Some(known) = known {
            return Ok(queue.of_server(known?));
        }
        let push = prepare(periodic.job.clone(), 0, || 0)?;
        let (schedule, settings) = (periodic.schedule.to_string(), of_job(&push));
        let next = next_tick(&periodic.schedule, queue.server_time()).map(signed);
        let values: [Value<'_>; 9] = [
            (&queue.name(), Type::TEXT),
            (&periodic.name, Type::TEXT),
            (&schedule, Type::TEXT),
            (&None::<i64>, Type::INT8),
            (&push.row.kind, Type::TEXT),
            (&text(&push), Type::TEXT),
            (&settings, Type::TEXT),
            (&periodic.at_next, Type::BOOL),
            (&next, Type::INT8),
        ];
        let answers = self.answers(queue, "register a schedule", "register_periodic", &values)?;
        let registered = answers.iter().find(|answer| answer.what == "periodic");
        let last = registered.map_or(0, |answer| unsigned(answer.number));
        // The clock of this process may be wrong, and the ticks below go by the server's.
        registered.into_iter().for_each(|answer| queue.note_time(unsigned(answer.since)));
        let name = periodic.name.clone();
        self.tell(queue, happened(&answers), untold(&answers));
        if next_tick(&periodic.schedule, last).map(signed) != next {
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
        let push = prepare(periodic.job.clone(), 0, || 0)?;
        let (ticks, settings): (Vec<_>, _) = (run.iter().map(|tick| signed(*tick)).collect(), of_job(&push));
        let next = next_tick(&periodic.schedule, new).map(signed);
        let values: [Value<'_>; 10] = [
            (&queue.name(), Type::TEXT),
            (&periodic.name, Type::TEXT),
            (&signed(last), Type::INT8),
            (&signed(new), Type::INT8),
            (&ticks, Type::INT8_ARRAY),
            (&(periodic.overlap == Overlap::Allow), Type::BOOL),
            (&push.row.kind, Type::TEXT),
            (&text(&push), Type::TEXT),
            (&settings, Type::TEXT),
            (&next, Type::INT8),
        ];
        self.answers(queue, MAKE, "tick_once", &values)
    }

    pub(super) fn list_periodics(&self, queue: &Opened) -> Result<Vec<PeriodicInfo>, QueueError> {
        let rows = self.rows(queue, "list schedules", "periodics_of", &[(&queue.name(), Type::TEXT)])?;
        let own = queue.periodics.lock();
        let info = |row: &postgres::Row| {
            let (name, last): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
            let last = unsigned(Some(last));
            let registered = own.iter().find(|one| one.periodic.name == name);
            let stored: Option<i64> = row.try_get(5)?;
            let next = registered
                .map_or(stored.map(|next| unsigned(Some(next))), |one| next_tick(&one.periodic.schedule, last));
            let schedule = registered.map(|one| one.periodic.schedule.to_string());
            let stored: Option<String> = row.try_get(4)?;
            let skipped: i64 = row.try_get(3)?;
            let (run, skipped, damaged) = (row.try_get(2)?, unsigned(Some(skipped)), row.try_get(6)?);
            Ok(periodic_info(name, schedule.or(stored), last, next.map(time), run, skipped, damaged))
        };
        let all: Result<Vec<_>, postgres::Error> = rows.iter().map(info).collect();
        all.map_err(|error| misread(queue, error))
    }
}

/// The most jobs that one call makes of a schedule.
const MOST: usize = 64;
