//! Damages every record of a queue with all kinds of them, one after the other.

use crate::Clock;
use crate::accept::Accept;
use crate::embedded::codec::entry;
use crate::handle::Queue;
use crate::lease::Lease;
use crate::runner::drain::DrainLimits;
use crate::runner::handle::Runner;
use crate::runner::outcome::Outcome;
use crate::types::error::QueueError;
use crate::types::job::{JobState, Priority};
use crate::types::limit::{Limit, Rate};
use crate::types::new_job::NewJob;
use crate::types::options::QueueOptions;
use crate::types::related::OnDead;
use crate::types::schedule::every::Every;
use crate::types::unique::Unique;
use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::time::{Duration, SystemTime};
use waterline::fuzzing::{Disk, DiskRecord};
use waterline::{Error, Store};

const SECOND: Duration = Duration::from_secs(1);

const HOUR: Duration = Duration::from_secs(3600);

/// The states of jobs that have not ended.
const OPEN: [JobState; 4] = [JobState::Waiting, JobState::Scheduled, JobState::Ready, JobState::Running];

/// A way to damage the value of a record. The second value is that of another record.
type Way = (&'static str, fn(&[u8], &[u8]) -> Vec<u8>);

const WAYS: [Way; 4] = [
    ("a flipped bit", |value, _| {
        let mut value = value.to_vec();
        let middle = value.len() / 2;
        value.iter_mut().skip(middle).take(1).for_each(|byte| *byte ^= 1);
        value
    }),
    ("cut", |value, _| value[..value.len() / 2].to_vec()),
    ("emptied", |_, _| Vec::new()),
    ("of another kind", |_, other| other.to_vec()),
];

/// A queue with records of all kinds, whose process lives.
struct Rich {
    disk: Disk,
    clock: Clock,
    queue: Queue,
    /// Leases of workers that have gone silent.
    _silent: ManuallyDrop<Vec<Lease>>,
}

fn began() -> SystemTime {
    SystemTime::UNIX_EPOCH + 10_000 * HOUR
}

fn options(clock: &Clock) -> QueueOptions {
    let options = QueueOptions::default().clock(clock.clone()).limit(Limit::each_key().at_once(1));
    let options = options.limit(Limit::kind("slow").at_once(1));
    options.limit(Limit::kind("rated").rate(Rate::new(1, 20 * SECOND)))
}

fn job(kind: &str, id: &str) -> NewJob {
    NewJob::new(kind, id).unwrap().id(id)
}

fn accept(queue: &Queue) -> Option<Lease> {
    queue.accept(Accept::new()).unwrap()
}

fn register(queue: &Queue) -> Result<(), QueueError> {
    queue.periodic("tick", Every::new(30 * SECOND), NewJob::new("k", &1).unwrap()).start_at_next().start()
}

/// Makes the queue, with the same records each time.
fn rich() -> Rich {
    let (disk, clock) = (Disk::default(), Clock::manual(began()));
    let store = disk.open(&Store::options()).unwrap();
    let queue = Queue::open(&store, "q", options(&clock)).unwrap();
    let all = |jobs: Vec<NewJob>| drop(queue.push_all(jobs).unwrap());
    all(vec![job("k", "measured"), job("k", "gone")]);
    Runner::builder(&queue).on("k", |_, _: String| Ok(Outcome::Done)).drain(DrainLimits::default()).unwrap();
    queue.remove("gone").unwrap();
    let notes = queue.notes("k").unwrap();
    notes.set("stays", "x").unwrap();
    notes.set_for("goes", 1, 10 * SECOND).unwrap();
    register(&queue).unwrap();
    all(["finished", "dead"].map(|id| job("k", id).unique(Unique::within(20 * SECOND)).skip_if_executed()).into());
    accept(&queue).unwrap().finish(Some(7.into())).unwrap();
    accept(&queue).unwrap().bury("no way").unwrap();
    all(vec![job("k", "many")]);
    let mut many = accept(&queue).unwrap();
    all((0..66).map(|n| job("k", &format!("of many {n:02}")).after(["many"])).collect());
    all(vec![job("slow", "slow 0"), job("slow", "slow 1"), job("slow", "slow 2").key("w")]);
    all(vec![job("k", "x 0").key("x"), job("k", "x 1").key("x"), job("slow", "slow 3").key("y")]);
    all(vec![job("rated", "rated 0"), job("rated", "rated 1").key("z")]);
    all(vec![job("k", "silent 0").meta("for", "ann").unwrap(), job("k", "silent 1").key("x")]);
    // All jobs that may begin do. The limits hold the others.
    let mut leases: Vec<_> = std::iter::from_fn(|| accept(&queue)).collect();
    let silent = leases.iter_mut().find(|lease| lease.id() == "silent 0").unwrap();
    silent.update(Some("some".into())).unwrap();
    silent.progress(0.5, "half").unwrap();
    let priorities = [Priority::Urgent, Priority::Normal, Priority::Normal, Priority::Low];
    all(priorities.iter().zip(0..).map(|(of, n)| job("k", &format!("ready {n}")).priority(*of)).collect());
    all(vec![
        job("k", "later").delay(10 * SECOND).unique(Unique::until_done()),
        job("k", "tree").delay(20 * SECOND).root("tree", SystemTime::UNIX_EPOCH).expires(HOUR),
        job("k", "late").after(["later"]).expires(5 * SECOND),
        job("k", "holds").after(["later", "tree"]).on_dead(OnDead::Hold),
        job("k", "dies").after(["late"]),
    ]);
    // One limit has a place, and some jobs were not told yet of the end that they wait for.
    let ends = leases.iter().position(|lease| lease.id() == "x 0").unwrap();
    leases.remove(ends).finish(None).unwrap();
    many.bury("they die with it").unwrap();
    Rich { disk, clock, queue, _silent: ManuallyDrop::new(leases) }
}

/// Returns the ids of all jobs that have not ended.
fn open_jobs(queue: &Queue) -> BTreeSet<String> {
    let listed = OPEN.iter().flat_map(|state| queue.list(*state, None, usize::MAX).unwrap());
    listed.map(|job| job.id).collect()
}

/// Runs everything that is due within two hours, and notes which jobs have begun.
fn run(queue: &Queue, clock: &Clock, ran: &mut BTreeSet<String>) {
    let steps = [2 * SECOND; 15].into_iter().chain([40 * SECOND; 4]).chain([HOUR; 2]);
    for step in [Duration::ZERO].into_iter().chain(steps) {
        clock.advance(step);
        while let Some(mut lease) = accept(queue) {
            ran.insert(lease.id().to_owned());
            lease.finish(None).unwrap();
        }
        queue.status().unwrap();
    }
}

/// Asserts that everything runs except what is damaged, which can be seen and removed. `row` is the
/// job whose row was damaged, if any.
fn assert_mended(queue: &Queue, clock: &Clock, were_open: &BTreeSet<String>, (case, row): (&str, Option<&str>)) {
    let (mut ran, mut removed) = (BTreeSet::new(), BTreeSet::new());
    run(queue, clock, &mut ran);
    for state in OPEN.into_iter().chain([JobState::Finished, JobState::Dead, JobState::Damaged]) {
        for job in queue.list(state, None, usize::MAX).unwrap().into_iter().filter(|job| job.damaged.is_some()) {
            queue.remove(&job.id).unwrap_or_else(|error| panic!("{case}: {}: {error}", job.id));
            removed.insert(job.id);
        }
    }
    assert!(removed.len() <= 1 && row.is_none_or(|id| removed.contains(id)), "{case}: {removed:?}");
    if !removed.is_empty() {
        run(queue, clock, &mut ran);
    }
    let counts = queue.counts();
    assert_eq!((counts.damaged, open_jobs(queue)), (0, BTreeSet::new()), "{case}: {counts:?}");
    let still: u64 = OPEN.iter().map(|state| counts.of_state(*state)).sum();
    assert_eq!(still, 0, "{case}: {counts:?}");
    let dies = |id: &str| ["late", "dies"].contains(&id) || id.starts_with("of many");
    let never = |id: &&String| !ran.contains(*id) && !removed.contains(*id) && !dies(id);
    let left: Vec<_> = were_open.iter().filter(never).collect();
    assert!(left.is_empty(), "{case}: {left:?} never ran, {removed:?} were removed");
    queue.notes("k").unwrap().list(None, 99).unwrap();
    let periodics = queue.periodics().unwrap();
    assert_eq!(periodics.iter().map(|periodic| periodic.name.as_str()).collect::<Vec<_>>(), ["tick"], "{case}");
    if periodics[0].damaged.is_some() {
        assert!(queue.remove_periodic("tick").unwrap());
        register(queue).unwrap();
    }
    assert!(queue.periodics().unwrap()[0].damaged.is_none(), "{case}");
    queue.requeue_dead().unwrap();
    queue.purge().unwrap();
}

#[test]
fn a_running_job_that_is_damaged_frees_its_place() {
    let clock = Clock::manual(began());
    let queue = Queue::open(&Store::in_memory(), "q", options(&clock)).unwrap();
    queue.push_all([job("slow", "slow 0"), job("slow", "slow 1")]).unwrap();
    let _silent = ManuallyDrop::new(accept(&queue).unwrap());
    queue.damage("slow 0");
    assert!(accept(&queue).is_none(), "the limit is used up");
    clock.advance(HOUR);
    assert_eq!(accept(&queue).unwrap().id(), "slow 1");
}

/// Empties the records of these kinds, given by family and fifth byte of the key.
fn empty(disk: &Disk, kinds: &[(&str, u8)]) {
    let ours = disk
        .records()
        .into_iter()
        .filter(|(family, key, _)| key.get(4).is_some_and(|kind| kinds.contains(&(family, *kind))));
    disk.put(&ours.map(|(family, key, _)| (family, key, Vec::new())).collect::<Vec<_>>());
}

#[test]
fn a_job_damaged_with_its_entry_or_limit_blocks_none() {
    for kinds in [[("waterline.queue", b'l'), ("waterline.ready", b'l')], [("waterline.queue", b'r'), ("", 0)]] {
        let (disk, clock) = (Disk::default(), Clock::manual(began()));
        let queue = Queue::open(&disk.open(&Store::options()).unwrap(), "q", options(&clock)).unwrap();
        queue.push_all([job("slow", "slow 0"), job("slow", "slow 1")]).unwrap();
        let mut lease = accept(&queue).unwrap();
        assert!(accept(&queue).is_none(), "the limit is used up");
        empty(&disk, &kinds);
        if kinds[0].1 == b'l' {
            lease.finish(None).unwrap();
        } else {
            queue.damage("slow 0");
            let _silent = ManuallyDrop::new(lease);
            clock.advance(HOUR);
        }
        assert_eq!(accept(&queue).unwrap().id(), "slow 1", "{kinds:?}");
    }
}

#[test]
fn a_lost_entry_is_found_after_a_held_job_was_damaged() {
    let (disk, clock) = (Disk::default(), Clock::manual(began()));
    let queue = Queue::open(&disk.open(&Store::options()).unwrap(), "q", options(&clock)).unwrap();
    queue.push_all([job("slow", "slow 0"), job("slow", "slow 1")]).unwrap();
    let mut lease = accept(&queue).unwrap();
    assert!(accept(&queue).is_none(), "the limit holds it");
    queue.damage("slow 1");
    lease.finish(None).unwrap();
    assert!(accept(&queue).is_none(), "it is set aside");
    queue.push(job("k", "a")).unwrap();
    let key = queue.state_of().keys.ready(Priority::Normal as usize, 2);
    let entry = entry::encode("q", &key, "nobody");
    disk.put([&("waterline.ready".to_owned(), key, entry)]);
    assert_eq!(accept(&queue).unwrap().id(), "a");
}

#[test]
fn a_wait_with_a_damaged_record_ends_on_removal() {
    let (disk, clock) = (Disk::default(), Clock::manual(began()));
    let queue = Queue::open(&disk.open(&Store::options()).unwrap(), "q", options(&clock)).unwrap();
    queue
        .push_all([job("k", "a"), job("k", "b"), job("k", "of a").after(["a"]), job("k", "of b").after(["b"])])
        .unwrap();
    queue.damage("a");
    empty(&disk, &[("waterline.queue", b'o')]);
    let mut lease = accept(&queue).unwrap();
    assert!(lease.id() == "b" && accept(&queue).is_none());
    queue.remove("a").unwrap();
    assert_eq!(accept(&queue).unwrap().id(), "of a");
    assert_eq!(queue.state("of b").unwrap(), Some(JobState::Waiting), "its job has not ended");
    lease.finish(None).unwrap();
    assert_eq!(queue.state("of b").unwrap(), Some(JobState::Ready));
}

#[test]
fn any_damaged_record_leaves_all_other_jobs_running() {
    let whole = rich();
    let records = whole.disk.records();
    let were_open = open_jobs(&whole.queue);
    let is_ours = |(family, key, _): &&DiskRecord| {
        let text = String::from_utf8_lossy(key);
        // The many jobs that wait for one end are alike.
        let is_alike = text.find("of many ").is_some_and(|at| !["00", "65"].contains(&&text[at + 8..]));
        ["waterline.queue", "waterline.ready"].contains(&family.as_str()) && !is_alike
    };
    let ours: Vec<_> = records.iter().filter(is_ours).collect();
    let kinds: BTreeSet<_> = ours.iter().map(|(family, key, _)| (family.as_str(), key[4])).collect();
    // Each kind of record that the page `storage` lists, by family and fifth byte of the key. (The
    // number of the queue is under `q`, the first byte of its name.)
    let rows = b"adghijlmopqrty".iter().map(|kind| ("waterline.queue", *kind));
    let entries = [0, 2, 3, 4].iter().chain(b"efglmrstwx").map(|kind| ("waterline.ready", *kind));
    assert_eq!(kinds, rows.chain(entries).collect(), "a kind of record is missing, or is new");
    // One in three, at random. `make soak` tries all.
    let (all, mut trials) = (std::env::var_os("WATERLINE_SOAK").is_some(), 0);
    let first = fastrand::usize(..3);
    for (record, other) in ours.iter().zip(ours.iter().cycle().skip(1)) {
        let (family, key, value) = record;
        let row = std::str::from_utf8(&key[5..]).ok().filter(|_| family == "waterline.queue" && key[4] == b'j');
        for (way, damage) in WAYS {
            let damaged = (family.clone(), key.clone(), damage(value, &other.2));
            if damaged.2 == *value {
                continue;
            }
            for anew in [false, true] {
                let case = format!("{family} {} {way}, reopened: {anew}", key.escape_ascii());
                trials += 1;
                if !all && trials % 3 != first {
                    continue;
                }
                if !anew {
                    let Rich { disk, clock, queue, _silent } = rich();
                    disk.put([&damaged]);
                    assert_mended(&queue, &clock, &were_open, (&case, row));
                    continue;
                }
                let (disk, clock) = (Disk::default(), Clock::manual(began()));
                disk.put(records.iter().chain([&damaged]));
                match Queue::open(&disk.open(&Store::options()).unwrap(), "q", options(&clock)) {
                    Ok(queue) => {
                        assert_eq!(register(&queue).is_err(), key[4] == b'y' && family == "waterline.queue", "{case}");
                        assert_mended(&queue, &clock, &were_open, (&case, row));
                    }
                    // A queue cannot open without its own records.
                    Err(QueueError::Store(Error::Corrupt { name, .. })) => {
                        let begins = key[..4] == [u8::MAX; 4] || key[4..] == *b"h";
                        assert!(begins && name == "q", "{case}");
                    }
                    Err(error) => panic!("{case}: {error}"),
                }
            }
        }
    }
    assert!(trials > 500, "{trials}");
}
