//! The example `json_rpc`: its source and its process, at a node that misbehaves in each way.

#[path = "../../examples/json_rpc/node.rs"]
mod node;

use crate::server::{Answer, Server};
use common::{LONG, ends, until};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use node::Node;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use waterline::testing::JobsSuite;
use waterline::{AsyncJobs, BoxError, Consumer, Index, MemoryProgress};

/// What the node does with a request in place of what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// The blocks are missing.
    Null,
    /// The second block of the batch is missing.
    Misses,
    /// There is one `null` for the whole batch.
    NullBatch,
    /// The last call of the batch is refused.
    Refuses,
    RefusesBatch,
    /// The last call of the batch has no answer.
    LeavesOut,
    /// The last call has the block after the right one.
    OtherBlock,
    /// The block has no number.
    NoNumber,
    /// It asks for a pause of this many seconds.
    Busy(u64),
    /// It is busy, and names no time.
    Overloaded,
    Fails,
    Garbage,
    HangsUp,
    /// The answers come from the last to the first.
    Backwards,
    /// A node with an older head answers: a final block is missing.
    Lags,
}

use Fault::*;

/// The node: its head, and what it does with the next requests.
#[derive(Default)]
struct Chain {
    head: AtomicU64,
    faults: Mutex<VecDeque<Option<Fault>>>,
    /// How often each fault was met.
    met: Mutex<BTreeMap<Fault, u64>>,
    /// A request for this block says so, and waits.
    held: Mutex<Option<Held>>,
}

/// A block, who hears that it was asked for, and what the answer waits for.
type Held = (Index, Sender<()>, Receiver<()>);

impl Chain {
    fn start(head: Index) -> (Arc<Self>, Server) {
        let chain = Arc::new(Self { head: head.into(), ..Self::default() });
        let of_server = Arc::clone(&chain);
        (
            chain,
            Server::start(move |request| {
                assert_eq!(request.path, "/");
                of_server.answer(&request.body)
            }),
        )
    }

    fn then(&self, faults: impl IntoIterator<Item = Fault>) {
        self.faults.lock().extend(faults.into_iter().map(Some));
    }

    fn answer(&self, body: &str) -> Answer {
        let calls: Vec<Value> = serde_json::from_str(body).expect("the client sends a batch");
        self.hold(&calls);
        let fault = self.faults.lock().pop_front().flatten();
        fault.into_iter().for_each(|fault| *self.met.lock().entry(fault).or_default() += 1);
        let refusal = json!({"code": -32000, "message": "too much work"});
        let refused = |id: &Value| json!({"jsonrpc": "2.0", "id": id, "error": &refusal});
        let mut answers: Vec<Value> = calls.iter().map(|call| self.result(call, fault)).collect();
        if let (Some(Misses), Some(second)) = (fault, answers.get_mut(1)) {
            second["result"] = Value::Null;
        }
        let last = answers.last_mut().expect("the batch has a call");
        match fault {
            Some(NullBatch) => return Answer::ok("null"),
            Some(RefusesBatch) => return Answer::ok(refused(&Value::Null)),
            Some(Garbage) => return Answer::ok("<html>the proxy says hello</html>"),
            Some(HangsUp) => return Answer::HangUp,
            Some(Fails) => return Answer::Http(500, String::new(), "out of memory".to_owned()),
            Some(Overloaded) => return Answer::Http(503, String::new(), "try again".to_owned()),
            Some(Busy(s)) => return Answer::Http(429, format!("retry-after: {s}\r\n"), "slow down".to_owned()),
            Some(Refuses) => *last = refused(&last["id"]),
            Some(LeavesOut) => _ = answers.pop(),
            Some(Backwards) => answers.reverse(),
            Some(NoNumber | OtherBlock) if last["result"].is_array() => last["result"] = json!([{}]),
            Some(NoNumber) => last["result"]["number"] = json!("many"),
            Some(OtherBlock) => last["result"] = block(number(&last["result"]["number"]) + 1),
            Some(Null | Misses | Lags) | None => {}
        }
        Answer::ok(Value::Array(answers))
    }

    fn hold(&self, calls: &[Value]) {
        let mut held = self.held.lock();
        let asks_for = |index: Index| calls.iter().any(|call| call["params"][0] == format!("{index:#x}"));
        let Some((_, says, waits)) = held.take_if(|(index, ..)| asks_for(*index)) else { return };
        drop(held);
        says.send(()).unwrap();
        let _ = waits.recv();
    }

    fn result(&self, call: &Value, fault: Option<Fault>) -> Value {
        let of_receipts = call["method"] == "eth_getBlockReceipts";
        assert!(of_receipts || call["method"] == "eth_getBlockByNumber", "{call}");
        let head = self.head.load(Ordering::Acquire).saturating_sub(if fault == Some(Lags) { 5 } else { 0 });
        let result = match &call["params"] {
            _ if fault == Some(Null) => Value::Null,
            params if *params == json!(["finalized", false]) => block(head),
            params if of_receipts && number(&params[0]) <= head => json!(receipts(number(&params[0]))),
            params if number(&params[0]) <= head && params[1] == true => block(number(&params[0])),
            _ => Value::Null,
        };
        json!({"jsonrpc": "2.0", "id": call["id"], "result": result})
    }
}

