//! The suite that each source has to pass.

use crate::server::Server;
use crate::server::pooler::Pooler;
use crate::size;
use crate::tables::{self, EVENTS, insert, with_events};
use parking_lot::Mutex;
use postgres::{Client, NoTls};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;
use waterline::testing::JobsSuite;
use waterline::{Consumer, MemoryProgress};
use waterline_postgres::{PgJobs, PgOptions, PgStore};

#[test]
fn a_table_with_gaps_passes_the_suite() {
    let server = Server::start(&[]);
    let database = server.database();
    let client = RefCell::new(database.client());
    // On a busy machine a call may take as long as it likes.
    let options = PgOptions::new().ttl(Duration::from_secs(120));
    let store = PgStore::connect(database.config.clone(), NoTls, options).unwrap();
    let tables = Cell::new(0);
    let fill = |client: &mut Client, table: &str, count: u64| {
        // A row that is rolled back leaves a gap.
        let rows = format!(
            "DO $$ BEGIN
                FOR n IN 0..{count} - 1 LOOP
                    IF n % 3 = 0 THEN
                        BEGIN
                            INSERT INTO {table} (payload) VALUES ('');
                            RAISE EXCEPTION 'a gap';
                        EXCEPTION WHEN raise_exception THEN
                        END;
                    END IF;
                    INSERT INTO {table} (payload) VALUES ('row ' || n);
                END LOOP;
            END $$"
        );
        client.batch_execute(&rows).unwrap();
    };
    let name = |number: u32| format!("\"Events {number}\"");
    let made = |count: u64| {
        tables.set(tables.get() + 1);
        let table = name(tables.get());
        let client = &mut *client.borrow_mut();
        client.batch_execute(&EVENTS.replace("events", &table)).unwrap();
        fill(client, &table, count);
        PgJobs::table(&store, &table, tables::payload).unwrap()
    };
    // The suite adds to the source that it made last.
    let extend = |_: &PgJobs<String>, count| fill(&mut client.borrow_mut(), &name(tables.get()), count);
    let suite = JobsSuite::new(made).sparse();
    // Growing takes most of the time, and other tests grow, too.
    let suite = if size(0, 1) > 0 { suite.extend(extend) } else { suite };
    suite.run();
}

#[test]
fn columns_of_each_size_and_partitions_are_read() {
    let database = Server::shared().database();
    let (mut client, store) = with_events(&database);
    client
        .batch_execute(
            "CREATE TABLE small (payload text, \"A row's\" smallint GENERATED ALWAYS AS IDENTITY UNIQUE);
             CREATE TABLE middle (id int GENERATED ALWAYS AS IDENTITY (START 7 INCREMENT 5) PRIMARY KEY, payload text);
             CREATE TABLE parts (id bigint GENERATED ALWAYS AS IDENTITY, at int, payload text, PRIMARY KEY (id, at))
                 PARTITION BY LIST (at);
             CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1);
             CREATE TABLE parts_2 PARTITION OF parts FOR VALUES IN (2) PARTITION BY LIST (at);
             CREATE TABLE parts_2_2 PARTITION OF parts_2 FOR VALUES IN (2);
             INSERT INTO small (payload) VALUES ('a'), ('b');
             INSERT INTO middle (payload) VALUES ('a'), ('b');
             INSERT INTO parts (at, payload) VALUES (1, 'a'), (2, 'b'), (1, 'c');",
        )
        .unwrap();
    let read = |table: &str, head| tables::all_up_to(&PgJobs::table(&store, table, tables::payload).unwrap(), head);
    let text = |indices: [u64; 2]| indices.into_iter().zip(["a".to_owned(), "b".to_owned()]).collect::<Vec<_>>();
    assert_eq!(read("small", 2), text([1, 2]));
    assert_eq!(read("public.middle", 12), text([7, 12]));
    let ids: Vec<_> = read("parts", 3).into_iter().map(|(index, _)| index).collect();
    assert_eq!(ids, [1, 2, 3]);
}

#[test]
fn reads_go_on_after_a_column_is_added() {
    let database = Server::shared().database();
    let (mut client, store) = with_events(&database);
    let jobs = tables::events(&store);
    insert(&mut client, "a");
    assert_eq!(tables::all_up_to(&jobs, 1).len(), 1);
    client
        .batch_execute("ALTER TABLE events ADD COLUMN more int; ALTER TABLE events ALTER COLUMN id TYPE int")
        .unwrap();
    insert(&mut client, "b");
    tables::wait_for_head(&jobs, 2);
    assert_eq!(tables::all(&jobs).len(), 2);
}

#[test]
fn several_tables_are_read_behind_a_transaction_pooler() {
    let (server, database) = (Server::shared(), Server::shared().database());
    let mut client = database.client();
    let names = ["events", "more", "others"];
    for name in names {
        client.batch_execute(&EVENTS.replace("events", name)).unwrap();
    }
    client.batch_execute("CREATE TYPE kind AS ENUM ('a'); ALTER TABLE more ADD COLUMN kind kind DEFAULT 'a'").unwrap();
    let pooler = Pooler::start(server, 2);
    let store = PgStore::connect(pooler.config(&database.name), NoTls, PgOptions::new()).unwrap();
    let consumers = names.map(|name| {
        let jobs = PgJobs::table(&store, name, tables::payload).unwrap();
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let sees = Arc::clone(&seen);
        let builder = Consumer::builder(jobs, MemoryProgress::new()).poll_every(Duration::from_millis(1));
        let see = move |payload| sees.lock().push(payload);
        let consumer = builder.max_processing(1).start(move |job| {
            see(job.payload);
            Ok(())
        });
        (consumer.unwrap(), seen)
    });
    for row in 0..200 {
        for name in names {
            client.execute(&format!("INSERT INTO {name} (payload) VALUES ($1)"), &[&format!("{name} {row}")]).unwrap();
        }
    }
    for ((consumer, seen), name) in consumers.into_iter().zip(names) {
        tables::until(&consumer.handle(), "all rows", |status| status.last_processed == Some(200));
        consumer.stop().unwrap();
        assert_eq!(*seen.lock(), (0..200).map(|row| format!("{name} {row}")).collect::<Vec<_>>());
    }
}
