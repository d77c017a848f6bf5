//! Records of queues, as they are stored on disks.

use super::durations::DurationsRecord as Measured;
use super::head::{Head, decode_number, encode_number};
use super::limit::LimitRecord as Limited;
use super::side_records::{self, Last, Marked};
use super::{durations, entry, head, limit, row};
use crate::rules::bucket::Bucket;
use crate::rules::lanes::Lane;
use crate::rules::notes::Noted;
use crate::types::durations::Durations;
use crate::types::job::{JobState, Priority, Retention};
use crate::types::meta::{Meta, text};
use crate::types::progress::JobProgress;
use crate::types::related::{OnDead, Root, Skipped};
use crate::types::row::{Extras, NO_EXTRAS, Row};
use crate::types::unique::{Fingerprint, Until};
use serde_json::json;
use std::time::{Duration, UNIX_EPOCH};
use waterline::Retry;
use waterline::seam::{Sample, samples as of};

const SECOND: Duration = Duration::from_secs(1);

fn all_extras() -> Extras {
    Extras {
        unique: Some(Until::Time),
        fingerprint: Some(Fingerprint(*b"0123456789abcdef")),
        skips_from: Some(3),
        root: Some(Root::new("tree", UNIX_EPOCH + SECOND)),
        is_root: true,
        expires: Some(4),
        key: Some("ann".to_owned()),
        cost: 5,
        held: Some("tmail".to_owned()),
        after: 6,
        on_dead: OnDead::Hold,
        awaited: Some(7),
        held_up: Some(8),
        skipped: Some(Skipped::ALL[1]),
        has_meta: true,
        has_progress: true,
        is_stopping: true,
        is_suspect: true,
    }
}

fn rows() -> Vec<Sample> {
    let none = Row { has_data: false, extras: None, ..Row::unreadable(Priority::Normal, 7, None) };
    let plain = Row { state: JobState::Ready, kind: "mail".to_owned(), pushed: 258, since: 259, ..none };
    let retry = Retry::exponential(SECOND, 60 * SECOND).factor(3.0).max_attempts(5).jitter(0.5);
    let failed = Row {
        failures: 2,
        crashes: 1,
        due: 9,
        resubmit: Some(513),
        resubmitted: 511,
        named: true,
        has_data: true,
        ..plain.clone()
    };
    let failed = Row { state: JobState::Running, priority: Priority::Low, retry: Some(retry), ..failed };
    let failed = Row { retention: Some(Retention::For(SECOND)), error: "no route".to_owned(), ..failed };
    let all = Row { retention: Some(Retention::Keep), extras: Some(Box::new(all_extras())), ..plain.clone() };
    let one = Extras { key: Some("ann".to_owned()), ..NO_EXTRAS.clone() };
    let one = Row { retention: Some(Retention::Drop), extras: Some(Box::new(one)), ..failed.clone() };
    let records = [
        (plain, "01 01 02 00 4:0 4:0 8:258 8:0 8:259 8:7 04 'mail' d3f28e1b"),
        (
            failed,
            "01 02 03 3f 4:2 4:1 8:258 8:9 8:259 8:7 8:513 8:511 8:1000 02 8:1000000000 8:60000000000 4008000000000000 \
            4:5 3fe0000000000000 04 'mailno route' a6a874bd",
        ),
        (
            all,
            "02 01 02 08 4:0 4:0 8:258 8:0 8:259 8:7 ffffffffffffffff 0003ffff 02 '0123456789abcdef' 8:3 8:1000 2:4 \
            'tree' 8:4 2:3 'ann' 4:5 2:5 'tmail' 4:6 02 8:7 01 8:8 04 'mail' 406f1544",
        ),
        (
            one,
            "02 02 03 3f 4:2 4:1 8:258 8:9 8:259 8:7 8:513 8:511 8:0 02 8:1000000000 8:60000000000 4008000000000000 4:5 \
            3fe0000000000000 00000040 2:3 'ann' 04 'mailno route' e43112ef",
        ),
    ];
    of(row::SEAL, ("q", "id"), Row::encode, Row::decode, records)
}

