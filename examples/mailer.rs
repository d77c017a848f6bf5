//! A mailer: a stream of orders pushes one mail for each order into a queue, and a runner sends the
//! mails. Its process is killed in the middle, and one of the mails kills it again and again.
//!
//! ```sh
//! cargo run --release --example mailer                      # shows it: lives that die, and then the account of all mails
//! cargo run --release --example mailer -- /tmp/shop --send  # one life: pushes and sends what is left
//! cargo run --release --example mailer -- --in-memory       # one life without a disk, and without the mail that kills
//! ```
//!
//! The stream pushes *exactly once*: the push is in the write that completes the order. A mail
//! leaves the process *at least once*: if the process dies between the sending and the end of the
//! job, the mail is sent again. The queue counts such deaths, so the account at the end says how
//! often each mail may have been sent.

use clap::Parser;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use waterline::{BoxError, Consumer, Effects, Failure, Index, Jobs, Retry, Store, Table};
use waterline_queue::{JobInfo, JobState, NewJob, Outcome, Queue, QueueOptions, Retention, Runner, Running};

/// After how many deaths of its process a mail is dead. The default is 5; one less makes the
/// demonstration shorter, since the later deaths have longer back-offs.
const MAX_CRASHES: u32 = 4;
/// The most lives of the demonstration: one that is killed, those that the bad mail kills, one that
/// ends, and some to spare.
const MOST_LIVES: u32 = 10;
/// How many mails are sent at the same time.
const SENDERS: usize = 4;

/// Send a mail for each order; without an option, show that no mail is lost when the process dies.
#[derive(Parser)]
#[command(name = "mailer")]
struct Args {
    /// The directory of the database and the outbox [default: a temporary one]
    directory: Option<PathBuf>,
    /// The number of orders
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(30..))]
    orders: u64,
    /// Push and send what is left
    #[arg(long, group = "mode")]
    send: bool,
    /// Do it all in one life, without a disk and without the mail that kills
    #[arg(long, group = "mode")]
    in_memory: bool,
    /// Account for every mail
    #[arg(long, group = "mode")]
    verify: bool,
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
    // The directory is removed when this is dropped.
    let temporary = tempfile::tempdir()?;
    let directory = args.directory.as_deref().unwrap_or(temporary.path());
    let orders = Orders { count: args.orders, poison: (!args.in_memory).then_some(args.orders * 2 / 3) };
    if args.in_memory {
        let shop = Shop::new(Store::in_memory(), directory)?;
        send_all(&shop, orders)?;
        return account(&shop, orders, 1);
    }
    std::fs::create_dir_all(directory)?;
    if args.send {
        return send_all(&Shop::open(directory)?, orders);
    }
    let lives = if args.verify { 0 } else { demonstrate(directory, orders)? };
    account(&Shop::open(directory)?, orders, lives)
}

/// The source: order *n* wants a mail to a customer.
#[derive(Clone, Copy)]
struct Orders {
    count: u64,
    /// The order whose mail kills the process, as a bug in a C library does.
    poison: Option<Index>,
}

impl Orders {
    /// The order whose customer has mistyped the address.
    fn mistyped(self) -> Index {
        self.count / 5
    }

    fn address(self, order: Index) -> String {
        if order == self.mistyped() { "nobody".to_owned() } else { format!("customer-{order}@example.org") }
    }

    /// True if the server is busy at the first attempt of this mail.
    fn is_refused_once(order: Index) -> bool {
        order % 7 == 3
    }
}

impl Jobs for Orders {
    type Job = String;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(self.count.checked_sub(1))
    }

    fn at_index(&self, index: Index) -> Result<Option<String>, BoxError> {
        Ok((index < self.count).then(|| self.address(index)))
    }
}

/// The database: the queue, and how often each mail was sent, by the number of its order. Next to
/// it is the outbox, a file that stands for the outside world: no transaction reaches it.
struct Shop {
    store: Store,
    queue: Queue,
    sent: Table,
    outbox: PathBuf,
}

impl Shop {
    fn open(directory: &Path) -> Result<Self, BoxError> {
        Self::new(Store::open(directory.join("store"))?, directory)
    }

    fn new(store: Store, directory: &Path) -> Result<Self, BoxError> {
        let options = QueueOptions::default()
            // A real mailer waits for seconds, like the default.
            .retry(Retry::exponential(Duration::from_millis(2), Duration::from_millis(20)).max_attempts(5))
            .max_crashes(MAX_CRASHES)
            // The account at the end reads each job. A real mailer keeps the default of a minute.
            .retention(Retention::Keep);
        let queue = Queue::open(&store, "mail", options)?;
        Ok(Self { sent: store.table("sent")?, outbox: directory.join("outbox.txt"), queue, store })
    }
}

