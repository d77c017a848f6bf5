//! The files of the checkout, for tests that read them.

use std::fs;
use std::path::PathBuf;

/// Returns the root folder of the checkout, which has the lock file.
///
/// The variable that cargo sets for the run comes first: two checkouts may share a target
/// directory, so the other one may have compiled the test.
pub fn root() -> PathBuf {
    let package: PathBuf = std::env::var_os("CARGO_MANIFEST_DIR").map_or(env!("CARGO_MANIFEST_DIR").into(), Into::into);
    package.ancestors().find(|folder| folder.join("Cargo.lock").is_file()).expect("a workspace").to_owned()
}

/// Returns the files below these folders with these endings: their paths from the root of the
/// checkout, in order, and their texts.
pub fn files(folders: &[&str], endings: &[&str]) -> Vec<(String, String)> {
    let root = root();
    let (mut found, mut folders) = (Vec::new(), folders.iter().map(|folder| root.join(folder)).collect::<Vec<_>>());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| endings.iter().any(|wanted| ending == *wanted)) {
                let name = path.strip_prefix(&root).unwrap().display().to_string();
                found.push((name, fs::read_to_string(path).unwrap()));
            }
        }
    }
    found.sort();
    found
}