fn heads() -> Vec<Sample> {
    let lane = |next| Lane { next, end: next + 2, deleted: next - 1 };
    let lanes = [lane(11), lane(21), lane(31), lane(41)];
    let (next_id, next_token, epoch, claims, paused_until, paused_since, seen) = (1, 2, 3, 4, 5, 52, 53);
    let counts = [6, 7, 8, 9, 10, 0];
    let (freed, held) = (Lane::default(), 0);
    let old = Head { next_id, next_token, epoch, claims, paused_until, paused_since, seen, counts, lanes, freed, held };
    let new = Head { counts: [6, 7, 8, 9, 10, 51], freed: lane(61), held: 71, ..old.clone() };
    let records = [
        (
            old,
            "01 8:1 8:2 8:3 8:4 8:5 8:52 8:53 8:6 8:7 8:8 8:9 8:10 8:11 8:13 8:10 8:21 8:23 8:20 8:31 8:33 8:30 8:41 8:43 \
            8:40 46af806a",
        ),
        (
            new,
            "02 8:1 8:2 8:3 8:4 8:5 8:52 8:53 8:6 8:7 8:8 8:9 8:10 8:11 8:13 8:10 8:21 8:23 8:20 8:31 8:33 8:30 8:41 8:43 \
            8:40 8:51 8:61 8:63 8:60 8:71 20c88b17",
        ),
    ];
    of(
        head::SEAL,
        ("q", ""),
        |head, queue, _| head.encode(queue),
        |queue, _, bytes| Head::decode(queue, bytes),
        records,
    )
}

fn limits() -> Vec<Sample> {
    let bucket = Some(Bucket { level: -5, unit: 1_000_000_000, since: 1_700_000_000_000 });
    let waits = Some(("tmail".to_owned(), 9));
    let full = Limited { epoch: 3, running: 2, next: 10, end: 14, held: 3, called: true, timer: 7, bucket, waits };
    let records = [
        (
            full,
            "01 07 8:3 8:2 8:10 8:14 8:3 8:7 fffffffffffffffffffffffffffffffb 8:0 8:1000000000 8:1700000000000 8:9 \
            2:5 'tmail' afa0ff13",
        ),
        (Limited::default(), "01 00 8:0 8:0 8:0 8:0 8:0 8:0 e95c52ba"),
    ];
    of(limit::SEAL, ("q", "kann"), Limited::encode, Limited::decode, records)
}

/// The records beside a job.
fn beside() -> Vec<Sample> {
    let meta = Meta::from([("b".to_owned(), 1.into()), ("a".to_owned(), "x".into())]);
    let meta = [(meta, "01 '{\"a\":\"x\",\"b\":1}' ce4d4305")];
    let meta = of(
        side_records::META,
        ("q", "id"),
        |meta, queue, id| side_records::encode_meta(queue, id, &text(meta)),
        side_records::decode_meta,
        meta,
    );
    let shown = [(JobProgress::new(0.5, "row 3", 258).unwrap(), "01 3fe0000000000000 8:258 'row 3' f4cad0d1")];
    let shown = of(side_records::PROGRESS, ("q", "id"), JobProgress::encode, JobProgress::decode, shown);
    let marked = Marked { number: 258, until: 772, since: 771, id: "id".to_owned() };
    let marked = [(marked, "01 8:258 8:772 8:771 'id' 51260f2a")];
    let marked = of(side_records::MARK, ("q", "uabc"), Marked::encode, Marked::decode, marked);
    let write = |id: &String, queue: &str, key: &str| entry::encode(queue, key.as_bytes(), id);
    let read = |queue: &str, key: &str, bytes: &[u8]| entry::id_in(queue, key.as_bytes(), bytes);
    let entry = of(entry::SEAL, ("q", "key"), write, read, [("id".to_owned(), "01 'id' 564e9335")]);
    [meta, shown, marked, entry].into_iter().flatten().collect()
}

/// The records of the queue itself.
fn own() -> Vec<Sample> {
    let write = |number: &u32, queue: &str, _: &str| encode_number(queue, *number);
    let read = |queue: &str, _: &str, bytes: &[u8]| decode_number(queue, bytes);
    let number = of(head::NAME, ("q", ""), write, read, [(0x0102_0304, "01 01020304 1fe038e9")]);
    let durations = Durations { count: 3, mean: SECOND, last: 2 * SECOND };
    let measured = [(Measured { durations, at: 258 }, "01 8:3 8:1000000000 8:2000000000 8:258 454064c2")];
    let measured = of(durations::SEAL, ("q", "mail"), Measured::encode, Measured::decode, measured);
    let last = [(Last { tick: 258, skipped: 3, run: "~7".to_owned() }, "01 8:258 8:3 '~7' 52ea8bb0")];
    let last = of(side_records::PERIODIC, ("q", "tick"), Last::encode, Last::decode, last);
    let noted = [(Noted { until: 258, since: 257, value: json!({"a": 1}) }, "01 8:258 8:257 '{\"a\":1}' 3de1fbfb")];
    let noted = of(side_records::NOTE, ("q", "04kindkey"), Noted::encode, Noted::decode, noted);
    [number, measured, last, noted].into_iter().flatten().collect()
}

pub(crate) fn samples() -> Vec<Sample> {
    [rows(), heads(), limits(), beside(), own()].into_iter().flatten().collect()
}
