//! A consumer that waits for its name (`Builder::standby`), and takes over.

use common::*;
use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use waterline::{
    Blocked, BoxError, Builder, Checkpoint, ConfigError, Consumer, Error, Event, Handle, Index, Job, Jobs, MemoryJobs,
    MemoryProgress, OnExhausted, Pipeline, Progress, Retry, SaveError, State, Status, Store, StoreProgress, Tenure,
    Watermark,
};

/// The shortest pause between two tries to acquire a name.
const PAUSE: Duration = Duration::from_millis(20);

fn waits(status: &Status) -> bool {
    status.state == State::Waiting && matches!(status.blocked, Blocked::InUse { .. })
}

#[track_caller]
fn assert_waits(handle: &Handle) {
    let status = handle.status();
    assert!(waits(&status), "{status:#?}");
    assert_eq!((status.head, status.last_processed, status.lag(), handle.size()), (None, None, 0, 0));
    assert_eq!(handle.last_processed_index(), None);
}

fn standby<J: Jobs + Clone>(jobs: &J, store: &Store) -> Builder<J, StoreProgress> {
    watch();
    Consumer::builder(jobs.clone(), store.progress("p")).standby()
}

/// The row of a name in a database, and what was done with it.
#[derive(Clone, Default)]
struct Database(Arc<Mutex<Row>>);

#[derive(Default)]
struct Row {
    last_processed: Option<Index>,
    token: u64,
    /// The holder of the lease, and its token.
    holder: Option<(String, u64)>,
    expires_in: Duration,
    /// The tokens of holders that were not dropped. A fenced one counts until its consumer ended.
    living: Vec<u64>,
    tries: u64,
    subscribed: u64,
    fault: Option<fn() -> Error>,
    tenures: Vec<Tenure>,
}

impl Database {
    fn leased(expires_in: Duration) -> Self {
        let database = Self::default();
        database.0.lock().expires_in = expires_in;
        database
    }

    fn progress(&self, node: &str) -> Leased {
        Leased { database: self.clone(), node: node.to_owned(), token: 0 }
    }

    /// Lets the lease run out, though its holder may still live.
    fn expire(&self) {
        self.0.lock().holder = None;
    }

    fn tries(&self) -> u64 {
        self.0.lock().tries
    }
}

struct Leased {
    database: Database,
    node: String,
    token: u64,
}

impl Progress for Leased {
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
        let mut row = self.database.0.lock();
        row.tries += 1;
        if let Some(fault) = row.fault {
            return Err(fault());
        }
        if let Some((holder, _)) = &row.holder {
            let (holder, expires_in) = (holder.clone(), row.expires_in);
            return Err(Error::Leased { name: "leased".to_owned(), holder, expires_in });
        }
        row.token += 1;
        self.token = row.token;
        row.holder = Some((self.node.clone(), self.token));
        let token = self.token;
        row.living.push(token);
        Ok(row.last_processed.map(Checkpoint::new))
    }

    fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
        let mut row = self.database.0.lock();
        if self.token == 0 || self.token != row.token {
            return Err(SaveError::Lost(format!("{:?} has the name", row.holder).into()).into());
        }
        assert!(row.last_processed.is_none_or(|last| last < checkpoint.last_processed), "it never goes back");
        row.last_processed = Some(checkpoint.last_processed);
        Ok(())
    }

    fn label(&self) -> Option<String> {
        Some("leased".to_owned())
    }

    fn fence(&self) -> u64 {
        self.token
    }

    fn subscribe(&mut self, tenure: Tenure) {
        let mut row = self.database.0.lock();
        row.subscribed += 1;
        row.tenures.push(tenure);
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        let mut row = self.database.0.lock();
        let token = self.token;
        row.living.retain(|living| *living != token);
        if row.holder.as_ref().is_some_and(|(_, holder)| *holder == token) {
            row.holder = None;
        }
    }
}

#[test]
fn a_standby_takes_over_after_a_stop_drop_or_halt() {
    let (store, _dir) = a_store();
    let (jobs, done) = (MemoryJobs::new(), store.table("done").unwrap());
    let start = |fails: bool| {
        let done = done.clone();
        standby(&jobs, &store).max_processing(2).start_transactional(move |job, effects| {
            if fails && job.payload == "bad" {
                return Err("it is bad".into());
            }
            Ok(effects.add(&done, job.index.to_be_bytes(), 1)?)
        })
    };
    let mut holder = start(true).unwrap();
    for end in ["stop", "drop", "halt"] {
        let next = start(end == "drop").unwrap();
        assert_waits(&next.handle());
        let last = (0..9).map(|_| jobs.push("good")).max().unwrap();
        assert!(holder.handle().wait_for(last, LONG), "{end}");
        assert_waits(&next.handle());
        let first = last + 1;
        match end {
            "stop" => holder.stop().unwrap(),
            "drop" => drop(holder),
            _ => {
                assert_eq!(jobs.push("bad"), first);
                assert!(matches!(holder.join(), Err(Error::Job { index, .. }) if index == first));
            }
        }
        if end != "halt" {
            assert_eq!(jobs.push("good"), first);
        }
        assert!(next.handle().wait_for(first, LONG), "{end}: {:#?}", next.handle().status());
        assert_eq!(next.handle().status().state, State::Running);
        holder = next;
    }
    holder.stop().unwrap();
    let all = store.progress("p").last_processed().unwrap().unwrap();
    assert_eq!(all, 29);
    assert!((0..=all).all(|index| done.counter(index.to_be_bytes()).unwrap() == 1));
}

