//! Odd names, numbers and rows, and users with few rights.

use crate::server::Server;
use postgres::NoTls;
use waterline::{Consumer, Error as Ended, Index, MemoryJobs, OnExhausted, Progress, Retry, Saved};
use waterline_postgres::{Error, PgOptions, PgStore};

#[test]
fn odd_names_are_kept_apart_and_bad_ones_refused() {
    let database = Server::shared().database();
    let store = database.store(PgOptions::new().holder("it's \"us\" \\ \u{1F40C}"));
    let longest = "\u{1F40C}".repeat(63);
    let names = ["p", "P", " p", "it's \"p\"; --", "a\\b", "a\nb", "%_", "$1", "waterline/p", &longest];
    for (number, name) in (0..).zip(names) {
        let mut progress = store.progress(name);
        assert!(progress.acquire_all().unwrap().is_none(), "{name:?}");
        progress.save_all(&Saved::new(Some(number), number + 1, Vec::new())).unwrap();
    }
    for (number, name) in (0..).zip(names) {
        assert_eq!(store.progress(name).acquire_all().unwrap().unwrap().last_processed, Some(number), "{name:?}");
        store.seek(name, number + 9, "it's \"why\" \\ $1").unwrap();
        assert_eq!(store.history(name).unwrap()[0].reason, "it's \"why\" \\ $1");
    }
    assert_eq!(store.consumers().unwrap().len(), names.len());
    for bad in ["", "a\0b", &"x".repeat(256)] {
        let refused = [store.seek(bad, 1, "why"), store.remove(bad), store.redrive(bad, 1)];
        assert!(refused.iter().all(|refused| matches!(refused, Err(Error::Config { .. }))), "{bad:?}: {refused:?}");
        assert!(matches!(store.parked(bad), Err(Error::Config { .. })));
        let started = Consumer::builder(MemoryJobs::<u8>::new(), store.progress(bad)).start(|_| Ok(()));
        assert!(started.is_err(), "{bad:?}");
    }
    assert!(store.seek("p", 1, "a\0b").is_err());
    let refused = PgStore::connect(database.config.clone(), NoTls, PgOptions::new().holder("a\0b"));
    assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
}

#[test]
fn indices_above_i64_max_are_saved_sought_and_listed() {
    let store = Server::shared().database().store(PgOptions::new());
    let high: Index = Index::MAX - 100;
    store.seek("p", high, "why").unwrap();
    let mut progress = store.progress("p");
    assert_eq!(progress.acquire_all().unwrap().unwrap().next, high);
    let saved = Saved::new(Some(high + 9), high + 10, vec![high + 20..=high + 30, Index::MAX - 5..=Index::MAX - 1]);
    progress.save_all(&saved).unwrap();
    drop(progress);
    assert_eq!(store.progress("p").acquire_all().unwrap(), Some(saved));
    store.skip("p", high + 10, "why").unwrap();
    assert_eq!(store.parked("p").unwrap()[0].index, high + 10);
    store.redrive("p", high + 10).unwrap();
    let info = &store.consumers().unwrap()[0];
    assert_eq!((info.last_processed, info.done_ahead), (Some(high + 10), 16));
    assert_eq!(store.history("p").unwrap().iter().map(|made| made.to).collect::<Vec<_>>(), [high, high + 10]);
    assert!(store.seek("p", Index::MAX, "why").is_err());
}

