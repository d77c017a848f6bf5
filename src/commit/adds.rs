//! Additions to counters, until the batch is made: a list without an allocation or a shared pointer
//! for each, since many jobs add to something and another thread frees what they have asked for.

use crate::base::sync::Arc;
use crate::kv::Family;
use std::ops::Range;

/// Additions in their order.
#[derive(Clone, Debug, Default)]
pub(super) struct AddList {
    entries: Vec<Entry>,
    /// The keys of all entries, one behind the other.
    keys: Vec<u8>,
    /// The tables of the counters. One may be there twice.
    tables: Vec<Counters>,
}

/// One addition.
#[derive(Clone, Copy, Debug)]
struct Entry {
    after: u32,
    /// The place of its table in the list.
    table: u32,
    /// The end of its key. It begins where that of the entry before it ends.
    end: usize,
    by: i64,
}

/// A table that has counters.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    pub(crate) family: Family,
    /// The table's name, and the length of the table's part of the key: an error names both if the
    /// value is no counter.
    pub(crate) table: Arc<str>,
    pub(crate) prefix: usize,
}

/// An addition to a counter. The sum is made when the batch is made, since the current value is
/// known only then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Add<'a> {
    /// The number of records before it.
    pub(crate) after: u32,
    pub(crate) counters: &'a Counters,
    /// The key in the family.
    pub(crate) key: &'a [u8],
    pub(crate) by: i64,
}

impl Add<'_> {
    /// The memory that an addition with a key of so many bytes takes, about.
    pub(crate) fn size(key: usize) -> usize {
        size_of::<Entry>() + key
    }
}

/// The number of tables among which a search looks. Few jobs add to the counters of more tables.
const FEW: usize = 8;

impl AddList {
    /// Adds to a counter under the table's part of the key and the user's part.
    pub(super) fn push(&mut self, after: u32, (family, table): (&Family, &Arc<str>), key: [&[u8]; 2], by: i64) {
        let is_it = |known: &Counters| {
            let is_named_so = Arc::ptr_eq(&known.table, table) || known.table == *table;
            is_named_so && known.family.id == family.id && known.prefix == key[0].len()
        };
        let table = self.find(is_it).unwrap_or_else(|| {
            self.tables.push(Counters { family: family.clone(), table: table.clone(), prefix: key[0].len() });
            self.tables.len() as u32 - 1
        });
        key.iter().for_each(|part| self.keys.extend_from_slice(part));
        self.entries.push(Entry { after, table, end: self.keys.len(), by });
    }

    /// Returns the place of a table among those that came last.
    fn find(&self, is_it: impl Fn(&Counters) -> bool) -> Option<u32> {
        let found = self.tables.iter().enumerate().rev().take(FEW).find(|(_, known)| is_it(known));
        found.map(|(place, _)| place as u32)
    }

    /// Moves other additions to the end of these, behind so many more records.
    pub(super) fn append(&mut self, more: &mut AddList, records: u32) {
        let mut last = None;
        let mut from = 0;
        for entry in more.entries.drain(..) {
            let own = &more.tables[entry.table as usize];
            let key = &more.keys[std::mem::replace(&mut from, entry.end)..entry.end];
            match last {
                Some((place, table)) if place == entry.table => {
                    self.keys.extend_from_slice(key);
                    let end = self.keys.len();
                    self.entries.push(Entry { after: records + entry.after, table, end, by: entry.by });
                }
                _ => {
                    let (prefix, rest) = key.split_at(own.prefix);
                    self.push(records + entry.after, (&own.family, &own.table), [prefix, rest], entry.by);
                    last = self.entries.last().map(|new| (entry.table, new.table));
                }
            }
        }
        more.clear();
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the additions of these numbers.
    pub(super) fn of(&self, numbers: Range<usize>) -> impl Iterator<Item = Add<'_>> {
        let mut from = numbers.start.checked_sub(1).map_or(0, |before| self.entries[before].end);
        self.entries[numbers].iter().map(move |entry| Add {
            after: entry.after,
            counters: &self.tables[entry.table as usize],
            key: &self.keys[std::mem::replace(&mut from, entry.end)..entry.end],
            by: entry.by,
        })
    }

    /// Keeps the additions whose numbers, counted from 0, are to be kept. `shift` says how many
    /// records are before one of them from now on.
    pub(super) fn retain(&mut self, keep: impl Fn(u32) -> bool, shift: impl Fn(u32) -> u32) {
        let (mut number, mut from, mut end) = (0.., 0, 0);
        self.entries.retain_mut(|entry| {
            let key = std::mem::replace(&mut from, entry.end)..entry.end;
            let kept = number.next().is_some_and(&keep);
            if kept {
                self.keys.copy_within(key.clone(), end);
                end += key.len();
                (entry.after, entry.end) = (shift(entry.after), end);
            }
            kept
        });
        self.keys.truncate(end);
    }

    /// Returns the bytes that the additions take, about.
    pub(super) fn size(&self) -> usize {
        self.entries.len() * Add::size(0) + self.keys.len()
    }

    /// Empties it, and keeps its memory, also of the tables: the next job mostly counts there too.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.keys.clear();
        if self.tables.len() > FEW {
            self.tables.clear();
        }
    }
}
