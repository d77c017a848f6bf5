//! The gates between consumers, and the check that they form no cycle.
//!
//! Each consumer reserves its watermark and names its upstreams, and both ends of a gate know each
//! other. So a cycle through a consumer can be found upwards, from upstream to upstream, and
//! downwards, from follower to follower. The search alternates between both directions and ends as
//! soon as one of them does: a chain started in either order costs a few steps for each consumer.

use crate::base::{config::ConfigError, sync::Arc};
use crate::source::watermark::{Marked, Publisher, Watermark};
use std::collections::HashMap;

impl Watermark {
    /// Gives the watermark to this consumer. Changes nothing if it returns an error.
    pub(crate) fn reserve(&self, name: Option<String>, upstreams: Vec<Watermark>) -> Result<(), ConfigError> {
        let mut publisher = self.shared.publisher.lock();
        if publisher.is_some() {
            return Err(ConfigError::WatermarkInUse { name: crate::source::watermark::named(name.as_ref()) });
        }
        *publisher = Some(Publisher { name, upstreams: upstreams.clone() });
        drop(publisher);
        self.follow(upstreams).inspect_err(|_| self.release())
    }

    /// Names the upstreams and the consumer of a watermark that a standby has reserved, once it has
    /// its name. After an error the watermark is still reserved.
    pub(crate) fn engage(&self, name: Option<String>, upstreams: Vec<Watermark>) -> Result<(), ConfigError> {
        let publisher = Publisher { name: name.clone(), upstreams: upstreams.clone() };
        *self.shared.publisher.lock() = Some(publisher);
        self.follow(upstreams).inspect_err(|_| {
            self.release();
            *self.shared.publisher.lock() = Some(Publisher { name, upstreams: Vec::new() });
        })
    }

    /// Registers the gates to these upstreams, and refuses them if they close a cycle.
    fn follow(&self, upstreams: Vec<Watermark>) -> Result<(), ConfigError> {
        for upstream in upstreams {
            upstream.shared.followers.lock().add(Arc::downgrade(&self.shared));
        }
        // Others must see both ends of each gate before the search. If consumers that wait for each
        // other start at the same time, the last one to get here sees the whole cycle.
        if let Some(upstream) = self.cycle() {
            return Err(ConfigError::GateCycle { consumer: self.name(), upstream: upstream.name() });
        }
        Ok(())
    }

    /// Releases the watermark, since its consumer could not be started.
    pub(crate) fn release(&self) {
        let publisher = self.shared.publisher.lock().take();
        for upstream in publisher.into_iter().flat_map(|publisher| publisher.upstreams) {
            upstream.shared.followers.lock().remove(&self.shared);
        }
    }

    /// True if this watermark waits for the other one, directly or through others.
    pub(crate) fn is_above(&self, other: &Watermark) -> bool {
        let mut up = Walk::begin(self, Watermark::upstreams);
        while !self.is_same(other) {
            if up.is_over() {
                return false;
            }
            if up.step(other).is_some() {
                break;
            }
        }
        true
    }

    /// Returns the upstream by which this watermark waits for itself, if any.
    fn cycle(&self) -> Option<Watermark> {
        // A chain that is started upstream first has nothing below; one started downstream first
        // has nothing above.
        let mut up = Walk::begin(self, Watermark::upstreams);
        let mut down = Walk::begin(self, Watermark::followers);
        while !up.is_over() && !down.is_over() {
            if up.steps < down.steps {
                if let Some(found) = up.step(self) {
                    return Some(found.first);
                }
            } else if let Some(found) = down.step(self) {
                return Some(found.last);
            }
        }
        None
    }

    fn upstreams(&self) -> Vec<Watermark> {
        self.shared.publisher.lock().iter().flat_map(|publisher| publisher.upstreams.clone()).collect()
    }

    fn followers(&self) -> Vec<Watermark> {
        self.shared.followers.lock().living().map(|shared| Watermark { shared }).collect()
    }

    /// Removes duplicates and keeps the order.
    pub(crate) fn distinct(watermarks: Vec<Watermark>) -> Vec<Watermark> {
        let mut seen = Visited::default();
        watermarks.into_iter().filter(|watermark| seen.add(watermark)).collect()
    }
}

/// A search along the gates, in one direction.
struct Walk {
    next: fn(&Watermark) -> Vec<Watermark>,
    ahead: Vec<Reached>,
    seen: Visited,
    /// How many watermarks and gates the walk has visited.
    steps: usize,
}

/// A watermark that a walk has reached.
struct Reached {
    /// The first watermark on the way there; `None` at the beginning.
    first: Option<Watermark>,
    at: Watermark,
}

/// A path along the gates, from the beginning of a walk to its goal.
struct GatePath {
    /// The first watermark on the path, after the beginning.
    first: Watermark,
    /// The last watermark on the path, before the goal.
    last: Watermark,
}

impl Walk {
    fn begin(at: &Watermark, next: fn(&Watermark) -> Vec<Watermark>) -> Self {
        let ahead = vec![Reached { first: None, at: at.clone() }];
        let mut seen = Visited::default();
        seen.add(at);
        Self { next, ahead, seen, steps: 0 }
    }

    fn is_over(&self) -> bool {
        self.ahead.is_empty()
    }

