//! The source of lines: files that grow and rotate, restarts, and files that were damaged.

use common::*;
use std::cmp::Reverse;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use waterline::testing::JobsSuite;
use waterline::{Blocked, BoxError, Consumer, Error, Index, Jobs, Lines, LinesError, LinesFault, Store, Table};

/// A directory of files, and a store for the table.
struct Files {
    dir: TempDir,
    store: Store,
    _place: Place,
}

impl Files {
    fn new() -> Self {
        watch();
        let (store, place) = a_store();
        Self { dir: tempfile::tempdir().unwrap(), store, _place: place }
    }

    fn table(&self) -> Table {
        self.store.table("lines").unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn append(&self, name: &str, text: impl AsRef<[u8]>) {
        append(&self.path(name), text.as_ref());
    }

    /// Returns the source of one file as a new process would make it.
    fn open(&self, name: &str) -> Lines {
        Lines::open(self.path(name), self.table()).unwrap()
    }

    fn directory(&self) -> Lines {
        Lines::directory(self.dir.path(), self.table()).unwrap()
    }

    fn rotating(&self) -> Lines {
        Lines::directory_by(self.dir.path(), self.table(), age).unwrap()
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }
}

fn append(path: &Path, text: &[u8]) {
    OpenOptions::new().create(true).append(true).open(path).unwrap().write_all(text).unwrap();
}

/// The names of `logrotate`: `log` is the newest, then `log.1`, `log.2`.
fn age(name: &str) -> Option<Reverse<u32>> {
    match name.strip_prefix("log")? {
        "" => Some(Reverse(0)),
        number => Some(Reverse(number.strip_prefix('.')?.parse().ok()?)),
    }
}

/// Overwrites what follows the bytes by which a file is recognised.
fn overwrite(path: &Path, bytes: usize) {
    let mut file = File::options().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(1024)).unwrap();
    file.write_all(&vec![b'?'; bytes]).unwrap();
}

/// Returns all lines, read in runs and one by one.
fn all(lines: &Lines) -> Vec<String> {
    let Some(head) = lines.head().unwrap() else { return Vec::new() };
    let mut read = Vec::new();
    while let next = read.len() as Index
        && next <= head
    {
        lines.read(next..=head, &mut read).unwrap();
        assert!(read.len() as Index > next, "no line {next}");
    }
    assert_eq!(lines.at_index(head + 1).unwrap(), None);
    for index in [0, head / 2, head] {
        assert_eq!(lines.at_index(index).unwrap().as_ref(), Some(&read[index as usize]));
    }
    read.into_iter().map(|line| String::from_utf8_lossy(&line).into_owned()).collect()
}

#[track_caller]
fn fault<T: std::fmt::Debug>(answer: Result<T, BoxError>) -> LinesError {
    *answer.unwrap_err().downcast().unwrap()
}

fn numbered(range: std::ops::Range<u64>) -> String {
    range.map(|number| format!("line {number}\n")).collect()
}

#[test]
fn lines_keep_the_rules_of_a_source() {
    let dirs = tempfile::tempdir().unwrap();
    let made = std::cell::Cell::new(0);
    let next = || {
        made.set(made.get() + 1);
        dirs.path().join(made.get().to_string())
    };
    let store = Store::in_memory();
    let path_of = |lines: &Lines| {
        let debug = format!("{lines:?}");
        PathBuf::from(debug.split('"').nth(1).unwrap())
    };
    JobsSuite::new(|n| {
        let path = next();
        append(&path, numbered(0..n).as_bytes());
        let table = store.table(path.display().to_string()).unwrap();
        Lines::open(path, table).unwrap()
    })
    .extend(|lines, n| (0..n).for_each(|i| append(&path_of(lines), format!("more {i} {n}\n").as_bytes())))
    .run();
    // Each extension is a file of its own.
    JobsSuite::new(|n| {
        let path = next();
        fs::create_dir(&path).unwrap();
        (0..n).for_each(|i| append(&path.join(format!("{:03}", i / 7)), format!("line {i}\n").as_bytes()));
        let table = store.table(path.display().to_string()).unwrap();
        Lines::directory(path, table).unwrap()
    })
    .extend(|lines, n| {
        let (name, text) = (format!("{}", 1_000 + made.replace(made.get() + 1)), numbered(1_000..1_000 + n));
        append(&path_of(lines).join(name), text.as_bytes());
    })
    .run();
}

