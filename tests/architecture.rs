//! The layout of `src`: imports go down one list, the pure core stays pure, and one seam alone names the database.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// The design, bottom first: a module may use those above it in this list, and none below.
const ORDER: &[&str] = &[
    // vocabulary
    "index",
    "structure",
    "config",
    "error",
    "error/text",
    "sync/model",
    "sync",
    "status",
    "ended",
    "observe",
    "stopping",
    "watermark",
    "watermark/followers",
    "wakeup",
    // pure
    "window/bits",
    "window/ahead",
    "window/retries",
    "window",
    "window/aside",
    "window/fetching",
    "window/queries",
    "window/revoked",
    "window/reference/model",
    "window/reference",
    "window/reference/fetches",
    "window/reference/saves",
    "retry",
    // what is written
    "kv/batch",
    "kv/counter",
    "kv",
    "log/state",
    "kv/changes",
    // traits
    "jobs",
    "jobs/gated",
    "worker",
    "progress",
    "progress/memory",
    "progress/format",
    // storage
    "kv/memory",
    "kv/rocksdb",
    "writer/draft",
    "writer/draft/refused",
    "writer",
    "store/ids",
    "store",
    "store/locked",
    "store/options",
    "store/table",
    "store/attach",
    "progress/ledger",
    "progress/store",
    "log/reading",
    "log/trim",
    "log",
    "log/held",
    "effects",
    // threads
    "reader/weights",
    "reader/looks",
    "reader",
    "pool",
    "ordered",
    "saver",
    "notifier",
    // driver
    "driver/own",
    "driver/aside",
    "driver/effects",
    "driver/flights",
    "driver/patience",
    "driver/prefetch",
    "driver/reach",
    "driver/workers",
    "driver/waiters",
    "driver/wakes",
    "driver/alive",
    "driver/stalls",
    "driver/core",
    "driver/reports",
    "driver/explain",
    "driver",
    "driver/saving",
    "driver/reading",
    "driver/telling",
    "driver/watching",
    "driver/ending",
    "driver/helping",
    "driver/threads",
    "driver/ordered",
    "driver/waiting",
    "driver/control",
    // consumer
    "consumer/handle",
    "consumer",
    "consumer/builder",
    "consumer/transactional",
    "consumer/ordered",
    "pipeline/rate",
    "pipeline/status",
    "pipeline/running",
    "pipeline",
    // for tests
    "testing",
    "testing/faulty_progress",
    "testing/faulty_store",
    "testing/manual_worker",
    "testing/jobs/rules",
    "testing/jobs/watched",
    "testing/jobs",
    "testing/progress/consumed",
    "testing/progress",
    "fuzzing",
];

/// The crate's root, which names them all, and tests, which may use anything.
const EXEMPT: &[&str] = &[
    "lib",
    "store/tests",
    "store/tests/late",
    "progress/ledger/tests",
    "progress/store/tests",
    "writer/tests",
    "writer/draft/tests",
    "kv/batch/tests",
    "kv/rocksdb/tests",
    "window/reference/tests",
    "driver/model",
];

fn sources() -> BTreeMap<String, String> {
    // Asked for when it runs: two checkouts may share one target directory, and then also what was compiled in the other.
    let root = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let root = root.join("src");
    let mut found = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path.strip_prefix(&root).unwrap().with_extension("").display().to_string();
                found.insert(name, fs::read_to_string(path).unwrap());
            }
        }
    }
    found
}

/// A file without the tests at its end.
fn without_tests(text: &str) -> &str {
    text.find("#[cfg(test)]\nmod tests {").map_or(text, |at| &text[..at])
}

/// The code of a file: without comments, and without its tests.
fn code(text: &str) -> impl Iterator<Item = &str> {
    without_tests(text).lines().map(str::trim).filter(|line| !line.starts_with("//"))
}

