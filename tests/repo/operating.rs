//! The page for the one who operates it: each reason to stand still has its row, with the advice of
//! the page for the browser, and each alarm asks for metrics that there are.

use common::tree::root;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use syn::visit::{self, Visit};

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// Returns the variants of an enum.
fn variants(file: &str, name: &str) -> BTreeSet<String> {
    let parsed = syn::parse_file(&read(file)).unwrap();
    let mut items = parsed.items.into_iter();
    let found = items.find_map(|item| match item {
        syn::Item::Enum(item) if item.ident == name => Some(item.variants),
        _ => None,
    });
    found.expect(name).into_iter().map(|variant| variant.ident.to_string()).collect()
}

/// Returns the rows of the table behind this heading: the name in the first column, and the others.
fn rows(page: &str, heading: &str) -> BTreeMap<String, Vec<String>> {
    let (_, behind) = page.split_once(heading).unwrap_or_else(|| panic!("there is no {heading:?}"));
    let lines = behind.lines().skip_while(|line| !line.starts_with('|'));
    let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
    let cells = |line: &str| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let mut found = BTreeMap::new();
    for row in rows.map(cells) {
        for name in row[0].split('`').skip(1).step_by(2) {
            assert!(found.insert(name.to_owned(), row[1..].to_vec()).is_none(), "{name} is there twice");
        }
    }
    found
}

/// The advice for each reason of an enum: who acts, and the sentences that help.
type Advice = BTreeMap<String, (BTreeSet<String>, BTreeSet<String>)>;

/// Finds the arms of each `match` on the reasons of this enum.
struct Arms {
    reasons: &'static str,
    found: Advice,
}

/// Finds names behind a name (`Tone::Waits`), and the sentences.
#[derive(Default)]
struct Words {
    of: &'static str,
    names: BTreeSet<String>,
    sentences: BTreeSet<String>,
}

impl<'a> Visit<'a> for Words {
    fn visit_path(&mut self, path: &'a syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if let [of, name] = &names[..]
            && of == self.of
        {
            self.names.insert(name.clone());
        }
        visit::visit_path(self, path);
    }

    fn visit_lit_str(&mut self, text: &'a syn::LitStr) {
        if text.value().ends_with('.') {
            self.sentences.insert(text.value());
        }
    }
}

impl<'a> Visit<'a> for Arms {
    fn visit_arm(&mut self, arm: &'a syn::Arm) {
        let (mut pattern, mut body) =
            (Words { of: self.reasons, ..Words::default() }, Words { of: "Tone", ..Words::default() });
        pattern.visit_pat(&arm.pat);
        body.visit_expr(&arm.body);
        for name in pattern.names {
            let (tones, sentences) = self.found.entry(name).or_default();
            tones.extend(body.names.iter().cloned());
            sentences.extend(body.sentences.iter().cloned());
        }
        visit::visit_arm(self, arm);
    }
}

/// Returns the advice that this function of the page gives.
fn advice(function: &str, reasons: &'static str) -> Advice {
    let parsed = syn::parse_file(&read("crates/waterline-ui/src/advice.rs")).unwrap();
    let found = parsed.items.iter().find_map(|item| match item {
        syn::Item::Fn(item) if item.sig.ident == function => Some(item),
        _ => None,
    });
    let mut arms = Arms { reasons, found: Advice::new() };
    arms.visit_item_fn(found.expect(function));
    arms.found
}

/// Checks that the rows of a table are those of the enum, and say what the page says.
fn check(heading: &str, rows: &BTreeMap<String, Vec<String>>, variants: &BTreeSet<String>, advice: &Advice) {
    assert_eq!(&rows.keys().cloned().collect::<BTreeSet<_>>(), variants, "{heading} has a row for each");
    for (reason, row) in rows {
        let [_, acts, helps] = &row[..] else { panic!("{heading}, {reason}: {row:?}") };
        let (tones, sentences) = advice.get(reason).unwrap_or_else(|| panic!("the page has no advice for {reason}"));
        let words = [("Good", "nobody"), ("Waits", "itself"), ("Stuck", "you")];
        for (tone, word) in words {
            assert_eq!(
                tones.contains(tone),
                acts.split(", or ").any(|part| part == word),
                "{heading}, {reason}: {acts}"
            );
        }
        // Two rows share a sentence, which the second one does not repeat.
        if helps != "The same as above." {
            let lost: Vec<_> = sentences.iter().filter(|sentence| !helps.contains(*sentence)).collect();
            assert!(lost.is_empty(), "{heading}, {reason}: the page also says {lost:?}");
        }
    }
}

