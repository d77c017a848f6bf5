//! The statements of the pages and the examples do what these say.

use crate::bench::bench;
use postgres::NoTls;
use std::time::{Duration, SystemTime};
use waterline::queue::{Accept, JobInfo, JobState, NewJob, Priority, Queue, QueueOptions};

#[path = "../../examples/move_queue.rs"]
mod move_queue;

#[path = "../../examples/own_transaction.rs"]
mod own_transaction;

#[test]
fn each_statement_of_the_page_for_operators_runs() {
    let bench = bench();
    let queue = bench.store.queue("mail", QueueOptions::default()).unwrap();
    queue.push_all((0..3).map(|number| NewJob::new("k", &number).unwrap())).unwrap();
    queue.accept(Accept::new()).unwrap().unwrap().bury("no").unwrap();
    let mut client = bench.config.connect(NoTls).unwrap();
    let page = include_str!("../../docs/operating.md");
    let blocks = page.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next());
    let statements: Vec<_> =
        blocks.flat_map(|block| block.split(";\n")).filter(|text| text.contains("SELECT")).collect();
    let rows =
        statements.iter().map(|text| client.query(*text, &[]).unwrap_or_else(|error| panic!("{text}: {error:?}")));
    let rows: Vec<_> = rows.map(|rows| rows.len()).collect();
    // The version, the oldest job, two states, no running job, a dead one, and then the server.
    assert_eq!((rows.len(), &rows[..5]), (8, &[1, 1, 2, 0, 1][..]));
}

/// The part of a job that is moved.
type Moved = (String, Priority, Option<SystemTime>, Option<String>, u32, Vec<u8>, usize, bool);

fn moved(job: &JobInfo) -> Moved {
    let id = job.id.rsplit('/').next().unwrap().trim_start_matches('~').to_owned();
    let key = job.key.clone();
    (id, job.priority, job.run_at, key, job.cost, job.payload.clone(), job.meta.len(), job.expires_at.is_some())
}

/// The jobs that wait, in an order that is the same in each queue.
fn all(queue: &Queue) -> Vec<Moved> {
    let states = [JobState::Ready, JobState::Scheduled];
    let jobs = states.iter().flat_map(|state| queue.list(*state, None, 10_000).unwrap());
    let mut all: Vec<_> = jobs.map(|job| moved(&job)).collect();
    all.sort_unstable();
    all
}

#[test]
fn a_queue_is_moved_into_postgresql_and_back_with_each_job_once_whatever_was_moved_before() {
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
    // A crash came behind the push of the first jobs.
    let first = embedded.list(JobState::Ready, None, 10).unwrap();
    shared.push_all(first.iter().map(|job| move_queue::copy(&embedded, job).unwrap())).unwrap();
    assert_eq!(move_queue::move_queue(&embedded, &shared).unwrap(), (1_299, 1));
    assert_eq!(all(&shared), before);
    assert!(all(&embedded).is_empty());
    runs.finish(None).unwrap();
    assert_eq!(move_queue::move_queue(&shared, &embedded).unwrap(), (1_299, 0));
    assert_eq!(all(&embedded), before);
}

#[test]
fn the_example_on_another_driver_pushes_and_ends_a_job_with_its_own_rows() {
    let bench = bench();
    let queue = bench.store.queue("mail", QueueOptions::default()).unwrap();
    let mut client = bench.config.connect(NoTls).unwrap();
    let orders = "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL,
        cents int NOT NULL, receipt timestamptz)";
    client.batch_execute(orders).unwrap();
    queue.push(NewJob::new("receipt", "no number").unwrap().id("bad")).unwrap();
    let config: tokio_postgres::Config = format!(
        "host=127.0.0.1 port={} user=postgres dbname={}",
        bench.config.get_ports()[0],
        bench.config.get_dbname().unwrap()
    )
    .parse()
    .unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (mut other, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        assert_eq!(own_transaction::order(&mut other, "ann", 1999).await.unwrap(), "receipt-1");
        while own_transaction::work(&mut other).await.unwrap() {}
    });
    assert_eq!(queue.state("receipt-1").unwrap(), Some(JobState::Finished));
    assert!(queue.get("bad").unwrap().unwrap().error.unwrap().contains("no number"));
    let receipts = client.query_one("SELECT count(receipt) FROM orders", &[]).unwrap();
    assert_eq!(receipts.get::<_, i64>(0), 1);
}

#[test]
fn nobody_leads_and_the_work_of_time_is_done_once_by_whoever_claims() {
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
    // Each second, all of them claim at once, and another one of them has gone.
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
        // One who came too early for the tick of another one finds its job now.
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
fn a_large_payload_is_compressed_where_it_is_stored() {
    let bench = bench();
    let queue = bench.store.queue("q", QueueOptions::default()).unwrap();
    let payload = "the same words ".repeat(10_000);
    let id = queue.push(NewJob::new("k", &payload).unwrap()).unwrap().id;
    let mut client = bench.config.connect(NoTls).unwrap();
    let size = client.query_one("SELECT pg_column_size(payload) FROM waterline.job", &[]).unwrap();
    assert!(size.get::<_, i32>(0) < 20_000);
    assert_eq!(queue.get(&id).unwrap().unwrap().payload::<String>().unwrap(), payload);
}
