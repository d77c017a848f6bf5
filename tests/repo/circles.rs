//! Neither the files nor the folders of a member form a circle, so a reader can go from bottom to
//! top.

use crate::architecture::{Crate, Module, Paths, QUEUE, folder, imports, is_for_tests, sources, sources_of};
use common::tree;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The floors of the queue, bottom first. A file names only files of its own floor and of floors
/// below. A file in none of these folders is on the floor `CALLS`.
const FLOORS: &[&str] =
    &["types", "rules", "notify", "engine", "embedded", "remote", CALLS, "runner", "engine_api", "testing", "fuzzing"];
const CALLS: &str = "calls";

/// Returns the floor of a file of the queue, counted from the bottom.
fn floor(module: &str) -> usize {
    let name = module.split('/').next().unwrap_or_default();
    let floor = |name: &str| FLOORS.iter().position(|floor| *floor == name);
    floor(name).or_else(|| floor(CALLS)).unwrap_or_default()
}

/// Returns the arrows of the queue that lead up. The root of the crate only reexports.
fn upwards(parsed: &Crate) -> Vec<String> {
    let arrows = Arrows::of(parsed).of;
    let each = arrows.iter().flat_map(|(from, all)| all.iter().map(move |(to, name)| (from, to, name)));
    let up = each.filter(|(from, to, _)| *from != "lib" && floor(from) < floor(to));
    up.map(|(from, to, name)| format!("{from} -> {to}: {name}")).collect()
}

/// An import: its path from the root of the crate, and whether it is a reexport.
struct Import {
    path: Vec<String>,
    is_handed_on: bool,
}

/// Returns the names that the imports of a file bind.
fn bound(parsed: &Crate, module: &str, file: &syn::File) -> BTreeMap<String, Import> {
    let (paths, mut bound) = (Paths::new(module, file), BTreeMap::new());
    for item in &file.items {
        let syn::Item::Use(item) = item else { continue };
        if is_for_tests(&item.attrs) {
            continue;
        }
        let is_handed_on = !matches!(item.vis, syn::Visibility::Inherited);
        imports(&[], &item.tree, &mut |path, name| {
            let Some(path) = paths.absolute(path) else { return };
            if let Some(name) = name {
                bound.insert(name.to_string(), Import { path, is_handed_on });
                return;
            }
            for name in parsed.files.get(&path.join("/")).into_iter().flat_map(|file| defined(file)) {
                let path = [&path[..], std::slice::from_ref(&name)].concat();
                bound.insert(name, Import { path, is_handed_on });
            }
        });
    }
    bound
}

fn defined(file: &syn::File) -> BTreeSet<String> {
    let name = |item: &syn::Item| match item {
        syn::Item::Const(item) => Some(item.ident.to_string()),
        syn::Item::Enum(item) => Some(item.ident.to_string()),
        syn::Item::Fn(item) => Some(item.sig.ident.to_string()),
        syn::Item::Static(item) => Some(item.ident.to_string()),
        syn::Item::Struct(item) => Some(item.ident.to_string()),
        syn::Item::Trait(item) => Some(item.ident.to_string()),
        syn::Item::Type(item) => Some(item.ident.to_string()),
        _ => None,
    };
    file.items.iter().filter_map(name).collect()
}

/// The arrows between files, or folders, of a crate: one names what is in the other.
struct Arrows {
    /// For each file, the files that it names, each with one of the names.
    of: BTreeMap<String, BTreeMap<String, String>>,
}

impl Arrows {
    fn of(parsed: &Crate) -> Self {
        let bound: BTreeMap<_, _> =
            parsed.files.iter().map(|(module, file)| (module.as_str(), bound(parsed, module, file))).collect();
        let arrows = |(module, file): (&String, &Rc<Module>)| {
            let Paths { found, used, .. } = file.paths();
            // A file that only reexports a name does not depend on it. A glob is one path.
            let own = || bound[module.as_str()].iter();
            let needed: BTreeSet<_> = own()
                .filter(|(name, import)| !import.is_handed_on || used.contains(*name))
                .flat_map(|(_, import)| [&import.path[..], parent(&import.path)])
                .collect();
            let handed_on: BTreeSet<_> = own()
                .flat_map(|(_, import)| [&import.path[..], parent(&import.path)])
                .filter(|path| !needed.contains(path))
                .collect();
            let named = found.iter().filter(|path| !handed_on.contains(&path[..]));
            let target = |path: &Vec<String>| Some((home(parsed, &bound, path)?, path.last()?.clone()));
            let targets = named.filter_map(target).filter(|(to, _)| to != module);
            (module.clone(), targets.collect())
        };
        Self { of: parsed.files.iter().map(arrows).collect() }
    }

    /// Returns the arrows between the files of this folder.
    fn within(self, room: &str) -> Self {
        let is_in = |module: &String| folder(module) == room;
        let inside = |arrows: BTreeMap<_, _>| arrows.into_iter().filter(|(to, _)| is_in(to)).collect();
        let of = self.of.into_iter().filter(|(from, _)| is_in(from));
        Self { of: of.map(|(from, arrows)| (from, inside(arrows))).collect() }
    }

