//! Damaged rows: changed by hand, or by a failing disk. Whatever value a column has, the other jobs
//! go on: their leases end, they are claimed and end, they expire, and schedules make theirs.

use crate::bench::bench;
use postgres::{Client, NoTls, Transaction};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use waterline_queue::{Accept, JobState, NewJob, QueueOptions};

/// The time at which the rows are made.
const BEGIN: i64 = 1_700_000_000_000;

/// The damaged rows of each table. The others stay: their names begin with `o`.
const TABLES: [(&str, &str); 18] = [
    ("queue", "name = 'r'"),
    ("limits", "name = 'ka'"),
    ("bucket", "name = 'kv'"),
    ("job", "name LIKE 'v%'"),
    ("ended", "name LIKE 'v%'"),
    ("edge", "job IN (SELECT number FROM waterline.job WHERE name LIKE 'v%')"),
    (
        "edge_bell",
        "awaited IN (SELECT awaited FROM waterline.edge e, waterline.job j WHERE j.number = e.job AND j.name LIKE 'v%')",
    ),
    ("freed", "name = 'kv'"),
    ("mark", "fingerprint LIKE 'v%'"),
    ("executed", "fingerprint LIKE 'v%'"),
    ("root", "signature LIKE 'v%'"),
    ("gone", "name LIKE 'v%'"),
    ("note", "place LIKE 'v%'"),
    ("average", "kind LIKE 'v%'"),
    ("periodic", "name LIKE 'v%'"),
    ("tally", "true"),
    ("worker", "name LIKE 'v%'"),
    ("damaged", "true"),
];

/// Ten values of each type, or all that it has.
fn values(of: &str) -> &'static [&'static str] {
    match of {
        "bigint" => &[
            "-9223372036854775808",
            "9223372036854775807",
            "-1",
            "0",
            "1",
            "4611686018427387904",
            "2147483648",
            "NULL",
            "9007199254740993",
            "36028797018963969",
        ],
        "integer" => &["-2147483648", "2147483647", "-1", "0", "1", "NULL", "7", "1073741824", "100", "-1000"],
        "smallint" => &["-32768", "32767", "-1", "0", "1", "3", "4", "7", "NULL", "100"],
        "text" => &["NULL", "''", "'x'", "'{'", "'[]'", "'null'", "repeat('x', 100000)", "'-1'", "E'\\n'", "'NaN'"],
        "jsonb" => &[
            "NULL",
            "'null'",
            "'{}'",
            "'[]'",
            "'\"x\"'",
            r#"'{"first_ms": "x"}'"#,
            r#"'{"attempts": -1}'"#,
            r#"'{"growth": 5}'"#,
            r#"'{"first_ms": 1e300, "factor": 1e300, "growth": "factor"}'"#,
            r#"'{"jitter": "NaN", "attempts": "Infinity"}'"#,
        ],
        "double precision" => {
            &["'NaN'", "'Infinity'", "'-Infinity'", "0", "-1", "1e308", "NULL", "-1e308", "1e-300", "2"]
        }
        "numeric" => &["'NaN'", "0", "-1", "1e-300", "1e300", "NULL", "1e29", "-1e300", "2", "1e10"],
        "boolean" => &["true", "false", "NULL"],
        "\"char\"" => &["'c'", "'d'", "'w'", "'x'", "''", "NULL"],
        "text[]" => &["NULL", "'{}'", "'{NULL}'", "'{x,x}'"],
        "regclass" => &["NULL", "0", "1", "1259"],
        "regclass[]" => &["NULL", "'{}'"],
        "waterline.job_state" => &["'ready'", "'held'", "'waiting'", "'running'", "NULL"],
        other => panic!("no value is known of the type {other}"),
    }
}

