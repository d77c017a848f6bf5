//! What an operator has to do for each status of a consumer.

use crate::base::advice::{Advice, Verdict};
use crate::observe::status::{Blocked, State, Status};
use std::time::Duration;

/// How long a source may fail before it needs an operator. A restarted node or network takes less.
const SOURCE_PATIENCE: Duration = Duration::from_secs(60);

impl Status {
    /// Returns the verdict on the consumer: the worst of [`advice`](Self::advice).
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress, Verdict};
    ///
    /// let jobs: MemoryJobs<u64> = MemoryJobs::new();
    /// let consumer = Consumer::builder(jobs, MemoryProgress::new()).start(|_| Ok(()))?;
    /// consumer.handle().pause();
    /// assert_eq!(consumer.handle().status().verdict(), Verdict::NeedsYou);
    /// # consumer.stop()?;
    /// # Ok::<(), waterline::Error>(())
    /// ```
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        Advice::worst(&self.advice())
    }

    /// Returns the findings: why the watermark does not move and what helps, then its parked jobs.
    ///
    /// The page `operating` has a row for each reason.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress, Verdict};
    ///
    /// let jobs: MemoryJobs<u64> = MemoryJobs::new();
    /// let consumer = Consumer::builder(jobs, MemoryProgress::new()).start(|_| Ok(()))?;
    /// consumer.handle().pause();
    /// let advice = &consumer.handle().status().advice()[0];
    /// assert_eq!((advice.reason, advice.verdict), ("paused", Verdict::NeedsYou));
    /// assert_eq!(advice.sentence, "the consumer is paused; resume it to go on");
    /// # consumer.stop()?;
    /// # Ok::<(), waterline::Error>(())
    /// ```
    #[must_use]
    pub fn advice(&self) -> Vec<Advice> {
        [Some(self.movement()), Advice::parked(self.parked)].into_iter().flatten().collect()
    }

    fn movement(&self) -> Advice {
        let (reason, mut verdict, mut help) = of_blocked(&self.blocked);
        let mut sentence = self.reason().to_string();
        if let Some(time) = self.source_fails_for {
            if time < SOURCE_PATIENCE {
                verdict = Verdict::Waits;
            } else {
                let lag = self.head.map_or_else(|| "unknown".to_owned(), |_| self.lag().to_string());
                sentence.push_str(&format!(" (for {time:.0?}; lag {lag})"));
            }
        }
        if self.ended_upstream.is_some() {
            (verdict, help) = (Verdict::NeedsYou, "Start the stage before it again: it has ended.");
        }
        if self.state == State::Finished && self.blocked == Blocked::No {
            sentence = "the consumer has ended".to_owned();
            if self.lag() > 0 {
                let ended = "It has ended before the head. Nothing runs before the program starts it again.";
                (verdict, help) = (Verdict::Waits, ended);
            }
        }
        Advice { reason, verdict, sentence, help }
    }
}

impl Blocked {
    /// Returns the stable word for the reason. The sentence says the rest.
    pub(super) fn word(&self) -> &'static str {
        of_blocked(self).0
    }
}

