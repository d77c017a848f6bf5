//! Implementations of `Progress` that keep the rules, and some that break one each.

use super::refusal;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;
use std::{fs, io};
use waterline::testing::{FaultyProgress, FaultyStore, ProgressSuite};
use waterline::{BoxError, Checkpoint, Error, MemoryProgress, Progress, Store};

/// Returns a function that gives the same place for the same name.
fn by_name<P: Clone + Default>() -> impl Fn(&str) -> P {
    let places = RefCell::new(HashMap::<String, P>::new());
    move |name| places.borrow_mut().entry(name.to_owned()).or_default().clone()
}

#[test]
fn memory_progress_keeps_the_rules() {
    ProgressSuite::new(by_name::<MemoryProgress>()).run();
}

#[test]
fn store_progress_in_memory_keeps_the_rules() {
    let store = Store::in_memory();
    ProgressSuite::new(|name| store.progress(name)).run();
}

#[test]
fn faulty_parts_without_faults_keep_the_rules() {
    ProgressSuite::new(by_name::<FaultyProgress>()).run();
    let store = FaultyStore::new().unwrap().store();
    ProgressSuite::new(|name| FaultyProgress::new(store.progress(name))).run();
}

/// The example of the trait `Progress`.
struct FileProgress {
    directory: PathBuf,
    claimed: bool,
}

impl Progress for FileProgress {
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
        let name = self.directory.display().to_string();
        match fs::File::create_new(self.directory.join("claimed")) {
            Ok(_) => self.claimed = true,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Err(Error::InUse { name }),
            Err(e) => return Err(Error::Progress { source: e.into() }),
        }
        match fs::read_to_string(self.directory.join("watermark")) {
            Ok(text) => match text.trim().parse() {
                Ok(index) => Ok(Some(Checkpoint::new(index))),
                Err(e) => Err(Error::Corrupt { name, reason: format!("{text:?} is no index: {e}") }),
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::Progress { source: e.into() }),
        }
    }

    fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
        if !self.claimed {
            return Err("another one may have the name: call `acquire` first".into());
        }
        let beside = self.directory.join("watermark.new");
        fs::write(&beside, checkpoint.last_processed.to_string())?;
        Ok(fs::rename(&beside, self.directory.join("watermark"))?)
    }
}

impl Drop for FileProgress {
    fn drop(&mut self) {
        if self.claimed {
            let _ = fs::remove_file(self.directory.join("claimed"));
        }
    }
}

#[test]
fn the_manual_example_keeps_the_rules() {
    let root = tempfile::tempdir().unwrap();
    ProgressSuite::new(|name| {
        // The name as hex, for file systems that take `A` for `a`.
        let directory = root.path().join(name.bytes().map(|byte| format!("{byte:02x}")).collect::<String>());
        fs::create_dir_all(&directory).unwrap();
        FileProgress { directory, claimed: false }
    })
    .corrupt(|name| {
        let directory = name.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        fs::write(root.path().join(directory).join("watermark"), "12x").unwrap();
    })
    .run();
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    Nothing,
    StartsAtZero,
    ZeroIsNothing,
    Forgets,
    KeepsTheFirst,
    Truncates,
    OneMore,
    LoadedOnce,
    AcquirePanics,
    SaveFails,
    NeverInUse,
    InUseOnceSaved,
    OtherError,
    RefusedFrees,
    NeverFrees,
    SavesUnclaimed,
    SavesRefused,
    FailsAndSaves,
    SavePanicsUnclaimed,
    IgnoresCase,
    OneThread,
    Racy,
    CorruptIsNothing,
    CorruptIsANumber,
    CorruptKeepsTheName,
    SkipsInLife,
    FailsInLife,
}

use Bug::*;

const REFUSED: &[(Bug, &str, &str)] = &[
    (StartsAtZero, "a new name has nothing saved", "loaded Some(0)"),
    (ZeroIsNothing, "what was saved last is loaded", "loaded None, and Some(0) was saved last"),
    (Forgets, "what was saved last is loaded", "loaded None"),
    (KeepsTheFirst, "what was saved last is loaded", "\"in-a-row\" loaded Some(0), and Some(50)"),
    (Truncates, "what was saved last is loaded", "loaded Some(0), and Some(4294967296)"),
    (OneMore, "what was saved last is loaded", "loaded Some(1), and Some(0)"),
    (LoadedOnce, "what was saved last is loaded", "loaded None, and Some(0)"),
    (AcquirePanics, "a healthy progress answers, with no error and no panic", "acquire() panicked: no disk"),
    (SaveFails, "a healthy progress answers, with no error and no panic", "save(0) failed: no disk"),
    (NeverInUse, "a name that is in use is Error::InUse", "a second one loaded nothing"),
    (InUseOnceSaved, "a name that is in use is Error::InUse", "nothing was saved yet"),
    (OtherError, "a name that is in use is Error::InUse", "the consumer has ended"),
    (RefusedFrees, "a value that was refused changes nothing when it is dropped", "was free"),
    (NeverFrees, "the name is free when its value is dropped", "every value of it was dropped"),
    (SavesUnclaimed, "a save without the name is an error, and changes nothing", "before acquire() it returned Ok"),
    (
        SavesRefused,
        "a save without the name is an error, and changes nothing",
        "after acquire() was refused it returned Ok",
    ),
    (FailsAndSaves, "a save without the name is an error, and changes nothing", "loaded Some(9)"),
    (SavePanicsUnclaimed, "a save without the name is an error, and changes nothing", "it panicked"),
    (IgnoresCase, "names have nothing to do with each other", "\"Apart\""),
    (OneThread, "it may move to another thread", "save(4) failed"),
    (Racy, "of several that acquire at once exactly one has the name", "have it"),
    (CorruptIsNothing, "a value that cannot be read is an error", "it loaded nothing"),
    (CorruptIsANumber, "a value that cannot be read is an error", "it loaded 12"),
    (CorruptKeepsTheName, "a value that cannot be read is an error, and the name stays free", "said to be in use"),
    (SkipsInLife, "a consumer that is stopped again and again goes on where it was", "the next loaded"),
    (FailsInLife, "a consumer that is stopped again and again goes on where it was", "no disk"),
];

