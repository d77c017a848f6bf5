//! The bodies of the fuzzers in `fuzz/`. Each takes any bytes, and panics if a promise is broken.
//!
//! They are here so that the ordinary tests run them briefly, too. All bytes are valid input, and a
//! small change of the bytes is a small change of the test.

use crate::base::{Error, Index, sync::Arc};
use crate::kv::{Kv, batch::Batch, memory::MemoryKv, prefix_end};
use crate::progress::format;
use crate::progress::said::{MOST_LISTED, Said, StoredKind};
use crate::store::{Store, format as of_store, keys};
use crate::window::reference::{Choice, Trial, limits};
use std::collections::{BTreeMap, BTreeSet};

pub use crate::store::disk::{Disk, DiskRecord};

/// The most choices of one trial: the model, which is made of sets, runs that many in a moment.
const MOST_CHOICES: usize = 400;

/// The most rows of one trial of tables.
const MOST_ROWS: usize = 64;

/// The input that is not yet used, followed by zeros without end.
#[derive(Debug)]
pub struct Input<'a>(pub &'a [u8]);

#[allow(missing_docs, clippy::should_implement_trait, reason = "only fuzzers use it")]
impl<'a> Input<'a> {
    pub fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub fn byte(&mut self) -> u8 {
        self.next().unwrap_or_default()
    }

    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        core::array::from_fn(|_| self.byte())
    }

    /// Takes as many bytes as the next byte says, or all that are left. Usually few, so that some
    /// are left for the next step.
    pub fn some(&mut self) -> &'a [u8] {
        let length = match self.byte() {
            few @ 0..224 => few % 8,
            many => many,
        };
        let (some, rest) = self.0.split_at(usize::from(length).min(self.0.len()));
        self.0 = rest;
        some
    }

    /// Takes a name, which may be empty or too long. A byte that is not UTF-8 becomes three bytes.
    pub fn name(&mut self) -> String {
        String::from_utf8_lossy(self.some()).into_owned()
    }
}

/// Runs the bytes as a sequence of choices, on the window and on its simple model.
///
/// # Panics
/// If the two differ, the window breaks one of its promises, or the window stalls.
pub fn window(bytes: &[u8]) {
    let mut input = Input(bytes);
    let [first, processing, ahead, stop] = input.array().map(u64::from);
    let first = if first % 2 == 0 { first / 2 } else { Index::MAX - 1 - first / 2 };
    // The index may be a little below the first one, too.
    let stop_at = (stop % 2 == 1).then(|| first.saturating_add(stop).saturating_sub(5).min(Index::MAX - 1));
    let mut trial = Trial::new(first, limits(processing as u8, ahead as u8), stop_at, processing >= 128);
    for _ in 0..MOST_CHOICES {
        let Some(choice) = choice(&mut input) else { break };
        trial.choose(choice);
    }
    trial.settle();
}

/// Returns the next choice. Ends are rare: a window that ends early tests nothing.
fn choice(input: &mut Input<'_>) -> Option<Choice> {
    Some(match input.next()? {
        0..12 => Choice::Grow(input.byte()),
        12..14 => Choice::Shrink(input.byte()),
        14..18 => Choice::Gate(input.byte()),
        18..28 => Choice::Fetched(input.byte()),
        28..34 => Choice::Behind(input.byte()),
        34..36 => Choice::Missing(input.byte()),
        36..38 => Choice::Unreadable(input.byte()),
        38..50 => Choice::Sparse(input.byte(), input.byte()),
        50..52 => Choice::Room(input.byte()),
        52..76 => Choice::Run(input.byte()),
        76..126 => Choice::Done(input.byte()),
        126..138 => Choice::InARow(input.byte(), input.byte()),
        138..148 => Choice::Fail(input.byte()),
        148..154 => Choice::Aside(input.byte()),
        154..160 => Choice::TakeUp,
        160..166 => Choice::Due(input.byte()),
        166..170 => Choice::Ready(input.byte()),
        170..176 => Choice::Readable,
        176..180 => Choice::Park(input.byte()),
        180..184 => Choice::Redrive(input.byte()),
        184..186 => Choice::Withdraw(input.byte()),
        186 => Choice::Alone(input.byte()),
        187 => Choice::BehindAgain(input.byte()),
        188..192 => Choice::Together,
        192..194 => Choice::PutBack(input.byte()),
        194..212 => Choice::Saving,
        212..230 => Choice::Saved,
        230..238 => Choice::Revoke(input.byte()),
        238..242 => Choice::Limits(input.byte(), input.byte()),
        pause @ 242..246 => Choice::Pause(pause == 242),
        full @ 246..248 => Choice::Full(full == 246),
        crowded @ 248..250 => Choice::Crowded(crowded == 248),
        250..254 => Choice::RestartKnowing(input.byte()),
        254..=255 => match input.byte() {
            0..16 => Choice::StopAt(input.byte()),
            16..32 => Choice::Stop,
            32..48 => Choice::SaveAbandoned,
            48..=255 => Choice::Restart,
        },
    })
}

