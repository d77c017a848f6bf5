//! Many clients that wait for the end of events at once.

use crate::receiver::{Answer, Receiver};
use crate::service::{Client, Service};
use serde_json::json;
use tokio::task::JoinSet;

/// Returns a number from the status of a process, such as `Threads`.
pub fn of_process(id: u32, what: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':')).expect("it has this line");
    line.split_whitespace().next().unwrap().parse().unwrap()
}

pub async fn until_waiting(client: &Client, service: &Service, count: usize) {
    let wanted = format!("webhooks_waiting {count}\n");
    let waiting =
        async { while !client.get(format!("{}/metrics", service.url)).await.1.as_str().unwrap().contains(&wanted) {} };
    crate::soon("clients that wait", waiting).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_waiting_clients_need_no_thread() {
    let (polls, at_once) = (1_000, 16);
    let (receiver, client) = (Receiver::start(|_, _| Answer::Hold).await, Client::new());
    let service = Service::start(None, &["--at-once", &at_once.to_string(), "--store-threads", "4"]);
    let mut ids = Vec::new();
    for n in 0..polls {
        ids.push(client.pushed(&service.url, &receiver, n).await);
    }
    receiver.until_accepted(at_once).await;
    // First, as many requests that do not wait.
    let all = |path: &str| {
        let urls = ids.iter().map(|id| format!("{}/events/{id}{path}", service.url));
        urls.map(|url| (client.clone(), url)).map(|(client, url)| async move { client.get(url).await }).collect()
    };
    let shown: JoinSet<_> = all("");
    shown.join_all().await;
    let threads = || of_process(service.id(), "Threads");
    let before = threads();
    // Clients that disconnect leave nothing behind.
    let gone: JoinSet<_> = all("/wait");
    until_waiting(&client, &service, polls as usize).await;
    drop(gone);
    until_waiting(&client, &service, 0).await;
    let waiting: JoinSet<_> = all("/wait");
    until_waiting(&client, &service, polls as usize).await;
    // The runtime keeps threads of the burst of requests for ten seconds.
    let is_as_before = || threads() <= before;
    tokio::task::block_in_place(|| common::eventually("the threads of a service without clients", is_as_before));
    receiver.release();
    let ends = waiting.join_all().await;
    assert!(ends.iter().all(|(_, seen)| seen["state"] == json!("finished")));
    println!("{polls} clients that wait: {before} threads, as before");
}
