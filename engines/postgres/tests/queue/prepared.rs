//! Prepared statements: on a connection to the server itself, and not behind a pooler.

use crate::server::Server;
use crate::server::pooler::Pooler;
use postgres::{Config, NoTls};
use waterline_postgres::{PgOptions, PgStore};
use waterline_queue::{DrainLimits, NewJob, Outcome, QueueOptions, Runner};

/// Records in each call how many statements its session has prepared.
const CLOCK: &str = "CREATE TABLE public.prepared (count bigint);
    CREATE OR REPLACE FUNCTION waterline.clock() RETURNS bigint LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.prepared SELECT count(*) FROM pg_prepared_statements;
        RETURN floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;
    END $$";

/// Pushes from some threads and runs all jobs. Returns the most statements that a session had.
fn prepared(server: &Server, config: impl Fn(&str) -> Config) -> i64 {
    let database = server.database();
    let store = PgStore::connect(config(&database.name), NoTls, PgOptions::new()).unwrap();
    store.migrate().unwrap();
    database.client().batch_execute(CLOCK).unwrap();
    let queue = store.queue("q", QueueOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for number in 0..10 {
                    // Some join others in one call, and some go alone.
                    let job = NewJob::new("k", &number).unwrap();
                    queue.push(if number % 2 == 0 { job } else { job.key("a") }).unwrap();
                }
            });
        }
    });
    let runner = Runner::builder(&queue).max_processing(4).on("k", |_job, _number: u64| Ok(Outcome::Done));
    assert_eq!(runner.drain(DrainLimits::default()).unwrap().finished, 40);
    let most = "SELECT max(count) FROM public.prepared";
    database.client().query_one(most, &[]).unwrap().get(0)
}

#[test]
fn statements_are_prepared_but_not_behind_a_pooler() {
    let server = Server::shared();
    assert!(prepared(server, |name| server.config(name)) > 1);
    let pooler = Pooler::start(server, 3);
    assert_eq!(prepared(server, |name| pooler.config(name)), 0);
}