    /// Returns, for each folder, the arrows between its files and its folders with all their
    /// content. A file that declares the modules of a folder is in that folder.
    fn of_folders(&self) -> BTreeMap<String, Self> {
        let mut folders: BTreeMap<String, Self> = BTreeMap::new();
        for (from, to, name) in
            self.of.iter().flat_map(|(from, all)| all.iter().map(move |(to, name)| (from, to, name)))
        {
            let (names, others): (Vec<_>, Vec<_>) = (from.split('/').collect(), to.split('/').collect());
            let shared = names.iter().zip(&others).take_while(|(a, b)| a == b).count();
            let folder = names[..shared].join("/");
            let part = |names: &[&str]| names.get(shared).map_or("itself", |name| name).to_owned();
            let arrows = folders.entry(folder).or_insert_with(|| Self { of: BTreeMap::new() });
            let tie = format!("{from} -> {to}: {name}");
            arrows.of.entry(part(&others)).or_default();
            arrows.of.entry(part(&names)).or_default().insert(part(&others), tie);
        }
        folders
    }

    /// Returns the files that this one reaches by arrows.
    fn below(&self, module: &str) -> BTreeSet<&str> {
        let (mut below, mut next) = (BTreeSet::new(), vec![module]);
        while let Some(module) = next.pop() {
            for to in self.of.get(module).into_iter().flat_map(BTreeMap::keys) {
                if below.insert(to.as_str()) {
                    next.push(to);
                }
            }
        }
        below
    }

    /// Returns the circles, each as arrows: `from -> to: name`.
    fn circles(&self) -> Vec<Vec<String>> {
        let below: BTreeMap<_, _> = self.of.keys().map(|module| (module.as_str(), self.below(module))).collect();
        let (mut circles, mut seen) = (Vec::new(), BTreeSet::new());
        for module in self.of.keys().map(String::as_str) {
            let circle: BTreeSet<_> =
                below[module].iter().copied().filter(|other| below[other].contains(module)).collect();
            if !circle.contains(module) || !seen.insert(circle.clone()) {
                continue;
            }
            let arrows = circle.iter().flat_map(|from| self.of[*from].iter().map(move |(to, name)| (from, to, name)));
            let inside = arrows.filter(|(_, to, _)| circle.contains(to.as_str()));
            circles.push(inside.map(|(from, to, name)| format!("{from} -> {to}: {name}")).collect());
        }
        circles
    }
}

/// Returns the file that defines what a path names, following imports.
fn home(parsed: &Crate, bound: &BTreeMap<&str, BTreeMap<String, Import>>, path: &[String]) -> Option<String> {
    let file_of = |length: usize| if length == 0 { "lib".to_owned() } else { path[..length].join("/") };
    let length = (0..=path.len()).rev().find(|length| parsed.files.contains_key(&file_of(*length)))?;
    let module = file_of(length);
    // A module with a `#[path]`, which several programs share, is none of these files.
    let is_elsewhere = |item: &syn::Item| match item {
        syn::Item::Mod(item) => {
            path.get(length).is_some_and(|name| item.ident == name)
                && item.attrs.iter().any(|at| at.path().is_ident("path"))
        }
        _ => false,
    };
    if parsed.files[&module].items.iter().any(is_elsewhere) {
        return None;
    }
    let import = path.get(length).and_then(|name| bound[module.as_str()].get(name));
    match import {
        Some(import) if import.path != path => home(parsed, bound, &[&import.path, &path[length + 1..]].concat()),
        _ => Some(module),
    }
}

fn parent(path: &[String]) -> &[String] {
    &path[..path.len().saturating_sub(1)]
}

fn circles(parsed: &Crate, room: &str) -> Vec<Vec<String>> {
    Arrows::of(parsed).within(room).circles()
}

/// Returns the folder of each library and program, including tests and benchmarks.
fn roots() -> BTreeSet<String> {
    let files = tree::files(&["benches", "crates", "engines", "examples", "src", "tests"], &["rs"]).into_iter();
    let root = |path: &str| path.strip_suffix("/lib.rs").or(path.strip_suffix("/main.rs")).map(str::to_owned);
    files.filter_map(|(path, _)| root(&path)).collect()
}

#[test]
fn files_and_folders_of_a_member_form_no_circle() {
    let (mut found, mut all) = (Vec::new(), 0);
    for root in roots() {
        let arrows = Arrows::of(&Crate::of(&sources_of(&root)));
        all += arrows.of.values().map(BTreeMap::len).sum::<usize>();
        let of_folders = arrows.of_folders();
        let circles = arrows.circles().into_iter().chain(of_folders.values().flat_map(Arrows::circles));
        found.extend(circles.map(|circle| format!("{root}: {circle:#?}")));
    }
    assert!(all > 3_000, "only {all} arrows are seen");
    assert!(found.is_empty(), "these name each other in a circle: {}", found.join("\n"));
}

