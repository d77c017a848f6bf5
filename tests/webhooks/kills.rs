//! The service is killed again and again, and its clients repost what was not answered.

use crate::receiver::{Answer, Receiver};
use crate::service::{Client, Service};
use axum::http::StatusCode;
use common::{seed, size};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

const AT_ONCE: u64 = 16;
const CLIENTS: u64 = 8;

fn is_refused_for_good(n: u64) -> bool {
    n % 25 == 7
}

fn decide(n: u64, request: usize) -> Answer {
    match (n % 25, request) {
        (7, _) => Answer::Refuse(404),
        (3 | 13, 1) => Answer::Refuse(500),
        (5, _) => Answer::Slow(Duration::from_millis(100)),
        (11, 1) => Answer::After(1),
        _ => Answer::Accept,
    }
}

/// Posts every eighth event. Without an answer, it posts the same event to the next life.
async fn post(
    client: Client,
    receiver: Receiver,
    numbers: impl Iterator<Item = u64>,
    mut lives: watch::Receiver<String>,
) -> BTreeMap<u64, String> {
    let mut ids = BTreeMap::new();
    for n in numbers {
        let id = loop {
            let url = lives.borrow_and_update().clone();
            match client.push(&url, &receiver, n).await {
                Ok((StatusCode::ACCEPTED, pushed)) => break pushed["id"].as_str().unwrap().to_owned(),
                Ok(refused) => panic!("event {n}: {refused:?}"),
                Err(_) => crate::soon("the next life", lives.changed()).await.unwrap(),
            }
        };
        ids.insert(n, id);
    }
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_leave_each_event_delivered_or_dead() {
    let (events, kills) = (size(400, 20_000), size(5, 40));
    let place = tempfile::tempdir().unwrap();
    common::make_in(place.path());
    let (receiver, client) = (Receiver::start(decide).await, Client::new());
    let start = || {
        let at_once = AT_ONCE.to_string();
        // A soak may kill one event's delivery more often than the default allows.
        Service::start(Some(place.path()), &["--at-once", &at_once, "--backoff", "0.05", "--crashes", "1000"])
    };
    let mut service = start();
    let (life, lives) = watch::channel(service.url.clone());
    let mut clients = JoinSet::new();
    for first in 0..CLIENTS {
        let numbers = (first..events).step_by(CLIENTS as usize);
        clients.spawn(post(client.clone(), receiver.clone(), numbers, lives.clone()));
    }
    for kill in 1..=kills {
        receiver.until_accepted(kill * events / (kills + 2) + seed() % 50).await;
        service.kill();
        service = start();
        life.send_replace(service.url.clone());
    }
    let ids: BTreeMap<u64, String> = clients.join_all().await.into_iter().flatten().collect();
    assert_eq!(ids.len() as u64, events);
    assert_eq!(ids.values().collect::<BTreeSet<_>>().len() as u64, events, "each has an id of its own");

    let (mut dead, mut doubled) = (BTreeSet::new(), 0);
    for (n, id) in &ids {
        let seen = client.ended(&service.url, id).await;
        let accepted = receiver.requests()[n].accepted;
        if is_refused_for_good(*n) {
            assert_eq!((&seen["state"], accepted), (&json!("dead"), 0), "event {n}: {seen}");
            dead.insert(id.clone());
        } else {
            assert_eq!(seen["state"], "finished", "event {n}: {seen}");
            let crashes = seen["data"]["crashes"].as_u64().unwrap();
            assert!((1..=1 + crashes).contains(&accepted), "event {n} was delivered {accepted} times: {seen}");
            doubled += accepted - 1;
        }
    }
    assert_eq!(dead.len(), (0..events).filter(|n| is_refused_for_good(*n)).count());
    assert_eq!(client.dead(&service.url, 7).await.into_iter().collect::<BTreeSet<_>>(), dead, "each is listed");
    assert!(doubled <= kills * AT_ONCE, "{doubled} deliveries are doubled, and fewer were in flight at the kills");
    println!("{events} events, {kills} kills: {doubled} delivered twice, {} dead", dead.len());
}
