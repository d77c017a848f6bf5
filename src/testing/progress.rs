//! The suite that every progress has to pass.

use super::{Answer, Checked, PATIENCE, ask, broken, insist, unboxed};
use crate::base::{Error, Index, sync::Arc, time};
use crate::progress::{Checkpoint, Progress, SaveError, Saved, Tenure};
use crossbeam_channel::unbounded;
use std::fmt;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

mod consumed;
mod engines;
mod transactions;

const ANSWERS: &str = "a healthy progress answers, with no error and no panic";
const NOTHING: &str = "a new name has nothing saved";
const SAVED: &str = "what was saved last is loaded";
const IN_USE: &str = "a name that is in use is Error::InUse, or Error::Leased";
const REFUSED: &str = "a value that was refused changes nothing when it is dropped";
const FREE: &str = "the name is free when its value is dropped";
const UNNAMED: &str = "a save without the name is an error, and changes nothing";
const APART: &str = "names have nothing to do with each other";
const MOVES: &str = "it may move to another thread";
const ONE: &str = "of several that acquire at once exactly one has the name";
const SHUT_OUT: &str = "acquire shuts out the writer before";
const CORRUPT: &str = "a value that cannot be read is an error, and the name stays free";

/// How many saves are made in a row.
const MANY: Index = 300;
/// How many threads acquire a name concurrently.
const THREADS: usize = 8;
/// For how many names they do so.
const ROUNDS: u32 = 20;

type ByName<'a, R> = Box<dyn Fn(&str) -> R + 'a>;

/// A part of the checks.
type Check<'a, P> = dyn Fn(&ProgressSuite<'a, P>) -> Checked + 'a;

/// Checks that a progress keeps the rules of [`Progress`], or panics with the broken rule.
///
/// The suite gets a closure that opens the progress with a name, as a restart would. All calls have
/// to open the same storage, which must be empty at first. The rules:
///
/// * A new name has nothing saved. Every later life loads the last saved value, for every index. A
///   life that takes the name and saves nothing leaves the value as it is.
/// * While one value has a name, acquiring it is [`Error::InUse`] or [`Error::Leased`]. The refused
///   value changes nothing when it is dropped. The name is free when its value is dropped. If
///   several values acquire concurrently, exactly one has the name.
/// * If a name can be taken over from a live value ([`lapse`](Self::lapse),
///   [`takes_over`](Self::takes_over)), `acquire` fences the previous writer: a save of that writer
///   is an error and changes nothing, and its drop does not free the name. If the error is
///   [`SaveError::Lost`], a consumer that has that value halts with [`Error::Fenced`].
/// * If the progress [keeps jobs done ahead](Progress::keeps_done_ahead), it loads them exactly as
///   they were saved, even while there is no watermark, and a consumer runs none of them again.
/// * If the progress [keeps records](Progress::keeps_records), it loads exactly those that were put
///   and not removed.
/// * A [transaction](Self::transactional) has the user's rows and the save, or neither.
/// * A [fence](Progress::fence) is 0 in every life of a name, or grows from life to life.
/// * A save without the name is an error, and changes nothing.
/// * A save under one name changes no other name, and a value may move to another thread.
/// * A value that cannot be read is an error, never "nothing saved", and the name stays free
///   ([`corrupt`](Self::corrupt)).
/// * A [`Consumer`](crate::Consumer) that is stopped again and again goes on where it was:
///   everything at or below the watermark that it loads was done.
///
/// ```
/// use waterline::Store;
/// use waterline::testing::ProgressSuite;
///
/// let store = Store::in_memory();
/// ProgressSuite::new(|name| store.progress(name)).run();
/// ```
///
/// For a progress that has no names, the closure finds the storage by the name:
///
/// ```
/// use std::cell::RefCell;
/// use std::collections::HashMap;
/// use waterline::MemoryProgress;
/// use waterline::testing::ProgressSuite;
///
/// let places = RefCell::new(HashMap::<String, MemoryProgress>::new());
/// let open = |name: &str| places.borrow_mut().entry(name.to_owned()).or_default().clone();
/// ProgressSuite::new(open).run();
/// ```
///
/// The suite checks the methods that a consumer calls: `acquire_all` and `save_all` if the progress
/// keeps jobs done ahead, and otherwise `acquire` and `save`.
#[must_use = "nothing is checked before `run`"]
pub struct ProgressSuite<'a, P> {
    open: ByName<'a, P>,
    corrupt: Option<ByName<'a, ()>>,
    ways: Ways<'a>,
    patience: Duration,
    /// Checks the transactions, if the progress has any.
    transactions: Option<Box<Check<'a, P>>>,
}