#[test]
fn a_line_is_bytes_up_to_its_line_feed() {
    let files = Files::new();
    let lines = files.open("log");
    assert_eq!((lines.first().unwrap(), lines.head().unwrap()), (0, None));
    assert!(lines.waits_for().unwrap().contains("is not there yet"), "{:?}", lines.waits_for());

    files.append("log", b"one\n\n\r\ntwo\r\nth\rree\n\xff\xfe\nto");
    let expected: [&[u8]; 6] = [b"one", b"", b"", b"two", b"th\rree", b"\xff\xfe"];
    assert_eq!(lines.head().unwrap(), Some(5));
    assert!(lines.waits_for().unwrap().contains("the last 2 bytes"), "{:?}", lines.waits_for());
    let mut read = Vec::new();
    lines.read(0..=9, &mut read).unwrap();
    assert_eq!(read, expected);
    assert_eq!(lines.at_index(6).unwrap(), None);

    files.append("log", "rn");
    assert_eq!((lines.head().unwrap(), lines.at_index(6).unwrap()), (Some(5), None));
    files.append("log", "\n");
    assert_eq!(lines.at_index(6).unwrap().as_deref(), Some(b"torn".as_slice()));
    assert_eq!((lines.head().unwrap(), lines.waits_for()), (Some(6), None));
}

#[test]
fn a_line_above_the_limit_is_an_error_and_none_at_it() {
    let files = Files::new();
    files.append("log", "12345\n12345\r\n123456\nx\n");
    let lines = files.open("log").max_line(5);
    assert_eq!(lines.head().unwrap(), Some(3));
    let mut read = Vec::new();
    let error = fault(lines.read(0..=3, &mut read));
    assert!(matches!(error, LinesError { index: 2, fault: LinesFault::TooLong(5), .. }), "{error}");
    assert_eq!(read, [b"12345", b"12345"]);
    assert_eq!(lines.at_index(3).unwrap().as_deref(), Some(b"x".as_slice()));
    assert_eq!(files.open("log").max_line(6).at_index(2).unwrap().as_deref(), Some(b"123456".as_slice()));
    // Counting needs no memory for a line, and a read of many long ones ends early.
    let files = Files::new();
    let long = "x".repeat(3 << 20) + "\n";
    files.append("log", long.repeat(3));
    let (lines, mut read) = (files.open("log"), Vec::new());
    assert_eq!(lines.head().unwrap(), Some(2));
    lines.read(0..=2, &mut read).unwrap();
    assert_eq!(read.len(), 2);
    assert_eq!(lines.at_index(2).unwrap().unwrap().len(), 3 << 20);
}

#[test]
fn a_restart_finds_each_line_and_reads_none_far_below() {
    let files = Files::new();
    // The second file begins at an offset that is kept.
    for (name, range) in [("a", 0..8192), ("b", 8192..8193), ("c", 8193..20_000)] {
        files.append(name, numbered(range));
    }
    assert_eq!(files.directory().head().unwrap(), Some(19_999));
    let indices = [0, 1, 4095, 4096, 4097, 8191, 8192, 8193, 8194, 12_287, 12_288, 12_289, 19_999];
    for index in indices {
        let expected = format!("line {index}");
        assert_eq!(files.directory().at_index(index).unwrap().as_deref(), Some(expected.as_bytes()));
    }
    // A look that ends with the 4,096th line keeps its offset, too.
    let exact = Files::new();
    exact.append("log", numbered(0..4096));
    let lines = exact.open("log");
    assert_eq!(lines.head().unwrap(), Some(4095));
    exact.append("log", numbered(4096..4100));
    assert_eq!(lines.head().unwrap(), Some(4099));
    overwrite(&exact.path("log"), 30_000);
    assert_eq!(exact.open("log").at_index(4097).unwrap().as_deref(), Some(b"line 4097".as_slice()));
    // What is below an offset, and above the first bytes, could be anything.
    overwrite(&files.path("c"), 30_000);
    let mut read = Vec::new();
    files.directory().read(12_288..=12_400, &mut read).unwrap();
    assert_eq!(read.len(), 113);
    assert_eq!(read[0], b"line 12288");
    // Counting goes on where it was.
    files.append("c", "line 20000\n");
    assert_eq!(files.directory().at_index(20_000).unwrap().as_deref(), Some(b"line 20000".as_slice()));
}

