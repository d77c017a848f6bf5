//! A bank in an SQLite database. Transfers are rows, whose ids have holes. The balances change in
//! the transaction that records which transfers are done, so each transfer counts exactly once. Two
//! processes run: one makes transfers, and the other one waits as a hot standby. The example kills
//! and stops the first one again and again, and then checks every balance.
//!
//! ```sh
//! cargo run --release --example sqlite              # shows it
//! cargo run --release --example sqlite -- bank.db   # the same, and keeps the file
//! ```
//!
//! `sqlite/adapter.rs` has the source, the progress and the transaction, for you to copy. Before
//! the bank opens, they pass the suites of the feature `testing`.

use clap::Parser;
use rusqlite::{Connection, Row, Transaction, params};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use waterline::testing::{JobsSuite, ProgressSuite};
use waterline::{BoxError, Consumer, Failure, Index, Job, OnExhausted, Retry};

#[path = "sqlite/adapter.rs"]
mod adapter;

use adapter::{RowsById, SqliteProgress, TABLES};

/// How many accounts there are, and the money that each begins with.
const ACCOUNTS: i64 = 50;
const MONEY: i64 = 1_000_000;
/// One transfer in this many has an account that does not exist. It fails for good, and is parked.
const BAD_EVERY: i64 = 1_000;
/// How long a process holds the name of the bank unless it renews that, and so how long a standby
/// waits after a process was killed.
const LEASE: Duration = Duration::from_millis(400);
/// The lives of the demonstration. All but the last one are killed or stopped.
const LIVES: u32 = 10;
/// A life prints this when no transfer is left.
const ALL_MADE: &str = "all transfers are made";

/// Make transfers between accounts; without an option, show that each counts exactly once.
#[derive(Parser)]
#[command(name = "sqlite")]
struct Args {
    /// The database [default: a temporary file]
    file: Option<PathBuf>,
    /// The number of transfers
    #[arg(long, value_name = "N", default_value_t = 30_000, value_parser = clap::value_parser!(i64).range(100..))]
    transfers: i64,
    /// Make the transfers that are left, and wait for more until the input ends
    #[arg(long, group = "mode")]
    run: bool,
    /// Check every balance
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
    let file = args.file.clone().unwrap_or(temporary.path().join("bank.db"));
    if args.run {
        return make_transfers(&file);
    }
    if !args.verify {
        check_adapter(temporary.path());
        create(&file, args.transfers)?;
        demonstrate(&file)?;
    }
    verify(&file)
}

/// A row of `transfers`.
struct Transfer {
    from: i64,
    to: i64,
    amount: i64,
}

impl Transfer {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self { from: row.get("sender")?, to: row.get("receiver")?, amount: row.get("amount")? })
    }

    fn is_bad(&self) -> bool {
        !(0..ACCOUNTS).contains(&self.to)
    }
}

fn open(file: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(file)?;
    // Readers and the writer do not block each other, and a commit survives a killed process.
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;")?;
    Ok(connection)
}

/// Creates a bank with open transfers. Their ids have small holes everywhere, and one huge one.
fn create(file: &Path, transfers: i64) -> Result<(), BoxError> {
    let mut bank = open(file)?;
    bank.execute_batch(TABLES)?;
    bank.execute_batch(
        "CREATE TABLE transfers (id INTEGER PRIMARY KEY AUTOINCREMENT, sender INTEGER, receiver INTEGER, amount INTEGER);
         CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);
         CREATE TABLE made (transfer INTEGER PRIMARY KEY, fee INTEGER NOT NULL);",
    )?;
    let transaction = bank.transaction()?;
    for account in 0..ACCOUNTS {
        transaction.execute("INSERT INTO accounts VALUES (?1, ?2)", [account, MONEY])?;
    }
    for number in 0..transfers {
        let huge = if number > transfers / 2 { 1 << 50 } else { 0 };
        let id = number + number / 3 + number / 100 * 40 + huge;
        let receiver = if number % BAD_EVERY == BAD_EVERY / 2 { -1 } else { (number * 31 + 7) % ACCOUNTS };
        let values = params![id, number * 17 % ACCOUNTS, receiver, number % 97];
        transaction.prepare_cached("INSERT INTO transfers VALUES (?1, ?2, ?3, ?4)")?.execute(values)?;
    }
    Ok(transaction.commit()?)
}

/// One life of the bank. It ends when the input ends.
fn make_transfers(file: &Path) -> Result<(), BoxError> {
    let source = RowsById::new(open(file)?, "transfers", Transfer::read);
    let last: i64 = open(file)?.query_one("SELECT max(id) FROM transfers", [], |row| row.get(0))?;
    let holder = format!("process {}", std::process::id());
    let progress = SqliteProgress::new(open(file)?, "bank").leased(open(file)?, &holder, LEASE);
    let consumer = Consumer::builder(source, progress)
        .standby()
        .max_processing(4)
        .retry(Retry::fixed(Duration::from_millis(1)).max_attempts(3))
        .on_exhausted(OnExhausted::Park { budget: 1_000 })
        .on_processed(|run| println!("made up to {}", run.end()))
        .start_writing(check, write)
        .map_err(|error| error.report())?;
    let handle = consumer.handle();
    std::thread::spawn(move || {
        // The parent has closed the pipe, or is dead.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        handle.request_stop();
    });
    if consumer.handle().wait_for(last.cast_unsigned(), Duration::MAX) {
        println!("{ALL_MADE}");
    }
    consumer.join().map_err(|error| error.report())?;
    Ok(())
}

