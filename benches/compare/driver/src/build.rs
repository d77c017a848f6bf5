//! Builds the programs.

use crate::folders::checkout;
use crate::result::Result;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program, and what it says about itself.
pub struct Programs {
    paths: BTreeMap<String, PathBuf>,
    /// The reasons for which programs are left out.
    missing: BTreeMap<String, String>,
    /// The text of each column, by the name of the column.
    pub about: BTreeMap<String, String>,
}

impl Programs {
    /// Builds the programs with these names.
    pub fn build<'n>(names: impl IntoIterator<Item = &'n str>) -> Result<Self> {
        let mut programs = Self { paths: BTreeMap::new(), missing: BTreeMap::new(), about: BTreeMap::new() };
        let own = std::env::current_exe()?;
        let target = own.ancestors().nth(2).ok_or("the driver runs from a target directory")?;
        let lock = checkout().join("Cargo.lock");
        for name in names {
            let folder = checkout().join("benches/compare").join(name);
            match name {
                "ours" => programs.add(name, &lock, ours("waterline-benches", &["--features", "sqlite,tokio"])?)?,
                "ours_redis" => programs.add(name, &lock, ours("waterline-redis", &[])?)?,
                "bullmq" => match installed(&folder, &target.join(name)) {
                    Ok(path) => programs.add(name, &folder.join("package-lock.json"), path)?,
                    Err(error) => _ = programs.missing.insert(name.to_owned(), error.to_string()),
                },
                _ => {
                    let mut cargo = Command::new("cargo");
                    cargo.args(["build", "--release", "--locked", "--quiet", "--manifest-path"]);
                    run(cargo.arg(folder.join("Cargo.toml")).arg("--target-dir").arg(target))?;
                    let path = target.join("release").join(format!("compare-{}", name.replace('_', "-")));
                    programs.add(name, &folder.join("Cargo.lock"), path)?;
                }
            }
        }
        Ok(programs)
    }

    /// Adds a program. Its texts have `{package}` where the version of the lock file goes.
    fn add(&mut self, name: &str, lock: &Path, path: PathBuf) -> Result<()> {
        let output = Command::new(&path).arg("about").output()?;
        let lock = std::fs::read_to_string(lock)?;
        let version = |package: &str| -> Option<String> {
            let cargo = lock.split_once(&format!("\nname = \"{package}\"\nversion = \""));
            let npm = || lock.split_once(&format!("\"node_modules/{package}\": {{\n      \"version\": \""));
            let (_, rest) = cargo.or_else(npm)?;
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

    /// Returns the program, or the reason for which it is left out.
    pub fn path(&self, name: &str) -> std::result::Result<&Path, &str> {
        self.paths.get(name).map(PathBuf::as_path).ok_or_else(|| self.missing.get(name).map_or("", String::as_str))
    }
}

/// Builds the program of a member of the workspace with the profile of the other benchmarks, so
/// that RocksDB is compiled once. `NO_ROCKSDB=1` leaves out its columns.
fn ours(package: &str, features: &[&str]) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(checkout());
    cargo.args(["bench", "--no-run", "--locked", "-p", package]).args(features);
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

/// Installs the packages of a program for Node into this folder of the target directory.
fn installed(folder: &Path, target: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(target)?;
    for file in ["package.json", "package-lock.json", "main.js"] {
        std::fs::copy(folder.join(file), target.join(file))?;
    }
    let mut npm = Command::new("npm");
    run(npm.args(["ci", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(target).stdout(Stdio::null()))
        .map_err(|error| format!("npm: {error}"))?;
    Ok(target.join("main.js"))
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} ended with {status}").into()) }
}
