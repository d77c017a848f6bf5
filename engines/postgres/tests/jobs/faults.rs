//! Servers that die, become replicas or are restored, and tables that change under the source.

use crate::server::{Database, End, PATIENCE, Server, signal};
use crate::tables::{EVENTS, all, events, insert, until, wait_for_head, with_events};
use postgres::{Client, NoTls};
use std::process::Command;
use std::time::{Duration, Instant};
use waterline::{Blocked, BoxError, Consumer, Item, Jobs, MemoryProgress, Sparse};
use waterline_postgres::{Error, PgJobs, PgOptions, PgStore};

fn typed(answer: Result<Option<u64>, BoxError>) -> Error {
    *answer.expect_err("it cannot be read").downcast().expect("the error is typed")
}

/// Asks for the head until the error is not one of a lost connection.
fn once_there(jobs: &impl Jobs) -> Error {
    let begun = Instant::now();
    loop {
        let error = typed(jobs.head());
        if !matches!(error, Error::Database(_) | Error::Closed) {
            return error;
        }
        assert!(begun.elapsed() < PATIENCE, "{error:?}");
    }
}

/// Returns a source whose calls end soon, and the name of its sessions on the server.
fn named_source(database: &Database) -> (String, PgJobs<String>) {
    let mut config = database.config.clone();
    let name = format!("reader of {}", database.name);
    let options = PgOptions::new().ttl(Duration::from_secs(1));
    let store = PgStore::connect(config.application_name(&name).clone(), NoTls, options).unwrap();
    (name, events(&store))
}

/// Takes ids that no row gets: enough that the sequence has to be logged.
fn roll_back(client: &mut Client) -> u64 {
    let taken = "BEGIN; INSERT INTO events (payload) SELECT '' FROM generate_series(1, 40); ROLLBACK";
    client.batch_execute(taken).unwrap();
    client.query_one("SELECT last_value FROM events_id_seq", &[]).unwrap().get::<_, i64>(0).cast_unsigned()
}

/// Grants or revokes the right to flush the log. The functions have other arguments in version 17.
fn of_flushing(change: &str) -> String {
    format!(
        "DO $$ DECLARE f regprocedure; BEGIN
             FOR f IN SELECT oid FROM pg_proc WHERE proname = 'pg_logical_emit_message' LOOP
                 EXECUTE format('{change}', f);
             END LOOP;
         END $$"
    )
}

#[test]
fn ids_reissued_after_a_crash_are_not_skipped() {
    // Nothing else flushes the log.
    let quiet = [("bgwriter_lru_maxpages", "0"), ("autovacuum", "off"), ("checkpoint_timeout", "1h")];
    let server = Server::start(&quiet);
    let database = server.database();
    let (mut client, _) = with_events(&database);
    client
        .batch_execute(
            "CREATE ROLE reader LOGIN; GRANT SELECT ON events, events_id_seq TO reader;
",
        )
        .unwrap();
    client.batch_execute(&of_flushing("REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC")).unwrap();
    let mut config = database.config.clone();
    // This user has no right to flush the log.
    let store = PgStore::connect(config.user("reader").clone(), NoTls, PgOptions::new()).unwrap();
    let jobs = events(&store);
    let first = insert(&mut client, "before");
    wait_for_head(&jobs, first);
    let crash = |client: &mut Client, taken: &mut dyn FnMut(&mut Client) -> u64| {
        let walwriter = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'";
        let walwriter = client.query_one(walwriter, &[]).unwrap().get::<_, i32>(0).cast_unsigned();
        signal(walwriter, "STOP");
        let taken = taken(client);
        signal(walwriter, "KILL");
        server.stop(End::Immediate);
        server.start_again();
        taken
    };
    let last = crash(&mut client, &mut |client| {
        let taken = roll_back(client);
        assert_eq!(jobs.head().unwrap(), Some(first), "a crash may give these ids away again");
        taken
    });
    let mut client = database.client();
    let again = insert(&mut client, "after");
    assert!(again <= last, "the ids up to {last} came back: {again}");
    wait_for_head(&jobs, again);
    assert_eq!(all(&jobs), [(first, "before".to_owned()), (again, "after".to_owned())]);

    // With that right, the source flushes the log, and the ids do not come back.
    client.batch_execute(&of_flushing("GRANT EXECUTE ON FUNCTION %s TO reader")).unwrap();
    let last = crash(&mut client, &mut |client| {
        let taken = roll_back(client);
        wait_for_head(&jobs, taken);
        taken
    });
    let next = insert(&mut database.client(), "last");
    assert!(next > last, "{next} was said to be a gap");
    wait_for_head(&jobs, next);
    assert_eq!(all(&jobs).len(), 3);
}

