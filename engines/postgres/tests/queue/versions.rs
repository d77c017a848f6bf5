//! Programs and schemas of two versions at once, as in a rolling deployment.

use crate::bench::{Bench, bench};
use crate::server::Server;
use postgres::NoTls;
use postgres::error::SqlState;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use waterline::Retry;
use waterline_postgres::{Error, PgOptions, PgStore};
use waterline_queue::{JobState, Limit, NewJob, Outcome, QueueOptions, Retention, Runner};

/// A next version, by the rules in `tables.sql`: a column of jobs, and an argument of a call.
const NEXT: &str = r#"
    SET LOCAL lock_timeout = '3s';
    SET search_path = waterline, pg_temp;
    ALTER TABLE job ADD COLUMN region text;
    ALTER TABLE ended ADD COLUMN region text;
    CREATE FUNCTION push(p_queue text, p_kind text, p_payload text, p_settings jsonb, p_region text, OUT id text, OUT outcome text) LANGUAGE plpgsql AS $$
    BEGIN
        SELECT a.id, a.outcome INTO id, outcome
        FROM unnest(push_jobs(p_queue, ARRAY[p_kind], ARRAY[p_payload], ARRAY[p_settings::text], false)) a
        WHERE a.what = 'pushed';
        UPDATE job SET region = p_region WHERE number = number_of((queue_of(p_queue)).id, push.id);
    END $$;
    CREATE OR REPLACE FUNCTION push(p_queue text, p_kind text, p_payload text, p_settings jsonb DEFAULT NULL, OUT id text, OUT outcome text)
    LANGUAGE sql AS $$ SELECT p.id, p.outcome FROM push(p_queue, p_kind, p_payload, p_settings, 'here') p $$;
"#;

/// The rights, and the row of this version.
fn next(version: i64, serves: Option<i64>) -> String {
    let rights = include_str!("../../schema/queue/grants.sql").replace("{schema}", "waterline");
    let (rights, _) = rights.split_once("RESET search_path").expect("the text ends so");
    let serves = serves.map_or("NULL".to_owned(), |serves| serves.to_string());
    format!("{NEXT} {rights} INSERT INTO version (version, serves) VALUES ({version}, {serves}); RESET search_path;")
}

fn newest(client: &mut postgres::Client) -> i64 {
    client.query_one("SELECT version FROM waterline.schema_version()", &[]).unwrap().get(0)
}

#[test]
fn a_program_works_through_a_migration_that_serves_it() {
    let Bench { store, config } = bench();
    let options =
        QueueOptions::default().retention(Retention::Keep).retry(Retry::fixed(Duration::ZERO).max_attempts(2));
    let queue = store.queue("q", options.clone()).unwrap();
    let [mut client, mut other] = [(); 2].map(|()| config.connect(NoTls).unwrap());
    let runs = Arc::new(AtomicU64::new(0));
    let counts = Arc::clone(&runs);
    let runner = Runner::builder(&queue).max_processing(2).on("k", move |_, number: u64| {
        counts.fetch_add(1, Ordering::SeqCst);
        if number % 10 == 7 { Err("no".into()) } else { Ok(Outcome::Done) }
    });
    let runner = runner.start().unwrap();
    let (stops, pushed) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stops.load(Ordering::SeqCst) {
                let number = pushed.fetch_add(2, Ordering::SeqCst);
                queue.push(NewJob::new("k", &number).unwrap().priority(waterline_queue::Priority::High)).unwrap();
                let push = "SELECT outcome FROM waterline.push('q', 'k', $1)";
                let mut outcome = other.query_one(push, &[&(number + 1).to_string()]);
                if outcome.as_ref().is_err_and(|error| error.code() == Some(&SqlState::INTERNAL_ERROR)) {
                    // The page for other languages says that the call is to be repeated.
                    outcome = other.query_one(push, &[&(number + 1).to_string()]);
                }
                assert_eq!(outcome.unwrap().get::<_, String>(0), "added");
            }
        });
        let runs = |more: u64| {
            let before = runs.load(Ordering::SeqCst);
            common::eventually("more runs", || runs.load(Ordering::SeqCst) >= before + more);
        };
        runs(20);
        let version = newest(&mut client);
        let mut transaction = client.transaction().unwrap();
        transaction.batch_execute(&next(version + 1, Some(version))).unwrap();
        transaction.commit().unwrap();
        runs(50);
        stops.store(true, Ordering::SeqCst);
    });
    let pushed = pushed.load(Ordering::SeqCst);
    common::eventually("all jobs to end", || {
        let counts = queue.counts();
        counts.finished + counts.dead == pushed
    });
    runner.stop().unwrap();
    assert_eq!(queue.counts().dead, (0..pushed).filter(|number| number % 10 == 7).count() as u64);
    // It starts again, and reads jobs of both versions.
    store.migrate().unwrap();
    let again = PgStore::connect(config, NoTls, PgOptions::new()).unwrap();
    again.migrate().unwrap();
    let queue = again.queue("q", options).unwrap();
    assert_eq!(queue.list(JobState::Dead, None, 10_000).unwrap().len() as u64, queue.counts().dead);
    assert_eq!(queue.requeue_dead().unwrap(), queue.status().unwrap().counts.ready);
    let regions = "SELECT count(*) FILTER (WHERE region = 'here') > 0, count(*) FILTER (WHERE region IS NULL) > 0 FROM waterline.job";
    let regions = client.query_one(regions, &[]).unwrap();
    assert!(
        regions.get::<_, bool>(0) && regions.get::<_, bool>(1),
        "there are jobs of both versions, which have died meanwhile"
    );
    let new = client.query_one("SELECT outcome FROM waterline.push('q', 'k', '1', NULL, 'there')", &[]);
    assert_eq!(new.unwrap().get::<_, String>(0), "added");
}

