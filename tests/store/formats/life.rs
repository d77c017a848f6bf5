//! A life of a store that leaves the same records of all kinds each time.

use common::*;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use waterline::fuzzing::{Disk, DiskRecord};
use waterline::{Bytes, Checkpoint, Consumer, Progress, Retry, Store};
use waterline_queue::{
    Accept, Clock, DrainLimits, Every, Lease, Limit, NewJob, OnDead, Outcome, Priority, Queue, QueueOptions, Rate,
    Retention, Root, Runner, Unique,
};

/// Returns the records that the life leaves.
pub fn records() -> Vec<DiskRecord> {
    let disk = Disk::default();
    let store = disk.open(&Store::options()).unwrap();
    tables(&store);
    effects(&store);
    transfers(&store);
    pages(&disk, &store);
    logs(&store);
    codecs(&store);
    moves(&store);
    durations(&store);
    periodic_jobs(&store);
    let leases = [jobs(&store), settings(&store)];
    let records = disk.records();
    drop(leases);
    records
}

fn codecs(store: &Store) {
    let blocks = store.log_with::<Vec<u8>, _>("blocks", Bytes).unwrap();
    blocks.push_all(&[b"cut".to_vec(), vec![], vec![0, 0xff, b'"', b'\\'], b"[1]".to_vec()]).unwrap();
    blocks.trim(..=1).unwrap();
    store.log_with::<Vec<u8>, _>("untouched bytes", Bytes).unwrap();
}

/// Makes moves by hand, which store the times of the machine.
fn moves(store: &Store) {
    let moved = store.progress("moved");
    moved.seek(3, "the stream begins with job 3").unwrap();
    moved.skip(5, "\u{2026}").unwrap();
    moved.skip(3, "broken").unwrap();
    moved.seek(1, "back").unwrap();
    moved.skip(2, "ahead").unwrap();
}

/// Returns the clock of the queues, which stands still.
pub fn clock() -> Clock {
    Clock::manual(UNIX_EPOCH + Duration::from_millis(1_800_000_000_123))
}

/// Makes a queue with a job in each state, with and without each part of a row, and a paused queue.
/// Returns the leases of the running jobs.
fn jobs(store: &Store) -> Vec<Lease> {
    let options = QueueOptions::default().clock(clock());
    let queue = Queue::open(store, "mail", options.clone()).unwrap();
    let accept = || queue.accept(Accept::new()).unwrap().expect("a job is ready");
    let push = |job| drop(queue.push(job).unwrap());
    let job = |id: &str| NewJob::new("welcome", "ann@example.org").unwrap().id(id);
    let retry = Retry::exponential(Duration::from_secs(2), Duration::from_secs(60)).factor(3.0);

    push(job("finished").retention(Retention::For(Duration::from_secs(7))));
    accept().finish(Some("as good as new".into())).unwrap();
    push(job("kept").retention(Retention::Keep));
    accept().finish(None).unwrap();
    push(job("dead").retry(retry.max_attempts(4).jitter(0.5)));
    accept().bury("no such address").unwrap();
    push(job("failed"));
    accept().retry("try later").unwrap();
    push(job("running").retention(Retention::Drop).retry(Retry::quadratic(Duration::from_secs(1), HOUR)));
    let mut running = accept();
    running.update(Some(vec![1, 2].into())).unwrap();
    push(job("running").run_at(UNIX_EPOCH + Duration::from_millis(1_800_000_060_000)));
    push(job("bare"));
    let bare = accept();
    push(job("later").delay(Duration::from_secs(60)).priority(Priority::Urgent));
    push(job("moved"));
    push(job("moved").run_at(UNIX_EPOCH + Duration::from_millis(1)).priority(Priority::High));
    push(NewJob::new("digest", &7).unwrap().priority(Priority::Low).retry(Retry::none()));

    let other = Queue::open(store, "other", options).unwrap();
    other.pause(None).unwrap();
    vec![running, bare]
}

