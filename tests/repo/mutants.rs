//! Checks that each planted bug of `mutants.txt` has its place in the code, and its test.

use crate::map;
use common::tree::root;
use planted::list::{self, Bug, Program};
use planted::places::Sources;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

fn bugs() -> Vec<Bug> {
    let bugs = list::read(&fs::read_to_string(root().join("tests/mutants.txt")).unwrap()).unwrap();
    assert!(bugs.len() > 50, "only {} planted bugs were read", bugs.len());
    bugs
}

#[test]
fn each_planted_bug_has_one_place_in_the_sources() {
    let sources = Sources::read(&root()).unwrap();
    let place = |bug: &Bug| sources.find(&bug.place, &bug.was).err().map(|fault| format!("{} {fault}", bug.title));
    let stale: Vec<_> = bugs().iter().filter_map(place).collect();
    assert!(stale.is_empty(), "these have no place in the sources: {stale:#?}");
}

/// The functions of a file with their modules, as a program names its tests: `after::model::name`.
fn functions(file: &str, text: &str) -> Vec<String> {
    let file = file.split('/').filter(|name| *name != "main").collect::<Vec<_>>();
    let (mut modules, mut found) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let (indent, code) = line.split_at(line.len() - line.trim_start().len());
        if let Some(module) = code.strip_prefix("mod ").and_then(|code| code.strip_suffix(" {")) {
            modules.push((indent, module));
        } else if code == "}" && modules.last().is_some_and(|(outer, _)| *outer == indent) {
            modules.pop();
        }
        for name in map::functions(line) {
            let modules = modules.iter().map(|(_, module)| *module);
            found.push(file.iter().copied().chain(modules).chain([name]).collect::<Vec<_>>().join("::"));
        }
    }
    found
}

/// The tests that a program may have.
fn tests(program: &Program, files: &BTreeMap<String, String>) -> Vec<String> {
    let folder = match program {
        Program::Lib | Program::Loom => "src/".to_owned(),
        Program::Test(name) => format!("tests/{name}/"),
    };
    let name = |file: &'_ str| Some(file.strip_prefix(&folder)?.strip_suffix(".rs")?.to_owned());
    let mut tests: Vec<_> =
        files.iter().filter_map(|(file, text)| Some(functions(&name(file)?, text))).flatten().collect();
    if folder == "tests/queue/" {
        let cases = files.iter().flat_map(|(file, text)| text.lines().filter_map(|line| map::case(file, line)));
        tests.extend(cases.flat_map(|case| ["store", "model"].map(|on| format!("suite::on_the_{on}::{case}"))));
    }
    tests
}

#[test]
fn each_planted_bug_names_a_test_that_exists() {
    let (files, bugs) = (map::sources(), bugs());
    for program in bugs.iter().map(|bug| &bug.program).collect::<BTreeSet<_>>() {
        let tests = tests(program, &files);
        let is_lost = |bug: &&Bug| bug.program == *program && !tests.iter().any(|test| test.contains(&bug.test));
        let lost: Vec<_> = bugs.iter().filter(is_lost).map(|bug| (&bug.title, &bug.test)).collect();
        assert!(lost.is_empty(), "{program} lacks these tests: {lost:#?}");
    }
}

#[test]
fn a_test_is_named_with_its_modules_as_its_program_names_it() {
    let text =
        "fn a() {\n}\nmod b {\n    mod c {\n        fn d() {\n        }\n    }\n    fn e() {\n    }\n}\nfn f() {}\n";
    assert_eq!(functions("main", text), ["a", "b::c::d", "b::e", "f"]);
    assert_eq!(functions("x/y", "fn a() {}"), ["x::y::a"]);
}

#[test]
fn a_text_has_its_place_in_the_item_that_is_named_whatever_file_has_it() {
    let code =
        "impl<T> A<T> {\n    fn f(&self) {\n        fn g() { x() }\n        x();\n    }\n}\nconst fn g() { y() }\n";
    let files = [("src/a/b.rs", code), ("src/c.rs", "fn g() { y() }"), ("src/d.md", "x()")];
    let sources = Sources::of(files.map(|(path, text)| (path.to_owned(), text.to_owned())).into()).unwrap();
    let find = |within: &str, text: &str| {
        let place = sources.find(within, text)?;
        let file = &sources.files[place.file];
        Ok::<_, String>((file.path.as_str(), place.body.map(|body| &file.text[body])))
    };
    assert_eq!(find("f::g", "x()"), Ok(("src/a/b.rs", Some("{ x() }"))));
    let whole = "{\n        fn g() { x() }\n        x();\n    }";
    assert_eq!(find("A::f", "x();"), Ok(("src/a/b.rs", Some(whole))));
    assert_eq!(find("b::g", "y()"), Ok(("src/a/b.rs", None)), "a constant may call it");
    assert_eq!(find("src/d.md", "x()"), Ok(("src/d.md", None)));
    assert_eq!(find("g", "y()"), Err("g has the text 2 times: a::b::g, c::g".to_owned()));
    assert_eq!(find("A::g", "x();"), Err("A::g does not have the text; a::b::A::f has".to_owned()));
    assert_eq!(find("A::f", "z()"), Err("the text is nowhere in the sources".to_owned()));
}

#[test]
fn an_entry_that_is_not_whole_is_named() {
    let entry = "T.\nin: f\nwas: a\n  b\nbecomes: c\nfound by: --lib t";
    let [bug] = &*list::read(&format!("A remark.\n\n{entry}\n")).unwrap() else { panic!("it is one entry") };
    let found = (bug.number, bug.title.as_str(), bug.place.as_str(), bug.was.as_str(), bug.becomes.as_str());
    assert_eq!(found, (1, "T.", "f", "a\n  b", "c"));
    assert_eq!((&bug.program, bug.test.as_str()), (&Program::Lib, "t"));
    for (from, to) in [
        ("was: a\n  b\n", ""),
        ("becomes: c", "becomes: a\n  b"),
        ("found by: --lib t", "found by: --lib"),
        ("found by: --lib t", "found by: --lib t\nU.\nin: g"),
        ("T.\n", "T.\n<<<<<<< main\n"),
        ("in: f\n", "in: f\nmore\n"),
    ] {
        let wrong = list::read(&entry.replace(from, to));
        assert!(wrong.as_ref().is_err_and(|fault| fault.contains("\"T.\"")), "{wrong:?}");
    }
}
