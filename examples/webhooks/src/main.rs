//! A service that delivers webhooks: clients post events, and a queue delivers each of them to its
//! receiver at least once. README.md beside it says how to run it, and what it shows.

mod api;
mod delivery;

use clap::Parser;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use waterline::{BoxError, Retry, Store};
use waterline_queue::{Limit, Queue, QueueOptions, Rate, Retention, Runner};

/// The upper bounds of each histogram's buckets, in seconds. Without them it is a summary, and
/// summaries of several processes cannot be added.
const BUCKETS: [f64; 7] = [0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0];

/// Deliver webhooks.
#[derive(Parser)]
#[command(name = "webhooks")]
struct Args {
    /// The directory of the events [default: none: they are in memory]
    directory: Option<PathBuf>,
    /// The address for clients; port 0 takes one that is free
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The most deliveries at once
    #[arg(long, value_name = "N", default_value_t = 256)]
    at_once: usize,
    /// The most deliveries at once for each tenant
    #[arg(long, value_name = "N", default_value_t = 32)]
    tenant_at_once: u32,
    /// The most deliveries a second that begin for each tenant
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    tenant_rate: u32,
    /// The time of an attempt, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    timeout: Duration,
    /// The number of attempts, after which an event is dead
    #[arg(long, value_name = "N", default_value_t = 12)]
    attempts: u32,
    /// The number of deaths of this process under an event, after which the event is dead
    #[arg(long, value_name = "N", default_value_t = 5)]
    crashes: u32,
    /// The back-off after the first failure, in seconds; it doubles up to an hour
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    backoff: Duration,
    /// The most events that wait; more are refused
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    waiting: u64,
    /// The time that deliveries get when the service stops, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    stop_within: Duration,
    /// The most threads that wait for the store; a burst of requests would start hundreds
    #[arg(long, value_name = "N", default_value_t = 32)]
    store_threads: usize,
    /// Answer before an event survives a loss of power: it survives the death of this process
    #[arg(long)]
    buffered: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|error| format!("{error}"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let args = Args::parse();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().max_blocking_threads(args.store_threads).build();
    match runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(run(&args))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args) -> Result<(), BoxError> {
    // Before the first delivery: an earlier signal kills the process at once.
    let (stop, mut stopping) = watch::channel(false);
    ctrlc::set_handler(move || _ = stop.send(true))?;
    let metrics = PrometheusBuilder::new().set_buckets(&BUCKETS)?.install_recorder()?;
    tokio::spawn(upkeep(metrics.clone()));

    let queue = Queue::open(&store(args)?, "webhooks", options(args))?;
    let http = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build_http();
    let runner = Runner::builder(&queue)
        .job_async(move |job, delivery| delivery::deliver(http.clone(), job, delivery))
        .max_processing(args.at_once)
        .attempt_timeout(args.timeout)
        .metrics()
        .start()?;

    let listener = TcpListener::bind(args.listen).await?;
    println!("http://{}", listener.local_addr()?);
    let app = api::App { queue, metrics, stopping: stopping.clone() };
    let mut until = stopping.clone();
    let server = axum::serve(listener, api::routes(app))
        .with_graceful_shutdown(async move { _ = until.wait_for(|stops| *stops).await });
    let server = tokio::spawn(server.into_future());

    stopping.wait_for(|stops| *stops).await?;
    // A client that never ends its request cannot hold up the stop.
    let (stopped, _) =
        tokio::join!(runner.stop_within_async(args.stop_within), tokio::time::timeout(args.stop_within, server));
    Ok(stopped?)
}

/// Merges the samples of the histograms, which would pile up while they are not scraped.
async fn upkeep(metrics: PrometheusHandle) {
    let mut every = tokio::time::interval(Duration::from_secs(5));
    loop {
        every.tick().await;
        metrics.run_upkeep();
    }
}

/// Opens the store, which closes with the last clone of its queue.
fn store(args: &Args) -> Result<Store, BoxError> {
    match &args.directory {
        None => Ok(Store::in_memory()),
        #[cfg(any(feature = "rocksdb", feature = "sqlite"))]
        Some(directory) => {
            let durability =
                if args.buffered { waterline::Durability::Buffered } else { waterline::Durability::Synced };
            Ok(Store::options().durability(durability).open(directory)?)
        }
        #[cfg(not(any(feature = "rocksdb", feature = "sqlite")))]
        Some(_) => Err("this program was built without an engine, so it keeps events in memory alone".into()),
    }
}

fn options(args: &Args) -> QueueOptions {
    let rate = Rate::new(args.tenant_rate, Duration::from_secs(1));
    QueueOptions::default()
        .limit(Limit::each_key().at_once(args.tenant_at_once).rate(rate))
        .retry(Retry::exponential(args.backoff, Duration::from_secs(3600)).max_attempts(args.attempts).jitter(0.2))
        .max_crashes(args.crashes)
        .max_waiting(args.waiting)
        .retention(Retention::For(delivery::KEPT))
}
