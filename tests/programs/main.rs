//! The examples as processes, and the parts of them that users copy.

#[cfg(all(feature = "rocksdb", unix))]
mod balances;
#[cfg(feature = "tokio")]
mod json_rpc;
#[cfg(all(feature = "_disk", unix))]
mod mailer;
#[cfg(feature = "metrics")]
mod metrics;
mod rest_pages;
mod server;
#[cfg(unix)]
mod service;
mod sqlite;

/// Returns the path of an example. A plain `cargo test` builds it; with `--test programs` the
/// program that is there is taken.
fn example(name: &str) -> std::path::PathBuf {
    let own = std::env::current_exe().unwrap();
    let folder = own.parent().and_then(std::path::Path::parent).unwrap().join("examples");
    let path = folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(path.is_file(), "{} is not built: run `cargo test`, which builds the examples", path.display());
    path
}
