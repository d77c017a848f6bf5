//! The statements of the pages and the examples do what the pages say, and so do rows of `parity`.

use crate::bench::bench;
use postgres::{NoTls, Transaction};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use waterline::{BoxError, Retry};
use waterline_postgres::{LeaseExt, PgOptions, PgStore, QueueExt, RunnerExt};
use waterline_queue::{
    Accept, Clock, DrainLimits, JobInfo, JobState, NewJob, Outcome, Priority, Queue, QueueError, QueueOptions, Runner,
    Running,
};

#[path = "../../examples/move_queue.rs"]
mod move_queue;

#[path = "../../examples/own_transaction.rs"]
mod own_transaction;

#[path = "../../examples/own_transaction_sqlx.rs"]
mod own_transaction_sqlx;

#[test]
fn statements_of_the_operating_page_run() {
    let bench = bench();
    let queue = bench.store.queue("mail", QueueOptions::default()).unwrap();
    queue.push_all((0..3).map(|number| NewJob::new("k", &number).unwrap())).unwrap();
    queue.accept(Accept::new()).unwrap().unwrap().bury("no").unwrap();
    let mut client = bench.config.connect(NoTls).unwrap();
    let page = include_str!("../../docs/operating.md");
    let blocks = page.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next());
    let statements: Vec<_> =
        blocks.flat_map(|block| block.split(";\n")).filter(|text| text.contains("SELECT")).collect();
    let rows = statements.iter().map(|text| {
        let role = if text.contains("GRANT") { "RESET ROLE" } else { "SET ROLE waterline_operate" };
        client.batch_execute(role).unwrap();
        client.query(*text, &[]).unwrap_or_else(|error| panic!("{text}: {error:?}")).len()
    });
    let rows: Vec<_> = rows.collect();
    // The version, the rights, the oldest job, two states, what runs, a dead one; then the server.
    assert_eq!((rows.len(), &rows[..6]), (9, &[1, 0, 1, 2, 1, 1][..]));
}

/// The parts of a job that are moved.
type Moved = (String, Priority, Option<SystemTime>, Option<String>, u32, Vec<u8>, usize, bool);

fn moved(job: &JobInfo) -> Moved {
    let id = job.id.rsplit('/').next().unwrap().trim_start_matches('~').to_owned();
    let key = job.key.clone();
    (id, job.priority, job.run_at, key, job.cost, job.payload.clone(), job.meta.len(), job.expires_at.is_some())
}

/// The waiting jobs, in an order that is the same in each queue.
fn all(queue: &Queue) -> Vec<Moved> {
    let states = [JobState::Ready, JobState::Scheduled];
    let jobs = states.iter().flat_map(|state| queue.list(*state, None, 10_000).unwrap());
    let mut all: Vec<_> = jobs.map(|job| moved(&job)).collect();
    all.sort_unstable();
    all
}

#[test]
fn a_queue_moves_to_postgresql_and_back_with_each_job_once() {
    let embedded = Queue::open(&waterline::Store::in_memory(), "mail", QueueOptions::default()).unwrap();
    let shared = bench().store.queue("mail", QueueOptions::default()).unwrap();
    let later = SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    let job = |number: u32| {
        let mut job = NewJob::new("k", &number).unwrap().cost(1 + number % 3);
        job = if number.is_multiple_of(2) { job.id(format!("job {number}")) } else { job.key(format!("key {number}")) };
        job = if number.is_multiple_of(5) { job.run_at(later).priority(Priority::High) } else { job };
        if number.is_multiple_of(7) {
            job.meta("a", &number).unwrap().expires(Duration::from_secs(100_000))
        } else {
            job
        }
    };
    embedded.push_all((0..1_300).map(job)).unwrap();
    let mut runs = embedded.accept(Accept::new()).unwrap().unwrap();
    let before = all(&embedded);
    // A crash came after the push of the first jobs.
    let first = embedded.list(JobState::Ready, None, 10).unwrap();
    shared.push_all(first.iter().map(|job| move_queue::copy(&embedded, job).unwrap())).unwrap();
    assert_eq!(move_queue::move_queue(&embedded, &shared).unwrap(), (1_299, 1));
    assert_eq!(all(&shared), before);
    assert!(all(&embedded).is_empty());
    runs.finish(None).unwrap();
    assert_eq!(move_queue::move_queue(&shared, &embedded).unwrap(), (1_299, 0));
    assert_eq!(all(&embedded), before);
    // A job that waits would be released by the move of the job before it.
    embedded.push(NewJob::new("k", &0).unwrap().after(["job 0"])).unwrap();
    let refused = move_queue::move_queue(&embedded, &shared).unwrap_err().to_string();
    assert_eq!(refused, "1 jobs wait for others: let those end in the old queue first");
    assert!(all(&shared).is_empty());
}

