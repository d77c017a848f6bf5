//! What an operator has to do for each status of a queue.

use crate::status::{QueueStatus, UNTAKEN, Vantage, Waits};
use std::time::Duration;
use waterline::seam::advice;
use waterline::{Advice, Verdict};

#[cfg(test)]
#[path = "../../../src/observe/page.rs"]
mod page;

impl QueueStatus {
    /// Returns the verdict on the queue: the worst of [`advice`](Self::advice).
    ///
    /// ```
    /// use waterline::{Store, Verdict};
    /// use waterline_queue::{NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
    /// assert_eq!(queue.status()?.verdict(), Verdict::GoesWell);
    /// queue.push(NewJob::new("welcome", "ann")?)?;
    /// assert_eq!(queue.status()?.verdict(), Verdict::NeedsYou, "nobody runs its jobs");
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        worst(&self.advice(), |_| true)
    }

    /// Returns the advice on the queue: first why no job starts, then what is left over.
    ///
    /// Left over are jobs of kinds without a handler or that no worker takes, silent workers, slots
    /// of removed jobs, and dead and damaged jobs. The page `operating` has a row for each reason.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
    /// queue.push(NewJob::new("welcome", "ann")?)?;
    /// let advice = &queue.status()?.advice()[0];
    /// assert_eq!((advice.reason, advice.help), ("no_worker", "Start a runner in the program."));
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    #[must_use]
    pub fn advice(&self) -> Vec<Advice> {
        let (reason, verdict, help) = self.of_waits();
        let first = advice(reason, verdict, self.why(), help);
        let dead = "Remove the cause that their errors name, then requeue them, or remove them.";
        let damaged = "Look at the disk, and remove them.";
        let others = [
            self.unknown(),
            self.left(),
            self.silent(),
            self.of_stuck(),
            left_over("dead", self.counts.dead, dead),
            left_over("damaged", self.counts.damaged, damaged),
        ];
        [first].into_iter().chain(others.into_iter().flatten()).collect()
    }

    /// The runner remembers kinds even when their jobs have gone.
    fn unknown(&self) -> Option<Advice> {
        let counts = &self.counts;
        let may_be_there = counts.dead + counts.scheduled + counts.ready > 0;
        let sentence = self.of_unknown_kinds().filter(|_| may_be_there)?;
        let help = "Add a handler for them to the program, or cancel them.";
        Some(advice("unknown_kinds", Verdict::NeedsYou, sentence, help))
    }

    fn left(&self) -> Option<Advice> {
        let sentence = self.of_untaken()?;
        let verdict = if self.is_untaken_for_good() { Verdict::NeedsYou } else { Verdict::Waits };
        let help = "Start a worker that has a handler for them, or cancel them.";
        Some(advice("untaken", verdict, sentence, help))
    }

    /// True if it is known that no worker takes the due kinds. Otherwise one may come soon.
    fn is_untaken_for_good(&self) -> bool {
        match self.vantage {
            Vantage::Whole => true,
            Vantage::Shared if self.fleet.workers > 0 => true,
            Vantage::Shared | Vantage::Beside => self.due_for() >= UNTAKEN,
        }
    }

    /// Others take the jobs of a silent worker, if there are others.
    fn silent(&self) -> Option<Advice> {
        let (sentence, first) = (self.of_silent()?, self.fleet.silent.first()?);
        let is_over = first.lease_left.is_zero() && self.fleet.workers == 0;
        let (verdict, help) = if is_over {
            (Verdict::NeedsYou, "Start a worker, and find out why that one has died.")
        } else {
            (Verdict::Waits, "It goes on by itself. Find out if that worker has died, or cannot reach the database.")
        };
        Some(advice("silent", verdict, sentence, help))
    }

    fn of_stuck(&self) -> Option<Advice> {
        let sentence = self.stuck.as_ref()?.to_string();
        let help = "Let the handlers return when is_stopping is true, or start the program again.";
        Some(advice("stuck", Verdict::NeedsYou, sentence, help))
    }

    /// The table of the reasons: the word, who acts, and what helps. The page `operating` has the
    /// same rows.
    pub(super) fn of_waits(&self) -> (&'static str, Verdict, &'static str) {
        use Verdict::{GoesWell, NeedsYou, Waits as Wait};
        match &self.waits {
            Waits::No if self.vantage == Vantage::Beside => ("no", Wait, "If its process has died, start it again."),
            Waits::No => ("no", GoesWell, ""),
            Waits::NothingReady { .. } => ("nothing_ready", GoesWell, ""),
            Waits::OtherKinds if self.is_untaken_for_good() => {
                ("other_kinds", NeedsYou, "Start a worker that has a handler for them, or cancel them.")
            }
            Waits::OtherKinds => ("other_kinds", Wait, "If no worker takes them, start one."),
            Waits::Idle { free: Some(0), .. } => {
                ("idle", NeedsYou, "If the other queues of these workers have none, start the workers again.")
            }
            Waits::Idle { .. } => (
                "idle",
                NeedsYou,
                "See what the workers log: a gate may be closed, or they cannot write to the database.",
            ),
            Waits::Paused { left: None } => {
                ("paused", NeedsYou, "An operator or the program has paused it. Resume it.")
            }
            Waits::Paused { left: Some(_) } => ("paused", Wait, "It goes on by itself when the pause is over."),
            Waits::Gate { .. } => ("gate", Wait, "It goes on by itself when the program opens the gate."),
            Waits::Limited { .. } => ("limited", Wait, "It goes on by itself. If it is too slow, raise the limit."),
            Waits::Busy { .. } => ("busy", Wait, "It goes on as jobs end."),
            Waits::StandsStill { .. } => (
                "stands_still",
                NeedsYou,
                "Find out what that job waits for. To free its slot, start its process again; to cancel it is enough if \
                 its handler is a future, or looks at is_stopping.",
            ),
            Waits::Alone { .. } => ("alone", Wait, "It goes on by itself when that job has ended."),
            Waits::NoWorker => match self.vantage {
                Vantage::Whole => ("no_worker", NeedsYou, "Start a runner in the program."),
                Vantage::Shared if self.due_for() >= UNTAKEN => ("no_worker", NeedsYou, "Start a worker for its kind."),
                Vantage::Shared => ("no_worker", Wait, "If no worker takes them, start one."),
                Vantage::Beside => ("no_worker", Wait, "If no runner runs, start one."),
            },
            Waits::StoreFails { .. } => ("store_fails", NeedsYou, "Make room on the disk, or repair the database."),
        }
    }

    /// Returns how long the oldest ready job has been due, or the first lapsed lease has been over.
    pub(super) fn due_for(&self) -> Duration {
        self.oldest_ready.as_ref().map_or(Duration::ZERO, |(_, age)| *age).max(self.lapsed_for)
    }

    /// Returns the sentence for a process that cannot know all about the runners, if it differs.
    pub(super) fn seen_elsewhere(&self) -> Option<String> {
        Some(match (&self.waits, self.vantage) {
            (_, Vantage::Whole) => return None,
            (Waits::No, Vantage::Beside) => "has jobs that run, and only its process knows more".to_owned(),
            (Waits::No, Vantage::Shared) => "has jobs that run".to_owned(),
            (Waits::NoWorker, Vantage::Beside) => {
                "has jobs that are due; only its process knows if a runner runs".to_owned()
            }
            (Waits::NoWorker, Vantage::Shared) if self.due_for() >= UNTAKEN => {
                let due = self.due_for().as_secs();
                match self.fleet.stopping {
                    0 => format!("has a job that was due {due}s ago, and no worker is heard of"),
                    _ => format!("has a job that was due {due}s ago, and all workers stop"),
                }
            }
            (Waits::NoWorker, Vantage::Shared) => "has jobs that are due, and no worker is heard of yet".to_owned(),
            _ => return None,
        })
    }
}

