//! The jobs that are done above the watermark, as rows of bits. Pure: no I/O.
//!
//! A piece has the bits of [`PIECE`] jobs. A save writes only the pieces in which something
//! changed, so it writes little, however much is done ahead.

use std::ops::RangeInclusive;
use waterline::Index;

/// The number of jobs in a piece: its bits are 1 KiB.
pub(crate) const PIECE: u64 = 8192;

pub(crate) type Run = RangeInclusive<Index>;

/// The rows that a save changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// The pieces to write, each with its bits.
    pub(crate) put: Vec<(i64, Vec<u8>)>,
    /// The pieces in which nothing is done any more.
    pub(crate) gone: Vec<i64>,
}

/// Returns the number of the piece that has this job. It is never negative.
pub(crate) fn piece_of(index: Index) -> i64 {
    (index / PIECE).cast_signed()
}

/// Returns the pieces that differ between the stored runs and the new ones. Jobs below `next` do
/// not count, since no load reads them. Runs are in order, and do not touch.
pub(crate) fn changed(stored: &[Run], runs: &[Run], next: Index) -> Changed {
    let mut changed = Changed::default();
    let mut last = None;
    for run in differing(stored, runs) {
        if *run.end() < next {
            continue;
        }
        let first = piece_of(*run.start().max(&next));
        for piece in first.max(last.map_or(0, |last| last + 1))..=piece_of(*run.end()) {
            last = Some(piece);
            match bits(runs, piece) {
                Some(bits) => changed.put.push((piece, bits)),
                None => changed.gone.push(piece),
            }
        }
    }
    changed
}

/// Returns the runs of indices that are in one of the lists and not in the other, in order.
fn differing<'a>(one: &'a [Run], other: &'a [Run]) -> impl Iterator<Item = Run> + 'a {
    // Where membership changes. No index is the highest number, so ends of runs do not overflow.
    let edges = |runs: &'a [Run]| runs.iter().flat_map(|run| [*run.start(), run.end().saturating_add(1)]);
    let (mut one, mut other) = (edges(one).peekable(), edges(other).peekable());
    let mut edge = move || loop {
        match (one.peek(), other.peek()) {
            (Some(a), Some(b)) if a == b => _ = (one.next(), other.next()),
            (Some(a), Some(b)) if b < a => return other.next(),
            (None, Some(_)) => return other.next(),
            _ => return one.next(),
        }
    };
    std::iter::from_fn(move || Some(edge()?..=edge()? - 1))
}

/// Returns the bits of a piece, or `None` if none is set. A full piece has no bytes, and zero bytes
/// at the end are left out.
fn bits(runs: &[Run], piece: i64) -> Option<Vec<u8>> {
    let first = piece.cast_unsigned() * PIECE;
    let last = first + (PIECE - 1);
    let from = runs.partition_point(|run| *run.end() < first);
    let within = runs[from..].iter().take_while(|run| *run.start() <= last);
    let within: Vec<_> = within.map(|run| *run.start().max(&first) - first..=*run.end().min(&last) - first).collect();
    let highest = *within.last()?.end();
    if within == [0..=PIECE - 1] {
        return Some(Vec::new());
    }
    let mut bits = vec![0; to_usize(highest / 8 + 1)];
    for bit in within.into_iter().flatten() {
        bits[to_usize(bit / 8)] |= 1 << (bit % 8);
    }
    Some(bits)
}

fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Reads the runs that are done from `next` on out of pieces in ascending order.
///
/// # Errors
/// Says which part cannot be true.
pub(crate) fn runs<'a>(pieces: impl IntoIterator<Item = (i64, &'a [u8])>, next: Index) -> Result<Vec<Run>, String> {
    let mut runs: Vec<Run> = Vec::new();
    for (piece, bits) in pieces {
        let number = u64::try_from(piece).ok().filter(|piece| *piece <= Index::MAX / PIECE);
        let first = number.ok_or_else(|| format!("there is a piece {piece} of done jobs"))? * PIECE;
        if bits.len() as u64 > PIECE / 8 {
            return Err(format!("the piece {piece} of done jobs has {} bytes", bits.len()));
        }
        let mut add = |start: Index, end: Index| {
            let start = start.max(next);
            match runs.last_mut() {
                _ if end < start => {}
                Some(last) if last.end().saturating_add(1) == start => *last = *last.start()..=end,
                _ => runs.push(start..=end),
            }
        };
        if bits.is_empty() {
            add(first, first + (PIECE - 1));
        }
        for (at, byte) in (0..).zip(bits) {
            match byte {
                0 => {}
                0xff => add(first + at * 8, first + at * 8 + 7),
                byte => (0..8)
                    .filter(|bit| byte & 1 << bit != 0)
                    .for_each(|bit| add(first + at * 8 + bit, first + at * 8 + bit)),
            }
        }
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    type Rows = BTreeMap<i64, Vec<u8>>;

    /// Saves as the database does, and reads back.
    fn save(rows: &mut Rows, stored: &[Run], runs: &[Run], next: Index) -> Changed {
        let changed = changed(stored, runs, next);
        changed.gone.iter().for_each(|piece| _ = rows.remove(piece));
        rows.extend(changed.put.iter().cloned());
        rows.retain(|piece, _| *piece >= piece_of(next));
        let read = super::runs(rows.iter().map(|(piece, bits)| (*piece, &bits[..])), next);
        assert_eq!(read.unwrap(), runs);
        changed
    }

    fn in_runs(done: &[bool], next: usize) -> Vec<Run> {
        let done: Vec<u64> = (next..done.len()).filter(|at| done[*at]).map(|at| at as u64).collect();
        done.chunk_by(|one, other| one + 1 == *other).map(|run| run[0]..=run[run.len() - 1]).collect()
    }

    #[test]
    fn any_series_of_saves_is_read_back_exactly() {
        for seed in 0..20 {
            let mut chance = fastrand::Rng::with_seed(seed);
            let (mut rows, mut stored, mut next) = (Rows::new(), Vec::new(), 0);
            let mut done = vec![false; 40_000];
            for _ in 0..40 {
                let from = chance.usize(next + 1..done.len());
                let length = [1, 7, 300, 9_000, 20_000][chance.usize(..5)];
                let to = (from + length).min(done.len());
                let holes = chance.bool();
                (from..to)
                    .filter(|_| !holes || chance.bool())
                    .collect::<Vec<_>>()
                    .iter()
                    .for_each(|at| done[*at] = true);
                if chance.u8(..5) == 0 {
                    next = (chance.usize(next..done.len() - 2)..done.len()).find(|at| !done[*at]).unwrap_or(next);
                    done[next] = false;
                }
                let runs = in_runs(&done, next);
                save(&mut rows, &stored, &runs, next as u64);
                stored = runs;
            }
        }
    }

    #[test]
    fn a_save_of_a_million_writes_only_changed_pieces() {
        let mut rows = Rows::new();
        let before = [1..=1_000_000];
        let first = save(&mut rows, &[], &before, 0);
        assert_eq!(first.put.len(), 1_000_000 / 8192 + 1);
        assert!(first.put.iter().map(|(_, bits)| bits.len()).sum::<usize>() < 2 * 1024, "full pieces have no bytes");
        let next = save(&mut rows, &before, &[1..=1_000_000, 1_000_002..=1_004_000], 0);
        assert!(next.put.len() <= 2 && next.gone.is_empty(), "{:?}", next.put.len());
        let scattered: Vec<Run> = (0..500_000).map(|at| 2 * at + 1..=2 * at + 1).collect();
        let mut rows = Rows::new();
        save(&mut rows, &[], &scattered, 0);
        let more: Vec<Run> = (0..502_000).map(|at| 2 * at + 1..=2 * at + 1).collect();
        let bytes: usize = save(&mut rows, &scattered, &more, 0).put.iter().map(|(_, bits)| bits.len()).sum();
        assert!(bytes <= 2 * 1024, "{bytes}");
    }

    #[test]
    fn highest_indices_and_emptied_pieces_are_right() {
        let top = Index::MAX - 1;
        let mut rows = Rows::new();
        save(&mut rows, &[], &[top - 9_000..=top - 4, top..=top], 0);
        save(&mut rows, &[top - 9_000..=top - 4, top..=top], &[top..=top], 0);
        assert_eq!(rows.len(), 1);
        save(&mut rows, &[top..=top], &[], 0);
        assert!(rows.is_empty());
    }

    #[test]
    fn impossible_rows_are_named() {
        for (piece, bits) in [(-1, vec![1]), (i64::MAX, vec![1]), (3, vec![1; 1025])] {
            let read = runs([(piece, &bits[..])], 0);
            assert!(read.as_ref().is_err_and(|why| why.contains(&piece.to_string())), "{read:?}");
        }
    }
}