#[test]
fn only_the_handlers_name_the_driver_core() {
    let arrows = Arrows::of(&Crate::of(&sources())).within("driver").of;
    let names_it =
        |(module, named): (&String, &BTreeMap<_, _>)| named.contains_key("driver/core").then(|| module.clone());
    let (desks, others): (Vec<_>, Vec<_>) =
        arrows.iter().filter_map(names_it).partition(|module| module.starts_with("driver/handlers/"));
    assert_eq!(others, ["driver", "driver/whole"], "the driver itself holds the lock");
    assert!(desks.len() > 5, "{desks:?}");
}

#[test]
fn a_circle_of_each_kind_is_found() {
    let planted = [
        ("use super::core::Core;", "Core"),
        ("use crate::driver::core::{self};", "self"),
        ("use super::{core::Core as Middle};", "Core"),
        // The parent reexports it.
        ("use super::Core;", "Core"),
        ("use crate::driver::Core as Middle;", "Core"),
        ("fn f(_: &crate::driver::Core) {}", "Core"),
        ("fn f() { super::core::demand(); }", "demand"),
        ("mod inner { use super::super::core::Core; }", "Core"),
        ("fn f() { let _ = vec![super::core::demand()]; }", "demand"),
    ];
    let sources = sources();
    let parsed = Crate::of(&sources);
    for (wrong, name) in planted {
        let found = circles(&parsed.with("driver/outbox", &format!("{}\n{wrong}", sources["driver/outbox"])), "driver");
        let [circle] = &found[..] else { panic!("{wrong}: {found:?}") };
        let up = format!("driver/outbox -> driver/core: {name}");
        assert!(circle.contains(&up), "{wrong}: {circle:?}");
        assert!(circle.iter().any(|arrow| arrow.starts_with("driver/core -> driver/outbox: ")), "{circle:?}");
    }
    // A parent and its child form a circle if the parent needs the child, too.
    let parent = format!("{}\nfn f(_: Quarantine) {{}}", sources["driver/failed_jobs"]);
    let child = format!("{}\nuse super::FailedJobs;", sources["driver/failed_jobs/quarantine"]);
    let found =
        circles(&parsed.with("driver/failed_jobs", &parent).with("driver/failed_jobs/quarantine", &child), "driver");
    let arrows = [
        "driver/failed_jobs -> driver/failed_jobs/quarantine: Quarantine",
        "driver/failed_jobs/quarantine -> driver/failed_jobs: FailedJobs",
    ];
    assert_eq!(found, [arrows]);
}

#[test]
fn no_queue_file_names_a_floor_above_its_own() {
    let sources = sources_of(QUEUE);
    let parsed = Crate::of(&sources);
    for name in FLOORS {
        assert!(parsed.files.keys().any(|module| module != "lib" && floor(module) == floor(name)), "{name}");
    }
    assert_eq!(upwards(&parsed), [""; 0]);
    for (module, wrong, arrow) in [
        ("types/job", "use crate::rules::ends::End;", "types/job -> rules/ends: End"),
        ("rules/gate", "fn f(_: crate::Queue) {}", "rules/gate -> handle: Queue"),
        ("embedded/step/held", "use crate::lease::Lease;", "embedded/step/held -> lease: Lease"),
        ("lease", "use super::runner::pool::Pool;", "lease -> runner/pool: Pool"),
    ] {
        let planted = parsed.with(module, &format!("{}\n{wrong}", sources[module]));
        assert_eq!(upwards(&planted), [arrow]);
    }
}

#[test]
fn reexports_and_names_in_tests_are_no_arrows() {
    let sources = sources();
    let parsed = Crate::of(&sources);
    let fine = [
        "#[cfg(test)]\nmod more { use super::super::core::Core; }",
        "#[cfg(test)]\nuse super::core::Core;",
        "// super::core::Core uses it",
        "mod core { pub(super) fn run() {} }\nfn f() { core::run(); }",
    ];
    for fine in fine {
        let planted = parsed.with("driver/outbox", &format!("{}\n{fine}", sources["driver/outbox"]));
        assert_eq!(circles(&planted, "driver"), Vec::<Vec<String>>::new(), "{fine}");
    }
    let parent = "mod a;\nmod b;\npub(crate) use self::a::A;\npub(crate) use b::B;";
    let family =
        parsed.with("base", parent).with("base/a", "pub struct A;").with("base/b", "use super::A;\npub struct B;");
    assert_eq!(circles(&family, "base"), Vec::<Vec<String>>::new());
    let used =
        family.with("base", &format!("{parent}\npub struct C(B);")).with("base/a", "use super::C;\npub struct A;");
    let found = circles(&used, "base");
    assert_eq!(found, [["base -> base/b: B", "base/a -> base: C", "base/b -> base/a: A"]]);
}
