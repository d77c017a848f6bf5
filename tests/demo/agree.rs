//! Compares the output and the store of the example with git.

use crate::program::{example, git, piped, report, text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use waterline::{Jobs, Store};

/// Runs the example to its end, and compares totals and rows with git.
pub fn agrees_with_git(repo: &Path, db: &Path) -> Value {
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
        // The id and the time, then the names. Git puts a line feed before the first name.
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
    agrees_about_files(repo, db, &report);
    report
}

/// Checks the sums of each extension, and that both stages have ended.
fn agrees_about_files(repo: &Path, db: &Path, report: &Value) {
    let expected = files_and_lines(repo);
    let found: BTreeMap<String, (u64, u64)> = report["extensions"].as_object().unwrap().iter().map(sums).collect();
    assert_eq!(found, expected);
    let (files, lines) = expected.values().fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
    assert_eq!((report["files"].as_u64(), report["lines"].as_u64()), (Some(files), Some(lines)));
    assert_eq!(report["changes"].as_u64(), Some(files), "each change is counted as a file");
    for (stage, name, head) in [(0, "commits", report["head"].as_u64()), (1, "files", Some(files).filter(|n| *n > 0))] {
        let stage = &report["stages"][stage];
        assert_eq!((stage["name"].as_str(), stage["lag"].as_u64()), (Some(name), Some(0)), "{report}");
        assert_eq!((stage["head"].as_u64(), stage["last_processed"].as_u64()), (head, head), "{report}");
    }
    let log = Store::open(db).unwrap().log::<(String, String, char)>("files").unwrap();
    assert_eq!(log.head().unwrap().unwrap_or(0), files);
}

/// Checks that the log is empty after an idle run. (The last trim of a busy run may come too late
/// for its end.)
pub fn trims_the_log(repo: &Path, db: &Path) {
    let idle = report(&example(repo, db, &[]));
    assert_eq!((&idle["stages"][0]["done"], &idle["stages"][1]["done"]), (&0.into(), &0.into()));
    let log = Store::open(db).unwrap().log::<(String, String, char)>("files").unwrap();
    assert_eq!(
        (log.first().unwrap(), log.head().unwrap()),
        (idle["files"].as_u64().unwrap() + 1, idle["files"].as_u64())
    );
}

fn sums((extension, row): (&String, &Value)) -> (String, (u64, u64)) {
    (extension.clone(), (row["files"].as_u64().unwrap(), row["lines"].as_u64().unwrap()))
}

/// Returns, for each extension, the number of files that commits changed, and of lines in the new
/// versions as git counts them.
fn files_and_lines(repo: &Path) -> BTreeMap<String, (u64, u64)> {
    let raw = ["log", "--first-parent", "-m", "--root", "--no-renames", "--raw", "--no-abbrev", "-z", "--format="];
    let raw = git(repo, raw);
    // Modes, ids and a letter, then the path.
    let parts: Vec<&[u8]> = raw.split(|byte| *byte == 0).filter(|part| !part.is_empty()).collect();
    let (pairs, rest) = parts.as_chunks::<2>();
    assert!(rest.is_empty());
    let mut changes = Vec::new();
    for [entry, path] in pairs {
        let entry: Vec<&str> = std::str::from_utf8(entry).unwrap().trim_start_matches(':').split(' ').collect();
        let [_, mode, _, blob, _] = entry[..] else { panic!("{entry:?}") };
        let path = String::from_utf8_lossy(path).into_owned();
        let name = path.split('/').next_back().unwrap();
        let extension = match name.rfind('.') {
            None | Some(0) => "",
            Some(dot) => &name[dot + 1..],
        };
        // A deletion has no mode, and a submodule no blob.
        let blob = ["100644", "100755", "120000"].contains(&mode).then(|| blob.to_owned());
        changes.push((extension.to_owned(), blob));
    }
    let lines = lines_of(repo, changes.iter().filter_map(|(_, blob)| blob.as_deref()));
    let mut sums = BTreeMap::<String, (u64, u64)>::new();
    for (extension, blob) in changes {
        let sum = sums.entry(extension).or_default();
        *sum = (sum.0 + 1, sum.1 + blob.map_or(0, |blob| lines[&blob]));
    }
    sums
}

/// Returns how many lines git counts as added when these blobs are new files.
fn lines_of<'a>(repo: &Path, blobs: impl Iterator<Item = &'a str>) -> BTreeMap<String, u64> {
    let blobs: BTreeSet<&str> = blobs.collect();
    let tree: String = blobs.iter().map(|blob| format!("100644 blob {blob}\t{blob}\n")).collect();
    let [empty, tree] = [String::new(), tree].map(|tree| text(&piped(repo, ["mktree"], tree.as_bytes())));
    let stat = text(&git(repo, ["diff-tree", "-r", "--numstat", &empty, &tree]));
    let lines: BTreeMap<String, u64> = stat
        .lines()
        .map(|line| {
            let row: Vec<&str> = line.split('\t').collect();
            // Git prints a dash for a binary file.
            (row[2].to_owned(), if row[0] == "-" { 0 } else { row[0].parse().unwrap() })
        })
        .collect();
    assert_eq!(lines.len(), blobs.len());
    lines
}