/// Jobs in all states: those to be damaged (`v`) and the others (`o`).
const ROWS: &str = r#"
    CREATE FUNCTION public.push(p_id text, p_more jsonb DEFAULT '{}') RETURNS text LANGUAGE sql AS
    $$ SELECT id FROM waterline.push('q', 'k', '1', jsonb_build_object('id', p_id) || p_more) $$;
    -- Damages rows one by one, and returns how many: the server refuses some values.
    CREATE FUNCTION public.damage(p_table text, p_rows text, p_column text, p_value text) RETURNS int LANGUAGE plpgsql AS $$
    DECLARE v_spot tid; v_count int := 0;
    BEGIN
        FOR v_spot IN EXECUTE format('SELECT ctid FROM waterline.%s WHERE %s', p_table, p_rows) LOOP
            BEGIN
                EXECUTE format('UPDATE waterline.%s SET %I = %s WHERE ctid = %L', p_table, p_column, p_value, v_spot);
                v_count := v_count + 1;
            EXCEPTION WHEN OTHERS THEN NULL;
            END;
        END LOOP;
        RETURN v_count;
    END $$;
    SELECT waterline.create_queue('q', '{"limits": [{"of": "key", "name": "a", "at_once": 1}, {"of": "key", "name": "b", "at_once": 1},
        {"of": "key", "name": "r", "rate": {"count": 1000, "per_ns": 1}}, {"of": "kind", "name": "lk", "at_once": 1}]}');
    SELECT waterline.create_queue('r');
    SELECT push(w || n) FROM unnest('{v,o}'::text[]) w, unnest('{silent,over,fin,fail}'::text[]) n;
    SELECT push('vkeyed', '{"key": "a"}'), push('okeyed', '{"key": "b"}');
    CREATE TABLE public.lease AS SELECT id, job, token FROM waterline.claim('q', 100);
    UPDATE waterline.job SET silent = true WHERE name LIKE '%silent';
    SELECT push('vheld', '{"key": "a"}'), push('oheld', '{"key": "b"}');
    SELECT waterline.claim('q', 100);
    SELECT push(w || n) FROM unnest('{v,o}'::text[]) w, unnest('{dead,done,first}'::text[]) n;
    CREATE TABLE public.ends AS SELECT id, job, token FROM waterline.claim('q', 100);
    SELECT waterline.fail(ARRAY[job], ARRAY[token], p_bury => '{true}') FROM public.ends WHERE id LIKE '%dead';
    SELECT waterline.finish(ARRAY[job], ARRAY[token]) FROM public.ends WHERE id LIKE '%done';
    SELECT push(w || 'waits', jsonb_build_object('after', jsonb_build_array(w || 'first'))), push(w || 'ready'), push(w || 'rated', '{"key": "r"}'),
        push(w || 'exp', '{"expires_ms": 1000, "priority": 3}'), push(w || 'sched', '{"delay_ms": 500}'),
        push(w || 'uniq', jsonb_build_object('unique', jsonb_build_object('fingerprint', w || 'f', 'until', 'done'))),
        push(w || 'mark', jsonb_build_object('unique', jsonb_build_object('fingerprint', w || 'm', 'until', 'within', 'within_ms', 5))),
        push(w || 'skip', jsonb_build_object('skip', w || 's')), push(w || 'root', jsonb_build_object('root', jsonb_build_object('signature', w, 'at', 5))),
        waterline.change_note('q', w || 'note', 'set', '5', 100), waterline.set_average('q', w, 5, 5, 5)
    FROM unnest('{v,o}'::text[]) w;
    SELECT FROM unnest('{v,o}'::text[]) w, waterline.register_periodic('q', w, 'often', 1000, 'k', '1', '{}', true);
    SELECT waterline.finish(ARRAY[job], ARRAY[token]) FROM public.ends WHERE id LIKE '%first';
    INSERT INTO waterline.gone (queue, name, until, since) SELECT id, w, 5, 5 FROM waterline.queue, unnest('{v,o}'::text[]) w WHERE name = 'q';
    INSERT INTO waterline.executed SELECT id, w, 5, 5 FROM waterline.queue, unnest('{v,o}'::text[]) w WHERE name = 'q';
    INSERT INTO waterline.bucket SELECT id, 'k' || w, 5, 1, 5 FROM waterline.queue, unnest('{v,o}'::text[]) w WHERE name = 'q';
    INSERT INTO waterline.freed (queue, at, name) SELECT id, 5, 'k' || w FROM waterline.queue, unnest('{v,o}'::text[]) w WHERE name = 'q';
    INSERT INTO waterline.tally SELECT id, 5, 5, 1, 1, 1, 1, 1, 1, 'x', 1 FROM waterline.queue WHERE name = 'q';
    INSERT INTO waterline.worker (queue, number, name, began, seen) SELECT id, 5, 'v', 5, 5 FROM waterline.queue WHERE name = 'q';
    INSERT INTO waterline.damaged SELECT 777777, id, 'job', 'v', 'k', '1', 5, 'no reason', '{}' FROM waterline.queue WHERE name = 'q';
"#;

/// Read calls, all of which show the others.
const LOOKS: [&str; 19] = [
    "get('q', 'n')",
    "list('q', 'ready')",
    "list('q', 'scheduled')",
    "list('q', 'running')",
    "list('q', 'waiting')",
    "list('q', 'finished')",
    "list('q', 'dead')",
    "list('q', 'damaged')",
    "counts('q')",
    "status_inputs('q')",
    "limits_used('q')",
    "workers_of('q')",
    "periodics_of('q')",
    "notes_of('q', '')",
    "averages_of('q')",
    "waits_since('q')",
    "who_runs('q')",
    "peek_now('q')",
    "states_of('q', '{n,vready}')",
];