#[test]
fn a_stop_ends_the_wait_and_leaves_nothing() {
    type End = fn(Consumer);
    let ends: [End; 6] = [
        |consumer| consumer.stop().unwrap(),
        |consumer| consumer.stop_within(LONG).unwrap(),
        drop,
        |consumer| {
            consumer.handle().request_stop();
            consumer.join().unwrap();
        },
        |consumer| {
            let handle = consumer.handle();
            let joins = std::thread::spawn(move || consumer.join());
            handle.request_stop();
            joins.join().unwrap().unwrap();
        },
        |consumer| {
            let waiter = {
                let handle = consumer.handle();
                std::thread::spawn(move || handle.wait_for(0, LONG))
            };
            consumer.stop().unwrap();
            assert!(!waiter.join().unwrap(), "it can no longer come");
        },
    ];
    let (database, jobs) = (Database::leased(HOUR), Script::up_to(9));
    let holder = Consumer::builder(numbers(1), database.progress("a")).start(|_| Ok(())).unwrap();
    for end in ends {
        let watermark = Watermark::new();
        let waiting = Consumer::builder(jobs.clone(), database.progress("b"))
            .standby()
            .watermark(watermark.clone())
            .on_processed(|_| {})
            .start(|_| Ok(()))
            .unwrap();
        let handle = waiting.handle();
        assert_waits(&handle);
        end(waiting);
        let ended = handle.wait_end(LONG).unwrap();
        assert_eq!((ended.state, ended.error, handle.status().blocked), (State::Finished, None, Blocked::No));
        assert!(watermark.has_ended());
        assert_eq!(jobs.owners(), 0, "the source is given back");
    }
    let calls = jobs.calls();
    let asked = [&calls.firsts, &calls.heads, &calls.reads].map(|calls| calls.load(Ordering::SeqCst));
    assert_eq!(asked, [0; 3], "a source is left alone before the takeover");
    assert!(jobs.ring().is_empty(), "it was not subscribed to");
    holder.stop().unwrap();
}

#[test]
fn one_of_two_standbys_takes_over_the_other_waits() {
    let (store, _dir) = a_store();
    let jobs = MemoryJobs::new();
    let start = || standby(&jobs, &store).start(|_| Ok(())).unwrap();
    let mut all = vec![start(), start(), start()];
    let mut order = Vec::new();
    while !all.is_empty() {
        let index = jobs.push(());
        let has_it = || all.iter().position(|consumer| consumer.handle().status().state == State::Running);
        eventually("a takeover", || has_it().is_some());
        let winner = all.remove(has_it().unwrap());
        assert!(winner.handle().wait_for(index, LONG));
        all.iter().for_each(|waiting| assert_waits(&waiting.handle()));
        winner.stop().unwrap();
        order.push(index);
    }
    assert_eq!(order, [0, 1, 2]);
}

/// Starts a consumer in the mode with this number, if there is one. Each job sends its index.
fn start_as(
    way: usize,
    builder: Builder<MemoryJobs<u64>, StoreProgress>,
    store: &Store,
    say: Sender<Index>,
) -> Option<Consumer> {
    let started = match way {
        0 => builder.start(move |job| Ok(say.send(job.index)?)),
        1 => builder.start_worker(Telling(say)),
        2 => builder.threads(2).attempt_timeout(LONG).start_deferred(move |job, done| {
            say.send(job.index).unwrap();
            done.complete();
        }),
        3 => builder.start_ordered(|job| Ok(job.payload), move |index, _| Ok(say.send(index)?)),
        4 => {
            let table = store.table("t").unwrap();
            builder.max_effects(1 << 20).start_transactional(move |job, effects| {
                say.send(job.index)?;
                Ok(effects.add(&table, "n", 1)?)
            })
        }
        #[cfg(feature = "tokio")]
        5 => {
            static RUNTIME: std::sync::OnceLock<tokio::runtime::Runtime> = std::sync::OnceLock::new();
            let runtime = RUNTIME.get_or_init(|| tokio::runtime::Runtime::new().unwrap());
            builder.start_async(runtime.handle(), move |job: Job<u64>| {
                let say = say.clone();
                async move {
                    tokio::task::yield_now().await;
                    Ok(say.send(job.index)?)
                }
            })
        }
        _ => return None,
    };
    Some(started.unwrap())
}

#[test]
fn every_start_waits_and_takes_over() {
    let (store, _dir) = a_store();
    let (jobs, (say, said)) = (MemoryJobs::new(), unbounded());
    for way in 0.. {
        let announced = Announced::default();
        let holder = Consumer::builder(numbers(0), store.progress("p")).start(|_| Ok(())).unwrap();
        let builder = standby(&jobs, &store).on_processed(announced.callback());
        let Some(waiting) = start_as(way, builder, &store, say.clone()) else { break };
        assert_waits(&waiting.handle());
        let index = jobs.push(7);
        holder.stop().unwrap();
        assert!(waiting.handle().wait_for(index, LONG), "way {way}");
        assert_eq!(said.recv_timeout(LONG).unwrap(), index, "way {way}");
        waiting.stop().unwrap();
        assert_eq!(announced.all(), Some(index..=index), "way {way}");
    }
    assert!(said.try_recv().is_err());
}

struct Telling(Sender<Index>);

impl waterline::Worker<u64> for Telling {
    fn run(&self, job: Job<u64>) -> Result<(), BoxError> {
        Ok(self.0.send(job.index)?)
    }
}

#[test]
fn an_early_refusal_is_the_error_of_the_start() {
    let database = Database::leased(HOUR);
    let holder = Consumer::builder(numbers(1), database.progress("a")).start(|_| Ok(())).unwrap();
    let builder = || Consumer::builder(numbers(1), database.progress("b")).standby();
    let refused = |builder: Builder<_, _>| match builder.start(|_| Ok(())) {
        Err(Error::Config(refused)) => refused,
        other => panic!("{other:?}"),
    };
    assert!(matches!(refused(builder().max_processing(0)), ConfigError::Zero { setting: "max_processing", .. }));
    assert!(matches!(refused(builder().stop_at(Index::MAX)), ConfigError::NoJob { setting: "stop_at", .. }));
    assert!(matches!(refused(builder().threads(3)), ConfigError::Unsupported { setting: "threads", .. }));
    let watermark = Watermark::new();
    let first = builder().watermark(watermark.clone()).start(|_| Ok(())).unwrap();
    let twice = refused(builder().watermark(watermark));
    assert!(matches!(twice, ConfigError::WatermarkInUse { .. }), "{twice}");
    let without = Consumer::builder(numbers(1), database.progress("b")).start(|_| Ok(()));
    assert!(matches!(&without, Err(Error::Leased { holder, .. }) if holder == "a"), "{without:?}");
    assert!(without.unwrap_err().to_string().contains("Builder::standby"));
    first.stop().unwrap();
    holder.stop().unwrap();
}

/// Has a standby wait behind a holder, frees the name as the test says, and returns the end.
fn ends_with(
    database: &Database,
    waiting: Builder<Script, Leased>,
    then: impl FnOnce(&Database),
) -> (Result<(), Error>, Handle) {
    let holder = Consumer::builder(numbers(1), database.progress("a")).start(|_| Ok(())).unwrap();
    assert!(holder.handle().wait_for(0, LONG));
    let waiting = waiting.standby().start(|_| Ok(())).unwrap();
    let handle = waiting.handle();
    assert_waits(&handle);
    then(database);
    holder.stop().unwrap();
    (waiting.join(), handle)
}

