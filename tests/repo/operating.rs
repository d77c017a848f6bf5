//! The alarms: each uses metrics that exist, and has a row on the page for operators.

use common::tree::root;
use std::collections::BTreeSet;
use std::fs;

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
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
    let page = read("docs/operating.md");
    let (_, page) = page.split_once("## Alarms").expect("the page has them");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `Waterline")?.split_once(" | "));
    let mut named: Vec<_> = rows.flat_map(|(names, _)| names.trim_end_matches('`').split("`, `Waterline")).collect();
    named.sort_unstable();
    let known: Vec<_> = alarms.iter().map(|alarm| alarm.trim_start_matches("Waterline")).collect();
    assert_eq!(named, known, "each alarm has its row");
    let cases = read("tests/repo/alerts.yml");
    let fires = |alarm: &&&str| cases.contains(&format!("alertname=\"{alarm}\""));
    let never: Vec<_> = alarms.iter().filter(|alarm| !fires(alarm)).collect();
    assert!(never.is_empty(), "tests/repo/alerts.yml has no case in which these fire: {never:?}");
}
