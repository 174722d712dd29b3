//! How a run shows its progress: one line on a terminal, below everything else, or log lines.

mod cursor;
mod line;
mod plain;
mod screen;

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use line::{Facts, Stopping};
pub use plain::LOG_TARGET;

use rustix::termios::Winsize;

use line::format_line;
use plain::PlainProgress;
use posse_base::time::Millis;
use screen::{STDERR, Screen, Source, TerminalQueries};

/// How a run shows its progress. Clones share it.
#[derive(Clone, Debug)]
pub struct Progress {
    /// The terminal with the progress line, which may be hidden.
    pub line: Option<ProgressLine>,
    pub plain: Option<PlainLines>,
}

impl Progress {
    /// Shows these values, if they have changed and the last time is not too recent. Returns when to
    /// call again, if nothing else happens.
    pub fn show(&self, facts: impl FnOnce() -> Facts, now: Millis) -> Option<Millis> {
        match (&self.plain, &self.line) {
            (Some(PlainLines(plain)), _) => lock(plain).show(facts, now),
            (None, Some(line)) if line.is_shown => Some(line.show(facts, now)),
            (None, Some(_) | None) => None,
        }
    }
}

/// Progress as log lines. Clones share it.
#[derive(Clone, Debug)]
pub struct PlainLines(Arc<Mutex<PlainProgress>>);

impl PlainLines {
    /// For the run of this application.
    pub fn new(app: &str) -> Self {
        Self(Arc::new(Mutex::new(PlainProgress::new(app))))
    }
}

/// The terminal with the progress line, to which everything else that is written there has to go
/// through here. Clones share it.
#[derive(Clone)]
pub struct ProgressLine {
    app: Arc<str>,
    is_shown: bool,
    has_colors: bool,
    terminal: Arc<File>,
    screen: Arc<Mutex<Screen>>,
}

impl std::fmt::Debug for ProgressLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ProgressLine(..)")
    }
}

impl ProgressLine {
    /// `None` if stderr is not a terminal.
    pub fn on_stderr(app: &str, is_shown: bool, has_colors: bool) -> Option<Self> {
        let stderr = io::stderr();
        let terminal = stderr.as_fd().try_clone_to_owned().ok().filter(|_| stderr.is_terminal())?;
        Some(Self::new(app, is_shown, has_colors, File::from(terminal), Box::new(stderr), STDERR))
    }

    /// The terminal of this session, without a line.
    pub fn hidden(app: &str) -> io::Result<Self> {
        let terminal = File::options().read(true).write(true).open("/dev/tty")?;
        let out = Box::new(terminal.try_clone()?);
        Ok(Self::new(app, false, false, terminal, out, STDERR))
    }

    fn new(
        app: &str,
        is_shown: bool,
        has_colors: bool,
        terminal: File,
        out: Box<dyn Write + Send>,
        queries: TerminalQueries,
    ) -> Self {
        let screen = Arc::new(Mutex::new(Screen::new(out, queries)));
        Self { app: app.into(), is_shown, has_colors, terminal: Arc::new(terminal), screen }
    }

    /// Draws the line if it has changed and the last drawing is not too recent. Returns when to call
    /// again.
    fn show(&self, facts: impl FnOnce() -> Facts, now: Millis) -> Millis {
        let mut screen = lock(&self.screen);
        if let Some(at) = screen.busy_until(now) {
            return at;
        }
        let (facts, width) = (facts(), screen.width());
        screen.set_line(format_line(&self.app, &facts, Some(now.0), width, self.has_colors), now);
        // The elapsed time on the line changes at the next full second.
        Millis(now.0 - now.0 % 1000).after(1000)
    }

    /// Erases the line until the next `show`.
    pub fn clear(&self) {
        lock(&self.screen).clear();
    }

    /// While the driver has the terminal for itself, nothing is drawn.
    pub fn lend(&self, is_lent: bool) {
        lock(&self.screen).lend(is_lent);
    }

    /// True if `file` is this terminal.
    pub fn is_on(&self, file: impl AsFd) -> bool {
        let device = |file| rustix::fs::fstat(file).ok().map(|stat| stat.st_rdev);
        // `/dev/tty` has a number of its own, whatever terminal it is.
        let session = |file| rustix::termios::tcgetsid(file).ok();
        let (file, ours) = (file.as_fd(), self.terminal.as_fd());
        let is_same = device(file) == device(ours)
            || session(file).is_some() && session(file) == session(ours);
        file.is_terminal() && is_same
    }

    /// The size of the terminal's window.
    pub fn window_size(&self) -> Option<Winsize> {
        rustix::termios::tcgetwinsize(&*self.terminal).ok()
    }

    /// A writer for log lines, which prints them above the progress line.
    pub fn log_writer(&self) -> ScreenWriter {
        ScreenWriter { screen: Arc::clone(&self.screen), source: Source::Log }
    }

    /// A writer for the driver's output, which may contain anything.
    pub fn driver_writer(&self) -> ScreenWriter {
        ScreenWriter { screen: Arc::clone(&self.screen), source: Source::Driver }
    }
}

/// Writes to the terminal of the progress line: erases the line, writes, and draws it again.
pub struct ScreenWriter {
    screen: Arc<Mutex<Screen>>,
    source: Source,
}

impl std::fmt::Debug for ScreenWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ScreenWriter({:?})", self.source)
    }
}

