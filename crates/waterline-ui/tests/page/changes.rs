//! Each change that a page makes.

use crate::world::{World, change, until, view};
use serde_json::{Value, json};
use std::time::Duration;
use waterline::{Consumer, MemoryJobs, State, Store};
use waterline_queue::{Accept, Every, JobState, NewJob, Outcome, Queue, QueueOptions, Runner};
use waterline_ui::{Page, Served};

#[track_caller]
fn make(served: &Served, what: &Value) -> String {
    let (status, said) = change(served, what);
    assert_eq!(status, 200, "{what}: {said}");
    said["said"].as_str().unwrap().to_owned()
}

#[test]
fn a_consumer_is_paused_resumed_and_resized() {
    let world = World::new();
    let served = world.writable();
    let handle = world.blocks.handle();
    let of = |action: &str| json!({"action": action, "stream": "blocks"});
    assert_eq!(make(&served, &of("pause")), "blocks: paused");
    assert_eq!(handle.status().state, State::Paused);
    assert_eq!(make(&served, &of("resume")), "blocks: running");
    assert_eq!(handle.status().state, State::Running);
    make(&served, &of("check"));
    make(&served, &json!({"action": "set_max_processing", "stream": "blocks", "value": 7}));
    make(&served, &json!({"action": "set_max_search_ahead", "stream": "blocks", "value": "77"}));
    let strip = handle.strip(10);
    assert_eq!((strip.max_processing, strip.max_search_ahead), (7, 77));
}

#[test]
fn parked_jobs_are_redriven_discarded_and_skipped() {
    let store = Store::in_memory();
    let jobs: MemoryJobs<_> = (0..4).collect();
    let works = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let repaired = works.clone();
    let start = || {
        let repaired = repaired.clone();
        Consumer::builder(jobs.clone(), store.progress("p"))
            .on_exhausted(waterline::OnExhausted::Park { budget: 9 })
            .start(move |job| {
                let is_well = job.index % 2 == 0 || repaired.load(std::sync::atomic::Ordering::SeqCst);
                if is_well { Ok(()) } else { Err("broken".into()) }
            })
    };
    let consumer = start().unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(3, Duration::from_secs(60)));
    let served = Page::new(&store)
        .watch(handle.clone())
        .allow_writes(true)
        .token(crate::world::TOKEN)
        .serve("127.0.0.1:0")
        .unwrap();
    assert_eq!(view(&served, "/api/parked?stream=p")["count"], json!(2));
    works.store(true, std::sync::atomic::Ordering::SeqCst);
    make(&served, &json!({"action": "redrive", "stream": "p", "index": 1}));
    until(|| handle.status().parked == 1);
    make(&served, &json!({"action": "discard", "stream": "p", "index": 3}));
    until(|| handle.status().parked == 0 && store.parked("p").unwrap().is_empty());
    assert_eq!(make(&served, &json!({"action": "redrive_all", "stream": "p"})), "0 jobs run once more");
    consumer.stop().unwrap();
    let skip = |reason: &str| change(&served, &json!({"action": "skip", "stream": "p", "index": 4, "reason": reason}));
    assert_eq!(skip("").0, 400);
    assert_eq!(skip("it is empty").0, 200);
    assert_eq!(view(&served, "/api/history?stream=p")["moves"][0]["reason"], json!("it is empty"));
    let seek = json!({"action": "seek", "stream": "p", "index": 5, "reason": "once more"});
    make(&served, &seek);
    assert_eq!(view(&served, "/api/history?stream=p")["moves"][0]["kind"], json!("seek"));
    // The skipped job is parked, and the next consumer runs it if it is redriven.
    make(&served, &json!({"action": "redrive", "stream": "p", "index": 4}));
    assert!(store.parked("p").unwrap()[0].redrive_wanted);
    make(&served, &json!({"action": "remove", "stream": "p"}));
    assert!(store.consumers().unwrap().is_empty());
}

