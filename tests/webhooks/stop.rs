//! The service is asked to end while it delivers.

use crate::receiver::{Answer, Receiver};
use crate::service::{Client, Service};
use axum::http::StatusCode;
use serde_json::json;
use std::net::TcpStream;

#[tokio::test(flavor = "multi_thread")]
async fn a_service_asked_to_end_finishes_its_deliveries() {
    let (events, at_once) = (40, 8);
    let place = tempfile::tempdir().unwrap();
    common::make_in(place.path());
    let (receiver, client) = (Receiver::start(|_, _| Answer::Hold).await, Client::new());
    let start = || Service::start(Some(place.path()), &["--at-once", &at_once.to_string()]);
    let mut service = start();
    let mut ids = Vec::new();
    for n in 0..events {
        ids.push(client.pushed(&service.url, &receiver, n).await);
    }
    receiver.until_accepted(at_once).await;
    let waiting = tokio::spawn({
        let (client, url) = (client.clone(), format!("{}/events/{}/wait", service.url, ids[39]));
        async move { client.get(url).await }
    });
    let metrics = format!("{}/metrics", service.url);
    while !client.get(metrics.clone()).await.1.as_str().unwrap().contains("webhooks_waiting 1") {}

    service.terminate();
    let (status, answer) = waiting.await.unwrap();
    assert_eq!((status, &answer["error"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("the service stops: ask again")));
    let address = service.url.strip_prefix("http://").unwrap().to_owned();
    let refuses = || common::eventually("no new request", || TcpStream::connect(&address).is_err());
    tokio::task::block_in_place(refuses);
    receiver.release();
    let ended = tokio::task::block_in_place(|| service.end());
    assert!(ended.success(), "{ended}");
    let delivered = |requests: &std::collections::BTreeMap<u64, crate::receiver::Requests>| {
        assert!(requests.values().all(|requests| requests.accepted == 1), "{requests:?}");
        requests.len() as u64
    };
    // Some may have started between the end of the listener and that of the runner.
    let count = delivered(&receiver.requests());
    assert!((at_once..2 * at_once).contains(&count), "those in flight have ended, and others did not begin: {count}");

    let service = start();
    for id in &ids {
        let seen = client.ended(&service.url, id).await;
        let data = (&seen["data"]["attempts"], &seen["data"]["crashes"]);
        assert_eq!((&seen["state"], data), (&json!("finished"), (&json!(1), &json!(0))), "{seen}");
    }
    assert_eq!(delivered(&receiver.requests()), events);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_cut_off_by_a_stop_is_repeated() {
    let place = tempfile::tempdir().unwrap();
    common::make_in(place.path());
    let (receiver, client) = (Receiver::start(|_, _| Answer::Hold).await, Client::new());
    let start = || Service::start(Some(place.path()), &["--stop-within", "0.1"]);
    let mut service = start();
    let id = client.pushed(&service.url, &receiver, 1).await;
    receiver.until_accepted(1).await;
    service.terminate();
    let ended = tokio::task::block_in_place(|| service.end());
    assert_eq!(ended.code(), Some(1), "it says that a delivery is left");
    receiver.release();
    let service = start();
    let seen = client.ended(&service.url, &id).await;
    let data = (&seen["data"]["attempts"], &seen["data"]["crashes"]);
    assert_eq!((&seen["state"], data), (&json!("finished"), (&json!(1), &json!(0))), "{seen}");
    assert_eq!(receiver.requests()[&1].accepted, 2);
}
