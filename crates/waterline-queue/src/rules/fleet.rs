//! A summary of all workers of a queue, for its status.

use crate::types::worker::{WorkerInfo, WorkerJob};
use std::collections::BTreeSet;
use std::time::Duration;

/// How many silent workers are named at most.
const NAMED: usize = 8;

/// A summary of the workers of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// How many active workers take jobs.
    pub workers: usize,
    /// How many active workers are stopping, and take no more jobs.
    pub stopping: usize,
    /// The slots of those that take jobs; `None`: one of them has no bound.
    pub slots: Option<u64>,
    /// How many of these slots are taken.
    pub busy: u64,
    /// True if one of them is known to have a free slot.
    pub has_free: bool,
    /// The kinds that they take together, in ascending order; `None`: one of them takes all.
    pub kinds: Option<Vec<String>>,
    /// How many workers are silent and still have jobs.
    pub silent_count: usize,
    /// The silent workers whose leases end first: up to 8.
    pub silent: Vec<SilentWorker>,
    /// The job that started first among those of workers that take jobs, with its worker.
    pub oldest: Option<(WorkerInfo, WorkerJob)>,
    /// How long the job of theirs has run that started last.
    pub newest_ran_for: Option<Duration>,
}

/// A silent worker that still has jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilentWorker {
    /// Its name, or its process and host.
    pub name: String,
    /// The number of its jobs.
    pub jobs: u64,
    /// How long ago it gave the last sign of life.
    pub silent_for: Duration,
    /// The time until others may take its jobs.
    pub lease_left: Duration,
}

impl Fleet {
    /// True if one of those that take jobs takes this kind.
    pub(crate) fn takes(&self, kind: &str) -> bool {
        self.workers > 0 && self.kinds.as_ref().is_none_or(|kinds| kinds.iter().any(|own| own == kind))
    }

    /// Returns the slots of those that take jobs, if all of them are taken.
    pub(crate) fn full(&self) -> Option<u64> {
        self.slots.filter(|slots| *slots > 0 && self.busy >= *slots)
    }

