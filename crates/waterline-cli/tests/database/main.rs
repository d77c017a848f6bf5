//! The tool at a real PostgreSQL server, started as in the tests of the engine.
#![cfg(unix)]

mod fleet;
mod outages;
#[path = "../tool/program.rs"]
mod program;
#[path = "../../../../engines/postgres/tests/server/mod.rs"]
mod server;
mod tls;
mod workers;

use postgres::Client;
use program::{At, json};
use serde_json::{Value, json};
use server::{Database, Server};
use std::time::Duration;
use waterline::{Consumer, Error, MemoryJobs, OnExhausted};
use waterline_postgres::{PgOptions, PgStore};
use waterline_queue::{Accept, Every, Limit, NewJob, QueueOptions};
use waterline_ui::{Page, Watched};

/// A database with a queue and two consumers that have ended, one of them at a failed job.
struct World {
    database: Database,
    store: PgStore,
    at: At,
}

impl World {
    fn new() -> Self {
        let database = Server::shared().database();
        let store = database.store(PgOptions::new());
        for (name, budget) in [("blocks", 9), ("prices", 1)] {
            let jobs: MemoryJobs<u64> = (0..10).collect();
            let builder =
                Consumer::builder(jobs, store.progress(name)).max_processing(1).max_search_ahead(1).stop_at(9);
            let consumer = builder.on_exhausted(OnExhausted::Park { budget }).start(|job| match job.index {
                3 | 5 => Err("the block has no header".into()),
                _ => Ok(()),
            });
            match consumer.unwrap().join() {
                Ok(()) => assert_eq!(name, "blocks"),
                Err(error) => assert!(matches!(error, Error::Job { index: 5, .. }), "{name}: {error:?}"),
            }
        }
        let options = QueueOptions::default().max_waiting(4).limit(Limit::kind("welcome").at_once(7));
        let mail = store.queue("mail", options).unwrap();
        mail.push(NewJob::new("welcome", "carl").unwrap().id("carl")).unwrap();
        mail.accept(Accept::new()).unwrap().expect("it is ready").bury("no such customer").unwrap();
        mail.push(NewJob::new("welcome", "dora").unwrap().id("dora")).unwrap();
        // A worker in another language has died: its lease is over, but nothing takes its job back.
        let died = "SELECT waterline.claim('mail'); UPDATE waterline.job SET at = 1 WHERE state = 'running'";
        database.client().batch_execute(died).unwrap();
        mail.push(NewJob::new("welcome", "ann").unwrap().id("ann")).unwrap();
        mail.push(NewJob::new("digest", "bob").unwrap().id("bob").delay(Duration::from_secs(86_400))).unwrap();
        let at = At::postgres(&url(&database, "postgres"));
        Self { database, store, at }
    }
}

fn url(database: &Database, user: &str) -> String {
    format!("postgres://{user}@127.0.0.1:{}/{}", Server::shared().port(), database.name)
}