    /// Follows the gates of one place.
    fn step(&mut self, goal: &Watermark) -> Option<GatePath> {
        let Reached { first, at } = self.ahead.pop()?;
        self.count_step();
        for next in (self.next)(&at) {
            self.count_step();
            let first = first.clone().unwrap_or_else(|| next.clone());
            if next.is_same(goal) {
                return Some(GatePath { first, last: at });
            }
            if self.seen.add(&next) {
                self.ahead.push(Reached { first: Some(first), at: next });
            }
        }
        None
    }

    fn count_step(&mut self) {
        self.steps += 1;
        #[cfg(test)]
        tests::STEPS.with(|steps| steps.set(steps.get() + 1));
    }
}

/// A set of watermarks. It keeps them alive, so that their addresses are not reused.
#[derive(Default)]
struct Visited(HashMap<*const Marked, Watermark>);

impl Visited {
    /// Adds a watermark. Returns true if it is new.
    fn add(&mut self, watermark: &Watermark) -> bool {
        self.0.insert(Arc::as_ptr(&watermark.shared), watermark.clone()).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        /// How many steps all searches on this thread have taken.
        pub(super) static STEPS: Cell<u64> = const { Cell::new(0) };
    }

    fn chain(length: usize) -> Vec<Watermark> {
        (0..length).map(|_| Watermark::new()).collect()
    }

    /// Reserves the watermarks of a chain in this order, each behind the one before it. Returns how
    /// many steps that took.
    fn steps_of(chain: &[Watermark], order: impl IntoIterator<Item = usize>) -> u64 {
        let before = STEPS.get();
        for at in order {
            let upstreams = at.checked_sub(1).map(|before| chain[before].clone()).into_iter().collect();
            chain[at].reserve(None, upstreams).unwrap();
        }
        STEPS.get() - before
    }

    fn shuffled(length: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..length).collect();
        fastrand::Rng::with_seed(length as u64).shuffle(&mut order);
        order
    }

    #[test]
    fn a_chain_costs_few_steps_in_any_order_of_starts() {
        for length in [100, 20_000] {
            let upstream_first = steps_of(&chain(length), 0..length);
            let downstream_first = steps_of(&chain(length), (0..length).rev());
            let every_second = steps_of(&chain(length), (0..length).step_by(2).chain((1..length).step_by(2)));
            let at_random = steps_of(&chain(length), shuffled(length));
            let most = [upstream_first, downstream_first].map(|steps| steps.div_ceil(length as u64));
            assert!(most.iter().all(|most| *most <= 8), "{length} consumers in order: {most:?} steps each");
            // Joining two parts costs as much as the shorter part, so no consumer is visited more
            // than log2(n) times.
            let most = 8 * length as u64 * u64::from(length.ilog2());
            assert!(every_second.max(at_random) <= most, "{length} consumers: {every_second} and {at_random} steps");
        }
    }

    #[test]
    fn a_cycle_of_thousands_is_refused_by_its_last_gate() {
        for order in [(1..5_000).collect(), (1..5_000).rev().collect::<Vec<_>>()] {
            let chain = chain(5_000);
            steps_of(&chain, order);
            let (first, last) = (&chain[0], chain[4_999].clone());
            let aside = Watermark::new();
            aside.reserve(Some("aside".to_owned()), vec![first.clone()]).unwrap();
            let error = first.reserve(Some("first".to_owned()), vec![Watermark::new(), last.clone()]).unwrap_err();
            let expected = ConfigError::GateCycle { consumer: "first".to_owned(), upstream: "unnamed".to_owned() };
            assert_eq!(error, expected);
            assert!(last.is_above(first) && !first.is_above(&last), "the refused consumer left no gate behind");
            first.reserve(None, vec![Watermark::new()]).unwrap();
        }
    }

    #[test]
    fn a_refused_consumer_leaves_no_follower() {
        let (one, other) = (Watermark::new(), Watermark::new());
        one.reserve(None, vec![other.clone()]).unwrap();
        other.reserve(None, vec![one.clone()]).unwrap_err();
        assert!(one.followers().is_empty() && other.upstreams().is_empty());
        one.release();
        assert!(other.followers().is_empty());
        other.reserve(None, vec![one.clone()]).unwrap();
    }

    #[test]
    fn a_chain_of_thousands_drops_without_deep_stack() {
        let small = std::thread::Builder::new().stack_size(256 << 10);
        let dropped = small.spawn(|| {
            let chain = chain(100_000);
            steps_of(&chain, 0..chain.len());
            let last = chain.last().cloned();
            drop(chain);
            assert!(last.is_some());
        });
        dropped.unwrap().join().unwrap();
    }

    #[test]
    fn a_watermark_forgets_dropped_followers() {
        let hub = Watermark::new();
        for _ in 0..10_000 {
            Watermark::new().reserve(None, vec![hub.clone()]).unwrap();
        }
        assert!(hub.shared.followers.lock().len() <= 16);
    }
}

#[cfg(all(test, waterline_loom))]
mod model {
    use super::*;
    use crate::base::sync::{explore, spawn};

    #[test]
    fn loom_one_of_two_racing_consumers_sees_the_cycle() {
        explore(3, || {
            let (one, other) = (Watermark::new(), Watermark::new());
            let second = {
                let (one, other) = (one.clone(), other.clone());
                spawn(move || other.reserve(None, vec![one]).is_err())
            };
            let refused = one.reserve(None, vec![other.clone()]).is_err();
            assert!(second.join().unwrap() || refused);
        });
    }
}