#[test]
fn a_source_reads_on_after_a_server_restart() {
    let server = Server::start(&[]);
    let database = server.database();
    let (mut client, store) = with_events(&database);
    let consumer = Consumer::builder(events(&store), MemoryProgress::new()).start(|_| Ok(())).unwrap();
    let last = insert(&mut client, "a");
    until(&consumer.handle(), "the row", |status| status.last_processed == Some(last));
    for end in [End::Fast, End::Immediate] {
        server.stop(end);
        until(&consumer.handle(), "the loss", |status| matches!(status.blocked, Blocked::Source { .. }));
        server.start_again();
        let last = insert(&mut database.client(), "b");
        until(&consumer.handle(), "the next row", |status| status.last_processed == Some(last));
    }
    consumer.stop().unwrap();
}

#[test]
fn calls_time_out_when_the_server_is_frozen() {
    let database = Server::shared().database();
    let (mut client, _) = with_events(&database);
    let (name, jobs) = named_source(&database);
    let first = insert(&mut client, "a");
    wait_for_head(&jobs, first);
    // Its session on the server, and that of an operator's calls.
    let processes = client.query("SELECT pid FROM pg_stat_activity WHERE application_name = $1", &[&name]).unwrap();
    let processes: Vec<_> = processes.iter().map(|row| row.get::<_, i32>(0).cast_unsigned()).collect();
    processes.iter().for_each(|process| signal(*process, "STOP"));
    let error = typed(jobs.head());
    processes.iter().for_each(|process| signal(*process, "CONT"));
    assert!(matches!(error, Error::Database(_) | Error::Closed), "{error:?}");
    let second = insert(&mut client, "b");
    wait_for_head(&jobs, second);
}

#[test]
fn a_replica_is_refused_and_a_demoted_server_retried() {
    let server = Server::start(&[]);
    let database = server.database();
    let (mut client, store) = with_events(&database);
    let jobs = events(&store);
    let first = insert(&mut client, "a");
    wait_for_head(&jobs, first);
    server.stop(End::Fast);
    let standby = server.data().join("standby.signal");
    std::fs::write(&standby, "").unwrap();
    server.start_again();
    assert!(matches!(once_there(&jobs), Error::Config { what, .. } if what.contains("replica")));
    let refused = PgStore::connect(database.config.clone(), NoTls, PgOptions::new());
    assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
    // A store that was connected before.
    let refused = PgJobs::table(&store, "events", |_| Ok(()));
    assert!(matches!(refused, Err(Error::Config { advice, .. }) if advice.contains("primary")));
    server.stop(End::Fast);
    std::fs::remove_file(&standby).unwrap();
    server.start_again();
    let second = insert(&mut database.client(), "b");
    wait_for_head(&jobs, second);
    // A server that was promoted has another history.
    server.stop(End::Fast);
    std::fs::write(&standby, "").unwrap();
    server.start_again();
    database.client().batch_execute("SELECT pg_promote(false)").unwrap();
    let error = loop {
        match once_there(&jobs) {
            Error::OtherIds { what, .. } => break what,
            other => assert!(matches!(other, Error::Config { .. }), "{other:?}"),
        }
    };
    assert!(error.contains("timeline"), "{error}");
    assert!(matches!(typed(jobs.head()), Error::OtherIds { .. }), "it stays");
    let third = insert(&mut database.client(), "c");
    let consumer = Consumer::builder(jobs, MemoryProgress::new()).stop_at(third).start(|_| Ok(())).unwrap();
    consumer.join().unwrap();
}

