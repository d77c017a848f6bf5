//! The prose of comments and docs: short lines, and paragraphs that begin with their subject.

use std::fs;

use common::tree;

/// The longest line of a comment or of a doc, in columns.
const COLUMNS: usize = 100;

/// Words that begin a sentence about something without its name. A question may begin with them.
const NO_BEGINNING: &[&str] =
    &["What", "Whatever", "Whether", "Who", "Whoever", "Whose", "How", "However", "Which", "Whichever"];

/// The same, but a sentence with a comma says more: "When the source fails, the reader waits." is
/// good.
const NO_BEGINNING_ALONE: &[&str] = &["As", "Where", "Wherever", "When", "Whenever"];

/// Words that begin no name of a function: a test is named by a sentence with its subject.
const NO_NAME: &[&str] = &["what", "whatever", "whether", "who", "whoever", "whose", "how", "which", "whichever"];

/// One line of prose: its number from 1 on, its indent in columns, and its text without `///`.
struct Line<'a> {
    number: usize,
    width: usize,
    /// The marker (`//`, `///`, `//!`), or nothing in a Markdown file.
    marker: &'a str,
    text: &'a str,
}

/// Splits `/// text` into its marker and its text.
fn comment(line: &str) -> Option<(&str, &str)> {
    let trimmed = line.trim_start();
    let length = ["///", "//!", "//"].iter().find(|marker| trimmed.starts_with(**marker))?.len();
    let (marker, text) = trimmed.split_at(length);
    Some((marker, text.strip_prefix(' ').unwrap_or(text)))
}

/// The comments of a Rust file that have a line of their own, or all lines of a Markdown file.
fn lines<'a>(path: &str, text: &'a str) -> Vec<Line<'a>> {
    let is_rust = path.ends_with(".rs");
    let line = |(at, line): (usize, &'a str)| {
        let (marker, text) = if is_rust { comment(line)? } else { ("", line) };
        Some(Line { number: at + 1, width: line.chars().count(), marker, text })
    };
    text.lines().enumerate().filter_map(line).collect()
}

/// The marker of a list item is no part of its first sentence.
fn without_bullet(text: &str) -> &str {
    let text = text.trim_start();
    let digits = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let numbered = if digits.len() < text.len() { digits.strip_prefix(". ") } else { None };
    numbered.or_else(|| text.strip_prefix("* ")).or_else(|| text.strip_prefix("- ")).unwrap_or(text)
}

/// True if a sentence about something begins without a name for it.
fn begins_badly(paragraph: &str, is_loose: bool) -> bool {
    let sentence = without_bullet(paragraph).split_inclusive(['.', '?', '!', ':']).next().unwrap_or_default();
    let word = sentence.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
    if sentence.ends_with('?') || sentence.starts_with("As long as") || sentence.starts_with("As soon as") {
        return false;
    }
    NO_BEGINNING.contains(&word) || (!is_loose && NO_BEGINNING_ALONE.contains(&word) && !sentence.contains(','))
}

/// All faults of a file, as `path:line: fault`.
fn faults(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut in_code, mut before) = (false, None::<usize>);
    let lines = lines(path, text);
    for (at, line) in lines.iter().enumerate() {
        if line.text.trim_start().starts_with("```") {
            in_code = !in_code;
            before = None;
            continue;
        }
        let is_table = line.text.starts_with('|');
        let is_link = !line.text.trim_start().contains(' ') || line.text.starts_with('[') && line.text.contains("]: ");
        if in_code || line.text.trim().is_empty() || line.text.starts_with('#') || is_table {
            before = None;
            continue;
        }
        if line.width > COLUMNS && !is_link && !path.ends_with("README.md") {
            found.push(format!("{path}:{}: {} columns", line.number, line.width));
        }
        let later = without_bullet(line.text).split(". ").skip(1).find(|sentence| {
            let word = sentence.split(' ').next().unwrap_or_default();
            NO_BEGINNING.contains(&word) && !line.text.contains('?') && word != "However"
        });
        if let Some(sentence) = later {
            found.push(format!("{path}:{}: begins without its subject: {sentence}", line.number));
        }
        let goes_on = before == Some(line.number) && without_bullet(line.text) == line.text;
        before = Some(line.number + 1);
        // A comment within code may begin with its circumstances: "When the lock is free again".
        let is_loose = line.marker == "//";
        if !goes_on {
            let rest = lines[at..].iter().take(4).enumerate();
            let rest = rest.take_while(|(more, next)| next.number == line.number + more && !next.text.is_empty());
            let paragraph = rest.map(|(_, next)| next.text).collect::<Vec<_>>().join(" ");
            if begins_badly(&paragraph, is_loose) {
                let start: String = paragraph.chars().take(60).collect();
                found.push(format!("{path}:{}: begins without its subject: {start}", line.number));
            }
        }
    }
    found
}

