//! A dump made as the page about operating says, while a program runs: a database restored from it
//! goes on from one moment, and does each job once.

use crate::bank;
use crate::server::{Database, Server};
use common::{numbers, until};
use std::process::Command;
use std::time::Duration;
use waterline::Consumer;
use waterline_postgres::postgres::Transaction;
use waterline_postgres::{PgOptions, PgStore};
use waterline_queue::{Accept, JobState, NewJob, Outcome, QueueOptions, Runner};

/// Enough that the dump is made long before the last one.
const JOBS: u64 = 100_000;

/// The restored lease of a job ends soon, too.
fn options() -> QueueOptions {
    QueueOptions::default().lease(Duration::from_secs(3))
}

fn store(database: &Database) -> PgStore {
    // The restored name is free once the lease of the dumped life has ended.
    database.store(PgOptions::new().ttl(Duration::from_secs(3)))
}

fn start(store: &PgStore, last: u64) -> Consumer {
    let consumer = Consumer::builder(numbers(JOBS), store.progress("p")).max_processing(4).max_search_ahead(100);
    let consumer = consumer.standby().stop_at(last);
    consumer.start_writing(|job| Ok(job.fence), |tx: &mut Transaction<'_>, results| bank::write(tx, results)).unwrap()
}

#[track_caller]
fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_dump_of_a_live_database_restores_to_one_moment() {
    let server = Server::shared();
    let [Some(mut pg_dump), Some(mut pg_restore)] = ["pg_dump", "pg_restore"].map(|name| server.client_program(name))
    else {
        return;
    };
    let database = server.database();
    bank::open(&database);
    let old = store(&database);
    let mail = old.queue("mail", options()).unwrap();
    (0..3).for_each(|n| _ = mail.push(NewJob::new("welcome", &n).unwrap().id(format!("mail {n}"))).unwrap());
    let runs = mail.accept(Accept::new()).unwrap().expect("it is ready");
    let consumer = start(&old, JOBS - 1);
    until(&consumer.handle(), "some saves", |status| status.done > 100 && status.saves > 3);

    let directory = tempfile::tempdir().unwrap();
    let dump = directory.path().join("bank.dump");
    run(pg_dump.args(["-Fc", "-f"]).arg(&dump).arg(&database.name));
    let restored = server.database();
    run(pg_restore.args(["--exit-on-error", "-d", &restored.name]).arg(&dump));
    drop(runs);
    drop(consumer);

    // It has one moment: each job that the progress calls done has its row, and no other job has.
    let new = store(&restored);
    let info = new.consumers().unwrap().remove(0);
    let done = info.next.unwrap() + info.done_ahead;
    assert_eq!(bank::count(&restored), done.cast_signed(), "{info:?}");
    assert!(done > 0 && done < JOBS, "it was made while the consumer ran: {info:?}");
    let last = done + 500;
    start(&new, last).join().unwrap();
    bank::assert_exact(&restored, last + 1);

    // The job that was running runs again, and new ids do not meet old ones.
    let mail = new.queue("mail", options()).unwrap();
    let pushed = mail.push(NewJob::new("welcome", &9).unwrap()).unwrap();
    assert!(pushed.is_new(), "{pushed:?}");
    let runner = Runner::builder(&mail).on("welcome", |_job, _: u64| Ok(Outcome::Done)).start().unwrap();
    common::eventually("the end of each mail", || mail.counts().finished == 4);
    runner.stop().unwrap();
    let again = mail.get("mail 0").unwrap().expect("it is kept");
    assert_eq!((again.state, again.failures + again.crashes), (JobState::Finished, 1), "{again:?}");
}
