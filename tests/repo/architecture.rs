//! The layout of `src`: a folder names only the folders that the table allows, the pure core stays
//! pure, and only one seam names the database.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::rc::Rc;
use syn::visit::{self, Visit};

use common::tree;

pub(super) const QUEUE: &str = "crates/waterline-queue/src";

/// The folders of `src`, bottom first, and the folders that each may name. A folder stands below
/// those that name it, so there is no circle.
const MAY_NAME: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("window", &["base"]),
    ("observe", &["base"]),
    ("threads", &["base"]),
    ("source", &["base"]),
    ("kv", &["base"]),
    ("commit", &["base", "kv"]),
    ("store", &["base", "kv", "commit"]),
    ("progress", &["base", "kv", "commit", "store"]),
    ("log", &["base", "source", "kv", "commit", "store"]),
    ("lines", &["base", "source", "store"]),
    ("effects", &["base", "kv", "commit", "store", "progress", "log"]),
    // What the queue's crate builds on. No file of `src` names it.
    ("seam", &["base", "kv", "commit", "store", "threads", "effects"]),
    ("run", &["base", "observe", "threads", "commit", "effects"]),
    ("reader", &["base", "source"]),
    ("saver", &["base", "commit", "progress"]),
    ("driver", &["base", "window", "observe", "threads", "source", "commit", "progress", "run", "reader"]),
    ("consumer", &["base", "window", "observe", "source", "progress", "effects", "run", "reader", "saver", "driver"]),
    ("pipeline", &["base", "observe", "source", "progress", "driver", "consumer"]),
    ("testing", &["base", "source", "kv", "store", "progress", "run", "consumer"]),
    ("fuzzing", &["base", "window", "kv", "store", "progress"]),
];

/// Returns the source files by their path below `src`, without the ending: `driver/core`.
pub(super) fn sources() -> BTreeMap<String, String> {
    sources_of("src")
}

/// Does the same for the member with its sources in this folder. The root of a program is named as
/// that of a library.
pub(super) fn sources_of(member: &str) -> BTreeMap<String, String> {
    let name = |path: &str| {
        let name = path.strip_prefix(member).and_then(|path| path.strip_prefix('/')?.strip_suffix(".rs")).unwrap();
        if name == "main" { "lib".to_owned() } else { name.to_owned() }
    };
    tree::files(&[member], &["rs"]).into_iter().map(|(path, text)| (name(&path), text)).collect()
}

/// Returns a file without the tests at its end.
fn without_tests(text: &str) -> &str {
    text.find("#[cfg(test)]\nmod tests {").map_or(text, |at| &text[..at])
}

/// Returns the lines of code of a file, without comments and tests.
fn code(text: &str) -> impl Iterator<Item = &str> {
    without_tests(text).lines().map(str::trim).filter(|line| !line.starts_with("//"))
}

/// Whether these attributes compile an item only for tests or the documentation, where it may name
/// anything.
pub(super) fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            ["test", "doc"].contains(&condition.as_str())
                || condition.starts_with("all (test")
                || condition.starts_with("all(test")
        }
        _ => false,
    })
}

/// The paths that a module names, from the root of the crate.
pub(super) struct Paths {
    /// The module that the visitor is in: `["driver", "core"]`.
    here: Vec<String>,
    /// The modules declared here, with which a path may begin.
    children: BTreeSet<String>,
    pub(super) found: BTreeSet<Vec<String>>,
    /// The first names of paths outside imports.
    pub(super) used: BTreeSet<String>,
}

impl Paths {
    pub(super) fn new(module: &str, file: &syn::File) -> Self {
        let here = module.split('/').filter(|name| *name != "lib").map(str::to_owned).collect();
        Self { here, children: declared(&file.items), found: BTreeSet::new(), used: BTreeSet::new() }
    }

    pub(super) fn of(module: &str, file: &syn::File) -> Self {
        let mut paths = Self::new(module, file);
        paths.visit_file(file);
        paths
    }

    fn add(&mut self, path: &[String]) {
        self.used.extend(path.first().cloned());
        self.found.extend(self.absolute(path));
    }

