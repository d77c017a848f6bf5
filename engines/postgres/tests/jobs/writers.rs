//! Many writers at once. No row is skipped, and rules that look right skip some.

use crate::server::Server;
use crate::size;
use crate::tables::{Wrong, events, until, with_events};
use fastrand::Rng;
use parking_lot::Mutex;
use postgres::Client;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use waterline::{Consumer, Index, Jobs, MemoryProgress};

const WRITERS: u64 = 8;

/// Some rows keep a trigger busy after they have got their ids.
const SLOW: &str = "
    ALTER TABLE events ADD COLUMN by xid8 NOT NULL DEFAULT pg_current_xact_id();
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN IF random() < 0.02 THEN PERFORM pg_sleep(0.002); END IF; RETURN NEW; END $$;
    CREATE TRIGGER slow BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION slow();
    CREATE TABLE other (id bigint, payload text);
    INSERT INTO other SELECT generate_series(0, 99);";

/// Inserts rows in transactions of several statements, some of them rolled back or prepared.
fn write(mut client: Client, writer: u64, rows: u64) {
    let mut chance = Rng::with_seed(writer);
    let (mut left, mut number) = (rows, 0);
    while left > 0 {
        number += 1;
        let (statements, fate) = (chance.u64(1..=4), chance.u64(0..20));
        let mut transaction = client.transaction().unwrap();
        if chance.bool() {
            // The transaction has a number, and no id yet.
            transaction.execute("INSERT INTO other VALUES (100, 'before')", &[]).unwrap();
        }
        let mut inserted = 0;
        for _ in 0..statements {
            let rows = chance.u64(1..=3);
            let insert = "INSERT INTO events (payload) SELECT 'row' FROM generate_series(1, $1::int)";
            inserted += transaction.execute(insert, &[&(rows as i32)]).unwrap();
            transaction.execute("UPDATE other SET payload = 'after' WHERE id = $1", &[&(writer as i64)]).unwrap();
        }
        match fate {
            0..=2 => transaction.rollback().unwrap(),
            3 => {
                let name = format!("writer {writer}, number {number}");
                transaction.batch_execute(&format!("PREPARE TRANSACTION '{name}'")).unwrap();
                drop(transaction);
                client.batch_execute(&format!("COMMIT PREPARED '{name}'")).unwrap();
                left = left.saturating_sub(inserted);
            }
            _ => {
                transaction.commit().unwrap();
                left = left.saturating_sub(inserted);
            }
        }
    }
}

/// A consumer that records what it sees.
fn watch(jobs: impl Jobs) -> (Consumer, Arc<Mutex<BTreeSet<Index>>>) {
    let seen: Arc<Mutex<BTreeSet<Index>>> = Arc::default();
    let sees = Arc::clone(&seen);
    let builder = Consumer::builder(jobs, MemoryProgress::new()).poll_every(Duration::from_millis(1));
    let consumer = builder.start(move |job| Ok(_ = sees.lock().insert(job.index)));
    (consumer.unwrap(), seen)
}

#[test]
fn no_row_is_skipped_where_wrong_rules_skip_some() {
    let database = Server::shared().database();
    let (mut client, store) = with_events(&database);
    client.batch_execute(SLOW).unwrap();
    let ours = watch(events(&store));
    let wrong = [Wrong::HIGHEST, Wrong::OLDEST].map(|head| (head, watch(Wrong::new(database.client(), head))));
    let rows = size(20_000, 150_000) / WRITERS;
    let both = |part: u64| {
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let client = database.client();
                scope.spawn(move || write(client, part * WRITERS + writer, rows / 2 + 1));
            }
        });
    };
    both(0);
    // A transaction is prepared and left open while the others go on.
    client
        .batch_execute("BEGIN; INSERT INTO events (payload) VALUES ('left open'); PREPARE TRANSACTION 'left open'")
        .unwrap();
    let open: i64 = client.query_one("SELECT last_value FROM events_id_seq", &[]).unwrap().get(0);
    both(1);
    let status = ours.0.handle().status();
    assert!(status.head.is_none_or(|head| head < open.cast_unsigned()), "{open} may still be committed: {status}");
    client.batch_execute("COMMIT PREPARED 'left open'").unwrap();

    let all = client.query("SELECT id FROM events", &[]).unwrap();
    let all: BTreeSet<Index> = all.iter().map(|row| row.get::<_, i64>(0).cast_unsigned()).collect();
    let last = *all.last().unwrap();
    assert!(all.len() >= 20_000);
    let skipped = |(consumer, seen): (Consumer, Arc<Mutex<BTreeSet<Index>>>)| {
        until(&consumer.handle(), "the last row", |status| status.last_processed >= Some(last));
        consumer.stop().unwrap();
        all.difference(&seen.lock()).count()
    };
    assert_eq!(skipped(ours), 0);
    let skips = wrong.map(|(rule, watched)| {
        let skipped = skipped(watched);
        println!("{skipped} of {} rows are skipped by: {rule}", all.len());
        skipped
    });
    // On a very slow machine, one of them may ask only at good moments.
    assert!(skips.iter().sum::<usize>() > 0, "this test would see no wrong rule");
}

