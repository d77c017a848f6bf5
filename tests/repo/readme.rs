//! The links of README.md and of the pages of the documentation work: in a checkout, in the package
//! and in the documentation.

use common::tree::{self, root};
use std::collections::BTreeMap;
use std::fs;

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

fn version() -> String {
    let manifest = read("Cargo.toml");
    let line = manifest.lines().find_map(|line| line.strip_prefix("version = \"")).expect("a version");
    line.trim_end_matches('"').to_owned()
}

/// Returns the text without code, where brackets are no links.
fn without_code(text: &str) -> String {
    let mut prose = String::new();
    for (at, block) in text.split("```").enumerate() {
        // Every second part is inside a fence.
        if at % 2 == 0 {
            let spans = block.split('`').enumerate();
            spans.for_each(|(at, span)| prose.push_str(if at % 2 == 0 { span } else { "code" }));
        }
    }
    prose
}

/// Returns all texts between `this` and the next `that`.
fn between<'a>(text: &'a str, this: &str, that: char) -> Vec<&'a str> {
    text.split(this).skip(1).filter_map(|rest| Some(rest.split_once(that)?.0)).collect()
}

/// Returns the definitions `[name]: target`, one a line.
fn definitions(text: &str) -> BTreeMap<String, String> {
    let parts = text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: "));
    parts.map(|(name, target)| (name.to_owned(), target.to_owned())).collect()
}

/// Returns the anchors of the headings as GitHub and rustdoc make them.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let kept = |c: char| c.is_alphanumeric() || " -_".contains(c);
    let anchor = |line: &str| line.trim_start_matches('#').trim().to_lowercase().replace(|c| !kept(c), "");
    headings.map(|line| anchor(line).replace(' ', "-")).collect()
}

/// Returns the dead links of a text. A link may lead to a heading of the same page, to another site
/// or, in rustdoc, to an item.
fn astray(text: &str, items: bool) -> Vec<String> {
    let anchors = anchors(text);
    let prose = without_code(text);
    let leads_nowhere = |target: &&str| match target.strip_prefix('#') {
        Some(anchor) => !anchors.iter().any(|known| known == anchor),
        None => !(target.starts_with("https://") || items && target.starts_with("crate::")),
    };
    between(&prose, "](", ')').into_iter().filter(leads_nowhere).map(str::to_owned).collect()
}

/// Returns the pages of the documentation, and the module of each.
fn pages() -> BTreeMap<String, String> {
    let mut pages = BTreeMap::new();
    for (file, around) in [("src/lib.rs", "crate")] {
        for included in read(file).split("include_str!(\"../docs/").skip(1) {
            let (page, rest) = included.split_once('"').unwrap();
            // Not a page: the definitions of the plots.
            if !page.ends_with(".md") {
                continue;
            }
            let module = rest.split_once("pub mod ").and_then(|(_, rest)| rest.split(' ').next()).expect("a module");
            pages.insert(format!("docs/{page}"), format!("{around}::{module}"));
        }
    }
    pages
}

/// Returns the links to headings that do not exist.
fn lost_headings(text: &str, anchors: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let is_lost = |target: &&str| match target.split_once('#') {
        Some((page, anchor)) => anchors.get(page).is_some_and(|known| !known.iter().any(|known| known == anchor)),
        None => false,
    };
    between(text, "](", ')').into_iter().filter(is_lost).map(str::to_owned).collect()
}

/// Returns the definitions of lib.rs before README.md, which the documentation uses.
fn documented() -> BTreeMap<String, String> {
    let lib = read("src/lib.rs");
    let (before, _) = lib.split_once("include_str!(\"../README.md\")").expect("README.md is the documentation");
    let version = format!("/{}/", version());
    let lines = before.replace("/\", env!(\"CARGO_PKG_VERSION\"), \"/", &version).replace("\\n\",", "");
    definitions(&lines.lines().map(|line| format!("{}\n", line.trim().trim_start_matches('"'))).collect::<String>())
}

