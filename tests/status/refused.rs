//! The error text of each refused setting, word for word: it says what to write instead. Those of a
//! consumer's numbers are in `bad_input`.

use common::*;
use std::time::{Duration, SystemTime};
use waterline::{BoxError, Codec, Error, Index, Jobs, Retry, Sparse, Store};
use waterline_queue::{
    Accept, CatchUp, ConfigError, Every, Fair, Group, Limit, NewJob, Outcome, Queue, QueueError, QueueOptions, Rate,
    Runner, RunnerGate, Running,
};

/// Returns the error of a refused call.
trait Refusal {
    fn refusal(self) -> ConfigError;
}

impl<T> Refusal for Result<T, Error> {
    fn refusal(self) -> ConfigError {
        let Err(Error::Config(refused)) = self else { panic!("it was not refused: {:?}", self.err()) };
        refused.into()
    }
}

impl<T> Refusal for Result<T, QueueError> {
    fn refusal(self) -> ConfigError {
        let Err(QueueError::Config(refused)) = self else { panic!("it was not refused: {:?}", self.err()) };
        refused
    }
}

#[track_caller]
fn check(cases: impl IntoIterator<Item = (ConfigError, &'static str)>) {
    for (refused, text) in cases {
        assert_eq!(refused.to_string(), text);
        assert_eq!(format!("{refused:?}"), text);
    }
}

fn job() -> NewJob {
    NewJob::new("k", &()).unwrap()
}

#[test]
fn a_zero_in_a_queue_is_refused_with_its_reason() {
    let store = Store::in_memory();
    let open = |options| Queue::open(&store, "q", options).refusal();
    let options = QueueOptions::default;
    let queue = Queue::open(&store, "open", options()).unwrap();
    let runner = || Runner::builder(&queue).on("k", |_: &Running, ()| Ok(Outcome::Done));
    let rate = |rate| open(options().limit(Limit::key("host").rate(rate)));
    let no_rate = "the rate of the key \"host\" has a count, a period or a burst of 0: each must be above 0";
    check([
        (
            open(options().lease(Duration::ZERO)),
            "the lease is 0, so each job would be taken back at once: use some seconds at least",
        ),
        (
            open(options().max_crashes(0)),
            "max_crashes is 0, so a job that ran while its process died could never run again: use 1 or more",
        ),
        (
            open(options().heal_after(Duration::ZERO)),
            "heal_after is 0, so no job would ever use up its attempts: use a time, or leave it out",
        ),
        (open(options().max_payload(0)), "max_payload is 0 bytes, so each push would be refused: use some kB at least"),
        (
            open(options().max_payload((256 << 20) + 1)),
            "max_payload is more than 256 MB: keep what is so large in a file or a table, and push its name",
        ),
        (
            open(options().max_waiting(0)),
            "max_waiting is 0, so each push would be refused: use 1 or more (to hold the jobs back, pause the queue)",
        ),
        (
            open(options().limit(Limit::queue().at_once(0))),
            "the limit of the queue lets 0 jobs run at once, so none would ever run: use 1 at least, or pause the queue",
        ),
        (rate(Rate::new(0, HOUR)), no_rate),
        (rate(Rate::new(1, Duration::ZERO)), no_rate),
        (rate(Rate::new(1, HOUR).burst(0)), no_rate),
        (queue.push(job().cost(0)).refusal(), "the cost of the job is 0: use 1 at least, or no rate for such jobs"),
        (
            queue.periodic("p", Every::seconds(0), job()).start().refusal(),
            "the interval of the periodic job is 0, so it would run without a pause: use a millisecond or more",
        ),
        (
            runner().gate(RunnerGate::new("disk", || true).every(Duration::ZERO)).start().refusal(),
            "the answers of the gate \"disk\" hold for no time: use some milliseconds at least",
        ),
        (
            runner().attempt_timeout(Duration::ZERO).start().refusal(),
            "attempt_timeout is zero, so no attempt could end in time: leave it out for no timeout",
        ),
        (
            runner().max_processing(0).start().refusal(),
            "max_processing is 0, so no job would ever run: use at least 1 (to hold a consumer or a queue back, use `pause`)",
        ),
    ]);
    let read = numbers(9).read_sparse(0..=8, 0, &mut Sparse::new(0)).unwrap_err();
    assert_eq!(read.to_string(), "a read for 0 jobs says nothing: use 1 at least for `most`");
}

struct Long;

impl Codec<String> for Long {
    const NAME: &'static str = "a codec with a name of more bytes";

    fn encode(&self, _: &String, _: &mut Vec<u8>) -> Result<(), BoxError> {
        Ok(())
    }

    fn decode(&self, _: &[u8]) -> Result<String, BoxError> {
        Ok(String::new())
    }
}

#[test]
fn a_text_too_long_or_empty_is_refused_with_the_bound() {
    let store = Store::in_memory();
    let queue = Queue::open(&store, "q", QueueOptions::default()).unwrap();
    queue.push(job()).unwrap();
    let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
    let long = "x".repeat(256);
    let cases = |text: &str| {
        [
            (queue.push(job().id(text)).refusal(), "the id of a job"),
            (queue.push(job().root(text, SystemTime::now())).refusal(), "the signature of a root"),
            (queue.push(job().meta(text, &1).unwrap()).refusal(), "a key of metadata, or of a note,"),
            (queue.notes("k").unwrap().set(text, 1).refusal(), "a key of metadata, or of a note,"),
            (queue.push(job().key(text)).refusal(), "the key of a job's limits"),
            (queue.push(NewJob::new(text, &()).unwrap()).refusal(), "the kind of a job"),
        ]
    };
    for (text, length) in [("", 0), (long.as_str(), 256)] {
        for (refused, what) in cases(text) {
            assert_eq!(refused.to_string(), format!("{what} has {length} bytes: use 1 to 255"));
        }
        for (refused, what) in [
            (store.table(text).refusal(), "table"),
            (store.log::<u64>(text).refusal(), "log"),
            (store.progress(text).remove().refusal(), "progress"),
            (Queue::open(&store, text, QueueOptions::default()).refusal(), "queue"),
            (queue.periodic(text, Every::hours(1), job()).start().refusal(), "periodic job"),
        ] {
            assert_eq!(refused.to_string(), format!("the {what} name is {length} bytes long: use 1 to 255 bytes"));
        }
    }
    check([
        (
            lease.progress(0.5, "x".repeat(1_025)).refusal(),
            "the note of the progress has 1025 bytes: use at most 1,024",
        ),
        (store.progress("p").seek(1, "").refusal(), "the reason of the move is 0 bytes long: use 1 to 1024 bytes"),
        (
            store.log_with("l", Long).refusal(),
            "the name of the codec \"a codec with a name of more bytes\" is 33 bytes long: use 1 to 32 bytes",
        ),
    ]);
}

#[test]
fn impossible_limits_and_groups_are_refused() {
    let store = Store::in_memory();
    let limits = |limits: [Limit; 2]| {
        let options = limits.into_iter().fold(QueueOptions::default(), QueueOptions::limit);
        Queue::open(&store, "q", options).refusal()
    };
    let options = QueueOptions::default;
    let group = || Group::new(&store);
    let two = || group().queue("a", ["k"], options()).queue("b", ["l"], options());
    let open = two().open().unwrap();
    check([
        (
            limits([Limit::kind("k"), Limit::each_key().at_once(1)]),
            "the limit of the kind \"k\" has neither a number of jobs at once nor a rate: set one of them, or leave it out",
        ),
        (
            limits([Limit::each_key().at_once(1), Limit::each_key().at_once(2)]),
            "the limit of each key is set twice: set both numbers in one limit",
        ),
        (
            group().open().refusal(),
            "the group has no queue to claim from: add one with `queue`, and leave one in with `only_when_asked`, `only` and \
             `except`",
        ),
        (
            two().queue("a", ["m"], options()).open().refusal(),
            "the queue \"a\" is twice in the group: name it once, with all of its kinds",
        ),
        (
            two().queue("c", ["k"], options()).open().refusal(),
            "the queues \"a\" and \"c\" of the group both take the kind \"k\": give it to one of them",
        ),
        (
            two().queue("c", ["m", "m"], options()).open().refusal(),
            "the queue \"c\" of the group takes the kind \"m\" twice: name it once",
        ),
        (
            two().default_queue("d").open().refusal(),
            "the group has no queue \"d\": add it with `queue`, or mend the name",
        ),
        (
            open.push(NewJob::new("m", &()).unwrap()).refusal(),
            "no queue of the group takes the kind \"m\": add it to one of them, or set a `default_queue`",
        ),
        (
            two().queue("c", ["m"], options().clock(Time::new().clock())).open().refusal(),
            "the queue \"c\" has another clock than the first queue of the group: give all of them the same one",
        ),
        (
            two().fair(Fair::weighted([("a", -1.5)])).open().refusal(),
            "the weight of the queue \"a\" is -1.5: use 0 or more",
        ),
    ]);
}

#[test]
fn an_impossible_job_is_refused_with_its_reason() {
    let name = || "n".to_owned();
    let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).unwrap();
    queue.push(job()).unwrap();
    let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
    check([
        (
            queue.push(job().meta("k", &"x".repeat(69_992)).unwrap()).refusal(),
            "the metadata, or the note, would have 70000 bytes: use at most 65,536, and keep more in a table",
        ),
        (
            ConfigError::JsonDepth,
            "the JSON is nested deeper than 127 arrays and objects: store the inner part as a text",
        ),
        (lease.progress(1.5, "").refusal(), "the progress of the job is 1.5: use 0 to 1"),
        (
            ConfigError::FingerprintField { field: name() },
            "the job is compared with others by the field \"n\", which its payload does not have: the payload must be an \
             object with that field",
        ),
        (
            ConfigError::JobIdReserved { id: "~1".into() },
            "the id \"~1\" begins with `~`, as those that the queue makes: use another one, or none",
        ),
        (
            ConfigError::RunAt,
            "the time of the job, or of the pause, is after the year 9999: use an earlier or a shorter one",
        ),
    ]);
}

