//! The scripts behind the Makefile, with a cargo that does what the test says, and the packages of
//! the workspace.

use common::tree::{self, root};
use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Output};

/// Runs `.ci/test` with a cargo whose calls in memory and on SQLite end as these say, one after the
/// other: the output of cargo, and its exit code. The calls after them succeed. Those on RocksDB,
/// which are made side by side with the others, end with this code. Returns the calls, too, each
/// behind its store, if it has one: those that compile come first, and those on RocksDB last.
fn test_script(option: &str, ends: &[(&str, i32)], rocksdb: i32) -> (Output, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let (calls, cargo) = (dir.path().join("calls"), dir.path().join("cargo"));
    let end = |(at, (said, code)): (usize, &(&str, i32))| {
        format!("if [ \"$(wc -l <\"$calls\")\" -eq {} ]; then\ncat >&2 <<'end'\n{said}end\nreturn {code}\nfi\n", at + 1)
    };
    let ends: String = ends.iter().enumerate().map(end).collect();
    let of_each =
        "calls=$CALLS; case ${WATERLINE_STORE:-} in '') calls+=.0 ;; rocksdb) calls+=.2 ;; *) calls+=.1 ;; esac";
    // Bash reads a function first. A program that was just written may still be open in a child of
    // another test, and cannot be executed then.
    let ends = format!("case $calls in *.0) return ;; *.2) return {rocksdb} ;; esac\n{ends}");
    fs::write(&cargo, format!("cargo() {{\n{of_each}\necho \"${{WATERLINE_STORE:-}}: $*\" >>\"$calls\"\n{ends}}}\n"))
        .unwrap();
    let mut script = Command::new("bash");
    script.arg(root().join(".ci/test")).args([option].iter().filter(|option| !option.is_empty()));
    let output = script.env_remove("WATERLINE_STORE").env("BASH_ENV", cargo).env("CALLS", &calls).output().unwrap();
    let of = |n: &str| fs::read_to_string(dir.path().join(format!("calls.{n}"))).unwrap_or_default();
    (output, ["0", "1", "2"].map(of).concat().lines().map(str::to_owned).collect())
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn make_test_runs_all_sets_of_programs_to_the_end_and_names_those_that_failed() {
    let failed =
        "error: test failed, to rerun pass `--lib`\nerror: 2 targets failed:\n    `--lib`\n    `--test crash`\n";
    let (output, calls) = test_script("", &[(failed, 101), ("error: 1 target failed:\n    `--lib`\n", 102)], 0);
    let stores: Vec<_> = calls.iter().map(|call| call.split_once(": ").unwrap().0).collect();
    let expected = ["", "", "memory", "sqlite", "sqlite", "rocksdb", "rocksdb"];
    assert_eq!(stores, expected, "the others run though the first one failed: {calls:?}");
    // Test programs start examples. (`cargo test --examples` makes tests of them, which are none.)
    let (compile, run) = calls.split_at(2);
    assert!(compile[0].starts_with(": build --locked ") && compile[0].ends_with(" --examples"), "{calls:?}");
    assert!(compile[1].contains(" --no-run ") && run.iter().all(|call| !call.contains(" --no-run ")), "{calls:?}");
    assert!(calls[1..].iter().all(|call| call.contains(": test --no-fail-fast --locked ")), "{calls:?}");
    // Everything is compiled once, before anything runs: the calls differ in their programs alone.
    let build = |call: &String| {
        let from = call.find("--release --features ").expect("all are for release");
        let until = call.rfind(".overflow-checks=true").expect("and have these checks");
        call[from..until].to_owned()
    };
    assert!(calls.iter().all(|call| build(call) == build(&calls[0])), "{calls:?}");
    let programs = |call: &String| {
        let words: Vec<_> = call.split_whitespace().collect();
        let named = words.windows(2).filter(|pair| pair[0] == "--test").map(|pair| pair[1].to_owned());
        named.collect::<BTreeSet<_>>()
    };
    let manifest = fs::read_to_string(root().join("tests/Cargo.toml")).unwrap();
    let (compiled, in_memory) = (programs(&compile[1]), programs(&run[0]));
    assert_eq!(
        in_memory.len(),
        manifest.matches("[[test]]").count() + 1,
        "each of the tests, and those of the repository"
    );
    assert!(run.iter().all(|call| programs(call).is_subset(&compiled)), "{calls:?}");
    // The stores of the examples are on SQLite.
    let with_examples = |call: &&String| programs(call).contains("webhooks");
    assert!(run.iter().filter(with_examples).eq([&run[1]]), "{calls:?}");
    assert_eq!(output.status.code(), Some(101), "the exit code is that of the first failure");
    let end = "test: these failed:\n    in memory: --lib\n    in memory: --test crash\n    on SQLite: --lib\n";
    assert!(stderr(&output).ends_with(end), "{}", stderr(&output));
    // The page and the tool have commands of their own.
    assert!(calls.iter().all(|call| !call.contains("waterline-ui") && !call.contains("waterline-cli")), "{calls:?}");
    let (_, without) = test_script("--no-rocksdb", &[], 0);
    assert!(without.len() == 3 && without.iter().all(|call| call.contains("--no-default-features")), "{without:?}");
    assert_eq!(programs(&without[0]), in_memory, "it needs no RocksDB");
}

/// A filter that selects no test passes, and what another name leaves out runs after all.
#[test]
fn each_module_that_a_script_chooses_or_leaves_out_is_there() {
    let (_, calls) = test_script("", &[], 0);
    let tests = tree::files(&["tests", "crates"], &["rs"]);
    let has = |words: &str| tests.iter().any(|(_, text)| text.contains(words));
    let is_module = |name: &str| has(&format!("mod {name} {{")) || has(&format!("mod {name};"));
    let names: Vec<_> = calls.iter().filter_map(|call| call.split_once(" -- ")).collect();
    let names: Vec<_> =
        names.iter().flat_map(|(_, names)| names.split_whitespace()).filter(|name| name.ends_with("::")).collect();
    assert!(names.len() > 3 && names.iter().all(|name| is_module(name.trim_end_matches("::"))), "{names:?}");
    // Of these programs, each file that asks for the store of the run is chosen.
    let asks =
        ["a_directory(", "a_directory_of(", "a_store(", "built(", "on_each(", "on_store(", "open_in(", "Place::"];
    let sources = tree::files(&["tests/progress", "tests/runner"], &["rs"]);
    let asking = sources.iter().filter(|(_, text)| asks.iter().any(|call| text.contains(call)));
    let asking: BTreeSet<_> = asking.filter_map(|(path, _)| path.split('/').nth(2)?.strip_suffix(".rs")).collect();
    let chosen: BTreeSet<_> =
        names.iter().map(|name| name.trim_end_matches("::")).filter(|name| *name != "on_the_model").collect();
    assert_eq!(asking, chosen, "the files that ask for the store (left), and those that run on SQLite");
    for script in [".ci/screens", ".ci/soak"] {
        let text = fs::read_to_string(root().join(script)).unwrap();
        let name = text.split_once("-- --ignored ").and_then(|(_, name)| name.split_whitespace().next()).unwrap();
        let name = name.trim_end_matches("::");
        assert!(has(&format!("fn {name}()")) || is_module(name), "{script}: {name}");
    }
}

#[test]
fn a_name_that_selects_no_model_is_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let cargo = dir.path().join("cargo");
    let loom = |said: &str| {
        fs::write(&cargo, format!("cargo() {{\nprintf '{said}\\n'\n}}\n")).unwrap();
        let mut script = Command::new("bash");
        script.arg(root().join(".ci/loom")).arg("tray").env("BASH_ENV", &cargo).output().unwrap()
    };
    let passed = loom("running 1 test\\ntest driver::loom::tray::loom_tray ... ok");
    assert_eq!((passed.status.code(), stderr(&passed)), (Some(0), String::new()));
    let none = loom("running 0 tests");
    assert_eq!((none.status.code(), stderr(&none).as_str()), (Some(1), "loom: no model has the name loom_tray\n"));
}

