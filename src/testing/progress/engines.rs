//! The rules for optional features of engines: jobs done ahead, fences, and taking names over.

use super::{ANSWERS, FREE, ProgressSuite, SHUT_OUT, Ways, acquire, consumed, save, save_all, shown};
use crate::base::Index;
use crate::progress::{Progress, SaveError, Saved};
use crate::testing::{Answer, Checked, ask, broken, insist};
use std::ops::RangeInclusive;

const KEPT: &str = "what is done above the watermark is loaded exactly as it was saved";
const FENCED: &str = "a fence is 0 in every life, or grows from life to life";

/// How many saves are made in a row, each with more jobs done.
const ROUNDS: u64 = 60;

impl<P: Progress> ProgressSuite<'_, P> {
    pub(super) fn done_ahead_is_kept(&self) -> Checked {
        if !(self.open)("ahead").keeps_done_ahead() {
            return Ok(());
        }
        let runs = |runs: &[(Index, Index)]| runs.iter().map(|(start, end)| *start..=*end).collect::<Vec<_>>();
        let single: Vec<RangeInclusive<Index>> = (0..500).map(|at| 7 + 2 * at..=7 + 2 * at).collect();
        let examples = [
            Saved::new(None, 5, runs(&[(6, 6)])),
            Saved::new(None, 5, runs(&[(6, 9), (11, 300), (1 << 20, (1 << 20) + 63)])),
            Saved::new(Some(5), 6, single.clone()),
            Saved::new(Some(5), 6, runs(&[(7, 10_000)])),
            Saved::new(Some(20_000), 20_001, runs(&[])),
            Saved::new(Some(20_000), 20_001, runs(&[(20_003, 20_003)])),
        ];
        for (at, saved) in examples.iter().enumerate() {
            let alone = format!("ahead-{at}");
            self.keeps(&alone, None, saved)?;
            // The same value must also replace each of the values before it.
            self.keeps("ahead-in-a-row", at.checked_sub(1).map(|before| &examples[before]), saved)?;
        }
        self.done_ahead_is_kept_save_by_save()?;
        consumed::kept(&self.open, self.patience)
    }

    /// Checks that the next life loads the value that this life saves.
    fn keeps(&self, name: &str, before: Option<&Saved>, saved: &Saved) -> Checked {
        let mut one = self.loads(name, before)?;
        save_all(&mut one, saved)?;
        drop(one);
        self.loads(name, Some(saved)).map(drop)
    }

    fn loads(&self, name: &str, expected: Option<&Saved>) -> Checked<P> {
        let mut one = (self.open)(name);
        match acquire(&mut one)? {
            Ok(loaded) if loaded.as_ref() == expected => Ok(one),
            Ok(loaded) => {
                let (loaded, expected) = (shown(loaded.as_ref()), shown(expected));
                broken(KEPT, format!("{name:?} loaded {loaded}, and {expected} was saved last"))
            }
            Err(error) => broken(ANSWERS, format!("acquire_all() of {name:?} failed: {}", error.report())),
        }
    }

    /// Saves as a consumer does: each save adds a few done jobs, and sometimes moves the watermark.
    fn done_ahead_is_kept_save_by_save(&self) -> Checked {
        // The seed is fixed, so a progress that fails once fails again.
        let mut chance = fastrand::Rng::with_seed(5);
        let (mut done, mut next) = (vec![false; 2_000], 0);
        let mut one = self.loads("ahead-save-by-save", None)?;
        for round in 0..ROUNDS {
            (0..chance.u64(1..30)).for_each(|_| done[chance.usize(next + 1..next + 600)] = true);
            if round % 5 == 4 {
                done[next] = true;
                next = (next..done.len()).find(|index| !done[*index]).unwrap_or(done.len());
            }
            let ahead: Vec<u64> = (next..done.len()).filter(|index| done[*index]).map(|index| index as u64).collect();
            let runs = ahead.chunk_by(|one, other| one + 1 == *other).map(|run| run[0]..=run[run.len() - 1]).collect();
            let saved = Saved::new((next as u64).checked_sub(1), next as u64, runs);
            save_all(&mut one, &saved)?;
            if round % 7 == 6 {
                drop(one);
                one = self.loads("ahead-save-by-save", Some(&saved))?;
            }
        }
        Ok(())
    }

    pub(super) fn fences_grow(&self) -> Checked {
        let mut before: Option<u64> = None;
        for life in 1..=3 {
            let one = self.taken("fenced", None)?;
            let fence = one.fence();
            let grows = before.is_none_or(|before| before < fence || before == 0 && fence == 0);
            insist(grows, FENCED, || format!("it is {fence} in life {life}, and was {before:?} in the one before"))?;
            before = Some(fence);
        }
        Ok(())
    }

    pub(super) fn the_writer_before_is_shut_out(&self) -> Checked {
        let lapse = |name: &str| match &self.ways {
            Ways::Exclusive => false,
            Ways::TakesOver => true,
            Ways::Lapses(lapse) => {
                lapse(name);
                true
            }
        };
        let mut old = self.taken("late", None)?;
        save(&mut old, 3)?;
        if !lapse("late") {
            return Ok(());
        }
        let new = self.taken_over("late", Some(3), &old)?;
        let is_lost = late(&mut old)?;
        drop((old, new));
        self.taken_as("late", Some(3), SHUT_OUT)?;
        // A save may arrive even later, and the old value may be dropped while the new one has the
        // name.
        let mut old = self.taken("later", None)?;
        save(&mut old, 3)?;
        lapse("later");
        let mut new = self.taken_over("later", Some(3), &old)?;
        save(&mut new, 5)?;
        late(&mut old)?;
        drop(old);
        if !matches!(self.ways, Ways::TakesOver) {
            let refused = self.refused("later", "the life before was dropped");
            refused.or_else(|other| broken(SHUT_OUT, other.how))?;
        }
        save(&mut new, 6)?;
        drop(new);
        self.taken_as("later", Some(6), SHUT_OUT)?;
        let take = || {
            lapse("taken");
            let mut new = (self.open)("taken");
            acquire(&mut new)?.map(|_| new).or_else(|error| broken(FREE, error.report()))
        };
        // A consumer retries every other error for ever, so it would never halt.
        if is_lost { consumed::taken_over(SHUT_OUT, self.patience, (self.open)("taken"), take) } else { Ok(()) }
    }

    /// Takes a name over from a live value.
    fn taken_over(&self, name: &str, expected: Option<Index>, old: &P) -> Checked<P> {
        let new = self.taken_as(name, expected, SHUT_OUT)?;
        let (before, fence) = (old.fence(), new.fence());
        insist(before < fence || before == 0 && fence == 0, FENCED, || {
            format!("it is {fence} in the life that took {name:?} over from the one with {before}")
        })?;
        Ok(new)
    }
}

/// Saves in a life whose name was taken over. Returns whether the error says that the name is lost.
fn late<P: Progress>(old: &mut P) -> Checked<bool> {
    let answer = ask(|| Ok(super::try_save(old, &Saved::new(Some(9), 10, Vec::new()))));
    match answer {
        Answer::Good(Err(SaveError::Lost(_))) => Ok(true),
        Answer::Good(Err(SaveError::Retry(_))) => Ok(false),
        Answer::Good(Ok(())) => broken(SHUT_OUT, "a save of the life before returned Ok"),
        Answer::Failed(how) | Answer::Panicked(how) => broken(SHUT_OUT, format!("a save of the life before {how}")),
    }
}
