//! Ways to be stuck: each test makes a consumer stand still, and checks that the status, the event,
//! the line and the store tell the same.
//!
//! Mostly job 0 is processed and job 1 blocks the rest, so the watermark is 0.

use crate::{STALL, assert_says, everything, line, lines_of};
use common::*;
use crossbeam_channel::{Sender, bounded, unbounded};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};
use tracing::Level;
use waterline::testing::{FaultyStore, ProgressFaults};
use waterline::{
    Blocked, BoxError, Builder, Consumer, ConsumerInfo, Done, Error, Event, Failure, Handle, Index, Job, Jobs,
    MemoryJobs, MemoryProgress, OnExhausted, Progress, Retry, State, Status, Store, StoreProgress,
};

/// The time of the first `on_stall`, and the step in which time passes. Further closures follow at
/// each doubling, since the first may be called before the consumer is where it gets stuck. The
/// events of a stall begin after ten seconds.
const SOON: Duration = Duration::from_secs(1);
const ALARMS: usize = 18;

/// A backoff that no test outlasts.
const NEVER: Duration = Duration::from_secs(39_999_999);

/// The unit of stored times.
const MS: Duration = Duration::from_millis(1);

/// A time before everything that the tests do.
static BEGUN: LazyLock<SystemTime> = LazyLock::new(SystemTime::now);

/// What a consumer told about itself.
#[derive(Clone, Debug)]
enum Said {
    /// The call of `on_stall` with this number.
    Alarm(usize, Status),
    Stalled(Status),
    Parked(Index, String),
    Halted(Index, String),
    Ended(State, Option<String>),
}

impl Said {
    fn status(&self) -> Option<&Status> {
        if let Self::Alarm(_, status) | Self::Stalled(status) = self { Some(status) } else { None }
    }
}

/// A consumer that is to get stuck, and everything that it told.
struct Stuck {
    /// No other one has this name, by which its lines are found.
    name: String,
    store: Store,
    said: Arc<Mutex<Vec<Said>>>,
    /// Moves only while a test waits for something that takes time.
    time: Arc<Time>,
    /// The watermark at which it is stuck.
    last: Option<Index>,
    /// The head that the source has shown by then, where that matters.
    head: Option<Index>,
    /// Whether the store keeps whether a life is open.
    counts_lives: bool,
}

impl Stuck {
    fn new() -> Self {
        Self::on(Store::in_memory())
    }

    fn on(store: Store) -> Self {
        static STUCK: AtomicU64 = AtomicU64::new(0);
        LazyLock::force(&BEGUN);
        everything();
        let name = format!("stuck {}", STUCK.fetch_add(1, Ordering::SeqCst));
        Self { name, store, said: Arc::default(), time: Arc::default(), last: Some(0), head: None, counts_lives: true }
    }

    fn at(self, last: Option<Index>) -> Self {
        Self { last, ..self }
    }

    /// Waits until the source has shown this head, since a slow look is another stall.
    fn seeing(self, head: Index) -> Self {
        Self { head: Some(head), ..self }
    }

    fn builder<J: Jobs>(&self, jobs: J) -> Builder<J, StoreProgress> {
        self.hear(Consumer::builder(jobs, self.progress()).max_processing(4).max_crashes(9))
    }

    fn start<J: Jobs>(&self, jobs: J) -> Consumer {
        self.builder(jobs).start(|_| Ok(())).unwrap()
    }

    /// Starts a consumer with a faulty progress, which counts no crashes, and lets it save job 0.
    fn faulty(&mut self, jobs: &MemoryJobs<u64>) -> (Consumer, ProgressFaults) {
        self.counts_lives = false;
        let progress = FaultyProgress::new(self.progress());
        let faults = progress.faults();
        let builder = self.hear(Consumer::builder(jobs.clone(), progress).max_processing(4));
        let consumer = builder.start(|_| Ok(())).unwrap();
        assert!(consumer.handle().wait_for(0, LONG));
        (consumer, faults)
    }

    fn progress(&self) -> StoreProgress {
        self.store.progress(&self.name)
    }

