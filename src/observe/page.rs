//! Holds a table of the page `operating` to what the library says. The tests of the queue share it.

use std::collections::BTreeSet;

/// What the library says of a reason: its name on the page, the sentence, who acts, what helps.
pub(crate) type Said = (String, String, &'static str, &'static str);

/// Who acts, by the verdict.
pub(crate) const ACTS: [&str; 3] = ["nobody", "itself", "you"];

/// Returns the name of the variant, as the page has it.
pub(crate) fn name(reason: &impl std::fmt::Debug) -> String {
    format!("{reason:?}").split([' ', '{']).next().unwrap_or_default().to_owned()
}

/// Returns the variants of an enum, by its source.
pub(crate) fn variants(source: &str, name: &str) -> BTreeSet<String> {
    let (_, behind) = source.split_once(&format!("pub enum {name} {{\n")).expect(name);
    let lines = behind.lines().take_while(|line| *line != "}").filter_map(|line| line.strip_prefix("    "));
    let variants = lines.filter(|line| line.starts_with(|first: char| first.is_ascii_uppercase()));
    variants.map(|line| line.trim_end_matches([' ', '{', ',']).to_owned()).collect()
}

/// Returns the reasons of which the table behind this heading and the library say not the same.
///
/// Each reason has one row. A table without a column for who acts has three columns.
pub(crate) fn differ(page: &str, heading: &str, said: &[Said]) -> BTreeSet<String> {
    let (_, behind) = page.split_once(heading).expect(heading);
    let table = behind.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let mut missing: BTreeSet<_> = said.iter().map(|(name, ..)| name.clone()).collect();
    let mut differ = BTreeSet::new();
    for row in table.skip(2) {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [name, sentence, acts @ .., helps] = &cells[..] else { panic!("{row}") };
        let name = name.trim_matches('`');
        let of_it = || said.iter().filter(|(reason, ..)| reason == name);
        let actors =
            || acts.iter().flat_map(|acts| acts.split(", or ")).map(|act| act.trim_end_matches(" after a minute"));
        let is_same = missing.remove(name)
            && of_it().any(|(_, says, ..)| is_like(says, sentence))
            && (acts.is_empty() || of_it().map(|(_, _, act, _)| *act).collect::<BTreeSet<_>>() == actors().collect())
            && of_it().all(|(.., help)| helps.contains(help))
            && helps.is_empty() == of_it().all(|(.., help)| help.is_empty());
        if !is_same {
            differ.insert(name.to_owned());
        }
    }
    differ.extend(missing);
    differ
}

/// True if the page has this sentence. It may leave parts out ("…"), and its numbers are examples.
fn is_like(says: &str, page: &str) -> bool {
    let plain = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "").replace(".ms", ".s");
    let (says, page) = (plain(says), plain(page));
    let behind = page.split('…').enumerate().try_fold(says.trim(), |says, (nth, part)| {
        let at = says.find(part.trim()).filter(|at| nth > 0 || *at == 0)?;
        Some(&says[at + part.trim().len()..])
    });
    behind.is_some_and(|behind| behind.is_empty() || page.ends_with('…'))
}
