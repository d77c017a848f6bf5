//! The scripts behind the Makefile, with a cargo that does what the test says.
#![cfg(unix)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Runs `.ci/test`; its first call of cargo ends as one of these, and its second one as the other:
/// what cargo says, and its exit code. Returns the calls, too.
fn test_script(first: (&str, i32), second: (&str, i32)) -> (Output, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let (calls, cargo) = (dir.path().join("calls"), dir.path().join("cargo"));
    let [first, second] = [first, second].map(|(said, code)| format!("cat >&2 <<'end'\n{said}end\nreturn {code}\n"));
    let first = format!("if [ \"$(wc -l <\"$CALLS\")\" -eq 1 ]; then\n{first}fi\n");
    // A function that bash reads first: a program that was written just now may still be open in a
    // child of another test, and cannot be executed then.
    fs::write(&cargo, format!("cargo() {{\necho \"$*\" >>\"$CALLS\"\n{first}{second}}}\n")).unwrap();
    let script = Path::new(ROOT).join(".ci/test");
    let output = Command::new("bash").arg(script).env("BASH_ENV", cargo).env("CALLS", &calls).output().unwrap();
    let calls = fs::read_to_string(&calls).unwrap_or_default();
    (output, calls.lines().map(str::to_owned).collect())
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn make_test_runs_both_sets_of_programs_to_the_end_and_names_those_that_failed() {
    let failed =
        "error: test failed, to rerun pass `--lib`\nerror: 2 targets failed:\n    `--lib`\n    `--test crash`\n";
    let (output, calls) = test_script((failed, 101), ("error: 1 target failed:\n    `--doc`\n", 102));
    assert_eq!(calls.len(), 2, "the second set runs though the first one failed: {calls:?}");
    assert!(calls.iter().all(|call| call.starts_with("test --no-fail-fast --locked ")), "{calls:?}");
    assert!(calls[0].ends_with("--no-default-features") && calls[1].ends_with("--release --all-features"), "{calls:?}");
    assert_eq!(output.status.code(), Some(101), "the exit code is that of the first failure");
    let end = "test: these failed:\n    on memory: --lib\n    on memory: --test crash\n    on RocksDB: --doc\n";
    assert!(stderr(&output).ends_with(end), "{}", stderr(&output));
}

#[test]
fn make_test_fails_when_only_the_second_set_fails_or_a_program_does_not_compile() {
    let (output, calls) = test_script(("", 0), ("error: could not compile `waterline`\n", 101));
    assert_eq!((output.status.code(), calls.len()), (Some(101), 2));
    let end = "    on RocksDB: cargo test --release --all-features (exit code 101)\n";
    assert!(stderr(&output).ends_with(end), "{}", stderr(&output));
}

#[test]
fn make_test_succeeds_when_every_program_passes() {
    let (output, _) = test_script(("", 0), ("warning: `x` (bin) generated 1 warning\n", 0));
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).ends_with("test: every test program passed\n"), "{}", stderr(&output));
    // And the Makefile goes by this script.
    let makefile = fs::read_to_string(Path::new(ROOT).join("Makefile")).unwrap();
    let recipe = makefile.split("\ntest: ").nth(1).unwrap().lines().nth(1);
    assert_eq!(recipe, Some("\t@bash .ci/test"));
}
