//! All bugs in one text: a function with bugs looks up which of its bodies is to run.

use planted::list::Bug;
use planted::places::{Place, Sources};
use std::collections::BTreeMap;
use std::ops::Range;

/// The variable that chooses a bug by its number.
pub const VARIABLE: &str = "WATERLINE_PLANTED";

/// A bug with its place.
pub type Placed<'a> = (&'a Bug, Place);

/// A body, or one bug of it, in a text with planted bugs.
#[derive(Debug)]
struct Arm {
    path: String,
    bytes: Range<usize>,
    bugs: Vec<u32>,
}

/// The files with bugs, and where these are.
#[derive(Debug, Default)]
pub struct Planted {
    /// The texts by their paths.
    pub texts: BTreeMap<String, String>,
    arms: Vec<Arm>,
}

impl Planted {
    /// Returns the bugs that are in the smallest place around these bytes: one of them, or all of a
    /// body.
    pub fn bugs_at(&self, path: &str, bytes: &Range<usize>) -> &[u32] {
        let around = |arm: &&Arm| arm.path == path && arm.bytes.start <= bytes.start && bytes.end <= arm.bytes.end;
        self.arms.iter().filter(around).min_by_key(|arm| arm.bytes.len()).map_or(&[], |arm| &arm.bugs)
    }
}

/// The text of a file, from this byte on up to that one, with the bug in it.
pub fn with_bug(text: &str, part: &Range<usize>, (bug, place): &Placed<'_>) -> String {
    [&text[part.start..place.bytes.start], &bug.becomes, &text[place.bytes.end..part.end]].concat()
}

/// Returns true if the bug can stand beside others: it is in a body, which can still be read.
pub fn can_be_chosen(sources: &Sources, placed: &Placed<'_>) -> bool {
    let text = &sources.files[placed.1.file].text;
    let body = placed.1.body.as_ref();
    body.is_some_and(|body| syn::parse_str::<syn::Block>(&with_bug(text, body, placed)).is_ok())
}

/// Plants all of these bugs, which can be chosen.
pub fn plant(sources: &Sources, bugs: &[&Placed<'_>]) -> Planted {
    let mut planted = Planted::default();
    for (at, file) in sources.files.iter().enumerate() {
        let here: Vec<_> = bugs.iter().filter(|(_, place)| place.file == at).copied().collect();
        if here.is_empty() && file.path != "src/lib.rs" {
            continue;
        }
        let (mut text, mut end) = (String::new(), 0);
        for (body, bugs) in by_body(&here) {
            text.push_str(&file.text[end..body.start]);
            let begin = text.len();
            text.push_str("{ match crate::planted::which() {\n");
            for placed in &bugs {
                text.push_str(&format!("{} => ", placed.0.number));
                let start = text.len();
                text.push_str(&with_bug(&file.text, &body, placed));
                let (path, bytes) = (file.path.clone(), start..text.len());
                planted.arms.push(Arm { path, bytes, bugs: vec![placed.0.number] });
                text.push('\n');
            }
            text.push_str(&format!("_ => {}\n}} }}", &file.text[body.clone()]));
            let (path, bugs) = (file.path.clone(), bugs.iter().map(|(bug, _)| bug.number).collect());
            planted.arms.push(Arm { path, bytes: begin..text.len(), bugs });
            end = body.end;
        }
        text.push_str(&file.text[end..]);
        if file.path == "src/lib.rs" {
            text.push_str(&module());
        }
        planted.texts.insert(file.path.clone(), text);
    }
    planted
}

/// The bodies with their bugs, in the order of the text. A body within another one belongs to it.
fn by_body<'a>(bugs: &[&'a Placed<'a>]) -> Vec<(Range<usize>, Vec<&'a Placed<'a>>)> {
    let bodies = || bugs.iter().filter_map(|(_, place)| place.body.clone());
    let mut found = BTreeMap::<_, (_, Vec<_>)>::new();
    for placed in bugs {
        let Some(body) = &placed.1.body else { continue };
        let around = bodies().filter(|outer| outer.start <= body.start && body.end <= outer.end);
        let outermost = around.max_by_key(Range::len).unwrap_or_else(|| body.clone());
        found.entry(outermost.start).or_insert_with(|| (outermost, Vec::new())).1.push(*placed);
    }
    found.into_values().collect()
}

/// The module that knows which bug is chosen. A process that a test starts inherits the variable.
fn module() -> String {
    format!(
        "\nmod planted {{\n    pub(crate) fn which() -> u32 {{\n        static WHICH: std::sync::OnceLock<u32> = std::sync::OnceLock::new();\n        \
         *WHICH.get_or_init(|| std::env::var({VARIABLE:?}).ok().and_then(|which| which.parse().ok()).unwrap_or(0))\n    }}\n}}\n"
    )
}
