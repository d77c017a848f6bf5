use super::*;
use crate::base::{clock::Clock, retry::Retry};
use crate::commit::changes::Changes;
use crate::driver::{handlers::handing_out::Search, samples::ByHand};
use crate::reader::{Payloads, SharedSource, Weights};
use crate::source::{MemoryJobs, Steps, watermark::Watermark};
use crate::window::{Limits, Window};

fn fetched(jobs: Vec<Index>, weights: Weights, then: Then) -> Fetched {
    let jobs = <dyn Payloads>::new(jobs);
    Fetched {
        jobs,
        steps: Steps::default(),
        weights,
        keys: Vec::new(),
        then,
        quick: false,
        ended: Instant::now(),
        failures: Vec::new(),
    }
}

/// A consumer with this many failed jobs, all of which are due again at once.
fn failed(count: u64) -> Core {
    let limits = Limits { max_processing: 1, max_search_ahead: u64::MAX };
    let mut core = Core::new(Window::begin(0, limits), Retry::fixed(Duration::ZERO), usize::MAX, Instant::now());
    core.looked(Some(count - 1), Gate::Open);
    let _ = core.drain(&Now::when_asked());
    loop {
        if let Some(run) = core.reading.fetch {
            let jobs: Vec<_> = (run.first..).take(run.most()).collect();
            let weights = Weights::equal(jobs.len(), 8);
            core.fetched(fetched(jobs, weights, Then::Unasked), &Now::when_asked());
        }
        let Some(ticket) = core.hand_out(&Now::when_asked()) else { return core };
        core.job::<Index>(ticket);
        core.report(ticket.token, Err(Caught::boxed("refused".into())), &mut Changes::default(), &Now::when_asked());
        let _ = core.drain(&Now::when_asked());
    }
}

#[test]
fn a_worker_that_reads_was_not_idle() {
    let limits = Limits { max_processing: 2, max_search_ahead: u64::MAX };
    let mut core = Core::new(Window::begin(0, limits), Retry::none(), usize::MAX, Instant::now());
    core.looked(Some(0), Gate::Open);
    let _ = core.drain(&Now::when_asked());
    let run = core.reading.take_fetch(Instant::now()).expect("job 0 is to be read");
    let driver = Driver::new(core, Arc::default(), Watermark::new(), Arc::new(ByHand));
    let source = Arc::new(SharedSource::new([7_u64].into_iter().collect::<MemoryJobs<_>>(), Clock::default()));
    let mut search = Search::default();
    search.slept = true;
    drop(driver.read_for_itself(driver.core.lock(), source, run, &mut search));
    assert!(!search.slept && driver.core.lock().window.can_run());
}

#[test]
fn many_back_offs_expire_in_pieces() {
    let mut core = failed(3 * PIECE as u64 / 2);
    let now = Instant::now();
    assert!(core.expire(now));
    assert_eq!(core.failed_jobs.failures.dues().len(), PIECE / 2);
    assert!(!core.expire(now));
    assert!(core.failed_jobs.failures.dues().is_empty());
}

#[test]
fn a_delayed_look_begins_once_all_is_read() {
    let limits = Limits { max_processing: 1, max_search_ahead: u64::MAX };
    let mut core = Core::new(Window::begin(0, limits), Retry::none(), usize::MAX, Instant::now());
    core.looked(Some(9), Gate::Open);
    let _ = core.drain(&Now::when_asked());
    let now = Instant::now();
    assert!(matches!(core.order(&Now::at(now), Due::WhenIdle), Order::Read(run) if run == (Ask::new(0, 9, 8))));
    core.fetched(fetched((0..8).collect(), Weights::equal(8, 8), Then::Unasked), &Now::at(now));
    assert!(!core.drain(&Now::when_asked()).reader || core.reading.fetch.is_some());
    assert!(matches!(core.order(&Now::at(now), Due::WhenIdle), Order::Read(run) if run == (Ask::new(8, 9, 2))));
    // A worker may have read the rest meanwhile.
    core.fetched(fetched(vec![8, 9], Weights::equal(2, 8), Then::Unasked), &Now::at(now));
    assert!(core.drain(&Now::when_asked()).reader, "the reader waits for the rest of its look, and is woken");
    assert!(matches!(core.order(&Now::at(now), Due::WhenIdle), Order::Look));
}

/// Answers the fetch under way with these jobs, followed by a failure.
fn fails(core: &mut Core, jobs: Vec<Index>, now: &Now) {
    let weights = Weights::equal(jobs.len(), 8);
    core.fetched(fetched(jobs, weights, Then::Failed(Caught::from(BoxError::from("down")))), now);
    let _ = core.drain(now);
}

/// Answers the fetch under way with all of its jobs.
fn succeeds(core: &mut Core, now: &Now) -> Ask {
    let run = core.reading.fetch.expect("something is to be read");
    let jobs: Vec<_> = (run.first..).take(run.most()).collect();
    core.fetched(fetched(jobs, Weights::equal(run.most(), 8), Then::Unasked), now);
    let _ = core.drain(now);
    run
}

/// What is left of each back-off at this time.
fn pauses(core: &Core, now: &Now) -> Vec<Duration> {
    core.failed_jobs.failures.dues().iter().map(|due| *due - now.get()).collect()
}

