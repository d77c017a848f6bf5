//! The data of each view.

use crate::http::begin;
use crate::world::{World, look, until};
use serde_json::{Value, json};
use std::io::BufRead;
use std::time::{Duration, Instant};
use waterline::{Consumer, MemoryJobs, Retry, Store};
use waterline_queue::{Accept, Group, NewJob, Outcome, Queue, QueueOptions, Runner, RunnerGate};
use waterline_ui::{Page, Served, Watched};

fn served(world: &World) -> Served {
    world.page().serve("127.0.0.1:0").unwrap()
}

fn view(served: &Served, path: &str) -> Value {
    let answer = look(served, path);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.headers.get("content-type"), Some("application/json"));
    answer.json()
}

#[test]
fn the_overview_has_status_sentences_and_actions() {
    let world = World::new();
    let served = served(&world);
    let overview = view(&served, "/api/overview");
    assert_eq!((&overview["title"], &overview["writes"]), (&json!("<indexer>"), &json!(false)));
    let blocks = &overview["streams"][0];
    assert_eq!((&blocks["name"], &blocks["advice"]["reason"]), (&json!("blocks"), &json!("retrying")));
    let sentence = blocks["advice"]["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("job 1 failed in attempt 1 and is tried again in ") && sentence.contains("<b>no</b>"));
    assert_eq!((&blocks["status"]["parked"], &blocks["status"]["lag"]), (&json!(1), &json!(9)));
    let behind = &overview["streams"][1];
    assert_eq!(behind["upstreams"], json!(["blocks"]));
    assert_eq!(behind["advice"]["action"], json!({"label": "Look at blocks", "link": "#/stream?name=blocks"}));
    let mail = &overview["queues"][0];
    assert_eq!(mail["advice"]["sentence"], world.mails.status().unwrap().sentence());
    assert_eq!((&mail["advice"]["reason"], &mail["verdict"]), (&json!("no_worker"), &json!("needs_you")));
    world.blocks.handle().pause();
    world.mails.pause(None).unwrap();
    let overview = view(&served, "/api/overview");
    let resume = json!({"label": "Resume", "change": {"action": "resume", "stream": "blocks"}});
    assert_eq!(overview["streams"][0]["advice"]["action"], resume);
    assert_eq!(overview["streams"][0]["advice"]["sentence"], world.blocks.handle().status().blocked.to_string());
    let resume = json!({"label": "Resume", "change": {"action": "resume", "queue": "mail"}});
    assert_eq!((&overview["queues"][0]["advice"]["action"], &overview["queues"][0]["paused"]), (&resume, &json!(true)));
}

#[test]
fn the_health_check_fails_while_an_operator_is_needed() {
    let world = World::new();
    let served = served(&world);
    let health = || look(&served, "/api/health");
    let names = |answer: &Value| {
        let all = answer["needs_you"].as_array().unwrap().iter();
        all.map(|one| (one["name"].clone(), one["reason"].clone())).collect::<Vec<_>>()
    };
    let sick = health();
    assert_eq!((sick.status, &sick.json()["verdict"]), (503, &json!("needs_you")));
    let wanted = [(json!("blocks"), json!("parked")), (json!("mail"), json!("no_worker"))];
    assert_eq!(names(&sick.json()), wanted, "a job that is tried again is none");
    let overview = view(&served, "/api/overview");
    let blocks = &overview["streams"][0];
    assert_eq!((&blocks["verdict"], &blocks["also"][0]["reason"]), (&json!("needs_you"), &json!("parked")));
    assert_eq!(blocks["also"][0]["action"]["link"], json!("#/stream?name=blocks"));
    // A page on which all goes well.
    let store = Store::in_memory();
    let queue = Queue::open(&store, "mail", QueueOptions::default()).unwrap();
    let served = Page::new(&store).queue(&queue).serve("127.0.0.1:0").unwrap();
    let health = || look(&served, "/api/health");
    assert_eq!((health().status, health().json()), (200, json!({"verdict": "goes_well", "needs_you": []})));
    queue.push(NewJob::new("welcome", &()).unwrap().id("a")).unwrap();
    queue.accept(Accept::new()).unwrap().unwrap().bury("no such customer").unwrap();
    assert_eq!((health().status, names(&health().json())), (503, vec![(json!("mail"), json!("dead"))]));
    let overview = view(&served, "/api/overview");
    assert_eq!(overview["queues"][0]["also"][0]["sentence"], json!("1 dead job, which nothing runs any more"));
}

#[test]
fn a_stream_has_its_window_retries_parked_jobs_and_moves() {
    let world = World::new();
    let served = served(&world);
    let stream = view(&served, "/api/stream?name=blocks");
    let strip = &stream["strip"];
    assert_eq!((&strip["from"], &strip["end"], &strip["cells"]), (&json!(1), &json!(10), &json!("fpddddddd")));
    assert_eq!((&strip["retries"][0]["index"], &strip["retries"][0]["attempt"]), (&json!(1), &json!(1)));
    let parked = view(&served, "/api/parked?stream=blocks");
    // Job 2 is in the list only after a save that passes it, and job 1 holds that up.
    assert!(parked["count"].as_u64().unwrap() <= 1);
    assert_eq!(look(&served, "/api/stream?name=nobody").status, 404);
    assert_eq!(view(&served, "/api/history?stream=blocks")["moves"], json!([]));
    let plots = view(&served, "/api/plots?stream=blocks&span=hour");
    assert_eq!(plots["lag"][0], json!(9));
    assert_eq!(look(&served, "/api/plots?stream=blocks&span=year").status, 400);
    assert_eq!(look(&served, "/api/stream").status, 400);
    world.blocks.stop().unwrap();
    world.behind.stop().unwrap();
    world.store.progress("blocks").skip(1, "it never works").unwrap();
    let history = view(&served, "/api/history?stream=blocks");
    let made = &history["moves"][0];
    assert_eq!((&made["kind"], &made["to"], &made["reason"]), (&json!("skip"), &json!(1), &json!("it never works")));
    let parked = view(&served, "/api/parked?stream=blocks&limit=1");
    assert_eq!((&parked["count"], &parked["jobs"][0]["index"], &parked["next"]), (&json!(2), &json!(1), &json!(2)));
    // Consumers of the store that are not on the page are known, too.
    let others = Page::new(&world.store).serve("127.0.0.1:0").unwrap();
    let saved = view(&others, "/api/saved");
    let names: Vec<_> = saved["consumers"].as_array().unwrap().iter().map(|consumer| &consumer["name"]).collect();
    assert_eq!((names, &saved["logs"]), (vec![&json!("behind"), &json!("blocks")], &json!([])));
    assert_eq!(view(&others, "/api/parked?stream=blocks")["count"], json!(2));
    assert_eq!(look(&others, "/api/parked?stream=nobody").status, 404);
    let rest = view(&served, "/api/parked?stream=blocks&limit=1&from=2");
    assert_eq!((&rest["jobs"][0]["error"], &rest["next"]), (&json!("poison"), &json!(null)));
}

#[test]
fn a_queue_has_its_limits_rates_and_filtered_jobs() {
    let world = World::new();
    let served = served(&world);
    let mut leases: Vec<_> = (0..2).map(|_| world.mails.accept(Accept::new()).unwrap().unwrap()).collect();
    let queue = view(&served, "/api/queue?name=mail");
    assert_eq!((&queue["pushed"], &queue["started"], &queue["ended"]), (&json!(27), &json!(2), &json!(0)));
    let limit = &queue["limits"][0];
    assert_eq!(
        (&limit["limit"], &limit["at_once"], &limit["running"]),
        (&json!("the kind \"welcome\""), &json!(2), &json!(2))
    );
    let jobs = |query: &str| view(&served, &format!("/api/jobs?queue=mail&{query}"));
    let first = jobs("limit=20");
    let cursor = first["next"].as_str().unwrap();
    let rest = jobs(&format!("limit=20&cursor={cursor}"));
    let count = |page: &Value| page["jobs"].as_array().unwrap().len();
    assert_eq!((count(&first), count(&rest), &rest["next"]), (20, 3, &json!(null)));
    assert!(first["jobs"][0].get("payload").is_none());
    let of_key = jobs("key=tenant%203&limit=2");
    let ids = |page: &Value| page["jobs"].as_array().unwrap().iter().map(|job| job["id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&of_key), ["m/3", "m/8"]);
    let next = of_key["next"].as_str().unwrap();
    assert_eq!(ids(&jobs(&format!("key=tenant%203&limit=9&cursor={next}"))), ["m/13", "m/18", "m/23"]);
    assert_eq!(ids(&jobs("state=running")).len(), 2);
    assert_eq!((ids(&jobs("kind=other")), jobs("kind=other")["read"].clone()), (vec![], json!(23)));
    assert_eq!(view(&served, "/api/count?queue=mail&kind=welcome")["count"], json!(23));
    for wrong in ["state=asleep", "cursor=zz", "limit=x"] {
        assert_eq!(look(&served, &format!("/api/jobs?queue=mail&{wrong}")).status, 400, "{wrong}");
    }
    leases.iter_mut().for_each(|lease| lease.retry("refused").map(drop).unwrap());
    let job = view(&served, "/api/job?queue=mail&id=m%2F0");
    assert_eq!((&job["failures"], &job["error"], &job["state"]), (&json!(1), &json!("refused"), &json!("scheduled")));
    assert_eq!(job["payload"]["text"], "{\n  \"to\": \"<i>0</i>\"\n}");
    assert_eq!(job["actions"], json!(["run_now", "cancel"]));
    assert_eq!(view(&served, "/api/job?queue=mail&id=later")["before"], json!(["behind"]));
    assert_eq!(view(&served, "/api/job?queue=mail&id=behind")["after"], json!(["later"]));
    assert_eq!(look(&served, "/api/job?queue=mail&id=nobody").status, 404);
    assert_eq!(view(&served, "/api/schedules?queue=mail")["schedules"], json!([]));
}

#[test]
fn a_queue_has_its_workers_with_slots_and_run_times() {
    let world = World::new();
    let served = served(&world);
    let workers = || view(&served, "/api/workers?queue=mail");
    let none = json!({"workers": [], "count": 0, "next": null, "taking": 0, "slots": 0, "busy": 0, "stopping": 0, "silent": 0});
    assert_eq!(workers(), none);
    let leases: Vec<_> = (0..2).map(|_| world.mails.accept(Accept::new()).unwrap().unwrap()).collect();
    let all = workers();
    let worker = &all["workers"][0];
    assert_eq!(
        (&all["count"], &all["taking"], &all["slots"], &all["busy"]),
        (&json!(1), &json!(1), &Value::Null, &json!(2))
    );
    assert_eq!((&worker["process"], &worker["language"]), (&json!(std::process::id()), &json!("rust")));
    assert_eq!((&worker["slots"], &worker["is_silent"]), (&Value::Null, &json!(false)));
    assert_eq!((&worker["jobs"][0]["id"], &worker["jobs"][1]["kind"]), (&json!("m/0"), &json!("welcome")));
    assert!(worker["jobs"][0]["ran_for"].is_u64() && worker["began"].is_u64(), "{worker}");
    drop(leases);
    let builder = Runner::builder(&world.mails).on("digest", |_job, ()| Ok(Outcome::Done)).max_processing(3);
    let runner = builder.start().unwrap();
    until(|| workers()["slots"] == 3);
    assert_eq!(workers()["workers"][0]["kinds"], json!(["digest"]));
    runner.stop().unwrap();
    assert_eq!(workers()["count"], 0);
    assert_eq!(view(&served, "/api/workers?queue=mail&skip=1&limit=1")["workers"], json!([]));
    assert_eq!(look(&served, "/api/workers?queue=nobody").status, 404);
}

#[test]
fn a_filter_reads_at_most_ten_thousand_rows() {
    let world = World::new();
    let served = served(&world);
    world.mails.push_all((0..12_000).map(|n| NewJob::new("bulk", &n).unwrap())).unwrap();
    world.mails.push(NewJob::new("rare", &()).unwrap().id("needle")).unwrap();
    let first = view(&served, "/api/jobs?queue=mail&kind=rare");
    assert_eq!((&first["read"], &first["jobs"]), (&json!(10_000), &json!([])));
    let next = first["next"].as_str().unwrap();
    let rest = view(&served, &format!("/api/jobs?queue=mail&kind=rare&cursor={next}"));
    assert_eq!((&rest["jobs"][0]["id"], &rest["next"]), (&json!("needle"), &json!(null)));
    let count = view(&served, "/api/count?queue=mail&kind=bulk");
    assert_eq!((&count["is_all"], &count["read"]), (&json!(false), &json!(10_000)));
}

#[test]
fn a_followed_view_is_sent_when_it_changes() {
    let world = World::new();
    let served = served(&world);
    let (reader, (status, head)) = begin(served.addr(), "GET", "/api/live/queue?name=mail", &[], "");
    assert_eq!((status, head.get("content-type")), (200, Some("text/event-stream")));
    let lines = reader.lines().map(Result::unwrap);
    let mut events =
        lines.filter_map(|line| line.strip_prefix("data: ").map(|data| serde_json::from_str::<Value>(data).unwrap()));
    assert_eq!(events.next().unwrap()["pushed"], json!(27));
    let begun = Instant::now();
    for pushed in 28..31 {
        world.mails.push(NewJob::new("welcome", &()).unwrap()).unwrap();
        assert!(events.any(|event| event["pushed"] == json!(pushed)));
    }
    // It is sent at most twice a second, however fast the client reads.
    assert!(begun.elapsed() >= Duration::from_millis(900), "{:?}", begun.elapsed());
}

#[derive(Debug, thiserror::Error)]
#[error("the block has no price")]
struct NoPrice(#[source] std::io::Error);

#[test]
fn a_halt_keeps_its_causes_after_the_end() {
    let store = Store::in_memory();
    let jobs: MemoryJobs<u64> = (0..3).collect();
    let cause = || NoPrice(std::io::Error::other("the disk is full"));
    let consumer = Consumer::builder(jobs, store.progress("prices")).retry(Retry::none());
    let consumer = consumer.start(move |job| if job.index == 1 { Err(cause().into()) } else { Ok(()) }).unwrap();
    let served = Page::new(&store).watch(consumer.handle()).serve("127.0.0.1:0").unwrap();
    assert!(consumer.join().is_err());
    let stream = view(&served, "/api/stream?name=prices");
    let halt = &stream["last_halt"];
    let error = halt["error"].as_str().unwrap();
    assert_eq!((&halt["index"], &stream["advice"]["reason"]), (&json!(1), &json!("halted")));
    assert!(error.contains("the block has no price") && error.contains("the disk is full"), "{error}");
}

#[test]
fn a_queue_shows_a_closed_gate_and_the_oldest_job() {
    let store = Store::in_memory();
    let queue = Queue::open(&store, "mail", QueueOptions::default()).unwrap();
    queue.push_all(["first", "second"].map(|id| NewJob::new("welcome", &()).unwrap().id(id))).unwrap();
    let runner = Runner::builder(&queue).on("welcome", |_job, ()| Ok(Outcome::Done));
    let runner = runner.gate(RunnerGate::new("disk", || false)).start().unwrap();
    let served = Page::new(&store).queue(&queue).runner(&runner.handle()).serve("127.0.0.1:0").unwrap();
    until(|| view(&served, "/api/queue?name=mail")["gate"]["name"] == "disk");
    let row = view(&served, "/api/queue?name=mail");
    assert_eq!((&row["advice"]["reason"], &row["verdict"]), (&json!("gate"), &json!("waits")));
    assert_eq!((&row["status"]["oldest_ready"], &row["can_resize"]), (&json!("first"), &json!(true)));
    assert!(row["status"]["oldest_ready_for"].is_u64() && row["gate"]["closed_for"].is_u64(), "{row}");
}

#[test]
fn a_dropped_page_releases_its_thread_and_store() {
    let world = World::new();
    let served = served(&world);
    let addr = served.addr();
    assert_eq!(look(&served, "/").status, 200);
    // A client still follows a view.
    let (mut follower, _) = begin(addr, "GET", "/api/live/overview", &[], "");
    drop(served);
    let mut rest = String::new();
    while follower.read_line(&mut rest).unwrap_or(0) > 0 {}
    assert!(std::net::TcpStream::connect(addr).is_err());
}

#[test]
fn queues_of_a_group_share_the_slots_of_its_runner() {
    let store = Store::in_memory();
    let of = |kind: &str| [kind.to_owned()];
    let group = Group::new(&store)
        .queue("mail", of("welcome"), QueueOptions::default())
        .queue("thumbs", of("png"), QueueOptions::default())
        .open()
        .unwrap();
    let (end, ended) = std::sync::mpsc::sync_channel::<()>(0);
    let ended = parking_lot::Mutex::new(ended);
    let builder = group.runner().on("welcome", move |_job, ()| {
        let _ = ended.lock().recv();
        Ok(Outcome::Done)
    });
    let runner = builder.on("png", |_job, ()| Ok(Outcome::Done)).max_processing(1).start().unwrap();
    group.push(NewJob::new("welcome", &()).unwrap().id("long")).unwrap();
    until(|| runner.processing() == 1);
    group.push(NewJob::new("png", &()).unwrap()).unwrap();
    let served = Page::new(&store).group(&group).runner(&runner.handle()).serve("127.0.0.1:0").unwrap();
    let overview = view(&served, "/api/overview");
    let thumbs = &overview["queues"][1];
    assert_eq!((&thumbs["name"], &thumbs["advice"]["reason"]), (&json!("thumbs"), &json!("busy")));
    let link = json!({"label": "Look at the oldest job", "link": "#/job?queue=mail&id=long"});
    assert_eq!(thumbs["advice"]["action"], link);
    assert_eq!(view(&served, "/api/queue?name=thumbs")["advice"]["reason"], json!("busy"));
    drop(end);
    runner.stop().unwrap();
}

#[test]
fn a_page_without_a_store_says_it_has_no_parked_jobs() {
    let world = World::new();
    let shown: [Watched; 2] = [world.blocks.handle().into(), (&world.mails).into()];
    let served = Page::of(shown).serve("127.0.0.1:0").unwrap();
    let overview = view(&served, "/api/overview");
    assert_eq!((&overview["streams"][0]["name"], &overview["queues"][0]["name"]), (&json!("blocks"), &json!("mail")));
    assert_eq!(view(&served, "/api/saved"), json!({"consumers": [], "logs": []}));
    for path in ["/api/parked?stream=blocks", "/api/history?stream=blocks"] {
        let answer = look(&served, path);
        assert!(answer.status == 404 && answer.body.contains("Page::new"), "{answer:?}");
    }
    assert_eq!(view(&served, "/api/stream?name=blocks")["last_halt"], Value::Null);
}
