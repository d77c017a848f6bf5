//! Opening a store: what it makes and does not make, and a store that another process has open.

use common::*;
use waterline::testing::FaultyStore;
use waterline::{Consumer, Error, Pipeline, Store};

/// Returns a store with a log, a table and a progress, and a handle on it without `create`.
fn strict() -> (FaultyStore, Store) {
    let faulty = FaultyStore::new().unwrap();
    let store = faulty.store();
    store.table("heights").unwrap().put("k2", "8611").unwrap();
    store.log::<u64>("log").unwrap();
    Consumer::builder(numbers(3), store.progress("blocks")).stop_at(2).start(|_| Ok(())).unwrap().join().unwrap();
    let strict = faulty.store_with(&Store::options().create(false));
    (faulty, strict)
}

#[track_caller]
pub fn not_found<T>(result: Result<T, Error>, kind: &str, called: &str) {
    match result {
        Err(error @ Error::NotFound { .. }) => {
            let text = error.to_string();
            let Error::NotFound { what, name } = error else { unreachable!() };
            assert_eq!((what, name.as_str()), (kind, called));
            assert!(text.contains(called) && text.contains("`create(true)`"), "{text}");
        }
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("there is a {kind} {called}"),
    }
}

#[test]
fn an_unusable_test_store_is_refused_with_advice() {
    let refusal = |name: &str| {
        let panic = std::panic::catch_unwind(|| engine_of(Some(name))).expect_err(name);
        *panic.downcast::<String>().unwrap()
    };
    assert!(refusal("disk").contains("say memory, sqlite or rocksdb"));
    for (name, is_there) in [("rocksdb", cfg!(feature = "rocksdb")), ("sqlite", cfg!(feature = "sqlite"))] {
        assert!(is_there || refusal(name).contains(&format!("--features {name}")));
    }
    assert_eq!(engine_of(Some("memory")), None);
    assert_eq!(engine_of(None).is_some(), cfg!(feature = "_disk"));
}

#[test]
fn a_store_without_create_refuses_new_names() {
    let (faulty, strict) = strict();
    let before = faulty.writes();
    let start = |name: &str| Consumer::builder(numbers(9), strict.progress(name)).start(|_| Ok(()));
    not_found(start("blokcs"), "progress", "blokcs");
    not_found(strict.log::<u64>("lgo"), "log", "lgo");
    not_found(strict.table("height"), "table", "height");
    // A refused name stays free, and a clone makes nothing either.
    not_found(start("blokcs"), "progress", "blokcs");
    not_found(strict.clone().table("height"), "table", "height");
    assert_eq!(strict.progress("blokcs").last_processed().unwrap(), None);
    let transactional = Consumer::builder(numbers(9), strict.progress("blokcs"));
    not_found(transactional.start_transactional(|_, _| Ok(())), "progress", "blokcs");
    assert_eq!(faulty.writes(), before, "what is not there was not made");
}

#[test]
fn a_store_without_create_uses_existing_names() {
    let (_faulty, strict) = strict();
    assert_eq!(strict.table("heights").unwrap().get("k2").unwrap().as_deref(), Some(b"8611".as_slice()));
    assert_eq!(strict.log::<u64>("log").unwrap().push(&7).unwrap(), 1);
    let consumer = Consumer::builder(numbers(9), strict.progress("blocks")).start(|job| match job.index {
        ..=2 => Err("it was processed before".into()),
        _ => Ok(()),
    });
    let consumer = consumer.unwrap();
    assert!(consumer.handle().wait_for(8, LONG));
    consumer.stop().unwrap();
}

#[test]
fn a_creating_handle_works_beside_one_that_is_not() {
    let (faulty, strict) = strict();
    let table = faulty.store().table("new").unwrap();
    not_found(strict.table("new"), "table", "new");
    table.put("k", "v").unwrap();
    assert!(strict.table("new").unwrap().get("k").unwrap().is_some());
    table.delete("k").unwrap();
    not_found(strict.table("new"), "table", "new");
    faulty.store().log::<u64>("new").unwrap();
    strict.log::<u64>("new").unwrap();
    // A table is not mistaken for one whose name begins alike.
    faulty.store().table("newer").unwrap().put("k", "v").unwrap();
    not_found(strict.table("new"), "table", "new");
}

#[test]
fn a_progress_exists_from_its_first_save() {
    let (faulty, strict) = strict();
    let idle = || Consumer::builder(numbers(0), faulty.store().progress("idle")).start(|_| Ok(()));
    idle().unwrap().stop().unwrap();
    not_found(Consumer::builder(numbers(1), strict.progress("idle")).start(|_| Ok(())), "progress", "idle");
}

#[test]
fn a_misspelled_progress_starts_no_pipeline() {
    let (_faulty, strict) = strict();
    let started = Pipeline::builder()
        .stage("first", |stage| stage.consumer(numbers(9), strict.progress("blocks")).start(|_| Ok(())))
        .stage("second", |stage| stage.consumer(numbers(9), strict.progress("blokcs")).start(|_| Ok(())))
        .start();
    let Err(Error::Stage { name, source }) = started else { panic!("it has started") };
    assert_eq!(name, "second");
    not_found(Err::<(), _>(*source), "progress", "blokcs");
    Consumer::builder(numbers(9), strict.progress("blocks")).start(|_| Ok(())).unwrap().stop().unwrap();
}

#[cfg(feature = "_disk")]
mod on_disk {
    use super::*;
    use common::raw::Raw;
    use crossbeam_channel::bounded;
    use std::path::Path;
    use std::time::{Duration, Instant};