    fn hear<J: Jobs, P: Progress>(&self, mut builder: Builder<J, P>) -> Builder<J, P> {
        for nth in 0..ALARMS {
            let said = self.said.clone();
            let ring = move |status: &Status| said.lock().push(Said::Alarm(nth, status.clone()));
            builder = builder.on_stall(SOON * (1 << nth), ring);
        }
        let said = self.said.clone();
        builder.clock(self.time.clock()).observe(move |event: &Event<'_>| {
            let heard = match *event {
                Event::Stalled { status, .. } => Said::Stalled(status.clone()),
                Event::Parked { index, error, .. } => Said::Parked(index, error.to_owned()),
                Event::Halted { index, error, .. } => Said::Halted(index, error.to_owned()),
                Event::Ended { state, error, .. } => Said::Ended(state, error.map(str::to_owned)),
                _ => return,
            };
            said.lock().push(heard);
        })
    }

    #[track_caller]
    fn eventually(&self, what: &str, is_true: impl Fn() -> bool) {
        self.time.steps(SOON, what, is_true);
    }

    #[track_caller]
    fn until(&self, handle: &Handle, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
        self.time.until(SOON, handle, what, wanted)
    }

    #[track_caller]
    fn reaches(&self, handle: &Handle, index: Index) {
        self.until(handle, "the watermark", |status| status.last_processed >= Some(index));
    }

    /// Checks that nothing is in the way any more.
    #[track_caller]
    fn goes_on(&self, consumer: Consumer, index: Index) {
        self.reaches(&consumer.handle(), index);
        consumer.stop().unwrap();
    }

    fn heard(&self) -> Vec<Said> {
        self.said.lock().clone()
    }

    /// Waits until the consumer is stuck and says this, as in [`is_like`]. Each `on_stall` is
    /// called once, observers hear it repeatedly, a line says it, and the store has the place.
    #[track_caller]
    fn stalls(&self, handle: &Handle, says: &str) -> Status {
        let right = |status: &Status| {
            let place = (status.last_processed, self.head.is_none_or(|head| status.head == Some(head)));
            place == (self.last, true) && is_like(&status.blocked.to_string(), says)
        };
        let status = self.until(handle, says, right);
        let from = self.heard().len();
        let alarms = |nth: usize| {
            let rings = |said: &Said| matches!(said, Said::Alarm(at, status) if *at == nth && right(status));
            self.heard().iter().filter(|said| rings(said)).count()
        };
        let events = |least| {
            let stalls = |said: &&Said| matches!(said, Said::Stalled(status) if right(status));
            self.heard().iter().filter(stalls).count() >= least
        };
        // The next event comes after twice the time, so a second call would have come by then.
        self.eventually(says, || (0..ALARMS).any(|nth| alarms(nth) > 0) && events(2));
        assert!((0..ALARMS).all(|nth| alarms(nth) <= 1), "once for each stall: {:#?}", self.heard());
        // A status that arrives late may be an earlier one.
        let heard = self.heard().split_off(from);
        let statuses = heard.iter().filter_map(Said::status).skip_while(|status| !right(status));
        statuses.for_each(|status| assert_ne!(status.blocked, Blocked::No, "it stands still: {status:#?}"));
        self.until(handle, "the same", right);
        self.warns(self.last.map_or(0, |last| last + 1), says);
        self.is_kept(Some(true));
        status
    }

    /// Waits for the line of a stall. It names the lowest job that is not done, which may be above
    /// those that wait for a save.
    #[track_caller]
    fn warns(&self, index: Index, says: &str) {
        let (longer, unsaved) = (format!("{says}…"), says.starts_with(UNSAVED));
        let is_it = |line: &crate::Line| {
            let at = line.field("index").parse().ok();
            let is_there = at == Some(index) || unsaved && at > Some(index);
            let is_attempt = line.field("attempt").is_empty() != says.contains("attempt");
            line.message() == STALL && is_there && is_attempt && is_like(line.field("error"), &longer)
        };
        self.eventually(says, || lines_of(&self.name).iter().any(is_it));
        let line = lines_of(&self.name).into_iter().find(is_it).expect("it is there");
        let seconds: f64 = line.field("seconds").parse().unwrap();
        assert!(line.level == Level::WARN && seconds >= crate::SOON.as_secs_f64(), "{line:?}");
    }

    /// Checks and returns the store's entry of the consumer: the watermark, when it moved, and
    /// whether a life is open. `None` if nothing was ever saved.
    #[track_caller]
    fn kept(&self, open: Option<bool>) -> Option<ConsumerInfo> {
        assert_eq!(self.progress().history().unwrap(), [], "nobody moved it by hand");
        assert_eq!(self.progress().last_processed().unwrap(), self.last);
        let info = self.store.consumers().unwrap().into_iter().find(|info| info.name == self.name)?;
        assert_eq!((info.last_processed, &info.unreadable), (self.last, &None), "{info:#?}");
        assert_eq!(info.life_open, open.filter(|_| self.counts_lives), "{info:#?}");
        // Another progress keeps the time in its own way.
        assert_eq!(info.moved_at.is_some(), self.last.is_some() && self.counts_lives, "{info:#?}");
        if let Some(moved) = info.moved_at {
            assert!(*BEGUN <= moved + MS && moved <= self.time.wall(), "{info:#?}");
        }
        if let Some(last) = self.last {
            assert_eq!(info.next, Some(last + 1), "{info:#?}");
        }
        Some(info)
    }

    /// Checks that the store has the place of a consumer that has not halted or parked a job.
    #[track_caller]
    fn is_kept(&self, open: Option<bool>) {
        let info = self.kept(open);
        assert!(info.is_some() || self.last.is_none(), "it has a watermark");
        if let Some(info) = info {
            assert_eq!((info.last_halt, info.parked), (None, 0));
        }
    }

    /// Waits until the consumer has halted at this index for this reason, and its status, the event
    /// of the halt and the last event say so. Returns the text and the error.
    #[track_caller]
    fn ends(&self, consumer: Consumer, index: Index, says: &str) -> (String, Error) {
        let handle = consumer.handle();
        let error = consumer.join().expect_err("it halts");
        let status = handle.status();
        let Blocked::Halted { index: at, error: text } = &status.blocked else { panic!("{status:#?}") };
        assert!(*at == index && text.contains(says), "{status:#?}");
        assert_eq!(status.blocked.to_string(), format!("the consumer halted at {index}: {text}"));
        let (mut halts, mut ends) = (Vec::new(), Vec::new());
        for said in self.heard() {
            match said {
                Said::Halted(index, error) => halts.push((index, error)),
                Said::Ended(state, error) => ends.push((state, error)),
                _ => {}
            }
        }
        assert_eq!(halts, [(index, text.clone())]);
        assert_eq!(ends, [(State::Halted, Some(error.report()))]);
        let ended = handle.wait_end(Duration::ZERO).expect("it was joined");
        assert_eq!((ended.state, ended.error), (State::Halted, Some(error.report())));
        (text.clone(), error)
    }

    /// Does the same, and checks that the store keeps the halt.
    #[track_caller]
    fn halts(&self, consumer: Consumer, index: Index, says: &str) -> Error {
        let (text, error) = self.ends(consumer, index, says);
        let info = self.kept(Some(false)).expect("a halt is saved");
        let halt = info.last_halt.expect("it halted");
        assert_eq!((halt.index, halt.error), (index, text));
        assert!(*BEGUN <= halt.at + MS && halt.at <= self.time.wall());
        error
    }
}

