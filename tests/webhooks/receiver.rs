//! A receiver of webhooks: a server that answers as the test says.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::watch;

#[derive(Clone, Copy, Deserialize, Serialize)]
pub struct Numbered {
    pub n: u64,
}

#[derive(Clone, Copy)]
pub enum Answer {
    Accept,
    /// Accepts the event, and answers after this time.
    Slow(Duration),
    /// Accepts the event, and answers once the test releases it.
    Hold,
    Refuse(u16),
    /// Asks for the event again after this many seconds.
    After(u64),
}

#[derive(Clone, Debug, Default)]
pub struct Requests {
    pub at: Vec<Instant>,
    /// The number of accepted requests: how often the event was delivered.
    pub accepted: u64,
}

type Decide = dyn Fn(u64, usize) -> Answer + Send + Sync;

struct Shared {
    decide: Box<Decide>,
    requests: Mutex<BTreeMap<u64, Requests>>,
    accepted: watch::Sender<u64>,
    released: watch::Sender<bool>,
}

#[derive(Clone)]
pub struct Receiver {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Receiver {
    /// Starts it on a free port. `decide` gets the number of the event, and that of the request for
    /// it, counted from 1.
    pub async fn start(decide: impl Fn(u64, usize) -> Answer + Send + Sync + 'static) -> Self {
        let (accepted, released) = (watch::Sender::new(0), watch::Sender::new(false));
        let shared = Arc::new(Shared { decide: Box::new(decide), requests: Mutex::default(), accepted, released });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Router::new().route("/hook", post(answer)).with_state(shared.clone());
        tokio::spawn(axum::serve(listener, routes).into_future());
        Self { address, shared }
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub fn requests(&self) -> BTreeMap<u64, Requests> {
        self.shared.requests.lock().clone()
    }

    pub async fn until_accepted(&self, count: u64) {
        let mut accepted = self.shared.accepted.subscribe();
        crate::soon("deliveries", accepted.wait_for(|accepted| *accepted >= count)).await.unwrap();
    }

    /// Answers the held requests, and holds no more.
    pub fn release(&self) {
        self.shared.released.send_replace(true);
    }
}

async fn answer(State(shared): State<Arc<Shared>>, Json(Numbered { n }): Json<Numbered>) -> Response {
    let answer = {
        let mut requests = shared.requests.lock();
        let of_event = requests.entry(n).or_default();
        of_event.at.push(Instant::now());
        let answer = (shared.decide)(n, of_event.at.len());
        // Counted before the answer, since the service may be killed before it reads that.
        of_event.accepted += u64::from(!matches!(answer, Answer::Refuse(_) | Answer::After(_)));
        answer
    };
    match answer {
        Answer::Refuse(status) => return StatusCode::from_u16(status).unwrap().into_response(),
        Answer::After(seconds) => {
            return (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, seconds.to_string())]).into_response();
        }
        _ => shared.accepted.send_modify(|accepted| *accepted += 1),
    }
    match answer {
        Answer::Slow(time) => tokio::time::sleep(time).await,
        Answer::Hold => _ = shared.released.subscribe().wait_for(|released| *released).await,
        _ => {}
    }
    StatusCode::OK.into_response()
}
