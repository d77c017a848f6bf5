//! The example `git_history` against git itself: real processes, real repositories, real kills.
//!
//! `cargo test` builds the example first. `cargo test --test git_history` does not: it takes the one that is there.
#![cfg(feature = "rocksdb")]

use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use waterline::{Consumer, MemoryJobs, Retry, Store};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn every_row_and_the_totals_equal_gits_own() {
    let dir = TempDir::new().unwrap();
    let repo = imported(&dir, "repo", 3_000, 1);
    agrees_with_git(&repo, &dir.path().join("db"));
    // A clone that is bare has its git directory elsewhere, and a detached HEAD has no branch.
    git(dir.path(), ["clone", "-q", "--bare", "repo", "bare"]);
    let bare = dir.path().join("bare");
    agrees_with_git(&bare, &bare.join("waterline"));
    git(&repo, ["checkout", "-q", "--detach", "HEAD~100"]);
    agrees_with_git(&repo, &dir.path().join("db-detached"));
}

#[test]
fn a_shallow_clone_begins_at_its_boundary() {
    let dir = TempDir::new().unwrap();
    let repo = imported(&dir, "repo", 300, 2);
    let url = format!("file://{}", repo.display());
    git(dir.path(), ["clone", "-q", "--bare", "--depth", "40", &url, "shallow"]);
    let shallow = dir.path().join("shallow");
    let report = agrees_with_git(&shallow, &dir.path().join("db"));
    // The depth goes by the shortest way, and the first-parent line is a longer one.
    assert!((40..300).contains(&report["commits"].as_u64().unwrap()), "{report}");
    // Deeper, each index is another commit.
    git(&shallow, ["fetch", "-q", "--unshallow"]);
    let refused = example(&shallow, &dir.path().join("db"), &[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("--reset"), "{}", stderr(&refused));
}

#[test]
fn a_linked_work_tree_has_a_head_of_its_own() {
    let dir = TempDir::new().unwrap();
    let repo = small(&dir, 5);
    git(&repo, ["worktree", "add", "-q", "--detach", "../linked", "HEAD~2"]);
    let linked = dir.path().join("linked");
    let report = agrees_with_git(&linked, &repo.join(".git/worktrees/linked/waterline"));
    assert_eq!(report["commits"], 3);
    assert_eq!(agrees_with_git(&repo, &repo.join(".git/waterline"))["commits"], 5);
}

#[test]
fn modes_that_git_takes_for_one_another_are_no_change() {
    let dir = TempDir::new().unwrap();
    let repo = small(&dir, 1);
    let blob = text(&git(&repo, ["rev-parse", "HEAD:file"]));
    // Written by very old versions of git; the last one is a change, since it makes the file executable.
    for mode in ["100644", "100664", "100640", "100600", "100775"] {
        let tree = text(&piped(&repo, ["mktree"], format!("{mode} blob {blob}\tfile\n").as_bytes()));
        let commit = text(&git(&repo, ["commit-tree", "-p", "HEAD", "-m", mode, &tree]));
        git(&repo, ["update-ref", "HEAD", &commit]);
    }
    let report = agrees_with_git(&repo, &dir.path().join("db"));
    assert_eq!((&report["commits"], &report["changes"]), (&6.into(), &2.into()));
}

#[test]
fn a_repository_without_commits_has_nothing_to_index() {
    let dir = TempDir::new().unwrap();
    git(dir.path(), ["init", "-q", "repo"]);
    let repo = dir.path().join("repo");
    for _ in 0..2 {
        let report = report(&example(&repo, &dir.path().join("db"), &[]));
        assert_eq!((&report["commits"], &report["changes"]), (&0.into(), &0.into()));
        assert_eq!((&report["last_processed"], &report["resumed_from"]), (&Value::Null, &Value::Null));
    }
    commit(&repo, "first");
    assert_eq!(agrees_with_git(&repo, &dir.path().join("db"))["commits"], 1);
}

#[test]
fn a_second_run_indexes_what_is_new_and_leaves_the_work_tree_clean() {
    let dir = TempDir::new().unwrap();
    let repo = small(&dir, 4);
    fs::create_dir(repo.join("below")).unwrap();
    let run = || {
        let mut command = Command::new(binary());
        report(&command.arg("--json").current_dir(repo.join("below")).output().unwrap())
    };
    let first = run();
    assert_eq!((&first["commits"], &first["resumed_from"]), (&4.into(), &Value::Null));
    assert_eq!(text(&git(&repo, ["status", "--porcelain"])), "");
    assert!(repo.join(".git/waterline/CURRENT").is_file());
    let idle = run();
    assert_eq!((&idle["commits"], &idle["resumed_from"], &idle["last_processed"]), (&4.into(), &3.into(), &3.into()));
    commit(&repo, "fifth");
    let grown = run();
    assert_eq!(
        (&grown["commits"], &grown["resumed_from"], &grown["last_processed"]),
        (&5.into(), &3.into(), &4.into())
    );
    git(&repo, ["fsck", "--strict"]);
}

#[test]
fn what_was_indexed_above_the_watermark_counts_once_and_has_to_be_of_this_history() {
    let dir = TempDir::new().unwrap();
    let (repo, db) = (small(&dir, 9), dir.path().join("db"));
    let id = text(&git(&repo, ["rev-parse", "HEAD~2"]));
    // What a kill leaves: the commits 0 to 3 and 6 are indexed, and those in between are not.
    let store = Store::open(&db).unwrap();
    let (rows, totals) = (store.table("commits").unwrap(), store.table("totals").unwrap());
    let jobs: MemoryJobs<u64> = (0..9).collect();
    let consumer = Consumer::builder(jobs, store.progress("commits"))
        .stop_at(6)
        .retry(Retry::fixed(PATIENCE))
        .start_transactional(move |job, effects| {
            if [4, 5].contains(&job.index) {
                return Err("not yet".into());
            }
            effects.put(&rows, job.index.to_be_bytes(), format!(r#"{{"commit":"{id}","paths":["file"]}}"#))?;
            effects.add(&totals, "commits", 1)?;
            Ok(effects.add(&totals, "changes", 1)?)
        })
        .unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(3, PATIENCE));
    while handle.status().done < 5 || handle.status().failed < 2 {
        std::thread::yield_now();
    }
    consumer.stop().unwrap();
    drop(store);
    let whole = report(&example(&repo, &db, &[]));
    assert_eq!((&whole["resumed_from"], &whole["commits"], &whole["changes"]), (&3.into(), &9.into(), &9.into()));

    // The same, and the history was rewritten above the watermark.
    let other = dir.path().join("other");
    assert_eq!(report(&example(&repo, &other, &[]))["commits"], 9);
    let store = Store::open(&other).unwrap();
    let stale = r#"{"commit":"0","paths":["file"]}"#;
    store.table("commits").unwrap().put(9_999u64.to_be_bytes(), stale).unwrap();
    drop(store);
    let refused = example(&repo, &other, &[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("use --reset"), "{}", stderr(&refused));
}

#[test]
fn a_rewritten_history_is_refused() {
    let dir = TempDir::new().unwrap();
    let (repo, db) = (small(&dir, 6), dir.path().join("db"));
    agrees_with_git(&repo, &db);
    let refused = |why: &str| {
        let output = example(&repo, &db, &[]);
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), [].as_slice()), "{why}");
        assert!(stderr(&output).contains("use --reset"), "{why}: {}", stderr(&output));
    };
    git(&repo, ["commit", "-q", "--amend", "--allow-empty", "-m", "another last"]);
    refused("the last commit is another");
    commit(&repo, "one more");
    refused("as long as before, and more");
    git(&repo, ["reset", "-q", "--hard", "HEAD~3"]);
    refused("shorter");
    git(&repo, ["update-ref", "-d", "HEAD"]);
    refused("none at all");
    commit(&repo, "a new root");
    assert_eq!(report(&example(&repo, &db, &["--reset"]))["resumed_from"], Value::Null);
    assert_eq!(agrees_with_git(&repo, &db)["commits"], 1);
}