/// One life: pushes the mails of all remaining orders, and sends everything in the queue.
fn send_all(shop: &Shop, orders: Orders) -> Result<(), BoxError> {
    let (queue, sent) = (shop.queue.clone(), shop.sent.clone());
    let outbox = File::options().create(true).append(true).open(&shop.outbox)?;
    let (attempt, attempts) = crossbeam_channel::unbounded();
    println!("sending: {}", progress(&queue, orders));
    let runner = Runner::builder(&queue)
        .max_processing(SENDERS)
        .on_transactional("mail", move |job, mail, effects| send(job, mail, orders, &outbox, &sent, effects))
        .teardown(move |_, _| _ = attempt.send(()))
        .start()?;
    let consumer = Consumer::builder(orders, shop.store.progress("orders"))
        .max_processing(2)
        .stop_at(orders.count - 1)
        .start_transactional({
            let queue = queue.clone();
            move |order, effects| {
                // Some time to look the customer up.
                std::thread::park_timeout(Duration::from_millis(1));
                queue.push_with(effects, NewJob::new("mail", &(order.index, order.payload))?)?;
                Ok(())
            }
        })?;

    // A person may read these lines, and so does the parent that kills this process.
    let (tenth, mut shown) = (orders.count / 10, ended(&queue) / (orders.count / 10));
    while ended(&queue) < orders.count {
        attempts.recv_timeout(Duration::from_secs(60)).map_err(|_| format!("it hangs: {}", shop.report()))?;
        if ended(&queue) / tenth > shown {
            shown = ended(&queue) / tenth;
            println!("{}", progress(&queue, orders));
        }
    }
    consumer.join().map_err(|error| error.report())?;
    runner.stop()?;
    println!("everything is sent, or dead");
    Ok(())
}

/// Sends one mail.
fn send(
    job: &Running,
    (order, address): (Index, String),
    orders: Orders,
    mut outbox: &File,
    sent: &Table,
    effects: &mut Effects,
) -> Result<Outcome, BoxError> {
    if orders.poison == Some(order) {
        std::process::abort();
    }
    if !address.contains('@') {
        // No retry helps, so the job is dead at once.
        return Err(Failure::permanent(format!("{address:?} is no address")).into());
    }
    // How long the server takes.
    std::thread::park_timeout(Duration::from_millis(2));
    if Orders::is_refused_once(order) && job.attempt() == 1 {
        return Err("the server is busy".into());
    }
    outbox.write_all(format!("{order} {address}\n").as_bytes())?;
    // This is one write with the end of the job. If the process dies before it, neither happens,
    // and the mail is sent again.
    effects.add(sent, order.to_be_bytes(), 1)?;
    Ok(Outcome::DoneWith(serde_json::json!({ "attempts": job.attempt(), "crashes": job.crashes() })))
}

/// Returns how many mails are sent or dead.
fn ended(queue: &Queue) -> u64 {
    let counts = queue.counts();
    counts.finished + counts.dead
}

fn progress(queue: &Queue, orders: Orders) -> String {
    let counts = queue.counts();
    format!(
        "{} of {} are done: {} sent, {} dead; {} wait, {} of them for another attempt",
        counts.finished + counts.dead,
        orders.count,
        counts.finished,
        counts.dead,
        counts.ready + counts.scheduled + counts.running,
        counts.scheduled,
    )
}

/// Sends in child processes until one of them succeeds. Kills the first one in the middle. Returns
/// how many lives it took.
fn demonstrate(directory: &Path, orders: Orders) -> Result<u32, BoxError> {
    for life in 1..=MOST_LIVES {
        let begun = Instant::now();
        let (mut child, said) = child(directory, orders)?;
        for line in said {
            let line = line?;
            println!("  {line}");
            let done: Option<u64> = line.split_once(" of ").and_then(|(done, _)| done.parse().ok());
            if life == 1 && done.is_some_and(|done| done >= orders.count / 3) {
                child.kill()?;
                break;
            }
        }
        let status = child.wait()?;
        println!("life {life} ended after {:.0?}: {status}", begun.elapsed());
        if status.success() {
            return Ok(life);
        }
        if status.code().is_some() {
            return Err(format!("life {life} failed, and was not killed").into());
        }
    }
    Err(format!("after {MOST_LIVES} lives mails are left").into())
}

/// Starts this program as a child that sends, and returns it with its lines.
fn child(directory: &Path, orders: Orders) -> Result<(Child, impl Iterator<Item = std::io::Result<String>>), BoxError> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(directory).arg("--send").args(["--orders", &orders.count.to_string()]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let said = BufReader::new(child.stdout.take().ok_or("it has no output")?).lines();
    Ok((child, said))
}

