//! The terminal after a panic: the test starts this program again, in a terminal of its own.

use super::screen::Screen;
use portable_pty::{CommandBuilder, PtySize, native_pty_system};
use std::io::Read;

#[test]
#[ignore = "another test starts it in a terminal"]
fn a_screen_that_panics() {
    let mut screen = Screen::open(true).unwrap();
    screen.draw(&mut Default::default()).unwrap();
    panic!("it is a test");
}

#[test]
fn a_panic_restores_the_terminal_before_its_message() {
    let pty = native_pty_system().openpty(PtySize::default()).unwrap();
    let before = pty.master.get_termios().unwrap();
    let mut command = CommandBuilder::new(std::env::current_exe().unwrap());
    command.args(["--exact", "top::tests::a_screen_that_panics", "--ignored", "--nocapture"]);
    command.env("TERM", "xterm-256color");
    let mut child = pty.slave.spawn_command(command).unwrap();
    drop(pty.slave);
    let mut bytes = Vec::new();
    // On Linux, a read fails once the programs in the terminal are gone.
    let _the_end = pty.master.try_clone_reader().unwrap().read_to_end(&mut bytes);
    assert!(!child.wait().unwrap().success());
    let said = String::from_utf8_lossy(&bytes);
    let [taken, given, message] = ["\u{1b}[?1049h", "\u{1b}[?1049l", "it is a test"]
        .map(|text| said.find(text).unwrap_or_else(|| panic!("{text:?}: {said:?}")));
    assert!(taken < given && given < message, "{said:?}");
    assert_eq!(pty.master.get_termios().unwrap(), before);
}