/// Returns all rows of the schema but those of `tally`, in which a look may cache counts.
fn rows(client: &mut Client) -> Vec<String> {
    let tables =
        "SELECT tablename::text FROM pg_tables WHERE schemaname = 'waterline' AND tablename <> 'tally' ORDER BY 1";
    let tables: Vec<String> = client.query(tables, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    assert!(tables.len() > 10, "{tables:?}");
    let mut rows = Vec::new();
    for table in tables {
        let all = format!("SELECT t::text FROM waterline.\"{table}\" t ORDER BY 1");
        rows.extend(client.query(&all, &[]).unwrap().iter().map(|row| format!("{table} {}", row.get::<_, String>(0))));
    }
    rows
}

#[test]
fn each_look_shows_the_data_and_changes_no_row() {
    let world = World::new();
    let mut client = world.database.client();
    let before = rows(&mut client);
    for (line, parts) in [
        ("list", &["CONSUMER  PROCESSED  NEXT", "blocks            9    10", "halted at 5: job 5 failed"][..]),
        ("show blocks", &["processed      9", "parked         2 jobs", "the block has no header"]),
        ("parked blocks", &["    3         1        0"]),
        ("history blocks", &["Nobody has moved"]),
        ("queues", &["mail       1        1          1        0     1"]),
        (
            "jobs mail",
            &["carl  welcome  dead", "dora  welcome  running", "bob   digest   scheduled", "no such customer"],
        ),
        ("job mail ann", &["kind      welcome", "\"ann\""]),
        ("schedules mail", &["has no periodic job"]),
    ] {
        let out = world.at.text(line);
        for part in parts {
            assert!(out.contains(part), "{line} has no {part:?}:\n{out}");
        }
        assert!(out.contains(&format!("read from the database {:?} at 127.0.0.1", world.database.name)), "{out}");
        world.at.text(&format!("{line} --json"));
    }
    let doctor = world.at.call("doctor --json");
    assert_eq!((doctor.code, doctor.error.as_str()), (1, ""));
    let found: Vec<_> = json(&doctor.out).iter().map(|found| found["sentence"].as_str().unwrap().to_owned()).collect();
    for part in ["has 2 parked jobs", "the consumer halted at 5", "has 1 dead job"] {
        assert!(found.iter().any(|sentence| sentence.contains(part)), "{part}: {found:#?}");
    }
    assert_eq!(rows(&mut client), before);
    let dora = &world.at.records("job mail dora")[0];
    assert_eq!((&dora["state"], &dora["crashes"]), (&json!("running"), &json!(0)));
    // Add a queue without any worker.
    let late = "SELECT waterline.create_queue('late'); SELECT waterline.push('late', 'k', '1');
        UPDATE waterline.job SET at = at - 600000, since = since - 600000 WHERE kind = 'k'";
    client.batch_execute(late).unwrap();
    let doctor = world.at.call("doctor").out;
    let found =
        doctor.contains("a job that was due 600s ago, and no worker is heard of\n    Start a worker for its kind.");
    assert!(found, "{doctor}");
    // The doctor reports exactly what the tables say needs an operator.
    let needs_you = |table: &str| {
        let records = world.at.records(table);
        let is_one = |record: &Value| {
            let also = record["also"].as_array().unwrap().iter().chain([record]);
            also.filter(|advice| advice["verdict"] == "needs_you").count()
        };
        records.iter().map(is_one).sum::<usize>()
    };
    assert_eq!(needs_you("list") + needs_you("queues"), doctor.matches("problem: ").count(), "{doctor}");
}

#[test]
fn changes_obey_the_database_and_keep_its_options() {
    let world = World::new();
    let (at, mut client) = (&world.at, world.database.client());
    let mut options = || client.query_one("SELECT q::text FROM waterline.queue q", &[]).unwrap().get::<_, String>(0);
    let before = options();
    let mut rows = {
        let mut client = world.database.client();
        move || rows(&mut client)
    };
    let mut change = |line: &str, what: &str| -> Value {
        let before = rows();
        let dry = at.text(line);
        assert!(dry.starts_with(&format!("Would {what}")), "{line}: {dry}");
        assert_eq!(rows(), before, "the dry run of {line}");
        at.records(&format!("{line} --yes")).remove(0)
    };
    change("redrive blocks 3", "redrive job 3 of \"blocks\"");
    change("redrive blocks --all", "redrive 2 parked jobs");
    change("discard blocks 5", "discard job 5");
    let parked = at.records("parked blocks");
    assert_eq!((parked.len(), &parked[0]["redrive_wanted"]), (1, &json!(true)));
    change("skip prices 5 --reason empty", "skip job 5 of \"prices\"");
    change("seek prices 2 --reason wrong", "make 2 the next job of \"prices\", where it is 6 now");
    let moves = at.records("history prices");
    assert_eq!(moves.iter().map(|made| &made["reason"]).collect::<Vec<_>>(), [&json!("empty"), &json!("wrong")]);
    change("remove prices", "remove the progress \"prices\"");
    change("requeue mail carl", "requeue the dead job \"carl\"");
    assert_eq!(change("requeue mail --dead", "requeue 0 dead jobs")["requeued"], 0);
    change("run-now mail bob", "make the scheduled job \"bob\"");
    change("cancel mail ann", "remove the ready job \"ann\"");
    let pushed = change("push mail welcome {\"to\":\"eve\"}", "push a job of the kind \"welcome\"");
    assert_eq!(at.records(&format!("job mail {}", pushed["id"].as_str().unwrap()))[0]["payload"], json!({"to": "eve"}));
    // The database enforces the bound.
    assert_eq!(at.call("push mail welcome 1 --yes").code, 0);
    at.refused("push mail welcome 2 --yes", 1, &["full"]);
    change("pause mail", "pause the queue \"mail\"");
    assert_eq!(at.records("queues")[0]["paused"], true);
    change("resume mail", "end the pause");
    assert_eq!(options(), before);
    at.refused("remove-queue mail --yes", 1, &["has workers"]);
    at.refused("remove-queue nosuch --yes", 1, &["nosuch"]);
    // Let all leases end; no worker claims.
    world
        .database
        .client()
        .batch_execute("UPDATE waterline.queue SET lease = 1; DELETE FROM waterline.job WHERE state = 'running'")
        .unwrap();
    assert!(change("remove-queue mail", "remove the queue \"mail\" with")["jobs"].as_u64().unwrap() > 0);
    assert!(at.records("queues").is_empty());
    at.refused("pause blocks --consumer --yes", 1, &["by its process alone", "--url"]);
    at.refused("check blocks", 1, &["--url"]);
}

#[test]
fn a_running_consumer_redrives_but_cannot_be_moved() {
    let world = World::new();
    let jobs: MemoryJobs<u64> = (0..10).collect();
    let consumer = Consumer::builder(jobs, world.store.progress("blocks"));
    let consumer = consumer.on_exhausted(OnExhausted::Park { budget: 9 }).start(|_| Ok(())).unwrap();
    let at = &world.at;
    at.refused("seek blocks 2 --reason no --yes", 1, &["nothing was changed", "is in use by process"]);
    at.text("redrive blocks 3 --yes");
    common::eventually("the redrive", || at.records("parked blocks").iter().all(|job| job["index"] != 3));
    consumer.stop().unwrap();
}

#[test]
fn a_role_is_told_which_grants_it_lacks() {
    let world = World::new();
    let name = &world.database.name;
    let grants = format!(
        "CREATE ROLE operator_{name} LOGIN IN ROLE waterline_operate; CREATE ROLE pusher_{name} LOGIN IN ROLE waterline_push;
         CREATE ROLE reader_{name} LOGIN; GRANT USAGE ON SCHEMA waterline TO reader_{name};
         GRANT SELECT ON ALL TABLES IN SCHEMA waterline TO reader_{name}"
    );
    world.database.client().batch_execute(&grants).unwrap();
    let of = |role: &str| At::postgres(&url(&world.database, &format!("{role}_{name}")));
    let (operator, pusher, reader) = (of("operator"), of("pusher"), of("reader"));
    let denied = ["this role may not do it (permission denied for ", "waterline_operate"];
    assert_eq!(operator.records("queues").len(), 1);
    operator.text("requeue mail carl --yes");
    operator.refused("list", 1, &denied);
    let doctor = operator.call("doctor");
    assert!(doctor.out.contains("consumers") && doctor.out.contains("is not read: this role may not"), "{doctor:?}");
    for line in ["queues", "jobs mail", "pause mail --yes", "list"] {
        pusher.refused(line, 1, &denied);
    }
    assert_eq!(reader.records("list").len(), 2);
    assert_eq!(reader.records("parked blocks").len(), 2);
    reader.refused("redrive blocks 3 --yes", 1, &denied);
    reader.refused("queues", 1, &denied);
}

#[test]
fn a_foreign_database_is_refused_and_stays_empty() {
    let world = World::new();
    let at = &world.at;
    for (line, parts) in [
        ("show blokcs", &["did you mean \"blocks\"?"][..]),
        ("jobs mial", &["there is no queue \"mial\": did you mean \"mail\"?"]),
        ("job mail nobody", &["has no job \"nobody\""]),
        ("redrive blocks 4 --yes", &["is not parked"]),
        ("tables", &["--store PATH"]),
        ("list --schema other", &["the schema other do not fit"]),
        ("queues --schema other", &["the schema other do not fit"]),
    ] {
        at.refused(line, 1, parts);
    }
    let empty = Server::shared().database();
    for line in ["list", "queues", "doctor", "push mail k 1 --yes", "seek blocks 1 --reason no --yes"] {
        At::postgres(&url(&empty, "postgres")).refused(line, 1, &["do not fit", "--schema"]);
    }
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname IN ('waterline', 'other')";
    assert_eq!(empty.client().query_one(schemas, &[]).unwrap().get::<_, i64>(0), 0);
    // A reachable one is refused as well, and says how to pass the password.
    let known = url(&empty, "postgres:s3cret");
    At::postgres(&known).refused("list", 1, &["the URL has a password", "PGPASSWORD", "passfile"]);
    let gone = format!("postgres://ann:s3cret@127.0.0.1:{}/gone", Server::shared().port());
    for url in [
        known.as_str(),
        gone.as_str(),
        "postgres://ann:s3cret@127.0.0.1:1/x",
        "postgres://ann:s3cret@h:port/x",
        "s3cret",
    ] {
        let answer = At::postgres(url).call("list");
        assert_eq!((answer.code, answer.error.lines().count()), (1, 1), "{answer:?}");
        assert!(!answer.error.contains("s3cret"), "{answer:?}");
    }
}

#[test]
fn schedules_show_their_text_and_next_tick() {
    let world = World::new();
    let mail =
        world.store.queue("mail", QueueOptions::default().max_waiting(4).limit(Limit::kind("welcome").at_once(7)));
    let mail = mail.unwrap();
    mail.periodic("digest", Every::hours(1), NewJob::new("digest", &()).unwrap()).start_at_next().start().unwrap();
    let schedules = world.at.text("schedules mail");
    assert!(schedules.contains("digest    every 3600s  -") && schedules.contains("in 59m"), "{schedules}");
    assert!(!schedules.contains("Only its process knows"), "{schedules}");
    let record = &world.at.records("schedules mail")[0];
    assert_eq!((&record["schedule"], &record["last_tick"]), (&json!("every 3600s"), &Value::Null));
    assert!(record["next_tick"].is_u64(), "{record}");
}

/// Another process runs the jobs, so this one sees none of their starts and ends.
#[test]
fn a_page_without_the_runner_shows_only_push_rates() {
    let world = World::new();
    let here = world.database.store(PgOptions::new());
    let options = QueueOptions::default().max_waiting(9).limit(Limit::kind("welcome").at_once(7));
    let mail = here.queue("mail", options).unwrap();
    let served = Page::of([Watched::from(&mail)]).token(program::TOKEN).serve("127.0.0.1:0").unwrap();
    let page = At::url(&format!("http://{}", served.addr()));
    let rate = |name: &str| page.records("queues")[0][name].as_f64();
    // It knows only its own pushes.
    common::eventually("two samples", || rate("pushes_per_second").is_some());
    assert_eq!(["starts_per_second", "ends_per_second"].map(rate), [None, None]);
}
