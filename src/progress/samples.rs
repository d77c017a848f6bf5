//! Records of a progress, as stored on disks.

use super::history::{self, Move, MoveKind};
use super::life::{self, Halt, Life, decode_moved, moved_entry, wall_time};
use super::parked::{self, ParkedRecord};
use super::said::{Said, StoredKind};
use super::{format, reads};
use crate::base::Index;
use crate::commit::sealed::samples::{Sample, samples as of};
use std::ops::RangeInclusive;

/// Returns the number in the place of a record.
fn number(place: &str) -> u64 {
    place.bytes().fold(0, |number, byte| number << 8 | u64::from(byte))
}

/// Returns the kind of the record at this place, which is the slot of a delta.
fn kind(place: &str) -> StoredKind {
    match number(place) as u32 {
        0 => StoredKind::Page,
        slot => StoredKind::Delta { slot, page_next: 100 },
    }
}

fn pages_and_deltas() -> Vec<Sample> {
    let said = |last_processed, next, done: &[RangeInclusive<Index>]| {
        let done = done.iter().cloned().flatten().collect();
        Said { last_processed, next, done }
    };
    let write = |said: &Said, name: &str, place: &str| kind(place).write(name, said);
    let read = |name: &str, place: &str, bytes: &[u8]| kind(place).read(name, bytes).ok_or_else(|| "no".to_owned());
    let singles: Vec<_> = (102..190).step_by(2).map(|index| index..=index).collect();
    let pages = [
        (said(None, 42, &[44..=44, 50..=60]), "01 4:3 4:5 00 8:42 00 020909 e61ec754"),
        (said(Some(99), 100, &singles), "01 4:3 4:5 01 8:100 01 8:64 5555554000000000 1555555555555555 bffa3702"),
    ];
    let delta = [(said(None, 300, &[310..=310, 400..=700]), "05 c801 12 b101 ab02 1bd881a4")];
    let pages = of(format::PAGE, ("blocks", ""), write, read, pages);
    let delta = of(format::DELTA, ("blocks", "\0\0\0\x03"), write, read, delta);
    [pages, delta].into_iter().flatten().collect()
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
            Move::new(wall_time(1_700_000_000_000), MoveKind::Seek, None, 7, "anew"),
            "01 00 8:1700000000000 00 8:0 8:7 'anew' 737ccb8b",
        ),
        (
            Move::new(wall_time(0x0506), MoveKind::Skip, Some(0x0102), 0x0304, "bad block"),
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
    let names = [("blocks".to_owned(), "01 'blocks' 905d2848"), (String::new(), "01 a03b2155")];
    let write = |log: &String, name: &str, _: &str| reads::entry(name, log).1;
    let reads = of(reads::SEAL, ("p", ""), write, |name, _, bytes| reads::decode(name, bytes), names);
    [pages_and_deltas(), lives(), moved, parked_jobs(), moves(), reads].into_iter().flatten().collect()
}
