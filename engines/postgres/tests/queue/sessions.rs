//! What a session of the server is set to: by its database, and by this crate.

use crate::bench::{Bench, bench};
use crate::server::Server;
use crate::server::pooler::Pooler;
use parking_lot::Mutex;
use postgres::{Config, NoTls, Transaction};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use waterline::BoxError;
use waterline_postgres::{Error, PgOptions, PgStore, QueueExt, RunnerExt};
use waterline_queue::{
    Accept, DrainLimits, JobState, Limit, NewJob, Outcome, QueueOptions, Retention, Runner, Running,
};

/// Pushes and runs jobs of a queue with limits, some after others, from a few threads at once.
fn runs_all(config: Config) {
    let store = PgStore::connect(config, NoTls, PgOptions::new()).unwrap();
    let options = || QueueOptions::default().limit(Limit::each_key().at_once(1)).max_waiting(200);
    let queues = ["q", "r"].map(|name| store.queue(name, options()).unwrap());
    std::thread::scope(|scope| {
        for key in ["a", "b", "c"] {
            let queues = &queues;
            scope.spawn(move || {
                let first = queues[0].push(NewJob::new("k", &()).unwrap().key(key)).unwrap();
                let after = (0..9).map(|_| NewJob::new("k", &()).unwrap().key(key).after([first.id.clone()]));
                queues[0].push_all(after).unwrap();
            });
        }
    });
    let runner = Runner::builder(&queues[0]).max_processing(4).on("k", |_job, ()| Ok(Outcome::Done));
    assert_eq!(runner.drain(DrainLimits::default()).unwrap().finished, 30);
    queues[1].push_all((0..3).map(|_| NewJob::new("k", &()).unwrap())).unwrap();
    let write = |transaction: &mut Transaction<'_>, _: &[(Running, ())]| -> Result<(), BoxError> {
        let level: String = transaction.query_one("SHOW transaction_isolation", &[])?.get(0);
        if level == "read committed" { Ok(()) } else { Err(level.into()) }
    };
    let runner = Runner::builder(&queues[1]).on_writing("k", |_, ()| Ok(()), write);
    assert_eq!(runner.drain(DrainLimits::default()).unwrap().finished, 3);
}

#[test]
fn a_default_isolation_level_stops_no_queue() {
    let server = Server::shared();
    let pooler = Pooler::start(server, 3);
    for level in ["serializable", "repeatable read"] {
        for behind_a_pooler in [false, true] {
            let database = server.database();
            database.store(PgOptions::new()).migrate().unwrap();
            let mut client = database.client();
            let set = format!("ALTER DATABASE {} SET default_transaction_isolation = '{level}'", database.name);
            client.batch_execute(&set).unwrap();
            runs_all(if behind_a_pooler { pooler.config(&database.name) } else { server.config(&database.name) });
        }
    }
}

#[test]
fn the_error_in_a_user_transaction_names_the_level_setting() {
    let Bench { store, config } = bench();
    let queue = store.queue("q", QueueOptions::default().max_waiting(9)).unwrap();
    let mut client = config.connect(NoTls).unwrap();
    client.batch_execute("SET default_transaction_isolation = 'serializable'").unwrap();
    let refused = queue.push_in(&mut client.transaction().unwrap(), NewJob::new("k", &()).unwrap()).unwrap_err();
    assert!(refused.to_string().contains("`default_transaction_isolation`"), "{refused}");
    // The calls that commit by themselves begin new transactions.
    client.batch_execute("CALL waterline.push_and_commit('q', '{k}', '{1}', '{NULL}', false)").unwrap();
    assert_eq!(queue.counts().ready, 1);
}

/// Whether an error says that the server is read-only.
fn is_read_only(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(Error::ReadOnly(_))) || error.source().is_some_and(is_read_only)
}

