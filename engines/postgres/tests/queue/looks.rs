//! Reads of large queues: what they cost, and how old their answers are.

use crate::bench::bench;
use crate::server::PATIENCE;
use crossbeam_channel::{bounded, unbounded};
use postgres::{Client, NoTls};
use std::time::{Duration, SystemTime};
use waterline::{Clock, Store};
use waterline_postgres::{PgOptions, PgStore};
use waterline_queue::{
    Accept, ConfigError, Every, JobState, Limit, LimitOf, LimitUse, NewJob, OnDead, Outcome, PeriodicInfo, Queue,
    QueueChange, QueueError, QueueOptions, Rate, Related, Runner,
};

/// More jobs than one call may read.
const MANY: u32 = 20_000;

/// Fills the queue `q` with jobs of each state and priority. A quarter of the ready ones is held by
/// limits, half of the ended ones stay for ever, and many jobs have the same time.
const FILL: &str = "SELECT waterline.create_queue('q'), waterline.create_queue('other');
    UPDATE waterline.queue SET limited = true;
    INSERT INTO waterline.job (number, queue, state, priority, at, place, kind, payload, pushed, due, since, held_by)
    SELECT n, 1 + n % 2, state::waterline.job_state, n / 2 % 4, at + n / 64, n, 'k', '1', 1, 0, 1,
        CASE state WHEN 'held' THEN 'k' || n / 4 % 9 END
    FROM (SELECT nextval('waterline.place') AS n, s.* FROM generate_series(1, MANY),
        (VALUES ('ready', 1000), ('ready', 1000), ('ready', 9000000), ('held', 1000), ('waiting', 1000)) s(state, at)) j;
    INSERT INTO waterline.ended (number, queue, priority, place, kind, payload, pushed, since, died, gone_at)
    SELECT n, 1 + n % 2, 2, n, 'k', '1', 1, 1, n / 2 % 2 = 0, CASE WHEN n / 4 % 2 = 0 THEN 9000000 + n / 64 END
    FROM (SELECT nextval('waterline.place') AS n FROM generate_series(1, 2 * MANY)) j;
    INSERT INTO waterline.job (number, queue, state, at, place, kind, payload, pushed, due, since, token)
    SELECT n, 1, 'running', 9000000, n, 'k', '1', 1, 0, 1, n
    FROM (SELECT nextval('waterline.place') AS n FROM generate_series(1, 50)) j;";

const STATES: [&str; 6] = ["ready", "scheduled", "running", "waiting", "finished", "dead"];

fn filled() -> Client {
    let mut client = bench().config.connect(NoTls).unwrap();
    client.batch_execute("SET waterline.now = '1000000'").unwrap();
    client.batch_execute(&FILL.replace("MANY", &MANY.to_string())).unwrap();
    client
}

/// The pages of a server's memory that a statement reads.
fn pages(client: &mut Client, statement: &str) -> i64 {
    // The first call reads the catalogue, and makes a plan.
    client.batch_execute(statement).unwrap();
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY OFF, FORMAT JSON) {statement}");
    let json: serde_json::Value = client.query_one(&explain, &[]).unwrap().get(0);
    ["Shared Hit Blocks", "Shared Read Blocks"].iter().map(|name| json[0]["Plan"][name].as_i64().unwrap()).sum()
}

