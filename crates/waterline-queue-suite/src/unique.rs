//! Unique jobs, jobs that a twin has made needless, and jobs that expire.

use crate::bench::*;
use serde_json::json;
use std::time::Duration;
use waterline::Retry;
use waterline_queue::{Accept, Clash, JobState, NewJob, PushOutcome, Retention, Skipped, Unique};

/// A job whose twins have the same page.
fn page(id: &str, page: &str, unique: Unique) -> NewJob {
    NewJob::new("page", &json!({ "page": page, "by": id })).unwrap().id(id).unique(unique.ignoring(["by"]))
}

fn until_claimed(id: &str) -> NewJob {
    page(id, "/", Unique::until_claimed())
}

fn until_done(id: &str) -> NewJob {
    page(id, "/", Unique::until_done())
}

fn executed(id: &str) -> NewJob {
    NewJob::new("page", "/").unwrap().id(id).skip_if_executed()
}

fn duplicate(of: &str) -> PushOutcome {
    PushOutcome::Duplicate(of.to_owned())
}

fn skipped(bench: &Bench, id: &str) -> Option<Skipped> {
    bench.info(id).skipped
}

pub(super) fn m11_until_claimed_refuses_twins_until_the_claim(on: &Benches<'_>) {
    let bench = on.bench();
    assert_eq!(bench.push(until_claimed("a")), PushOutcome::Added);
    let refused = bench.queue.push(until_claimed("b")).unwrap();
    assert_eq!((refused.id.as_str(), refused.outcome), ("a", duplicate("a")));
    assert_eq!(bench.state("b"), None, "nothing was pushed");
    assert_eq!(bench.push(page("other", "/other", Unique::until_claimed())), PushOutcome::Added);
    let mut a = bench.claim();
    assert_eq!(bench.push(until_claimed("b")), PushOutcome::Added, "a run may have missed what b is for");
    assert_eq!(bench.push(until_claimed("c")), duplicate("b"));
    a.finish(None).unwrap();
    assert_eq!(bench.state("b"), Some(JobState::Ready), "the end of one deletes no twin of it");
    assert_eq!(bench.push(until_claimed("c")), duplicate("b"), "and releases none");
}

pub(super) fn m11_twins_within_one_call_are_one_job(on: &Benches<'_>) {
    let bench = on.bench();
    let pushed = bench.queue.push_all([until_claimed("a"), until_claimed("b"), until_claimed("c")]).unwrap();
    let outcomes: Vec<_> = pushed.into_iter().map(|pushed| pushed.outcome).collect();
    assert_eq!(outcomes, [PushOutcome::Added, duplicate("a"), duplicate("a")]);
    assert_eq!(bench.claim_all(), ["a"]);
}

/// A client that got no answer pushes again.
pub(super) fn a_unique_job_with_a_given_id_is_not_pushed_twice(on: &Benches<'_>) {
    let hour = || Unique::within(HOUR);
    for (name, unique, refuses) in [
        // While it waits, while it runs, and after it has finished.
        ("claimed", Unique::until_claimed(), [true, false, false]),
        ("done", Unique::until_done(), [true, true, false]),
        ("an hour", hour(), [true, true, true]),
    ] {
        let bench = on.bench();
        let new = || page("a", "/", unique.clone());
        let push = |place: usize, new: NewJob, otherwise: PushOutcome| {
            let expected = if refuses[place] { duplicate("a") } else { otherwise };
            assert_eq!(bench.push(new), expected, "{name}, {place}");
        };
        bench.push(new().delay(SECOND));
        push(0, new(), PushOutcome::Added);
        assert_eq!(bench.state("a"), Some(JobState::Scheduled), "{name}: it is not moved");
        bench.clock.advance(SECOND);
        let mut lease = bench.claim();
        push(1, new(), PushOutcome::Resubmit);
        lease.finish(None).unwrap();
        let runs_again = usize::from(!refuses[1]);
        assert_eq!(bench.claim_all().len(), runs_again, "{name}");
        push(2, new(), PushOutcome::Added);
        bench.claim_all();
        bench.queue.remove("a").unwrap();
        assert_eq!(bench.push(new()), PushOutcome::Added, "{name}: somebody removed it");
    }
    let bench = on.bench();
    bench.push(page("a", "/", hour()).delay(SECOND));
    assert_eq!(bench.push(page("a", "/other", hour())), PushOutcome::Rescheduled, "it is no twin");
    let replace = page("a", "/other", hour().on_clash(Clash::Replace)).delay(MINUTE);
    assert_eq!(bench.push(replace), PushOutcome::Rescheduled);
    assert_eq!(bench.info("a").run_at, Some(noon() + MINUTE));
}

