//! Consumers and queues for a page to show, each in a state that lasts.

use crate::http::{Answer, send};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use waterline::{Consumer, Jobs, MemoryJobs, OnExhausted, Retry, Store};
use waterline_queue::{Limit, NewJob, Queue, QueueOptions};
use waterline_ui::{Page, Served};

pub(crate) const TOKEN: &str = "the token of the tests";

/// A store with two consumers and a queue.
pub(crate) struct World {
    pub(crate) store: Store,
    /// It retries job 1 for hours, and has parked job 2.
    pub(crate) blocks: Consumer,
    /// It waits for `blocks`.
    pub(crate) behind: Consumer,
    /// No worker takes its jobs.
    pub(crate) mails: Queue,
}

impl World {
    pub(crate) fn new() -> Self {
        let store = Store::in_memory();
        let jobs: MemoryJobs<_> = (0..10).collect();
        let blocks = Consumer::builder(jobs.clone(), store.progress("blocks"))
            .max_processing(2)
            .retry(Retry::fixed(Duration::from_secs(36_000)).max_attempts(9))
            .on_exhausted(OnExhausted::Park { budget: 5 })
            .start(|job| match job.index {
                1 => Err("<b>no</b> & 'never'".into()),
                2 => Err(waterline::Failure::permanent("poison").into()),
                _ => Ok(()),
            })
            .unwrap();
        let handle = blocks.handle();
        let behind = Consumer::builder(jobs.gated_by(&handle), store.progress("behind")).start(|_| Ok(())).unwrap();
        until(|| handle.status().done == 8 && handle.status().parked == 1);
        assert!(handle.wait_for(0, Duration::from_secs(60)));
        assert!(behind.handle().wait_for(0, Duration::from_secs(60)));
        let options = QueueOptions::default().limit(Limit::kind("welcome").at_once(2));
        let mails = Queue::open(&store, "mail", options).unwrap();
        let welcome = |n: u32| NewJob::new("welcome", &json!({"to": format!("<i>{n}</i>")})).unwrap();
        mails.push_all((0..25).map(|n| welcome(n).id(format!("m/{n}")).key(format!("tenant {}", n % 5)))).unwrap();
        mails.push(welcome(100).id("later").delay(Duration::from_secs(86_400))).unwrap();
        mails.push(NewJob::new("digest", &()).unwrap().id("behind").after(["later"])).unwrap();
        Self { store, blocks, behind, mails }
    }

    pub(crate) fn page(&self) -> Page {
        Page::new(&self.store)
            .watch(self.blocks.handle())
            .watch(self.behind.handle())
            .queue(&self.mails)
            .title("<indexer>")
    }

    /// A page that takes changes.
    pub(crate) fn writable(&self) -> Served {
        self.page().allow_writes(true).token(TOKEN).serve("127.0.0.1:0").unwrap()
    }
}

/// Waits for a condition, with the patience that a busy machine needs.
#[track_caller]
pub(crate) fn until(so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never came");
        std::thread::yield_now();
    }
}

/// Requests a path without the token.
pub(crate) fn look(served: &Served, path: &str) -> Answer {
    send(served.addr(), "GET", path, &[], "")
}

/// Makes a change with the token, as a program does.
pub(crate) fn change(served: &Served, change: &Value) -> (u16, Value) {
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json"), ("x-waterline-page", "1")];
    let answer = send(served.addr(), "POST", "/api/change", &headers, &change.to_string());
    (answer.status, answer.json())
}

/// Reads a view with the token, as a program does.
pub(crate) fn view(served: &Served, path: &str) -> Value {
    let answer = send(served.addr(), "GET", path, &[("authorization", &format!("Bearer {TOKEN}"))], "");
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}