#[test]
fn edited_rows_fail_the_start_and_are_listed_as_unreadable() {
    let database = Server::shared().database();
    let store = database.store(PgOptions::new());
    let edits = [
        "UPDATE waterline.done SET bits = decode(repeat('ff', 1025), 'hex')",
        "INSERT INTO waterline.done VALUES ('p', 9223372036854775807, 'x')",
        "UPDATE waterline.progress SET watermark = 9, next = 5",
        "UPDATE waterline.progress SET watermark = NULL, next = -1",
        "INSERT INTO waterline.record VALUES ('p', '', '')",
        "INSERT INTO waterline.record VALUES ('p', 'p', 'x'), ('p', 'l', 'x')",
    ];
    for edit in edits {
        let mut progress = store.progress("p");
        progress.acquire_all().unwrap();
        progress.save_all(&Saved::new(Some(4), 5, vec![7..=8])).unwrap();
        drop(progress);
        database.client().batch_execute(edit).unwrap();
        let listed = store.consumers().unwrap();
        assert!(listed[0].unreadable.is_some(), "{edit}: {listed:?}");
        let started = Consumer::builder(MemoryJobs::<u8>::new(), store.progress("p")).start(|_| Ok(())).map(|_| ());
        assert!(matches!(started, Err(Ended::Corrupt { .. })), "{edit}: {started:?}");
        store.remove("p").unwrap();
    }
    // As if no tables had been made.
    database.client().batch_execute("DELETE FROM waterline.version").unwrap();
    let older = store.progress("q").acquire_all();
    assert!(
        matches!(&older, Err(Ended::Progress { source }) if matches!(source.downcast_ref(), Some(Error::Schema { .. })))
    );
}

#[test]
fn long_errors_are_kept_and_many_names_listed() {
    let database = Server::shared().database();
    let store = database.store(PgOptions::new());
    let consumer = Consumer::builder((0..3).collect::<MemoryJobs<u8>>(), store.progress("p")).stop_at(2);
    let consumer = consumer.retry(Retry::none()).on_exhausted(OnExhausted::Park { budget: 9 });
    consumer.start(|_| Err("\u{1F40C}".repeat(1 << 20).into())).unwrap().join().unwrap();
    let parked = store.parked("p").unwrap();
    assert_eq!(parked.len(), 3);
    assert!(parked[0].error.starts_with('\u{1F40C}') && parked[0].error.len() > 1_000);
    let many = "INSERT INTO waterline.progress (name, watermark, next) SELECT 'n' || n, n, n + 1 FROM generate_series(1, 10000) n";
    database.client().batch_execute(many).unwrap();
    assert_eq!(store.consumers().unwrap().len(), 10_001);
}

#[test]
fn missing_rights_and_connections_are_named_until_granted() {
    let database = Server::shared().database();
    database.store(PgOptions::new());
    let mut client = database.client();
    let role = format!("app_{}", database.name);
    client.batch_execute(&format!("CREATE ROLE {role} LOGIN")).unwrap();
    let mut config = database.config.clone();
    config.user(&role);
    let ttl = std::time::Duration::from_millis(600);
    let store = PgStore::connect(config.clone(), NoTls, PgOptions::new().ttl(ttl)).unwrap();
    let refused = Consumer::builder(MemoryJobs::<u8>::new(), store.progress("p")).start(|_| Ok(())).map(|_| ());
    let text = refused.unwrap_err().report();
    assert!(text.contains("permission denied for schema waterline"), "{text}");
    client
        .batch_execute(&format!(
            "GRANT USAGE ON SCHEMA waterline TO {role};
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA waterline TO {role}"
        ))
        .unwrap();
    let jobs: MemoryJobs<u8> = (0..3).collect();
    let consumer = Consumer::builder(jobs.clone(), store.progress("p")).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    common::until(&handle, "the jobs", |status| status.last_processed == Some(2));
    // It loses its connections, and gets no others.
    client.batch_execute(&format!("ALTER ROLE {role} CONNECTION LIMIT 0")).unwrap();
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = $1";
    client.query_one(cut, &[&role]).unwrap();
    common::until(&handle, "the hold", |status| matches!(status.blocked, waterline::Blocked::Held { .. }));
    let refused = PgStore::connect(config, NoTls, PgOptions::new());
    assert!(format!("{refused:?}").contains("too many connections"), "{refused:?}");
    client.batch_execute(&format!("ALTER ROLE {role} CONNECTION LIMIT 9")).unwrap();
    let last = jobs.push(0);
    common::until(&handle, "the next job", |status| status.last_processed == Some(last));
    consumer.stop().unwrap();
}