    /// Returns a path from the root of the crate, or `None` if it leads out of the crate or begins
    /// with a name of this module.
    pub(super) fn absolute(&self, path: &[String]) -> Option<Vec<String>> {
        let mut absolute = self.here.clone();
        let mut names = path.iter().peekable();
        match names.peek().map(|name| name.as_str()) {
            Some("crate") => {
                absolute.clear();
                names.next();
            }
            Some("self") => {
                names.next();
            }
            Some("super") => {}
            Some(name) if self.children.contains(name) => {}
            _ => return None,
        }
        while names.next_if(|name| *name == "super").is_some() {
            absolute.pop();
        }
        absolute.extend(names.cloned());
        Some(absolute)
    }

    /// Finds the paths of a macro call, which has no syntax tree: `a :: b :: c` in its tokens.
    fn add_tokens(&mut self, tokens: proc_macro2::TokenStream) {
        let (mut path, mut colons) = (Vec::new(), 0);
        for token in tokens {
            match token {
                proc_macro2::TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.add(&std::mem::take(&mut path));
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                proc_macro2::TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    // `pub(super)` names nothing.
                    let is_visibility = path == ["pub"];
                    self.add(&std::mem::take(&mut path));
                    colons = 0;
                    if let proc_macro2::TokenTree::Group(group) = other
                        && !is_visibility
                    {
                        self.add_tokens(group.stream());
                    }
                }
            }
        }
        self.add(&path);
    }
}

/// Calls this with each path of an import and the name that it binds: a glob binds none.
pub(super) fn imports(before: &[String], tree: &syn::UseTree, each: &mut dyn FnMut(&[String], Option<&syn::Ident>)) {
    let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
    match tree {
        syn::UseTree::Path(path) => imports(&with(&path.ident), &path.tree, each),
        syn::UseTree::Name(name) => each(&with(&name.ident), Some(&name.ident)),
        syn::UseTree::Rename(rename) => each(&with(&rename.ident), Some(&rename.rename)),
        syn::UseTree::Glob(_) => each(before, None),
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| imports(before, tree, each)),
    }
}

fn declared(items: &[syn::Item]) -> BTreeSet<String> {
    let name = |item: &syn::Item| match item {
        syn::Item::Mod(module) => Some(module.ident.to_string()),
        _ => None,
    };
    items.iter().filter_map(name).collect()
}

