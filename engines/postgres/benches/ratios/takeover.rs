//! How long it takes until a standby in another process takes over.

use crate::member;
use crate::server::pooler::Pooler;
use crate::server::{Database, Server, signal};
use postgres::NoTls;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use waterline::{Blocked, Consumer, MemoryJobs};
use waterline_postgres::{PgOptions, PgStore};

const ROLE: &str = "standby";
const HOLDER: &str = "WATERLINE_BENCH_HOLDER";

const TTL: Duration = Duration::from_secs(2);

/// If this is the process of a member, consumes until its input ends, and then stops.
pub fn is_member() -> bool {
    let Some(config) = member::config(ROLE) else { return false };
    let holder = std::env::var(HOLDER).expect("it is set");
    let store = PgStore::connect(config.clone(), NoTls, PgOptions::new().ttl(TTL).holder(&holder));
    let jobs: MemoryJobs<u64> = MemoryJobs::new();
    let consumer = Consumer::builder(jobs, store.expect("the server runs").progress("p")).standby();
    let consumer = consumer.start(|_| Ok(())).expect("the database is there");
    // A standby says so once it has tried.
    while holder != "0" && !matches!(consumer.handle().status().blocked, Blocked::InUse { .. }) {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    let mut client = config.connect(NoTls).expect("the server runs");
    client.batch_execute(&format!("CREATE TABLE \"waits {holder}\" ()")).expect("it is new");
    _ = std::io::stdin().read_line(&mut String::new());
    // It is fenced if it was frozen.
    _ = consumer.stop();
    true
}

/// A process that is killed on drop.
struct Member(Child);

impl Member {
    fn start(port: u16, database: &Database, holder: &str) -> Self {
        let mut child = member::command(ROLE, port, database);
        Self(child.env(HOLDER, holder).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("this program runs"))
    }

    fn kill(&mut self) {
        self.0.kill().expect("it is a child");
    }

    fn stop(&mut self) {
        drop(self.0.stdin.take());
    }

    fn stand_still(&mut self) {
        signal(self.0.id(), "STOP");
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
        _ = self.0.wait();
    }
}

/// Prints how long a standby waits after each end of the process that has the name.
pub fn measure(server: &Server) {
    type End = fn(&mut Member);
    // It passes no notification on to the process that listens.
    let pooler = Pooler::start(server, 4);
    let (direct, late) = (server.port(), TTL + Duration::from_millis(300));
    let ends: [(&str, u16, End, Duration); 4] = [
        ("a kill (<= TTL + 300 ms)", direct, Member::kill, late),
        ("a standstill (<= TTL + 300 ms)", direct, Member::stand_still, late),
        ("a clean stop (<= 200 ms)", direct, Member::stop, Duration::from_millis(200)),
        (
            "a clean stop without LISTEN, behind a pooler (<= 600 ms)",
            pooler.port(),
            Member::stop,
            Duration::from_millis(600),
        ),
    ];
    for (what, port, end, limit) in ends {
        let database = server.database();
        database.store(PgOptions::new());
        let (mut times, mut first) = (Vec::new(), Member::start(port, &database, "0"));
        has_the_name(&database, "0");
        for round in 1..=5 {
            let holder = round.to_string();
            let second = Member::start(port, &database, &holder);
            waits(&database, &holder);
            let begun = Instant::now();
            end(&mut first);
            has_the_name(&database, &holder);
            times.push(begun.elapsed());
            first = second;
        }
        times.sort_unstable();
        println!("a standby takes over after {what}: median {:?}, most {:?}", times[2], times[4]);
        assert!(times[2] <= limit, "it took {times:?}");
    }
}

fn until_there_is(database: &Database, what: &str, holder: &str) {
    let mut client = database.client();
    while client.query_opt(what, &[&holder]).expect("the server runs").is_none() {
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

fn has_the_name(database: &Database, holder: &str) {
    let has = "SELECT 1 FROM waterline.progress WHERE holder = $1 AND expires > clock_timestamp()";
    until_there_is(database, has, holder);
}

/// Waits until this process has tried to take the name, and is a standby.
fn waits(database: &Database, holder: &str) {
    let waits = "SELECT 1 FROM pg_tables WHERE tablename = 'waits ' || $1";
    until_there_is(database, waits, holder);
}