#[test]
fn a_consumer_takes_the_name_of_another_one() {
    let store = Store::in_memory();
    let start = |name: &str, last: u64| {
        let table = store.table(name).unwrap();
        table.put("from", name).unwrap();
        let jobs: MemoryJobs<u64> = (0..=last).collect();
        Consumer::builder(jobs, store.progress(name)).owns(&table).start(|_| Ok(())).unwrap()
    };
    let (old, new) = (start("old", 3), start("new", 7));
    assert!(old.handle().wait_for(3, Duration::from_secs(60)) && new.handle().wait_for(7, Duration::from_secs(60)));
    let page = Page::new(&store).watch(old.handle()).watch(new.handle()).allow_writes(true);
    let served = page.token(crate::world::TOKEN).serve("127.0.0.1:0").unwrap();
    let part = json!([{"what": "table", "name": "new"}]);
    assert_eq!(view(&served, "/api/stream?name=new")["owns"], part);
    assert_eq!(view(&served, "/api/saved")["consumers"][0]["owns"], part);
    let replace = json!({"action": "replace", "stream": "new", "name": "old"});
    let (status, said) = change(&served, &replace);
    assert!(status == 409 && said["error"].as_str().unwrap().contains("in use"), "{status} {said}");
    old.stop().unwrap();
    new.stop().unwrap();
    assert_eq!(change(&served, &json!({"action": "replace", "stream": "new"})).0, 400);
    let (status, said) = change(&served, &json!({"action": "replace", "stream": "new", "name": "odd"}));
    assert!(status == 409 && said["error"].as_str().unwrap().contains("cannot replace"), "{status} {said}");
    assert_eq!(make(&served, &replace), "\"new\" has the name \"old\" now: start the consumer of that name");
    assert_eq!(store.progress("old").last_processed().unwrap(), Some(7));
    assert_eq!(store.table("old").unwrap().get("from").unwrap().as_deref(), Some(&b"new"[..]));
    // A progress is removed with what belongs to it.
    make(&served, &json!({"action": "remove", "stream": "old"}));
    assert!(store.consumers().unwrap().is_empty() && store.tables().unwrap().is_empty());
}

#[test]
fn single_jobs_are_run_requeued_cancelled_and_removed() {
    let world = World::new();
    let served = world.writable();
    let of = |action: &str, id: &str| json!({"action": action, "queue": "mail", "id": id});
    make(&served, &of("run_now", "later"));
    assert_eq!(world.mails.state("later").unwrap(), Some(JobState::Ready));
    make(&served, &of("cancel", "m/3"));
    assert_eq!(world.mails.state("m/3").unwrap(), None);
    let mut lease = world.mails.accept(Accept::new()).unwrap().unwrap();
    lease.bury("poison").unwrap();
    make(&served, &of("requeue", lease.id()));
    assert_eq!(world.mails.state(lease.id()).unwrap(), Some(JobState::Ready));
    let mut lease = world.mails.accept(Accept::new()).unwrap().unwrap();
    lease.bury("poison").unwrap();
    make(&served, &of("remove", lease.id()));
    assert_eq!(world.mails.counts().dead, 0);
}

#[test]
fn a_push_obeys_the_hook_and_bound_of_the_program() {
    let store = Store::in_memory();
    let options = QueueOptions::default()
        .max_waiting(2)
        .before_push(|job| if job.kind == "misspelt" { Err("no such kind".into()) } else { Ok(()) });
    let queue = Queue::open(&store, "mail", options).unwrap();
    let page = Page::new(&store).queue(&queue).allow_writes(true).token(crate::world::TOKEN);
    let served = page.serve("127.0.0.1:0").unwrap();
    let push = |kind: &str, id: Option<&str>| {
        let job = json!({"action": "push", "queue": "mail", "kind": kind, "payload": null, "id": id});
        change(&served, &job)
    };
    let (status, pushed) = push("welcome", None);
    assert_eq!((status, queue.state(pushed["id"].as_str().unwrap()).unwrap()), (200, Some(JobState::Ready)));
    assert_eq!(push("welcome", Some("ann")).1["said"], json!("the job \"ann\" is pushed"));
    assert_eq!(push("welcome", Some("ann")).1["said"], json!("the job \"ann\" was there before"));
    let (status, refused) = push("misspelt", None);
    assert!(status == 409 && refused["error"].as_str().unwrap().contains("no such kind"), "{status} {refused}");
    let (status, full) = push("welcome", None);
    assert!(status == 409 && full["error"].as_str().unwrap().contains("full"), "{status} {full}");
    let without = json!({"action": "push", "queue": "mail", "kind": "welcome"});
    assert_eq!(change(&served, &without).0, 400);
}

