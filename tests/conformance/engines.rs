//! Engines that do more than a progress must, and engines that break one rule for them.

use super::refusal;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use waterline::testing::{FaultyProgress, ProgressSuite};
use waterline::{BoxError, Checkpoint, Error, Progress, SaveError, Saved, Tenure};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    Nothing,
    /// No bug: it cannot tell a lost name from failing storage.
    LostIsRetry,
    ForgetsAhead,
    ForgetsBeforeAWatermark,
    ForgetsAfterAWatermark,
    JoinsRuns,
    LosesTheLastRun,
    SameFence,
    LateSaveIsOk,
    LateSaveIsWritten,
    LateSavePanics,
    LateDropFrees,
    LateNotice,
    NeverLapses,
}

use Bug::*;

/// How a name is taken from a live value.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Lapses,
    AtOnce,
}

#[derive(Default)]
struct Row {
    saved: Option<Saved>,
    token: u64,
    /// The life that has the name, until its lease lapses.
    holder: Option<u64>,
}

type Disk = Arc<Mutex<HashMap<String, Row>>>;

/// An engine with tokens that keeps what is done ahead.
struct Engine {
    bug: Bug,
    way: Way,
    disk: Disk,
    name: String,
    token: u64,
}

impl Engine {
    fn with<R>(&self, change: impl FnOnce(&mut Row) -> R) -> R {
        change(self.disk.lock().entry(self.name.clone()).or_default())
    }

    /// Returns what the engine stores of this.
    fn stored(&self, saved: &Saved) -> Saved {
        let mut saved = saved.clone();
        match self.bug {
            ForgetsAhead => saved.done.clear(),
            ForgetsBeforeAWatermark if saved.last_processed.is_none() => saved.done.clear(),
            ForgetsAfterAWatermark if saved.last_processed.is_some() => saved.done.clear(),
            LosesTheLastRun if saved.done.len() > 300 => drop(saved.done.pop()),
            JoinsRuns if saved.done.len() > 1 => {
                saved.done = vec![*saved.done[0].start()..=*saved.done[saved.done.len() - 1].end()];
            }
            _ => {}
        }
        saved
    }
}

impl Progress for Engine {
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
        unreachable!("it keeps what is done ahead")
    }

    fn save(&mut self, _: &Checkpoint) -> Result<(), BoxError> {
        unreachable!("it keeps what is done ahead")
    }

    fn keeps_done_ahead(&self) -> bool {
        true
    }

    fn acquire_all(&mut self) -> Result<Option<Saved>, Error> {
        let (way, name) = (self.way, self.name.clone());
        let (token, loaded) = self.with(|row| {
            if let (Some(_), Way::Lapses) = (row.holder, way) {
                return Err(Error::Leased { name, holder: "a life".to_owned(), expires_in: Duration::from_secs(9) });
            }
            row.token += 1;
            row.holder = Some(row.token);
            Ok((row.token, row.saved.clone()))
        })?;
        self.token = token;
        Ok(loaded)
    }

    fn save_all(&mut self, saved: &Saved) -> Result<(), SaveError> {
        let (bug, token, stored) = (self.bug, self.token, self.stored(saved));
        let taken = self.name == "taken";
        if token == 0 {
            return Err(SaveError::Retry("it was not acquired".into()));
        }
        self.with(|row| {
            let lost = || SaveError::Lost(format!("life {} has it", row.token).into());
            if row.token == token {
                row.saved = Some(stored);
                return Ok(());
            }
            match bug {
                LateSaveIsOk => Ok(()),
                LateSavePanics => panic!("who has it?"),
                LostIsRetry => Err(SaveError::Retry("no row was changed".into())),
                LateSaveIsWritten => {
                    let error = lost();
                    row.saved = Some(stored);
                    Err(error)
                }
                // It reports the loss when asked by hand, and not to a consumer.
                LateNotice if taken => Err(SaveError::Retry("no row was changed".into())),
                _ => Err(lost()),
            }
        })
    }

    fn fence(&self) -> u64 {
        match self.bug {
            SameFence => 7,
            _ => self.token,
        }
    }

    fn subscribe(&mut self, tenure: Tenure) {
        assert_eq!(self.token, 0, "before it has the name");
        drop(tenure);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let (bug, token) = (self.bug, self.token);
        self.with(|row| {
            if row.holder == Some(token) || bug == LateDropFrees && token > 0 {
                row.holder = None;
            }
        });
    }
}