/// The table of the reasons: the word, who acts, and what helps. The page `operating` has the same
/// rows.
fn of_blocked(blocked: &Blocked) -> (&'static str, Verdict, &'static str) {
    use Verdict::{GoesWell, NeedsYou, Waits};
    match blocked {
        Blocked::No => ("no", GoesWell, ""),
        Blocked::CaughtUp => ("caught_up", GoesWell, ""),
        Blocked::Running { .. } => {
            ("running", Waits, "The watermark moves when it ends. If it never does, find out what it waits for.")
        }
        Blocked::Overdue { .. } => {
            ("overdue", NeedsYou, "Only its own code can end it. If it hangs for good, start the program again.")
        }
        Blocked::Retrying { .. } => {
            ("retrying", Waits, "It is tried again by itself. Remove the cause that the error names.")
        }
        Blocked::Deferred { .. } => ("deferred", Waits, "It is tried again by itself."),
        Blocked::Alone { .. } => ("alone", Waits, "It goes on by itself, with one job at a time for now."),
        Blocked::Threads { .. } => ("threads", NeedsYou, "See what the threads do, with a debugger or a profiler."),
        Blocked::Looking { .. } => ("looking", Waits, "It goes on as soon as the source answers."),
        // In the first minute the verdict is `Waits`: see `movement`.
        Blocked::Missing { .. } => ("missing", NeedsYou, "The source is asked again by itself, or now."),
        Blocked::Source { .. } => (
            "source",
            NeedsYou,
            "The source is asked again by itself, or now. If it never answers, give its client a timeout.",
        ),
        Blocked::SourceWaits { .. } => ("source_waits", Waits, "The source is asked again by itself, or now."),
        Blocked::Progress { .. } => ("progress", NeedsYou, "Make room on the disk, or repair the database."),
        Blocked::AheadOfSource { .. } => {
            ("ahead_of_source", NeedsYou, "Nothing runs before the source is the one that it was.")
        }
        Blocked::Upstream { .. } => ("upstream", Waits, "See what the stage before it waits for."),
        Blocked::LogFull { ended: true, .. } => {
            ("log_full", NeedsYou, "Start the stage behind the log again: it has ended.")
        }
        Blocked::LogFull { behind: None, .. } => {
            ("log_full", Waits, "Name the consumers behind the log in the program, or let it trim the log.")
        }
        Blocked::LogFull { .. } => ("log_full", Waits, "See what the stage behind the log waits for."),
        Blocked::InUse { .. } => ("in_use", Waits, "It is the standby. It takes over by itself."),
        Blocked::Paused => ("paused", NeedsYou, "An operator or the program has paused it. Resume it."),
        Blocked::Held { .. } => ("held", NeedsYou, "The progress decides when it goes on."),
        Blocked::Leaving { .. } => ("leaving", NeedsYou, "If it hangs for good, start the program again."),
        // If the job is not the cause, skipping it would only lose it.
        Blocked::Halted { .. } if !blocked.is_halt_of_job() => {
            ("halted", NeedsYou, "Remove the cause and start the consumer again.")
        }
        Blocked::Halted { .. } => (
            "halted",
            NeedsYou,
            "Remove the cause and start the consumer again. Or skip the job once the program has let go of the consumer.",
        ),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::base::Index;
    use crate::observe::page;
    use crate::observe::status::SourceCalls;
    use Verdict::{GoesWell, NeedsYou, Waits};

    pub(in crate::observe) fn status(head: Option<Index>, last_processed: Option<Index>, blocked: Blocked) -> Status {
        Status {
            state: State::Running,
            head,
            last_processed,
            next: 46,
            processing: 4,
            done_ahead: 2,
            unsaved: 2,
            blocked,
            source_fails_for: None,
            source: SourceCalls::default(),
            ended_upstream: None,
            done: 44,
            failed: 0,
            retries: 0,
            saves: 9,
            absent: 0,
            parked: 0,
            behind: 0,
            oldest: None,
            unprocessed: last_processed.map_or(40, |last| last + 1),
        }
    }

    /// A full log after this consumer.
    fn full(behind: Option<&str>, ended: bool) -> Blocked {
        let (log, behind) = ("lines".to_owned(), behind.map(str::to_owned));
        Blocked::LogFull { index: 7, log, items: 10, most: 10, behind, ended }
    }

    /// Each reason with its verdict. A failing source has failed for a minute.
    pub(in crate::observe) fn reasons() -> Vec<(Blocked, Verdict)> {
        let (index, attempt, elapsed, timeout) = (7, 2, Duration::from_secs(3), Duration::from_secs(1));
        let (error, why) = ("no".to_owned(), "a vote".to_owned());
        let retry_in = elapsed;
        vec![
            (Blocked::No, GoesWell),
            (Blocked::CaughtUp, GoesWell),
            (Blocked::Running { index, attempt, elapsed }, Waits),
            (Blocked::Overdue { index, attempt, elapsed, timeout }, NeedsYou),
            (Blocked::Retrying { index, attempt, retry_in, error: error.clone() }, Waits),
            (Blocked::Deferred { index, retry_in, error: error.clone() }, Waits),
            (Blocked::Alone { index }, Waits),
            (Blocked::Threads { busy: 2, elapsed }, NeedsYou),
            (Blocked::Missing { index }, NeedsYou),
            (Blocked::Looking { elapsed }, Waits),
            (Blocked::Source { index, error: error.clone() }, NeedsYou),
            (Blocked::SourceWaits { index, why: why.clone() }, Waits),
            (Blocked::Progress { error: error.clone() }, NeedsYou),
            (Blocked::AheadOfSource { last_processed: 9, head: Some(3) }, NeedsYou),
            (Blocked::Upstream { index }, Waits),
            (full(Some("words"), false), Waits),
            (full(Some("words"), true), NeedsYou),
            (full(None, false), Waits),
            (Blocked::InUse { holder: "b".to_owned(), expires_in: None }, Waits),
            (Blocked::Paused, NeedsYou),
            (Blocked::Held { why }, NeedsYou),
            (Blocked::Leaving { elapsed }, NeedsYou),
            (Blocked::Halted { index, error: "job 7 failed in attempt 2: no".to_owned() }, NeedsYou),
            (Blocked::Halted { index, error }, NeedsYou),
        ]
    }

    /// Returns a status with this reason. If the source fails, it has failed for this time.
    pub(in crate::observe) fn waiting(blocked: Blocked, time: Duration) -> Status {
        let is_source = matches!(blocked, Blocked::Source { .. } | Blocked::Missing { .. });
        Status { source_fails_for: is_source.then_some(time), ..status(Some(100), Some(41), blocked) }
    }

    #[test]
    fn each_reason_has_a_verdict_and_says_what_helps() {
        for (blocked, verdict) in reasons() {
            let status = waiting(blocked.clone(), SOURCE_PATIENCE);
            let advice = &status.advice()[0];
            assert_eq!((advice.verdict, status.verdict()), (verdict, verdict), "{blocked}");
            assert_eq!(advice.help.is_empty(), verdict == GoesWell, "{blocked}");
            assert!(advice.sentence.starts_with(&blocked.to_string()), "{}", advice.sentence);
            // Parked jobs need an operator whatever else the verdict is.
            let parked = Status { parked: 3, ..status };
            assert_eq!((parked.verdict(), parked.advice()[0].verdict), (NeedsYou, verdict), "{blocked}");
            assert_eq!(parked.advice()[1].sentence, "3 parked jobs, which nothing runs before a redrive");
        }
    }

    #[test]
    fn a_failing_source_needs_an_operator_after_a_minute() {
        let moment = SOURCE_PATIENCE - Duration::from_millis(1);
        for blocked in [Blocked::Missing { index: 42 }, Blocked::Source { index: 42, error: "no route".to_owned() }] {
            let young = waiting(blocked.clone(), moment);
            assert_eq!((young.verdict(), young.advice()[0].sentence.clone()), (Waits, blocked.to_string()));
            let old = waiting(blocked.clone(), Duration::from_secs(75));
            assert_eq!(old.verdict(), NeedsYou);
            assert_eq!(old.advice()[0].sentence, format!("{blocked} (for 75s; lag 59)"));
            let unseen = Status { head: None, ..old };
            assert!(unseen.advice()[0].sentence.ends_with("(for 75s; lag unknown)"));
        }
    }

    #[test]
    fn the_page_says_what_the_library_says_of_each_reason() {
        let millis = |retry_in| Some(Duration::from_millis(retry_in));
        let calls = |blocked: &Blocked| match blocked {
            Blocked::Missing { .. } => SourceCalls { retry_in: millis(300), ..SourceCalls::default() },
            Blocked::Source { .. } => {
                SourceCalls { made: 31, failed: 5, retry_in: millis(1_640), ..SourceCalls::default() }
            }
            _ => SourceCalls::default(),
        };
        let said = |(blocked, time): (Blocked, Duration)| {
            let status = Status { source: calls(&blocked), ..waiting(blocked, time) };
            let Advice { verdict, sentence, help, .. } = status.movement();
            (page::name(&status.blocked), sentence, page::ACTS[verdict as usize], help)
        };
        let times = |(blocked, _): (Blocked, _)| [Duration::ZERO, SOURCE_PATIENCE].map(|time| (blocked.clone(), time));
        let said: Vec<page::Said> = reasons().into_iter().flat_map(times).map(said).collect();
        let names = said.iter().map(|(name, ..)| name.clone()).collect();
        assert_eq!(page::variants(include_str!("status.rs"), "Blocked"), names, "each has a sample");
        let page = include_str!("../../docs/operating.md");
        let differ = |page: &str| Vec::from_iter(page::differ(page, "## What to do when a stream waits", &said));
        assert_eq!(differ(page), [""; 0]);
        for (here, there, differs) in [
            ("| `Held` |", "| `Hold` |", &["Held", "Hold"][..]),
            ("| `Paused` |", "| `Held` |", &["Held", "Paused"]),
            ("the consumer is paused; resume it to go on", "the consumer is paused; resume it", &["Paused"]),
            ("The progress decides when it goes on.", "Wait.", &["Held"]),
            ("| nobody | |", "| nobody | Wait. |", &["CaughtUp", "No"]),
            ("| you | See what the threads do", "| itself | See what the threads do", &["Threads"]),
            (
                "| itself, or you after a minute | The source is asked again by itself, or now. Bring",
                "| you | The source is asked again by itself, or now. Bring",
                &["Missing"],
            ),
        ] {
            assert_eq!(differ(&page.replace(here, there)), differs, "{there}");
        }
        let plain = page.replace('\n', " ");
        let ended = Status { state: State::Finished, ..waiting(Blocked::No, Duration::ZERO) };
        let held = Status {
            ended_upstream: Some("fetch".to_owned()),
            ..waiting(Blocked::Upstream { index: 7 }, Duration::ZERO)
        };
        for help in
            [&ended, &held, &Status { parked: 3, ..held.clone() }].map(|status| status.advice().pop().unwrap().help)
        {
            assert!(plain.contains(help), "{help}");
        }
    }

    #[test]
    fn ended_upstreams_and_early_ends_have_own_advice() {
        let held = waiting(Blocked::Upstream { index: 42 }, Duration::ZERO);
        let held = Status { ended_upstream: Some("fetch".to_owned()), ..held };
        let advice = &held.advice()[0];
        assert!(advice.sentence.ends_with(" (its upstream \"fetch\" has ended)"), "{}", advice.sentence);
        assert_eq!((advice.verdict, advice.help), (NeedsYou, "Start the stage before it again: it has ended."));
        let ended = Status { state: State::Finished, ..waiting(Blocked::No, Duration::ZERO) };
        assert_eq!((ended.verdict(), &ended.advice()[0].sentence[..]), (Waits, "the consumer has ended"));
        let done = Status { unprocessed: 101, ..ended };
        assert_eq!(done.verdict(), GoesWell);
    }
}
