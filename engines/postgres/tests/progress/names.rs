//! Two processes on one name: one has it, the other one waits. One is stopped, killed, or frozen.

use crate::bank;
use crate::member::{Member, takes_over, writes};
use crate::server::pooler::Pooler;
use crate::server::{Database, Server};
use common::{eventually, numbers, until};
use postgres::Transaction;
use std::time::{Duration, Instant};
use waterline::{Blocked, Consumer, Error, Job, MemoryJobs, Progress, Transactional};
use waterline_postgres::PgOptions;

const TTL: Duration = Duration::from_millis(1_000);

fn database() -> Database {
    let database = Server::shared().database();
    bank::open(&database);
    database.store(PgOptions::new());
    database
}

#[test]
fn a_second_consumer_is_told_the_holder_and_its_expiry() {
    let database = database();
    let first = database.store(PgOptions::new().holder("node a").ttl(Duration::from_secs(30)));
    let second = database.store(PgOptions::new().holder("node b"));
    let consumer = Consumer::builder(numbers(9), first.progress("p")).start(|_| Ok(())).unwrap();
    let refused = Consumer::builder(numbers(9), second.progress("p")).start(|_| Ok(()));
    match refused {
        Err(Error::Leased { name, holder, expires_in }) => {
            assert_eq!((name.as_str(), holder.as_str()), ("p", "node a"));
            assert!(expires_in > Duration::ZERO && expires_in <= Duration::from_secs(30), "{expires_in:?}");
        }
        other => panic!("{other:?}"),
    }
    let waiting = Consumer::builder(numbers(9), second.progress("p")).standby().start(|_| Ok(())).unwrap();
    let status = waiting.handle().status();
    assert!(
        matches!(&status.blocked, Blocked::InUse { holder, expires_in: Some(_) } if holder == "node a"),
        "{status}"
    );
    waiting.stop().unwrap();
    consumer.stop().unwrap();
}

/// A process that dies while the clock of the server is a year ahead has the name for its TTL, and
/// not for a year.
#[test]
fn a_name_is_free_after_its_ttl_even_if_the_clock_was_ahead() {
    let ahead = |database: &Database| {
        let ahead = "UPDATE waterline.progress SET expires = expires + interval '1 year', renewed = renewed + interval '1 year'";
        assert_eq!(database.client().execute(ahead, &[]).unwrap(), 1);
    };
    let database = database();
    let store = database.store(PgOptions::new().holder("node b").ttl(TTL));
    // It dies: the name is neither renewed nor given back.
    let dies = |holder: &str| {
        let sql = "INSERT INTO waterline.progress (name, epoch, token, holder, expires, renewed) VALUES ('p', 1, 7, $1,
            clock_timestamp() + interval '1 second', clock_timestamp()) ON CONFLICT (name) DO UPDATE SET token = 7,
            holder = $1, expires = excluded.expires, renewed = excluded.renewed";
        database.client().execute(sql, &[&holder]).unwrap();
        ahead(&database);
    };
    dies("node a");
    let mut refused = Vec::new();
    eventually("an operator to have the name", || {
        let moved = store.remove("p");
        refused.extend(moved.as_ref().err().map(ToString::to_string));
        moved.is_ok()
    });
    assert!(refused[0].contains("node a"), "{refused:?}");
    dies("node c");
    let consumer = Consumer::builder(numbers(9), store.progress("p")).standby().start(|_| Ok(())).unwrap();
    takes_over(&database, "node b");
    // While it has the name, a renewal and a save set it right.
    ahead(&database);
    let left = || -> f64 {
        let left = "SELECT extract(epoch FROM expires - clock_timestamp())::float8 FROM waterline.progress";
        database.client().query_one(left, &[]).unwrap().get(0)
    };
    eventually("a renewal", || left() <= TTL.as_secs_f64());
    consumer.stop().unwrap();
    let mut progress = store.progress("q");
    progress.acquire_all().unwrap();
    database.client().execute("DELETE FROM waterline.progress WHERE name = 'p'", &[]).unwrap();
    ahead(&database);
    progress.save_all(&waterline::Saved::new(Some(0), 1, Vec::new())).unwrap();
    assert!(left() <= TTL.as_secs_f64(), "a save");
}

#[test]
fn a_standby_takes_over_at_once_on_a_clean_stop() {
    let (server, database) = (Server::shared(), database());
    // A lease that no test waits for, and a process that tries only when it is called.
    let ttl = Duration::from_secs(600);
    let store = database.store(PgOptions::new().holder("node a").ttl(ttl));
    let mut times = Vec::new();
    for round in 0..3 {
        let consumer = Consumer::builder(numbers(9), store.progress("p")).standby().start(|_| Ok(())).unwrap();
        takes_over(&database, "node a");
        let holder = format!("node b {round}");
        let second = Member::start_timeless(server, &database, &holder, ttl);
        eventually("the second one to wait", || waits(&database));
        consumer.stop().unwrap();
        times.push(takes_over(&database, &holder));
        second.stop(&database);
    }
    println!("after a clean stop: {times:?}");
}

