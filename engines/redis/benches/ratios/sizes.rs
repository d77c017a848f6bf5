//! Memory of jobs, and calls in a long queue.

use crate::queue::{Held, Queue, cpu, in_clients, info, longest};
use crate::row::row;
use crate::server::Server;

const MANY: usize = 100_000;
const MILLION: usize = 1_000_000;
/// The calls whose CPU is measured.
const CALLS: usize = 8_000;
const ROUNDS: usize = 5;

fn push_many(queue: &Queue<'_>, jobs: usize) {
    (0..jobs / 1_000).for_each(|_| queue.push(1_000));
}

/// Claims until it has a job of these kinds. Returns the number of calls.
fn claims_until(queue: &Queue<'_>, kinds: &[&str], is_it: impl Fn(&Held) -> bool) -> usize {
    (1..).find(|_| queue.turn(&[], 1, kinds).iter().any(&is_it)).unwrap_or(usize::MAX)
}

/// Prints the rows. Returns whether all are within their limits.
pub fn measure(server: &Server) -> bool {
    let mut rows = memory(server);
    rows.extend(in_a_million(server));
    rows.extend(behind(server));
    rows.into_iter().all(|is_within| is_within)
}

fn memory(server: &Server) -> Vec<bool> {
    let queue = Queue::new(server, r#"{"retention_ms": -1, "lease_ms": 3600000}"#);
    let used = || info(server, "memory", "used_memory") / MANY as f64;
    let empty = used();
    push_many(&queue, MANY);
    let waiting = used() - empty;
    longest(server);
    let mut all = Vec::new();
    while all.len() < MANY {
        all.extend(queue.turn(&[], 64, &[]));
    }
    let claims = longest(server);
    let running = used() - empty;
    all.chunks(64).for_each(|held| _ = queue.turn(held, 0, &[]));
    let kept = used() - empty;
    push_many(&queue, MANY);
    let mut held = queue.turn(&[], 64, &[]);
    longest(server);
    (0..200).for_each(|_| held = queue.turn(&held, 64, &[]));
    vec![
        row("memory of a waiting job of 100 bytes", waiting, 240.0, "bytes"),
        row("of one that runs", running, 480.0, "bytes"),
        row("of one that is kept", kept, 480.0, "bytes"),
        row("the longest claim of 64", claims, 5.0, "ms"),
        row("the longest call of 64 ends and 64 claims", longest(server), 5.0, "ms"),
    ]
}

/// With few jobs and with a million in turn, on a server that is as warm in both: the least of its
/// rounds counts.
fn in_a_million(server: &Server) -> Vec<bool> {
    let cost = |queue: &Queue<'_>, run: &(dyn Fn(&Queue<'_>) + Sync)| {
        let before = cpu(server);
        in_clients(CALLS, |_, calls| {
            let queue = queue.again();
            (0..calls).for_each(|_| run(&queue));
        });
        (cpu(server) - before) / CALLS as f64
    };
    let measure = |waiting: usize| {
        let queue = Queue::new(server, r#"{"retention_ms": 0}"#);
        push_many(&queue, waiting);
        let mut least = [f64::MAX; 3];
        for _ in 0..ROUNDS {
            // As many as before wait behind each round.
            let push = cost(&queue, &|queue| queue.push(1));
            let claim = cost(&queue, &|queue| _ = queue.turn(&[], 1, &[]));
            let counts = cost(&queue, &|queue| _ = queue.call("wl_counts", &[]));
            least.iter_mut().zip([push, claim, counts]).for_each(|(least, cost)| *least = least.min(cost));
        }
        least
    };
    measure(1_000);
    let (few, many) = (measure(1_000), measure(MILLION));
    println!("CPU of the server a push, a claim and counts, in us: with few jobs {few:.1?}, with a million {many:.1?}");
    ["a push", "a claim", "counts"]
        .iter()
        .zip(few.iter().zip(many))
        .map(|(what, (few, many))| {
            row(&format!("{what} with 1,000,000 waiting, against with few"), many / few, 1.2, "x")
        })
        .collect()
}

fn behind(server: &Server) -> Vec<bool> {
    // Jobs that are gone, whose entries are still there.
    let queue = Queue::new(server, "{}");
    push_many(&queue, MANY);
    let count = |queue: &Queue<'_>| format!("{:?}", queue.call("wl_counts", &[]));
    while count(&queue).contains("ready") {
        queue.call("wl_steer", &["purge", "=ready", ""]);
    }
    queue.push_of("last", 1);
    longest(server);
    let removed = claims_until(&queue, &[], |_| true);
    let removed_ms = longest(server);
    // Jobs of a key at its limit.
    let queue = Queue::new(server, r#"{"lease_ms": 3600000, "limits": [{"of": "each_key", "at_once": 1}]}"#);
    (0..MANY / 1_000).for_each(|_| queue.push_keyed(std::iter::repeat_n(0, 1_000)));
    let first = queue.turn(&[], 1, &[]);
    queue.push_keyed([1]);
    longest(server);
    let keyed = claims_until(&queue, &[], |held| !first.contains(held));
    let keyed_ms = longest(server);
    // Jobs of a kind that no worker takes.
    let queue = Queue::new(server, "{}");
    push_many(&queue, MANY);
    queue.push_of("own", 1);
    longest(server);
    let kinds = claims_until(&queue, &["own"], |_| true);
    let kinds_ms = longest(server);
    vec![
        row("calls to find a job behind 100,000 that were removed", removed as f64, 500.0, "calls"),
        row("the longest of them", removed_ms, 10.0, "ms"),
        row("calls to find a job behind 100,000 of a full key", keyed as f64, 500.0, "calls"),
        row("the longest of them", keyed_ms, 10.0, "ms"),
        row("calls to find a job behind 100,000 of a kind that no worker takes", kinds as f64, 30.0, "calls"),
        row("the longest of them", kinds_ms, 10.0, "ms"),
    ]
}