#[test]
fn a_refusal_at_the_takeover_halts_the_standby() {
    let refused = |jobs: &Script, then: fn(&Database)| {
        let database = Database::leased(Duration::ZERO);
        let waiting = Consumer::builder(jobs.clone(), database.progress("b"));
        let (ended, handle) = ends_with(&database, waiting, then);
        let error = ended.unwrap_err();
        let status = handle.status();
        assert_eq!(status.state, State::Halted, "{status:#?}");
        assert!(matches!(&status.blocked, Blocked::Halted { error: text, .. } if *text == error.report()), "{error}");
        assert_eq!(handle.wait_end(LONG).unwrap().error, Some(error.report()));
        assert_eq!(jobs.owners(), 0);
        let row = database.0.lock();
        assert!(row.living.is_empty() && row.holder.is_none(), "the name is free again");
        assert_eq!(row.subscribed, 2, "each value gets its tenure once");
        error
    };
    let fault = |fault: fn() -> Error| -> Error {
        // The fault is kept in the row, since a function pointer cannot carry it.
        let database = Database::leased(Duration::ZERO);
        let waiting = Consumer::builder(Script::up_to(3), database.progress("b"));
        let (ended, _) = ends_with(&database, waiting, |database| database.0.lock().fault = Some(fault));
        ended.unwrap_err()
    };
    let corrupt = fault(|| Error::Corrupt { name: "leased".to_owned(), reason: "a bit flipped".to_owned() });
    assert!(matches!(&corrupt, Error::Corrupt { reason, .. } if reason == "a bit flipped"), "{corrupt:?}");
    let panicked = fault(|| panic!("acquire panics as planned"));
    assert!(matches!(&panicked, Error::Progress { .. }) && panicked.report().contains("as planned"), "{panicked:?}");
    let truncated = Script::up_to(9);
    truncated.set_first(5);
    assert!(matches!(refused(&truncated, |_| {}), Error::Truncated { next: 1, first: 5 }));
    let lost = refused(&Script::up_to(9), |database| {
        let tenure = database.0.lock().tenures[1].clone();
        tenure.lost("node c has it".into());
    });
    assert!(matches!(&lost, Error::Fenced { holder, .. } if holder == "node c has it"), "{lost:?}");
}

#[test]
fn a_failing_source_at_the_takeover_halts() {
    struct Broken(Script);
    impl Jobs for Broken {
        type Job = Index;
        fn first(&self) -> Result<Index, BoxError> {
            Err("the archive is offline".into())
        }
        fn head(&self) -> Result<Option<Index>, BoxError> {
            self.0.head()
        }
        fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
            self.0.at_index(index)
        }
    }
    let (progress, script) = (MemoryProgress::new(), Script::up_to(9));
    let holder = builder(numbers(3), &progress).start(|_| Ok(())).unwrap();
    assert!(holder.handle().wait_for(2, LONG));
    let waiting = Consumer::builder(Broken(script.clone()), progress.clone()).standby().start(|_| Ok(())).unwrap();
    assert_waits(&waiting.handle());
    holder.stop().unwrap();
    assert!(matches!(waiting.join(), Err(Error::Source { index: 3, .. })));
    assert_eq!(script.owners(), 0);
    builder(numbers(4), &progress)
        .stop_at(3)
        .start(|job| if job.index == 3 { Ok(()) } else { Err("again".into()) })
        .unwrap()
        .join()
        .unwrap();
}

#[test]
fn handle_settings_hold_after_the_takeover() {
    let (store, _dir) = a_store();
    let (worker, started) = manual_worker();
    let holder = Consumer::builder(numbers(3), store.progress("p")).start(|_| Ok(())).unwrap();
    assert!(holder.handle().wait_for(2, LONG));
    let waiting = standby(&numbers(100), &store).max_processing(9).stop_at(50).start_worker(worker).unwrap();
    let handle = waiting.handle();
    handle.pause();
    assert_waits(&handle);
    handle.set_max_processing(1).unwrap();
    handle.set_max_search_ahead(2).unwrap();
    assert!(matches!(handle.redrive(1), Err(Error::InUse { name }) if name == "p"));
    assert!(matches!(handle.redrive_all(), Err(Error::InUse { .. })));
    handle.check();
    let wait_for = |index| {
        let handle = handle.clone();
        std::thread::spawn(move || handle.wait_for(index, LONG))
    };
    let (past, later, beyond) = (wait_for(1), wait_for(4), wait_for(51));
    assert!(!handle.wait_for(1, Duration::ZERO), "nothing is known so far");
    holder.stop().unwrap();
    assert!(past.join().unwrap(), "the one before had processed it");
    assert!(!beyond.join().unwrap(), "the consumer ends below");
    let paused = until(&handle, "the pause", |status| status.state == State::Paused);
    assert_eq!((paused.last_processed, paused.blocked), (Some(2), Blocked::Paused));
    handle.resume();
    started.job(3).succeed();
    started.job(4).succeed();
    let fifth = started.job(5);
    assert!(later.join().unwrap());
    assert_eq!(handle.status().processing, 1, "one at a time");
    fifth.succeed();
    let last = started.job(6);
    handle.request_stop();
    last.succeed();
    waiting.stop().unwrap();
}

#[test]
fn stop_at_holds_after_the_takeover() {
    let (store, _dir) = a_store();
    for last in [0, 2, 5] {
        store.progress("p").remove().unwrap();
        let holder = Consumer::builder(numbers(3), store.progress("p")).start(|_| Ok(())).unwrap();
        assert!(holder.handle().wait_for(2, LONG));
        let ran = Arc::new(Mutex::new(Vec::new()));
        let waiting = standby(&numbers(100), &store).start_at(77).stop_at(last).max_processing(1);
        let seen = ran.clone();
        let waiting = waiting.start(move |job| {
            seen.lock().push(job.index);
            Ok(())
        });
        let waiting = waiting.unwrap();
        assert_waits(&waiting.handle());
        holder.stop().unwrap();
        waiting.join().unwrap();
        assert_eq!(*ran.lock(), (3..=last).collect::<Vec<_>>());
        assert_eq!(store.progress("p").last_processed().unwrap(), Some(last.max(2)));
    }
}

