//! Claims: their order, early jobs, timeouts, and what wakes waiting callers.

use crate::bench::*;
use crossbeam_channel::bounded;
use std::time::{Duration, UNIX_EPOCH};
use waterline::Retry;
use waterline_queue::{Accept, ConfigError, JobState, Lease, QueueError};

pub(super) fn c10_a_job_is_due_at_its_time_or_early_by_max_run_at(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(job("a").run_at(noon() + MINUTE));
    bench.clock.advance(MINUTE - MILLI);
    assert!(bench.accept().is_none());
    bench.clock.advance(MILLI);
    bench.claim().finish(None).unwrap();
    bench.push(job("b").run_at(noon() + HOUR));
    let early = |time| bench.queue.accept(Accept::new().max_run_at(time)).unwrap();
    assert!(early(noon() + HOUR - MILLI).is_none());
    assert_eq!(early(noon() + HOUR).expect("it is inclusive").id(), "b");
}

pub(super) fn c10_a_past_max_run_at_gives_only_older_jobs(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(job("new").run_at(noon() - SECOND));
    bench.push(job("old").run_at(noon() - MINUTE));
    let lease = bench.queue.accept(Accept::new().max_run_at(noon() - SECOND - MILLI)).unwrap().unwrap();
    assert_eq!(lease.id(), "old");
    assert!(bench.queue.accept(Accept::new().max_run_at(noon() - SECOND - MILLI)).unwrap().is_none());
    let lease = bench.queue.accept(Accept::new().max_run_at(noon() - SECOND)).unwrap().unwrap();
    assert_eq!(lease.id(), "new");
}

pub(super) fn c10_jobs_due_together_are_claimed_early_by_id(on: &Benches<'_>) {
    for is_rooted in [false, true] {
        let bench = on.bench();
        for id in ["b", "a"] {
            let job = job(id).run_at(noon() + MINUTE);
            // A claim of such a job reads it first.
            bench.push(if is_rooted { job.root("tree", noon()) } else { job });
        }
        let early = || bench.queue.accept(Accept::new().max_run_at(noon() + MINUTE)).unwrap().unwrap();
        let [first, second] = [early(), early()];
        assert_eq!([first.id(), second.id()], ["a", "b"], "rooted: {is_rooted}");
    }
}

pub(super) fn c11_a_time_beyond_the_calendar_is_refused(on: &Benches<'_>) {
    let far = UNIX_EPOCH + Duration::from_secs(260_000_000_000);
    let bench = on.bench();
    let refused = |answer: Result<(), QueueError>| {
        assert!(matches!(answer, Err(QueueError::Config(ConfigError::RunAt))), "{answer:?}");
        let text = answer.unwrap_err().to_string();
        assert!(text.starts_with("the time of the job, or of the pause, is after the year 9999: use"), "{text}");
    };
    refused(bench.queue.accept(Accept::new().max_run_at(far)).map(drop));
    refused(bench.queue.push(job("a").run_at(far)).map(drop));
    refused(bench.queue.push(job("a").delay(Duration::MAX)).map(drop));
    refused(bench.queue.push(job("a").expires(Duration::MAX)).map(drop));
    refused(bench.queue.push_all([job("b"), job("a").delay(Duration::MAX)]).map(drop));
    refused(bench.queue.pause(Some(Duration::MAX)));
    refused(bench.queue.lazy().push(job("a").delay(Duration::from_secs(253_000_000_000))));
    assert_eq!(bench.queue.counts().ready, 0, "all or nothing");
    let mut lease = bench.running("c");
    refused(lease.retry_at(far, "x").map(drop));
    refused(lease.snooze(far).map(drop));
    refused(lease.resubmit(Some(far)));
    lease.finish(None).unwrap();
}

pub(super) fn c12_accept_returns_at_its_timeout_or_at_once(on: &Benches<'_>) {
    let bench = on.bench();
    assert!(bench.accept().is_none());
    assert!(bench.queue.accept(Accept::new().timeout(Duration::ZERO)).unwrap().is_none());
    let (sender, answers) = bounded(1);
    let waiting = std::thread::spawn({
        let queue = bench.queue.clone();
        move || sender.send(queue.accept(Accept::new().timeout(MINUTE)).unwrap().is_some()).unwrap()
    });
    // The thread may begin to wait at any time, so the clock moves until it has waited enough.
    let mut waited = Duration::ZERO;
    while answers.is_empty() {
        bench.clock.advance(SECOND);
        waited += SECOND;
        std::thread::yield_now();
    }
    assert!(!answers.recv_timeout(LONG).unwrap());
    assert!(waited >= MINUTE, "it waited for {waited:?} only");
    waiting.join().unwrap();
}

