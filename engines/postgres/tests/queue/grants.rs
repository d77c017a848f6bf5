//! The roles: each may make its calls, and no others.

use crate::bench::{Bench, bench};
use postgres::NoTls;
use postgres::error::SqlState;
use waterline_postgres::{PgOptions, QueueExt};
use waterline_queue::{NewJob, QueueOptions};

/// The calls, and the lowest role that may make them; `None`: only the functions themselves do.
const CALLS: &[(Option<usize>, &str)] = &[
    (Some(0), "push('q', 'k', '1')"),
    (Some(0), "push_many('q', '{k}', '{1}')"),
    (Some(0), "push_plain('q', '{k}', '{1}')"),
    (Some(0), "push_jobs('q', '{k}', '{1}', NULL, false)"),
    (Some(0), "push_across('{q}', '{1}', '{k}', '{1}', '{NULL}', '{f}')"),
    (Some(0), "get('q', '~1')"),
    (Some(0), "counts('q')"),
    (Some(0), "listen_to('q')"),
    (Some(0), "listen('q')"),
    (Some(0), "states_of('q', '{~1}')"),
    (Some(0), "schema_version()"),
    (Some(1), "claim('q')"),
    (Some(1), "load('{}', '{}')"),
    (Some(1), "work('q', 'w', '{k}')"),
    (Some(1), "turn('{}', '{}', '{}', '{}', '{}', '{}', 'q', 1, NULL, NULL, NULL, 'w', false, NULL, NULL)"),
    (Some(1), "finish('{}', '{}')"),
    (Some(1), "end_in('{}', '{}', '{}', true)"),
    (Some(1), "ended_by('{}', '{}')"),
    (Some(1), "fail('{}', '{}')"),
    (Some(1), "snooze('{}', '{}', '{}')"),
    (Some(1), "renew('{}', '{}')"),
    (Some(1), "note_stop('{}', '{}')"),
    (Some(1), "edit('q', '~1', NULL, NULL, 'nothing', NULL, NULL, NULL, NULL)"),
    (Some(1), "change_note('q', '01kx', 'add', '1', 0)"),
    (Some(1), "put_note('q', '01kx', 'add', '1', 0)"),
    (Some(1), "notes_of('q', '01k', NULL, 1)"),
    (Some(1), "peek_now('q')"),
    (Some(1), "waits_since('q')"),
    (Some(1), "who_runs('q')"),
    (Some(1), "set_average('q', 'k', 1, 1, 1)"),
    (Some(1), "tick_once('q', 'p', 0, 1, '{}', false, 'k', '1', NULL)"),
    (Some(2), "queues()"),
    (Some(2), "create_queue('q')"),
    (Some(2), "set_options('q', '{}')"),
    (Some(2), "steer('q', 'pause', NULL, 0)"),
    (Some(2), "list('q', 'ready', NULL, NULL, NULL, NULL, 1)"),
    (Some(2), "status_inputs('q')"),
    (Some(2), "limits_used('q')"),
    (Some(2), "workers_of('q')"),
    (Some(2), "related_to('q', '~1', 1)"),
    (Some(2), "register_periodic('q', 'p', 'x', NULL, 'k', '1', NULL, true)"),
    (Some(2), "periodics_of('q')"),
    (Some(2), "averages_of('q')"),
    (None, "queue_of('q')"),
    (None, "clock()"),
    (None, "end_many('{}', '{}', '{}', '{}', '{}', '{}', false, NULL, NULL, '{}')"),
    (None, "number_of(1, '~1')"),
    (None, "lock_of('claim', 1)"),
];

/// The procedures, in the same way.
const PROCEDURES: &[(Option<usize>, &str)] = &[
    (Some(0), "push_and_commit('q', '{k}', '{1}', '{NULL}', false)"),
    (Some(0), "push_across_and_commit('{q}', '{1}', '{k}', '{1}', '{NULL}', '{f}')"),
    (Some(0), "push_plain_and_commit('q', '{k}', '{1}')"),
    (Some(1), "turn_and_commit('{}', '{}', '{}', '{}', '{}', '{}', 'q', 1, NULL, NULL, NULL, 'w', false, NULL, NULL)"),
    (Some(1), "change_note_and_commit('q', '01kx', 'add', '1', 0)"),
    (Some(0), "begin_anew()"),
];