impl<'a> Visit<'a> for Paths {
    fn visit_item(&mut self, item: &'a syn::Item) {
        let attributes = match item {
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'a syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        let Some((_, items)) = &module.content else { return };
        self.here.push(module.ident.to_string());
        let outer = std::mem::replace(&mut self.children, declared(items));
        visit::visit_item_mod(self, module);
        self.children = outer;
        self.here.pop();
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        imports(&[], &item.tree, &mut |path, _| self.found.extend(self.absolute(path)));
    }

    /// `pub(super)` names nothing.
    fn visit_visibility(&mut self, _: &'a syn::Visibility) {}

    fn visit_path(&mut self, path: &'a syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.add(&names);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        self.add_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}

/// A parsed file. Its paths are found once, though a test looks at many crates that have it.
pub(super) struct Module {
    name: String,
    file: syn::File,
    paths: OnceCell<Paths>,
}

impl Module {
    fn parse(name: &str, text: &str) -> Rc<Self> {
        let file = syn::parse_file(text).unwrap_or_else(|e| panic!("{name}.rs cannot be parsed: {e}"));
        Rc::new(Self { name: name.to_owned(), file, paths: OnceCell::new() })
    }

    pub(super) fn paths(&self) -> &Paths {
        self.paths.get_or_init(|| Paths::of(&self.name, &self.file))
    }
}

impl Deref for Module {
    type Target = syn::File;

    fn deref(&self) -> &syn::File {
        &self.file
    }
}

#[derive(Clone)]
pub(super) struct Crate {
    pub(super) files: BTreeMap<String, Rc<Module>>,
    /// The folder of each name at the root of the crate: `Store` is in `store`.
    exported: BTreeMap<String, String>,
}

impl Crate {
    pub(super) fn of(sources: &BTreeMap<String, String>) -> Self {
        let mut files: BTreeMap<_, _> =
            sources.iter().map(|(module, text)| (module.clone(), Module::parse(module, text))).collect();
        let tests: Vec<_> = files.iter().flat_map(|(module, file)| test_files(module, file)).collect();
        files.retain(|module, _| !tests.iter().any(|test| module == test || module.starts_with(&format!("{test}/"))));
        let paths = files.get("lib").into_iter().flat_map(|lib| &lib.paths().found);
        let exported = paths.filter_map(|path| Some((path.last()?.clone(), path.first()?.clone()))).collect();
        Self { files, exported }
    }

    /// Returns the crate with another text for this file.
    pub(super) fn with(&self, module: &str, text: &str) -> Self {
        let mut other = self.clone();
        other.files.insert(module.to_owned(), Module::parse(module, text));
        other
    }

    /// Returns the other folders that this file names.
    fn arrows(&self, module: &str) -> BTreeSet<String> {
        let own = folder(module);
        let paths = &self.files[module].paths().found;
        let target = |path: &Vec<String>| {
            let first = path.first()?;
            let to = self.exported.get(first).filter(|_| !is_folder(first)).unwrap_or(first);
            (is_folder(to) && to != own).then(|| to.clone())
        };
        paths.iter().filter_map(target).collect()
    }
}

/// Returns the files that this file declares only for tests.
fn test_files(module: &str, file: &syn::File) -> Vec<String> {
    let declares = |item: &syn::Item| match item {
        syn::Item::Mod(item) if item.content.is_none() && is_for_tests(&item.attrs) => {
            Some(if module == "lib" { item.ident.to_string() } else { format!("{module}/{}", item.ident) })
        }
        _ => None,
    };
    file.items.iter().filter_map(declares).collect()
}

pub(super) fn folder(module: &str) -> &str {
    module.split('/').next().unwrap_or_default()
}

fn is_folder(name: &str) -> bool {
    MAY_NAME.iter().any(|(folder, _)| *folder == name)
}

fn may_name(from: &str, to: &str) -> bool {
    MAY_NAME.iter().any(|(folder, named)| *folder == from && named.contains(&to))
}

/// Returns each arrow from one folder to another, with its files.
fn arrows(parsed: &Crate) -> BTreeMap<(String, String), Vec<String>> {
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    // The root names all folders, to export the public items.
    for module in parsed.files.keys().filter(|module| *module != "lib") {
        for to in parsed.arrows(module) {
            found.entry((folder(module).to_owned(), to)).or_default().push(module.clone());
        }
    }
    found
}

/// Returns the arrows that the table does not allow.
fn forbidden(parsed: &Crate) -> Vec<String> {
    let wrong = arrows(parsed).into_iter().filter(|((from, to), _)| !may_name(from, to));
    wrong.map(|((from, to), files)| format!("{from} names {to}, in {}", files.join(", "))).collect()
}

#[test]
fn the_table_has_no_circle() {
    for (at, (folder, named)) in MAY_NAME.iter().enumerate() {
        for name in *named {
            assert!(
                MAY_NAME[..at].iter().any(|(below, _)| below == name),
                "{folder} names {name}, which is not below it"
            );
        }
    }
}

#[test]
fn the_table_has_exactly_the_arrows_between_folders() {
    let sources = sources();
    for module in sources.keys().filter(|module| *module != "lib") {
        assert!(is_folder(folder(module)), "{module} is in no folder of the table");
    }
    let parsed = Crate::of(&sources);
    assert_eq!(forbidden(&parsed), [""; 0], "the table does not have these");
    let found = arrows(&parsed);
    let listed =
        MAY_NAME.iter().flat_map(|(from, named)| named.iter().map(|to| ((*from).to_owned(), (*to).to_owned())));
    let stale: Vec<_> = listed.filter(|arrow| !found.contains_key(arrow)).collect();
    assert_eq!(stale, [], "nobody names these any more: take them out of the table");
}

#[test]
fn a_wrong_arrow_of_each_kind_is_found() {
    let planted = [
        "use crate::driver::Driver;",
        "use crate::{base::Index, driver::Driver};",
        "use crate::{base::{Index, error}, driver::{self, core::Core}};",
        "use crate::driver as d;",
        "use crate::driver::*;",
        "pub(crate) use crate::driver::Driver;",
        "use super::driver::Driver;",
        "use super::{driver::Driver};",
        "fn f(driver: &crate::driver::Driver<u8>) {}",
        "fn f() { crate::driver::run(); }",
        "fn f() { let _ = vec![crate::driver::run()]; }",
        "impl crate::driver::Named for u8 {}",
        "struct S(Vec<crate::driver::Driver<u8>>);",
        "use crate::Builder;",
        "fn f() -> crate::Builder { loop {} }",
        "mod inner { use super::super::driver::Driver; }",
        "mod inner { fn f() { super::super::driver::run(); } }",
        "#[cfg(test)]\nmod late;\nuse crate::driver::Driver;",
        "#[cfg(feature = \"testing\")]\nmod inner { use crate::driver::Driver; }",
        "macro_rules! m { () => { $crate::driver::run() }; }",
    ];
    let sources = sources();
    let parsed = Crate::of(&sources);
    for wrong in planted {
        let planted = forbidden(&parsed.with("window", &format!("{}\n{wrong}\n", sources["window"])));
        let found = ["window names driver, in window", "window names consumer, in window"].map(str::to_owned);
        assert!(planted.len() == 1 && found.contains(&planted[0]), "{wrong}: {planted:?}");
    }
    let below = parsed.with("window/new", "use super::super::driver::Driver;");
    assert_eq!(forbidden(&below), ["window names driver, in window/new"]);
}

#[test]
fn tests_comments_and_own_modules_are_no_arrows() {
    let planted = [
        "// crate::driver is where this is used",
        "#[cfg(test)]\nmod more { use crate::driver::Driver; }",
        "#[cfg(all(test, waterline_loom))]\nmod more { use crate::driver::Driver; }",
        "#[cfg(test)]\nfn f() { crate::driver::run(); }",
        "mod driver { pub(super) fn run() {} }\nfn f() { driver::run(); self::driver::run(); }",
        "fn f() { let driver = 1; println!(\"{driver}\"); }",
    ];
    let sources = sources();
    let parsed = Crate::of(&sources);
    for fine in planted {
        let planted = parsed.with("window", &format!("{}\n{fine}\n", sources["window"]));
        assert_eq!(forbidden(&planted), [""; 0], "{fine}");
    }
}

fn impure(text: &str) -> Vec<&str> {
    let import = |line: &str| {
        ["use ", "pub use ", "pub(crate) use "].iter().find_map(|word| line.strip_prefix(word).map(str::to_owned))
    };
    let pure = |import: &str| {
        ["crate::base::Index", "crate::window::", "super::", "self::", "alloc::", "core::"]
            .iter()
            .any(|root| import.starts_with(root))
    };
    code(text).filter(|line| line.contains("std::") || import(line).is_some_and(|import| !pure(&import))).collect()
}

#[test]
fn the_window_is_pure() {
    let sources = sources();
    let pure: Vec<_> = Crate::of(&sources).files.into_keys().filter(|module| folder(module) == "window").collect();
    assert!(pure.len() > 5, "{pure:?}");
    for module in pure {
        assert_eq!(impure(&sources[&module]), Vec::<&str>::new(), "in {module}");
    }
    assert_eq!(impure("#[cfg(test)]\nmod reference;\nuse std::time::Instant;\nuse crate::sync::Mutex;").len(), 2);
}

#[test]
fn only_one_seam_names_the_database() {
    for (module, text) in sources() {
        let is_of_an_engine = ["kv", "store"].iter().any(|room| {
            let rest = module.strip_prefix(room).unwrap_or_default();
            ["/rocksdb", "/sqlite", "/engine"].iter().any(|engine| rest.starts_with(engine))
        });
        let names_it = code(&text).any(|line| line.contains("rocksdb::") || line.contains("sqlite::"));
        // Two keep a value of an engine, and one chooses the engine.
        let keeps = ["store", "store/opening", "store/options"].contains(&module.as_str());
        assert!(!names_it || is_of_an_engine || keeps, "{module} names an engine");
    }
}

/// The clock is read for each job: an exact one costs as much as all other work of a short job.
#[test]
fn the_default_read_uses_no_exact_clock() {
    let sources = sources();
    let exact: Vec<_> = code(&sources["source"]).filter(|line| line.contains("std::time")).collect();
    assert_eq!(exact, Vec::<&str>::new());
    assert!(code(&sources["source"]).any(|line| line.contains("time::coarse")));
}

/// Transitions hold the lock of the store's writer, and a subscriber may use the store.
#[test]
fn no_queue_transition_writes_a_log_line() {
    let sources = sources_of(QUEUE);
    let steps: Vec<_> = sources.iter().filter(|(module, _)| module.starts_with("embedded/step")).collect();
    assert!(steps.len() > 10);
    for (module, text) in steps {
        let lines: Vec<_> = code(text).filter(|line| line.contains("tracing::") && line.contains("!(")).collect();
        assert_eq!(lines, Vec::<&str>::new(), "{module}: hand the line to `Step::log`");
    }
}

#[test]
fn no_room_is_too_large() {
    for (module, text) in sources() {
        let lines = without_tests(&text).lines().count();
        assert!(lines <= 450, "{module} has {lines} lines");
    }
    // Test programs may be larger.
    let files = tree::files(&["crates", "engines"], &["rs"]).into_iter();
    for (file, text) in files.filter(|(file, _)| !file.starts_with("crates/waterline-queue/tests")) {
        let lines = without_tests(&text).lines().count();
        assert!(lines <= 450, "{file} has {lines} lines");
    }
}

/// The table of each of the two crates must have a record of each of its kinds.
#[test]
fn each_kind_of_sealed_record_is_in_the_table() {
    let mut found = 0;
    for (sources, table) in [(sources(), "testing/records"), (sources_of(QUEUE), "embedded/codec/records")] {
        for (module, text) in &sources {
            for code in without_tests(text).split("Kind = Kind { label: ").skip(1) {
                let kind = code.split(['"', '}']).nth(1).unwrap_or_default();
                let listed = format!("(\"{kind}\", &[");
                assert!(sources[table].contains(&listed), "the table lacks {kind:?} of {module}");
                found += 1;
            }
        }
    }
    assert!(found > 15, "only {found} kinds were found");
}

fn public_names(text: &str) -> Vec<String> {
    let file = syn::parse_file(text).unwrap();
    let mut names = Vec::new();
    for item in &file.items {
        match item {
            syn::Item::Use(item) if matches!(item.vis, syn::Visibility::Public(_)) => {
                imports(&[], &item.tree, &mut |_, name| names.extend(name.map(ToString::to_string)));
            }
            syn::Item::Fn(item) if matches!(item.vis, syn::Visibility::Public(_)) => {
                names.push(item.sig.ident.to_string());
            }
            syn::Item::Struct(item) => names.push(item.ident.to_string()),
            syn::Item::Trait(item) => names.push(item.ident.to_string()),
            syn::Item::Type(item) => names.push(item.ident.to_string()),
            syn::Item::Const(item) => names.push(item.ident.to_string()),
            _ => {}
        }
    }
    names
}

/// Each name in a seam ties our crates together, so it is there only if it is needed.
#[test]
fn the_seams_are_narrow_and_documented() {
    let (seam, queue) = (&sources()["seam"], sources_of(QUEUE));
    let (for_the_queue, for_engines) = (public_names(seam), public_names(&queue["engine_api"]));
    let for_servers = public_names(&queue["remote"]);
    assert!((40..=80).contains(&for_the_queue.len()), "{}: {for_the_queue:?}", for_the_queue.len());
    assert!((20..=35).contains(&for_engines.len()), "{}: {for_engines:?}", for_engines.len());
    assert!((20..=35).contains(&for_servers.len()), "{}: {for_servers:?}", for_servers.len());
    let lines: Vec<_> = seam.lines().collect();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("pub ")) {
        let above = lines[..at].iter().rev().find(|line| !line.starts_with("#["));
        assert!(above.is_some_and(|line| line.starts_with("///")), "{line} has no sentence");
    }
}

/// Clippy forbids these and clocks to the library; here it cannot forbid these and allow clocks.
#[test]
fn no_test_bench_or_example_sleeps_or_exits_hard() {
    let forbidden = ["thread::sleep(", "process::exit(", "env::set_var(", "mpsc::channel(", "mpsc::sync_channel("];
    let allowed = |file: &str, text: &str| text == "mpsc::channel(" && file == "examples/service.rs";
    for (file, text) in tree::files(&["tests", "benches", "crates", "engines", "examples"], &["rs"]) {
        // It has the list of these calls.
        if file == "tests/repo/architecture.rs" {
            continue;
        }
        for line in text.lines() {
            let found = forbidden.iter().find(|call| line.contains(**call) && !allowed(&file, call));
            assert_eq!(found, None, "{file}: {line}");
        }
    }
}

/// Clippy forbids clocks where they are not allowed, but cannot say that only one file allows them.
#[test]
fn only_one_library_file_reads_clocks() {
    for (module, text) in sources() {
        let allows = text.contains("clippy::disallowed_methods");
        assert!(!allows || ["lib", "base/time"].contains(&module.as_str()), "{module} allows itself to read clocks");
    }
}