/// Returns the worst verdict of those whose reason matches.
pub(crate) fn worst(all: &[Advice], is_such: impl Fn(&str) -> bool) -> Verdict {
    all.iter().filter(|advice| is_such(advice.reason)).map(|advice| advice.verdict).max().unwrap_or_default()
}

/// Advice on jobs that are left over, if there are any. The reason is the word for them.
fn left_over(reason: &'static str, many: u64, help: &'static str) -> Option<Advice> {
    let plural = if many == 1 { "" } else { "s" };
    let sentence = format!("{many} {reason} job{plural}, which nothing runs any more");
    (many > 0).then(|| advice(reason, Verdict::NeedsYou, sentence, help))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fleet::{Fleet, SilentWorker};
    use crate::status::tests::status;
    use crate::status::{StuckSlots, UntakenKind};
    use crate::types::job::Counts;
    use crate::types::limit::LimitOf;

    const SECOND: Duration = Duration::from_secs(1);
    const VANTAGES: [Vantage; 3] = [Vantage::Whole, Vantage::Beside, Vantage::Shared];

    /// Each reason, with its verdict in its only process, beside it, and in one of many.
    fn reasons() -> Vec<(Waits, [Verdict; 3])> {
        use Verdict::{GoesWell, NeedsYou, Waits as Wait};
        let (since, second) = (SECOND * 40, SECOND);
        let oldest = || "~7".to_owned();
        let (workers, worker, kind, no_end) = (Some(2), Some("w1".to_owned()), "k".to_owned(), SECOND * 660);
        let still =
            Waits::StandsStill { slots: 16, workers, worker, oldest: oldest(), kind, since: SECOND * 725, no_end };
        vec![
            (Waits::No, [GoesWell, Wait, GoesWell]),
            (Waits::NothingReady { due_in: Some(second) }, [GoesWell; 3]),
            (Waits::OtherKinds, [NeedsYou, Wait, Wait]),
            (Waits::Idle { workers: 2, free: Some(6) }, [NeedsYou; 3]),
            (Waits::Idle { workers: 2, free: Some(0) }, [NeedsYou; 3]),
            (Waits::Paused { left: None }, [NeedsYou; 3]),
            (Waits::Paused { left: Some(second) }, [Wait; 3]),
            (Waits::Gate { name: "disk".to_owned(), since }, [Wait; 3]),
            (Waits::Limited { limit: LimitOf::Key("ann".to_owned()), held: 7, left: None }, [Wait; 3]),
            (Waits::Busy { slots: 8, since, oldest: oldest() }, [Wait; 3]),
            (still, [NeedsYou; 3]),
            (Waits::Alone { runs: true, since, oldest: oldest() }, [Wait; 3]),
            (Waits::NoWorker, [NeedsYou, Wait, Wait]),
            (Waits::StoreFails { error: "no".to_owned(), since }, [NeedsYou; 3]),
        ]
    }

    #[test]
    fn each_reason_has_its_verdict_and_help() {
        for (waits, of_each) in reasons() {
            for (vantage, verdict) in VANTAGES.into_iter().zip(of_each) {
                let status = QueueStatus { vantage, ..status(waits.clone()) };
                let advice = &status.advice()[0];
                assert_eq!((advice.verdict, status.verdict()), (verdict, verdict), "{waits:?} {vantage:?}");
                assert_eq!(advice.help.is_empty(), verdict == Verdict::GoesWell, "{waits:?} {vantage:?}");
                assert_eq!(advice.sentence, status.sentence());
            }
        }
        let old = Some(("a".to_owned(), UNTAKEN));
        let untaken = QueueStatus { vantage: Vantage::Shared, oldest_ready: old, ..status(Waits::NoWorker) };
        assert_eq!(untaken.verdict(), Verdict::NeedsYou);
        assert!(untaken.sentence().ends_with("has a job that was due 60s ago, and no worker is heard of"));
    }

    #[test]
    fn the_page_says_what_the_library_says_of_each_reason() {
        let said = |name: String, sentence: &str, advice: &Advice| {
            let sentence = sentence.trim_start_matches("the queue \"mail\" ").to_owned();
            (name, sentence, page::ACTS[advice.verdict as usize], advice.help)
        };
        let mut waits = Vec::new();
        for (reason, _) in reasons() {
            for (vantage, due) in VANTAGES.into_iter().flat_map(|vantage| [0, 75].map(|due| (vantage, due))) {
                let untaken = if reason == Waits::OtherKinds { untaken() } else { Vec::new() };
                let oldest_ready = Some(("a".to_owned(), SECOND * due));
                let status = QueueStatus { vantage, oldest_ready, untaken, ..status(reason.clone()) };
                waits.push(said(page::name(&reason), &status.sentence(), &status.advice()[0]));
            }
        }
        let names = waits.iter().map(|(name, ..)| name.clone()).collect();
        assert_eq!(page::variants(include_str!("status.rs"), "Waits"), names, "each has a sample");
        let mut left_over = Vec::new();
        for (workers, lease_left) in [(2, SECOND * 15), (0, Duration::ZERO)] {
            let silent = SilentWorker { name: "w1".to_owned(), jobs: 3, silent_for: SECOND * 45, lease_left };
            let status = QueueStatus {
                counts: Counts { dead: 11, damaged: 1, ..Counts::default() },
                unknown_kinds: vec!["mial".to_owned()],
                untaken: untaken(),
                stuck: Some(StuckSlots { slots: 2, first: "h0".to_owned(), since: SECOND * 40 }),
                ..shared(Waits::No, workers, vec![silent])
            };
            let advice = status.advice();
            left_over.extend(advice[1..].iter().map(|one| said(one.reason.to_owned(), &one.sentence, one)));
        }
        let page = include_str!("../../../docs/operating.md");
        let differ = |page: &str| {
            let tables = [("## What to do when a queue waits", &waits), ("What is left over is a second", &left_over)];
            tables.into_iter().flat_map(|(heading, said)| page::differ(page, heading, said)).collect::<Vec<_>>()
        };
        assert_eq!(differ(page), [""; 0]);
        for (here, there, differs) in [
            ("| `Gate` |", "| `Door` |", &["Door", "Gate"][..]),
            ("11 dead jobs, which nothing", "11 dead jobs that nothing", &["dead"]),
            ("If no runner runs, start one.", "Wait.", &["NoWorker"]),
            ("| you | See what the workers log", "| itself | See what the workers log", &["Idle"]),
        ] {
            assert_eq!(differ(&page.replace(here, there)), differs, "{there}");
        }
    }

    #[test]
    fn leftovers_need_an_operator_though_the_queue_runs() {
        let running = || status(Waits::No);
        let of = |counts| QueueStatus { counts, ..running() };
        let mial = || vec!["mial".to_owned()];
        let stuck = StuckSlots { slots: 2, first: "h0".to_owned(), since: SECOND * 40 };
        for (status, says) in [
            (running(), &[][..]),
            // Its jobs have gone.
            (QueueStatus { unknown_kinds: mial(), ..running() }, &[]),
            (of(Counts { dead: 11, ..Counts::default() }), &["11 dead jobs, which nothing runs any more"]),
            (of(Counts { damaged: 1, ..Counts::default() }), &["1 damaged job, which nothing runs any more"]),
            (
                QueueStatus { unknown_kinds: mial(), ..of(Counts { ready: 1, ..Counts::default() }) },
                &[
                    "jobs of the kind \"mial\" were pushed, for which its runner has no handler: add one, or correct the kind",
                ],
            ),
            (
                QueueStatus { stuck: Some(stuck), ..running() },
                &["2 slots have jobs that were removed or taken back and do not end, \"h0\" for 40.0s"],
            ),
        ] {
            let others = status.advice().split_off(1);
            assert_eq!(others.iter().map(|other| &*other.sentence).collect::<Vec<_>>(), says);
            assert!(others.iter().all(|other| other.verdict == Verdict::NeedsYou), "{others:?}");
        }
    }

    fn untaken() -> Vec<UntakenKind> {
        vec![UntakenKind { kind: "receipt".to_owned(), jobs: 40 }]
    }

    /// A queue that many processes share, with this many workers of two slots.
    fn shared(waits: Waits, workers: usize, silent: Vec<SilentWorker>) -> QueueStatus {
        let fleet =
            Fleet { workers, slots: Some(2 * workers as u64), silent_count: silent.len(), silent, ..Fleet::of(&[]) };
        QueueStatus { vantage: Vantage::Shared, fleet, ..status(waits) }
    }

    #[test]
    fn silent_workers_are_named_and_the_last_needs_an_operator() {
        use Verdict::{NeedsYou, Waits as Wait};
        for (workers, seconds, others, verdict, says) in [
            (1, 15, 0, Wait, "its 3 jobs may be taken by others in 15.0s"),
            (0, 15, 1, Wait, "its 3 jobs may be taken by others in 15.0s; 1 more worker is silent"),
            (2, 0, 0, Wait, "its 3 jobs may be taken by others now"),
            (0, 0, 2, NeedsYou, "no worker is left that could take its 3 jobs; 2 more workers are silent"),
        ] {
            let lease_left = SECOND * seconds;
            let one = SilentWorker { name: "w1".to_owned(), jobs: 3, silent_for: SECOND * 45, lease_left };
            let status = shared(Waits::No, workers, vec![one; 1 + others]);
            let advice = &status.advice()[1];
            let sentence = format!("w1 was last heard of 45.0s ago, and {says}");
            assert_eq!((advice.reason, advice.verdict, &advice.sentence), ("silent", verdict, &sentence));
            assert!(status.sentence().ends_with(&sentence), "{status}");
        }
    }

    #[test]
    fn a_shared_queue_says_what_its_workers_do() {
        let of = |waits, workers| shared(waits, workers, Vec::new());
        let late = |status| QueueStatus { oldest_ready: Some(("a".to_owned(), SECOND * 75)), ..status };
        let idle = |free| late(of(Waits::Idle { workers: 2, free: Some(free) }, 2));
        let stopping = Fleet { stopping: 1, ..Fleet::of(&[]) };
        // A job whose lease is over, and that no worker takes back, is due, too.
        let lapsed = QueueStatus { lapsed_for: SECOND * 471, ..of(Waits::NoWorker, 0) };
        assert_eq!(lapsed.verdict(), Verdict::NeedsYou);
        let (still, _) = reasons().into_iter().find(|(waits, _)| matches!(waits, Waits::StandsStill { .. })).unwrap();
        for (status, says) in [
            (
                of(Waits::Paused { left: None }, 3),
                "is paused until somebody resumes it; 3 workers with 6 slots wait for that",
            ),
            (of(Waits::Paused { left: None }, 0), "is paused until somebody resumes it"),
            (idle(3), "has a job that was due 75s ago, and 2 workers with 3 free slots began none for a minute"),
            (
                idle(0),
                "has a job that was due 75s ago, and all slots of 2 workers hold jobs of other queues, or jobs that were \
                 removed or taken back and do not end",
            ),
            (
                QueueStatus { fleet: stopping, ..late(of(Waits::NoWorker, 0)) },
                "has a job that was due 75s ago, and all workers stop",
            ),
            (lapsed, "has a job that was due 471s ago, and no worker is heard of"),
            (
                of(Waits::Busy { slots: 4, since: SECOND, oldest: "a".to_owned() }, 2),
                "has all 4 slots of 2 workers busy; its oldest job, \"a\", has run for 1.0s: raise max_processing, or find \
                 out why that job takes so long",
            ),
            (
                of(still, 2),
                "stands still: 16 slots of 2 workers are busy; the oldest, \"~7\" of w1, runs for 12m, and no job has \
                 ended for 11m",
            ),
        ] {
            assert_eq!(status.sentence(), format!("the queue \"mail\" {says}"));
        }
    }

    #[test]
    fn an_untaken_kind_needs_an_operator_if_workers_are_known() {
        for (workers, verdict) in [(2, Verdict::NeedsYou), (0, Verdict::Waits)] {
            let status = QueueStatus { untaken: untaken(), ..shared(Waits::OtherKinds, workers, Vec::new()) };
            let verdicts: Vec<_> = status.advice().iter().map(|advice| (advice.reason, advice.verdict)).collect();
            assert_eq!(verdicts, [("other_kinds", verdict), ("untaken", verdict)]);
        }
    }
}
