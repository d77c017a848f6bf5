//! The service as a child process, and its clients.

use axum::body::Bytes;
use axum::http::{Method, Request, StatusCode};
use common::LONG;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use waterline::BoxError;

use crate::receiver::{Numbered, Receiver};

/// The running service, which is killed on drop.
pub struct Service {
    child: Child,
    /// The address, as a URL.
    pub url: String,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Service {
    /// Starts it on a free port, with its events in this directory or in memory, and waits until it
    /// listens.
    pub fn start(directory: Option<&Path>, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_webhooks"));
        command.args(directory).args(["--listen", "127.0.0.1:0"]).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Its log becomes output of the test, which libtest shows only on a failure.
        let log = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        std::thread::spawn(move || log.for_each(|line| println!("{line}")));
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let service = Self { child, url: line.trim().to_owned() };
        assert!(service.url.starts_with("http://"), "it has ended: {more:?}");
        service
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn end(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Asks it to end with SIGTERM, as an operator does.
    pub fn terminate(&self) {
        let asked = Command::new("kill").args(["-TERM", &self.id().to_string()]).status().unwrap();
        assert!(asked.success());
    }
}

/// A client of the service. Clones share connections.
#[derive(Clone)]
pub struct Client(hyper_util::client::legacy::Client<HttpConnector, Full<Bytes>>);

impl Client {
    pub fn new() -> Self {
        Self(hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build_http())
    }

    /// Makes a request, and returns the answer, or an error if there is none.
    pub async fn ask(&self, method: Method, url: String, body: Option<Value>) -> Result<(StatusCode, Bytes), BoxError> {
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let request = Request::builder().method(method).uri(url).header("content-type", "application/json");
        let answer = async {
            let response = self.0.request(request.body(Full::new(body))?).await?;
            let status = response.status();
            Ok((status, response.into_body().collect().await?.to_bytes()))
        };
        tokio::time::timeout(2 * LONG, answer).await?
    }

    pub async fn get(&self, url: String) -> (StatusCode, Value) {
        json_of(self.ask(Method::GET, url, None).await.unwrap())
    }

    pub async fn post(&self, url: String) -> (StatusCode, Value) {
        json_of(self.ask(Method::POST, url, None).await.unwrap())
    }

    /// Posts the event with this number. The error is that of an absent service.
    pub async fn push(&self, service: &str, receiver: &Receiver, n: u64) -> Result<(StatusCode, Value), BoxError> {
        let tenant = format!("tenant {}", n % 5);
        let event = json!({
            "tenant": tenant, "url": receiver.url(), "payload": Numbered { n }, "idempotency_key": n.to_string(),
        });
        Ok(json_of(self.ask(Method::POST, format!("{service}/events"), Some(event)).await?))
    }

    /// Posts an event that the service accepts, and returns its id.
    pub async fn pushed(&self, service: &str, receiver: &Receiver, n: u64) -> String {
        let (status, pushed) = self.push(service, receiver, n).await.unwrap();
        assert_eq!(status, StatusCode::ACCEPTED, "{pushed}");
        pushed["id"].as_str().unwrap().to_owned()
    }

    /// Waits until an event has ended, and returns it.
    pub async fn ended(&self, service: &str, id: &str) -> Value {
        loop {
            match self.get(format!("{service}/events/{id}/wait")).await {
                (StatusCode::OK, seen) => return seen,
                (StatusCode::NO_CONTENT, _) => {}
                (status, seen) => panic!("{id}: {status}: {seen}"),
            }
        }
    }

    /// Returns the ids of all dead letters, read in pages of this size.
    pub async fn dead(&self, service: &str, limit: usize) -> Vec<String> {
        let (mut ids, mut cursor) = (Vec::new(), String::new());
        loop {
            let (status, page) = self.get(format!("{service}/dead?limit={limit}{cursor}")).await;
            assert_eq!(status, StatusCode::OK, "{page}");
            let jobs = page["jobs"].as_array().unwrap();
            assert!(jobs.len() <= limit, "{page}");
            ids.extend(jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
            let Some(next) = page["next"].as_str() else { return ids };
            cursor = format!("&cursor={next}");
        }
    }
}

fn json_of((status, body): (StatusCode, Bytes)) -> (StatusCode, Value) {
    let text = || Value::String(String::from_utf8_lossy(&body).into_owned());
    (status, serde_json::from_slice(&body).unwrap_or_else(|_| text()))
}
