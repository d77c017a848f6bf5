//! Job types: pushed in every way, run by every sort of handler, refused if invalid.

use common::queues::{MILLI, SECOND, noon, queue_in, until};
use common::{LONG, eventually};
use crossbeam_channel::unbounded;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use waterline::{Retry, Store};
use waterline_queue::{
    Accept, Clock, ConfigError, DrainLimits, Every, Finisher, Group, JobState, Limit, LimitOf, NewJob, Outcome,
    Priority, Queue, QueueError, QueueOptions, Rate, Runner, RunnerBuilder, TypedJob, Unique, Waits,
};

#[derive(Serialize, Deserialize)]
struct Welcome {
    address: String,
    tenant: String,
}

impl TypedJob for Welcome {
    const KIND: &'static str = "welcome";

    fn settings(&self, job: NewJob) -> NewJob {
        job.retry(Retry::none()).key(&self.tenant).unique(Unique::until_done())
    }

    fn limit(limit: Limit) -> Limit {
        limit.at_once(1)
    }
}

fn welcome(name: &str) -> Welcome {
    Welcome { address: format!("{name}@example.org"), tenant: "t".into() }
}

#[derive(Serialize, Deserialize)]
struct Report(u32);

impl TypedJob for Report {
    const KIND: &'static str = "report";
    const ATTEMPT_TIMEOUT: Option<Duration> = Some(SECOND);
}

#[derive(Serialize, Deserialize)]
struct Import(String);

impl TypedJob for Import {
    const KIND: &'static str = "import";
    const ATTEMPT_TIMEOUT: Option<Duration> = Some(Duration::MAX);
}

#[derive(Serialize, Deserialize)]
struct Note(u32);

impl TypedJob for Note {
    const KIND: &'static str = "note";
}

fn options() -> QueueOptions {
    QueueOptions::default().job::<Welcome>().job::<Report>().job::<Import>()
}

/// A runner with typed handlers, one of each sort.
fn typed(builder: RunnerBuilder, queue: &Queue) -> RunnerBuilder {
    let next = queue.clone();
    let builder = builder
        .job(|job, welcome: Welcome| {
            assert_eq!((job.kind(), job.key()), ("welcome", Some("t")));
            assert!(welcome.address.ends_with("@example.org"));
            Ok(Outcome::Done)
        })
        .job_transactional(move |_, Import(path), effects| {
            next.push_with(effects, NewJob::of(&welcome(&path))?)?;
            next.push_batch_with(effects, [NewJob::of(&Report(7))?], NewJob::of(&Report(8))?)?;
            Ok(Outcome::Done)
        });
    #[cfg(not(feature = "tokio"))]
    return builder
        .job_deferred(|_, Report(_), done| done.complete())
        .job_transactional(|_, Note(_), _| Ok(Outcome::Done));
    #[cfg(feature = "tokio")]
    builder
        .job_async(|_, Report(_)| async { Ok(Outcome::Done) })
        .job_transactional_async(|_, Note(_), effects| async { Ok((Outcome::Done, effects)) })
}

#[test]
fn typed_jobs_are_pushed_in_every_way_and_run() {
    #[cfg(feature = "tokio")]
    let runtime = tokio::runtime::Runtime::new().unwrap();
    #[cfg(feature = "tokio")]
    let _context = runtime.enter();
    let (queue, clock) = queue_in(&Store::in_memory(), options());
    let drain = || typed(Runner::builder(&queue), &queue).drain(DrainLimits::default()).unwrap().finished;
    let id = queue.push_job(&welcome("ann")).unwrap().id;
    assert!(!queue.push_job(&welcome("ann")).unwrap().is_new(), "the settings of the kind refuse twins");
    queue.push_all([NewJob::of(&welcome("bob")).unwrap(), NewJob::of(&Report(1)).unwrap().after([&id])]).unwrap();
    queue.push_batch([NewJob::of(&Report(2)).unwrap()], NewJob::of(&Report(3)).unwrap()).unwrap();
    assert_eq!(drain(), 5);
    queue.push_job(&Import("eve".into())).unwrap();
    queue.push_job(&Note(1)).unwrap();
    assert_eq!(drain(), 5);
    let mut lazy = queue.lazy();
    lazy.push(NewJob::of(&Report(4)).unwrap()).unwrap();
    lazy.flush().unwrap();
    queue.periodic("weekly", Every::hours(1), NewJob::of(&Report(5)).unwrap()).start().unwrap();
    assert_eq!(drain(), 2);
    clock.advance(Duration::from_secs(3600));
    assert_eq!(drain(), 1);
    assert_eq!((queue.counts().dead, queue.status().unwrap().unknown_kinds.len()), (0, 0));
}

