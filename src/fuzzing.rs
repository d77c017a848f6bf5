//! What the fuzzers in `fuzz/` run: each takes any bytes whatever, and panics when a promise is broken.
//!
//! The bodies are here so that the ordinary tests run them too, briefly. Every string of bytes means something, so that one
//! which is changed a little means something a little different.

use crate::error::Error;
use crate::index::Index;
use crate::kv::batch::Batch;
use crate::kv::memory::MemoryKv;
use crate::kv::{Kv, prefix_end};
use crate::progress::Checkpoint;
use crate::progress::store::{LENGTH, VERSION, checksum, decode, encode, key};
use crate::store::{Durability, FORMAT, FORMAT_KEY, Store};
use crate::sync::Arc;
use crate::window::reference::{Choice, Trial, limits};
use std::collections::BTreeMap;

/// Choices of one trial at most: as many as the model, which counts in sets, gets through in a moment.
const MOST_CHOICES: usize = 400;

/// Rows of one table trial at most.
const MOST_ROWS: usize = 64;

/// The bytes that are not yet used. Behind the end there are zeros.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> u8 {
        self.next().unwrap_or_default()
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        core::array::from_fn(|_| self.byte())
    }

    /// As many bytes as the next one says, or as there are; mostly few, so that something is left for what comes after.
    fn some(&mut self) -> &'a [u8] {
        let length = match self.byte() {
            few @ 0..224 => few % 8,
            many => many,
        };
        let (some, rest) = self.0.split_at(usize::from(length).min(self.0.len()));
        self.0 = rest;
        some
    }

    /// A name, also one that is empty or too long: what is not UTF-8 grows to three times its length.
    fn name(&mut self) -> String {
        String::from_utf8_lossy(self.some()).into_owned()
    }
}

/// The bytes as a sequence of choices, for the window and for the naive model of it side by side.
///
/// # Panics
/// When the two differ, when one of the window's promises is broken, and when it stalls.
pub fn window(bytes: &[u8]) {
    let mut input = Input(bytes);
    let [first, processing, ahead, stop] = input.array().map(u64::from);
    let first = if first % 2 == 0 { first / 2 } else { Index::MAX - 1 - first / 2 };
    // Also a little below the first index.
    let stop_at = (stop % 2 == 1).then(|| first.saturating_add(stop).saturating_sub(5).min(Index::MAX - 1));
    let mut trial = Trial::new(first, limits(processing as u8, ahead as u8), stop_at);
    for _ in 0..MOST_CHOICES {
        let Some(choice) = choice(&mut input) else { break };
        trial.choose(choice);
    }
    trial.settle();
}

/// The next choice. Ends are rare, or nothing would ever happen.
fn choice(input: &mut Input<'_>) -> Option<Choice> {
    Some(match input.next()? {
        0..20 => Choice::Grow(input.byte()),
        20..24 => Choice::Shrink(input.byte()),
        24..50 => Choice::Fetched(input.byte()),
        50..54 => Choice::Missing(input.byte()),
        54..94 => Choice::Run(input.byte()),
        94..170 => Choice::Done(input.byte()),
        170..184 => Choice::Fail(input.byte()),
        184..198 => Choice::Due(input.byte()),
        198..222 => Choice::Saving,
        222..246 => Choice::Saved,
        246..249 => Choice::Limits(input.byte(), input.byte()),
        pause @ 249..252 => Choice::Pause(pause == 249),
        252..254 => Choice::Restart,
        254 => Choice::Stop,
        255 => Choice::Unsaved,
    })
}

/// The bytes as what a database holds: values that were never ours, values of ours that were damaged, and rows of tables.
///
/// # Panics
/// When a value is read that would not be written so, when damage that the checksum always shows is not refused, when a
/// refusal is not [`Error::Corrupt`] or changes what is stored, and when a row turns up that was not put, or one is lost.
pub fn stored(bytes: &[u8]) {
    let mut input = Input(bytes);
    match input.byte() % 4 {
        0 => foreign(&mut input),
        1 => damaged(&mut input),
        2 => database(&mut input),
        _ => tables(&mut input),
    }
}

/// What is read, if it is readable; what is readable is written just so.
fn read(name: &str, bytes: &[u8]) -> Option<Index> {
    let Checkpoint { last_processed } = decode(name, bytes).ok()?;
    assert_eq!(encode(name, Checkpoint::new(last_processed)), bytes, "what is read is written so");
    assert_ne!(last_processed, Index::MAX, "promise 8: a watermark that is no job");
    Some(last_processed)
}

/// A value that was never ours, behind the checksum that belongs to it.
fn foreign(input: &mut Input<'_>) {
    let (name, body) = (input.name(), input.0);
    read(&name, body);
    let sealed = [body, &checksum(&name, body)].concat();
    let want = match body {
        [VERSION, index @ ..] => <[u8; 8]>::try_from(index).ok().map(Index::from_be_bytes),
        _ => None,
    };
    assert_eq!(read(&name, &sealed), want.filter(|index| *index < Index::MAX), "promise 8");
}

