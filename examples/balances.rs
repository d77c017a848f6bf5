//! A ledger: parallel jobs book transfers between accounts, each exactly once, in a database that
//! the program opens itself.
//!
//! ```sh
//! cargo run --release --example balances                                    # shows it: killed again and again, and nothing is lost
//! cargo run --release --example balances -- /tmp/ledger --book              # books all, from where the last run was
//! cargo run --release --example balances -- /tmp/ledger --abort-at 5000     # the same, but aborts in the middle
//! cargo run --release --example balances -- /tmp/ledger --verify            # compares the ledger with one in memory
//! ```
//!
//! Transfer *i* takes an amount from one account and gives it to another: two additions, and a
//! third that counts the transfer. They are one write with the job's completion. So whenever the
//! program dies, money is neither lost nor created. The next run books the remaining transfers,
//! each once, in any order. No job reads a balance.

use clap::Parser;
use rocksdb::{ColumnFamilyDescriptor, DB, Options};
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use waterline::{BoxError, Consumer, Index, Jobs, Store, Table};

const ACCOUNTS: u64 = 1_000;
/// How often the demonstration kills the program.
const KILLS: u32 = 5;
/// The most hundredths of all transfers that are booked between two kills.
const MOST_BETWEEN_KILLS: usize = 15;

/// Book transfers between accounts, each exactly once; without an option, show that by being
/// killed.
#[derive(Parser)]
#[command(name = "balances")]
struct Args {
    /// The directory of the database [default: a temporary one]
    directory: Option<PathBuf>,
    /// The number of transfers
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    transfers: u64,
    /// Book what is left
    #[arg(long, group = "mode")]
    book: bool,
    /// Book what is left, and abort once this transfer and all before it are booked
    #[arg(long, value_name = "INDEX", group = "mode")]
    abort_at: Option<u64>,
    /// Compare the ledger with one in memory
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
    match args.abort_at {
        None if args.verify => verify(&Ledger::open(directory)?, args.transfers),
        None if !args.book => demonstrate(directory, args.transfers),
        abort_at => book(&Ledger::open(directory)?, args.transfers, abort_at),
    }
}

#[derive(Clone, Copy, Debug)]
struct Transfer {
    from: u64,
    to: u64,
    amount: i64,
}

impl Transfer {
    /// Returns the same transfer for an index each time. A hash stands for a bank's files.
    fn at(index: Index) -> Self {
        let mut hash = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash ^= hash >> 27;
        let from = hash % ACCOUNTS;
        // Any other account.
        let to = (from + 1 + (hash >> 16) % (ACCOUNTS - 1)) % ACCOUNTS;
        Self { from, to, amount: 1 + (hash >> 32) as i64 % 100 }
    }
}

/// The source.
struct Transfers(u64);

impl Jobs for Transfers {
    type Job = Transfer;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(self.0.checked_sub(1))
    }

    fn at_index(&self, index: Index) -> Result<Option<Transfer>, BoxError> {
        Ok((index < self.0).then(|| Transfer::at(index)))
    }
}

/// The database: balances in the program's own column family, and a total in a table of the store.
struct Ledger {
    store: Store,
    balances: Table,
    totals: Table,
}

impl Ledger {
    fn open(directory: &Path) -> Result<Self, BoxError> {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        let mut families = Store::column_families();
        families.push(ColumnFamilyDescriptor::new("balances", Options::default()));
        let db = Arc::new(DB::open_cf_descriptors(&options, directory, families)?);
        // A program that uses the database anyway keeps its handle. This one has no other use for
        // it.
        let store = Store::attach(db)?;
        Ok(Self { balances: store.column_family("balances")?, totals: store.table("totals")?, store })
    }

    /// Returns the watermark, the number of booked transfers, and the sum of all balances.
    fn summary(&self) -> Result<(Option<Index>, i64, i64), BoxError> {
        let mut sum = 0;
        for row in &self.balances {
            sum += i64::from_be_bytes(row?.1.as_slice().try_into()?);
        }
        Ok((self.store.progress("ledger").last_processed()?, self.totals.counter("transfers")?, sum))
    }
}