/// Whether a process waits for the name: it listens, and has sent nothing since.
fn waits(database: &Database) -> bool {
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND application_name = 'waterline' AND query LIKE '%LISTEN%'";
    database.client().query_one(waits, &[]).unwrap().get::<_, i64>(0) >= 1
}

#[test]
fn the_same_epoch_with_another_token_is_another_life() {
    let database = database();
    let store = database.store(PgOptions::new());
    let mut progress = store.progress("p");
    progress.acquire_all().unwrap();
    // A server that took over from one that it lagged behind has given the number out again.
    let other = "UPDATE waterline.progress SET token = token + 1, holder = 'node b'";
    database.client().batch_execute(other).unwrap();
    let saved = progress.save_all(&waterline::Saved::new(Some(1), 2, Vec::new()));
    let text = saved.as_ref().unwrap_err().to_string();
    assert!(matches!(saved, Err(waterline::SaveError::Lost(_))) && text.contains("node b"), "{text}");
    drop(progress);
    let row = database.client().query_one("SELECT watermark, expires > now() FROM waterline.progress", &[]).unwrap();
    assert_eq!((row.get(0), row.get(1)), (None::<i64>, true), "nothing is saved, and the other one has the name");
}

#[test]
fn a_killed_or_frozen_process_is_replaced_after_its_ttl() {
    let (server, database) = (Server::shared(), database());
    let mut times = Vec::new();
    let mut first = Member::start(server, &database, "a 0", TTL);
    for round in 1..=4 {
        writes(&database, &first.holder);
        let second = Member::start(server, &database, &format!("a {round}"), TTL);
        eventually("the second one to wait", || waits(&database));
        if round % 2 == 0 {
            first.kill();
        } else {
            first.signal("STOP");
        }
        times.push(takes_over(&database, &second.holder));
        let before = std::mem::replace(&mut first, second);
        if round % 2 == 1 {
            // It goes on while the other one works.
            writes(&database, &first.holder);
            before.signal("CONT");
            before.ends_fenced();
        }
    }
    println!("with a lease of {TTL:?}, after SIGSTOP and SIGKILL in turn: {times:?}");
    writes(&database, &first.holder);
    first.finish(&database);
    let info = &database.store(PgOptions::new()).consumers().unwrap()[0];
    assert_eq!(info.done_ahead, 0);
    bank::assert_exact(&database, info.next.unwrap());
    let fences = database.client().query_one("SELECT count(DISTINCT fence) FROM effects", &[]).unwrap();
    assert_eq!(fences.get::<_, i64>(0), 5, "each life has written");
}

#[test]
fn a_write_after_a_takeover_is_fenced_and_leaves_nothing() {
    let database = database();
    let stores = ["node a", "node b"].map(|holder| database.store(PgOptions::new().holder(holder)));
    let (mut old, mut new) = (stores[0].progress("p"), stores[1].progress("p"));
    old.acquire_all().unwrap();
    let saved = |last: u64| waterline::Saved::new(Some(last), last + 1, Vec::new());
    old.commit(&saved(0), &mut |tx| bank::write(tx, &[(0, 1)])).unwrap();
    let late = old.commit(&saved(1), &mut |tx| {
        bank::write(tx, &[(9, 1)])?;
        // The rows of the user are written, and not committed: the other one needs none of them.
        database.client().execute("UPDATE waterline.progress SET expires = '-infinity'", &[])?;
        new.acquire_all()?;
        Ok(())
    });
    let text = late.as_ref().unwrap_err().to_string();
    assert!(matches!(late, Err(waterline::CommitError::Lost(_))) && text.contains("node b"), "{late:?}");
    new.commit(&saved(1), &mut |tx| bank::write(tx, &[(1, 2)])).unwrap();
    let later = old.save_all(&saved(7));
    assert!(matches!(later, Err(waterline::SaveError::Lost(_))), "{later:?}");
    drop(old);
    new.commit(&saved(2), &mut |tx| bank::write(tx, &[(2, 2)])).unwrap();
    bank::assert_exact(&database, 3);
}

#[test]
fn a_frozen_server_holds_the_consumer_until_it_goes_on() {
    let server = Server::start(&[]);
    let database = server.database();
    bank::open(&database);
    let store = database.store(PgOptions::new().ttl(TTL));
    let jobs = MemoryJobs::new();
    let write = |tx: &mut Transaction<'_>, results: &[(u64, u64)]| bank::write(tx, results);
    let consumer = Consumer::builder(jobs.clone(), store.progress("p"));
    let consumer = consumer.start_writing(|job: Job<()>| Ok(job.fence), write).unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(jobs.push(()), common::LONG));
    server.signal_all("STOP");
    let begun = Instant::now();
    let status = until(&handle, "the hold", |status| matches!(status.blocked, Blocked::Held { .. }));
    println!("held {:?} after the server stood still, with a lease of {TTL:?}: {}", begun.elapsed(), status.blocked);
    jobs.push(());
    assert_eq!(handle.status().processing, 0, "nothing starts");
    server.signal_all("CONT");
    assert!(handle.wait_for(1, common::LONG), "{}", handle.status());
    consumer.stop().unwrap();
    bank::assert_exact(&database, 2);
}

