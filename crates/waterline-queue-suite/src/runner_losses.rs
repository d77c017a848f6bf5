//! Jobs that are removed while they run: their slots, and the status.

use crate::bench::*;
use crate::runner::of;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use waterline_queue::{AttemptEnd, Finisher, JobState, NewJob, Outcome, Runner, Running, Waits};

fn job(id: &str) -> NewJob {
    of("k").id(id)
}

/// A runner of functions that report their job, and return when told to.
fn long_functions(bench: &Bench, slots: usize) -> (Runner, Receiver<(Running, Sender<()>)>) {
    let (begun, begins) = unbounded();
    let builder = Runner::builder(&bench.queue).on("k", move |job, ()| {
        let (end, ends) = bounded(0);
        begun.send((job.clone(), end)).unwrap();
        ends.recv()?;
        Ok(Outcome::Done)
    });
    (builder.max_processing(slots).start().unwrap(), begins)
}

pub(super) fn the_function_of_a_removed_job_is_told_to_stop(on: &Benches<'_>) {
    let bench = on.bench();
    let (runner, begins) = long_functions(&bench, 2);
    bench.queue.push_all(["a", "b", "c"].map(job)).unwrap();
    let running = [(); 2].map(|()| begins.recv_timeout(LONG).unwrap());
    let status = || bench.queue.status().unwrap();
    let sentence = status().sentence();
    assert!(status().stuck.is_none() && sentence.contains("raise max_processing"), "{sentence}");
    // The removal itself tells the function.
    bench.queue.remove("a").unwrap();
    assert!(running.iter().all(|(job, _)| job.is_stopping() == (job.id() == "a")));
    let stuck = status().stuck.unwrap();
    assert_eq!((stuck.slots, &*stuck.first), (1, "a"));
    assert!(status().to_string().contains("; 1 slot has a job that was removed or taken back and does not end, \"a\""));
    bench.clock.advance(SECOND);
    assert_eq!(bench.queue.purge().unwrap(), 2);
    bench.push(job("d"));
    bench.clock.advance(SECOND);
    let now = status();
    let Waits::Busy { slots: 2, since, ref oldest } = now.waits else { panic!("{now}") };
    assert!(since == 2 * SECOND && ["a", "b"].contains(&&**oldest), "{now}");
    let sentence = now.sentence();
    let expected = "2 slots have jobs that were removed or taken back and do not end, \"a\" for 2.0s: let the handler \
                    return when is_stopping is true, or restart the process";
    assert!(sentence.ends_with(expected) && !sentence.contains("max_processing"), "{sentence}");
    // Their ends change nothing, and the next job gets a slot.
    running.iter().for_each(|(_, end)| end.send_timeout((), LONG).unwrap());
    let (last, end) = begins.recv_timeout(LONG).unwrap();
    assert_eq!(last.id(), "d");
    eventually("no slot to be held", || status().stuck.is_none());
    assert_eq!(bench.states(["a", "b", "d"]), [None, None, Some(JobState::Running)]);
    end.send_timeout((), LONG).unwrap();
    runner.stop().unwrap();
    assert_eq!((bench.state("d"), status().stuck), (Some(JobState::Finished), None));
}

pub(super) fn a_removed_deferred_job_frees_its_slot(on: &Benches<'_>) {
    let bench = on.bench();
    let ((begun, begins), (ended, ends)) = (unbounded::<(Running, Finisher)>(), unbounded());
    let runner = Runner::builder(&bench.queue)
        .on_deferred("k", move |job, (), done| begun.send((job, done)).unwrap())
        .teardown(move |job, end| ended.send((job.id().to_owned(), end.clone())).unwrap())
        .max_processing(1)
        .start()
        .unwrap();
    bench.queue.push_all(["a", "b"].map(job)).unwrap();
    let (first, late) = begins.recv_timeout(LONG).unwrap();
    bench.queue.remove("a").unwrap();
    assert_eq!(ends.recv_timeout(LONG).unwrap(), ("a".to_owned(), AttemptEnd::Lost));
    let (second, done) = begins.recv_timeout(LONG).unwrap();
    assert_eq!((first.is_stopping(), second.is_stopping(), second.id()), (true, false, "b"));
    // A new job of the same id is another one.
    bench.push(job("a"));
    late.complete();
    assert_eq!(bench.states(["a", "b"]), [Some(JobState::Ready), Some(JobState::Running)]);
    done.complete();
    assert_eq!(ends.recv_timeout(LONG).unwrap(), ("b".to_owned(), AttemptEnd::Finished));
    begins.recv_timeout(LONG).unwrap().1.complete();
    runner.stop().unwrap();
    assert!(bench.queue.status().unwrap().stuck.is_none());
}
