//! Kills a program, starts it again, and counts the jobs that finished and ran again.

use crate::result::Result;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The first life ends once the marks reach this job, or stop growing.
const ENOUGH: u64 = 30_000;
const STANDSTILL: Duration = Duration::from_millis(300);
const LIMIT: Duration = Duration::from_secs(20);

/// Returns how many jobs finished before the kill and ran again after it, and how many never ran.
/// An error is the reason for a missing figure.
pub fn lives(program: &Path, words: &[String], directory: &Path, jobs: u64) -> Result<(u64, u64)> {
    let marks = [directory.join("first"), directory.join("second")];
    let start = |life: usize| {
        // The job that hangs in the first life ends in the second one.
        let words = words.iter().filter(|word| life == 0 || !word.starts_with("hangs="));
        let mut command = Command::new(program);
        command.args(words).arg(format!("marks={}", marks[life].display()));
        command.stdout(Stdio::piped()).spawn()
    };
    let mut first = start(0)?;
    let (mut length, mut since, begun) = (0, Instant::now(), Instant::now());
    loop {
        protocol::rest(Duration::from_millis(1));
        let now = fs::metadata(&marks[0]).map_or(0, |file| file.len());
        if now > length {
            (length, since) = (now, Instant::now());
        }
        let all = words.iter().all(|word| !word.starts_with("hangs=")) && length >= ENOUGH;
        if all || length > 0 && since.elapsed() > STANDSTILL || begun.elapsed() > LIMIT {
            break;
        }
    }
    if first.try_wait()?.is_some() {
        return Err("it ended before it was killed".into());
    }
    first.kill()?;
    first.wait()?;
    let mut second = start(1)?;
    let begun = Instant::now();
    while second.try_wait()?.is_none() {
        if begun.elapsed() > LIMIT {
            second.kill()?;
            second.wait()?;
            return Err(format!("over {} s", LIMIT.as_secs()).into());
        }
        protocol::rest(Duration::from_millis(5));
    }
    if !fs::exists(&marks[1])? {
        let output = second.wait_with_output()?;
        let said = String::from_utf8(output.stdout)?;
        return Err(said.trim().trim_start_matches("none=").into());
    }
    let [before, after] = [fs::read(&marks[0])?, fs::read(&marks[1])?];
    let ran = |life: &[u8], job: u64| life.get(job as usize) == Some(&1);
    let again = (0..jobs).filter(|job| ran(&before, *job) && ran(&after, *job)).count();
    let lost = (0..jobs).filter(|job| !ran(&before, *job) && !ran(&after, *job)).count();
    Ok((again as u64, lost as u64))
}