pub(super) fn m12_a_retried_job_does_not_register_again(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(until_claimed("a"));
    bench.claim().snooze(noon()).unwrap();
    assert_eq!(bench.push(until_claimed("b")), PushOutcome::Added);
    bench.clock.advance(SECOND);
    bench.claim().finish(None).unwrap();
    assert_eq!(bench.push(until_claimed("c")), duplicate("b"));
}

pub(super) fn a_twin_is_accepted_once_the_job_is_dead_or_removed(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(until_done("a"));
    bench.claim().bury("no").unwrap();
    assert_eq!(bench.push(until_done("b").expires(SECOND)), PushOutcome::Added);
    bench.clock.advance(SECOND);
    assert!(bench.accept().is_none());
    assert_eq!(bench.state("b"), Some(JobState::Dead));
    assert_eq!(bench.push(until_done("c")), PushOutcome::Added);
    bench.queue.remove("c").unwrap();
    assert_eq!(bench.push(until_done("d")), PushOutcome::Added);
    bench.queue.purge().unwrap();
    assert_eq!(bench.push(until_done("e")), PushOutcome::Added);
    // The expired row of the first job takes nothing with it.
    bench.clock.advance(8 * DAY);
    assert!(bench.queue.accept(Accept::new()).unwrap().is_some());
    assert_eq!(bench.push(until_done("f")), duplicate("e"));
}

pub(super) fn only_the_owner_of_a_mark_releases_it(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(until_done("a"));
    bench.claim().bury("no").unwrap();
    bench.push(until_done("b"));
    bench.queue.remove("a").unwrap();
    assert_eq!(bench.push(until_done("c")), duplicate("b"));
    bench.queue.remove("b").unwrap();
    assert_eq!(bench.push(until_done("c")), PushOutcome::Added);
}

pub(super) fn q29_a_window_refuses_twins_unless_the_job_is_removed(on: &Benches<'_>) {
    let bench = on.bench();
    let within = |id: &str| page(id, "/", Unique::within(MINUTE)).retention(Retention::Drop);
    bench.push(within("a"));
    bench.claim().finish(None).unwrap();
    let refused = bench.queue.push(within("b")).unwrap();
    assert_eq!(refused.outcome, duplicate("a"));
    bench.clock.advance(MINUTE - MILLI);
    assert_eq!(bench.push(within("b")), duplicate("a"));
    bench.clock.advance(MILLI);
    assert_eq!(bench.push(within("b")), PushOutcome::Added);
    bench.queue.remove("b").unwrap();
    assert_eq!(bench.push(within("c")), PushOutcome::Added, "nobody waits for a job that was removed");
    // An expired row takes no window with it.
    let long = |id: &str| page(id, "/long", Unique::within(3 * MINUTE));
    bench.push(long("d"));
    assert_eq!(bench.claim_all(), ["c", "d"]);
    bench.clock.advance(2 * MINUTE);
    assert!(bench.accept().is_none());
    assert_eq!((bench.state("d"), bench.push(long("e"))), (None, duplicate("d")));
}