#[test]
fn list_pages_read_little_and_show_each_job_once_in_order() {
    let mut client = filled();
    for state in STATES {
        let all = "SELECT number, held_by, priority, place, tie FROM waterline.list('q', $1, p_most => 1000000)";
        let all = client.query(all, &[&state]).unwrap();
        let numbers: Vec<i64> = all.iter().map(|row| row.get(0)).collect();
        let of = |row: &postgres::Row| -> (Option<String>, i32, i64, i64) {
            (row.get(1), row.get(2), row.get(3), row.get(4))
        };
        let has_priority = matches!(state, "ready" | "waiting");
        let place = |row: &postgres::Row| {
            (
                row.get::<_, Option<String>>(1),
                if has_priority { row.get(2) } else { 0_i32 },
                row.get::<_, i64>(3),
                row.get::<_, i64>(4),
            )
        };
        assert!(all.is_sorted_by(|a, b| place(a) < place(b)), "{state}");
        let count: i64 =
            client.query_one("SELECT count FROM waterline.counts('q') WHERE state = $1", &[&state]).unwrap().get(0);
        assert_eq!(numbers.len() as i64, count, "{state}");
        let next = "SELECT number, held_by, priority, place, tie FROM waterline.list('q', $1, $2, $3, $4, $5, 700)";
        let (mut seen, mut behind) = (Vec::new(), None::<(Option<String>, i32, i64, i64)>);
        loop {
            let (limit, priority, place, tie) =
                behind.clone().map_or((None, None, None, None), |(limit, priority, place, tie)| {
                    (limit, Some(priority), Some(place), Some(tie))
                });
            let page = client.query(next, &[&state, &limit, &priority, &place, &tie]).unwrap();
            seen.extend(page.iter().map(|row| row.get::<_, i64>(0)));
            let Some(last) = page.last() else { break };
            behind = Some(of(last));
        }
        assert_eq!(seen, numbers, "{state}");
        for behind in [None, Some(of(&all[all.len() / 2]))] {
            let behind = behind.map_or("NULL, NULL, NULL, NULL".to_owned(), |(limit, priority, place, tie)| {
                format!("{}, {priority}, {place}, {tie}", limit.map_or("NULL".to_owned(), |limit| format!("'{limit}'")))
            });
            let read = pages(&mut client, &format!("SELECT * FROM waterline.list('q', '{state}', {behind}, 20)"));
            assert!(read < 600, "{state} behind {behind}: {read} pages");
        }
    }
}

#[test]
fn a_claim_of_kinds_reads_little_beside_the_lines_of_others() {
    let mut client = bench().config.connect(NoTls).unwrap();
    // (The statistics know of no job in a line.)
    let fill = "SELECT waterline.create_queue('q');
        INSERT INTO waterline.job (number, queue, state, at, place, kind, payload, pushed, due, since)
        SELECT n, 1, 'ready', 1000, n, 'other', '1', 1, 0, 1
        FROM (SELECT nextval('waterline.place') AS n FROM generate_series(1, MANY)) j;
        ANALYZE waterline.job;";
    client.batch_execute(&fill.replace("MANY", &MANY.to_string())).unwrap();
    let claim = "SELECT * FROM waterline.claim('q', 1, 'w', '{own,two}')";
    let left = "SELECT count(*) FROM waterline.job WHERE state = 'ready'";
    common::eventually("the others are in their line", || {
        client.batch_execute(claim).unwrap();
        client.query_one(left, &[]).unwrap().get::<_, i64>(0) == 0
    });
    let read = pages(&mut client, claim);
    assert!(read < 900, "{read} pages");
}

#[test]
fn looks_at_large_and_small_queues_read_little() {
    let mut client = filled();
    client.batch_execute("SELECT waterline.counts('q'); SELECT waterline.create_queue('small')").unwrap();
    for queue in ["q", "small"] {
        for look in ["counts", "status_inputs", "waits_since", "who_runs", "peek_now", "limits_used"] {
            let read = pages(&mut client, &format!("SELECT * FROM waterline.{look}('{queue}')"));
            assert!(read < 1_500, "{look} of {queue}: {read} pages");
        }
    }
}

#[test]
fn limits_of_many_keys_are_read_for_a_few() {
    let mut client = filled();
    let limits = "SELECT waterline.create_queue('many', jsonb_build_object('limits',
            (SELECT jsonb_agg(jsonb_build_object('of', 'key', 'name', n::text, 'at_once', 1)) FROM generate_series(0, 999) n)));
        INSERT INTO waterline.job (number, queue, state, priority, at, place, kind, payload, pushed, due, since, key, held_by)
        SELECT nextval('waterline.place'), (SELECT id FROM waterline.queue WHERE name = 'many'), 'held', 2, 1000, n, 'k', '1', 1, 0, 1,
            n % 1000, 'k' || n % 1000 FROM generate_series(1, 20000) n";
    client.batch_execute(limits).unwrap();
    let read = pages(&mut client, "SELECT * FROM waterline.limits_used('many')");
    assert!(read < 4_000, "{read} pages");
    let shown = client.query("SELECT name, held FROM waterline.limits_used('many')", &[]).unwrap();
    let held: Vec<i64> = shown.iter().map(|row| row.get("held")).collect();
    assert_eq!(held, [20; 64]);
}