#[test]
fn followers_of_a_standby_wait_and_go_on_with_it() {
    let (store, _dir) = a_store();
    let jobs = numbers(6);
    let holder = Consumer::builder(jobs.clone(), store.progress("p")).stop_at(3).start(|_| Ok(())).unwrap();
    let handle = holder.handle();
    assert!(handle.wait_for(3, LONG));
    let fetched = Watermark::new();
    let waiting = standby(&jobs, &store).watermark(fetched.clone()).start(|_| Ok(())).unwrap();
    let (follower, started) = manual_worker();
    let behind = jobs.clone().gated_by(&fetched);
    let follower = Consumer::builder(behind, store.progress("f")).start_worker(follower).unwrap();
    let status = until(&follower.handle(), "the gate", |status| status.head == Some(5));
    assert_eq!(status.blocked, Blocked::Upstream { index: 0 });
    assert!(started.next_within(Duration::ZERO).is_none());
    holder.join().unwrap();
    (0..6).for_each(|index| started.job(index).succeed());
    assert!(follower.handle().wait_for(5, LONG));
    waiting.stop().unwrap();
    follower.stop().unwrap();
}

#[test]
fn a_follower_hears_that_a_waiting_standby_ended() {
    let (store, fetched) = (Store::in_memory(), Watermark::new());
    let holder = Consumer::builder(numbers(1), store.progress("p")).start(|_| Ok(())).unwrap();
    let waiting = standby(&numbers(1), &store).watermark(fetched.clone()).start(|_| Ok(())).unwrap();
    let follower = Consumer::builder(numbers(1).gated_by(&fetched), store.progress("f")).stop_at(0);
    let follower = follower.start(|_| Ok(())).unwrap();
    waiting.stop().unwrap();
    let ended = follower.join();
    assert!(matches!(&ended, Err(Error::UpstreamEnded { upstream, .. }) if upstream == "p"), "{ended:?}");
    holder.stop().unwrap();
}

#[test]
fn a_gate_cycle_is_refused_at_the_takeover() {
    let store = Store::in_memory();
    let (one, other) = (Watermark::new(), Watermark::new());
    let jobs = numbers(4);
    let holder = Consumer::builder(jobs.clone(), store.progress("p")).stop_at(0).start(|_| Ok(())).unwrap();
    let waiting = Consumer::builder(jobs.clone().gated_by(&other), store.progress("p")).standby();
    let waiting = waiting.watermark(one.clone()).start(|_| Ok(())).unwrap();
    let behind = Consumer::builder(jobs.gated_by(&one), store.progress("q")).watermark(other).start(|_| Ok(()));
    let behind = behind.unwrap();
    holder.join().unwrap();
    let ended = waiting.join();
    assert!(matches!(&ended, Err(Error::Config(ConfigError::GateCycle { .. }))), "{ended:?}");
    behind.stop().unwrap();
    assert!(Consumer::builder(numbers(1), store.progress("p")).start(|_| Ok(())).is_ok(), "the name is free");
}

#[test]
fn an_upstream_ended_while_waiting_ends_the_standby() {
    let (store, jobs) = (Store::in_memory(), numbers(9));
    let upstream = Consumer::builder(jobs.clone(), MemoryProgress::new()).stop_at(4).start(|_| Ok(())).unwrap();
    let fetched: Watermark = upstream.handle().as_ref().clone();
    let holder = Consumer::builder(numbers(0), store.progress("p")).start(|_| Ok(())).unwrap();
    let gated = jobs.gated_by(&fetched);
    let waiting = Consumer::builder(gated, store.progress("p")).standby().stop_at(8).start(|_| Ok(())).unwrap();
    let handle = waiting.handle();
    let joins = std::thread::spawn(|| waiting.join());
    upstream.join().unwrap();
    assert_waits(&handle);
    holder.stop().unwrap();
    let ended = joins.join().unwrap();
    assert!(matches!(&ended, Err(Error::UpstreamEnded { index: 8, .. })), "{ended:?}");
    assert_eq!(handle.last_processed_index(), Some(4));
}

#[test]
fn an_upstream_ended_at_the_first_index_is_named() {
    let (store, jobs) = (Store::in_memory(), numbers(9));
    let upstream = Consumer::builder(jobs.clone(), MemoryProgress::new()).stop_at(4).start(|_| Ok(())).unwrap();
    let fetched: Watermark = upstream.handle().as_ref().clone();
    let holder = Consumer::builder(numbers(5), store.progress("p")).start(|_| Ok(())).unwrap();
    assert!(holder.handle().wait_for(4, LONG));
    let waiting = Consumer::builder(jobs.gated_by(&fetched), store.progress("p")).standby().start(|_| Ok(())).unwrap();
    upstream.join().unwrap();
    holder.stop().unwrap();
    let status = until(&waiting.handle(), "the end of the upstream", |status| status.ended_upstream.is_some());
    assert_eq!((status.state, status.blocked), (State::Running, Blocked::Upstream { index: 5 }));
    waiting.stop().unwrap();
}

#[test]
fn stop_within_leaves_a_hanging_acquire() {
    /// A progress whose second call to `acquire` hangs.
    struct Hangs(MemoryProgress, Sender<()>, Receiver<()>, u32);
    impl Progress for Hangs {
        fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
            self.3 += 1;
            if self.3 == 2 {
                let _ = self.1.send(());
                let _ = self.2.recv();
            }
            self.0.acquire()
        }
        fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
            self.0.save(checkpoint)
        }
    }
    let (memory, jobs, (enter, entered), (pass, passed)) =
        (MemoryProgress::new(), Script::up_to(3), unbounded(), unbounded::<()>());
    let holder = builder(numbers(1), &memory).start(|_| Ok(())).unwrap();
    let hangs = Hangs(memory.clone(), enter, passed, 0);
    let waiting = Consumer::builder(jobs.clone(), hangs).standby().start(|_| Ok(())).unwrap();
    let handle = waiting.handle();
    entered.recv_timeout(LONG).unwrap();
    assert_waits(&handle);
    holder.stop().unwrap();
    let stopped = waiting.stop_within(Duration::ZERO);
    assert!(matches!(&stopped, Err(Error::StopTimeout { running }) if running.is_empty()), "{stopped:?}");
    drop(pass);
    assert_eq!(handle.wait_end(LONG).unwrap().state, State::Finished);
    assert_eq!(jobs.owners(), 0);
    builder(jobs, &memory).stop_at(3).start(|_| Ok(())).unwrap().join().unwrap();
}