    fn files(directory: &Path) -> Vec<std::ffi::OsString> {
        let mut names: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    fn strict(path: &Path) -> Result<Store, Error> {
        on_engine().create(false).open(path)
    }

    #[test]
    fn a_wrong_path_is_not_found_and_not_made() {
        let Some(directory) = a_directory() else { return };
        let missing = directory.path().join("missing").join("deep");
        not_found(strict(&missing), "store", &missing.display().to_string());
        assert!(files(directory.path()).is_empty());
        // A directory without a database, with and without files.
        not_found(strict(directory.path()), "store", &directory.path().display().to_string());
        assert!(files(directory.path()).is_empty());
        std::fs::write(directory.path().join("notes.txt"), "mine").unwrap();
        not_found(strict(directory.path()), "store", &directory.path().display().to_string());
        assert_eq!(files(directory.path()), ["notes.txt"]);
        // A refused path stays free.
        drop(open_in(directory.path()).unwrap());
        strict(directory.path()).unwrap();
    }

    #[test]
    fn a_file_in_place_of_a_directory_is_a_store_error() {
        let Some(directory) = a_directory() else { return };
        let file = directory.path().join("file");
        std::fs::write(&file, "mine").unwrap();
        let opened = strict(&file);
        assert!(matches!(opened, Err(Error::Store(_))), "{opened:?}");
    }

    #[test]
    fn a_foreign_database_is_no_store_and_kept() {
        let Some(directory) = a_directory() else { return };
        drop(Raw::make(directory.path(), &["theirs"]));
        let before = Raw::open(directory.path()).families();
        not_found(strict(directory.path()), "store", &directory.path().display().to_string());
        assert_eq!(Raw::open(directory.path()).families(), before);
    }

    #[test]
    fn unknown_names_in_a_store_on_disk_are_refused() {
        let Some(directory) = a_directory() else { return };
        let store = open_in(directory.path()).unwrap();
        store.table("rows").unwrap().put("k", "v").unwrap();
        drop(store);
        let store = strict(directory.path()).unwrap();
        not_found(store.table("row"), "table", "row");
        not_found(store.table("rowss"), "table", "rowss");
        not_found(store.log::<u64>("log"), "log", "log");
        assert!(store.table("rows").unwrap().get("k").unwrap().is_some());
    }

    #[test]
    fn open_within_waits_for_a_store_to_close() {
        let Some(directory) = a_directory() else { return };
        let store = open_in(directory.path()).unwrap();
        store.table("rows").unwrap().put("k", "v").unwrap();
        let locked = on_engine().open_within(directory.path(), LIMIT);
        assert!(matches!(locked, Err(Error::Locked { .. })), "{locked:?}");
        let (waits, opening) = bounded(1);
        let path = directory.path().to_owned();
        let opened = std::thread::spawn(move || {
            assert!(matches!(open_in(&path), Err(Error::Locked { .. })));
            waits.send(()).unwrap();
            on_engine().open_within(&path, LONG)
        });
        opening.recv_timeout(LONG).unwrap();
        drop(store);
        let store = opened.join().unwrap().unwrap();
        assert!(store.table("rows").unwrap().get("k").unwrap().is_some());
    }

    #[test]
    fn open_within_ends_at_once_on_other_errors() {
        let Some(directory) = a_directory() else { return };
        let began = Instant::now();
        let missing = directory.path().join("missing");
        let opened = on_engine().create(false).open_within(&missing, HOUR);
        not_found(opened, "store", &missing.display().to_string());
        assert!(began.elapsed() < LONG);
    }

    #[cfg(unix)]
    mod with_two_processes {
        use super::*;
        use std::io::{BufRead, BufReader, Read};
        use std::process::{Child, ChildStdout, Command, Stdio};

        /// The variable with the directory of the child's store.
        const DIR: &str = "WATERLINE_OPENING_DIR";

        /// The old process, which has the store until its standard input ends.
        #[test]
        fn old_process_child() {
            let Some(directory) = std::env::var_os(DIR) else { return };
            let store = open_in(directory).unwrap();
            store.table("lives").unwrap().put("old", "1").unwrap();
            println!("has it");
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        }

        /// Starts a process and waits until it has the store. Also returns its further lines.
        fn old_process(directory: &Path) -> (Child, BufReader<ChildStdout>) {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "opening::on_disk::with_two_processes::old_process_child", "--nocapture"])
                .env(DIR, directory)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut printed = BufReader::new(child.stdout.take().unwrap());
            let mut line = String::new();
            while !line.contains("has it") {
                line.clear();
                assert!(printed.read_line(&mut line).unwrap() > 0, "the old process has ended");
            }
            (child, printed)
        }

        #[test]
        fn a_new_process_waits_for_the_old_one_to_close() {
            let Some(directory) = a_directory() else { return };
            let (mut old, mut printed) = old_process(directory.path());
            let locked = on_engine().open_within(directory.path(), Duration::from_secs(1));
            assert!(matches!(locked, Err(Error::Locked { .. })), "{locked:?}");
            // RocksDB would make a text log with each of the ten tries, unless told not to.
            let logs = files(directory.path()).iter().filter(|name| name.to_string_lossy().starts_with("LOG")).count();
            assert!(logs <= 3, "{:?}", files(directory.path()));
            let (waits, opening) = bounded(1);
            let path = directory.path().to_owned();
            let opened = std::thread::spawn(move || {
                waits.send(()).unwrap();
                on_engine().create(false).open_within(&path, LONG)
            });
            opening.recv_timeout(LONG).unwrap();
            drop(old.stdin.take());
            let store = opened.join().unwrap().unwrap();
            printed.read_to_end(&mut Vec::new()).unwrap();
            assert!(old.wait().unwrap().success());
            assert!(store.table("lives").unwrap().get("old").unwrap().is_some());
        }
    }
}