/// The counts of the queue `q` with their age, at this time.
fn counted(client: &mut Client, now: i64) -> (i64, i64) {
    client.batch_execute(&format!("SET waterline.now = '{now}'")).unwrap();
    let row = client
        .query_one("SELECT coalesce(sum(count)::bigint, 0), coalesce(max(age), 0) FROM waterline.counts('q')", &[])
        .unwrap();
    (row.get(0), row.get(1))
}

fn push(client: &mut Client, jobs: i32) {
    let push = "SELECT count(*) FROM waterline.push_many('q', array_fill('k'::text, ARRAY[$1::int]), array_fill('1'::text, ARRAY[$1::int]))";
    client.query_one(push, &[&jobs]).unwrap();
}

#[test]
fn counts_of_a_large_queue_are_cached_with_their_age() {
    const LATER: i64 = 1_000_000_000;
    let config = bench().config;
    let [mut client, mut other] = [(); 2].map(|()| config.connect(NoTls).unwrap());
    client.batch_execute("SET waterline.now = '1000'; SELECT waterline.create_queue('q')").unwrap();
    push(&mut client, 10_000);
    assert_eq!(counted(&mut client, 1_000), (10_000, 0));
    push(&mut client, 1);
    assert_eq!(counted(&mut client, 1_000), (10_001, 0), "a small one is counted at each call");
    push(&mut client, 1);
    assert_eq!(counted(&mut client, 1_000), (10_001, 0), "and a larger one now and then");
    assert_eq!(counted(&mut client, 1_999), (10_001, 999));
    assert_eq!(counted(&mut client, 999), (10_002, 0), "the clock was set back");
    other.batch_execute("SET waterline.now = '999'").unwrap();
    // One counts in a transaction that stays open. The others do not wait.
    let mut open = client.transaction().unwrap();
    open.batch_execute(&format!("SET LOCAL waterline.now = '{LATER}'; SELECT waterline.counts('q')")).unwrap();
    push(&mut other, 1);
    other.batch_execute("SET lock_timeout = 1").unwrap();
    assert_eq!(counted(&mut other, LATER), (10_003, 0), "they are much too old");
    open.commit().unwrap();
    push(&mut other, 1);
    assert_eq!(counted(&mut other, LATER + 1), (10_002, 1), "those that the transaction has left");
    // A reader gets numbers, and leaves none.
    let mut reader = other.build_transaction().read_only(true).start().unwrap();
    let count = reader.query_one("SELECT count FROM waterline.counts('q')", &[]).unwrap();
    assert_eq!(count.get::<_, i64>(0), 10_002);
    reader.rollback().unwrap();
    client.batch_execute("DELETE FROM waterline.job WHERE number % 100 > 0").unwrap();
    assert_eq!(counted(&mut client, 3 * LATER), (100, 0));
    push(&mut client, 1);
    assert_eq!(counted(&mut client, 3 * LATER), (101, 0), "it is small again");
}

#[test]
fn unreadable_counts_fall_back_to_the_last_with_their_age() {
    let bench = bench();
    let [known, unknown] = ["known", "unknown"].map(|name| bench.store.queue(name, QueueOptions::default()).unwrap());
    known.push(NewJob::new("k", &1).unwrap()).unwrap();
    let before = known.counts();
    assert_eq!((before.ready, before.age), (1, Duration::ZERO));
    bench.config.connect(NoTls).unwrap().batch_execute("DROP FUNCTION waterline.counts").unwrap();
    let after = known.counts();
    assert!(after.of_state(JobState::Ready) == 1 && after.age > Duration::ZERO, "{after:?}");
    assert_eq!((unknown.counts().ready, unknown.counts().age), (0, Duration::MAX));
}

#[test]
fn a_subscriber_hears_what_another_process_did() {
    let bench = bench();
    let queue = bench.store.queue("q", QueueOptions::default()).unwrap();
    let other = PgStore::connect(bench.config.clone(), NoTls, PgOptions::new()).unwrap();
    let other = other.queue("q", QueueOptions::default()).unwrap();
    let id = queue.push(NewJob::new("k", &1).unwrap()).unwrap().id;
    let mut subscription = queue.subscribe(&id).unwrap();
    let mut lease = other.accept(Accept::new()).unwrap().unwrap();
    let seen = subscription.wait(Duration::from_secs(60)).unwrap().expect("it changes");
    assert_eq!(seen.state, Some(JobState::Running));
    lease.finish(Some("data".into())).unwrap();
    let seen = subscription.wait_ended(Duration::from_secs(60)).unwrap().expect("it ends");
    assert_eq!((seen.state, seen.data), (Some(JobState::Finished), Some("data".into())));
}

