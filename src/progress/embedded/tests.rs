//! Saves whose port returns prepared answers.

use crate::commit::changes::Refused;
use crate::effects::Effects;
use crate::progress::embedded::*;
use crate::store::Table;
use crossbeam_channel::{Sender, unbounded};
use std::collections::VecDeque;

/// An answer of the port: the done jobs, and the effects of those that are new.
type Said = (Snapshot, Vec<Changes>);

struct Scripted {
    says: Mutex<VecDeque<Said>>,
    refused: Mutex<Vec<Vec<Index>>>,
    saved: Sender<()>,
}

impl Scripted {
    fn say(&self, effects: &mut Vec<Changes>) -> Option<Snapshot> {
        let (snapshot, mut more) = self.says.lock().pop_front().expect("it is asked no more");
        effects.append(&mut more);
        Some(snapshot)
    }
}

impl SavePort for Scripted {
    fn is_hurried(&self) -> bool {
        false
    }

    fn checkpoint(&self) -> Option<Checkpoint> {
        None
    }

    fn snapshot(&self, _: bool, effects: &mut Vec<Changes>) -> Option<Snapshot> {
        self.say(effects)
    }

    fn refused(&self, refused: Vec<Refused>, _: bool, effects: &mut Vec<Changes>) -> Option<Snapshot> {
        self.refused.lock().push(refused.iter().map(|job| job.index).collect());
        self.say(effects)
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

fn done(next: Index, ahead: u64) -> Snapshot {
    Snapshot {
        last_processed: next.checked_sub(1),
        next,
        ahead: DoneAhead::All { first: 0, words: vec![ahead] },
        life: None,
        batch: None,
    }
}

/// A port with one more done job per answer, far above the lowest undone one.
struct Counting {
    asked_for_all: Mutex<Vec<bool>>,
    saved: Sender<()>,
}

impl SavePort for Counting {
    fn is_hurried(&self) -> bool {
        false
    }

    fn checkpoint(&self) -> Option<Checkpoint> {
        panic!("the store keeps more");
    }

    fn snapshot(&self, all: bool, _: &mut Vec<Changes>) -> Option<Snapshot> {
        let mut asked = self.asked_for_all.lock();
        asked.push(all);
        let new = asked.len() as u64;
        let ahead = if all {
            DoneAhead::All { first: 0, words: vec![((1 << new) - 1) << 1] }
        } else {
            DoneAhead::New(vec![new])
        };
        Some(Snapshot { last_processed: None, next: 0, ahead, life: None, batch: None })
    }

    fn refused(&self, _: Vec<Refused>, _: bool, _: &mut Vec<Changes>) -> Option<Snapshot> {
        panic!("there are no effects");
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

#[test]
fn only_the_first_save_lists_all_done_jobs() {
    const SAVES: usize = 60;
    let store = Store::in_memory();
    let mut progress = store.progress("p");
    assert!(progress.acquire_all().unwrap().is_none());
    let (tell, saved) = unbounded();
    let port = Arc::new(Counting { asked_for_all: Mutex::default(), saved: tell });
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
    let (tell, saved) = unbounded();
    let says = [
        (done(3, 0), vec![piece(&table, &[0, 1, 2], &[1])]),
        // Meanwhile two more jobs have finished, then one more.
        (done(1, 0b11100), vec![piece(&table, &[3, 4], &[4])]),
        (done(1, 0b101100), vec![piece(&table, &[5], &[])]),
    ];
    let port = Arc::new(Scripted { says: Mutex::new(says.into()), refused: Mutex::default(), saved: tell });
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