#[test]
fn the_status_names_the_holder_and_its_lease_left() {
    let (database, time) = (Database::leased(HOUR), Time::new());
    let holder = Consumer::builder(numbers(1), database.progress("node a")).start(|_| Ok(())).unwrap();
    let builder = Consumer::builder(numbers(1), database.progress("node b")).standby().clock(time.clock());
    let waiting = builder.start(|_| Ok(())).unwrap();
    let status = waiting.handle().status();
    let Blocked::InUse { holder: named, expires_in: Some(rest) } = &status.blocked else { panic!("{status:#?}") };
    assert_eq!(named, "node a");
    assert_eq!(*rest, HOUR);
    let text = status.to_string();
    assert!(text.starts_with("waiting: watermark none, head none, lag unknown, 0 in flight, 0 done ahead; "), "{text}");
    assert!(text.contains("is in use by node a") && text.contains("unless it is renewed"), "{text}");
    waiting.stop().unwrap();
    holder.stop().unwrap();
}

#[test]
fn a_standby_retries_at_a_pace() {
    let (database, time) = (Database::leased(Duration::ZERO), Time::new());
    let holder = Consumer::builder(numbers(1), database.progress("a")).start(|_| Ok(())).unwrap();
    let builder = Consumer::builder(numbers(1), database.progress("b")).standby().clock(time.clock());
    let waiting = builder.start(|_| Ok(())).unwrap();
    // A name that another test of this process frees may cause a try before its time.
    let before = database.tries();
    time.steps(PAUSE, "five tries", || database.tries() >= before + 5);
    assert_waits(&waiting.handle());
    holder.stop().unwrap();
    assert!(waiting.handle().wait_for(0, LONG));
    waiting.stop().unwrap();
}

#[test]
fn a_notified_standby_tries_at_once() {
    let (database, time) = (Database::leased(HOUR), Time::new());
    let holder = Consumer::builder(numbers(1), database.progress("a")).start(|_| Ok(())).unwrap();
    let builder = Consumer::builder(numbers(1), database.progress("b")).standby().clock(time.clock());
    let waiting = builder.start(|_| Ok(())).unwrap();
    let tenure = || database.0.lock().tenures[1].clone();
    // The clock stands still, so only `try_now` or another test of this process causes a try.
    let before = database.tries();
    tenure().try_now();
    eventually("a try", || database.tries() > before);
    assert_waits(&waiting.handle());
    holder.stop().unwrap();
    tenure().try_now();
    assert!(waiting.handle().wait_for(0, LONG));
    tenure().try_now();
    assert_eq!(waiting.handle().status().state, State::Running);
    waiting.stop().unwrap();
}

#[test]
fn a_standby_waits_out_unreachable_storage() {
    let (database, time) = (Database::leased(HOUR), Time::new());
    let holder = Consumer::builder(numbers(1), database.progress("a")).start(|_| Ok(())).unwrap();
    let builder = Consumer::builder(numbers(1), database.progress("b")).standby().clock(time.clock());
    let waiting = builder.start(|_| Ok(())).unwrap();
    let handle = waiting.handle();
    database.0.lock().fault = Some(|| Error::Progress { source: "no route to host".into() });
    let before = database.tries();
    time.steps(PAUSE, "five tries", || database.tries() >= before + 5);
    let status = handle.status();
    assert_eq!(status.state, State::Waiting, "{status:#?}");
    assert!(matches!(&status.blocked, Blocked::Progress { error } if error.contains("no route")), "{status}");
    database.0.lock().fault = None;
    holder.stop().unwrap();
    time.steps(PAUSE, "the takeover", || handle.status().last_processed == Some(0));
    waiting.stop().unwrap();
}

#[test]
fn a_holder_past_its_lease_is_fenced() {
    let (database, jobs, time) = (Database::leased(Duration::ZERO), MemoryJobs::new(), Time::new());
    // A sink that refuses fences below the highest that it has seen.
    let sink = Arc::new(Mutex::new((0, BTreeMap::<Index, Vec<u64>>::new())));
    let work = |stuck: Option<Receiver<()>>| {
        let sink = sink.clone();
        move |job: Job<()>| {
            if job.index == 3 {
                stuck.iter().for_each(|stuck| _ = stuck.recv());
            }
            let mut sink = sink.lock();
            if job.fence < sink.0 {
                return Err("the sink refuses an old fence".into());
            }
            sink.0 = job.fence;
            sink.1.entry(job.index).or_default().push(job.fence);
            Ok(())
        }
    };
    let (go, stuck) = unbounded();
    let build = |node: &str| {
        let builder = Consumer::builder(jobs.clone(), database.progress(node)).clock(time.clock());
        builder.max_processing(1).standby()
    };
    let old = build("old").start(work(Some(stuck))).unwrap();
    let new = build("new").start(work(None)).unwrap();
    (0..4).for_each(|_| _ = jobs.push(()));
    assert!(old.handle().wait_for(2, LONG));
    until(&old.handle(), "the stuck job", |status| status.processing == 1);
    assert_waits(&new.handle());
    database.expire();
    time.steps(PAUSE, "the takeover", || new.handle().wait_for(3, Duration::ZERO));
    go.send(()).unwrap();
    let ended = old.join();
    assert!(matches!(&ended, Err(Error::Fenced { .. } | Error::Job { index: 3, .. })), "{ended:?}");
    (0..4).for_each(|_| _ = jobs.push(()));
    time.steps(PAUSE, "the last job", || new.handle().wait_for(7, Duration::ZERO));
    new.stop().unwrap();
    let sink = sink.lock();
    let expected: BTreeMap<Index, Vec<u64>> = (0..8).map(|index| (index, vec![1 + u64::from(index > 2)])).collect();
    assert_eq!(sink.1, expected, "each job once, and the fence went up");
}

