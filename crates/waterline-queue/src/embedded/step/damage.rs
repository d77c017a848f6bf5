//! The removal and replacement of jobs that cannot be read.

use crate::embedded::keys::{List, split_entry};
use crate::embedded::step::Step;
use crate::types::error::is_damage;
use crate::types::row::Row;
use waterline::BoxError;
use waterline::seam::KeyRange;

impl Step<'_, '_> {
    /// Returns the row of a job whose id is pushed again. One that cannot be read is removed, since
    /// the push takes its place.
    pub(super) fn row_to_replace(&mut self, id: &str) -> Result<Option<Row>, BoxError> {
        match self.txn.row(id) {
            Err(error) if is_damage(&error) => self.remove_damaged(id).map(|()| None),
            row => row,
        }
    }

    /// Removes a job whose row cannot be read. As the row does not say which state counts it, all
    /// jobs are counted again. Its entries turn stale.
    pub(super) fn remove_damaged(&mut self, id: &str) -> Result<(), BoxError> {
        let (queue, keys) = (self.txn.queue, self.txn.queue.keys);
        for key in [keys.row(id), keys.payload(id), keys.data(id), keys.meta(id), keys.progress(id)] {
            self.txn.delete(queue.rows.id, &key)?;
        }
        self.txn.forget_damaged(id)?;
        self.txn.wait_no_more(id, u32::MAX)?;
        self.end_waits_for(id)?;
        self.txn.note_gone(id)?;
        self.txn.release_leases(id, None)?;
        // No sweep ever removes entries of this list.
        let (from, to) = (keys.entries_from(List::Waiting, 0), keys.entries_end(List::Waiting));
        let mut waits = Vec::new();
        for pair in self.txn.batch.rows(&queue.entries, KeyRange { from, to: Some(to) }) {
            let (key, _) = pair?;
            waits.extend(split_entry(&key).filter(|(_, of)| *of == id).map(|(at, _)| at));
        }
        for at in waits {
            self.txn.remove_entry(List::Waiting, at, id)?;
        }
        self.recount()?;
        self.txn.tell(id, None, Some(None));
        Ok(())
    }
}

#[cfg(test)]
impl crate::handle::Queue {
    /// Flips a bit in the row of a job.
    pub(crate) fn damage(&self, id: &str) {
        let (state, mut batch) = (self.state_of(), waterline::seam::Records::default());
        let mut row = self.bytes(&state.keys.row(id)).unwrap().unwrap();
        row[5] ^= 1;
        batch.put(state.rows.id, &[&state.keys.row(id)], &[&row]).unwrap();
        waterline::seam::write_records(self.store(), &batch).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use crate::Clock;
    use crate::accept::Accept;
    use crate::embedded::codec::entry;
    use crate::lease::Lease;
    use waterline::fuzzing::Disk;
    use waterline::{Error, Store};

    use crate::handle::Queue;
    use crate::types::error::QueueError;
    use crate::types::events::{Damaged, Event, Line};
    use crate::types::job::{JobState, Priority, PushOutcome};
    use crate::types::limit::Limit;
    use crate::types::new_job::NewJob;
    use crate::types::options::QueueOptions;
    use std::mem::ManuallyDrop;
    use std::time::{Duration, SystemTime};

    /// A queue with three jobs. The tests damage the second one.
    fn queue() -> Queue {
        let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).unwrap();
        queue.push_all(["a", "b", "c"].map(|id| NewJob::new("k", &()).unwrap().id(id))).unwrap();
        queue
    }

    fn counts(queue: &Queue) -> [u64; 5] {
        let counts = queue.counts();
        [counts.scheduled, counts.ready, counts.running, counts.finished, counts.dead]
    }

    #[test]
    fn a_push_replaces_a_damaged_job_and_halts_its_worker() {
        let queue = queue();
        let mut leases: Vec<_> = (0..2).map(|_| queue.accept(Accept::new()).unwrap().unwrap()).collect();
        queue.damage("b");
        let job = || NewJob::new("k", &1).unwrap().id("b");
        assert_eq!(queue.push(job()).unwrap().outcome, PushOutcome::Added);
        assert!(matches!(leases.pop().unwrap().finish(None), Err(QueueError::Halt { .. })));
        assert_eq!((counts(&queue), queue.counts().damaged), ([0, 2, 1, 0, 0], 0));
        let ids = [(); 2].map(|()| queue.accept(Accept::new()).unwrap().unwrap().id().to_owned());
        assert_eq!(ids, ["c", "b"]);
    }