/// Makes a queue whose runner left the durations of two kinds, and no job.
fn durations(store: &Store) {
    let clock = clock();
    let options = QueueOptions::default().clock(clock.clone()).retention(Retention::Drop);
    let queue = Queue::open(store, "timed", options).unwrap();
    for (kind, seconds) in [("welcome", 12), ("welcome", 20), ("digest", 1)] {
        queue.push(NewJob::new(kind, &()).unwrap()).unwrap();
        let clock = clock.clone();
        let builder = Runner::builder(&queue).max_processing(1).on(kind, move |_, ()| {
            clock.advance(Duration::from_secs(seconds));
            Ok(Outcome::Done)
        });
        assert_eq!(builder.drain(DrainLimits::default()).unwrap().finished, 1);
    }
}

/// Makes periodic jobs: one with a run, one that has skipped a tick, and one without a tick so far.
fn periodic_jobs(store: &Store) {
    let clock = clock();
    let queue = Queue::open(store, "ticks", QueueOptions::default().clock(clock.clone())).unwrap();
    let start = |name: &str, hours| queue.periodic(name, Every::hours(hours), NewJob::new("digest", &7).unwrap());
    start("digest", 1).start().unwrap();
    start("later", 24).start_at_next().start().unwrap();
    clock.advance(HOUR + HOUR / 2);
    start("new", 1).start().unwrap();
}

/// Makes a queue whose jobs have each rare setting. Returns the leases of the running jobs.
fn settings(store: &Store) -> Vec<Lease> {
    let second = Duration::from_secs(1);
    let limits = [Limit::each_key().at_once(1), Limit::kind("page").rate(Rate::new(2, 60 * second).burst(8))];
    let options = QueueOptions::default().clock(clock()).retention(Retention::Keep);
    let options = limits.into_iter().fold(options, |options, limit| options.limit(limit));
    let queue = Queue::open(store, "pages", options).unwrap();
    let accept = || queue.accept(Accept::new()).unwrap().expect("a job is ready");
    let job = |id: &str| NewJob::new("page", id).unwrap().id(id);
    let push = |job| drop(queue.push(job).unwrap());
    let at = UNIX_EPOCH + Duration::from_millis(1_800_000_000_000);

    push(job("done").unique(Unique::until_claimed()).skip_if_executed().root("tree", at));
    accept().finish(None).unwrap();
    push(job("done twin").unique(Unique::until_claimed()).leaf(&root(at)));
    push(job("unique").unique(Unique::until_done()));
    push(job("window").unique(Unique::within(60 * second)).retention(Retention::Drop));
    push(job("first of a key").key("tenant:7").cost(3));
    push(job("held").key("tenant:7").expires(60 * second));
    push(job("runs").priority(Priority::Urgent).meta("by", "ann").unwrap());
    let mut runs = accept();
    runs.progress(0.25, "a quarter").unwrap();
    push(job("waits").after(["runs", "unique"]));
    push(job("holds on").after(["runs"]).on_dead(OnDead::Hold));
    queue.remove("window").unwrap();
    let notes = queue.notes("page").unwrap();
    notes.add("seen", 3).unwrap();
    notes.set_for("last", "/", 60 * second).unwrap();
    let others = [accept(), accept()];
    [runs].into_iter().chain(others).chain(queue.accept(Accept::new()).unwrap()).collect()
}

/// Returns a root of this time, as stored with a job.
fn root(at: SystemTime) -> Root {
    let queue = Queue::open(&Store::in_memory(), "roots", QueueOptions::default()).unwrap();
    queue.push(NewJob::new("k", &()).unwrap().root("tree", at)).unwrap();
    let lease = queue.accept(Accept::new()).unwrap().unwrap();
    lease.root().unwrap().clone()
}

