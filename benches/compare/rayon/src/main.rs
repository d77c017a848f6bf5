//! rayon: `par_bridge` over the indices, and a set of what finished under a mutex. It has no
//! window, no source that grows and no stop, so it is a floor of ordered work rather than a peer.

use protocol::{Answer, Finished, InOrder, Question, Saved, Shape, Task, result};
use rayon::iter::{ParallelBridge, ParallelIterator};
use std::process::ExitCode;
use std::sync::Mutex;

fn main() -> ExitCode {
    let about = "{rayon}: par_bridge, a pool of as many threads as jobs in flight, a set under a mutex, no window";
    protocol::answer(&[("rayon", about.to_owned())], |question| match question.word("question") {
        "stream" => stream(question),
        _ => Answer::None("not asked"),
    })
}

fn stream(question: &Question) -> Answer {
    let (task, jobs, ordered) = (Task::of(question), question.jobs(), question.shape() == Shape::Ordered);
    let (saved, first) = Saved::open(&question.directory());
    protocol::timed(|| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(question.in_flight()).build().expect("threads start");
        let kept = Mutex::new((Finished::from(first), InOrder::from(first)));
        pool.install(|| {
            (first..jobs).par_bridge().for_each(|index| {
                task.run(index);
                let mut kept = kept.lock().expect("nobody panics");
                saved.set(kept.0.note(index));
                if ordered {
                    kept.1.put(index, result(index));
                }
            });
        });
        assert_eq!(kept.into_inner().expect("nobody panics").0.watermark(), jobs);
        drop((pool, saved));
    })
}
