//! The figures of the example's README. These are no tests, and each wants the machine for itself:
//! `cargo test --release -p waterline-webhooks figures -- --ignored --nocapture --test-threads 1`.

use crate::polls::{of_process, until_waiting};
use crate::receiver::{Answer, Receiver};
use crate::service::{Client, Service};
use std::time::Instant;
use tokio::task::JoinSet;

/// Returns the CPU seconds of a process, in user and kernel mode.
fn cpu(id: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
    // The program's name ends with the last parenthesis; the state comes first behind it.
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // A tick is 10 ms on every Linux.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

/// Posts events from 64 clients at once, and waits until all are delivered.
async fn throughput(what: &str, more: &[&str], events: u64) {
    let place = tempfile::tempdir().unwrap();
    common::make_in(place.path());
    let (receiver, client) = (Receiver::start(|_, _| Answer::Accept).await, Client::new());
    let more = [&["--tenant-rate", "1000000", "--tenant-at-once", "256"], more].concat();
    let service = Service::start(Some(place.path()), &more);
    let (begun, mut clients) = (Instant::now(), JoinSet::new());
    for first in 0..64 {
        let (client, url, receiver) = (client.clone(), service.url.clone(), receiver.clone());
        clients.spawn(async move {
            for n in (first..events).step_by(64) {
                client.pushed(&url, &receiver, n).await;
            }
        });
    }
    clients.join_all().await;
    let posted = begun.elapsed();
    receiver.until_accepted(events).await;
    let delivered = begun.elapsed();
    let (cpu, peak) = (cpu(service.id()), of_process(service.id(), "VmHWM") / 1024);
    let a_second = |time: std::time::Duration| events as f64 / time.as_secs_f64();
    println!(
        "{what}: {events} events: {:.0} posted a second, {:.0} delivered a second, {:.0} µs of CPU an event, {peak} MiB",
        a_second(posted),
        a_second(delivered),
        cpu * 1e6 / events as f64,
    );
}

#[ignore = "it measures"]
#[tokio::test(flavor = "multi_thread")]
async fn figures_of_events() {
    throughput("synced", &[], 50_000).await;
    throughput("buffered", &["--buffered"], 50_000).await;
}

#[ignore = "it measures"]
#[tokio::test(flavor = "multi_thread")]
async fn figures_of_clients_that_wait() {
    let (polls, at_once) = (1_000, 16);
    let place = tempfile::tempdir().unwrap();
    common::make_in(place.path());
    let (receiver, client) = (Receiver::start(|_, _| Answer::Hold).await, Client::new());
    let service = Service::start(Some(place.path()), &["--at-once", &at_once.to_string(), "--buffered"]);
    let mut ids = Vec::new();
    for n in 0..polls {
        ids.push(client.pushed(&service.url, &receiver, n).await);
    }
    receiver.until_accepted(at_once).await;
    let now = || (of_process(service.id(), "Threads"), of_process(service.id(), "VmRSS"));
    let (before, mut waiting) = (now(), JoinSet::new());
    for id in ids {
        let (client, url) = (client.clone(), service.url.clone());
        waiting.spawn(async move { client.ended(&url, &id).await });
    }
    until_waiting(&client, &service, polls as usize).await;
    let (threads, memory) = now();
    let begun = cpu(service.id());
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    println!(
        "{polls} clients that wait: {threads} threads ({} before), {} KiB each, {:.1} ms of CPU a second",
        before.0,
        (memory - before.1) / polls,
        (cpu(service.id()) - begun) * 100.0,
    );
    receiver.release();
    waiting.join_all().await;
}