/// Books all remaining transfers, or aborts once this one and all before it are booked.
fn book(ledger: &Ledger, transfers: u64, abort_at: Option<Index>) -> Result<(), BoxError> {
    let (balances, totals) = (ledger.balances.clone(), ledger.totals.clone());
    let hundredth = transfers.div_ceil(100);
    let consumer = Consumer::builder(Transfers(transfers), ledger.store.progress("ledger"))
        .stop_at(transfers - 1)
        // The parent, which kills this process, reads these lines, and so may a person.
        .on_processed(move |run| {
            if (run.end() + 1) / hundredth > run.start() / hundredth {
                println!("booked up to {}", run.end());
            }
        })
        .start_transactional(move |job, effects| {
            let Transfer { from, to, amount } = job.payload;
            effects.add(&balances, from.to_be_bytes(), -amount)?;
            effects.add(&balances, to.to_be_bytes(), amount)?;
            effects.add(&totals, "transfers", 1)?;
            Ok(())
        })?;
    let handle = consumer.handle();
    println!("booking, the watermark is {}", shown(handle.last_processed_index()));
    if let Some(index) = abort_at
        && handle.wait_for(index, Duration::MAX)
    {
        println!("aborting, the watermark is {}", shown(handle.last_processed_index()));
        std::process::abort();
    }
    consumer.join().map_err(|error| error.report())?;
    println!("all {transfers} transfers are booked");
    Ok(())
}

/// Compares every balance with one computed in memory.
fn verify(ledger: &Ledger, transfers: u64) -> Result<(), BoxError> {
    let (watermark, booked, sum) = ledger.summary()?;
    if (watermark, booked) != (transfers.checked_sub(1), transfers as i64) {
        return Err(
            format!("{booked} of {transfers} transfers are booked, the watermark is {}", shown(watermark)).into()
        );
    }
    if sum != 0 {
        return Err(format!("all balances add up to {sum}").into());
    }
    let mut expected = vec![0; ACCOUNTS as usize];
    for Transfer { from, to, amount } in (0..transfers).map(Transfer::at) {
        expected[from as usize] -= amount;
        expected[to as usize] += amount;
    }
    for (account, expected) in (0..).zip(expected) {
        let balance = ledger.balances.counter(u64::to_be_bytes(account))?;
        if balance != expected {
            return Err(format!("account {account} has {balance} instead of {expected}").into());
        }
    }
    println!("verified: {transfers} transfers, each booked once; {ACCOUNTS} balances are right and add up to 0");
    Ok(())
}

/// Books in a child process that it kills again and again, and then books the rest.
fn demonstrate(directory: &Path, transfers: u64) -> Result<(), BoxError> {
    for kill in 1..=KILLS {
        let begun = Instant::now();
        let (mut child, mut said) = child(directory, transfers)?;
        // A different moment each time, measured in booked transfers, so that it is in the middle
        // on a machine of any speed.
        said.by_ref().take(fastrand::usize(1..=MOST_BETWEEN_KILLS)).try_for_each(|line| line.map(drop))?;
        child.kill()?;
        child.wait()?;
        let (watermark, booked, sum) = Ledger::open(directory)?.summary()?;
        println!(
            "kill {kill}: after {:.0?}, the watermark is {}, {booked} transfers are booked, balances add up to {sum}",
            begun.elapsed(),
            shown(watermark),
        );
        if sum != 0 || booked < watermark.map_or(0, |last| last as i64 + 1) {
            return Err("money was lost or made".into());
        }
    }
    let begun = Instant::now();
    let (mut child, mut said) = child(directory, transfers)?;
    // The child's lines must be read, or it would block.
    said.try_for_each(|line| line.map(drop))?;
    if !child.wait()?.success() {
        return Err("the last run failed".into());
    }
    println!("the last run booked the rest in {:.0?}", begun.elapsed());
    verify(&Ledger::open(directory)?, transfers)
}

/// Starts this program as a child that books. Returns it once it has begun, with the rest of its
/// lines.
fn child(directory: &Path, transfers: u64) -> Result<(Child, Lines<BufReader<ChildStdout>>), BoxError> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(directory).arg("--book").args(["--transfers", &transfers.to_string()]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut said = BufReader::new(child.stdout.take().ok_or("it has no output")?).lines();
    println!("{}", said.next().ok_or("it said nothing")??);
    Ok((child, said))
}

fn shown(watermark: Option<Index>) -> String {
    watermark.map_or_else(|| "not yet there".to_owned(), |index| index.to_string())
}
