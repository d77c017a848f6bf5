//! The workers of a database, as the tool and a page show them.

use crate::program::{At, TOKEN};
use crate::server::Server;
use crate::url;
use postgres::Client;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use waterline_postgres::PgOptions;
use waterline_queue::{NewJob, Outcome, QueueOptions, Runner};
use waterline_ui::{Page, Watched};

/// Requests a view of a page, as JSON.
fn view(addr: SocketAddr, path: &str) -> Value {
    let mut stream = TcpStream::connect(addr).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {addr}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_head, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

fn named<'w>(workers: &'w [Value], name: &str) -> &'w Value {
    workers.iter().find(|worker| worker["name"] == name).unwrap_or_else(|| panic!("{name}: {workers:#?}"))
}

/// A long list is cut, and workers that lost jobs come first.
fn a_large_fleet_is_shown_in_part(client: &mut Client, addr: SocketAddr) {
    let many = "INSERT INTO waterline.worker (queue, number, name, slots, began, seen)
        SELECT q.id, 100 + n, 'many ' || n, 2, waterline.clock(), waterline.clock() FROM waterline.queue q, generate_series(1, 60) n";
    client.batch_execute(many).unwrap();
    let first = view(addr, "/api/workers?queue=mail&limit=20");
    assert_eq!(
        (first["workers"].as_array().unwrap().len(), &first["count"], &first["next"]),
        (20, &json!(63), &json!(20))
    );
    assert_eq!(
        (&first["workers"][0]["name"], &first["silent"], &first["taking"]),
        (&json!("w1"), &json!(1), &json!(62))
    );
    assert_eq!((&first["slots"], &first["busy"]), (&json!(4 + 3 + 120), &json!(0)));
    let last = view(addr, "/api/workers?queue=mail&limit=20&skip=60");
    assert_eq!((last["workers"].as_array().unwrap().len(), &last["next"]), (3, &Value::Null));
}

#[test]
fn workers_show_jobs_and_when_lost_ones_return() {
    let database = Server::shared().database();
    let (store, mut client) = (database.store(PgOptions::new()), database.client());
    let mail = store.queue("mail", QueueOptions::default()).unwrap();
    let at = At::postgres(&url(&database, "postgres"));
    let none = at.text("workers mail");
    let start = "Start a program that has a runner of it, or that calls accept.";
    assert!(none.starts_with(&format!("The queue \"mail\" has no worker. {start}\n")), "{none}");
    at.refused("workers mial", 1, &["there is no queue \"mial\": did you mean \"mail\"?"]);
    mail.push_all(["h0", "h1"].map(|id| NewJob::new("welcome", id).unwrap().id(id))).unwrap();
    let works = |name: &str, kinds: &str, slots: u32, about: &str| {
        format!("SELECT waterline.work('mail', '{name}', {kinds}, {slots}, p_poll => 1, p_about => '{about}');")
    };
    let python = r#"{"number": 7, "process": 4711, "host": "node-1", "language": "python", "version": "3.12"}"#;
    client.batch_execute(&works("w1", "'{welcome}'", 2, python)).unwrap();
    client.batch_execute(&works("w2", "NULL", 4, r#"{"number": 8, "language": "javascript"}"#)).unwrap();
    let text = at.text("workers mail");
    assert!(text.starts_with("The queue \"mail\" has 2 workers, 2 of 6 slots busy.\n"), "{text}");
    for part in
        ["w1      node-1:4711  python 3.12  welcome  2 of 2", "javascript   all      0 of 4", "w1      h0   welcome"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Its process died 41 s ago, with a lease of 60 s.
    client
        .batch_execute(
            "UPDATE waterline.worker SET seen = seen - 41000, began = began - 41000 WHERE name = 'w1';
            UPDATE waterline.job SET at = at - 41000, since = since - 41000, renewed = renewed - 41000 WHERE worker = 'w1'",
        )
        .unwrap();
    let text = at.text("workers mail");
    assert!(
        text.starts_with("The queue \"mail\" has 1 worker, 0 of 4 slots busy; 1 is no longer heard of.\n"),
        "{text}"
    );
    let first = text.lines().find(|line| line.starts_with('w')).unwrap();
    assert!(first.contains("no longer heard of; its 2 jobs come back in 1"), "it comes first: {text}");
    assert!(at.text("workers mail --limit 1").contains("and 1 worker more: --limit 0 shows all"));
    // Start a runner here, too, and look at all workers through its page.
    let runner = Runner::builder(&mail).on("digest", |_job, ()| Ok(Outcome::Done)).max_processing(3).start().unwrap();
    let served = Page::of([Watched::from(&mail)]).token(TOKEN).serve("127.0.0.1:0").unwrap();
    let page = At::url(&format!("http://{}", served.addr()));
    let own = |worker: &Value| worker["process"] == json!(std::process::id());
    for place in [&at, &page] {
        common::eventually("the runner", || place.records("workers mail").iter().any(own));
        let workers = place.records("workers mail");
        let own = workers.iter().find(|worker| own(worker)).unwrap();
        assert_eq!((&own["slots"], &own["kinds"], &own["language"]), (&json!(3), &json!(["digest"]), &json!("rust")));
        let (lost, alive) = (named(&workers, "w1"), named(&workers, "w2"));
        assert_eq!(
            (&lost["is_silent"], &lost["busy"], &lost["jobs"][0]["id"]),
            (&json!(true), &json!(2), &json!("h0"))
        );
        let time = |field: &str| lost[field].as_u64().unwrap();
        assert!((41_000..60_000).contains(&time("silent_for")) && time("lease_left") < 20_000, "{lost}");
        assert!(lost["jobs"][1]["ran_for"].as_u64().unwrap() >= 41_000, "{lost}");
        assert_eq!(
            (&alive["is_silent"], &alive["kinds"], &alive["queue"]),
            (&json!(false), &Value::Null, &json!("mail"))
        );
    }
    a_large_fleet_is_shown_in_part(&mut client, served.addr());
    runner.stop().unwrap();
    assert!(!at.records("workers mail").iter().any(|worker| worker["process"] == json!(std::process::id())));
}
