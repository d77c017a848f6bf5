//! Random lives of a consumer with crashes, failed writes and moves by hand, and damage to any
//! record of its progress between them.
//!
//! Each start either is refused with an error that names the consumer, and changes nothing, or goes
//! on where the consumer was. Records have checksums, and a start reads all but the history and the
//! time of the last move: so any other damage refuses the start, even to the record of one parked
//! job. After the last life each job has run (its effects once) or is parked, passed by hand or
//! absent. A consumer of another name notices nothing.

use crate::lives::{JOBS, Source, bit, width};
use common::{LONG, seeds};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use waterline::fuzzing::{Disk, DiskRecord};
use waterline::{Consumer, Error, Index, OnExhausted, Retry, Store, Table};

/// The family and key of a record.
type Place = (String, Vec<u8>);

struct Lives {
    random: fastrand::Rng,
    place: String,
    disk: Disk,
    is_transactional: bool,
    absent: u64,
    /// The jobs that fail in the first lives.
    failing: u64,
    passed: BTreeSet<Index>,
    /// The sound values of the damaged records.
    whole: BTreeMap<Place, Vec<u8>>,
    other: Arc<AtomicU64>,
}

fn open(disk: &Disk) -> Store {
    disk.open(&Store::options()).unwrap()
}

/// Whether this is a record that no start needs.
fn is_aside((family, key): &Place) -> bool {
    family == "waterline.system" && (key[0] == b'm' || key[0] == b'h')
}

impl Lives {
    fn begin(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let lives = Self {
            place: format!("seed {seed}"),
            disk: Disk::default(),
            is_transactional: random.bool(),
            absent: random.u64(..) & random.u64(..) & random.u64(..),
            failing: random.u64(..) & random.u64(..),
            passed: BTreeSet::new(),
            whole: BTreeMap::new(),
            other: Arc::default(),
            random,
        };
        // The other consumer gets the first number.
        lives.live_beside();
        lives
    }

    /// Has the other consumer run its next job.
    fn live_beside(&self) {
        let (next, store) = (self.other.clone(), open(&self.disk));
        let jobs: waterline::MemoryJobs<u64> = (0..10_000).collect();
        let stop_at = next.load(Ordering::SeqCst);
        let consumer = Consumer::builder(jobs, store.progress("other")).stop_at(stop_at).max_processing(1);
        let consumer = consumer.start(move |job| {
            assert_eq!(next.fetch_add(1, Ordering::SeqCst), job.index);
            Ok(())
        });
        consumer.unwrap().join().unwrap();
        assert_eq!(self.other.load(Ordering::SeqCst), stop_at + 1, "{}: the other one", self.place);
    }

    fn ran(&self) -> Table {
        open(&self.disk).table("ran").unwrap()
    }

    fn has_run(&self, index: Index) -> bool {
        self.ran().get(index.to_be_bytes()).unwrap().is_some()
    }

    fn parked(&self) -> BTreeSet<Index> {
        open(&self.disk).parked("p").unwrap().into_iter().map(|parked| parked.index).collect()
    }

    /// Returns the records of the progress `p`. Its sound page tells which deltas are its own.
    fn ours(&self) -> Vec<DiskRecord> {
        let (records, key) = (self.disk.records(), b"pp".to_vec());
        let page = self.whole.get(&("waterline.system".to_owned(), key.clone()));
        let page = page.or(records.iter().find(|record| record.1 == key).map(|record| &record.2));
        let deltas = [&b"d"[..], page.map_or(&b"no number"[..], |page| &page[1..5])].concat();
        let system = [&b"pp"[..], b"sp", b"mp", b"h\x01p", &deltas];
        let is_ours = |(family, key, _): &&DiskRecord| match family.as_str() {
            "waterline.system" => system.iter().any(|of| key.starts_with(of)),
            "waterline.parked" => key.starts_with(b"\x01p"),
            _ => false,
        };
        records.iter().filter(is_ours).cloned().collect()
    }

