//! What each end makes of a job. Each engine and the model of a queue follow these rules, so only
//! literal numbers here tell whether they are right.

use super::*;

const WALL: u64 = 1_000_000;
const MINUTE: u64 = 60_000;

fn past() -> Past {
    let retry = Retry::exponential(Duration::from_secs(1), Duration::from_secs(5)).max_attempts(4);
    Past { failures: 0, crashes: 0, retry, max_crashes: Some(4), resubmit: None, is_healed: false }
}

fn failed(at: Option<u64>) -> End {
    End::Failed { error: "no".to_owned(), at }
}

fn buried() -> End {
    End::Buried { reason: "no".to_owned() }
}

fn wait(due: u64, named: bool, failures: u32, crashes: u32) -> Next {
    Next::Wait { due, named, failures, crashes, error: None }
}

fn again(due: u64, named: bool, failures: u32) -> Next {
    Next::Wait { due, named, failures, crashes: 0, error: Some("no".to_owned()) }
}

fn dies(failures: u32, crashes: u32, error: &str) -> Next {
    Next::Die { failures, crashes, error: error.to_owned() }
}

#[test]
fn each_end_leaves_the_documented_counts_and_time() {
    let (after, at) = (End::Snoozed { at: When::After(Duration::from_secs(2)) }, End::Snoozed { at: When::At(7) });
    let put_back = End::PutBack { error: "it stops".to_owned() };
    for (failures, crashes, end, next_is) in [
        (3, 3, End::Finished, Next::Finish),
        (0, 0, failed(None), again(WALL + 1_000, false, 1)),
        (1, 0, failed(None), again(WALL + 2_000, false, 2)),
        (2, 0, failed(None), again(WALL + 4_000, false, 3)),
        (2, 0, failed(Some(7)), again(7, true, 3)),
        (3, 0, failed(None), dies(4, 0, "no")),
        (3, 0, failed(Some(7)), dies(4, 0, "no")),
        (1, 2, buried(), dies(2, 2, "no")),
        (2, 1, at, wait(7, true, 2, 1)),
        (2, 1, after, wait(WALL + 2_000, false, 2, 1)),
        (2, 1, put_back, wait(0, false, 2, 1)),
        // At once, then 1 s, 2 s and so on.
        (2, 0, End::Crashed, wait(0, false, 2, 1)),
        (2, 1, End::Crashed, wait(WALL + 1_000, false, 2, 2)),
        (2, 2, End::Crashed, wait(WALL + 2_000, false, 2, 3)),
        (2, 3, End::Crashed, dies(2, 4, "its process died 4 times while it ran")),
    ] {
        let past = Past { failures, crashes, ..past() };
        assert_eq!(next(&past, end.clone(), WALL, 1.0), next_is, "{end:?} behind {failures} and {crashes}");
    }
    let once = Past { max_crashes: Some(1), ..past() };
    assert_eq!(next(&once, End::Crashed, WALL, 1.0), dies(0, 1, "its process died once while it ran"));
    let healed = Past { failures: 3, is_healed: true, ..past() };
    assert_eq!(next(&healed, failed(None), WALL, 1.0), again(WALL + 1_000, false, 1));
}

#[test]
fn a_job_pushed_again_runs_anew_except_after_its_last_crash() {
    let past = Past { failures: 3, crashes: 2, resubmit: Some(9), ..past() };
    let anew = |crashes, error: Option<&str>| Next::Anew { due: 9, crashes, error: error.map(str::to_owned) };
    assert_eq!(next(&past, End::Finished, WALL, 1.0), anew(0, None));
    assert_eq!(next(&past, failed(None), WALL, 1.0), anew(2, Some("no")));
    assert_eq!(next(&past, buried(), WALL, 1.0), anew(2, Some("no")));
    let first = Past { failures: 0, crashes: 0, ..past };
    assert_eq!(next(&first, failed(None), WALL, 1.0), again(WALL + 1_000, false, 1));
    let last = Past { crashes: 3, ..past };
    assert_eq!(next(&last, End::Crashed, WALL, 1.0), dies(3, 4, "its process died 4 times while it ran"));
}

#[test]
fn a_job_runs_alone_after_its_second_crash() {
    let put_back = End::PutBack { error: String::new() };
    for (was_suspect, crashes, end, is) in [
        (false, 0, End::Crashed, false),
        (false, 1, End::Crashed, true),
        (true, 2, End::Crashed, true),
        (true, 2, put_back.clone(), true),
        (false, 1, put_back, false),
        (true, 2, End::Finished, false),
        (true, 2, failed(None), false),
        (true, 2, buried(), false),
    ] {
        assert_eq!(is_suspect(was_suspect, crashes, &end), is, "{end:?} behind {crashes}");
    }
}

#[test]
fn retention_and_due_times_hold_to_the_millisecond() {
    let minute = Retention::For(Duration::from_millis(MINUTE));
    let kept = [Retention::Drop, Retention::Keep, Retention::For(Duration::ZERO), minute];
    assert_eq!(kept.map(|kept| kept_until(kept, WALL)), [None, Some(u64::MAX), None, Some(WALL + MINUTE)]);
    let states = [0, WALL - 1, WALL, WALL + 1].map(|due| waiting(due, WALL));
    assert_eq!(states, [JobState::Ready, JobState::Ready, JobState::Ready, JobState::Scheduled]);
}