#[test]
fn impossible_schedules_and_runners_are_refused() {
    let name = || "n".to_owned();
    let store = Store::in_memory();
    let queue = Queue::open(&store, "q", QueueOptions::default()).unwrap();
    let periodic = |hours, job| queue.periodic("n", Every::hours(hours), job);
    periodic(1, job()).start().unwrap();
    let runner = || Runner::builder(&queue);
    let twice = ["k", "k"].into_iter().fold(runner(), |runner, kind| runner.on(kind, |_, ()| Ok(Outcome::Done)));
    let factor = QueueOptions::default().retry(Retry::exponential(HOUR, HOUR).factor(0.5));
    check([
        (
            periodic(2, job()).start().refusal(),
            "the periodic job \"n\" is registered with another schedule, job or setting: use the same one, or call \
             `remove_periodic` first (after a restart, another one holds)",
        ),
        (
            periodic(1, job().id("a")).start().refusal(),
            "the job of the periodic job \"n\" has an id, a delay or a time of its own, or waits for other jobs: leave them \
             out, since each tick makes a new job at its time",
        ),
        (
            periodic(1, job()).catch_up(CatchUp::All).start().refusal(),
            "the periodic job \"n\" makes up for all missed ticks at once, and skips a tick while a run has not ended: allow \
             runs side by side with `Overlap::Allow`, or use `CatchUp::One`",
        ),
        (
            ConfigError::QueueOptions { name: name() },
            "the queue \"n\" is open with other options: use the same ones, or clone the queue (after a restart, other \
             options hold)",
        ),
        (twice.start().refusal(), "the runner has two handlers for the kind \"k\": use one"),
        (runner().start().refusal(), "the runner has no handler, so it would run nothing: add one with `on`"),
        (Queue::open(&store, "f", factor).refusal(), "the factor of the back-off is 0.5: use 1 or more"),
    ]);
}

