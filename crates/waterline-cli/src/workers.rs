//! Looks at the workers of a queue, and at the jobs that each of them has.

use crate::backend::{Backend, Holders, check_queue};
use crate::error::Fault;
use crate::format::{At, count, cut, length, number, word};
use crate::print::{Cell, Report, record};
use crate::rows::Worker;
use std::time::Duration;

/// The longest list of kinds in a table.
const KINDS: usize = 40;

impl Worker {
    /// Returns its process and its machine, or a dash.
    fn place(&self) -> String {
        match (&self.host, self.process) {
            (Some(host), Some(process)) => format!("{host}:{process}"),
            (Some(one), None) => one.clone(),
            (None, process) => process.map_or_else(|| "-".to_owned(), |process| process.to_string()),
        }
    }

    fn language(&self) -> String {
        let words: Vec<&str> = [&self.language, &self.version].into_iter().flatten().map(String::as_str).collect();
        if words.is_empty() { "-".to_owned() } else { words.join(" ") }
    }

    fn kinds(&self) -> String {
        self.kinds.as_ref().map_or_else(|| "all".to_owned(), |kinds| cut(&kinds.join(", "), KINDS))
    }

    fn busy(&self) -> String {
        let busy = number(self.busy.into());
        self.slots.map_or_else(|| busy.clone(), |slots| format!("{busy} of {}", number(slots.into())))
    }

    fn heard_of(&self) -> String {
        match (self.silent_for, self.process) {
            (0, Some(_)) => "now".to_owned(),
            // Of the worker of a store, only the jobs are known.
            (0, None) => "-".to_owned(),
            (silent, _) => format!("{} ago", millis(silent)),
        }
    }

    /// Says what happens to the jobs of a silent worker; `None` if it is not silent.
    pub(crate) fn lost(&self) -> Option<String> {
        let left = match self.lease_left {
            None => "when its program is started again".to_owned(),
            Some(0) => "now".to_owned(),
            Some(left) => format!("in {}", millis(left)),
        };
        let jobs = match self.busy {
            0 => "it has no job".to_owned(),
            1 => format!("its job comes back {left}"),
            jobs => format!("its {} jobs come back {left}", number(jobs.into())),
        };
        self.is_silent.then(|| format!("no longer heard of; {jobs}"))
    }

    /// The sort key: silent workers with jobs come first, silent ones without jobs last.
    fn rank(&self) -> u8 {
        match (self.is_silent, self.busy) {
            (true, 1..) => 0,
            (false, _) => 1,
            (true, 0) => 2,
        }
    }

    /// Returns its name, or else its process.
    pub(crate) fn shown(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.place())
    }
}

fn millis(millis: u64) -> String {
    length(Duration::from_millis(millis))
}

/// Sums up the workers in one line: `3 workers, 14 of 16 slots busy`.
pub(crate) fn summed(workers: &[Worker]) -> String {
    let takers = || workers.iter().filter(|worker| !worker.is_silent && !worker.is_stopping);
    let busy: u64 = takers().map(|worker| u64::from(worker.busy)).sum();
    let slots: Option<u64> = takers().map(|worker| worker.slots.map(u64::from)).sum();
    let mut text = match (takers().count() as u64, slots) {
        (0, _) => "no worker".to_owned(),
        (many, Some(slots)) => {
            format!("{}, {} of {} busy", count(many, "worker"), number(busy), count(slots, "slot"))
        }
        (many, None) => format!("{}, {} busy", count(many, "worker"), count(busy, "slot")),
    };
    let others = |is_it: fn(&&Worker) -> bool| workers.iter().filter(is_it).count() as u64;
    for (many, one, more) in [
        (others(|worker| worker.is_stopping && !worker.is_silent), "stops", "stop"),
        (others(|worker| worker.is_silent), "is no longer heard of", "are no longer heard of"),
    ] {
        if many > 0 {
            text += &format!("; {} {}", number(many), if many == 1 { one } else { more });
        }
    }
    text
}

/// Lists the workers of a queue, silent ones that still have jobs first.
pub(crate) fn workers(place: &dyn Backend, name: &str, most: usize) -> Result<Report, Fault> {
    check_queue(place, name)?;
    let (mut workers, now, mut report) = (place.workers(name)?, At::now(), Report::default());
    workers.sort_by_key(Worker::rank);
    if workers.is_empty() {
        report.line(none(place, name));
        return Ok(report);
    }
    report.line(format!("The queue {name:?} has {}.", summed(&workers)));
    let shown = &workers[..workers.len().min(most)];
    let head = ["WORKER", "PROCESS", "LANGUAGE", "KINDS", "BUSY", "BEGAN", "HEARD OF", "STATE"];
    report.table(&head, shown.iter().map(|worker| row(worker, now)).collect());
    if shown.len() < workers.len() {
        let rest = count((workers.len() - shown.len()) as u64, "worker");
        report.line(Cell::from(format!("and {rest} more: --limit 0 shows all")).faint());
    }
    jobs(&mut report, name, shown);
    if place.store().is_some() {
        report.line(Cell::from("Only its process knows its slots and its kinds: --url asks its page.").faint());
    }
    shown.iter().for_each(|worker| report.record(record("worker", worker, [("queue", name.into())])));
    Ok(report)
}