#[test]
fn calls_time_out_when_the_server_is_frozen() {
    let server = Server::start(&[]);
    let database = server.database();
    let store = database.store(PgOptions::new().ttl(Duration::from_millis(500)));
    let mut progress = store.progress("p");
    progress.acquire_all().unwrap();
    server.signal_all("STOP");
    let saved = waterline::Saved::new(Some(1), 2, Vec::new());
    // One call in the middle of a statement, one that connects, and one of an operator.
    let calls = [progress.save_all(&saved).is_err(), progress.save_all(&saved).is_err(), store.migrate().is_err()];
    server.signal_all("CONT");
    eventually("an answer", || progress.save_all(&saved).is_ok());
    assert_eq!(calls, [true; 3]);
}

#[test]
fn renewals_keep_a_name_without_saves() {
    let database = database();
    let ttl = Duration::from_millis(300);
    let store = database.store(PgOptions::new().ttl(ttl));
    let mut progress = store.progress("p");
    progress.acquire_all().unwrap();
    let mut client = database.client();
    let mut expires =
        || -> std::time::SystemTime { client.query_one("SELECT expires FROM waterline.progress", &[]).unwrap().get(0) };
    let mut last = expires();
    for _ in 0..6 {
        eventually("a renewal", || expires() > last);
        last = expires();
    }
    let mut second = store.progress("p");
    assert!(matches!(second.acquire_all(), Err(Error::Leased { .. })));
}

#[test]
fn a_renewal_after_the_release_changes_nothing() {
    let database = database();
    let store = database.store(PgOptions::new());
    let mut progress = store.progress("p");
    progress.acquire_all().unwrap();
    let mut client = database.client();
    let life = client.query_one("SELECT epoch, token, timeline FROM waterline.progress", &[]).unwrap();
    let life: [i64; 3] = [0, 1, 2].map(|at| life.get(at));
    assert!(life[1] >= 1, "{life:?}");
    let mut renew = || {
        let renew = "UPDATE waterline.progress SET expires = clock_timestamp() + interval '1 hour'
            WHERE name = 'p' AND epoch = $1 AND token = $2 AND timeline = $3";
        client.execute(renew, &[&life[0], &life[1], &life[2]]).unwrap()
    };
    assert_eq!(renew(), 1);
    drop(progress);
    assert_eq!(renew(), 0);
    assert!(store.progress("p").acquire_all().is_ok());
}

#[test]
fn locked_rows_stop_no_renewal_of_another_name() {
    let database = database();
    let ttl = Duration::from_millis(900);
    let store = database.store(PgOptions::new().ttl(ttl));
    let names = ["a", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "b"];
    let mut all = names.map(|name| store.progress(name));
    all.iter_mut().for_each(|progress| _ = progress.acquire_all().unwrap());
    let mut other = database.client();
    other.batch_execute("BEGIN; SELECT 1 FROM waterline.progress WHERE name <> 'b' FOR UPDATE").unwrap();
    let mut client = database.client();
    let mut left = |name: &str| -> f64 {
        let left = "SELECT extract(epoch FROM expires - clock_timestamp())::float8 FROM waterline.progress
            WHERE name = $1";
        client.query_one(left, &[&name]).unwrap().get(0)
    };
    while left("a") > -ttl.as_secs_f64() {
        assert!(left("b") > 0.0, "b is renewed while nobody can renew a");
        common::rest();
    }
    other.batch_execute("ROLLBACK").unwrap();
    eventually("a renewal of a", || left("a") > 0.0);
    // Wishes cannot be read, which is no reason to lose a name.
    other.batch_execute("BEGIN; LOCK TABLE waterline.wish").unwrap();
    for _ in 0..6 {
        let before = left("b");
        eventually("a renewal, or the end of the name", || left("b") > before || left("b") <= 0.0);
        assert!(left("b") > 0.0, "b is renewed while nobody can look for wishes");
    }
}

#[test]
fn takeovers_behind_a_pooler_write_each_job_once() {
    let (server, database) = (Server::shared(), database());
    // Fewer connections than the two processes have, so each gets what the other one has left.
    let pooler = Pooler::start(server, 2);
    let member = |holder: &str| Member::start_behind(pooler.port(), server, &database, holder, TTL);
    let mut first = member("a 0");
    for round in 1..=4 {
        writes(&database, &first.holder);
        let second = member(&format!("a {round}"));
        match round % 3 {
            0 => first.stop(&database),
            1 => first.kill(),
            _ => {
                first.signal("STOP");
                takes_over(&database, &second.holder);
                first.signal("CONT");
                first.ends_fenced();
            }
        }
        takes_over(&database, &second.holder);
        first = second;
    }
    writes(&database, &first.holder);
    first.finish(&database);
    let info = &database.store(PgOptions::new()).consumers().unwrap()[0];
    bank::assert_exact(&database, info.next.unwrap());
}
