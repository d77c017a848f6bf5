//! The page for operators: each reason to stand still has a row with the advice of the library, and
//! each alarm uses metrics that exist.

use common::tree::root;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use syn::visit::{self, Visit};

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

fn variants(file: &str, name: &str) -> BTreeSet<String> {
    let parsed = syn::parse_file(&read(file)).unwrap();
    let mut items = parsed.items.into_iter();
    let found = items.find_map(|item| match item {
        syn::Item::Enum(item) if item.ident == name => Some(item.variants),
        _ => None,
    });
    found.expect(name).into_iter().map(|variant| variant.ident.to_string()).collect()
}

/// Returns the rows of the table behind this heading: the name in the first column, and the rest.
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

/// Finds the variants of an enum (`Verdict::Waits`), and the sentences.
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
            (Words { of: self.reasons, ..Words::default() }, Words { of: "Verdict", ..Words::default() });
        pattern.visit_pat(&arm.pat);
        body.visit_expr(&arm.body);
        for name in pattern.names {
            let (verdicts, sentences) = self.found.entry(name).or_default();
            verdicts.extend(body.names.iter().cloned());
            sentences.extend(body.sentences.iter().cloned());
        }
        visit::visit_arm(self, arm);
    }
}

/// Returns the advice of this function of the library.
fn advice(file: &str, function: &str, reasons: &'static str) -> Advice {
    struct Function<'f>(&'f str, Arms);

    impl<'a> Visit<'a> for Function<'_> {
        fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
            if item.sig.ident == self.0 {
                self.1.visit_block(&item.block);
            }
        }

        fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
            if item.sig.ident == self.0 {
                self.1.visit_block(&item.block);
            }
        }
    }

    let parsed = syn::parse_file(&read(file)).unwrap();
    let mut found = Function(function, Arms { reasons, found: Advice::new() });
    found.visit_file(&parsed);
    assert!(!found.1.found.is_empty(), "{file} has no {function}");
    found.1.found
}

const STREAMS: &str = "## What to do when a stream waits";

/// Checks that a table has a row for each variant of the enum, which says what the library says.
fn check(heading: &str, rows: &BTreeMap<String, Vec<String>>, variants: &BTreeSet<String>, advice: &Advice) {
    assert_eq!(&rows.keys().cloned().collect::<BTreeSet<_>>(), variants, "{heading} has a row for each");
    for (reason, row) in rows {
        let [_, acts, helps] = &row[..] else { panic!("{heading}, {reason}: {row:?}") };
        let (verdicts, sentences) = advice.get(reason).unwrap_or_else(|| panic!("there is no advice for {reason}"));
        let words = [("GoesWell", "nobody"), ("Waits", "itself"), ("NeedsYou", "you")];
        for (verdict, word) in words {
            // A source that fails waits in its first minute, which the status decides.
            let is_young = word == "itself" && acts == "itself, or you after a minute";
            let says = acts.split(", or ").any(|part| part.trim_end_matches(" after a minute") == word);
            assert_eq!(verdicts.contains(verdict) || is_young, says, "{heading}, {reason}: {acts}");
        }
        let lost: Vec<_> = sentences.iter().filter(|sentence| !helps.contains(*sentence)).collect();
        assert!(lost.is_empty(), "{heading}, {reason}: the library also says {lost:?}");
    }
}