#[test]
fn each_role_makes_only_its_calls_and_touches_no_table() {
    let Bench { store, config } = bench();
    drop(store.queue("q", QueueOptions::default()).unwrap());
    let mut client = config.connect(NoTls).unwrap();
    client.execute("SELECT waterline.push('q', 'k', '1')", &[]).unwrap();
    client.batch_execute("CREATE ROLE stranger; GRANT USAGE ON SCHEMA waterline TO stranger").unwrap();
    let roles =
        [(None, "stranger"), (Some(0), "waterline_push"), (Some(1), "waterline_work"), (Some(2), "waterline_operate")];
    for (rank, role) in roles {
        client.batch_execute(&format!("SET ROLE {role}")).unwrap();
        let calls = CALLS.iter().map(|(least, call)| (least, format!("SELECT * FROM waterline.{call}")));
        let procedures = PROCEDURES.iter().map(|(least, call)| (least, format!("CALL waterline.{call}")));
        for (least, call) in calls.chain(procedures) {
            let made = client.batch_execute(&call);
            let is_allowed = least.is_some_and(|least| rank.is_some_and(|rank| rank >= least));
            let is_refused = made.as_ref().is_err_and(|error| error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE));
            assert_eq!(is_refused, !is_allowed, "{role} calls {call}: {made:?}");
            assert!(is_refused || made.is_ok(), "{role} calls {call}: {made:?}");
        }
        let tables =
            ["job", "ended", "queue", "limits", "edge", "freed", "note", "tally", "jobs", "version", "progress"];
        // A program asks for the version before it migrates.
        let reads = |table: &str| table == "version" && rank.is_some();
        for table in tables {
            let writes = format!("DELETE FROM waterline.{table}");
            // No role deletes from the view.
            let writes = if table == "jobs" { None } else { Some(writes) };
            let looks = format!("SELECT * FROM waterline.{table}");
            assert_eq!(client.batch_execute(&looks).is_ok(), reads(table), "{role}: {table}");
            for statement in [Some(looks).filter(|_| !reads(table)), writes].into_iter().flatten() {
                let refused = client.batch_execute(&statement).unwrap_err();
                assert_eq!(refused.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{role}: {statement}");
            }
        }
        client.batch_execute("RESET ROLE").unwrap();
    }
}

#[test]
fn push_only_users_push_in_their_own_transaction() {
    let Bench { store, config } = bench();
    let queue = store.queue("q", QueueOptions::default()).unwrap();
    let mut client = config.connect(NoTls).unwrap();
    client.batch_execute("SET ROLE waterline_push").unwrap();
    let mut transaction = client.transaction().unwrap();
    for job in [NewJob::new("k", &1).unwrap(), NewJob::new("k", &2).unwrap().id("a")] {
        assert!(queue.push_in(&mut transaction, job).unwrap().is_new());
    }
    transaction.commit().unwrap();
    assert_eq!(queue.counts().ready, 2);
    // The error says what its rules need, and not to check the server.
    let serializable = client.build_transaction().isolation_level(postgres::IsolationLevel::Serializable);
    let waits = NewJob::new("k", &3).unwrap().after(["a"]);
    let refused = queue.push_in(&mut serializable.start().unwrap(), waits).unwrap_err().to_string();
    assert!(refused.contains("the isolation level of its transaction, which is to be READ COMMITTED"), "{refused}");
}

#[test]
fn a_user_table_earlier_in_the_search_path_is_ignored() {
    let Bench { store, config } = bench();
    drop(store.queue("q", QueueOptions::default()).unwrap());
    let mut client = config.connect(NoTls).unwrap();
    client
        .batch_execute(
            "CREATE SCHEMA trap; CREATE TABLE trap.job (LIKE waterline.job); CREATE TEMP TABLE job (LIKE waterline.job);
             CREATE FUNCTION trap.clock() RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint'; SET search_path = trap, pg_temp;
             SELECT waterline.push('q', 'k', '1')",
        )
        .unwrap();
    let count = |client: &mut postgres::Client, table: &str| {
        client.query_one(&format!("SELECT count(*) FROM {table}"), &[]).unwrap().get::<_, i64>(0)
    };
    assert_eq!(["waterline.job", "trap.job", "pg_temp.job"].map(|table| count(&mut client, table)), [1, 0, 0]);
}

