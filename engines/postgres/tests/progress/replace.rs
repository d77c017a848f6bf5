//! One progress takes the place of another, in a transaction of the user's.

use crate::server::{Database, Server};
use postgres::{Client, Transaction};
use waterline::{Consumer, Jobs, Progress, SaveError, Saved, Transactional};
use waterline_postgres::{Error, PgJobs, PgOptions, PgStore};

#[path = "../../examples/run_again.rs"]
mod example;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn opened() -> (Database, PgStore) {
    let database = Server::shared().database();
    let store = database.store(PgOptions::new().holder("node a"));
    database.client().batch_execute("CREATE TABLE rows_of (name text NOT NULL)").unwrap();
    (database, store)
}

/// Everything that is saved under a name, but for its number of lives.
fn saved(client: &mut Client, name: &str) -> String {
    let saved = "SELECT jsonb_build_object(
        'at', (SELECT jsonb_build_array(watermark, next, moved) FROM waterline.progress WHERE name = $1 AND next IS NOT NULL),
        'done', (SELECT jsonb_agg(jsonb_build_array(piece, bits) ORDER BY piece) FROM waterline.done WHERE name = $1),
        'record', (SELECT jsonb_agg(jsonb_build_array(key, value) ORDER BY key) FROM waterline.record WHERE name = $1),
        'move', (SELECT jsonb_agg(jsonb_build_array(id, \"to\", reason) ORDER BY id) FROM waterline.move WHERE name = $1),
        'wish', (SELECT jsonb_agg(jsonb_build_array(kind, index) ORDER BY id) FROM waterline.wish WHERE name = $1))::text";
    client.query_one(saved, &[&name]).unwrap().get(0)
}

fn epoch(client: &mut Client, name: &str) -> i64 {
    let epoch = "SELECT coalesce(max(epoch), 0) FROM waterline.progress WHERE name = $1";
    client.query_one(epoch, &[&name]).unwrap().get(0)
}

/// Makes a life of a consumer that saves something new, and what an operator asks for.
fn live(database: &Database, store: &PgStore, name: &str, step: u64) {
    let mut progress = store.progress(name);
    let before = progress.acquire_all().unwrap().map_or(0, |saved| saved.next);
    let (last, next) = (before + step % 7, before + step % 7 + 1);
    let done_ahead = vec![next + 2..=next + 9_000 * (step % 3) + 3];
    progress.save_all(&Saved::new(Some(last), next, done_ahead)).unwrap();
    drop(progress);
    if step.is_multiple_of(4) {
        store.seek(name, last, &format!("step {step}")).unwrap();
    }
    // It counts as parked.
    store.skip(name, next, "by hand").unwrap();
    let wish = "INSERT INTO waterline.wish (name, kind, index) VALUES ($1, 'redrive', $2) ON CONFLICT DO NOTHING";
    database.client().execute(wish, &[&name, &step.cast_signed()]).unwrap();
}

/// Random lives and replacements, of which some are rolled back, and some lose their connection.
#[test]
fn the_second_name_has_all_of_the_first_or_nothing_has_changed() {
    let (database, store) = opened();
    let (seed, steps) = (common::seed(), 120);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut replaced = 0;
    let mut looks = database.client();
    let nothing = saved(&mut looks, "nobody");
    for step in 0..steps {
        let mut names = NAMES;
        random.shuffle(&mut names);
        if random.bool() {
            live(&database, &store, names[0], step);
            continue;
        }
        let pairs = [(names[0], names[1]), (names[2], names[3])];
        let pairs = &pairs[..random.usize(1..=2)];
        let before = names.map(|name| (saved(&mut looks, name), epoch(&mut looks, name)));
        let mut client = database.client();
        let mut transaction = client.transaction().unwrap();
        let answer = store.replace_in(&mut transaction, pairs);
        let is_known = pairs.iter().enumerate().all(|(at, _)| before[2 * at].0 != nothing);
        assert_eq!(answer.is_ok(), is_known, "step {step}, SEED={seed}: {answer:?}");
        transaction.execute("INSERT INTO rows_of VALUES ($1)", &[&names[1]]).unwrap();
        let commits = match random.u8(0..3) {
            0 => transaction.rollback().map(|()| false).unwrap(),
            1 => {
                // The server is told to end this session, as by the death of its client.
                _ = transaction.execute("SELECT pg_terminate_backend(pg_backend_pid())", &[]);
                transaction.commit().is_ok()
            }
            _ => transaction.commit().map(|()| true).unwrap(),
        };
        drop(client);
        let has_replaced = commits && is_known;
        replaced += u64::from(has_replaced);
        for (at, name) in names.into_iter().enumerate() {
            let (now, lives) = (saved(&mut looks, name), epoch(&mut looks, name));
            let expected = match at {
                _ if !has_replaced || at / 2 >= pairs.len() => &before[at].0,
                0 | 2 => &nothing,
                _ => &before[at - 1].0,
            };
            assert_eq!(&now, expected, "{name} in step {step} with {pairs:?}, SEED={seed}");
            let least = if has_replaced && at % 2 == 1 && at / 2 < pairs.len() { before[at - 1].1 } else { 0 };
            assert!(lives >= before[at].1.max(least), "the lives of {name} in step {step}, SEED={seed}");
        }
    }
    assert!(replaced > 5, "{replaced} replacements, SEED={seed}");
}

#[test]
fn what_cannot_be_replaced_is_refused_and_changes_nothing() {
    let (database, store) = opened();
    NAMES.iter().for_each(|name| live(&database, &store, name, 3));
    let mut held = store.progress("d");
    held.acquire_all().unwrap();
    let mut looks = database.client();
    // The holder takes its wishes when it hears of them, which may be at any moment here.
    looks.batch_execute("DELETE FROM waterline.wish").unwrap();
    let before = NAMES.map(|name| saved(&mut looks, name));
    let long = "x".repeat(256);
    let cases: [(&[(&str, &str)], &str); 8] = [
        (&[("d", "b")], "the name \"d\" is in use by node a"),
        (&[("b", "d")], "the name \"d\" is in use by node a"),
        (&[("a", "b"), ("c", "d")], "the name \"d\" is in use by node a"),
        (&[("balances-3", "b")], "nothing is saved under the progress name \"balances-3\": name the one"),
        (&[("a", "b"), ("balances-3", "c")], "nothing is saved under the progress name \"balances-3\": name the one"),
        (&[("a", "a")], "the progress name \"a\" is there twice: replace each"),
        (&[("a", "b"), ("b", "c")], "the progress name \"b\" is there twice: replace each"),
        (&[("a", &long)], "the progress name is 256 bytes long: use 1 to 255"),
    ];
    let mut client = database.client();
    for (names, says) in cases {
        let mut transaction = client.transaction().unwrap();
        let error = store.replace_in(&mut transaction, names).unwrap_err();
        assert!(error.to_string().starts_with(says), "{names:?}: {error}");
        assert_eq!(matches!(error, Error::Leased { .. }), says.contains("in use"), "{error:?}");
        transaction.execute("INSERT INTO rows_of VALUES ('it goes on')", &[]).unwrap();
        transaction.commit().unwrap();
        assert_eq!(NAMES.map(|name| saved(&mut looks, name)), before, "{names:?}");
    }
    let rows = client.query_one("SELECT count(*) FROM rows_of", &[]).unwrap();
    assert_eq!(rows.get::<_, i64>(0), 8, "each transaction has committed the rest");
    // Nothing keeps a consumer, or the holder, from its name.
    held.save_all(&Saved::new(Some(20), 21, Vec::new())).unwrap();
    assert!(store.progress("a").acquire_all().unwrap().is_some());
    assert_eq!(store.consumers().unwrap().len(), NAMES.len(), "none is made");
    store.replace_in(&mut client.transaction().unwrap(), &[]).unwrap();
}

/// A holder whose lease is over goes on, at different moments of the transaction.
#[test]
fn a_former_holder_of_either_name_is_fenced() {
    for (name, in_a_commit, commits) in [
        ("a", false, true),
        ("b", false, true),
        ("a", true, true),
        ("b", true, true),
        ("a", true, false),
        ("b", true, false),
    ] {
        let (database, store) = opened();
        ["a", "b"].iter().for_each(|name| live(&database, &store, name, 3));
        let mut old = store.progress(name);
        let next = old.acquire_all().unwrap().unwrap().next;
        // A holder takes its wishes when it hears of them, which may be at any moment here. It
        // locks its name before them, so no transaction here locks both.
        for statement in ["DELETE FROM waterline.wish", "UPDATE waterline.progress SET expires = '-infinity'"] {
            database.client().execute(statement, &[]).unwrap();
        }
        let (mut client, new) = (database.client(), Saved::new(Some(next), next + 1, Vec::new()));
        let mut transaction = client.transaction().unwrap();
        let replaced = |transaction: &mut Transaction<'_>| store.replace_in(transaction, &[("a", "b")]).unwrap();
        let expected = saved(&mut database.client(), "a");
        let answer = if in_a_commit {
            // Its rows are written. Its save then waits for the transaction.
            let (begins, begun) = crossbeam_channel::bounded(0);
            std::thread::scope(|scope| {
                let commit = scope.spawn(|| {
                    let write = &mut |tx: &mut Transaction<'_>| {
                        tx.execute("INSERT INTO rows_of VALUES ('old')", &[])?;
                        Ok(begins.send(())?)
                    };
                    old.commit(&new, write).map_err(SaveError::from)
                });
                replaced(&mut transaction);
                begun.recv().unwrap();
                common::eventually("it to wait", || waits(&database));
                if commits { transaction.commit() } else { transaction.rollback() }.unwrap();
                commit.join().unwrap()
            })
        } else {
            replaced(&mut transaction);
            transaction.commit().unwrap();
            old.save_all(&new)
        };
        assert_eq!(answer.is_ok(), !commits, "{name}, in a commit: {in_a_commit}: {answer:?}");
        if !commits {
            continue;
        }
        assert!(matches!(answer, Err(SaveError::Lost(_))), "{answer:?}");
        drop(old);
        assert_eq!(saved(&mut database.client(), "b"), expected, "{name}");
        let rows = database.client().query_one("SELECT count(*) FROM rows_of", &[]).unwrap();
        assert_eq!(rows.get::<_, i64>(0), 0, "no row of the old one is there");
    }
}

/// Whether a session of the store waits for a lock.
fn waits(database: &Database) -> bool {
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND application_name = 'waterline' AND wait_event_type = 'Lock'";
    database.client().query_one(waits, &[]).unwrap().get::<_, i64>(0) > 0
}

#[test]
fn a_consumer_that_starts_meanwhile_finds_what_is_committed() {
    for commits in [false, true] {
        let (database, store) = opened();
        let fences = ["a", "b"].map(|name| {
            (0..3).for_each(|step| live(&database, &store, name, step + if name == "a" { 3 } else { 0 }));
            epoch(&mut database.client(), name)
        });
        let nexts = ["a", "b"].map(|name| store.consumers().unwrap().iter().find(|it| it.name == name).unwrap().next);
        let mut client = database.client();
        let mut transaction = client.transaction().unwrap();
        store.replace_in(&mut transaction, &[("a", "b")]).unwrap();
        let (next, fence) = std::thread::scope(|scope| {
            let starts = scope.spawn(|| {
                let mut progress = store.progress("b");
                let saved = progress.acquire_all().unwrap();
                (saved.map(|saved| saved.next), progress.fence())
            });
            common::eventually("it to wait", || waits(&database));
            if commits { transaction.commit() } else { transaction.rollback() }.unwrap();
            starts.join().unwrap()
        });
        assert_eq!(next, nexts[usize::from(!commits)]);
        assert!(fence.cast_signed() > fences.into_iter().max().unwrap() || !commits, "{fence} {fences:?}");
    }
}

#[test]
fn the_example_replaces_wrong_balances_by_right_ones() {
    let (database, store) = opened();
    let tables = "CREATE TABLE transfers (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account bigint NOT NULL,
            amount bigint NOT NULL);
        CREATE TABLE balances (account bigint PRIMARY KEY, balance bigint NOT NULL)";
    database.client().batch_execute(tables).unwrap();
    let transfer = |jobs: i64| {
        let insert = "INSERT INTO transfers (account, amount) SELECT n % 5, 10 FROM generate_series(1, $1::bigint) n";
        database.client().execute(insert, &[&jobs]).unwrap();
    };
    // The code of a consumer, which takes this fee of each transfer.
    let run = |fee: i64| {
        let decode = |row: &postgres::Row| Ok((row.try_get::<_, i64>(1)?, row.try_get::<_, i64>(2)?));
        let transfers = PgJobs::table(&store, "transfers", decode).unwrap();
        // Other commits of the server make a first look wait for their flush of the log.
        common::eventually("the head", || transfers.head().unwrap().is_some());
        let head = transfers.head().unwrap().unwrap();
        let write = move |tx: &mut Transaction<'_>, results: &[(_, (i64, i64))]| {
            for (_, (account, amount)) in results {
                let add = "INSERT INTO balances AS b VALUES ($1, $2)
                    ON CONFLICT (account) DO UPDATE SET balance = b.balance + excluded.balance";
                tx.execute(add, &[account, &(amount - fee)])?;
            }
            Ok(())
        };
        let consumer = Consumer::builder(transfers, store.progress("balances")).stop_at(head);
        consumer.start_writing(|job| Ok(job.payload), write).unwrap().join().unwrap();
    };
    let balances = || {
        let rows = database.client().query("SELECT balance FROM balances ORDER BY account", &[]).unwrap();
        rows.iter().map(|row| row.get(0)).collect::<Vec<i64>>()
    };
    transfer(50);
    run(0);
    assert_eq!(balances(), [100; 5]);
    // Twice: the names are free again.
    for jobs in [50, 60] {
        example::run_again(&database.config).unwrap();
        assert_eq!(balances(), [jobs / 5 * 9; 5]);
        transfer(10);
        run(1);
        assert_eq!(balances(), [(jobs + 10) / 5 * 9; 5], "it goes on where the new one was");
    }
    let names: Vec<_> = store.consumers().unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["balances"]);
}