type Checked = Result<(), String>;

struct Case<'c, 't> {
    transaction: &'c mut Transaction<'t>,
    now: &'c mut i64,
}

impl Case<'_, '_> {
    fn rows(&mut self, sql: &str) -> Result<Vec<postgres::Row>, String> {
        self.transaction.query(sql, &[]).map_err(|error| format!("{sql}: {error:?}"))
    }

    fn is(&mut self, sql: &str) -> Checked {
        let is_true = self.rows(&format!("SELECT {sql}"))?[0].get::<_, Option<bool>>(0) == Some(true);
        if is_true { Ok(()) } else { Err(format!("not so: {sql}")) }
    }

    fn later(&mut self, millis: i64) -> Checked {
        *self.now += millis;
        self.rows(&format!("SELECT set_config('waterline.now', '{}', true)", self.now)).map(drop)
    }

    /// Claims jobs and ends them, and returns their ids.
    fn work(&mut self) -> Result<Vec<String>, String> {
        let rows = self.rows("SELECT id, job, token FROM waterline.claim('q', 10)")?;
        let column = |at: usize| rows.iter().map(|row| row.get::<_, i64>(at)).collect::<Vec<_>>();
        let (jobs, tokens) = (column(1), column(2));
        // What did not fit into the answer is loaded.
        let missing = rows.iter().enumerate().filter(|(_, row)| row.get::<_, Option<&str>>(0).is_none());
        let (jobs_left, tokens_left): (Vec<_>, Vec<_>) = missing.map(|(at, _)| (jobs[at], tokens[at])).unzip();
        let load = "SELECT id FROM waterline.load($1, $2)";
        let loaded = self.transaction.query(load, &[&jobs_left, &tokens_left]);
        let loaded = loaded.map_err(|error| format!("load: {error:?}"))?;
        self.transaction
            .query("SELECT waterline.finish($1, $2)", &[&jobs, &tokens])
            .map_err(|error| format!("finish: {error:?}"))?;
        let shown = rows.iter().filter_map(|row| row.get::<_, Option<String>>(0));
        Ok(shown.chain(loaded.iter().map(|row| row.get(0))).collect())
    }

    /// Returns what does not go on.
    fn check(&mut self) -> Checked {
        let lease = |id: &str, of: &str| format!("(SELECT {of} FROM public.lease WHERE id = '{id}')");
        let both = |end: &str, of: &str| {
            format!("ARRAY[{}, {}]", lease(&format!("v{end}"), of), lease(&format!("o{end}"), of))
        };
        for (call, end, more) in [("finish", "fin", ""), ("fail", "fail", ", p_delays => '{NULL,0}'")] {
            let counted = lease(&format!("o{end}"), "job");
            self.is(&format!(
                "{counted} = ANY (waterline.{call}({}, {}{more}))",
                both(end, "job"),
                both(end, "token")
            ))?;
        }
        let others = [
            "silent", "over", "keyed", "held", "waits", "ready", "rated", "uniq", "mark", "skip", "root", "sched",
            "fail",
        ];
        let mut stopped: BTreeSet<_> = others.iter().map(|other| format!("o{other}")).collect();
        // Jobs that are to run alone have a claim each.
        for round in 0..60 {
            self.later(1_000)?;
            self.work()?.iter().for_each(|id| _ = stopped.remove(id));
            if round > 3 && stopped.is_empty() {
                break;
            }
        }
        if !stopped.is_empty() {
            return Err(format!("not run: {stopped:?}"));
        }
        self.is("(SELECT state = 'dead' FROM waterline.get('q', 'oexp'))")?;
        self.is("NOT EXISTS (SELECT FROM waterline.ended WHERE name = 'odone')")?;
        self.is(&format!("(SELECT last > {BEGIN} FROM waterline.periodic WHERE name = 'o')"))?;
        for more in [
            "{}",
            r#"{"key": "b"}"#,
            r#"{"unique": {"fingerprint": "u", "until": "within", "within_ms": 9}}"#,
            r#"{"after": ["n"]}"#,
        ] {
            let id = if more == "{}" { "'n'" } else { "NULL" };
            self.rows(&format!("SELECT public.push({id}, '{more}')"))?;
        }
        for look in LOOKS {
            self.rows(&format!("SELECT * FROM waterline.{look}"))?;
        }
        // The clock is set back, and all times with it.
        self.later(-5_000)?;
        for _ in 0..3 {
            self.rows("SELECT waterline.turn('{}', '{}', '{}', '{}', '{}', '{}', 'q', 0, NULL, NULL, NULL, NULL, true, NULL, 0)")?;
        }
        self.rows("SELECT public.push('m', '{\"priority\": 0}')")?;
        let claimed = self.work()?;
        if claimed.iter().any(|id| id == "m") {
            Ok(())
        } else {
            Err(format!("after the clock was set back: {claimed:?}"))
        }
    }
}

