//! Runners with a handler of each sort: a function, a deferred one, and a future.
#![allow(missing_docs, clippy::missing_panics_doc, reason = "only tests use it")]

use crate::bench::Bench;
use std::sync::Arc;
use waterline::BoxError;
use waterline_queue::{Finisher, Outcome, Runner, RunnerBuilder, Running};

/// Returns a runner with a handler of each sort, all of which answer by this function.
pub fn handlers(
    bench: &Bench,
    answer: impl Fn(&Running) -> Result<Outcome, BoxError> + Send + Sync + 'static,
) -> RunnerBuilder {
    let answer = Arc::new(move |job: &Running| {
        job.update(&7)?;
        job.progress(0.5, "half")?;
        answer(job)
    });
    let (deferred, future) = (answer.clone(), answer.clone());
    let builder = Runner::builder(&bench.queue).on("direct", move |job, ()| answer(job)).on_deferred("deferred", {
        move |job, (), done: Finisher| {
            let answer = deferred.clone();
            std::thread::spawn(move || done.end(answer(&job)));
        }
    });
    #[cfg(feature = "tokio")]
    return builder.on_async("async", move |job, ()| {
        let answer = future.clone();
        async move { answer(&job) }
    });
    #[cfg(not(feature = "tokio"))]
    {
        drop(future);
        builder
    }
}

pub fn for_each_sort(test: impl Fn(&str)) {
    #[cfg(feature = "tokio")]
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    #[cfg(feature = "tokio")]
    let _context = runtime.enter();
    let sorts = ["direct", "deferred", "async"];
    sorts[..2 + usize::from(cfg!(feature = "tokio"))].iter().for_each(|sort| test(sort));
}
