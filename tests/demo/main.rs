//! The example `git_history` against git itself: real processes, real repositories, real kills.

use common::size;
use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use waterline::{Consumer, MemoryJobs, Retry, Store};

mod agree;
mod made;
mod page;
mod program;

use agree::{agrees_with_git, trims_the_log};
use made::imported;
use program::{command, example, git, last_line, piped, report, stderr, text};

const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn every_row_and_total_equals_that_of_git() {
    let dir = TempDir::new().unwrap();
    let repo = imported(&dir, "repo", 3_000, 1);
    agrees_with_git(&repo, &dir.path().join("db"));
    trims_the_log(&repo, &dir.path().join("db"));
    // A bare clone has no `.git` directory, and a detached HEAD no branch.
    git(dir.path(), ["clone", "-q", "--bare", "repo", "bare"]);
    let bare = dir.path().join("bare");
    agrees_with_git(&bare, &bare.join("waterline"));
    git(&repo, ["checkout", "-q", "--detach", "HEAD~100"]);
    agrees_with_git(&repo, &dir.path().join("db-detached"));
}

#[test]
fn the_history_of_this_crate_agrees_with_git() {
    let dir = TempDir::new().unwrap();
    let here = common::tree::root();
    if !here.join(".git").exists() {
        return println!("this is no checkout");
    }
    // A clone, since the comparison leaves trees behind in the repository.
    git(dir.path(), ["clone", "-q", "--bare", &here.display().to_string(), "clone"]);
    let clone = dir.path().join("clone");
    let report = agrees_with_git(&clone, &clone.join("waterline"));
    assert!(report["extensions"]["rs"]["lines"].as_u64() > Some(0), "{report}");
}