fn rows_of(client: &mut Client) {
    client.batch_execute(&format!("SET waterline.now = '{BEGIN}'; SET client_min_messages = error; {ROWS}")).unwrap();
    let states = "SELECT count(*) FROM waterline.job GROUP BY state ORDER BY state";
    let states: Vec<i64> = client.query(states, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(states, [16, 2, 2, 10], "ready, held, waiting, running");
}

#[test]
fn other_jobs_go_on_beside_any_damaged_value() {
    let mut client = bench().config.connect(NoTls).unwrap();
    rows_of(&mut client);
    let columns = "SELECT c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        WHERE c.relnamespace = 'waterline'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped";
    let columns: Vec<(String, String, String)> =
        client.query(columns, &[]).unwrap().iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    let mut cases: Vec<(&str, &str, &str, &str)> = Vec::new();
    for (table, rows) in TABLES {
        let own: Vec<_> = columns.iter().filter(|column| column.0 == table).collect();
        assert!(!own.is_empty(), "there is no table {table}");
        cases.extend(
            own.iter().flat_map(|(_, column, of)| values(of).iter().map(move |value| (table, rows, &**column, *value))),
        );
    }
    // A soak tries all of them. A check tries what it can within a time.
    let longest = Duration::from_secs(crate::size(15, 3_600));
    let seed = common::seed();
    let mut random = 2 * seed + 1;
    cases.sort_by_cached_key(|_| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    });
    let (begun, mut now, mut stopped, mut tried) = (Instant::now(), BEGIN, Vec::new(), 0);
    for &(table, rows, column, value) in &cases {
        if begun.elapsed() > longest && tried > 20 {
            break;
        }
        now += 1_000_000;
        let mut transaction = client.transaction().unwrap();
        let mut case = Case { transaction: &mut transaction, now: &mut now };
        case.later(0).unwrap();
        let damage = "SELECT public.damage($1, $2, $3, $4)";
        let count: i32 = case.transaction.query_one(damage, &[&table, &rows, &column, &value]).unwrap().get(0);
        if count > 0 {
            tried += 1;
            if let Err(error) = case.check() {
                stopped.push(format!("{table}.{column} = {value}: {error}"));
            }
        }
        now += 10_000;
        transaction.rollback().unwrap();
    }
    println!("seed {seed}: {tried} of {} cases in {:.1?}", cases.len(), begun.elapsed());
    assert!(tried > 20 && stopped.is_empty(), "seed {seed}: {stopped:#?}");
}

/// Makes the next call tick, and not only once a second.
const TICK_NOW: &str = "SELECT setval(ticked, 0) FROM waterline.queue";