#[test]
fn a_save_after_the_takeover_ends_with_fenced() {
    let (database, jobs, time) = (Database::leased(Duration::ZERO), MemoryJobs::new(), Time::new());
    let old = Consumer::builder(jobs.clone(), database.progress("old")).start(|_| Ok(())).unwrap();
    let builder = Consumer::builder(jobs.clone(), database.progress("new")).standby().clock(time.clock());
    let new = builder.start(|_| Ok(())).unwrap();
    database.expire();
    time.until(PAUSE, &new.handle(), "the takeover", |status| status.state == State::Running);
    assert_eq!(jobs.push(()), 0);
    let ended = old.join();
    assert!(
        matches!(&ended, Err(Error::Fenced { name, holder }) if name == "leased" && holder.contains("new")),
        "{ended:?}"
    );
    assert!(ended.unwrap_err().to_string().contains("Builder::standby"));
    // A push during a look is seen after a pause.
    time.steps(PAUSE, "the job", || new.handle().wait_for(0, Duration::ZERO));
    new.stop().unwrap();
    assert_eq!(database.0.lock().last_processed, Some(0));
}

#[test]
fn a_hold_while_waiting_holds_after_the_takeover() {
    let database = Database::leased(Duration::ZERO);
    let holder = Consumer::builder(numbers(1), database.progress("a")).start(|_| Ok(())).unwrap();
    assert!(holder.handle().wait_for(0, LONG));
    let waiting = Consumer::builder(numbers(2), database.progress("b")).standby().start(|_| Ok(())).unwrap();
    let tenure = database.0.lock().tenures[1].clone();
    tenure.hold("the lease is not confirmed");
    assert_waits(&waiting.handle());
    holder.stop().unwrap();
    until(&waiting.handle(), "the hold", |status| matches!(status.blocked, Blocked::Held { .. }));
    tenure.go_on();
    assert!(waiting.handle().wait_for(1, LONG));
    tenure.lost("gone".into());
    assert!(matches!(waiting.join(), Err(Error::Fenced { .. })));
}

#[test]
fn observers_see_the_wait_then_the_takeover() {
    let (store, (say, said)) = (Store::in_memory(), unbounded());
    let holder = Consumer::builder(numbers(1), store.progress("p")).start(|_| Ok(())).unwrap();
    assert!(holder.handle().wait_for(0, LONG));
    let waiting = standby(&numbers(2), &store)
        .stop_at(1)
        .observe(move |event: &Event<'_>| {
            assert_eq!(event.consumer(), "p");
            let text = match event {
                Event::Waiting { status, .. } => format!("waits, {}", waits(status)),
                Event::TookOver { status, .. } => format!("took over after {:?}", status.last_processed),
                Event::AttemptBegun { index, .. } => format!("runs {index}"),
                Event::Ended { state, .. } => format!("ended, {state}"),
                _ => return,
            };
            say.send(text).unwrap();
        })
        .start(|_| Ok(()))
        .unwrap();
    assert_eq!(said.recv_timeout(LONG).unwrap(), "waits, true");
    holder.stop().unwrap();
    waiting.join().unwrap();
    let rest: Vec<String> = said.iter().collect();
    assert_eq!(rest, ["took over after Some(0)", "runs 1", "ended, finished"]);
}

#[test]
fn a_stop_during_a_takeover_closes_the_life() {
    let (store, _dir) = a_store();
    let park = OnExhausted::Park { budget: 9 };
    let script = Script::up_to(5);
    let (slow, entered, pass) = SlowFirst::new(&script);
    let holder = Consumer::builder(numbers(1), store.progress("p")).on_exhausted(park).start(|_| Ok(())).unwrap();
    assert!(holder.handle().wait_for(0, LONG));
    let waiting = Consumer::builder(slow, store.progress("p")).standby().on_exhausted(park).start(|_| Ok(()));
    let waiting = waiting.unwrap();
    let handle = waiting.handle();
    holder.stop().unwrap();
    entered.recv_timeout(LONG).unwrap();
    handle.request_stop();
    let ends = std::thread::spawn(|| waiting.join());
    pass.send(()).unwrap();
    ends.join().unwrap().unwrap();
    assert_eq!((handle.status().state, script.owners()), (State::Finished, 0));
    let info = store.consumers().unwrap().into_iter().find(|info| info.name == "p").unwrap();
    assert_eq!(info.life_open, Some(false), "no job has run in it, so the next life need not be careful");
    let next = Consumer::builder(script, store.progress("p")).on_exhausted(park).stop_at(5).start(|_| Ok(()));
    next.unwrap().join().unwrap();
}

#[test]
fn parked_jobs_and_attempts_survive_the_takeover() {
    let (store, _dir) = a_store();
    let (jobs, (say, said)) = (numbers(4), unbounded());
    let build = || {
        let park = OnExhausted::Park { budget: 9 };
        standby(&jobs, &store).on_exhausted(park).retry(Retry::fixed(Duration::ZERO).max_attempts(2))
    };
    let holder = build().start(|job| if job.index == 2 { Err("bad".into()) } else { Ok(()) }).unwrap();
    assert!(holder.handle().wait_for(3, LONG));
    let waiting = build().start(move |job| Ok(say.send((job.index, job.attempt))?)).unwrap();
    let handle = waiting.handle();
    assert_eq!((handle.status().parked, handle.status().state), (0, State::Waiting));
    holder.stop().unwrap();
    until(&handle, "the takeover", |status| status.state == State::Running && status.parked == 1);
    handle.redrive(2).unwrap();
    assert_eq!(said.recv_timeout(LONG).unwrap(), (2, 3));
    until(&handle, "the end of the redrive", |status| status.parked == 0);
    waiting.stop().unwrap();
}

#[test]
fn a_pipeline_of_standbys_waits_and_takes_over() {
    let (store, _dir) = a_store();
    let (blocks, lines) = (numbers(20), store.log::<u64>("lines").unwrap());
    let out = store.table("out").unwrap();
    let start = || {
        Pipeline::builder()
            .stage("fetch", |stage| {
                let lines = lines.clone();
                let jobs = stage.consumer(blocks.clone(), store.progress("fetch")).standby();
                jobs.start_transactional(move |job, effects| Ok(effects.push(&lines, &job.payload)?))
            })
            .stage("store", |stage| {
                let out = out.clone();
                let jobs = stage.consumer(lines.clone(), store.progress("store")).standby();
                jobs.start_transactional(move |job, effects| Ok(effects.add(&out, job.payload.to_be_bytes(), 1)?))
            })
            .stage("report", |stage| {
                let behind = blocks.clone().gated_by(stage.after("fetch")?);
                stage.consumer(behind, store.progress("report")).standby().start(|_| Ok(()))
            })
            .start()
            .unwrap()
    };
    let holder = start();
    let (stopped, next) = (start(), start());
    assert!(stopped.status().stages.iter().all(|stage| waits(&stage.status) && stage.jobs_per_second == 0.0));
    stopped.stop().unwrap();
    let runs = std::thread::spawn(|| next.run_to(19));
    eventually("half of the jobs", || holder.handle().stage("fetch").unwrap().wait_for(9, LONG));
    holder.stop().unwrap();
    runs.join().unwrap().unwrap();
    assert!((0..20_u64).all(|n| out.counter(n.to_be_bytes()).unwrap() == 1), "exactly once, by whomever");
    assert_eq!(store.progress("report").last_processed().unwrap(), Some(19));
}

