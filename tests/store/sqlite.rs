//! What is special about SQLite: a store in a file of the user, the engine of a directory, looks
//! that move at once, and files that are damaged or no database.

use crate::opening::not_found;
use common::*;
use rusqlite::Connection;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use waterline::{BoxError, ConfigError, Consumer, Engine, Error, Jobs, Store, StoreError};
use waterline_queue::{Accept, JobState, NewJob, Queue, QueueError, QueueOptions, Retention};

const FILE: &str = "waterline.sqlite";
const PAGE: usize = 4096;

fn files(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<_> = entries.collect();
    files.sort();
    files
}

fn run(store: &Store, last: u64) {
    let sums = store.table("sums").unwrap();
    let builder = Consumer::builder(numbers(last + 1), store.progress("p")).stop_at(last);
    builder.start_transactional(move |_, effects| Ok(effects.add(&sums, "jobs", 1)?)).unwrap().join().unwrap();
}

#[test]
fn a_store_lives_in_a_file_of_the_user() {
    let Some(directory) = a_directory_of(Engine::Sqlite) else { return };
    let file = directory.path().join("app.db");
    let mine = Connection::open(&file).unwrap();
    mine.busy_timeout(LONG).unwrap();
    mine.execute_batch("CREATE TABLE heights (name TEXT, metres INTEGER); INSERT INTO heights VALUES ('k2', 8611)")
        .unwrap();
    let heights = || mine.query_row("SELECT count(*) FROM heights", [], |row| row.get::<_, i64>(0)).unwrap();
    let strict = || Store::options().create(false).attach_sqlite(&file);
    not_found(strict(), "store", &file.display().to_string());
    not_found(Store::options().read_only().attach_sqlite(&file), "store", &file.display().to_string());
    let tables = "SELECT count(*) FROM sqlite_master WHERE name GLOB 'waterline_*'";
    assert_eq!(mine.query_row(tables, [], |row| row.get::<_, i64>(0)).unwrap(), 0);

    let store = Store::attach_sqlite(&file).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| run(&store, 99));
        (0..100).for_each(|n| _ = mine.execute("INSERT INTO heights VALUES ('another', ?1)", [n]).unwrap());
    });
    assert_eq!((heights(), store.table("sums").unwrap().counter("jobs").unwrap()), (101, 100));
    // It is locked under any path of the file, and open to looks.
    let another_name = directory.path().join(".").join("app.db");
    assert!(matches!(Store::attach_sqlite(&another_name), Err(Error::Locked { path }) if path == another_name));
    let beside = Store::options().read_only().attach_sqlite(&file).unwrap();
    assert_eq!(beside.progress("p").last_processed().unwrap(), Some(99));
    assert!(matches!(beside.table("sums").unwrap().put("k", "v"), Err(Error::ReadOnly)));
    drop((store, beside));
    let store = strict().unwrap();
    run(&store, 149);
    assert_eq!((heights(), store.table("sums").unwrap().counter("jobs").unwrap()), (101, 150));
    let error = store.column_family("theirs").unwrap_err();
    assert!(matches!(error, Error::Config(_)), "it has no families: {error:?}");
}

#[test]
fn a_store_without_create_makes_no_file() {
    let Some(directory) = a_directory_of(Engine::Sqlite) else { return };
    for file in [directory.path().join("app.db"), directory.path().join("deep").join("app.db")] {
        for options in [Store::options().create(false), Store::options().read_only()] {
            let opened = options.attach_sqlite(&file);
            assert!(matches!(opened, Err(Error::NotFound { .. } | Error::Store(_))), "{opened:?}");
        }
    }
    assert_eq!(files(directory.path()), [""; 0]);
}