#[test]
fn a_job_that_makes_calls_fail_is_set_aside_and_listed() {
    let bench = bench();
    let queue = bench.store.queue("q", QueueOptions::default()).unwrap();
    let mut client = bench.config.connect(NoTls).unwrap();
    let damages = [
        "crashes = 2147483647",
        "failures = 2147483647, silent = true",
        r#"retry = '{"first_ms": "x"}', silent = true"#,
        "since = -9223372036854775808, silent = true",
    ];
    for (at, damage) in damages.into_iter().enumerate() {
        let name = format!("bad{at}");
        queue.push(NewJob::new("k", &1).unwrap().id(&name)).unwrap();
        queue.push_all((0..4).map(|number| NewJob::new("k", &number).unwrap())).unwrap();
        let waits = queue.push(NewJob::new("k", &1).unwrap().after([&name])).unwrap().id;
        let claimed = client.query("SELECT job, token FROM waterline.claim('q', 5, 'w', NULL, 1)", &[]).unwrap();
        assert_eq!(claimed.len(), 5);
        client.execute(&format!("UPDATE waterline.job SET {damage} WHERE name = $1"), &[&name]).unwrap();
        client.batch_execute("UPDATE waterline.job SET at = at - 1000 WHERE state = 'running'").unwrap();
        client.batch_execute(TICK_NOW).unwrap();
        // The others come back, and the damaged row holds up none of them.
        for _ in 0..4 {
            // (On a loaded machine, a tick comes to some of them.)
            let back = (0..50).find_map(|_| {
                client.batch_execute(TICK_NOW).unwrap();
                queue.accept(Accept::new()).unwrap()
            });
            back.expect("one of the others").finish(None).unwrap();
        }
        assert!(queue.accept(Accept::new()).unwrap().is_none());
        assert_eq!(
            (queue.state(&name).unwrap(), queue.state(&waits).unwrap()),
            (Some(JobState::Damaged), Some(JobState::Waiting))
        );
        let [job] = &queue.list(JobState::Damaged, None, 9).unwrap()[..] else { panic!("there is one") };
        let reason = job.damaged.as_deref().unwrap();
        assert!(
            (&job.id, &*job.kind) == (&name, "k")
                && (reason.contains("out of range") || reason.contains("invalid input")),
            "{job:?}"
        );
        assert_eq!(queue.counts().damaged, 1);
        assert!(queue.status().unwrap().to_string().contains("damaged 1"));
        assert!(queue.list(JobState::Damaged, Some(job), 9).unwrap().is_empty());
        let row: String = client.query_one("SELECT row FROM waterline.damaged", &[]).unwrap().get(0);
        assert!(row.contains(&format!("\"name\":\"{name}\"")), "{row}");
        // Only a push of its id takes its place.
        if at == 0 {
            queue.push(NewJob::new("k", &1).unwrap().id(&name)).unwrap();
            queue.accept(Accept::new()).unwrap().unwrap().finish(None).unwrap();
        } else {
            queue.remove(&name).unwrap();
        }
        assert_eq!(queue.counts().damaged, 0);
        let mut last = queue.accept(Accept::new()).unwrap().expect("nothing is before it any more");
        assert_eq!(last.id(), waits);
        last.finish(None).unwrap();
    }
    // One of several ends, whose failures cannot be counted.
    queue.push_all((0..3).map(|number| NewJob::new("k", &number).unwrap())).unwrap();
    let claimed = client.query("SELECT job, token FROM waterline.claim('q', 5)", &[]).unwrap();
    let [jobs, tokens] = [0, 1].map(|at| claimed.iter().map(|row| row.get::<_, i64>(at)).collect::<Vec<_>>());
    client.execute("UPDATE waterline.job SET failures = 2147483647 WHERE number = $1", &[&jobs[1]]).unwrap();
    let counted: Vec<i64> = client.query_one("SELECT waterline.fail($1, $2)", &[&jobs, &tokens]).unwrap().get(0);
    assert_eq!(counted, [jobs[0], jobs[2]]);
    assert_eq!(queue.counts().damaged, 1);
}

#[test]
fn a_schedule_that_makes_ticks_fail_is_set_aside() {
    let bench = bench();
    let queue = bench.store.queue("q", QueueOptions::default()).unwrap();
    let mut client = bench.config.connect(NoTls).unwrap();
    let register = "SELECT FROM waterline.register_periodic('q', $1, 'often', 60000, 'k', '1', NULL, true)";
    for name in ["bad", "good"] {
        client.query(register, &[&name]).unwrap();
    }
    client
        .batch_execute("UPDATE waterline.periodic SET last = CASE name WHEN 'good' THEN 1 ELSE 9223372036854775807 END")
        .unwrap();
    // (On a loaded machine, a tick comes to some of them.)
    let mut ran = 0;
    let shown = (0..50).find_map(|_| {
        client.batch_execute(TICK_NOW).unwrap();
        if let Some(mut lease) = queue.accept(Accept::new()).unwrap() {
            lease.finish(None).unwrap();
            ran += 1;
        }
        let shown = queue.periodics().unwrap().into_iter().map(|one| (one.name, one.damaged.is_some()));
        let shown: Vec<_> = shown.collect();
        shown.iter().any(|one| one.1).then_some(shown)
    });
    assert_eq!(shown, Some(vec![("bad".to_owned(), true), ("good".to_owned(), false)]));
    assert!(ran <= 1, "the job of the other one");
    assert_eq!(queue.counts().damaged, 0, "it is no job");
    client.query(register, &[&"bad"]).unwrap();
    assert!(queue.periodics().unwrap().iter().all(|one| one.damaged.is_none()));
    client.batch_execute("UPDATE waterline.periodic SET last = 9223372036854775807 WHERE name = 'bad'").unwrap();
    client.batch_execute(TICK_NOW).unwrap();
    assert!(queue.accept(Accept::new()).unwrap().is_none());
    assert!(queue.remove_periodic("bad").unwrap());
    assert!(queue.periodics().unwrap().iter().all(|one| one.damaged.is_none()));
}
