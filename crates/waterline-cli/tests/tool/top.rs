//! The live screen, in a terminal of the test.

use crate::application::Application;
use crate::program::call;
use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Longer than anything here takes. Only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The codes that enter and leave the alternate buffer of a terminal.
const TAKEN: &str = "\u{1b}[?1049h";
const GIVEN: &str = "\u{1b}[?1049l";
/// The codes that hide and show the cursor.
const HIDDEN: &str = "\u{1b}[?25l";
const SHOWN: &str = "\u{1b}[?25h";

/// A terminal with the program in it.
struct Terminal {
    master: Box<dyn MasterPty + Send>,
    child: Box<dyn Child + Send + Sync>,
    keys: Box<dyn Write + Send>,
    news: Receiver<Vec<u8>>,
    screen: vt100::Parser,
    /// Everything that the program has written.
    said: String,
    before: Option<String>,
}

impl Terminal {
    fn start(store: &Path, rows: u16, columns: u16, variables: &[(&str, &str)]) -> Self {
        Self::at(["--store", store.to_str().unwrap()], rows, columns, variables)
    }

    fn at(place: [&str; 2], rows: u16, columns: u16, variables: &[(&str, &str)]) -> Self {
        let size = PtySize { rows, cols: columns, ..PtySize::default() };
        let pty = native_pty_system().openpty(size).unwrap();
        let before = settings(&*pty.master);
        let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_waterline"));
        command.args(place);
        command.args(["top", "--every", "1"]);
        command.env("TERM", "xterm-256color");
        command.env_remove("NO_COLOR");
        variables.iter().for_each(|(name, value)| command.env(name, value));
        let child = pty.slave.spawn_command(command).unwrap();
        let mut reader = pty.master.try_clone_reader().unwrap();
        let (sender, news) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        let keys = pty.master.take_writer().unwrap();
        let screen = vt100::Parser::new(rows, columns, 0);
        Self { master: pty.master, child, keys, news, screen, said: String::new(), before }
    }

    fn text(&self) -> String {
        self.screen.screen().contents()
    }

