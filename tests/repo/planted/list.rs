//! The list of planted bugs.

use std::fmt;

/// A bug, and the test that has to find it.
#[derive(Debug)]
pub struct Bug {
    /// The place of the bug in the list, from 1 on.
    pub number: u32,
    /// The sentence that says what the bug does.
    pub title: String,
    /// The item or the file that has the text: see [`crate::places::Sources::find`].
    pub place: String,
    /// The text that the bug replaces.
    pub was: String,
    /// The text of the bug.
    pub becomes: String,
    /// The program that has the test.
    pub program: Program,
    /// A part of the name of the test, as the program takes it.
    pub test: String,
}

impl Bug {
    /// The store that the test runs on, as `WATERLINE_STORE` names it. It is the one in memory,
    /// unless the bug or its test needs another one.
    #[must_use]
    pub fn store(&self) -> &'static str {
        if self.place.contains("/sqlite") || self.test.starts_with("sqlite::") { "sqlite" } else { "memory" }
    }

    /// The program, the test and the store.
    #[must_use]
    pub fn call(&self) -> (&Program, &str, &'static str) {
        (&self.program, &self.test, self.store())
    }
}

/// A program with tests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// The tests in the library.
    Lib,
    /// A test program of this name.
    Test(String),
    /// The models of the threads.
    Loom,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lib => f.write_str("--lib"),
            Self::Test(name) => write!(f, "--test {name}"),
            Self::Loom => f.write_str("loom"),
        }
    }
}

/// Reads the list: entries with an empty line between them. An entry without `in:` is a remark.
///
/// # Errors
///
/// A sentence that names the entry, if it lacks a field or its end.
pub fn read(text: &str) -> Result<Vec<Bug>, String> {
    let mut bugs = Vec::new();
    for entry in text.split("\n\n") {
        let number = u32::try_from(bugs.len() + 1).map_err(|e| e.to_string())?;
        bugs.extend(bug(number, entry.trim_matches('\n'))?);
    }
    Ok(bugs)
}

fn bug(number: u32, entry: &str) -> Result<Option<Bug>, String> {
    const FIELDS: [&str; 4] = ["in: ", "was: ", "becomes: ", "found by: "];
    let mut fields = [const { None::<String> }; FIELDS.len()];
    let (mut title, mut last) = (String::new(), None);
    for line in entry.lines() {
        let field = FIELDS.iter().position(|field| line.starts_with(field));
        if line.starts_with("<<<<<<<") || line.starts_with(">>>>>>>") {
            return Err(format!("a merge left its marks in {title:?}"));
        }
        match (field, last) {
            (Some(field), _) if fields[field].is_some() => {
                return Err(format!("{title:?} has two lines {:?}: is an empty line missing?", FIELDS[field]));
            }
            (Some(field), _) => {
                fields[field] = Some(line[FIELDS[field].len()..].to_owned());
                last = Some(field);
            }
            // A text of several lines goes on until the next field.
            (None, Some(field @ (1 | 2))) => fields[field].get_or_insert_default().extend(["\n", line]),
            (None, Some(_)) => return Err(format!("{title:?} has a line that belongs to no field: {line:?}")),
            (None, None) => title = line.to_owned(),
        }
    }
    match fields {
        [None, ..] => Ok(None),
        [Some(place), Some(was), Some(becomes), Some(found)] if !was.is_empty() && was != becomes => {
            let (program, test) = test(&found).ok_or_else(|| format!("{title:?} is found by no test: {found:?}"))?;
            Ok(Some(Bug { number, title, place, was, becomes, program, test }))
        }
        _ => Err(format!("{title:?} does not say what it replaces, or which test finds it")),
    }
}

/// Reads `--lib test`, `--test program test` or `loom test`.
fn test(found_by: &str) -> Option<(Program, String)> {
    match *found_by.split_whitespace().collect::<Vec<_>>() {
        ["--lib", test] => Some((Program::Lib, test.to_owned())),
        ["--test", program, test] => Some((Program::Test(program.to_owned()), test.to_owned())),
        ["loom", test] => Some((Program::Loom, format!("loom_{test}"))),
        _ => None,
    }
}
