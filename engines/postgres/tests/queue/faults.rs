//! Workers that are killed, workers that stand still, and a server that crashes: no job is lost,
//! and none ends twice.

use crate::server::{End, Server, signal};
use crate::size;
use postgres::{Client, Config, NoTls, Transaction};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use waterline::queue::{Limit, Outcome, QueueOptions, Runner, Running};
use waterline::{BoxError, Retry};
use waterline_postgres::{PgOptions, PgStore, RunnerExt};

/// The variable that makes a process a worker: the port, the database, and the kind of worker.
const WORKER: &str = "WATERLINE_QUEUE_WORKER";
const LEASE: Duration = Duration::from_secs(2);

fn options() -> QueueOptions {
    let retry = Retry::fixed(Duration::from_millis(50));
    QueueOptions::default()
        .lease(LEASE)
        .retry(retry)
        .unlimited_crashes()
        .retention(waterline::queue::Retention::Keep)
        .limit(Limit::each_key().at_once(1))
}

fn config(port: &str, database: &str) -> Config {
    let mut config = Config::new();
    config.host("127.0.0.1").port(port.parse().unwrap()).user("postgres").dbname(database);
    config
}

/// Is nothing as a test. As a process of its own it works until it is killed.
#[test]
fn worker() {
    let Ok(given) = std::env::var(WORKER) else { return };
    let [port, database, kind] = given.split(' ').collect::<Vec<_>>()[..] else { panic!("{given}") };
    let config = config(port, database);
    if kind == "calls" { call(&config) } else { run(config, kind == "writer") }
}

/// A worker that knows the library. The effects of one that writes are in the transaction of the
/// end.
fn run(config: Config, writes: bool) {
    let Ok(store) = PgStore::connect(config, NoTls, PgOptions::new().ttl(Duration::from_secs(1))) else { return };
    let Ok(queue) = store.queue("q", options()) else { return };
    let check = |job: &Running, number: u32| -> Result<(), BoxError> {
        if number.is_multiple_of(31) && job.attempt() == 1 { Err("not in the first attempt".into()) } else { Ok(()) }
    };
    let runner = Runner::builder(&queue).max_processing(8);
    let runner = if writes {
        let write = |transaction: &mut Transaction<'_>, results: &[(Running, ())]| -> Result<(), BoxError> {
            for (job, ()) in results {
                let number = job.id().trim_start_matches('~').parse::<i64>()?;
                transaction.execute("INSERT INTO effects VALUES ($1)", &[&number])?;
            }
            Ok(())
        };
        runner.on_writing("k", move |job, number| check(job, number), write)
    } else {
        runner.on("k", move |job, number| check(job, number).map(|()| Outcome::Done))
    };
    let _runner = runner.start().unwrap();
    loop {
        std::thread::park();
    }
}