    #[test]
    fn ending_a_damaged_job_fails_and_keeps_its_lease() {
        let queue = queue();
        let mut leases: Vec<_> = (0..2).map(|_| queue.accept(Accept::new()).unwrap().unwrap()).collect();
        queue.damage("b");
        for _ in 0..2 {
            let refused = leases[1].finish(None);
            assert!(matches!(refused, Err(QueueError::Store(Error::Corrupt { .. }))), "{refused:?}");
        }
        leases[0].finish(None).unwrap();
        assert_eq!((counts(&queue), queue.counts().damaged), ([0, 1, 1, 1, 0], 0));
    }

    #[test]
    fn a_damaged_job_is_logged_and_uncounted_once() {
        for expires in [5, 9] {
            let clock = Clock::manual(SystemTime::UNIX_EPOCH);
            let disk = Disk::default();
            let options = QueueOptions::default().clock(clock.clone());
            let queue = Queue::open(&disk.open(&Store::options()).unwrap(), "q", options.clone()).unwrap();
            let later = |id: &str| NewJob::new("k", &()).unwrap().id(id).delay(Duration::from_secs(9));
            queue.push_all([later("a"), later("b").expires(Duration::from_secs(expires))]).unwrap();
            queue.damage("b");
            let look = |queue: &Queue| {
                let lines = queue.call(|step| {
                    step.run_maintenance(9)?;
                    let told = step.txn.staged.take_told();
                    let is_line = |told: &&Event| matches!(told, Event::Line(Line::Damaged(Damaged::Job { id, .. })) if id == "b");
                    Ok(told.iter().filter(is_line).count())
                });
                (lines.unwrap(), queue.counts().damaged, queue.counts().scheduled)
            };
            assert_eq!(look(&queue), (0, 0, 2));
            clock.advance(Duration::from_secs(5));
            // An entry of an expiry does not say whether the job is scheduled.
            let is_seen = u64::from(expires == 5);
            assert_eq!(look(&queue), (is_seen as usize, is_seen, 2));
            clock.advance(Duration::from_secs(4));
            assert_eq!(look(&queue), (1 - is_seen as usize, 1, 0));
            assert_eq!(look(&queue), (0, 1, 0));
            let again = Disk::default();
            again.put(&disk.records());
            let queue = Queue::open(&again.open(&Store::options()).unwrap(), "q", options).unwrap();
            assert_eq!(look(&queue), (0, 1, 0));
            assert_eq!(queue.list(JobState::Damaged, None, 9).unwrap().len(), 1);
            // With its row restored, it is an ordinary job at the next start.
            queue.damage("b");
            let again = Disk::default();
            again.put(&disk.records());
            let row: Vec<_> =
                disk.records().into_iter().filter(|(_, key, _)| *key == queue.state_of().keys.row("b")).collect();
            let restored = row.into_iter().map(|(family, key, mut row)| {
                row[5] ^= 1;
                (family, key, row)
            });
            again.put(&restored.collect::<Vec<_>>());
            let options = QueueOptions::default().clock(clock.clone());
            let queue = Queue::open(&again.open(&Store::options()).unwrap(), "q", options).unwrap();
            assert_eq!((queue.counts().damaged, queue.counts().dead), (0, 1), "it has expired by now");
        }
    }

