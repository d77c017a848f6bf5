//! Builds the programs.

use crate::folders::checkout;
use crate::result::Result;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The programs with a lock file of their own.
const COMPETITORS: [&str; 7] = ["apalis", "by_hand", "disruptor", "effectum", "futures", "rayon", "yaque"];

/// A program, and what it says about itself.
pub struct Programs {
    paths: BTreeMap<String, PathBuf>,
    /// The text of each column, by the name of the column.
    pub about: BTreeMap<String, String>,
}

impl Programs {
    /// Builds all programs.
    pub fn build() -> Result<Self> {
        let mut programs = Self { paths: BTreeMap::new(), about: BTreeMap::new() };
        let own = std::env::current_exe()?;
        let target = own.ancestors().nth(2).ok_or("the driver runs from a target directory")?;
        for name in COMPETITORS {
            let manifest = checkout().join("benches/compare").join(name).join("Cargo.toml");
            let mut cargo = Command::new("cargo");
            cargo.args(["build", "--release", "--locked", "--quiet", "--manifest-path"]).arg(manifest);
            run(cargo.arg("--target-dir").arg(target))?;
            let lock = checkout().join("benches/compare").join(name).join("Cargo.lock");
            programs.add(name, &lock, target.join("release").join(format!("compare-{}", name.replace('_', "-"))))?;
        }
        programs.add("ours", &checkout().join("Cargo.lock"), ours()?)?;
        Ok(programs)
    }

    /// Adds a program. Its texts have `{package}` where the version of the lock file goes.
    fn add(&mut self, name: &str, lock: &Path, path: PathBuf) -> Result<()> {
        let output = Command::new(&path).arg("about").output()?;
        let lock = std::fs::read_to_string(lock)?;
        let version = |package: &str| -> Option<String> {
            let (_, rest) = lock.split_once(&format!("\nname = \"{package}\"\nversion = \""))?;
            Some(format!("{package} {}", rest.split('"').next()?))
        };
        for line in String::from_utf8(output.stdout)?.lines() {
            let (column, text) = line.split_once('\t').ok_or("a line of `about` has a tab")?;
            let mut text = text.to_owned();
            while let Some((before, (package, after))) =
                text.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
            {
                let version = version(package).ok_or_else(|| format!("the lock file of {name} lacks {package}"))?;
                text = format!("{before}{version}{after}");
            }
            self.about.insert(column.to_owned(), text);
        }
        self.paths.insert(name.to_owned(), path);
        Ok(())
    }

    pub fn path(&self, name: &str) -> &Path {
        &self.paths[name]
    }
}

/// Builds the program of the workspace with the profile and the features of `make bench`, which has
/// compiled RocksDB already. `NO_ROCKSDB=1` leaves out its columns.
fn ours() -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(checkout());
    cargo.args(["bench", "--no-run", "--locked", "-p", "waterline-benches", "--features", "sqlite,tokio"]);
    if std::env::var_os("NO_ROCKSDB").is_some() {
        cargo.arg("--no-default-features");
    }
    cargo.args(["--bench", "compare", "--message-format", "json"]);
    let output = cargo.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err("the program of the workspace does not compile".into());
    }
    // The last executable in cargo's lines of JSON is the program.
    let text = String::from_utf8(output.stdout)?;
    let path = text.rsplit("\"executable\":\"").next().and_then(|rest| rest.split('"').next());
    Ok(path.ok_or("cargo names the program")?.into())
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} ended with {status}").into()) }
}