/// A worker that calls the functions, as one in another language does. Its effects are in the
/// transaction of the end.
fn call(config: &Config) {
    loop {
        let worked = config.connect(NoTls).and_then(|mut client| {
            loop {
                work(&mut client)?;
            }
        });
        let _: Result<(), postgres::Error> = worked;
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

fn work(client: &mut Client) -> Result<(), postgres::Error> {
    let jobs = client.query("SELECT job, token, more FROM waterline.claim('q', 8, p_async => true)", &[])?;
    if jobs.is_empty() {
        std::thread::park_timeout(Duration::from_millis(10));
        return Ok(());
    }
    for row in jobs {
        let (job, token, more): (i64, i64, Option<String>) = (row.get(0), row.get(1), row.get(2));
        if let Some(key) = &more {
            // The holder of a key has a lock of this session, which ends with the process.
            let alone = client.query_one("SELECT pg_try_advisory_lock(1, hashtext($1))", &[key])?;
            if !alone.get::<_, bool>(0) {
                client.execute("INSERT INTO doubled VALUES ($1)", &[&job])?;
            }
        }
        let mut transaction = client.transaction()?;
        transaction.execute("INSERT INTO effects VALUES ($1)", &[&job])?;
        let ended =
            transaction.query_one("SELECT waterline.finish(ARRAY[$1::bigint], ARRAY[$2::bigint])", &[&job, &token])?;
        let counted = ended.get::<_, Vec<i64>>(0) == [job];
        // The lock goes before the place in the limit does.
        if let Some(key) = &more {
            transaction.execute("SELECT pg_advisory_unlock(1, hashtext($1))", &[key])?;
        }
        if counted {
            transaction.commit()?;
        }
    }
    Ok(())
}

fn start(port: u16, database: &str, kind: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "faults::worker"]).env(WORKER, format!("{port} {database} {kind}"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn no_job_is_lost_and_none_ends_twice_whatever_dies() {
    let server = Server::start(&[]);
    let database = server.database();
    let store = database.store(PgOptions::new());
    let queue = store.queue("q", options()).unwrap();
    database.client().batch_execute("CREATE TABLE effects (job bigint); CREATE TABLE doubled (job bigint)").unwrap();
    let jobs = size(3_000, 25_000);
    let mut pushed = 0;
    let mut push = |most: u64| {
        let until = jobs.min(pushed + most);
        let settings: Vec<_> = (pushed..until)
            .map(|n| if n % 5 == 0 { Some(format!("{{\"key\": \"{}\"}}", n % 97)) } else { None })
            .collect();
        let payloads: Vec<_> = (pushed..until).map(|n| n.to_string()).collect();
        let kinds = vec!["k"; payloads.len()];
        let push = "SELECT count(*) FROM waterline.push_many('q', $1, $2, $3::text[]::jsonb[])";
        database.client().query_one(push, &[&kinds, &payloads, &settings]).unwrap();
        pushed = until;
    };
    push(1_000);
    let kinds = ["calls", "calls", "writer", "writer", "runner"];
    let mut workers: Vec<_> = kinds.iter().map(|kind| start(server.port(), &database.name, kind)).collect();
    let (begun, least, mut kills, mut crashes) = (Instant::now(), Duration::from_secs(size(20, 300)), 0_u64, 0);
    let done = |client: &mut Client| {
        let left = client.query_one("SELECT count(*) FROM waterline.job", &[]);
        left.is_ok_and(|left| left.get::<_, i64>(0) == 0)
    };
    while begun.elapsed() < least || kills < size(20, 200) {
        std::thread::park_timeout(Duration::from_millis(fastrand::u64(50..500)));
        let at = fastrand::usize(..workers.len());
        match fastrand::u32(..10) {
            0 if kinds[at] != "calls" => {
                // It stands still for longer than its leases, and goes on.
                let stopped = workers[at].id();
                signal(stopped, "STOP");
                std::thread::park_timeout(LEASE + Duration::from_millis(500));
                signal(stopped, "CONT");
            }
            1 if crashes < size(2, 10) => {
                crashes += 1;
                server.stop(End::Immediate);
                server.start_again();
            }
            _ => {
                workers[at].kill().unwrap();
                workers[at].wait().unwrap();
                workers[at] = start(server.port(), &database.name, kinds[at]);
                kills += 1;
            }
        }
        push(200);
    }
    push(u64::MAX - jobs);
    let mut client = database.client();
    common::eventually("all jobs to end", || done(&mut client));
    for mut worker in workers {
        worker.kill().unwrap();
        worker.wait().unwrap();
    }
    let count =
        |client: &mut Client, of: &str| client.query_one(&format!("SELECT {of}"), &[]).unwrap().get::<_, i64>(0);
    assert_eq!(count(&mut client, "count(*) FROM waterline.ended WHERE NOT died"), jobs as i64, "each job ended once");
    let (all, distinct) = ("count(*) FROM effects", "count(DISTINCT job) FROM effects");
    assert_eq!(count(&mut client, all), count(&mut client, distinct), "no effect is there twice");
    assert_eq!(count(&mut client, "count(*) FROM doubled"), 0, "no two jobs of a key ran at once");
    assert!(count(&mut client, all) > 0, "workers of both kinds had jobs");
    assert!(!server.log().contains("deadlock detected"), "{}", server.log());
    println!("{jobs} jobs, {kills} kills, {crashes} crashes of the server in {:?}", begun.elapsed());
    drop(queue);
}