#[test]
fn each_stall_reason_has_a_row_with_its_advice() {
    let page = read("docs/operating.md");
    for (heading, folder, reasons, function) in [
        (STREAMS, "src/observe", "Blocked", "of_blocked"),
        ("## What to do when a queue waits", "crates/waterline-queue/src", "Waits", "of_waits"),
    ] {
        let [status, table] = ["status", "advice"].map(|file| format!("{folder}/{file}.rs"));
        check(heading, &rows(&page, heading), &variants(&status, reasons), &advice(&table, function, reasons));
    }
    // Advice that no reason has.
    let plain = page.replace('\n', " ");
    let files =
        ["src/observe/advice.rs", "crates/waterline-queue/src/advice.rs", "src/base/advice.rs"].map(read).concat();
    for sentence in [
        "Start the stage before it again: it has ended.",
        "Nothing runs before the program starts it again.",
        "Remove the cause, then redrive them, or discard them.",
        "Add a handler for them to the program, or cancel them.",
        "Remove the cause that their errors name, then requeue them, or remove them.",
        "Look at the disk, and remove them.",
    ] {
        assert!(files.contains(sentence) && plain.contains(sentence), "{sentence}");
    }
}

#[test]
fn missing_rows_and_wrong_advice_are_found() {
    let reasons = variants("src/observe/status.rs", "Blocked");
    let advice = advice("src/observe/advice.rs", "of_blocked", "Blocked");
    let heading = STREAMS;
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

/// Returns the metrics of the library, and which of these are histograms.
fn metrics() -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut all, mut histograms) = (BTreeSet::new(), BTreeSet::new());
    for file in ["src/observe/metrics.rs", "crates/waterline-queue/src/runner/metrics.rs"] {
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

/// Returns the metrics that a text names and that do not exist.
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
fn alarms_and_dashboard_ask_for_existing_metrics() {
    let (all, histograms) = metrics();
    assert!(all.len() > 15 && histograms.len() == 3, "{all:?} {histograms:?}");
    let alarms = read("examples/alerts.yml");
    assert_eq!(unknown(&alarms), [""; 0]);
    assert_eq!(unknown(&read("examples/grafana.json")), [""; 0]);
    let wrong = alarms.replace("waterline_parked", "waterline_park").replace("save_seconds_sum", "save_seconds");
    assert_eq!(unknown(&wrong), ["waterline_park", "waterline_save_seconds"]);
}

/// The alarms agree with the verdict that the page and the doctor show: they fire on what needs an
/// operator, and on what is left over when its number is not 0.
#[test]
fn the_alarms_use_only_the_librarys_verdicts() {
    let alarms = read("examples/alerts.yml");
    let expression = |alarm: &str| {
        let (_, behind) = alarms.split_once(&format!("- alert: {alarm}\n")).unwrap_or_else(|| panic!("{alarm}"));
        let line = behind.lines().find_map(|line| line.trim().strip_prefix("expr: "));
        line.unwrap_or_else(|| panic!("{alarm}")).to_owned()
    };
    for (alarm, wanted) in [
        ("WaterlineNeedsYou", "max by (consumer) (waterline_verdict{on=\"movement\"}) == 2"),
        ("WaterlineParked", "max by (consumer) (waterline_parked) > 0"),
        ("WaterlineQueueNeedsYou", "max by (queue) (waterline_queue_verdict{on=~\"movement|unknown_kinds\"}) == 2"),
        ("WaterlineJobsDead", "max by (queue) (waterline_queue_jobs{state=\"dead\"}) > 0"),
        ("WaterlineJobsDamaged", "max by (queue) (waterline_queue_jobs{state=\"damaged\"}) > 0"),
    ] {
        assert_eq!(expression(alarm), wanted);
    }
}

#[test]
fn each_alarm_is_documented_and_fires_in_a_case() {
    let alarms = read("examples/alerts.yml");
    let alarms: BTreeSet<_> = alarms.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let rows = rows(&read("docs/operating.md"), "## Alarms");
    assert_eq!(rows.keys().map(String::as_str).collect::<BTreeSet<_>>(), alarms, "each alarm has its row");
    let cases = read("tests/repo/alerts.yml");
    let fires = |alarm: &&&str| cases.contains(&format!("alertname=\"{alarm}\""));
    let never: Vec<_> = alarms.iter().filter(|alarm| !fires(alarm)).collect();
    assert!(never.is_empty(), "tests/repo/alerts.yml has no case in which these fire: {never:?}");
}