#[test]
fn make_test_fails_when_only_a_later_set_fails_or_a_program_does_not_compile() {
    let (output, calls) = test_script("", &[("", 0), ("error: could not compile `waterline`\n", 101)], 0);
    assert_eq!(output.status.code(), Some(101));
    let end = format!("    on SQLite: cargo {} (exit code 101)\n", calls[3].strip_prefix("sqlite: ").unwrap());
    assert!(stderr(&output).ends_with(&end), "{}", stderr(&output));
    let (output, calls) = test_script("", &[], 3);
    assert_eq!(output.status.code(), Some(3), "each of those on RocksDB fails");
    let lines: Vec<_> = calls.iter().filter_map(|call| call.strip_prefix("rocksdb: ")).collect();
    assert!(lines.len() == 2 && lines.iter().all(|call| stderr(&output).contains(*call)), "{}", stderr(&output));
}

#[test]
fn make_test_succeeds_when_every_program_passes() {
    let (output, _) = test_script("", &[("warning: `x` (bin) generated 1 warning\n", 0)], 0);
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).ends_with("test: every test program passed\n"), "{}", stderr(&output));
    // The Makefile uses this script.
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let recipe = makefile.split("\ntest: ").nth(1).unwrap().lines().nth(1);
    assert_eq!(recipe, Some("\t@bash .ci/test"));
}

