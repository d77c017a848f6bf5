//! The items of an API with pages, each counted exactly once. It follows the last page until it is
//! interrupted. With a directory it goes on there the next time, on the page where it was.
//!
//! ```sh
//! cargo run --release --example rest_pages -- http://localhost:8080/items --store items
//! ```
//!
//! `rest_pages/pages.rs` has the source, for you to copy.

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use waterline::{BoxError, Consumer, Index, Store};

#[path = "rest_pages/pages.rs"]
mod pages;

use pages::Pages;

/// Count the items of an API, and the letters of their texts.
#[derive(Parser)]
#[command(name = "rest_pages")]
struct Args {
    /// The address of the first page; it has no TLS here: `rest_pages/pages.rs` says what to enable
    address: String,
    /// The last item [default: it follows the API]
    #[arg(long, value_name = "NUMBER")]
    last: Option<Index>,
    /// The directory that keeps the figures and the cursors [default: they are in memory]
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
    let store = open(args)?;
    let (figures, marks) = (store.table("figures")?, store.table("marks")?);
    let table = figures.clone();
    let mut builder = Consumer::builder(Pages::new(&args.address, marks), store.progress("items"))
        .max_processing(8)
        .on_processed(|run| println!("counted and saved: {} to {}", run.start(), run.end()));
    if let Some(last) = args.last {
        builder = builder.stop_at(last);
    }
    let consumer = builder.start_transactional(move |job, effects| {
        effects.add(&table, "items", 1)?;
        Ok(effects.add(&table, "letters", i64::try_from(job.payload.text.chars().count())?)?)
    })?;
    let handle = consumer.handle();
    ctrlc::set_handler(move || handle.request_stop())?;
    let handle = consumer.handle();
    consumer.join().map_err(|error| error.report())?;
    println!("{}", handle.status());
    println!("{} items have {} letters", figures.counter("items")?, figures.counter("letters")?);
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