#[test]
fn a_restored_older_database_is_a_lasting_error() {
    let server = Server::start(&[]);
    let database = server.database();
    let (mut client, store) = with_events(&database);
    insert(&mut client, "a");
    let copy = server.data().with_extension("copy");
    let run = |program: &str, arguments: [&std::path::Path; 3]| {
        assert!(Command::new(program).args(arguments).status().unwrap().success());
    };
    server.stop(End::Fast);
    run("cp", ["-a".as_ref(), &server.data(), &copy]);
    server.start_again();
    let jobs = events(&store);
    let last = (0..50).fold(0, |_, _| insert(&mut database.client(), "b"));
    wait_for_head(&jobs, last);
    server.stop(End::Fast);
    run("rm", ["-rf".as_ref(), &server.data(), "--".as_ref()]);
    run("mv", ["--".as_ref(), &copy, &server.data()]);
    server.start_again();
    assert!(matches!(once_there(&jobs), Error::OtherIds { .. }));
    (0..100).for_each(|_| _ = insert(&mut database.client(), "c"));
    assert!(matches!(typed(jobs.head()), Error::OtherIds { .. }), "the same ids are other rows");
}

#[test]
fn a_dropped_recreated_or_restarted_table_is_a_typed_error() {
    let database = Server::shared().database();
    let (mut client, store) = with_events(&database);
    let jobs = events(&store);
    let last = insert(&mut client, "a");
    wait_for_head(&jobs, last);
    client.batch_execute("DROP TABLE events").unwrap();
    assert!(matches!(typed(jobs.head()), Error::Config { what, .. } if what.contains("no table events")));
    assert!(jobs.at_index(last).is_err());
    client.batch_execute(EVENTS).unwrap();
    (0..9).for_each(|_| _ = insert(&mut client, "b"));
    assert!(matches!(typed(jobs.head()), Error::OtherIds { what, .. } if what.contains("dropped")));

    let jobs = events(&store);
    wait_for_head(&jobs, 9);
    client.batch_execute("ALTER TABLE events ALTER COLUMN id RESTART WITH 4").unwrap();
    assert!(matches!(typed(jobs.head()), Error::OtherIds { what, .. } if what.contains("began anew")));
}

#[test]
fn restarted_ids_are_noticed_even_above_the_old_ones() {
    let database = Server::shared().database();
    let (mut client, store) = with_events(&database);
    let jobs = events(&store);
    wait_for_head(&jobs, insert(&mut client, "a"));
    // Neither another file of the table nor changes to the sequence are a new beginning.
    for other in [
        "VACUUM FULL events",
        "CLUSTER events USING events_pkey",
        "TRUNCATE events",
        "ALTER SEQUENCE events_id_seq INCREMENT 2",
        "ALTER SEQUENCE events_id_seq INCREMENT 1",
    ] {
        client.batch_execute(other).unwrap();
        wait_for_head(&jobs, insert(&mut client, other));
    }
    client.batch_execute("ALTER TABLE events ALTER id SET GENERATED BY DEFAULT").unwrap();
    assert!(matches!(typed(jobs.head()), Error::Config { what, .. } if what.contains("not GENERATED ALWAYS")));
    client.batch_execute("ALTER TABLE events ALTER id SET GENERATED ALWAYS").unwrap();
    wait_for_head(&jobs, insert(&mut client, "b"));
    client.batch_execute("TRUNCATE events RESTART IDENTITY").unwrap();
    (0..30).for_each(|_| _ = insert(&mut client, "c"));
    assert!(matches!(typed(jobs.head()), Error::OtherIds { what, .. } if what.contains("began anew")));
    let jobs = events(&store);
    wait_for_head(&jobs, 30);
    assert_eq!(all(&jobs).len(), 30);
}

