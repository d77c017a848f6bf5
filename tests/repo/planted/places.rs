//! The items of the sources, and the places of texts in them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::{fs, io, iter};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// The files below `docs` and `src`.
#[derive(Debug)]
pub struct Sources {
    /// The files in the order of their paths.
    pub files: Vec<File>,
}

/// A file of the sources.
#[derive(Debug)]
pub struct File {
    /// The path from the root of the checkout on.
    pub path: String,
    /// The whole text.
    pub text: String,
    items: Vec<Item>,
}

/// An item of a file, with its attributes.
#[derive(Debug)]
struct Item {
    /// The modules, the type and the name: `driver::saving::Driver::settle`.
    path: String,
    bytes: Range<usize>,
    /// The body of a function that runs when a program runs.
    body: Option<Range<usize>>,
}

/// The place of a text.
#[derive(Clone, Debug)]
pub struct Place {
    /// The position of the file in [`Sources::files`].
    pub file: usize,
    /// The bytes of the text.
    pub bytes: Range<usize>,
    /// The body of the innermost function around the text, with its braces. None if the text is no
    /// part of one, or if a constant calls the function.
    pub body: Option<Range<usize>>,
}

impl Sources {
    /// Reads the files of a checkout that are Rust or Markdown.
    ///
    /// # Errors
    ///
    /// A sentence with the name of a file that cannot be read, or is no Rust.
    pub fn read(root: &Path) -> Result<Self, String> {
        let read = |folder| files(root, folder).map_err(|error| format!("{}: {error}", root.display()));
        Self::of([read("docs")?, read("src")?].concat())
    }

    /// Reads the items of these files: paths from the root of the checkout on, and texts.
    ///
    /// # Errors
    ///
    /// A sentence with the name of a file that is no Rust.
    pub fn of(files: Vec<(String, String)>) -> Result<Self, String> {
        let read = |(path, text): (String, String)| {
            let items = if path.ends_with(".rs") { items(&path, &text)? } else { Vec::new() };
            Ok(File { path, text, items })
        };
        Ok(Self { files: files.into_iter().map(read).collect::<Result<_, String>>()? })
    }

    /// Finds the one place of a text in an item, which the end of its path names (`function`,
    /// `Type::function`), or in a file, whose path has a slash.
    ///
    /// # Errors
    ///
    /// A sentence that says where the text is, if that is not one place.
    pub fn find(&self, within: &str, text: &str) -> Result<Place, String> {
        let is_named =
            |item: &&Item| item.path.strip_suffix(within).is_some_and(|rest| rest.is_empty() || rest.ends_with("::"));
        let named = |file: &File| {
            let whole = (file.path == within).then_some(0..file.text.len());
            whole.into_iter().chain(file.items.iter().filter(is_named).map(|item| item.bytes.clone())).collect()
        };
        let there = self.all(text, named);
        if let [place] = &*there {
            return Ok(place.clone());
        }
        if !there.is_empty() {
            return Err(format!("{within} has the text {} times: {}", there.len(), self.names(&there)));
        }
        match &*self.all(text, |file| iter::once(0..file.text.len()).collect()) {
            [] => Err("the text is nowhere in the sources".to_owned()),
            elsewhere => Err(format!("{within} does not have the text; {} has", self.names(elsewhere))),
        }
    }

    /// All places of a text in these parts of the files.
    fn all(&self, text: &str, parts: impl Fn(&File) -> Vec<Range<usize>>) -> Vec<Place> {
        let mut places = Vec::new();
        for (at, file) in self.files.iter().enumerate() {
            let in_part = |part: Range<usize>| {
                let found = file.text[part.clone()].match_indices(text);
                found.map(move |(at, _)| part.start + at)
            };
            // An item may be within another one of the same name.
            let starts: BTreeSet<_> = parts(file).into_iter().flat_map(in_part).collect();
            let found = starts.into_iter().map(|start| start..start + text.len());
            places.extend(found.map(|bytes| Place { file: at, body: body(file, &bytes), bytes }));
        }
        places
    }

    /// The innermost items around these places.
    fn names(&self, places: &[Place]) -> String {
        let name = |place: &Place| {
            let file = &self.files[place.file];
            let innermost = around(file, &place.bytes).min_by_key(|item| item.bytes.len());
            innermost.map_or(file.path.clone(), |item| item.path.clone())
        };
        places.iter().map(name).collect::<Vec<_>>().join(", ")
    }
}