fn suite<'a>(bug: Bug, way: Way) -> ProgressSuite<'a, Engine> {
    let disk = Disk::default();
    let rows = disk.clone();
    let open = move |name: &str| Engine { bug, way, disk: disk.clone(), name: name.to_owned(), token: 0 };
    // `LateNotice` is found by a wait in vain, so its patience is short.
    let patience = Duration::from_millis(if bug == LateNotice { 500 } else { 5_000 });
    let suite = ProgressSuite::new(open).patience(patience);
    match way {
        Way::AtOnce => suite.takes_over(),
        Way::Lapses => suite.lapse(move |name| {
            if bug != NeverLapses {
                rows.lock().get_mut(name).unwrap().holder = None;
            }
        }),
    }
}

const AHEAD: &str = "what is done above the watermark is loaded exactly as it was saved";
const FENCE: &str = "a fence is 0 in every life, or grows from life to life";
const SHUT_OUT: &str = "acquire shuts out the writer before";

const REFUSED: &[(Bug, &str, &str)] = &[
    (ForgetsAhead, AHEAD, "1 runs from 6..=6"),
    (ForgetsBeforeAWatermark, AHEAD, "no watermark with 5 as the lowest"),
    (ForgetsAfterAWatermark, AHEAD, "500 runs"),
    (JoinsRuns, AHEAD, "3 runs"),
    (LosesTheLastRun, AHEAD, "loaded 5 with 6 as the lowest that is not done and 499 runs"),
    (SameFence, FENCE, "it is 7 in life 2, and was Some(7)"),
    (LateSaveIsOk, SHUT_OUT, "returned Ok"),
    (LateSaveIsWritten, SHUT_OUT, "loaded Some(9), and Some(3) was saved last"),
    (LateSavePanics, SHUT_OUT, "panicked: who has it?"),
];

#[test]
fn lapsing_and_takeover_engines_keep_the_rules() {
    for way in [Way::Lapses, Way::AtOnce] {
        suite(Nothing, way).run();
        suite(LostIsRetry, way).run();
    }
    let disk = Disk::default();
    let rows = disk.clone();
    ProgressSuite::new(move |name: &str| {
        let (name, disk) = (name.to_owned(), disk.clone());
        FaultyProgress::new(Engine { bug: Nothing, way: Way::Lapses, disk, name, token: 0 })
    })
    .lapse(move |name| rows.lock().get_mut(name).unwrap().holder = None)
    .run();
}

#[test]
fn each_broken_rule_of_an_engine_is_named() {
    let mut wrong = Vec::new();
    let mut check = |bug: Bug, way: Way, rule: &str, how: &str| {
        let said = refusal(bug, || suite(bug, way).run());
        if ![rule, how].iter().all(|part| said.contains(part)) {
            wrong.push(format!("{bug:?}, {way:?} should break {rule:?} with {how:?}, and: {said}"));
        }
    };
    for (bug, rule, how) in REFUSED {
        check(*bug, Way::Lapses, rule, how);
        if *bug != LateSaveIsOk {
            check(*bug, Way::AtOnce, rule, how);
        }
    }
    // Here an earlier rule finds it: all of several that acquire at once may save.
    check(LateSaveIsOk, Way::AtOnce, "of several that acquire at once exactly one has the name", "8 have it");
    check(LateDropFrees, Way::Lapses, SHUT_OUT, "the life before was dropped");
    check(NeverLapses, Way::Lapses, SHUT_OUT, "is in use, though");
    check(LateNotice, Way::Lapses, SHUT_OUT, "the consumer goes on without its name");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