/// A row gets its id, then its payload, and then the number of its transaction.
#[test]
fn an_id_taken_before_the_transaction_number_is_not_skipped() {
    // Transactions of other tests would hold back the rule by the oldest one. After a checkpoint
    // the next value is logged, for which a transaction needs its number.
    let server = Server::start(&[("checkpoint_timeout", "1h")]);
    let database = server.database();
    let (mut client, store) = with_events(&database);
    client
        .batch_execute(
            "ALTER TABLE events ADD COLUMN by xid8 NOT NULL DEFAULT pg_current_xact_id();
             CREATE FUNCTION slow() RETURNS text LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN 'slow'; END $$;",
        )
        .unwrap();
    // Now the log has the next 32 values of the sequence.
    client.execute("INSERT INTO events (payload) VALUES ('first')", &[]).unwrap();
    let jobs = events(&store);
    let mut holds = database.client();
    let mut lock = holds.transaction().unwrap();
    lock.execute("SELECT pg_advisory_xact_lock(1)", &[]).unwrap();
    thread::scope(|scope| {
        let mut slow = database.client();
        let slow = scope.spawn(move || slow.execute("INSERT INTO events (payload) VALUES (slow())", &[]).unwrap());
        let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        while client.query_one(waits, &[]).unwrap().get::<_, i64>(0) == 0 {
            assert!(!slow.is_finished(), "it waits for nothing");
            thread::park_timeout(Duration::from_millis(1));
        }
        client.execute("INSERT INTO events (payload) VALUES ('quick')", &[]).unwrap();
        for rule in [Wrong::HIGHEST, Wrong::OLDEST] {
            assert_eq!(Wrong::new(database.client(), rule).head().unwrap(), Some(3), "{rule}");
        }
        assert_eq!(jobs.head().unwrap(), None, "the second id is not final");
        lock.commit().unwrap();
        slow.join().unwrap();
    });
    crate::tables::wait_for_head(&jobs, 3);
    assert_eq!(crate::tables::all(&jobs).len(), 3);
}

/// Gives a part the ids of its table, for writers that name it. Since version 17 it has them.
fn ids_of(part: &str, table: &str) -> String {
    format!(
        "DO $$ BEGIN
             ALTER TABLE {part} ALTER COLUMN id SET DEFAULT nextval('{table}_id_seq');
         EXCEPTION WHEN syntax_error THEN NULL; END $$"
    )
}

#[test]
fn inserts_into_a_partition_are_awaited() {
    let database = Server::shared().database();
    let (mut client, store) = with_events(&database);
    client
        .batch_execute(
            "CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY, at int, payload text, PRIMARY KEY (id, at))
                 PARTITION BY LIST (at);
             CREATE TABLE t_1 PARTITION OF t FOR VALUES IN (1) PARTITION BY LIST (at);
             CREATE TABLE t_1_1 PARTITION OF t_1 FOR VALUES IN (1);
             CREATE TABLE t_2 PARTITION OF t FOR VALUES IN (2);",
        )
        .unwrap();
    database.client().batch_execute(&ids_of("t_1_1", "t")).unwrap();
    let jobs = waterline_postgres::PgJobs::table(&store, "t", crate::tables::payload).unwrap();
    let mut writer = database.client();
    // Into the lowest partition, so that the table itself is not locked.
    let mut open = writer.transaction().unwrap();
    open.execute("INSERT INTO t_1_1 (at, payload) VALUES (1, 'first')", &[]).unwrap();
    client.execute("INSERT INTO t (at, payload) VALUES (2, 'second')", &[]).unwrap();
    assert_eq!(jobs.head().unwrap(), None, "the first id is not committed");
    open.commit().unwrap();
    crate::tables::wait_for_head(&jobs, 2);
    assert_eq!(crate::tables::all(&jobs).len(), 2);
}

#[test]
fn inserts_into_a_new_partition_or_child_are_awaited() {
    const PART: &str = "CREATE TABLE part_1 PARTITION OF parts FOR VALUES IN (1)";
    const CHILD: &str = "CREATE TABLE child () INHERITS (plain)";
    let database = Server::shared().database();
    let (mut client, store) = with_events(&database);
    client
        .batch_execute(
            "CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload text);
             CREATE TABLE parts (id bigint GENERATED ALWAYS AS IDENTITY, at int DEFAULT 1, payload text, PRIMARY KEY (id, at))
                 PARTITION BY LIST (at);
             CREATE TABLE part_2 PARTITION OF parts FOR VALUES IN (2)",
        )
        .unwrap();
    for (table, part, made, into) in [("plain", "child", CHILD, "plain"), ("parts", "part_1", PART, "part_2")] {
        // The values of the sequence, from which a writer that names a part gets its ids.
        let ids = |part: &str| ids_of(part, table);
        let row = |part: &str| format!("INSERT INTO {part} (payload) VALUES ('a')");
        let jobs = waterline_postgres::PgJobs::table(&store, table, crate::tables::payload).unwrap();
        let other = match into {
            "plain" => row("plain"),
            _ => "INSERT INTO parts (at, payload) VALUES (2, 'a')".to_owned(),
        };
        client.batch_execute(&other).unwrap();
        crate::tables::wait_for_head(&jobs, 1);
        // The transaction makes the part and inserts into it, so no other session knows of it.
        let mut writer = database.client();
        let mut open = writer.transaction().unwrap();
        let mut alone = database.client();
        let mut before = alone.transaction().unwrap();
        if into == "plain" {
            open.batch_execute(&format!("{made}; {}; {}", ids(part), row(part))).unwrap();
            before.batch_execute(&other).unwrap();
        } else {
            // The table itself is locked until a partition is there.
            client.batch_execute(&format!("{made}; {}", ids(part))).unwrap();
            open.batch_execute(&row(part)).unwrap();
            before.batch_execute(&other).unwrap();
        }
        before.commit().unwrap();
        for _ in 0..3 {
            assert_eq!(jobs.head().unwrap(), Some(1), "{table}: the second id is not committed");
        }
        open.commit().unwrap();
        crate::tables::wait_for_head(&jobs, 3);
        assert_eq!(crate::tables::all(&jobs).len(), 3);
    }
}
