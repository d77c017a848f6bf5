//! The calls of the service.

use crate::receiver::{Answer, Receiver};
use crate::service::{Client, Service};
use axum::http::{Method, StatusCode};
use serde_json::json;
use std::time::Duration;

/// Starts a service in memory. Its receiver refuses event 4 until the third request, and events 5
/// and 7 a few times, wants event 6 again after a second, and holds event 8 and those from 100 on.
async fn begin(more: &[&str]) -> (Service, Receiver, Client) {
    let receiver = Receiver::start(|n, request| match (n, request) {
        (4, 1..=2) => Answer::Refuse(410),
        (5, 1..=2) => Answer::Refuse(500),
        (6, 1) => Answer::After(1),
        (7, 1..=3) => Answer::Refuse(500),
        (8 | 100.., _) => Answer::Hold,
        _ => Answer::Accept,
    });
    let more = [&["--backoff", "0.01", "--attempts", "3"], more].concat();
    (Service::start(None, &more), receiver.await, Client::new())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_delivered_once_per_idempotency_key() {
    let (service, receiver, client) = begin(&[]).await;
    let (status, first) = client.push(&service.url, &receiver, 1).await.unwrap();
    assert_eq!((status, &first["is_new"]), (StatusCode::ACCEPTED, &json!(true)));
    let id = first["id"].as_str().unwrap();
    let seen = client.ended(&service.url, id).await;
    assert_eq!((&seen["state"], &seen["data"]["status"]), (&json!("finished"), &json!(200)), "{seen}");
    let (status, again) = client.push(&service.url, &receiver, 1).await.unwrap();
    assert_eq!((status, &again["is_new"], &again["id"]), (StatusCode::ACCEPTED, &json!(false), &first["id"]));
    // Once a later event has ended, this one was still delivered only once.
    let other = client.pushed(&service.url, &receiver, 2).await;
    client.ended(&service.url, &other).await;
    assert_eq!(receiver.requests()[&1].accepted, 1);
    let (status, job) = client.get(format!("{}/events/{id}", service.url)).await;
    let shown = (&job["state"], &job["failures"], &job["error"], &job["key"]);
    assert_eq!((status, shown), (StatusCode::OK, (&json!("finished"), &json!(0), &json!(null), &json!("tenant 1"))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_event_retries_by_backoff_or_retry_after() {
    let (service, receiver, client) = begin(&[]).await;
    let (hurt, told) =
        (client.pushed(&service.url, &receiver, 5).await, client.pushed(&service.url, &receiver, 6).await);
    for (id, attempts) in [(&hurt, 3), (&told, 2)] {
        let seen = client.ended(&service.url, id).await;
        assert_eq!((&seen["state"], &seen["data"]["attempts"]), (&json!("finished"), &json!(attempts)), "{seen}");
    }
    let requests = receiver.requests();
    assert_eq!((requests[&5].at.len(), requests[&6].at.len()), (3, 2));
    assert!(requests[&6].at[1] - requests[&6].at[0] >= Duration::from_millis(999), "{requests:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_tenant_delays_no_other() {
    let (service, receiver, client) = begin(&["--tenant-at-once", "2"]).await;
    let mut ids = Vec::new();
    // The last one is of another tenant.
    for n in [100, 105, 110, 115, 101] {
        ids.push(client.pushed(&service.url, &receiver, n).await);
    }
    receiver.until_accepted(3).await;
    assert_eq!(receiver.requests().into_keys().collect::<Vec<_>>(), [100, 101, 105]);
    let (_, job) = client.get(format!("{}/events/{}", service.url, ids[2])).await;
    assert_eq!((&job["state"], &job["held_by"]), (&json!("ready"), &json!("the key \"tenant 0\"")));
    receiver.release();
    for id in &ids {
        assert_eq!(client.ended(&service.url, id).await["state"], json!("finished"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_paged_and_redriven() {
    let (service, receiver, client) = begin(&[]).await;
    let at = |path: &str| format!("{}{path}", service.url);
    let (gone, hurt) =
        (client.pushed(&service.url, &receiver, 4).await, client.pushed(&service.url, &receiver, 7).await);
    let seen = client.ended(&service.url, &gone).await;
    assert_eq!((&seen["state"], &seen["error"]), (&json!("dead"), &json!("the receiver answered 410 Gone")));
    let seen = client.ended(&service.url, &hurt).await;
    assert_eq!(seen["error"], json!("the receiver answered 500 Internal Server Error"));
    let mut dead = client.dead(&service.url, 1).await;
    dead.sort();
    assert_eq!(dead, [gone.as_str(), hurt.as_str()]);
    // Dead letters need an operator, but the process is ready.
    let statuses = (client.get(at("/health")).await.0, client.get(at("/ready")).await.0);
    assert_eq!(statuses, (StatusCode::SERVICE_UNAVAILABLE, StatusCode::OK));

    assert_eq!(client.post(at(&format!("/dead/{gone}/redrive"))).await.0, StatusCode::NO_CONTENT);
    assert_eq!(client.ended(&service.url, &gone).await["state"], json!("dead"), "it was refused again");
    assert_eq!(client.post(at("/dead/redrive")).await, (StatusCode::OK, json!({ "redriven": 2 })));
    for id in [&gone, &hurt] {
        assert_eq!(client.ended(&service.url, id).await["state"], json!("finished"));
    }
    assert_eq!(client.dead(&service.url, 10).await, [""; 0]);
    assert_eq!(client.post(at(&format!("/dead/{gone}/redrive"))).await.0, StatusCode::CONFLICT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_request_says_why() {
    let (service, receiver, client) = begin(&["--waiting", "1", "--at-once", "1"]).await;
    let at = |path: &str| format!("{}{path}", service.url);
    for path in ["/events/none", "/events/none/wait", "/none"] {
        assert_eq!(client.get(at(path)).await.0, StatusCode::NOT_FOUND, "{path}");
    }
    for path in ["/dead/none/redrive", "/none"] {
        assert_eq!(client.post(at(path)).await.0, StatusCode::NOT_FOUND, "{path}");
    }
    let event = |url: &str| json!({ "tenant": "a", "url": url, "payload": 1, "idempotency_key": "k" });
    let push = |event| client.ask(Method::POST, at("/events"), Some(event));
    for wrong in [event("ftp://a/"), event("/hook"), event("http://"), json!({ "tenant": "a" })] {
        let (status, answer) = push(wrong).await.unwrap();
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:?}");
    }
    let mut nobody = event("http://127.0.0.1:1/");
    nobody["tenant"] = "".into();
    assert_eq!(push(nobody).await.unwrap().0, StatusCode::UNPROCESSABLE_ENTITY, "the key of a limit has a byte");
    // The receiver holds one event, one waits, and there is no room for a third.
    client.pushed(&service.url, &receiver, 8).await;
    receiver.until_accepted(1).await;
    client.pushed(&service.url, &receiver, 1).await;
    let (status, answer) = client.push(&service.url, &receiver, 2).await.unwrap();
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_times_out_and_a_removed_event_is_gone() {
    let (service, receiver, client) = begin(&["--timeout", "0.2"]).await;
    let at = |path: &str| format!("{}{path}", service.url);
    let id = client.pushed(&service.url, &receiver, 8).await;
    let (status, _) = client.get(at(&format!("/events/{id}/wait?timeout=0"))).await;
    assert_eq!(status, StatusCode::NO_CONTENT, "it has not ended");
    let seen = client.ended(&service.url, &id).await;
    assert_eq!(seen["state"], json!("dead"), "{seen}");
    let removed = client.ask(Method::DELETE, at(&format!("/events/{id}")), None).await.unwrap();
    assert_eq!(removed.0, StatusCode::NO_CONTENT);
    assert_eq!(client.get(at(&format!("/events/{id}"))).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_state_metrics_and_health() {
    let (service, receiver, client) = begin(&[]).await;
    let at = |path: &str| format!("{}{path}", service.url);
    client.pushed(&service.url, &receiver, 8).await;
    receiver.until_accepted(1).await;
    let (status, state) = client.get(at("/status")).await;
    assert_eq!((status, &state["queue"], &state["counts"]["running"]), (StatusCode::OK, &json!("webhooks"), &json!(1)));
    assert_eq!(client.get(at("/ready")).await, (StatusCode::OK, json!("ready\n")));
    assert_eq!(client.get(at("/health")).await, (StatusCode::OK, json!("goes well\n")));
    receiver.release();
    // The gauges are set once a second.
    let finished = "waterline_queue_jobs{queue=\"webhooks\",state=\"finished\"} 1";
    let wanted = [finished, "waterline_queue_up", "waterline_queue_attempt_seconds_bucket"];
    loop {
        let (_, text) = client.get(at("/metrics")).await;
        if wanted.iter().all(|line| text.as_str().unwrap().contains(line)) {
            break;
        }
    }
}