/// Returns a job that waits at this index until the sender is dropped.
fn hangs_at<T>(index: Index) -> (Sender<()>, impl Fn(Job<T>) -> Result<(), BoxError> + Send + Sync + Clone) {
    let (hold, held) = bounded::<()>(0);
    let run = move |job: Job<T>| {
        if job.index == index {
            let _ = held.recv_timeout(LONG);
        }
        Ok(())
    };
    (hold, run)
}

/// True if the text is this one, in which "…" stands for anything.
fn is_like(text: &str, says: &str) -> bool {
    let behind = says.split('…').enumerate().try_fold(text, |text, (nth, part)| {
        let at = text.find(part).filter(|at| nth > 0 || *at == 0)?;
        Some(&text[at + part.len()..])
    });
    behind.is_some_and(|behind| behind.is_empty() || says.ends_with('…'))
}

const RUNS: &str = "job 1 has been running for …s (attempt 1)";
const SILENT: &str = "it has not answered for ";

fn unread(index: Index, why: &str) -> String {
    format!("the source cannot be read at {index}; the consumer goes on as soon as it can be: …{why}…")
}

const UNSAVED: &str = "the storage of the progress fails; the consumer goes on as soon as it works: ";

fn unsaved(why: &str) -> String {
    format!("{UNSAVED}…{why}…")
}

/// Lets time pass until another consumer has told of a stall several times, since its job hangs.
fn pass_the_time_of_a_stall(time: &Arc<Time>) {
    let (stuck, (hold, run)) = (Stuck { time: time.clone(), ..Stuck::new() }, hangs_at(1));
    let consumer = stuck.builder(numbers(2)).start(run).unwrap();
    stuck.stalls(&consumer.handle(), RUNS);
    drop(hold);
    consumer.stop().unwrap();
}

mod jobs {
    use super::*;

    #[test]
    fn a_job_that_hangs() {
        pass_the_time_of_a_stall(&Arc::default());
    }

    #[test]
    fn jobs_that_wait_for_their_next_attempt() {
        let fails: [(fn() -> BoxError, _); 2] = [
            (|| "no disk".into(), "job 1 failed in attempt 1 and is tried again in 3…s: no disk"),
            (|| Failure::defer(NEVER).into(), "job 1 was not ready and is tried again in 3…"),
        ];
        for (fail, says) in fails {
            let stuck = Stuck::new();
            let builder = stuck.builder(numbers(2)).retry(Retry::fixed(NEVER));
            let consumer = builder.start(move |job| if job.index == 1 { Err(fail()) } else { Ok(()) }).unwrap();
            stuck.stalls(&consumer.handle(), says);
            consumer.stop().unwrap();
        }
    }

    #[test]
    fn a_due_job_without_a_free_slot() {
        for (defers, says) in [(false, "job 1 failed in attempt …"), (true, "job 1 was not ready")] {
            let (stuck, (hold, run)) = (Stuck::new(), hangs_at(2));
            let builder = stuck.builder(numbers(3)).max_processing(1).retry(Retry::fixed(MS));
            let consumer = builder.start(move |job| match job.index {
                1 if defers => Err(Failure::defer(MS).into()),
                1 => Err("no disk".into()),
                _ => run(job),
            });
            let consumer = consumer.unwrap();
            let has_slot = |status: &Status| status.oldest.is_some_and(|oldest| oldest.index == 2);
            // Before that, job 1 may be due for a moment while the slot is free.
            until(&consumer.handle(), "job 2 to have the slot", has_slot);
            let says = format!("{says} and is tried again as soon as a slot is free: …");
            let status = stuck.stalls(&consumer.handle(), &says);
            assert!(has_slot(&status), "{status:#?}");
            drop(hold);
            consumer.stop().unwrap();
        }
    }