    /// Reads the program's output until this is true of the screen.
    #[track_caller]
    fn until(&mut self, what: &str, is_true: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is_true(self) {
            match self.news.recv_timeout(Duration::from_millis(50)) {
                Ok(bytes) => {
                    self.screen.process(&bytes);
                    self.said += &String::from_utf8_lossy(&bytes);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("it has ended before {what}: {:?}", self.said),
            }
            assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}:\n{}", self.text());
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    fn resize(&mut self, rows: u16, columns: u16) {
        self.master.resize(PtySize { rows, cols: columns, ..PtySize::default() }).unwrap();
        self.screen.screen_mut().set_size(rows, columns);
    }

    /// Waits for the end, and asserts that the terminal is restored.
    #[track_caller]
    fn ends_well(mut self) {
        assert!(self.child.wait().unwrap().success());
        // The reader ends with the last program in the terminal.
        self.news.iter().for_each(|bytes| self.said += &String::from_utf8_lossy(&bytes));
        let last = |code: &str| self.said.rfind(code).unwrap_or_else(|| panic!("{code:?} is not in {:?}", self.said));
        assert!(last(TAKEN) < last(GIVEN) && last(HIDDEN) < last(SHOWN), "{:?}", self.said);
        assert_eq!(settings(&*self.master), self.before);
        assert!(self.before.is_some(), "the terminal has settings");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Mostly it has ended already.
        let _ = self.child.kill();
    }
}

/// Returns the settings of the terminal: echo, keys that send signals, and so on.
fn settings(master: &(dyn MasterPty + Send)) -> Option<String> {
    master.get_termios().map(|settings| format!("{settings:?}"))
}

/// True if a text has a colour code.
fn has_colour(said: &str) -> bool {
    let codes = said.split("\u{1b}[").skip(1).filter_map(|rest| rest.split_once('m')).map(|(codes, _)| codes);
    let is_colour = |code: &str| matches!(code.parse(), Ok(30..=38 | 40..=48 | 90..=97 | 100..=107));
    codes
        .filter(|codes| codes.chars().all(|c| c.is_ascii_digit() || c == ';'))
        .any(|codes| codes.split(';').any(is_colour))
}

#[test]
fn the_screen_shows_all_scrolls_and_fits_any_size() {
    let application = Application::start();
    let mut terminal = Terminal::start(&application.store(), 40, 120, &[]);
    let parts = [
        "STREAM",
        "blocks",
        "2 parked jobs",
        "words",
        "QUEUE",
        "mail",
        "1 dead job",
        "q quits",
        "OLDEST",
        "1 worker, 1 slot busy",
    ];
    terminal.until("all parts", |terminal| parts.iter().all(|part| terminal.text().contains(part)));
    assert!(terminal.text().contains("2 of 3 need you."), "{}", terminal.text());
    assert!(has_colour(&terminal.said) && terminal.said.contains(TAKEN));
    let width = |terminal: &Terminal| terminal.text().lines().map(|line| line.chars().count()).max();
    assert!(width(&terminal) <= Some(120));
    // The plot of a queue grows by a bar with each look.
    terminal.until("a second look", |terminal| {
        terminal.text().lines().any(|line| line.contains("mail") && line.contains("██"))
    });
    // Keys scroll to the lines below a small screen.
    terminal.resize(9, 36);
    terminal.until("a small screen", |terminal| {
        let text = terminal.text();
        text.contains("STREAM")
            && !text.contains("QUEUE")
            && text.lines().last().is_some_and(|last| last.contains("q quits"))
    });
    terminal.press("\u{1b}[6~");
    terminal.until("the end of the list", |terminal| terminal.text().contains("mail"));
    terminal.press("\u{1b}[H");
    terminal.until("its beginning", |terminal| terminal.text().contains("STREAM"));
    terminal.press("q");
    terminal.ends_well();
}

#[test]
fn ctrl_c_and_signals_restore_the_terminal() {
    let left = Application::sound();
    for end in ["ctrl-c", "escape", "-TERM", "-INT", "-QUIT", "-HUP"] {
        let mut terminal = Terminal::start(&left.store(), 24, 80, &[]);
        terminal.until("the screen", |terminal| terminal.text().contains("Nothing needs you."));
        match end {
            "ctrl-c" => terminal.press("\u{3}"),
            "escape" => terminal.press("\u{1b}"),
            _ => {
                let id = terminal.child.process_id().unwrap().to_string();
                assert!(std::process::Command::new("kill").args([end, &id]).status().unwrap().success());
            }
        }
        terminal.ends_well();
    }
}

#[test]
fn a_terminal_that_wants_no_colour_gets_none() {
    let left = Application::halted();
    let mut terminal = Terminal::start(&left.store(), 40, 120, &[("NO_COLOR", "1")]);
    terminal.until("the halt", |terminal| terminal.text().contains("the consumer halted at 5"));
    assert!(!has_colour(&terminal.said), "{:?}", terminal.said);
    terminal.press("q");
    terminal.ends_well();
}

#[test]
fn top_without_terminal_or_store_prints_no_codes() {
    let left = Application::sound();
    for (store, words) in
        [(left.store(), "top needs a terminal"), (left.store().join("nothing"), "top needs a terminal")]
    {
        let answer = call(&store, "top");
        assert_eq!((answer.code, answer.out.as_str(), answer.error.lines().count()), (1, "", 1), "{answer:?}");
        assert!(answer.error.contains(words) && !answer.error.contains('\u{1b}'), "{answer:?}");
    }
    assert_eq!(call(&left.store(), "top --json").code, 2);
    let mut terminal = Terminal::start(&left.store().join("nothing"), 24, 80, &[]);
    assert!(!terminal.child.wait().unwrap().success());
    terminal.until("the reason", |terminal| terminal.said.contains("there is no store at"));
    assert!(!terminal.said.contains(TAKEN), "{:?}", terminal.said);
}

#[test]
fn a_missing_store_is_reported_until_it_is_back() {
    let left = Application::sound();
    let (store, aside) = (left.store(), left.store().with_extension("aside"));
    let mut terminal = Terminal::start(&store, 24, 80, &[]);
    terminal.until("the screen", |terminal| terminal.text().contains("Nothing needs you."));
    std::fs::rename(&store, &aside).unwrap();
    terminal.until("the fault", |terminal| terminal.text().contains("the last look has failed: there is no store"));
    assert!(terminal.text().contains("words"), "what was seen last is still there");
    std::fs::rename(&aside, &store).unwrap();
    terminal.until("the store", |terminal| !terminal.text().contains("has failed"));
    terminal.press("q");
    terminal.ends_well();
}

/// Asserts that the screen of a page says this.
#[track_caller]
pub(crate) fn says_at(url: &str, words: &str) {
    let mut terminal = Terminal::at(["--url", url], 40, 140, &[("WATERLINE_TOKEN", crate::program::TOKEN)]);
    terminal.until(words, |terminal| terminal.text().contains(words));
    terminal.press("q");
    terminal.ends_well();
}

#[test]
fn the_screen_of_a_page_has_its_sentences_and_rates() {
    let (_application, page) = Application::serving("serves");
    let token = [("WATERLINE_TOKEN", crate::program::TOKEN)];
    let mut terminal = Terminal::at(["--url", &page.url], 40, 140, &token);
    let parts = [
        "the consumer halted at 5",
        "Remove the cause and start",
        "skip prices 5",
        "every job that the source has",
        "mail",
        "1 worker, 1 slot busy",
    ];
    terminal.until("all parts", |terminal| parts.iter().all(|part| terminal.text().contains(part)));
    let text = terminal.text();
    let blocks = text.lines().find(|line| line.starts_with("blocks")).unwrap().to_owned();
    assert_eq!(blocks.split_whitespace().take(4).collect::<Vec<_>>(), ["blocks", "9", "9", "0"], "{blocks}");
    terminal.press("q");
    terminal.ends_well();
}
