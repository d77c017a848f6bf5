//! The page `queue::parity`: it has a row for each feature of the four systems, and each row has a
//! test that runs, or a reason to be without one.

use std::collections::{BTreeMap, BTreeSet};

use common::tree;

/// The rows that must be there, by the letters of their ids: they are numbered from 1 to this.
const ROWS: &[(&str, u32)] =
    &[("C", 31), ("CR", 11), ("M", 42), ("MR", 20), ("P", 12), ("Q", 41), ("QR", 14), ("A", 7), ("F", 17)];

/// The fields that the queue leaves to others: a reason has one of these words.
const REASONS: [&str; 3] = ["cluster", "server", "framework"];

/// The columns of a table: the id, the feature, ours, and the tests.
const COLUMNS: usize = 4;

/// The tests of all sources, as `file::function`. The value is false if it is ignored.
fn tests(sources: &[(String, String)]) -> BTreeMap<String, bool> {
    let mut found = BTreeMap::new();
    for (file, text) in sources {
        let (mut is_test, mut is_ignored) = (false, false);
        for line in text.lines().map(str::trim) {
            if line == "#[test]" || line.starts_with("#[tokio::test") {
                is_test = true;
            } else if line.starts_with("#[ignore") || line.contains("ignore,") && line.starts_with("#[cfg_attr(") {
                is_ignored = true;
            } else if !line.starts_with("#[") && !line.starts_with("//") {
                let name = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
                if let Some(name) = name.and_then(|rest| rest.split(['(', '<']).next()).filter(|_| is_test) {
                    found.insert(format!("{file}::{name}"), !is_ignored);
                }
                (is_test, is_ignored) = (false, false);
            }
        }
    }
    found
}

/// The letters and the number of an id; `None` if it is none.
fn split_id(id: &str) -> Option<(&str, u32)> {
    let letters = id.trim_end_matches(|c: char| c.is_ascii_digit());
    let is_good = (1..=2).contains(&letters.len()) && letters.chars().all(|c| c.is_ascii_uppercase());
    let number = id[letters.len()..].parse().ok()?;
    (is_good && id == format!("{letters}{number}")).then_some((letters, number))
}

/// The text in each pair of backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The tests that a cell names.
fn named(cell: &str) -> impl Iterator<Item = &str> {
    quoted(cell).filter(|name| name.contains("::"))
}

/// Returns all faults of the page.
fn faults(page: &str, rows: &[(&str, u32)], tests: &BTreeMap<String, bool>) -> Vec<String> {
    let mut found = Vec::new();
    let mut ids = BTreeMap::<&str, u32>::new();
    let is_row = |line: &&str| line.starts_with("| ") && !line.starts_with("| id |");
    for line in page.lines().filter(is_row) {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let id = cells[0];
        *ids.entry(id).or_default() += 1;
        let last = cells[cells.len() - 1];
        if cells.len() != COLUMNS || cells.iter().any(|cell| cell.is_empty()) {
            found.push(format!("{id}: it has not {COLUMNS} cells"));
        }
        if split_id(id).is_none_or(|(letters, number)| {
            !rows.iter().any(|(known, last)| *known == letters && (1..=*last).contains(&number))
        }) {
            found.push(format!("{id}: there is no such row"));
        }
        match last.strip_prefix("left out: ") {
            Some(reason) => {
                let words: BTreeSet<_> = reason.split(|c: char| !c.is_alphabetic()).collect();
                if !REASONS.iter().any(|word| words.contains(word)) {
                    found.push(format!("{id}: this is no reason: {reason}"));
                }
                if reason.trim_end_matches('.').contains(". ") {
                    found.push(format!("{id}: more than one sentence: {reason}"));
                }
            }
            None if named(last).next().is_none() => found.push(format!("{id}: no test and no reason: {last}")),
            None => {}
        }
        for name in named(last) {
            match tests.get(name) {
                Some(true) => {}
                Some(false) => found.push(format!("{id}: this test is ignored: {name}")),
                None => found.push(format!("{id}: there is no such test: {name}")),
            }
        }
    }
    let twice = ids.iter().filter(|(_, times)| **times > 1);
    found.extend(twice.map(|(id, _)| format!("{id}: it is there more than once")));
    for (letters, last) in rows {
        let wanted = (1..=*last).map(|number| format!("{letters}{number}"));
        found.extend(wanted.filter(|id| !ids.contains_key(id.as_str())).map(|id| format!("{id}: it is missing")));
    }
    found
}