/// Runs `.ci/deny` with this option, without cargo-deny, and with this output of `cargo tree`.
fn deny_script(option: &str, tree: &str) -> (Output, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let (calls, cargo) = (dir.path().join("calls"), dir.path().join("cargo"));
    let answer = format!("case $1 in\ntree) cat <<'end'\n{tree}end\n;;\n*) return 101 ;;\nesac\n");
    fs::write(&cargo, format!("cargo() {{\necho \"$1\" >>\"$CALLS\"\n{answer}}}\n")).unwrap();
    let mut script = Command::new("bash");
    script.arg(root().join(".ci/deny")).args([option].iter().filter(|option| !option.is_empty()));
    let output = script.env("BASH_ENV", cargo).env("CALLS", &calls).output().unwrap();
    let calls = fs::read_to_string(&calls).unwrap_or_default();
    (output, calls.lines().map(str::to_owned).collect())
}

#[test]
fn without_cargo_deny_a_package_that_offers_no_allowed_licence_is_named() {
    let tree = "allowed v1.0.0|MIT\n\
                choice v1.0.0|GPL-3.0/MIT\n\
                exception v1.0.0|Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT (*)\n\
                group v1.0.0|(MIT OR GPL-3.0) AND Unicode-3.0\n\
                both v1.0.0|MIT AND (GPL-3.0 OR LGPL-3.0)\n\
                none v1.0.0|\n";
    let (output, calls) = deny_script("--quick", tree);
    assert_eq!(output.status.code(), Some(1));
    let both = "deny: both v1.0.0: its licence is not allowed: MIT AND (GPL-3.0 OR LGPL-3.0)";
    let none = "deny: none v1.0.0: its licence is not allowed: none is named";
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().collect::<Vec<_>>(), [both, none]);
    assert!(!calls.contains(&"install".to_owned()), "nothing is installed: {calls:?}");
}

#[test]
fn make_deny_checks_licences_though_cargo_deny_cannot_be_installed() {
    let (output, calls) = deny_script("", "one v1.0.0|MIT\n\ntwo v1.0.0|Apache-2.0\n");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(calls.contains(&"install".to_owned()), "{calls:?}");
    let said = "deny: the licences of 2 packages are allowed (cargo-deny is not installed)\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), said);
    // A tree that cannot be read is no success.
    assert_eq!(deny_script("", "").0.status.code(), Some(1));
}

/// Returns the packages of the workspace without a minimal Rust version or without the licence.
fn incomplete(metadata: &str) -> Vec<String> {
    let metadata: serde_json::Value = serde_json::from_str(metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(!packages.is_empty());
    let complete =
        |package: &&serde_json::Value| package["rust_version"].is_string() && package["license"] == "MIT OR Apache-2.0";
    let lacking = packages.iter().filter(|package| !complete(package));
    lacking.map(|package| package["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn each_member_of_the_workspace_states_its_rust_version_and_its_licence() {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let call =
        cargo.args(["metadata", "--no-deps", "--locked", "--offline", "--format-version", "1"]).current_dir(root());
    let output = call.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(incomplete(&String::from_utf8(output.stdout).unwrap()), [""; 0]);
}

#[test]
fn a_member_without_a_rust_version_or_with_another_licence_is_named() {
    let metadata = r#"{"packages": [
        {"name": "good", "rust_version": "1.88", "license": "MIT OR Apache-2.0"},
        {"name": "old", "rust_version": null, "license": "MIT OR Apache-2.0"},
        {"name": "closed", "rust_version": "1.88", "license": null}
    ]}"#;
    assert_eq!(incomplete(metadata), ["old", "closed"]);
}