/// Reads the bytes as the content of a database: foreign or damaged values, and rows of tables.
///
/// # Panics
/// If a value is read that would be written differently; if damage that the checksum always shows
/// is not refused; if a refusal is neither [`Error::Corrupt`] nor [`Error::Format`], or changes the
/// database; and if a row appears that was not put, or one is lost.
pub fn stored(bytes: &[u8]) {
    let mut input = Input(bytes);
    match input.byte() % 4 {
        0 => foreign(&mut input),
        1 => damaged(&mut input),
        2 => database(&mut input),
        _ => tables(&mut input),
    }
}

impl StoredKind {
    fn of(input: &mut Input<'_>) -> Self {
        let slot = u32::from(input.byte());
        if slot % 2 == 0 {
            StoredKind::Page
        } else {
            StoredKind::Delta { slot, page_next: Index::from_be_bytes(input.array()) / 2 }
        }
    }

    /// Invents the content of a value.
    fn say(self, input: &mut Input<'_>) -> Said {
        let index = Index::from_be_bytes(input.array());
        let next = match self {
            StoredKind::Page => index.min(Index::MAX - 1),
            StoredKind::Delta { page_next, .. } => page_next + index / 2,
        };
        let mut done = Vec::new();
        let mut low = next;
        for by in input.some() {
            low = low.saturating_add(1 + u64::from(*by) % 90);
            done.extend((low < Index::MAX).then_some(low));
        }
        let last_processed = next.checked_sub(1).filter(|last| last % 3 > 0 && matches!(self, StoredKind::Page));
        Said { last_processed, next, done }
    }
}

/// Checks a foreign value with a matching checksum. If it can be read, writing it must give the
/// same bytes.
fn foreign(input: &mut Input<'_>) {
    let (kind, name, body) = (StoredKind::of(input), input.name(), input.0);
    let sealed = [body, &kind.checksum(&name, body)].concat();
    for bytes in [body, &sealed] {
        if let Some(said) = kind.read(&name, bytes)
            && said.done.last().is_none_or(|last| last - said.next < MOST_LISTED as u64)
        {
            assert_eq!(kind.read(&name, &kind.write(&name, &said)), Some(said), "promise 8");
        }
    }
}

/// Damages one of our values in ways that a CRC-32 always detects: at most four bytes in a row, in
/// the content or in the checksum. (Wider damage goes undetected once in four thousand million
/// times, and a fuzzer that solves equations finds that case.)
fn damaged(input: &mut Input<'_>) {
    let start: [u8; 4] = input.array().map(|byte| byte % 128);
    let tail = input.name();
    let named = |start: [u8; 4]| start.map(char::from).iter().collect::<String>() + &tail;
    let (name, kind) = (named(start), StoredKind::of(input));
    let said = kind.say(input);
    let whole = kind.write(&name, &said);
    assert_eq!(kind.read(&name, &whole).as_ref(), Some(&said), "promise 8: what is written is read");

    let mut bent = whole.clone();
    let (body, sum) = bent.split_at_mut(whole.len() - 4);
    let at = usize::from(input.byte()) % whole.len();
    let part = if at < body.len() { &mut body[at..] } else { sum };
    let width = 1 + usize::from(input.byte() % 4);
    part.iter_mut().zip(input.array::<4>()).take(width).for_each(|(byte, change)| *byte ^= change);
    let want = (bent == whole).then_some(&said);
    assert_eq!(kind.read(&name, &bent).as_ref(), want, "promise 8: a damaged value is refused");

    let other = named(input.array().map(|byte| byte % 128));
    let want = (other == name).then_some(&said);
    assert_eq!(kind.read(&other, &whole).as_ref(), want, "promise 8: it is another's value");

    let cut = usize::from(input.byte()) % whole.len();
    assert_eq!(kind.read(&name, &whole[..cut]), None, "promise 8: a value that is cut off");
}