#[test]
fn examples_on_other_drivers_push_and_end_with_rows() {
    let bench = bench();
    let queue = bench.store.queue("mail", QueueOptions::default()).unwrap();
    let mut client = bench.config.connect(NoTls).unwrap();
    let orders = "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL,
        cents int NOT NULL, receipt timestamptz)";
    client.batch_execute(orders).unwrap();
    let (port, database) = (bench.config.get_ports()[0], bench.config.get_dbname().unwrap());
    let url = format!("postgres://postgres@127.0.0.1:{port}/{database}");
    let bad = |id| queue.push(NewJob::new("receipt", "no number").unwrap().id(id)).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let config: tokio_postgres::Config = url.parse().unwrap();
        let (mut other, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        bad("bad");
        assert_eq!(own_transaction::order(&mut other, "ann", 1999).await.unwrap(), "receipt-1");
        while own_transaction::work(&mut other).await.unwrap() {}
        let pool = sqlx::PgPool::connect(&url).await.unwrap();
        bad("bad too");
        assert_eq!(own_transaction_sqlx::order(&pool, "bob", 1999).await.unwrap(), "receipt-2");
        while own_transaction_sqlx::work(&pool).await.unwrap() {}
        pool.close().await;
    });
    for (receipt, bad) in [("receipt-1", "bad"), ("receipt-2", "bad too")] {
        assert_eq!(queue.state(receipt).unwrap(), Some(JobState::Finished));
        assert!(queue.get(bad).unwrap().unwrap().error.unwrap().contains("no number"));
    }
    let receipts = client.query_one("SELECT count(receipt) FROM orders", &[]).unwrap();
    assert_eq!(receipts.get::<_, i64>(0), 2);
}

#[test]
fn ticks_happen_once_without_a_leader() {
    let bench = bench();
    let mut client = bench.config.connect(NoTls).unwrap();
    client
        .batch_execute(
            "SET waterline.now = '1000'; SELECT waterline.create_queue('q', '{\"lease_ms\": 2000}');
             SELECT waterline.push('q', 'taken', '1'); SELECT waterline.claim('q', p_kinds => '{taken}');
             SELECT waterline.register_periodic('q', 'p', NULL, 1000, 'tick', '1', NULL, true)",
        )
        .unwrap();
    let mut workers: Vec<_> = (0..4).map(|_| bench.config.connect(NoTls).unwrap()).collect();
    // Each second, all of them claim at once, and one more of them has gone.
    for second in 2..=5 {
        let claimed: usize = std::thread::scope(|scope| {
            let claims: Vec<_> = (workers.iter_mut())
                .map(|worker| {
                    scope.spawn(move || {
                        worker.batch_execute(&format!("SET waterline.now = '{}'", second * 1_000)).unwrap();
                        let claim = "SELECT waterline.finish(ARRAY[job], ARRAY[token]) FROM waterline.claim('q', 9, p_kinds => '{tick}')";
                        worker.query(claim, &[]).unwrap().len()
                    })
                })
                .collect();
            claims.into_iter().map(|claim| claim.join().unwrap()).sum()
        });
        // A worker that came too early for the tick of another one finds its job now.
        let rest =
            "SELECT waterline.finish(ARRAY[job], ARRAY[token]) FROM waterline.claim('q', 9, p_kinds => '{tick}')";
        client.batch_execute(&format!("SET waterline.now = '{}'", second * 1_000)).unwrap();
        assert_eq!(claimed + client.query(rest, &[]).unwrap().len(), 1, "in the second {second}");
        workers.pop();
    }
    let taken = client.query_one("SELECT state, crashes FROM waterline.get('q', '~1')", &[]).unwrap();
    assert_eq!((taken.get(0), taken.get(1)), ("ready".to_owned(), 1), "its lease was over");
}

#[test]
fn a_large_payload_is_stored_compressed() {
    let bench = bench();
    let queue = bench.store.queue("q", QueueOptions::default()).unwrap();
    let payload = "the same words ".repeat(10_000);
    let id = queue.push(NewJob::new("k", &payload).unwrap()).unwrap().id;
    let mut client = bench.config.connect(NoTls).unwrap();
    let size = client.query_one("SELECT pg_column_size(payload) FROM waterline.job", &[]).unwrap();
    assert!(size.get::<_, i32>(0) < 20_000);
    assert_eq!(queue.get(&id).unwrap().unwrap().payload::<String>().unwrap(), payload);
}

