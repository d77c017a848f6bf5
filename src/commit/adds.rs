//! Additions to counters, until the batch is made: a list without an allocation or a shared pointer
//! per entry, since many jobs count something and another thread frees their changes.

use crate::base::sync::Arc;
use crate::commit::prefixes::Look;
use crate::kv::Family;
use std::ops::Range;

#[derive(Clone, Debug, Default)]
pub(super) struct AddList {
    entries: Vec<Entry>,
    /// The keys of all entries, concatenated.
    keys: Vec<u8>,
    /// The tables of the counters, which may repeat.
    tables: Vec<Counters>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    after: u32,
    /// The position of its table in the list.
    table: u32,
    /// The end of its key, which begins at the end of the previous one.
    end: usize,
    by: i64,
}

/// A table that has counters.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    pub(crate) family: Family,
    /// The table's name, and the length of its part of the key: an error names both.
    pub(crate) table: Arc<str>,
    pub(crate) prefix: usize,
}

/// An addition to a counter. The sum is formed in the batch: only then is the value known.
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
    /// The approximate memory of an addition whose key has this length.
    pub(crate) fn size(key: usize) -> usize {
        size_of::<Entry>() + key
    }
}

/// How many of the latest tables a search covers. Few jobs count in more.
const FEW: usize = 8;

impl AddList {
    /// Adds to the counter whose key is the table's part and the user's part.
    pub(super) fn push(&mut self, after: u32, (family, table): (&Family, &Arc<str>), key: [&[u8]; 2], by: i64) {
        let is_it = |known: &Counters| {
            let is_named_so = Arc::ptr_eq(&known.table, table) || known.table == *table;
            is_named_so && known.family.id == family.id && known.prefix == key[0].len()
        };
        let known = self.tables.iter().enumerate().rev().take(FEW).find(|(_, known)| is_it(known));
        let table = known.map(|(place, _)| place as u32).unwrap_or_else(|| {
            self.tables.push(Counters { family: family.clone(), table: table.clone(), prefix: key[0].len() });
            self.tables.len() as u32 - 1
        });
        key.iter().for_each(|part| self.keys.extend_from_slice(part));
        self.entries.push(Entry { after, table, end: self.keys.len(), by });
    }

    /// Moves all of `more` to the end, after this many records.
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

    /// Returns the same additions in the tables of now.
    pub(super) fn in_places(&self, now: Look<'_>) -> Self {
        let mut moved = Self::default();
        for Add { after, counters, key, by } in self.of(0..self.len()) {
            let (prefix, rest) = key.split_at(counters.prefix);
            let prefix = now(counters.family.id, key).map_or(prefix, |(_, prefix)| prefix);
            moved.push(after, (&counters.family, &counters.table), [prefix, rest], by);
        }
        moved
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn of(&self, numbers: Range<usize>) -> impl Iterator<Item = Add<'_>> {
        let mut from = numbers.start.checked_sub(1).map_or(0, |before| self.entries[before].end);
        self.entries[numbers].iter().map(move |entry| Add {
            after: entry.after,
            counters: &self.tables[entry.table as usize],
            key: &self.keys[std::mem::replace(&mut from, entry.end)..entry.end],
            by: entry.by,
        })
    }

    /// Keeps the additions for whose number, counted from 0, `keep` returns true. `shift` returns
    /// the new number of records before each.
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

    /// Returns the approximate memory of the additions.
    pub(super) fn size(&self) -> usize {
        self.entries.len() * Add::size(0) + self.keys.len()
    }

    /// Removes all additions, and keeps the capacity and the tables: the next job reuses them.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.keys.clear();
        if self.tables.len() > FEW {
            self.tables.clear();
        }
    }
}
