//! The writer thread over a store in memory, with intents that report what became of them.

use super::*;
use crate::base::BoxError;
use crate::commit::{changes::Changes, draft::Draft, statements::Manner};
use crate::kv::{Family, SYSTEM, memory::MemoryKv};
use crossbeam_channel::TryRecvError;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

#[derive(Debug, PartialEq)]
enum Told {
    Written,
    Failed(String),
}

/// Puts its name, and reports what it is told. While it has refusals left, it puts and fails.
struct Scripted {
    name: &'static str,
    family: Family,
    refusals: Mutex<Vec<Refusal>>,
    synced: bool,
    told: Sender<(&'static str, Told)>,
}

enum Refusal {
    /// Retried after this time.
    Error(Option<Duration>),
    Panic,
    Nothing,
    /// Only its answer to a failed write.
    Disk(Duration),
}

impl Intent for Scripted {
    fn resolve(&self, draft: &mut Draft<'_>) -> Result<bool, BoxError> {
        draft.put(self.family.id, &[b"row of ", self.name.as_bytes()].concat(), b"")?;
        match self.refusals.lock().last() {
            None | Some(Refusal::Disk(_)) => Ok(true),
            Some(Refusal::Error(_)) => Err("it is no number".into()),
            Some(Refusal::Panic) => panic!("it is no number"),
            Some(Refusal::Nothing) => Ok(false),
        }
    }

    fn synced(&self) -> bool {
        self.synced
    }

    fn written(&self) {
        self.told.send((self.name, Told::Written)).unwrap();
    }

