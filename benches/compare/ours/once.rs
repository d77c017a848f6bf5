//! Effects that happen exactly once, beside one thread or a pool of rayon that computes the jobs
//! and writes the effects of many of them at once.

use crate::counted::{self, Database};
use crate::protocol::{Answer, Question, Task, timed};
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use waterline::Durability;

pub(crate) fn answer(question: &Question) -> Answer {
    let engine = question.word("engine");
    let batch = match question.word("column") {
        "waterline" => return ours(question, engine),
        "a write a job" => 1,
        "256 a write" => 256,
        "10,000 a write" | "rayon, 10,000 a write" => 10_000,
        _ => return crate::asked::OTHER,
    };
    match engine {
        #[cfg(feature = "rocksdb")]
        "rocksdb" => by_hand::<rocksdb::DB>(question, batch),
        #[cfg(feature = "sqlite")]
        "sqlite" => by_hand::<rusqlite::Connection>(question, batch),
        _ => Answer::None("built without it"),
    }
}

fn ours(question: &Question, engine: &str) -> Answer {
    let Some(store) = crate::asked::open(question, engine, Durability::Buffered) else {
        return Answer::None("built without it");
    };
    let task = Task::of(question);
    timed(|| counted::by_jobs(&store, question.jobs(), question.in_flight(), move |index| task.run(index)))
}

fn by_hand<D: Database>(question: &Question, batch: u64) -> Answer {
    let (task, mut database) = (Task::of(question), D::create(&question.directory()));
    let pool = question.word("column").starts_with("rayon").then(|| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(question.in_flight());
        pool.build().expect("threads start")
    });
    timed(|| {
        counted::by_hand(&mut database, question.jobs(), batch, |jobs| match &pool {
            Some(pool) => pool.install(|| jobs.into_par_iter().for_each(|index| task.run(index))),
            None => jobs.for_each(|index| task.run(index)),
        });
    })
}
