//! Backups as the page about operating makes them: a restored store goes on from one moment of the
//! old one, and does each job once.

use common::{a_directory, engine, numbers, open_in, until};
use std::fs;
use std::path::Path;
use waterline::{Builder, Consumer, Engine, MemoryJobs, Store, StoreProgress};
use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner};

const JOBS: u64 = 20_000;
const MAILS: u64 = 20;

fn queue(store: &Store) -> Queue {
    Queue::open(store, "mail", QueueOptions::default()).unwrap()
}

fn builder(store: &Store) -> Builder<MemoryJobs<u64>, StoreProgress> {
    Consumer::builder(numbers(JOBS), store.progress("p")).max_processing(4).stop_at(JOBS - 1)
}

/// Starts jobs that count themselves in a table, in one write with their completion.
fn start(store: &Store) -> Consumer {
    let sums = store.table("sums").unwrap();
    builder(store).start_transactional(move |_, effects| Ok(effects.add(&sums, "jobs", 1)?)).unwrap()
}

/// Runs a store to its end, and checks that each job was counted once and each mail has ended.
fn goes_on(directory: &Path) {
    let store = Store::options().create(false).open(directory).unwrap();
    start(&store).join().unwrap();
    assert_eq!(store.table("sums").unwrap().counter("jobs").unwrap(), JOBS.cast_signed());
    let mail = queue(&store);
    let drained = Runner::builder(&mail).on("welcome", |_job, _: u64| Ok(Outcome::Done)).drain(DrainLimits::default());
    drained.unwrap();
    assert_eq!((mail.counts().finished, mail.counts().ready), (MAILS, 0));
}

fn mails(store: &Store) {
    let mail = queue(store);
    (0..MAILS).for_each(|n| _ = mail.push(NewJob::new("welcome", &n).unwrap()).unwrap());
    let three = Runner::builder(&mail).on("welcome", |_job, _: u64| Ok(Outcome::Done));
    three.drain(DrainLimits::default().jobs(3)).unwrap();
}

#[cfg(feature = "sqlite")]
#[test]
fn a_live_sqlite_backup_is_one_moment_and_goes_on() {
    if engine() != Some(Engine::Sqlite) {
        return;
    }
    let directory = a_directory().unwrap();
    let [data, restored] = ["data", "restored"].map(|name| directory.path().join(name));
    let store = open_in(&data).unwrap();
    mails(&store);
    let consumer = start(&store);
    until(&consumer.handle(), "some jobs", |status| status.done > 100 && status.saves > 0);
    fs::create_dir(&restored).unwrap();
    let database = rusqlite::Connection::open(data.join("waterline.sqlite")).unwrap();
    let backup = restored.join("waterline.sqlite").display().to_string();
    database.execute("VACUUM INTO ?1", [&backup]).unwrap();
    drop(database);
    consumer.join().unwrap();
    drop(store);

    let look = Store::options().read_only().open(&restored).unwrap();
    let info = look.consumers().unwrap().remove(0);
    let done = info.next.unwrap() + info.done_ahead;
    assert_eq!(look.table("sums").unwrap().counter("jobs").unwrap(), done.cast_signed(), "{info:?}");
    assert!(done < JOBS, "it was made while the consumer ran: {info:?}");
    drop(look);
    goes_on(&restored);
    goes_on(&data);
}

#[test]
fn a_stopped_directory_is_a_backup_and_may_move() {
    let Some(directory) = a_directory() else { return };
    let [data, copy] = ["data", "copy"].map(|name| directory.path().join(name));
    let store = open_in(&data).unwrap();
    mails(&store);
    let consumer = start(&store);
    until(&consumer.handle(), "some jobs", |status| status.done > 100 && status.saves > 0);
    consumer.stop().unwrap();
    drop(store);
    fs::create_dir(&copy).unwrap();
    for file in fs::read_dir(&data).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), copy.join(file.file_name())).unwrap();
    }
    goes_on(&copy);
}
