//! Checks that the text of each planted bug of `mutants.txt` is in the code.

use common::tree::root;
use std::fs;

/// One planted bug: the file, and the text that it replaces.
struct Planted {
    title: String,
    file: String,
    was: String,
}

/// Reads the list as `.ci/mutants` does: a line that begins no field belongs to the one before.
fn planted() -> Vec<Planted> {
    let text = fs::read_to_string(root().join("tests/mutants.txt")).unwrap();
    let mut all = Vec::new();
    for entry in text.split("\n\n") {
        let (mut title, mut file, mut was, mut found) = (String::new(), String::new(), String::new(), false);
        let mut field = "";
        for line in entry.lines() {
            if let Some(rest) = line.strip_prefix("in: ") {
                (file, field) = (rest.to_owned(), "in");
            } else if let Some(rest) = line.strip_prefix("was: ") {
                (was, field) = (rest.to_owned(), "was");
            } else if line.starts_with("becomes: ") {
                field = "becomes";
            } else if line.starts_with("found by: ") {
                (found, field) = (true, "found by");
            } else if field == "was" {
                was.push('\n');
                was.push_str(line);
            } else if field.is_empty() {
                title = line.to_owned();
            }
        }
        assert!(entry.matches("\nin: ").count() <= 1, "an empty line is missing behind {title:?}");
        assert!(!entry.contains("<<<<<<<") && !entry.contains(">>>>>>>"), "a merge left its marks in {title:?}");
        if !file.is_empty() {
            assert!(found && !was.is_empty(), "{title:?} does not say what it replaces, or which test finds it");
            all.push(Planted { title, file, was });
        }
    }
    all
}

#[test]
fn the_text_that_each_planted_bug_replaces_is_there() {
    let all = planted();
    assert!(all.len() > 50, "only {} planted bugs were read", all.len());
    let stale: Vec<_> = all
        .iter()
        .filter(|planted| {
            let path = root().join(&planted.file);
            !fs::read_to_string(path).is_ok_and(|text| text.contains(&planted.was))
        })
        .map(|planted| format!("{} ({})", planted.title, planted.file))
        .collect();
    assert!(stale.is_empty(), "these no longer stand where the code is: {stale:#?}");
}