#[test]
fn a_setting_of_the_push_overrides_that_of_the_type() {
    let own = NewJob::of(&welcome("ann")).unwrap();
    let payload = serde_json::json!({"address": "ann@example.org", "tenant": "t"});
    let string = || NewJob::new("welcome", &payload).unwrap().key("t").unique(Unique::until_done());
    assert_eq!(own, string().retry(Retry::none()));
    let retry = Retry::fixed(SECOND).max_attempts(2);
    assert_eq!(own.clone().retry(retry).key("u"), string().retry(retry).key("u"));
    assert_eq!(own.priority(Priority::Low), string().retry(Retry::none()).priority(Priority::Low));
    assert_eq!(NewJob::of(&Report(1)).unwrap(), NewJob::new("report", &1).unwrap());
}

#[test]
fn a_types_limit_holds_in_a_queue_opened_with_it() {
    let (queue, _) = queue_in(&Store::in_memory(), options());
    queue.push_all(["ann", "bob"].map(|name| NewJob::of(&welcome(name)).unwrap())).unwrap();
    let mut first = queue.accept(Accept::new()).unwrap().unwrap();
    assert!(matches!(first.kind(), Welcome::KIND) && first.payload::<Welcome>().unwrap().tenant == "t");
    assert!(queue.accept(Accept::new()).unwrap().is_none());
    let waits = Waits::Limited { limit: LimitOf::Kind("welcome".into()), held: 1, left: None };
    assert_eq!(queue.status().unwrap().waits, waits);
    first.finish(None).unwrap();
    assert!(queue.accept(Accept::new()).unwrap().is_some());
}

/// Invalid types: an empty kind, or settings that belong to another kind.
#[derive(Serialize, Deserialize)]
struct Nameless;

impl TypedJob for Nameless {
    const KIND: &'static str = "";
}

#[derive(Serialize, Deserialize)]
struct Changeling;

impl TypedJob for Changeling {
    const KIND: &'static str = "changeling";

    fn settings(&self, _: NewJob) -> NewJob {
        NewJob::new("human", &()).unwrap()
    }

    fn limit(_: Limit) -> Limit {
        Limit::kind("human").at_once(1)
    }
}

#[derive(Serialize, Deserialize)]
struct Greedy;

impl TypedJob for Greedy {
    const KIND: &'static str = "greedy";

    fn limit(_: Limit) -> Limit {
        Limit::queue().rate(Rate::new(1, SECOND))
    }
}

#[derive(Serialize, Deserialize)]
struct Hasty;

impl TypedJob for Hasty {
    const KIND: &'static str = "hasty";
    const ATTEMPT_TIMEOUT: Option<Duration> = Some(Duration::ZERO);
}

fn refused<T: std::fmt::Debug>(answer: Result<T, QueueError>) -> String {
    let Err(QueueError::Config(config)) = answer else { panic!("{answer:?}") };
    config.to_string()
}

fn run<J: TypedJob>(builder: RunnerBuilder) -> RunnerBuilder {
    builder.job(|_, _: J| Ok(Outcome::Done))
}

#[test]
fn an_invalid_type_is_refused_where_it_is_first_used() {
    let store = Store::in_memory();
    let queue = Queue::open(&store, "q", QueueOptions::default()).unwrap();
    let open = |options: QueueOptions| refused(Queue::open(&store, "other", options));
    let start = |builder: RunnerBuilder| refused(builder.start());
    let one = || Runner::builder(&queue);
    let empty = "the kind of a job has 0 bytes: use 1 to 255";
    assert_eq!(open(QueueOptions::default().job::<Nameless>()), empty);
    assert_eq!(start(run::<Nameless>(one())), empty);
    assert_eq!(refused(queue.push_job(&Nameless)), empty);
    let foreign = |returned: &str| format!("returns {returned}: return the one that it was given, with more settings");
    assert!(refused(queue.push_job(&Changeling)).ends_with(&foreign("a job of the kind \"human\"")));
    let says = open(QueueOptions::default().job::<Report>().job::<Changeling>().job::<Greedy>());
    assert!(says.ends_with(&foreign("a limit of the kind \"human\"")), "{says}");
    let says = start(run::<Greedy>(one()));
    assert_eq!(says, format!("the type of the kind \"greedy\" {}", foreign("a limit of the queue")));
    let twice = "the runner has two handlers for the kind \"report\": use one";
    assert_eq!(start(run::<Report>(one().on("report", |_, ()| Ok(Outcome::Done)))), twice);
    assert_eq!(start(run::<Report>(run::<Report>(one()))), twice);
    assert!(start(run::<Hasty>(one())).starts_with("attempt_timeout is zero"));
    let misspelt = start(run::<Report>(one()).attempt_timeout_of("repport", SECOND));
    assert_eq!(
        misspelt,
        "the runner has a timeout for the kind \"repport\", and no handler: add one, or correct the kind"
    );
    assert_eq!(
        open(options().limit(Limit::kind("welcome").at_once(2))),
        "the limit of the kind \"welcome\" is set twice: set both numbers in one limit"
    );
}