/// Starts a thread that waits for a job, and returns the channel of its answer.
fn waiting(bench: &Bench, accept: Accept) -> crossbeam_channel::Receiver<Option<Lease>> {
    let (sender, answers) = bounded(1);
    let queue = bench.queue.clone();
    std::thread::spawn(move || {
        let _ = sender.send(queue.accept(accept).unwrap());
    });
    answers
}

/// Gives a thread the time to fall asleep. Without it the test proves less.
fn most_likely_asleep() {
    (0..200).for_each(|_| std::thread::yield_now());
}

pub(super) fn c12_accept_wakes_on_each_event_that_readies_a_job(on: &Benches<'_>) {
    let bench = on.bench();
    let forever = Accept::new().timeout(Duration::MAX);
    let get = |answers: crossbeam_channel::Receiver<Option<Lease>>| {
        let mut lease = answers.recv_timeout(LONG).expect("it is woken").unwrap();
        lease.finish(None).unwrap();
        lease.id().to_owned()
    };
    let answers = waiting(&bench, forever.clone());
    bench.push(job("pushed"));
    assert_eq!(get(answers), "pushed");

    bench.push(job("due").delay(MINUTE));
    let answers = waiting(&bench, forever.clone());
    bench.clock.advance(MINUTE);
    assert_eq!(get(answers), "due");

    bench.queue.pause(None).unwrap();
    bench.push(job("resumed"));
    let answers = waiting(&bench, forever.clone());
    bench.queue.resume().unwrap();
    assert_eq!(get(answers), "resumed");

    bench.queue.pause(Some(MINUTE)).unwrap();
    bench.push(job("paused"));
    let answers = waiting(&bench, forever.clone());
    bench.clock.advance(MINUTE);
    assert_eq!(get(answers), "paused");

    let retry = Retry::fixed(MILLI);
    bench.push(job("silent").retry(retry));
    let silent = bench.claim();
    let answers = waiting(&bench, forever);
    bench.clock.advance(MINUTE);
    eventually("the silent job to be taken back", || bench.state("silent") == Some(JobState::Scheduled));
    bench.clock.advance(MILLI);
    assert_eq!(get(answers), "silent");
    drop(silent);
}

pub(super) fn c12_an_early_accept_wakes_for_a_job_behind_a_removed_one(on: &Benches<'_>) {
    let bench = on.bench();
    for n in 0..20 {
        let (removed, early) = (format!("removed {n}"), format!("early {n}"));
        bench.push(job(&removed).delay(SECOND));
        bench.queue.remove(&removed).unwrap();
        let answers = waiting(&bench, Accept::new().timeout(Duration::MAX).max_run_at(noon() + HOUR));
        most_likely_asleep();
        bench.push(job(&early).delay(MINUTE));
        let mut lease = answers.recv_timeout(LONG).expect("it is woken").unwrap();
        assert_eq!(lease.id(), early);
        lease.finish(None).unwrap();
    }
}

pub(super) fn c12_a_push_wakes_an_accept_that_takes_its_job(on: &Benches<'_>) {
    let bench = on.bench();
    for n in 0..20 {
        let old = waiting(&bench, Accept::new().timeout(Duration::MAX).max_run_at(noon() - HOUR));
        let any = waiting(&bench, Accept::new().timeout(Duration::MAX));
        most_likely_asleep();
        bench.push(job(&format!("new {n}")).run_at(noon() - MINUTE));
        any.recv_timeout(LONG).expect("it is woken").unwrap().finish(None).unwrap();
        assert!(old.is_empty());
        bench.push(job(&format!("old {n}")).run_at(noon() - HOUR));
        old.recv_timeout(LONG).expect("it is woken").unwrap().finish(None).unwrap();
    }
}

pub(super) fn c12_each_push_wakes_one_of_many_callers(on: &Benches<'_>) {
    let bench = on.bench();
    let answers: Vec<_> = (0..8).map(|_| waiting(&bench, Accept::new().timeout(Duration::MAX))).collect();
    most_likely_asleep();
    for n in 0..4 {
        bench.push(job(&n.to_string()));
    }
    bench.queue.push_all((4..8).map(|n| job(&n.to_string()))).unwrap();
    let leases = answers.iter().map(|answers| answers.recv_timeout(LONG).expect("all are woken").unwrap());
    let mut ids: Vec<_> = leases.map(|lease| lease.id().to_owned()).collect();
    ids.sort();
    assert_eq!(ids, ["0", "1", "2", "3", "4", "5", "6", "7"]);
}
