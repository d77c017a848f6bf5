//! The table of CouchDB's states: each call on a job in each of them.

use crate::bench::*;
use std::time::Duration;
use waterline_queue::{Counts, JobState, Lease, PushOutcome, QueueError, QueueOptions, Retention};

#[track_caller]
fn assert_halt<R: std::fmt::Debug>(answer: Result<R, QueueError>) {
    assert!(matches!(answer, Err(QueueError::Halt { .. })), "{answer:?}");
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Absent,
    Ready,
    Scheduled,
    /// With another worker, if a lease was lost.
    Running,
    Finished,
    Dead,
}

/// A ready job comes first, since the first job of a queue is stored where a job without a place
/// seems to be.
const PLACES: [Place; 6] =
    [Place::Ready, Place::Absent, Place::Scheduled, Place::Running, Place::Finished, Place::Dead];

fn tomorrow() -> std::time::SystemTime {
    noon() + DAY
}

/// Brings a ready job to a place, and returns its lease if it runs there.
fn bring(bench: &Bench, id: &str, place: Place) -> Option<Lease> {
    match place {
        Place::Absent => bench.queue.remove(id).unwrap(),
        Place::Ready => {}
        Place::Scheduled => assert_eq!(bench.push(with(id, 1).run_at(tomorrow())), PushOutcome::Rescheduled),
        Place::Running => return Some(bench.claim()),
        Place::Finished => drop(bench.claim().finish(Some("end".into())).unwrap()),
        Place::Dead => {
            let mut lease = bench.claim();
            lease.update(Some("half".into())).unwrap();
            lease.bury("no").unwrap();
        }
    }
    None
}

pub(super) fn c01_to_c05_a_push_in_each_state_follows_the_table(on: &Benches<'_>) {
    let other = noon() + 2 * DAY;
    let bench = on.bench();
    for place in PLACES {
        for later in [true, false] {
            bench.push(with("a", 1));
            let lease = bring(&bench, "a", place);
            let before = bench.queue.get("a").unwrap();
            let is_same = if later { place == Place::Scheduled } else { place == Place::Ready };
            // The same due time is that of the place: none, or tomorrow.
            let due = later.then(|| if is_same { tomorrow() } else { other });
            if place == Place::Running {
                // The last of several pushes counts.
                bench.push(with("a", 3).run_at(noon() + HOUR));
            }
            let new = due.iter().fold(with("a", 2), |new, due| new.run_at(*due));
            let outcome = bench.push(new);
            let info = bench.info("a");
            let payload: u32 = info.payload().unwrap();
            match place {
                Place::Absent | Place::Finished | Place::Dead => {
                    assert_eq!((outcome, payload), (PushOutcome::Added, 2), "{place:?} {later}");
                    assert_eq!((info.failures, info.data.clone(), info.error.clone()), (0, None, None));
                }
                Place::Running => {
                    assert_eq!((outcome, payload), (PushOutcome::Resubmit, 1), "{later}");
                    assert_eq!((info.state, info.resubmitted), (JobState::Running, true));
                }
                Place::Ready | Place::Scheduled if is_same => {
                    assert_eq!(outcome, PushOutcome::Duplicate("a".to_owned()), "{place:?}");
                    assert_eq!(Some(&info), before.as_ref(), "not even its payload is changed");
                }
                Place::Ready | Place::Scheduled => {
                    assert_eq!((outcome, payload), (PushOutcome::Rescheduled, 2), "{place:?} {later}");
                }
            }
            let waits = if later { JobState::Scheduled } else { JobState::Ready };
            if let Some(mut lease) = lease {
                let ended = if later { lease.finish(Some("data".into())) } else { lease.bury("no") };
                assert_eq!(ended.unwrap(), Some(waits), "it runs once more");
                let info = bench.info("a");
                assert_eq!((info.resubmitted, info.failures), (false, 0));
                assert_eq!((info.data, info.error), (later.then(|| "data".into()), (!later).then(|| "no".into())));
            }
            let info = bench.info("a");
            assert_eq!((info.state, info.run_at), (waits, due), "{place:?}");
            let counts = bench.queue.counts();
            assert_eq!(counts.ready + counts.scheduled, 1);
            assert_eq!((counts.running, counts.finished, counts.dead), (0, 0, 0));
            let runs = if later { &[][..] } else { &["a"] };
            assert_eq!(bench.claim_all(), runs, "{place:?}: an entry of its old place is stale");
            bench.queue.remove("a").unwrap();
        }
    }
}