#[track_caller]
fn refused(opened: Result<Store, Error>, words: &[&str]) {
    let Err(Error::Config(error @ ConfigError::Engine { .. })) = opened else { panic!("{opened:?}") };
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

#[test]
fn a_directory_refuses_another_engine() {
    let Some(directory) = a_directory_of(Engine::Sqlite) else { return };
    let (path, theirs) = (directory.path().join("ours"), directory.path().join("theirs"));
    run(&open_in(&path).unwrap(), 9);
    let before = files(&path);
    assert_eq!(Store::open(&path).unwrap().progress("p").last_processed().unwrap(), Some(9));
    let place = path.display().to_string();
    for options in [Store::options(), Store::options().create(false), Store::options().read_only()] {
        refused(options.engine(Engine::RocksDb).open(&path), &["one of SQLite", "`engine` says RocksDB", &place]);
    }
    assert_eq!(files(&path), before);
    fs::create_dir(&theirs).unwrap();
    fs::write(theirs.join("CURRENT"), "MANIFEST-000001\n").unwrap();
    refused(on_engine().open(&theirs), &["one of RocksDB", "`engine` says SQLite"]);
    if !cfg!(feature = "rocksdb") {
        refused(Store::open(&theirs), &["its feature `rocksdb`"]);
    }
    assert_eq!(files(&theirs), ["CURRENT"]);
    fs::write(path.join("CURRENT"), "MANIFEST-000001\n").unwrap();
    refused(Store::open(&path), &["a store of RocksDB and one of SQLite", "with `engine`"]);
    refused(Store::options().read_only().open(&path), &["with `engine`"]);
    assert_eq!(open_in(&path).unwrap().progress("p").last_processed().unwrap(), Some(9));
}

#[test]
fn a_look_shows_writes_at_once_a_scan_one_moment() {
    let Some(directory) = a_directory_of(Engine::Sqlite) else { return };
    let application = open_in(directory.path()).unwrap();
    let rows = application.table("rows").unwrap();
    (0..600u32).for_each(|n| rows.put(n.to_be_bytes(), "0").unwrap());
    let beside = on_engine().read_only().open(directory.path()).unwrap();
    let seen = beside.table("rows").unwrap();
    for round in 1..=3 {
        let mut scans = [seen.iter(), seen.range_rev::<&[u8]>(..)];
        scans.iter_mut().for_each(|scan| assert!(scan.next().is_some()));
        for n in 0..600u32 {
            rows.put(n.to_be_bytes(), round.to_string()).unwrap();
            if n % 100 == 0 {
                assert_eq!(seen.get(n.to_be_bytes()).unwrap().unwrap(), round.to_string().as_bytes());
            }
        }
        for scan in scans {
            let values: Vec<_> = scan.map(|row| row.unwrap().1).collect();
            assert_eq!(values, vec![(round - 1).to_string().into_bytes(); 599]);
        }
        let many = seen.multi_get([0u32, 599].map(u32::to_be_bytes)).unwrap();
        assert!(many.iter().all(|value| value.as_deref() == Some(round.to_string().as_bytes())));
    }
}

#[test]
fn the_wal_is_checkpointed_in_the_background() {
    let Some(directory) = a_directory_of(Engine::Sqlite) else { return };
    let store = open_in(directory.path()).unwrap();
    let rows = store.table("rows").unwrap();
    let value = vec![7; 100_000];
    let put = |key: u32| rows.put(key.to_be_bytes(), &value).unwrap();
    let write = |key: u32| store.write(|effects| effects.put(&rows, key.to_be_bytes(), &value)).unwrap();
    let length = |name: &str| fs::metadata(directory.path().join(name)).unwrap().len();
    for (from, make) in [(0, &write as &dyn Fn(u32)), (100, &put)] {
        let before = length(FILE);
        (from..from + 60).for_each(make);
        eventually("the file has the rows", || length(FILE) > before + 1_000_000);
    }
    assert!(length("waterline.sqlite-wal") < 16 << 20, "no commit had to do it");
}

/// What a user sees of a part of a store: its rows, log, progress or queue.
#[derive(Debug, PartialEq)]
enum Seen {
    Rows(Vec<(Vec<u8>, Vec<u8>)>),
    Tables(Vec<String>),
    Items(Vec<String>),
    Progress(Option<u64>),
    Jobs(Vec<(String, JobState)>),
}

fn queue_error(error: QueueError) -> Error {
    match error {
        QueueError::Store(error) => error,
        other => panic!("{other:?}"),
    }
}

/// Returns what is seen up to the first error.
fn seen(opened: Result<Store, Error>) -> (Vec<Seen>, Option<Error>) {
    let mut seen = Vec::new();
    let error = (|| {
        let store = opened?;
        seen.push(Seen::Tables(store.tables()?));
        for name in ["rows", "sums"] {
            seen.push(Seen::Rows(store.table(name)?.iter().collect::<Result<_, _>>()?));
        }
        seen.push(Seen::Progress(store.progress("p").last_processed()?));
        let (log, mut items) = (store.log::<String>("log")?, Vec::new());
        let typed = |error: BoxError| match error.downcast::<Error>() {
            Ok(error) => *error,
            Err(error) => Error::Store(*error.downcast::<StoreError>().unwrap()),
        };
        if let Some(head) = log.head().map_err(typed)? {
            log.read(1..=head, &mut items).map_err(typed)?;
        }
        seen.push(Seen::Items(items));
        let queue = Queue::open(&store, "mails", QueueOptions::default()).map_err(queue_error)?;
        let mut jobs = Vec::new();
        for state in [JobState::Ready, JobState::Running, JobState::Finished, JobState::Dead] {
            let listed = queue.list(state, None, 99).map_err(queue_error)?;
            jobs.extend(listed.into_iter().map(|job| (job.id, job.state)));
        }
        seen.push(Seen::Jobs(jobs));
        Ok::<_, Error>(())
    })()
    .err();
    (seen, error)
}

fn filled(directory: &Path) {
    let store = open_in(directory).unwrap();
    let rows = store.table("rows").unwrap();
    (0..300u32).for_each(|n| rows.put(n.to_be_bytes(), vec![n as u8; 200]).unwrap());
    run(&store, 20);
    let log = store.log::<String>("log").unwrap();
    (0..60).for_each(|n| _ = log.push(&format!("item {n}")).unwrap());
    let mails = Queue::open(&store, "mails", QueueOptions::default()).unwrap();
    mails.push_all((0..40).map(|n| NewJob::new("welcome", &n).unwrap().id(n.to_string()))).unwrap();
}

/// Opens a database with this content in each way. What is seen must be right, up to an error.
fn is_right_or_an_error(content: &[u8], whole: &[Seen], what: &str) -> bool {
    let ways = [Store::options(), Store::options().create(false), Store::options().read_only()];
    let mut is_error = false;
    for options in ways {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FILE), content).unwrap();
        let options = options.engine(Engine::Sqlite);
        let (found, error) = catch_unwind(AssertUnwindSafe(|| seen(options.open(directory.path()))))
            .unwrap_or_else(|_| panic!("{what}"));
        match &error {
            None => assert_eq!(found.len(), whole.len(), "{what}"),
            Some(Error::Store(_) | Error::Corrupt { .. }) => is_error = true,
            Some(other) => panic!("{what}: {other:?}, after {} of {}", found.len(), whole.len()),
        }
        assert!(
            found == whole[..found.len()],
            "{what}: {:?} is wrong, and then {error:?}",
            found.iter().zip(whole).find(|(found, whole)| found != whole)
        );
    }
    is_error
}

