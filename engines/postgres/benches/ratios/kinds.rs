//! Claims of some kinds, beside claims of all, and behind due jobs of kinds that no worker takes.

use crate::held::work;
use crate::row::{PAYLOAD, ROUNDS, line, median, rate};
use crate::server::Server;
use waterline_postgres::PgOptions;
use waterline_queue::{NewJob, Queue, QueueOptions, Retention};

const JOBS: u64 = 8_000;
/// The due jobs of a kind that no worker takes.
const OTHERS: u64 = 100_000;

/// Prints the rows. Returns whether all are within their limits.
pub fn measure(server: &Server) -> bool {
    let database = server.database();
    let set = format!("ALTER DATABASE {} SET synchronous_commit = off", database.name);
    database.client().batch_execute(&set).expect("the server runs");
    let store = database.store(PgOptions::new());
    let open = |name: &str| store.queue(name, QueueOptions::default().retention(Retention::Drop)).expect("it is new");
    // Each subject with the same jobs beside it, which are claimed without kinds.
    let mut is_within = true;
    for (name, kinds, others, least) in
        [("2 kinds", 2, 0, 0.91), ("200 kinds", 200, 0, 0.83), ("2 kinds behind 100,000 others", 2, OTHERS, 0.83)]
    {
        let kinds: Vec<_> = (0..kinds).map(|number| format!("kind {number}")).collect();
        let (all, some) = (open(&format!("all, {name}")), open(name));
        push(&some, others, &["other".to_owned()]);
        let (mut floors, mut ours) = (Vec::new(), Vec::new());
        // The first claim puts the jobs of other kinds into their line, once. It does not count.
        for round in 0..=ROUNDS {
            push(&all, JOBS, &kinds);
            push(&some, JOBS, &kinds);
            let floor = rate(JOBS, || work(&database, all.name(), JOBS, None));
            let own = rate(JOBS, || work(&database, some.name(), JOBS, Some(&kinds)));
            if round > 0 {
                floors.push(floor);
                ours.push(own);
            }
        }
        let (floor, own) = (median(floors), median(ours));
        line(&format!("claims of kinds, jobs/s, {name}: of all (>= {least})"), floor, own);
        is_within &= own >= least * floor;
    }
    is_within
}

/// Pushes jobs of these kinds in turn.
fn push(queue: &Queue, jobs: u64, kinds: &[String]) {
    for from in (0..jobs).step_by(1_000) {
        let jobs = (from..from + 1_000).zip(kinds.iter().cycle());
        let jobs = jobs.map(|(_, kind)| NewJob::new(kind, PAYLOAD).expect("it is JSON"));
        queue.push_all(jobs).expect("the server runs");
    }
}
