//! Saves whose port returns prepared answers.

use crate::commit::changes::Refused;
use crate::effects::Effects;
use crate::progress::embedded::*;
use crate::store::Table;
use crossbeam_channel::{Receiver, Sender, unbounded};

/// An answer of the port: the done jobs, and the effects of those that are new.
type Said = (Snapshot, Vec<Changes>);

/// A port with an answer for each question: its number, and whether all done jobs are to be listed.
struct Scripted<F> {
    says: F,
    asked_for_all: Mutex<Vec<bool>>,
    refused: Mutex<Vec<Vec<Index>>>,
    saved: Sender<()>,
}

impl<F: Fn(usize, bool) -> Said + Send + Sync + 'static> Scripted<F> {
    fn new(says: F) -> (Arc<Self>, Receiver<()>) {
        let (saved, hears) = unbounded();
        let (asked_for_all, refused) = Default::default();
        (Arc::new(Self { says, asked_for_all, refused, saved }), hears)
    }
}

impl<F: Fn(usize, bool) -> Said + Send + Sync> SavePort for Scripted<F> {
    fn is_hurried(&self) -> bool {
        false
    }

    fn checkpoint(&self) -> Option<Checkpoint> {
        panic!("the store keeps more");
    }

    fn snapshot(&self, all: bool, effects: &mut Vec<Changes>) -> Option<Snapshot> {
        let mut asked = self.asked_for_all.lock();
        let (snapshot, mut more) = (self.says)(asked.len(), all);
        asked.push(all);
        effects.append(&mut more);
        Some(snapshot)
    }

    fn refused(&self, refused: Vec<Refused>, all: bool, effects: &mut Vec<Changes>) -> Option<Snapshot> {
        self.refused.lock().push(refused.iter().map(|job| job.index).collect());
        self.snapshot(all, effects)
    }

    fn saved(&self) {
        self.saved.send(()).unwrap();
    }

    fn save_failed(&self, error: BoxError) -> Option<Duration> {
        panic!("{error}");
    }

    fn save_lost(&self, error: BoxError) {
        panic!("{error}");
    }
}

/// Creates effects: each job puts a row and adds to a counter, but a bad job adds to a text.
fn piece(table: &Table, jobs: &[Index], bad: &[Index]) -> Changes {
    let mut piece = Changes::default();
    for index in jobs {
        let mut effects = Effects::new(Changes::default(), table.store().home(), 10_000);
        effects.put(table, index.to_be_bytes(), "row").unwrap();
        effects.add(table, if bad.contains(index) { "text" } else { "count" }, 1).unwrap();
        let (mut changes, _) = effects.finish();
        piece.append(&mut changes, *index, 1);
    }
    piece
}

fn done(next: Index, ahead: DoneAhead) -> Snapshot {
    Snapshot { last_processed: next.checked_sub(1), next, ahead, life: None, batch: None }
}

fn bits(ahead: u64) -> DoneAhead {
    DoneAhead::All { first: 0, words: vec![ahead] }
}

#[test]
fn only_the_first_save_lists_all_done_jobs() {
    const SAVES: usize = 60;
    let store = Store::in_memory();
    let mut progress = store.progress("p");
    assert!(progress.acquire_all().unwrap().is_none());
    // One more job is done at each answer, above the lowest undone one.
    let (port, saved) = Scripted::new(|before, all| {
        let new = before as u64 + 1;
        (done(0, if all { bits(((1 << new) - 1) << 1) } else { DoneAhead::New(vec![new]) }), Vec::new())
    });
    let writer = progress.writer().unwrap();
    for _ in 0..SAVES {
        writer.save(port.clone(), true);
        saved.recv_timeout(Duration::from_secs(20)).unwrap();
    }
    assert_eq!(*port.asked_for_all.lock(), (0..SAVES).map(|save| save == 0).collect::<Vec<_>>());
    drop((progress, writer));
    let loaded = store.progress("p").acquire_all().unwrap();
    assert_eq!(loaded, Some(Saved::new(None, 0, vec![1..=SAVES as u64])), "in order, and joined");
}

#[test]
fn jobs_that_finish_during_a_refusal_join_the_save() {
    let store = Store::in_memory();
    let table = store.table("t").unwrap();
    table.put("text", "abc").unwrap();
    let effects = table.clone();
    let (port, saved) = Scripted::new(move |before, _| match before {
        0 => (done(3, bits(0)), vec![piece(&effects, &[0, 1, 2], &[1])]),
        // Meanwhile two more jobs have finished, then one more.
        1 => (done(1, bits(0b11100)), vec![piece(&effects, &[3, 4], &[4])]),
        _ => (done(1, bits(0b101100)), vec![piece(&effects, &[5], &[])]),
    });
    let mut progress = store.progress("p");
    assert!(progress.acquire().unwrap().is_none());
    progress.writer().unwrap().save(port.clone(), true);
    saved.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(*port.refused.lock(), [vec![1], vec![4]]);
    let rows: Vec<Index> = (0..6).filter(|index: &Index| table.get(index.to_be_bytes()).unwrap().is_some()).collect();
    assert_eq!(rows, [0, 2, 3, 5]);
    assert_eq!(table.counter("count").unwrap(), 4);
    drop(progress);
    let mut again = store.progress("p");
    assert_eq!(again.acquire_all().unwrap(), Some(Saved::new(Some(0), 1, vec![2..=3, 5..=5])));
}
