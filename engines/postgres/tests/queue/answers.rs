//! The bytes of each answer: a call that writes sends at most what the server buffers until the
//! commit. With more it would wait for its caller to read, holding all its locks.

use crate::bench::{Bench, bench};
use crate::server::PATIENCE;
use parking_lot::Mutex;
use postgres::NoTls;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use waterline_queue::{Accept, DrainLimits, Limit, NewJob, Outcome, QueueChange, QueueError, QueueOptions, Runner};

/// What the server buffers until the commit.
const KEPT: usize = 8192;

/// A connection that counts the bytes of answers.
struct Counting {
    stream: TcpStream,
    /// The bytes of each warning of the last answer.
    warnings: Vec<usize>,
}

impl Counting {
    fn new(config: &postgres::Config) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", config.get_ports()[0])).unwrap();
        let mut message = vec![0, 3, 0, 0];
        let settings = "-c waterline.now=1000000 -c search_path=public";
        for text in ["user", "postgres", "database", config.get_dbname().unwrap(), "options", settings] {
            message.extend(text.bytes().chain([0]));
        }
        message.push(0);
        stream.write_all(&u32::try_from(message.len() + 4).unwrap().to_be_bytes()).unwrap();
        stream.write_all(&message).unwrap();
        let mut counting = Self { stream, warnings: Vec::new() };
        counting.read();
        counting
    }

    /// Makes a call, and returns its answer's bytes before the commit message, and the error text.
    fn ask(&mut self, sql: &str) -> (usize, String) {
        self.send(sql);
        self.read()
    }

    fn send(&mut self, sql: &str) {
        let length = u32::try_from(sql.len() + 5).unwrap();
        self.stream.write_all(&[b"Q", &length.to_be_bytes()[..], sql.as_bytes(), b"\0"].concat()).unwrap();
    }

    fn read(&mut self) -> (usize, String) {
        let (mut bytes, mut error) = (0, String::new());
        self.warnings.clear();
        loop {
            let (mut kind, mut size) = ([0], [0; 4]);
            self.stream.read_exact(&mut kind).unwrap();
            self.stream.read_exact(&mut size).unwrap();
            let mut body = vec![0; u32::from_be_bytes(size) as usize - 4];
            self.stream.read_exact(&mut body).unwrap();
            match kind[0] {
                b'Z' => return (bytes, error),
                b'E' => error = String::from_utf8_lossy(&body).into_owned(),
                b'N' => self.warnings.push(5 + body.len()),
                _ => {}
            }
            bytes += 5 + body.len();
        }
    }
}

