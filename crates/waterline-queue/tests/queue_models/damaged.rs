//! Random lives of a queue whose records are damaged at random times.
//!
//! Damage is drawn like a call: while the queue is open, before it is opened, and to several
//! records at once. A call is refused only for a damaged job that it names, and an opening only for
//! a damaged record of the queue itself. Every other job ends, and none runs again after its end.
//! Damaged jobs are listed and can be removed, after which all counts are right.
//!
//! Some knowledge is lost with a record, as the page `queue` says: a damaged mark lets a twin run,
//! a damaged limit has no tokens and counts running jobs anew, a periodic job has no ticks until it
//! is removed, and a damaged wait may hide a cycle of waiting jobs.

use crate::mixed::Life;
use crate::ops::{Act, BEGIN, Op, STATES, Trouble, at, id, step};
use common::queues::SECOND;
use common::{HOUR, cases, ends, size};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::RngSeed;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use waterline::fuzzing::{Disk, DiskRecord};
use waterline::{Error, Store};
use waterline_queue::{Accept, Clock, Every, JobState, NewJob, Queue, QueueError, QueueOptions};

const OPEN: [JobState; 4] = [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Waiting];

/// The states in a row, as bytes: those of open jobs, and those of ended ones.
const OPEN_ROW: [u8; 4] = [0, 1, 2, 5];
const ENDED_ROW: [u8; 2] = [3, 4];

/// The family and the key of a record.
type Place = (String, Vec<u8>);
type Records = BTreeMap<Place, Vec<u8>>;

#[derive(Clone, Debug)]
enum Event {
    Call(Trouble, Op),
    Damage(Vec<Harm>),
    Periodic,
    /// Sets a note for this many milliseconds.
    Note(u64),
}

/// Damage to a record: the kind of record, and which one of that kind.
#[derive(Clone, Debug)]
struct Harm {
    kind: Index,
    record: Index,
    way: u8,
    at: Index,
}

impl Harm {
    fn strategy() -> impl Strategy<Value = Self> {
        let at = any::<[Index; 3]>();
        (0..4u8, at).prop_map(|(way, [kind, record, at])| Self { kind, record, way, at })
    }

    /// Returns the damaged record and its new value, which may be one of `others`.
    fn of(&self, records: &Records, others: &[Vec<u8>]) -> Option<(Place, Vec<u8>)> {
        let kind = |(family, key): &Place| (family.clone(), if is_name(key) { 0xff } else { key[4] });
        let kinds: BTreeSet<_> = records.keys().map(kind).collect();
        let kinds: Vec<_> = kinds.into_iter().collect();
        let wanted = kinds.get(self.kind.index(kinds.len().max(1)))?;
        let alike: Vec<_> = records.iter().filter(|(place, _)| kind(place) == *wanted).collect();
        let (place, value) = alike[self.record.index(alike.len())];
        let mut value = value.clone();
        match self.way {
            0 if !value.is_empty() => {
                let bit = self.at.index(8 * value.len());
                value[bit / 8] ^= 1 << (bit % 8);
            }
            1 => value.truncate(self.at.index(value.len().max(1))),
            2 => value.clear(),
            _ if others.is_empty() => return None,
            _ => value.clone_from(self.at.get(others)),
        }
        Some((place.clone(), value))
    }
}

fn is_name(key: &[u8]) -> bool {
    key.starts_with(&[u8::MAX; 4])
}

/// True for the two records without which a queue cannot be opened.
fn is_own((family, key): &Place) -> bool {
    is_name(key) || family == "waterline.queue" && key[4..] == *b"h"
}

/// Returns the job id in the key of a record.
fn job_of(key: &[u8]) -> &[u8] {
    if key[4] == b'o' { &key[6..6 + usize::from(key[5])] } else { &key[5..] }
}

/// A life of the queue, and the damage so far.
struct Trial {
    life: Life,
    number: Vec<u8>,
    /// The values before and after each damage. A crash may undo the last one of several.
    harmed: BTreeMap<Place, Vec<[Vec<u8>; 2]>>,
    /// True once the disk has stopped, or is about to.
    freezes: bool,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        20 => step().prop_map(|(trouble, op)| Event::Call(trouble, op)),
        3 => proptest::collection::vec(Harm::strategy(), 1..4).prop_map(Event::Damage),
        1 => Just(Event::Periodic),
        1 => (1..60_000u64).prop_map(Event::Note),
    ];
    proptest::collection::vec(event, 1..80)
}

impl Trial {
    fn begin(set: u8) -> Self {
        let life = Life::begin(Disk::default(), Clock::manual(at(BEGIN)), BEGIN, set);
        let records = life.disk.records();
        let name = records.iter().find(|(family, key, _)| family == "waterline.queue" && is_name(key)).unwrap();
        Self { number: name.2[1..5].to_vec(), life, harmed: BTreeMap::new(), freezes: false }
    }

