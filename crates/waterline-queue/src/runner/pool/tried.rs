//! Claims of a runner that found nothing although there seemed to be a job.
//!
//! Looking at a queue in memory is cheap, but not exact: it counts a job that no claim may take
//! now. A thread that relied only on it would claim again and again, and never sleep.

/// The claims that found nothing.
#[derive(Default)]
pub(super) struct Tried {
    /// True if the last claim did. The next one is made in the line, where the thread then sleeps.
    pub(super) is_vain: bool,
    /// The indexes of the queues of a group that were tried in vain since this news.
    news: u64,
    places: Vec<usize>,
}

impl Tried {
    /// Notes that a claim from the queue at this index found nothing, after reading `news`.
    pub(super) fn note(&mut self, news: u64, place: usize) {
        if self.news < news {
            (self.news, self.places) = (news, Vec::new());
        }
        if self.news == news && !self.places.contains(&place) {
            self.places.push(place);
        }
    }

    /// Returns the queues that were claimed from in vain since this news.
    pub(super) fn since(&self, news: u64) -> Vec<usize> {
        if self.news == news { self.places.clone() } else { Vec::new() }
    }

    /// Forgets the queues: meanwhile a job may have fallen due, which is no news.
    pub(super) fn forget(&mut self) {
        self.places.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{LONG, pool, pool_of, queue, until_asleep};
    use super::Tried;
    use crate::accept::Accept;
    use crate::handle::Queue;
    use crate::notify::bell::Takes;
    use crate::runner::handle::Runner;
    use crate::runner::hooks::Hooks;
    use crate::runner::outcome::Outcome;
    use crate::runner::pool::line::Turn;
    use crate::runner::pool::writing::Answer;
    use crate::testing::QueueModel;
    use crate::types::limit::Limit;
    use crate::types::new_job::NewJob;
    use crate::types::options::QueueOptions;
    use std::time::{Duration, Instant};
    use waterline::Store;

    #[test]
    fn a_queue_counts_as_tried_until_there_is_news() {
        let mut tried = Tried::default();
        tried.note(4, 1);
        tried.note(4, 1);
        tried.note(4, 0);
        tried.note(3, 2);
        assert_eq!((tried.since(4), tried.since(3), tried.since(5)), (vec![1, 0], vec![], vec![]));
        tried.note(5, 2);
        assert_eq!((tried.since(4), tried.since(5)), (vec![], vec![2]));
        tried.forget();
        assert!(tried.since(5).is_empty());
    }

    #[test]
    fn the_claim_after_a_vain_one_is_made_in_the_line() {
        let queue = queue(0);
        let pool = pool(&queue, 3);
        let mut reports = Vec::new();
        let wants = pool.prepare(&mut reports, true);
        assert!(matches!(pool.write(&mut reports, wants), Ok(Answer::Nothing)));
        queue.push(NewJob::new("k", &1).unwrap()).unwrap();
        // A write that claims nothing does not change that.
        assert!(matches!(pool.write(&mut reports, 0), Ok(Answer::Nothing)));
        let in_line = pool.look_for_job(&mut reports);
        assert!(matches!(in_line, Turn::Job(_)), "the thread would never sleep if it found nothing again");
        queue.push(NewJob::new("k", &1).unwrap()).unwrap();
        assert!(matches!(pool.look_for_job(&mut reports), Turn::Claim(_)), "others look meanwhile");
    }

    /// The only job of a limit with room is of another kind: its key, or its kind, has the limit.
    #[test]
    fn a_runner_sleeps_beside_held_jobs_of_other_kinds() {
        for limit in [Limit::each_key().at_once(1), Limit::kind("c").at_once(1)] {
            let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default().limit(limit)).unwrap();
            queue.push_all((0..3).map(|n| NewJob::new("c", &n).unwrap().key("x"))).unwrap();
            let mut first = queue.accept(Accept::new()).unwrap().unwrap();
            assert!(queue.accept(Accept::new()).unwrap().is_none());
            first.finish(None).unwrap();
            let runner = Runner::builder(&queue).on("k", |_, _: u32| Ok(Outcome::Done)).start().unwrap();
            until_asleep(&queue, 1);
            // A claim under way may ring once more. A pause that is too short hides a mistake, and
            // never fails.
            let is_quiet = (0..50).any(|_| {
                let news = queue.shared.bell.news();
                std::thread::park_timeout(Duration::from_millis(20));
                queue.shared.bell.news() == news
            });
            assert!(is_quiet, "it claims again and again");
            runner.stop().unwrap();
            assert_eq!(queue.counts().ready, 2);
        }
    }

    #[test]
    fn a_group_tries_each_queue_once_and_then_sleeps() {
        let group = QueueModel::new().group();
        let group = group.queue("q", ["k"], QueueOptions::default()).queue("r", ["l"], QueueOptions::default());
        let group = group.open().unwrap();
        let members = group.members().clone();
        let pool = pool_of(members.clone(), 4, None, Hooks::default());
        let source = pool.source();
        group.push_all(["k", "l", "k", "l"].map(|kind| NewJob::new(kind, &1).unwrap())).unwrap();
        let news = source.news();
        // A claim from the first one was in vain, whatever it seems to have.
        pool.state.lock().outbox.tried.note(news, 0);
        let tried = pool.state.lock().outbox.tried.since(news);
        assert_eq!(source.choose(&tried).map(|(place, _)| place), Some(1));
        assert!(source.has_more(&tried));
        pool.state.lock().outbox.tried.note(news, 1);
        assert!(matches!(pool.write(&mut Vec::new(), 1), Ok(Answer::Nothing)), "both were tried");
        let tried = pool.state.lock().outbox.tried.since(news);
        assert!(!source.has_more(&tried));
        let (slept, has_slept) = crossbeam_channel::bounded(1);
        std::thread::scope(|scope| {
            scope.spawn(|| slept.send(source.sleep(news, None, Takes::Each, &tried)));
            let until = Instant::now() + LONG;
            while members.bell().asleep() == 0 {
                assert!(Instant::now() < until && has_slept.is_empty(), "it does not sleep");
                std::thread::park_timeout(Duration::from_millis(1));
            }
            group.push(NewJob::new("k", &1).unwrap()).unwrap();
            assert_eq!(has_slept.recv_timeout(LONG), Ok(false));
        });
        assert!(matches!(pool.write(&mut Vec::new(), 1), Ok(Answer::Jobs(_))), "the news is what to look at");
    }
}