/// A queue in which each text is as long as it may be, and JSON makes six bytes of each byte.
const FILL: &str = r#"
    SET waterline.now = '1000000';
    SELECT waterline.create_queue(repeat('q', 255), '{"retry": {"first_ms": 0, "growth": "fixed", "attempts": 1}, "lease_ms": 1000}');
    CREATE FUNCTION long(p_number int) RETURNS text LANGUAGE sql AS $$ SELECT rpad(p_number::text, 255, chr(1)) $$;
    CREATE FUNCTION fill(p_count int, p_from int, p_payload int, p_more jsonb DEFAULT '{}') RETURNS bigint LANGUAGE sql AS $$
        SELECT count(waterline.push(repeat('q', 255), long(0), to_json(repeat('x', p_payload - 2))::text, jsonb_build_object('id', long(n),
            'key', long(n), 'root', jsonb_build_object('signature', long(n), 'at', 1)) || p_more))
        FROM generate_series(p_from, p_from + p_count - 1) n $$;
    CREATE FUNCTION plain(p_count int, p_payload int) RETURNS bigint LANGUAGE sql AS $$
        SELECT count(*) FROM waterline.push_many(repeat('q', 255), array_fill('k'::text, ARRAY[p_count]),
            array_fill(repeat('x', p_payload), ARRAY[p_count])) $$;
    CREATE FUNCTION bounded(p_count int) RETURNS bigint LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM waterline.set_options(repeat('q', 255), '{"max_waiting": 300}');
        RETURN fill(p_count, 0, 1, '{"expires_ms": 1}');
    END $$;
    -- As if others had claimed all jobs, each with data and an error of an earlier attempt.
    CREATE FUNCTION run() RETURNS bigint LANGUAGE sql AS $$
        WITH run AS (UPDATE waterline.job SET state = 'running', token = (1::bigint << 52) + number, at = 1001000, since = 1000000,
            error = repeat('e', 5000), data = repeat('7', 5000) WHERE state = 'ready' RETURNING 1) SELECT count(*) FROM run $$;
    CREATE FUNCTION late(p_by int) RETURNS text LANGUAGE sql AS $$ SELECT set_config('waterline.now', (1000000 + p_by)::text, false) $$;
    CREATE FUNCTION claims() RETURNS bigint LANGUAGE sql AS $$
        SELECT count(*) FROM generate_series(1, 3), waterline.claim(repeat('q', 255)) $$;
    CREATE FUNCTION note(p_length int) RETURNS bigint LANGUAGE sql AS $$
        SELECT old_until FROM waterline.change_note(repeat('q', 255), 'a', 'set', to_json(repeat('x', p_length))::text) $$;
    CREATE FUNCTION schedule() RETURNS bigint LANGUAGE sql AS $$
        SELECT count(*) FROM waterline.register_periodic(repeat('q', 255), long(0), NULL, NULL, 'k', '1', NULL, true) $$;
    CREATE FUNCTION held() RETURNS text LANGUAGE sql AS $$
        SELECT format('%L::bigint[], %L::bigint[]', coalesce(array_agg(number), '{}')::text, coalesce(array_agg(token), '{}')::text)
        FROM (SELECT * FROM waterline.job WHERE state = 'running' ORDER BY number LIMIT 256) j $$;
"#;
/// Undoes what a call has left.
const EMPTY: &str = "TRUNCATE waterline.job, waterline.ended, waterline.note, waterline.periodic, waterline.gone, waterline.root, \
    waterline.tally; UPDATE waterline.queue SET max_waiting = NULL, options = NULL, paused_until = 0";

