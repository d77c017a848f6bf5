//! Records of a progress, as they lie on disks.

use super::format::{self, Delta, Page, Restored, Series};
use super::history::{self, Move, MoveKind};
use super::life::{self, Halt, Life, decode_moved, moved_entry};
use super::parked::{self, ParkedRecord};
use crate::base::index::Index;
use crate::commit::sealed::table::{Sample, samples as of};
use std::ops::RangeInclusive;

/// The generation of the page and of its deltas, and the lowest index that its page does not have.
const PAGE: (u32, Index) = (5, 100);

/// The widest list that is written. The bits of a wider one fill the memory.
const WIDEST: u64 = 1 << 12;

type Runs = Vec<RangeInclusive<Index>>;

/// True if a damaged list is too wide to be written.
fn is_wide(runs: &Runs, next: Index) -> bool {
    runs.last().is_some_and(|last| last.end() - next > WIDEST)
}

/// Returns the number that is the place of a record.
fn number(place: &str) -> u64 {
    place.bytes().fold(0, |number, byte| number << 8 | u64::from(byte))
}

fn write_page(page: &Page, name: &str, _: &str) -> Vec<u8> {
    let (Some(series), Some(next), done) = (page.series, page.restored.next, &page.restored.done) else {
        return Vec::new(); // It is of version 1.
    };
    if is_wide(done, next) {
        return Vec::new();
    }
    let first = next / 64 * 64;
    let mut words = vec![0; done.last().map_or(0, |last| (last.end() - first) as usize / 64 + 1)];
    done.iter().cloned().flatten().for_each(|i| words[((i - first) / 64) as usize] |= 1 << (i % 64));
    format::encode_page(name, series, page.last_processed.is_some(), next, (first, &words))
}

fn pages() -> Vec<Sample> {
    let page = |series, last_processed, next, done| Page {
        series,
        last_processed,
        restored: Restored { next: Some(next), done },
    };
    let series = Some(Series { id: 7, generation: PAGE.0 });
    let records = [
        (page(None, Some(41), 42, vec![]), "01 8:41 d64efbca"),
        (page(series, None, 42, vec![44..=44, 50..=60]), "02 4:7 4:5 00 8:42 00 020909 d4cebd12"),
        (
            page(series, Some(99), 100, (102..190).step_by(2).map(|i| i..=i).collect()),
            "02 4:7 4:5 01 8:100 01 8:64 5555554000000000 1555555555555555 979b04ea",
        ),
    ];
    of(format::PAGE, ("blocks", ""), write_page, |name, _, bytes| format::decode_page(name, bytes), records)
}

fn deltas() -> Vec<Sample> {
    let write = |delta: &Delta, name: &str, slot: &str| {
        if is_wide(&delta.new, delta.next) {
            return Vec::new();
        }
        let new: Vec<_> = delta.new.iter().cloned().flatten().collect();
        format::encode_delta(name, number(slot) as u32, PAGE.0, PAGE.1, delta.next, &new)
    };
    let read = |name: &str, slot: &str, bytes: &[u8]| {
        format::decode_delta(name, number(slot) as u32, PAGE.0, PAGE.1, bytes)?.ok_or_else(|| "it is void".to_owned())
    };
    let records = [(Delta { next: 300, new: vec![310..=310, 400..=700] }, "05 c801 12 b101 ab02 1bd881a4")];
    of(format::DELTA, ("blocks", "\0\0\0\x03"), write, read, records)
}

fn lives() -> Vec<Sample> {
    let halted = Some(Halt { index: 7, at: 3, text: "job 7 failed".to_owned() });
    let closed = Life { opened: 1, ended: 2, width: 10_000, halted, ..Life::default() };
    let open = Life { open: true, ended: 0, careful: Some(9), ..closed.clone() };
    let records = [
        (closed, "01 04 8:1 8:2 8:10000 8:0 8:7 8:3 'job 7 failed' 8c9d3a1a"),
        (open, "01 07 8:1 8:0 8:10000 8:9 8:7 8:3 'job 7 failed' 5b4ca704"),
        (Life::default(), "01 00 8:0 8:0 8:0 8:0 8:0 8:0 1a008366"),
    ];
    of(life::SEAL, ("p", ""), |life, name, _| life.encode(name), |name, _, bytes| Life::decode(name, bytes), records)
}

fn parked_jobs() -> Vec<Sample> {
    let error = "refused: no route".to_owned();
    let job = ParkedRecord { index: 7, attempts: 3, crashes: 2, error, ..ParkedRecord::default() };
    let parked = ParkedRecord { first_failed: 1, last_failed: 2, parked: 3, wanted: true, suspect: true, ..job };
    let pending = ParkedRecord { index: 7, pending: true, started: true, ..ParkedRecord::default() };
    let read = |name: &str, index: &str, bytes: &[u8]| ParkedRecord::decode(name, number(index), bytes);
    let records = [
        (parked, "01 09 4:3 4:2 8:1 8:2 8:3 'refused: no route' 4efffed9"),
        (pending, "01 06 4:0 4:0 8:0 8:0 8:0 4bbd309c"),
    ];
    of(parked::SEAL, ("p", "\0\0\0\0\0\0\0\x07"), |job, name, _| job.encode(name), read, records)
}

fn moves() -> Vec<Sample> {
    let records = [
        (
            Move::new(MoveKind::Seek, None, 7, "anew", 1_700_000_000_000),
            "01 00 8:1700000000000 00 8:0 8:7 'anew' 737ccb8b",
        ),
        (
            Move::new(MoveKind::Skip, Some(0x0102), 0x0304, "bad block", 0x0506),
            "01 01 8:1286 01 8:258 8:772 'bad block' d94c44e5",
        ),
    ];
    let write = |made: &Move, name: &str, at: &str| made.encode(name, number(at));
    let read = |name: &str, at: &str, bytes: &[u8]| Move::decode(name, number(at), bytes);
    of(history::SEAL, ("p", "\0\0\0\0\0\0\0\x03"), write, read, records)
}

pub(crate) fn samples() -> Vec<Sample> {
    let moved = [(0x0102_0304, "01 8:16909060 8f0de726")];
    let write = |at: &u64, name: &str, _: &str| moved_entry(name, *at).1;
    let moved = of(life::MOVED, ("p", ""), write, |name, _, bytes| decode_moved(name, bytes), moved);
    [pages(), deltas(), lives(), moved, parked_jobs(), moves()].into_iter().flatten().collect()
}
