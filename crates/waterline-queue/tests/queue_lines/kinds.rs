//! A pushed kind without a handler is logged once, at the push, and shown in the status.

use super::*;
use waterline_queue::{DrainLimits, Group, Outcome, Runner, RunnerBuilder, Unknown};

fn job(kind: &str) -> NewJob {
    NewJob::new(kind, &()).unwrap()
}

fn open(name: &str) -> Queue {
    log();
    Queue::open(&Store::in_memory(), name, QueueOptions::default()).unwrap()
}

/// A runner of the kind `k`, paused so that it takes no job before the test looks.
fn builder(queue: &Queue) -> RunnerBuilder {
    queue.pause(None).unwrap();
    Runner::builder(queue).on("k", |_, ()| Ok(Outcome::Done))
}

/// Returns the new lines about a queue, without those about its pause.
fn lines_of_kinds(queue: &str) -> Vec<Line> {
    lines(queue).into_iter().filter(|line| !line["message"].contains("the queue is paused")).collect()
}

/// Returns the kinds that the new lines about a queue warn of.
fn told(queue: &str) -> Vec<String> {
    let kinds = lines_of_kinds(queue).into_iter().map(|mut line| {
        assert!(line["level"] == "WARN" && line["message"].contains("has no handler for"), "{line:?}");
        assert!(!line.contains_key("id") && !line.contains_key("attempt"), "{line:?}");
        line.remove("kind").unwrap()
    });
    kinds.collect()
}

fn unknown(queue: &Queue) -> Vec<String> {
    queue.status().unwrap().unknown_kinds
}

#[test]
fn each_way_to_push_warns_once_of_an_unknown_kind() {
    log();
    let store = Store::in_memory();
    let queue = Queue::open(&store, "ways", QueueOptions::default()).unwrap();
    type Way = fn(&Store, &Queue, &str);
    let ways: [(&str, Way); 7] = [
        ("push", |_, queue, kind| drop(queue.push(job(kind)).unwrap())),
        ("all", |_, queue, kind| drop(queue.push_all([job("k"), job(kind)]).unwrap())),
        ("batch", |_, queue, kind| drop(queue.push_batch([job("k")], job(kind)).unwrap())),
        ("within", |_, queue, kind| drop(queue.push_within(job(kind), SECOND).unwrap())),
        ("lazy", |_, queue, kind| queue.lazy().push(job(kind)).unwrap()),
        ("enqueue", |store, queue, kind| {
            store.write(|effects| queue.push_with(effects, job(kind)).map(drop)).unwrap();
        }),
        ("periodic", |_, queue, kind| queue.periodic(kind, Every::hours(1), job(kind)).start().unwrap()),
    ];
    let runner = builder(&queue).start().unwrap();
    for (kind, way) in ways {
        queue.push(job("k")).unwrap();
        (0..3).for_each(|_| way(&store, &queue, kind));
        assert_eq!(told("ways"), [kind]);
    }
    assert_eq!(unknown(&queue), ["all", "batch", "enqueue", "lazy", "periodic", "push", "within"]);
    runner.stop().unwrap();
    assert_eq!((unknown(&queue), told("ways").len()), (vec![], 0), "there is no runner");
}

#[test]
fn a_starting_runner_warns_of_earlier_unknown_kinds() {
    let queue = open("before");
    queue.push_all(["mispelt", "k", "other"].map(job)).unwrap();
    assert!(told("before").is_empty() && unknown(&queue).is_empty(), "a runner may come that knows them");
    let runner = builder(&queue).on("other", |_, ()| Ok(Outcome::Done)).start().unwrap();
    assert_eq!((told("before"), unknown(&queue)), (vec!["mispelt".into()], vec!["mispelt".to_owned()]));
    let status = queue.status().unwrap();
    let says =
        "jobs of the kind \"mispelt\" were pushed, for which its runner has no handler: add one, or correct the kind";
    assert!(status.to_string().contains(says), "{status}");
    assert_eq!(serde_json::to_value(&status).unwrap()["unknown_kinds"], serde_json::json!(["mispelt"]));
    runner.stop().unwrap();
    // The next runner has fewer handlers, and warns of the kinds that the last one had, too.
    let runner = Runner::builder(&queue).on("mispelt", |_, ()| Ok(Outcome::Done)).start().unwrap();
    assert_eq!(
        (told("before"), unknown(&queue)),
        (vec!["k".into(), "other".into()], vec!["k".to_owned(), "other".into()])
    );
    let says = "jobs of the kind \"k\" and of 1 more were pushed, for which";
    assert!(queue.status().unwrap().to_string().contains(says));
    runner.stop().unwrap();
}