    #[test]
    fn a_token_that_is_never_used() {
        let (stuck, (keep, tokens)) = (Stuck::new(), unbounded::<Done>());
        let start = move |job: Job<u64>, done: Done| match job.index {
            0 => done.complete(),
            _ => _ = keep.send(done),
        };
        let consumer = stuck.builder(numbers(2)).start_deferred(start).unwrap();
        stuck.stalls(&consumer.handle(), RUNS);
        tokens.recv().unwrap().complete();
        consumer.stop().unwrap();
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn a_future_that_is_never_ready() {
        let stuck = Stuck::new();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let run = |job: Job<u64>| async move { if job.index == 0 { Ok(()) } else { std::future::pending().await } };
        let consumer = stuck.builder(numbers(2)).start_async(runtime.handle(), run).unwrap();
        stuck.stalls(&consumer.handle(), RUNS);
        let given_up = consumer.stop_within(Duration::ZERO);
        assert!(matches!(given_up, Err(Error::StopTimeout { running }) if running == [1]));
    }

    #[test]
    fn a_sink_that_hangs() {
        let (stuck, (hold, run)) = (Stuck::new(), hangs_at(1));
        let consumer = stuck.builder(numbers(4)).start_ordered(Ok, move |_, job| run(job)).unwrap();
        stuck.stalls(&consumer.handle(), RUNS);
        drop(hold);
        consumer.stop().unwrap();
    }

    #[test]
    fn a_window_closed_behind_a_hanging_job() {
        let (stuck, (hold, run)) = (Stuck::new(), hangs_at(1));
        let consumer = stuck.builder(numbers(9)).max_search_ahead(3).start(run).unwrap();
        let handle = consumer.handle();
        until(&handle, "the end of the window", |status| (status.next, status.done_ahead) == (4, 2));
        let status = stuck.stalls(&handle, RUNS);
        assert_eq!((status.next, status.lag()), (4, 8), "no job above the window starts");
        eventually("jobs 2 and 3 are kept", || stuck.kept(Some(true)).is_some_and(|info| info.done_ahead == 2));
        drop(hold);
        consumer.stop().unwrap();
    }

    #[test]
    fn a_redriven_job_in_the_only_slot() {
        let (stuck, (hold, run)) = (Stuck::new().at(Some(1)), hangs_at(1));
        let jobs = numbers(2);
        let builder = stuck.builder(jobs.clone()).max_processing(1).on_exhausted(OnExhausted::Park { budget: 9 });
        let consumer = builder.start(move |job| match (job.index, job.attempt) {
            (1, 1) => Err("no disk".into()),
            _ => run(job),
        });
        let consumer = consumer.unwrap();
        let handle = consumer.handle();
        assert!(handle.wait_for(1, LONG));
        handle.redrive(1).unwrap();
        until(&handle, "the attempt", |status| status.processing == 1);
        jobs.push(2);
        let runs = |status: &Status| is_like(&status.blocked.to_string(), "job 1 has been running for …s (attempt 2)");
        stuck.until(&handle, "job 1, and not job 2", |status| status.head == Some(2) && runs(status));
        let stalled = |said: &Said| matches!(said, Said::Stalled(status) if runs(status));
        stuck.eventually("the event", || stuck.heard().iter().any(stalled));
        let parked = |said: &&Said| matches!(said, Said::Parked(1, error) if error == "no disk");
        assert_eq!(stuck.heard().iter().filter(parked).count(), 1, "{:#?}", stuck.heard());
        let kept = stuck.kept(Some(true)).unwrap();
        assert_eq!((kept.parked, kept.last_halt), (1, None));
        assert_eq!(stuck.store.parked(&stuck.name).unwrap()[0].index, 1);
        drop(hold);
        stuck.reaches(&handle, 2);
        consumer.stop().unwrap();
    }

    #[test]
    fn threads_that_are_all_busy_elsewhere() {
        for (threads, who) in
            [(1, "the one thread of the consumer has not"), (2, "none of the consumer's 2 threads has")]
        {
            let last = threads as Index;
            let (stuck, (hold, held)) = (Stuck::new().at(Some(last)), bounded::<()>(0));
            let start = move |job: Job<u64>, done: Done| {
                done.complete();
                if job.index >= 1 {
                    let _ = held.recv_timeout(LONG);
                }
            };
            let consumer = stuck.builder(numbers(last + 2)).threads(threads).start_deferred(start).unwrap();
            let says = format!("no job can start: {who} returned from a job, a closure, a callback…");
            let status = stuck.stalls(&consumer.handle(), &says);
            let Blocked::Threads { elapsed, .. } = status.blocked else { unreachable!() };
            assert!(elapsed >= SOON && status.processing == 0, "{elapsed:?}");
            drop(hold);
            consumer.stop().unwrap();
        }
    }
}

mod sources {
    use super::*;

    const MISSING: &str =
        "the source reports a head at or above 1 but returned no job at 1; retrying; bring the job back, or …";

    /// Starts a consumer on a source that notifies, and waits until it has caught up with job 0.
    fn caught_up(stuck: &Stuck, script: &Script) -> Consumer {
        let consumer = stuck.start(script.clone());
        assert!(consumer.handle().wait_for(0, LONG));
        until(&consumer.handle(), "the end of the source", |status| status.blocked == Blocked::CaughtUp);
        consumer
    }

    /// A source that waits for an uncommitted row above its head.
    struct Waits(Script);

    impl Jobs for Waits {
        type Job = Index;
        fn head(&self) -> Result<Option<Index>, BoxError> {
            self.0.head()
        }
        fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
            self.0.at_index(index)
        }
        fn waits_for(&self) -> Option<String> {
            Some("process 7 has not committed".to_owned())
        }
    }

    #[test]
    fn a_waiting_source_behind_adapters() {
        let stuck = Stuck::new();
        let consumer = stuck.start(Arc::new(Waits(Script::up_to(0))).confirmed(0));
        let says = "the source shows no job from 1 on, since it waits: process 7 has not committed";
        stuck.stalls(&consumer.handle(), says);
        assert_eq!(serde_json::json!(consumer.handle().status())["blocked"], "source_waits");
        consumer.stop().unwrap();
    }

    #[test]
    fn a_head_that_hangs_when_all_is_processed() {
        let (stuck, script) = (Stuck::new(), Script::up_to(0).subscribing());
        let consumer = caught_up(&stuck, &script);
        let gate = script.gated();
        script.ring();
        stuck.stalls(&consumer.handle(), &unread(1, SILENT));
        consumer.handle().request_stop();
        line(&stuck.name, Level::DEBUG, "has ended");
        let still = |line: &crate::Line| line.field("error").contains("has ended, but");
        stuck.eventually("a stop that hangs is told of", || lines_of(&stuck.name).iter().any(still));
        script.ungate();
        drop(gate);
        consumer.stop().unwrap();
    }

    #[test]
    fn promise_04_sources_that_fail_and_panic_and_hang() {
        let faults = [(Some(Fault::Error), "fails"), (Some(Fault::Panic), "panics"), (None, "hangs")];
        for (at_start, call, (fault, does)) in [true, false].into_iter().flat_map(|at_start| {
            ["head", "at_index"].into_iter().flat_map(move |call| faults.map(|fault| (at_start, call, fault)))
        }) {
            // A read that fails at job 1 has brought job 0.
            let is_first = at_start && (call == "head" || fault.is_none());
            let stuck = if is_first { Stuck::new().at(None) } else { Stuck::new() };
            let (stuck, last) = if call == "head" { (stuck, 0) } else { (stuck.seeing(3), 3) };
            let script = Script::up_to(if at_start { last } else { 0 }).subscribing();
            let running = (!at_start).then(|| caught_up(&stuck, &script));
            script.set_head(Some(last));
            match fault {
                Some(fault) if call == "head" => script.fail_head(fault),
                Some(fault) => script.fail_at(1, fault),
                None => {}
            }
            let gate = fault.is_none().then(|| script.gated());
            let consumer = running.unwrap_or_else(|| stuck.start(script.clone()));
            script.ring();
            gate.iter().for_each(|gate| gate.wait_for(call));
            let why = if fault.is_some() { format!("{call} {does} as scripted") } else { SILENT.to_owned() };
            let status = stuck.stalls(&consumer.handle(), &unread(u64::from(!is_first), &why));
            assert!(
                status.state == State::Running && (call == "at_index" || status.head.is_none() == is_first),
                "{status:#?}"
            );
            // It does not notify when it recovers.
            script.heal();
            script.ungate();
            drop(gate);
            stuck.goes_on(consumer, last);
        }
    }