#[test]
fn a_subscriber_hears_of_a_lost_lease_without_any_claims() {
    type Waits = fn(&Queue) -> bool;
    let waits: [(&str, Waits); 2] = [
        ("a subscription", |queue| {
            let mut subscription = queue.subscribe("a").unwrap();
            subscription.wait_for(JobState::Ready, PATIENCE).unwrap().is_some()
        }),
        ("a watch of the queue", |queue| {
            let mut watch = queue.watch();
            let is_it = |change| matches!(change, QueueChange::Job { state: Some(JobState::Ready), .. });
            std::iter::from_fn(|| watch.wait(PATIENCE)).any(is_it)
        }),
    ];
    for (name, waits) in waits {
        let bench = bench();
        let queue = bench.store.queue("q", QueueOptions::default()).unwrap();
        queue.push(NewJob::new("k", &1).unwrap().id("a")).unwrap();
        let mut client = bench.config.connect(NoTls).unwrap();
        client.query_one("SELECT job FROM waterline.claim('q', p_lease => 300)", &[]).unwrap();
        assert!(waits(&queue), "{name}");
    }
}

#[test]
fn a_push_waiting_for_room_hears_that_a_job_has_begun() {
    let queue = bench().store.queue("q", QueueOptions::default().max_waiting(1)).unwrap();
    let ((begun, begins), (end, ends)) = (unbounded(), bounded(0));
    let builder = Runner::builder(&queue).max_processing(1).on("k", move |_, ()| {
        begun.send(()).unwrap();
        ends.recv()?;
        Ok(Outcome::Done)
    });
    let runner = builder.start().unwrap();
    let job = || NewJob::new("k", &()).unwrap();
    queue.push(job()).unwrap();
    begins.recv_timeout(PATIENCE).unwrap();
    queue.push(job()).unwrap();
    let (push, (pushed, is_pushed)) = (queue.clone(), bounded(1));
    let pushes = std::thread::spawn(move || pushed.send(push.push_within(job(), 2 * PATIENCE).is_ok()).unwrap());
    // It falls asleep meanwhile. A pause that is too short hides a mistake, and makes none.
    std::thread::park_timeout(Duration::from_millis(200));
    end.send_timeout((), PATIENCE).unwrap();
    begins.recv_timeout(PATIENCE).unwrap();
    // The second job runs for long, and no job waits.
    assert_eq!(is_pushed.recv_timeout(PATIENCE), Ok(true));
    (0..2).for_each(|_| end.send_timeout((), PATIENCE).unwrap());
    pushes.join().unwrap();
    runner.stop().unwrap();
}

/// Runs some jobs, and returns the limits and the work of the queue while others run.
fn worked(queue: &Queue) -> (Vec<LimitUse>, [Option<u64>; 3]) {
    let job = |kind: &str, number: u32| NewJob::new(kind, &number).unwrap();
    let keyed = |number: u32| job("sms", number).key(if number < 3 { "ann" } else { "bob" });
    queue.push_all((0..5).map(|number| job("mail", number))).unwrap();
    queue.push_all((0..6).map(keyed)).unwrap();
    queue.push(job("mail", 9).id("nine")).unwrap();
    queue.push(job("mail", 9).id("nine")).unwrap();
    let mut leases: Vec<_> = std::iter::from_fn(|| queue.accept(Accept::new()).unwrap()).collect();
    leases.remove(0).finish(None).unwrap();
    leases.extend(std::iter::from_fn(|| queue.accept(Accept::new()).unwrap()));
    let (limits, activity) = (queue.limits().unwrap(), queue.activity());
    leases.into_iter().for_each(|mut lease| _ = lease.finish(None).unwrap());
    (limits, [activity.pushed, activity.started, activity.ended])
}