#[test]
fn a_shallow_clone_starts_at_its_boundary() {
    let dir = TempDir::new().unwrap();
    let repo = imported(&dir, "repo", 300, 2);
    let url = format!("file://{}", repo.display());
    git(dir.path(), ["clone", "-q", "--bare", "--depth", "40", &url, "shallow"]);
    let shallow = dir.path().join("shallow");
    let report = agrees_with_git(&shallow, &dir.path().join("db"));
    // The depth counts along the shortest path; the first-parent line is longer.
    assert!((40..300).contains(&report["commits"].as_u64().unwrap()), "{report}");
    // With another depth, each index is a different commit.
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
fn file_modes_equal_to_git_are_no_change() {
    let dir = TempDir::new().unwrap();
    let repo = small(&dir, 1);
    let blob = text(&git(&repo, ["rev-parse", "HEAD:file"]));
    // Very old versions of git wrote these modes. Only the last one is a change: it makes the file
    // executable.
    for mode in ["100644", "100664", "100640", "100600", "100775"] {
        let tree = text(&piped(&repo, ["mktree"], format!("{mode} blob {blob}\tfile\n").as_bytes()));
        let commit = text(&git(&repo, ["commit-tree", "-p", "HEAD", "-m", mode, &tree]));
        git(&repo, ["update-ref", "HEAD", &commit]);
    }
    let report = agrees_with_git(&repo, &dir.path().join("db"));
    assert_eq!((&report["commits"], &report["changes"]), (&6.into(), &2.into()));
}

#[test]
fn an_empty_repository_has_nothing_to_index() {
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
fn a_second_run_indexes_only_new_commits() {
    let dir = TempDir::new().unwrap();
    let repo = small(&dir, 4);
    fs::create_dir(repo.join("below")).unwrap();
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_git_history"));
        report(&command.arg("--json").current_dir(repo.join("below")).output().unwrap())
    };
    let first = run();
    assert_eq!((&first["commits"], &first["resumed_from"]), (&4.into(), &Value::Null));
    assert_eq!(text(&git(&repo, ["status", "--porcelain"])), "");
    assert!(repo.join(".git/waterline/waterline.sqlite").is_file());
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
fn commits_indexed_ahead_count_once_in_the_same_history() {
    let dir = TempDir::new().unwrap();
    let (repo, db) = (small(&dir, 9), dir.path().join("db"));
    let id = text(&git(&repo, ["rev-parse", "HEAD~2"]));
    // As after a kill: commits 0 to 3 and 6 are indexed, and those between are not.
    let file = ("file".to_owned(), text(&git(&repo, ["rev-parse", "HEAD:file"])), 'M');
    let store = Store::open(&db).unwrap();
    let (rows, totals) = (store.table("commits").unwrap(), store.table("totals").unwrap());
    let files = store.log::<(String, String, char)>("files").unwrap();
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
            effects.push(&files, &file)?;
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
    assert_eq!((&whole["files"], &whole["lines"]), (&9.into(), &9.into()));

    // The same after the history was rewritten above the watermark.
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
fn a_commit_without_its_files_is_refused() {
    let dir = TempDir::new().unwrap();
    let (repo, db) = (small(&dir, 3), dir.path().join("db"));
    agrees_with_git(&repo, &db);
    let store = Store::open(&db).unwrap();
    store.table("totals").unwrap().put("changes", 4i64.to_be_bytes()).unwrap();
    drop(store);
    let refused = example(&repo, &db, &[]);
    assert_eq!((refused.status.code(), refused.stdout.as_slice()), (Some(1), [].as_slice()));
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
    // A missing directory, an empty one, and a database: each run starts anew.
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
fn a_database_open_elsewhere_is_left_alone() {
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
fn an_unreadable_object_halts_and_is_named() {
    let dir = TempDir::new().unwrap();
    let (repo, db) = (small(&dir, 8), dir.path().join("db"));
    let (id, tree) = (text(&git(&repo, ["rev-parse", "HEAD~3"])), text(&git(&repo, ["rev-parse", "HEAD~3^{tree}"])));
    let object = repo.join(".git/objects").join(&tree[..2]).join(&tree[2..]);
    let aside = dir.path().join("aside");
    fs::rename(&object, &aside).unwrap();
    // One at a time: the next commit is compared with this tree, too, and must not fail first.
    let halted = example(&repo, &db, &["--workers", "1"]);
    assert_eq!((halted.status.code(), halted.stdout.as_slice()), (Some(1), [].as_slice()));
    assert!(stderr(&halted).contains(&id), "{}", stderr(&halted));
    fs::rename(&aside, &object).unwrap();
    assert_eq!(report(&example(&repo, &db, &[]))["resumed_from"], 3, "everything below the commit was saved");
    agrees_with_git(&repo, &db);
}

#[test]
fn an_unreadable_blob_halts_both_stages() {
    let dir = TempDir::new().unwrap();
    let (repo, db) = (small(&dir, 8), dir.path().join("db"));
    let blob = text(&git(&repo, ["rev-parse", "HEAD~3:file"]));
    let object = repo.join(".git/objects").join(&blob[..2]).join(&blob[2..]);
    let aside = dir.path().join("aside");
    fs::rename(&object, &aside).unwrap();
    for _ in 0..2 {
        let halted = example(&repo, &db, &["--workers", "1"]);
        assert_eq!((halted.status.code(), halted.stdout.as_slice()), (Some(1), [].as_slice()));
        assert!(stderr(&halted).contains(&blob) && stderr(&halted).contains("file file"), "{}", stderr(&halted));
    }
    assert_eq!(Store::open(&db).unwrap().progress("files").last_processed().unwrap(), Some(4));
    fs::rename(&aside, &object).unwrap();
    assert_eq!(agrees_with_git(&repo, &db)["stages"][1]["done"], 4, "everything below the file was saved");
}

#[test]
fn wrong_paths_are_named() {
    let dir = TempDir::new().unwrap();
    let output = example(&dir.path().join("nowhere"), &dir.path().join("db"), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("nowhere"), "{}", stderr(&output));
    assert!(!dir.path().join("db").exists());
}

/// Tries until an attempt hits in the middle. Attempts wait for saves of the example, not for time,
/// so mostly the first one does. On a very busy machine the example may end too soon.
fn hit_in_the_middle<T>(attempt: impl FnMut(u64) -> Option<T>) -> T {
    (0..5).find_map(attempt).expect("in one of five attempts the example was hit in the middle")
}

#[test]
fn ten_kills_lose_no_row() {
    let dir = TempDir::new().unwrap();
    let repo = imported(&dir, "repo", commits(), 3);
    let (db, resumed) = hit_in_the_middle(|seed| {
        let (db, mut rng) = (dir.path().join(format!("db {seed}")), fastrand::Rng::with_seed(seed));
        let mut resumed = Vec::new();
        for life in 0..10 {
            let early = life % 4 == 3;
            let mut life = Life::begin(&repo, &db, !early);
            resumed.extend(life.resumed_from);
            if !early {
                let first = life.resumed_from.map_or(0, |index| index + 1);
                life.saves(COMMITS_STAGE, first + rng.u64(..commits() as u64 / 16));
            }
            // During its start, or soon after.
            life.dies(if early { 30_000 } else { SOON }, &mut rng);
        }
        println!("the lives resumed from {resumed:?}");
        assert!(resumed.is_sorted(), "progress never goes back: {resumed:?}");
        resumed.dedup();
        let hit = resumed.len() >= 3 && resumed.iter().all(|&index| index < commits() as u64 - 1);
        hit.then_some((db, resumed))
    });
    let report = agrees_with_git(&repo, &db);
    assert!(report["resumed_from"].as_u64() >= resumed.last().copied(), "{report}");
}

#[test]
fn kills_of_stage_two_count_no_file_twice() {
    let wide = size(10_000, 40_000);
    let dir = TempDir::new().unwrap();
    let repo = dir.path().join("wide");
    git(dir.path(), ["init", "-q", "wide"]);
    piped(&repo, ["fast-import", "--quiet", "--force"], &made::wide(20, wide as usize / 20));
    let db = hit_in_the_middle(|seed| {
        let (db, mut rng) = (dir.path().join(format!("db {seed}")), fastrand::Rng::with_seed(seed));
        let (mut lasts, mut alone) = (Vec::new(), 0);
        while lasts.len() < 10 && lasts.last() != Some(&Some(wide)) {
            let mut life = Life::begin(&repo, &db, true);
            let before = lasts.last().copied().flatten().unwrap_or(0);
            life.saves(FILES_STAGE, (before + rng.u64(1..wide / 8)).min(wide));
            life.dies(SOON, &mut rng);
            let store = Store::open(&db).unwrap();
            let commits = store.progress("commits").last_processed().unwrap();
            let files = store.progress("files").last_processed().unwrap();
            alone += u32::from(commits == Some(19) && files < Some(wide));
            lasts.push(files);
        }
        println!("files {lasts:?}; {alone} lives left only the second stage to be done");
        assert!(lasts.is_sorted(), "progress never goes back: {lasts:?}");
        lasts.dedup();
        (lasts.len() >= 3).then_some(db)
    });
    assert_eq!(agrees_with_git(&repo, &db)["files"], wide);
    trims_the_log(&repo, &db);
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_and_the_next_run_resumes() {
    let dir = TempDir::new().unwrap();
    let repo = imported(&dir, "repo", commits(), 5);
    let (db, before) = hit_in_the_middle(|seed| {
        let db = dir.path().join(format!("db {seed}"));
        let mut before = None;
        for signal in ["-INT", "-TERM"] {
            before = Some(interrupted(&repo, &db, signal, before)?);
        }
        Some((db, before))
    });
    assert_eq!(agrees_with_git(&repo, &db)["resumed_from"].as_u64(), before, "nothing that was saved is done again");
}

/// Sends this signal once the example has saved something. Returns what it had saved at its end, or
/// `None` if it had ended before the signal.
#[cfg(unix)]
fn interrupted(repo: &Path, db: &Path, signal: &str, before: Option<u64>) -> Option<u64> {
    let life = Life::begin(repo, db, true);
    assert_eq!(life.resumed_from, before);
    life.saves(COMMITS_STAGE, before.map_or(0, |index| index + 1));
    let pid = life.child.id().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    let said: Vec<String> = life.stderr.iter().collect();
    let output = life.child.wait_with_output().unwrap();
    if output.status.code() == Some(0) {
        return None;
    }
    assert_eq!(output.status.code(), Some(130), "{said:?}");
    assert!(said.iter().any(|line| line.contains("resume")), "{said:?}");
    let report = last_line(&output);
    let last = report["last_processed"].as_u64();
    assert!(last > before, "{report}");
    assert_eq!(report["commits"].as_u64(), last.map(|last| last + 1));
    // The second stage finished its running jobs and no others.
    let files = &report["stages"][1];
    assert_eq!(files["last_processed"].as_u64().unwrap_or(0), report["files"].as_u64().unwrap(), "{report}");
    assert_eq!(files["head"].as_u64().unwrap_or(0), report["changes"].as_u64().unwrap(), "{report}");
    last
}

/// Returns enough commits for ten kills and two signals to hit in the middle.
fn commits() -> usize {
    size(5_000, 20_000)
}
/// The number of commits, and of files, between two lines about the progress.
const EVERY: u64 = 50;
/// The text of such a line, after the name of the stage.
const SAVED: &str = ": saved up to index ";
const COMMITS_STAGE: &str = "commits";
const FILES_STAGE: &str = "files";

struct Life {
    child: Child,
    stderr: Receiver<String>,
    resumed_from: Option<u64>,
}

impl Life {
    /// Starts the example. With `wait`, returns once jobs run.
    fn begin(repo: &Path, db: &Path, wait: bool) -> Self {
        let mut command = command(repo, db, &["--workers", "2", "--every", &EVERY.to_string()]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (lines, stderr) = unbounded();
        let pipe = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || pipe.lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
        let mut resumed_from = None;
        if wait {
            let says = || stderr.recv_timeout(PATIENCE).expect("it says where it begins");
            // The stages run by then, and may have printed lines.
            let line = std::iter::repeat_with(says).find(|line| !line.contains(SAVED)).unwrap();
            if let Some(rest) = line.strip_prefix("resuming after index ") {
                resumed_from = Some(rest.split(' ').next().unwrap().parse().unwrap());
            } else {
                assert!(line.starts_with("beginning"), "{line}");
            }
        }
        Self { child, stderr, resumed_from }
    }

    /// Kills it after at most this many microseconds.
    fn dies(&mut self, most: u64, rng: &mut fastrand::Rng) {
        std::thread::park_timeout(Duration::from_micros(rng.u64(..most)));
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until the stage has saved up to this index, or the example has ended.
    #[track_caller]
    fn saves(&self, stage: &str, index: u64) {
        let mut said = Vec::new();
        loop {
            match self.stderr.recv_timeout(PATIENCE) {
                Ok(line) => {
                    let saved = line.strip_prefix(stage).and_then(|rest| rest.strip_prefix(SAVED)?.parse::<u64>().ok());
                    if saved.is_some_and(|saved| saved >= index) {
                        return;
                    }
                    said.push(line);
                }
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => panic!("{index} was not saved by {stage} in {PATIENCE:?}: {said:?}"),
            }
        }
    }
}

/// The most microseconds from a save to a kill, so that each kill hits at different work.
const SOON: u64 = 2_000;

/// Makes a repository with this many commits of one changed path each.
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