#[test]
fn a_job_pushes_its_parts_with_its_own_end() {
    let bench = bench();
    let queue = bench.store.queue("q", QueueOptions::default().retry(Retry::fixed(Duration::ZERO))).unwrap();
    let mut client = bench.config.connect(NoTls).unwrap();
    client.batch_execute("CREATE TABLE effects (part bigint NOT NULL)").unwrap();
    queue.push(NewJob::new("range", &(0, 20)).unwrap()).unwrap();
    let (pushes, failed) = (queue.clone(), AtomicBool::new(false));
    let summary = Runner::builder(&queue)
        .on_writing(
            "range",
            |_job, range: (i64, i64)| Ok(range),
            move |transaction: &mut Transaction<'_>, ranges: &[(Running, (i64, i64))]| -> Result<(), BoxError> {
                for (_, (from, to)) in ranges {
                    let split = *to.min(&(from + 3));
                    let rest = (split < *to).then(|| NewJob::new("range", &(split, *to)));
                    let parts: Result<Vec<_>, _> =
                        (*from..split).map(|part| NewJob::new("part", &part)).chain(rest).collect();
                    pushes.push_all_in(transaction, parts?)?;
                }
                // A write that fails has pushed nothing.
                if failed.swap(true, Ordering::SeqCst) { Ok(()) } else { Err("not yet".into()) }
            },
        )
        .on_writing(
            "part",
            |_job, part: i64| Ok(part),
            |transaction: &mut Transaction<'_>, parts: &[(Running, i64)]| -> Result<(), BoxError> {
                for (_, part) in parts {
                    transaction.execute("INSERT INTO effects VALUES ($1)", &[part])?;
                }
                Ok(())
            },
        )
        .drain(DrainLimits::default())
        .unwrap();
    assert_eq!((summary.finished, summary.retried), (7 + 20, 1), "{summary}");
    let parts = "SELECT array_agg(part ORDER BY part) FROM effects";
    assert_eq!(client.query_one(parts, &[]).unwrap().get::<_, Vec<i64>>(0), (0..20).collect::<Vec<_>>());
}

#[test]
fn a_job_may_push_itself_before_or_after_its_end() {
    let bench = bench();
    let queue = bench.store.queue("q", QueueOptions::default()).unwrap();
    let mut client = bench.config.connect(NoTls).unwrap();
    let hour = Duration::from_secs(3_600);
    for (is_behind, payload) in [(true, 2), (false, 1)] {
        queue.push(NewJob::new("k", &1).unwrap().id("a")).unwrap();
        let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
        let mut transaction = client.transaction().unwrap();
        if is_behind {
            lease.finish_in(&mut transaction, None).unwrap();
        }
        queue.push_in(&mut transaction, NewJob::new("k", &2).unwrap().id("a").delay(hour)).unwrap();
        if !is_behind {
            lease.finish_in(&mut transaction, None).unwrap();
        }
        transaction.commit().unwrap();
        drop(lease);
        let info = queue.get("a").unwrap().unwrap();
        assert_eq!((info.state, info.payload::<u32>().unwrap()), (JobState::Scheduled, payload), "{is_behind}");
        queue.remove("a").unwrap();
    }
}

#[test]
fn a_push_hook_sees_only_its_programs_pushes() {
    let bench = bench();
    let queue = bench.store.queue("q", QueueOptions::default().before_push(|_| Err("no".into()))).unwrap();
    let mut client = bench.config.connect(NoTls).unwrap();
    let job = || NewJob::new("k", &1).unwrap();
    let mut transaction = client.transaction().unwrap();
    for refused in [queue.push(job()), queue.push_in(&mut transaction, job())] {
        assert!(matches!(refused, Err(QueueError::Refused { .. })), "{refused:?}");
    }
    transaction.commit().unwrap();
    assert_eq!(queue.counts().ready, 0);
    let other = PgStore::connect(bench.config.clone(), NoTls, PgOptions::new()).unwrap();
    other.queue("q", QueueOptions::default()).unwrap().push(job()).unwrap();
    client.batch_execute("SELECT waterline.push('q', 'k', '1')").unwrap();
    assert_eq!(queue.counts().ready, 2);
}

#[test]
fn each_program_starts_its_average_from_the_stored_one() {
    let bench = bench();
    let clock = Clock::manual(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    let other = PgStore::connect(bench.config.clone(), NoTls, PgOptions::new()).unwrap();
    let open = |store: &PgStore| store.queue("q", QueueOptions::default().clock(clock.clone())).unwrap();
    let run = |queue: &Queue, seconds: u64| {
        queue.push(NewJob::new("k", &seconds).unwrap()).unwrap();
        let time = clock.clone();
        let runner = Runner::builder(queue).on("k", move |_, seconds: u64| {
            time.advance(Duration::from_secs(seconds));
            Ok(Outcome::Done)
        });
        assert_eq!(runner.drain(DrainLimits::default()).unwrap().finished, 1);
    };
    let known = |queue: &Queue| queue.durations().get("k").map(|of| (of.count, of.last.as_secs()));
    let first = open(&bench.store);
    run(&first, 4);
    let second = open(&other);
    assert_eq!([known(&first), known(&second)], [Some((1, 4)); 2]);
    run(&second, 8);
    assert_eq!([known(&first), known(&second)], [Some((1, 4)), Some((2, 8))]);
}