/// How a second value gets a name.
enum Ways<'a> {
    /// After the first value was dropped.
    Exclusive,
    /// Also after the first value's time expired, which this closure brings about.
    Lapses(ByName<'a, ()>),
    /// At any time.
    TakesOver,
}

impl<'a, P: Progress> ProgressSuite<'a, P> {
    /// Creates a suite for the progress that this closure opens by its name.
    pub fn new(open: impl Fn(&str) -> P + 'a) -> Self {
        Self { open: Box::new(open), corrupt: None, ways: Ways::Exclusive, patience: PATIENCE, transactions: None }
    }

    /// Also checks the result of a damaged value.
    ///
    /// The closure damages the value stored under a name, so that it can no longer be read.
    pub fn corrupt(mut self, corrupt: impl Fn(&str) + 'a) -> Self {
        self.corrupt = Some(Box::new(corrupt));
        self
    }

    /// Also checks a progress that holds its names for a limited time.
    ///
    /// The closure lets the holder's time expire, so that the next `acquire` takes the name over
    /// from a live value.
    pub fn lapse(mut self, lapse: impl Fn(&str) + 'a) -> Self {
        self.ways = Ways::Lapses(Box::new(lapse));
        self
    }

    /// Checks a progress whose `acquire` always takes the name over.
    ///
    /// The rules for a name in use do not apply to such a progress.
    pub fn takes_over(mut self) -> Self {
        self.ways = Ways::TakesOver;
        self
    }

    /// Sets how long a call or a consumer may take. Default: 20 seconds.
    pub fn patience(mut self, limit: Duration) -> Self {
        self.patience = limit;
        self
    }

    /// Checks every rule.
    ///
    /// # Panics
    /// If a rule is broken.
    #[track_caller]
    pub fn run(&self) {
        if let Err(broken) = self.check() {
            panic!("{} does not keep the rules of Progress: {broken}", std::any::type_name::<P>());
        }
    }

    fn check(&self) -> Checked {
        self.saved_is_loaded()?;
        if !self.is_taken_over() {
            self.a_name_is_one_values()?;
        }
        self.refused_without_the_name()?;
        self.names_are_apart()?;
        self.it_moves()?;
        for round in 0..ROUNDS {
            self.one_of_many(&format!("many-{round}"))?;
        }
        self.corrupt_is_an_error()?;
        self.done_ahead_is_kept()?;
        self.fences_grow()?;
        self.the_writer_before_is_shut_out()?;
        self.records_are_kept()?;
        self.transactions.as_ref().map_or(Ok(()), |check| check(self))?;
        consumed::consumed(&self.open, try_acquire, self.patience)
    }

    fn is_taken_over(&self) -> bool {
        matches!(self.ways, Ways::TakesOver)
    }

    fn saved_is_loaded(&self) -> Checked {
        for index in [0, 1, 255, 256, 1 << 32, Index::MAX - 1] {
            let name = format!("saved-{index}");
            let mut one = self.taken(&name, None)?;
            save(&mut one, index)?;
            drop(one);
            // A life that takes the name and saves nothing leaves the value as it is.
            drop(self.taken(&name, Some(index))?);
            drop(self.taken(&name, Some(index))?);
        }
        let mut one = self.taken("in-a-row", None)?;
        for index in 0..MANY {
            save(&mut one, index)?;
            if index % 50 == 0 {
                drop(one);
                one = self.taken("in-a-row", Some(index))?;
            }
        }
        drop(one);
        self.taken("in-a-row", Some(MANY - 1)).map(drop)
    }

    fn a_name_is_one_values(&self) -> Checked {
        let mut holder = self.taken("in-use", None)?;
        self.refused("in-use", "nothing was saved yet")?;
        self.refused("in-use", "and the last one that was refused is dropped")?;
        save(&mut holder, 5)?;
        self.refused("in-use", "something was saved")?;
        save(&mut holder, 6)?;
        drop(holder);
        let again = self.taken("in-use", Some(6))?;
        self.refused("in-use", "something was loaded")?;
        drop(again);
        self.taken("in-use", Some(6)).map(drop)
    }