fn page() -> String {
    std::fs::read_to_string(tree::root().join("docs/parity.md")).unwrap()
}

#[test]
fn each_feature_has_a_test_that_runs_or_a_reason_to_be_left_out() {
    let tests = tests(&tree::files(&["src", "tests"], &["rs"]));
    assert!(tests.len() > 500, "only {} tests were read", tests.len());
    let faults = faults(&page(), ROWS, &tests);
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn each_test_of_parity_is_on_the_page() {
    let page = page();
    let there: BTreeSet<_> = quoted(&page).collect();
    let tests = tests(&tree::files(&["tests"], &["rs"]));
    let of_parity = tests.keys().filter(|name| name.starts_with("tests/queue/parity.rs::"));
    let lost: Vec<_> = of_parity.filter(|name| !there.contains(name.as_str())).collect();
    assert!(lost.is_empty(), "name these in docs/parity.md: {lost:#?}");
}

#[test]
fn each_kind_of_fault_is_found_and_a_good_page_has_none() {
    let text = "#[test]\nfn runs() {\n\n#[test]\n#[ignore = \"slow\"]\nfn sleeps() {\n\n#[test]\n/// A doc.\n#[cfg(unix)]\n\
                fn too<T>(\n\nfn helper() {\n\nproptest! {\n    #[test]\n    fn random(\n    #[tokio::test]\n    async fn later() {";
    let tests = tests(&[("tests/x.rs".to_owned(), text.to_owned())]);
    let runs: Vec<_> = tests.iter().filter(|(_, runs)| **runs).map(|(name, _)| name.as_str()).collect();
    assert_eq!(runs, ["later", "random", "runs", "too"].map(|name| format!("tests/x.rs::{name}")));
    assert_eq!(tests.len(), 5, "and one that is ignored");
    let good = "| id | feature | ours | test |\n|---|---|---|---|\n\
                | C1 | a | b | `tests/x.rs::runs`, and with `code` `tests/x.rs::random` |\n\
                | C2 | a | b | left out: it belongs to a cluster. |\n";
    let faults = |page: &str| faults(page, &[("C", 2)], &tests);
    assert_eq!(faults(good), [""; 0]);
    let row = |old: &str, new: &str| {
        let page = good.replace(old, new);
        assert_ne!(page, good);
        faults(&page)
    };
    let cases = [
        ("| C2 |", "| C1 |", "C1: it is there more than once"),
        ("| C2 |", "| C3 |", "C3: there is no such row"),
        ("| C2 |", "| c2 |", "c2: there is no such row"),
        ("| C2 |", "| C02 |", "C02: there is no such row"),
        ("| C2 |", "| C2: |", "C2:: there is no such row"),
        ("| C2 | a | b |", "| C2 | a |", "C2: it has not 4 cells"),
        ("| C2 | a | b |", "| C2 | a |  |", "C2: it has not 4 cells"),
        ("x.rs::runs", "x.rs::gone", "C1: there is no such test: tests/x.rs::gone"),
        ("x.rs::runs", "y.rs::runs", "C1: there is no such test: tests/y.rs::runs"),
        ("x.rs::runs", "x.rs::helper", "C1: there is no such test: tests/x.rs::helper"),
        ("x.rs::runs", "x.rs::sleeps", "C1: this test is ignored: tests/x.rs::sleeps"),
        ("left out: it belongs to a cluster.", "it comes later", "C2: no test and no reason: it comes later"),
        ("a cluster", "nobody", "C2: this is no reason: it belongs to nobody."),
        ("a cluster", "clusters", "C2: this is no reason: it belongs to clusters."),
        ("a cluster.", "a cluster. It is large.", "C2: more than one sentence: it belongs to a cluster. It is large."),
    ];
    for (old, new, fault) in cases {
        assert!(row(old, new).iter().any(|found| found == fault), "{new}: {:?}", row(old, new));
    }
    let without: String = good.lines().take(3).map(|line| format!("{line}\n")).collect();
    assert_eq!(faults(&without), ["C2: it is missing"]);
}
