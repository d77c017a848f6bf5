//! The bytes of a stored progress. A page lists everything that is done, and a delta what was added
//! since the previous save. Both are sealed records.
//!
//! Numbers of fixed length are big-endian. A varint has seven bits per byte, the lowest first, and
//! the highest bit of every byte but the last is set. *Runs* are listed in ascending order. The
//! first number of a run is its distance from the lowest index at which it could begin, doubled,
//! plus 1 if the run is longer than 1 index. Such a run has a second number, its length minus 2.

use crate::base::Index;
use crate::commit::sealed::{Kind, SUM};
use crate::store::keys;
use std::ops::RangeInclusive;

/// The version of a page.
const VERSION: u8 = 1;

pub(crate) const PAGE: Kind = Kind { label: "", versions: &[VERSION] };
/// The kind of a delta. Its page's generation stands for a version, and its slot is its place.
pub(crate) const DELTA: Kind = Kind { label: "", versions: &[] };

const HAS_WATERMARK: u8 = 1;
const RUNS: u8 = 0;
const BITS: u8 = 1;

/// The widest window: 8 GiB of bits. A record that claims more is damaged.
pub(super) const WIDEST: u64 = 1 << 36;

/// What links deltas to their page: they carry its generation, and their keys contain its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Series {
    pub(crate) id: u32,
    pub(crate) generation: u32,
}

/// The content of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    /// The link to its deltas.
    pub(crate) series: Series,
    pub(crate) last_processed: Option<Index>,
    /// The lowest index that is not done.
    pub(crate) next: Index,
    /// The jobs that are done above `next`.
    pub(crate) done: Vec<RangeInclusive<Index>>,
}

/// The content of a delta.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delta {
    /// The lowest index that is not done.
    pub(crate) next: Index,
    pub(crate) new: Vec<RangeInclusive<Index>>,
}

pub(crate) fn page_key(name: &str) -> Vec<u8> {
    keys::key(keys::PAGE, name.as_bytes())
}

/// Returns the prefix of the keys of all deltas with this number.
pub(crate) fn delta_prefix(id: u32) -> Vec<u8> {
    keys::key(keys::DELTA, &id.to_be_bytes())
}

/// Returns the number in a page, possibly damaged. Its deltas count only if the page is readable.
pub(crate) fn id_of(page: &[u8]) -> Option<u32> {
    match page {
        [VERSION, a, b, c, d, ..] => Some(u32::from_be_bytes([*a, *b, *c, *d])),
        _ => None,
    }
}

/// Returns the key of a delta. The next generation reuses the slots, so no delta has to be deleted.
pub(crate) fn delta_key(id: u32, slot: u32) -> Vec<u8> {
    // Each save makes a key, so this allocates only once.
    let ([a, b, c, d], [_, e, f, g]) = (id.to_be_bytes(), slot.to_be_bytes());
    keys::key(keys::DELTA, &[a, b, c, d, e, f, g])
}

pub(crate) fn slot_of(key: &[u8]) -> Option<u32> {
    let slot: [u8; 3] = key.strip_prefix(keys::DELTA)?.get(4..)?.try_into().ok()?;
    Some(u32::from_be_bytes([0, slot[0], slot[1], slot[2]]))
}

/// Encodes a page. All indices below `next` are done, and above it those whose bits are set. The
/// lowest bit of the first word stands for the index `first`.
pub(crate) fn encode_page(
    name: &str,
    series: Series,
    watermark: bool,
    next: Index,
    (first, words): (Index, &[u64]),
) -> Vec<u8> {
    let page = PAGE.begin(64).count(series.id).count(series.generation);
    let page = page.byte(if watermark { HAS_WATERMARK } else { 0 }).number(next);
    // The shorter form is chosen first, so that a page takes no more memory than its own bytes.
    let most = 8 * words.len() + 8;
    let (mut low, mut listed) = (next.saturating_add(1), 0);
    let mut one = Vec::new();
    let is_short = runs_of_bits(first, words.iter().copied()).all(|run| {
        one.clear();
        put_run(&mut one, &mut low, &run);
        listed += one.len();
        listed <= most
    });
    let mut page = page.byte(if is_short { RUNS } else { BITS });
    page.bytes.reserve_exact(if is_short { listed } else { most } + SUM);
    if is_short {
        low = next.saturating_add(1);
        runs_of_bits(first, words.iter().copied()).for_each(|run| put_run(&mut page.bytes, &mut low, &run));
    } else {
        page = page.number(first).numbers(words.iter().copied());
    }
    page.seal(name, "")
}

/// Decodes a page, or returns the reason why it cannot be read.
pub(crate) fn decode_page(name: &str, bytes: &[u8]) -> Result<Page, String> {
    let mut body = PAGE.open(name, "", bytes)?;
    let mut header = || Some((body.count()?, body.count()?, body.byte()?, body.number()?, body.byte()?));
    let (id, generation, flags, next, kind) = header().ok_or("its header is cut off")?;
    let series = Series { id, generation };
    let last_processed = match (flags, next.checked_sub(1)) {
        (0, _) => None,
        (HAS_WATERMARK, Some(last)) => Some(last),
        (HAS_WATERMARK, None) => return Err("it claims to have a watermark below 0".to_owned()),
        _ => return Err(format!("its flags are {flags}, of which this program knows only 1")),
    };
    let done = match kind {
        RUNS => decode_runs(body.rest, next)?,
        BITS => decode_bits(body.rest, next)?,
        _ => return Err(format!("its list is of kind {kind}, and this program knows {RUNS} and {BITS}")),
    };
    Ok(Page { series, last_processed, next, done })
}