#[test]
fn an_unreadable_retry_of_a_sound_source_waits_alone() {
    let mut core = failed(8);
    let now = Now::at(Instant::now());
    while core.expire(now.get()) {}
    let _ = core.drain(&now);
    assert_eq!(core.reading.fetch, Some(Ask::new(0, 7, 8)));
    fails(&mut core, vec![0, 1], &now);
    assert_eq!((pauses(&core, &now), core.reading.note), (vec![Duration::ZERO], false), "it is asked again at once");
    assert_eq!(succeeds(&mut core, &now), Ask::new(3, 7, 5));
    for pause in [50, 100, 200] {
        let at = Now::at(core.failed_jobs.failures.dues()[0]);
        assert!(!core.expire(at.get()));
        let _ = core.drain(&at);
        assert_eq!(core.reading.fetch, Some(Ask::new(2, 2, 1)));
        fails(&mut core, vec![], &at);
        assert_eq!(pauses(&core, &at), [Duration::from_millis(pause)]);
    }
    assert!(core.failed_jobs.failures.waiting(2).is_some_and(|job| job.unread.is_some()), "a status says so");
}

#[test]
fn retries_wait_together_while_the_source_is_down() {
    let mut core = failed(40);
    let now = Now::at(Instant::now());
    while core.expire(now.get()) {}
    let _ = core.drain(&now);
    assert_eq!(core.reading.fetch, Some(Ask::new(0, 31, 32)), "half of what is read ahead");
    fails(&mut core, vec![], &now);
    assert_eq!(core.reading.fetch, Some(Ask::new(32, 39, 8)), "the others are read meanwhile");
    fails(&mut core, vec![], &now);
    assert_eq!(core.reading.fetch, Some(Ask::new(1, 31, 31)));
    fails(&mut core, vec![], &now);
    let (mut waits, pause) = (pauses(&core, &now), Duration::from_millis(50));
    waits.sort_unstable();
    assert_eq!(waits, [vec![Duration::ZERO], vec![pause; 39]].concat(), "a call for each run, and not for each job");
    assert!(!core.reading.note && core.reading.fetch.is_none());
}

#[test]
fn a_missing_retry_waits_for_a_pause_of_its_own() {
    let mut core = failed(3);
    let mut now = Now::at(Instant::now());
    while core.expire(now.get()) {}
    let _ = core.drain(&now);
    for pause in [20, 40, 80, 160, 320, 640, 1_000, 1_000] {
        let first = core.reading.fetch.expect("it is asked for").first;
        core.fetched(fetched(vec![], Weights::equal(0, 8), Then::Missing), &now);
        assert_eq!(first, 0);
        let _ = core.drain(&now);
        assert_eq!(pauses(&core, &now), [Duration::from_millis(pause)]);
        if pause == 20 {
            assert_eq!(succeeds(&mut core, &now), Ask::new(1, 2, 2), "it holds up no other");
        }
        now = Now::at(core.failed_jobs.failures.dues()[0]);
        assert!(!core.expire(now.get()));
        let _ = core.drain(&now);
    }
    assert_eq!(succeeds(&mut core, &now), Ask::new(0, 0, 1));
}

#[test]
fn a_needless_pause_ends_no_later_back_off() {
    let mut core = failed(1);
    let now = Now::at(Instant::now());
    while core.expire(now.get()) {}
    let _ = core.drain(&now);
    core.fetched(fetched(vec![], Weights::equal(0, 8), Then::Missing), &now);
    core.looked(Some(0), Gate::Open);
    let _ = core.drain(&now);
    succeeds(&mut core, &now);
    let ticket = core.hand_out(&now).expect("job 0 is there");
    core.job::<Index>(ticket);
    let failure = Caught::boxed(crate::base::failure::Failure::defer(Duration::from_secs(3_600)).into());
    core.report(ticket.token, Err(failure), &mut Changes::default(), &now);
    let _ = core.drain(&now);
    let later = now.get() + Duration::from_secs(1);
    while core.expire(later) {}
    let _ = core.drain(&Now::at(later));
    assert_eq!(core.reading.fetch, None, "it waits for an hour");
}

#[test]
fn unreadable_new_jobs_are_reread_without_a_look() {
    let limits = Limits { max_processing: 1, max_search_ahead: u64::MAX };
    let mut core = Core::new(Window::begin(0, limits), Retry::none(), usize::MAX, Instant::now());
    core.looked(Some(9), Gate::Open);
    let mut now = Now::at(Instant::now());
    let _ = core.drain(&now);
    assert!(matches!(core.order(&now, Due::No), Order::Read(run) if run.first == 0 && run.most() > 1));
    fails(&mut core, vec![], &now);
    assert!(matches!(core.order(&now, Due::No), Order::Read(_)), "at once");
    for (missing, pause) in [(false, 50), (false, 100), (true, 20), (true, 40), (false, 200)] {
        let then = if missing { Then::Missing } else { Then::Failed(Caught::from(BoxError::from("down"))) };
        core.fetched(fetched(vec![], Weights::equal(0, 8), then), &now);
        let _ = core.drain(&now);
        assert!(matches!(core.order(&now, Due::No), Order::Note), "nobody may ring for it");
        let again = now.get() + Duration::from_millis(pause);
        assert!(matches!(core.order(&now, Due::No), Order::Wait(until) if until == Some(again)), "{pause}");
        // A look ends the wait for a missing job, but not for a source that fails.
        core.looked(Some(9), Gate::Open);
        let _ = core.drain(&now);
        assert_eq!(core.reading.fetch.is_some(), missing);
        now = Now::at(again);
        assert!(!core.expire(again));
        let _ = core.drain(&now);
        assert!(
            matches!(core.order(&now, Due::No), Order::Read(run) if run.first == 0 && (run.most() == 1) == missing)
        );
    }
}
