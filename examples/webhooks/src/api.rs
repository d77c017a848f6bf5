//! The HTTP interface of the service.

use crate::delivery::Delivery;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Deserialize;
use serde_json::json;
use std::time::Duration;
use tokio::sync::watch;
use waterline::Verdict;
use waterline_queue::{JobInfo, JobState, Page, Pushed, Queue, QueueError, QueueStatus, Waits};

/// The longest time that a client may wait for the end of an event.
const LONGEST_POLL: Duration = Duration::from_secs(60);
/// The most dead letters in a page.
const MOST_IN_A_PAGE: usize = 1_000;

/// What the handlers need.
#[derive(Clone, Debug)]
pub struct App {
    pub queue: Queue,
    pub metrics: PrometheusHandle,
    /// True once the service stops.
    pub stopping: watch::Receiver<bool>,
}

pub fn routes(app: App) -> Router {
    Router::new()
        .route("/events", post(push))
        .route("/events/{id}", get(show).delete(remove))
        .route("/events/{id}/wait", get(wait))
        .route("/dead", get(dead))
        .route("/dead/redrive", post(redrive_all))
        .route("/dead/{id}/redrive", post(redrive))
        .route("/status", get(status))
        .route("/metrics", get(|State(app): State<App>| async move { app.metrics.render() }))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .with_state(app)
}

/// An error as an answer.
struct Refused(StatusCode, String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

impl From<QueueError> for Refused {
    fn from(error: QueueError) -> Self {
        let status = match error {
            QueueError::NotFound { .. } => StatusCode::NOT_FOUND,
            QueueError::Config(_) | QueueError::Payload { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self(status, error.report())
    }
}

fn not_found(id: &str) -> Refused {
    Refused(StatusCode::NOT_FOUND, format!("there is no event {id:?}"))
}

/// Accepts an event. The answer is sent once the event is on the disk.
async fn push(State(app): State<App>, Json(event): Json<Delivery>) -> Result<(StatusCode, Json<Pushed>), Refused> {
    let is_http = |uri: &Uri| uri.scheme_str() == Some("http") && uri.host().is_some();
    if !event.url.parse().is_ok_and(|uri| is_http(&uri)) {
        let error = format!("{:?} is no address of the form http://host/path", event.url);
        return Err(Refused(StatusCode::UNPROCESSABLE_ENTITY, error));
    }
    Ok((StatusCode::ACCEPTED, Json(app.queue.push_job_async(&event).await?)))
}

async fn show(State(app): State<App>, Path(id): Path<String>) -> Result<Json<JobInfo>, Refused> {
    let job = app.queue.get_async(&id).await?;
    job.map(Json).ok_or_else(|| not_found(&id))
}

async fn remove(State(app): State<App>, Path(id): Path<String>) -> Result<StatusCode, Refused> {
    app.queue.run_async(|queue| queue.remove(id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
struct Wait {
    /// In seconds.
    timeout: Option<f64>,
}

/// Answers once the event is delivered, dead or removed, and with 204 after the timeout.
async fn wait(
    State(mut app): State<App>,
    Path(id): Path<String>,
    Query(Wait { timeout }): Query<Wait>,
) -> Result<Response, Refused> {
    let timeout = timeout.map_or(LONGEST_POLL, |seconds| {
        Duration::try_from_secs_f64(seconds).map_or(Duration::ZERO, |timeout| timeout.min(LONGEST_POLL))
    });
    let _waiting = Waiting::new();
    let mut event = app.queue.subscribe_async(id).await?;
    tokio::select! {
        ended = event.wait_ended_async(timeout) => Ok(match ended? {
            Some(end) => Json(end).into_response(),
            None => StatusCode::NO_CONTENT.into_response(),
        }),
        _ = app.stopping.wait_for(|stops| *stops) => Err(stops()),
    }
}

fn stops() -> Refused {
    Refused(StatusCode::SERVICE_UNAVAILABLE, "the service stops: ask again".to_owned())
}

/// A request that waits for the end of an event, counted in the metrics.
struct Waiting(metrics::Gauge);

impl Waiting {
    fn new() -> Self {
        let gauge = metrics::gauge!("webhooks_waiting");
        gauge.increment(1);
        Self(gauge)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

#[derive(Deserialize)]
struct Part {
    cursor: Option<String>,
    limit: Option<usize>,
}

/// Returns a page of dead letters. `next` is the cursor of the next page.
async fn dead(State(app): State<App>, Query(part): Query<Part>) -> Result<Json<Page>, Refused> {
    let limit = part.limit.unwrap_or(100).clamp(1, MOST_IN_A_PAGE);
    let page = move |queue: &Queue| queue.page(JobState::Dead, part.cursor.as_deref(), limit);
    Ok(Json(app.queue.run_async(page).await?))
}

async fn redrive(State(app): State<App>, Path(id): Path<String>) -> Result<StatusCode, Refused> {
    match app.queue.run_async(|queue| queue.requeue(id)).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Refused(StatusCode::CONFLICT, "the event is not dead".to_owned())),
    }
}

async fn redrive_all(State(app): State<App>) -> Result<Json<serde_json::Value>, Refused> {
    let count = app.queue.run_async(Queue::requeue_dead).await?;
    Ok(Json(json!({ "redriven": count })))
}

async fn status(State(app): State<App>) -> Result<Json<QueueStatus>, Refused> {
    Ok(Json(app.queue.run_async(Queue::status).await?))
}

/// Tells a monitor whether an operator has to act, by the verdict that the page and the tool show.
/// A dead event needs one, and takes no process out of service.
async fn health(State(app): State<App>) -> Result<String, Refused> {
    let status = app.queue.run_async(Queue::status).await?;
    match status.verdict() {
        Verdict::NeedsYou => Err(Refused(StatusCode::SERVICE_UNAVAILABLE, status.to_string())),
        verdict => Ok(format!("{verdict}\n")),
    }
}

/// Tells a load balancer whether this process can serve requests.
async fn ready(State(app): State<App>) -> Result<&'static str, Refused> {
    if *app.stopping.borrow() {
        return Err(stops());
    }
    let status = app.queue.run_async(Queue::status).await?;
    match status.waits {
        Waits::StoreFails { .. } | Waits::NoWorker => Err(Refused(StatusCode::SERVICE_UNAVAILABLE, status.to_string())),
        _ => Ok("ready\n"),
    }
}