    /// Summarizes these workers.
    #[must_use]
    pub fn of(workers: &[WorkerInfo]) -> Self {
        let heard = workers.iter().filter(|worker| !worker.is_silent);
        let (stopping, takers): (Vec<_>, Vec<_>) = heard.partition(|worker| worker.is_stopping);
        let mut kinds = Some(BTreeSet::new());
        for worker in &takers {
            kinds = kinds.zip(worker.kinds.as_ref()).map(|(mut kinds, own)| {
                kinds.extend(own.iter().cloned());
                kinds
            });
        }
        let silent = |worker: &WorkerInfo| SilentWorker {
            name: worker.to_string(),
            jobs: worker.busy.into(),
            silent_for: worker.silent_for,
            lease_left: worker.lease_left.unwrap_or_default(),
        };
        let mut silent: Vec<_> =
            workers.iter().filter(|worker| worker.is_silent && !worker.jobs.is_empty()).map(silent).collect();
        let silent_count = silent.len();
        silent.sort_by_key(|worker| worker.lease_left);
        silent.truncate(NAMED);
        let oldest = takers.iter().filter_map(|worker| Some((*worker, worker.jobs.first()?)));
        let oldest = oldest.max_by_key(|(_, job)| job.ran_for);
        // The reported number of slots without a job here may be old by a third of a lease.
        let busy = |worker: &WorkerInfo| worker.slots.map_or(worker.busy, |slots| worker.busy.min(slots));
        Self {
            workers: takers.len(),
            stopping: stopping.len(),
            slots: takers.iter().map(|worker| worker.slots.map(u64::from)).sum(),
            busy: takers.iter().map(|worker| u64::from(busy(worker))).sum(),
            has_free: takers.iter().any(|worker| worker.slots.is_some_and(|slots| worker.busy < slots)),
            kinds: kinds.map(|kinds| kinds.into_iter().collect()),
            silent_count,
            silent,
            oldest: oldest.map(|(worker, job)| (worker.clone(), job.clone())),
            newest_ran_for: takers.iter().filter_map(|worker| worker.newest_ran_for).min(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::time::SystemTime;

    const SECOND: Duration = Duration::from_secs(1);

    /// A worker with this name, with one job per number of seconds that it has run.
    pub(crate) fn worker(name: &str, slots: Option<u32>, kinds: Option<&[&str]>, jobs: &[u32]) -> WorkerInfo {
        let job = |ran: &u32| WorkerJob { id: format!("{name}{ran}"), kind: "k".to_owned(), ran_for: SECOND * *ran };
        WorkerInfo {
            name: Some(name.to_owned()),
            process: None,
            host: None,
            language: None,
            version: None,
            kinds: kinds.map(|kinds| kinds.iter().map(ToString::to_string).collect()),
            slots,
            busy: jobs.len() as u32,
            began: SystemTime::UNIX_EPOCH,
            silent_for: SECOND,
            is_silent: false,
            is_stopping: false,
            jobs: jobs.iter().map(job).collect(),
            newest_ran_for: jobs.iter().min().map(|ran| SECOND * *ran),
            lease_left: (!jobs.is_empty()).then_some(SECOND * 40),
        }
    }

    #[test]
    fn an_empty_fleet_has_no_slots_and_no_kinds() {
        let fleet = Fleet::of(&[]);
        assert_eq!((fleet.workers, fleet.slots, fleet.busy, fleet.kinds), (0, Some(0), 0, Some(Vec::new())));
        assert_eq!((fleet.silent, fleet.oldest, fleet.newest_ran_for), (Vec::new(), None, None));
    }

    #[test]
    fn only_workers_that_take_jobs_are_summed_up() {
        let stops = WorkerInfo { is_stopping: true, ..worker("stops", Some(8), Some(&["x"]), &[7]) };
        let dead = WorkerInfo { is_silent: true, ..worker("dead", Some(8), Some(&["y"]), &[90, 3]) };
        let old = WorkerInfo { is_silent: true, ..worker("old", Some(8), None, &[]) };
        let later = WorkerInfo { lease_left: Some(SECOND * 50), ..dead.clone() };
        let workers = [
            worker("a", Some(2), Some(&["mail", "b"]), &[30, 20]),
            worker("b", Some(3), Some(&["mail", "a"]), &[]),
            stops,
            later,
            dead,
            old,
        ];
        let fleet = Fleet::of(&workers);
        assert_eq!((fleet.workers, fleet.stopping, fleet.slots, fleet.busy), (2, 1, Some(5), 2));
        assert_eq!((fleet.has_free, fleet.silent_count), (true, 2));
        assert_eq!(fleet.kinds, Some(vec!["a".to_owned(), "b".into(), "mail".into()]));
        let silent: Vec<_> = fleet.silent.iter().map(|one| (&*one.name, one.jobs, one.lease_left)).collect();
        assert_eq!(silent, [("dead", 2, SECOND * 40), ("dead", 2, SECOND * 50)]);
        let oldest = fleet.oldest.map(|(worker, job)| (worker.to_string(), job.id));
        assert_eq!(oldest, Some(("a".to_owned(), "a30".to_owned())));
        assert_eq!(fleet.newest_ran_for, Some(SECOND * 20));
        let many: Vec<_> =
            (0..20).map(|_| WorkerInfo { is_silent: true, ..worker("dead", None, None, &[1]) }).collect();
        let fleet = Fleet::of(&many);
        assert_eq!((fleet.silent.len(), fleet.silent_count, fleet.has_free), (NAMED, 20, false));
    }

    #[test]
    fn one_unbounded_worker_makes_the_fleet_unbounded() {
        let fleet = Fleet::of(&[worker("a", None, Some(&["x"]), &[]), worker("b", Some(1), None, &[])]);
        assert_eq!((fleet.workers, fleet.slots, fleet.kinds, fleet.has_free), (2, None, None, true));
        // One without a bound may be busy with all that it takes. Slots of other queues count once.
        assert!(!Fleet::of(&[worker("a", None, None, &[])]).has_free);
        let other = WorkerInfo { busy: 9, ..worker("a", Some(2), None, &[5]) };
        assert_eq!((Fleet::of(std::slice::from_ref(&other)).busy, Fleet::of(&[other]).has_free), (2, false));
    }

    #[test]
    fn a_worker_is_named_by_its_name_or_process() {
        let mut worker = worker("a", None, None, &[]);
        let mut names = vec![worker.to_string()];
        worker.name = None;
        names.push(worker.to_string());
        (worker.process, worker.host) = (Some(7), Some("h".to_owned()));
        names.push(worker.to_string());
        assert_eq!(names, ["a", "a worker without a name", "process 7 on h"]);
    }
}