/// The version that was found, and the one that the program knows.
fn version_of(error: &Error) -> Option<(i64, i64)> {
    match error {
        Error::NewerSchema { found, known, .. } => Some((*found, *known)),
        _ => None,
    }
}

#[test]
fn a_schema_that_does_not_serve_is_refused_with_advice() {
    let Bench { store, config } = bench();
    let mut client = config.connect(NoTls).unwrap();
    let version = newest(&mut client);
    let refused = |store: &PgStore| {
        let error = store.queue("q", QueueOptions::default()).unwrap_err();
        let mut causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        causes
            .find_map(|error| error.downcast_ref::<Error>().map(|error| (error.to_string(), version_of(error))))
            .unwrap()
    };
    client.batch_execute(&format!("BEGIN; {} COMMIT", next(version + 1, None))).unwrap();
    assert_eq!(refused(&store).1, Some((version + 1, version)));
    assert!(matches!(store.migrate(), Err(Error::NewerSchema { .. })));
    // There is none.
    client.batch_execute("DROP SCHEMA waterline CASCADE").unwrap();
    let (text, version) = refused(&store);
    assert!(version.is_none() && text.contains("`PgStore::migrate`"), "{text}");
    store.migrate().unwrap();
    store.queue("q", QueueOptions::default()).unwrap();
}

#[test]
fn a_migration_waits_only_briefly_for_a_locked_table() {
    let database = Server::shared().database();
    let mut client = database.client();
    client.batch_execute(&PgStore::SCHEMA.replace("{schema}", "waterline")).unwrap();
    let mut open = client.transaction().unwrap();
    open.batch_execute("LOCK TABLE waterline.version").unwrap();
    let store = |options| PgStore::connect(database.config.clone(), NoTls, options).unwrap();
    let refused = store(PgOptions::new().ttl(Duration::from_millis(200))).migrate().unwrap_err();
    let code = match &refused {
        Error::Database(error) => error.code().cloned(),
        other => panic!("{other:?}"),
    };
    assert_eq!(code, Some(SqlState::LOCK_NOT_AVAILABLE), "{refused:?}");
    open.rollback().unwrap();
    // With the default timeouts: a busy machine may need some of that time.
    store(PgOptions::new()).migrate().unwrap();
}

#[test]
fn the_last_program_to_open_a_queue_sets_its_options() {
    let Bench { store, config } = bench();
    let next = PgStore::connect(config.clone(), NoTls, PgOptions::new()).unwrap();
    let mut client = config.connect(NoTls).unwrap();
    let mut stored = || -> (i64, bool) {
        let row = client.query_one("SELECT lease, limited FROM waterline.queue", &[]).unwrap();
        (row.get(0), row.get(1))
    };
    let old = || QueueOptions::default().lease(Duration::from_secs(100)).retention(Retention::Keep);
    let new = || QueueOptions::default().lease(Duration::from_secs(200)).limit(Limit::kind("k").at_once(1));
    let first = store.queue("q", old()).unwrap();
    assert_eq!(stored(), (100_000, false));
    let runner = Runner::builder(&first).max_processing(2).on("k", |_, _: u64| Ok(Outcome::Done)).start().unwrap();
    let second = next.queue("q", new()).unwrap();
    assert_eq!(stored(), (200_000, true));
    let push = |number: u64| first.push(NewJob::new("k", &number).unwrap()).unwrap().id;
    let runs = |id: &str| common::eventually("a run", || first.state(id).unwrap().is_none_or(JobState::is_ended));
    runs(&push(1));
    // An old process that starts again, as after a crash: its options win, too.
    let third = PgStore::connect(config.clone(), NoTls, PgOptions::new()).unwrap();
    let third = third.queue("q", old()).unwrap();
    assert_eq!(stored(), (100_000, false));
    runs(&push(2));
    runner.stop().unwrap();
    drop((second, third));
}

