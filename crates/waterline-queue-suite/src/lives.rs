//! Random lives of a queue, compared with a model that can do as much.
//!
//! They have calls, clock changes and crashes. Each answer of the two queues is the same, and so is
//! all that they show.

use crate::bench::*;
use calls::{Call, Profile, options};
use differs::{Differs, lived, same};
use fastrand::Rng;
use side::Side;
use std::time::{Duration, Instant};
use waterline_queue::QueueOptions;
use waterline_queue::testing::QueueModel;

mod calls;
mod differs;
mod faults;
mod side;

/// The most calls of a life.
const LIFE: usize = 80;
/// The most tries to find fewer calls that fail too, and the time for them.
const TRIALS: usize = 300;
const PATIENCE: Duration = Duration::from_secs(40);
/// The most calls that a server needs to promote and expire jobs.
const ROUNDS: usize = 8;

pub(super) fn random_lives_of_all_calls_match_the_model(on: &Benches<'_>) {
    lives(on, Profile::Plain);
}

pub(super) fn random_lives_of_waiting_jobs_match_the_model(on: &Benches<'_>) {
    lives(on, Profile::Workflows);
}

pub(super) fn random_lives_with_crashes_match_the_model(on: &Benches<'_>) {
    lives(on, Profile::Deaths);
}

pub(super) fn random_lives_with_limits_match_the_model(on: &Benches<'_>) {
    lives(on, Profile::Limits);
}

/// Makes lives on disks that fail or stop taking writes, some of them with synced writes.
pub(super) fn on_disks_at_fault(calls: u64, seed: u64) {
    each((calls, seed), Profile::Faults, 1, |lived, set, calls, _| {
        faults::live(&format!("life {lived}"), &options(Profile::Faults, set, false), set % 2 == 0, calls)
    });
}

/// Makes the lives of a case, and panics with one that fails.
fn lives(on: &Benches<'_>, profile: Profile) {
    let first = on.bench();
    let takes_turns = first.can().keys_take_turns;
    let is_limited = profile == Profile::Limits && !takes_turns;
    // Reading all of a server takes long.
    let looks_each = if first.can().one_process { 1 } else { 20 };
    each((on.calls, on.seed), profile, looks_each, |lived, set, calls, looks_each| {
        live(&first, &format!("life {lived}"), (&options(profile, set, takes_turns), is_limited), calls, looks_each)
    });
}

/// Draws lives of this many calls in all, and panics with one that fails.
///
/// The closure gets the number of the life and that of its options, the calls, and after how many
/// of them it compares everything.
fn each(
    (most, seed): (u64, u64),
    profile: Profile,
    looks_each: usize,
    live: impl Fn(u64, u8, &[Call], usize) -> Result<(), Differs>,
) {
    let (mut made, mut seed) = (0, seed.wrapping_mul(1_000_003));
    let mut lived = 0_u64;
    while made < most {
        let mut rng = Rng::with_seed(seed);
        let set = rng.u8(..);
        let calls: Vec<_> = (0..rng.usize(1..LIFE)).map(|_| profile.call(&mut rng)).collect();
        made += calls.len() as u64;
        let mut live = |calls: &[Call], looks_each: usize| {
            lived += 1;
            live(lived, set, calls, looks_each)
        };
        if let Err(differs) = live(&calls, looks_each) {
            // Finds the first call after which they differ, which the brief comparisons may have
            // missed.
            let differs = live(&calls[..differs.behind], 1).err().unwrap_or(differs);
            let shorter = shorter(&calls[..differs.behind], |calls| live(calls, usize::MAX).err());
            let (calls, Differs { how, .. }) = shorter.unwrap_or((calls, differs));
            let calls: Vec<_> = calls.iter().map(|call| format!("  {call:?}")).collect();
            panic!("{profile:?}, set {set}, seed {seed}, behind {made} calls:\n{}\n{how}", calls.join("\n"));
        }
        seed += 1;
    }
}

/// Returns as few of the calls as still fail, and how; `None` if they no longer do.
fn shorter(calls: &[Call], mut fails: impl FnMut(&[Call]) -> Option<Differs>) -> Option<(Vec<Call>, Differs)> {
    let mut differs = fails(calls)?;
    let mut calls = calls[..differs.behind].to_vec();
    let (deadline, mut trials, mut piece) = (Instant::now() + PATIENCE, 0, calls.len().div_ceil(2));
    loop {
        let (mut from, before) = (0, calls.len());
        while from < calls.len() && trials < TRIALS && Instant::now() < deadline {
            let upto = (from + piece).min(calls.len());
            let rest = [&calls[..from], &calls[upto..]].concat();
            trials += 1;
            match fails(&rest) {
                Some(other) => {
                    calls = rest;
                    calls.truncate(other.behind);
                    differs = other;
                }
                None => from = upto,
            }
        }
        if piece == 1 && (calls.len() == before || trials >= TRIALS || Instant::now() >= deadline) {
            return Some((calls, differs));
        }
        piece = (piece / 2).max(1);
    }
}

/// Makes these calls on both queues, and says how they differ. Everything is compared after each
/// `looks_each` calls, and after the last one.
fn live(
    on: &Bench,
    name: &str,
    (options, is_limited): (&QueueOptions, bool),
    calls: &[Call],
    looks_each: usize,
) -> Result<(), Differs> {
    lived(|behind| {
        let model = Database::Model(QueueModel::like(on.can()));
        let mut both =
            [on.database.clone(), model].map(|database| Side::new(database, name, options.clone(), is_limited));
        for (n, call) in calls.iter().enumerate() {
            *behind = n + 1;
            let is_crash = matches!(call, Call::Crash);
            let call = if is_crash && !on.database.is_mortal() { &Call::Reopen } else { call };
            let [left, right] = both.each_mut().map(|side| side.act(call));
            same(&[left], &[right])?;
            let is_whole = *behind == calls.len() || *behind % looks_each == 0;
            let mut looks = both.each_mut().map(|side| side.looks(is_whole));
            // One call promotes and expires jobs on a server for a few milliseconds at most.
            for _ in 0..if on.can().one_process { 0 } else { ROUNDS } {
                if looks[0] == looks[1] {
                    break;
                }
                looks = both.each_mut().map(|side| {
                    side.note_time();
                    side.looks(is_whole)
                });
            }
            same(&looks[0], &looks[1])?;
        }
        Ok(())
    })
}
