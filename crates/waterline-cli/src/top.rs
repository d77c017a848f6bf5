//! The live screen. A thread of its own looks, so that a slow place does not hold up the keys.

mod history;
mod lines;
mod screen;
mod seen;
mod state;
#[cfg(all(test, unix))]
mod tests;

use crate::backend::Way;
use crate::end::End;
use crate::error::Fault;
use crate::print;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use screen::Screen;
use seen::watch;
use state::Top;
use std::io::{self, IsTerminal};
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

/// How often the loop checks for a new answer, for keys, and for a signal.
const BEAT: Duration = Duration::from_millis(100);

/// How many lines a page key scrolls.
const PAGE: u16 = 10;

/// What a key asks for.
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
        // In raw mode a terminal sends Ctrl-C as a key, not as a signal.
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

/// Shows the screen until the user quits.
pub(crate) fn run(way: Way, every: Duration) -> Result<(), End> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let text = "top needs a terminal: `list --watch` and `queues --watch` need none";
        return Err(Fault::new(text).into());
    }
    let news = watch(way, every)?;
    let gone = || Fault::new("the thread that looks has ended, and its message says why");
    // A wrong path fails before the screen opens.
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
        // Take all pending events, then draw once.
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
