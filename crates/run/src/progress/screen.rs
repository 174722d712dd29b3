//! The terminal of the progress line, which logs and the driver's output share.

use std::io::{self, Write};

use crate::progress::cursor::Cursor;
use posse_base::time::Millis;

/// Whose output goes to the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The driver, which may write parts of lines.
    Driver,
    /// The log, the executors' logs, the events.
    Log,
}

/// What the terminal says about itself. Tests have their own.
#[derive(Clone, Copy)]
pub(super) struct TerminalQueries {
    /// In columns; asked at each drawing, since the window size can change.
    pub width: fn() -> usize,
    /// False if a shell or the driver has the terminal, so that nothing may be drawn.
    pub is_foreground: fn() -> bool,
}

/// The terminal. Whatever is written to it goes through here, so that the progress line, which is the
/// last line, can be erased before and drawn again after it. Errors are ignored: a closed terminal
/// must not end the run.
pub(super) struct Screen {
    out: Box<dyn Write + Send>,
    queries: TerminalQueries,
    /// The progress line; empty if there is none now.
    line: String,
    is_drawn: bool,
    drawn_at: Option<Millis>,
    /// The driver reads the terminal, and has it for itself.
    is_lent: bool,
    cursor: Cursor,
    /// Who wrote last.
    writer: Source,
}

impl Screen {
    pub(super) fn new(out: Box<dyn Write + Send>, queries: TerminalQueries) -> Self {
        Self {
            out,
            queries,
            line: String::new(),
            is_drawn: false,
            drawn_at: None,
            is_lent: false,
            cursor: Cursor::new(),
            writer: Source::Log,
        }
    }

    pub(super) fn width(&self) -> usize {
        (self.queries.width)()
    }

    /// When the line may be drawn again, if that is later than `now`.
    pub(super) fn busy_until(&self, now: Millis) -> Option<Millis> {
        self.drawn_at.map(|at| at.after(REDRAW_MS_MIN)).filter(|at| now < *at)
    }

    /// Shows this line instead of the one before.
    pub(super) fn set_line(&mut self, line: String, now: Millis) {
        if line == self.line && self.is_drawn {
            return;
        }
        self.line = line;
        let mut bytes = Vec::new();
        if self.line.is_empty() {
            self.erase(&mut bytes);
        }
        self.draw(&mut bytes);
        if self.is_drawn {
            self.drawn_at = Some(now);
        }
        self.send(&bytes);
    }

    /// Erases the line until the next `set_line`.
    pub(super) fn clear(&mut self) {
        let mut bytes = Vec::new();
        self.erase(&mut bytes);
        self.line.clear();
        self.send(&bytes);
    }

    /// Gives the terminal to the driver, or takes it back.
    pub(super) fn lend(&mut self, is_lent: bool) {
        self.clear();
        self.is_lent = is_lent;
    }

    /// Writes the output of the driver, or whole lines or parts of lines of the log.
    pub(super) fn write(&mut self, source: Source, output: &[u8]) {
        let mut bytes = Vec::with_capacity(output.len() + self.line.len() + 16);
        self.erase(&mut bytes);
        // The line that another one has begun stays as it is.
        if source != self.writer {
            for _ in 0..self.cursor.line_feeds() {
                bytes.extend_from_slice(b"\r\n");
                self.cursor.follow(b"\n");
            }
        }
        self.writer = source;
        self.cursor.follow(output);
        match (source, self.is_lent) {
            // The driver's own terminal has put a carriage return before each line feed, and this one
            // does it again.
            (Source::Driver, false) => bytes.extend(without_returns(output)),
            // Its modes are such that the driver's output stays as it is.
            (Source::Log, true) => bytes.extend(with_returns(output)),
            (Source::Driver, true) | (Source::Log, false) => bytes.extend_from_slice(output),
        }
        self.draw(&mut bytes);
        self.send(&bytes);
    }

    /// Draws the line, if that hides nothing.
    fn draw(&mut self, bytes: &mut Vec<u8>) {
        let may_draw = !self.is_lent && self.cursor.is_on_empty_line();
        if may_draw && !self.line.is_empty() && (self.queries.is_foreground)() {
            bytes.push(b'\r');
            bytes.extend_from_slice(self.line.as_bytes());
            bytes.extend_from_slice(ERASE_TO_END);
            self.is_drawn = true;
        }
    }

    fn erase(&mut self, bytes: &mut Vec<u8>) {
        if self.is_drawn {
            bytes.push(b'\r');
            bytes.extend_from_slice(ERASE_TO_END);
            self.is_drawn = false;
        }
    }

    /// In one call, so that nothing of other programs comes in between.
    fn send(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            let _ = self.out.write_all(bytes).and_then(|()| self.out.flush());
        }
    }
}

/// `\n` instead of `\r\n`.
fn without_returns(output: &[u8]) -> impl Iterator<Item = u8> {
    let next = output.iter().skip(1).map(Some).chain([None]);
    let pairs = output.iter().zip(next);
    pairs.filter(|pair| *pair != (&b'\r', Some(&b'\n'))).map(|(byte, _)| *byte)
}

/// `\r\n` instead of `\n`.
fn with_returns(output: &[u8]) -> impl Iterator<Item = u8> {
    let line_end = |byte: u8| (byte == b'\n').then_some(b'\r');
    output.iter().flat_map(move |byte| line_end(*byte).into_iter().chain([*byte]))
}

/// The screen on stderr.
pub(super) const STDERR: TerminalQueries =
    TerminalQueries { width: stderr_width, is_foreground: is_stderr_foreground };

fn stderr_width() -> usize {
    match rustix::termios::tcgetwinsize(io::stderr()) {
        Ok(size) if size.ws_col > ECHO_COLUMNS => usize::from(size.ws_col - ECHO_COLUMNS),
        Ok(_) | Err(_) => WIDTH_UNKNOWN,
    }
}

/// True also if stderr is not the terminal that controls this process, since then nobody else uses it.
fn is_stderr_foreground() -> bool {
    let foreground = rustix::termios::tcgetpgrp(io::stderr());
    foreground.is_err() || foreground == Ok(rustix::process::getpgrp())
}

/// At most five drawings a second.
const REDRAW_MS_MIN: u64 = 200;

/// Columns that stay free behind the line: for two `^C`, which the terminal prints at the cursor, and
/// because some terminals wrap after a full line. Nobody could erase a wrapped line.
const ECHO_COLUMNS: u16 = 5;

/// The width if it cannot be read, in columns.
const WIDTH_UNKNOWN: usize = 75;

const ERASE_TO_END: &[u8] = b"\x1b[K";