#[test]
fn a_replaced_table_is_not_taken_for_the_old_one() {
    const REPLACE: &str = "
        BEGIN;
        CREATE TABLE other (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload text NOT NULL);
        INSERT INTO other OVERRIDING SYSTEM VALUE SELECT * FROM events;
        SELECT setval('other_id_seq', nextval('events_id_seq'));
        DROP TABLE events;
        ALTER TABLE other RENAME TO events;
        ALTER SEQUENCE other_id_seq RENAME TO events_id_seq;
        COMMIT";
    let database = Server::shared().database();
    let (mut client, store) = with_events(&database);
    let (shown, unseen) = (events(&store), events(&store));
    let last = insert(&mut client, "a");
    wait_for_head(&shown, last);
    client.batch_execute(REPLACE).unwrap();
    assert!(matches!(typed(shown.head()), Error::OtherIds { what, .. } if what.contains("dropped")));

    // No head of this table was ever shown, so it is found anew, and its writers are awaited.
    let mut writer = database.client();
    let mut open = writer.transaction().unwrap();
    open.execute("INSERT INTO events (payload) VALUES ('open')", &[]).unwrap();
    let last = insert(&mut client, "b");
    assert_eq!(unseen.head().unwrap(), None, "a row below {last} is not committed");
    open.commit().unwrap();
    wait_for_head(&unseen, last);
    assert_eq!(all(&unseen).len(), 3);
}

#[test]
fn sequence_options_that_turn_wrong_are_refused() {
    let database = Server::shared().database();
    let (mut client, store) = with_events(&database);
    let jobs = events(&store);
    let first = insert(&mut client, "a");
    wait_for_head(&jobs, first);
    for (wrong, right) in [("CACHE 20", "CACHE 1"), ("CYCLE", "NO CYCLE"), ("INCREMENT -1", "INCREMENT 1")] {
        client.batch_execute(&format!("ALTER SEQUENCE events_id_seq {wrong}")).unwrap();
        assert!(matches!(typed(jobs.head()), Error::Config { .. }), "{wrong}");
        client.batch_execute(&format!("ALTER SEQUENCE events_id_seq {right}")).unwrap();
        wait_for_head(&jobs, first);
    }
}

#[test]
fn a_renamed_column_is_a_typed_error_until_renamed_back() {
    let database = Server::shared().database();
    let (mut client, store) = with_events(&database);
    let jobs = events(&store);
    let first = insert(&mut client, "a");
    wait_for_head(&jobs, first);
    client.batch_execute("ALTER TABLE events RENAME payload TO text").unwrap();
    let error = jobs.at_index(first).unwrap_err();
    let decode = error.downcast_ref::<Error>();
    assert!(matches!(decode, Some(Error::Decode { index, .. }) if *index == first), "{error:?}");
    client.batch_execute("ALTER TABLE events RENAME text TO payload; ALTER TABLE events RENAME id TO number").unwrap();
    assert_eq!(all(&jobs), [(first, "a".to_owned())], "the ids are the same ones, under any name");
}

#[test]
fn an_open_transaction_with_an_insert_is_named() {
    let database = Server::shared().database();
    let (mut client, store) = with_events(&database);
    let first = insert(&mut client, "a");
    let mut config = database.config.clone();
    let mut idle = config.application_name("forgetful").connect(NoTls).unwrap();
    let process: i32 = idle.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    let mut open = idle.transaction().unwrap();
    open.execute("INSERT INTO events (payload) VALUES ('b')", &[]).unwrap();
    let last = insert(&mut client, "c");
    // A new life, which has not seen a lower head yet.
    let every = Duration::from_millis(10);
    let consumer =
        Consumer::builder(events(&store), MemoryProgress::new()).poll_every(every).start(|_| Ok(())).unwrap();
    let named = |wanted: &[&str]| {
        until(&consumer.handle(), wanted[0], |status| match &status.blocked {
            Blocked::SourceWaits { why, .. } => wanted.iter().all(|part| why.contains(part)),
            _ => false,
        })
    };
    let process = format!("process {process} ");
    named(&[&process, "\"forgetful\"", "idle in transaction", "began"]);
    open.commit().unwrap();
    until(&consumer.handle(), "all rows", |status| status.last_processed == Some(last) && status.done == 3);
    idle.batch_execute("BEGIN; INSERT INTO events (payload) VALUES ('d'); PREPARE TRANSACTION 'also forgotten'")
        .unwrap();
    named(&["\"also forgotten\"", "COMMIT PREPARED"]);
    idle.batch_execute("ROLLBACK PREPARED 'also forgotten'").unwrap();
    until(&consumer.handle(), "the gap", |status| status.last_processed > Some(last));
    assert!(first < last && matches!(consumer.handle().status().blocked, Blocked::CaughtUp | Blocked::No));
    consumer.stop().unwrap();
}