pub(super) fn c06_c07_c22_removals_and_reads_follow_the_table(on: &Benches<'_>) {
    let states = [
        Some(JobState::Ready),
        None,
        Some(JobState::Scheduled),
        Some(JobState::Running),
        Some(JobState::Finished),
        Some(JobState::Dead),
    ];
    let bench = on.bench();
    for (place, state) in PLACES.into_iter().zip(states) {
        bench.push(with("a", 1));
        let lease = bring(&bench, "a", place);
        assert_eq!((bench.state("a"), bench.queue.get("a").unwrap().map(|info| info.state)), (state, state));
        if place == Place::Finished {
            assert_eq!(bench.info("a").kept_until, Some(noon() + MINUTE), "the default retention");
        }
        let mut subscription = bench.queue.subscribe("a");
        match (&mut subscription, state) {
            (Ok(subscription), Some(state)) => {
                assert_eq!(subscription.state(), Some(state));
                let seen = subscription.wait_for(state, Duration::ZERO).unwrap().unwrap();
                assert_eq!(seen.data, bench.info("a").data);
                assert_eq!(subscription.wait(Duration::ZERO).unwrap(), None, "nothing has changed since");
            }
            (Err(QueueError::NotFound { .. }), None) => {}
            other => panic!("{place:?}: {other:?}"),
        }
        let removed = bench.queue.remove("a");
        assert_eq!(removed.is_ok(), state.is_some(), "{place:?}: {removed:?}");
        if let Ok(mut subscription) = subscription {
            assert_eq!(subscription.wait(LONG).unwrap().unwrap().state, None);
        }
        assert!(matches!(bench.queue.remove("a"), Err(QueueError::NotFound { .. })));
        assert_eq!(bench.state("a"), None);
        if let Some(mut lease) = lease {
            assert_halt(lease.finish(None));
        }
        assert_eq!(bench.queue.counts(), Counts::default());
        bench.none();
    }
    bench.pass(2 * DAY);
}

/// The ways in which a worker loses its job.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Removal,
    Silence,
    End,
}

/// Makes a worker lose its job, which goes to a place. Returns both leases.
fn lose(bench: &Bench, id: &str, loss: Loss, place: Place) -> (Lease, Option<Lease>) {
    let mut lease = bench.running(id);
    match loss {
        Loss::End => {
            lease.finish(None).unwrap();
            bench.push(with(id, 1));
        }
        Loss::Removal => {
            bench.queue.remove(id).unwrap();
            bench.push(with(id, 1));
        }
        Loss::Silence => {
            bench.clock.advance(MINUTE);
            assert!(bench.accept().is_none(), "it waits for its back-off");
            bench.clock.advance(SECOND);
            // A push looks for due jobs.
            bench.push(job("other"));
            bench.queue.remove("other").unwrap();
        }
    }
    assert_eq!(bench.state(id), Some(JobState::Ready));
    (lease, bring(bench, id, place))
}

pub(super) fn c13_c15_each_call_of_a_lost_lease_halts(on: &Benches<'_>) {
    type Call = fn(&mut Lease) -> Result<(), QueueError>;
    let calls: [Call; 8] = [
        |lease| lease.update(None),
        |lease| lease.update(Some("late".into())),
        |lease| lease.finish(Some("late".into())).map(drop),
        |lease| lease.retry("late").map(drop),
        |lease| lease.retry_at(noon(), "late").map(drop),
        |lease| lease.snooze(noon()).map(drop),
        |lease| lease.bury("late").map(drop),
        |lease| lease.resubmit(None),
    ];
    let bench = on.bench_with(QueueOptions::default().retention(Retention::Keep).dead_for(3650 * DAY));
    for loss in [Loss::Removal, Loss::Silence, Loss::End] {
        for place in PLACES {
            for (number, call) in calls.iter().enumerate() {
                let (mut lost, other) = lose(&bench, "a", loss, place);
                let before = (bench.queue.get("a").unwrap(), bench.queue.counts());
                assert_halt(call(&mut lost));
                drop(lost);
                let after = (bench.queue.get("a").unwrap(), bench.queue.counts());
                assert_eq!(after, before, "{loss:?} {place:?} {number}");
                if let Some(mut other) = other {
                    assert_eq!(other.finish(None).unwrap(), Some(JobState::Finished), "its lease holds");
                }
                if place != Place::Absent {
                    bench.queue.remove("a").unwrap();
                }
            }
        }
    }
}