    #[test]
    fn a_stale_entry_does_not_mislead_the_damage_count() {
        let clock = Clock::manual(SystemTime::UNIX_EPOCH);
        let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default().clock(clock.clone())).unwrap();
        let job = |id: &str| NewJob::new("k", &()).unwrap().id(id);
        queue.push_all([job("a"), job("b")]).unwrap();
        queue.push(job("a").delay(Duration::from_secs(1))).unwrap();
        queue.damage("a");
        assert_eq!(queue.accept(Accept::new()).unwrap().unwrap().id(), "b");
        clock.advance(Duration::from_secs(1));
        let _lease = queue.accept(Accept::new()).unwrap().unwrap();
        assert!(queue.accept(Accept::new()).unwrap().is_none());
        assert_eq!((counts(&queue), queue.counts().damaged), ([0, 0, 1, 0, 0], 1));
    }

    #[test]
    fn damaged_jobs_hold_up_no_dependents() {
        let queue = queue();
        let push = |id: &str, after: &str| queue.push(NewJob::new("k", &()).unwrap().id(id).after([after])).unwrap();
        push("d", "b");
        // It stays damaged: once no damaged job is left, each wait is checked.
        queue.damage("c");
        queue.damage("b");
        queue.remove("b").unwrap();
        assert_eq!(queue.state("d").unwrap(), Some(JobState::Ready));
        // Its row is gone, and it counts as ended.
        push("e", "b");
        assert_eq!(queue.state("e").unwrap(), Some(JobState::Ready));
        for (id, after) in [("b", "a"), ("f", "a"), ("g", "b")] {
            push(id, after);
        }
        queue.damage("b");
        queue.accept(Accept::new()).unwrap().unwrap().finish(None).unwrap();
        assert_eq!(queue.state("f").unwrap(), Some(JobState::Ready));
        queue.remove("b").unwrap();
        assert_eq!(queue.state("g").unwrap(), Some(JobState::Ready));
        assert_eq!((counts(&queue), queue.counts().waiting), ([0, 4, 0, 1, 0], 0));
    }

    #[test]
    fn restart_sets_a_damaged_job_aside_and_ends_its_lease() {
        let queue = queue();
        let mut leases: Vec<_> = (0..2).map(|_| queue.accept(Accept::new()).unwrap().unwrap()).collect();
        queue.damage("b");
        let running: Vec<_> = (0..2).zip(["a", "b"].map(|id| Ok(id.to_owned()))).collect();
        let recovered = queue.call(move |step| step.recover(&running));
        assert_eq!(recovered.unwrap(), 1);
        let mut lease = leases.pop().unwrap();
        assert!(matches!(lease.finish(None), Err(QueueError::Halt { .. })));
        assert_eq!((counts(&queue), queue.counts().damaged), ([0, 2, 0, 0, 0], 1));
        queue.remove("b").unwrap();
        assert_eq!((counts(&queue), queue.counts().damaged), ([0, 2, 0, 0, 0], 0));
        assert!(queue.list(JobState::Running, None, 9).unwrap().is_empty());
    }

    #[test]
    fn restart_finds_a_running_job_with_a_wrong_entry() {
        let queue = queue();
        let _leases: Vec<_> = (0..2).map(|_| queue.accept(Accept::new()).unwrap().unwrap()).collect();
        queue.damage("c");
        let running: Vec<_> = (0..2).zip(["a", "c"].map(|id| Ok(id.to_owned()))).collect();
        queue.call(move |step| step.recover(&running)).unwrap();
        assert_eq!(queue.state("b").unwrap(), Some(JobState::Ready));
        assert_eq!((counts(&queue), queue.counts().damaged), ([0, 2, 0, 0, 0], 1));
    }

    fn limited(clock: &Clock) -> QueueOptions {
        QueueOptions::default().clock(clock.clone()).limit(Limit::kind("slow").at_once(1))
    }

    fn job(kind: &str, id: &str) -> NewJob {
        NewJob::new(kind, id).unwrap().id(id)
    }

    fn accept(queue: &Queue) -> Option<Lease> {
        queue.accept(Accept::new()).unwrap()
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
    fn a_running_job_that_is_damaged_frees_its_place() {
        let clock = Clock::manual(SystemTime::UNIX_EPOCH);
        let queue = Queue::open(&Store::in_memory(), "q", limited(&clock)).unwrap();
        queue.push_all([job("slow", "slow 0"), job("slow", "slow 1")]).unwrap();
        let _silent = ManuallyDrop::new(accept(&queue).unwrap());
        queue.damage("slow 0");
        assert!(accept(&queue).is_none(), "the limit is used up");
        clock.advance(Duration::from_secs(3600));
        assert_eq!(accept(&queue).unwrap().id(), "slow 1");
    }

    #[test]
    fn a_job_damaged_with_its_entry_or_limit_blocks_none() {
        for kinds in [[("waterline.queue", b'l'), ("waterline.ready", b'l')], [("waterline.queue", b'r'), ("", 0)]] {
            let (disk, clock) = (Disk::default(), Clock::manual(SystemTime::UNIX_EPOCH));
            let queue = Queue::open(&disk.open(&Store::options()).unwrap(), "q", limited(&clock)).unwrap();
            queue.push_all([job("slow", "slow 0"), job("slow", "slow 1")]).unwrap();
            let mut lease = accept(&queue).unwrap();
            assert!(accept(&queue).is_none(), "the limit is used up");
            empty(&disk, &kinds);
            if kinds[0].1 == b'l' {
                lease.finish(None).unwrap();
            } else {
                queue.damage("slow 0");
                let _silent = ManuallyDrop::new(lease);
                clock.advance(Duration::from_secs(3600));
            }
            assert_eq!(accept(&queue).unwrap().id(), "slow 1", "{kinds:?}");
        }
    }

    #[test]
    fn a_lost_entry_is_found_after_a_held_job_was_damaged() {
        let (disk, clock) = (Disk::default(), Clock::manual(SystemTime::UNIX_EPOCH));
        let queue = Queue::open(&disk.open(&Store::options()).unwrap(), "q", limited(&clock)).unwrap();
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
        let (disk, clock) = (Disk::default(), Clock::manual(SystemTime::UNIX_EPOCH));
        let queue = Queue::open(&disk.open(&Store::options()).unwrap(), "q", limited(&clock)).unwrap();
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
}
