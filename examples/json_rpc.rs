//! The blocks of a node with JSON-RPC (Ethereum and its relatives), each counted exactly once. It
//! follows the final blocks until it is interrupted. With a directory it goes on there the next
//! time.
//!
//! ```sh
//! cargo run --release --features tokio --example json_rpc -- http://localhost:8545
//! cargo run --release --features tokio --example json_rpc -- http://localhost:8545 --first 21000000 --store blocks
//! ```
//!
//! `json_rpc/node.rs` has the source, for you to copy.

use clap::Parser;
use hyper::Uri;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::runtime::Runtime;
use waterline::{AsyncJobs, BoxError, Consumer, Index, Store};

#[path = "json_rpc/node.rs"]
mod node;

use node::Node;

/// Count the blocks of a node, and their transactions.
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
    /// The directory that keeps the figures [default: they are in memory]
    #[arg(long, value_name = "DIRECTORY")]
    store: Option<PathBuf>,
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
    let figures = store.table("figures")?;
    let table = figures.clone();
    let mut builder = Consumer::builder(Node::new(args.node.clone()).on(runtime.handle()), store.progress("blocks"))
        // Four batches at once, of 16 blocks each, since 64 are read ahead. (A public node may
        // refuse more.)
        .max_reading(4)
        .max_processing(8)
        .start_at(args.first)
        .on_processed(|run| println!("counted and saved: {} to {}", run.start(), run.end()));
    if let Some(last) = args.last {
        builder = builder.stop_at(last);
    }
    let consumer = builder.start_transactional(move |job, effects| {
        let transactions = job.payload["transactions"].as_array().map_or(0, Vec::len);
        effects.add(&table, "blocks", 1)?;
        Ok(effects.add(&table, "transactions", i64::try_from(transactions)?)?)
    })?;
    let handle = consumer.handle();
    ctrlc::set_handler(move || handle.request_stop())?;
    let handle = consumer.handle();
    consumer.join().map_err(|error| error.report())?;
    println!("{}", handle.status());
    println!("{} blocks have {} transactions", figures.counter("blocks")?, figures.counter("transactions")?);
    Ok(())
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