#[test]
fn reset_removes_a_database_and_nothing_else() {
    let dir = TempDir::new().unwrap();
    let (repo, db) = (small(&dir, 3), dir.path().join("db"));
    // Not there, empty, and a database: each begins anew.
    assert_eq!(report(&example(&repo, &db, &["--reset"]))["resumed_from"], Value::Null);
    assert_eq!(report(&example(&repo, &db, &[]))["resumed_from"], 2);
    assert_eq!(report(&example(&repo, &db, &["--reset"]))["resumed_from"], Value::Null);
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert_eq!(report(&example(&repo, &empty, &["--reset"]))["commits"], 3);
    let mut left = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.all(|name| !name.to_string_lossy().contains("removed")), "nothing is left aside");

    let precious = dir.path().join("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("file"), "mine").unwrap();
    let refused = example(&repo, &precious, &["--reset"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("no database"), "{}", stderr(&refused));
    assert_eq!(fs::read_dir(&precious).unwrap().count(), 1);
}

#[test]
fn a_database_that_is_open_elsewhere_is_left_alone() {
    let dir = TempDir::new().unwrap();
    let (repo, db) = (small(&dir, 3), dir.path().join("db"));
    agrees_with_git(&repo, &db);
    let open = Store::open(&db).unwrap();
    for more in [&[][..], &["--reset"]] {
        let refused = example(&repo, &db, more);
        assert_eq!(refused.status.code(), Some(1), "{more:?}");
        assert!(stderr(&refused).contains("open elsewhere"), "{more:?}: {}", stderr(&refused));
    }
    drop(open);
    assert_eq!(report(&example(&repo, &db, &[]))["resumed_from"], 2);
}

#[test]
fn an_unreadable_object_halts_and_names_the_commit() {
    let dir = TempDir::new().unwrap();
    let (repo, db) = (small(&dir, 8), dir.path().join("db"));
    let (id, tree) = (text(&git(&repo, ["rev-parse", "HEAD~3"])), text(&git(&repo, ["rev-parse", "HEAD~3^{tree}"])));
    let object = repo.join(".git/objects").join(&tree[..2]).join(&tree[2..]);
    let aside = dir.path().join("aside");
    fs::rename(&object, &aside).unwrap();
    // One at a time: the next commit is compared with this one's tree, and must not fail before it.
    let halted = example(&repo, &db, &["--workers", "1"]);
    assert_eq!((halted.status.code(), halted.stdout.as_slice()), (Some(1), [].as_slice()));
    assert!(stderr(&halted).contains(&id), "{}", stderr(&halted));
    fs::rename(&aside, &object).unwrap();
    assert_eq!(report(&example(&repo, &db, &[]))["resumed_from"], 3, "everything below the commit was saved");
    agrees_with_git(&repo, &db);
}

#[test]
fn wrong_places_are_named() {
    let dir = TempDir::new().unwrap();
    let output = example(&dir.path().join("nowhere"), &dir.path().join("db"), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("nowhere"), "{}", stderr(&output));
    assert!(!dir.path().join("db").exists());
}

#[test]
fn ten_kills_lose_no_row() {
    let dir = TempDir::new().unwrap();
    let (repo, db) = (imported(&dir, "repo", COMMITS, 3), dir.path().join("db"));
    let seconds = report(&example(&repo, &dir.path().join("whole"), &["--workers", "2"]))["seconds"].as_f64().unwrap();
    let mut rng = fastrand::Rng::with_seed(4);
    let mut resumed = Vec::new();
    for life in 0..10 {
        let mut life = Life::begin(&repo, &db, life % 4 != 3);
        resumed.extend(life.resumed_from);
        // Ten of these are about a sixth of a whole run, so that all hit, whatever else the machine does meanwhile.
        let delay = seconds / 32.0 * (0.1 + 0.9 * rng.f64());
        life.lasts(Duration::from_secs_f64(delay));
        life.child.kill().unwrap();
        life.child.wait().unwrap();
    }
    println!("a whole run takes {seconds:.2} s; the lives resumed from {resumed:?}");
    assert!(resumed.is_sorted(), "progress never goes back: {resumed:?}");
    resumed.dedup();
    assert!(resumed.len() >= 3 && resumed.iter().all(|&index| index < COMMITS as u64 - 1), "{resumed:?}");
    let report = agrees_with_git(&repo, &db);
    assert!(report["resumed_from"].as_u64() >= resumed.last().copied(), "{report}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_cleanly_and_the_next_run_resumes() {
    let dir = TempDir::new().unwrap();
    let (repo, db) = (imported(&dir, "repo", COMMITS, 5), dir.path().join("db"));
    let mut before = None;
    for signal in ["-INT", "-TERM"] {
        let life = Life::begin(&repo, &db, true);
        assert_eq!(life.resumed_from, before);
        life.lasts(Duration::from_millis(100));
        let pid = life.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        let said: Vec<String> = life.stderr.iter().collect();
        let output = life.child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130));
        assert!(said.iter().any(|line| line.contains("resume")), "{said:?}");
        let report = last_line(&output);
        let last = report["last_processed"].as_u64();
        assert!(last >= before && last < Some(COMMITS as u64 - 1), "{report}");
        assert_eq!(report["commits"].as_u64(), last.map(|last| last + 1));
        before = last;
    }
    assert!(before.is_some(), "no signal hit in the middle");
    assert_eq!(agrees_with_git(&repo, &db)["resumed_from"].as_u64(), before, "nothing that was saved is done again");
}