/// The calls that write, and what is done before. `FOR` stands for the arrays of up to 256 running
/// jobs and their tokens. `turn`, `push_jobs` and `put_note` are here as far as the library calls
/// them itself: with more than this, it calls the procedures that commit before they answer.
const CALLS: &[(&str, &str)] = &[
    ("fill(1, 0, 1)", "push('Q', long(7), '1', jsonb_build_object('id', long(0)))"),
    ("", "push_plain('Q', array_fill('k'::text, ARRAY[640]), array_fill('1'::text, ARRAY[640]))"),
    (
        "",
        "unnest(waterline.push_jobs('Q', ARRAY(SELECT long(n) FROM generate_series(1, 8) n), array_fill('1'::text, ARRAY[8]), \
        ARRAY(SELECT json_build_object('id', long(n))::text FROM generate_series(1, 8) n), false))",
    ),
    ("bounded(300), late(1002)", "unnest(waterline.push_jobs('Q', '{k}', '{1}', '{NULL}', false))"),
    ("fill(40, 0, 100)", "claim('Q', 1000)"),
    ("plain(40, 100)", "claim('Q', 1000)"),
    ("plain(40, 1)", "claim('Q', 1000)"),
    ("fill(1, 0, 7600)", "claim('Q')"),
    ("plain(1, 7400)", "claim('Q')"),
    ("plain(1, 1000000)", "claim('Q')"),
    ("fill(40, 0, 1)", "work('Q', 'w', NULL, 1000)"),
    ("plain(40, 100)", "work('Q', 'w', NULL, 1000)"),
    ("fill(1, 0, 1700)", "work('Q', 'w', NULL, 1000)"),
    ("plain(1, 100000)", "work('Q', 'w', NULL, 1000)"),
    (
        "fill(300, 0, 1), run(), fill(40, 300, 1)",
        "work('Q', 'w', NULL, 1000, NULL, 1000, (SELECT json_agg(json_build_object('job', number, 'token', token, 'end', 'fail', \
            'said', repeat('e', 300))) FROM waterline.job WHERE state = 'running'))",
    ),
    (
        "fill(300, 0, 1), run(), fill(40, 300, 1)",
        "work('Q', 'w', NULL, 1000, NULL, 1000, (SELECT json_agg(json_build_object('job', number, 'token', token - 1)) \
            FROM waterline.job WHERE state = 'running'))",
    ),
    (
        "fill(40, 0, 100)",
        "turn('{}', '{}', '{}', '{}', '{}', '{}', 'Q', 1000, NULL, NULL, NULL, 'w', false, NULL, NULL)",
    ),
    ("plain(40, 100)", "turn('{}', '{}', '{}', '{}', '{}', '{}', 'Q', 1000, NULL, NULL, NULL, 'w', false, NULL, NULL)"),
    ("plain(1, 6900)", "turn('{}', '{}', '{}', '{}', '{}', '{}', 'Q', 1000, NULL, NULL, NULL, 'w', false, NULL, NULL)"),
    (
        "fill(16, 0, 1), run(), fill(300, 100, 1, '{\"expires_ms\": 1}'), fill(40, 400, 100, '{\"delay_ms\": 1}'), late(500)",
        "turn(FOR, array_fill('failed'::text, ARRAY[16]), '{}', '{}', '{}', 'Q', 1000, NULL, NULL, NULL, 'w', true, 1000, 1000000)",
    ),
    (
        "fill(300, 0, 1), run(), late(2000)",
        "turn('{}', '{}', '{}', '{}', '{}', '{}', 'Q', 1000, NULL, NULL, NULL, 'w', true, NULL, 1)",
    ),
    ("fill(300, 0, 1), run()", "finish(FOR)"),
    ("fill(300, 0, 1), run()", "fail(FOR)"),
    ("fill(300, 0, 1), run()", "snooze(FOR)"),
    ("fill(300, 0, 1), run()", "renew(FOR)"),
    ("fill(300, 0, 1), run()", "note_stop(FOR)"),
    ("fill(300, 0, 1), run()", "end_in(FOR, '{}', true)"),
    ("fill(300, 0, 1, '{\"skip\": \"f\"}'), run()", "end_in(FOR, '{}', true)"),
    ("fill(300, 0, 1), run()", "ended_by(FOR)"),
    ("fill(1, 0, 1)", "edit('Q', long(0), p_what => 'data', p_value => to_json(repeat('x', 100000))::text)"),
    (
        "fill(1, 0, 1)",
        "edit('Q', long(0), p_what => 'meta', p_key => 'x', p_value => to_json(repeat('x', 60000))::text)",
    ),
    ("fill(1, 0, 1)", "edit('Q', long(0), p_what => 'progress', p_fraction => 0.5, p_value => repeat('x', 60000))"),
    ("", "change_note('Q', 'a', 'set', to_json(repeat('x', 9000))::text)"),
    ("note(7000)", "change_note('Q', 'a', 'set', to_json(repeat('y', 7000))::text)"),
    ("", "set_average('Q', long(0), 1, 1, 1)"),
    ("", "register_periodic('Q', long(0), repeat('s', 9000), 1, long(0), '1')"),
    (
        "schedule()",
        "tick_once('Q', long(0), 1000000, 2000000, ARRAY(SELECT generate_series(1000001, 1000064)), true, 'k', '1', NULL)",
    ),
    ("", "create_queue('other')"),
    ("", "set_options('Q', '{\"lease_ms\": 5}')"),
    ("fill(300, 0, 1)", "steer('Q', 'purge', 'ready')"),
    ("fill(1, 0, 1)", "steer('Q', 'remove', long(0))"),
    ("fill(300, 0, 1, '{\"expires_ms\": 1}'), late(500), claims()", "steer('Q', 'requeue_dead')"),
    ("", "steer('Q', 'pause')"),
    ("fill(300, 0, 1)", "counts('Q')"),
    ("fill(300, 0, 1), run()", "status_inputs('Q')"),
];

