//! Damages every record of a queue with all kinds of them, in each way: one after the other, and
//! several at once.
//!
//! A call is refused only for a damaged job that it names, and an opening only for a damaged record
//! of the queue itself. Every other job ends, and none runs again after its end. Damaged jobs are
//! listed and can be removed, after which all counts are right.
//!
//! Some knowledge is lost with a record, as the page `queue` says: a damaged mark lets a twin run,
//! a damaged limit has no tokens and counts running jobs anew, and a periodic job has no ticks
//! until it is removed.

use common::queues::{SECOND, STATES};
use common::{HOUR, damages, seeds, size};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::ManuallyDrop;
use std::time::{Duration, SystemTime};
use waterline::fuzzing::{Disk, DiskRecord};
use waterline::{Error, Store};
use waterline_queue::{
    Accept, Clock, DrainLimits, Every, JobState, Lease, Limit, NewJob, OnDead, Outcome, Priority, Queue, QueueError,
    QueueOptions, Rate, Runner, Unique,
};

/// The states of jobs that have not ended.
const OPEN: [JobState; 4] = [JobState::Waiting, JobState::Scheduled, JobState::Ready, JobState::Running];

/// What happens to the queue once its records are damaged.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    /// Its workers stay silent.
    Goes,
    /// Its workers end their jobs.
    Ends,
    /// Each damaged job is removed before the queue meets it.
    Removed,
    Purged,
    /// The process had died.
    Opened,
}

/// A queue with records of all kinds, whose process lives.
struct Rich {
    disk: Disk,
    clock: Clock,
    queue: Queue,
    /// Leases of workers that have gone silent.
    leases: ManuallyDrop<Vec<Lease>>,
}

fn began() -> SystemTime {
    SystemTime::UNIX_EPOCH + 10_000 * HOUR
}

fn open(disk: &Disk, clock: &Clock) -> Result<Queue, QueueError> {
    let options = QueueOptions::default().clock(clock.clone()).limit(Limit::each_key().at_once(1));
    let options = options.limit(Limit::kind("slow").at_once(1));
    let options = options.limit(Limit::kind("rated").rate(Rate::new(1, 20 * SECOND)));
    Queue::open(&disk.open(&Store::options()).unwrap(), "q", options)
}

fn job(kind: &str, id: &str) -> NewJob {
    NewJob::new(kind, id).unwrap().id(id)
}

fn accept(queue: &Queue) -> Option<Lease> {
    queue.accept(Accept::new()).unwrap()
}

fn register(queue: &Queue, name: &str) -> Result<(), QueueError> {
    let every = if name == "tick" { 30 * SECOND } else { 9 * HOUR };
    queue.periodic(name, Every::new(every), NewJob::new("k", &1).unwrap()).start_at_next().start()
}

/// Makes the queue, with the same records each time.
fn rich() -> Rich {
    let (disk, clock) = (Disk::default(), Clock::manual(began()));
    let queue = open(&disk, &clock).unwrap();
    let all = |jobs: Vec<NewJob>| drop(queue.push_all(jobs).unwrap());
    all(vec![job("k", "measured"), job("k", "gone"), job("m", "measured, too")]);
    let runner = Runner::builder(&queue).on("k", |_, _: String| Ok(Outcome::Done));
    runner.on("m", |_, _: String| Ok(Outcome::Done)).drain(DrainLimits::default()).unwrap();
    queue.remove("gone").unwrap();
    let notes = queue.notes("k").unwrap();
    notes.set("stays", "x").unwrap();
    notes.set_for("goes", 1, 10 * SECOND).unwrap();
    ["tick", "tock"].iter().for_each(|name| register(&queue, name).unwrap());
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
    Rich { disk, clock, queue, leases: ManuallyDrop::new(leases) }
}

/// Returns the ids in each of these states, which are read one by one, and whether each is sound.
fn listed(queue: &Queue, states: &[JobState]) -> Vec<(String, bool)> {
    let mut all = Vec::new();
    for state in states {
        let mut last = None;
        while let Some(job) = queue.list(*state, last.as_ref(), 1).unwrap().pop() {
            all.push((job.id.clone(), job.damaged.is_none()));
            last = Some(job);
        }
    }
    all
}

fn ids(queue: &Queue, states: &[JobState]) -> BTreeSet<String> {
    listed(queue, states).into_iter().map(|(id, _)| id).collect()
}

