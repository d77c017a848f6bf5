//! Plants the bugs of `tests/mutants.txt` in a copy of the sources, and runs the test that has to
//! find each: `plant COPY TARGET [PART OF THE TITLE]`.
//!
//! All bugs are compiled at once. A variable chooses the one that is to run. A bug in a place that
//! is fixed when the code is compiled is compiled alone.

mod building;
mod planting;
mod running;

use building::{Executable, Fault};
use planted::list::{self, Bug, Program};
use planted::places::Sources;
use planting::Placed;
use running::{End, Run};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, fs};

/// The longest time of a test without a bug.
const LIMIT: Duration = Duration::from_secs(600);

/// The longest time of a test with a bug, beside ten times its time without one.
const HANGS: Duration = Duration::from_secs(20);

/// The end of the search for a bug.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Found,
    Survived,
    Stale,
    Broken,
}

/// Prints the verdict on a bug, and a remark.
fn say(verdict: Verdict, bug: &Bug, remark: &str) -> Verdict {
    let word = match verdict {
        Verdict::Found => "found",
        Verdict::Survived => "SURVIVED",
        Verdict::Stale => "STALE",
        Verdict::Broken => "BROKEN",
    };
    let remark = if remark.is_empty() { String::new() } else { format!(" ({remark})") };
    println!("{word:<9} {}{remark}", bug.title);
    verdict
}

/// Says how the test of a bug ended.
fn judge(bug: &Bug, end: Result<(End, Duration), String>, remark: &str) -> Verdict {
    match end {
        Ok((End::Failed, _)) => say(Verdict::Found, bug, remark),
        Ok((End::Passed, _)) => say(Verdict::Survived, bug, &format!("{} {}", bug.program, bug.test)),
        Ok((End::NoTest, _)) => say(Verdict::Broken, bug, "no test was run"),
        Err(error) => say(Verdict::Broken, bug, &error),
    }
}

/// The sources, and the folders: the copy in which bugs are planted, and the one for what is
/// compiled.
struct Planter {
    sources: Sources,
    copy: PathBuf,
    target: PathBuf,
}