    fn damage(&mut self) {
        for _ in 0..self.random.usize(1..4) {
            let ours = self.ours();
            let kind = |(family, key, _): &DiskRecord| (family.clone(), key[0]);
            let kinds: Vec<_> = ours.iter().map(kind).collect::<BTreeSet<_>>().into_iter().collect();
            let Some(wanted) = self.random.choice(&kinds) else { return };
            let alike = ours.iter().filter(|record| kind(record) == *wanted);
            let Some((family, key, before)) = self.random.choice(alike.collect::<Vec<_>>()).cloned() else { return };
            // A damaged record may hold an earlier value of this one, which cannot be told apart.
            let is_whole = |(family, key, _): &&DiskRecord| !self.whole.contains_key(&(family.clone(), key.clone()));
            let others: Vec<_> = ours.iter().filter(is_whole).collect();
            let mut left = before.clone();
            match self.random.u8(..4) {
                0 if !left.is_empty() => {
                    let at = self.random.usize(..left.len());
                    left[at] ^= 1 << self.random.u8(..8);
                }
                1 => left.truncate(self.random.usize(..=left.len())),
                2 => left.clear(),
                _ => left.clone_from(self.random.choice(&others).map_or(&before, |(.., value)| value)),
            }
            self.disk.put([&(family.clone(), key.clone(), left.clone())]);
            let whole = self.whole.entry((family.clone(), key.clone())).or_insert(before);
            if *whole == left {
                self.whole.remove(&(family, key));
            }
        }
    }

    /// Makes one move by hand, or none.
    fn steer(&mut self) {
        let (store, index) = (open(&self.disk), self.random.u64(..JOBS));
        let (progress, before) = (store.progress("p"), self.disk.records());
        let kind = self.random.u8(..8);
        let parked = store.parked("p").unwrap_or_default();
        // Mostly a parked job, if there is one.
        let of_parked = self.random.choice(&parked).map_or(index, |parked| parked.index);
        let made = match kind {
            0 => progress.seek(index, "a test"),
            1 => progress.skip(index, "a test"),
            2 | 3 => store.redrive("p", of_parked),
            4 => store.discard("p", of_parked),
            _ => return,
        };
        match made {
            Ok(()) if kind == 0 => {
                // From now on nothing above is done, and what is below does not matter.
                for index in index..JOBS {
                    self.ran().delete(index.to_be_bytes()).unwrap();
                    self.passed.remove(&index);
                }
                let left: Vec<_> = (0..index).filter(|index| !self.has_run(*index)).collect();
                self.passed.extend(left);
            }
            Ok(()) if kind == 4 => _ = self.passed.insert(of_parked),
            // A skip writes its own record, even over a damaged one.
            Ok(()) => {}
            Err(error) => {
                self.assert_refused(&error, &before, |error| {
                    matches!(
                        error,
                        Error::AlreadyDone { .. }
                            | Error::NothingSaved { .. }
                            | Error::NotParked { .. }
                            | Error::Config(_)
                    )
                });
            }
        }
        self.note_written(before);
    }

    /// Forgets damage that was overwritten since the disk was like this.
    fn note_written(&mut self, before: Vec<DiskRecord>) {
        let by_place = |records: Vec<DiskRecord>| -> BTreeMap<Place, Vec<u8>> {
            records.into_iter().map(|(family, key, value)| ((family, key), value)).collect()
        };
        let (was, is) = (by_place(before), by_place(self.disk.records()));
        self.whole.retain(|place, _| is.get(place) == was.get(place));
    }

    /// Asserts that a call was refused for damage, or for a reason that `or` accepts, and changed
    /// nothing.
    fn assert_refused(&self, error: &Error, before: &[DiskRecord], or: impl Fn(&Error) -> bool) {
        let is_damage = matches!(error, Error::Corrupt { name, .. } if name == "p" && !self.whole.is_empty());
        assert!(is_damage || or(error), "{}: {error:?}, where {:?} are damaged", self.place, self.whole.keys());
        assert_eq!(self.disk.records(), before, "{}: {error}", self.place);
    }

    /// Restores the damaged records, or removes the progress.
    fn repair(&mut self) {
        if self.random.u8(..4) > 0 {
            let whole = std::mem::take(&mut self.whole);
            let records: Vec<_> = whole.into_iter().map(|((family, key), value)| (family, key, value)).collect();
            self.disk.put(&records);
            return;
        }
        open(&self.disk).progress("p").remove().unwrap();
        self.whole.clear();
        self.passed.clear();
        (0..JOBS).for_each(|index| self.ran().delete(index.to_be_bytes()).unwrap());
    }