fn block(number: Index) -> Value {
    let (hash, sent) = (hash(number), transactions(number));
    json!({"number": format!("{number:#x}"), "hash": hash, "size": "0x21c", "transactions": sent})
}

/// The transactions of a block. Some make a contract, and some fail.
fn transactions(block: Index) -> Vec<Value> {
    let transaction = |nth| {
        let to = (nth != 3).then(|| format!("{:#x}", (7 * block + nth) % 13));
        let value = format!("{:#x}", (31 * block + nth) * 1_000_000_000 + 5);
        json!({"hash": hash(5 * block + nth), "from": format!("{:#x}", (block + nth) % 17), "to": to, "value": value})
    };
    (0..block % 5).map(transaction).collect()
}

fn receipts(block: Index) -> Vec<Value> {
    let receipt = |sent: Value| {
        let status = if (block + number(&sent["value"])).is_multiple_of(6) { "0x0" } else { "0x1" };
        let contract = sent["to"].is_null().then(|| format!("{block:#x}"));
        json!({"transactionHash": sent["hash"], "status": status, "contractAddress": contract})
    };
    transactions(block).into_iter().map(receipt).collect()
}

fn hash(number: Index) -> String {
    format!("{:#x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn number(value: &Value) -> u64 {
    u64::from_str_radix(value.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
}

fn node(server: &Server) -> Node {
    Node::new(server.url().parse().unwrap())
}

#[test]
fn each_fault_of_a_node_is_an_error_that_quotes_it() {
    let (chain, server) = Chain::start(9);
    let (runtime, node) = (Runtime::new().unwrap(), node(&server));
    let faults = [
        (NullBatch, "the node refused: null"),
        (RefusesBatch, r#""message":"too much work""#),
        (Refuses, r#"block 7: the node refused: {"error":{"code":-32000,"message":"too much work"}"#),
        (LeavesOut, "block 7: the node left it out of its answer"),
        (OtherBlock, "block 7: the node sent block 8 in its place"),
        (NoNumber, r#"the node sent "many" for a number"#),
        (Busy(0), "the node answered 429 Too Many Requests, so the next request waits 0ns: slow down"),
        (Fails, "the node answered 500 Internal Server Error: out of memory"),
        (Garbage, "the node sent no JSON (expected value at line 1 column 1): <html>the proxy says hello</html>"),
        (HangsUp, "connection closed before message completed"),
    ];
    for (fault, says) in faults {
        chain.then([fault]);
        let error = runtime.block_on(node.at_index(7)).unwrap_err();
        let report = reported(&error);
        assert!(report.contains(says), "{fault:?}: {report}");
        assert_eq!(runtime.block_on(node.at_index(7)).unwrap(), Some(block(7)), "after {fault:?}");
        if !matches!(fault, OtherBlock) {
            chain.then([fault]);
            assert!(runtime.block_on(node.head()).is_err(), "{fault:?}");
        }
        assert_eq!(runtime.block_on(node.head()).unwrap(), Some(9), "after {fault:?}");
    }
    // What is missing is no error: the consumer asks again.
    chain.then([Null]);
    assert_eq!(runtime.block_on(node.at_index(7)).unwrap(), None);
    // A job needs its receipts, and is retried.
    chain.then([Null]);
    let error = runtime.block_on(node.receipts(7)).unwrap_err().to_string();
    assert_eq!(error, "the node sent null for receipts");
    assert_eq!(runtime.block_on(node.receipts(7)).unwrap(), receipts(7));
}

#[test]
fn a_batch_brings_what_comes_before_its_first_fault() {
    let (chain, server) = Chain::start(9);
    let (runtime, node) = (Runtime::new().unwrap(), node(&server));
    for (fault, is_error, brought) in
        [(Refuses, true, 3..=4), (LeavesOut, true, 3..=4), (Misses, false, 3..=3), (Backwards, false, 3..=5)]
    {
        chain.then([fault]);
        let mut read = Vec::new();
        assert_eq!(runtime.block_on(node.read(3..=5, &mut read)).is_err(), is_error, "{fault:?}");
        assert_eq!(read, brought.map(block).collect::<Vec<_>>(), "{fault:?}");
    }
}

/// Returns the error with its causes.
fn reported(error: &BoxError) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[test]
fn a_busy_node_gets_its_pause_within_bounds() {
    let (chain, server) = Chain::start(9);
    let runtime = Runtime::new().unwrap();
    let polite = node(&server);
    chain.then([Busy(1)]);
    let begun = Instant::now();
    assert!(runtime.block_on(polite.at_index(7)).is_err());
    assert_eq!(runtime.block_on(polite.at_index(7)).unwrap(), Some(block(7)));
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    for (fault, says) in [(Busy(86_400), "waits 20s: slow down"), (Overloaded, "waits 1s: try again")] {
        chain.then([fault]);
        let error = runtime.block_on(node(&server).at_index(7)).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn an_older_head_of_another_node_does_not_count() {
    let (chain, server) = Chain::start(9);
    let (runtime, node) = (Runtime::new().unwrap(), node(&server));
    let head = || runtime.block_on(node.head()).unwrap();
    chain.then([Null]);
    assert_eq!(head(), None);
    assert_eq!(head(), Some(9));
    chain.then([Lags, Null]);
    assert_eq!((head(), head()), (Some(9), Some(9)));
    chain.head.store(12, Ordering::Release);
    assert_eq!(head(), Some(12));
}

#[test]
fn the_source_passes_the_suite() {
    let runtime = Runtime::new().unwrap();
    let servers = Mutex::new(Vec::new());
    // A hundred blocks take twenty thousand requests.
    JobsSuite::fixed(|| {
        let (_, server) = Chain::start(3);
        let source = node(&server).on(runtime.handle());
        servers.lock().push(server);
        source
    })
    .run();
}

#[test]
fn a_slow_answer_is_dropped_and_asked_for_again() {
    let (chain, server) = Chain::start(99);
    let runtime = Runtime::new().unwrap();
    let ((says, held), (release, waits)) = (unbounded(), bounded::<()>(0));
    *chain.held.lock() = Some((60, says, waits));
    let consumer = Consumer::builder(node(&server).on(runtime.handle()), MemoryProgress::new())
        .source_timeout(Duration::from_millis(200))
        .stop_at(99)
        .start(|_| Ok(()))
        .unwrap();
    held.recv_timeout(LONG).unwrap();
    let handle = consumer.handle();
    until(&handle, "the slow call to be given up", |status| status.source.failed > 0);
    ends("the consumer", move || consumer.join()).unwrap();
    drop(release);
}

/// Ten times the process is killed at a random moment, and in the end each block counts once.
#[cfg(feature = "_disk")]
#[test]
fn promise_09_ten_kills_index_each_block_of_a_bad_node_once() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    const KILLS: Index = 10;
    /// In each life so many blocks are saved before its kill, and half as many more are there.
    const EACH: Index = 80;
    const BLOCKS: Index = KILLS * EACH + EACH / 2;
    let (chain, server) = Chain::start(0);
    let faults = [
        Null,
        Misses,
        NullBatch,
        Refuses,
        RefusesBatch,
        LeavesOut,
        OtherBlock,
        NoNumber,
        Busy(0),
        Fails,
        Garbage,
        HangsUp,
        Backwards,
        Lags,
    ];
    // Every third request meets one, in each life.
    chain.faults.lock().extend((0..3_000).map(|n| (n % 3 == 2).then(|| faults[n / 3 % faults.len()])));
    let dir = tempfile::tempdir().unwrap();
    let program = |more: &[&str]| {
        let mut command = Command::new(crate::example("json_rpc"));
        command.arg(server.url()).arg("--store").arg(dir.path()).args(more);
        command
    };
    common::make_in(dir.path());
    for life in 1..=KILLS {
        chain.head.store(life * EACH + EACH / 2 - 1, Ordering::Release);
        let mut child = program(&[]).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let last = |line: String| line.strip_prefix("indexed and saved: ")?.split_once(" to ")?.1.parse().ok();
        let reaches = move |line| last(line).is_some_and(|last: Index| last >= life * EACH - 1);
        let (reached, _open) = ends("what a life does before its kill", move || (said.any(reaches), said));
        assert!(reached, "life {life} has ended before its kill");
        std::thread::park_timeout(Duration::from_micros(fastrand::u64(..50_000)));
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().code(), None);
    }
    let output = program(&["--last", &(BLOCKS - 1).to_string(), "--of", "0x3"]).output().unwrap();
    let mut expected = BTreeMap::<String, i64>::new();
    for (sent, made) in (0..BLOCKS).flat_map(|index| transactions(index).into_iter().zip(receipts(index))) {
        let receiver = sent["to"].as_str().or(made["contractAddress"].as_str()).unwrap();
        let gwei = if made["status"] == "0x1" { number(&sent["value"]) as i64 / 1_000_000_000 } else { continue };
        *expected.entry(sent["from"].as_str().unwrap().to_owned()).or_default() -= gwei;
        *expected.entry(receiver.to_owned()).or_default() += gwei;
    }
    let says = format!("0x3 has {} gwei\n", expected["0x3"]);
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).ends_with(&says), "{output:#?}");
    let store = common::open_in(dir.path()).unwrap();
    let rows = |name| store.table(name).unwrap().iter().collect::<Result<Vec<_>, _>>().unwrap();
    let balance = |(address, gwei): (&String, &i64)| (address.clone().into_bytes(), gwei.to_be_bytes().to_vec());
    assert_eq!(rows("balances"), expected.iter().map(balance).collect::<Vec<_>>());
    let hashes = (0..BLOCKS).map(|index| (index.to_be_bytes().to_vec(), hash(index).into_bytes()));
    assert_eq!(rows("blocks"), hashes.collect::<Vec<_>>());
    let met = chain.met.lock();
    assert!(faults.iter().all(|fault| met.contains_key(fault)), "{met:?}");
}