#[test]
fn notifications_wake_a_consumer_also_after_a_restart() {
    let server = Server::start(&[]);
    let database = server.database();
    let (mut client, store) = with_events(&database);
    client
        .batch_execute(
            "CREATE FUNCTION notify_waterline() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM pg_notify(TG_TABLE_NAME, ''); RETURN NULL; END $$;
             CREATE TRIGGER notify_waterline AFTER INSERT ON events
                 FOR EACH STATEMENT EXECUTE FUNCTION notify_waterline()",
        )
        .unwrap();
    // It never asks by itself within the time of this test.
    let never = Duration::from_secs(86_400);
    let consumer =
        Consumer::builder(events(&store), MemoryProgress::new()).poll_every(never).start(|_| Ok(())).unwrap();
    for _ in 0..20 {
        let last = insert(&mut client, "a");
        until(&consumer.handle(), "the row", |status| status.last_processed == Some(last));
    }
    let held = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'waterline'";
    let held: i64 = client.query_one(held, &[]).unwrap().get(0);
    assert_eq!(held, 3, "one of the source, one that listens, and one for an operator's calls");
    server.stop(End::Immediate);
    server.start_again();
    let last = insert(&mut database.client(), "b");
    until(&consumer.handle(), "the next row", |status| status.last_processed == Some(last));
    consumer.stop().unwrap();
}

#[test]
fn many_rows_with_a_user_defined_type_are_read() {
    let database = Server::shared().database();
    let (mut client, store) = with_events(&database);
    client
        .batch_execute(
            "CREATE TYPE kind AS ENUM ('a', 'b'); ALTER TABLE events ADD COLUMN kind kind NOT NULL DEFAULT 'b';
             INSERT INTO events (payload) SELECT 'a' FROM generate_series(1, 5000)",
        )
        .unwrap();
    let jobs = events(&store);
    wait_for_head(&jobs, 5_000);
    let mut read = Sparse::new(0);
    jobs.read_sparse(0..=5_000, 5_000, &mut read).unwrap();
    assert_eq!(read.into_iter().filter(|item| matches!(item, Item::Job(..))).count(), 5_000);
}

/// Locks the table by this statement, and checks that calls which wait for it are ended by the
/// server. The transaction with the lock is rolled back, and the source goes on.
fn ends_calls_that_wait(lock: &str, call: impl Fn(&PgJobs<String>, u64) -> Result<Option<u64>, BoxError>) {
    let database = Server::shared().database();
    let (mut client, _) = with_events(&database);
    let (name, jobs) = named_source(&database);
    let first = insert(&mut client, "a");
    wait_for_head(&jobs, first);
    let held = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
    let before: i64 = client.query_one(held, &[&name]).unwrap().get(0);
    let mut locked = client.transaction().unwrap();
    locked.batch_execute(lock).unwrap();
    for _ in 0..3 {
        let error = typed(call(&jobs, first));
        assert!(matches!(error, Error::Database(error) if error.as_db_error().is_some()), "the server ends it");
    }
    let after: i64 = locked.query_one(held, &[&name]).unwrap().get(0);
    assert_eq!(after, before, "they wait on the server still");
    locked.rollback().unwrap();
    wait_for_head(&jobs, first);
    assert_eq!(jobs.at_index(first).unwrap(), Some("a".to_owned()));
    client.batch_execute("TRUNCATE events RESTART IDENTITY").unwrap();
    assert!(matches!(typed(jobs.head()), Error::OtherIds { what, .. } if what.contains("began anew")));
}

#[test]
fn reads_of_a_locked_table_leave_no_process_behind() {
    ends_calls_that_wait("LOCK TABLE events", |jobs, first| jobs.at_index(first).map(|_| None));
}

#[test]
fn polls_of_a_locked_sequence_leave_no_process_behind() {
    ends_calls_that_wait("TRUNCATE events RESTART IDENTITY", |jobs, _| jobs.head());
}