fn tables(store: &Store) {
    let accounts = store.table("accounts").unwrap();
    accounts.put("", "the empty key").unwrap();
    accounts.put("alice", "7").unwrap();
    accounts.put("gone", "").unwrap();
    accounts.delete("gone").unwrap();
    accounts.put([0, 0xff, b'"', b'\\', b' '], [0xff, 0]).unwrap();
    // Its name and key, joined, are like those of the other table.
    store.table("acc").unwrap().put("ountsalice", "").unwrap();
    // A family of the user, which is no table.
    store.column_family("theirs").unwrap().put("raw", "key").unwrap();
}

/// Runs a transactional consumer: a table with counters, and a log that is never trimmed.
fn effects(store: &Store) {
    let (sums, letters) = (store.table("sums").unwrap(), store.log::<String>("letters").unwrap());
    let consumer = Consumer::builder(numbers(4), store.progress("effects")).max_search_ahead(1).stop_at(3);
    let run = move |job: waterline::Job<u64>, effects: &mut waterline::Effects| {
        effects.add(&sums, "up", 5)?;
        effects.add(&sums, "down", -1)?;
        Ok(effects.push(&letters, &format!("letter {}", job.index))?)
    };
    consumer.start_transactional(run).unwrap().join().unwrap();
}

/// Runs a life of this progress in which these of the first 20 jobs end in this order, each with
/// its own save.
fn run(store: &Store, name: &str, order: &[u64]) {
    let (worker, started) = manual_worker();
    let consumer = Consumer::builder(numbers(20), store.progress(name))
        .max_processing(20)
        .retry(Retry::fixed(HOUR))
        .start_worker(worker)
        .unwrap();
    let handle = consumer.handle();
    for index in order {
        let saves = handle.status().saves;
        started.job(*index).succeed();
        until(&handle, "the save", |status| status.saves > saves);
    }
    // The others fail, and their retry is due in an hour.
    drop(started);
    consumer.stop().unwrap();
}

/// Makes a page of the second generation with two deltas, and behind these deltas of the first.
fn transfers(store: &Store) {
    run(store, "transfers", &[0, 3, 5, 1, 7, 2]);
    let mut progress = store.progress("transfers");
    progress.acquire().unwrap();
    progress.save(&Checkpoint::new(10)).unwrap();
    drop(progress);
    run(store, "transfers", &[13, 16]);
}

/// Makes a page without a watermark, and one that has what is done ahead as bits, which are shorter
/// than runs there.
fn pages(disk: &Disk, store: &Store) {
    run(store, "ahead", &[2]);
    let (worker, started) = manual_worker();
    let consumer = Consumer::builder(numbers(64), store.progress("bits"))
        .max_processing(64)
        .retry(Retry::fixed(HOUR))
        .start_worker(worker)
        .unwrap();
    let handle = consumer.handle();
    // All are in the one save that succeeds.
    disk.fail(0..u64::MAX);
    (0..64).filter(|index| index % 2 == 1 || *index == 0).for_each(|index| started.job(index).succeed());
    until(&handle, "the jobs", |status| status.done == 33);
    disk.fail(0..0);
    assert!(handle.wait_for(1, LONG));
    drop(started);
    consumer.stop().unwrap();
}

/// Makes logs that were trimmed: a little, so that the items are still there; to the end; and so
/// far that the items are deleted.
fn logs(store: &Store) {
    let cut = store.log::<u64>("cut").unwrap();
    cut.push_all(&[10, 20, 30, 40, 50, 60]).unwrap();
    cut.trim(..=2).unwrap();
    let emptied = store.log::<String>("emptied").unwrap();
    emptied.push_all(&["a".to_owned(), "b".to_owned()]).unwrap();
    emptied.trim(..=9).unwrap();
    let swept = store.log::<u64>("swept").unwrap();
    let items: Vec<u64> = (0..16_386).collect();
    swept.push_all(&items).unwrap();
    swept.trim(..=16_384).unwrap();
    store.log::<u64>("untouched").unwrap();
}