#[test]
fn a_restart_at_each_byte_counts_the_same() {
    let text = "a\n\nbb\r\nccc\nd";
    for (cut, files) in (0..=text.len()).map(|cut| (cut, Files::new())) {
        files.append("1", &text[..cut]);
        let before = all(&files.directory());
        files.append("1", &text[cut..]);
        assert!(all(&files.directory()).starts_with(&before));
        // A newer file makes the last line final. An empty one does not.
        files.append("2", "");
        assert_eq!(all(&files.directory()), ["a", "", "bb", "ccc"]);
        files.append("2", "e\nf");
        assert_eq!(all(&files.directory()), ["a", "", "bb", "ccc", "d", "e"], "cut at {cut}");
    }
}

#[test]
fn a_file_that_was_cut_removed_or_replaced_is_an_error_and_can_be_given_up() {
    type Damage = fn(&Files);
    let damages: [(&str, Damage); 5] = [
        ("Cut", |files| File::options().write(true).open(files.path("2")).unwrap().set_len(7).unwrap()),
        ("Cut", |files| fs::write(files.path("2"), "").unwrap()),
        ("Removed", |files| fs::remove_file(files.path("2")).unwrap()),
        // As it is after `copytruncate`, once the file has grown again.
        ("Replaced", |files| fs::write(files.path("2"), numbered(70..99)).unwrap()),
        ("Replaced", |files| {
            fs::write(files.path(".new"), numbered(70..99)).unwrap();
            files.rename(".new", "2");
        }),
    ];
    for ((expected, damage), restart) in damages.into_iter().flat_map(|damage| [(damage, false), (damage, true)]) {
        let files = Files::new();
        files.append("1", numbered(0..3));
        files.append("2", numbered(3..8));
        let mut lines = files.directory();
        assert_eq!(lines.head().unwrap(), Some(7));
        damage(&files);
        if restart {
            lines = files.directory();
        }
        for error in [fault(lines.head()), fault(lines.first()), fault(lines.at_index(5)), fault(lines.at_index(8))] {
            let (kind, text) = (format!("{:?}", error.fault), error.to_string());
            assert!(kind.starts_with(expected), "{kind}, restart: {restart}");
            assert!(text.contains(&format!("{:?}", files.path("2"))) && text.contains("forget"), "{text}");
        }
        // The older file is as it was.
        assert_eq!(lines.at_index(2).unwrap().as_deref(), Some(b"line 2".as_slice()));
        assert!(matches!(lines.forget("1"), Err(LinesError { fault: LinesFault::NotNewest, .. })));
        fs::write(files.path("2"), "new\n").unwrap();
        assert_eq!(lines.forget("2").unwrap(), 8);
        for lines in [lines, files.directory()] {
            assert_eq!((lines.first().unwrap(), lines.head().unwrap()), (8, Some(8)));
            assert_eq!(lines.at_index(8).unwrap().as_deref(), Some(b"new".as_slice()));
            assert!(matches!(fault(lines.at_index(5)), LinesError { index: 5, fault: LinesFault::Removed, .. }));
        }
    }
}

#[test]
fn a_file_that_was_cut_behind_its_first_bytes_is_found_out() {
    let files = Files::new();
    files.append("log", numbered(0..1_000));
    let lines = files.open("log");
    assert_eq!(lines.head().unwrap(), Some(999));
    let len = files.path("log").metadata().unwrap().len();
    // It is as long as it was, and no line ends where the counted part did.
    let cut = |to: u64| File::options().write(true).open(files.path("log")).unwrap().set_len(to).unwrap();
    cut(2_000);
    files.append("log", "x".repeat(len as usize - 2_000) + "\n");
    for lines in [&lines, &files.open("log")] {
        assert!(matches!(fault(lines.head()), LinesError { index: 1000, fault: LinesFault::Replaced, .. }));
    }
    // A line ends there, but the lines before it are fewer.
    cut(len - 1);
    files.append("log", "\n");
    assert_eq!(lines.head().unwrap(), Some(999));
    let mut read = Vec::new();
    let error = fault(lines.read(0..=999, &mut read));
    assert!(matches!(error, LinesError { index: 0, fault: LinesFault::Replaced, .. }), "{error}");
    assert_eq!(read.len(), 0, "none of these lines is known to be the right one");
    // What is given up is new, though it begins as before.
    cut(2_000);
    assert!(matches!(fault(lines.head()), LinesError { index: 1000, fault: LinesFault::Cut, .. }));
    assert_eq!(lines.forget("log").unwrap(), 1_000);
    for lines in [&lines, &files.open("log")] {
        assert!(lines.head().unwrap() > Some(1_100));
        assert_eq!(lines.at_index(1_000).unwrap().as_deref(), Some(b"line 0".as_slice()));
    }
}