/// The modules that this module names: `crate::a::b` is `a/b` where there is such a file, else `a`.
fn arrows(module: &str, text: &str) -> Vec<String> {
    let parent = module.rsplit_once('/').map_or("", |(parent, _)| parent);
    let mut found = Vec::new();
    for line in code(text) {
        for (prefix, base) in [("crate::", ""), ("super::", parent), ("self::", module)] {
            for (at, _) in line.match_indices(prefix) {
                let rest = &line[at + prefix.len()..];
                let path: Vec<&str> = rest.split("::").take(2).map(first_word).collect();
                let names = [format!("{base}/{}", path.join("/")), format!("{base}/{}", path[0]), base.to_owned()];
                let names = names.iter().map(|name| name.trim_matches('/'));
                found.extend(names.into_iter().find(|name| ORDER.contains(name)).map(str::to_owned));
            }
        }
    }
    found.retain(|name| name != module);
    found
}

fn first_word(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

fn goes_up(from: &str, to: &str) -> bool {
    let place = |name: &str| ORDER.iter().position(|other| *other == name);
    place(to) >= place(from)
}

#[test]
fn imports_only_go_down() {
    let mut arrows_seen = 0;
    for (module, text) in sources().iter().filter(|(module, _)| !EXEMPT.contains(&module.as_str())) {
        assert!(ORDER.contains(&module.as_str()), "{module} has no place in the list");
        for target in arrows(module, text) {
            arrows_seen += 1;
            assert!(!goes_up(module, &target), "{module} uses {target}, which stands above it");
        }
    }
    assert!(arrows_seen > 100, "only {arrows_seen} arrows were found: the reading is broken");
}

#[test]
fn an_arrow_that_goes_up_is_found() {
    let found = |module, line| arrows(module, line).iter().any(|target| goes_up(module, target));
    assert!(found("window", "use crate::driver::Driver;"));
    assert!(found("progress", "    fn writer(&self) -> Option<crate::writer::Slot> {"));
    assert!(found("progress/memory", "use super::store::StoreProgress;"));
    assert!(found("kv", "use crate::kv::rocksdb::RocksKv;"));
    assert!(!found("driver", "use self::core::Core;"));
    assert!(!found("progress/store", "use super::{Checkpoint, Progress};"));
    assert!(!found("window", "// crate::driver is where this is used"));
    let late = "#[cfg(test)]\nmod reference;\nuse crate::driver::Driver;\n#[cfg(test)]\nmod tests {\nuse crate::consumer::Consumer;";
    assert_eq!(
        arrows("window", late),
        ["driver"],
        "the code goes on behind a module that is for tests, up to the tests"
    );
}

/// The lines of a pure file that are not.
fn impure(text: &str) -> Vec<&str> {
    let import = |line: &str| {
        ["use ", "pub use ", "pub(crate) use "].iter().find_map(|word| line.strip_prefix(word).map(str::to_owned))
    };
    let pure = |import: &str| {
        ["crate::index::", "super::", "self::", "alloc::", "core::"].iter().any(|root| import.starts_with(root))
    };
    code(text).filter(|line| line.contains("std::") || import(line).is_some_and(|import| !pure(&import))).collect()
}

#[test]
fn the_window_is_pure() {
    let sources = sources();
    for module in
        ["window", "window/ahead", "window/aside", "window/bits", "window/fetching", "window/queries", "window/revoked"]
    {
        assert_eq!(impure(&sources[module]), Vec::<&str>::new(), "in {module}");
    }
    assert_eq!(impure("#[cfg(test)]\nmod reference;\nuse std::time::Instant;\nuse crate::sync::Mutex;").len(), 2);
}

#[test]
fn one_seam_alone_names_the_database() {
    for (module, text) in sources() {
        let names_it = code(&text).any(|line| line.contains("rocksdb::"));
        assert!(
            !names_it || ["kv/rocksdb", "store", "store/attach", "store/options"].contains(&module.as_str()),
            "{module} names rocksdb"
        );
    }
}

/// It is read for each job, and costs as much as all else that a short job does.
#[test]
fn the_default_read_asks_no_exact_clock() {
    let sources = sources();
    let exact: Vec<_> = code(&sources["jobs"]).filter(|line| line.contains("std::time")).collect();
    assert_eq!(exact, Vec::<&str>::new());
    assert!(code(&sources["jobs"]).any(|line| line.contains("coarsetime::Instant::now")));
}

#[test]
fn no_room_is_too_large() {
    for (module, text) in sources() {
        let lines = without_tests(&text).lines().count();
        assert!(lines <= 450, "{module} has {lines} lines");
    }
}