#[test]
fn limits_and_activity_equal_those_of_an_embedded_queue() {
    let clock = Clock::manual(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    let options = || {
        let options = QueueOptions::default().clock(clock.clone()).limit(Limit::queue().at_once(9));
        let rate = Rate::new(4, Duration::from_secs(1)).burst(4);
        options.limit(Limit::kind("mail").at_once(2).rate(rate)).limit(Limit::each_key().at_once(1))
    };
    let here = worked(&Queue::open(&Store::in_memory(), "q", options()).unwrap());
    let there = worked(&bench().store.queue("q", options()).unwrap());
    assert_eq!(there, here);
    let of = |limit: &LimitUse| (limit.at_once, limit.running, limit.held);
    assert_eq!(
        there.0.iter().map(of).collect::<Vec<_>>(),
        [(Some(9), 4, 0), (Some(1), 0, 0), (Some(1), 1, 2), (Some(1), 1, 2), (Some(2), 2, 3)]
    );
    assert_eq!(there.0[1].limit, LimitOf::EachKey);
    assert_eq!(there.1, [Some(12), Some(5), Some(1)], "a twin is no push");
    let unlimited = bench().store.queue("q", QueueOptions::default()).unwrap();
    assert_eq!((unlimited.limits().unwrap(), unlimited.activity().pushed), (vec![], Some(0)));
}

#[test]
fn waiting_threads_wake_together_and_one_asks_the_server() {
    const WAIT: usize = 64;
    let bench = bench();
    let queue = bench.store.queue("q", QueueOptions::default()).unwrap();
    let jobs = queue.push_all((0..WAIT).map(|number| NewJob::new("k", &number).unwrap())).unwrap();
    let mut client = bench.config.connect(NoTls).unwrap();
    let counted = "CREATE SEQUENCE looks; ALTER FUNCTION waterline.peek_now RENAME TO uncounted;
        CREATE FUNCTION waterline.peek_now(p_queue text, p_worker text, p_kinds text[]) RETURNS waterline.answer LANGUAGE sql AS
        $$ SELECT nextval('public.looks'), pg_sleep(0.02); SELECT waterline.uncounted(p_queue, p_worker) $$";
    client.batch_execute(counted).unwrap();
    std::thread::scope(|scope| {
        for job in &jobs {
            let mut waits = queue.subscribe(&job.id).unwrap();
            scope.spawn(move || waits.wait_for(JobState::Finished, PATIENCE).unwrap().expect("it ends"));
        }
        // Each claim and each end wakes all of them.
        for _ in &jobs {
            queue.accept(Accept::new()).unwrap().expect("it is ready").finish(None).unwrap();
        }
    });
    let asked = "SELECT coalesce(pg_sequence_last_value('looks'), 0), count(*) FROM pg_stat_activity
        WHERE datname = current_database()";
    let asked = client.query_one(asked, &[]).unwrap();
    let (looks, connections): (i64, i64) = (asked.get(0), asked.get(1));
    // If each thread asked, there would be thousands, on a connection each.
    assert!(looks <= 8 * WAIT as i64 && connections < 10, "{looks} looks on {connections} connections");
}

/// Pushes jobs that wait for each other, and returns what waits for what, also behind a dead job.
fn waiting(queue: &Queue) -> Vec<Related> {
    let job = |id: &str| NewJob::new("k", &1).unwrap().id(id);
    queue.push_all([job("a"), job("b"), job("c").after(["a", "b"]), job("d").after(["a", "c"])]).unwrap();
    queue.push(job("held").after(["b"]).on_dead(OnDead::Hold)).unwrap();
    let ids = ["a", "b", "c", "d", "held", "nobody"];
    let related = |most| ids.map(|id| queue.related(id, most).unwrap());
    let mut all: Vec<_> = related(9).into_iter().chain(related(0)).collect();
    queue.accept(Accept::new()).unwrap().unwrap().finish(None).unwrap();
    queue.accept(Accept::new()).unwrap().unwrap().bury("no").unwrap();
    all.extend(related(9));
    for related in &mut all {
        related.waits_for.sort_unstable();
        related.awaited_by.sort_unstable();
    }
    all
}

#[test]
fn related_jobs_equal_those_of_an_embedded_queue() {
    let options = QueueOptions::default;
    let here = waiting(&Queue::open(&Store::in_memory(), "q", options()).unwrap());
    let there = waiting(&bench().store.queue("q", options()).unwrap());
    assert_eq!(there, here);
    assert_eq!((&*there[2].waits_for, &*there[2].awaited_by), (&["a", "b"].map(String::from)[..], &["d".into()][..]));
}

#[test]
fn a_name_with_a_nul_is_refused_for_good() {
    let queue = bench().store.queue("q", QueueOptions::default()).unwrap();
    let odd = "a\0b";
    for (call, answer) in [
        ("get", queue.get(odd).map(drop)),
        ("requeue", queue.requeue(odd).map(drop)),
        ("remove", queue.remove(odd)),
        ("remove_periodic", queue.remove_periodic(odd).map(drop)),
        ("push", queue.push(NewJob::new("k", &1).unwrap().after([odd])).map(drop)),
    ] {
        assert!(matches!(answer, Err(QueueError::Config(ConfigError::Nul { .. }))), "{call}: {answer:?}");
    }
}

#[test]
fn a_failed_change_says_what_it_was() {
    let bench = bench();
    let queue = bench.store.queue("q", QueueOptions::default()).unwrap();
    let mut client = bench.config.connect(NoTls).unwrap();
    client.batch_execute("ALTER FUNCTION waterline.steer RENAME TO away").unwrap();
    let says = |answer: Result<(), QueueError>| answer.unwrap_err().report();
    assert!(says(queue.resume()).contains("resume a queue"), "{}", says(queue.resume()));
    assert!(says(queue.pause(None)).contains("pause a queue"), "{}", says(queue.pause(None)));
    let removed = says(queue.remove_periodic("p").map(drop));
    assert!(removed.contains("remove a periodic job"), "{removed}");
}

#[test]
fn a_schedule_of_another_process_shows_its_next_tick() {
    let bench = bench();
    let clock = Clock::manual(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    let options = QueueOptions::default().clock(clock.clone());
    let queue = bench.store.queue("q", options).unwrap();
    let hourly = || Every::hours(1).anchor(SystemTime::UNIX_EPOCH);
    queue.periodic("report", hourly(), NewJob::new("k", &1).unwrap()).start_at_next().start().unwrap();
    queue.periodic("sweep", Every::hours(1), NewJob::new("k", &1).unwrap()).start().unwrap();
    // A store without options, which has registered nothing.
    let beside = PgStore::connect(bench.config.clone(), NoTls, PgOptions::new()).unwrap();
    let admin = beside.queue_admin("q").unwrap();
    let [report, sweep] = &admin.look().periodics().unwrap()[..] else { panic!("there are two") };
    let own = queue.periodics().unwrap();
    let of = |info: &PeriodicInfo| (info.schedule.clone(), info.last_tick.is_some());
    assert_eq!([of(report), of(sweep)], [of(&own[0]), of(&own[1])]);
    assert_eq!((report.last_tick, sweep.last_tick.is_some()), (None, true), "it has never ticked");
    let hour =
        |time: Option<SystemTime>| time.unwrap().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() % 3_600;
    assert_eq!(hour(report.next_tick), 0, "{report:?}");
    assert_eq!(sweep.next_tick, sweep.last_tick.map(|last| last + Duration::from_secs(3_600)));
}

#[test]
fn a_standstill_is_judged_by_running_kinds_and_leases() {
    let (_, mut client) = crate::calls::client("{}");
    client
        .batch_execute(
            "SELECT waterline.set_average('q', 'other', 9, 9000000000000, 1), waterline.set_average('q', 'k', 9, 5000000000, 1)",
        )
        .unwrap();
    push(&mut client, 2);
    for (now, lease) in [(1_000_000, 30_000_i64), (1_000_001, 49_999)] {
        client.batch_execute(&format!("SET waterline.now = '{now}'")).unwrap();
        assert_eq!(client.execute("SELECT FROM waterline.claim('q', 1, 'w', p_lease => $1)", &[&lease]).unwrap(), 1);
    }
    let mut seen = |now: i64| -> (Option<String>, i64, i64) {
        client.batch_execute(&format!("SET waterline.now = '{now}'")).unwrap();
        let look = "SELECT s->>'usual', (s->>'lapsed')::bigint, lease_left, jobs->0->>'id' = '~' || (SELECT min(number) FROM waterline.job)
            FROM waterline.status_inputs('q', 'looks') s, waterline.workers_of('q', 1)";
        let row = client.query_one(look, &[]).unwrap();
        assert!(row.get::<_, bool>(3), "its first job is the oldest one");
        (row.get(0), row.get(1), row.get(2))
    };
    let usual = || Some("5000000000".to_owned());
    assert_eq!(seen(1_029_999), (usual(), 0, 20_001));
    assert_eq!(seen(1_030_000), (usual(), 1, 20_000));
    assert_eq!(seen(1_050_000), (None, 2, 0));
}
