//! An indexer of a node with JSON-RPC (Ethereum and its relatives): a row for each block, and for
//! each address the value that its transactions have moved, exactly once. It follows the final
//! blocks until it is interrupted, or killed. With a directory it goes on there the next time.
//!
//! ```sh
//! cargo run --release --features tokio --example json_rpc -- http://localhost:8545
//! cargo run --release --features tokio --example json_rpc -- http://localhost:8545 --first 21000000 --store index
//! ```
//!
//! The source reads blocks ahead, in batches. A job is a future that waits for the receipts of its
//! block, since a transaction that failed has moved nothing. Its effects are one write with its
//! completion, so no block counts twice, and none is left out. `json_rpc/node.rs` has the source,
//! for you to copy.

use clap::Parser;
use hyper::Uri;
use serde_json::Value;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::runtime::Runtime;
use waterline::{AsyncJobs, BoxError, Consumer, Effects, Index, Job, Retry, Store, Table};

#[path = "json_rpc/node.rs"]
mod node;

use node::{Node, number};

/// What a counter counts, in wei: one of wei would soon overflow.
const GWEI: u128 = 1_000_000_000;

/// Index what the transactions of a node have moved.
#[derive(Parser)]
#[command(name = "json_rpc")]
struct Args {
    /// The address of the node; it has no TLS here: `json_rpc/node.rs` says where that goes
    node: Uri,
    /// The first block
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    first: Index,
    /// The last block [default: it follows the node]
    #[arg(long, value_name = "NUMBER")]
    last: Option<Index>,
    /// The directory that keeps the index [default: it is in memory]
    #[arg(long, value_name = "DIRECTORY")]
    store: Option<PathBuf>,
    /// The address whose balance is printed in the end, in small letters
    #[arg(long, value_name = "ADDRESS")]
    of: Option<String>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), BoxError> {
    let runtime = Runtime::new()?;
    let store = open(args)?;
    // The hash of each block, by its number; and what each address has received, less what it has
    // sent: a counter of gwei.
    let (blocks, balances) = (store.table("blocks")?, store.table("balances")?);
    let (node, tables) = (Node::new(args.node.clone()), [blocks, balances.clone()]);
    let mut builder = Consumer::builder(node.clone().on(runtime.handle()), store.progress("blocks"))
        // Four batches at once, of 16 blocks each, since 64 are read ahead, and the receipts of 8
        // blocks. (A public node may refuse more.)
        .max_reading(4)
        .max_processing(8)
        .retry(Retry::exponential(Duration::from_millis(50), Duration::from_secs(5)))
        .start_at(args.first)
        .on_processed(|run| println!("indexed and saved: {} to {}", run.start(), run.end()));
    if let Some(last) = args.last {
        builder = builder.stop_at(last);
    }
    let consumer = builder.start_transactional_async(runtime.handle(), move |job, effects| {
        index(node.clone(), tables.clone(), job, effects)
    })?;
    let handle = consumer.handle();
    ctrlc::set_handler(move || handle.request_stop())?;
    let handle = consumer.handle();
    consumer.join().map_err(|error| error.report())?;
    println!("{}", handle.status());
    if let Some(address) = &args.of {
        println!("{address} has {} gwei", balances.counter(address)?);
    }
    Ok(())
}

/// Adds what the transactions of a block have moved.
async fn index(node: Node, to: [Table; 2], job: Job<Value>, mut effects: Effects) -> Result<Effects, BoxError> {
    let [blocks, balances] = to;
    let transactions = job.payload["transactions"].as_array().ok_or("the block has no transactions")?;
    let receipts = node.receipts(job.index).await?;
    if !transactions.iter().map(|sent| &sent["hash"]).eq(receipts.iter().map(|made| &made["transactionHash"])) {
        return Err("the receipts are those of other transactions".into());
    }
    for (sent, made) in transactions.iter().zip(&receipts) {
        // One that makes a contract has no receiver: its value goes to the contract.
        let receiver =
            sent["to"].as_str().or(made["contractAddress"].as_str()).ok_or("a transaction has no receiver")?;
        let sender = sent["from"].as_str().ok_or("a transaction has no sender")?;
        if made["status"] == "0x1" {
            let gwei = i64::try_from(number::<u128>(&sent["value"])? / GWEI)?;
            effects.add(&balances, sender, -gwei)?;
            effects.add(&balances, receiver, gwei)?;
        }
    }
    effects.put(&blocks, job.index.to_be_bytes(), job.payload["hash"].as_str().ok_or("the block has no hash")?)?;
    Ok(effects)
}

/// Opens the store.
fn open(args: &Args) -> Result<Store, BoxError> {
    match &args.store {
        None => Ok(Store::in_memory()),
        #[cfg(any(feature = "rocksdb", feature = "sqlite"))]
        Some(directory) => Ok(Store::open(directory)?),
        #[cfg(not(any(feature = "rocksdb", feature = "sqlite")))]
        Some(_) => Err("a store in a directory needs the feature rocksdb or sqlite: build the example with one".into()),
    }
}