    /// Returns the records of the queue on a disk.
    fn records(&self, disk: &Disk) -> Records {
        let is_ours = |(family, key, _): &DiskRecord| {
            ["waterline.queue", "waterline.ready"].contains(&family.as_str())
                && (key.starts_with(&self.number) && key.len() > 4 || is_name(key) && key[4..] == *b"q")
        };
        let ours = disk.records().into_iter().filter(is_ours);
        ours.map(|(family, key, value)| ((family, key), value)).collect()
    }

    /// Returns the value of a record before it was damaged; `None` if it is whole.
    fn whole(&self, records: &Records, place: &Place) -> Option<Vec<u8>> {
        let value = records.get(place)?;
        let harm = self.harmed.get(place)?.iter().rev().find(|[_, left]| left == value)?;
        Some(harm[0].clone())
    }

    fn is_harmed(&self, records: &Records, place: &Place) -> bool {
        self.whole(records, place).is_some()
    }

    /// Returns the jobs in one of these states whose rows are whole.
    fn jobs(&self, records: &Records, states: &[u8]) -> BTreeSet<String> {
        let rows = records.iter().filter(|((family, key), _)| family == "waterline.queue" && key[4] == b'j');
        let rows = rows
            .filter(|(place, row)| !is_name(&place.1) && !self.is_harmed(records, place) && states.contains(&row[1]));
        rows.map(|((_, key), _)| String::from_utf8(key[5..].to_vec()).unwrap()).collect()
    }

    /// Returns the jobs with a damaged record, by the fifth bytes of keys.
    fn harmed_jobs(&self, records: &Records, parts: &[u8]) -> BTreeSet<String> {
        let harmed = self.harmed.keys().filter(|place| self.is_harmed(records, place) && !is_name(&place.1));
        let parts = harmed.filter(|(family, key)| family == "waterline.queue" && parts.contains(&key[4]));
        parts.map(|(_, key)| String::from_utf8(job_of(key).to_vec()).unwrap()).collect()
    }

    fn damage(&mut self, harm: &Harm) {
        let records = self.records(&self.life.disk);
        // A damaged record could hold an earlier value of this one, which would look whole.
        let others = records.iter().filter(|(place, _)| !self.is_harmed(&records, place));
        let others: Vec<_> = others.map(|(_, value)| value.clone()).collect();
        let Some((place, left)) = harm.of(&records, &others) else { return };
        let whole = self.whole(&records, &place).unwrap_or_else(|| records[&place].clone());
        // After a crash it would be unclear which values of the queue's own records to restore. A
        // row is not restored either: the queue would not notice before its next opening.
        if left == whole || self.freezes && is_own(&place) {
            return;
        }
        self.life.disk.put([&(place.0.clone(), place.1.clone(), left.clone())]);
        self.harmed.entry(place).or_default().push([whole, left]);
    }

    /// Restores the queue's own records, if they are damaged on this disk. Asserts first that
    /// opening the queue fails and changes nothing.
    fn restore(&mut self, disk: &Disk) {
        let records = self.records(disk);
        let own = self.harmed.keys().filter(|place| is_own(place));
        let own = own.filter_map(|place| Some((place.0.clone(), place.1.clone(), self.whole(&records, place)?)));
        let own: Vec<_> = own.collect();
        if own.is_empty() {
            return;
        }
        let (copy, all) = (Disk::default(), disk.records());
        copy.put(&all);
        let refused = Queue::open(&copy.open(&Store::options()).unwrap(), "q", QueueOptions::default());
        let is_named = matches!(&refused, Err(QueueError::Store(Error::Corrupt { name, .. })) if name == "q");
        assert!(is_named, "{own:?}: {refused:?}");
        let changed: Vec<_> = copy.records().into_iter().filter(|record| !all.contains(record)).collect();
        assert_eq!((changed, copy.records().len()), (Vec::new(), all.len()), "a refused opening has changed something");
        disk.put(&own);
    }

    fn damage_so_far(&self) -> String {
        let harmed = self.harmed.keys().map(|(family, key)| format!("{family} {}", key.escape_ascii()));
        format!("{:?} were damaged", harmed.collect::<Vec<_>>())
    }

    fn crash(mut self) -> Self {
        let disk = self.life.disk.after_crash();
        self.restore(&disk);
        self.life.disk = disk;
        Self { life: self.life.crash(), freezes: false, ..self }
    }

