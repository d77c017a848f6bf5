//! An event, and the attempt to deliver it.

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};
use waterline::{BoxError, Failure};
use waterline_queue::{NewJob, Outcome, Running, TypedJob, Unique};

/// How long an idempotency key is remembered, and a delivered event is shown.
pub const KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// The most bytes of an answer that are read. They are not used, but a connection can be reused
/// only after its answer was read.
const MOST_READ: usize = 64 * 1024;
/// The longest wait that a receiver may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(60 * 60);

/// An event, as a client posts it and as the queue stores it.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Delivery {
    pub tenant: String,
    /// The address of the receiver.
    pub url: String,
    pub payload: serde_json::Value,
    /// The client's name for the event: a second event of this name is not delivered.
    pub idempotency_key: String,
}

impl TypedJob for Delivery {
    const KIND: &'static str = "deliver";

    fn settings(&self, job: NewJob) -> NewJob {
        job.key(&self.tenant).unique(Unique::within(KEPT).only(["tenant", "idempotency_key"]))
    }
}

/// The data that a delivered event leaves.
#[derive(Debug, Serialize)]
struct Receipt {
    /// The status of the receiver's answer.
    status: u16,
    attempts: u32,
    /// How often this process died meanwhile. Each time may have delivered the event once.
    crashes: u32,
}

/// The client for all deliveries. Clones share its connections.
pub type Http = Client<HttpConnector, Full<axum::body::Bytes>>;

/// Delivers an event with its id, by which the receiver recognizes one that comes twice.
pub async fn deliver(http: Http, job: Running, delivery: Delivery) -> Result<Outcome, BoxError> {
    let request = Request::post(&delivery.url)
        .header(CONTENT_TYPE, "application/json")
        .header("webhook-id", job.id())
        .header("webhook-attempt", job.attempt())
        .body(Full::from(serde_json::to_vec(&delivery.payload)?))
        .map_err(Failure::permanent)?;
    let (head, body) = http.request(request).await?.into_parts();
    let _ = Limited::new(body, MOST_READ).collect().await;
    if !head.status.is_success() {
        return refused(head.status, &head.headers, SystemTime::now());
    }
    let receipt = Receipt { status: head.status.as_u16(), attempts: job.attempt(), crashes: job.crashes() };
    Ok(Outcome::done_with(&receipt)?)
}

/// Decides what becomes of an event that its receiver has refused.
fn refused(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Result<Outcome, BoxError> {
    let error = format!("the receiver answered {status}");
    let may_change = status.is_server_error()
        || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS].contains(&status);
    if !may_change {
        return Err(Failure::permanent(error).into());
    }
    match retry_after(headers, now) {
        Some(at) => Ok(Outcome::RetryAt(at)),
        None => Err(error.into()),
    }
}

/// Returns when the receiver wants the next attempt: it names seconds, or a date.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<SystemTime> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let at = match text.parse() {
        Ok(seconds) => now.checked_add(Duration::from_secs(seconds))?,
        Err(_) => httpdate::parse_http_date(text).ok()?,
    };
    Some(at.clamp(now, now + LONGEST_WAIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, after: Option<&str>) -> Result<Outcome, String> {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let headers = after.map(|text| (RETRY_AFTER, text.parse().unwrap())).into_iter().collect();
        refused(StatusCode::from_u16(status).unwrap(), &headers, now).map_err(|error| match error.is::<Failure>() {
            true => format!("dead: {error}"),
            false => error.to_string(),
        })
    }

    #[test]
    fn answers_that_may_change_are_retried_and_others_are_final() {
        assert_eq!(answer(503, None).unwrap_err(), "the receiver answered 503 Service Unavailable");
        assert_eq!(answer(429, None).unwrap_err(), "the receiver answered 429 Too Many Requests");
        assert_eq!(answer(404, None).unwrap_err(), "dead: the receiver answered 404 Not Found");
        assert_eq!(answer(404, Some("5")).unwrap_err(), "dead: the receiver answered 404 Not Found");
        assert_eq!(answer(302, None).unwrap_err(), "dead: the receiver answered 302 Found");
    }

    #[test]
    fn a_receiver_may_delay_a_retry_by_up_to_an_hour() {
        let at = |seconds: u64| Ok(Outcome::RetryAt(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)));
        assert_eq!(answer(503, Some("7")), at(7));
        assert_eq!(answer(429, Some("Mon, 12 Jan 1970 13:47:10 GMT")), at(30));
        assert_eq!(answer(503, Some("Mon, 12 Jan 1970 00:00:00 GMT")), at(0));
        assert_eq!(answer(503, Some("86400")), at(3600));
        assert_eq!(answer(503, Some("soon")).unwrap_err(), "the receiver answered 503 Service Unavailable");
    }
}