#[test]
fn promise_08_a_damaged_file_is_never_a_fresh_store() {
    let Some(directory) = a_directory_of(Engine::Sqlite) else { return };
    filled(directory.path());
    assert_eq!(files(directory.path()), [FILE, "waterline.sqlite-lock"], "it is closed, so the file is all of it");
    let content = fs::read(directory.path().join(FILE)).unwrap();
    let (whole, error) = seen(open_in(directory.path()));
    assert!(error.is_none() && whole.len() == 6, "{error:?}");
    let mut random = fastrand::Rng::with_seed(seed());
    let length = content.len();
    for at in (512..length).step_by(size(8 * 512, 512)).chain((0..size(8, 200)).map(|_| random.usize(1..length))) {
        let what = format!("cut at {at} of {length}");
        is_right_or_an_error(&content[..at], &whole, &what);
        // A cut inside a page must be an error; a cut between pages may go unread.
        let cut = tempfile::tempdir().unwrap();
        fs::write(cut.path().join(FILE), &content[..at]).unwrap();
        assert!(at % PAGE == 0 || open_in(cut.path()).is_err(), "{what}");
    }
    for page in (0..length).step_by(PAGE) {
        for damage in ["zeros", "garbage"] {
            let mut content = content.clone();
            content[page..page + PAGE]
                .iter_mut()
                .for_each(|byte| *byte = if damage == "zeros" { 0 } else { random.u8(..) });
            is_right_or_an_error(&content, &whole, &format!("{damage} from {page} on, of {length}"));
        }
    }
    for content in [vec![b'x'; 5_000], b"text\n".to_vec(), (0..9_000).map(|_| random.u8(..)).collect(), vec![0; 4096]] {
        let what = format!("{} bytes of something else", content.len());
        assert!(is_right_or_an_error(&content, &whole, &what), "{what}");
    }
}

