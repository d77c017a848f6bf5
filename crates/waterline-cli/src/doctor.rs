//! The doctor: reads everything, and reports what is damaged or cannot move.

use crate::args::State;
use crate::backend::{Backend, Holders, each_job};
use crate::content::Items;
use crate::error::Fault;
use crate::format::{At, count, cut, readable, word};
use crate::print::{Cell, Report};
use crate::rows::{Advice, Consumer, Log, Queue, Verdict};
use serde_json::json;
use waterline::Store;

/// The longest error in a sentence.
const ERROR: usize = 160;

/// How many damaged things of one kind are listed at most.
const MOST: usize = 20;

/// The findings so far.
struct Findings<'p> {
    place: &'p dyn Backend,
    holders: Holders,
    now: At,
    found: Vec<Finding>,
    /// How many things were read, each number with its noun.
    read: Vec<(u64, &'static str)>,
}

struct Finding {
    is_problem: bool,
    subject: &'static str,
    name: String,
    sentence: String,
    /// True if the sentence has a subject of its own.
    is_whole: bool,
    command: Option<String>,
}

pub(crate) fn examine(place: &dyn Backend) -> Result<Report, Fault> {
    let mut findings =
        Findings { place, holders: place.holders(), now: At::now(), found: Vec::new(), read: Vec::new() };
    let consumers = match place.consumers() {
        // The role may have rights on queues alone.
        Err(fault) if fault.is_denied() => {
            findings.note("place", "consumers", format!("is not read: {fault}"));
            Vec::new()
        }
        consumers => consumers?,
    };
    let logs = place.logs()?;
    consumers.iter().for_each(|consumer| findings.consumer(consumer));
    findings.read.push((consumers.len() as u64, "consumer"));
    for log in &logs {
        if let Some(reason) = &log.unreadable {
            let help = Some("restore a backup".to_owned());
            findings.problem("log", &log.name, format!("is damaged: {reason}"), help);
        }
    }
    if let Some(store) = place.store() {
        logs.iter().filter(|log| log.unreadable.is_none()).for_each(|log| findings.items(store, &log.name));
        findings.tables(store);
    }
    findings.lags(&logs, &consumers);
    findings.queues();
    Ok(findings.report())
}

/// Returns the index of the parked job whose record cannot be read, if that is the reason.
fn damaged_job(reason: &str) -> Option<u64> {
    let (_, behind) = reason.split_once("the record of the parked job ")?;
    behind.split_once(':')?.0.parse().ok()
}

