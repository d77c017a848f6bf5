//! The page `queue::parity`: it has a row for each feature of the four systems, and each row has a
//! test that runs, by the list `tests/parity.txt`, or a reason to be without one.

use std::collections::{BTreeMap, BTreeSet};

use common::tree;

/// The rows that must be there, by the letters of their ids: they are numbered from 1 to this.
const ROWS: &[(&str, u32)] =
    &[("C", 31), ("CR", 11), ("M", 42), ("MR", 20), ("P", 12), ("Q", 41), ("QR", 14), ("A", 7), ("F", 17)];

/// The fields that the queue leaves to others: a reason has one of these words.
const REASONS: [&str; 3] = ["cluster", "server", "framework"];

/// The columns of a table: the id, the feature, and ours.
const COLUMNS: usize = 3;

/// The tests of all sources, as `file::function`. The value is false if it is ignored.
fn tests(sources: &[(String, String)]) -> BTreeMap<String, bool> {
    let mut found = BTreeMap::new();
    for (file, text) in sources {
        let (mut is_test, mut is_ignored) = (false, false);
        for line in text.lines().map(str::trim) {
            if let Some(case) = crate::map::case(file, line) {
                found.insert(format!("{file}::{case}"), true);
            } else if line == "#[test]" || line.starts_with("#[tokio::test") {
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

/// The rows that each test of the list shows, by `file::function`. A line that begins with a space
/// is a test of the file above it.
fn shown(list: &str) -> BTreeMap<String, Vec<&str>> {
    let mut shown = BTreeMap::<_, Vec<_>>::new();
    let mut file = "";
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix(' ').and_then(|line| line.trim().split_once(": ")) {
            Some((test, ids)) => shown.entry(format!("{file}::{test}")).or_default().extend(ids.split(' ')),
            None => file = line,
        }
    }
    shown
}

/// Returns all faults of the page and of the list.
fn faults(page: &str, list: &str, rows: &[(&str, u32)], tests: &BTreeMap<String, bool>) -> Vec<String> {
    let mut found = Vec::new();
    let shown = shown(list);
    let proven: BTreeSet<_> = shown.values().flatten().copied().collect();
    let mut ids = BTreeMap::<&str, u32>::new();
    let is_row = |line: &&str| line.starts_with("| ") && !line.starts_with("| id |");
    for line in page.lines().filter(is_row) {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let id = cells[0];
        *ids.entry(id).or_default() += 1;
        if cells.len() != COLUMNS || cells.iter().any(|cell| cell.is_empty()) {
            found.push(format!("{id}: it has not {COLUMNS} cells"));
        }
        if split_id(id).is_none_or(|(letters, number)| {
            !rows.iter().any(|(known, last)| *known == letters && (1..=*last).contains(&number))
        }) {
            found.push(format!("{id}: there is no such row"));
        }
        match cells[cells.len() - 1].split_once("left out: ") {
            Some((_, reason)) => {
                let words: BTreeSet<_> = reason.split(|c: char| !c.is_alphabetic()).collect();
                if !REASONS.iter().any(|word| words.contains(word)) {
                    found.push(format!("{id}: this is no reason: {reason}"));
                }
                if reason.trim_end_matches('.').contains(". ") {
                    found.push(format!("{id}: more than one sentence: {reason}"));
                }
            }
            None if !proven.contains(id) => found.push(format!("{id}: no test and no reason")),
            None => {}
        }
    }
    for (name, shows) in &shown {
        match tests.get(name) {
            Some(true) => {}
            Some(false) => found.push(format!("this test is ignored: {name}")),
            None => found.push(format!("there is no such test: {name}")),
        }
        let lost = shows.iter().filter(|id| !ids.contains_key(*id));
        found.extend(lost.map(|id| format!("{id}: the page has no such row: {name}")));
    }
    let twice = ids.iter().filter(|(_, times)| **times > 1);
    found.extend(twice.map(|(id, _)| format!("{id}: it is there more than once")));
    for (letters, last) in rows {
        let wanted = (1..=*last).map(|number| format!("{letters}{number}"));
        found.extend(wanted.filter(|id| !ids.contains_key(id.as_str())).map(|id| format!("{id}: it is missing")));
    }
    found
}

fn read(file: &str) -> String {
    std::fs::read_to_string(tree::root().join(file)).unwrap()
}

/// Returns all faults of the page about an engine. Each row of the four queues is shown by a test
/// of the suite that runs on it, or by one of its own. Or the page says what is different, which a
/// test shows, or what it lacks.
fn faults_of_engine(engine: &str, page: &str, list: &str) -> Vec<String> {
    let mut found = Vec::new();
    let rows: BTreeMap<&str, &str> =
        (engine.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| id |")))
            .filter_map(|line| line.trim_matches('|').split_once(" | "))
            .map(|(id, text)| (id.trim(), text.trim()))
            .collect();
    let known: BTreeMap<&str, bool> = (page.lines().filter(|line| line.starts_with("| ")))
        .filter_map(|line| Some((line.split(" | ").next()?.trim_matches(['|', ' ']), line.contains("left out: "))))
        .collect();
    let shown = shown(list);
    let shows = |id: &str, places: &[&str]| {
        let of_places = shown.iter().filter(|(test, _)| places.iter().any(|place| test.starts_with(place)));
        of_places.flat_map(|(_, ids)| ids).any(|shown| *shown == id)
    };
    for (id, text) in &rows {
        if !known.contains_key(id) {
            found.push(format!("{id}: there is no such row"));
        }
        let reason = text.split_once("lacks").map(|(_, rest)| rest.split_whitespace().count());
        if reason.is_some_and(|words| words < 4) {
            found.push(format!("{id}: it lacks something for no reason"));
        }
        if !text.starts_with("lacks") && !shows(id, &["engines/postgres/", "src/testing/queue/"]) {
            found.push(format!("{id}: it is different, and no test shows how"));
        }
    }
    for (id, left_out) in known.iter().filter(|(id, _)| **id != "id" && !id.starts_with('F')) {
        let is_shown = shows(id, &["engines/postgres/", "src/testing/queue/"]);
        if !rows.contains_key(id) && !left_out && !is_shown {
            found.push(format!("{id}: nothing shows it on this engine, and its page has no word of it"));
        }
        if !rows.contains_key(id) && *left_out && !["M37", "M42"].contains(id) {
            found.push(format!("{id}: a store leaves it out, and the page of the engine does not say what it does"));
        }
    }
    found
}

#[test]
fn the_page_of_an_engine_says_of_each_row_that_is_not_shown_there_what_is_different_or_lacking() {
    let (page, list) = (read("docs/parity.md"), read("tests/parity.txt"));
    let engine = read("engines/postgres/docs/parity.md");
    let faults = faults_of_engine(&engine, &page, &list);
    assert!(faults.is_empty(), "{faults:#?}");
    // Each kind of fault is found.
    for (old, new, fault) in [
        ("| C31 |", "| C32 |", "C32: there is no such row"),
        ("| C31 |", "| C32 |", "C31: a store leaves it out, and the page of the engine does not say what it does"),
        ("| M13 | lacks", "| M13 | has", "M13: it is different, and no test shows how"),
        (
            "| M13 | lacks damaged jobs: the types of the server keep rows whole |",
            "| M13 | lacks |",
            "M13: it lacks something for no reason",
        ),
        ("| MR10 |", "| MR20 |", "MR10: nothing shows it on this engine, and its page has no word of it"),
    ] {
        assert!(engine.contains(old), "{old}");
        let found = faults_of_engine(&engine.replace(old, new), &page, &list);
        assert!(found.iter().any(|found| found == fault), "{new}: {found:?}");
    }
    // A test of a queue in a store shows nothing of an engine.
    let old = "in_batches: MR18";
    assert!(list.contains(old));
    let found = faults_of_engine(&engine, &page, &list.replace(old, "in_batches: M18"));
    assert_eq!(found, ["MR18: nothing shows it on this engine, and its page has no word of it"]);
}

#[test]
fn each_feature_has_a_test_that_runs_or_a_reason_to_be_left_out() {
    let tests = tests(&tree::files(&["engines", "src", "tests"], &["rs"]));
    assert!(tests.len() > 500, "only {} tests were read", tests.len());
    let faults = faults(&read("docs/parity.md"), &read("tests/parity.txt"), ROWS, &tests);
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn each_test_of_parity_is_on_the_list() {
    let list = read("tests/parity.txt");
    let shown = shown(&list);
    let tests = tests(&tree::files(&["src", "tests"], &["rs"]));
    let of_parity = tests.keys().filter(|name| name.contains("/queue/parity.rs::"));
    let lost: Vec<_> = of_parity.filter(|name| !shown.contains_key(*name)).collect();
    assert!(lost.is_empty(), "name these in tests/parity.txt: {lost:#?}");
}

#[test]
fn each_kind_of_fault_is_found_and_a_good_page_has_none() {
    let text = "#[test]\nfn runs() {\n\n#[test]\n#[ignore = \"slow\"]\nfn sleeps() {\n\n#[test]\n/// A doc.\n#[cfg(unix)]\n\
                fn too<T>(\n\nfn helper() {\n\nproptest! {\n    #[test]\n    fn random(\n    #[tokio::test]\n    async fn later() {";
    let tests = tests(&[("tests/x.rs".to_owned(), text.to_owned())]);
    let runs: Vec<_> = tests.iter().filter(|(_, runs)| **runs).map(|(name, _)| name.as_str()).collect();
    assert_eq!(runs, ["later", "random", "runs", "too"].map(|name| format!("tests/x.rs::{name}")));
    assert_eq!(tests.len(), 5, "and one that is ignored");
    let good = "| id | feature | ours |\n|---|---|---|\n| C1 | a | b |\n\
                | C2 | a | left out: it belongs to a cluster. |\n";
    let list = "# The tests.\n\ntests/x.rs\n    runs: C1\n    random: C1\n";
    let faults = |page: &str, list: &str| faults(page, list, &[("C", 2)], &tests);
    assert_eq!(faults(good, list), [""; 0]);
    let cases = [
        ("| C2 |", "| C1 |", "C1: it is there more than once"),
        ("| C2 |", "| C3 |", "C3: there is no such row"),
        ("| C2 |", "| c2 |", "c2: there is no such row"),
        ("| C2 |", "| C02 |", "C02: there is no such row"),
        ("| C2 |", "| C2: |", "C2:: there is no such row"),
        ("| C1 | a | b |", "| C1 | a |", "C1: it has not 3 cells"),
        ("| C1 | a | b |", "| C1 | a |  |", "C1: it has not 3 cells"),
        ("left out: it belongs to a cluster.", "it comes later", "C2: no test and no reason"),
        ("a cluster", "nobody", "C2: this is no reason: it belongs to nobody."),
        ("a cluster", "clusters", "C2: this is no reason: it belongs to clusters."),
        ("a cluster.", "a cluster. It is large.", "C2: more than one sentence: it belongs to a cluster. It is large."),
        ("runs: C1", "gone: C1", "there is no such test: tests/x.rs::gone"),
        ("x.rs", "y.rs", "there is no such test: tests/y.rs::runs"),
        ("runs: C1", "helper: C1", "there is no such test: tests/x.rs::helper"),
        ("runs: C1", "sleeps: C1", "this test is ignored: tests/x.rs::sleeps"),
        ("random: C1", "random: C3", "C3: the page has no such row: tests/x.rs::random"),
    ];
    for (old, new, fault) in cases {
        let (page, list) = (good.replace(old, new), list.replace(old, new));
        let found = faults(&page, &list);
        assert!(found.iter().any(|found| found == fault), "{new}: {found:?}");
    }
    let without: String = good.lines().take(3).map(|line| format!("{line}\n")).collect();
    assert_eq!(faults(&without, list), ["C2: it is missing"]);
    assert_eq!(faults(good, "tests/x.rs\n"), ["C1: no test and no reason"]);
}