#[cfg(unix)]
mod without_write_access {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    /// The variable with the directory of the child's look.
    const DIR: &str = "WATERLINE_READ_ONLY_DIR";
    /// The user id without any rights.
    const NOBODY: u32 = 65_534;

    #[test]
    #[ignore = "a child of the test below"]
    fn looking_child() {
        let Some(directory) = std::env::var_os(DIR) else { return };
        for _ in 0..2 {
            match on_engine().read_only().open(&directory) {
                Ok(store) => println!("jobs: {}", store.table("sums").unwrap().counter("jobs").unwrap()),
                Err(error @ Error::Store(_)) => println!("refused: {}", error.report()),
                Err(other) => panic!("{other:?}"),
            }
        }
        let written = fs::write(Path::new(&directory).join("mine"), "");
        assert!(written.is_err(), "the test proves nothing");
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Looks at this directory in a process that may only read. Root may write anywhere, so the
    /// process runs as another user then.
    fn looked_at(place: &Path, directory: &Path) -> String {
        let before = files(directory);
        before.iter().for_each(|file| set_mode(&directory.join(file), 0o444));
        set_mode(directory, 0o555);
        let is_root =
            fs::metadata(std::env::current_exe().unwrap()).is_ok() && fs::write(directory.join("x"), "").is_ok();
        if is_root {
            fs::remove_file(directory.join("x")).unwrap();
        }
        let program = place.join("program");
        if !program.exists() {
            fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
            set_mode(&program, 0o755);
        }
        let mut child = Command::new(program);
        child.args(["--exact", "sqlite::without_write_access::looking_child", "--nocapture", "--include-ignored"]);
        child.env(DIR, directory).current_dir("/");
        if is_root {
            child.uid(NOBODY).gid(NOBODY);
        }
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(files(directory), before, "no file is made");
        set_mode(directory, 0o755);
        before.iter().for_each(|file| set_mode(&directory.join(file), 0o644));
        text
    }

    #[test]
    fn a_look_in_a_read_only_place_reads_or_fails() {
        let Some(place) = a_directory_of(Engine::Sqlite) else { return };
        set_mode(place.path(), 0o755);
        let [closed, killed, bare] = ["closed", "killed", "bare"].map(|name| place.path().join(name));
        let store = open_in(&closed).unwrap();
        run(&store, 9);
        // A copy as a killed process leaves it.
        [&killed, &bare].into_iter().for_each(|path| fs::create_dir(path).unwrap());
        for file in files(&closed) {
            fs::copy(closed.join(&file), killed.join(&file)).unwrap();
            if !file.ends_with("-shm") {
                fs::copy(closed.join(&file), bare.join(&file)).unwrap();
            }
        }
        drop(store);
        assert_eq!(files(&closed), [FILE, "waterline.sqlite-lock"]);
        for directory in [&closed, &killed] {
            let text = looked_at(place.path(), directory);
            assert_eq!(text.matches("jobs: 10").count(), 2, "{text}");
        }
        // The log cannot be read there without the shared memory.
        let text = looked_at(place.path(), &bare);
        assert_eq!(text.matches("refused: ").count(), 2, "{text}");
        assert_eq!(open_in(&killed).unwrap().table("sums").unwrap().counter("jobs").unwrap(), 10);
    }
}

#[test]
fn entries_of_claimed_jobs_are_deleted_in_pieces() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::options().engine(Engine::Sqlite).open(directory.path()).unwrap();
    let entries = || {
        let connection = Connection::open(directory.path().join(FILE)).unwrap();
        let count = "SELECT count(*) FROM waterline_ready";
        connection.query_row(count, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    let queue = Queue::open(&store, "q", QueueOptions::default().retention(Retention::Drop)).unwrap();
    queue.push_all((0..2_500).map(|n| NewJob::new("k", &n).unwrap())).unwrap();
    assert_eq!(entries(), 2_500);
    for (run, left) in [(1_000, 2_500), (1, 1_500), (1_000, 500), (499, 500)] {
        for _ in 0..run {
            queue.accept(Accept::new()).unwrap().unwrap().finish(None).unwrap();
        }
        assert_eq!(entries(), left);
    }
    assert!(queue.accept(Accept::new()).unwrap().is_none());
}