/// Long enough that ten kills and two signals hit in the middle.
const COMMITS: usize = 20_000;

/// A running example, and what it says on stderr.
struct Life {
    child: Child,
    stderr: Receiver<String>,
    resumed_from: Option<u64>,
}

impl Life {
    /// Starts it; with `wait`, jobs are running when this returns.
    fn begin(repo: &Path, db: &Path, wait: bool) -> Self {
        let mut command = command(repo, db, &["--workers", "2"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (lines, stderr) = unbounded();
        let pipe = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || pipe.lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
        let mut resumed_from = None;
        if wait {
            let line = stderr.recv_timeout(PATIENCE).expect("it says where it begins");
            if let Some(rest) = line.strip_prefix("resuming after index ") {
                resumed_from = Some(rest.split(' ').next().unwrap().parse().unwrap());
            } else {
                assert!(line.starts_with("beginning"), "{line}");
            }
        }
        Self { child, stderr, resumed_from }
    }

    /// Waits; it must still run then.
    #[track_caller]
    fn lasts(&self, time: Duration) {
        let deadline = Instant::now() + time;
        let mut said = Vec::new();
        loop {
            match self.stderr.recv_deadline(deadline) {
                Ok(line) => said.push(line),
                Err(RecvTimeoutError::Timeout) => return,
                Err(RecvTimeoutError::Disconnected) => panic!("it ended before {time:?} were over: {said:?}"),
            }
        }
    }
}

/// Runs it to its end, and compares the totals and every row with what git says.
fn agrees_with_git(repo: &Path, db: &Path) -> Value {
    let report = report(&example(repo, db, &[]));
    let commits: u64 = text(&git(repo, ["rev-list", "--count", "--first-parent", "HEAD"])).parse().unwrap();
    let log = ["log", "--first-parent", "-m", "--root", "--no-renames", "--name-only", "-z"];
    let names = git(repo, log.into_iter().chain(["--format="]));
    let changes = names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).count() as u64;
    assert_eq!((report["commits"].as_u64(), report["changes"].as_u64()), (Some(commits), Some(changes)));
    assert_eq!(report["last_processed"].as_u64(), commits.checked_sub(1));
    assert!(report["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0));

    let log = git(repo, log.into_iter().chain(["--reverse", "--format=%x01%H %at"]));
    let expected: Vec<&[u8]> = log.split(|byte| *byte == 1).skip(1).collect();
    let rows: Vec<_> = Store::open(db).unwrap().table("commits").unwrap().iter().map(Result::unwrap).collect();
    assert_eq!((rows.len(), expected.len()), (commits as usize, commits as usize));
    for (index, ((key, row), expected)) in rows.iter().zip(expected).enumerate() {
        let row: Value = serde_json::from_slice(row).unwrap();
        assert_eq!(key, &(index as u64).to_be_bytes());
        // A line with the id and the time, and then the names; git puts a line feed before the first one.
        let (head, names) = expected.split_at(expected.iter().position(|byte| *byte == 0).unwrap());
        assert_eq!(format!("{} {}", row["commit"].as_str().unwrap(), row["author_time"]).as_bytes(), head);
        let names = names[1..].strip_prefix(b"\n").unwrap_or(&names[1..]).split(|byte| *byte == 0);
        let mut names: Vec<_> =
            names.filter(|n| !n.is_empty()).map(|n| String::from_utf8_lossy(n).into_owned()).collect();
        let mut paths: Vec<_> = row["paths"].as_array().unwrap().iter().map(|path| path.as_str().unwrap()).collect();
        names.sort_unstable();
        paths.sort_unstable();
        assert_eq!(paths, names, "commit {index}");
    }
    report
}

/// The example, beside the directory of the tests' own programs.
fn binary() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let name = format!("git_history{}", std::env::consts::EXE_SUFFIX);
    let path = own.parent().and_then(Path::parent).unwrap().join("examples").join(name);
    assert!(path.is_file(), "{} is not built: run through `cargo test`, which builds the examples", path.display());
    path
}

fn command(repo: &Path, db: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.arg(repo).arg("--json").arg("--db").arg(db).args(more);
    command
}

fn example(repo: &Path, db: &Path, more: &[&str]) -> Output {
    command(repo, db, more).output().unwrap()
}

/// What it says when all went well.
fn report(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    last_line(output)
}

fn last_line(output: &Output) -> Value {
    serde_json::from_str(String::from_utf8_lossy(&output.stdout).lines().last().unwrap()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).trim_end().to_owned()
}

fn git<S: AsRef<OsStr>>(dir: &Path, args: impl IntoIterator<Item = S>) -> Vec<u8> {
    piped(dir, args, b"")
}

/// Runs git with this input, the same on every machine; returns its output.
fn piped<S: AsRef<OsStr>>(dir: &Path, args: impl IntoIterator<Item = S>, input: &[u8]) -> Vec<u8> {
    let mut command = Command::new("git");
    command.args(["-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always"]).args(args).current_dir(dir);
    command.env("GIT_CONFIG_GLOBAL", if cfg!(windows) { "NUL" } else { "/dev/null" }).env("GIT_CONFIG_NOSYSTEM", "1");
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "A U Thor").env(format!("GIT_{role}_EMAIL"), "author@example.com");
        command.env(format!("GIT_{role}_DATE"), "2020-01-02T03:04:05Z");
    }
    for leaked in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX"] {
        command.env_remove(leaked);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", stderr(&output));
    output.stdout
}

