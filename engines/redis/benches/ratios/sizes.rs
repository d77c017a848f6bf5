//! Memory of jobs, and calls in a long queue.

use crate::costs::{CLAIM, PUSH, bare};
use crate::queue::{CLIENTS, Held, PAYLOAD, Queue, cpu, in_clients, info, longest};
use crate::row::row;
use crate::server::Server;

const MANY: usize = 100_000;
const MILLION: usize = 1_000_000;
/// The calls whose CPU is measured.
const CALLS: usize = 4_000;
const ROUNDS: usize = 9;

/// What is called, by bare commands (if they can), and as the queue does it.
type Call = (&'static str, Option<&'static str>, fn(&Queue<'_>));

/// Pushes a thousand jobs by bare commands.
const FILL: &str = "for at = 0, 999 do redis.call('HSET', KEYS[1] .. ':job', ARGV[1] + at, ARGV[2]) \
    redis.call('RPUSH', KEYS[1] .. ':list', ARGV[1] + at) end";

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

/// Two queues of one server in turn, and beside each the bare commands on a hash and a list of its
/// size: caches miss in a million entries, whoever reads them. The median of the rounds counts.
fn in_a_million(server: &Server) -> Vec<bool> {
    let drop = r#"{"retention_ms": 0}"#;
    let few = Queue::new(server, drop);
    let many = few.beside("many", drop);
    for (queue, name, jobs) in [(&few, "few", 1_000), (&many, "many", MILLION)] {
        push_many(queue, jobs);
        for at in 0..jobs / 1_000 {
            server.ask(&["EVAL", FILL, "1", name, &(at * 1_000).to_string(), PAYLOAD]);
        }
    }
    let calls: [Call; 3] = [
        ("a push", Some(PUSH), |queue| queue.push(1)),
        ("a claim", Some(CLAIM), |queue| _ = queue.turn(&[], 1, &[])),
        ("counts", None, |queue| _ = queue.call("wl_counts", &[])),
    ];
    let cost = |queue: &Queue<'_>, run: fn(&Queue<'_>)| {
        let before = cpu(server);
        in_clients(CALLS, |_, calls| {
            let queue = queue.again();
            (0..calls).for_each(|_| run(&queue));
        });
        (cpu(server) - before) / CALLS as f64
    };
    let mut rounds = [const { (Vec::new(), Vec::new()) }; 3];
    for round in 1..=ROUNDS {
        for (at, (_, script, run)) in calls.iter().enumerate() {
            let of_few = cost(&few, *run);
            rounds[at].0.push(cost(&many, *run) / of_few);
            let cost = |name| {
                let arg = |job: usize| vec![(round * MILLION + job).to_string(), PAYLOAD.to_owned()];
                script.map_or(1.0, |script| bare(server, script, name, (CALLS, CLIENTS), arg))
            };
            let of_few = cost("few");
            rounds[at].1.push(cost("many") / of_few);
        }
    }
    let median = |ratios: &mut Vec<f64>| {
        ratios.sort_by(f64::total_cmp);
        ratios[ROUNDS / 2]
    };
    let rows = calls.iter().zip(&mut rounds).map(|((what, ..), (ours, bare))| {
        let (ours, bare) = (median(ours), median(bare));
        println!("{what} with 1,000,000 waiting, against with 1,000: {ours:.2}; the bare commands: {bare:.2}");
        row(&format!("{what} with 1,000,000 waiting, against the bare commands"), ours / bare, 1.2, "x")
    });
    rows.collect()
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