#[test]
fn more_of_a_beginning_is_known_once_it_is_there() {
    let files = Files::new();
    files.append("log", "a\n");
    assert_eq!(files.open("log").head().unwrap(), Some(0));
    files.append("log", "b\n");
    assert_eq!(files.open("log").head().unwrap(), Some(1));
    fs::write(files.path("log"), "a\nc\n").unwrap();
    assert!(matches!(fault(files.open("log").head()), LinesError { index: 2, fault: LinesFault::Replaced, .. }));
}

#[cfg(unix)]
#[test]
fn files_with_one_heading_are_told_apart_while_they_are_renamed() {
    let files = Files::new();
    let heading = "h".repeat(2_000) + "\n";
    files.append("log", heading.clone() + "a\n");
    let lines = files.rotating();
    assert_eq!(lines.head().unwrap(), Some(1));
    files.rename("log", "log.1");
    files.append("log", heading + "b\n");
    assert_eq!(lines.at_index(1).unwrap().as_deref(), Some(b"a".as_slice()));
    assert_eq!(lines.head().unwrap(), Some(3));
    assert_eq!(lines.at_index(3).unwrap().as_deref(), Some(b"b".as_slice()));
    // The file that has the name of a removed one is not taken for it, too.
    files.rename("log", "log.1");
    for lines in [&lines, &files.rotating()] {
        assert_eq!((lines.first().unwrap(), lines.head().unwrap()), (2, Some(3)));
        assert!(matches!(fault(lines.at_index(1)), LinesError { index: 1, fault: LinesFault::Removed, .. }));
        assert_eq!(lines.at_index(3).unwrap().as_deref(), Some(b"b".as_slice()));
    }
}

#[test]
fn a_consumer_whose_next_file_was_removed_does_not_start() {
    let files = Files::new();
    (0..3).for_each(|file| files.append(&file.to_string(), format!("{file}\n")));
    let start = |stop: Index| {
        let builder = Consumer::builder(files.directory(), files.store.progress("p")).stop_at(stop);
        builder.start(|_| Ok(()))?.join()
    };
    start(0).unwrap();
    fs::remove_file(files.path("0")).unwrap();
    start(1).unwrap();
    files.append("3", "3\n");
    assert_eq!(files.directory().head().unwrap(), Some(3));
    fs::remove_file(files.path("2")).unwrap();
    let error = start(3).unwrap_err();
    assert!(matches!(error, Error::Truncated { next: 2, first: 3 }), "{error}");
}

#[test]
fn a_copy_that_was_restored_is_the_same_file() {
    let files = Files::new();
    files.append("log", numbered(0..9));
    assert_eq!(files.open("log").head().unwrap(), Some(8));
    fs::copy(files.path("log"), files.path("copy")).unwrap();
    files.rename("copy", "log");
    files.append("log", numbered(9..10));
    assert_eq!(all(&files.open("log")).concat(), numbered(0..10).replace('\n', ""));
}