#[test]
fn answers_of_writes_fit_the_output_buffer() {
    let Bench { config, .. } = bench();
    let mut client = config.connect(NoTls).unwrap();
    client.batch_execute(FILL).unwrap();
    let (mut large, mut most) = (Vec::new(), 0);
    for (before, call) in CALLS {
        let mut counting = Counting::new(&config);
        client.batch_execute(EMPTY).unwrap();
        if !before.is_empty() {
            let (_, error) = counting.ask(&format!("SELECT {before}"));
            assert_eq!(error, "", "{before}");
        }
        let held: String = client.query_one("SELECT held()", &[]).unwrap().get(0);
        let call = call.replace("'Q'", "repeat('q', 255)").replace("FOR", &held);
        let from = if call.starts_with("unnest(") { "" } else { "waterline." };
        let (bytes, error) = counting.ask(&format!("SELECT * FROM {from}{call}"));
        assert_eq!(error, "", "{call}");
        most = most.max(bytes);
        if bytes > KEPT {
            large.push((before, call[..call.len().min(80)].to_owned(), bytes));
        }
    }
    assert!(most > 7_000, "some of them are full: {most}");
    assert!(large.is_empty(), "{large:#?}");
}

#[test]
fn a_client_that_reads_no_answer_blocks_no_claim_or_tick() {
    let Bench { store, config } = bench();
    drop(store.queue("q", QueueOptions::default().limit(Limit::each_key().at_once(1))).unwrap());
    let mut client = config.connect(NoTls).unwrap();
    // More than all buffers between the two can hold.
    let push = "SELECT count(*) FROM waterline.push_many('q', array_fill('k'::text, ARRAY[96]), \
        array_fill(to_json(repeat('x', 130000))::text, ARRAY[96]))";
    client.batch_execute(&format!("SET waterline.now = '1000000'; {push}")).unwrap();
    let mut frozen = Counting::new(&config);
    frozen.send(
        "CALL waterline.turn_and_commit('{}', '{}', '{}', '{}', '{}', '{}', 'q', 60, NULL, NULL, NULL, 'frozen', true, NULL, NULL)",
    );
    let stands = "SELECT FROM pg_stat_activity WHERE wait_event = 'ClientWrite' AND datname = current_database()";
    common::eventually("an answer that its caller does not read", || !client.query(stands, &[]).unwrap().is_empty());
    let bounded = "SET statement_timeout = 10000; SET waterline.now = '1002000'";
    client.batch_execute(bounded).unwrap();
    let before: i64 =
        client.query_one("SELECT pg_sequence_last_value(floors[6]) FROM waterline.queue", &[]).unwrap().get(0);
    assert_eq!(client.query("SELECT FROM waterline.claim('q', 20)", &[]).unwrap().len(), 20);
    // A tick begins the head anew.
    let after: i64 =
        client.query_one("SELECT pg_sequence_last_value(floors[6]) FROM waterline.queue", &[]).unwrap().get(0);
    assert_ne!(before & 4095, after & 4095, "it has ticked");
    assert_eq!(client.query(stands, &[]).unwrap().len(), 1, "the other one still stands");
}

/// A warning is sent within the transaction, which waits for a caller that does not read.
#[test]
fn many_damaged_rows_give_few_short_warnings() {
    let Bench { config, .. } = bench();
    let mut client = config.connect(NoTls).unwrap();
    client.batch_execute(FILL).unwrap();
    let mut counting = Counting::new(&config);
    let (_, error) = counting.ask("SELECT fill(300, 0, 1), run(), late(2000)");
    assert_eq!(error, "");
    let schedules = "SELECT count(s) FROM generate_series(1, 300) n, LATERAL waterline.register_periodic(repeat('q', 255), long(n), \
        repeat('s', 255), 1000, 'k', '1', NULL, true) s";
    client.batch_execute(schedules).unwrap();
    let damage =
        "UPDATE waterline.job SET crashes = 2147483647; UPDATE waterline.periodic SET last = 9223372036854775807";
    client.batch_execute(damage).unwrap();
    let tick = "SELECT * FROM waterline.turn('{}', '{}', '{}', '{}', '{}', '{}', repeat('q', 255), 0, NULL, NULL, NULL, 'w', true, NULL, 1)";
    let (_, error) = counting.ask(tick);
    assert_eq!(error, "");
    let set_aside: i64 = client.query_one("SELECT count(*) FROM waterline.damaged", &[]).unwrap().get(0);
    assert!(set_aside > 256, "{set_aside}: as many schedules as one call looks at, and some jobs");
    let warnings = &counting.warnings;
    assert!(warnings.len() == 8 && warnings.iter().sum::<usize>() < 2 * KEPT, "{warnings:?}");
    // The next call warns again.
    assert_eq!(counting.ask(tick).1, "");
    assert_eq!(counting.warnings.len(), 8, "of the others");
}