#[test]
fn each_reason_to_stand_still_has_a_row_with_the_advice_of_the_page() {
    let page = read("docs/operating.md");
    for (heading, file, reasons, function) in [
        ("## What each sentence of a stream asks for", "src/observe/status.rs", "Blocked", "of_blocked"),
        ("## What each sentence of a queue asks for", "src/queue/status.rs", "Waits", "of_queue"),
    ] {
        check(heading, &rows(&page, heading), &variants(file, reasons), &advice(function, reasons));
    }
    // Advice that no reason has.
    let advice = read("crates/waterline-ui/src/advice.rs");
    let plain = page.replace('\n', " ");
    for sentence in
        ["Start the stage before it again: it has ended.", "Nothing runs before the program starts it again."]
    {
        assert!(advice.contains(sentence) && plain.contains(sentence), "{sentence}");
    }
}

#[test]
fn a_row_that_is_not_there_and_one_with_other_advice_are_found() {
    let reasons = variants("src/observe/status.rs", "Blocked");
    let advice = advice("of_blocked", "Blocked");
    let heading = "## What each sentence of a stream asks for";
    let page = read("docs/operating.md");
    let fails = |page: &str| {
        let rows = rows(page, heading);
        std::panic::catch_unwind(|| check(heading, &rows, &reasons, &advice)).is_err()
    };
    assert!(!fails(&page));
    let without: String = page.lines().filter(|line| !line.starts_with("| `Held`")).map(|l| format!("{l}\n")).collect();
    assert!(fails(&without), "a row is missing");
    assert!(fails(&page.replace("The progress decides when it goes on.", "Wait.")), "other advice");
    assert!(
        fails(&page.replace("| you | See what the threads do", "| itself | See what the threads do")),
        "another tone"
    );
}

/// Returns the metrics that the library has, and of these the histograms.
fn metrics() -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut all, mut histograms) = (BTreeSet::new(), BTreeSet::new());
    for file in ["src/observe/metrics.rs", "src/queue/runner/metrics.rs"] {
        let text = read(file);
        let (code, _) = text.split_once("#[cfg(test)]").unwrap_or((&text, ""));
        for (at, name) in code.split('"').enumerate().filter(|(at, name)| at % 2 == 1 && name.starts_with("waterline_"))
        {
            let before = code.split('"').nth(at - 1).unwrap().trim_end();
            all.insert(name.to_owned());
            if before.ends_with("seconds(") {
                histograms.insert(name.to_owned());
            }
        }
    }
    (all, histograms)
}

/// Returns the metrics that a text names and that are not there.
fn unknown(text: &str) -> Vec<String> {
    let (all, histograms) = metrics();
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let named: BTreeSet<_> = words.filter(|word| word.starts_with("waterline_")).collect();
    assert!(named.len() > 5, "{named:?}");
    let is_known = |name: &str| {
        let of = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        of.map_or_else(|| all.contains(name) && !histograms.contains(name), |family| histograms.contains(family))
    };
    named.into_iter().filter(|name| !is_known(name)).map(str::to_owned).collect()
}

#[test]
fn the_alarms_and_the_dashboard_ask_for_metrics_that_there_are() {
    let (all, histograms) = metrics();
    assert!(all.len() > 15 && histograms.len() == 3, "{all:?} {histograms:?}");
    let alarms = read("examples/alerts.yml");
    assert_eq!(unknown(&alarms), [""; 0]);
    assert_eq!(unknown(&read("examples/grafana.json")), [""; 0]);
    let wrong = alarms.replace("waterline_parked", "waterline_park").replace("save_seconds_sum", "save_seconds");
    assert_eq!(unknown(&wrong), ["waterline_park", "waterline_save_seconds"]);
}

#[test]
fn each_alarm_is_on_the_page_and_fires_in_a_case() {
    let alarms = read("examples/alerts.yml");
    let alarms: BTreeSet<_> = alarms.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let rows = rows(&read("docs/operating.md"), "## Alarms");
    assert_eq!(rows.keys().map(String::as_str).collect::<BTreeSet<_>>(), alarms, "each alarm has its row");
    let cases = read("tests/repo/alerts.yml");
    let fires = |alarm: &&&str| cases.contains(&format!("alertname=\"{alarm}\""));
    let never: Vec<_> = alarms.iter().filter(|alarm| !fires(alarm)).collect();
    assert!(never.is_empty(), "tests/repo/alerts.yml has no case in which these fire: {never:?}");
}
