//! A ledger in PostgreSQL. Transfers are rows that four writers insert, some of whom roll back. The
//! balances change in the transaction that says which transfers are done, so each transfer counts
//! exactly once. Two processes consume them: one makes the transfers, and the other one waits as a
//! hot standby. At random one is killed, or stopped and let go on later. Then every balance is
//! checked. The exit code is 0 only if all are exact.
//!
//! It makes the schemas `ledger` and `ledger_progress` in a database of yours, and drops them
//! first.
//!
//! ```sh
//! cargo run --release -p waterline-postgres --example ledger -- "host=127.0.0.1 user=postgres dbname=test"
//! ```

use postgres::{Client, Config, NoTls, Row, Transaction};
use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use waterline::{BoxError, Consumer, Error, Failure, Index, Job, OnExhausted, Retry};
use waterline_postgres::{PgJobs, PgOptions, PgStore, postgres};

/// The number of accounts, and the money that each begins with.
const ACCOUNTS: i64 = 50;
const MONEY: i64 = 1_000_000;
const WRITERS: u64 = 4;
/// The transfers, unless the second argument says another number.
const TRANSFERS: u64 = 20_000;
/// One transfer in so many has an account that does not exist. It fails for good, and is parked.
const BAD_EVERY: u64 = 1_000;
/// The time for which a process has the name, unless it renews that.
const TTL: Duration = Duration::from_millis(500);
/// The times that a process is killed or stopped.
const ENDS: u32 = 8;
/// The time that a part of this may take before it counts as failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// The argument with which this program is one of the two processes.
const MEMBER: &str = "--member";

const TABLES: &str = "
    DROP SCHEMA IF EXISTS ledger CASCADE;
    DROP SCHEMA IF EXISTS ledger_progress CASCADE;
    CREATE SCHEMA ledger;
    CREATE TABLE ledger.transfers (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, sender bigint NOT NULL,
        receiver bigint NOT NULL, amount bigint NOT NULL);
    CREATE TABLE ledger.accounts (id bigint PRIMARY KEY, balance bigint NOT NULL);
    CREATE TABLE ledger.made (transfer bigint PRIMARY KEY, fee bigint NOT NULL, fence bigint NOT NULL);";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [MEMBER, config, holder] => make_transfers(config, holder),
        [config] => demonstrate(config, TRANSFERS),
        [config, transfers] => transfers.parse().map_err(BoxError::from).and_then(|count| demonstrate(config, count)),
        _ => Err("say which database: ledger \"host=127.0.0.1 user=postgres dbname=test\" [transfers]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("error: {error}");
            // The text of the driver's error says less than its cause.
            let mut cause = error.source();
            while let Some(error) = cause {
                eprint!(": {error}");
                cause = error.source();
            }
            eprintln!();
            ExitCode::FAILURE
        }
    }
}

/// A row of `transfers`.
struct Transfer {
    sender: i64,
    receiver: i64,
    amount: i64,
}

impl Transfer {
    fn read(row: &Row) -> Result<Self, BoxError> {
        let column = |name| row.try_get(name);
        Ok(Self { sender: column("sender")?, receiver: column("receiver")?, amount: column("amount")? })
    }

    fn is_bad(&self) -> bool {
        !(0..ACCOUNTS).contains(&self.receiver)
    }
}

/// A transfer that was checked: its fee, and the number of the life that checked it.
struct Checked {
    transfer: Transfer,
    fee: i64,
    fence: u64,
}

/// One of the two processes. It ends when its input ends, or when the other one has taken over.
fn make_transfers(config: &str, holder: &str) -> Result<(), BoxError> {
    let options = PgOptions::new().schema("ledger_progress").ttl(TTL).holder(holder);
    let store = PgStore::connect(config.parse()?, NoTls, options)?;
    let transfers = PgJobs::table(&store, "ledger.transfers", Transfer::read)?;
    let consumer = Consumer::builder(transfers, store.progress("ledger"))
        .standby()
        .max_processing(4)
        .poll_every(Duration::from_millis(20))
        .retry(Retry::fixed(Duration::from_millis(1)).max_attempts(3))
        .on_exhausted(OnExhausted::Park { budget: 1_000 })
        .start_writing(check, write)
        .map_err(|error| error.report())?;
    let handle = consumer.handle();
    thread::spawn(move || {
        // The process that started this one lets go of it, or is dead.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        handle.request_stop();
    });
    match consumer.join() {
        // The other one took over while this one stood still.
        Err(Error::Fenced { .. }) => Ok(()),
        ended => ended.map_err(|error| error.report().into()),
    }
}