fn contains(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// The items that have all of these bytes.
fn around<'a>(file: &'a File, bytes: &'a Range<usize>) -> impl Iterator<Item = &'a Item> {
    file.items.iter().filter(|item| contains(&item.bytes, bytes))
}

/// The body of the innermost function around these bytes that runs when a program runs.
fn body(file: &File, bytes: &Range<usize>) -> Option<Range<usize>> {
    let bodies = file.items.iter().filter_map(|item| item.body.as_ref());
    bodies.filter(|body| contains(body, bytes)).min_by_key(|body| body.len()).cloned()
}

/// The files below this folder: paths from the root on, and texts.
fn files(root: &Path, folder: &str) -> io::Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            found.extend(files(root, &path)?);
        } else if path.ends_with(".rs") || path.ends_with(".md") {
            found.push((path, fs::read_to_string(entry.path())?));
        }
    }
    found.sort();
    Ok(found)
}

fn items(path: &str, text: &str) -> Result<Vec<Item>, String> {
    let parsed = syn::parse_file(text).map_err(|e| format!("{path}:{}: {e}", e.span().start().line))?;
    let modules = path.trim_start_matches("src/").trim_end_matches(".rs").split('/').filter(|name| *name != "lib");
    let mut items = Items { around: modules.map(str::to_owned).collect(), found: Vec::new() };
    items.visit_file(&parsed);
    Ok(items.found)
}

/// Collects the items of a file.
struct Items {
    /// The modules, types and functions around the next item.
    around: Vec<String>,
    found: Vec<Item>,
}

impl Items {
    fn found(&mut self, name: String, item: &impl Spanned, body: Option<&syn::Block>, inside: impl FnOnce(&mut Self)) {
        self.around.push(name);
        let body = body.map(|body| body.span().byte_range());
        self.found.push(Item { path: self.around.join("::"), bytes: item.span().byte_range(), body });
        inside(self);
        self.around.pop();
    }
}

/// The body, unless a constant may call the function.
fn at_run_time<'a>(signature: &syn::Signature, body: &'a syn::Block) -> Option<&'a syn::Block> {
    signature.constness.is_none().then_some(body)
}

/// The name of a type without its module: `Writer` of `&super::Writer<T>`.
fn name_of(kind: &syn::Type) -> String {
    match kind {
        syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default(),
        syn::Type::Reference(reference) => name_of(&reference.elem),
        _ => String::new(),
    }
}

impl<'ast> Visit<'ast> for Items {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        use syn::Item::{Const, Enum, Fn, Impl, Macro, Mod, Static, Struct, Trait, Type};
        let (name, body) = match item {
            Const(item) => (item.ident.to_string(), None),
            Enum(item) => (item.ident.to_string(), None),
            Fn(item) => (item.sig.ident.to_string(), at_run_time(&item.sig, &item.block)),
            Impl(item) => (name_of(&item.self_ty), None),
            Macro(syn::ItemMacro { ident: Some(ident), .. }) => (ident.to_string(), None),
            Mod(item) => (item.ident.to_string(), None),
            Static(item) => (item.ident.to_string(), None),
            Struct(item) => (item.ident.to_string(), None),
            Trait(item) => (item.ident.to_string(), None),
            Type(item) => (item.ident.to_string(), None),
            other => return visit::visit_item(self, other),
        };
        self.found(name, item, body, |this| visit::visit_item(this, item));
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let (name, body) = match item {
            syn::ImplItem::Const(item) => (item.ident.to_string(), None),
            syn::ImplItem::Fn(item) => (item.sig.ident.to_string(), at_run_time(&item.sig, &item.block)),
            other => return visit::visit_impl_item(self, other),
        };
        self.found(name, item, body, |this| visit::visit_impl_item(this, item));
    }

    fn visit_trait_item(&mut self, item: &'ast syn::TraitItem) {
        let (name, body) = match item {
            syn::TraitItem::Const(item) => (item.ident.to_string(), None),
            syn::TraitItem::Fn(item) => {
                (item.sig.ident.to_string(), item.default.as_ref().and_then(|body| at_run_time(&item.sig, body)))
            }
            other => return visit::visit_trait_item(self, other),
        };
        self.found(name, item, body, |this| visit::visit_trait_item(this, item));
    }
}