impl Planter {
    /// Makes the copy that of these texts, and of the sources otherwise. A file that is like this
    /// already stays as it is, since cargo compiles what is new.
    fn write(&self, texts: &BTreeMap<String, String>) -> Result<(), String> {
        for file in &self.sources.files {
            let (path, text) = (self.copy.join(&file.path), texts.get(&file.path).unwrap_or(&file.text));
            let is_there = fs::read_to_string(&path).is_ok_and(|there| there == *text);
            if !is_there {
                fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Compiles the programs with all of these bugs but those that do not compile, which it takes
    /// out of the list and returns.
    fn build<'a>(
        &self,
        programs: &BTreeSet<Program>,
        chosen: &mut Vec<Placed<'a>>,
    ) -> Result<(BTreeMap<Program, Executable>, Vec<Placed<'a>>), String> {
        let mut alone = Vec::new();
        loop {
            let planted = planting::plant(&self.sources, &chosen.iter().collect::<Vec<_>>());
            self.write(&planted.texts)?;
            let faults = match building::build(&self.copy, &self.target, programs) {
                Ok(executables) => return Ok((executables, alone)),
                Err(faults) => faults,
            };
            let places = faults.iter().flat_map(|fault| &fault.places);
            let faulty: BTreeSet<_> = places.flat_map(|(path, bytes)| planted.bugs_at(path, bytes)).collect();
            if faulty.is_empty() {
                return Err(rendered(&faults));
            }
            alone.extend(chosen.extract_if(.., |(bug, _)| faulty.contains(&bug.number)));
        }
    }

    /// Finds the bugs of tests, or those of models.
    fn find(&self, bugs: Vec<Placed<'_>>) -> Result<Vec<Verdict>, String> {
        let programs: BTreeSet<_> = bugs.iter().map(|(bug, _)| bug.program.clone()).collect();
        let (mut chosen, mut alone): (Vec<_>, Vec<_>) =
            bugs.into_iter().partition(|placed| planting::can_be_chosen(&self.sources, placed));
        let begun = Instant::now();
        let (executables, faulty) = self.build(&programs, &mut chosen)?;
        alone.extend(faulty);
        println!("{} bugs in {} programs were compiled in {}", chosen.len(), programs.len(), time(begun.elapsed()));

        let tests: BTreeSet<_> = chosen.iter().chain(&alone).map(|(bug, _)| bug.call()).collect();
        let tests: Vec<_> = tests.into_iter().collect();
        let ends = running::each(&tests, |call| self.run(&executables, *call, None, LIMIT));
        let sound: BTreeMap<_, _> = tests.iter().zip(ends).collect();
        println!("{} tests ran without a bug, {} since the start", tests.len(), time(begun.elapsed()));

        let mut verdicts = Vec::new();
        let mut is_sound = |(bug, _): &Placed<'_>| {
            let fault = match &sound[&bug.call()] {
                Ok((End::Passed, _)) => return true,
                Ok((End::Failed, _)) => format!("the test fails without the bug, too: {} {}", bug.program, bug.test),
                Ok((End::NoTest, _)) => format!("there is no such test: {} {}", bug.program, bug.test),
                Err(error) => error.clone(),
            };
            verdicts.push(say(Verdict::Broken, bug, &fault));
            false
        };
        chosen.retain(&mut is_sound);
        alone.retain(&mut is_sound);
        let limit = |bug: &Bug| {
            let took = sound[&bug.call()].as_ref().map_or(LIMIT, |(_, took)| *took);
            HANGS + took * 10
        };
        verdicts.extend(running::each(&chosen, |(bug, _)| {
            judge(bug, self.run(&executables, bug.call(), Some(bug.number), limit(bug)), "")
        }));
        for placed in &alone {
            verdicts.push(self.find_alone(placed, limit(placed.0))?);
        }
        Ok(verdicts)
    }

    /// Compiles one bug as it is, without any other.
    fn find_alone(&self, placed: &Placed<'_>, limit: Duration) -> Result<Verdict, String> {
        let (bug, place) = placed;
        let file = &self.sources.files[place.file];
        let mutant = planting::with_bug(&file.text, &(0..file.text.len()), placed);
        self.write(&BTreeMap::from([(file.path.clone(), mutant)]))?;
        match building::build(&self.copy, &self.target, &BTreeSet::from([bug.program.clone()])) {
            Ok(executables) => Ok(judge(bug, self.run(&executables, bug.call(), None, limit), "compiled alone")),
            Err(faults) => Ok(say(Verdict::Broken, bug, &rendered(&faults))),
        }
    }

    /// Runs a test, with one of the bugs that the program has or with none.
    fn run(
        &self,
        executables: &BTreeMap<Program, Executable>,
        (program, test, store): (&Program, &str, &str),
        bug: Option<u32>,
        limit: Duration,
    ) -> Result<(End, Duration), String> {
        let executable = executables.get(program).ok_or_else(|| format!("cargo made no program for {program}"))?;
        let name = bug.map_or_else(|| format!("{} on {store}", test.replace(':', "_")), |bug| bug.to_string());
        let output = self.target.join("output").join(name);
        Run { executable, test, store, bug, limit }
            .end(&output)
            .map_err(|error| format!("{}: {error}", output.display()))
    }
}

/// The errors as the compiler shows them.
fn rendered(faults: &[Fault]) -> String {
    faults.iter().map(|fault| fault.rendered.as_str()).collect()
}

fn time(took: Duration) -> String {
    format!("{} min {:02} s", took.as_secs() / 60, took.as_secs() % 60)
}

/// The part of the list that this run has: `2/4` is the second of four.
fn part(text: &str) -> Option<(usize, usize)> {
    let (part, parts) = text.split_once('/')?;
    let (part, parts): (usize, usize) = (part.parse().ok()?, parts.parse().ok()?);
    (1..=parts).contains(&part).then_some((part - 1, parts))
}

fn plant() -> Result<bool, String> {
    let begun = Instant::now();
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [copy, target, title] = &*arguments else { return Err("plant COPY TARGET TITLE".to_owned()) };
    let (part, parts) = match env::var("PART") {
        Ok(text) if !text.is_empty() => part(&text).ok_or_else(|| format!("PART={text} is not like 1/4"))?,
        _ => (0, 1),
    };
    let (copy, target) = (PathBuf::from(copy), PathBuf::from(target));
    fs::create_dir_all(target.join("output")).map_err(|error| error.to_string())?;
    let bugs = fs::read_to_string(copy.join("tests/mutants.txt")).map_err(|error| error.to_string())?;
    let bugs = list::read(&bugs)?;
    let sources = Sources::read(&copy)?;
    let planter = Planter { sources, copy, target };
    let mut verdicts = Vec::new();

    let selected = bugs.iter().filter(|bug| bug.title.contains(title.as_str()));
    let (mut of_tests, mut of_models) = (Vec::new(), Vec::new());
    for bug in selected.skip(part).step_by(parts) {
        match planter.sources.find(&bug.place, &bug.was) {
            Ok(place) if bug.program == Program::Loom => of_models.push((bug, place)),
            Ok(place) => of_tests.push((bug, place)),
            Err(fault) => verdicts.push(say(Verdict::Stale, bug, &fault)),
        }
    }
    for bugs in [of_tests, of_models] {
        if !bugs.is_empty() {
            verdicts.extend(planter.find(bugs)?);
        }
    }
    let count = |wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count();
    println!(
        "{} planted in {}: {} found, {} survived, {} stale, {} broken",
        verdicts.len(),
        time(begun.elapsed()),
        count(Verdict::Found),
        count(Verdict::Survived),
        count(Verdict::Stale),
        count(Verdict::Broken),
    );
    Ok(count(Verdict::Found) == verdicts.len())
}

fn main() -> ExitCode {
    match plant() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("plant: {error}");
            ExitCode::FAILURE
        }
    }
}
