//! Choosing among queues that have jobs. It is pure: no store, no clock, no randomness of its own.

use crate::types::config::ConfigError;
use crate::types::error::unknown_queue;
use std::time::Duration;

/// How a [`Group`](crate::Group) chooses, for each claim, among its queues that have a job.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Fair {
    /// All have the same chance, whatever their lengths. The default, since nothing starves.
    #[default]
    Shuffle,
    /// The chance of each is its share of the weights of those that have a job. A queue that is not
    /// named has the weight 1. One with the weight 0 is served only while no other one has a job.
    Weighted(Vec<(String, f64)>),
    /// The first one, in the order of the group.
    ///
    /// A low queue would starve under constant load. So the queues whose first job has waited for
    /// longer than `ageing` get every second claim, the one that has waited longest first.
    Strict {
        /// After this time a queue counts as aged. [`Duration::MAX`]: never.
        ageing: Duration,
    },
}

impl Fair {
    /// Serves the queues by these weights: see [`Fair::Weighted`].
    pub fn weighted<N: Into<String>>(weights: impl IntoIterator<Item = (N, f64)>) -> Self {
        Self::Weighted(weights.into_iter().map(|(name, weight)| (name.into(), weight)).collect())
    }

    /// Serves the queues in the order of the group: see [`Fair::Strict`].
    #[must_use]
    pub fn strict(ageing: Duration) -> Self {
        Self::Strict { ageing }
    }

    pub(crate) fn rule(&self, names: &[&str]) -> Result<Rule, ConfigError> {
        let weights = match self {
            Self::Shuffle => return Ok(Rule::Shuffle),
            Self::Strict { ageing } => {
                return Ok(Rule::Strict { ageing: u64::try_from(ageing.as_millis()).unwrap_or(u64::MAX) });
            }
            Self::Weighted(weights) => weights,
        };
        let mut all = vec![1.0; names.len()];
        for (name, weight) in weights {
            if !(weight.is_finite() && *weight >= 0.0) {
                return Err(ConfigError::GroupWeight { queue: name.clone(), weight: *weight });
            }
            let at = names.iter().position(|known| known == name);
            let at = at.ok_or_else(|| unknown_queue(name))?;
            all[at] = *weight;
        }
        Ok(Rule::Weighted(all))
    }
}

/// The rule of a group. It knows its queues by their indexes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Rule {
    Shuffle,
    Weighted(Vec<f64>),
    /// The age is in milliseconds.
    Strict {
        ageing: u64,
    },
}

/// The number of a choice, and a random number in 0..1 for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw {
    pub(crate) turn: u64,
    pub(crate) chance: f64,
}

impl Draw {
    /// Derives the random number of a choice from its number by splitmix64.
    pub(crate) fn new(seed: u64, turn: u64) -> Self {
        let mut bits = seed.wrapping_add(turn.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let chance = ((bits ^ (bits >> 31)) >> 11) as f64 / (1u64 << 53) as f64;
        Self { turn, chance }
    }
}

impl Rule {
    /// Returns the rule for only the queues with these indexes.
    pub(crate) fn of(&self, places: &[usize]) -> Self {
        match self {
            Self::Weighted(weights) => Self::Weighted(places.iter().map(|place| weights[*place]).collect()),
            other => other.clone(),
        }
    }

    /// True if this choice depends on ages, so that they have to be known.
    pub(crate) fn goes_by_age(&self, turn: u64) -> bool {
        matches!(self, Self::Strict { ageing } if *ageing < u64::MAX) && turn % 2 == 1
    }

    /// Chooses one of these ascending indexes. `age` returns how many milliseconds the first job of
    /// a queue has waited. It is called only if the choice depends on ages.
    pub(crate) fn choose(&self, ready: &[usize], draw: Draw, mut age: impl FnMut(usize) -> u64) -> Option<usize> {
        let first = *ready.first()?;
        Some(match self {
            _ if ready.len() == 1 => first,
            Self::Shuffle => ready[(draw.chance * ready.len() as f64) as usize % ready.len()],
            Self::Weighted(weights) => by_weight(ready, weights, draw.chance),
            Self::Strict { ageing } if self.goes_by_age(draw.turn) => {
                let aged = ready.iter().map(|place| (age(*place), *place)).filter(|(age, _)| age > ageing);
                // Among equal ages, the first one.
                aged.rev().max_by_key(|(age, _)| *age).map_or(first, |(_, place)| place)
            }
            Self::Strict { .. } => first,
        })
    }
}

/// Chooses an index by its weight. If none has any weight, all have the same chance.
fn by_weight(ready: &[usize], weights: &[f64], chance: f64) -> usize {
    // This scales the largest one to 1, so no sum is infinite.
    let most = ready.iter().map(|place| weights[*place]).fold(0.0, f64::max);
    let weight = |place: usize| if most > 0.0 { weights[place] / most } else { 1.0 };
    let mut left = chance * ready.iter().map(|place| weight(*place)).sum::<f64>();
    let mut chosen = ready[0];
    for place in ready.iter().copied().filter(|place| weight(*place) > 0.0) {
        chosen = place;
        left -= weight(place);
        if left < 0.0 {
            break;
        }
    }
    chosen
}

#[cfg(test)]
mod tests;