/// A repository with so many commits of one changed path each.
fn small(dir: &TempDir, commits: usize) -> PathBuf {
    let repo = dir.path().join("small");
    git(dir.path(), ["init", "-q", "small"]);
    (0..commits).for_each(|n| commit(&repo, &n.to_string()));
    repo
}

fn commit(repo: &Path, content: &str) {
    fs::write(repo.join("file"), content).unwrap();
    git(repo, ["add", "file"]);
    git(repo, ["commit", "-q", "-m", content]);
}

/// A repository with so many commits on the first-parent line, which do everything that git can record.
fn imported(dir: &TempDir, name: &str, commits: usize, seed: u64) -> PathBuf {
    let repo = dir.path().join(name);
    git(dir.path(), ["init", "-q", name]);
    piped(&repo, ["fast-import", "--quiet", "--force"], &History::new(seed).write(commits));
    repo
}

/// Names of files as well as of directories, so that each may become the other; some sort differently as a directory.
const NAMES: &[u8] =
    b"a|a-|a.b|a0|b|c|src|lib|with space| lead|quo\"te|new\nline|back\\slash|-dash|\xff\xfe raw|\xc3\xbcml";
const BLOBS: usize = 50;
const MODES: [&str; 4] = ["100644", "100644", "100755", "120000"];