/// A value of ours, damaged in ways that a CRC-32 always shows: no more than four bytes in a row are wrong, in what it covers
/// or in itself. (Wider damage passes once in four thousand million, and a fuzzer that solves equations finds that once.)
fn damaged(input: &mut Input<'_>) {
    let start: [u8; 4] = input.array().map(|byte| byte % 128);
    let tail = input.name();
    let named = |start: [u8; 4]| start.map(char::from).iter().collect::<String>() + &tail;
    let name = named(start);
    let index = Index::from_be_bytes(input.array());
    let whole = encode(&name, Checkpoint::new(index));
    let want = Some(index).filter(|index| *index < Index::MAX);
    assert_eq!(read(&name, &whole), want, "promise 8: what is written is read");

    let mut bent = whole.clone();
    let (body, sum) = bent.split_at_mut(LENGTH - 4);
    let at = usize::from(input.byte()) % LENGTH;
    let part = if at < body.len() { &mut body[at..] } else { sum };
    let width = 1 + usize::from(input.byte() % 4);
    part.iter_mut().zip(input.array::<4>()).take(width).for_each(|(byte, change)| *byte ^= change);
    assert_eq!(read(&name, &bent), want.filter(|_| bent == whole), "promise 8: a damaged value is refused");

    let other = named(input.array().map(|byte| byte % 128));
    assert_eq!(read(&other, &whole), want.filter(|_| other == name), "promise 8: it is another's value");

    let cut = usize::from(input.byte()) % (LENGTH + 1);
    let resized = [&whole[..cut], input.some()].concat();
    if resized.len() != LENGTH {
        assert_eq!(read(&name, &resized), None, "promise 8: a value of another length");
    }
}

/// A database that has anything at all where the format and a progress are kept.
fn database(input: &mut Input<'_>) {
    let name = input.name();
    let format = match input.byte() % 3 {
        0 => None,
        1 => Some(vec![FORMAT]),
        _ => Some(input.some().to_vec()),
    };
    let value = match input.byte() % 3 {
        0 => None,
        1 => Some(encode(&name, Checkpoint::new(Index::from_be_bytes(input.array())))),
        _ => Some(input.some().to_vec()),
    };
    let keys = [FORMAT_KEY.to_vec(), key(&name).concat()];
    let kv = Arc::new(MemoryKv::default());
    let [system, _] = kv.families();
    let mut batch = Batch::default();
    for (key, value) in keys.iter().zip([&format, &value]) {
        let Some(value) = value else { continue };
        batch.put(system.id, &[key], &[value]).expect("they are short");
    }
    kv.write(&batch, false).expect("the memory takes writes");
    let kept = || keys.each_ref().map(|key| kv.get(&system, key).expect("the memory is read"));

    let ours = format.as_ref().is_none_or(|format| *format == [FORMAT]);
    match Store::on(kv.clone(), Durability::Buffered) {
        Ok(store) => {
            assert!(ours, "promise 8: {format:?} is not known");
            load(&store, &name, value.as_deref());
            assert_eq!(kept(), [Some(vec![FORMAT]), value], "what is read is left as it was");
            forget(&store, &name);
        }
        Err(Error::Corrupt { name, .. }) => {
            assert!(!ours && name == "format", "{format:?} is known");
            assert_eq!(kept(), [format, value], "what is refused is left as it was");
        }
        Err(other) => panic!("{other:?}"),
    }
}

/// A progress with this stored value is what the value says, or refused with the reason.
fn load(store: &Store, name: &str, value: Option<&[u8]>) {
    let read = value.map(|value| decode(name, value));
    match store.progress(name).last_processed() {
        Ok(index) => assert_eq!(index.map(|index| Ok(Checkpoint::new(index))), read, "promise 8"),
        Err(Error::Corrupt { name: whose, reason }) => assert_eq!((whose.as_str(), Some(Err(reason))), (name, read)),
        Err(Error::Config(_)) => assert!(!fits(name)),
        Err(other) => panic!("{other:?}"),
    }
}

/// A progress can be removed whatever its value is.
fn forget(store: &Store, name: &str) {
    let removed = store.progress(name).remove();
    assert_eq!(removed.is_ok(), fits(name), "{removed:?}");
    let left = store.progress(name).last_processed();
    assert!(matches!(left, Ok(None)) || !fits(name), "{left:?}");
}

fn fits(name: &str) -> bool {
    (1..=255).contains(&name.len())
}

/// Rows that are put and deleted, and a model of them: tables share a key space, and must not see each other's rows.
fn tables(input: &mut Input<'_>) {
    let store = Store::in_memory();
    let mut model: BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>> = BTreeMap::new();
    for _ in 0..MOST_ROWS {
        let Some(what) = input.next() else { break };
        let (name, row) = (input.name(), input.some().to_vec());
        let table = store.table(&name);
        assert_eq!(table.is_ok(), fits(&name), "{table:?}");
        let Ok(table) = table else { continue };
        let rows = model.entry(name).or_default();
        let written = if what % 4 == 0 {
            rows.remove(&row);
            table.delete(&row)
        } else {
            let value = input.some();
            rows.insert(row.clone(), value.to_vec());
            table.put(&row, value)
        };
        written.expect("the memory takes writes");
        let got = table.get(&row).expect("the memory is read");
        assert_eq!(got.as_ref(), rows.get(&row));
    }
    let prefix = input.some();
    let end = prefix_end(prefix);
    for (name, rows) in &model {
        let table = store.table(name).expect("a name that was taken before");
        let all = table.iter().collect::<Result<BTreeMap<_, _>, _>>().expect("the memory is read");
        assert_eq!(all, *rows, "the rows of {name:?}");
        let some = table.prefix(prefix).collect::<Result<Vec<_>, _>>().expect("the memory is read");
        let want = rows.iter().filter(|(row, _)| row.starts_with(prefix));
        assert!(some.iter().map(|(row, value)| (row, value)).eq(want), "the rows of {name:?} under {prefix:?}");
        for row in rows.keys() {
            let between = row.as_slice() >= prefix && end.as_ref().is_none_or(|end| row < end);
            assert_eq!(row.starts_with(prefix), between, "{row:?} under {prefix:?}, which ends at {end:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_a_trial_of_the_window(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            window(&bytes);
        }

        #[test]
        fn any_bytes_are_stored_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            stored(&bytes);
        }
    }
}