    #[test]
    fn a_job_that_is_missing() {
        let (stuck, script) = (Stuck::new(), Script::up_to(3));
        script.gap(1);
        let consumer = stuck.start(script);
        let status = stuck.stalls(&consumer.handle(), MISSING);
        assert_eq!(status.head, Some(3));
        assert_says(&line(&stuck.name, Level::DEBUG, "returned no job"), "1", "", "");
        consumer.stop().unwrap();
        // The way out that the sentence names.
        stuck.progress().skip(1, "it is gone for good").unwrap();
        assert_eq!(stuck.progress().last_processed().unwrap(), Some(1));
    }

    #[test]
    fn a_failed_job_gone_from_its_source() {
        let (stuck, script) = (Stuck::new(), Script::up_to(1));
        let gone = script.clone();
        let builder = stuck.builder(script).retry(Retry::fixed(MS));
        let consumer = builder.start(move |job| match job.index {
            0 => Ok(()),
            _ => {
                gone.gap(1);
                Err("no disk".into())
            }
        });
        let consumer = consumer.unwrap();
        stuck.stalls(&consumer.handle(), MISSING);
        consumer.stop().unwrap();
    }

    #[test]
    fn a_source_that_lost_jobs_and_one_that_lost_all() {
        for (head, says) in [
            (Some(1), "the source ends at 1, below the last processed index 3: it lost jobs"),
            (None, "the source is empty, but jobs up to 3 were processed: it lost jobs"),
        ] {
            let (stuck, script) = (Stuck::new().at(Some(3)), Script::up_to(3));
            stuck.builder(script.clone()).stop_at(3).start(|_| Ok(())).unwrap().join().unwrap();
            script.set_head(head);
            let consumer = stuck.start(script);
            stuck.stalls(&consumer.handle(), &format!("{says}…; restore the jobs, or use a progress of its own…"));
            consumer.stop().unwrap();
        }
    }

    #[test]
    fn a_source_that_is_truncated_at_the_start() {
        let (stuck, script) = (Stuck::new(), Script::up_to(5));
        stuck.builder(script.clone()).stop_at(0).start(|_| Ok(())).unwrap().join().unwrap();
        script.set_first(4);
        let error = stuck.builder(script.clone()).start(|_| panic!("nothing may run")).map(drop).unwrap_err();
        assert!(matches!(error, Error::Truncated { next: 1, first: 4 }), "{error:?}");
        assert!(error.to_string().contains("from 1 to 3"), "{error}");
        assert!(script.ring().iter().all(|listens| !listens), "the source learns that nobody listens");
        let explicit = builder(script.clone(), &MemoryProgress::new()).start_at(2).start(|_| Ok(()));
        assert!(matches!(explicit, Err(Error::Truncated { next: 2, first: 4 })), "{explicit:?}");
        // No consumer has started, so none has halted.
        stuck.is_kept(Some(false));
        script.set_first(1);
        stuck.builder(script).stop_at(5).start(|_| Ok(())).unwrap().join().unwrap();
    }

    #[test]
    fn a_source_that_is_truncated_while_it_runs() {
        for waits_for_a_job in [false, true] {
            let (stuck, script) = (Stuck::new(), Script::up_to(0).subscribing());
            let consumer = caught_up(&stuck, &script);
            script.set_head(Some(5));
            if waits_for_a_job {
                script.gap(1);
                script.ring();
                let missing = |status: &Status| status.blocked == Blocked::Missing { index: 1 };
                stuck.until(&consumer.handle(), "the gap", missing);
            }
            script.set_first(3);
            consumer.handle().check();
            let error = stuck.halts(consumer, 1, "begins at 3");
            assert!(matches!(error, Error::Truncated { next: 1, first: 3 }), "{error:?}");
        }
    }