/// Puts arbitrary bytes into a database under the keys of the format and of a progress.
fn database(input: &mut Input<'_>) {
    let name = input.name();
    let present = of_store::encode(&BTreeSet::new());
    let format = match input.byte() % 4 {
        0 => None,
        1 => Some(present.clone()),
        2 => Some(input.some().to_vec()),
        _ => {
            let mut record = input.some().to_vec();
            of_store::SEAL.close("", &[], &mut record);
            Some(record)
        }
    };
    let value = match input.byte() % 3 {
        0 => None,
        1 => Some(StoredKind::Page.write(&name, &StoredKind::Page.say(input))),
        _ => Some(input.some().to_vec()),
    };
    let keys = [keys::FORMAT.to_vec(), format::page_key(&name)];
    let kv = Arc::new(MemoryKv::default());
    let [system, ..] = kv.families();
    let mut batch = Batch::default();
    for (key, value) in keys.iter().zip([&format, &value]) {
        let Some(value) = value else { continue };
        batch.put(system.id, &[key], &[value]).expect("they are short");
    }
    kv.write(&batch, false).expect("the memory takes writes");
    let kept = || keys.each_ref().map(|key| kv.get(&system, key).expect("the memory is read"));

    let ours = format.as_ref().is_none_or(|format| *format == present);
    match Store::on(kv.clone(), &Store::options(), &"memory") {
        Ok(store) => {
            assert!(ours, "promise 8: {format:?} is not known");
            load(&store, &name, value.as_deref());
            assert_eq!(kept(), [Some(present), value], "a format is made, and a progress is left as it was");
            forget(&store, &name);
        }
        Err(error) => {
            let refused = match &error {
                Error::Corrupt { name, .. } => name == "format",
                Error::Format { .. } => true,
                _ => false,
            };
            assert!(refused && !ours, "{format:?}: {error:?}");
            assert_eq!(kept(), [format, value], "what is refused is left as it was");
        }
    }
}

/// Loads a progress with this stored value, which must be decoded or refused for the right reason.
fn load(store: &Store, name: &str, value: Option<&[u8]>) {
    let read = value.map(|value| format::decode_page(name, value).map(|page| page.last_processed));
    match store.progress(name).last_processed() {
        Ok(index) => assert_eq!(Ok(index), read.unwrap_or(Ok(None)), "promise 8"),
        Err(Error::Corrupt { name: whose, reason }) => assert_eq!((whose.as_str(), Some(Err(reason))), (name, read)),
        Err(Error::Config(_)) => assert!(!fits(name)),
        Err(other) => panic!("{other:?}"),
    }
}

fn forget(store: &Store, name: &str) {
    let removed = store.progress(name).remove();
    assert_eq!(removed.is_ok(), fits(name), "{removed:?}");
    let left = store.progress(name).last_processed();
    assert!(matches!(left, Ok(None)) || !fits(name), "{left:?}");
}

fn fits(name: &str) -> bool {
    (1..=255).contains(&name.len())
}

/// Puts and deletes rows, and compares them with a model. Tables that share keys must stay apart.
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
        fn the_window_agrees_with_a_model_of_sets(bytes in proptest::collection::vec(any::<u8>(), 0..800)) {
            window(&bytes);
        }

        #[test]
        fn any_bytes_are_stored_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            stored(&bytes);
        }
    }
}
