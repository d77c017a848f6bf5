//! The choice among queues, against what each rule promises.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

const NO_AGE: fn(usize) -> u64 = |_| 0;

fn shares(rule: &Rule, ready: &[usize], seed: u64, turns: u64) -> Vec<u64> {
    let mut shares = vec![0; ready.last().map_or(0, |last| last + 1)];
    for turn in 0..turns {
        shares[rule.choose(ready, Draw::new(seed, turn), NO_AGE).unwrap()] += 1;
    }
    shares
}

/// Queues at some of the first 12 places have a job.
fn ready() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::btree_set(0..12usize, 1..12).prop_map(|places| places.into_iter().collect())
}

fn rule() -> impl Strategy<Value = Rule> {
    prop_oneof![
        Just(Rule::Shuffle),
        vec(prop_oneof![Just(0.0), 0.001..1000.0, Just(f64::MAX)], 12).prop_map(Rule::Weighted),
        any::<u64>().prop_map(|ageing| Rule::Strict { ageing }),
    ]
}

proptest! {
    #[test]
    fn only_queues_with_jobs_are_chosen(
        rule in rule(), ready in ready(), turn: u64, chance in 0.0..=1.0, ages in vec(any::<u64>(), 12),
    ) {
        let chosen = rule.choose(&ready, Draw { turn, chance }, |place| ages[place]);
        prop_assert!(chosen.is_some_and(|chosen| ready.contains(&chosen)));
        prop_assert_eq!(rule.choose(&[], Draw { turn, chance }, |place| ages[place]), None);
    }

    #[test]
    fn shuffled_queues_have_equal_shares(ready in ready(), seed: u64) {
        let turns = 4_000;
        let expected = turns as f64 / ready.len() as f64;
        for (place, share) in shares(&Rule::Shuffle, &ready, seed, turns).into_iter().enumerate() {
            let expected = if ready.contains(&place) { expected } else { 0.0 };
            // Six standard deviations.
            prop_assert!((share as f64 - expected).abs() <= 6.0 * expected.sqrt(), "{} for {}", share, expected);
        }
    }

    #[test]
    fn shares_converge_to_the_weights(ready in ready(), weights in vec(0.1..10.0, 12), scale in -200i32..200, seed: u64) {
        let turns = 4_000;
        let all: f64 = ready.iter().map(|place| weights[*place]).sum();
        let scaled = weights.iter().map(|weight| weight * 10f64.powi(scale)).collect();
        for (place, share) in shares(&Rule::Weighted(scaled), &ready, seed, turns).into_iter().enumerate() {
            let expected = if ready.contains(&place) { turns as f64 * weights[place] / all } else { 0.0 };
            prop_assert!((share as f64 - expected).abs() <= 6.0 * expected.sqrt() + 1.0, "{} for {}", share, expected);
        }
    }

    #[test]
    fn weight_zero_is_served_only_if_no_other_has_a_job(
        ready in ready(), weights in vec(prop_oneof![Just(0.0), Just(1.0)], 12), seed: u64,
    ) {
        let has_weight = ready.iter().any(|place| weights[*place] > 0.0);
        let shares = shares(&Rule::Weighted(weights.clone()), &ready, seed, 200);
        for place in &ready {
            prop_assert!(!has_weight || weights[*place] > 0.0 || shares[*place] == 0);
        }
        prop_assert_eq!(shares.iter().sum::<u64>(), 200);
    }

    /// Each queue starts with its own number of jobs, and gets a new one for each that is claimed.
    /// The first job of a queue is claimed at last, however many are before it.
    #[test]
    fn no_queue_starves_in_the_strict_order(backlogs in vec(1..40u64, 2..12), ageing in 0..50u64, seed: u64) {
        let rule = Rule::Strict { ageing };
        let ready: Vec<usize> = (0..backlogs.len()).collect();
        // The times at which the jobs of each queue were pushed.
        let mut queues: Vec<std::collections::VecDeque<u64>> =
            backlogs.iter().map(|jobs| (0..*jobs).map(|_| 0).collect()).collect();
        let before: u64 = backlogs.iter().sum();
        for now in 0..ageing + 2 * before + 4 {
            let draw = Draw::new(seed, now);
            let chosen = rule.choose(&ready, draw, |place| now - queues[place][0]).unwrap();
            // If none is aged, and in every other turn, it is the first one.
            prop_assert!(now % 2 == 1 && now > ageing || chosen == 0);
            queues[chosen].pop_front();
            queues[chosen].push_back(now);
        }
        for jobs in &queues {
            prop_assert!(!jobs.contains(&0), "a job of the beginning still waits");
        }
    }
}

#[test]
fn strict_order_without_ageing_serves_only_the_first() {
    let rule = Fair::strict(Duration::MAX).rule(&["a", "b"]).unwrap();
    for turn in 0..10 {
        assert_eq!(rule.choose(&[0, 1], Draw::new(1, turn), |_| u64::MAX), Some(0));
    }
}

#[test]
fn equally_aged_queues_are_served_in_order() {
    let rule = Rule::Strict { ageing: 5 };
    assert_eq!(rule.choose(&[1, 2, 3], Draw { turn: 1, chance: 0.0 }, |place| [0, 5, 6, 6][place]), Some(2));
    assert_eq!(rule.choose(&[1, 2, 3], Draw { turn: 1, chance: 0.0 }, |_| 5), Some(1));
}

#[test]
fn invalid_weights_are_refused() {
    for weight in [-0.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let refused = Fair::weighted([("a", weight)]).rule(&["a"]).unwrap_err();
        assert!(matches!(refused, ConfigError::GroupWeight { queue, .. } if queue == "a"));
    }
    let refused = Fair::weighted([("b", 1.0)]).rule(&["a"]).unwrap_err();
    assert!(matches!(refused, ConfigError::Group { fault: "queue unknown", names, .. } if names == ["b"]));
    assert_eq!(Fair::weighted([("b", 3.0)]).rule(&["a", "b"]), Ok(Rule::Weighted(vec![1.0, 3.0])));
}