/// Accounts for every mail. Returns an error if one is lost, doubled, or was sent too often.
fn account(shop: &Shop, orders: Orders, lives: u32) -> Result<(), BoxError> {
    let jobs = shop.jobs(orders)?;
    let dead: Vec<_> = jobs.iter().filter(|(_, job)| job.state == JobState::Dead).collect();
    println!("\ndead letters ({}):", dead.len());
    for (order, job) in &dead {
        let JobInfo { id, failures, crashes, error, .. } = job;
        let error = error.as_deref().unwrap_or("no reason");
        println!("  order {order}, job {id}: {failures} failures, {crashes} crashes: {error}");
    }

    let outbox = shop.outbox()?;
    let (mut refused, mut again) = (0, 0);
    for (order, job) in &jobs {
        let left = outbox.get(order).copied().unwrap_or(0);
        let counted = shop.sent.counter(order.to_be_bytes())?;
        let (least, most, wanted) = match job.state {
            JobState::Finished => {
                let data = job.data.as_ref().ok_or("a job that is finished has no data")?;
                let number = |field: &str| data[field].as_u64().ok_or("its data has another form");
                refused += number("attempts")? - 1;
                (1, 1 + number("crashes")?, 1)
            }
            _ => (0, 0, 0),
        };
        again += left.saturating_sub(1);
        if counted != wanted || !(least..=most).contains(&left) {
            return Err(format!("the mail of order {order} is counted {counted} times, and left {left} times").into());
        }
    }
    check_dead(&jobs, orders)?;

    println!("\nreport:");
    println!("  {:>5} orders, and as many mails pushed: the stream pushed each exactly once", orders.count);
    println!("  {:>5} mails sent, and counted once each", jobs.len() - dead.len());
    println!("  {refused:>5} attempts failed, and were made again");
    println!("  {again:>5} mails left twice, since the process died before their end was written");
    println!("  {:>5} mails dead", dead.len());
    if lives > 0 {
        println!("  {lives:>5} lives of the process");
    }
    println!("  {}", shop.report());
    println!("verified: {} pushed = {} sent + {} dead", orders.count, jobs.len() - dead.len(), dead.len());
    Ok(())
}

/// Checks that exactly the mails that must die are dead, for the right reason.
fn check_dead(jobs: &BTreeMap<Index, JobInfo>, orders: Orders) -> Result<(), BoxError> {
    for (order, job) in jobs {
        let wanted = if *order == orders.mistyped() {
            // The process may have died while this job was in flight, too.
            (JobState::Dead, 1, job.crashes)
        } else if orders.poison == Some(*order) {
            (JobState::Dead, 0, MAX_CRASHES)
        } else {
            // Attempts that failed before its success are counted.
            (JobState::Finished, job.failures, job.crashes)
        };
        if (job.state, job.failures, job.crashes) != wanted {
            return Err(format!("the mail of order {order} should be {wanted:?}, and is {job:?}").into());
        }
    }
    Ok(())
}

impl Shop {
    /// Returns the job of each order, or an error if an order has none, two, or an unfinished one.
    fn jobs(&self, orders: Orders) -> Result<BTreeMap<Index, JobInfo>, BoxError> {
        if ended(&self.queue) != orders.count {
            return Err(format!("{} of {} mails are done: {}", ended(&self.queue), orders.count, self.report()).into());
        }
        let mut jobs = BTreeMap::new();
        for state in [JobState::Finished, JobState::Dead] {
            let mut from = None;
            loop {
                let page = self.queue.list(state, from.as_ref(), 100)?;
                let Some(last) = page.last().cloned() else { break };
                for job in page {
                    let (order, _): (Index, String) = job.payload()?;
                    if let Some(twin) = jobs.insert(order, job) {
                        return Err(format!("order {order} has a second mail, {}", twin.id).into());
                    }
                }
                from = Some(last);
            }
        }
        match (0..orders.count).find(|order| !jobs.contains_key(order)) {
            Some(order) => Err(format!("order {order} has no mail").into()),
            None => Ok(jobs),
        }
    }

    /// Returns how often the mail of each order was sent.
    fn outbox(&self) -> Result<BTreeMap<Index, u64>, BoxError> {
        let mut left = BTreeMap::new();
        for line in BufReader::new(File::open(&self.outbox)?).lines() {
            let line = line?;
            let (order, _) = line.split_once(' ').ok_or_else(|| format!("the outbox has the line {line:?}"))?;
            *left.entry(order.parse()?).or_default() += 1;
        }
        Ok(left)
    }

    /// Returns one sentence about the queue.
    fn report(&self) -> String {
        self.queue.status().map_or_else(|error| error.report(), |status| status.to_string())
    }
}
