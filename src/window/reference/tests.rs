//! Compares the window with its model, for any choices and for those that once found a bug.

use super::*;
use crate::window::Run;
use proptest::prelude::*;

fn choice() -> impl Strategy<Value = Choice> {
    let n = any::<u8>;
    prop_oneof![
        6 => n().prop_map(Choice::Grow),
        1 => n().prop_map(Choice::Shrink),
        2 => n().prop_map(Choice::Gate),
        8 => n().prop_map(Choice::Fetched),
        1 => n().prop_map(Choice::Missing),
        1 => n().prop_map(Choice::Unreadable),
        6 => (n(), n()).prop_map(|(seed, last)| Choice::Sparse(seed, last)),
        1 => n().prop_map(Choice::Room),
        12 => n().prop_map(Choice::Run),
        24 => n().prop_map(Choice::Done),
        6 => (n(), n()).prop_map(|(most, done)| Choice::InARow(most, done)),
        4 => n().prop_map(Choice::Fail),
        3 => n().prop_map(Choice::Aside),
        3 => Just(Choice::TakeUp),
        4 => n().prop_map(Choice::Due),
        4 => Just(Choice::Readable),
        2 => n().prop_map(Choice::Park),
        2 => n().prop_map(Choice::Redrive),
        1 => n().prop_map(Choice::Withdraw),
        1 => n().prop_map(Choice::Alone),
        2 => Just(Choice::Together),
        1 => n().prop_map(Choice::PutBack),
        8 => Just(Choice::Saving),
        8 => Just(Choice::Saved),
        3 => n().prop_map(Choice::Revoke),
        1 => (n(), n()).prop_map(|(p, a)| Choice::Limits(p, a)),
        1 => any::<bool>().prop_map(Choice::Pause),
        1 => any::<bool>().prop_map(Choice::Full),
        1 => Just(Choice::Restart),
        2 => n().prop_map(Choice::RestartKnowing),
    ]
}

/// Ends are rare: a window that ends early tests nothing.
fn ending() -> impl Strategy<Value = Option<Choice>> {
    prop_oneof![
        3 => Just(None),
        1 => Just(Some(Choice::Stop)),
        1 => any::<u8>().prop_map(|by| Some(Choice::StopAt(by))),
        1 => Just(Some(Choice::SaveAbandoned)),
    ]
}

#[test]
fn retries_and_new_jobs_are_read_in_turn() {
    let mut window = Window::begin(0, limits(3, 255));
    window.handle_head(Some(1_000));
    let mut fetches = Vec::new();
    // Every retry fails again at once, and the source returns one job at a time.
    for _ in 0..40 {
        while let Some(run) = window.poll_run() {
            window.handle_failed(run.index);
            window.handle_due(run.index);
        }
        while let Some(action) = window.poll() {
            if let Action::Fetch(run) = action {
                fetches.push(*run.start());
                window.handle_fetched(1);
            }
        }
    }
    let new = fetches.iter().collect::<BTreeSet<_>>().len();
    assert!(new >= 40, "only {new} of {} reads were of new jobs", fetches.len());
}

#[test]
fn retries_leave_half_the_read_ahead_to_new_jobs() {
    let mut window = Window::begin(0, Limits { max_processing: 100, max_search_ahead: u64::MAX });
    window.handle_head(Some(1_000));
    // Two hundred jobs fail and are due again.
    for _ in 0..4 {
        while let Some(run) = window.poll_run() {
            assert!(run.index >= 200 || window.handle_failed(run.index) && window.handle_due(run.index));
        }
        match window.poll() {
            Some(Action::Fetch(run)) if *run.start() == 0 && window.next() > 0 => {
                assert_eq!(run, 0..=99, "100 of the 200 jobs that may be read ahead");
                return;
            }
            Some(Action::Fetch(run)) => window.handle_fetched(run.count() as u64),
            other => panic!("{other:?}"),
        }
    }
    panic!("no failed job was read again");
}

#[test]
fn no_retry_starts_above_a_narrowed_window() {
    let mut window = Window::begin(0, Limits { max_processing: 4, max_search_ahead: 100 });
    window.handle_head(Some(3));
    let fetch = |window: &mut Window, run: RangeInclusive<Index>| {
        assert_eq!(window.poll(), Some(Action::Fetch(run.clone())));
        window.handle_fetched(run.count() as u64);
    };
    fetch(&mut window, 0..=3);
    while window.poll_run().is_some() {}
    window.handle_failed(3);
    window.handle_due(3);
    fetch(&mut window, 3..=3);
    window.set_limits(Limits { max_processing: 4, max_search_ahead: 2 });
    assert_eq!((window.can_run(), window.poll_run()), (false, None));
    window.set_limits(Limits { max_processing: 4, max_search_ahead: 4 });
    assert_eq!(window.poll_run(), Some(Run { index: 3, retry: true }));
}

#[test]
fn a_redriven_job_above_the_window_starts() {
    let mut window = Window::begin(0, Limits { max_processing: 4, max_search_ahead: 100 });
    window.handle_head(Some(3));
    assert_eq!(window.poll(), Some(Action::Fetch(0..=3)));
    window.handle_fetched(4);
    while window.poll_run().is_some() {}
    assert!(window.handle_failed(3) && window.handle_parked(3));
    window.set_limits(Limits { max_processing: 4, max_search_ahead: 2 });
    assert!(window.handle_redriven(3) && window.handle_due(3));
    assert_eq!(window.poll(), Some(Action::Fetch(3..=3)));
    window.handle_fetched(1);
    assert_eq!(window.poll_run(), Some(Run { index: 3, retry: true }));
}

#[test]
fn the_highest_index_can_be_processed() {
    let mut trial = Trial::new(Index::MAX - 1, limits(0, 0), None, true);
    trial.choose(Choice::Grow(0));
    trial.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn the_window_agrees_with_a_model_of_sets(
        first in prop_oneof![Just(0), Just(1), 0..500u64, Just(Index::MAX - 200), Just(Index::MAX - 1)],
        processing in any::<u8>(),
        ahead in any::<u8>(),
        keeps in any::<bool>(),
        stop_after in proptest::option::of(0..300u64),
        choices in proptest::collection::vec(choice(), 0..400),
        ending in ending(),
        tail in proptest::collection::vec(choice(), 0..20),
    ) {
        let stop_at = stop_after.map(|n| first.saturating_add(n).saturating_sub(5).min(Index::MAX - 1));
        let mut trial = Trial::new(first, limits(processing, ahead), stop_at, keeps);
        choices.into_iter().chain(ending).chain(tail).for_each(|choice| trial.choose(choice));
        trial.settle();
    }
}