    fn step(mut self, event: &Event) -> Self {
        let (trouble, op) = match event {
            Event::Call(trouble, op) => (trouble, op),
            Event::Damage(harms) => {
                harms.iter().for_each(|harm| self.damage(harm));
                return self;
            }
            Event::Periodic => {
                let harmed = self.harmed_jobs(&self.records(&self.life.disk), b"y");
                let every = Every::new(30 * SECOND);
                let made =
                    self.life.queue.periodic("tick", every, NewJob::new("k1", &()).unwrap()).start_at_next().start();
                assert!(made.is_ok() || !harmed.is_empty(), "{made:?}");
                return self;
            }
            Event::Note(millis) => {
                let notes = self.life.queue.notes("k1").unwrap();
                notes.set_for("note", 1, Duration::from_millis(*millis)).unwrap();
                return self;
            }
        };
        self.freezes |= matches!(trouble, Trouble::Freeze(_));
        let was = match op {
            Op::Crash => self.life.disk.after_crash(),
            _ => self.life.disk.clone(),
        };
        let was = self.records(&was);
        let (were_open, had_ended) = (self.jobs(&was, &OPEN_ROW), self.jobs(&was, &ENDED_ROW));
        let harmed = self.harmed_jobs(&was, b"jig");
        let named = match op {
            Op::Push(spec) => spec.after(),
            Op::PushAll(specs) | Op::Batch(specs) | Op::Enqueue(specs) => {
                specs.iter().flat_map(|spec| spec.after()).collect()
            }
            Op::Drain(drain) => drain.pushes.after(),
            Op::Requeue(number) => [id(*number)].into(),
            Op::Act(number, _) if !self.life.leases.is_empty() => {
                [self.life.leases[number % self.life.leases.len()].id().to_owned()].into()
            }
            _ => BTreeSet::new(),
        };
        match op {
            Op::Crash => self = self.crash(),
            Op::Reopen(_) => {
                self.life.disk.fail(0..0);
                // Running jobs are given back while the queue is open.
                self.life.leases.clear();
                self.restore(&self.life.disk.clone());
                self.life = self.life.step(*trouble, op);
            }
            _ => self.life = self.life.step(*trouble, op),
        }
        for reason in self.life.said.take() {
            // The last job of a batch waits for the twins of the others, too.
            let is_named = |id: &String| named.contains(id) || matches!(op, Op::Batch(_));
            let is_about = |id: &&String| is_named(id) && reason.contains(&format!("{id:?}"));
            assert!(harmed.iter().any(|id| is_about(&id)), "{op:?}: {reason}, where {harmed:?} are damaged");
        }
        let records = self.records(&self.life.disk);
        let pushes = matches!(op, Op::Push(_) | Op::PushAll(_) | Op::Batch(_) | Op::Enqueue(_) | Op::Drain(_));
        if !pushes && !matches!(op, Op::Requeue(_) | Op::RequeueDead) {
            let runs_again: Vec<_> = self.jobs(&records, &OPEN_ROW).intersection(&had_ended).cloned().collect();
            assert!(runs_again.is_empty(), "{op:?}: {runs_again:?} had ended");
        }
        let ends =
            matches!(op, Op::Accept(_) | Op::Remove(_) | Op::Purge | Op::Act(_, Act::Finish(_) | Act::FinishWith));
        if !pushes && !ends {
            let is_there = |id: &&String| records.contains_key(&self.row(id));
            let lost: Vec<_> = were_open.iter().filter(|id| !is_there(id)).collect();
            assert!(lost.is_empty(), "{op:?}: {lost:?} are gone");
        }
        self
    }

    fn row(&self, id: &str) -> Place {
        ("waterline.queue".to_owned(), [&self.number[..], b"j", id.as_bytes()].concat())
    }

    /// Runs all jobs that come due, and adds them to `ran`. Waiting jobs may be left.
    fn run(&mut self, ran: &mut BTreeSet<String>) {
        let mut idle = 0;
        for round in 0..200 {
            let mut claimed: Vec<_> = std::mem::take(&mut self.life.leases);
            loop {
                for mut lease in claimed.drain(..) {
                    let id = lease.id().to_owned();
                    match lease.finish(None) {
                        Ok(_) | Err(QueueError::Halt { .. }) => {}
                        Err(QueueError::Store(Error::Corrupt { reason, .. })) => {
                            let harmed = self.harmed_jobs(&self.records(&self.life.disk), b"j");
                            assert!(harmed.contains(&id) && reason.contains(&format!("{id:?}")), "{id}: {reason}");
                        }
                        Err(other) => panic!("{other:?}"),
                    }
                }
                let Some(lease) = self.life.queue.accept(Accept::new()).unwrap() else { break };
                assert!(ran.len() < 10_000, "it never ends");
                ran.insert(lease.id().to_owned());
                claimed.push(lease);
            }
            self.life.queue.status().unwrap();
            let records = self.records(&self.life.disk);
            if self.jobs(&records, &OPEN_ROW[..3]).is_empty() {
                idle += 1;
                // A damaged job is found once its limit has tokens.
                if round > 9 && (self.jobs(&records, &[5]).is_empty() || idle > 80) {
                    return;
                }
            } else {
                idle = 0;
            }
            self.life.clock.advance([20 * SECOND, HOUR, 24 * HOUR][(round / 8).min(2)]);
        }
        let left = self.jobs(&self.records(&self.life.disk), &OPEN_ROW);
        panic!("{left:?} do not come to their ends: {}", self.damage_so_far());
    }

