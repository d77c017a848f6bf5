//! Lines of comments and of docs have at most 100 columns.

use common::tree::{self, root};
use std::fs;

const COLUMNS: usize = 100;

/// Returns the lines of prose that are too wide, as `path:line: columns`. Code, tables, headings
/// and links may be wide.
fn wide(path: &str, text: &str) -> Vec<String> {
    let is_rust = path.ends_with(".rs");
    let (mut in_code, mut found) = (false, Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        let Some(prose) = line.trim_start().strip_prefix("//").or((!is_rust).then_some(line)) else { continue };
        let prose = prose.trim_start_matches(['/', '!']).trim_start();
        in_code ^= prose.starts_with("```");
        let is_link = !prose.contains(' ') || prose.starts_with('[') && prose.contains("]: ");
        let columns = line.chars().count();
        if columns > COLUMNS && !in_code && !is_link && !prose.starts_with(['|', '#']) {
            found.push(format!("{path}:{number}: {columns}"));
        }
    }
    found
}

#[test]
fn comments_and_docs_are_narrow() {
    let folders = ["docs", "src", "tests", "benches", "crates", "engines", "examples", "fuzz/fuzz_targets"];
    let mut files = tree::files(&folders, &["rs", "md"]);
    files.retain(|(path, _)| !path.ends_with("README.md"));
    assert!(files.len() > 150, "only {} files were found", files.len());
    let pages = ["CONTRIBUTING.md", "examples/README.md"];
    files.extend(pages.map(|page| (page.to_owned(), fs::read_to_string(root().join(page)).unwrap())));
    let wide: Vec<_> = files.iter().flat_map(|(path, text)| wide(path, text)).collect();
    assert!(wide.is_empty(), "break these lines: {wide:#?}");
}

#[test]
fn a_wide_line_is_found_in_prose_but_not_in_code() {
    let words = "word ".repeat(25);
    assert_eq!(wide("src/x.rs", &format!("fn f() {{}}\n    /// {words}")), ["src/x.rs:2: 133"]);
    assert_eq!(wide("docs/x.md", &format!("Good.\n{words}")), ["docs/x.md:2: 125"]);
    let link = format!("/// [a]: https://{}", "x".repeat(90));
    for fine in [&words, &link, &format!("/// ```\n/// {words}\n/// ```"), &format!("// | {words}|")] {
        assert_eq!(wide("src/x.rs", fine), [""; 0], "{fine}");
    }
}