/// Encodes a delta on a page whose `next` was `page_next`.
pub(crate) fn encode_delta(
    name: &str,
    slot: u32,
    generation: u32,
    page_next: Index,
    next: Index,
    new: &[Index],
) -> Vec<u8> {
    let mut delta = DELTA.begin(16 + 3 * new.len());
    put_varint(&mut delta.bytes, generation.into());
    put_varint(&mut delta.bytes, next - page_next);
    let mut low = next.saturating_add(1);
    runs_of_list(new).for_each(|run| put_run(&mut delta.bytes, &mut low, &run));
    delta.seal(name, slot.to_be_bytes())
}

/// Decodes a delta to the page of this generation, or returns the reason why it cannot be read.
/// `None` for a void delta: it belongs to an earlier page, from which its numbers are counted.
pub(crate) fn decode_delta(
    name: &str,
    slot: u32,
    of: u32,
    page_next: Index,
    bytes: &[u8],
) -> Result<Option<Delta>, String> {
    let mut body = DELTA.open(name, slot.to_be_bytes(), bytes)?.rest;
    if take_varint(&mut body)? != u64::from(of) {
        return Ok(None);
    }
    let by = take_varint(&mut body)?;
    let next = page_next.checked_add(by).ok_or_else(|| format!("it moves the watermark by {by}"))?;
    Ok(Some(Delta { next, new: decode_runs(body, next)? }))
}

/// Adds a run, and moves `low`, the lowest index at which the next run could begin.
fn put_run(bytes: &mut Vec<u8>, low: &mut Index, run: &RangeInclusive<Index>) {
    let (distance, longer) = (run.start() - *low, run.end() - run.start());
    put_varint(bytes, distance << 1 | u64::from(longer > 0));
    if longer > 0 {
        put_varint(bytes, longer - 1);
    }
    *low = run.end().saturating_add(2);
}

fn decode_runs(mut bytes: &[u8], next: Index) -> Result<Vec<RangeInclusive<Index>>, String> {
    let mut runs = Vec::new();
    let mut low = next.checked_add(1);
    while !bytes.is_empty() {
        let coded = take_varint(&mut bytes)?;
        let longer = if coded & 1 == 1 { take_varint(&mut bytes)?.checked_add(1) } else { Some(0) };
        let start = low.and_then(|low| low.checked_add(coded >> 1));
        let end = start.zip(longer).and_then(|(start, longer)| start.checked_add(longer));
        let (Some(start), Some(end)) = (start, end.filter(|end| end - next < WIDEST && *end < Index::MAX)) else {
            return Err("it claims what is far above the watermark".to_owned());
        };
        runs.push(start..=end);
        low = end.checked_add(2);
    }
    Ok(runs)
}

fn decode_bits(bytes: &[u8], next: Index) -> Result<Vec<RangeInclusive<Index>>, String> {
    let (first, rest) = bytes.split_first_chunk::<8>().ok_or("its bits are cut off")?;
    let (words, odd) = rest.as_chunks::<8>();
    let first = Index::from_be_bytes(*first);
    let last = first.checked_add((64 * words.len() as u64).saturating_sub(1));
    let near = last.is_some_and(|last| last.saturating_sub(next) < WIDEST) && first / 64 >= next / 64;
    if !odd.is_empty() || !first.is_multiple_of(64) || !near {
        return Err("its bits are not where they could be".to_owned());
    }
    let words = words.iter().map(|word| u64::from_be_bytes(*word));
    let runs: Vec<_> = runs_of_bits(first, words).collect();
    match (runs.first(), runs.last()) {
        (Some(first), _) if *first.start() <= next => Err("its bits are not where they could be".to_owned()),
        (_, Some(last)) if *last.end() == Index::MAX => Err("its bits are not where they could be".to_owned()),
        _ => Ok(runs),
    }
}

fn runs_of_list(list: &[Index]) -> impl Iterator<Item = RangeInclusive<Index>> + '_ {
    list.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..=run[run.len() - 1])
}

pub(super) fn runs_of_bits(
    first: Index,
    words: impl Iterator<Item = u64>,
) -> impl Iterator<Item = RangeInclusive<Index>> {
    let mut words = words.enumerate();
    let (mut base, mut word) = (first, 0_u64);
    // The run that may continue in the next word.
    let mut open: Option<RangeInclusive<Index>> = None;
    std::iter::from_fn(move || {
        loop {
            while word == 0 {
                let Some((at, next)) = words.next() else { return open.take() };
                (base, word) = (first + 64 * at as u64, next);
            }
            let (start, ones) =
                (u64::from(word.trailing_zeros()), u64::from((word >> word.trailing_zeros()).trailing_ones()));
            word &= if start + ones == 64 { 0 } else { u64::MAX << (start + ones) };
            let run = base + start..=base + (start + ones - 1);
            match open.take() {
                Some(before) if before.end() + 1 == *run.start() => open = Some(*before.start()..=*run.end()),
                Some(before) => {
                    open = Some(run);
                    return Some(before);
                }
                None => open = Some(run),
            }
        }
    })
}

fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or("a number in it is cut off")?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            break;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a number in it is too long".to_owned())
}
