//! The page that `serve` shows of a store, over HTTP.

use crate::application::{Application, Left};
use crate::program::{At, bytes, call, command, database};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use waterline::Store;
use waterline_queue::{NewJob, Queue, QueueOptions};

/// The tool while it serves.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(store: &Path) -> Self {
        let mut child = command(store, "serve").env_remove("WATERLINE_TOKEN").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("http://").and_then(|rest| rest.split_once('/')).expect(&line).0.to_owned();
        Self { child, address }
    }

    /// Makes a request, and returns the status and the body of the answer.
    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.address);
        let ours = "Content-Type: application/json\r\nX-Waterline-Page: 1\r\nSec-Fetch-Site: same-origin\r\n";
        write!(stream, "{head}{ours}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn view(&self, path: &str) -> Value {
        let (status, body) = self.ask("GET", &format!("/api/{path}"), "");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn of<'v>(rows: &'v Value, name: &str) -> &'v Value {
    rows.as_array().unwrap().iter().find(|row| row["name"] == name).unwrap_or(&Value::Null)
}

#[test]
fn the_page_shows_saved_state_and_changes_nothing() {
    let left: Left = Application::halted();
    let before = bytes(&left.store());
    let served = Served::start(&left.store());
    assert!(served.ask("GET", "/", "").1.contains("<script"));
    let overview = served.view("overview");
    let (stored, queues) = (&overview["stored"], &overview["queues"]);
    let prices = of(stored, "prices");
    assert_eq!((&prices["last_processed"], &prices["parked"]), (&json!(4), &json!(1)));
    assert_eq!((&prices["advice"]["reason"], &prices["verdict"]), (&json!("halted"), &json!("needs_you")));
    assert!(prices["advice"]["sentence"].as_str().unwrap().starts_with("the consumer halted at 5: job 5 failed"));
    let blocks = of(stored, "blocks");
    assert_eq!((&blocks["advice"]["reason"], &blocks["also"][0]["reason"]), (&json!("saved"), &json!("parked")));
    assert_eq!((&blocks["verdict"], &of(stored, "words")["verdict"]), (&json!("needs_you"), &json!("waits")));
    let mail = of(queues, "mail");
    assert_eq!((&mail["status"]["counts"]["dead"], &mail["status"]["counts"]["ready"]), (&json!(1), &json!(1)));
    assert!(mail["advice"]["sentence"].as_str().unwrap().contains("only its process knows"), "{mail}");
    let blocks = served.view("stored?name=blocks");
    let parked: Vec<_> = blocks["jobs"].as_array().unwrap().iter().map(|job| &job["index"]).collect();
    assert_eq!(parked, [3, 5]);
    assert_eq!(served.ask("GET", "/api/stored?name=nobody", "").0, 404);
    assert_eq!(served.view("job?queue=mail&id=ann")["kind"], "welcome");
    // Nothing can be changed.
    let change = json!({"action": "pause", "queue": "mail"}).to_string();
    assert_eq!(served.ask("POST", "/api/change", &change).0, 403);
    assert_eq!(overview["writes"], false);
    drop(served);
    assert!(bytes(&left.store()) == before, "a look changes nothing");
}

#[test]
fn the_page_follows_a_running_application() {
    let left = Application::sound();
    let served = Served::start(&left.store());
    assert_eq!(of(&served.view("overview")["queues"], "mail")["status"]["counts"]["ready"], 0);
    // Open the store while the page reads it.
    let store = Store::open(left.store()).unwrap();
    let mail = Queue::admin(&store, "mail").unwrap();
    mail.push(NewJob::new("welcome", "eve").unwrap()).unwrap();
    // On RocksDB the page shows the state of its last sample.
    let ready = || of(&served.view("overview")["queues"], "mail")["status"]["counts"]["ready"].clone();
    common::eventually("the new job", || ready() == 1);
    // A new queue appears, too.
    let later = Queue::open(&store, "later", QueueOptions::default()).unwrap();
    later.push(NewJob::new("welcome", "fred").unwrap().id("fred")).unwrap();
    common::eventually("the queue that was made later", || !of(&served.view("overview")["queues"], "later").is_null());
    let waits = || of(&served.view("overview")["queues"], "later")["status"]["counts"]["ready"].clone();
    common::eventually("its job", || waits() == 1);
    assert_eq!(served.view("job?queue=later&id=fred")["kind"], "welcome");
}

#[test]
fn a_damaged_queue_says_so_and_hides_nothing_else() {
    let left = Application::sound();
    let Some(database) = database(&left.store()) else { return };
    // Damage the record of its name.
    let damage = "UPDATE waterline_queue SET v = x'00' WHERE hex(k) LIKE '%' || hex('mail')";
    assert_eq!(database.execute(damage, []).unwrap(), 1);
    drop(database);
    let served = Served::start(&left.store());
    let overview = served.view("overview");
    let mail = of(&overview["queues"], "mail");
    assert_eq!((&mail["advice"]["reason"], &mail["verdict"]), (&json!("store_fails"), &json!("needs_you")));
    assert!(mail["advice"]["sentence"].as_str().unwrap().starts_with("the queue \"mail\" cannot be read: "), "{mail}");
    assert_eq!(of(&overview["stored"], "words")["last_processed"], 3);
    let doctor = At::url(&format!("http://{}", served.address)).call("doctor");
    let why = "the queue \"mail\" cannot be looked at: the queue \"mail\" cannot be read: the stored value";
    assert!(doctor.code == 1 && doctor.out.contains(why), "{doctor:?}");
}

#[test]
fn a_page_that_cannot_be_served_says_why() {
    let left = Application::sound();
    for (line, code, words) in [
        ("serve --listen 0.0.0.0:0", 1, "set a token in WATERLINE_TOKEN"),
        ("serve --listen nowhere", 1, "the page cannot listen on that address"),
        ("serve --listen", 2, "--listen"),
        ("serve --json", 2, "for people"),
    ] {
        let answer = call(&left.store(), line);
        assert_eq!((answer.code, answer.out.as_str()), (code, ""), "{line}: {answer:?}");
        assert!(answer.error.contains(words), "{line}: {answer:?}");
    }
    let answer = call(&left.store().join("nothing"), "serve");
    assert_eq!((answer.code, answer.error.lines().count()), (1, 1), "{answer:?}");
    assert!(answer.error.contains("there is no store at"), "{answer:?}");
}