#[test]
fn a_runner_needs_the_limits_of_its_types() {
    let open = |options: QueueOptions| Queue::open(&Store::in_memory(), "q", options).unwrap();
    for lacking in [QueueOptions::default(), QueueOptions::default().limit(Limit::kind("welcome").at_once(2))] {
        let error = run::<Welcome>(Runner::builder(&open(lacking))).start().unwrap_err();
        let QueueError::Config(ConfigError::LimitMissing { kind, queue, job }) = &error else { panic!("{error:?}") };
        assert_eq!((&kind[..], &queue[..], *job), ("welcome", "q", std::any::type_name::<Welcome>()));
        assert!(error.to_string().contains("`.job::<runner::typed::Welcome>()`"), "{error}");
    }
    for given in [options(), QueueOptions::default().limit(Limit::kind("welcome").at_once(1))] {
        run::<Welcome>(Runner::builder(&open(given))).start().unwrap().stop().unwrap();
    }
}

#[test]
fn in_a_group_the_queue_of_the_kind_needs_its_limit() {
    let group = |mail: QueueOptions, rest: QueueOptions, default: bool| {
        let kinds: &[&str] = if default { &[] } else { &[Welcome::KIND] };
        let clock = Clock::manual(noon());
        let group = Group::new(&Store::in_memory()).queue("rest", [Report::KIND], rest.clock(clock.clone())).queue(
            "mail",
            kinds.iter().copied(),
            mail.clock(clock),
        );
        if default { group.default_queue("mail") } else { group }.open().unwrap()
    };
    let none = QueueOptions::default;
    let start = |group: &Group| run::<Welcome>(run::<Report>(group.runner())).start();
    for default in [true, false] {
        for rest in [none(), options()] {
            let lacks = group(none(), rest, default);
            let error = start(&lacks).unwrap_err();
            let is_it =
                matches!(&error, QueueError::Config(ConfigError::LimitMissing { queue, .. }) if queue == "mail");
            assert!(is_it, "{error:?}");
            start(&lacks.except(["mail"]).unwrap()).unwrap().stop().unwrap();
        }
        let holds = group(options(), none(), default);
        holds.push_job(&welcome("ann")).unwrap();
        holds.push_all([NewJob::of(&Report(1)).unwrap()]).unwrap();
        let summary = run::<Welcome>(run::<Report>(holds.runner())).drain(DrainLimits::default()).unwrap();
        assert_eq!((summary.finished, holds.queue("mail").unwrap().counts().finished), (2, 1));
    }
}

#[test]
fn in_a_group_without_the_kind_any_queue_may_have_its_limit() {
    let group = |first: QueueOptions, second: QueueOptions| {
        let none: [&str; 0] = [];
        let group = Group::new(&Store::in_memory()).queue("first", none, first).queue("second", none, second);
        run::<Welcome>(group.open().unwrap().runner()).start()
    };
    assert!(refused(group(QueueOptions::default(), QueueOptions::default())).contains("\"first\""));
    group(QueueOptions::default(), options()).unwrap().stop().unwrap();
}

#[test]
fn each_kind_has_its_timeout_or_that_of_the_runner() {
    let (queue, clock) = queue_in(&Store::in_memory(), options().retry(Retry::none()));
    let (begun, finishers) = unbounded::<Finisher>();
    let begins = || {
        let begun = begun.clone();
        move |done| begun.send(done).unwrap()
    };
    let [report, import, plain, own, welcomes] = [(); 5].map(|()| begins());
    let runner = Runner::builder(&queue)
        .attempt_timeout_of("welcome", 4 * SECOND)
        .job_deferred(move |_, Report(_), done| report(done))
        .job_deferred(move |_, Import(_), done| import(done))
        .job_deferred(move |_, _: Welcome, done| welcomes(done))
        .on_deferred("plain", move |_, (), done| plain(done))
        .on_deferred("own", move |_, (), done| own(done))
        .attempt_timeout(2 * SECOND)
        .attempt_timeout_of("own", 3 * SECOND)
        .start()
        .unwrap();
    queue.push_job(&Import("a".into())).unwrap();
    queue.push(NewJob::of(&welcome("ann")).unwrap().id("welcome")).unwrap();
    queue.push_all(["own", "plain"].map(|kind| NewJob::new(kind, &()).unwrap().id(kind))).unwrap();
    queue.push(NewJob::of(&Report(1)).unwrap().id("report")).unwrap();
    let held: Vec<_> = (0..5).map(|_| finishers.recv_timeout(LONG).unwrap()).collect();
    for (n, kind) in ["report", "plain", "own", "welcome"].into_iter().enumerate() {
        clock.advance(SECOND - MILLI);
        assert_eq!(queue.state(kind).unwrap(), Some(JobState::Running), "{kind}");
        clock.advance(MILLI);
        until(&queue, kind, JobState::Dead);
        let error = queue.get(kind).unwrap().unwrap().error.unwrap();
        assert_eq!(error, format!("the attempt took longer than {:?}", SECOND * (n as u32 + 1)));
        // The row is written a moment before the counts.
        eventually("the others run", || queue.counts().running == 4 - n as u64);
    }
    clock.advance(Duration::from_secs(3600));
    assert_eq!(queue.counts().running, 1, "a time without an end is no timeout");
    held.into_iter().for_each(Finisher::complete);
    runner.stop().unwrap();
    assert_eq!(queue.counts().finished, 1);
}