#[test]
fn impossible_store_changes_are_refused() {
    let (name, store) = (|| "n".to_owned(), Store::in_memory());
    check([
        (
            waterline::ConfigError::Foreign { what: "table", name: name() }.into(),
            "the table \"n\" is in another store than the progress or the write: take it from the same store, or from a \
             store that is attached to the same database",
        ),
        (
            store.progress("p").seek(Index::MAX, "r").refusal(),
            "the index is 18446744073709551615, which is never a job: seek to 18446744073709551614 or below, and skip jobs \
             up to there",
        ),
        (
            waterline::ConfigError::SkipTooFar { index: 1 << 31, next: 5 }.into(),
            "job 2147483648 is too far above job 5, the lowest one that is not done, to be skipped: skip jobs below \
             1073741829, or seek ahead first",
        ),
        (
            waterline::ConfigError::RangeBackwards { table: name(), start: b"b".to_vec(), end: b"a".to_vec() }.into(),
            "the range of the table \"n\" ends with the key \"a\" before it begins with \"b\": put the lower key first, and \
             use `range_rev` to walk from the end",
        ),
        (
            store.column_family("").refusal(),
            "the database has no column family \"\": open it with that, or use a table (SQLite has no families)",
        ),
        (
            store.write(|effects| effects.execute("SELECT 1", ())).refusal(),
            "this store takes no SQL: use one on SQLite (`Store::attach_sqlite`), or a table of the store",
        ),
        (
            store.column_family("waterline.n").refusal(),
            "the column family \"waterline.n\" belongs to the store, as all do whose names begin with \"waterline.\": use another name",
        ),
    ]);
}

#[test]
fn consumers_that_cannot_work_together_are_refused() {
    let name = || "n".to_owned();
    let (consumer, upstream) = (|| "c".to_owned(), || "u".to_owned());
    let ended = |last_processed| {
        waterline::ConfigError::UpstreamEnded { consumer: consumer(), upstream: upstream(), next: 7, last_processed }
            .into()
    };
    check([
        (
            waterline::ConfigError::WatermarkInUse { name: name() }.into(),
            "another consumer publishes into the watermark that \"n\" was given: give each consumer a `Watermark::new()` of \
             its own",
        ),
        (
            waterline::ConfigError::GateCycle { consumer: consumer(), upstream: upstream() }.into(),
            "\"c\" waits for \"u\", which waits for \"c\": neither would ever start a job, so remove one of the gates",
        ),
        (
            ended(None),
            "\"c\" begins with job 7, but its upstream \"u\" has ended with nothing processed: start the upstream again, and \
             gate \"c\" by the new one",
        ),
        (
            ended(Some(3)),
            "\"c\" begins with job 7, but its upstream \"u\" has ended with job 3 as the last one processed: start the \
             upstream again, and gate \"c\" by the new one",
        ),
        (
            waterline::ConfigError::OwnThread.into(),
            "stop or join was called on one of the consumer's own threads, which would wait for itself: it was asked to stop \
             and does so; on such a thread call `Handle::request_stop`, and `stop` or `join` on others",
        ),
        (
            ConfigError::OwnThread,
            "stop or join was called on one of the runner's own threads, which would wait for itself: it was asked to stop \
             and does so; on such a thread drop the `Runner`, and call `stop` or `join` on others",
        ),
    ]);
}
