//! The terminal while the screen is open. It is restored however that ends: by a drop of
//! [`Screen`], a panic on any thread, or a signal.

use super::lines;
use super::state::Top;
use ratatui::DefaultTerminal;
use ratatui::text::Text;
use ratatui::widgets::Paragraph;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The screen, drawn on the alternate buffer of the terminal.
pub(super) struct Screen {
    terminal: DefaultTerminal,
    colour: bool,
    told_to_end: Arc<AtomicBool>,
}

impl Screen {
    /// Takes over the terminal. A panic restores it before it prints its message.
    pub(super) fn open(colour: bool) -> io::Result<Self> {
        let told_to_end = Arc::<AtomicBool>::default();
        #[cfg(unix)]
        for signal in {
            use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
            [SIGHUP, SIGINT, SIGQUIT, SIGTERM]
        } {
            signal_hook::flag::register(signal, Arc::clone(&told_to_end))?;
        }
        // Restore a terminal that was taken over only in part, too.
        let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
        Ok(Self { terminal, colour, told_to_end })
    }

    /// True once a signal has asked the program to end.
    pub(super) fn is_told_to_end(&self) -> bool {
        self.told_to_end.load(Ordering::Relaxed)
    }

    /// Draws everything, and limits how far it is scrolled.
    pub(super) fn draw(&mut self, top: &mut Top) -> io::Result<()> {
        let colour = self.colour;
        self.terminal.draw(|frame| {
            let area = frame.area();
            let (head, body, foot) = lines::all(top, area.width, colour);
            let room = area.height.saturating_sub(head.len() as u16 + 1);
            top.scroll = top.scroll.min(u16::try_from(body.len()).unwrap_or(u16::MAX).saturating_sub(room));
            let shown = body.into_iter().skip(usize::from(top.scroll)).take(usize::from(room));
            let mut all: Vec<_> = head.into_iter().chain(shown).collect();
            all.resize(usize::from(area.height.saturating_sub(1)), Default::default());
            all.push(foot);
            frame.render_widget(Paragraph::new(Text::from(all)), area);
        })?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}