/// The functions of a file whose names begin without their subject, as `path:line: name`.
fn bad_names(path: &str, text: &str) -> Vec<String> {
    let name = |line: &str| Some(line.trim_start().strip_prefix("fn ")?.split(['(', '<']).next()?.to_owned());
    let names = (1..).zip(text.lines()).filter_map(|(number, line)| Some((number, name(line)?)));
    let bad = names.filter(|(_, name)| name.split_once('_').is_some_and(|(word, _)| NO_NAME.contains(&word)));
    bad.map(|(number, name)| format!("{path}:{number}: {name}")).collect()
}

/// Everything that has prose: paths from the root of the checkout on, and their text.
fn files() -> Vec<(String, String)> {
    let mut found = tree::files(
        &["docs", "src", "tests", "benches", "crates", "engines", "examples", "fuzz/fuzz_targets"],
        &["rs", "md"],
    );
    let pages = ["README.md", "CONTRIBUTING.md"];
    found.extend(pages.map(|page| (page.to_owned(), fs::read_to_string(tree::root().join(page)).unwrap())));
    found
}

#[test]
fn comments_are_narrow_and_docs_begin_with_their_subject() {
    let files = files();
    assert!(files.len() > 150, "only {} files were found", files.len());
    let faults: Vec<_> = files.iter().flat_map(|(path, text)| faults(path, text)).collect();
    assert!(faults.is_empty(), "rewrite these: {faults:#?}");
}

#[test]
fn names_of_functions_begin_with_their_subject() {
    let bad: Vec<_> = files().iter().flat_map(|(path, text)| bad_names(path, text)).collect();
    assert!(bad.is_empty(), "name the subject: {bad:#?}");
    let text = "fn good() {}\nfn whole_runs() {}\n    fn what_is_late_is_bad() {}\nfn who<T>() {}";
    assert_eq!(bad_names("src/x.rs", text), ["src/x.rs:3: what_is_late_is_bad"]);
}

#[test]
fn each_kind_of_fault_is_found_and_good_prose_is_not() {
    let wide = format!("    // {}", "word ".repeat(20));
    let bad = [
        "/// Whether it is open.",
        "//! What is returned is the user's.",
        "/// Opens it.\n///\n/// How often it was opened.",
        "/// Opens it:\n/// * Who opened it.",
        "/// 1. Which one.",
        "    /// When it was saved.",
        "    // What is left.",
        "/// It is open. Whoever opened it knows.",
        "/// As today.",
        &wide,
    ];
    for text in bad {
        assert_eq!(faults("src/x.rs", text).len(), 1, "{text}");
    }
    assert_eq!(faults("src/x.md", "Good.\n\nWhat it is.\n").len(), 1);
    let code = format!("let a = 1; // {}", "x".repeat(90));
    let link = format!("/// [a]: https://{}", "x".repeat(90));
    let block = format!("/// ```\n/// {}\n/// What it is.\n/// ```", "x ".repeat(50));
    let table = format!("/// | {} |", "x ".repeat(50));
    let good = [
        "/// The number of\n/// What is counted.",
        "// When it is not a doc.",
        "/// # How to open it",
        "/// What if it fails? It is opened again.",
        "/// When the source fails, the reader waits.",
        "/// As long as it is open.",
        &code,
        &link,
        &block,
        &table,
    ];
    for text in good {
        assert_eq!(faults("src/x.rs", text), [""; 0], "{text}");
    }
}