#[test]
fn a_queue_in_another_schema_has_its_own_jobs_and_roles() {
    let Bench { store, config } = bench();
    let first = store.queue("q", QueueOptions::default()).unwrap();
    let mut client = config.connect(NoTls).unwrap();
    for name in ["other", "an \"odd' schema; $1"] {
        let other = PgStore::connect(config.clone(), NoTls, PgOptions::new().schema(name)).unwrap();
        other.migrate().unwrap();
        let queue = other.queue("q", QueueOptions::default().limit(Limit::kind("k").at_once(1))).unwrap();
        let id = queue.push(NewJob::new("k", &1).unwrap()).unwrap().id;
        let runner = Runner::builder(&queue).on("k", |_, _: u64| Ok(Outcome::Done)).start().unwrap();
        common::eventually("its end", || queue.state(&id).unwrap() == Some(JobState::Finished));
        runner.stop().unwrap();
        let roles = "SELECT count(*) FROM pg_roles WHERE rolname IN ($1 || '_push', $1 || '_work', $1 || '_operate')";
        assert_eq!(client.query_one(roles, &[&name]).unwrap().get::<_, i64>(0), 3);
        assert_eq!(first.state(&id).unwrap(), None);
    }
}

#[test]
fn a_user_may_call_migrate_or_hears_which_role_is_missing() {
    let bench = bench();
    let mut client = bench.config.connect(NoTls).unwrap();
    let name = bench.config.get_dbname().unwrap().to_owned();
    client.batch_execute(&format!("CREATE ROLE user_{name} LOGIN")).unwrap();
    let mut config = bench.config.clone();
    config.user(&format!("user_{name}"));
    let store = PgStore::connect(config, NoTls, PgOptions::new()).unwrap();
    let refused = store.queue("q", QueueOptions::default()).unwrap_err().to_string();
    assert!(refused.contains("the rights of its user, of which the role `waterline_operate`"), "{refused}");
    client.batch_execute(&format!("GRANT waterline_operate TO user_{name}")).unwrap();
    store.migrate().unwrap();
    store.queue("q", QueueOptions::default()).unwrap();
}

#[test]
fn an_owner_without_createrole_grants_rights_later() {
    let database = Server::shared().database();
    let mut client = database.client();
    let owner = format!("owner_{}", database.name);
    let own = format!("CREATE ROLE {owner} LOGIN; GRANT CREATE ON DATABASE {} TO {owner}", database.name);
    client.batch_execute(&own).unwrap();
    let mut config = database.config.clone();
    config.user(&owner);
    let schema = format!("of_{}", database.name);
    let store = PgStore::connect(config.clone(), NoTls, PgOptions::new().schema(&schema)).unwrap();
    store.migrate().unwrap();
    for role in ["push", "work", "operate"] {
        client.batch_execute(&format!("CREATE ROLE {schema}_{role}")).unwrap();
    }
    let may_push =
        format!("SELECT has_function_privilege('{schema}_push', '{schema}.push(text,text,text,jsonb)', 'EXECUTE')");
    assert!(!client.query_one(&may_push, &[]).unwrap().get::<_, bool>(0));
    config.connect(NoTls).unwrap().batch_execute(&format!("SELECT {schema}.grant_roles()")).unwrap();
    assert!(client.query_one(&may_push, &[]).unwrap().get::<_, bool>(0));
}

#[test]
fn the_schema_text_touches_no_other_schema_and_no_session() {
    // Outside a transaction it would have no effect: all would be made in the schema of the user.
    assert!(!PgStore::SCHEMA.contains("SET LOCAL"));
    let database = Server::shared().database();
    let mut client = database.client();
    client.batch_execute(&PgStore::SCHEMA.replace("{schema}", "ours")).unwrap();
    let elsewhere =
        "SELECT count(*), current_setting('search_path') FROM pg_proc WHERE pronamespace = 'public'::regnamespace";
    let row = client.query_one(elsewhere, &[]).unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, &str>(1)), (0, "\"$user\", public"));
}
