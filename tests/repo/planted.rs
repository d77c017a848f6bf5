//! The planted bugs of `tests/mutants.txt`, and sources with all of them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::{fs, io};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// The variable that chooses a bug by its number.
pub const VARIABLE: &str = "WATERLINE_PLANTED";

/// The folder with the functions of Redis, as the list names all of them.
const FUNCTIONS: &str = "engines/redis/lua";

/// A bug, and the test that must find it.
#[derive(Debug)]
pub struct Bug {
    /// The position of the bug in the list, from 1.
    pub number: u32,
    /// The sentence that says what the bug does.
    pub title: String,
    /// The file with the text: a path from the root of the checkout.
    pub file: String,
    /// The text that the bug replaces.
    pub was: String,
    /// The text of the bug.
    pub becomes: String,
    /// The test program, or `lib`.
    pub program: String,
    /// A part of the test's name, as the program takes it.
    pub test: String,
}

impl Bug {
    /// Returns the program, the test, and the value of `WATERLINE_STORE` for it.
    #[must_use]
    pub fn call(&self) -> (&str, &str, &'static str) {
        let store = if self.test.starts_with("sqlite::") { "sqlite" } else { "memory" };
        (&self.program, &self.test, store)
    }
}

/// Reads the list: a remark, and entries with an empty line between them.
///
/// # Errors
///
/// A sentence with the entry that lacks a field.
pub fn read(text: &str) -> Result<Vec<Bug>, String> {
    let entries = (1..).zip(text.split("\n\n").skip(1).map(|entry| entry.trim_matches('\n')));
    entries.map(|(number, entry)| bug(number, entry).ok_or_else(|| format!("this is no entry:\n{entry}"))).collect()
}

fn bug(number: u32, entry: &str) -> Option<Bug> {
    let (title, rest) = entry.split_once("\nin: ")?;
    let (file, rest) = rest.split_once("\nwas: ")?;
    let (was, rest) = rest.split_once("\nbecomes: ")?;
    let (becomes, test) = rest.split_once("\nfound by: ")?;
    let (program, test) = match *test.split_whitespace().collect::<Vec<_>>() {
        ["--lib", test] => ("lib", test),
        ["--queue-lib", test] => ("queue-lib", test),
        ["--test", program, test] => (program, test),
        ["--redis", "lib", test] => ("redis-lib", test),
        ["--redis", "queue", test] => ("redis-queue", test),
        _ => return None,
    };
    let [title, file, was, becomes, program, test] = [title, file, was, becomes, program, test].map(str::to_owned);
    (was != becomes && !was.is_empty()).then_some(Bug { number, title, file, was, becomes, program, test })
}

/// Returns the texts of the functions of Redis in this checkout.
///
/// # Errors
///
/// That of a file that cannot be read.
pub fn functions(checkout: &Path) -> io::Result<String> {
    let files = fs::read_dir(checkout.join(FUNCTIONS))?.collect::<io::Result<Vec<_>>>()?;
    let files = files.iter().map(fs::DirEntry::path).filter(|path| path.extension().is_some_and(|end| end == "lua"));
    files.map(fs::read_to_string).collect()
}

/// Returns a bug in a function of a server as one in Rust, where the texts of all functions are
/// joined.
///
/// # Errors
///
/// A sentence about a bug without one place in these texts.
pub fn in_rust(bug: Bug, functions: &str) -> Result<Bug, String> {
    if bug.file != FUNCTIONS {
        return Ok(bug);
    }
    let places = functions.matches(&bug.was).count();
    if places != 1 {
        return Err(format!("{}: {:?} has {places} places in all functions, not one", bug.file, bug.title));
    }
    let (file, was) = ("engines/redis/src/library.rs".to_owned(), "joined(FIRST, &FILES)".to_owned());
    let becomes = format!("{was}.replacen({:?}, {:?}, 1)", bug.was, bug.becomes);
    Ok(Bug { file, was, becomes, ..bug })
}

/// Returns the text of a file with all of its bugs: a body with bugs chooses the version to run.
///
/// # Errors
///
/// A sentence about the first bug without one place, or about a file that is not Rust.
pub fn plant(text: &str, bugs: &[&Bug]) -> Result<String, String> {
    let bodies = bodies(text)?;
    let mut arms = BTreeMap::<(usize, usize), String>::new();
    for bug in bugs {
        let body = body(text, &bodies, bug).map_err(|fault| format!("{}: {:?} {fault}", bug.file, bug.title))?;
        let version = text[body.clone()].replacen(&bug.was, &bug.becomes, 1);
        *arms.entry((body.start, body.end)).or_default() += &format!("{} => {version}\n", bug.number);
    }
    let (mut planted, mut end) = (String::new(), 0);
    for ((start, body_end), arms) in arms {
        planted += &text[end..start];
        planted += &format!("{{ match crate::planted() {{\n{arms}_ => {}\n}} }}", &text[start..body_end]);
        end = body_end;
    }
    Ok(planted + &text[end..])
}

/// Returns the function that reads which bug is chosen. Child processes of a test inherit the
/// variable.
#[must_use]
pub fn chooser() -> String {
    format!(
        "\n#[allow(dead_code)]\npub(crate) fn planted() -> u32 {{\n    static WHICH: std::sync::OnceLock<u32> = std::sync::OnceLock::new();\n    \
         *WHICH.get_or_init(|| std::env::var({VARIABLE:?}).ok().and_then(|which| which.parse().ok()).unwrap_or(0))\n}}\n"
    )
}

/// Returns the outermost body around the only place of the bug's text.
fn body(text: &str, bodies: &[Range<usize>], bug: &Bug) -> Result<Range<usize>, String> {
    let places: Vec<_> = text.match_indices(&bug.was).map(|(start, was)| start..start + was.len()).collect();
    let [place] = &places[..] else { return Err(format!("has {} places, not one", places.len())) };
    let around = bodies.iter().filter(|body| body.start <= place.start && place.end <= body.end);
    around.max_by_key(|body| body.len()).cloned().ok_or_else(|| "is in no body of a function".to_owned())
}

/// Returns the bodies of all functions that are not `const`, with their braces.
fn bodies(text: &str) -> Result<Vec<Range<usize>>, String> {
    struct Bodies(Vec<Range<usize>>);
    impl Bodies {
        fn add(&mut self, signature: &syn::Signature, body: &syn::Block) {
            if signature.constness.is_none() {
                self.0.push(body.span().byte_range());
            }
        }
    }
    impl<'a> Visit<'a> for Bodies {
        fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
            self.add(&item.sig, &item.block);
            visit::visit_item_fn(self, item);
        }
        fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
            self.add(&item.sig, &item.block);
            visit::visit_impl_item_fn(self, item);
        }
    }
    let mut bodies = Bodies(Vec::new());
    bodies.visit_file(&syn::parse_file(text).map_err(|error| error.to_string())?);
    Ok(bodies.0)
}
