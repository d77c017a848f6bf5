//! The records of queues in the fixture: they are read, and their jobs go on.

use super::*;
use waterline_queue::{Accept, Every, JobState, NewJob, Queue, QueueError, QueueOptions, Unique, Waits};

#[test]
fn promise_08_jobs_of_each_setting_go_on() {
    let queue = queue(&disk(&records(FIXTURE)).open(&making(false)).unwrap(), "pages").unwrap();
    let info = |id: &str| queue.get(id).unwrap().unwrap_or_else(|| panic!("there is no {id}"));
    assert_eq!((ids(&queue, JobState::Waiting), info("waits").waits_for), (vec!["holds on".into(), "waits".into()], 2));
    assert_eq!((info("runs").meta["by"].as_str(), info("runs").crashes), (Some("ann"), 1));
    assert_eq!(info("runs").progress.map(|progress| progress.note), Some("a quarter".to_owned()));
    assert_eq!((info("first of a key").cost, info("held").key), (3, Some("tenant:7".to_owned())));
    let notes = queue.notes("page").unwrap();
    assert_eq!((notes.get("seen").unwrap(), notes.get("last").unwrap()), (Some(3.into()), Some("/".into())));
    let twin = NewJob::new("page", "unique").unwrap().unique(Unique::until_done());
    assert_eq!(queue.push(twin).unwrap().id, "unique");
    let mut ran = Vec::new();
    while let Some(mut lease) = queue.accept(Accept::new()).unwrap() {
        ran.push(lease.id().to_owned());
        lease.finish(None).unwrap();
    }
    ran.sort();
    assert_eq!(ran, ["done twin", "first of a key", "held", "holds on", "runs", "unique", "waits"]);
}

fn queue(store: &Store, name: &str) -> Result<Queue, QueueError> {
    Queue::open(store, name, QueueOptions::default().clock(life::clock()))
}

fn ids(queue: &Queue, state: JobState) -> Vec<String> {
    queue.list(state, None, usize::MAX).unwrap().into_iter().map(|job| job.id).collect()
}

/// An opened queue takes over from a process that died, which is a write.
#[test]
fn promise_08_opening_costs_one_write_a_queue() {
    let disk = disk(&records(FIXTURE));
    let store = disk.open(&making(false)).unwrap();
    assert_eq!(disk.writes(), 1);
    let (mail, other) = (queue(&store, "mail").unwrap(), queue(&store, "other").unwrap());
    assert_eq!(disk.writes(), 3);
    assert_eq!(ids(&mail, JobState::Scheduled), ["failed", "later"]);
    assert_eq!(ids(&mail, JobState::Ready), ["moved", "running", "bare", "~0"]);
    assert_eq!(ids(&mail, JobState::Finished), ["finished", "kept"]);
    assert_eq!(ids(&mail, JobState::Dead), ["dead"]);
    let get = |id: &str| mail.get(id).unwrap().unwrap();
    let (running, dead) = (get("running"), get("dead"));
    assert_eq!((running.crashes, running.resubmitted, running.data), (1, true, Some([1, 2].as_slice().into())));
    assert_eq!((dead.failures, dead.error.as_deref()), (1, Some("no such address")));
    assert_eq!((get("kept").kept_until, get("~0").payload::<u32>().unwrap()), (None, 7));
    assert!(other.accept(Accept::new()).unwrap().is_none());
    assert!(matches!(other.status().unwrap().waits, Waits::Paused { left: None }));
    let pushed = mail.push(NewJob::new("digest", &8).unwrap()).unwrap();
    assert_eq!(pushed.id, "~1", "no id is given out twice");
}

fn digest(queue: &Queue, name: &str) -> Result<(), QueueError> {
    queue.periodic(name, Every::hours(1), NewJob::new("digest", &7)?).start()
}

#[test]
fn promise_08_periodic_jobs_go_on_from_the_last_tick() {
    let disk = disk(&records(FIXTURE));
    let ticks = queue(&disk.open(&making(false)).unwrap(), "ticks").unwrap();
    let infos = ticks.periodics().unwrap();
    let seen: Vec<_> = infos.iter().map(|info| (&*info.name, info.last_run.as_deref(), info.skipped)).collect();
    assert_eq!(seen, [("digest", Some("~0"), 1), ("later", None, 0), ("new", Some("~1"), 0)]);
    ["digest", "later", "new"].iter().for_each(|name| digest(&ticks, name).unwrap());
    // The clock is where the life began, so all ticks are in its future.
    assert_eq!(ids(&ticks, JobState::Ready), ["~0", "~1"]);
    assert!(
        ticks.periodics().unwrap().iter().all(|info| info.next_tick > info.last_tick.max(Some(std::time::UNIX_EPOCH)))
    );
}
