//! Many clients that wait for the end of an event at once.

use crate::receiver::{Answer, Receiver};
use crate::service::{Client, Service};
use serde_json::json;
use tokio::task::JoinSet;

/// Returns a number of the status of a process, for example `Threads`.
pub fn of_process(id: u32, what: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':')).expect("it has this line");
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Waits until so many clients wait.
pub async fn until_waiting(client: &Client, service: &Service, count: usize) {
    let wanted = format!("webhooks_waiting {count}\n");
    let waiting =
        async { while !client.get(format!("{}/metrics", service.url)).await.1.as_str().unwrap().contains(&wanted) {} };
    crate::soon("clients that wait", waiting).await;
}

#[ignore = "a wait blocks a thread until the queue waits by a future"]
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_clients_that_wait_need_no_thread() {
    let (polls, at_once) = (1_000, 16);
    let (receiver, client) = (Receiver::start(|_, _| Answer::Hold).await, Client::new());
    let service = Service::start(None, &["--at-once", &at_once.to_string()]);
    let mut ids = Vec::new();
    for n in 0..polls {
        ids.push(client.pushed(&service.url, &receiver, n).await);
    }
    receiver.until_accepted(at_once).await;
    let before = of_process(service.id(), "Threads");
    let mut waiting = JoinSet::new();
    for id in ids {
        let (client, url) = (client.clone(), service.url.clone());
        waiting.spawn(async move { client.ended(&url, &id).await });
    }
    until_waiting(&client, &service, polls as usize).await;
    let during = of_process(service.id(), "Threads");
    receiver.release();
    let ends = waiting.join_all().await;
    assert!(ends.iter().all(|seen| seen["state"] == json!("finished")));
    assert!(during <= before, "{during} threads while {polls} clients wait, and {before} before");
    println!("{polls} clients that wait: {during} threads, and {before} before");
}
