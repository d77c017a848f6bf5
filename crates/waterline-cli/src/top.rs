//! The live screen: a thread looks, and this one draws and listens to the keys. So a place that
//! answers slowly does not hold the keys up.

mod history;
mod lines;
mod screen;
#[cfg(all(test, unix))]
mod tests;

use crate::End;
use crate::fault::Fault;
use crate::place::{self, Way};
use crate::print;
use crate::rows::{Consumer, Log, Queue, Worker};
use crate::words::At;
use history::Histories;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use screen::Screen;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::Duration;

/// The longest time between two looks for a new answer, for keys, and for a signal.
const BEAT: Duration = Duration::from_millis(100);

/// The lines that a page key moves.
const PAGE: u16 = 10;

/// The findings of one look.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) at: At,
    pub(crate) consumers: Vec<Consumer>,
    pub(crate) logs: Vec<Log>,
    /// Each queue, or the reason why it cannot be read.
    pub(crate) queues: Vec<Result<Queue, (String, String)>>,
    /// The workers of each queue, by its name, or the reason why they cannot be read.
    pub(crate) workers: BTreeMap<String, Result<Vec<Worker>, String>>,
    pub(crate) freshness: String,
}

/// Looks once.
fn look(way: &Way) -> Result<Seen, Fault> {
    let place = place::open(way)?;
    let queue = |name: &String| place.queue(name).map_err(|fault| (name.clone(), fault.to_string()));
    let names = place.queue_names()?;
    let queues: Vec<_> = names.iter().map(queue).collect();
    // One that cannot be read says so once.
    let read = queues.iter().filter_map(|queue| queue.as_ref().ok()).map(|queue| queue.name.clone());
    let workers = |name: String| (name.clone(), place.workers(&name).map_err(|fault| fault.to_string()));
    Ok(Seen {
        at: At::now(),
        consumers: place.consumers()?,
        logs: place.logs()?,
        // Of a store without a job that runs, only its process knows if a runner takes its jobs.
        workers: read
            .map(workers)
            .filter(|(_, seen)| !(place.store().is_some() && seen.as_ref().is_ok_and(Vec::is_empty)))
            .collect(),
        queues,
        freshness: place.freshness(),
    })
}

/// Looks again and again on a thread of its own, for as long as somebody wants the answers.
fn watch(way: Way, every: Duration) -> Result<Receiver<Result<Seen, Fault>>, Fault> {
    let (seen, news) = channel();
    let looks = move || {
        while seen.send(look(&way)).is_ok() {
            crate::wait(every);
        }
    };
    let started = thread::Builder::new().name("look".to_owned()).spawn(looks);
    started.map_err(|error| Fault::new(format!("a thread cannot be started: {error}")))?;
    Ok(news)
}

/// The state of the screen.
#[derive(Default)]
pub(crate) struct Top {
    seen: Option<Seen>,
    /// The reason why the last look has failed.
    failed: Option<String>,
    histories: Histories,
    /// The lines that are above the screen.
    scroll: u16,
}

/// The wish that a key stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Quit,
    Up(u16),
    Down(u16),
    Nothing,
}

fn wish(event: &Event) -> Wish {
    let Event::Key(KeyEvent { code, modifiers, kind, .. }) = event else { return Wish::Nothing };
    if *kind == KeyEventKind::Release {
        return Wish::Nothing;
    }
    match code {
        // A terminal without line discipline sends Ctrl-C as a key, and no signal.
        KeyCode::Char('c' | 'd') if modifiers.contains(KeyModifiers::CONTROL) => Wish::Quit,
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => Wish::Quit,
        KeyCode::Up | KeyCode::Char('k') => Wish::Up(1),
        KeyCode::Down | KeyCode::Char('j') => Wish::Down(1),
        KeyCode::PageUp => Wish::Up(PAGE),
        KeyCode::PageDown | KeyCode::Char(' ') => Wish::Down(PAGE),
        KeyCode::Home => Wish::Up(u16::MAX),
        _ => Wish::Nothing,
    }
}

impl Top {
    fn take(&mut self, looked: Result<Seen, Fault>) {
        match looked {
            Ok(seen) => {
                self.histories.note(&seen);
                (self.seen, self.failed) = (Some(seen), None);
            }
            // It looks again: somebody may be about to restore the store.
            Err(fault) => self.failed = Some(fault.to_string()),
        }
    }
}

/// Shows the screen until somebody has seen enough.
pub(crate) fn run(way: Way, every: Duration) -> Result<(), End> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let text = "top needs a terminal: `list --watch` and `queues --watch` need none";
        return Err(Fault::new(text).into());
    }
    let news = watch(way, every)?;
    let gone = || Fault::new("the thread that looks has ended, and its message says why");
    // A wrong path is one line, and no screen.
    let first = news.recv().map_err(|_| gone())??;
    let mut top = Top::default();
    top.take(Ok(first));
    let mut screen = Screen::open(print::is_coloured())?;
    let mut is_new = true;
    loop {
        match news.try_recv() {
            Ok(looked) => {
                top.take(looked);
                is_new = true;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                drop(screen);
                return Err(gone().into());
            }
        }
        if std::mem::take(&mut is_new) {
            screen.draw(&mut top)?;
        }
        if screen.is_told_to_end() {
            return Ok(());
        }
        if !event::poll(BEAT)? {
            continue;
        }
        // All that has come, before it is drawn once.
        while event::poll(Duration::ZERO)? {
            let event = event::read()?;
            is_new |= matches!(event, Event::Resize(..));
            match wish(&event) {
                Wish::Quit => return Ok(()),
                Wish::Up(lines) => top.scroll = top.scroll.saturating_sub(lines),
                Wish::Down(lines) => top.scroll = top.scroll.saturating_add(lines),
                Wish::Nothing => continue,
            }
            is_new = true;
        }
    }
}
