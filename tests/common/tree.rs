//! The files of the checkout, for the tests that read them.

use std::fs;
use std::path::PathBuf;

/// Returns the folder of the checkout. Two checkouts may share one target directory, with a test
/// that the other compiled, so cargo is asked first, when the test runs. The folder with the lock
/// file is the one of the workspace.
pub fn root() -> PathBuf {
    let package: PathBuf = std::env::var_os("CARGO_MANIFEST_DIR").map_or(env!("CARGO_MANIFEST_DIR").into(), Into::into);
    package.ancestors().find(|folder| folder.join("Cargo.lock").is_file()).expect("a workspace").to_owned()
}

/// Returns the files below these folders whose names end like this: their paths from the root of
/// the checkout on, in order, and their texts.
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