/// True for the two records without which a queue cannot be opened.
fn is_own((_, key, _): &DiskRecord) -> bool {
    key[..4] == [u8::MAX; 4] || key[4..] == *b"h"
}

/// The sound queue, and what is damaged of it.
struct Trial<'a> {
    case: String,
    then: Then,
    whole: &'a Rich,
    records: &'a [DiskRecord],
    damaged: &'a [DiskRecord],
}

impl Trial<'_> {
    /// Returns the names in the keys of the damaged records of these kinds.
    fn harmed(&self, kinds: &[u8]) -> BTreeSet<String> {
        let of = |(family, key, _): &&DiskRecord| {
            family == "waterline.queue" && key[..4] != [u8::MAX; 4] && kinds.contains(&key[4])
        };
        self.damaged.iter().filter(of).map(|(_, key, _)| String::from_utf8(key[5..].to_vec()).unwrap()).collect()
    }

    /// Asserts that a call was made, or refused for a damaged job that it names.
    fn assert_named<T>(&self, made: Result<T, QueueError>, name: &str, harmed: &BTreeSet<String>) {
        match made {
            Ok(_) => {}
            Err(error @ (QueueError::Store(Error::Corrupt { .. }) | QueueError::Payload { .. })) => {
                let (text, is_payload) = (error.to_string(), matches!(error, QueueError::Payload { .. }));
                let is_named = harmed.contains(name) && text.contains(&format!("{name:?}"));
                let helps = is_payload || text.contains("`Queue::remove` for a job");
                assert!(is_named && helps, "{}: {text}", self.case);
            }
            Err(error) => panic!("{}: {name}: {error}", self.case),
        }
    }

    fn run(&self) {
        let (case, harmed) = (&self.case, self.harmed(b"jpdig"));
        // Payload and data have no checksums, and the progress of a running job is in memory.
        let sealed = self.harmed(b"ji");
        let plain = &self.harmed(b"pdg") - &sealed;
        if self.then == Then::Opened {
            let (disk, clock) = (Disk::default(), Clock::manual(began()));
            disk.put(self.records.iter().chain(self.damaged));
            let before = disk.records();
            match open(&disk, &clock) {
                Ok(queue) => {
                    let measured: BTreeSet<_> = queue.durations().into_keys().collect();
                    let lost = self.harmed(b"t");
                    assert!(
                        measured
                            .into_iter()
                            .eq(["k", "m"].iter().map(|kind| (*kind).to_owned()).filter(|kind| !lost.contains(kind))),
                        "{case}"
                    );
                    return self.assert_mended(&disk, &queue, &clock);
                }
                Err(QueueError::Store(Error::Corrupt { name, .. })) if name == "q" => {
                    assert!(self.damaged.iter().any(is_own), "{case}: it cannot be opened");
                    return assert_eq!(disk.records(), before, "{case}: a refused opening has changed something");
                }
                Err(error) => panic!("{case}: {error}"),
            }
        }
        let Rich { disk, clock, queue, mut leases } = rich();
        disk.put(self.damaged);
        for (id, _) in listed(&self.whole.queue, &STATES) {
            let got = queue.get(&id);
            assert!(got.is_err() || !sealed.contains(&id), "{case}: {id}: {got:?}");
            self.assert_named(got, &id, &harmed);
        }
        let is_of_job = |(family, key, _): &DiskRecord| family == "waterline.queue" && b"jpdig".contains(&key[4]);
        let is_of_jobs = self.damaged.iter().all(is_of_job);
        if is_of_jobs {
            let all = listed(&self.whole.queue, &STATES).into_iter().map(|(id, _)| (id.clone(), !sealed.contains(&id)));
            let seen =
                listed(&queue, &STATES).into_iter().map(|(id, is_sound)| (id.clone(), is_sound || plain.contains(&id)));
            assert_eq!(seen.collect::<Vec<_>>(), all.collect::<Vec<_>>(), "{case}: one hides another");
        }
        match self.then {
            Then::Ends => leases.iter_mut().for_each(|lease| {
                let id = lease.id().to_owned();
                self.assert_named(lease.finish(None), &id, &self.harmed(b"j"));
            }),
            Then::Removed => self.harmed(b"j").into_iter().for_each(|id| queue.remove(id).unwrap()),
            Then::Purged if is_of_jobs => return self.assert_purged(&queue, &clock),
            _ => {}
        }
        self.assert_mended(&disk, &queue, &clock);
    }

    /// Asserts that a purge takes all but what is damaged.
    fn assert_purged(&self, queue: &Queue, clock: &Clock) {
        let case = &self.case;
        queue.requeue_dead().unwrap();
        for name in ["tick", "tock"] {
            assert!(queue.remove_periodic(name).unwrap());
        }
        queue.purge().unwrap();
        clock.advance(2 * HOUR);
        assert!(queue.accept(Accept::new().kinds(["none"])).unwrap().is_none());
        let left = ids(queue, &[JobState::Damaged]);
        assert_eq!((left.len() as u64, &left), (queue.counts().damaged, &self.harmed(b"j")), "{case}");
        left.iter().for_each(|id| queue.remove(id).unwrap());
        assert_eq!(ids(queue, &OPEN), BTreeSet::new(), "{case}");
        for state in STATES {
            assert_eq!(queue.counts().of_state(state), listed(queue, &[state]).len() as u64, "{case}: {state:?}");
        }
    }

    /// Runs everything that is due within two hours, and notes which jobs have begun.
    fn run_all(&self, queue: &Queue, clock: &Clock, ran: &mut BTreeSet<String>) {
        let steps = [2 * SECOND; 15].into_iter().chain([40 * SECOND; 4]).chain([HOUR; 2]);
        for step in [Duration::ZERO].into_iter().chain(steps) {
            clock.advance(step);
            while let Some(mut lease) = accept(queue) {
                assert!(ran.insert(lease.id().to_owned()), "{}: {} runs again", self.case, lease.id());
                lease.finish(None).unwrap();
            }
            queue.status().unwrap();
        }
    }

    /// Asserts that everything runs except what is damaged, which can be seen and removed.
    fn assert_mended(&self, disk: &Disk, queue: &Queue, clock: &Clock) {
        let (case, lost) = (&self.case, self.harmed(b"y"));
        if self.then == Then::Opened {
            for name in ["tick", "tock"] {
                self.assert_registers(disk, queue, name);
            }
        }
        let was = |states: &[JobState]| ids(&self.whole.queue, states);
        let (were_open, mut ran) = (was(&OPEN), BTreeSet::new());
        // Jobs whose end was written when their worker called.
        let ended = ids(queue, &[JobState::Finished, JobState::Dead]);
        self.run_all(queue, clock, &mut ran);
        let again: Vec<_> = ran.intersection(&ended).collect();
        assert!(again.is_empty(), "{case}: {again:?} had ended, and ran again");
        let harmed = self.harmed(b"jpdig");
        // What waits for a damaged job waits until that is removed.
        let never = |ran: &BTreeSet<String>, id: &str| {
            let dies = ["late", "dies"].contains(&id) || id.starts_with("of many");
            !ran.contains(id) && !ended.contains(id) && !harmed.contains(id) && !dies
        };
        let left: Vec<_> = were_open.iter().filter(|id| never(&ran, id) && *id != "holds").collect();
        assert!(left.is_empty(), "{case}: {left:?} never ran");
        let rows = self.harmed(b"j");
        if queue.counts().damaged == 1 {
            let says = "damaged 1: list them by that state, and remove them";
            assert!(queue.status().unwrap().to_string().contains(says), "{case}");
        }
        let mut removed = BTreeMap::new();
        for state in STATES.into_iter().chain([JobState::Damaged]) {
            for job in queue.list(state, None, usize::MAX).unwrap() {
                let Some(reason) = job.damaged else { continue };
                queue.remove(&job.id).unwrap_or_else(|error| panic!("{case}: {}: {error}", job.id));
                removed.insert(job.id, reason);
            }
        }
        assert!(removed.keys().all(|id| harmed.contains(id)), "{case}: {removed:?}");
        for id in &rows {
            if self.then == Then::Removed {
                continue;
            }
            let reason = removed.get(id).unwrap_or_else(|| panic!("{case}: {id} is in no list"));
            assert!(reason.contains(&format!("the row of the job {id:?}")), "{case}: {reason}");
        }
        if !removed.is_empty() {
            self.run_all(queue, clock, &mut ran);
        }
        assert!(!never(&ran, "holds"), "{case}: it waits for ever");
        let counts = queue.counts();
        assert_eq!((counts.damaged, ids(queue, &OPEN)), (0, BTreeSet::new()), "{case}: {counts:?}");
        assert_eq!(OPEN.map(|state| counts.of_state(state)), [0; 4], "{case}: {counts:?}");
        queue.notes("k").unwrap().list(None, 99).unwrap();
        let periodics = queue.periodics().unwrap();
        let shown: Vec<_> = periodics.iter().map(|of| (of.name.as_str(), of.damaged.is_some())).collect();
        assert_eq!(shown, ["tick", "tock"].map(|name| (name, lost.contains(name))), "{case}");
        for name in &lost {
            assert!(queue.remove_periodic(name).unwrap());
            register(queue, name).unwrap();
        }
        assert!(queue.periodics().unwrap().iter().all(|of| of.damaged.is_none()), "{case}");
        queue.requeue_dead().unwrap();
        queue.purge().unwrap();
    }

    /// Asserts that a periodic job can be registered unless its record is damaged, which stays.
    fn assert_registers(&self, disk: &Disk, queue: &Queue, name: &str) {
        let made = register(queue, name);
        assert_eq!(made.is_err(), self.harmed(b"y").contains(name), "{}: {made:?}", self.case);
        let Err(refused) = made else { return };
        assert!(matches!(refused, QueueError::Store(Error::Corrupt { .. })) && refused.to_string().contains(name));
        let kept = self.damaged.iter().filter(|(_, key, _)| key[4..] == [b"y", name.as_bytes()].concat());
        assert!(kept.clone().all(|record| disk.records().contains(record)), "{}: it was written over", self.case);
    }
}

