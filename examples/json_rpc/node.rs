//! A node with JSON-RPC as a source: its final blocks, by number, and the receipts of a block. Copy
//! this file, and change the methods, their parameters and the type of the job.

use http_body_util::{BodyExt, Limited};
use hyper::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use hyper::{Request, StatusCode, Uri};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use waterline::{AsyncJobs, BoxError, Index};

/// The method whose answer is a job.
const BLOCK: &str = "eth_getBlockByNumber";
/// The most calls in one request. Nodes and their proxies limit it; 100 is usual.
const BATCH: usize = 50;
/// The longest answer that is read: a batch of large blocks has tens of megabytes.
const LONGEST_ANSWER: usize = 128 << 20;
/// The longest pause that a node may ask for. With the request after it, it has to be shorter than
/// `source_timeout`, which is 30 s by default.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);
/// The pause after a status 429 or 503 that names none.
const USUAL_PAUSE: Duration = Duration::from_secs(1);
/// How much of an answer an error quotes, in characters.
const QUOTED: usize = 200;

/// A client of the node at an address. Its clones share what they know of the node.
#[derive(Clone, Debug)]
pub struct Node {
    address: Uri,
    /// For `https`, take the connector of the crate `hyper-rustls` in place of `HttpConnector`.
    http: Client<HttpConnector, String>,
    /// The highest head that was seen. Of several nodes behind one address, one may lag behind.
    head: Arc<Mutex<Option<Index>>>,
    /// No request leaves before this moment, which the node has named.
    not_before: Arc<Mutex<Instant>>,
}

impl AsyncJobs for Node {
    /// The block, as the node sent it.
    type Job = Value;

    /// The newest block that no reorganisation can change. For a chain without finality ask for
    /// "latest", and put `.confirmed(n)` around the source.
    async fn head(&self) -> Result<Option<Index>, BoxError> {
        let block = self.ask(BLOCK, vec![json!(["finalized", false])]).await?.remove(0)?;
        // A young chain has no final block.
        let seen = if block.is_null() { None } else { Some(number(&block["number"])?) };
        let mut head = self.head.lock();
        *head = seen.max(*head);
        Ok(*head)
    }

    async fn at_index(&self, index: Index) -> Result<Option<Value>, BoxError> {
        let mut blocks = Vec::new();
        self.read(index..=index, &mut blocks).await?;
        Ok(blocks.pop())
    }

    /// One request for many blocks. `max_reading` has several requests under way at once.
    async fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Value>) -> Result<(), BoxError> {
        let calls = run.clone().take(BATCH).map(|index| json!([format!("{index:#x}"), true])).collect();
        for (index, block) in run.zip(self.ask(BLOCK, calls).await?) {
            let block = block.map_err(|error| format!("block {index}: {error}"))?;
            // A node that lags behind the head of another one. The consumer soon asks again.
            if block.is_null() {
                break;
            }
            let sent: Index = number(&block["number"])?;
            if sent != index {
                return Err(format!("block {index}: the node sent block {sent} in its place").into());
            }
            into.push(block);
        }
        Ok(())
    }

    /// The node names the bytes of a block. Parsed JSON takes some times as many.
    fn weight(&self, block: &Value) -> usize {
        size_of::<Value>() + number(&block["size"]).map_or(0, |bytes: usize| 4 * bytes)
    }
}

impl Node {
    /// Connects with the first request. The address is that of the node, such as
    /// `http://localhost:8545`.
    pub fn new(address: Uri) -> Self {
        let http = Client::builder(TokioExecutor::new()).build_http();
        Self { address, http, head: Arc::default(), not_before: Arc::new(Mutex::new(Instant::now())) }
    }

    /// Returns the receipts of a block, which say what became of each transaction, in their order.
    pub async fn receipts(&self, index: Index) -> Result<Vec<Value>, BoxError> {
        let answer = self.ask("eth_getBlockReceipts", vec![json!([format!("{index:#x}")])]).await?.remove(0)?;
        match answer {
            Value::Array(receipts) => Ok(receipts),
            other => Err(format!("the node sent {} for receipts", quoted(&other.to_string())).into()),
        }
    }

    /// Makes these calls of a method in one request. Returns an answer for each, in their order.
    async fn ask(&self, method: &str, calls: Vec<Value>) -> Result<Vec<Result<Value, BoxError>>, BoxError> {
        // A node refuses an empty batch.
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        let mut results: Vec<Option<Result<Value, BoxError>>> = calls.iter().map(|_| None).collect();
        let call = |(id, params)| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let batch: Vec<Value> = calls.into_iter().enumerate().map(call).collect();
        let answer = self.post(json!(batch).to_string()).await?;
        // A batch that is refused as a whole has one answer.
        let Value::Array(answers) = answer else { return Err(refused(&answer)) };
        // They may come in any order.
        for mut answer in answers {
            let id = answer["id"].as_u64().and_then(|id| usize::try_from(id).ok());
            let Some(place) = id.and_then(|id| results.get_mut(id)) else { continue };
            *place = Some(match answer.get_mut("result") {
                Some(result) => Ok(result.take()),
                None => Err(refused(&answer)),
            });
        }
        Ok(results
            .into_iter()
            .map(|result| result.unwrap_or(Err("the node left it out of its answer".into())))
            .collect())
    }

    /// Posts this text, and returns the answer as JSON.
    async fn post(&self, body: String) -> Result<Value, BoxError> {
        let not_before = *self.not_before.lock();
        sleep_until(not_before).await;
        let request = Request::post(&self.address).header(CONTENT_TYPE, "application/json").body(body)?;
        let (head, body) = self.http.request(request).await?.into_parts();
        let bytes = Limited::new(body, LONGEST_ANSWER).collect().await?.to_bytes();
        let text = quoted(&String::from_utf8_lossy(&bytes));
        if let Some(pause) = pause(head.status, &head.headers) {
            let mut not_before = self.not_before.lock();
            *not_before = (*not_before).max(Instant::now() + pause);
            return Err(
                format!("the node answered {}, so the next request waits {pause:?}: {text}", head.status).into()
            );
        }
        if !head.status.is_success() {
            return Err(format!("the node answered {}: {text}", head.status).into());
        }
        serde_json::from_slice(&bytes).map_err(|error| format!("the node sent no JSON ({error}): {text}").into())
    }
}

/// Returns the pause that an answer asks for, in seconds. (It may name a date, too, which the crate
/// `httpdate` reads.)
fn pause(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    let is_busy = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&status);
    let seconds = headers.get(RETRY_AFTER).and_then(|text| text.to_str().ok()?.trim().parse().ok());
    is_busy.then(|| seconds.map_or(USUAL_PAUSE, Duration::from_secs).min(LONGEST_PAUSE))
}

/// Reads a number as nodes write it: `"0x2a"`.
pub fn number<N: TryFrom<u128>>(value: &Value) -> Result<N, BoxError> {
    let digits = value.as_str().and_then(|text| text.strip_prefix("0x"));
    let number = digits.and_then(|digits| N::try_from(u128::from_str_radix(digits, 16).ok()?).ok());
    number.ok_or_else(|| format!("the node sent {} for a number", quoted(&value.to_string())).into())
}

/// Returns the error of an answer that has no result.
fn refused(answer: &Value) -> BoxError {
    format!("the node refused: {}", quoted(&answer.to_string())).into()
}

/// Returns the beginning of what the node said.
fn quoted(text: &str) -> String {
    text.chars().take(QUOTED).collect()
}