#[test]
fn a_stop_at_any_takeover_step_frees_the_name() {
    let (store, jobs) = (Store::in_memory(), MemoryJobs::new());
    let done = store.table("done").unwrap();
    let start = || {
        let done = done.clone();
        standby(&jobs, &store)
            .on_exhausted(OnExhausted::Park { budget: 9 })
            .on_processed(|_| {})
            .attempt_timeout(LONG)
            .start_transactional(move |job, effects| Ok(effects.add(&done, job.index.to_be_bytes(), 1)?))
            .unwrap()
    };
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..60 {
        let (holder, waiting) = (start(), start());
        let index = jobs.push(());
        assert!(holder.handle().wait_for(index, LONG));
        let others = jobs.push(());
        holder.stop().unwrap();
        // The next try is up to half a second away, so only a few rounds wait for it.
        let spins = rng.u64(..2_000);
        if rng.u8(..8) == 0 {
            until(&waiting.handle(), "the takeover", |status| status.state != State::Waiting);
        }
        (0..spins).for_each(|_| std::hint::spin_loop());
        waiting.stop().unwrap();
        let last = start();
        assert_ne!(last.handle().status().state, State::Waiting, "the name is free");
        assert!(last.handle().wait_for(others, LONG));
        last.stop().unwrap();
        assert!((index..=others).all(|index| done.counter(index.to_be_bytes()).unwrap() == 1));
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Start,
    Stop(usize),
    Expire,
    Push,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Start),
        2 => (0..4_usize).prop_map(Step::Stop),
        1 => Just(Step::Expire),
        4 => Just(Step::Push),
    ];
    proptest::collection::vec(step, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(24), ..ProptestConfig::default() })]

    /// The model: nodes in the order of their tokens. Only the newest changes the row, so each job
    /// that the row has passed was run, and last by a life that had the name, as its fence tells.
    #[test]
    fn promise_07_one_node_has_the_name_and_no_job_is_skipped(steps in steps()) {
        watch();
        let (database, jobs, time) = (Database::leased(Duration::ZERO), MemoryJobs::new(), Time::new());
        let fences = Arc::new(Mutex::new(BTreeMap::<Index, u64>::new()));
        let mut nodes: Vec<Consumer> = Vec::new();
        let start = |nodes: &mut Vec<Consumer>| {
            let fences = fences.clone();
            let node = Consumer::builder(jobs.clone(), database.progress("node")).standby().clock(time.clock());
            nodes.push(node.start(move |job: Job<()>| {
                let mut fences = fences.lock();
                let before = fences.entry(job.index).or_default();
                *before = job.fence.max(*before);
                Ok(())
            }).unwrap());
        };
        let mut pushed = 0;
        for step in steps {
            match step {
                Step::Start if nodes.len() < 4 => start(&mut nodes),
                Step::Stop(nth) if nth < nodes.len() => {
                    let ended = nodes.remove(nth).stop();
                    prop_assert!(matches!(ended, Ok(()) | Err(Error::Fenced { .. })), "{:?}", ended);
                }
                Step::Expire => database.expire(),
                Step::Push => {
                    jobs.push(());
                    pushed += 1;
                }
                Step::Start | Step::Stop(_) => {}
            }
            let row = database.0.lock();
            prop_assert!(row.holder.as_ref().is_none_or(|(_, token)| *token == row.token), "the newest one has it");
        }
        start(&mut nodes);
        jobs.push(());
        time.steps(PAUSE, "all jobs", || database.0.lock().last_processed == Some(pushed));
        let tokens = database.0.lock().token;
        for node in nodes {
            let ended = node.stop();
            prop_assert!(matches!(ended, Ok(()) | Err(Error::Fenced { .. })), "{:?}", ended);
        }
        let fences = fences.lock();
        prop_assert_eq!(fences.len() as u64, pushed + 1, "no job is skipped");
        prop_assert!(fences.values().all(|fence| (1..=tokens).contains(fence)));
        prop_assert!(database.0.lock().living.is_empty());
    }
}