    fn failed(&self, error: BoxError) -> Option<Duration> {
        self.told.send((self.name, Told::Failed(error.to_string()))).unwrap();
        match self.refusals.lock().pop() {
            Some(Refusal::Error(again)) => again,
            Some(Refusal::Disk(again)) => Some(again),
            _ => None,
        }
    }
}

struct Bench {
    kv: Arc<MemoryKv>,
    writer: Writer,
    family: Family,
    told: Receiver<(&'static str, Told)>,
    tell: Sender<(&'static str, Told)>,
}

impl Bench {
    fn new() -> Self {
        Self::start(|writer| writer.start().unwrap())
    }

    /// A bench whose thread gets no core until the returned sender is dropped.
    fn without_a_core() -> (Self, Sender<()>) {
        let (core, none_yet) = crossbeam_channel::bounded(0);
        (Self::start(|writer| writer.start_without_a_core(none_yet)), core)
    }

    fn start(start: impl FnOnce(&Writer)) -> Self {
        let kv = Arc::new(MemoryKv::default());
        let (tell, told) = unbounded();
        let writer = Writer::new(kv.clone());
        start(&writer);
        let [family, ..] = kv.families();
        assert_eq!(&*family.name, SYSTEM);
        Self { kv, writer, family, told, tell }
    }

    fn submit(&self, name: &'static str, synced: bool, refusals: impl IntoIterator<Item = Refusal>, hurry: bool) {
        let refusals = Mutex::new(refusals.into_iter().collect());
        self.writer.submit(Box::new(Scripted { refusals, synced, ..self.intent(name) }), hurry);
    }

    /// An intent that is written at the first try.
    fn intent(&self, name: &'static str) -> Scripted {
        let (family, told) = (self.family.clone(), self.tell.clone());
        Scripted { name, family, refusals: Mutex::default(), synced: false, told }
    }

    fn told(&self) -> (&'static str, Told) {
        self.told.recv_timeout(LONG).unwrap()
    }

    /// Submits two intents after the first write, whose report blocks.
    fn submit_while_it_writes(&self, wants: [bool; 2]) {
        while self.rows().is_empty() {
            std::thread::yield_now();
        }
        for (name, synced) in ["a", "b"].into_iter().zip(wants) {
            self.submit(name, synced, [], true);
        }
    }

    fn rows(&self) -> Vec<String> {
        Self::rows_of(&self.kv)
    }

    fn rows_of(kv: &MemoryKv) -> Vec<String> {
        let [family, ..] = kv.families();
        let rows = kv.scan(&family, b"row of ");
        rows.map(|row| String::from_utf8(row.unwrap().0.split_off("row of ".len())).unwrap()).collect()
    }
}

fn refused(name: &'static str) -> (&'static str, Told) {
    (name, Told::Failed("it is no number".to_owned()))
}

#[test]
fn an_unresolved_intent_fails_alone_and_writes_nothing() {
    let bench = Bench::new();
    bench.kv.fail(0..1);
    bench.submit("a", false, [], true);
    let (name, Told::Failed(_)) = bench.told() else { panic!("it was written") };
    assert_eq!(name, "a");
    // It is given up, so the next write is the first to succeed. All four are in it, in any order.
    bench.submit("b", false, [], false);
    bench.submit("c", false, [Refusal::Error(None)], false);
    bench.submit("d", false, [Refusal::Nothing], false);
    bench.submit("e", false, [Refusal::Panic], false);
    bench.submit("f", false, [], true);
    let mut told: Vec<_> = (0..4).map(|_| bench.told()).collect();
    told.sort_by_key(|(name, _)| *name);
    let panicked = ("e", Told::Failed("panicked: it is no number".to_owned()));
    assert_eq!(told, [("b", Told::Written), refused("c"), panicked, ("f", Told::Written)]);
    assert_eq!(bench.rows(), ["b", "f"]);
}

#[test]
fn an_intent_in_backoff_delays_no_other() {
    let bench = Bench::new();
    bench.submit("late", false, [Refusal::Error(Some(Duration::from_secs(3600)))], true);
    assert_eq!(bench.told(), refused("late"));
    // Urgent or not, none waits an hour, and none makes the other one retry.
    for (name, hurry) in [("a", false), ("b", true), ("c", false)] {
        bench.submit(name, false, [], hurry);
        assert_eq!(bench.told(), (name, Told::Written));
    }
    assert_eq!(bench.told.try_recv(), Err(TryRecvError::Empty));
    bench.writer.hurry();
    assert_eq!(bench.told(), ("late", Told::Written));
    assert_eq!(bench.rows(), ["a", "b", "c", "late"]);
    // By itself, once it is due.
    let soon = || Refusal::Error(Some(Duration::from_millis(1)));
    bench.submit("twice", false, [soon(), soon()], true);
    assert_eq!(
        [bench.told(), bench.told(), bench.told()],
        [refused("twice"), refused("twice"), ("twice", Told::Written)]
    );
}

#[test]
fn an_intent_hears_of_failure_before_the_writer_ends() {
    let bench = Bench::new();
    let soon = (0..5).map(|_| Refusal::Error(Some(Duration::from_millis(1))));
    bench.submit("never", false, std::iter::once(Refusal::Error(None)).chain(soon), false);
    drop(bench.writer);
    let told: Vec<_> = bench.told.try_iter().collect();
    assert_eq!(told, (0..6).map(|_| refused("never")).collect::<Vec<_>>());
    assert_eq!(Arc::strong_count(&bench.kv), 1);
}

#[test]
fn a_batch_is_synced_if_one_of_its_intents_wants_it() {
    for wants in [[false, false], [true, false], [false, true]] {
        let bench = Bench::new();
        // The writer blocks in this report until the others are in its inbox: they are one batch.
        let (tell, gate) = crossbeam_channel::bounded(0);
        bench.writer.submit(Box::new(Scripted { told: tell, ..bench.intent("first") }), true);
        bench.submit_while_it_writes(wants);
        let writes = bench.kv.writes();
        assert_eq!(gate.recv_timeout(LONG).unwrap(), ("first", Told::Written));
        assert_eq!([bench.told(), bench.told()], [("a", Told::Written), ("b", Told::Written)]);
        assert_eq!(bench.kv.writes(), writes + 1);
        let left = Bench::rows_of(&bench.kv.after_power_loss());
        let want: &[&str] = if wants == [false, false] { &[] } else { &["a", "b", "first"] };
        assert_eq!(left, want, "{wants:?}");
    }
}

#[test]
fn additions_to_many_counters_take_one_scan_of_the_batch() {
    const JOBS: usize = 100;
    let (kv, rows) = (MemoryKv::default(), RwLock::default());
    let [_, family, _] = kv.families();
    let add = |changes: &mut Changes, key: String| {
        changes.add((&family, &"counters".into()), [&[], key.as_bytes()], 1);
    };
    let jobs: Vec<Changes> = (0..JOBS)
        .map(|job| {
            let mut changes = Changes::default();
            changes.put(family.id, &[format!("row {job}").as_bytes()], b"").unwrap();
            add(&mut changes, format!("of {job}"));
            add(&mut changes, "of all".to_owned());
            changes
        })
        .collect();
    let mut draft = Draft::new(&kv, &rows, Manner::default());
    // Two consumers save in one batch, and the second one finds the first one's counters.
    assert!(draft.append(&jobs).unwrap().is_empty());
    let records = draft.batch().count() as usize;
    assert!(draft.append(&jobs).unwrap().is_empty());
    assert!(draft.looked_at <= records, "{} looks at {records} records", draft.looked_at);
    kv.write(draft.batch(), false).unwrap();
    let count =
        |key: String| crate::commit::counter::decode(kv.get(&family, key.as_bytes()).unwrap().as_deref()).unwrap();
    assert_eq!(count("of all".to_owned()), 2 * JOBS as i64);
    assert!((0..JOBS).all(|job| count(format!("of {job}")) == 2));
}

#[test]
fn a_helper_writes_while_the_thread_gets_no_core() {
    let (bench, core) = Bench::without_a_core();
    bench.submit("a", false, [], false);
    bench.submit("b", false, [Refusal::Error(None)], true);
    bench.writer.help();
    assert_eq!([bench.told(), bench.told()], [refused("b"), ("a", Told::Written)]);
    // An intent that is not due stays on the list for the thread.
    bench.writer.batches.lock().rests_until = Instant::now() + LONG * 100;
    bench.submit("late", false, [], false);
    bench.writer.help();
    assert_eq!(bench.told.try_recv(), Err(TryRecvError::Empty));
    drop(core);
    bench.writer.hurry();
    assert_eq!(bench.told(), ("late", Told::Written));
}

#[test]
fn a_helper_leaves_flushes_and_failing_stores_alone() {
    let (bench, core) = Bench::without_a_core();
    bench.submit("synced", true, [], true);
    bench.submit("a", false, [], true);
    bench.writer.help();
    assert_eq!((bench.told.try_recv(), bench.kv.writes()), (Err(TryRecvError::Empty), 0));
    drop(core);
    let mut told = [bench.told(), bench.told()];
    told.sort_by_key(|(name, _)| *name);
    assert_eq!(told, [("a", Told::Written), ("synced", Told::Written)]);

    let (bench, core) = Bench::without_a_core();
    bench.kv.fail(0..1);
    bench.submit("a", false, [Refusal::Disk(LONG * 100)], true);
    bench.writer.help();
    let ("a", Told::Failed(_)) = bench.told() else { panic!("it was written") };
    bench.submit("b", false, [], true);
    for _ in 0..3 {
        bench.writer.help();
    }
    assert_eq!((bench.told.try_recv(), bench.kv.writes()), (Err(TryRecvError::Empty), 1));
    // The urgent one takes the other one along.
    drop(core);
    assert_eq!([bench.told(), bench.told()], [("a", Told::Written), ("b", Told::Written)]);
}

#[test]
fn the_thread_learns_of_intents_left_by_others() {
    let bench = Bench::new();
    // In most rounds the thread has fallen asleep by then.
    for round in 0..100 {
        (0..round).for_each(|_| std::thread::yield_now());
        let mut batches = bench.writer.batches.lock();
        batches.pending.push(Pending::new(Box::new(bench.intent("left")), true));
        bench.writer.leave_rest(batches);
        assert_eq!(bench.told(), ("left", Told::Written));
    }
}

#[test]
fn a_helper_tells_the_thread_who_came_meanwhile() {
    // The thread may check the list once more before it sleeps, so one round proves nothing.
    for _ in 0..50 {
        let bench = Bench::new();
        bench.kv.fail(0..1);
        bench.submit("a", false, [Refusal::Disk(LONG * 2)], true);
        let ("a", Told::Failed(_)) = bench.told() else { panic!("it was written") };
        while !bench.writer.batches.try_lock().is_some_and(|batches| batches.failing) {
            std::thread::yield_now();
        }
        (0..10).for_each(|_| std::thread::yield_now());
        // Its caller has found the list locked by the helper, and now waits for the result.
        bench.writer.arrived.lock().push(Pending::new(Box::new(bench.intent("late")), true));
        bench.writer.help();
        assert_eq!([bench.told(), bench.told()], [("a", Told::Written), ("late", Told::Written)]);
    }
}
