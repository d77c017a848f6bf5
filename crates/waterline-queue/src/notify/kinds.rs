//! Which kinds were pushed, and which of them the runner has handlers for.

use crate::types::events::{Fate, Line};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// How many kinds without a handler are kept. A program has fewer, unless it makes up kinds.
const MOST: usize = 64;

/// The kinds of a queue, since it was opened.
#[derive(Default)]
pub(crate) struct Kinds(RwLock<Known>);

#[derive(Default)]
struct Known {
    all: HashMap<String, SeenKind>,
    /// What happens to a job that the runner has no handler for. `None`: there is no runner.
    unknown: Option<Fate>,
    /// True if there is no room for another kind without a handler.
    is_full: bool,
}

struct SeenKind {
    is_handled: bool,
    is_pushed: AtomicBool,
}

impl Kinds {
    /// Notes that a job of this kind is pushed. Returns true if it is known, or there is no room.
    pub(crate) fn has(&self, kind: &str) -> bool {
        let known = self.0.read();
        let Some(kind) = known.all.get(kind) else { return known.is_full };
        // A write would take the cache line from the other threads that push.
        if !kind.is_pushed.load(Ordering::Relaxed) {
            kind.is_pushed.store(true, Ordering::Relaxed);
        }
        true
    }

    /// Notes the first push of a kind. Returns the line to log if the runner has no handler for it.
    pub(crate) fn add(&self, kind: &str) -> Option<Line> {
        let mut known = self.0.write();
        if known.is_full || known.all.contains_key(kind) {
            // Another thread was faster.
            return None;
        }
        known.all.insert(kind.to_owned(), SeenKind { is_handled: false, is_pushed: AtomicBool::new(true) });
        known.count();
        known.unknown.map(|fate| Line::Unhandled { kind: kind.to_owned(), fate })
    }

    /// Notes the kinds that the runner has handlers for. Returns a line per other pushed kind.
    pub(crate) fn begin<'a>(&self, handled: impl Iterator<Item = &'a String>, fate: Fate) -> Vec<Line> {
        let mut known = self.0.write();
        for kind in handled {
            match known.all.get_mut(kind) {
                Some(kind) => kind.is_handled = true,
                None => {
                    let new = SeenKind { is_handled: true, is_pushed: AtomicBool::new(false) };
                    known.all.insert(kind.to_owned(), new);
                }
            }
        }
        known.unknown = Some(fate);
        known.count();
        known.unhandled().into_iter().map(|kind| Line::Unhandled { kind, fate }).collect()
    }

    /// Forgets the runner. Its kinds that were pushed stay, if there is room.
    pub(crate) fn end(&self) {
        let mut known = self.0.write();
        let mut room = MOST.saturating_sub(known.count());
        known.all.retain(|_, kind| {
            let was_handled = std::mem::replace(&mut kind.is_handled, false);
            let stays = !was_handled || (room > 0 && kind.is_pushed.load(Ordering::Relaxed));
            room -= usize::from(was_handled && stays);
            stays
        });
        known.unknown = None;
        known.count();
    }

    pub(crate) fn is_handled(&self, kind: &str) -> bool {
        self.0.read().all.get(kind).is_some_and(|kind| kind.is_handled)
    }

    /// Returns the pushed kinds that the runner has no handler for; none if there is no runner.
    pub(crate) fn unhandled(&self) -> Vec<String> {
        let known = self.0.read();
        if known.unknown.is_some() { known.unhandled() } else { Vec::new() }
    }
}

impl Known {
    /// Counts the kinds without a handler.
    fn count(&mut self) -> usize {
        let count = self.all.values().filter(|kind| !kind.is_handled).count();
        self.is_full = count >= MOST;
        count
    }

    fn unhandled(&self) -> Vec<String> {
        let kinds = self.all.iter().filter(|(_, kind)| !kind.is_handled);
        let mut kinds: Vec<_> = kinds.map(|(kind, _)| kind.clone()).collect();
        kinds.sort_unstable();
        kinds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(kinds: &Kinds, handled: &[&str]) -> usize {
        kinds.begin(handled.iter().map(ToString::to_string).collect::<Vec<_>>().iter(), Fate::Dead).len()
    }

    fn push(kinds: &Kinds, kind: &str) -> bool {
        !kinds.has(kind) && kinds.add(kind).is_some()
    }

    #[test]
    fn an_unhandled_kind_is_logged_once_per_runner() {
        let kinds = Kinds::default();
        assert!(!push(&kinds, "a") && !push(&kinds, "b"), "there is no runner");
        assert_eq!(begin(&kinds, &["b", "c"]), 1);
        assert_eq!(kinds.unhandled(), ["a"]);
        let told: Vec<_> = ["a", "b", "c", "d", "d"].map(|kind| push(&kinds, kind)).into();
        assert_eq!((told, kinds.unhandled()), (vec![false, false, false, true, false], vec!["a".into(), "d".into()]));
        kinds.end();
        assert!(kinds.unhandled().is_empty());
        // A kind that was pushed while it had a handler is known to the next runner.
        assert_eq!(begin(&kinds, &["a", "x"]), 3);
        assert_eq!(kinds.unhandled(), ["b", "c", "d"]);
        kinds.end();
        begin(&kinds, &["a"]);
        assert_eq!(kinds.unhandled(), ["b", "c", "d"], "nobody has pushed the kind x");
    }

    #[test]
    fn unhandled_kinds_are_bounded_and_handled_ones_kept() {
        let (kinds, many) = (Kinds::default(), (0..200).map(|n| format!("k{n:03}")).collect::<Vec<_>>());
        assert!(many.iter().all(|kind| !push(&kinds, kind)), "there is no runner");
        assert_eq!(kinds.begin(many[..100].iter(), Fate::Dead).len(), 0, "they have handlers");
        assert!(push(&kinds, "other") && kinds.has("k000") && kinds.has("k099"));
        assert_eq!(many[100..].iter().filter(|kind| push(&kinds, kind)).count(), MOST - 1);
        assert_eq!(kinds.unhandled().len(), MOST);
        kinds.end();
        assert_eq!(begin(&kinds, &[]), MOST);
    }
}
