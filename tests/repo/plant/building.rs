//! The programs of a copy of the sources, as cargo compiles them.

use planted::list::Program;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A compiled program.
#[derive(Clone, Debug)]
pub struct Executable {
    /// The file.
    pub file: PathBuf,
    /// The folder of the package, where cargo runs the program.
    pub folder: PathBuf,
}

/// An error of the compiler.
#[derive(Debug)]
pub struct Fault {
    /// The error as the compiler shows it.
    pub rendered: String,
    /// The places that the error is about: paths from the root of the copy on, and bytes.
    pub places: Vec<(String, Range<usize>)>,
}

/// Compiles these programs, which are all models or all tests.
///
/// # Errors
///
/// The errors of the compiler, or one without a place if cargo itself fails.
pub fn build(
    copy: &Path,
    target: &Path,
    programs: &BTreeSet<Program>,
) -> Result<BTreeMap<Program, Executable>, Vec<Fault>> {
    let models = programs.contains(&Program::Loom);
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(copy).args(["test", "--locked", "--no-run", "--no-default-features", "--message-format=json"]);
    if models {
        // As in .ci/loom.
        let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
        cargo.env("RUSTFLAGS", format!("--cfg waterline_loom {flags}")).env("CARGO_TARGET_DIR", target.join("loom"));
        cargo.args(["--release", "-p", "waterline", "--lib"]);
    } else {
        cargo.env("CARGO_TARGET_DIR", target).args(["--features", "cron,metrics,sqlite,tokio"]);
        for program in programs {
            match program {
                Program::Test(name) => cargo.args(["--test", name]),
                Program::Lib | Program::Loom => cargo.arg("--lib"),
            };
        }
    }
    let output = cargo.stdin(Stdio::null()).stderr(Stdio::piped()).output();
    let output = output.map_err(|error| vec![Fault { rendered: format!("cargo: {error}"), places: Vec::new() }])?;
    let text = String::from_utf8_lossy(&output.stdout);
    let messages: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if output.status.success() {
        return Ok(messages.iter().filter_map(|message| executable(message, models)).collect());
    }
    let mut faults: Vec<_> = messages.iter().filter_map(fault).collect();
    if faults.is_empty() {
        faults.push(Fault { rendered: String::from_utf8_lossy(&output.stderr).into_owned(), places: Vec::new() });
    }
    Err(faults)
}

/// The program of a message, if it says that one is compiled.
fn executable(message: &Value, models: bool) -> Option<(Program, Executable)> {
    let file = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let target = &message["target"];
    let program = match (target["kind"][0].as_str()?, target["name"].as_str()?) {
        ("test", name) => Program::Test(name.to_owned()),
        ("lib", "waterline") if models => Program::Loom,
        ("lib", "waterline") => Program::Lib,
        _ => return None,
    };
    Some((program, Executable { file, folder }))
}

/// The error of a message, if it is one.
fn fault(message: &Value) -> Option<Fault> {
    let message = message.get("message").filter(|message| message["level"] == "error")?;
    let mut places = Vec::new();
    for mut span in message["spans"].as_array()?.iter().filter(|span| span["is_primary"] == true) {
        loop {
            places.extend(place(span));
            // A macro stands where it is called.
            match span.pointer("/expansion/span") {
                Some(call) => span = call,
                None => break,
            }
        }
    }
    Some(Fault { rendered: message["rendered"].as_str().unwrap_or_default().to_owned(), places })
}

fn place(span: &Value) -> Option<(String, Range<usize>)> {
    let byte = |name| usize::try_from(span[name].as_u64()?).ok();
    Some((span["file_name"].as_str()?.to_owned(), byte("byte_start")?..byte("byte_end")?))
}
