//! Jobs that really kill their process, and processes killed during a job, a redrive or a move.
//! Each test runs this program again as its child, with a directory to work in.

use common::dying::{Lines, child, dir_of_child, killed_after};
use common::{a_directory, numbers, open_in};
use std::path::Path;
use std::sync::Arc;
use waterline::{Consumer, Failure, Index, MoveKind, OnExhausted, Store};

const PARK: OnExhausted = OnExhausted::Park { budget: 10 };
const MAX: u32 = 2;
const JOBS: Index = 60;
const POISON: Index = 17;

fn count(store: &Store, index: Index) -> i64 {
    store.table("counts").unwrap().counter(index.to_be_bytes()).unwrap()
}

#[test]
#[ignore = "a child of the tests below"]
fn aborting_child() {
    let Some(dir) = dir_of_child() else { return };
    let store = open_in(dir).unwrap();
    let counts = store.table("counts").unwrap();
    let builder = Consumer::builder(numbers(JOBS), store.progress("p")).stop_at(JOBS - 1);
    let consumer =
        builder.max_processing(4).max_crashes(MAX).on_exhausted(PARK).start_transactional(move |job, effects| {
            if job.index == POISON {
                std::process::abort();
            }
            Ok(effects.add(&counts, job.index.to_be_bytes(), 1)?)
        });
    consumer.unwrap().join().unwrap();
}

#[test]
fn an_aborting_job_is_parked_and_its_neighbours_finish() {
    let Some(dir) = a_directory() else { return };
    let mut deaths = 0;
    while !child("crashes::aborting_child", dir.path(), 0).wait().unwrap().success() {
        deaths += 1;
        assert!(deaths <= MAX + 2, "it dies for ever");
    }
    let store = open_in(dir.path()).unwrap();
    assert_eq!(store.progress("p").last_processed().unwrap(), Some(JOBS - 1));
    let parked = store.parked("p").unwrap();
    assert_eq!(parked.iter().map(|parked| (parked.index, parked.crashes)).collect::<Vec<_>>(), [(POISON, MAX)]);
    for index in 0..JOBS {
        assert_eq!(count(&store, index), i64::from(index != POISON), "job {index} after {deaths} deaths");
    }
    let info = store.consumers().unwrap().remove(0);
    assert_eq!((info.life_open, info.done_ahead), (Some(false), 0));
}

/// The job that is parked and redriven.
const BAD: Index = 3;
/// The target of the seek. `SKIPPED` is the skipped job.
const SOUGHT: Index = 5;
const SKIPPED: Index = 10;

/// Processes the jobs up to this one, and prints each start and each save.
fn live(store: &Store, lines: &Arc<Lines>, last: Index, mended: bool) {
    let counts = store.table("counts").unwrap();
    let (starts, saves) = (lines.clone(), lines.clone());
    let builder = Consumer::builder(numbers(JOBS), store.progress("p")).on_exhausted(PARK).max_processing(2);
    let builder = builder.stop_at(last).on_processed(move |run| saves.say(&format!("{run:?} are saved")));
    let consumer = builder.start_transactional(move |job, effects| {
        starts.say(&format!("job {} starts", job.index));
        if job.index == BAD && !mended {
            return Err(Failure::permanent("it is bad").into());
        }
        Ok(effects.add(&counts, job.index.to_be_bytes(), 1)?)
    });
    consumer.unwrap().join().unwrap();
    lines.say("a life ends");
}

#[test]
#[ignore = "a child of the tests below"]
fn moving_child() {
    let Some(dir) = dir_of_child() else { return };
    let lines = Lines::of_child();
    let store = open_in(dir).unwrap();
    let moves = || store.progress("p").history().unwrap().len();
    if moves() == 0 {
        live(&store, &lines, 9, false);
        store.progress("p").seek(SOUGHT, "once more").unwrap();
        lines.say("it is moved");
    }
    if moves() == 1 {
        live(&store, &lines, 9, false);
        if !store.parked("p").unwrap().is_empty() {
            store.redrive("p", BAD).unwrap();
            lines.say("it is to run once more");
            live(&store, &lines, 9, true);
        }
        store.progress("p").skip(SKIPPED, "nobody needs it").unwrap();
        lines.say("it is skipped");
    }
    live(&store, &lines, 14, true);
}

/// Checks that each job is parked or done as often as it must be, and that the history and the
/// progress agree. Returns the number of moves.
fn check(dir: &Path, place: &str) -> usize {
    let store = open_in(dir).unwrap();
    let kinds: Vec<_> = store.progress("p").history().unwrap().iter().map(|made| made.kind).collect();
    assert_eq!(kinds, [MoveKind::Seek, MoveKind::Skip][..kinds.len()], "{place}");
    let last = store.progress("p").last_processed().unwrap();
    let next = last.map_or(0, |last| last + 1);
    let parked: Vec<_> = store.parked("p").unwrap().iter().map(|job| (job.index, job.crashes)).collect();
    assert!(parked.iter().all(|(_, crashes)| *crashes == 0), "{place}: {parked:?}");
    let is_parked = |index| parked.contains(&(index, 0));
    assert_eq!(is_parked(SKIPPED), kinds.len() == 2, "{place}");
    assert!(kinds.is_empty() || next >= SOUGHT, "{place}: {kinds:?}, {last:?}");
    let mut ahead = 0;
    for index in 0..15 {
        let before = i64::from((SOUGHT..10).contains(&index) && !kinds.is_empty());
        let times = count(&store, index) - before;
        let is_done = times == 1 || is_parked(index);
        assert!(times == i64::from(is_done && !is_parked(index)), "{place}: job {index} is done {times} times");
        assert!(is_done || index >= next, "{place}: job {index} is skipped");
        ahead += u64::from(is_done && index >= next);
    }
    let info = store.consumers().unwrap();
    assert_eq!(info.first().map_or(0, |info| info.done_ahead), ahead, "{place}");
    kinds.len()
}

#[test]
fn kills_during_a_redrive_or_move_lose_no_job() {
    let mut killed = 0;
    for line in 1.. {
        let Some(dir) = a_directory() else { return };
        if !killed_after("crashes::moving_child", dir.path(), line) {
            break;
        }
        killed += 1;
        check(dir.path(), &format!("killed after line {line}"));
        // In the next processes jobs are recorded before they start, or run alone.
        for again in [line / 2 + 1, 2] {
            if killed_after("crashes::moving_child", dir.path(), again) {
                check(dir.path(), &format!("killed after line {line}, and again after line {again}"));
            }
        }
        assert!(!killed_after("crashes::moving_child", dir.path(), 0));
        assert_eq!(check(dir.path(), &format!("at the end, killed after line {line}")), 2);
        let store = open_in(dir.path()).unwrap();
        assert_eq!(store.progress("p").last_processed().unwrap(), Some(14));
    }
    assert!(killed > 25, "{killed} places");
}