    fn start(&mut self, last: Index, fails: bool) -> Result<Consumer, Error> {
        let (store, source, random) = (open(&self.disk), Source::default(), &mut self.random);
        source.0.head.store(JOBS - 1, Ordering::SeqCst);
        source.0.gate.store(JOBS, Ordering::SeqCst);
        source.0.absent.store(self.absent, Ordering::SeqCst);
        let builder = Consumer::builder(source, store.progress("p"))
            .max_processing(1 + random.usize(..6))
            .max_search_ahead(width(random))
            .max_crashes(1 + random.u32(..3))
            .retry(Retry::none())
            .on_exhausted(OnExhausted::Park { budget: 50 })
            .stop_at(last);
        let (failing, ran) = (if fails { self.failing } else { 0 }, store.table("ran")?);
        // A done job runs again only if its redrive was asked for.
        let saved = store.progress("p").last_processed().ok().flatten();
        let parked: BTreeSet<_> = store.parked("p").into_iter().flatten().map(|parked| parked.index).collect();
        let place = self.place.clone();
        let work = move |index: Index| {
            let is_done = saved >= Some(index) && !parked.contains(&index);
            assert!(!is_done, "{place}: job {index} runs, and was done up to {saved:?}");
            if failing & bit(index) != 0 { Err("it fails") } else { Ok(()) }
        };
        if self.is_transactional {
            return builder.start_transactional(move |job, effects| {
                work(job.index)?;
                Ok(effects.add(&ran, job.index.to_be_bytes(), 1)?)
            });
        }
        builder.start(move |job| {
            work(job.index)?;
            // The disk keeps the order of writes, so a job that is saved as done has its row.
            Ok(ran.put(job.index.to_be_bytes(), 1u64.to_be_bytes())?)
        })
    }

    fn live(&mut self, is_last: bool) {
        let before = self.disk.records();
        let trouble = if is_last { u8::MAX } else { self.random.u8(..4) };
        let last = if is_last { JOBS - 1 } else { self.random.u64(..JOBS) };
        let needed: Vec<_> = self.whole.keys().filter(|place| !is_aside(place)).cloned().collect();
        if needed.is_empty() {
            match trouble {
                0 => self.disk.freeze_at(self.random.u64(..20)),
                1 => {
                    let from = self.random.u64(..10);
                    self.disk.fail(from..from + 1);
                }
                _ => {}
            }
        }
        match self.start(last, !is_last) {
            Ok(consumer) => {
                assert!(needed.is_empty(), "{}: it starts, where {needed:?} are damaged", self.place);
                let (handle, place) = (consumer.handle(), &self.place);
                assert!(handle.wait_end(LONG / 3).is_some(), "{place}: it stands still: {}", handle.status());
                let ended = consumer.join();
                let may_fail = matches!(&ended, Err(Error::Progress { .. } | Error::Store { .. }) if trouble == 1);
                assert!(ended.is_ok() || may_fail, "{place}: {ended:?}");
            }
            Err(Error::Progress { .. } | Error::Store { .. }) if trouble == 1 && needed.is_empty() => {}
            Err(error) => {
                assert!(!needed.is_empty(), "{}: {error:?}", self.place);
                self.assert_refused(&error, &before, |error| matches!(error, Error::Format { .. }));
                self.live_beside();
                let listed = open(&self.disk).consumers().unwrap();
                let is_whole = |name: &str| listed.iter().any(|info| info.name == name && info.unreadable.is_none());
                assert!(is_whole("other") && !is_whole("p"), "{}: {listed:?}", self.place);
                self.repair();
            }
        }
        self.disk.fail(0..0);
        self.disk = self.disk.after_crash();
        self.note_written(before);
    }

    fn end(self) {
        let (place, parked) = (&self.place, self.parked());
        let watermark = open(&self.disk).progress("p").last_processed().unwrap();
        assert_eq!(watermark, Some(JOBS - 1), "{place}");
        for index in (0..JOBS).filter(|index| self.absent & bit(*index) == 0) {
            let times = self.ran().counter(index.to_be_bytes()).unwrap();
            let wanted = if parked.contains(&index) || self.passed.contains(&index) { 0..=1 } else { 1..=1 };
            assert!(wanted.contains(&times), "{place}: job {index} has run {times} times, parked are {parked:?}");
        }
        self.live_beside();
    }
}

#[test]
fn damage_is_refused_by_name_or_skips_no_job() {
    for seed in seeds(60, 1_200) {
        let mut lives = Lives::begin(seed);
        for _ in 0..lives.random.u32(1..8) {
            lives.live(false);
            lives.steer();
            if lives.random.bool() {
                lives.damage();
            }
            lives.steer();
        }
        // The start may be refused, and the repair makes up for it.
        lives.live(false);
        lives.repair();
        lives.live(true);
        lives.end();
    }
}