#[test]
fn the_warning_says_what_becomes_of_the_jobs() {
    for (name, fate, says) in [
        ("left", Unknown::Leave, "it leaves them to one that has"),
        ("buried", Unknown::Dead, "each is dead as soon as the runner takes it"),
        ("snoozed", Unknown::Snooze(MINUTE), "it snoozes each of them for 60.0s, again and again"),
    ] {
        let queue = open(name);
        let runner = builder(&queue).unknown(fate).start().unwrap();
        queue.push(job("x")).unwrap();
        let told = lines_of_kinds(name);
        assert!(told.len() == 1 && told[0]["message"].contains(says), "{told:?}");
        runner.stop().unwrap();
        queue.resume().unwrap();
        let summary =
            Runner::builder(&queue).on("k", |_, ()| Ok(Outcome::Done)).unknown(fate).drain(DrainLimits::default());
        assert_eq!(summary.unwrap().snoozed > 0, matches!(fate, Unknown::Snooze(_)));
        assert_eq!(queue.counts().ready > 0, fate == Unknown::Leave);
    }
}

#[test]
fn a_refused_push_warns_of_no_kind() {
    log();
    let options = QueueOptions::default().before_push(|job| if job.kind == "spam" { Err("no".into()) } else { Ok(()) });
    let queue = Queue::open(&Store::in_memory(), "refuses", options).unwrap();
    let runner = builder(&queue).start().unwrap();
    queue.push(job("spam")).unwrap_err();
    queue.push(job("x").id("")).unwrap_err();
    queue.push(job("")).unwrap_err();
    assert_eq!((told("refuses").len(), unknown(&queue).len()), (0, 0));
    runner.stop().unwrap();
}

#[test]
fn in_a_group_the_queue_of_the_push_warns() {
    log();
    let store = Store::in_memory();
    let options = QueueOptions::default;
    let group = Group::new(&store)
        .queue("group mail", ["k", "x"], options())
        .queue("group rest", ["other"], options())
        .queue("group asked", ["asked"], options())
        .only_when_asked("group asked")
        .default_queue("group rest")
        .open()
        .unwrap();
    group.queues().iter().for_each(|queue| queue.pause(None).unwrap());
    group.push(job("early")).unwrap();
    let runner = group.runner().on("k", |_, ()| Ok(Outcome::Done)).start().unwrap();
    assert_eq!(told("group rest"), ["early"]);
    group.push_all(["k", "x", "other", "asked"].map(job)).unwrap();
    store.write(|effects| group.push_with(effects, job("late")).map(drop)).unwrap();
    assert_eq!((told("group mail"), told("group rest")), (vec!["x".into()], vec!["other".to_owned(), "late".into()]));
    let status = group.status().unwrap();
    let unknown: Vec<_> = status.queues.iter().map(|queue| queue.unknown_kinds.join(" ")).collect();
    assert_eq!(unknown, ["x", "early late other", ""], "nobody runs the third one");
    assert!(told("group asked").is_empty());
    runner.stop().unwrap();
}

#[test]
fn a_batch_the_hook_refuses_warns_of_no_kind() {
    log();
    let hook = |job: &waterline_queue::Proposed<'_>| if job.kind == "spam" { Err("no".into()) } else { Ok(()) };
    let queue = Queue::open(&Store::in_memory(), "refused", QueueOptions::default().before_push(hook)).unwrap();
    let runner = builder(&queue).start().unwrap();
    queue.push_all([job("mispelt"), job("spam")]).unwrap_err();
    assert_eq!((told("refused"), unknown(&queue)), (vec![], vec![]), "nobody has pushed a job");
    runner.stop().unwrap();
}
