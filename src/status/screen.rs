//! The whole terminal: the alternate screen without a cursor and without echo, restored at the end.

use std::io::{self, IsTerminal as _, Write as _};

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

/// Enters the alternate screen, hides the cursor, and cuts long lines instead of wrapping them: how
/// wide a terminal draws a character is not known.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The size if the terminal does not tell it: columns and rows.
const SIZE_UNKNOWN: (usize, usize) = (80, 24);

/// The terminal while it shows one screen. Dropping this restores it.
pub(super) struct Screen {
    /// The settings of the keyboard before; none if stdin is not a terminal.
    before: Option<Termios>,
}

impl Screen {
    /// True if stdout is a terminal that can be drawn on.
    pub(super) fn is_possible(term: Option<&str>) -> bool {
        term.is_none_or(|term| term != "dumb") && io::stdout().is_terminal()
    }

    /// Takes the terminal. Keys arrive one by one and are not shown; Ctrl-C and Ctrl-Z are keys, too.
    ///
    /// # Errors
    /// The terminal cannot be written to.
    pub(super) fn open() -> io::Result<Self> {
        let before = tcgetattr(io::stdin()).ok();
        let screen = Self { before };
        if let Some(before) = &screen.before {
            let mut now = before.clone();
            now.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
            now.special_codes[SpecialCodeIndex::VMIN] = 1;
            now.special_codes[SpecialCodeIndex::VTIME] = 0;
            tcsetattr(io::stdin(), OptionalActions::Now, &now)?;
        }
        write(ENTER)?;
        Ok(screen)
    }

    /// True if keys can be read.
    pub(super) fn has_keys(&self) -> bool {
        self.before.is_some()
    }

    /// Columns and rows, which change with the window.
    pub(super) fn size() -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (usize::from(size.ws_col), usize::from(size.ws_row))
            }
            Ok(_) | Err(_) => SIZE_UNKNOWN,
        }
    }

    /// Shows these lines, from the top. Overwrites, so that nothing flickers.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        write(&format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n")))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to restore.
        let _ = write(LEAVE);
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