/// Runs in parallel, off the database. It stands for work that takes time, and finds the fee.
fn check(job: Job<Transfer>) -> Result<Checked, BoxError> {
    if job.payload.is_bad() {
        return Err(Failure::permanent(format!("nobody has the account {}", job.payload.receiver)).into());
    }
    if job.attempt == 1 && job.index.is_multiple_of(41) {
        return Err("the service that knows the fee is busy".into());
    }
    Ok(Checked { fee: job.payload.amount / 10, transfer: job.payload, fence: job.fence })
}

/// Writes what was checked meanwhile, in the transaction that says so.
fn write(ledger: &mut Transaction<'_>, checked: &[(Index, Checked)]) -> Result<(), BoxError> {
    let (mut ids, mut fees, mut fences) = (Vec::new(), Vec::new(), Vec::new());
    let mut changes = BTreeMap::<i64, i64>::new();
    for (index, Checked { transfer, fee, fence }) in checked {
        ids.push(index.cast_signed());
        fees.push(*fee);
        fences.push(fence.cast_signed());
        *changes.entry(transfer.sender).or_default() -= transfer.amount + fee;
        *changes.entry(transfer.receiver).or_default() += transfer.amount;
    }
    let made = "INSERT INTO ledger.made SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[])";
    ledger.execute(made, &[&ids, &fees, &fences])?;
    let (accounts, changes): (Vec<i64>, Vec<i64>) = changes.into_iter().unzip();
    let change = "UPDATE ledger.accounts a SET balance = balance + c.change
        FROM unnest($1::bigint[], $2::bigint[]) AS c (account, change) WHERE a.id = c.account";
    ledger.execute(change, &[&accounts, &changes])?;
    Ok(())
}

/// Makes the tables, lets writers and members work, ends members at random, and checks all.
fn demonstrate(config: &str, transfers: u64) -> Result<(), BoxError> {
    let parsed: Config = config.parse()?;
    let mut client = parsed.connect(NoTls)?;
    client.batch_execute(TABLES)?;
    client.execute(
        "INSERT INTO ledger.accounts SELECT id, $2 FROM generate_series(0::bigint, $1::bigint - 1) AS id",
        &[&ACCOUNTS, &MONEY],
    )?;
    PgStore::connect(parsed.clone(), NoTls, PgOptions::new().schema("ledger_progress"))?.migrate()?;
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                scope.spawn({
                    let parsed = &parsed;
                    move || insert(parsed, writer, transfers / WRITERS)
                })
            })
            .collect();
        let mut members = Members::new(config);
        for number in 1..=ENDS {
            members.end_one(&mut client, number)?;
        }
        for writer in writers {
            writer.join().map_err(|_| "a writer panicked")??;
        }
        let left = "SELECT count(*) FROM ledger.transfers t WHERE receiver >= 0
            AND NOT EXISTS (SELECT FROM ledger.made m WHERE m.transfer = t.id)";
        wait("all transfers are made", || Ok(client.query_one(left, &[])?.get::<_, i64>(0) == 0))?;
        members.stop()
    })?;
    verify(&mut client)
}

/// Inserts transfers in transactions of several rows, one in ten of which is rolled back.
fn insert(config: &Config, writer: u64, count: u64) -> Result<(), BoxError> {
    let (mut client, mut number) = (config.connect(NoTls)?, 0);
    let insert = client.prepare("INSERT INTO ledger.transfers (sender, receiver, amount) VALUES ($1, $2, $3)")?;
    while number < count {
        let mut transaction = client.transaction()?;
        let rows = fastrand::u64(1..8).min(count - number);
        for row in number..number + rows {
            let receiver = if row % BAD_EVERY == BAD_EVERY / 2 { -1 } else { fastrand::i64(0..ACCOUNTS) };
            let sender = (row * WRITERS + writer).cast_signed() * 17 % ACCOUNTS;
            transaction.execute(&insert, &[&sender, &receiver, &fastrand::i64(0..100)])?;
        }
        if fastrand::u8(0..10) == 0 {
            transaction.rollback()?;
        } else {
            transaction.commit()?;
            number += rows;
        }
    }
    Ok(())
}

/// The two processes.
struct Members<'a> {
    config: &'a str,
    members: Vec<(String, Child)>,
    started: u32,
}

impl<'a> Members<'a> {
    fn new(config: &'a str) -> Self {
        Self { config, members: Vec::new(), started: 0 }
    }

    /// Starts processes until there are two.
    fn fill(&mut self) -> Result<(), BoxError> {
        while self.members.len() < 2 {
            self.started += 1;
            let name = format!("process {}", self.started);
            let mut command = Command::new(std::env::current_exe()?);
            let child = command.args([MEMBER, self.config, &name]).stdin(Stdio::piped()).spawn()?;
            self.members.push((name, child));
        }
        Ok(())
    }

