//! The time until a standby in another process takes over.

use crate::server::{Database, Server, signal};
use postgres::{Config, NoTls};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use waterline::{Consumer, MemoryJobs};
use waterline_postgres::{PgOptions, PgStore};

const PORT: &str = "WATERLINE_BENCH_PORT";
const DATABASE: &str = "WATERLINE_BENCH_DATABASE";
const HOLDER: &str = "WATERLINE_BENCH_HOLDER";

/// The time of a lease.
const TTL: Duration = Duration::from_secs(2);

/// The process of a member, if this is one: it consumes until its input ends, and then stops.
pub fn is_member() -> bool {
    let Ok(port) = std::env::var(PORT) else { return false };
    let set = |name: &str| std::env::var(name).expect("it is set");
    let mut config = Config::new();
    config.host("127.0.0.1").port(port.parse().expect("it is a port")).user("postgres").dbname(&set(DATABASE));
    let store = PgStore::connect(config, NoTls, PgOptions::new().ttl(TTL).holder(set(HOLDER)));
    let jobs: MemoryJobs<u64> = MemoryJobs::new();
    let consumer = Consumer::builder(jobs, store.expect("the server runs").progress("p")).standby();
    let consumer = consumer.start(|_| Ok(())).expect("the database is there");
    _ = std::io::stdin().read_line(&mut String::new());
    // It is fenced if it stood still.
    _ = consumer.stop();
    true
}

/// A process that is killed at the end of this value.
struct Member(Child);

impl Member {
    fn start(server: &Server, database: &Database, holder: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program has a path"));
        child.env(PORT, server.port().to_string()).env(DATABASE, &database.name).env(HOLDER, holder);
        Self(child.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("this program runs"))
    }

    fn kill(&mut self) {
        self.0.kill().expect("it is a child");
    }

    /// Asks it to stop.
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

/// Prints how long a standby waits after each end of the one that has the name.
pub fn measure(server: &Server) {
    type End = fn(&mut Member);
    let ends: [(&str, End, Duration); 3] = [
        ("a kill (<= TTL + 300 ms)", Member::kill, TTL + Duration::from_millis(300)),
        ("a standstill (<= TTL + 300 ms)", Member::stand_still, TTL + Duration::from_millis(300)),
        ("a clean stop (<= 200 ms)", Member::stop, Duration::from_millis(200)),
    ];
    for (what, end, limit) in ends {
        let database = server.database();
        database.store(PgOptions::new());
        let (mut times, mut first) = (Vec::new(), Member::start(server, &database, "0"));
        has_the_name(&database, "0");
        for round in 1..=5 {
            let holder = round.to_string();
            let second = Member::start(server, &database, &holder);
            waits(&database);
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

/// Waits until a process listens, and has said nothing since.
fn waits(database: &Database) {
    let waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()
        AND application_name = 'waterline' AND query LIKE '%' || $1 || '%' LIMIT 1";
    until_there_is(database, waits, "LISTEN");
}
