//! The public names: no two types have one name, so whoever imports both needs no `as`.

use crate::architecture::{Crate, Paths, imports, sources};
use std::collections::BTreeMap;

use common::tree;

/// True if the documentation does not show an item with these attributes.
fn is_hidden(attributes: &[syn::Attribute]) -> bool {
    let is = |list: &syn::MetaList| list.path.is_ident("doc") && list.tokens.to_string() == "hidden";
    attributes.iter().any(|attribute| matches!(&attribute.meta, syn::Meta::List(list) if is(list)))
}

/// Adds the path of each item that this module and the public modules in it re-export, by its name:
/// of the items that the documentation shows, or of those that it hides.
fn add_exports(parsed: &Crate, module: &str, hidden: bool, found: &mut BTreeMap<String, Vec<String>>) {
    let file = &parsed.files[module];
    let paths = Paths::new(module, file);
    for item in &file.items {
        match item {
            syn::Item::Use(item)
                if matches!(item.vis, syn::Visibility::Public(_)) && is_hidden(&item.attrs) == hidden =>
            {
                imports(&[], &item.tree, &mut |path, name| {
                    let name = name.unwrap_or_else(|| panic!("{module} re-exports all names of {path:?}")).to_string();
                    let path = paths.absolute(path).unwrap_or_else(|| path.to_vec()).join("::");
                    let types = found.entry(name).or_default();
                    // `Clock` is one type in two places.
                    if !types.contains(&path) {
                        types.push(path);
                    }
                });
            }
            syn::Item::Mod(item) if matches!(item.vis, syn::Visibility::Public(_)) && !is_hidden(&item.attrs) => {
                let inner = if module == "lib" { item.ident.to_string() } else { format!("{module}/{}", item.ident) };
                // The page of a module without a file has no items.
                if item.content.is_none() {
                    add_exports(parsed, &inner, hidden, found);
                }
            }
            _ => {}
        }
    }
}

/// Returns the paths of all public types that the documentation shows, or hides, by their names.
fn exports(parsed: &Crate, hidden: bool) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    add_exports(parsed, "lib", hidden, &mut found);
    found
}

/// Returns the names that more than one type has.
fn shared(parsed: &Crate) -> Vec<(String, Vec<String>)> {
    exports(parsed, false).into_iter().filter(|(_, paths)| paths.len() > 1).collect()
}

#[test]
fn no_two_public_types_have_one_name() {
    let parsed = Crate::of(&sources());
    let found = exports(&parsed, false);
    assert!(["Consumer", "Runner", "FaultyStore"].iter().all(|name| found.contains_key(*name)), "{found:?}");
    assert_eq!(shared(&parsed), []);
}

#[test]
fn a_name_that_two_public_types_have_is_found_and_a_hidden_one_is_not() {
    let sources = sources();
    let parsed = Crate::of(&sources);
    let with = |module: &str, more: &str| shared(&parsed.with(module, &format!("{}\n{more}\n", sources[module])));
    for (module, wrong, name) in [
        ("queue", "pub use self::runner::gates::RunnerGate as Gate;", "Gate"),
        ("queue", "pub use self::{words::{ended::{AttemptEnd as Ended}}};", "Ended"),
        ("lib", "pub use observe::events::AttemptOutcome as Outcome;", "Outcome"),
        ("testing", "pub use model::QueueModel as Queue;", "Queue"),
    ] {
        let found = with(module, wrong);
        assert!(matches!(&found[..], [(shared, paths)] if shared == name && paths.len() == 2), "{wrong}: {found:?}");
    }
    for fine in ["#[doc(hidden)]\npub use self::words::limit::Rate as Retry;", "pub(crate) use self::a::Retry;"] {
        assert_eq!(with("queue", fine), [], "{fine}");
    }
}

#[test]
fn the_changelog_has_each_old_name_that_still_compiles() {
    let hidden = exports(&Crate::of(&sources()), true).into_iter();
    let new_name = |paths: &[String]| paths[0].rsplit("::").next().unwrap().to_owned();
    let kept: Vec<_> = hidden.map(|(old, paths)| (old, new_name(&paths))).filter(|(old, new)| old != new).collect();
    let page = std::fs::read_to_string(tree::root().join("CHANGELOG.md")).unwrap();
    let rows = page.lines().filter(|line| line.contains("the old name still compiles"));
    let name = |cell: &str| cell.split('`').nth(1).unwrap().rsplit("::").next().unwrap().to_owned();
    let mut listed: Vec<_> =
        rows.filter_map(|row| row.split_once(" | ")).map(|(old, new)| (name(old), name(new))).collect();
    listed.sort();
    assert!(!kept.is_empty());
    assert_eq!(kept, listed);
}