    /// Kills the one that has the name, or stops it until the other one has taken over.
    fn end_one(&mut self, client: &mut Client, number: u32) -> Result<(), BoxError> {
        self.fill()?;
        let mut holder = String::new();
        wait("one process has the name", || {
            let holds = "SELECT holder FROM ledger_progress.progress WHERE expires > clock_timestamp()";
            holder = client.query_opt(holds, &[])?.map_or(String::new(), |row| row.get(0));
            Ok(self.members.iter().any(|(name, _)| *name == holder))
        })?;
        // Some more transfers, so that it is somewhere in the middle.
        let before = made(client)?;
        let (more, mut works) = (fastrand::i64(1..800), false);
        wait("some transfers are made", || {
            let left = "SELECT 1 FROM ledger.transfers t WHERE receiver >= 0 AND NOT EXISTS (SELECT FROM ledger.made m WHERE m.transfer = t.id) LIMIT 1";
            works = made(client)? >= before + more;
            Ok(works || client.query_opt(left, &[])?.is_none())
        })?;
        if !works {
            // Nothing is left, and it may not even have loaded its progress.
            return Ok(());
        }
        let Some(at) = self.members.iter().position(|(name, _)| *name == holder) else {
            unreachable!("it is one of them")
        };
        let (name, mut child) = self.members.swap_remove(at);
        let begun = Instant::now();
        let kill = fastrand::bool();
        if kill {
            child.kill()?;
            child.wait()?;
        } else {
            signal(&child, "STOP")?;
        }
        let other = &self.members[0].0;
        wait("the standby takes over", || {
            let holds = "SELECT 1 FROM ledger_progress.progress WHERE expires > clock_timestamp() AND holder = $1";
            Ok(client.query_opt(holds, &[other])?.is_some())
        })?;
        let took = begun.elapsed();
        if !kill {
            signal(&child, "CONT")?;
            if !child.wait()?.success() {
                return Err(format!("{name} was stopped, and failed when it went on").into());
            }
        }
        let how = if kill { "killed" } else { "stopped, and went on later" };
        println!(
            "{number}: {name} was {how}; {other} took over after {took:.1?}, with {} transfers made",
            made(client)?
        );
        Ok(())
    }

    fn stop(mut self) -> Result<(), BoxError> {
        for (name, mut child) in std::mem::take(&mut self.members) {
            drop(child.stdin.take());
            if !child.wait()?.success() {
                return Err(format!("{name} failed").into());
            }
        }
        Ok(())
    }
}

impl Drop for Members<'_> {
    fn drop(&mut self) {
        for (_, child) in &mut self.members {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn signal(child: &Child, name: &str) -> Result<(), BoxError> {
    let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status()?;
    if sent.success() { Ok(()) } else { Err(format!("process {} gets no {name}", child.id()).into()) }
}

fn made(client: &mut Client) -> Result<i64, BoxError> {
    Ok(client.query_one("SELECT count(*) FROM ledger.made", &[])?.get(0))
}

/// Asks again and again until it is so.
fn wait(what: &str, mut is_so: impl FnMut() -> Result<bool, BoxError>) -> Result<(), BoxError> {
    let begun = Instant::now();
    while !is_so()? {
        if begun.elapsed() > PATIENCE {
            return Err(format!("not within {PATIENCE:?}: {what}").into());
        }
        thread::park_timeout(Duration::from_millis(5));
    }
    Ok(())
}

/// Checks every balance, and that each good transfer was made once.
fn verify(client: &mut Client) -> Result<(), BoxError> {
    let mut wanted: BTreeMap<i64, i64> = (0..ACCOUNTS).map(|account| (account, MONEY)).collect();
    let (mut good, mut bad) = (0, 0);
    for row in client.query("SELECT * FROM ledger.transfers", &[])? {
        let transfer = Transfer::read(&row)?;
        if transfer.is_bad() {
            bad += 1;
            continue;
        }
        good += 1;
        *wanted.entry(transfer.sender).or_default() -= transfer.amount + transfer.amount / 10;
        *wanted.entry(transfer.receiver).or_default() += transfer.amount;
    }
    let made = made(client)?;
    if made != good {
        return Err(format!("{made} transfers were made, and {good} should be").into());
    }
    for row in client.query("SELECT id, balance FROM ledger.accounts", &[])? {
        let (id, balance): (i64, i64) = (row.get(0), row.get(1));
        if wanted.get(&id) != Some(&balance) {
            return Err(format!("account {id} has {balance}, and should have {:?}", wanted.get(&id)).into());
        }
    }
    let lives: i64 = client.query_one("SELECT count(DISTINCT fence) FROM ledger.made", &[])?.get(0);
    println!(
        "verified: {ACCOUNTS} balances are exact; {good} transfers were made once each, in {lives} lives; {bad} are parked"
    );
    Ok(())
}
