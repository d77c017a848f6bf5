//! The doctor: it reads everything, and names what is damaged or cannot move.

use crate::args::State;
use crate::content::Items;
use crate::fault::Fault;
use crate::place::{Holders, Place};
use crate::print::{Cell, Report};
use crate::queues::{each, look, sentence};
use crate::streams::standing_halt;
use crate::words::{age, count, cut, readable};
use serde_json::json;
use std::time::SystemTime;
use waterline::queue::{JobState, Queue, Waits};
use waterline::{ConsumerInfo, LogInfo, Store};

/// The longest error in a sentence.
const ERROR: usize = 160;

/// The most damaged things of one kind that are listed.
const MOST: usize = 20;

/// The findings so far.
struct Findings {
    holders: Holders,
    now: SystemTime,
    found: Vec<Finding>,
    /// The things that were read: their number, and their noun.
    read: Vec<(u64, &'static str)>,
}

struct Finding {
    is_problem: bool,
    subject: &'static str,
    name: String,
    sentence: String,
    command: Option<String>,
}

/// Reads everything, and reports what was found.
pub(crate) fn examine(place: &Place) -> Result<Report, Fault> {
    let store = place.look()?;
    let (now, found, read) = (SystemTime::now(), Vec::new(), Vec::new());
    let mut findings = Findings { holders: place.holders(), now, found, read };
    let (consumers, logs) = (store.consumers()?, store.logs()?);
    consumers.iter().for_each(|info| findings.consumer(&store, info));
    findings.read.push((consumers.len() as u64, "consumer"));
    findings.logs(&store, &logs, &consumers)?;
    findings.tables(&store)?;
    findings.queues(&store)?;
    Ok(findings.report())
}

impl Findings {
    fn problem(&mut self, subject: &'static str, name: &str, sentence: String, command: Option<String>) {
        let name = name.to_owned();
        self.found.push(Finding { is_problem: true, subject, name, sentence, command });
    }

    fn note(&mut self, subject: &'static str, name: &str, sentence: String) {
        let name = name.to_owned();
        self.found.push(Finding { is_problem: false, subject, name, sentence, command: None });
    }

    fn consumer(&mut self, store: &Store, info: &ConsumerInfo) {
        let name = &info.name;
        if let Some(reason) = &info.unreadable {
            let command = format!("remove {}, or restore a backup", word(name));
            return self.problem("consumer", name, format!("is damaged: {reason}"), Some(command));
        }
        if let Some(halt) = standing_halt(info) {
            let sentence = format!(
                "has halted at job {}, {}, and the job is not done: {}",
                halt.index,
                age(halt.at, self.now),
                cut(&halt.error, ERROR)
            );
            let command =
                format!("fix the cause and start it again, or: skip {} {} --reason TEXT", word(name), halt.index);
            self.problem("consumer", name, sentence, Some(command));
        }
        if info.parked > 0 {
            let sentence =
                format!("has {}, which nothing runs before somebody wants it", count(info.parked, "parked job"));
            let command = format!("parked {0}, then: redrive {0} --all, or: discard {0} INDEX", word(name));
            self.problem("consumer", name, sentence, Some(command));
        }
        if info.life_open == Some(true) {
            self.life(name);
        }
        if let Err(error) = store.parked(name).map(drop).and_then(|()| store.progress(name).history().map(drop)) {
            let command = format!("remove {}, or restore a backup", word(name));
            self.problem("consumer", name, Fault::from(error).to_string(), Some(command));
        }
    }

    /// A life that is open is that of a consumer that runs, or of a process that has died.
    fn life(&mut self, name: &str) {
        match &self.holders {
            Holders::One(holder) => {
                let sentence = format!("has a life that is open, and only the process {holder} knows what it does");
                self.note("consumer", name, sentence);
            }
            Holders::None => {
                let sentence = "has a life that is open, though no process that is seen from here has the store open: its \
                                process died";
                let command = "find out why it died, and start it again: its jobs in flight then run again".to_owned();
                self.problem("consumer", name, sentence.to_owned(), Some(command));
            }
            Holders::Unknown => {
                let sentence = "has a life that is open: it runs, or its process died; only the process knows which";
                self.note("consumer", name, sentence.to_owned());
            }
        }
    }

    fn logs(&mut self, store: &Store, logs: &[LogInfo], consumers: &[ConsumerInfo]) -> Result<(), Fault> {
        let mut read = 0;
        for log in logs {
            if let Some(reason) = &log.unreadable {
                self.problem("log", &log.name, format!("is damaged: {reason}"), Some("restore a backup".to_owned()));
                continue;
            }
            let items = Items::open(store, &log.name)?;
            let mut damaged = Vec::new();
            let ended = items.each(0, |index, bytes| {
                read += 1;
                if let Some(Err(error)) = items.json(bytes) {
                    damaged.push((index, error.to_string()));
                }
                true
            });
            damaged.extend(ended.err());
            for (index, reason) in damaged.iter().take(MOST) {
                let sentence = format!("has the item {index}, which cannot be read: {reason}");
                self.problem(
                    "log",
                    &log.name,
                    sentence,
                    Some("restore a backup, or skip it in its consumers".to_owned()),
                );
            }
            if damaged.len() > MOST {
                self.problem("log", &log.name, format!("has {} such items", damaged.len()), None);
            }
            // A store does not know who reads a log. One of the same name mostly does.
            if let (Some(head), Some(next)) =
                (log.head, consumers.iter().find(|info| info.name == log.name).and_then(|info| info.next))
                && next <= head
            {
                let lag = count(head - next + 1, "item");
                self.note("log", &log.name, format!("has {lag} that the consumer of the same name has not processed"));
            }
        }
        self.read.push((read, "item"));
        Ok(())
    }