impl Write for ScreenWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.screen).write(self.source, bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // At worst, a line is half drawn; the next drawing repairs it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A terminal that records its output.
    #[derive(Clone, Default)]
    struct Recorder(Arc<Mutex<Vec<u8>>>);

    impl Write for Recorder {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Recorder {
        fn take(&self) -> String {
            String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
        }
    }

    fn line_on(terminal: &Recorder, is_foreground: fn() -> bool) -> ProgressLine {
        let queries = TerminalQueries { width: || 80, is_foreground };
        let file = File::open("/dev/null").unwrap();
        ProgressLine::new("w", true, false, file, Box::new(terminal.clone()), queries)
    }

    fn start() -> (Recorder, ProgressLine) {
        let terminal = Recorder::default();
        let line = line_on(&terminal, || true);
        (terminal, line)
    }

    const IDLE: &str = "\rw  running 0/0  00:00\x1b[K";

    #[test]
    fn the_line_is_drawn_only_when_needed() {
        let (terminal, line) = start();
        let facts = |running| move || Facts { running, target: 9, ..Facts::default() };
        assert_eq!(line.show(facts(1), Millis(50)), Millis(1000));
        assert_eq!(terminal.take(), "\rw  running 1/9  00:00\x1b[K");
        // Too soon after the last drawing.
        assert_eq!(line.show(facts(2), Millis(100)), Millis(250));
        assert_eq!(terminal.take(), "");
        assert_eq!(line.show(facts(2), Millis(250)), Millis(1000));
        assert_eq!(terminal.take(), "\rw  running 2/9  00:00\x1b[K");
        // Nothing has changed until the second is over.
        assert_eq!(line.show(facts(2), Millis(999)), Millis(1000));
        assert_eq!(terminal.take(), "");
        assert_eq!(line.show(facts(2), Millis(1000)), Millis(2000));
        assert_eq!(terminal.take(), "\rw  running 2/9  00:01\x1b[K");
    }

    #[test]
    fn log_lines_are_printed_above_the_progress_line() {
        let (terminal, line) = start();
        let mut log = line.log_writer();
        log.write_all(b"before\n").unwrap();
        assert_eq!(terminal.take(), "before\n");
        line.show(Facts::default, Millis(0));
        terminal.take();
        log.write_all(b"one\ntwo\n").unwrap();
        assert_eq!(terminal.take(), format!("\r\x1b[Kone\ntwo\n{IDLE}"));
        line.clear();
        assert_eq!(terminal.take(), "\r\x1b[K");
        log.write_all(b"after\n").unwrap();
        assert_eq!(terminal.take(), "after\n");
    }

    #[test]
    fn a_line_that_the_driver_has_begun_is_never_touched() {
        let (terminal, line) = start();
        let (mut log, mut driver) = (line.log_writer(), line.driver_writer());
        line.show(Facts::default, Millis(0));
        terminal.take();
        driver.write_all(b"50%").unwrap();
        assert_eq!(terminal.take(), "\r\x1b[K50%");
        line.show(Facts::default, Millis(1000));
        assert_eq!(terminal.take(), "", "not drawn behind it");
        driver.write_all(b"\r60%").unwrap();
        assert_eq!(terminal.take(), "\r60%");
        log.write_all(b"lost\n").unwrap();
        let later = "\rw  running 0/0  00:01\x1b[K";
        assert_eq!(terminal.take(), format!("\r\nlost\n{later}"), "on a line of its own");
        driver.write_all(b"\r70%\n").unwrap();
        assert_eq!(terminal.take(), format!("\r\x1b[K\r70%\n{later}"));
    }

    #[test]
    fn nothing_is_drawn_on_a_terminal_that_others_have() {
        let (terminal, line) = start();
        line.show(Facts::default, Millis(0));
        line.lend(true);
        assert_eq!(terminal.take(), format!("{IDLE}\r\x1b[K"));
        line.show(Facts::default, Millis(1000));
        line.log_writer().write_all(b"lost\n").unwrap();
        line.driver_writer().write_all(b">>> ").unwrap();
        assert_eq!(terminal.take(), "lost\r\n>>> ");
        line.driver_writer().write_all(b"\n").unwrap();
        line.lend(false);
        terminal.take();
        line.show(Facts::default, Millis(2000));
        assert_eq!(terminal.take(), "\rw  running 0/0  00:02\x1b[K");
        // In the background.
        let line = line_on(&terminal, || false);
        line.show(Facts::default, Millis(0));
        line.log_writer().write_all(b"lost\n").unwrap();
        assert_eq!(terminal.take(), "lost\n");
    }

    #[test]
    fn line_ends_are_those_that_the_terminal_needs() {
        let (terminal, line) = start();
        // The driver's own terminal has put a carriage return before each line feed, as this one will.
        line.driver_writer().write_all(b"one\r\ntwo\r\r\n").unwrap();
        line.log_writer().write_all(b"log\n").unwrap();
        assert_eq!(terminal.take(), "one\ntwo\r\nlog\n");
        // A terminal that the driver reads adds nothing.
        line.lend(true);
        line.driver_writer().write_all(b"one\r\ntwo\n").unwrap();
        line.log_writer().write_all(b"log\n").unwrap();
        assert_eq!(terminal.take(), "one\r\ntwo\nlog\r\n");
    }
}
