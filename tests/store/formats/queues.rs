//! The records of queues in the fixture: they are read, their jobs go on, and damage is refused.

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

#[test]
fn promise_08_damaged_durations_stop_no_queue() {
    let (whole, seconds) = (records(FIXTURE), Duration::from_secs);
    let queue = |records: &[DiskRecord]| queue(&disk(records).open(&making(false)).unwrap(), "timed").unwrap();
    let read = queue(&whole).durations();
    let all: Vec<_> = read.iter().map(|(kind, of)| (kind.as_str(), of.count, of.mean, of.last)).collect();
    assert_eq!(all, [("digest", 1, seconds(1), seconds(1)), ("welcome", 2, seconds(16), seconds(20))]);
    let key = [&number_of(&whole, "timed")[..], b"tdigest"].concat();
    let at = whole.iter().position(|(_, of, _)| *of == key).unwrap();
    for bit in 0..8 * whole[at].2.len() {
        let mut bent = whole.clone();
        bent[at].2[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(queue(&bent).durations().len(), 1, "bit {bit} is seen");
    }
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

#[test]
fn promise_08_a_flipped_bit_of_a_periodic_job_is_refused() {
    let whole = records(FIXTURE);
    let of = number_of(&whole, "ticks");
    let mut flipped = 0;
    for (number, (family, key, value)) in whole.iter().enumerate() {
        if family != "waterline.queue" || !key.starts_with(&of) || key[4] != b'y' {
            continue;
        }
        let name = std::str::from_utf8(&key[5..]).unwrap();
        for bit in 0..8 * value.len() {
            let mut bent = whole.clone();
            bent[number].2[bit / 8] ^= 1 << (bit % 8);
            let disk = disk(&bent);
            let ticks = queue(&disk.open(&making(false)).unwrap(), "ticks").unwrap();
            let Err(QueueError::Store(Error::Corrupt { reason, .. })) = digest(&ticks, name) else {
                panic!("{name}, {bit}");
            };
            assert!(reason.contains(name), "{reason}");
            // The list shows the others as sound.
            for info in ticks.periodics().unwrap() {
                assert_eq!(info.damaged.is_some(), info.name == name, "{info:?}, {bit}");
            }
            assert!(disk.records().contains(&bent[number]), "{name}, {bit}: it was written over");
            // Other jobs of the queue run, and the name can be used anew.
            assert!(ticks.accept(Accept::new()).unwrap().is_some());
            assert!(ticks.remove_periodic(name).unwrap());
            digest(&ticks, name).unwrap();
            flipped += 1;
        }
    }
    assert!(flipped > 500, "{flipped} bits");
}

/// Each bit of the sealed records in turn.
#[test]
fn promise_08_a_flipped_bit_of_a_queue_is_refused() {
    let whole = records(FIXTURE);
    let id_of = |key: &[u8]| (key[4] == b'j').then(|| String::from_utf8(key[5..].to_vec()).unwrap());
    let queues = ["mail", "other"];
    let numbers = queues.map(|name| number_of(&whole, name));
    let mut flipped = 0;
    for (number, (family, key, value)) in whole.iter().enumerate() {
        let is_name = queues.iter().any(|name| *key == name_key(name));
        let is_record = numbers.iter().any(|of| key.starts_with(of)) && b"hj".contains(&key[4]);
        if family != "waterline.queue" || !is_name && !is_record {
            continue;
        }
        for bit in (0..8 * value.len()).step_by(3) {
            let mut bent = whole.clone();
            bent[number].2[bit / 8] ^= 1 << (bit % 8);
            let disk = disk(&bent);
            let store = disk.open(&making(false)).unwrap();
            let opened = queues.map(|name| queue(&store, name));
            let refused = match (opened, id_of(key).filter(|_| !is_name)) {
                ([Ok(mail), Ok(_)], Some(id)) => mail.get(id).map(drop),
                ([mail, other], _) => mail.and(other).map(drop),
            };
            let Err(QueueError::Store(Error::Corrupt { .. })) = refused else { panic!("{key:?}, {bit}: {refused:?}") };
            let kept = disk.records();
            assert!(kept.contains(&bent[number]), "{key:?}, {bit}: it was written over");
            flipped += 1;
        }
    }
    assert!(flipped > 2000, "{flipped} bits");
}