    #[test]
    fn an_upstream_that_is_behind_and_one_that_has_ended() {
        let stuck = Stuck::new();
        let upstream = Consumer::builder(numbers(1), Store::in_memory().progress("fetch")).start(|_| Ok(())).unwrap();
        let consumer = stuck.builder(numbers(3).gated_by(upstream.handle())).start(|_| Ok(())).unwrap();
        let handle = consumer.handle();
        let says = "job 1 is held back by the gate of its source: the stage before it has not processed it…";
        let status = stuck.stalls(&handle, says);
        assert_eq!(status.ended_upstream, None);
        upstream.stop().unwrap();
        let status = stuck.until(&handle, "the end of the upstream", |status| status.ended_upstream.is_some());
        assert!(status.to_string().ends_with(r#"has ended (its upstream "fetch" has ended)"#), "{status}");
        let names_it = |said: &Said| match said {
            Said::Stalled(status) => status.ended_upstream.as_deref() == Some("fetch"),
            _ => false,
        };
        stuck.eventually("the event", || stuck.heard().iter().any(names_it));
        stuck.is_kept(Some(true));
        consumer.stop().unwrap();
    }

    #[test]
    fn a_log_that_is_full() {
        let stuck = Stuck::new();
        let log = stuck.store.log::<u64>("out").unwrap();
        let jobs = log.hold_back(numbers(3), 1);
        let consumer = stuck.builder(jobs).start(move |job| Ok(log.push(&job.index).map(drop)?)).unwrap();
        let says =
            "job 1 is held back: the log \"out\" is full, with 1 of 1 items not trimmed; name the consumers behind it…";
        stuck.stalls(&consumer.handle(), says);
        consumer.stop().unwrap();
    }
}

mod saves {
    use super::*;

    /// Starts a consumer on a disk that is full once job 0 is saved. Job 1 is done.
    fn on_full_disk() -> (FaultyStore, Stuck, Consumer) {
        let disk = FaultyStore::new().unwrap();
        let (stuck, jobs) = (Stuck::on(disk.store()), numbers(1));
        let consumer = stuck.start(jobs.clone());
        assert!(consumer.handle().wait_for(0, LONG));
        disk.fail(..);
        jobs.push(1);
        (disk, stuck, consumer)
    }

    #[test]
    fn a_store_that_cannot_save() {
        let (disk, stuck, consumer) = on_full_disk();
        let status = stuck.stalls(&consumer.handle(), &unsaved(""));
        assert_eq!((status.done, status.unsaved), (2, 1));
        disk.heal();
        stuck.goes_on(consumer, 1);
    }

    #[test]
    fn a_stop_on_a_store_that_cannot_save() {
        let (_disk, stuck, consumer) = on_full_disk();
        let handle = consumer.handle();
        until(&handle, "the failure", |status| matches!(status.blocked, Blocked::Progress { .. }));
        handle.request_stop();
        let (_, error) = stuck.ends(consumer, 1, "the progress could not be saved: ");
        assert!(matches!(error, Error::Progress { .. }), "{error:?}");
        // The store could not record the failure either, so the life is still open there.
        stuck.is_kept(Some(true));
    }

    #[test]
    fn promise_04_saves_that_fail_and_panic_and_hang() {
        for says in ["the disk fails", "the disk panics in write", "the save has not returned for "] {
            let (mut stuck, jobs) = (Stuck::new(), numbers(1));
            let (consumer, faults) = stuck.faulty(&jobs);
            let handle = consumer.handle();
            let saves = handle.status().saves;
            let hold = says.starts_with("the save").then(|| faults.hold());
            match says {
                "the disk fails" => faults.fail(..),
                "the disk panics in write" => faults.panic(..),
                _ => {}
            }
            jobs.push(1);
            hold.iter().for_each(|hold| hold.wait());
            let status = stuck.stalls(&handle, &unsaved(says));
            assert_eq!((status.done, status.saves), (2, saves), "a save that fails is none");
            if hold.is_none() {
                let failed = line(&stuck.name, Level::WARN, "could not be saved");
                assert!(failed.field("error").contains(says) && !failed.field("index").is_empty(), "{failed:?}");
            }
            drop(hold);
            faults.heal();
            stuck.goes_on(consumer, 1);
        }
    }

    #[test]
    fn effects_waiting_for_a_store_that_cannot_save() {
        let disk = FaultyStore::new().unwrap();
        let (stuck, jobs) = (Stuck::on(disk.store()), numbers(1));
        let rows = stuck.store.table("rows").unwrap();
        let builder = stuck.builder(jobs.clone()).unlimited_search_ahead().max_effects(1_000);
        let put = move |job: Job<u64>, effects: &mut waterline::Effects| {
            Ok(effects.put(&rows, job.index.to_be_bytes(), [7; 100])?)
        };
        let consumer = builder.start_transactional(put).unwrap();
        let handle = consumer.handle();
        assert!(handle.wait_for(0, LONG));
        disk.fail(..);
        (1..100).for_each(|index| _ = jobs.push(index));
        let status = stuck.stalls(&handle, &unsaved(""));
        assert!(status.done < 30, "the effects that wait are bounded: {status:#?}");
        disk.heal();
        stuck.goes_on(consumer, 99);
    }
}

mod steering {
    use super::*;

    /// Waits until the consumer rests for this reason, which is no stall.
    #[track_caller]
    fn rests(stuck: &Stuck, handle: &Handle, wanted: &Blocked, says: &str) {
        until(handle, says, |status| status.blocked == *wanted && status.last_processed == stuck.last);
        assert_eq!(handle.status().blocked.to_string(), says);
        pass_the_time_of_a_stall(&stuck.time);
        assert!(stuck.heard().is_empty(), "it is no stall: {:#?}", stuck.heard());
        assert_eq!(handle.status().blocked, *wanted);
        stuck.is_kept(Some(true));
    }

    #[test]
    fn a_consumer_that_has_caught_up() {
        let stuck = Stuck::new();
        let consumer = stuck.start(numbers(1));
        let says = "every job that the source has is processed; the next one is not there yet";
        rests(&stuck, &consumer.handle(), &Blocked::CaughtUp, says);
        consumer.stop().unwrap();
    }

    #[test]
    fn a_consumer_that_is_paused() {
        let (stuck, jobs) = (Stuck::new().at(None), numbers(0));
        let consumer = stuck.start(jobs.clone());
        let handle = consumer.handle();
        handle.pause();
        jobs.push(1);
        rests(&stuck, &handle, &Blocked::Paused, "the consumer is paused; resume it to go on");
        assert_eq!(handle.status().state, State::Paused);
        handle.resume();
        assert!(handle.wait_for(0, LONG));
        consumer.stop().unwrap();
    }

    #[test]
    fn a_consumer_that_its_progress_holds() {
        let (mut stuck, jobs) = (Stuck::new().seeing(1), numbers(1));
        let (consumer, faults) = stuck.faulty(&jobs);
        let tenure = faults.tenure().unwrap();
        tenure.hold("the lease server does not answer");
        jobs.push(1);
        let says = "no job starts before the progress lets the consumer go on, which holds it back: the lease server…";
        stuck.stalls(&consumer.handle(), says);
        tenure.go_on();
        stuck.goes_on(consumer, 1);
    }

    #[test]
    fn a_name_that_another_consumer_has() {
        let mut stuck = Stuck::new();
        let (consumer, faults) = stuck.faulty(&numbers(1));
        faults.tenure().unwrap().lost("node b has it".into());
        let (_, error) = stuck.ends(consumer, 1, "node b has it");
        assert!(matches!(&error, Error::Fenced { name, .. } if *name == stuck.name), "{error:?}");
        // It no longer writes to a progress that another consumer has.
        stuck.is_kept(None);
    }

    #[test]
    fn a_stop_that_waits_for_a_job() {
        let (stuck, (hold, run)) = (Stuck::new(), hangs_at(1));
        let consumer = stuck.builder(numbers(3)).max_processing(1).start(run).unwrap();
        let handle = consumer.handle();
        until(&handle, "the job", |status| matches!(status.blocked, Blocked::Running { index: 1, .. }));
        handle.request_stop();
        stuck.stalls(&handle, RUNS);
        assert_eq!(handle.status().state, State::Stopping);
        let told = |said: &Said| matches!(said, Said::Stalled(status) if status.state == State::Stopping);
        stuck.eventually("the event", || stuck.heard().iter().any(told));
        drop(hold);
        consumer.stop().unwrap();
    }

    #[test]
    fn an_end_that_waits_for_a_callback() {
        let (stuck, (hold, held)) = (Stuck::new(), bounded::<()>(0));
        let builder = stuck.builder(numbers(1)).on_processed(move |_| _ = held.recv_timeout(LONG));
        let consumer = builder.stop_at(0).start(|_| Ok(())).unwrap();
        let handle = consumer.handle();
        let leaves = |status: &Status| matches!(status.blocked, Blocked::Leaving { elapsed } if elapsed >= SOON);
        let status = stuck.until(&handle, "the reason", leaves);
        assert_eq!((status.state, status.last_processed), (State::Finished, Some(0)));
        let says = status.blocked.to_string();
        assert!(says.starts_with("the consumer ended ") && says.ends_with("; end what blocks it there"), "{says}");
        // Everything is saved, and the observers are told of the end.
        let ends = |said: &Said| matches!(said, Said::Ended(State::Finished, None));
        stuck.eventually("the event", || stuck.heard().iter().filter(|said| ends(said)).count() == 1);
        stuck.is_kept(Some(false));
        drop(hold);
        consumer.join().unwrap();
        assert_eq!(handle.status().blocked, Blocked::No, "everybody is gone");
    }

    #[test]
    fn an_end_that_waits_for_an_abandoned_job() {
        let (stuck, (hold, run)) = (Stuck::new(), hangs_at(1));
        let consumer = stuck.builder(numbers(2)).start(run).unwrap();
        let handle = consumer.handle();
        stuck.stalls(&handle, RUNS);
        let given_up = consumer.stop_within(Duration::ZERO);
        assert!(matches!(given_up, Err(Error::StopTimeout { running }) if running == [1]));
        let leaves = |status: &Status| matches!(status.blocked, Blocked::Leaving { .. });
        let status = stuck.until(&handle, "the reason", leaves);
        assert!(status.blocked.to_string().contains(" ago, but a job, "), "{status}");
        stuck.is_kept(Some(false));
        drop(hold);
        assert!(handle.wait_end(LONG).is_some());
        assert_eq!(handle.status().blocked, Blocked::No, "everybody is gone");
    }

    #[test]
    fn a_callback_that_panics() {
        let stuck = Stuck::new();
        let builder = stuck.builder(numbers(1)).on_processed(|_| panic!("no such table"));
        let consumer = builder.start(|_| Ok(())).unwrap();
        let error = stuck.halts(consumer, 0, "on_processed panicked: no such table");
        assert!(matches!(error, Error::Callback { index: 0, .. }), "{error:?}");
    }
}

mod failures {
    use super::*;

    fn refuses_from(index: Index) -> impl Fn(Job<u64>) -> Result<(), BoxError> + Send + Sync {
        move |job| if job.index >= index { Err(format!("no disk for {}", job.index).into()) } else { Ok(()) }
    }

    #[test]
    fn a_job_that_has_no_attempt_left() {
        let stuck = Stuck::new();
        let retry = Retry::fixed(Duration::ZERO).max_attempts(2);
        let builder = stuck.builder(numbers(2)).max_processing(1).retry(retry);
        let error = stuck.halts(builder.start(refuses_from(1)).unwrap(), 1, "job 1 failed in attempt 2: no disk for 1");
        assert!(matches!(error, Error::Job { index: 1, attempt: 2, .. }), "{error:?}");
    }

    #[test]
    fn a_halt_that_waits_for_another_job() {
        let (stuck, (hold, run)) = (Stuck::new(), hangs_at(2));
        let (refuse, refused) = bounded::<()>(0);
        let consumer = stuck.builder(numbers(3)).start(move |job| match job.index {
            1 => Err(refused.recv().map_or("too early", |()| "no disk").into()),
            _ => run(job),
        });
        let consumer = consumer.unwrap();
        let handle = consumer.handle();
        until(&handle, "both jobs", |status| status.processing == 2 && status.last_processed == Some(0));
        refuse.send(()).unwrap();
        let halted = |status: &Status| matches!(status.blocked, Blocked::Halted { index: 1, .. });
        let status = until(&handle, "the halt", halted);
        assert_eq!((status.state, status.oldest.map(|oldest| oldest.index)), (State::Halted, Some(2)));
        // The halt is told of and stored while the consumer still waits.
        let told = |said: &Said| matches!(said, Said::Stalled(status) if halted(status));
        stuck.eventually("the event", || stuck.heard().iter().any(told));
        line(&stuck.name, Level::WARN, "the consumer halts");
        stuck.warns(2, "job 2 has been running for …s (attempt 1)");
        eventually("the record", || stuck.kept(Some(true)).is_some_and(|info| info.last_halt.is_some()));
        drop(hold);
        stuck.halts(consumer, 1, "job 1 failed in attempt 1: no disk");
    }

    #[test]
    fn a_budget_that_is_used_up() {
        let stuck = Stuck::new().at(Some(1));
        let builder = stuck.builder(numbers(3)).max_processing(1).on_exhausted(OnExhausted::Park { budget: 1 });
        let error = stuck.halts(builder.start(refuses_from(1)).unwrap(), 2, "job 2 failed in attempt 1: no disk for 2");
        assert!(matches!(error, Error::Job { index: 2, .. }), "{error:?}");
        let parked: Vec<_> = stuck.heard().into_iter().filter(|said| matches!(said, Said::Parked(..))).collect();
        assert!(matches!(&parked[..], [Said::Parked(1, error)] if error == "no disk for 1"), "{parked:#?}");
        let parked = stuck.store.parked(&stuck.name).unwrap();
        assert_eq!((parked.len(), parked[0].index, &*parked[0].error), (1, 1, "no disk for 1"));
        let halt = stuck.kept(Some(false)).unwrap().last_halt.unwrap();
        assert!(halt.error.contains("budget"), "the sentence says that it could not be parked: {}", halt.error);
    }
}

mod crashes {
    use super::*;

    /// Lets the process of a consumer die this often while job 1 runs, after job 0 is saved.
    fn died(times: usize, max_crashes: u32) -> (FaultyStore, Stuck) {
        let mut disk = FaultyStore::new().unwrap();
        let stuck = Stuck::on(disk.store());
        for _ in 0..times {
            let builder = Consumer::builder(numbers(2), disk.store().progress(&stuck.name)).max_crashes(max_crashes);
            std::thread::scope(|scope| {
                let (say, said) = bounded::<()>(0);
                let consumer = builder.stop_at(1).max_search_ahead(1).start(move |job| {
                    if job.index == 1 {
                        say.send(())?;
                        say.send(())?;
                    }
                    Ok(())
                });
                let consumer = consumer.unwrap();
                said.recv_timeout(LONG).unwrap();
                disk.freeze_at(0);
                scope.spawn(move || said.recv_timeout(LONG).unwrap());
                consumer.join().unwrap();
            });
            disk = disk.after_crash().unwrap();
        }
        let store = disk.store();
        (disk, Stuck { store, ..stuck })
    }

    #[test]
    fn a_job_that_killed_its_process_too_often() {
        // After the first death jobs are recorded, after the second job 1 is a suspect, and the
        // third is counted.
        let (_disk, stuck) = died(3, 1);
        let consumer = stuck.builder(numbers(2)).max_crashes(1).start(|_| Ok(())).unwrap();
        let error = stuck.halts(consumer, 1, "died once while job 1 ran alone");
        assert!(matches!(error, Error::Crashed { index: 1, crashes: 1 }), "{error:?}");
    }

    #[test]
    fn jobs_waiting_to_be_recorded_by_a_failing_store() {
        let ((disk, stuck), script) = (died(1, 9), Script::up_to(3));
        let gate = script.gated();
        let consumer = stuck.start(script.clone());
        gate.wait_for("head");
        disk.fail(..);
        script.ungate();
        drop(gate);
        let status = stuck.stalls(&consumer.handle(), &unsaved(""));
        assert_eq!((status.next, status.processing), (1, 0), "nothing starts before it is recorded");
        disk.heal();
        stuck.goes_on(consumer, 3);
    }

    /// A life after a crash lets the jobs above start once no job is left to record.
    #[test]
    fn a_hanging_suspect_beside_new_jobs() {
        let ((_disk, stuck), jobs, (hold, run)) = (died(1, 9), numbers(2), hangs_at(1));
        let consumer = stuck.builder(jobs.clone()).start(run).unwrap();
        let handle = consumer.handle();
        until(&handle, "job 1", |status| status.processing == 1);
        (2..9).for_each(|index| _ = jobs.push(index));
        until(&handle, "the other jobs", |status| status.done_ahead == 7);
        stuck.stalls(&handle, RUNS);
        drop(hold);
        consumer.stop().unwrap();
    }

    #[test]
    fn a_suspect_that_waits_to_run_alone() {
        let ((_disk, stuck), script, (hold, run)) = (died(2, 9), Script::up_to(2), hangs_at(2));
        // Job 1 cannot be read, and the job above it starts.
        script.fail_at(1, Fault::Error);
        let consumer = stuck.builder(script.clone()).start(run).unwrap();
        let handle = consumer.handle();
        until(&handle, "job 2", |status| status.oldest.is_some_and(|oldest| oldest.index == 2));
        let says =
            "the process died while job 1 may have run, so this job runs alone: it starts when no other job is in…";
        stuck.stalls(&handle, says);
        script.heal();
        drop(hold);
        stuck.goes_on(consumer, 2);
    }

    #[test]
    fn a_suspect_that_the_source_does_not_return() {
        let ((_disk, stuck), script) = (died(2, 9), Script::up_to(1));
        let stuck = stuck.seeing(1);
        let gate = script.gated();
        let consumer = stuck.start(script.clone());
        gate.wait_for("at_index");
        stuck.stalls(&consumer.handle(), &unread(1, SILENT));
        script.ungate();
        drop(gate);
        stuck.goes_on(consumer, 1);
    }

    #[test]
    fn a_suspect_whose_crash_cannot_be_counted() {
        let ((disk, stuck), script) = (died(2, 9), Script::up_to(1));
        let gate = script.gated();
        disk.fail(1..);
        let consumer = stuck.start(script.clone());
        let status = stuck.stalls(&consumer.handle(), &unsaved(""));
        assert_eq!(status.processing, 0);
        disk.heal();
        script.ungate();
        drop(gate);
        stuck.goes_on(consumer, 1);
    }
}
