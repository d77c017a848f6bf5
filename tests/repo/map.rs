//! The maps for whoever carries on: tests/README.md names every test file and every test of a
//! promise, CONTRIBUTING.md names every room, and the planted bugs name tests that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use tree::root;

use common::tree;

/// The promises are numbered from 1 to this.
const PROMISES: u32 = 10;

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// The Rust files below `src` and `tests`, by their path.
fn sources() -> BTreeMap<String, String> {
    tree::files(&["src", "tests"], &["rs"]).into_iter().collect()
}

/// The names of the functions in a file: lines that begin with `fn`.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    let name = |line: &'_ str| -> Option<usize> { line.find(|c: char| !(c.is_alphanumeric() || c == '_')) };
    let declared = text.lines().map(str::trim_start).filter_map(|line| line.strip_prefix("fn "));
    declared.filter_map(move |line| Some(&line[..name(line)?]))
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

/// A test of a promise: the promise, the file, and the name.
type Proof = (u32, String, String);

/// All tests of promises in these files.
fn proofs(sources: &BTreeMap<String, String>) -> Result<BTreeSet<Proof>, String> {
    let mut found = BTreeSet::new();
    for (file, text) in sources {
        for test in functions(text).filter(|name| name.starts_with("promise_")) {
            found.extend(promises(test)?.into_iter().map(|number| (number, file.clone(), test.to_owned())));
        }
    }
    Ok(found)
}

/// The text in the first pair of backticks.
fn quoted(line: &str) -> Option<&str> {
    line.split('`').nth(1)
}

/// The tests of promises in the map: below `### 1. …` a file in a line of its own, and its tests.
fn mapped(map: &str) -> BTreeSet<Proof> {
    let (_, map) = map.split_once("\n## The promises\n").expect("the map has the section of the promises");
    let (mut number, mut file) = (0, "");
    let mut found = BTreeSet::new();
    for line in map.lines() {
        if let Some(heading) = line.strip_prefix("### ") {
            number = heading.split('.').next().and_then(|digits| digits.parse().ok()).expect("a promise has a number");
        } else if line.starts_with('`') && line.ends_with(".rs`") {
            file = quoted(line).unwrap();
        } else if let Some(test) = line.strip_prefix("* ").and_then(quoted) {
            found.insert((number, file.to_owned(), test.to_owned()));
        }
    }
    found
}

/// The names in the first column of the table below a heading.
fn first_column(text: &str, heading: &str) -> BTreeSet<String> {
    let (_, below) = text.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("there is no {heading:?}"));
    let below = below.split("\n## ").next().unwrap();
    let rows = below.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    rows.map(str::to_owned).collect()
}

/// The lines of one set that the other lacks, and the reverse.
fn difference<T: Ord + Clone>(there: &BTreeSet<T>, named: &BTreeSet<T>) -> (Vec<T>, Vec<T>) {
    (there.difference(named).cloned().collect(), named.difference(there).cloned().collect())
}

#[test]
fn the_map_has_each_test_of_a_promise_and_no_other() {
    let proofs = proofs(&sources()).unwrap();
    let (missing, gone) = difference(&proofs, &mapped(&read("tests/README.md")));
    assert!(missing.is_empty(), "add these to tests/README.md: {missing:#?}");
    assert!(gone.is_empty(), "tests/README.md names these, and they are not there: {gone:#?}");
    for promise in 1..=PROMISES {
        assert!(proofs.iter().any(|(number, ..)| *number == promise), "promise {promise} has no test");
    }
}

#[test]
fn the_map_has_each_file_of_the_tests_and_no_other() {
    let files = fs::read_dir(root().join("tests")).unwrap();
    let files = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    let (missing, gone) = difference(&files, &first_column(&read("tests/README.md"), "## The files"));
    assert!(missing.is_empty(), "say in tests/README.md what these are for: {missing:?}");
    assert!(gone.is_empty(), "tests/README.md names these, and they are not there: {gone:?}");
}

#[test]
fn contributing_has_each_room_of_the_sources_and_no_other() {
    let files = fs::read_dir(root().join("src")).unwrap().map(|file| file.unwrap().path());
    let rooms = files.filter(|path| path.extension().is_some_and(|ending| ending == "rs"));
    let name = |path: PathBuf| path.file_stem().and_then(|name| name.to_str()).unwrap().to_owned();
    let rooms: BTreeSet<_> = rooms.map(name).filter(|room| room != "lib").collect();
    let (missing, gone) = difference(&rooms, &first_column(&read("CONTRIBUTING.md"), "## The rooms"));
    assert!(missing.is_empty(), "say in CONTRIBUTING.md what these rooms are for: {missing:?}");
    assert!(gone.is_empty(), "CONTRIBUTING.md names these rooms, and they are not there: {gone:?}");
}

/// True if a file has something to do with the program that `found by:` names: `--lib`, `loom`, or
/// `--test name`.
fn is_of(file: &str, program: &[&str]) -> bool {
    let of_test = |name: &str| file == format!("tests/{name}.rs") || file.starts_with(&format!("tests/{name}/"));
    match program {
        ["--lib" | "loom"] => file.starts_with("src/"),
        ["--test", name] => of_test(name),
        _ => false,
    }
}

#[test]
fn each_planted_bug_names_a_test_that_exists() {
    let (sources, list) = (sources(), read("tests/mutants.txt"));
    let named: BTreeSet<_> = list.lines().filter_map(|line| line.strip_prefix("found by: ")).collect();
    assert!(named.len() > 50, "only {} tests were read", named.len());
    let exists = |found_by: &&&str| {
        let words: Vec<_> = found_by.split_whitespace().collect();
        let (test, program) = words.split_last().unwrap();
        let wanted = if program == ["loom"] { format!("loom_{test}") } else { (*test).to_owned() };
        let files = sources.iter().filter(|(file, _)| is_of(file, program));
        files.flat_map(|(_, text)| functions(text)).any(|name| name.contains(&wanted))
    };
    let lost: Vec<_> = named.iter().filter(|found_by| !exists(found_by)).collect();
    assert!(lost.is_empty(), "tests/mutants.txt names these tests, and they are not there: {lost:#?}");
}

#[test]
fn a_test_that_the_map_lacks_a_wrong_number_and_a_name_that_is_gone_are_seen() {
    let text = "#[test]\nfn promise_01_promise_10_a() {\n    fn promise_02_b(";
    let sources = BTreeMap::from([("src/x.rs".to_owned(), text.to_owned())]);
    let proof = |number, test: &str| (number, "src/x.rs".to_owned(), test.to_owned());
    let (both, second) = ("promise_01_promise_10_a", "promise_02_b");
    let found = proofs(&sources).unwrap();
    assert_eq!(found, BTreeSet::from([proof(1, both), proof(2, second), proof(10, both)]));
    let map = format!("\n## The promises\n\n### 1. X\n\n`src/x.rs`\n\n* `{both}`\n* `promise_01_gone`\n");
    let (missing, gone) = difference(&found, &mapped(&map));
    assert_eq!(missing, [proof(2, second), proof(10, both)]);
    assert_eq!(gone, [proof(1, "promise_01_gone")]);
    for wrong in ["promise_1_a", "promise_11_a", "promise_00_a", "promise_001_a", "promise_x"] {
        assert!(promises(wrong).is_err(), "{wrong}");
    }
    assert_eq!(first_column("\n## A\n\n| a |\n|---|\n| `x` | y |\n\n## B\n| `z` |\n", "## A"), ["x".to_owned()].into());
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
