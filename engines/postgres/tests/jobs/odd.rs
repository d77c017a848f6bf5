//! Tables with odd names, odd ids and odd rows.

use crate::server::Server;
use crate::tables::{self, all_up_to, wait_for_head, with_events};
use std::time::Duration;
use waterline::{Consumer, Jobs, MemoryProgress};
use waterline_postgres::{PgJobs, PgOptions, PgStore};

#[test]
fn odd_names_and_generated_columns_are_read_and_notified() {
    let database = Server::shared().database();
    let mut config = database.config.clone();
    config.options("-c standard_conforming_strings=off -c search_path=\"$user\" -c DateStyle=German");
    let store = PgStore::connect(config, postgres::NoTls, PgOptions::new().schema("its \"own\\' schema;")).unwrap();
    store.migrate().unwrap();
    let mut client = database.client();
    let table = "\"an \"\"odd\\' schema; $1\".\"T%s'\\ {schema}\"";
    client
        .batch_execute(&format!(
            "CREATE SCHEMA \"an \"\"odd\\' schema; $1\";
             CREATE TABLE {table} (payload text, twice text GENERATED ALWAYS AS (payload || payload) STORED,
                 \"i d\"\"'\\ %I\" bigint GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME \"an \"\"odd\\' schema; $1\".\"s'\\ \"\"q\")
                 UNIQUE);
             CREATE FUNCTION notify_waterline() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM pg_notify(TG_TABLE_NAME, ''); RETURN NULL; END $$;
             CREATE TRIGGER notify_waterline AFTER INSERT ON {table}
                 FOR EACH STATEMENT EXECUTE FUNCTION notify_waterline()"
        ))
        .unwrap();
    let jobs = PgJobs::table(&store, table, |row| Ok(row.try_get::<_, String>("twice")?)).unwrap();
    let consumer = Consumer::builder(jobs, store.progress("it's \"p\""));
    let consumer = consumer
        .poll_every(Duration::from_secs(86_400))
        .start(|job| if job.payload == "aa" { Ok(()) } else { Err(job.payload.into()) });
    let consumer = consumer.unwrap();
    for last in 1..=3 {
        client.batch_execute(&format!("INSERT INTO {table} (payload) VALUES ('a')")).unwrap();
        tables::until(&consumer.handle(), "the row", |status| status.last_processed == Some(last));
    }
    consumer.stop().unwrap();
    assert_eq!(store.consumers().unwrap()[0].next, Some(4));
}

#[test]
fn ids_from_zero_to_the_highest_are_read() {
    let database = Server::shared().database();
    let (mut client, store) = with_events(&database);
    client
        .batch_execute(
            "CREATE TABLE low (id bigint GENERATED ALWAYS AS IDENTITY (MINVALUE 0) PRIMARY KEY, payload text);
             CREATE TABLE high (id bigint GENERATED ALWAYS AS IDENTITY (START 9223372036854775805) PRIMARY KEY, payload text);
             INSERT INTO low (payload) VALUES ('a'), ('b');
             INSERT INTO high (payload) VALUES ('a'), ('b'), ('c');",
        )
        .unwrap();
    let read = |table: &str, head| all_up_to(&PgJobs::table(&store, table, tables::payload).unwrap(), head);
    let high = i64::MAX.cast_unsigned();
    assert_eq!(read("low", 1), [(0, "a".to_owned()), (1, "b".to_owned())]);
    assert_eq!(read("high", high).iter().map(|(index, _)| *index).collect::<Vec<_>>(), [high - 2, high - 1, high]);
    let jobs = PgJobs::table(&store, "high", tables::payload).unwrap();
    assert_eq!(jobs.at_index(high + 1).unwrap(), None);
    let consumer = Consumer::builder(jobs, store_of(&store).progress("p")).stop_at(high).start(|_| Ok(())).unwrap();
    consumer.join().unwrap();
    assert_eq!(store.consumers().unwrap()[0].next, Some(high + 1));
    // Nothing is there any more, and nothing will be.
    assert!(client.execute("INSERT INTO high (payload) VALUES ('d')", &[]).is_err());
    let jobs = PgJobs::table(&store, "high", tables::payload).unwrap();
    let consumer = Consumer::builder(jobs, store.progress("p")).start(|_| Err("nothing is left".into())).unwrap();
    tables::until(&consumer.handle(), "no job", |status| status.last_processed == Some(high));
    consumer.stop().unwrap();
}

fn store_of(store: &PgStore) -> PgStore {
    store.migrate().unwrap();
    store.clone()
}

#[test]
fn a_decoding_panic_blocks_the_consumer_with_its_reason() {
    let database = Server::shared().database();
    let (mut client, store) = with_events(&database);
    let jobs = PgJobs::table(&store, "events", |row| {
        let payload: String = row.try_get("payload")?;
        assert!(payload != "bad", "this row is bad");
        Ok(payload)
    });
    let consumer = Consumer::builder(jobs.unwrap(), MemoryProgress::new()).poll_every(Duration::from_millis(5));
    let consumer = consumer.start(|_| Ok(())).unwrap();
    client.batch_execute("INSERT INTO events (payload) VALUES ('good'), ('bad'), ('good')").unwrap();
    let is_told = |status: &waterline::Status| status.blocked.to_string().contains("this row is bad");
    tables::until(&consumer.handle(), "the bad row", is_told);
    client.batch_execute("UPDATE events SET payload = 'mended' WHERE payload = 'bad'").unwrap();
    tables::until(&consumer.handle(), "all rows", |status| status.last_processed == Some(3));
    consumer.stop().unwrap();
}

#[test]
fn a_source_is_made_and_dropped_within_a_runtime() {
    let database = Server::shared().database();
    let (mut client, store) = with_events(&database);
    tables::insert(&mut client, "a");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let jobs = tables::events(&store);
        wait_for_head(&jobs, 1);
        let consumer = Consumer::builder(jobs, MemoryProgress::new()).stop_at(1).start(|_| Ok(())).unwrap();
        consumer.join().unwrap();
        drop(tables::events(&store));
        drop(store);
    });
    drop(client);
}

#[test]
fn progress_above_all_ids_is_not_shown_as_caught_up() {
    let database = Server::shared().database();
    let (mut client, store) = with_events(&database);
    store.migrate().unwrap();
    (0..9).for_each(|_| _ = tables::insert(&mut client, "a"));
    let start = || Consumer::builder(tables::events(&store), store.progress("p")).poll_every(Duration::from_millis(5));
    start().stop_at(9).start(|_| Ok(())).unwrap().join().unwrap();
    client.batch_execute("TRUNCATE events RESTART IDENTITY").unwrap();
    (0..3).for_each(|_| _ = tables::insert(&mut client, "b"));
    let consumer = start().start(|_| Ok(())).unwrap();
    let is_told = |status: &waterline::Status| status.blocked.to_string().contains("the source ends at 3, below");
    tables::until(&consumer.handle(), "the reason", is_told);
    consumer.stop().unwrap();
    store.seek("p", 1, "the table was emptied").unwrap();
    start().stop_at(3).start(|_| Ok(())).unwrap().join().unwrap();
}
