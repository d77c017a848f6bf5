//! The terms of other systems lead to our items: rustdoc's search knows them as aliases.

use common::tree;
use std::collections::BTreeSet;
use syn::visit::{self, Visit};

/// The terms of other systems that must be an alias of a public item.
const WORDS: &[&str] = &[
    "at least once",
    "backfill",
    "cancel",
    "checkpoint",
    "consumer group",
    "dead letter",
    "debounce",
    "drain",
    "exactly once",
    "graceful shutdown",
    "heartbeat",
    "idempotent",
    "offset",
    "outbox",
    "partition",
    "rate limit",
    "reorg",
    "replay",
    "reprocess",
    "throttle",
];

#[derive(Default)]
struct Aliases(BTreeSet<String>);

impl Aliases {
    fn add(&mut self, attributes: &[syn::Attribute], visibility: &syn::Visibility) {
        if !matches!(visibility, syn::Visibility::Public(_)) {
            return;
        }
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("doc")) {
            let syn::Meta::List(list) = &attribute.meta else { continue };
            let tokens = list.tokens.to_string();
            if tokens.starts_with("alias") {
                self.0.extend(tokens.split('"').skip(1).step_by(2).map(str::to_owned));
            }
        }
    }
}

impl<'a> Visit<'a> for Aliases {
    fn visit_item(&mut self, item: &'a syn::Item) {
        match item {
            syn::Item::Struct(item) => self.add(&item.attrs, &item.vis),
            syn::Item::Enum(item) => self.add(&item.attrs, &item.vis),
            syn::Item::Trait(item) => self.add(&item.attrs, &item.vis),
            syn::Item::Type(item) => self.add(&item.attrs, &item.vis),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.add(&item.attrs, &item.vis);
    }
}

fn aliases(text: &str) -> BTreeSet<String> {
    let mut aliases = Aliases::default();
    aliases.visit_file(&syn::parse_file(text).unwrap());
    aliases.0
}

#[test]
fn each_foreign_term_leads_to_a_public_item() {
    let files = tree::files(&["src", "crates", "engines"], &["rs"]);
    let found: BTreeSet<_> = files.iter().flat_map(|(_, text)| aliases(text)).collect();
    let lost: Vec<_> = WORDS.iter().filter(|word| !found.contains(**word)).collect();
    assert!(lost.is_empty(), "no public item has these aliases: {lost:?}");
}

#[test]
fn an_alias_of_a_private_item_does_not_count() {
    let text =
        "#[doc(alias = \"a\")] struct A; #[doc(alias(\"b\", \"c\"))] pub struct B; /// alias \"d\"\npub struct C;";
    assert_eq!(aliases(text).into_iter().collect::<Vec<_>>(), ["b", "c"]);
}