/// The calls that only the library makes: they are on no page, and may change.
const OF_THE_LIBRARY: &[&str] = &[
    "turn",
    "begin_anew",
    "turn_and_commit",
    "push_and_commit",
    "push_across",
    "push_across_and_commit",
    "push_plain_and_commit",
    "put_note",
    "change_note_and_commit",
    "push_jobs",
    "push_plain",
    "end_in",
    "ended_by",
    "peek_now",
    "states_of",
    "waits_since",
    "who_runs",
    "tick_once",
    "set_average",
    "averages_of",
    "periodics_of",
    "status_inputs",
    "limits_used",
    "related_to",
];

#[test]
fn the_page_for_other_languages_lists_each_call() {
    let mut client = bench().config.connect(NoTls).unwrap();
    // As they are written: without the parameters of the answer, and without casts.
    let calls = "SELECT p.proname::text, p.proname || '(' || regexp_replace(regexp_replace(
            pg_get_function_arguments(p.oid), '(, )?OUT .*', ''), '::[a-z ]+(\\[\\])?', '', 'g') || ')'
        FROM pg_proc p WHERE p.pronamespace = 'waterline'::regnamespace
            AND has_function_privilege('waterline_operate', p.oid, 'EXECUTE') ORDER BY 1";
    let calls: Vec<(String, String)> =
        client.query(calls, &[]).unwrap().iter().map(|row| (row.get(0), row.get(1))).collect();
    let page = include_str!("../../docs/from_another_language.md");
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let is_on_page = |call: &str| page.contains(&format!(" {call} "));
    let (library, users): (Vec<_>, Vec<_>) =
        calls.iter().partition(|(name, _)| OF_THE_LIBRARY.contains(&name.as_str()));
    assert_eq!(library.len(), OF_THE_LIBRARY.len());
    let missing: Vec<_> = users.iter().filter(|(_, call)| !is_on_page(call)).collect();
    assert!(users.len() > 15 && missing.is_empty(), "{missing:#?}");
    let raised: std::collections::BTreeSet<_> = concat!(
        include_str!("../../schema/queue/checks.sql"),
        include_str!("../../schema/queue/ends.sql"),
        include_str!("../../schema/queue/push.sql"),
        include_str!("../../schema/queue/requeue.sql"),
        include_str!("../../schema/queue/steer.sql"),
        include_str!("../../schema/queue/tables.sql"),
    )
    .split("ERRCODE = '")
    .skip(1)
    .filter_map(|rest| rest.split('\'').next())
    .collect();
    let unsaid: Vec<_> = raised.iter().filter(|code| !page.contains(&format!("`{code}`"))).collect();
    assert!(raised.len() > 8 && unsaid.is_empty(), "{unsaid:?}");
}

#[test]
fn a_role_made_by_another_session_gets_its_rights() {
    let server = crate::server::Server::shared();
    let (database, other) = (server.database(), server.database());
    let mut making = other.client();
    making.batch_execute("BEGIN; CREATE ROLE raced_push NOLOGIN").unwrap();
    let (mut client, options) = (database.client(), PgOptions::new().schema("raced"));
    std::thread::scope(|scope| {
        let store = scope.spawn(|| database.store(options));
        let waits = "SELECT FROM pg_stat_activity WHERE wait_event = 'transactionid' AND datname = current_database()";
        common::eventually("the wait for the other session", || !client.query(waits, &[]).unwrap().is_empty());
        making.batch_execute("COMMIT").unwrap();
        drop(store.join().unwrap());
    });
    let row = client.query_one("SELECT has_schema_privilege('raced_push', 'raced', 'USAGE')", &[]).unwrap();
    assert!(row.get::<_, bool>(0));
}
