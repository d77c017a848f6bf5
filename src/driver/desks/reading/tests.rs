use super::*;
use crate::base::clock::Clock;
use crate::base::retry::Retry;
use crate::commit::changes::Changes;
use crate::driver::desks::handing_out::Search;
use crate::driver::desks::news::tests::ByHand;
use crate::reader::SharedSource;
use crate::source::MemoryJobs;
use crate::source::Steps;
use crate::source::watermark::Watermark;
use crate::window::{Limits, Window};

fn fetched(jobs: Vec<Index>, weights: Weights, then: Then) -> Fetched {
    let jobs = <dyn Payloads>::new(jobs);
    Fetched { jobs, steps: Steps::default(), weights, then, quick: false, ended: Instant::now() }
}

/// With this many jobs that failed, whose back-offs all end at once.
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
        core.report(ticket.token, Err(Failure::boxed("refused".into())), &mut Changes::default(), &Now::when_asked());
        let _ = core.drain(&Now::when_asked());
    }
}

#[test]
fn a_worker_that_has_slept_for_long_and_reads_a_run_was_not_without_work() {
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
fn many_back_offs_that_end_at_once_end_in_pieces() {
    let mut core = failed(3 * PIECE as u64 / 2);
    let now = Instant::now();
    assert!(core.expire(now));
    assert_eq!(core.fates.failures.dues().len(), PIECE / 2);
    assert!(!core.expire(now));
    assert!(core.fates.failures.dues().is_empty());
}

#[test]
fn a_look_that_was_put_off_begins_when_nothing_is_left_to_read() {
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

#[test]
fn neighbours_that_cannot_be_read_again_wait_together_and_the_reader_notes_nothing() {
    let mut core = failed(40);
    while core.expire(Instant::now()) {}
    let _ = core.drain(&Now::when_asked());
    let run = core.reading.fetch.expect("the failed jobs are read again");
    assert_eq!(run, Ask::new(0, 31, 32), "half of what is read ahead");
    let failure = Failure::from(BoxError::from("down"));
    let (jobs, weights) = (vec![0, 1], Weights::equal(2, 8));
    core.fetched(fetched(jobs, weights, Then::Failed(failure)), &Now::when_asked());
    let _ = core.drain(&Now::when_asked());
    assert_eq!((core.fates.failures.dues().len(), core.reading.note), (30, None));
    let mut dues = core.fates.failures.dues();
    dues.dedup();
    assert_eq!(dues.len(), 1, "they are read in one run again");
    assert_eq!(core.fates.failures.count_unreadable(1), 30);
    assert_eq!(core.reading.fetch, Some(Ask::new(32, 39, 8)), "the others are read meanwhile");
}
