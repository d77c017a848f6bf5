//! The CPU of the server for each job, as a ratio to bare commands in the same round.

use crate::queue::{CLIENTS, Held, PAYLOAD, Queue, cpu, in_clients};
use crate::row::row;
use crate::server::Server;
use waterline_redis::redis;

/// Rounds in turn, of which the median counts, and the jobs of each.
const ROUNDS: usize = 5;
const JOBS: usize = 16_000;
const KEYS: usize = 1_000;

pub const PUSH: &str = "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) redis.call('RPUSH', KEYS[2], ARGV[1])";
pub const CLAIM: &str = "local n = redis.call('LPOP', KEYS[2]) if not n then return nil end \
    redis.call('ZADD', KEYS[3], ARGV[1], n) return { n, redis.call('HGET', KEYS[1], n) }";
const END: &str = "if redis.call('ZREM', KEYS[3], ARGV[1]) == 1 then redis.call('HDEL', KEYS[1], ARGV[1]) end";

/// The CPU of the server that this takes, in microseconds a job.
fn cost(server: &Server, run: impl FnOnce()) -> f64 {
    let before = cpu(server);
    run();
    (cpu(server) - before) / JOBS as f64
}

pub fn connection(server: &Server) -> redis::Connection {
    redis::Client::open(server.url()).and_then(|client| client.get_connection()).expect("the server runs")
}

/// The CPU of the server for each call of a script on the keys of this name, in microseconds.
pub fn bare(
    server: &Server,
    script: &str,
    name: &str,
    (jobs, clients): (usize, usize),
    arg: impl Fn(usize) -> Vec<String> + Sync,
) -> f64 {
    let sha = server.text(&["SCRIPT", "LOAD", script]);
    let keys = ["job", "list", "run"].map(|key| format!("{name}:{key}"));
    let before = cpu(server);
    std::thread::scope(|scope| {
        for client in 0..clients {
            let (sha, keys, arg) = (&sha, &keys, &arg);
            scope.spawn(move || {
                let mut connection = connection(server);
                for at in 0..jobs / clients {
                    let mut call = redis::cmd("EVALSHA");
                    call.arg(sha).arg(3).arg(keys).arg(arg(client * (jobs / clients) + at));
                    call.query::<redis::Value>(&mut connection).expect("the server runs");
                }
            });
        }
    });
    (cpu(server) - before) / jobs as f64
}

/// Claims all jobs and ends them, `most` in each call: as a worker does, which ends what it has
/// with its next claim.
fn work(queue: &Queue<'_>, most: usize) {
    in_clients(JOBS, |_, jobs| {
        let queue = queue.again();
        let mut held: Vec<Held> = Vec::new();
        let mut left = jobs;
        loop {
            held = queue.turn(&held, most.min(left), &[]);
            left -= held.len();
            if held.is_empty() {
                return;
            }
        }
    });
}

/// The same in one call for each claim and one for each end, as those of the bare commands.
fn work_apart(queue: &Queue<'_>) {
    in_clients(JOBS, |_, jobs| {
        let queue = queue.again();
        for _ in 0..jobs {
            queue.turn(&queue.turn(&[], 1, &[]), 0, &[]);
        }
    });
}

#[derive(Default)]
struct Rounds([Vec<f64>; 9]);

impl Rounds {
    fn median(&self, at: usize) -> f64 {
        let mut all = self.0[at].clone();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    }
}

/// Prints the rows. Returns whether all are within their limits.
pub fn measure(server: &Server) -> bool {
    let mut rounds = Rounds::default();
    let drop = r#"{"retention_ms": 0}"#;
    let keyed = r#"{"retention_ms": 0, "limits": [{"of": "each_key", "at_once": 1}]}"#;
    for _ in 0..ROUNDS {
        let queue = Queue::new(server, drop);
        let mut note = |at: usize, cost: f64| rounds.0[at].push(cost);
        note(0, bare(server, PUSH, "bare", (JOBS, 1), |at| vec![at.to_string(), PAYLOAD.to_owned()]));
        let claim = bare(server, CLAIM, "bare", (JOBS, CLIENTS), |at| vec![at.to_string()]);
        note(1, claim + bare(server, END, "bare", (JOBS, CLIENTS), |at| vec![at.to_string()]));
        note(2, cost(server, || (0..JOBS).for_each(|_| queue.push(1))));
        note(3, cost(server, || work(&queue, 1)));
        (0..JOBS / 16).for_each(|_| queue.push(16));
        note(8, cost(server, || work_apart(&queue)));
        note(4, cost(server, || (0..JOBS / 16).for_each(|_| queue.push(16))));
        note(5, cost(server, || work(&queue, 16)));
        let queue = Queue::new(server, keyed);
        (0..JOBS / 16).for_each(|at| queue.push_keyed((0..16).map(|more| (at * 16 + more) % KEYS)));
        note(6, cost(server, || work(&queue, 1)));
        (0..JOBS / 16).for_each(|at| queue.push_keyed((0..16).map(|more| (at * 16 + more) % KEYS)));
        note(7, cost(server, || work(&queue, 16)));
    }
    let [push, work, push_1, work_1, push_16, work_16, keyed_1, keyed_16, apart] =
        std::array::from_fn(|at| rounds.median(at));
    println!(
        "CPU of the server a job, in us: bare push {push:.1}, claim and end {work:.1}; ours {push_1:.1}, {work_1:.1} \
         (in two calls {apart:.1}); 16 a call {push_16:.1}, {work_16:.1}; with keys {keyed_1:.1}, {keyed_16:.1}"
    );
    [
        row("push one by one, against HSET and RPUSH", push_1 / push, 1.8, "x"),
        row("push 16 a call, against the same", push_16 / push, 0.5, "x"),
        row("claim + end one by one, 8 clients, against a script for each", work_1 / work, 1.7, "x"),
        row("claim + end 16 a call, against the same", work_16 / work, 0.6, "x"),
        row("the same one by one, each of 1,000 keys at its limit, against without", keyed_1 / work_1, 1.6, "x"),
        row("the same 16 a call", keyed_16 / work_16, 1.6, "x"),
    ]
    .into_iter()
    .all(|is_within| is_within)
}