/// An object whose fields are written in this order.
struct Pairs<'a>(&'a [(&'a str, u32)]);

impl serde::Serialize for Pairs<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}

pub(super) fn m03_the_order_of_fields_makes_no_difference(on: &Benches<'_>) {
    let bench = on.bench();
    let pairs = |pairs: &[(&str, u32)]| NewJob::new("k", &Pairs(pairs)).unwrap().unique(Unique::until_claimed());
    bench.push(pairs(&[("a", 1), ("b", 2)]).id("first"));
    assert_eq!(bench.push(pairs(&[("b", 2), ("a", 1)])), duplicate("first"));
    assert_eq!(bench.push(pairs(&[("b", 1), ("a", 2)])), PushOutcome::Added);
    let other_kind = NewJob::new("kind", &Pairs(&[("a", 1), ("b", 2)])).unwrap();
    assert_eq!(bench.push(other_kind.unique(Unique::until_claimed())), PushOutcome::Added);
}

pub(super) fn a_clash_replaces_a_waiting_twin_but_no_running_one(on: &Benches<'_>) {
    let bench = on.bench();
    let replace = |id: &str| page(id, "/", Unique::until_done().on_clash(Clash::Replace));
    bench.push(replace("a"));
    let replaced = bench.queue.push(replace("b").delay(SECOND)).unwrap();
    assert_eq!((replaced.id.as_str(), replaced.outcome), ("a", PushOutcome::Rescheduled));
    let a = bench.info("a");
    assert_eq!((a.state, a.payload::<serde_json::Value>().unwrap()["by"].clone()), (JobState::Scheduled, json!("b")));
    bench.clock.advance(SECOND);
    let mut lease = bench.claim();
    assert_eq!(bench.push(replace("c")), duplicate("a"));
    assert_eq!(lease.payload::<serde_json::Value>().unwrap()["by"], json!("b"));
    lease.finish(None).unwrap();
    assert_eq!(bench.push(replace("c")), PushOutcome::Added, "a twin that was replaced is released as any other");
    assert_eq!(bench.claim_all(), ["c"]);
}

pub(super) fn m12_clash_earliest_takes_the_earlier_time(on: &Benches<'_>) {
    let bench = on.bench();
    let earliest = |id: &str| page(id, "/", Unique::until_claimed().on_clash(Clash::Earliest));
    bench.push(earliest("a").delay(MINUTE));
    assert_eq!(bench.push(earliest("b").delay(2 * MINUTE)), duplicate("a"));
    assert_eq!(bench.info("a").run_at, Some(noon() + MINUTE));
    assert_eq!(bench.push(earliest("c")), PushOutcome::Rescheduled);
    let a = bench.info("a");
    assert_eq!((a.state, a.payload::<serde_json::Value>().unwrap()["by"].clone()), (JobState::Ready, json!("a")));
    // By default the old one stays as it is.
    bench.push(page("x", "/x", Unique::until_claimed()).delay(MINUTE));
    assert_eq!(bench.push(page("y", "/x", Unique::until_claimed())), duplicate("x"));
    assert_eq!(bench.info("x").run_at, Some(noon() + MINUTE));
}

pub(super) fn a_repushed_job_is_no_twin_of_itself(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(until_done("a"));
    assert_eq!(bench.push(page("a", "/new", Unique::until_done()).delay(SECOND)), PushOutcome::Rescheduled);
    assert_eq!(bench.push(until_done("b")), PushOutcome::Added, "the old page is free");
    assert_eq!(bench.push(page("c", "/new", Unique::until_done())), duplicate("a"));
    assert_eq!(bench.push(until_done("a").delay(2 * SECOND)), duplicate("b"), "a move must not make twins");
    assert_eq!(bench.info("a").run_at, Some(noon() + SECOND));
    assert_eq!(bench.push(job("a").delay(MINUTE)), PushOutcome::Rescheduled);
    assert_eq!(bench.push(page("c", "/new", Unique::until_done())), PushOutcome::Added);
}

pub(super) fn a_requeued_job_is_unique_again_unless_it_has_a_twin(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(until_done("a"));
    bench.claim().bury("no").unwrap();
    bench.queue.requeue("a").unwrap();
    assert_eq!(bench.push(until_done("b")), duplicate("a"));
    bench.claim().bury("no").unwrap();
    bench.push(until_done("b"));
    bench.queue.requeue("a").unwrap();
    assert_eq!(bench.push(until_done("c")), duplicate("b"), "b was first");
    assert_eq!(bench.claim_all(), ["b", "a"]);
    assert_eq!(bench.push(until_done("c")), PushOutcome::Added);
}

pub(super) fn a_job_that_runs_again_stays_unique_until_done(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(until_done("a"));
    let mut lease = bench.claim();
    lease.resubmit(None).unwrap();
    lease.finish(None).unwrap();
    assert_eq!(bench.push(until_done("b")), duplicate("a"));
    bench.claim().finish(None).unwrap();
    assert_eq!(bench.push(until_done("b")), PushOutcome::Added);
}

pub(super) fn an_expired_window_goes_with_its_job_on_any_clock(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(page("a", "/", Unique::within(Duration::ZERO)));
    assert_eq!(bench.push(job("a").delay(SECOND)), PushOutcome::Rescheduled);
    bench.clock.set_wall(noon() - DAY);
    assert_eq!(bench.push(until_done("b")), PushOutcome::Added);
}

pub(super) fn p08_a_job_is_skipped_if_a_twin_has_run_since_its_push(on: &Benches<'_>) {
    let bench = on.bench();
    for id in ["a", "b"] {
        bench.push(executed(id));
    }
    bench.claim().finish(None).unwrap();
    assert!(bench.accept().is_none());
    assert_eq!((bench.state("b"), skipped(&bench, "b")), (Some(JobState::Finished), Some(Skipped::Executed)));
    assert_eq!(skipped(&bench, "a"), None);
    bench.push(executed("c"));
    assert_eq!(bench.claim_all(), ["c"], "it was pushed after the run");
}

pub(super) fn a_run_that_began_before_the_push_skips_no_job(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(executed("a"));
    let mut a = bench.claim();
    bench.clock.set_wall(noon() - DAY);
    bench.push(executed("b"));
    a.finish(None).unwrap();
    assert_eq!(bench.claim_all(), ["b"]);
    assert_eq!(skipped(&bench, "b"), None);
}

pub(super) fn an_early_claim_passes_all_needless_jobs(on: &Benches<'_>) {
    let bench = on.bench();
    // More than a claim reads at once.
    bench.queue.push_all((0..200).map(|n| executed(&format!("{n:03}")).delay(MINUTE))).unwrap();
    bench.push(job("last").delay(2 * MINUTE));
    bench.push(executed("now"));
    bench.finish("now");
    let early = Accept::new().max_run_at(noon() + HOUR);
    assert_eq!(bench.queue.accept(early).unwrap().expect("one is left").id(), "last");
    assert_eq!(bench.queue.counts().finished, 201);
}

pub(super) fn p09_a_failed_run_skips_no_job_and_no_retry_is_skipped(on: &Benches<'_>) {
    let bench = on.bench();
    for id in ["a", "b", "c"] {
        bench.push(executed(id).retry(Retry::fixed(SECOND).max_attempts(2)));
    }
    bench.take("a").retry("not yet").unwrap();
    let mut b = bench.take("b");
    b.finish(None).unwrap();
    bench.none();
    let c = bench.info("c");
    assert_eq!((c.skipped, &*c.kind, c.payload::<String>().unwrap()), (Some(Skipped::Executed), "page", "/".into()));
    bench.clock.advance(SECOND);
    assert_eq!(bench.claim_all(), ["a"], "the next attempt of a job is never skipped");
    assert_eq!(skipped(&bench, "a"), None);
}

pub(super) fn p08_a_jobs_own_run_does_not_skip_its_next_one(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(executed("a"));
    let mut lease = bench.claim();
    assert_eq!(bench.push(executed("a")), PushOutcome::Resubmit);
    lease.finish(None).unwrap();
    assert_eq!(bench.claim_all(), ["a"]);
    assert_eq!(bench.push(executed("a")), PushOutcome::Added);
    assert_eq!(bench.claim_all(), ["a"]);
    assert_eq!(skipped(&bench, "a"), None);
}

pub(super) fn a_success_is_remembered_for_a_day_over_a_restart(on: &Benches<'_>) {
    let mut bench = on.bench();
    bench.push(executed("a"));
    bench.push(executed("b").delay(DAY - MILLI));
    bench.push(executed("c").delay(DAY));
    bench.claim().finish(None).unwrap();
    bench.reopen();
    bench.clock.advance(DAY - MILLI);
    assert!(bench.accept().is_none());
    assert_eq!(skipped(&bench, "b"), Some(Skipped::Executed));
    bench.clock.advance(MILLI);
    assert_eq!(bench.claim_all(), ["c"]);
}

pub(super) fn p07_a_job_not_claimed_in_time_is_dead_and_says_why(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(job("a").expires(SECOND));
    bench.push(job("b").expires(SECOND + MILLI));
    bench.push(job("later").delay(MINUTE).expires(SECOND));
    bench.push(job("runs").expires(SECOND).priority(waterline_queue::Priority::Urgent));
    let mut runs = bench.claim();
    bench.clock.advance(SECOND);
    assert_eq!(bench.claim_all(), ["b"]);
    for id in ["a", "later"] {
        let info = bench.info(id);
        assert_eq!(info.state, JobState::Dead);
        assert_eq!(info.error.as_deref(), Some("it expired: no worker had taken it in time"));
        assert_eq!(info.expires_at, Some(noon() + SECOND));
    }
    runs.finish(None).unwrap();
    assert_eq!(bench.state("runs"), Some(JobState::Finished), "a job that runs does not expire");
}

pub(super) fn p07_a_sweep_buries_expired_jobs_no_claim_reaches(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(job("a").expires(SECOND));
    bench.queue.pause(None).unwrap();
    bench.clock.advance(SECOND);
    assert!(bench.accept().is_none());
    assert_eq!(bench.state("a"), Some(JobState::Dead));
    assert!(bench.queue.requeue("a").unwrap());
    bench.queue.resume().unwrap();
    assert_eq!(bench.info("a").expires_at, None, "somebody wants it to run, however late it is");
    bench.finish("a");
}

pub(super) fn a_job_claimed_in_time_never_expires(on: &Benches<'_>) {
    let bench = on.bench();
    let new = || job("a").expires(2 * SECOND).retry(Retry::fixed(MINUTE));
    bench.push(new());
    bench.clock.advance(SECOND);
    let mut lease = bench.claim();
    assert_eq!(bench.info("a").expires_at, None);
    assert_eq!(bench.push(new()), PushOutcome::Resubmit);
    bench.clock.advance(2 * SECOND);
    lease.retry("not yet").unwrap();
    bench.pass(SECOND);
    assert_eq!(bench.state("a"), Some(JobState::Scheduled), "it waits for its next attempt");
    bench.clock.advance(MINUTE);
    bench.finish("a");
    assert_eq!(bench.claim_all(), Vec::<String>::new(), "its second attempt began after the push");
    assert_eq!(bench.state("a"), Some(JobState::Finished));
    // A run for a push that came meanwhile.
    bench.push(new());
    let mut lease = bench.claim();
    assert_eq!(bench.push(new().delay(HOUR)), PushOutcome::Resubmit);
    lease.finish(None).unwrap();
    bench.clock.advance(HOUR);
    bench.finish("a");
}

pub(super) fn a_repush_replaces_the_expiry(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(job("a").expires(SECOND));
    bench.push(job("a").delay(SECOND));
    bench.clock.advance(MINUTE);
    assert_eq!(bench.claim_all(), ["a"]);
    assert_eq!(bench.info("a").expires_at, None);
}