    fn tables(&mut self, store: &Store) -> Result<(), Fault> {
        let mut read = 0;
        for name in store.tables()? {
            for row in store.table(&name)?.iter() {
                match row {
                    Ok(_) => read += 1,
                    Err(error) => {
                        self.problem("table", &name, format!("cannot be read: {}", error.report()), None);
                        break;
                    }
                }
            }
        }
        self.read.push((read, "row"));
        Ok(())
    }

    fn queues(&mut self, store: &Store) -> Result<(), Fault> {
        let mut read = 0;
        for name in Queue::names(store)? {
            let queue = match look(store, &name) {
                Ok(queue) => queue,
                Err(fault) => {
                    self.problem("queue", &name, fault.to_string(), Some("restore a backup".to_owned()));
                    continue;
                }
            };
            read += self.jobs(&queue, &name)?;
            self.queue(&queue, &name)?;
        }
        self.read.push((read, "job"));
        Ok(())
    }

    /// Reads all jobs of a queue, and returns their number.
    fn jobs(&mut self, queue: &Queue, name: &str) -> Result<u64, Fault> {
        let (mut read, mut damaged) = (0, Vec::new());
        for state in State::ALL {
            each(queue, state.of_job(), |job| {
                read += 1;
                if let Some(reason) = &job.damaged {
                    damaged.push((job.id.clone(), reason.clone()));
                }
                true
            })?;
        }
        for (id, reason) in damaged.iter().take(MOST) {
            let sentence = format!("has the job {:?}, which is damaged: {reason}", readable(id.as_bytes()));
            self.problem("queue", name, sentence, Some(format!("cancel {} {}", word(name), word(id))));
        }
        if damaged.len() > MOST {
            let command = format!("jobs {} --state damaged", word(name));
            self.problem("queue", name, format!("has {} damaged jobs", damaged.len()), Some(command));
        }
        Ok(read)
    }

    fn queue(&mut self, queue: &Queue, name: &str) -> Result<(), Fault> {
        let status = queue.status()?;
        let counts = status.counts;
        if counts.dead > 0 {
            let mut last = None;
            each(queue, JobState::Dead, |job| {
                last = job.error.clone();
                false
            })?;
            let error = last.map_or_else(String::new, |error| format!("; one of them by: {}", cut(&error, ERROR)));
            let sentence = format!("has {}, which nothing runs any more{error}", count(counts.dead, "dead job"));
            let command = format!("jobs {0} --state dead, then: requeue {0} --dead, or: cancel {0} ID", word(name));
            self.problem("queue", name, sentence, Some(command));
        }
        if let Waits::Paused { .. } = status.waits {
            self.problem("queue", name, status.sentence(), Some(format!("resume {}", word(name))));
        } else if counts.ready > 0 && self.holders == Holders::None {
            let sentence = format!("has {}, and no process has the store open", count(counts.ready, "ready job"));
            self.problem("queue", name, sentence, Some("start the application".to_owned()));
        } else if counts.ready > 0 || counts.running > 0 {
            self.note("queue", name, sentence(&status));
        }
        if counts.running > 0 && self.holders == Holders::None {
            let jobs = count(counts.running, "job");
            let sentence =
                format!("has {jobs} that ran when the process died; each counts a crash when it is started again");
            let command = "find out why it died, and start it again".to_owned();
            self.problem("queue", name, sentence, Some(command));
        }
        for periodic in queue.periodics()? {
            if let Some(reason) = periodic.damaged {
                let sentence = format!("has the periodic job {:?}, whose record is damaged: {reason}", periodic.name);
                self.problem(
                    "queue",
                    name,
                    sentence,
                    Some("remove it and register it again in its program".to_owned()),
                );
            }
        }
        Ok(())
    }

    fn report(self) -> Report {
        let mut report = Report::of(self.found.iter().any(|finding| finding.is_problem));
        for finding in &self.found {
            let Finding { is_problem, subject, name, sentence, command } = finding;
            let level = if *is_problem { "problem" } else { "note" };
            let line =
                Cell::from(format!("{level}: the {subject} {name:?} {}", without_subject(sentence, subject, name)));
            report.line(if *is_problem { line.bad() } else { line });
            if let Some(command) = command {
                report.line(format!("    {command}"));
            }
            report.record(json!({
                "type": level,
                "subject": subject,
                "name": name,
                "sentence": sentence,
                "help": command,
            }));
        }
        let read: Vec<_> = self.read.iter().map(|(many, noun)| count(*many, noun)).collect();
        let problems = self.found.iter().filter(|finding| finding.is_problem).count() as u64;
        let verdict = if problems == 0 { "No problem".to_owned() } else { count(problems, "problem") };
        report.line(format!("{verdict}. Read: {}.", read.join(", ")));
        report.line(Cell::from("Retries, gates, limits and what runs are known to the process alone.").faint());
        report
    }
}

/// Returns a sentence of the library without the subject that the line has already.
fn without_subject<'s>(sentence: &'s str, subject: &str, name: &str) -> &'s str {
    sentence.strip_prefix(&format!("the {subject} {name:?} ")).unwrap_or(sentence)
}

/// Returns a name as a word for a shell.
fn word(name: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "._-/:@~%+=,".contains(letter);
    if !name.is_empty() && !name.starts_with(['~', '-']) && name.chars().all(is_plain) {
        return name.to_owned();
    }
    format!("'{}'", name.replace('\'', "'\\''"))
}