#[test]
fn each_broken_rule_of_a_progress_is_named() {
    suite(Nothing).run();
    let mut wrong = Vec::new();
    for (bug, rule, how) in REFUSED {
        let said = refusal(*bug, || suite(*bug).patience(Duration::from_secs(5)).run());
        if ![*rule, *how, "does not keep the rules of Progress: "].iter().all(|part| said.contains(part)) {
            wrong.push(format!("{bug:?} should break {rule:?} with {how:?}, and: {said}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn suite<'a>(bug: Bug) -> ProgressSuite<'a, Bent> {
    let disk = Arc::new(Mutex::new(HashMap::<String, Slot>::new()));
    let damaged = disk.clone();
    ProgressSuite::new(move |name| Bent::new(bug, name, disk.clone()))
        .corrupt(move |name| damaged.lock().get_mut(name).unwrap().value = Some("12x".to_owned()))
}

#[derive(Default)]
struct Slot {
    value: Option<String>,
    in_use: bool,
    /// The number of racers that checked whether the name is free.
    looked: u32,
}

struct Bent {
    bug: Bug,
    name: String,
    disk: Arc<Mutex<HashMap<String, Slot>>>,
    claimed: bool,
    tried: bool,
    made_on: ThreadId,
}

impl Bent {
    fn new(bug: Bug, name: &str, disk: Arc<Mutex<HashMap<String, Slot>>>) -> Self {
        let name = if bug == IgnoresCase { name.to_lowercase() } else { name.to_owned() };
        Self { bug, name, disk, claimed: false, tried: false, made_on: std::thread::current().id() }
    }

    fn with<R>(&self, change: impl FnOnce(&mut Slot) -> R) -> R {
        change(self.disk.lock().entry(self.name.clone()).or_default())
    }

    fn load(&self) -> Result<Option<u64>, Error> {
        let Some(text) = self.with(|slot| if self.bug == LoadedOnce { slot.value.take() } else { slot.value.clone() })
        else {
            return Ok((self.bug == StartsAtZero).then_some(0));
        };
        match (text.parse::<u64>(), self.bug) {
            (Ok(0), ZeroIsNothing) => Ok(None),
            (Ok(index), OneMore) => Ok(Some(index + 1)),
            (Ok(index), SkipsInLife) if self.name == "consumed" => Ok(Some(index + 1)),
            (Ok(index), _) => Ok(Some(index)),
            (Err(_), CorruptIsNothing) => Ok(None),
            (Err(_), CorruptIsANumber) => Ok(Some(12)),
            (Err(e), _) => Err(Error::Corrupt { name: self.name.clone(), reason: e.to_string() }),
        }
    }
}

impl Progress for Bent {
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
        assert!(self.bug != AcquirePanics, "no disk");
        self.tried = true;
        let in_use = match self.bug {
            NeverInUse => false,
            InUseOnceSaved => self.with(|slot| slot.in_use),
            Racy => {
                let (in_use, looked) = self.with(|slot| {
                    slot.looked += 1;
                    (slot.in_use, slot.looked)
                });
                // Waits until another thread has looked, too, at any speed of the machine. A single
                // thread gives up after a while.
                (0..50).take_while(|_| self.with(|slot| slot.looked == looked)).for_each(|_| {
                    std::thread::park_timeout(Duration::from_millis(1));
                });
                self.with(|slot| slot.in_use = true);
                in_use
            }
            _ => self.with(|slot| std::mem::replace(&mut slot.in_use, true)),
        };
        if in_use {
            return Err(match self.bug {
                OtherError => Error::Stopped,
                _ => Error::InUse { name: self.name.clone() },
            });
        }
        let loaded = self.load().inspect_err(|_| self.with(|slot| slot.in_use = self.bug == CorruptKeepsTheName))?;
        self.claimed = true;
        Ok(loaded.map(Checkpoint::new))
    }

    fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
        let index = checkpoint.last_processed;
        let moved = std::thread::current().id() != self.made_on;
        let unclaimed = !self.claimed;
        match self.bug {
            SaveFails => return Err("no disk".into()),
            FailsInLife if self.name == "consumed" => return Err("no disk".into()),
            OneThread if moved => return Err("made for one thread".into()),
            Forgets => return Ok(()),
            KeepsTheFirst if self.with(|slot| slot.value.is_some()) => return Ok(()),
            SavesUnclaimed => {}
            SavesRefused if self.tried => {}
            FailsAndSaves if unclaimed => {
                self.with(|slot| slot.value = Some(index.to_string()));
                return Err("not acquired".into());
            }
            SavePanicsUnclaimed if unclaimed => panic!("not acquired"),
            _ if unclaimed => return Err("not acquired".into()),
            _ => {}
        }
        let index = if self.bug == Truncates { u64::from(index as u32) } else { index };
        self.with(|slot| {
            slot.value = Some(index.to_string());
            slot.in_use = true;
        });
        Ok(())
    }
}

impl Drop for Bent {
    fn drop(&mut self) {
        if (self.claimed && self.bug != NeverFrees) || (self.tried && self.bug == RefusedFrees) {
            self.with(|slot| slot.in_use = false);
        }
    }
}