/// A stream for `git fast-import`.
struct History {
    rng: fastrand::Rng,
    stream: Vec<u8>,
    /// The mode and the blob of each path. It may have paths that a directory or a file has replaced; that does no harm.
    files: BTreeMap<Vec<u8>, (&'static str, usize)>,
    commits: usize,
}

impl History {
    fn new(seed: u64) -> Self {
        Self { rng: fastrand::Rng::with_seed(seed), stream: Vec::new(), files: BTreeMap::new(), commits: 0 }
    }

    fn write(mut self, commits: usize) -> Vec<u8> {
        for blob in 1..=BLOBS {
            self.line(&format!("blob\nmark :{blob}\ndata <<END\n{blob}\nEND\n"));
        }
        let mut main = vec![];
        for _ in 0..commits {
            let last = main.last().copied();
            let changes = match self.rng.u8(..) {
                0..20 => 0,
                20..240 => self.rng.usize(1..5),
                _ => self.rng.usize(5..60),
            };
            // A side branch begins somewhere in the last commits.
            let recent = main.len().saturating_sub(20)..main.len();
            if last.is_some() && self.rng.u8(..) < 24 {
                let from: Vec<_> = (0..self.rng.usize(1..3)).map(|_| main[self.rng.usize(recent.clone())]).collect();
                let sides: Vec<_> = from.into_iter().map(|from| self.side(from)).collect();
                let merged: Vec<usize> = sides.iter().map(|(commit, _)| *commit).collect();
                main.push(self.begin("main", last, &merged));
                // To the first parent line a merge brings what the side branch did.
                sides.iter().for_each(|(_, brought)| self.stream.extend_from_slice(brought));
                (0..changes % 3).for_each(|_| self.change());
            } else {
                main.push(self.begin("main", last, &[]));
                (0..changes).for_each(|_| self.change());
            }
        }
        self.line("done\n");
        self.stream
    }