/// Runs in parallel, off the database. It stands for work that takes time, and returns the fee.
fn check(job: Job<Transfer>) -> Result<(Transfer, i64), BoxError> {
    if job.payload.is_bad() {
        return Err(Failure::permanent(format!("nobody has the account {}", job.payload.to)).into());
    }
    if job.attempt == 1 && job.index.is_multiple_of(41) {
        return Err("the service that knows the fee is busy".into());
    }
    let fee = job.payload.amount / 10;
    Ok((job.payload, fee))
}

/// Writes the checked transfers, in the transaction that records them.
fn write(bank: &mut Transaction<'_>, checked: &[(Index, (Transfer, i64))]) -> Result<(), BoxError> {
    let mut made = bank.prepare_cached("INSERT INTO made VALUES (?1, ?2)")?;
    let mut change = bank.prepare_cached("UPDATE accounts SET balance = balance + ?2 WHERE id = ?1")?;
    for (index, (transfer, fee)) in checked {
        made.execute([index.cast_signed(), *fee])?;
        change.execute([transfer.from, -transfer.amount - fee])?;
        change.execute([transfer.to, transfer.amount])?;
    }
    Ok(())
}

/// Makes the transfers in child processes. Kills most of them at a random moment, and stops others.
/// The next one waits meanwhile, and takes over. The last one makes what is left. No child ends by
/// itself, so each can be killed.
fn demonstrate(file: &Path) -> Result<(), BoxError> {
    let mut standby = Some(child(file)?);
    for life in 1..=LIVES {
        let begun = Instant::now();
        let (mut child, input, mut said) = standby.take().ok_or("nobody waits")?;
        // Its first line reports that it has the name, which the next one waits for.
        let first = said.next().ok_or_else(|| format!("life {life} ended by itself"))??;
        if life < LIVES {
            standby = Some(self::child(file)?);
        }
        // It lives until it has printed this many lines, or has made all transfers.
        let lines = if life == LIVES { u64::MAX } else { RandomState::new().hash_one(life) % 20 };
        let (mut heard, mut last) = (0, first);
        while heard < lines && last != ALL_MADE {
            last = said.next().ok_or_else(|| format!("life {life} ended by itself"))??;
            heard += 1;
        }
        if life.is_multiple_of(3) || life == LIVES {
            drop(input);
        } else {
            child.kill()?;
        }
        // It may block until the rest is read.
        let rest = said.map_while(Result::ok).last();
        let status = child.wait()?;
        println!("life {life} ended after {:.0?}: {status}; {}", begun.elapsed(), rest.unwrap_or(last));
        if status.code().is_some_and(|code| code != 0) {
            return Err(format!("life {life} failed, and was not killed").into());
        }
    }
    Ok(())
}

/// Starts this program as a child that makes transfers.
fn child(file: &Path) -> Result<(Child, ChildStdin, impl Iterator<Item = std::io::Result<String>>), BoxError> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command.arg(file).arg("--run").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let input = child.stdin.take().ok_or("it has no input")?;
    let said = BufReader::new(child.stdout.take().ok_or("it has no output")?).lines();
    Ok((child, input, said))
}

/// Checks every balance, and that each valid transfer was made once.
fn verify(file: &Path) -> Result<(), BoxError> {
    let bank = open(file)?;
    let mut wanted: BTreeMap<i64, i64> = (0..ACCOUNTS).map(|account| (account, MONEY)).collect();
    let (mut good, mut bad) = (0, 0);
    let mut transfers = bank.prepare("SELECT * FROM transfers")?;
    for transfer in transfers.query_map([], Transfer::read)? {
        let transfer = transfer?;
        if transfer.is_bad() {
            bad += 1;
            continue;
        }
        good += 1;
        *wanted.entry(transfer.from).or_default() -= transfer.amount + transfer.amount / 10;
        *wanted.entry(transfer.to).or_default() += transfer.amount;
    }
    let made: i64 = bank.query_one("SELECT count(*) FROM made", [], |row| row.get(0))?;
    if made != good {
        return Err(format!("{made} transfers were made, and {good} should be").into());
    }
    let mut accounts = bank.prepare("SELECT id, balance FROM accounts")?;
    for account in accounts.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))? {
        let (id, balance): (i64, i64) = account?;
        if wanted.get(&id) != Some(&balance) {
            return Err(format!("account {id} has {balance}, and should have {:?}", wanted.get(&id)).into());
        }
    }
    println!("verified: {ACCOUNTS} balances are exact; {good} transfers were made once each, {bad} are parked");
    Ok(())
}

/// Runs the suites that each source and each progress has to pass.
fn check_adapter(directory: &Path) {
    let number = std::cell::Cell::new(0);
    let insert = |connection: &Connection, from: u64, count: u64| {
        let mut insert = connection.prepare("INSERT INTO numbers VALUES (?1)").expect("the table is there");
        // Every third id is missing.
        (from..from + count).for_each(|at| _ = insert.execute([(at + at / 2).cast_signed()]).expect("it is new"));
    };
    let numbers = |count: u64| {
        number.set(number.get() + 1);
        let file = directory.join(format!("numbers-{}.db", number.get()));
        let connection = open(&file).expect("the directory can be written");
        connection
            .execute_batch("CREATE TABLE numbers (id INTEGER PRIMARY KEY AUTOINCREMENT)")
            .expect("the file is new");
        insert(&connection, 0, count);
        RowsById::new(connection, "numbers", |row| row.get::<_, i64>("id"))
    };
    JobsSuite::new(numbers).sparse().run();
    println!("the source passes its suite");

    let progress = |name: &str| {
        let connection = open(&directory.join("progress.db")).expect("the directory can be written");
        connection.execute_batch(TABLES).expect("the tables can be made");
        SqliteProgress::new(connection, name)
    };
    ProgressSuite::new(progress).takes_over().run();
    println!("the progress passes its suite");
}