/// An error is sent at once, too, before the rollback.
#[test]
fn errors_are_short_whatever_the_caller_sent() {
    let Bench { config, .. } = bench();
    let mut client = config.connect(NoTls).unwrap();
    client.batch_execute(FILL).unwrap();
    let mut counting = Counting::new(&config);
    for settings in
        ["jsonb_build_object('x', repeat('x', 1000000))", "jsonb_build_object('after', ARRAY[repeat('x', 1000000)])"]
    {
        let (bytes, error) = counting.ask(&format!("SELECT waterline.push(repeat('q', 255), 'k', '1', {settings})"));
        assert!(error.contains("WQ00") && bytes < KEPT, "{bytes}: {error:.200}");
    }
}

#[test]
fn jobs_too_large_for_a_claim_answer_are_loaded() {
    for slots in [1, 40] {
        let Bench { store, .. } = bench();
        let queue = store.queue("q", QueueOptions::default()).unwrap();
        let job = |at: usize| {
            let job = NewJob::new("k", &(at, "x".repeat(at % 5 * 100_000))).unwrap().id(format!("{at}"));
            if at.is_multiple_of(2) { job.key(format!("key {at}")) } else { job }
        };
        queue.push_all((0..40).map(job)).unwrap();
        let right = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&right);
        let runner = Runner::builder(&queue).max_processing(slots).on("k", move |job, (at, text): (usize, String)| {
            let key = (at % 2 == 0).then(|| format!("key {at}"));
            let is_right = job.id() == format!("{at}") && text.len() == at % 5 * 100_000 && job.key() == key.as_deref();
            count.fetch_add(usize::from(is_right), Ordering::Relaxed);
            Ok(Outcome::Done)
        });
        assert_eq!(runner.drain(DrainLimits::default()).unwrap().finished, 40, "{slots}");
        assert_eq!(right.load(Ordering::Relaxed), 40, "{slots}");
    }
}

#[test]
fn load_returns_up_to_64_mb_and_at_least_one_job() {
    let mut client = bench().config.connect(NoTls).unwrap();
    client.batch_execute("SELECT waterline.create_queue('q', '{\"max_payload\": 100000000}')").unwrap();
    for length in [70, 30, 30, 30] {
        let push = format!("SELECT waterline.push('q', 'k', repeat('x', {length} << 20))");
        client.batch_execute(&push).unwrap();
    }
    let claimed = client.query("SELECT job, token, payload FROM waterline.claim('q', 9)", &[]).unwrap();
    let (jobs, tokens): (Vec<i64>, Vec<i64>) =
        claimed.iter().map(|row| (row.get::<_, i64>(0), row.get::<_, i64>(1))).unzip();
    assert!(claimed.len() == 4 && claimed.iter().all(|row| row.get::<_, Option<&str>>(2).is_none()));
    let mut load = |jobs: &[i64], tokens: &[i64]| -> Vec<(i64, i32)> {
        let load = "SELECT job, length(payload) >> 20 FROM waterline.load($1, $2)";
        client.query(load, &[&jobs, &tokens]).unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
    };
    assert_eq!(load(&jobs, &tokens), [(jobs[0], 70)]);
    assert_eq!(load(&jobs[1..], &tokens[1..]), [(jobs[1], 30), (jobs[2], 30)]);
    assert_eq!(load(&[jobs[3], jobs[1]], &[tokens[3], 7]), [(jobs[3], 30)], "the other one is another's");
}

