//! The prefixes of tables that have been replaced. A table takes the name of another one when it
//! gets that name's place here: no row moves.
//!
//! A name that is not in the list has a prefix that follows from the name alone. Each replacement
//! makes a new *generation*. Changes that wait for the writer carry the generation of the prefixes
//! in their keys, and the writer renews those of an earlier one. So none of them ends among rows
//! that are being deleted, or in a table that has another name by then.

use crate::base::sync::{Arc, AtomicU64, Ordering, RwLock};
use crate::kv::batch::FamilyId;
use std::collections::HashMap;

/// The generation of a store without a replaced table. 0 is that of changes without a table's row.
pub(crate) const FIRST: u64 = 1;

/// Where the tables are. All handles of a store share it.
#[derive(Debug)]
pub(crate) struct Prefixes {
    /// Changes only with `places` locked, and, beside a writer, with the rows locked, too.
    generation: AtomicU64,
    places: RwLock<Places>,
}

#[derive(Debug, Default)]
struct Places {
    /// The prefixes of the names that have taken part in a replacement.
    now: HashMap<String, Arc<[u8]>>,
    /// The places that names of this process have left, in order.
    left: Vec<Left>,
    /// Names whose places cannot be read, and why.
    unreadable: HashMap<String, String>,
}

/// A place that a name has left.
#[derive(Debug)]
struct Left {
    /// The first generation in which the name is elsewhere.
    by: u64,
    family: FamilyId,
    prefix: Arc<[u8]>,
    name: String,
}

/// The places as they are stored.
#[derive(Default)]
pub(crate) struct Stored {
    pub(crate) places: HashMap<String, Arc<[u8]>>,
    pub(crate) unreadable: HashMap<String, String>,
}

/// A name that gets another prefix.
#[derive(Clone, Debug)]
pub(crate) struct Moved {
    pub(crate) name: String,
    pub(crate) from: Arc<[u8]>,
    pub(crate) to: Arc<[u8]>,
}

impl Default for Prefixes {
    fn default() -> Self {
        Self { generation: AtomicU64::new(FIRST), places: RwLock::default() }
    }
}

impl Prefixes {
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the prefix of a name that has been replaced, and the generation of this answer.
    pub(crate) fn of(&self, name: &str) -> (Option<Arc<[u8]>>, u64) {
        let places = self.places.read();
        (places.now.get(name).cloned(), self.generation())
    }

    /// Returns all of these names with their prefixes.
    pub(crate) fn all(&self) -> (HashMap<String, Arc<[u8]>>, u64) {
        let places = self.places.read();
        (places.now.clone(), self.generation())
    }

    /// Returns why the place of this name cannot be read, if that is so.
    pub(crate) fn why_unreadable(&self, name: &str) -> Option<String> {
        self.places.read().unreadable.get(name).cloned()
    }

    /// Takes over what is stored: when the store is opened, and later if another process writes it.
    pub(crate) fn load(&self, stored: Stored, generation: u64) {
        let mut places = self.places.write();
        if generation >= self.generation() {
            (places.now, places.unreadable) = (stored.places, stored.unreadable);
            self.generation.store(generation, Ordering::Release);
        }
    }

    /// Gives names other prefixes, all at the same moment. The caller has written that, and keeps
    /// all writers out.
    pub(crate) fn replace(&self, family: FamilyId, moved: Vec<Moved>) {
        let mut places = self.places.write();
        let by = self.generation() + 1;
        for Moved { name, from, to } in moved {
            places.left.push(Left { by, family, prefix: from, name: name.clone() });
            places.now.insert(name, to);
        }
        self.generation.store(by, Ordering::Release);
    }

