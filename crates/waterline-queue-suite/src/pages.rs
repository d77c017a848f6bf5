//! Pages of the jobs in a state, and their cursors.

use crate::bench::*;
use std::collections::BTreeSet;
use waterline::Retry;
use waterline_queue::{
    Accept, ConfigError, JobInfo, JobState, Limit, NewJob, Page, Priority, QueueError, QueueOptions, Retention,
};

fn ids(jobs: &[JobInfo]) -> Vec<String> {
    jobs.iter().map(|job| job.id.clone()).collect()
}

fn page(bench: &Bench, state: JobState, cursor: Option<&str>, limit: usize) -> Page {
    bench.queue.page(state, cursor, limit).unwrap()
}

/// Reads all pages of a state, with a call after each of them, and returns the ids.
fn all(bench: &mut Bench, state: JobState, limit: usize, mut then: impl FnMut(&mut Bench, &Page)) -> Vec<String> {
    let (mut seen, mut next) = (Vec::new(), None);
    loop {
        let page = page(bench, state, next.as_deref(), limit);
        assert!(page.jobs.len() == limit || page.next.is_none());
        seen.extend(ids(&page.jobs));
        then(bench, &page);
        next = page.next;
        if next.is_none() {
            return seen;
        }
    }
}

/// Brings a job into this state, or returns one to push for it.
fn bring(bench: &Bench, n: u32, state: JobState) -> NewJob {
    let id = format!("{state} {n:02}?&/ä");
    let priority = [Priority::Urgent, Priority::High, Priority::Normal, Priority::Low][n as usize % 4];
    match state {
        // Some are due at the same time.
        JobState::Scheduled => job(&id).delay(HOUR + SECOND * (n / 3)),
        JobState::Waiting => job(&id).after(["never ends"]),
        // A limit holds most of these.
        JobState::Ready if n.is_multiple_of(2) => NewJob::new("held", &1).unwrap().id(id).priority(priority),
        JobState::Ready => job(&id).priority(priority),
        _ => {
            bench.push(job(&id).priority(Priority::Urgent));
            let mut lease = bench.take(&id);
            if state == JobState::Dead { lease.bury("no") } else { lease.finish(None) }.unwrap();
            job(&id)
        }
    }
}

pub(super) fn pages_show_each_staying_job_once_amid_changes(on: &Benches<'_>) {
    let states = [JobState::Finished, JobState::Dead, JobState::Scheduled, JobState::Waiting, JobState::Ready];
    for (round, limit) in [1, 2, 5, 100].into_iter().enumerate() {
        let options = QueueOptions::default().retry(Retry::fixed(SECOND)).retention(Retention::Keep);
        let mut bench = on.bench_with(options.limit(Limit::kind("held").at_once(1)).lease(100 * HOUR));
        bench.push(job("never ends").delay(1000 * HOUR));
        for state in states {
            for n in 0..12 {
                let job = bring(&bench, n, state);
                if bench.queue.state(format!("{state} {n:02}?&/ä")).unwrap().is_none() {
                    bench.push(job);
                }
            }
        }
        for state in states {
            // One job runs, and its limit holds the others. A queue with a lease cannot be closed.
            let is_held = round % 2 == 1 && state == JobState::Ready;
            let accept = || bench.queue.accept(Accept::new().kinds(["held"])).unwrap();
            let lease = is_held.then(|| accept().expect("one may run"));
            assert!(!is_held || accept().is_none(), "and no other one");
            let whole = ids(&bench.queue.list(state, None, usize::MAX).unwrap());
            assert_eq!(all(&mut bench, state, limit, |_, _| {}), whole, "{state} by {limit}");
            let (mut gone, mut new) = (BTreeSet::new(), 12);
            let seen = all(&mut bench, state, limit, |bench, page| {
                // The job of the cursor goes, and another one that no page has shown yet.
                let next = page.jobs.last().and_then(|last| whole.iter().position(|id| *id == last.id));
                let further = next.and_then(|at| whole.get(at + 2));
                for id in page.jobs.last().map(|job| &job.id).into_iter().chain(further) {
                    gone.extend(bench.queue.remove(id).is_ok().then(|| id.clone()));
                }
                if new < 18 && !matches!(state, JobState::Finished | JobState::Dead) {
                    let job = bring(bench, new, state);
                    bench.push(job);
                    new += 1;
                }
                if round.is_multiple_of(2) {
                    bench.reopen();
                }
            });
            let stays = |id: &&String| whole.contains(id) && !gone.contains(*id);
            let expected: Vec<_> = whole.iter().filter(stays).collect();
            assert_eq!(seen.iter().filter(stays).collect::<Vec<_>>(), expected, "{state} by {limit}");
            assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), seen.len(), "none twice: {seen:?}");
            drop(lease);
        }
    }
}

pub(super) fn a_cursor_outlives_its_job_but_fits_one_state_alone(on: &Benches<'_>) {
    let bench = on.bench();
    bench.queue.push_all(["a", "b", "c", "d"].map(job)).unwrap();
    let first = page(&bench, JobState::Ready, None, 2);
    let cursor = first.next.unwrap();
    assert!(cursor.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{cursor}");
    let mut leases = [bench.take("a"), bench.take("b"), bench.take("c")];
    assert_eq!(ids(&page(&bench, JobState::Ready, Some(&cursor), 9).jobs), ["d"]);
    let running = page(&bench, JobState::Running, None, 0);
    assert_eq!(ids(&running.jobs), ["a"], "a page has one job at least");
    for lease in &mut leases {
        lease.bury("no").unwrap();
    }
    let rest = page(&bench, JobState::Running, running.next.as_deref(), 9);
    assert_eq!((rest.jobs, rest.next), (Vec::new(), None));
    bench.queue.requeue("b").unwrap();
    assert_eq!(ids(&page(&bench, JobState::Ready, Some(&cursor), 9).jobs), ["d", "b"], "it is at the end again");
    let other = bench.database.open("other", bench.options.clone()).unwrap();
    let refused = |queue: &waterline_queue::Queue, state, cursor: &str| {
        let error = queue.page(state, Some(cursor), 9).unwrap_err();
        assert!(matches!(&error, QueueError::Config(ConfigError::Cursor { .. })), "{error:?}");
        error.to_string()
    };
    let text = refused(&bench.queue, JobState::Dead, &cursor);
    assert!(
        text.starts_with("the cursor is none of the list of dead jobs of the queue \"q\": use `next` of"),
        "{text}"
    );
    refused(&other, JobState::Ready, &cursor);
    for garbage in ["", "x", "a", "0", "00", &cursor[1..], &cursor[..cursor.len() - 2], &format!("{cursor}&limit=1")] {
        refused(&bench.queue, JobState::Ready, garbage);
    }
}