/// Returns the records of the queue, without those of many alike jobs.
fn ours(records: &[DiskRecord]) -> Vec<&DiskRecord> {
    let is_ours = |(family, key, _): &&DiskRecord| {
        let text = String::from_utf8_lossy(key);
        // The many jobs that wait for one end are alike.
        let is_alike = text.find("of many ").is_some_and(|at| !["00", "65"].contains(&&text[at + 8..]));
        ["waterline.queue", "waterline.ready"].contains(&family.as_str()) && !is_alike
    };
    records.iter().filter(is_ours).collect()
}

#[test]
fn any_damaged_record_leaves_all_other_jobs_running() {
    let whole = rich();
    let records = whole.disk.records();
    let ours = ours(&records);
    let kinds: BTreeSet<_> = ours.iter().map(|(family, key, _)| (family.as_str(), key[4])).collect();
    // Each kind of record that the page `storage` lists, by family and fifth byte of the key. (The
    // number of the queue is under `q`, the first byte of its name.)
    let rows = b"adghijlmopqrty".iter().map(|kind| ("waterline.queue", *kind));
    let entries = [0, 2, 3, 4].iter().chain(b"efglmrstwx").map(|kind| ("waterline.ready", *kind));
    assert_eq!(kinds, rows.chain(entries).collect(), "a kind of record is missing, or is new");
    let (mut trials, first) = (0, fastrand::usize(..size(7, 1)));
    for ((family, key, value), (.., other)) in ours.iter().zip(ours.iter().cycle().skip(1)) {
        for (way, value) in damages(value, other) {
            for then in [Then::Goes, Then::Ends, Then::Removed, Then::Purged, Then::Opened] {
                trials += 1;
                // One in seven, at random. A soak tries all.
                if trials % size(7, 1) == first {
                    let damaged = [(family.clone(), key.clone(), value.clone())];
                    let case = format!("{family} {} {way}, {then:?}", key.escape_ascii());
                    Trial { case, then, whole: &whole, records: &records, damaged: &damaged }.run();
                }
            }
        }
    }
    assert!(trials > 1_000, "{trials}");
}

#[test]
fn several_damaged_records_leave_all_other_jobs_running() {
    let whole = rich();
    let records = whole.disk.records();
    let ours = ours(&records);
    for seed in seeds(60, 1_000) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut damaged = BTreeMap::new();
        let mut case = format!("seed {seed}");
        for _ in 0..random.usize(2..5) {
            let ((family, key, value), (.., other)) =
                (ours[random.usize(..ours.len())], ours[random.usize(..ours.len())]);
            let ways: Vec<_> = damages(value, other).collect();
            let Some((way, value)) = random.choice(&ways).cloned() else { continue };
            case = format!("{case}, {family} {} {way}", key.escape_ascii());
            damaged.insert((family.clone(), key.clone()), value);
        }
        let damaged: Vec<_> = damaged.into_iter().map(|((family, key), value)| (family, key, value)).collect();
        let then = random.choice([Then::Goes, Then::Ends, Then::Removed, Then::Opened]).unwrap();
        Trial { case: format!("{case}, {then:?}"), then, whole: &whole, records: &records, damaged: &damaged }.run();
    }
}