/// Says what helps if no worker is seen.
fn none(place: &dyn Backend, name: &str) -> String {
    let none = format!("The queue {name:?} has no worker.");
    match (place.store(), place.holders()) {
        (None, _) => format!("{none} Start a program that has a runner of it, or that calls accept."),
        (Some(_), Holders::None) => format!("{none} No process has its store open: start its program."),
        (Some(_), _) => format!(
            "The queue {name:?} has no job that runs. Only the process that has its store open knows if a runner takes its \
             jobs: --url asks its page."
        ),
    }
}

fn row(worker: &Worker, now: At) -> Vec<Cell> {
    let text = |text: Option<&String>| Cell::from(text.map_or("-", String::as_str));
    let state = match worker.lost() {
        Some(lost) => Cell::from(lost).bad(),
        None if worker.is_stopping => Cell::from("stopping"),
        None => Cell::from("works"),
    };
    vec![
        text(worker.name.as_ref()),
        worker.place().into(),
        worker.language().into(),
        worker.kinds().into(),
        worker.busy().into(),
        worker.began.map_or_else(|| "-".to_owned(), |began| began.age(now)).into(),
        worker.heard_of().into(),
        state,
    ]
}

fn jobs(report: &mut Report, name: &str, workers: &[Worker]) {
    let row = |worker: &Worker| {
        let shown = worker.shown();
        let rows = worker.jobs.iter().map(move |job| {
            vec![shown.clone().into(), job.id.as_str().into(), job.kind.as_str().into(), millis(job.ran_for).into()]
        });
        rows.collect::<Vec<_>>()
    };
    let rows: Vec<_> = workers.iter().flat_map(row).collect();
    let busy: u64 = workers.iter().map(|worker| u64::from(worker.busy)).sum();
    let rest = busy.saturating_sub(rows.len() as u64);
    if !rows.is_empty() {
        report.line("");
        report.table(&["WORKER", "JOB", "KIND", "RUNS FOR"], rows);
    }
    if rest > 0 {
        let text = format!("and {} more: see jobs {} --state running", count(rest, "busy slot"), word(name));
        report.line(Cell::from(text).faint());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(slots: Option<u32>, busy: u32) -> Worker {
        Worker { slots, busy, ..Worker::default() }
    }

    #[test]
    fn a_summary_has_busy_slots_and_counts_the_others() {
        let silent = |busy| Worker { is_silent: true, ..worker(Some(9), busy) };
        let stopping = Worker { is_stopping: true, ..worker(Some(9), 3) };
        let of = |workers: &[Worker]| summed(workers);
        assert_eq!(of(&[]), "no worker");
        assert_eq!(of(&[worker(Some(1), 1)]), "1 worker, 1 of 1 slot busy");
        assert_eq!(of(&[worker(Some(10), 9), worker(Some(6), 5)]), "2 workers, 14 of 16 slots busy");
        assert_eq!(of(&[worker(Some(1_000), 1), worker(None, 1)]), "2 workers, 2 slots busy");
        assert_eq!(of(&[stopping.clone(), stopping.clone()]), "no worker; 2 stop");
        let all = [silent(0), worker(Some(4), 0), stopping, silent(2), silent(1)];
        assert_eq!(of(&all), "1 worker, 0 of 4 slots busy; 1 stops; 3 are no longer heard of");
        let mut ranked = all.to_vec();
        ranked.sort_by_key(Worker::rank);
        let busy: Vec<_> = ranked.iter().map(|worker| (worker.is_silent, worker.busy)).collect();
        assert_eq!(busy, [(true, 2), (true, 1), (false, 0), (false, 3), (true, 0)]);
    }

    #[test]
    fn a_silent_worker_says_when_its_jobs_come_back() {
        let of = |busy, left| Worker { is_silent: true, lease_left: left, ..worker(Some(9), busy) }.lost().unwrap();
        assert_eq!(of(0, None), "no longer heard of; it has no job");
        assert_eq!(of(1, Some(12_300)), "no longer heard of; its job comes back in 12s");
        assert_eq!(of(1_200, Some(0)), "no longer heard of; its 1,200 jobs come back now");
        assert_eq!(of(2, None), "no longer heard of; its 2 jobs come back when its program is started again");
        assert_eq!(worker(None, 2).lost(), None);
    }

    #[test]
    fn a_worker_shows_what_is_known_of_it() {
        let known = Worker {
            name: Some("w1".to_owned()),
            process: Some(7),
            host: Some("node".to_owned()),
            language: Some("python".to_owned()),
            version: Some("3.12".to_owned()),
            kinds: Some((0..30).map(|n| format!("kind {n}")).collect()),
            silent_for: 2_000,
            ..worker(Some(4), 2)
        };
        let of =
            |worker: &Worker| [worker.shown(), worker.place(), worker.language(), worker.busy(), worker.heard_of()];
        assert_eq!(of(&known), ["w1", "node:7", "python 3.12", "2 of 4", "2s ago"]);
        assert_eq!(known.kinds().chars().count(), KINDS);
        assert_eq!(of(&worker(None, 1)), ["-", "-", "-", "1", "-"]);
        let here = Worker { process: Some(7), ..Worker::default() };
        assert_eq!(of(&here), ["7", "7", "-", "0", "now"]);
        assert_eq!(here.kinds(), "all");
    }
}