#[test]
fn a_read_only_server_is_named_and_a_runner_recovers() {
    let server = Server::shared();
    let database = server.database();
    let open = || PgStore::connect(server.config(&database.name), NoTls, PgOptions::new()).unwrap();
    let store = open();
    store.migrate().unwrap();
    let queue = store.queue("q", QueueOptions::default().retention(Retention::Keep)).unwrap();
    let runner = Runner::builder(&queue).on("k", |_job, ()| Ok(Outcome::Done)).start().unwrap();
    let mut client = database.client();
    // The old sessions have ended, so each later one begins read-only, and stays so.
    let read_only = |client: &mut postgres::Client, is: &str| {
        client.batch_execute(&format!("ALTER DATABASE {} {is}", database.name)).unwrap();
        let ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()";
        client.batch_execute(ends).unwrap();
    };
    read_only(&mut client, "SET default_transaction_read_only = on");
    let refused = |error: &(dyn std::error::Error + 'static)| {
        let names_it = is_read_only(error);
        assert!(names_it, "{error:?}");
    };
    common::eventually("an error of a push", || match queue.push(NewJob::new("k", &()).unwrap()) {
        Ok(_) => false,
        Err(error) => is_read_only(&error),
    });
    refused(&queue.accept(Accept::new()).unwrap_err());
    refused(&open().queue("other", QueueOptions::default()).unwrap_err());
    client.batch_execute(&format!("ALTER DATABASE {} RESET default_transaction_read_only", database.name)).unwrap();
    let pushed = queue.push(NewJob::new("k", &()).unwrap()).unwrap();
    common::eventually("its end", || queue.get(&pushed.id).unwrap().unwrap().state == JobState::Finished);
    runner.stop().unwrap();
}

#[test]
fn rows_of_a_frozen_worker_are_free_before_its_lease_ends() {
    let server = Server::shared();
    let pooler = Pooler::start(server, 3);
    for behind_a_pooler in [false, true] {
        let database = server.database();
        database.store(PgOptions::new()).migrate().unwrap();
        let pooled = pooler.config(&database.name);
        stands_still(database.config.clone(), if behind_a_pooler { &pooled } else { &database.config });
        // The next client of a pooled session has no bound. Each session has its turn.
        let mut others = pooled.connect(NoTls).unwrap();
        for _ in 0..9 {
            let bound = others.query_typed("SHOW idle_in_transaction_session_timeout", &[]).unwrap();
            assert_eq!(bound[0].get::<_, &str>(0), "0", "behind a pooler: {behind_a_pooler}");
        }
    }
}

/// Freezes a worker with this configuration in the transaction of its rows.
fn stands_still(config: Config, of_worker: &Config) {
    let store = PgStore::connect(of_worker.clone(), NoTls, PgOptions::new()).unwrap();
    let options = QueueOptions::default().retention(Retention::Keep).lease(Duration::from_secs(2));
    let queue = store.queue("q", options).unwrap();
    let mut client = config.connect(NoTls).unwrap();
    // The bound holds up to the COMMIT, after the ends of the jobs.
    let tables = "CREATE TABLE effects (job bigint NOT NULL); CREATE TABLE bounds (bound text);
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO bounds VALUES (current_setting('idle_in_transaction_session_timeout')); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER t AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note()";
    client.batch_execute(tables).unwrap();
    let (calls, looks) = (AtomicU64::new(0), Mutex::new(config.connect(NoTls).unwrap()));
    let write = move |transaction: &mut Transaction<'_>, _: &[(Running, ())]| -> Result<(), BoxError> {
        transaction.execute("INSERT INTO effects VALUES (7)", &[])?;
        if calls.fetch_add(1, Ordering::SeqCst) == 0 {
            let process: i32 = transaction.query_one("SELECT pg_backend_pid()", &[])?.get(0);
            common::eventually("the end of its session by the server", || {
                let sessions = "SELECT FROM pg_stat_activity WHERE pid = $1";
                looks.lock().query_opt(sessions, &[&process]).unwrap().is_none()
            });
        }
        Ok(())
    };
    let runner = Runner::builder(&queue).on_writing("k", |_, ()| Ok(()), write).start().unwrap();
    let id = queue.push(NewJob::new("k", &()).unwrap()).unwrap().id;
    common::eventually("its end", || queue.get(&id).unwrap().unwrap().state.is_ended());
    runner.stop().unwrap();
    let info = queue.get(&id).unwrap().unwrap();
    assert_eq!((info.state, info.failures, info.crashes), (JobState::Finished, 0, 0));
    let bounds: Vec<String> = client.query_one("SELECT array_agg(bound) FROM effects, bounds", &[]).unwrap().get(0);
    assert_eq!(bounds, ["1500ms"], "the first ones are rolled back");
}