#[test]
fn filtered_jobs_are_changed_up_to_the_seen_count() {
    let world = World::new();
    let served = world.writable();
    let all = |action: &str, state: &str, count: usize, key: Option<&str>| {
        make(&served, &json!({"action": action, "queue": "mail", "state": state, "count": count, "key": key}))
    };
    let count = view(&served, "/api/count?queue=mail&state=ready&key=tenant%201");
    assert_eq!((&count["count"], &count["is_all"]), (&json!(5), &json!(true)));
    // One more job has come since.
    world.mails.push(NewJob::new("welcome", &()).unwrap().id("new").key("tenant 1")).unwrap();
    assert_eq!(all("cancel_all", "ready", 5, Some("tenant 1")), "5 jobs are removed");
    assert_eq!((world.mails.counts().ready, world.mails.state("new").unwrap()), (21, Some(JobState::Ready)));
    assert_eq!(all("run_all_now", "scheduled", 1, None), "1 jobs are due now");
    for _ in 0..3 {
        world.mails.accept(Accept::new()).unwrap().unwrap().bury("poison").unwrap();
    }
    assert_eq!(all("requeue_all", "dead", 2, None), "2 jobs are requeued");
    assert_eq!(all("remove_all", "dead", 9, None), "1 jobs are removed");
    assert_eq!(make(&served, &json!({"action": "requeue_dead", "queue": "mail"})), "0 dead jobs are requeued");
}

#[test]
fn a_queue_its_runner_and_schedules_are_changed() {
    let store = Store::in_memory();
    let queue = Queue::open(&store, "mail", QueueOptions::default()).unwrap();
    let hourly = Every::hours(1);
    queue.periodic("digest", hourly, NewJob::new("digest", &()).unwrap()).start().unwrap();
    let runner = Runner::builder(&queue).on("digest", |_job, ()| Ok(Outcome::Done)).max_processing(3).start().unwrap();
    let page = Page::new(&store).runner(&runner.handle()).queue(&queue).allow_writes(true).token(crate::world::TOKEN);
    let served = page.serve("127.0.0.1:0").unwrap();
    until(|| view(&served, "/api/queue?name=mail")["kinds"][0]["p50_ms"].is_number() || queue.counts().finished == 1);
    let schedules = view(&served, "/api/schedules?queue=mail");
    assert_eq!(schedules["schedules"][0]["name"], json!("digest"));
    assert!(schedules["schedules"][0]["next_tick"].as_u64() > schedules["schedules"][0]["last_tick"].as_u64());
    make(&served, &json!({"action": "pause", "queue": "mail", "seconds": 3_600}));
    let shown = view(&served, "/api/queue?name=mail");
    assert_eq!((&shown["paused"], &shown["slots"], &shown["can_resize"]), (&json!(true), &json!(3), &json!(true)));
    assert!((1..=3_600_000).contains(&shown["pause_left"].as_u64().unwrap()));
    make(&served, &json!({"action": "resume", "queue": "mail"}));
    assert_eq!(view(&served, "/api/queue?name=mail")["paused"], json!(false));
    make(&served, &json!({"action": "set_max_processing", "queue": "mail", "value": 9}));
    assert_eq!(runner.handle().slots(), Some(9));
    make(&served, &json!({"action": "remove_schedule", "queue": "mail", "name": "digest"}));
    assert!(queue.periodics().unwrap().is_empty());
    runner.stop().unwrap();
}