    fn refused_without_the_name(&self) -> Checked {
        let unnamed = |progress: &mut P, when: &str| match ask(|| Ok(try_save(progress, &watermark(9))?)) {
            Answer::Good(()) => broken(UNNAMED, format!("{when} it returned Ok")),
            Answer::Panicked(panic) => broken(UNNAMED, format!("{when} it {panic}")),
            Answer::Failed(_) => Ok(()),
        };
        let mut stranger = (self.open)("unnamed");
        unnamed(&mut stranger, "before acquire()")?;
        drop(stranger);
        let mut holder = self.taken_as("unnamed", None, UNNAMED)?;
        save(&mut holder, 3)?;
        if !self.is_taken_over() {
            let mut stranger = (self.open)("unnamed");
            let _ = ask(|| Ok(try_acquire(&mut stranger)));
            unnamed(&mut stranger, "after acquire() was refused")?;
        }
        drop(holder);
        self.taken_as("unnamed", Some(3), UNNAMED).map(drop)
    }

    fn names_are_apart(&self) -> Checked {
        let names = ["apart", "apart-2", "Apart", "other"];
        let mut all = Vec::new();
        for name in names {
            all.push(self.taken_as(name, None, APART)?);
        }
        for (index, one) in (10..).zip(&mut all) {
            save(one, index)?;
        }
        drop(all.remove(0));
        if !self.is_taken_over() {
            let refused = self.refused("apart-2", "another name was let go");
            refused.or_else(|broken| super::broken(APART, broken.how))?;
        }
        drop(all);
        for (index, name) in (10..).zip(names) {
            drop(self.taken_as(name, Some(index), APART)?);
        }
        Ok(())
    }

    fn it_moves(&self) -> Checked {
        let mut one = self.taken("moves", None)?;
        let (tell, told) = unbounded();
        thread::spawn(move || {
            let saved = save(&mut one, 4);
            drop(one);
            let _ = tell.send(saved);
        });
        let saved = told.recv_timeout(self.patience);
        let saved = saved.unwrap_or_else(|_| broken(MOVES, "a save on another thread did not return"));
        saved.or_else(|other| broken(MOVES, format!("on another thread {}", other.how)))?;
        self.taken_as("moves", Some(4), MOVES).map(drop)
    }

    fn one_of_many(&self, name: &str) -> Checked {
        let together = Arc::new(Barrier::new(THREADS));
        let (tell, told) = unbounded();
        for _ in 0..THREADS {
            let (mut one, tell, together) = ((self.open)(name), tell.clone(), together.clone());
            thread::spawn(move || {
                together.wait();
                let answer = acquire(&mut one);
                // The value is sent too, so no name gets free before all threads have asked.
                let _ = tell.send((answer, one));
            });
        }
        let deadline = time::now() + self.patience;
        let mut asked = Vec::new();
        for _ in 0..THREADS {
            let Ok((answer, one)) = told.recv_deadline(deadline) else {
                return broken(ONE, format!("acquire() did not return within {:?}", self.patience));
            };
            asked.push((answer?, one));
        }
        for (answer, _) in &asked {
            if let Err(error) = answer
                && !is_in_use(error)
            {
                return broken(IN_USE, format!("of {THREADS} that asked at once one was told: {}", error.report()));
            }
        }
        let mut have_it: Vec<P> = asked.into_iter().filter_map(|(answer, one)| answer.ok().map(|_| one)).collect();
        let saved = if self.is_taken_over() {
            // Each value took the name over from an earlier one, and the last one has it.
            have_it.retain_mut(|one| matches!(ask(|| Ok(try_save(one, &watermark(1)))), Answer::Good(Ok(()))));
            Some(1)
        } else {
            None
        };
        let count = have_it.len();
        insist(count == 1, ONE, || format!("of {THREADS} that asked at once {count} have it"))?;
        drop(have_it);
        self.taken(name, saved).map(drop)
    }