#[test]
fn older_files_may_go_once_they_are_done_and_may_neither_grow_nor_come() {
    let files = Files::new();
    (1..5).for_each(|file| files.append(&file.to_string(), format!("{file}\n")));
    let lines = files.directory();
    assert_eq!((lines.first().unwrap(), lines.head().unwrap()), (0, Some(3)));
    fs::remove_file(files.path("2")).unwrap();
    for lines in [&lines, &files.directory()] {
        assert_eq!((lines.first().unwrap(), lines.head().unwrap()), (2, Some(3)));
        assert!(matches!(fault(lines.at_index(1)), LinesError { index: 1, fault: LinesFault::Removed, .. }));
        assert_eq!(lines.at_index(2).unwrap().as_deref(), Some(b"3".as_slice()));
    }
    // A file of the same name, one of a new name in between, and one that grew.
    files.append("2", "5\n");
    assert!(matches!(fault(lines.head()), LinesError { index: 4, fault: LinesFault::OutOfOrder, .. }));
    files.rename("2", "25");
    assert!(matches!(fault(lines.head()), LinesError { index: 4, fault: LinesFault::OutOfOrder, .. }));
    files.rename("25", "9");
    files.append("3", "6\n");
    assert!(matches!(fault(lines.head()), LinesError { index: 4, fault: LinesFault::Grown, .. }));
    fs::remove_file(files.path("3")).unwrap();
    assert_eq!((lines.first().unwrap(), lines.head().unwrap()), (3, Some(4)));
}

#[cfg(unix)]
#[test]
fn files_may_be_renamed_between_and_during_reads() {
    let files = Files::new();
    files.append("log", numbered(0..5));
    let lines = files.rotating();
    assert_eq!(lines.head().unwrap(), Some(4));
    files.rename("log", "log.1");
    // The read does not wait for the next look, and the writer still has the old file.
    assert_eq!(lines.at_index(3).unwrap().as_deref(), Some(b"line 3".as_slice()));
    files.append("log.1", numbered(5..6));
    files.append("log", "");
    assert_eq!(lines.head().unwrap(), Some(5));
    files.append("log", numbered(6..8));
    files.append("log.7.gz", "no line\n");
    for lines in [&lines, &files.rotating()] {
        assert_eq!(all(lines).concat(), numbered(0..8).replace('\n', ""));
    }
    // Several rotations while nobody looks, and the oldest file goes.
    files.rename("log.1", "log.3");
    files.rename("log", "log.2");
    files.append("log.1", numbered(8..9));
    files.append("log", numbered(9..10));
    for lines in [&lines, &files.rotating()] {
        assert_eq!(all(lines).concat(), numbered(0..10).replace('\n', ""));
    }
    fs::remove_file(files.path("log.3")).unwrap();
    assert_eq!((lines.first().unwrap(), lines.head().unwrap()), (6, Some(9)));
    // A source of one file says that it is renamed.
    let single = Lines::open(files.path("log"), files.store.table("single").unwrap()).unwrap();
    assert_eq!(single.head().unwrap(), Some(0));
    files.rename("log", "log.0");
    assert!(matches!(fault(single.head()), LinesError { index: 1, fault: LinesFault::Removed, .. }));
    files.append("log", numbered(10..20));
    assert!(fault(single.head()).to_string().contains("`directory_by` for renames"));
}

#[cfg(unix)]
#[test]
fn promise_01_random_writes_rotations_and_restarts_skip_no_line() {
    for seed in seeds(30, 2_000) {
        let mut random = fastrand::Rng::with_seed(seed);
        let (files, mut written, mut rotated, mut lines) = (Files::new(), String::new(), 0, None);
        for step in 0..size(60, 300) {
            match random.u8(0..10) {
                0 => lines = None,
                1 if files.path("log").exists() && files.path("log").metadata().unwrap().len() > 0 => {
                    (1..=rotated).rev().for_each(|n| files.rename(&format!("log.{n}"), &format!("log.{}", n + 1)));
                    files.rename("log", "log.1");
                    rotated += 1;
                    // What is torn is a line once the next file begins.
                    if !written.ends_with('\n') {
                        written.push('\n');
                    }
                    files.append("log", "begin\n");
                    written += "begin\n";
                }
                2..6 => {
                    let text: String =
                        (0..random.usize(1..3_000)).map(|_| *random.choice(&['x', 'y', '\n']).unwrap()).collect();
                    let text = if random.bool() { text } else { "z\n".repeat(random.usize(1..2_000)) };
                    files.append("log", &text);
                    written += &text;
                }
                _ => {
                    let lines = lines.get_or_insert_with(|| files.rotating());
                    let expected: Vec<_> =
                        written.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).collect();
                    assert_eq!(
                        lines.head().unwrap(),
                        (expected.len() as Index).checked_sub(1),
                        "seed {seed}, step {step}"
                    );
                    if expected.is_empty() {
                        continue;
                    }
                    for from in (0..5).map(|_| random.usize(0..expected.len())) {
                        let mut read = Vec::new();
                        lines.read(from as Index..=from as Index + 100, &mut read).unwrap();
                        let expected = expected[from..].iter().map(|line| line.as_bytes());
                        assert!(!read.is_empty(), "seed {seed}, step {step}");
                        assert!(
                            read.iter().map(Vec::as_slice).eq(expected.take(read.len())),
                            "seed {seed}, step {step}"
                        );
                    }
                }
            }
        }
    }
}

