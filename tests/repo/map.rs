//! The lists for whoever carries on: tests/README.md names every test program, CONTRIBUTING.md has
//! every room, and every promise has tests.

use common::tree::{self, root};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The promises are numbered from 1 to this.
const PROMISES: u32 = 10;

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// The Rust files below `src` and `tests`, by their path.
pub(crate) fn sources() -> BTreeMap<String, String> {
    tree::files(&["src", "tests"], &["rs"]).into_iter().collect()
}

/// The names of the functions in a file: lines that begin with `fn`.
pub(crate) fn functions(text: &str) -> impl Iterator<Item = &str> {
    let name = |line: &'_ str| -> Option<usize> { line.find(|c: char| !(c.is_alphanumeric() || c == '_')) };
    let declared = text.lines().map(str::trim_start).filter_map(|line| line.strip_prefix("fn "));
    declared.filter_map(move |line| Some(&line[..name(line)?]))
}

/// The case of the suite of queues that a line of this file begins. `queue_suite!` makes a test of
/// it.
pub(crate) fn case<'a>(file: &str, line: &'a str) -> Option<&'a str> {
    let (name, taken) = line.strip_prefix("pub(super) fn ")?.split_once('(')?;
    (file.starts_with("src/testing/queue/") && (taken.is_empty() || taken.contains(": &Benches<"))).then_some(name)
}

/// The promises that a test is named after: `promise_01_promise_10_…` is a test of two. An error
/// if a number is not one of theirs, in two digits.
fn promises(test: &str) -> Result<BTreeSet<u32>, String> {
    let numbers = test.split("promise_").skip(1).map(|rest| {
        let digits = rest.split('_').next().unwrap_or_default();
        let number = digits.parse().ok().filter(|number| digits.len() == 2 && (1..=PROMISES).contains(number));
        number.ok_or_else(|| format!("{test}: a promise is promise_01_ to promise_{PROMISES}_"))
    });
    numbers.collect()
}

/// The names in the first column of the table below a heading. An error if one stands there twice.
fn first_column(text: &str, heading: &str) -> Result<BTreeSet<String>, String> {
    let (_, below) = text.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("there is no {heading:?}"));
    let below = below.split("\n## ").next().unwrap();
    let mut names = BTreeSet::new();
    for name in below.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()) {
        if !names.insert(name.to_owned()) {
            return Err(format!("{name} stands twice below {heading:?}"));
        }
    }
    Ok(names)
}

/// The lines of one set that the other lacks, and the reverse.
fn difference<T: Ord + Clone>(there: &BTreeSet<T>, named: &BTreeSet<T>) -> (Vec<T>, Vec<T>) {
    (there.difference(named).cloned().collect(), named.difference(there).cloned().collect())
}

#[test]
fn each_promise_has_a_test_and_no_test_names_another_promise() {
    let sources = sources();
    let tests = sources.values().flat_map(|text| functions(text)).filter(|name| name.starts_with("promise_"));
    let proven: BTreeSet<_> = tests.flat_map(|test| promises(test).unwrap()).collect();
    assert_eq!(proven, (1..=PROMISES).collect());
}

#[test]
fn the_map_has_each_test_program_and_no_other() {
    let folders = fs::read_dir(root().join("tests")).unwrap().map(|entry| entry.unwrap().path());
    let programs = folders.filter(|folder| folder.join("main.rs").is_file());
    let programs = programs.map(|folder| folder.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    let named = first_column(&read("tests/README.md"), "## The programs").unwrap();
    let (missing, gone) = difference(&programs, &named);
    assert!(missing.is_empty(), "say in tests/README.md what these are about: {missing:?}");
    assert!(gone.is_empty(), "tests/README.md names these, and they are not there: {gone:?}");
}

#[test]
fn contributing_has_each_room_of_the_sources_and_no_other() {
    let files = fs::read_dir(root().join("src")).unwrap().map(|file| file.unwrap().path());
    let rooms = files.filter(|path| path.extension().is_some_and(|ending| ending == "rs"));
    let name = |path: PathBuf| path.file_stem().and_then(|name| name.to_str()).unwrap().to_owned();
    let rooms: BTreeSet<_> = rooms.map(name).filter(|room| room != "lib").collect();
    let (missing, gone) = difference(&rooms, &first_column(&read("CONTRIBUTING.md"), "## The rooms").unwrap());
    assert!(missing.is_empty(), "say in CONTRIBUTING.md what these rooms are for: {missing:?}");
    assert!(gone.is_empty(), "CONTRIBUTING.md names these rooms, and they are not there: {gone:?}");
}

#[test]
fn a_wrong_number_and_a_name_that_stands_twice_are_seen() {
    assert_eq!(promises("promise_01_promise_10_a"), Ok([1, 10].into()));
    for wrong in ["promise_1_a", "promise_11_a", "promise_00_a", "promise_001_a", "promise_x"] {
        assert!(promises(wrong).is_err(), "{wrong}");
    }
    let table = "\n## A\n\n| a |\n|---|\n| `x` | y |\n\n## B\n| `z` |\n";
    assert_eq!(first_column(table, "## A"), Ok(["x".to_owned()].into()));
    assert!(first_column(&table.replace("## B", "| `x` | z |"), "## A").is_err());
}

#[test]
fn links_of_contributing_and_of_the_map_lead_to_files() {
    for (page, folder) in [("CONTRIBUTING.md", ""), ("tests/README.md", "tests")] {
        let text = read(page);
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.starts_with("https://") && !target.starts_with('#')) {
            assert!(root().join(folder).join(Path::new(target)).exists(), "{page} links to {target}");
        }
    }
}