/// One word tells of most of a purge.
#[test]
fn a_subscriber_reads_its_job_if_too_much_changed() {
    let Bench { store, .. } = bench();
    let queue = store.queue("q", QueueOptions::default()).unwrap();
    let pushed = queue.push_all((0..300).map(|at| NewJob::new("k", &at).unwrap())).unwrap();
    let mut last = queue.subscribe(&pushed[299].id).unwrap();
    let mut watch = queue.watch();
    assert_eq!(queue.purge().unwrap(), 300);
    let seen = last.wait(PATIENCE).unwrap();
    assert_eq!(seen.map(|seen| seen.state), Some(None));
    let mut changes = 0;
    while changes < 300 {
        changes += match watch.wait(PATIENCE).expect("all are told or counted") {
            QueueChange::Missed { changes, .. } => changes,
            _ => 1,
        };
    }
}

/// The log lines of this thread, with their counts.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(String, u64)>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "waterline" && metadata.is_event()
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.0.lock().push((line.0, line.1));
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[derive(Default)]
struct Line(String, u64);

impl tracing::field::Visit for Line {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }

    fn record_u64(&mut self, field: &tracing::field::Field, value: u64) {
        if field.name() == "count" {
            self.1 = value;
        }
    }
}

/// Each line is in the log, or is counted in one that says where to look.
#[test]
fn log_lines_too_many_for_an_answer_are_counted() {
    let Bench { store, config } = bench();
    let queue = store.queue("q", QueueOptions::default()).unwrap();
    let mut client = config.connect(NoTls).unwrap();
    client
        .batch_execute("SELECT waterline.push('q', 'k', '1', '{\"expires_ms\": 1}') FROM generate_series(1, 300)")
        .unwrap();
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), || {
        common::eventually("the end of all", || {
            assert!(queue.accept(Accept::new()).unwrap().is_none());
            queue.counts().dead == 300
        });
    });
    let lines = log.0.lock();
    let all: u64 = lines.iter().map(|(_, count)| count).sum();
    // Those above the rate limit are counted in the next line, which does not come.
    let untold: u64 = lines.iter().filter(|(line, _)| line.contains("had no room")).map(|(_, count)| count).sum();
    assert!((200..300).contains(&untold) && (untold + 1..=300).contains(&all), "{untold} of {all}: {lines:?}");
    assert!(lines.iter().any(|(line, _)| line.contains("are in the lists of these states")), "{lines:?}");
}

/// One call pushes into several queues, and its errors name the right one.
#[test]
fn a_push_into_queues_is_one_call_and_names_a_full_one() {
    let Bench { store, config } = bench();
    let group = store.queue_group().queue("one", ["k"], QueueOptions::default()).queue(
        "two",
        ["l"],
        QueueOptions::default().max_waiting(2),
    );
    let group = group.open().unwrap();
    let job = |kind: &str| NewJob::new(kind, &1).unwrap();
    let pushed = group.push_all([job("l"), job("k").id("a"), job("l").id("b"), job("k").id("a")]).unwrap();
    let ids: Vec<_> = pushed.iter().map(|one| (one.id.starts_with('~'), one.is_new())).collect();
    assert_eq!(ids, [(true, true), (false, true), (false, true), (false, false)]);
    let full = group.push_all([job("k"), job("l")]).unwrap_err();
    assert!(matches!(&full, QueueError::Full { queue, max_waiting: 2 } if queue == "two"), "{full:?}");
    let cycle = group.push_all([job("k"), job("k").id("a").after(["a"])]).unwrap_err();
    assert!(matches!(cycle, QueueError::Cycle { .. }), "{cycle:?}");
    let counts = ["one", "two"].map(|name| group.queue(name).unwrap().counts().ready);
    assert_eq!(counts, [1, 2], "all or none");
    let mut client = config.connect(NoTls).unwrap();
    // A caller with wrong counts would silently lose a job.
    for counts in ["{1,NULL}", "{-1,3}", "{1}", "{1,2}"] {
        let push =
            "SELECT waterline.push_across('{one,two}', $1::text::int[], '{k,k}', '{1,1}', ARRAY['{}', '{}'], '{f,f}')";
        let refused = client.execute(push, &[&counts]).unwrap_err();
        assert_eq!(refused.code().map(|code| code.code()), Some("WQ002"), "{counts}: {refused:?}");
    }
    // No transaction of several statements is open between them.
    let last = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%push_across_and_commit%'";
    assert!(client.query_one(last, &[]).unwrap().get::<_, i64>(0) > 0);
}