/// Each line is counted once by its text, in ten lives, while the file grows in torn pieces and
/// rotates.
#[cfg(unix)]
#[test]
fn promise_09_ten_lives_count_each_line_of_rotating_files_once() {
    const LINES: u64 = 12_000;
    let (place, dir) = (Place::default(), tempfile::tempdir().unwrap());
    let (text, path) = (numbered(0..LINES), dir.path().join("log"));
    let pieces = text.as_bytes().chunks(text.len() / 100 + 1).collect::<Vec<_>>();
    for (life, pieces) in pieces.chunks(10).enumerate() {
        watch();
        let store = place.open();
        let counted = store.table("counted").unwrap();
        let lines = Lines::directory_by(dir.path(), store.table("lines").unwrap(), age).unwrap();
        let (table, is_last) = (counted.clone(), life == 9);
        let mut builder = Consumer::builder(lines, store.progress("lines")).max_processing(4);
        builder = builder.poll_every(Duration::from_millis(1)).max_reading(2);
        if is_last {
            builder = builder.stop_at(LINES - 1);
        }
        let consumer = builder
            .start_transactional(move |job, effects| {
                let line = String::from_utf8(job.payload)?;
                if line != format!("line {}", job.index) {
                    return Err(format!("line {} is {line:?}", job.index).into());
                }
                effects.add(&table, line, 1)?;
                Ok(())
            })
            .unwrap();
        for (nth, piece) in pieces.iter().enumerate() {
            let whole = piece.iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
            append(&path, &piece[..whole]);
            if nth == 5 {
                for n in (0..life).rev() {
                    fs::rename(dir.path().join(format!("log.{}", n + 1)), dir.path().join(format!("log.{}", n + 2)))
                        .unwrap();
                }
                fs::rename(&path, dir.path().join("log.1")).unwrap();
            }
            append(&path, &piece[whole..]);
        }
        if !is_last {
            // It may be anywhere.
            consumer.stop().unwrap();
            continue;
        }
        consumer.join().unwrap();
        let rows: Vec<_> = counted.iter().collect::<Result<_, Error>>().unwrap();
        assert_eq!(rows.len() as u64, LINES);
        assert!(rows.iter().all(|(_, count)| **count == 1i64.to_be_bytes()), "a line was counted twice");
    }
}

#[test]
fn promise_04_the_status_names_the_file_that_a_consumer_waits_for() {
    let files = Files::new();
    files.append("log", "a\nb");
    let consumer = Consumer::builder(files.open("log"), files.store.progress("p"))
        .poll_every(Duration::from_millis(1))
        .start(|_| Ok(()))
        .unwrap();
    let handle = consumer.handle();
    until(&handle, "the torn line", |status| {
        status.last_processed == Some(0) && status.to_string().contains("have no line feed yet")
    });
    fs::remove_file(files.path("log")).unwrap();
    let status = until(&handle, "the error", |status| matches!(status.blocked, Blocked::Source { .. }));
    assert!(status.to_string().contains("line 1: the file was removed"), "{status}");
    consumer.stop().unwrap();
}

#[test]
fn a_table_with_other_rows_is_refused() {
    for (key, value) in [(b"f".to_vec(), "{}"), ([b"f".as_slice(), &[0; 8]].concat(), "{}")] {
        let files = Files::new();
        files.table().put(key, value).unwrap();
        let error = Lines::open(files.path("log"), files.table()).unwrap_err();
        assert!(matches!(&error, Error::Corrupt { name, .. } if name == "lines"), "{error}");
    }
    let files = Files::new();
    let no_file = Lines::open(files.dir.path(), files.table()).unwrap();
    assert!(matches!(fault(no_file.head()), LinesError { fault: LinesFault::Io(_), .. }));
}