    /// Removes all jobs listed as damaged, and returns them.
    fn remove(&mut self) -> BTreeSet<String> {
        let mut removed = BTreeSet::new();
        for state in STATES.into_iter().chain([JobState::Damaged]) {
            for job in self.life.queue.list(state, None, usize::MAX).unwrap() {
                if job.damaged.is_some() && removed.insert(job.id.clone()) {
                    let harmed = self.harmed_jobs(&self.records(&self.life.disk), b"jpdig");
                    assert!(harmed.contains(&job.id), "{job:?} is not damaged");
                    self.life.queue.remove(&job.id).unwrap();
                }
            }
        }
        removed
    }

    fn end(mut self, is_anew: bool) {
        self.life.disk.fail(0..0);
        if is_anew {
            self = self.crash();
        }
        self.life.queue.resume().unwrap();
        self.life.queue.remove_periodic("tick").unwrap();
        let records = self.records(&self.life.disk);
        let (were_open, had_ended) = (self.jobs(&records, &OPEN_ROW), self.jobs(&records, &ENDED_ROW));
        // Jobs that may be skipped, expire or die with others are left out.
        let listed = [JobState::Scheduled, JobState::Ready].map(|state| self.life.queue.list(state, None, usize::MAX));
        let must: Vec<_> = listed.into_iter().flat_map(Result::unwrap).filter(|job| job.kind != "k0").collect();
        let mut ran = BTreeSet::new();
        self.run(&mut ran);
        let again: Vec<_> = ran.intersection(&had_ended).collect();
        assert!(again.is_empty(), "{again:?} had ended, and ran again");
        let records = self.records(&self.life.disk);
        let left = self.jobs(&records, &OPEN_ROW[..3]);
        assert!(left.is_empty(), "{left:?} never ran");
        let harmed = self.harmed_jobs(&records, b"jo");
        let left: Vec<_> = self.jobs(&records, &[5]).intersection(&were_open).cloned().collect();
        assert!(left.is_empty() || !harmed.is_empty(), "{left:?} wait, and nothing is damaged");
        let never: Vec<_> = must.iter().filter(|job| job.damaged.is_none() && !ran.contains(&job.id)).collect();
        assert!(never.is_empty(), "{never:?} never ran");
        let first = self.remove();
        if !first.is_empty() {
            self.run(&mut ran);
            let second = self.remove();
            assert!(second.is_empty(), "{second:?} are damaged after {first:?} were removed");
        }
        let records = self.records(&self.life.disk);
        let harmed = self.harmed_jobs(&records, b"j");
        assert!(harmed.is_empty(), "{harmed:?} are damaged, and in no list");
        // Jobs may wait for each other, since a damaged wait hides a cycle from a push.
        let (circle, harmed_waits) = (self.jobs(&records, &[5]), self.harmed_jobs(&records, b"o"));
        if circle.len() > 1 {
            circle.intersection(&harmed_waits).for_each(|id| self.life.queue.remove(id).unwrap());
            self.run(&mut ran);
        }
        let stuck = self.jobs(&self.records(&self.life.disk), &OPEN_ROW);
        assert!(stuck.is_empty(), "{stuck:?} wait for ever: {}", self.damage_so_far());
        let counts = self.life.queue.counts();
        for state in STATES {
            let jobs = self.life.queue.list(state, None, usize::MAX).unwrap();
            assert_eq!(counts.of_state(state), jobs.len() as u64, "{state:?}: {jobs:?}; {}", self.damage_so_far());
        }
        assert_eq!((counts.damaged, OPEN.map(|state| counts.of_state(state))), (0, [0; 4]));
    }
}

/// Small runs draw the same lives each time; a soak draws those of its seed.
fn config() -> ProptestConfig {
    let drawn = ProptestConfig::default();
    let rng_seed = size(RngSeed::Fixed(0), drawn.rng_seed);
    ProptestConfig { cases: cases(64), failure_persistence: None, rng_seed, ..drawn }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn damaged_records_are_named_and_all_other_jobs_end(
        events in events(), set in any::<u8>(), is_anew in any::<bool>(),
    ) {
        ends("a life with damage", move || {
            let trial = events.iter().fold(Trial::begin(set), Trial::step);
            trial.end(is_anew);
        });
    }
}
