//! Each planted bug of `mutants.txt` has its place in the code. `make mutants` checks that its test
//! finds it.

use common::tree::root;
use std::fs;

/// The pure cores, and an engine with rules in Lua. cargo-mutants tries the other code: it knows no
/// Lua, and starts no server.
const CORES: [&str; 6] = [
    "src/window",
    "src/reader/plan",
    "src/commit",
    "src/progress/ledger",
    "crates/waterline-queue/src/rules",
    "engines/redis",
];

#[test]
fn each_planted_bug_has_one_place_in_a_pure_core() {
    let bugs = planted::read(&fs::read_to_string(root().join("tests/mutants.txt")).unwrap()).unwrap();
    assert!((50..=150).contains(&bugs.len()), "{} planted bugs", bugs.len());
    let functions = planted::functions(&root()).unwrap();
    for bug in bugs {
        assert!(CORES.iter().any(|core| bug.file.starts_with(core)), "{} is no file of a pure core", bug.file);
        let bug = planted::in_rust(bug, &functions).unwrap();
        let text = fs::read_to_string(root().join(&bug.file)).unwrap_or_else(|error| panic!("{}: {error}", bug.file));
        planted::plant(&text, &[&bug]).unwrap();
    }
}

#[test]
fn planting_switches_bodies_and_names_lost_entries() {
    let entry = "A remark.\n\nT.\nin: f\nwas: a(\n  1)\nbecomes: b()\nfound by: --lib t\n";
    let bugs = planted::read(entry).unwrap();
    let planted = |text: &str| planted::plant(text, &[&bugs[0]]);
    let body = "{ match crate::planted() {\n1 => { b() }\n_ => { a(\n  1) }\n} }";
    assert_eq!(planted("fn f() { a(\n  1) }\n"), Ok(format!("fn f() {body}\n")));
    for text in ["fn f() {}", "fn f() { a(\n  1); a(\n  1); }", "const fn f() { a(\n  1) }"] {
        assert!(planted(text).is_err_and(|fault| fault.starts_with("f: \"T.\" ")), "{text}");
    }
    for field in ["in: ", "was: ", "becomes: ", "found by: "] {
        assert!(planted::read(&entry.replace(field, "")).is_err(), "{field}");
    }
}