    /// Calls this with the generation, and with a look-up for keys of an earlier one. It returns
    /// the length of the prefix of a key, and where its table is now, if that is elsewhere.
    pub(super) fn since<R>(&self, earlier: u64, run: impl FnOnce(u64, Look<'_>) -> R) -> R {
        let places = self.places.read();
        run(self.generation(), &|family, key| places.since(earlier, family, key))
    }
}

/// Looks up where a key of an earlier generation is now.
pub(super) type Look<'p> = &'p dyn Fn(FamilyId, &[u8]) -> Option<(usize, &'p [u8])>;

impl Places {
    /// Returns the length of the prefix of a key that was right in this generation, and the prefix
    /// that its table has now; `None` if that is the same. No prefix begins with another one.
    fn since(&self, generation: u64, family: FamilyId, key: &[u8]) -> Option<(usize, &[u8])> {
        let is_it = |left: &&Left| left.by > generation && left.family == family && key.starts_with(&left.prefix);
        let left = self.left.iter().find(is_it)?;
        Some((left.prefix.len(), self.now.get(&left.name)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::changes::Changes;
    use crate::kv::Family;
    use crate::kv::batch::RowChange;

    fn place(prefix: &str) -> Arc<[u8]> {
        prefix.as_bytes().into()
    }

    /// Moves the first to the second, whose rows go.
    fn replace(prefixes: &Prefixes, family: FamilyId, [from, to]: [&str; 2], fresh: &str) {
        let now = |name: &str| prefixes.of(name).0.unwrap_or_else(|| place(name));
        let moved = [(to, now(to), now(from)), (from, now(from), place(fresh))];
        let moved = moved.map(|(name, from, to)| Moved { name: name.to_owned(), from, to });
        prefixes.replace(family, moved.into());
    }

    fn keys(changes: &Changes) -> Vec<String> {
        let text = |key: &[u8]| String::from_utf8(key.to_vec()).unwrap();
        let record = |record: RowChange<'_>| match record {
            RowChange::Put { key, .. } | RowChange::Delete { key, .. } => text(key),
            RowChange::DeleteRange { from, to, .. } => text(from) + "-" + &text(to),
        };
        let adds = changes.adds().map(|add| text(add.key) + "+");
        changes.records().records().map(record).chain(adds).collect()
    }

    #[test]
    fn changes_of_an_earlier_generation_follow_their_tables() {
        let (ours, other) = (Family::new("f", FamilyId(2)), Family::new("other", FamilyId(3)));
        let prefixes = Prefixes::default();
        let changes = |tables: &[&str]| {
            let mut changes = Changes::default();
            for name in tables {
                let (prefix, generation) = prefixes.of(name);
                let prefix = prefix.unwrap_or_else(|| place(name));
                assert!(changes.is_in(generation));
                changes.put(ours.id, &[&prefix, b".put"], b"").unwrap();
                changes.add((&ours, &(*name).into()), [&prefix, b".add"], 1);
                changes.delete(ours.id, &[&prefix, b".gone"]).unwrap();
                changes.clear_prefix(&ours, &prefix).unwrap();
            }
            changes
        };
        let first = changes(&["a", "b", "c"]);
        assert!(!first.are_behind(&prefixes));
        replace(&prefixes, ours.id, ["a", "b"], "1");
        let second = changes(&["a", "b"]);
        replace(&prefixes, ours.id, ["a", "b"], "2");
        replace(&prefixes, ours.id, ["b", "c"], "3");
        assert!(first.are_behind(&prefixes) && second.are_behind(&prefixes));
        let now: Vec<_> = ["a", "b", "c"].map(|name| prefixes.of(name).0.unwrap()).into();
        assert_eq!(now, [place("2"), place("3"), place("1")]);
        let each = |table: &str, next: &str| {
            [format!("{table}.put"), format!("{table}.gone"), format!("{table}-{next}")].to_vec()
        };
        let of = |tables: &[(&str, &str)]| {
            let records = tables.iter().flat_map(|(table, next)| each(table, next));
            records.chain(tables.iter().map(|(table, _)| format!("{table}.add+"))).collect::<Vec<_>>()
        };
        let renewed = first.renewed(&prefixes).unwrap();
        assert_eq!(keys(&renewed), of(&[("2", "3"), ("3", "4"), ("1", "2")]));
        assert_eq!(keys(&second.renewed(&prefixes).unwrap()), of(&[("2", "3"), ("3", "4")]));
        assert!(!renewed.are_behind(&prefixes));
        // Records of other families, and of no table, stay.
        let mut others = Changes::default();
        others.put(other.id, &[b"a.put"], b"").unwrap();
        assert!(!others.are_behind(&prefixes));
        assert!(others.is_in(FIRST) && others.are_behind(&prefixes));
        assert_eq!(keys(&others.renewed(&prefixes).unwrap()), ["a.put"]);
    }
}
