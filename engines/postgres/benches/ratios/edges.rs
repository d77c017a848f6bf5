//! Other jobs of a queue, while all the waiters of an ended job are told. No call may take longer
//! than 2 s, a limit that a careful user would set.

use crate::server::{Database, Server};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use waterline_postgres::PgOptions;
use waterline_queue::{NewJob, OnDead, Priority, Queue, QueueOptions};

/// The jobs that wait for one.
const WAITING: u64 = 200_000;
/// The longest time until another job is claimed, from the first call for it.
const LONGEST: Duration = Duration::from_millis(100);

const CLAIM: &str = "SELECT job, token FROM waterline.claim('q', 1, 'w')";
const FINISH: &str = "SELECT waterline.finish($1, $2)";

/// Prints the rows. Returns whether all are within their limits.
pub fn measure(server: &Server) -> bool {
    let run = told(server, "made ready", OnDead::Run);
    told(server, "buried", OnDead::Die) && run
}

fn told(server: &Server, what: &str, on_dead: OnDead) -> bool {
    let database = server.database();
    let queue = database.store(PgOptions::new()).queue("q", QueueOptions::default()).expect("it is new");
    let first = queue.push(NewJob::new("k", &()).expect("it is JSON")).expect("the server runs").id;
    for _ in 0..WAITING / 1_000 {
        let waits = |_| NewJob::new("k", &()).expect("it is JSON").after([first.clone()]).on_dead(on_dead);
        queue.push_all((0..1_000).map(waits)).expect("the server runs");
    }
    // For all that connect from now on.
    let bound = format!("ALTER DATABASE {} SET statement_timeout = '2s'", database.name);
    database.client().batch_execute(&bound).expect("the server runs");
    let queue = database.store(PgOptions::new()).queue("q", QueueOptions::default()).expect("it is there");
    let mut client = database.client();
    let held = client.query_one(CLAIM, &[]).expect("it is due");
    let held: (i64, i64) = (held.get(0), held.get(1));
    let begun = Instant::now();
    let bury = "SELECT waterline.fail(ARRAY[$1::bigint], ARRAY[$2::bigint], p_bury => ARRAY[true])";
    client.execute(bury, &[&held.0, &held.1]).expect("it is held");
    let mut times = others(&database, &queue);
    times.sort_unstable();
    let (half, longest) = (times[times.len() / 2], times[times.len() - 1]);
    println!(
        "{WAITING} jobs that wait for one are {what} within {:.1?}; {} others meanwhile are claimed: p50 {half:.1?}, \
         all within {longest:.1?} (<= 100 ms)",
        begun.elapsed(),
        times.len()
    );
    longest <= LONGEST
}

/// Ends the measurement on drop: at its end, or after a call that failed.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Pushes, claims and ends other jobs, until no job waits any more. Returns the times of the
/// claims. A worker of another kind, which finds no job, goes on with what is left.
fn others(database: &Database, queue: &Queue) -> Vec<Duration> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        let over = &is_over;
        scope.spawn(move || {
            let mut client = database.client();
            while !over.load(Ordering::Relaxed) {
                client.query("SELECT FROM waterline.claim('q', 1, 'other', '{none}')", &[]).expect("within 2 s");
            }
        });
        let (mut client, mut looks, mut times) = (database.client(), database.client(), Vec::new());
        let [claim, finish] = [CLAIM, FINISH].map(|sql| client.prepare(sql).expect("it is right"));
        while looks.query_one("SELECT EXISTS (SELECT FROM waterline.edge)", &[]).expect("the server runs").get(0) {
            let urgent = NewJob::new("k", &()).expect("it is JSON").priority(Priority::Urgent);
            queue.push(urgent).expect("the server runs");
            let begun = Instant::now();
            // None, while another worker puts it into the line of its kind. Now and then it is one
            // of the former waiters, so that they do not starve.
            let row = loop {
                if let Some(row) = client.query_opt(&claim, &[]).expect("within 2 s") {
                    break row;
                }
            };
            times.push(begun.elapsed());
            let held: (Vec<i64>, Vec<i64>) = (vec![row.get(0)], vec![row.get(1)]);
            client.query(&finish, &[&held.0, &held.1]).expect("within 2 s");
        }
        times
    })
}