/// Whether the package includes this file, by the list in Cargo.toml.
fn is_packed(file: &str) -> bool {
    let manifest = read("Cargo.toml");
    let (_, list) = manifest.split_once("\ninclude = [").expect("the package is a list of what it includes");
    let list = list.split_once(']').unwrap().0;
    between(list, "\"/", '"').iter().any(|entry| file == *entry || file.starts_with(&format!("{entry}/")))
}

#[test]
fn readme_links_work_in_checkout_package_and_docs() {
    let readme = read("README.md");
    assert_eq!(astray(&readme, false), [""; 0], "a file is linked by a reference, which src/lib.rs defines, too");
    let (files, documented, pages) = (definitions(&readme), documented(), pages());
    assert!(!files.is_empty());
    for (name, file) in &files {
        assert!(root().join(file).is_file() && is_packed(file), "{file} is in the checkout and the package");
        let page = format!("https://docs.rs/crate/waterline/{}/source/{file}", version());
        let expected = pages.get(file).cloned().unwrap_or(page);
        assert_eq!(documented.get(name), Some(&expected), "src/lib.rs defines [{name}] for the documentation");
    }
    let prose = without_code(&readme);
    let used = between(&prose, "][", ']');
    let unknown: Vec<_> = used.into_iter().filter(|name| !files.contains_key(*name)).collect();
    assert!(unknown.is_empty(), "README.md does not define these references: {unknown:?}");
    let unused: Vec<_> = files.keys().filter(|name| prose.matches(&format!("[{name}]")).count() < 2).collect();
    assert!(unused.is_empty(), "README.md defines these references and has no link by them: {unused:?}");
}

#[test]
fn the_readme_is_short() {
    assert!(read("README.md").lines().count() <= 200, "say it on a page of docs, and link to that");
}

#[test]
fn each_page_is_in_the_docs_and_linked_by_the_readme() {
    let there: Vec<_> = tree::files(&["docs"], &["md"]).into_iter().map(|(page, _)| page).collect();
    assert_eq!(pages().into_keys().collect::<Vec<_>>(), there, "a module includes each page");
    let linked: Vec<_> = definitions(&read("README.md")).into_values().collect();
    let lost: Vec<_> = there.iter().filter(|page| !linked.contains(page)).collect();
    assert!(lost.is_empty(), "README.md has no link to these: {lost:?}");
}

#[test]
fn the_page_of_the_examples_has_each_program_and_no_dead_link() {
    let page = read("examples/README.md");
    let links: Vec<_> = between(&page, "](", ')').into_iter().map(|link| format!("examples/{link}")).collect();
    let dead = links.iter().filter(|link| !root().join(link).is_file()).cloned();
    // A program in a folder may be linked by another file of the folder.
    let is_linked = |path: &str| links.iter().any(|link| link.split('/').nth(1) == path.split('/').nth(1));
    let programs = tree::files(&["examples"], &["rs"]).into_iter().filter(|(_, text)| text.contains("\nfn main()"));
    let left_out = programs.map(|(path, _)| path).filter(|path| !is_linked(path));
    let astray: Vec<_> = dead.chain(left_out).collect();
    assert!(astray.is_empty(), "examples/README.md leaves these out, or they are not there: {astray:?}");
}

#[test]
fn each_link_of_a_docs_page_has_a_target() {
    for (page, _) in pages() {
        assert_eq!(astray(&read(&page), true), [""; 0], "{page}");
    }
}

#[test]
fn each_link_to_a_heading_has_its_heading() {
    let anchors: BTreeMap<_, _> = pages().into_iter().map(|(page, module)| (module, anchors(&read(&page)))).collect();
    for (file, text) in tree::files(&["docs", "src"], &["md", "rs"]) {
        assert_eq!(lost_headings(&text, &anchors), [""; 0], "{file}");
    }
    assert_eq!(lost_headings("[1](crate::design#no-such) [2](crate::design)", &anchors), ["crate::design#no-such"]);
}

#[test]
fn a_dead_link_is_found() {
    let text = "# A `b` c\n[1](#a-b-c) [2](#a-b) [3](https://a.b) [4](LICENSE) `[5](x)` [6](crate::A)";
    assert_eq!(astray(text, false), ["#a-b", "LICENSE", "crate::A"]);
    assert_eq!(astray(text, true), ["#a-b", "LICENSE"]);
}