    fn corrupt_is_an_error(&self) -> Checked {
        let Some(corrupt) = &self.corrupt else { return Ok(()) };
        let mut one = self.taken("corrupt", None)?;
        save(&mut one, 1_234_567)?;
        drop(one);
        corrupt("corrupt");
        for when in ["at first", "when it was asked again, the first one being dropped"] {
            let mut one = (self.open)("corrupt");
            match acquire(&mut one)? {
                Ok(loaded) => broken(CORRUPT, format!("{when} it loaded {}", shown(loaded.as_ref())))?,
                Err(error) if is_in_use(&error) => broken(CORRUPT, format!("{when} it was said to be in use"))?,
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Acquires a free name, and checks that this watermark is loaded.
    fn taken(&self, name: &str, expected: Option<Index>) -> Checked<P> {
        self.taken_as(name, expected, if expected.is_none() { NOTHING } else { SAVED })
    }

    fn taken_as(&self, name: &str, expected: Option<Index>, rule: &'static str) -> Checked<P> {
        let mut progress = (self.open)(name);
        match acquire(&mut progress)? {
            Ok(loaded) => {
                let last = loaded.as_ref().and_then(|saved| saved.last_processed);
                insist(last == expected, rule, || {
                    format!("{name:?} loaded {last:?}, and {expected:?} was saved last")
                })?;
                insist(loaded == expected.map(watermark), rule, || {
                    format!("{name:?} loaded {}, and no more than {expected:?} was saved", shown(loaded.as_ref()))
                })?;
                Ok(progress)
            }
            Err(error) if is_in_use(&error) => {
                if rule == SHUT_OUT {
                    return broken(rule, format!("{name:?} is in use, though the time of the life before ran out"));
                }
                let rule = if rule == APART { APART } else { FREE };
                broken(rule, format!("{name:?} is in use, and every value of it was dropped"))
            }
            Err(error) => broken(ANSWERS, format!("acquire() of {name:?} failed: {}", error.report())),
        }
    }

    /// Acquires a name in use, and checks that the call fails.
    fn refused(&self, name: &str, when: &str) -> Checked {
        let mut second = (self.open)(name);
        match acquire(&mut second)? {
            Err(error) if is_in_use(&error) => {}
            Err(error) => broken(IN_USE, format!("{name:?}, {when}: {}", error.report()))?,
            Ok(loaded) if when.contains("refused") => {
                broken(REFUSED, format!("then {name:?} was free, and loaded {}", shown(loaded.as_ref())))?;
            }
            Ok(loaded) => {
                broken(IN_USE, format!("{name:?}, {when}: a second one loaded {}", shown(loaded.as_ref())))?;
            }
        }
        Ok(())
    }
}

fn is_in_use(error: &Error) -> bool {
    matches!(error, Error::InUse { .. } | Error::Leased { .. })
}

/// Returns the value to save if no job is done above the watermark.
fn watermark(last_processed: Index) -> Saved {
    Saved::from(Checkpoint::new(last_processed))
}

/// Acquires as a consumer does.
fn try_acquire(progress: &mut impl Progress) -> Result<Option<Saved>, Error> {
    progress.subscribe(Tenure::new());
    if progress.keeps_done_ahead() { progress.acquire_all() } else { Ok(progress.acquire()?.map(Saved::from)) }
}

/// Saves as a consumer does.
fn try_save(progress: &mut impl Progress, saved: &Saved) -> Result<(), SaveError> {
    match saved.last_processed {
        Some(last) if !progress.keeps_done_ahead() => Ok(progress.save(&Checkpoint::new(last))?),
        _ => progress.save_all(saved),
    }
}

/// Acquires, and accepts every answer but a panic.
fn acquire(progress: &mut impl Progress) -> Checked<Result<Option<Saved>, Error>> {
    ask(|| Ok(try_acquire(progress))).good(ANSWERS, || "acquire()".to_owned())
}

fn save(progress: &mut impl Progress, index: Index) -> Checked {
    saves(progress, &watermark(index), || format!("save({index})"))
}

fn save_all(progress: &mut impl Progress, saved: &Saved) -> Checked {
    saves(progress, saved, || format!("save_all() of {}", shown(Some(saved))))
}

fn saves(progress: &mut impl Progress, saved: &Saved, call: impl FnOnce() -> String) -> Checked {
    ask(|| try_save(progress, saved).map_err(unboxed)).good(ANSWERS, call)
}

/// Describes a value: the watermark, and briefly the jobs done above it.
fn shown(loaded: Option<&Saved>) -> String {
    let Some(Saved { last_processed, next, done, .. }) = loaded else { return "nothing".to_owned() };
    let last = last_processed.map_or_else(|| "no watermark".to_owned(), |last| last.to_string());
    match &done[..] {
        [] if last_processed.is_some_and(|last| last.checked_add(1) == Some(*next)) => last,
        [] => format!("{last} with {next} as the lowest that is not done"),
        [first, ..] => {
            format!("{last} with {next} as the lowest that is not done and {} runs from {first:?} on", done.len())
        }
    }
}

impl<P> fmt::Debug for ProgressSuite<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgressSuite").field("patience", &self.patience).finish_non_exhaustive()
    }
}