impl Findings<'_> {
    fn problem(&mut self, subject: &'static str, name: &str, sentence: String, command: Option<String>) {
        let name = name.to_owned();
        self.found.push(Finding { is_problem: true, subject, name, sentence, is_whole: false, command });
    }

    fn note(&mut self, subject: &'static str, name: &str, sentence: String) {
        let name = name.to_owned();
        self.found.push(Finding { is_problem: false, subject, name, sentence, is_whole: false, command: None });
    }

    /// Notes what could not be read. The examination goes on with the rest.
    fn failed(&mut self, subject: &'static str, name: &str, fault: &Fault) {
        let help = if fault.is_damage {
            "restore a backup"
        } else {
            "do what it says, or look again; if it stays, look at the disk and the program"
        };
        self.problem(subject, name, format!("cannot be looked at: {fault}"), Some(help.to_owned()));
    }

    /// Notes the advice of a process. What goes on by itself is no problem.
    fn said(&mut self, subject: &'static str, name: &str, advice: &Advice) {
        if advice.verdict == Verdict::GoesWell {
            return;
        }
        let is_problem = advice.needs_you();
        let command = match (advice.help.as_str(), &advice.command) {
            ("", command) => command.clone(),
            (help, Some(command)) => Some(format!("{}: {command}", help.trim_end_matches('.'))),
            (help, None) => Some(help.to_owned()),
        };
        // For these the sentence is only an object: `1 dead job`.
        let is_whole = !["parked", "dead"].contains(&advice.reason.as_str());
        let sentence = if is_whole { advice.sentence.clone() } else { format!("has {}", advice.sentence) };
        self.found.push(Finding { is_problem, subject, name: name.to_owned(), sentence, is_whole, command });
    }

    fn consumer(&mut self, consumer: &Consumer) {
        let name = &consumer.name;
        if let Some(reason) = &consumer.unreadable {
            let place = consumer.next.map_or_else(String::new, |next| format!("; its next job would be {next}"));
            // To discard one job loses less than to remove the whole progress.
            let (name, command) = (name, word(name));
            // (An engine returns no next job then, and cannot discard such a record.)
            let command = match damaged_job(reason).filter(|_| consumer.next.is_some()) {
                Some(index) => format!("discard {command} {index}, which gives that job up"),
                None => format!("remove {command}, which runs every job of its stream again"),
            };
            let command = format!("restore a backup; without one: {command}");
            return self.problem("consumer", name, format!("is damaged: {reason}{place}"), Some(command));
        }
        // Consumers that are only saved are judged below.
        consumer.all_advice().filter(|advice| advice.reason != "saved").for_each(|advice| {
            let age = consumer.standing_halt().filter(|_| advice.reason == "halted" && consumer.live.is_none());
            let age = age.map(|halt| format!("{} ({})", advice.sentence, halt.at.age(self.now)));
            let advice = Advice { sentence: age.unwrap_or_else(|| advice.sentence.clone()), ..advice.clone() };
            self.said("consumer", name, &advice);
        });
        if consumer.live.is_some() {
            return;
        }
        if self.place.has_processes() {
            let sentence = "is not on the page, so only its process knows what it waits for";
            self.note("consumer", name, sentence.to_owned());
        } else if consumer.life_open == Some(true) {
            self.life(name);
        }
        let records = self.place.parked(name).map(drop).and_then(|()| self.place.history(name).map(drop));
        if let (false, Err(fault)) = (self.place.has_processes(), records) {
            self.failed("consumer", name, &fault);
        }
    }

    /// Notes an open life: the consumer runs, or its process died.
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

    fn items(&mut self, store: &Store, log: &str) {
        let (mut read, mut damaged) = (0, Vec::new());
        let items = match Items::open(store, log) {
            Ok(items) => items,
            Err(fault) => return self.failed("log", log, &fault),
        };
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
            let help = "restore a backup, or skip it in its consumers".to_owned();
            self.problem("log", log, sentence, Some(help));
        }
        if damaged.len() > MOST {
            self.problem("log", log, format!("has {} such items", damaged.len()), None);
        }
        self.has_read(read, "item");
    }

    fn has_read(&mut self, many: u64, noun: &'static str) {
        match self.read.iter_mut().find(|(_, of)| *of == noun) {
            Some((sum, _)) => *sum += many,
            None => self.read.push((many, noun)),
        }
    }

    /// A store does not know who reads a log. Mostly it is the consumer of the same name.
    fn lags(&mut self, logs: &[Log], consumers: &[Consumer]) {
        for log in logs {
            let reader = consumers.iter().find(|consumer| consumer.name == log.name && consumer.live.is_none());
            if let (Some(head), Some(next)) = (log.head, reader.and_then(|reader| reader.next))
                && next <= head
            {
                let lag = count((head - next).saturating_add(1), "item");
                self.note("log", &log.name, format!("has {lag} that the consumer of the same name has not processed"));
            }
        }
    }

    fn tables(&mut self, store: &Store) {
        let names = match store.tables() {
            Ok(names) => names,
            Err(error) => return self.failed("list", "of tables", &error.into()),
        };
        for name in names {
            let mut read = 0;
            let rows = store.table(&name).map(|table| table.iter().try_for_each(|row| row.map(|_| read += 1)));
            if let Ok(Err(error)) | Err(error) = rows {
                self.failed("table", &name, &error.into());
            }
            self.has_read(read, "row");
        }
    }

    fn queues(&mut self) {
        let names = match self.place.queue_names() {
            Ok(names) => names,
            Err(fault) => return self.failed("list", "of queues", &fault),
        };
        for name in names {
            self.has_read(1, "queue");
            let looked = self.place.queue(&name).and_then(|queue| {
                self.jobs(&name)?;
                self.queue(&queue, &name)
            });
            if let Err(fault) = looked {
                self.failed("queue", &name, &fault);
            }
        }
    }

    /// Reads jobs of a queue: all in files, elsewhere only damaged ones, which are not counted.
    fn jobs(&mut self, name: &str) -> Result<(), Fault> {
        let (mut read, mut damaged) = (0, Vec::new());
        let is_all = self.place.store().is_some();
        let states = if is_all { &State::ALL[..] } else { &[State::Damaged] };
        for state in states {
            each_job(self.place, name, *state, None, |job| {
                read += 1;
                damaged.extend(job.damaged.map(|reason| (job.id, reason)));
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
        if is_all {
            self.has_read(read, "job");
        }
        Ok(())
    }

    fn queue(&mut self, queue: &Queue, name: &str) -> Result<(), Fault> {
        let counts = queue.counts;
        for advice in &queue.also {
            match advice.reason.as_str() {
                // Each damaged job has a finding of its own.
                "damaged" => {}
                "dead" => self.dead(name, advice)?,
                _ => self.said("queue", name, advice),
            }
        }
        let is_due = counts.ready > 0 || queue.advice.reason == "no_worker";
        if is_due && self.holders == Holders::None && !queue.paused {
            let jobs = if counts.ready > 0 { count(counts.ready, "ready job") } else { "jobs that are due".to_owned() };
            let sentence = format!("has {jobs}, and no process has the store open");
            self.problem("queue", name, sentence, Some("start the application".to_owned()));
        } else {
            self.said("queue", name, &queue.advice);
        }
        if counts.running > 0 && self.holders == Holders::None {
            let jobs = count(counts.running, "job");
            let sentence =
                format!("has {jobs} that ran when the process died; each counts a crash when it is started again");
            let command = "find out why it died, and start it again".to_owned();
            self.problem("queue", name, sentence, Some(command));
        }
        for periodic in self.place.periodics(name)? {
            if let Some(reason) = periodic.damaged {
                let sentence = format!("has the periodic job {:?}, whose record is damaged: {reason}", periodic.name);
                let help = "remove it and register it again in its program".to_owned();
                self.problem("queue", name, sentence, Some(help));
            }
        }
        Ok(())
    }

    /// Notes the dead jobs of a queue, with the error of one of them.
    fn dead(&mut self, name: &str, advice: &Advice) -> Result<(), Fault> {
        let mut last = None;
        each_job(self.place, name, State::Dead, None, |job| {
            last = job.error;
            false
        })?;
        let error = last.map_or_else(String::new, |error| format!("; one of them by: {}", cut(&error, ERROR)));
        let sentence = format!("{}{error}", advice.sentence);
        self.said("queue", name, &Advice { sentence, ..advice.clone() });
        Ok(())
    }

    fn report(self) -> Report {
        let mut report = Report::of(self.found.iter().any(|finding| finding.is_problem));
        for finding in &self.found {
            let Finding { is_problem, subject, name, sentence, is_whole, command } = finding;
            let level = if *is_problem { "problem" } else { "note" };
            let own = format!("the {subject} {name:?} ");
            let line = match sentence.strip_prefix(&own) {
                Some(rest) => format!("{level}: {own}{rest}"),
                None if *is_whole => format!("{level}: the {subject} {name:?}: {sentence}"),
                None => format!("{level}: {own}{sentence}"),
            };
            let line = Cell::from(line);
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
        // A place may have queues alone, or no queue.
        let read = self.read.iter().filter(|(many, _)| *many > 0);
        let read: Vec<_> = read.map(|(many, noun)| count(*many, noun)).collect();
        let read = if read.is_empty() { "nothing".to_owned() } else { read.join(", ") };
        let problems = self.found.iter().filter(|finding| finding.is_problem).count() as u64;
        let verdict = if problems == 0 { "No problem".to_owned() } else { count(problems, "problem") };
        report.line(format!("{verdict}. Read: {read}."));
        if !self.place.has_processes() {
            report.line(Cell::from(self.place.left_to_processes()).faint());
        }
        report
    }
}
