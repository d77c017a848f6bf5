//! Reads through an unwritten batch, compared with reads after it is written.

use super::*;
use crate::commit::statements::Manner;
use crate::kv::memory::MemoryKv;
use proptest::prelude::*;

/// One step on one of a few short keys.
#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u8>, u8),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
    /// A record of a family that is not read.
    Elsewhere(Vec<u8>),
    /// A read, which updates the index.
    Look,
    Mark,
    GoBack,
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(b'a'..=b'c', 0..3)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (key(), any::<u8>()).prop_map(|(key, value)| Step::Put(key, value)),
        2 => key().prop_map(Step::Delete),
        1 => (key(), key()).prop_map(|(from, to)| Step::DeleteRange(from.clone().min(to.clone()), from.max(to))),
        1 => key().prop_map(Step::Elsewhere),
        2 => Just(Step::Look),
        1 => Just(Step::Mark),
        1 => Just(Step::GoBack),
    ]
}

fn run(overlay: &mut Overlay<'_>, [family, other]: [&Family; 2], steps: &[Step]) {
    let mut marks = Vec::new();
    for step in steps {
        match step {
            Step::Put(key, value) => overlay.put(family.id, &[key], &[&[*value]]).unwrap(),
            Step::Delete(key) => overlay.delete(family.id, &[key]).unwrap(),
            Step::DeleteRange(from, to) => overlay.delete_range(family.id, from, to).unwrap(),
            Step::Elsewhere(key) => overlay.put(other.id, &[key], &[b"elsewhere"]).unwrap(),
            Step::Look => drop(overlay.get(family, b"a").unwrap()),
            Step::Mark => marks.push(overlay.mark()),
            Step::GoBack => {
                if let Some(mark) = marks.pop() {
                    overlay.go_back(mark);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn a_read_finds_what_the_batch_will_leave(
        stored in proptest::collection::vec(step(), 0..8),
        steps in proptest::collection::vec(step(), 0..24),
        prefix in key(),
    ) {
        let kv = MemoryKv::default();
        let ([family, other, _], rows) = (kv.families(), RwLock::default());
        let mut before = Overlay::new(&kv, &rows, Manner::default());
        run(&mut before, [&family, &other], &stored);
        kv.write(before.batch(), false).unwrap();
        let mut overlay = Overlay::new(&kv, &rows, Manner::default());
        run(&mut overlay, [&family, &other], &steps);
        let scanned: Vec<_> = overlay.scan(&family, &prefix).map(Result::unwrap).collect();
        let got = overlay.get(&family, &prefix).unwrap();
        kv.write(overlay.batch(), false).unwrap();
        prop_assert_eq!(scanned, kv.scan(&family, &prefix).map(Result::unwrap).collect::<Vec<_>>());
        prop_assert_eq!(got, kv.get(&family, &prefix).unwrap());
    }
}

#[test]
fn only_reads_index_the_batch_and_only_once() {
    let kv = MemoryKv::default();
    let ([family, other, _], rows) = (kv.families(), RwLock::default());
    let mut overlay = Overlay::new(&kv, &rows, Manner::default());
    (0..100u8).for_each(|key| overlay.put(other.id, &[&[key]], &[b"v"]).unwrap());
    assert!(overlay.read.is_empty());
    for key in 0..100u8 {
        assert_eq!(overlay.get(&family, &[key]).unwrap(), None);
        overlay.put(family.id, &[&[key]], &[b"v"]).unwrap();
        assert_eq!(overlay.get(&family, &[key]).unwrap().as_deref(), Some(b"v".as_slice()));
        assert_eq!((overlay.read.len(), overlay.read[0].1.until), (1, overlay.batch().len()));
    }
    assert_eq!(overlay.read[0].1.keys.len(), 100, "those of the other family are not kept");
}