/// A process that dies or is stopped while another one waits for its name.
#[cfg(unix)]
mod processes {
    use super::*;
    use common::dying::{child, dir_of_child};
    use crossbeam_channel::bounded;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command};
    use std::thread::JoinHandle;

    const JOBS: Index = 12;
    /// The job in which the child waits.
    const STUCK: Index = 5;
    /// The length of a lease, on the clock of the test, and the interval of its renewals, in real
    /// time.
    const LEASE: Duration = Duration::from_secs(5);
    const BEAT: Duration = Duration::from_millis(20);

    /// A directory with two files for each life: the end of its lease, and its watermark. The life
    /// that creates the file of the next token gets the name, and only the highest token counts, so
    /// late writes of earlier lives change nothing.
    ///
    /// Another file is the clock of all leases. The test moves it, so no life is too slow to renew.
    #[derive(Clone)]
    struct Directory(PathBuf);

    impl Directory {
        fn file(&self, kind: &str, token: u64) -> PathBuf {
            self.0.join(format!("{kind}.{token}"))
        }

        /// Returns the highest token, or 0 before the first life.
        fn token(&self) -> u64 {
            let names = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let tokens = names.filter_map(|name| name.strip_prefix("lease.").and_then(|token| token.parse().ok()));
            tokens.max().unwrap_or(0)
        }

        fn number(&self, kind: &str, token: u64) -> Option<u128> {
            fs::read_to_string(self.file(kind, token)).ok().map(|text| text.parse().unwrap())
        }

        /// Replaces a number atomically.
        fn put(&self, kind: &str, token: u64, number: u128) {
            let beside = self.file(&format!("new-{kind}"), token);
            fs::write(&beside, number.to_string()).unwrap();
            fs::rename(beside, self.file(kind, token)).unwrap();
        }

        /// Returns the time on the clock, in milliseconds.
        fn now(&self) -> u128 {
            self.number("clock", 0).unwrap_or(0)
        }

        fn pass(&self, time: Duration) {
            self.put("clock", 0, self.now() + time.as_millis());
        }

        fn rest_of_lease(&self) -> Duration {
            let until = self.number("lease", self.token()).unwrap_or(0);
            Duration::from_millis(until.saturating_sub(self.now()).try_into().unwrap())
        }
    }

    struct InDirectory {
        directory: Directory,
        token: u64,
        tenure: Option<Tenure>,
        /// The thread that renews the lease, and the sender that ends it.
        heart: Option<(Sender<()>, JoinHandle<()>)>,
    }

    fn progress(dir: &Path) -> InDirectory {
        InDirectory { directory: Directory(dir.to_owned()), token: 0, tenure: None, heart: None }
    }

    impl Progress for InDirectory {
        fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
            let (directory, before) = (self.directory.clone(), self.directory.token());
            let expires_in = directory.rest_of_lease();
            let refused = |expires_in| {
                let holder = format!("life {before}");
                Err(Error::Leased { name: "in a directory".to_owned(), holder, expires_in })
            };
            if !expires_in.is_zero() {
                return refused(expires_in);
            }
            let token = before + 1;
            if fs::hard_link(directory.file("blank", 0), directory.file("lease", token)).is_err() {
                return refused(Duration::ZERO);
            }
            let renew = move |directory: &Directory| {
                directory.put("lease", token, directory.now() + LEASE.as_millis());
            };
            renew(&directory);
            let last = directory.number("watermark", before);
            last.into_iter().for_each(|last| directory.put("watermark", token, last));
            let (tenure, (end, ended)) = (self.tenure.clone().unwrap(), bounded(0));
            let heart = std::thread::spawn(move || {
                while ended.recv_timeout(BEAT).is_err_and(|error| error.is_timeout()) {
                    if directory.token() != token {
                        return tenure.lost(format!("life {} has the name", directory.token()).into());
                    }
                    renew(&directory);
                }
            });
            (self.token, self.heart) = (token, Some((end, heart)));
            Ok(last.map(|last| Checkpoint::new(last.try_into().unwrap())))
        }

        fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
            if self.token == 0 || self.directory.token() != self.token {
                return Err(SaveError::Lost("another life has the name".into()).into());
            }
            self.directory.put("watermark", self.token, checkpoint.last_processed.into());
            Ok(())
        }

        fn fence(&self) -> u64 {
            self.token
        }

        fn subscribe(&mut self, tenure: Tenure) {
            self.tenure = Some(tenure);
        }
    }

    impl Drop for InDirectory {
        fn drop(&mut self) {
            let Some((end, heart)) = self.heart.take() else { return };
            drop(end);
            heart.join().unwrap();
            self.directory.put("lease", self.token, 0);
        }
    }

    /// Starts a consumer whose jobs create a file with their index and fence.
    fn start(dir: &Path, stuck: bool) -> Consumer {
        let place = dir.to_owned();
        let builder = Consumer::builder(numbers(JOBS), progress(dir)).standby().max_processing(1).stop_at(JOBS - 1);
        let consumer = builder.start(move |job| {
            if stuck && job.index == STUCK {
                fs::write(place.join("stuck"), "")?;
                eventually("the end of the standstill", || place.join("go").exists());
            }
            if Directory(place.clone()).token() != job.fence {
                return Err("the sink refuses an old fence".into());
            }
            fs::File::create_new(place.join(format!("done.{}.{}", job.index, job.fence)))?;
            Ok(())
        });
        consumer.unwrap()
    }

    #[test]
    #[ignore = "a child of the tests below"]
    fn leasing_child() {
        let Some(dir) = dir_of_child() else { return };
        let ended = start(&dir, true).join();
        assert!(matches!(ended, Err(Error::Fenced { .. } | Error::Job { index: STUCK, .. })), "{ended:?}");
        fs::write(dir.join("fenced"), "").unwrap();
    }

    /// Starts the child and a standby, and returns both once the child waits in its job.
    fn child_and_standby(dir: &Path) -> (Child, Consumer) {
        fs::write(dir.join("blank.0"), "0").unwrap();
        let child = child("standby::processes::leasing_child", dir, 0);
        eventually("the standstill", || dir.join("stuck").exists());
        let directory = Directory(dir.to_owned());
        eventually("the save before it", || directory.number("watermark", 1) == Some((STUCK - 1).into()));
        let waiting = start(dir, false);
        let status = waiting.handle().status();
        assert!(waits(&status) && status.to_string().contains("life 1"), "{status:#?}");
        (child, waiting)
    }

    fn assert_each_job_is_done_once(dir: &Path) {
        for index in 0..JOBS {
            let done = [1, 2].map(|fence| dir.join(format!("done.{index}.{fence}")).exists());
            assert_eq!(done, [index < STUCK, index >= STUCK], "job {index}");
        }
    }

    #[test]
    fn a_standby_takes_over_from_a_killed_process() {
        let dir = tempfile::tempdir().unwrap();
        let (mut child, waiting) = child_and_standby(dir.path());
        let directory = Directory(dir.path().to_owned());
        let before = directory.number("lease", 1);
        directory.pass(LEASE / 2);
        eventually("a renewal", || directory.number("lease", 1) > before);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_waits(&waiting.handle());
        directory.pass(LEASE);
        waiting.join().unwrap();
        assert_each_job_is_done_once(dir.path());
    }

    #[test]
    fn a_process_resumed_after_a_standstill_is_fenced() {
        let dir = tempfile::tempdir().unwrap();
        let (mut child, waiting) = child_and_standby(dir.path());
        let signal = |name: &str| {
            let sent = Command::new("kill").args([name, &child.id().to_string()]).status();
            assert!(sent.unwrap().success());
        };
        signal("-STOP");
        // A thread of the child may renew the lease once more before the signal takes effect.
        eventually("the takeover", || {
            Directory(dir.path().to_owned()).pass(LEASE);
            waiting.handle().status().state != State::Waiting
        });
        waiting.join().unwrap();
        fs::write(dir.path().join("go"), "").unwrap();
        signal("-CONT");
        assert!(child.wait().unwrap().success());
        assert!(dir.path().join("fenced").exists());
        assert_each_job_is_done_once(dir.path());
    }
}