    /// A commit on a side branch, and the changes that it makes.
    fn side(&mut self, from: usize) -> (usize, Vec<u8>) {
        let commit = self.begin("side", Some(from), &[]);
        let begun = self.stream.len();
        (0..self.rng.usize(1..4)).for_each(|_| self.change());
        (commit, self.stream[begun..].to_vec())
    }

    fn begin(&mut self, branch: &str, from: Option<usize>, merged: &[usize]) -> usize {
        self.commits += 1;
        let (mark, time) = (BLOBS + self.commits, 1_000_000_000 + self.commits * 60);
        let who = format!("A U Thor <author@example.com> {time} +0100");
        self.line(&format!("commit refs/heads/{branch}\nmark :{mark}\nauthor {who}\ncommitter {who}\n"));
        let message: &[u8] = self.rng.choice([b"plain".as_slice(), b"", b"not \xff UTF-8", b"two\n\nparts"]).unwrap();
        self.line(&format!("data {}\n", message.len()));
        self.stream.extend_from_slice(message);
        self.line("\n");
        if let Some(from) = from {
            self.line(&format!("from :{from}\n"));
        }
        merged.iter().for_each(|commit| self.line(&format!("merge :{commit}\n")));
        mark
    }

    /// Adds, replaces, deletes or renames something, or changes its mode or type.
    fn change(&mut self) {
        let known = match self.files.len() {
            0 => None,
            n => self.files.iter().nth(self.rng.usize(..n)).map(|(path, file)| (path.clone(), *file)),
        };
        let (mode, blob) = (self.rng.choice(MODES).unwrap(), self.rng.usize(1..=BLOBS));
        match (self.rng.u8(..100), known) {
            (0..20, Some((path, _))) => self.delete(&path),
            (20..35, Some((path, (mode, blob)))) => {
                self.delete(&path);
                let path = self.path();
                self.put(path, mode, blob);
            }
            (35..45, Some((path, (_, blob)))) => self.put(path, mode, blob),
            (45..65, Some((path, (mode, _)))) => self.put(path, mode, blob),
            (65..73, _) => {
                let path = self.path();
                let id: String = (0..40).map(|_| self.rng.digit(16)).collect();
                self.modify(&path, "160000", &id);
            }
            _ => {
                let path = self.path();
                self.put(path, mode, blob);
            }
        }
    }

    fn put(&mut self, path: Vec<u8>, mode: &'static str, blob: usize) {
        self.modify(&path, mode, &format!(":{blob}"));
        self.files.insert(path, (mode, blob));
    }

    fn modify(&mut self, path: &[u8], mode: &str, what: &str) {
        self.line(&format!("M {mode} {what} {}\n", quoted(path)));
    }

    fn delete(&mut self, path: &[u8]) {
        self.line(&format!("D {}\n", quoted(path)));
        self.files.remove(path);
    }

    fn path(&mut self) -> Vec<u8> {
        let depth = self.rng.usize(1..5);
        let names: Vec<&[u8]> = NAMES.split(|byte| *byte == b'|').collect();
        let parts: Vec<&[u8]> = (0..depth).map(|_| names[self.rng.usize(..names.len())]).collect();
        parts.join(&b'/')
    }

    fn line(&mut self, line: &str) {
        self.stream.extend_from_slice(line.as_bytes());
    }
}

/// As in C, every byte escaped.
fn quoted(path: &[u8]) -> String {
    let escaped: String = path.iter().map(|byte| format!("\\{byte:03o}")).collect();
    format!("\"{escaped}\"")
}
